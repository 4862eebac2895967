package store

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"
)

// networked are the file systems on which SQLite's locks or its shared memory can't be relied on, by statfs(2)'s f_type.
var networked = map[int64]string{
	unix.NFS_SUPER_MAGIC: "NFS", unix.SMB_SUPER_MAGIC: "SMB", unix.SMB2_SUPER_MAGIC: "SMB", unix.CIFS_SUPER_MAGIC: "SMB",
	unix.AFS_SUPER_MAGIC: "AFS", unix.AFS_FS_MAGIC: "AFS", unix.CODA_SUPER_MAGIC: "Coda", unix.NCP_SUPER_MAGIC: "NCP",
	unix.V9FS_MAGIC: "9P", unix.CEPH_SUPER_MAGIC: "Ceph", unix.OCFS2_SUPER_MAGIC: "OCFS2", unix.FUSE_SUPER_MAGIC: "FUSE",
	0x0bd00bd0: "Lustre", 0x01161970: "GFS2", 0x47504653: "GPFS",
}

// place makes the database's folder and file where they are missing, readable by their owner only, and gives the one
// path by which every process calls it.
func place(path string) (string, error) {
	path, err := filepath.Abs(path)
	if err != nil {
		return "", err
	}
	dir := filepath.Dir(path)
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return "", fmt.Errorf("the database's folder can't be made: %w", err)
	}
	var st unix.Statfs_t
	if err := unix.Statfs(dir, &st); err != nil {
		return "", fmt.Errorf("the database's folder %s: %w", dir, err)
	}
	if err := refuse(dir, int64(st.Type)); err != nil {
		return "", err
	}
	f, err := os.OpenFile(path, os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return "", fmt.Errorf("the database can't be opened: %w", err)
	}
	defer f.Close()
	if st, err := f.Stat(); err != nil || !st.Mode().IsRegular() {
		return "", fmt.Errorf("the database %s is not a file (%w)", path, errors.Join(err, fs.ErrInvalid))
	}
	return filepath.EvalSymlinks(path)
}

func refuse(dir string, magic int64) error {
	if kind := networked[magic]; kind != "" {
		return fmt.Errorf("the database's folder %s is on a network file system (%s), where SQLite loses data; "+
			"use a folder on a local disk, or PostgreSQL", dir, kind)
	}
	return nil
}

// fileLock is the instance lock of SQLite. The kernel frees it when the process ends, however it ends.
type fileLock struct{ f *os.File }

func lockFile(path string, exclusive bool) (held, error) {
	f, err := os.OpenFile(path, os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return nil, fmt.Errorf("the database's lock file: %w", err)
	}
	how := unix.LOCK_SH
	if exclusive {
		how = unix.LOCK_EX
	}
	for {
		err = unix.Flock(int(f.Fd()), how|unix.LOCK_NB)
		if !errors.Is(err, unix.EINTR) {
			break
		}
	}
	if err != nil {
		_ = f.Close()
		if errors.Is(err, unix.EWOULDBLOCK) {
			return nil, nil
		}
		return nil, fmt.Errorf("the database's lock file %s: %w", path, err)
	}
	return fileLock{f}, nil
}

func (l fileLock) alive(context.Context) error { return nil }
func (l fileLock) release()                    { _ = l.f.Close() }
