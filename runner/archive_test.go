package runner

import (
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/claude-hub/claude-hub/app/fleet"
	"github.com/claude-hub/claude-hub/envspec"
	"github.com/claude-hub/claude-hub/runner/wire"
)

// archive has a Session archived, giving up what is named.
func (w *world) archive(id, gives string) wire.SessionDetail {
	w.t.Helper()
	w.edit(id, fleet.Stop, func(p *wire.Session) { p.Archive = gives })
	return sessionDetail(w.t, w.untilState(id, wire.StateArchived))
}

// restore brings it back.
func (w *world) restore(id string, want fleet.Want) {
	w.t.Helper()
	w.edit(id, want, func(p *wire.Session) { p.Archive = "" })
	state := wire.StateRunning
	if want == fleet.Stop {
		state = wire.StateAsleep
	}
	w.untilState(id, state)
}

// takes is what a Session's disk takes on the host, in bytes.
func (w *world) takes(id string) int64 {
	w.t.Helper()
	var st syscall.Stat_t
	if err := syscall.Stat(filepath.Join(w.runner.sessions, id, "disk.ext4"), &st); err != nil {
		w.t.Fatal(err)
	}
	return st.Blocks * 512
}

const everything = "cat mine; cat node_modules/a $XDG_CACHE_HOME/tool ~/program 2>/dev/null || true"

// full is a Session that has something of each kind, on a build of its own.
func (w *world) full() string {
	w.t.Helper()
	recipe, key := w.version(envspec.Spec{Image: w.image("app:v1", asCoder), Bootstrap: "echo 1 >/version"})
	id := w.session(recipe, key, w.repo())
	w.untilState(id, wire.StateRunning)
	w.sh(id, "echo {} >package.json; echo work >mine")
	w.nap(id, nil) // node_modules is on the disk from now on
	w.sh(id, "head -c 20000000 /dev/urandom >node_modules/big; echo deps >node_modules/a; echo cached >$XDG_CACHE_HOME/tool; echo installed >~/program")
	w.shows(id, everything, "work\ndeps\ncached\ninstalled\n")
	return id
}

func TestArchiveKeepsTheWorkspaceAndGivesTheRestToTheHost(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.start()
	id := w.full()
	w.change(id, fleet.Stop)
	w.untilState(id, wire.StateAsleep)
	before := w.takes(id)
	if d := w.archive(id, wire.ArchiveDisks); !d.Workspace || d.Version != 0 {
		t.Errorf("archived: %+v", d)
	}
	if after := w.takes(id); before-after < 20_000_000 {
		t.Errorf("its disk takes %d bytes, and took %d before: want 20 MB less", after, before)
	}
	if left := w.sandboxes(); len(left) > 0 {
		t.Errorf("Sandboxes of an archived Session: %v", left)
	}
	if w.runner.keeps("none", w.runner.workers[id].machine.Payload().BuildKey) {
		t.Error("an archived Session keeps a build")
	}
	w.untilLog(id, "archived: its Sandbox and all of its disk but the Workspace were given up\n")

	w.restore(id, fleet.Run)
	w.shows(id, everything, "work\n")
	w.sh(id, "test -d node_modules && echo again >node_modules/a")
	if log := w.log(id); strings.Contains(log, "lost") {
		t.Errorf("what was given up is said to be lost:\n%s", log)
	}
	w.archive(id, wire.ArchiveDisks) // one that runs
	w.restore(id, fleet.Stop)
	w.change(id, fleet.Run)
	w.untilState(id, wire.StateRunning)
	w.shows(id, everything, "work\n")

	w.archive(id, wire.ArchiveDisks)
	w.change(id, fleet.Remove)
	w.untilState(id, wire.StateRemoved)
	if left, _ := filepath.Glob(filepath.Join(w.runner.sessions, "*")); len(left) > 0 {
		t.Errorf("a deleted Session left %v", left)
	}
}

func TestAnArchiveThatKeepsTheDiskGivesUpTheSandboxOnly(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.start()
	id := w.full()
	w.archive(id, wire.ArchiveSandbox)
	w.restore(id, fleet.Run)
	w.shows(id, everything, "work\ndeps\ncached\n")
}

func TestAnArchiveGoesOnAfterTheRunnerWasKilledInIt(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.start()
	recipe, key := w.version(envspec.Spec{Image: w.image("app:v1", asCoder)})
	w.halt()
	w.spawn()
	id := w.session(recipe, key, w.repo())
	w.untilState(id, wire.StateRunning)
	w.sh(id, "echo work >mine; cd $XDG_CACHE_HOME; i=0; while [ $i -lt 3000 ]; do echo x >$i; i=$((i+1)); done")
	w.edit(id, fleet.Stop, func(p *wire.Session) { p.Archive = wire.ArchiveDisks })
	w.untilLog(id, "going to sleep\n")
	w.kill()
	w.spawn()
	w.untilState(id, wire.StateArchived)
	w.restore(id, fleet.Run)
	w.shows(id, "cat mine; ls $XDG_CACHE_HOME | wc -l", "work\n0\n")
}

func TestASessionWhoseDiskIsGoneCantBeArchived(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.start()
	id := w.full()
	w.change(id, fleet.Stop)
	w.untilState(id, wire.StateAsleep)
	if err := os.RemoveAll(filepath.Join(w.runner.sessions, id)); err != nil {
		t.Fatal(err)
	}
	w.edit(id, fleet.Stop, func(p *wire.Session) { p.Archive = wire.ArchiveDisks })
	if d := sessionDetail(t, w.untilState(id, wire.StateFailed)); d.Failure == nil || d.Failure.Code != "workspace-lost" {
		t.Errorf("want a Workspace that is reported as lost, got %+v", d)
	}
}
