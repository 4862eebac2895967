package agent

import (
	"crypto/rand"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"os"
	"path"

	"golang.org/x/sys/unix"
)

// A Store (sandbox.Store) is what the agent keeps dependency folders in. In its folder of the Store, each has a folder with its
// files in `data`, which is bound over its place in the Workspace, and an attribute that says what that is. Its place in the Workspace is an empty folder, told by its inode, so that it is found again whatever the folders above it are
// called by then. What changes between the two is one exchange of two names by rename(2): whatever is killed when, the files are
// whole in one place or whole in the other. That the attribute is metadata of the file system, as names are, has a power cut leave
// no exchange without it, though nothing waits for the disk.
type store struct {
	all  int // the Store's folder, on a mount of its own that covers all of it
	keep int // the agent's folder in it
}

const (
	dataName  = "data"
	planName  = "plan"
	placeAttr = "user.claude-hub.place"
	maxPlace  = 3000 // bytes of an attribute that any ext4 has room for
)

// inode tells a folder of the Store's disk from all others, those that had its number before it included.
type inode struct {
	number uint64
	born   int64 // ns
}

// place is what is kept of where a folder belongs.
type place struct {
	inode inode
	path  string // below the Workspace, when it was seen last
}

// kept is one folder of a store.
type kept struct {
	id    string
	dir   int // its folder in the store
	at    place
	data  inode
	empty bool // data was, when this was read
	bound bool
}

const resolveBeneath = unix.RESOLVE_BENEATH | unix.RESOLVE_NO_SYMLINKS | unix.RESOLVE_NO_XDEV

// openStore takes a Store over from the engine, and covers the place where it was found, so that nothing else finds it there.
func openStore(guest string) (*store, error) {
	all, err := unix.Open(guest, unix.O_PATH|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, fmt.Errorf("the Session's disk: %w", err)
	}
	if err := unix.Mount("none", guest, "tmpfs", unix.MS_RDONLY|unix.MS_NOSUID|unix.MS_NODEV|unix.MS_NOEXEC, "mode=000,size=4k"); err != nil {
		unix.Close(all)
		return nil, fmt.Errorf("the Session's disk can't be covered: %w", err)
	}
	return &store{all: all, keep: -1}, nil
}

// open opens a folder of the store by path, and follows nothing.
func (s *store) open(name string, flags uint64) (int, error) {
	return openBeneath(s.all, name, flags)
}

func openBeneath(dir int, name string, flags uint64) (int, error) {
	if name == "" {
		name = "."
	}
	return unix.Openat2(dir, name, &unix.OpenHow{Flags: flags | unix.O_DIRECTORY | unix.O_NOFOLLOW | unix.O_CLOEXEC, Resolve: resolveBeneath})
}

