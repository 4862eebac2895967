package oci

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/claude-hub/claude-hub/runner/sandbox"
)

// unmountedDisk is one with a file.
func unmountedDisk(t *testing.T, e *Engine) sandbox.Disk {
	t.Helper()
	d := testSpec(t, e, "a").Disk
	m, err := e.Mount(t.Context(), d)
	if err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(os.WriteFile(filepath.Join(m.Folder, "f"), []byte("kept"), 0o600), e.Unmount(t.Context(), d)); err != nil {
		t.Fatal(err)
	}
	return d
}

// room is how large the file system of a mounted disk is.
func room(t *testing.T, m sandbox.Mounted) int64 {
	t.Helper()
	var st unix.Statfs_t
	if err := unix.Statfs(m.Folder, &st); err != nil {
		t.Fatal(err)
	}
	if b, err := os.ReadFile(filepath.Join(m.Folder, "f")); string(b) != "kept" {
		t.Errorf("the file on it holds %q, %v", b, err)
	}
	return int64(st.Blocks) * st.Bsize
}

func TestADiskGrowsToItsEndThoughTheCallerGivesUp(t *testing.T) {
	t.Parallel()
	e := testEngine(t)
	d := unmountedDisk(t, e)
	d.Size *= 2
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	m, err := e.Mount(ctx, d)
	if err != nil {
		t.Fatal(err)
	}
	if got := room(t, m); got < d.Size*8/10 {
		t.Errorf("it has room for %d bytes, want about %d", got, d.Size)
	}
}

func TestADiskThatAKilledRunnerIsGrowingIsWaitedFor(t *testing.T) {
	t.Parallel()
	e := testEngine(t)
	d := unmountedDisk(t, e)
	image := filepath.Join(d.Path, diskImage)
	f, err := os.Open(image) // as resize2fs has it, which outlives its Runner
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if err := unix.Flock(int(f.Fd()), unix.LOCK_EX); err != nil {
		t.Fatal(err)
	}
	fi, err := f.Stat()
	if err != nil {
		t.Fatal(err)
	}
	inode := fmt.Sprintf(":%d ", fi.Sys().(*syscall.Stat_t).Ino)
	d.Size *= 2
	grown := make(chan error, 1)
	go func() {
		_, err := e.Mount(t.Context(), d)
		grown <- err
	}()
	eventually(t, "the second one waits for the lock", func() bool {
		select {
		case err := <-grown:
			t.Fatalf("the disk was taken while it was being grown: %v", err)
		default:
		}
		locks, err := os.ReadFile("/proc/locks")
		if err != nil {
			t.Fatal(err)
		}
		for line := range strings.Lines(string(locks)) {
			if strings.Contains(line, "->") && strings.Contains(line, inode) {
				return true
			}
		}
		return false
	})
	if err := f.Close(); err != nil {
		t.Fatal(err)
	}
	if err := <-grown; err != nil {
		t.Fatal(err)
	}
	m, err := e.Mount(t.Context(), d)
	if err != nil {
		t.Fatal(err)
	}
	if got := room(t, m); got < d.Size*8/10 {
		t.Errorf("it has room for %d bytes, want about %d", got, d.Size)
	}
}
