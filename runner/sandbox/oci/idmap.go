package oci

import (
	"fmt"
	"os"
	"runtime"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/claude-hub/claude-hub/runner/sandbox"
)

// idmapping makes a user namespace in which the ids from..from+IDRange of a file system are seen as to..to+IDRange. The
// caller closes the file. The namespace lives without a process: its first one is killed before it runs a line.
func idmapping(from, to int) (*os.File, error) {
	var pidfd int
	m := []syscall.SysProcIDMap{{ContainerID: from, HostID: to, Size: sandbox.IDRange}}
	// A traced child stops at its exec; the tracer is a thread, so it must not change before the child is reaped.
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	null, err := os.OpenFile("/dev/null", os.O_RDWR, 0)
	if err != nil {
		return nil, err
	}
	defer null.Close()
	p, err := os.StartProcess("/proc/self/exe", []string{"idmapping"}, &os.ProcAttr{
		Files: []*os.File{null, null, null},
		Sys: &syscall.SysProcAttr{
			Cloneflags: unix.CLONE_NEWUSER, UidMappings: m, GidMappings: m,
			Ptrace: true, Pdeathsig: syscall.SIGKILL, PidFD: &pidfd,
		},
	})
	if err != nil {
		return nil, fmt.Errorf("a user namespace can't be made: %w", err)
	}
	defer func() {
		_ = p.Kill()
		_, _ = p.Wait()
		if pidfd > 0 {
			unix.Close(pidfd)
		}
	}()
	f, err := os.Open(fmt.Sprintf("/proc/%d/ns/user", p.Pid))
	if err != nil {
		return nil, fmt.Errorf("the user namespace of %d can't be opened: %w", p.Pid, err)
	}
	return f, nil
}

// mountIdmapped shows the folder from at the folder to, read-only and with its ids mapped by the namespace userns.
func mountIdmapped(from, to string, userns *os.File) error {
	tree, err := unix.OpenTree(unix.AT_FDCWD, from, unix.OPEN_TREE_CLONE|unix.OPEN_TREE_CLOEXEC|unix.AT_SYMLINK_NOFOLLOW)
	if err != nil {
		return fmt.Errorf("layer %s can't be opened: %w", from, err)
	}
	defer unix.Close(tree)
	attr := unix.MountAttr{
		Attr_set:    unix.MOUNT_ATTR_IDMAP | unix.MOUNT_ATTR_RDONLY | unix.MOUNT_ATTR_NODEV,
		Propagation: unix.MS_PRIVATE,
		Userns_fd:   uint64(userns.Fd()),
	}
	if err := unix.MountSetattr(tree, "", unix.AT_EMPTY_PATH, &attr); err != nil {
		return fmt.Errorf("the ids of layer %s can't be mapped (its file system must support idmapped mounts, kernel 5.19 or newer): %w", from, err)
	}
	if err := unix.MoveMount(tree, "", unix.AT_FDCWD, to, unix.MOVE_MOUNT_F_EMPTY_PATH); err != nil {
		return fmt.Errorf("layer %s can't be mounted at %s: %w", from, to, err)
	}
	return nil
}
