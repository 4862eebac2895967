package stage

import (
	"syscall"
	"unsafe"
)

// sigaction is the kernel's struct on 64-bit Linux.
type sigaction struct {
	handler  uintptr
	flags    uint64
	restorer uintptr
	mask     uint64
}

const (
	ignored = 1  // SIG_IGN
	signals = 64 // of the kernel, those included that the C library keeps for itself
)

// defaultSignals has every signal that is ignored do what it does by default. What is ignored stays so over an exec, and so
// came from whatever started the Runner: a process in a Sandbox would not hear it.
func defaultSignals() {
	for sig := uintptr(1); sig <= signals; sig++ {
		var act sigaction
		if _, _, errno := syscall.RawSyscall6(syscall.SYS_RT_SIGACTION, sig, 0, uintptr(unsafe.Pointer(&act)), 8, 0, 0); errno != 0 || act.handler != ignored {
			continue
		}
		act = sigaction{}
		_, _, _ = syscall.RawSyscall6(syscall.SYS_RT_SIGACTION, sig, uintptr(unsafe.Pointer(&act)), 0, 8, 0, 0)
	}
}