// openUnder opens a folder in another, without following a link, a mount over it included.
func openUnder(dir int, name string, flags int) (int, error) {
	return unix.Openat(dir, name, flags|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
}

// inodeOf looks at name in dir, or with an empty name at dir itself.
func inodeOf(dir int, name string) (inode, unix.Statx_t, error) {
	var st unix.Statx_t
	flags := unix.AT_SYMLINK_NOFOLLOW | unix.AT_NO_AUTOMOUNT
	if name == "" {
		flags |= unix.AT_EMPTY_PATH
	}
	err := unix.Statx(dir, name, flags, unix.STATX_BASIC_STATS|unix.STATX_BTIME|unix.STATX_MNT_ID, &st)
	return inode{number: st.Ino, born: st.Btime.Sec*1e9 + int64(st.Btime.Nsec)}, st, err
}

func isFolder(st unix.Statx_t) bool { return st.Mode&unix.S_IFMT == unix.S_IFDIR }

// isEmpty says whether there is nothing in the folder name of dir.
func isEmpty(dir int, name string) (bool, error) {
	fd, err := openUnder(dir, name, unix.O_RDONLY)
	if err != nil {
		return false, err
	}
	defer unix.Close(fd)
	empty := true
	_, err = readFolder(fd, make([]byte, 1024), func(entry) bool {
		empty = false
		return false
	})
	return empty, err
}

// list reads what is kept. What a kill left of a folder that was never moved in is cleared away.
func (s *store) list() ([]*kept, error) {
	fd, err := openUnder(s.keep, ".", unix.O_RDONLY)
	if err != nil {
		return nil, err
	}
	defer unix.Close(fd)
	var names []string
	if _, err := readFolder(fd, make([]byte, 32<<10), func(e entry) bool {
		if e.kind != unix.DT_REG {
			names = append(names, string(e.name))
		}
		return len(names) < maxKept
	}); err != nil {
		return nil, err
	}
	var all []*kept
	for _, name := range names {
		k, err := s.read(name)
		if err != nil {
			return all, fmt.Errorf("what is kept as %s can't be read: %w", visible(name), err)
		}
		if k.empty && (k.at.inode == k.data || k.at.inode == inode{}) {
			if err := s.forget(k); err != nil {
				return all, err
			}
			continue
		}
		all = append(all, k)
	}
	return all, nil
}

func (s *store) read(id string) (*kept, error) {
	dir, err := openUnder(s.keep, id, unix.O_RDONLY)
	if err != nil {
		return nil, err
	}
	k := &kept{id: id, dir: dir, empty: true}
	if k.data, _, err = inodeOf(dir, dataName); err == nil {
		k.empty, err = isEmpty(dir, dataName)
	}
	if err != nil && !errors.Is(err, unix.ENOENT) {
		unix.Close(dir)
		return nil, err
	}
	b := make([]byte, 64<<10)
	// Without it, nothing was moved in.
	if n, err := unix.Fgetxattr(dir, placeAttr, b); err == nil && n >= 16 {
		k.at.inode = inode{binary.LittleEndian.Uint64(b), int64(binary.LittleEndian.Uint64(b[8:]))}
		k.at.path = string(b[16:n])
	}
	return k, nil
}

func readSmall(dir int, name string) ([]byte, error) {
	fd, err := unix.Openat(dir, name, unix.O_RDONLY|unix.O_NOFOLLOW|unix.O_NONBLOCK|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, err
	}
	f := os.NewFile(uintptr(fd), name)
	defer f.Close()
	return io.ReadAll(io.LimitReader(f, 64<<10))
}

// write says where k belongs.
func (k *kept) write() error {
	b := binary.LittleEndian.AppendUint64(nil, k.at.inode.number)
	b = binary.LittleEndian.AppendUint64(b, uint64(k.at.inode.born))
	return unix.Fsetxattr(k.dir, placeAttr, append(b, k.at.path[:min(len(k.at.path), maxPlace)]...), 0)
}

// forget clears away what is kept without files in it.
func (s *store) forget(k *kept) error {
	err := unix.Unlinkat(k.dir, dataName, unix.AT_REMOVEDIR)
	if err != nil && !errors.Is(err, unix.ENOENT) {
		return err
	}
	k.close()
	return unix.Unlinkat(s.keep, k.id, unix.AT_REMOVEDIR)
}

func (k *kept) close() {
	if k.dir >= 0 {
		unix.Close(k.dir)
		k.dir = -1
	}
}

// adopt takes in the folder name of parent, which is a folder of the Workspace as the store sees it, at rel below the Workspace.
func (s *store) adopt(parent int, name, rel string) (*kept, error) {
	was, st, err := inodeOf(parent, name)
	if err != nil {
		return nil, err
	}
	if !isFolder(st) {
		return nil, unix.ENOTDIR
	}
	var id [8]byte
	rand.Read(id[:]) //nolint:errcheck // never fails
	k := &kept{id: hex.EncodeToString(id[:]), dir: -1}
	if err := unix.Mkdirat(s.keep, k.id, 0o700); err != nil {
		return nil, err
	}
	undo := func(err error) (*kept, error) {
		if ferr := s.forget(k); ferr != nil {
			k.close()
			err = errors.Join(err, ferr)
		}
		return nil, err
	}
	if k.dir, err = openUnder(s.keep, k.id, unix.O_RDONLY); err != nil {
		return nil, err
	}
	if err := s.twin(k.dir, st); err != nil {
		return undo(err)
	}
	if k.at.inode, _, err = inodeOf(k.dir, dataName); err != nil {
		return undo(err)
	}
	k.at.path, k.data = rel, was
	if err := k.write(); err != nil {
		return undo(err)
	}
	if err := unix.Renameat2(k.dir, dataName, parent, name, unix.RENAME_EXCHANGE); err != nil {
		return undo(err)
	}
	return k, nil
}

// twin makes an empty folder `data` in dir that looks like st, as which it will be seen while nothing is bound over it.
func (s *store) twin(dir int, st unix.Statx_t) error {
	if err := unix.Mkdirat(dir, dataName, 0o700); err != nil {
		return err
	}
	fd, err := openUnder(dir, dataName, unix.O_RDONLY)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	if err := unix.Fchown(fd, int(st.Uid), int(st.Gid)); err != nil {
		return err
	}
	return unix.Fchmod(fd, uint32(st.Mode)&0o7777)
}

// giveBack moves a kept folder's files to its place in the Workspace, the empty folder name of parent, and keeps nothing of it.
func (s *store) giveBack(k *kept, parent int, name string) error {
	if err := unix.Renameat2(k.dir, dataName, parent, name, unix.RENAME_EXCHANGE); err != nil {
		return err
	}
	return s.forget(k)
}

// bind binds k's files over its place, the folder to. That one must be its place still.
func (s *store) bind(k *kept, to int) error {
	is, _, err := inodeOf(to, "")
	if err != nil {
		return err
	}
	if is != k.at.inode {
		return fmt.Errorf("another folder is at its place")
	}
	from, err := unix.OpenTree(k.dir, dataName, unix.OPEN_TREE_CLONE|unix.OPEN_TREE_CLOEXEC|unix.AT_SYMLINK_NOFOLLOW)
	if err != nil {
		return err
	}
	defer unix.Close(from)
	if err := unix.MoveMount(from, "", to, "", unix.MOVE_MOUNT_F_EMPTY_PATH|unix.MOVE_MOUNT_T_EMPTY_PATH); err != nil {
		return err
	}
	k.bound = true
	return nil
}

// unbind takes the mount away whose root the descriptor is.
func (k *kept) unbind(root int) error {
	if err := unix.Unmount(fmt.Sprintf("/proc/self/fd/%d", root), unix.MNT_DETACH); err != nil {
		return err
	}
	k.bound = false
	return nil
}

// split cuts a path below the Workspace into the folder and the name in it.
func split(rel string) (dir, name string) {
	dir, name = path.Split(rel)
	return path.Clean("./" + dir), name
}
