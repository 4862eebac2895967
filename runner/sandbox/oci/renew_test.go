package oci

import (
	"errors"
	"os"
	"path/filepath"
	"testing"

	"github.com/claude-hub/claude-hub/runner/sandbox"
)

// renewed is a stopped Sandbox with a root filesystem on a snapshot, which is to be replaced by one on next.
func renewed(t *testing.T, e *Engine) (s, next sandbox.Spec, base sandbox.Base) {
	t.Helper()
	next = testSpec(t, e, "a")
	made := testSpec(t, e, "made")
	start(t, e, "made", made)
	stop(t, e, "made")
	base, err := e.Snapshot(t.Context(), "made", "v1", nil)
	if err != nil {
		t.Fatal(err)
	}
	s = next
	s.Base = base
	sb := start(t, e, "a", s)
	sh(t, sb, "echo old >/root/f")
	if !sb.Fresh() {
		t.Error("the first boot made no root filesystem")
	}
	if err := e.Renew(t.Context(), "a", s.Disk); !errors.Is(err, sandbox.ErrRunning) {
		t.Fatalf("of a running Sandbox: %v, want ErrRunning", err)
	}
	stop(t, e, "a")
	if err := e.Renew(t.Context(), "a", s.Disk); err != nil {
		t.Fatal(err)
	}
	return s, next, base
}

// holds wants a boot on s to have what the first root filesystem had, and to be none that makes one.
func holds(t *testing.T, e *Engine, s sandbox.Spec) {
	t.Helper()
	sb := start(t, e, "a", s)
	if got := sh(t, sb, "cat /root/f"); got != "old" || sb.Fresh() {
		t.Errorf("the root filesystem holds %q, fresh %v; want the old one", got, sb.Fresh())
	}
	stop(t, e, "a")
}

func TestARootFilesystemIsKeptUntilAFreshOneIsSettled(t *testing.T) {
	t.Parallel()
	e := testEngine(t)
	s, next, base := renewed(t, e)
	sb := start(t, e, "a", next)
	if sh(t, sb, "ls /root"); !sb.Fresh() {
		t.Error("the root filesystem is not fresh")
	}
	if err := e.Settle(t.Context(), "a", s.Disk, false); !errors.Is(err, sandbox.ErrRunning) {
		t.Fatalf("putting back under a running Sandbox: %v, want ErrRunning", err)
	}
	if err := e.Delete(t.Context(), base); !errors.Is(err, sandbox.ErrInUse) {
		t.Fatalf("deleting what the root filesystem that is aside is made on: %v, want ErrInUse", err)
	}
	stop(t, e, "a")
	for range 2 { // again does nothing
		if err := e.Settle(t.Context(), "a", s.Disk, false); err != nil {
			t.Fatal(err)
		}
	}
	if err := e.Delete(t.Context(), base); !errors.Is(err, sandbox.ErrInUse) {
		t.Fatalf("deleting what the root filesystem that was put back is made on: %v, want ErrInUse", err)
	}
	holds(t, e, s)

	if err := e.Renew(t.Context(), "a", s.Disk); err != nil {
		t.Fatal(err)
	}
	sh(t, start(t, e, "a", next), "echo new >/root/f")
	if err := e.Settle(t.Context(), "a", s.Disk, true); err != nil {
		t.Fatal(err)
	}
	stop(t, e, "a")
	if _, err := e.Start(t.Context(), "a", s); !errors.Is(err, sandbox.ErrOtherBase) {
		t.Errorf("on the old base: %v, want ErrOtherBase", err)
	}
	if err := e.Delete(t.Context(), base); err != nil {
		t.Errorf("the old base is held: %v", err)
	}
	sb = start(t, e, "a", next)
	if got := sh(t, sb, "cat /root/f"); got != "new" || sb.Fresh() {
		t.Errorf("on the new base: %q, fresh %v", got, sb.Fresh())
	}
}

func TestARootFilesystemThatIsAsideIsFoundWhateverWasKilled(t *testing.T) {
	t.Parallel()
	e := testEngine(t)
	at := func(m sandbox.Mounted, name string) string { return filepath.Join(m.Folder, name) }
	for name, killed := range map[string]func(t *testing.T, m sandbox.Mounted, next sandbox.Spec){
		"after Renew":                func(*testing.T, sandbox.Mounted, sandbox.Spec) {},
		"before the rename of Renew": func(t *testing.T, m sandbox.Mounted, _ sandbox.Spec) { rename(t, at(m, asideName), at(m, rootName)) },
		"with a fresh one that never answered": func(t *testing.T, _ sandbox.Mounted, next sandbox.Spec) {
			start(t, e, "a", next)
			stop(t, e, "a")
		},
		"between the renames of Settle": func(t *testing.T, m sandbox.Mounted, next sandbox.Spec) {
			start(t, e, "a", next)
			stop(t, e, "a")
			rename(t, at(m, rootName), at(m, trashMark+"x"))
		},
		"with the record lost": func(t *testing.T, m sandbox.Mounted, _ sandbox.Spec) {
			if err := os.Remove(e.recordFile("a")); err != nil {
				t.Fatal(err)
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			s, next, base := renewed(t, e)
			m, err := e.Mount(t.Context(), s.Disk)
			if err != nil {
				t.Fatal(err)
			}
			killed(t, m, next)
			holds(t, e, s)
			if err := e.Settle(t.Context(), "a", s.Disk, true); err != nil {
				t.Fatal(err)
			}
			holds(t, e, s)
			if err := errors.Join(e.Remove(t.Context(), "a"), e.DeleteDisk(t.Context(), s.Disk), e.Delete(t.Context(), base)); err != nil {
				t.Fatal(err)
			}
		})
	}
}

func rename(t *testing.T, from, to string) {
	t.Helper()
	if err := os.Rename(from, to); err != nil {
		t.Fatal(err)
	}
}

func TestRemoveTakesWhatIsAsideToo(t *testing.T) {
	t.Parallel()
	e := testEngine(t)
	s, next, base := renewed(t, e)
	start(t, e, "a", next)
	stop(t, e, "a")
	if err := e.Remove(t.Context(), "a"); err != nil {
		t.Fatal(err)
	}
	m, err := e.Mount(t.Context(), s.Disk)
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{rootName, asideName} {
		if exists(filepath.Join(m.Folder, name)) {
			t.Errorf("%s is still on the disk", name)
		}
	}
	if err := e.Delete(t.Context(), base); err != nil {
		t.Errorf("the base is held: %v", err)
	}
}
