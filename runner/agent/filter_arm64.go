package agent

import "golang.org/x/sys/unix"

const auditArch = unix.AUDIT_ARCH_AARCH64

// watchedCalls, beside unlinkat(2) of a folder, are those the agent is asked about.
var watchedCalls = []uint32{unix.SYS_RENAMEAT, unix.SYS_RENAMEAT2, unix.SYS_MKDIRAT}

// asked is what a call asks for, with its path arguments.
func asked(nr int32, a [6]uint64) (q question, ok bool) { return askedAt(nr, a) }
