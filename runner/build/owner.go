package build

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"syscall"

	"github.com/claude-hub/claude-hub/runner/sandbox"
)

// Owner is whom a Workspace belongs to, as ids inside the Sandbox.
type Owner struct {
	UID int `json:"uid"`
	GID int `json:"gid"`
}

// OwnerOf reads who owns a Workspace of a mounted disk.
func OwnerOf(m sandbox.Mounted, workspace string) (Owner, error) {
	fi, err := os.Lstat(workspace)
	if err != nil {
		return Owner{}, err
	}
	st, ok := fi.Sys().(*syscall.Stat_t)
	if !ok {
		return Owner{}, errors.ErrUnsupported
	}
	return Owner{UID: int(st.Uid) - m.IDBase, GID: int(st.Gid) - m.IDBase}, nil
}

// HandOver has what belongs to one user of a Session's Workspace, dependency folders and caches belong to another: a newer version's
// image may have another user, who could neither write there nor use git. What others own stays theirs. No Sandbox may use the disk. It
// follows no link, and may be repeated after it was cut off.
func HandOver(m sandbox.Mounted, from, to Owner) error {
	store := filepath.Join(m.Folder, storeFolder)
	// Of dependency folders the files alone: what is around them is the agent's.
	kept, err := os.ReadDir(filepath.Join(store, dependenciesName))
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	var roots []string
	for _, k := range kept {
		if k.IsDir() { // and no link
			roots = append(roots, filepath.Join(store, dependenciesName, k.Name(), "data"))
		}
	}
	for _, root := range append(roots, filepath.Join(store, cacheName), filepath.Join(store, workspaceName)) {
		err := filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
			if err != nil {
				return err
			}
			return handOver(path, d, m.IDBase, from, to)
		})
		if err != nil && !errors.Is(err, fs.ErrNotExist) { // there may be no caches
			return err
		}
	}
	return nil
}

func handOver(path string, d fs.DirEntry, base int, from, to Owner) error {
	fi, err := d.Info()
	if err != nil {
		return err
	}
	st, ok := fi.Sys().(*syscall.Stat_t)
	if !ok {
		return errors.ErrUnsupported
	}
	uid, gid := -1, -1
	if int(st.Uid) == base+from.UID {
		uid = base + to.UID
	}
	if int(st.Gid) == base+from.GID {
		gid = base + to.GID
	}
	if uid < 0 && gid < 0 {
		return nil
	}
	if err := os.Lchown(path, uid, gid); err != nil {
		return err
	}
	if fi.Mode().IsRegular() && fi.Mode()&(fs.ModeSetuid|fs.ModeSetgid) != 0 { // which chown takes away
		return os.Chmod(path, fi.Mode())
	}
	return nil
}
