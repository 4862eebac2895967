package cmd

import (
	"strings"
	"testing"

	"github.com/claude-hub/claude-hub/app/apptest"
	"github.com/claude-hub/claude-hub/app/session"
	"github.com/claude-hub/claude-hub/envspec"
	"github.com/claude-hub/claude-hub/runner/wire"
)

// sleeper is a Hub with a Session that sleeps on version 1.
func sleeper(t *testing.T) (h *town, r *apptest.Runner, id string) {
	t.Helper()
	h = newTown(t, apptest.Options{})
	r = h.Runner("r1")
	h.Applied(h.Grant("ana"), r, envspec.Default())
	id = strings.TrimSpace(h.ok("", "session", "start", "--detach").out)
	r.MustReport(r.Item(), wire.StateRunning, wire.SessionDetail{Workspace: true, Version: 1, Stages: []wire.Stage{{Name: wire.StageSandbox, US: 41_000}}})
	if got := h.ok("", "session", "show", id); !strings.Contains(got.out, "newest boot: up after 41 ms: Sandbox 41 ms\n") {
		t.Errorf("show: %s", got.out)
	}
	h.ok("", "session", "sleep", id, "--detach")
	r.MustReport(r.Item(), wire.StateAsleep, wire.SessionDetail{Workspace: true, Version: 1})
	return h, r, id
}

func (h *town) state(id string) string {
	h.t.Helper()
	sn, err := h.Sessions.Get(h.t.Context(), h.Grant("ana"), id)
	if err != nil {
		h.t.Fatal(err)
	}
	return sn.State
}

// moves applies a version with another bootstrap; key is of its build.
func (h *town) moves(r *apptest.Runner, bootstrap, key string) {
	h.t.Helper()
	g := h.Grant("ana")
	spec := h.draft(g)
	spec.Bootstrap = bootstrap
	env, err := h.Environments.Get(h.t.Context(), g)
	if err != nil {
		h.t.Fatal(err)
	}
	d, err := h.Environments.Save(h.t.Context(), g, env.Draft.Revision, spec, nil)
	if err != nil {
		h.t.Fatal(err)
	}
	if _, err := h.Environments.Test(h.t.Context(), g, d.Revision, r.ID); err != nil {
		h.t.Fatal(err)
	}
	for _, item := range r.Items() {
		if item.GetKind() == wire.KindTestBuild {
			r.PassOn(item, apptest.Digest, key)
		}
	}
	if _, err := h.Environments.Apply(h.t.Context(), g, d.Revision, ""); err != nil {
		h.t.Fatal(err)
	}
}

const willBeGone = "programs installed outside the Workspace and the disks will be gone"

func TestAWakeThatReplacesTheRootFilesystemIsAskedFor(t *testing.T) {
	h, r, id := sleeper(t)
	h.moves(r, "echo two", apptest.BuildKey) // as if only the start script had changed
	if got := h.ok("", "session", "wake", id, "--detach"); strings.Contains(got.err, willBeGone) {
		t.Errorf("a wake on the same build is said to lose something: %+v", got)
	}
	r.MustReport(r.Item(), wire.StateRunning, wire.SessionDetail{Workspace: true, Version: 2})
	h.moves(r, "echo three", strings.Repeat("3", 64))
	h.ok("", "session", "wake", id) // it runs: nothing is replaced, and nothing asked
	h.ok("", "session", "sleep", id, "--detach")
	r.MustReport(r.Item(), wire.StateAsleep, wire.SessionDetail{Workspace: true, Version: 2})
	for _, answer := range []string{"no\n", ""} {
		h.refused(exitFailed, "moves from version 2 to version 3: "+willBeGone, answer, "session", "wake", id)
		h.refused(exitFailed, "moves from version 2 to version 3: "+willBeGone, answer, "session", "run", id, "--detach", "--", "true")
		if s := h.state(id); s != session.Asleep {
			t.Fatalf("answered %q, and it is %s", answer, s)
		}
	}
	h.ok("yes\n", "session", "wake", id, "--detach")
	if s := h.state(id); s != session.Waking {
		t.Errorf("answered yes, and it is %s", s)
	}
}

func TestADiskIsGrownByCommand(t *testing.T) {
	h, r, id := sleeper(t)
	h.refused(exitUsage, "such as --disk 40GiB", "", "session", "grow", id)
	h.refused(exitUsage, "is not a size", "", "session", "grow", id, "--disk", "much")
	h.refused(exitFailed, "The disk has room for 20 GiB already", "", "session", "grow", id, "--disk", "1GiB")
	if got := h.ok("", "session", "grow", id, "--disk", "40GiB"); !strings.Contains(got.err, "has a disk of 40GiB from its next wake on") {
		t.Errorf("grow: %+v", got)
	}
	h.ok("", "session", "wake", id, "--detach")
	var p wire.Session
	if r.Fetch(r.Item(), &p); p.DiskSize != 40<<30 {
		t.Errorf("the Runner is told %d bytes", p.DiskSize)
	}
}

func TestArchivingSaysWhatWillBeGoneAndAsks(t *testing.T) {
	h, r, id := sleeper(t)
	h.refused(exitFailed, "and Docker's images, containers and volumes will be gone. The Workspace stays.", "no\n", "session", "archive", id)
	if s := h.state(id); s != session.Asleep {
		t.Fatalf("answered no, and it is %s", s)
	}
	h.refused(exitFailed, "Only an archived Session can be restored", "", "session", "restore", id)
	h.ok("", "session", "archive", id, "--yes", "--detach")
	r.MustReport(r.Item(), wire.StateArchived, wire.SessionDetail{Workspace: true})

	if got := h.ok("", "session", "ls"); strings.Contains(got.out, id) || !strings.Contains(got.err, "1 archived: claude-hub session ls --archived") {
		t.Errorf("ls: %+v", got)
	}
	if got := h.ok("", "session", "ls", "--archived"); !strings.Contains(got.out, id) {
		t.Errorf("ls --archived: %+v", got)
	}
	h.refused(exitFailed, "This Session is archived. Restore it first.", "", "session", "wake", id)
	h.ok("", "session", "archive", id) // again: nothing to ask about
	h.ok("", "session", "restore", id)
	if s := h.state(id); s != session.Asleep {
		t.Errorf("restored, it is %s", s)
	}
	h.ok("", "session", "archive", id, "--yes", "--detach")
	r.MustReport(r.Item(), wire.StateArchived, wire.SessionDetail{Workspace: true})
	h.ok("", "session", "restore", id, "--wake", "--detach")
	if s := h.state(id); s != session.Waking {
		t.Errorf("restored and woken, it is %s", s)
	}
}
