package image

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/sys/unix"
)

// An archive may have /tmp/x without an entry for /tmp (ko, Bazel and Jib make such). Its layer's /tmp is then 0755 of
// root, and overlayfs shows the attributes of the topmost layer: a /tmp that nobody can write to. Layers are shared and
// know nothing of those below them, so the image gets one more layer on top that has only such folders, with the
// attributes of the highest layer that states them.

// folderAttributes are those of one folder in an implied layer.
type folderAttributes struct {
	Path     string            `json:"path"`
	Mode     uint32            `json:"mode"`
	UID, GID int               `json:",omitempty"`
	Mtime    int64             `json:"mtime"` // nanoseconds
	Xattrs   map[string][]byte `json:"xattrs,omitempty"`
	wrong    bool              // overlayfs would show others
}

// impliedLayer makes the extra layer if these layers (ids, bottom first) need one, and returns its id, or "".
func (s *Store) impliedLayer(ctx context.Context, ids []string, metas []layerMeta) (string, *fileLock, error) {
	wanted := map[string]bool{}
	for _, m := range metas {
		for _, p := range m.Implied {
			wanted[p] = true
		}
	}
	if len(wanted) == 0 {
		return "", nil, nil
	}
	st, err := s.openStack(ids, metas)
	if err != nil {
		return "", nil, err
	}
	defer st.close()
	folders := map[string]folderAttributes{}
	for p := range wanted {
		f, found, err := st.attributes(p)
		if err != nil {
			return "", nil, err
		}
		if !found || !f.wrong {
			continue
		}
		folders[p] = f
		for dir := path.Dir(p); dir != "."; dir = path.Dir(dir) {
			if f, found, err = st.attributes(dir); err != nil {
				return "", nil, err
			} else if found {
				folders[dir] = f
			}
		}
	}
	if len(folders) == 0 {
		return "", nil, nil
	}
	list := make([]folderAttributes, 0, len(folders))
	for _, f := range folders {
		list = append(list, f)
	}
	slices.SortFunc(list, func(a, b folderAttributes) int { return cmp.Compare(a.Path, b.Path) })
	b, err := json.Marshal(list)
	if err != nil {
		return "", nil, err
	}
	id := layerID(digestOf(b))
	lock, _, err := s.layer(ctx, id, func(_ context.Context, root string) (layerMeta, error) {
		return layerMeta{Entries: int64(len(list))}, makeFolders(root, list)
	})
	return id, lock, err
}

func makeFolders(root string, list []folderAttributes) error {
	if err := os.Chmod(root, 0o755); err != nil {
		return err
	}
	for _, f := range list {
		p := filepath.Join(root, f.Path)
		if err := os.Mkdir(p, 0o700); err != nil {
			return err
		}
		if err := os.Chown(p, f.UID, f.GID); err != nil {
			return err
		}
		if err := unix.Chmod(p, f.Mode); err != nil {
			return err
		}
		for k, v := range f.Xattrs {
			if err := unix.Lsetxattr(p, k, v, 0); err != nil && !errors.Is(err, unix.ENOTSUP) {
				return err
			}
		}
	}
	// From the innermost out, since making a folder changes its parent's time.
	for _, f := range slices.Backward(list) {
		t := unix.NsecToTimespec(f.Mtime)
		if err := unix.UtimesNanoAt(unix.AT_FDCWD, filepath.Join(root, f.Path), []unix.Timespec{t, t}, unix.AT_SYMLINK_NOFOLLOW); err != nil {
			return err
		}
	}
	return nil
}

// stack is the layers of an image, opened.
type stack struct {
	fds     []int
	implied []map[string]bool
}

func (s *Store) openStack(ids []string, metas []layerMeta) (*stack, error) {
	st := &stack{}
	for i, id := range ids {
		fd, err := unix.Open(s.layerDir(id), unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
		if err != nil {
			st.close()
			return nil, err
		}
		set := make(map[string]bool, len(metas[i].Implied))
		for _, p := range metas[i].Implied {
			set[p] = true
		}
		st.fds, st.implied = append(st.fds, fd), append(st.implied, set)
	}
	return st, nil
}

func (st *stack) close() {
	for _, fd := range st.fds {
		_ = unix.Close(fd)
	}
}

// attributes finds those that the highest layer with an entry for folder p gives it; found is false where the image
// shows no folder, or none that an entry describes.
func (st *stack) attributes(p string) (f folderAttributes, found bool, err error) {
	seen := false // a higher layer has the folder, implied
	for i := len(st.fds) - 1; i >= 0; i-- {
		fd, cut, err := st.find(i, p)
		if err != nil {
			return f, false, err
		}
		if fd >= 0 {
			if !st.implied[i][p] {
				f, err = readAttributes(fd, p)
				f.wrong = seen && (f.Mode != 0o755 || f.UID != 0 || f.GID != 0 || len(f.Xattrs) > 0)
				_ = unix.Close(fd)
				return f, err == nil, err
			}
			_ = unix.Close(fd)
			seen = true
		}
		if cut {
			break
		}
	}
	return f, false, nil
}

// find opens folder p of layer i (-1 if it isn't there); cut says that the layer hides what lower ones have at p.
func (st *stack) find(i int, p string) (fd int, cut bool, err error) {
	parts := strings.Split(p, "/")
	for n := range parts {
		fd, err := openBeneath(st.fds[i], strings.Join(parts[:n+1], "/"), unix.RESOLVE_BENEATH|unix.RESOLVE_NO_SYMLINKS)
		switch {
		case errors.Is(err, unix.ENOENT):
			return -1, cut, nil
		case errors.Is(err, unix.ENOTDIR), errors.Is(err, unix.ELOOP):
			return -1, true, nil
		case err != nil:
			return -1, cut, err
		}
		var v [1]byte
		if n, err := unix.Getxattr(fdPath(fd), opaqueAttr, v[:]); err == nil && n == 1 && v[0] == 'y' {
			cut = true
		}
		if n == len(parts)-1 {
			return fd, cut, nil
		}
		_ = unix.Close(fd)
	}
	return -1, cut, nil
}

func readAttributes(fd int, p string) (folderAttributes, error) {
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return folderAttributes{}, err
	}
	f := folderAttributes{Path: p, Mode: st.Mode & 0o7777, UID: int(st.Uid), GID: int(st.Gid), Mtime: st.Mtim.Nano()}
	buf := make([]byte, 64<<10)
	n, err := unix.Listxattr(fdPath(fd), buf)
	if err != nil {
		return f, nil
	}
	for _, k := range strings.Split(strings.Trim(string(buf[:n]), "\x00"), "\x00") {
		if !keptAttribute(k) {
			continue
		}
		v := make([]byte, 64<<10)
		n, err := unix.Getxattr(fdPath(fd), k, v)
		if err != nil {
			return f, err
		}
		if f.Xattrs == nil {
			f.Xattrs = map[string][]byte{}
		}
		f.Xattrs[k] = v[:n]
	}
	return f, nil
}
