package agent

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"strings"
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"
)

// The kernel refuses to remove or rename a folder that something is bound over (EBUSY), though to `rm -rf node_modules` it is a
// folder like any other. So those calls of all that the agent starts wait until it has looked at them (facts/sandbox.md §2.10).
// Nearly all go on as they are, by the names in them. Where one of them is that of a bound folder the agent takes the mount away,
// does as the caller what was asked, and binds again what is left.

type does int

const (
	removes does = iota + 1
	renames
	makes
)

// pathArg is a path as a call has it: a descriptor, and an address in the caller's memory.
type pathArg struct {
	dir  int32
	path uint64
}

// question is one call.
type question struct {
	does  does
	at    [2]pathArg
	flags uint32 // of renameat2(2)
	mode  uint32
}

// askedAt is asked for the calls that all architectures have.
func askedAt(nr int32, a [6]uint64) (question, bool) {
	first := pathArg{int32(a[0]), a[1]}
	switch nr {
	case unix.SYS_UNLINKAT:
		return question{does: removes, at: [2]pathArg{first}}, a[2] == unix.AT_REMOVEDIR
	case unix.SYS_MKDIRAT:
		return question{does: makes, at: [2]pathArg{first}, mode: uint32(a[2])}, true
	case unix.SYS_RENAMEAT:
		return question{does: renames, at: [2]pathArg{first, {int32(a[2]), a[3]}}}, true
	case unix.SYS_RENAMEAT2:
		return question{does: renames, at: [2]pathArg{first, {int32(a[2]), a[3]}}, flags: uint32(a[4])}, true
	}
	return question{}, false
}

// notification and response are the kernel's structs (linux/seccomp.h).
type notification struct {
	id      uint64
	pid     uint32
	flags   uint32
	nr      int32
	arch    uint32
	pointer uint64
	args    [6]uint64
}

type response struct {
	id    uint64
	value int64
	errno int32
	flags uint32
}

const (
	notifReceive  = 0xc0502100 // SECCOMP_IOCTL_NOTIF_RECV
	notifSend     = 0xc0182101 // SECCOMP_IOCTL_NOTIF_SEND
	notifValid    = 0x40082102 // SECCOMP_IOCTL_NOTIF_ID_VALID
	notifSetFlags = 0x40082104 // SECCOMP_IOCTL_NOTIF_SET_FLAGS; Linux 6.6
	syncWakeUp    = 1          // SECCOMP_USER_NOTIF_FD_SYNC_WAKE_UP: the two take turns on one processor
	goOn          = 1          // SECCOMP_USER_NOTIF_FLAG_CONTINUE
)

// watch answers for folders, on the descriptor that a filter gave.
type watch struct {
	folders *folders
	fd      int
	path    [2][unix.PathMax]byte
}

// run answers for ever, on a thread of its own.
func (w *watch) run() error {
	t, err := newThread(func() error {
		// Its umask is the caller's for a moment.
		return unix.Unshare(unix.CLONE_FS)
	})
	if err != nil {
		return fmt.Errorf("the agent can't have a thread of its own: %w", err)
	}
	unix.Syscall(unix.SYS_IOCTL, uintptr(w.fd), notifSetFlags, syncWakeUp) //nolint:errcheck // older kernels are slower
	go t.do(func() {
		for {
			w.next()
		}
	})
	return nil
}

func (w *watch) next() {
	var n notification
	if _, _, errno := unix.Syscall(unix.SYS_IOCTL, uintptr(w.fd), notifReceive, uintptr(unsafe.Pointer(&n))); errno != 0 {
		return // EINTR, or the caller was killed before it was asked for
	}
	r := response{id: n.id, flags: goOn}
	if done, err := w.answer(&n); done {
		r.flags = 0
		var errno syscall.Errno
		switch {
		case err == nil:
		case errors.As(err, &errno):
			r.errno = -int32(errno)
		default:
			r.errno = -int32(unix.EIO)
		}
	}
	unix.Syscall(unix.SYS_IOCTL, uintptr(w.fd), notifSend, uintptr(unsafe.Pointer(&r))) //nolint:errcheck // the caller was killed
}

