package stage

import (
	"syscall"
	"unsafe"
)

const (
	prCapbsetDrop = 24         // PR_CAPBSET_DROP
	capVersion    = 0x20080522 // _LINUX_CAPABILITY_VERSION_3: two words of 32 for each set
)

type capHeader struct {
	version uint32
	pid     int32
}

type capData struct{ effective, permitted, inheritable uint32 }

// withhold gives capabilities up, for this process and whatever it executes, a setuid program included.
func withhold(caps []int) error {
	if len(caps) == 0 {
		return nil
	}
	h := capHeader{version: capVersion}
	var d [2]capData
	if _, _, e := syscall.RawSyscall(syscall.SYS_CAPGET, uintptr(unsafe.Pointer(&h)), uintptr(unsafe.Pointer(&d)), 0); e != 0 {
		return e
	}
	for _, c := range caps {
		if c < 0 || c > 63 {
			return syscall.EINVAL
		}
		if _, _, e := syscall.RawSyscall6(syscall.SYS_PRCTL, prCapbsetDrop, uintptr(c), 0, 0, 0, 0); e != 0 {
			return e
		}
		w, bit := &d[c/32], uint32(1)<<(c%32)
		w.effective, w.permitted, w.inheritable = w.effective&^bit, w.permitted&^bit, w.inheritable&^bit
	}
	if _, _, e := syscall.RawSyscall(syscall.SYS_CAPSET, uintptr(unsafe.Pointer(&h)), uintptr(unsafe.Pointer(&d)), 0); e != 0 {
		return e
	}
	return nil
}
