package secret

import (
	"fmt"

	"golang.org/x/sys/unix"
)

// NoCoreDumps keeps this process's memory out of core files and crash reports, and out of reach of other processes of the same
// user (design.md §4). The Hub and the Runner call it before they learn any value. The limit alone is not enough, since Linux
// ignores it where core_pattern is a pipe; the other flag ends with exec, so programs that this process starts
// are as before, but for a soft limit that each may raise.
func NoCoreDumps() error {
	var l unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_CORE, &l); err != nil {
		return fmt.Errorf("turn core files off: %w", err)
	}
	l.Cur = 0
	if err := unix.Setrlimit(unix.RLIMIT_CORE, &l); err != nil {
		return fmt.Errorf("turn core files off: %w", err)
	}
	if err := unix.Prctl(unix.PR_SET_DUMPABLE, 0, 0, 0, 0); err != nil {
		return fmt.Errorf("turn core files off: %w", err)
	}
	return nil
}