// answer says whether the agent has done the call, and what it came to. If not, the kernel does it.
func (w *watch) answer(n *notification) (done bool, err error) {
	defer func() {
		if p := recover(); p != nil {
			fmt.Fprintf(os.Stderr, "claude-hub agent: %v\n", p)
			done = false
		}
	}()
	q, ok := asked(n.nr, n.args)
	if !ok {
		return false, nil
	}
	names := w.folders.names.Load()
	var size [2]int
	near := false
	for i := range q.paths() {
		if size[i], ok = w.read(n.pid, q.at[i].path, w.path[i][:]); !ok {
			return false, nil
		}
		near = near || names.has(lastPart(w.path[i][:size[i]]))
	}
	if !near {
		return false, nil
	}
	return w.look(n, q, string(w.path[0][:size[0]]), string(w.path[1][:size[1]]))
}

func (q question) paths() int {
	if q.does == renames {
		return 2
	}
	return 1
}

// read reads a path of the caller's memory, which may change at any time, and need not be there.
func (w *watch) read(pid uint32, at uint64, buf []byte) (int, bool) {
	const page = 4096
	for have := 0; have < len(buf); {
		// What is behind the page's end may not be there, so each part ends with a page; most paths are short.
		part := min(len(buf)-have, int(page-at%page), 256)
		n, err := unix.ProcessVMReadv(int(pid), []unix.Iovec{iovec(buf[have:][:part])}, []unix.RemoteIovec{{Base: uintptr(at), Len: part}}, 0)
		if err != nil || n != part {
			return 0, false
		}
		if end := bytes.IndexByte(buf[have:][:part], 0); end >= 0 {
			return have + end, true
		}
		have, at = have+part, at+uint64(part)
	}
	return 0, false
}

func iovec(b []byte) unix.Iovec {
	v := unix.Iovec{Base: &b[0]}
	v.SetLen(len(b))
	return v
}

// lastPart is what a path names in its folder: rmdir(2) and its like take slashes at the end.
func lastPart(path []byte) []byte {
	path = bytes.TrimRight(path, "/")
	return path[bytes.LastIndexByte(path, '/')+1:]
}

// spot is where a call's path leads: a name in a folder.
type spot struct {
	parent int
	name   string // with the slashes that end it
	bound  *kept  // is bound there
	root   int    // what is there, if there is something
	folder bool
}

func (s *spot) close() {
	for _, fd := range []int{s.parent, s.root} {
		if fd >= 0 {
			unix.Close(fd)
		}
	}
}

func (s *spot) plain() string { return strings.TrimRight(s.name, "/") }

