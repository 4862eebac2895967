package agent

import "golang.org/x/sys/unix"

const auditArch = unix.AUDIT_ARCH_X86_64

// watchedCalls, beside unlinkat(2) of a folder, are those the agent is asked about.
var watchedCalls = []uint32{unix.SYS_RENAME, unix.SYS_RENAMEAT, unix.SYS_RENAMEAT2, unix.SYS_RMDIR, unix.SYS_MKDIR, unix.SYS_MKDIRAT}

// asked is what a call asks for, with its path arguments.
func asked(nr int32, a [6]uint64) (q question, ok bool) {
	switch nr {
	case unix.SYS_RENAME:
		return question{does: renames, at: [2]pathArg{{unix.AT_FDCWD, a[0]}, {unix.AT_FDCWD, a[1]}}}, true
	case unix.SYS_RMDIR:
		return question{does: removes, at: [2]pathArg{{unix.AT_FDCWD, a[0]}}}, true
	case unix.SYS_MKDIR:
		return question{does: makes, at: [2]pathArg{{unix.AT_FDCWD, a[0]}}, mode: uint32(a[1])}, true
	}
	return askedAt(nr, a)
}
