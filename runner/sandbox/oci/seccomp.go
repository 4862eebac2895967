package oci

import (
	"fmt"
	"slices"

	"github.com/moby/profiles/seccomp"
	specs "github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"
)

// What differs from moby's profile for the granted capabilities (facts/sandbox.md §2.8).
var (
	// Kernel objects that are counted or found across Sandboxes, or have a long list of holes. ENOSYS, since programs
	// (nested runc, Go, liburing) then do without; EPERM makes them fail.
	seccompAbsent = []string{"keyctl", "add_key", "request_key", "io_uring_setup", "io_uring_enter", "io_uring_register"}
	// What no program in a Sandbox needs and the kernel would, at best, refuse.
	seccompRemoved = []string{"bpf", "perf_event_open", "userfaultfd", "fanotify_init", "fanotify_mark", "quotactl", "quotactl_fd",
		"syslog", "kcmp", "lookup_dcookie", "init_module", "finit_module", "delete_module", "create_module", "kexec_load",
		"kexec_file_load", "iopl", "ioperm", "acct", "settimeofday", "clock_settime", "clock_settime64", "stime", "swapon",
		"swapoff", "open_by_handle_at", "nfsservctl", "vm86", "vm86old", "vhangup", "set_mempolicy_home_node"}
)

// seccompProfile is for a Spec whose capabilities are set. Only the host's own architecture: each further one costs
// every boot 10 to 25 ms (facts/sandbox.md §1), so programs for 32-bit don't run.
func seccompProfile(s *specs.Spec, nested bool) (*specs.LinuxSeccomp, error) {
	p, err := seccomp.GetDefaultProfile(s)
	if err != nil {
		return nil, fmt.Errorf("the seccomp profile can't be made: %w", err)
	}
	if len(p.Architectures) > 1 {
		p.Architectures = p.Architectures[:1]
	}
	dropped := append(slices.Clone(seccompAbsent), seccompRemoved...)
	var rules []specs.LinuxSyscall
	for _, r := range p.Syscalls {
		r.Names = slices.DeleteFunc(slices.Clone(r.Names), func(n string) bool { return slices.Contains(dropped, n) })
		if len(r.Names) > 0 {
			rules = append(rules, r)
		}
	}
	enosys := uint(unix.ENOSYS)
	rules = append(rules, specs.LinuxSyscall{Names: seccompAbsent, Action: specs.ActErrno, ErrnoRet: &enosys})
	if nested {
		// runc in the Sandbox changes its root with it; moby's profile never allows it.
		rules = append(rules, specs.LinuxSyscall{Names: []string{"pivot_root"}, Action: specs.ActAllow})
	}
	p.Syscalls = rules
	return p, nil
}
