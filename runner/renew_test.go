package runner

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/claude-hub/claude-hub/app/fleet"
	"github.com/claude-hub/claude-hub/envspec"
	"github.com/claude-hub/claude-hub/runner/wire"
)

// breaks has a build whose snapshot can't be mounted until mended is called, as after a disk error.
func (w *world) breaks(key string) (mended func()) {
	w.t.Helper()
	base, found, err := w.runner.builder.Find(w.t.Context(), key)
	if err != nil || !found {
		w.t.Fatalf("the build: %v, %v", found, err)
	}
	top := base.Layers[len(base.Layers)-1]
	if err := unix.Unmount(strings.TrimSuffix(top, "/root/upper"), 0); err != nil {
		w.t.Fatal(err)
	}
	image := filepath.Join(Folder(w.data), "engine", "builds", base.Name, "disk.ext4")
	if err := os.Rename(image, image+".put-aside"); err != nil {
		w.t.Fatal(err)
	}
	return func() {
		w.t.Helper()
		if err := os.Rename(image+".put-aside", image); err != nil {
			w.t.Fatal(err)
		}
	}
}

// cantBuild has every build from now on fail before its Sandbox is up.
func (w *world) cantBuild() {
	w.t.Helper()
	disks := filepath.Join(Folder(w.data), "build", "disks")
	if err := errors.Join(os.RemoveAll(disks), os.WriteFile(disks, nil, 0o600)); err != nil {
		w.t.Fatal(err)
	}
}

// asleepWithAProgram is a Session on version 1 that sleeps, with a program in its root filesystem.
func (w *world) asleepWithAProgram(spec envspec.Spec) (id, key string) {
	w.t.Helper()
	recipe, key := w.version(spec)
	id = w.session(recipe, key, w.repo())
	w.untilState(id, wire.StateRunning)
	w.sh(id, "echo work >mine; echo installed >~/program")
	w.change(id, fleet.Stop)
	w.untilState(id, wire.StateAsleep)
	return id, key
}

// moves has a Session wake on a version.
func (w *world) moves(id string, spec envspec.Spec, version int) {
	w.t.Helper()
	recipe, key := w.version(spec)
	w.edit(id, fleet.Run, func(p *wire.Session) { p.Recipe, p.BuildKey, p.Version = recipe, key, version })
}

func TestAFailedWakeLeavesTheRootFilesystemAsItWas(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.start()
	one := envspec.Spec{Image: w.image("app:v1", asCoder), Bootstrap: "echo 1 >/version"}
	two := one
	two.Bootstrap = "echo 2 >/version"
	id, _ := w.asleepWithAProgram(one)
	state, d := w.outcome(w.test(two, w.repo()))
	if state != wire.StatePassed {
		t.Fatalf("%s: %+v", state, d.Failure)
	}
	mended := w.breaks(d.BuildKey)
	w.cantBuild()
	w.moves(id, two, 2)
	if d := sessionDetail(t, w.untilState(id, wire.StateFailed)); d.Failure == nil || d.Version != 1 {
		t.Errorf("the wake that failed: %+v, %+v", d, d.Failure)
	}
	w.moves(id, one, 1)
	w.untilState(id, wire.StateRunning)
	w.shows(id, "cat mine ~/program /version", "work\ninstalled\n1\n")
	w.change(id, fleet.Stop)
	w.untilState(id, wire.StateAsleep)
	mended()
	w.moves(id, two, 2)
	w.untilState(id, wire.StateRunning)
	w.shows(id, "cat mine ~/program /version 2>/dev/null || true", "work\n2\n")
	w.untilLog(id, "boot: a fresh Sandbox on the Session's disk; programs installed outside the Workspace are gone\n")
}

func TestALostBuildIsMadeAnewAndTakesNoWorkWithIt(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.start()
	spec := envspec.Spec{Image: w.image("app:v1", asCoder), Bootstrap: "echo making; echo 1 >/version"}
	id, key := w.asleepWithAProgram(spec)
	other, _ := w.asleepWithAProgram(spec)
	w.breaks(key)
	w.change(id, fleet.Run)
	w.untilState(id, wire.StateRunning)
	w.untilLog(id, "; the build is made anew\n")
	w.shows(id, "cat mine /version; cat ~/program 2>/dev/null || true", "work\n1\n")
	w.untilLogs(id, "\nmaking\n", 2)
	w.nap(id, nil)
	w.change(other, fleet.Run)
	w.untilState(other, wire.StateRunning)
	w.shows(other, "cat mine /version", "work\n1\n")
	if log := w.log(other); strings.Contains(log, "making") {
		t.Errorf("what was made anew for another is made once more:\n%s", log)
	}
}

func TestALostBuildThatCantBeMadeAnewTakesNoRootFilesystemWithIt(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.start()
	id, key := w.asleepWithAProgram(envspec.Spec{Image: w.image("app:v1", asCoder), Bootstrap: "echo 1 >/version"})
	mended := w.breaks(key)
	w.cantBuild()
	w.change(id, fleet.Run)
	w.untilState(id, wire.StateFailed)
	mended()
	w.change(id, fleet.Run)
	w.untilState(id, wire.StateRunning)
	w.shows(id, "cat mine ~/program /version", "work\ninstalled\n1\n")
}

func TestALostRootFilesystemIsSaidInTheLog(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.start()
	id, _ := w.asleepWithAProgram(envspec.Spec{Image: w.image("app:v1", asCoder)})
	const line = "boot: the root filesystem was gone from the Session's disk, and is made anew; programs installed outside the Workspace and the disks are gone\n"
	w.nap(id, nil)
	if log := w.log(id); strings.Contains(log, line) {
		t.Errorf("said of one that is there:\n%s", log)
	}
	w.nap(id, func(disk string) {
		if err := os.RemoveAll(filepath.Join(disk, "root")); err != nil {
			t.Fatal(err)
		}
	})
	w.untilLog(id, line)
	w.shows(id, "cat mine; cat ~/program 2>/dev/null || true", "work\n")
}
