package image

import (
	"context"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"
)

// fileLock is a flock. Every lock opens the file anew, so that goroutines of one process exclude each other as well
// as processes do, and the kernel lets go when the holder dies.
type fileLock struct{ f *os.File }

func (l *fileLock) release() {
	if l != nil && l.f != nil {
		_ = l.f.Close()
		l.f = nil
	}
}

func (s *Store) tryLock(name string, how int) (*fileLock, error) {
	f, err := os.OpenFile(filepath.Join(s.dir, "locks", name), os.O_RDWR|os.O_CREATE|unix.O_CLOEXEC, 0o600)
	if err != nil {
		return nil, err
	}
	for {
		err = unix.Flock(int(f.Fd()), how|unix.LOCK_NB)
		if err != unix.EINTR {
			break
		}
	}
	if err != nil {
		_ = f.Close()
		if err == unix.EWOULDBLOCK {
			return nil, nil
		}
		return nil, err
	}
	return &fileLock{f}, nil
}

// lock waits for the lock by polling, so that a cancelled context ends the wait.
func (s *Store) lock(ctx context.Context, name string, how int) (*fileLock, error) {
	wait := 2 * time.Millisecond
	for {
		if err := ctx.Err(); err != nil {
			return nil, err
		}
		l, err := s.tryLock(name, how)
		if l != nil || err != nil {
			return l, err
		}
		t := time.NewTimer(wait)
		select {
		case <-ctx.Done():
			t.Stop()
			return nil, ctx.Err()
		case <-t.C:
		}
		wait = min(2*wait, 200*time.Millisecond)
	}
}

func (s *Store) exclusive(ctx context.Context, name string) (*fileLock, error) {
	return s.lock(ctx, name, unix.LOCK_EX)
}

func layerLock(id string) string { return "layer-" + id }

const storeLock = "store"

// syncFileSystem makes all files of the folder's file system durable.
func syncFileSystem(folder string) error {
	f, err := os.Open(folder)
	if err != nil {
		return err
	}
	defer f.Close()
	return unix.Syncfs(int(f.Fd()))
}

// syncFolder makes renames in a folder durable.
func syncFolder(folder string) error {
	f, err := os.Open(folder)
	if err != nil {
		return err
	}
	defer f.Close()
	return f.Sync()
}

// writeFile replaces a file in one step, durably.
func writeFile(path string, b []byte) error {
	f, err := os.CreateTemp(filepath.Dir(path), ".new-*")
	if err != nil {
		return err
	}
	_, err = f.Write(b)
	if err == nil {
		err = f.Sync()
	}
	if e := f.Close(); err == nil {
		err = e
	}
	if err == nil {
		err = os.Rename(f.Name(), path)
	}
	if err != nil {
		_ = os.Remove(f.Name())
		return err
	}
	return syncFolder(filepath.Dir(path))
}
