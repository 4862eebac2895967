package agent

import (
	"fmt"
	"runtime"
	"unsafe"

	"golang.org/x/sys/unix"
)

// The calls of everything the agent starts pass a filter if the Sandbox has a Store. It refuses what CAP_SYS_ADMIN opens in the
// engine's own filter, which is the agent's, too: without it, Sandboxes would see more of the kernel than others do. And it has
// the agent asked about those calls that fail on a folder that is bound and not on any other (facts/sandbox.md §2.10).

// refused are the calls that need a withheld capability to be of use, as the engine's filter has it for a process without.
var refused = []uint32{
	unix.SYS_MOUNT, unix.SYS_UMOUNT2, unix.SYS_UNSHARE, unix.SYS_SETNS, unix.SYS_MOUNT_SETATTR, unix.SYS_MOVE_MOUNT, unix.SYS_OPEN_TREE,
	unix.SYS_FSOPEN, unix.SYS_FSCONFIG, unix.SYS_FSMOUNT, unix.SYS_FSPICK, unix.SYS_SETHOSTNAME, unix.SYS_SETDOMAINNAME,
	unix.SYS_PIDFD_GETFD, unix.SYS_PROCESS_MADVISE, unix.SYS_LSM_GET_SELF_ATTR, unix.SYS_LSM_SET_SELF_ATTR, unix.SYS_LSM_LIST_MODULES,
}

const (
	// newNamespaces are the flags of clone(2) that the engine's filter refuses to a process without CAP_SYS_ADMIN.
	newNamespaces = unix.CLONE_NEWNS | unix.CLONE_NEWCGROUP | unix.CLONE_NEWUTS | unix.CLONE_NEWIPC | unix.CLONE_NEWUSER |
		unix.CLONE_NEWPID | unix.CLONE_NEWNET

	filterNewListener   = 1 << 3 // SECCOMP_FILTER_FLAG_NEW_LISTENER
	filterWaitKillable  = 1 << 5 // SECCOMP_FILTER_FLAG_WAIT_KILLABLE_RECV: a signal doesn't have a call made twice; Linux 5.19
	filterAllow         = 0x7fff0000
	filterNotify        = 0x7fc00000
	filterErrno         = 0x00050000
	filterNumber        = 0 // offsets in struct seccomp_data
	filterArch          = 4
	filterArgs          = 16
	firstForeignNumber  = 0x40000000 // of the x32 ABI on x86-64; there is none so high elsewhere
	setModeFilter       = 1          // SECCOMP_SET_MODE_FILTER
	load32, jumpIfEqual = unix.BPF_LD | unix.BPF_W | unix.BPF_ABS, unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K
	jumpIfSet, jumpIfGE = unix.BPF_JMP | unix.BPF_JSET | unix.BPF_K, unix.BPF_JMP | unix.BPF_JGE | unix.BPF_K
	answer32            = unix.BPF_RET | unix.BPF_K
)

// filterProgram is the filter. withheld: the agent has capabilities that are for itself. watched: the agent is asked.
func filterProgram(withheld, watched bool) []unix.SockFilter {
	var p []unix.SockFilter
	add := func(code uint16, jt, jf uint8, k uint32) {
		p = append(p, unix.SockFilter{Code: code, Jt: jt, Jf: jf, K: k})
	}
	number := func(nr uint32, then uint32) {
		add(jumpIfEqual, 0, 1, nr)
		add(answer32, 0, 0, then)
	}
	// masked answers a call in whose argument one of the bits is set, and allows it otherwise.
	masked := func(nr uint32, arg int, bits, then uint32) {
		add(jumpIfEqual, 0, 4, nr)
		add(load32, 0, 0, uint32(filterArgs+8*arg)) // its low half: Go runs agents on little-endian machines only
		add(jumpIfSet, 0, 1, bits)
		add(answer32, 0, 0, then)
		add(answer32, 0, 0, filterAllow)
	}
	const absent = filterErrno | uint32(unix.ENOSYS)
	const denied = filterErrno | uint32(unix.EPERM)
	add(load32, 0, 0, filterArch)
	add(jumpIfEqual, 1, 0, auditArch)
	add(answer32, 0, 0, absent)
	add(load32, 0, 0, filterNumber)
	add(jumpIfGE, 0, 1, firstForeignNumber)
	add(answer32, 0, 0, absent)
	if withheld {
		for _, nr := range refused {
			number(nr, denied)
		}
		number(unix.SYS_CLONE3, absent) // its flags are in memory; C libraries then use clone
		masked(unix.SYS_CLONE, 0, newNamespaces, denied)
	}
	if watched {
		for _, nr := range watchedCalls {
			number(nr, filterNotify)
		}
		masked(unix.SYS_UNLINKAT, 2, unix.AT_REMOVEDIR, filterNotify)
	}
	add(answer32, 0, 0, filterAllow)
	return p
}

// installFilter puts the calling thread, and all that is ever forked from it, under the filter. It gives the descriptor that the
// agent is asked on, or -1 without watched.
func installFilter(withheld, watched bool) (int, error) {
	p := filterProgram(withheld, watched)
	prog := unix.SockFprog{Len: uint16(len(p)), Filter: &p[0]}
	flags := uintptr(0)
	if watched {
		flags = filterNewListener | filterWaitKillable
	}
	fd, _, errno := unix.RawSyscall(unix.SYS_SECCOMP, setModeFilter, flags, uintptr(unsafe.Pointer(&prog)))
	runtime.KeepAlive(p)
	if errno != 0 {
		return -1, fmt.Errorf("the kernel takes no filter for the Sandbox's calls: %w", errno)
	}
	if !watched {
		return -1, nil
	}
	return int(fd), nil
}
