package oci

import (
	"testing"

	"golang.org/x/sys/unix"
)

// TestAWriterIsEndedBeforeTheHostIsFull has one Sandbox write more than the host has, on a host of 400 MiB.
func TestAWriterIsEndedBeforeTheHostIsFull(t *testing.T) {
	t.Parallel()
	host := t.TempDir()
	if err := unix.Mount("tmpfs", host, "tmpfs", 0, "size=400m,mode=711"); err != nil {
		t.Fatalf("mounting a small file system (the tests need root): %v", err)
	}
	t.Cleanup(func() { _ = unix.Unmount(host, unix.MNT_DETACH) })
	e := testEngine(t, func(c *Config) { c.Dir, c.LowWater = host, 200<<20 })
	quiet, greedy := start(t, e, "quiet", testSpec(t, e, "quiet")), start(t, e, "greedy", testSpec(t, e, "greedy"))
	sh(t, quiet, "echo mine >/root/file && sync")
	if _, err := ask(t.Context(), greedy, 0, "sh", "-c",
		"i=0; while [ $i -lt 90 ]; do dd if=/dev/zero of=/root/$i bs=1M count=5 conv=fsync 2>/dev/null; i=$((i+1)); sleep 0.05; done"); err == nil {
		t.Error("it wrote all it wanted")
	}
	eventually(t, "the writer is ended", func() bool {
		select {
		case <-greedy.Done():
			return true
		default:
			return false
		}
	})
	if free, err := freeBytes(host); err != nil || free < 20<<20 {
		t.Errorf("%d MiB are free, %v", free>>20, err)
	}
	// The host is almost full still: who writes a little goes on.
	if got := sh(t, quiet, "i=0; while [ $i -lt 20 ]; do head -c 9000 /dev/urandom >/root/$i; sync; sleep 0.1; i=$((i+1)); done; cat /root/file"); got != "mine" {
		t.Errorf("the other Sandbox has %q", got)
	}
	stop(t, e, "greedy")
	if _, err := e.Start(t.Context(), "greedy", testSpec(t, e, "greedy")); err == nil {
		t.Error("it was booted again without room")
	}
}
