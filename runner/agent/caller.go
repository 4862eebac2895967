package agent

import (
	"bufio"
	"fmt"
	"os"
	"strconv"
	"strings"
	"unsafe"

	"golang.org/x/sys/unix"
)

// caller is a process that waits for the agent's answer to its call: as whom it acts, and from where it sees paths.
type caller struct {
	uid, gid int // that the file system sees
	groups   []uint32
	umask    int
	pid      uint32
}

// readCaller reads what /proc says of a thread.
func readCaller(pid uint32) (caller, error) {
	c := caller{pid: pid, uid: -1, gid: -1, umask: -1}
	f, err := os.Open(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		return c, err
	}
	defer f.Close()
	sc := bufio.NewScanner(f)
	for sc.Scan() {
		key, rest, _ := strings.Cut(sc.Text(), ":")
		fields := strings.Fields(rest)
		switch {
		case key == "Umask" && len(fields) == 1:
			if n, err := strconv.ParseUint(fields[0], 8, 16); err == nil {
				c.umask = int(n)
			}
		case key == "Uid" && len(fields) == 4:
			c.uid, err = strconv.Atoi(fields[3])
		case key == "Gid" && len(fields) == 4:
			c.gid, err = strconv.Atoi(fields[3])
		case key == "Groups":
			for _, g := range fields {
				n, err := strconv.ParseUint(g, 10, 32)
				if err != nil {
					return c, err
				}
				c.groups = append(c.groups, uint32(n))
			}
		}
		if err != nil {
			return c, err
		}
	}
	if c.uid < 0 || c.gid < 0 || c.umask < 0 {
		return c, unix.EINVAL
	}
	return c, sc.Err()
}

// sees says whether a caller's root is the Sandbox's, as the agent sees it: in a chroot, or a container in the Sandbox, no path
// means what it means here.
func (c caller) sees() bool {
	var ours, theirs unix.Stat_t
	if unix.Stat("/proc/self/ns/mnt", &ours) != nil || unix.Stat(fmt.Sprintf("/proc/%d/ns/mnt", c.pid), &theirs) != nil || ours.Ino != theirs.Ino {
		return false
	}
	return unix.Stat("/", &ours) == nil && unix.Stat(fmt.Sprintf("/proc/%d/root", c.pid), &theirs) == nil && ours.Dev == theirs.Dev && ours.Ino == theirs.Ino
}

// folder opens the folder that a path of the caller's begins in.
func (c caller) folder(fd int32, path string) (int, error) {
	name := fmt.Sprintf("/proc/%d/cwd", c.pid)
	switch {
	case strings.HasPrefix(path, "/"):
		name = "/"
	case fd != unix.AT_FDCWD:
		name = fmt.Sprintf("/proc/%d/fd/%d", c.pid, fd)
	}
	return unix.Open(name, unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
}

// as runs f as the caller, as far as files are concerned. The thread shares its umask with no other.
func (c caller) as(f func() error) error {
	if err := become(c.groups, c.gid, c.uid); err != nil {
		return err
	}
	unix.Umask(c.umask)
	err := f()
	if rerr := become(nil, 0, 0); rerr != nil {
		panic(rerr) // it would go on as somebody else
	}
	return err
}

// become changes ids of this thread alone. Where the user isn't root, the capabilities over files go, and come back with it.
func become(groups []uint32, gid, uid int) error {
	set := func(trap uintptr, a, b uintptr) error {
		if _, _, e := unix.RawSyscall(trap, a, b, 0); e != 0 {
			return e
		}
		return nil
	}
	if uid == 0 {
		set(unix.SYS_SETFSUID, 0, 0) //nolint:errcheck // it tells the last one, and can't fail for root
	}
	if err := set(unix.SYS_SETGROUPS, uintptr(len(groups)), uintptr(unsafe.Pointer(unsafe.SliceData(groups)))); err != nil {
		return err
	}
	set(unix.SYS_SETFSGID, uintptr(gid), 0) //nolint:errcheck // as above
	if uid != 0 {
		set(unix.SYS_SETFSUID, uintptr(uid), 0) //nolint:errcheck // as above
	}
	return nil
}