// spot goes where a path leads, with the caller's rights.
func (f *folders) spot(c caller, a pathArg, path string) (*spot, error) {
	s := &spot{parent: -1, root: -1}
	trimmed := strings.TrimRight(path, "/")
	i := strings.LastIndexByte(trimmed, '/') + 1
	dir := path[:i]
	s.name = path[i:]
	from, err := c.folder(a.dir, path)
	if err != nil {
		return nil, err
	}
	defer unix.Close(from)
	if dir == "" {
		dir = "."
	}
	how := unix.OpenHow{Flags: unix.O_PATH | unix.O_DIRECTORY | unix.O_CLOEXEC, Resolve: unix.RESOLVE_NO_MAGICLINKS}
	err = c.as(func() (err error) {
		s.parent, err = unix.Openat2(from, dir, &how)
		return err
	})
	if err != nil {
		return nil, err
	}
	// O_PATH needs no right but to pass through the folder.
	err = c.as(func() (err error) {
		s.root, err = unix.Openat(s.parent, s.plain(), unix.O_PATH|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
		return err
	})
	if err == unix.ENOENT {
		s.root = -1
		return s, nil
	}
	if err != nil {
		s.root = -1
		s.close()
		return nil, err
	}
	is, st, err := inodeOf(s.root, "")
	if err != nil {
		s.close()
		return nil, err
	}
	s.folder = isFolder(st)
	if st.Attributes&unix.STATX_ATTR_MOUNT_ROOT != 0 {
		s.bound = f.kept[is]
	}
	return s, nil
}

// look does a call whose names are near. What it doesn't do itself goes on as it is, with whatever error there is.
func (w *watch) look(n *notification, q question, first, second string) (bool, error) {
	c, err := readCaller(n.pid)
	if err != nil || !c.sees() {
		return false, nil
	}
	f := w.folders
	f.mu.Lock()
	defer f.mu.Unlock()
	a, err := f.spot(c, q.at[0], first)
	if err != nil {
		return false, nil
	}
	defer a.close()
	b := &spot{parent: -1, root: -1}
	if q.does == renames {
		if b, err = f.spot(c, q.at[1], second); err != nil {
			return false, nil
		}
		defer b.close()
	}
	// Until here, all that was read of the process may have been of another with its number.
	if _, _, errno := unix.Syscall(unix.SYS_IOCTL, uintptr(w.fd), notifValid, uintptr(unsafe.Pointer(&n.id))); errno != 0 {
		return false, nil
	}
	switch q.does {
	case removes:
		if a.bound != nil {
			return true, f.remove(c, a)
		}
	case renames:
		if a.bound != nil || b.bound != nil || a.folder && f.belongs(b) {
			return f.rename(c, q.flags, a, b)
		}
	case makes:
		if a.root < 0 {
			return f.make(c, q.mode, a)
		}
	}
	return false, nil
}

// remove is rmdir(2) of a folder that is bound.
func (f *folders) remove(c caller, s *spot) error {
	k := s.bound
	if empty, err := isEmpty(k.dir, dataName); err != nil || !empty {
		return errors.Join(err, unix.ENOTEMPTY)
	}
	if err := f.unbind(k, s.root, s.plain()); err != nil {
		return err
	}
	defer f.publish()
	err := c.as(func() error { return unix.Unlinkat(s.parent, s.name, unix.AT_REMOVEDIR) })
	if err != nil {
		return errors.Join(err, f.again(k, s))
	}
	f.store.forget(k) //nolint:errcheck // without files and without a place, the next boot clears it away
	return nil
}

// again binds k where it was, after what was asked for could not be done.
func (f *folders) again(k *kept, s *spot) error {
	to, err := openUnder(s.parent, s.plain(), unix.O_PATH)
	if err != nil {
		return err
	}
	defer unix.Close(to)
	return f.bindOver(k, to, s.plain())
}

// rename is renameat2(2) from a to b, of which at least one is bound, or b is where something is to be bound.
func (f *folders) rename(c caller, flags uint32, a, b *spot) (bool, error) {
	exchange := flags == unix.RENAME_EXCHANGE
	if flags != 0 && !exchange && flags != unix.RENAME_NOREPLACE || a.root < 0 {
		return false, nil
	}
	if a.bound != nil && a.bound == b.bound {
		return true, nil // to itself
	}
	if b.bound != nil && !exchange {
		switch empty, err := isEmpty(b.bound.dir, dataName); {
		case err != nil:
			return true, err
		case flags == unix.RENAME_NOREPLACE:
			return true, unix.EEXIST
		case !a.folder:
			return true, unix.EISDIR
		case !empty:
			return true, unix.ENOTEMPTY
		}
	}
	defer f.publish()
	var ka, kb *kept
	if a.bound != nil {
		if err := f.unbind(a.bound, a.root, a.plain()); err != nil {
			return true, err
		}
		ka = a.bound
	}
	if b.bound != nil {
		if err := f.unbind(b.bound, b.root, b.plain()); err != nil {
			if ka != nil {
				err = errors.Join(err, f.again(ka, a))
			}
			return true, err
		}
		kb = b.bound
	}
	err := c.as(func() error { return unix.Renameat2(a.parent, a.name, b.parent, b.name, uint(flags)) })
	toA, toB := ka, kb // where each is bound now
	switch {
	case err == nil && exchange:
		toA, toB = kb, ka
	case err == nil:
		toA, toB = nil, ka
		if kb != nil {
			f.store.forget(kb) //nolint:errcheck // as in remove
		}
	}
	if err == nil {
		toA, toB = f.letGo(toA, a), f.letGo(toB, b)
	}
	if toA != nil {
		err = errors.Join(err, f.again(toA, a))
	}
	if toB != nil {
		err = errors.Join(err, f.again(toB, b))
	}
	if err == nil {
		f.moved(toA, a)
		f.moved(toB, b)
		if toB == nil && a.folder && f.belongs(b) && !f.holdsMounts(b) {
			f.takeIn(b)
		}
	}
	return true, err
}

// letGo makes of k, which is at a spot now where none is to be bound, an ordinary folder of the Workspace: a person who moved it there means it
// to be one, and what gives up the dependency folders must not take it along. It returns what is still to be bound.
func (f *folders) letGo(k *kept, s *spot) *kept {
	if k == nil {
		return nil
	}
	rel, ok := f.rel(s)
	if !ok || f.patterns.match(rel) {
		return k
	}
	dir, name := split(rel)
	parent, err := openBeneath(f.below, dir, unix.O_PATH)
	if err != nil {
		return k
	}
	defer unix.Close(parent)
	if f.store.giveBack(k, parent, name) == nil {
		return nil
	}
	if is, _, err := inodeOf(parent, name); err == nil && is == k.data {
		return nil // its files are there; what is left in the store is cleared away by the next boot
	}
	return k
}

// moved writes down where k is now. It is found by its place's inode; the path is for when that is lost.
func (f *folders) moved(k *kept, s *spot) {
	if k == nil {
		return
	}
	if rel, ok := f.rel(s); ok {
		k.at.path = rel
		k.write() //nolint:errcheck // as above
	}
}

// rel is the path of a spot below the Workspace; false if it isn't in it, but in a folder that is bound, or elsewhere.
func (f *folders) rel(s *spot) (string, bool) {
	_, st, err := inodeOf(s.parent, "")
	if err != nil || st.Mnt_id != f.mount {
		return "", false
	}
	path, err := os.Readlink(fmt.Sprintf("/proc/self/fd/%d", s.parent))
	if err != nil {
		return "", false
	}
	below, ok := strings.CutPrefix(path+"/", f.guest+"/")
	return below + s.plain(), ok
}

// make is mkdir(2) of what may be a dependency folder: it is then bound at once, so that what is installed comes onto the disk.
func (f *folders) make(c caller, mode uint32, s *spot) (bool, error) {
	if !f.belongs(s) {
		return false, nil
	}
	if err := c.as(func() error { return unix.Mkdirat(s.parent, s.name, mode&0o1777) }); err != nil {
		return true, err
	}
	f.takeIn(s)
	f.publish()
	return true, nil
}

// belongs says whether a folder at a spot is one to bind.
func (f *folders) belongs(s *spot) bool {
	rel, ok := f.rel(s)
	return ok && len(f.kept) < maxBound && f.patterns.match(rel) && !f.patterns.within(rel)
}

// holdsMounts says whether something is bound below a spot. It would be hidden if the whole were.
func (f *folders) holdsMounts(s *spot) bool {
	rel, ok := f.rel(s)
	b, err := os.ReadFile("/proc/self/mountinfo")
	if !ok || err != nil {
		return true
	}
	escaped := strings.NewReplacer("\\", `\134`, " ", `\040`, "\t", `\011`, "\n", `\012`, "#", `\043`).Replace(f.guest + "/" + rel + "/")
	return bytes.Contains(b, []byte(" "+escaped))
}

// takeIn binds the folder at a spot. What goes wrong leaves it an ordinary folder, for the next boot to bind.
func (f *folders) takeIn(s *spot) {
	rel, ok := f.rel(s)
	if !ok {
		return
	}
	dir, name := split(rel)
	parent, err := openBeneath(f.below, dir, unix.O_PATH)
	if err != nil {
		return
	}
	defer unix.Close(parent)
	if k, err := f.store.adopt(parent, name, rel); err == nil {
		if err := f.bind(k, rel); err != nil {
			f.store.giveBack(k, parent, name) //nolint:errcheck // as above
		}
	}
}
