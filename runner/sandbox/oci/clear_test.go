package oci

import (
	"errors"
	"os"
	"path/filepath"
	"testing"

	"github.com/claude-hub/claude-hub/runner/sandbox"
)

func TestClearKeepsWhatItIsToldToAndGivesTheRestToTheHost(t *testing.T) {
	t.Parallel()
	e := testEngine(t)
	s := testSpec(t, e, "a")
	m, err := e.Mount(t.Context(), s.Disk)
	if err != nil {
		t.Fatal(err)
	}
	big := make([]byte, 8<<20)
	for i := range big {
		big[i] = byte(i * 7)
	}
	for _, path := range []string{"store/work/deep/f", "store/deps/f", "store/deps-damaged-1/f", "old/f", "cache", trashMark + "of-a-killed-run/f"} {
		path = filepath.Join(m.Folder, path)
		if err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o700), os.WriteFile(path, big, 0o600)); err != nil {
			t.Fatal(err)
		}
	}
	start(t, e, "a", s)
	if err := e.Clear(t.Context(), s.Disk, "store/work"); !errors.Is(err, sandbox.ErrRunning) {
		t.Fatalf("of a disk in use: %v, want ErrRunning", err)
	}
	sh(t, e.box("a"), "echo mine >/root/f")
	stop(t, e, "a")
	if err := e.Clear(t.Context(), s.Disk, "store/work", "old"); err != nil {
		t.Fatal(err)
	}
	if mounted, err := isMountpoint(e.diskMount(s.Disk.Path)); mounted || err != nil {
		t.Errorf("the disk is mounted: %v, %v", mounted, err)
	}
	if took, err := allocated(filepath.Join(s.Disk.Path, diskImage)); took > 3*int64(len(big)) || err != nil {
		t.Errorf("the disk takes %d bytes, want little more than the two files of %d that are kept: %v", took, len(big), err)
	}
	if m, err = e.Mount(t.Context(), s.Disk); err != nil {
		t.Fatal(err)
	}
	left, err := filepath.Glob(filepath.Join(m.Folder, "*"))
	if err != nil {
		t.Fatal(err)
	}
	hidden, err := filepath.Glob(filepath.Join(m.Folder, ".*"))
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, p := range append(left, hidden...) {
		names = append(names, filepath.Base(p))
	}
	if got := len(names); got != 4 {
		t.Errorf("left on the disk: %v; want lost+found, old, root and store", names)
	}
	if inner, err := os.ReadDir(filepath.Join(m.Folder, "store")); err != nil || len(inner) != 1 || !exists(filepath.Join(m.Folder, "store/work/deep/f")) {
		t.Errorf("left of the store: %v, %v; want work, whole", inner, err)
	}
	if got := sh(t, start(t, e, "a", s), "cat /root/f"); got != "mine" {
		t.Errorf("the root filesystem holds %q", got)
	}
}
