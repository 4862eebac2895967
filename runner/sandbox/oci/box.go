package oci

import (
	"context"
	"net"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"

	"github.com/claude-hub/claude-hub/runner/sandbox"
)

// bootRecord is what is known of one boot, in RunDir. A boot is only as good as its record: one that isn't Ready is
// cleaned up, whatever runs of it.
type bootRecord struct {
	Generation string       `json:"generation"`
	Runtime    string       `json:"runtime,omitempty"` // that booted it; empty in records of older versions, which knew runc only
	Spec       sandbox.Spec `json:"spec"`
	Process    process      `json:"process"`
	Net        *lease       `json:"net,omitempty"`
	Ready      bool         `json:"ready"`
	Fresh      bool         `json:"fresh,omitempty"`
}

// box is a running Sandbox, booted or adopted by this process.
type box struct {
	e    *Engine
	id   sandbox.ID
	boot bootRecord
	done chan struct{}
}

func (e *Engine) newBox(id sandbox.ID, boot bootRecord, pidfd int) *box {
	b := &box{e: e, id: id, boot: boot, done: make(chan struct{})}
	go func() {
		// A file, so that waiting takes no thread: the runtime polls a pidfd as it does a socket.
		f := pollable(pidfd)
		defer f.Close()
		waitPollable(f)
		close(b.done)
	}()
	return b
}

func (b *box) running() bool {
	select {
	case <-b.done:
		return false
	default:
	}
	_, err := startTime(b.boot.Process.PID)
	return err == nil
}

func (b *box) ID() sandbox.ID        { return b.id }
func (b *box) Generation() string    { return b.boot.Generation }
func (b *box) Fresh() bool           { return b.boot.Fresh }
func (b *box) Done() <-chan struct{} { return b.done }

// Dial is sandbox.Sandbox's.
func (b *box) Dial(ctx context.Context) (net.Conn, error) {
	if isGVisor(b.boot.Runtime) {
		if !b.running() { // and processes that its kernel had on the host are just ending, with the socket
			return nil, &net.OpError{Op: "dial", Net: "unixgram", Err: unix.ECONNREFUSED}
		}
		return hand(ctx, b.e.socketPath(b.id))
	}
	var d net.Dialer
	return d.DialContext(ctx, "unix", b.e.socketPath(b.id))
}

// Usage is sandbox.Sandbox's.
func (b *box) Usage(context.Context) (sandbox.Usage, error) {
	u, err := b.e.cgroups.usage(b.id)
	if err != nil {
		return u, err
	}
	// Of a gVisor Sandbox the host's kernel sees one process, with all memory.
	u.OOMEnded = isGVisor(b.boot.Runtime) && u.OOMKills > 0
	var st unix.Statfs_t
	if err := unix.Statfs(b.e.diskMount(b.boot.Spec.Disk.Path), &st); err != nil {
		return u, err
	}
	u.DiskFree, u.DiskFiles = int64(st.Bavail)*st.Bsize, int64(st.Ffree)
	u.Disk, err = allocated(filepath.Join(b.boot.Spec.Disk.Path, diskImage))
	return u, err
}

func pollable(pidfd int) *os.File {
	_ = unix.SetNonblock(pidfd, true)
	return os.NewFile(uintptr(pidfd), "pidfd")
}

func waitPollable(f *os.File) {
	c, err := f.SyscallConn()
	if err == nil {
		err = c.Read(func(fd uintptr) bool { return waitExit(int(fd), 0) })
	}
	if err != nil {
		// Not pollable by the runtime: wait the plain way, on a thread.
		waitExit(int(f.Fd()), -1)
	}
}
