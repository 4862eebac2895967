package oci

import (
	"encoding/json"
	"fmt"
	"path"
	"path/filepath"
	"slices"
	"strings"

	specs "github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"

	"github.com/claude-hub/claude-hub/runner/sandbox"
)

const (
	agentGuestPath = "/run/claude-hub/agent"
	// storeGuestPath is where the agent finds the Store when it starts; it covers it before anything else runs.
	storeGuestPath = "/run/claude-hub/store"
	// AgentEnv is the variable of PID 1 that carries AgentBoot as JSON.
	AgentEnv  = "CLAUDE_HUB_AGENT"
	cpuPeriod = 100_000 // µs, the kernel's default
)

// AgentBoot is what the agent writes beneath its root at each boot; files, not bind mounts, since a bootstrap may
// replace them (facts/sandbox.md §2.11). The agent's listening socket is file descriptor 3.
type AgentBoot struct {
	Hostname string `json:"hostname"`
	Hosts    string `json:"hosts"`
	Resolv   string `json:"resolv"`
	// Store is where the Spec's Store is, if it has one. Withheld are the capabilities by number that the agent then has to
	// bind from it, and nothing that it starts may have.
	Store    string `json:"store,omitempty"`
	Withheld []int  `json:"withheld,omitempty"`
	// GVisor says that the Sandbox's kernel is gVisor. The agent then has to keep its programs to Pids processes by itself: only the
	// host's own limit holds against root in the Sandbox, and who reaches that one ends the Sandbox.
	GVisor bool  `json:"gvisor,omitempty"`
	Pids   int64 `json:"pids,omitempty"`
}

// checkSpec refuses what can't be booted before anything is made.
func checkSpec(s sandbox.Spec) error {
	bad := func(format string, a ...any) error { return sandbox.Errorf(sandbox.ErrInvalid, format, a...) }
	if !hostnamePattern.MatchString(s.Hostname) {
		return bad("a hostname is 1 to 63 characters of a-z, 0-9 and \"-\", not %q", s.Hostname)
	}
	if len(s.Base.Layers) == 0 {
		return bad("the base %q has no layers", s.Base.Name)
	}
	if err := checkDisk(s.Disk); err != nil {
		return err
	}
	switch l := s.Limits; {
	case l.CPU < sandbox.MinCPU:
		return bad("a Sandbox needs at least %g CPUs, not %g", sandbox.MinCPU, l.CPU)
	case l.Memory < sandbox.MinMemory:
		return bad("a Sandbox needs at least %s of memory, not %s", bytesText(sandbox.MinMemory), bytesText(l.Memory))
	case l.Pids < sandbox.MinPids:
		return bad("a Sandbox needs at least %d processes, not %d", sandbox.MinPids, l.Pids)
	}
	seen := map[string]bool{}
	store := ""
	if s.Store != nil {
		if store = s.Store.Folder; !diskName(store) || !diskName(s.Store.Own) {
			return bad("a Store and the agent's folder in it are named as a disk's folders are, not %q and %q", store, s.Store.Own)
		}
	}
	for _, b := range s.Binds {
		if err := checkBind(b, store); err != nil {
			return err
		}
		if s.Store != nil && (b.Folder == store || b.Folder == store+"/"+s.Store.Own) {
			return bad("%s is the Store's own and can't be bound", b.Folder)
		}
		if seen[b.Guest] {
			return bad("two folders are bound at %s", b.Guest)
		}
		seen[b.Guest] = true
	}
	return nil
}

// diskName says whether a folder of a disk may be called that.
func diskName(name string) bool {
	return namePattern.MatchString(name) && !strings.Contains(name, ".") && !slices.Contains([]string{rootName, tmpName}, name)
}

func checkBind(b sandbox.Bind, store string) error {
	bad := func(format string, a ...any) error { return sandbox.Errorf(sandbox.ErrInvalid, format, a...) }
	g := b.Guest
	if !path.IsAbs(g) || path.Clean(g) != g || g == "/" || strings.ContainsAny(g, "\x00\n") {
		return bad("the guest path of a bound folder must be absolute and clean, not %q", g)
	}
	for _, p := range []string{"/proc", "/sys", "/dev", "/run/lock", path.Dir(agentGuestPath)} {
		if g == p || strings.HasPrefix(g, p+"/") {
			return bad("nothing can be bound at %s", g)
		}
	}
	if g == "/run" || g == "/tmp" {
		return bad("nothing can be bound at %s, which is fresh at each boot", g)
	}
	if filepath.IsAbs(b.Folder) {
		if filepath.Clean(b.Folder) != b.Folder {
			return bad("the path of a bound host folder must be clean, not %q", b.Folder)
		}
		if !b.ReadOnly {
			return bad("the host's %s can only be bound read-only", b.Folder)
		}
		return nil
	}
	// Some engines can't mount a disk at such a path (ADR 0006), and what one refuses all refuse.
	if strings.Contains(g, ".") {
		return bad("the guest path of a disk's folder must have no dot in it: %s", g)
	}
	if !diskName(strings.TrimPrefix(b.Folder, store+"/")) {
		return bad("a disk's folder is named with letters, digits, \"-\" and \"_\", and not %q", b.Folder)
	}
	if b.UID < 0 || b.GID < 0 || b.UID >= sandbox.IDRange || b.GID >= sandbox.IDRange {
		return bad("a folder's owner is an id from 0 to %d, not %d:%d", sandbox.IDRange-1, b.UID, b.GID)
	}
	return nil
}

// sameSpec compares what a boot depends on.
func sameSpec(a, b sandbox.Spec) bool {
	a.Base.Meta, b.Base.Meta = nil, nil
	x, _ := json.Marshal(a)
	y, _ := json.Marshal(b)
	return string(x) == string(y)
}

// plan is what the runtime's configuration is made of, beside the Spec.
type plan struct {
	spec    sandbox.Spec
	disk    sandbox.Mounted
	root    string            // mounted root filesystem
	fresh   bool              // made for this boot
	tmp     string            // folder for /tmp
	store   string            // folder of the Store, if there is one
	folders map[string]string // a Bind's guest path → its host path
	cgroup  string
	boot    AgentBoot
}

// runtimeSpec is the config.json of one boot.
func (e *Engine) runtimeSpec(p plan) (*specs.Spec, error) {
	agentEnv, err := json.Marshal(p.boot)
	if err != nil {
		return nil, err
	}
	caps := append(grantedCapabilities(p.spec.Nested), capabilityTexts(withheld(p.spec))...)
	zero := 0
	s := &specs.Spec{
		Version:  "1.0.2",
		Hostname: p.spec.Hostname,
		Root:     &specs.Root{Path: p.root},
		Process: &specs.Process{
			Cwd:  "/",
			Args: append([]string{agentGuestPath}, e.cfg.Agent[1:]...),
			// Init's environment is written to the bundle: nothing secret may stand here (facts/runtimes.md §2).
			Env:          []string{"PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", AgentEnv + "=" + string(agentEnv)},
			Capabilities: &specs.LinuxCapabilities{Bounding: caps, Effective: caps, Permitted: caps},
			Rlimits:      rlimits(),
			// A Runner's own value would be handed on, and nested runc fails with any but 0 (facts/sandbox.md §2.3).
			OOMScoreAdj: &zero,
		},
		Mounts: e.mounts(p),
		Linux: &specs.Linux{
			CgroupsPath: p.cgroup,
			Namespaces: []specs.LinuxNamespace{{Type: specs.UserNamespace}, {Type: specs.PIDNamespace}, {Type: specs.MountNamespace},
				{Type: specs.NetworkNamespace}, {Type: specs.IPCNamespace}, {Type: specs.UTSNamespace}, {Type: specs.CgroupNamespace}},
			UIDMappings: []specs.LinuxIDMapping{{HostID: uint32(p.disk.IDBase), Size: sandbox.IDRange}},
			GIDMappings: []specs.LinuxIDMapping{{HostID: uint32(p.disk.IDBase), Size: sandbox.IDRange}},
			Resources:   e.cgroups.resources(p.spec.Limits),
			Sysctl: map[string]string{
				"net.ipv4.ping_group_range":           fmt.Sprintf("0 %d", sandbox.IDRange-1),
				"net.ipv4.ip_unprivileged_port_start": "0",
				// Sandboxes have no IPv6 beyond loopback; without addresses nothing waits for it in vain.
				"net.ipv6.conf.default.disable_ipv6": "1",
			},
			RootfsPropagation: "rslave",
		},
	}
	if !p.spec.Nested {
		// A second hurdle only: what protects the host is that these files belong to none of the Sandbox's ids
		// (facts/sandbox.md §2.8). A nested runtime can't mount its /proc while parts of ours are covered.
		s.Linux.MaskedPaths = []string{"/proc/asound", "/proc/acpi", "/proc/kcore", "/proc/keys", "/proc/latency_stats", "/proc/timer_list",
			"/proc/timer_stats", "/proc/sched_debug", "/proc/scsi", "/sys/firmware", "/sys/devices/virtual/powercap"}
		s.Linux.ReadonlyPaths = []string{"/proc/bus", "/proc/fs", "/proc/irq", "/proc/sys", "/proc/sysrq-trigger"}
	}
	if isGVisor(e.cfg.Runtime) {
		// Its calls are gVisor's own, which has a filter of its own for what it asks the host's kernel.
		return s, nil
	}
	if s.Linux.Seccomp, err = seccompProfile(s, p.spec.Nested); err != nil {
		return nil, err
	}
	return s, nil
}

func (e *Engine) mounts(p plan) []specs.Mount {
	half := fmt.Sprintf("size=%dk", p.spec.Limits.Memory/2/1024)
	// A nested `docker run --privileged` mounts its own writable one, which the kernel allows only where ours is. What in
	// it is the host's belongs to the host's root.
	sys := "ro"
	if p.spec.Nested {
		sys = "rw"
	}
	m := []specs.Mount{
		{Destination: "/proc", Type: "proc", Source: "proc", Options: []string{"nosuid", "noexec", "nodev"}},
		{Destination: "/dev", Type: "tmpfs", Source: "tmpfs", Options: []string{"nosuid", "strictatime", "mode=755", "size=65536k"}},
		{Destination: "/dev/pts", Type: "devpts", Source: "devpts", Options: []string{"nosuid", "noexec", "newinstance", "ptmxmode=0666", "mode=0620", "gid=5"}},
		{Destination: "/dev/shm", Type: "tmpfs", Source: "shm", Options: []string{"nosuid", "noexec", "nodev", "mode=1777", half}},
		{Destination: "/dev/mqueue", Type: "mqueue", Source: "mqueue", Options: []string{"nosuid", "noexec", "nodev"}},
		{Destination: "/sys", Type: "sysfs", Source: "sysfs", Options: []string{"nosuid", "noexec", "nodev", sys}},
		{Destination: "/sys/fs/cgroup", Type: "cgroup", Source: "cgroup", Options: []string{"nosuid", "noexec", "nodev", "relatime", "rw"}},
		{Destination: "/run", Type: "tmpfs", Source: "tmpfs", Options: []string{"nosuid", "nodev", "mode=755", half}},
		// Debian's /var/lock; images have the folder, which the tmpfs above covers.
		{Destination: "/run/lock", Type: "tmpfs", Source: "tmpfs", Options: []string{"nosuid", "nodev", "noexec", "mode=1777", "size=5120k"}},
		{Destination: agentGuestPath, Type: "bind", Source: e.cfg.Agent[0], Options: []string{"bind", "ro", "nosuid", "nodev"}},
		{Destination: "/tmp", Type: "bind", Source: p.tmp, Options: []string{"bind", "rw", "nosuid", "nodev"}},
	}
	if p.store != "" {
		m = append(m, specs.Mount{Destination: storeGuestPath, Type: "bind", Source: p.store, Options: []string{"bind", "rw", "nosuid", "nodev"}})
	}
	for _, b := range p.spec.Binds {
		mode, kind := "rw", "rbind"
		if b.ReadOnly {
			mode = "ro"
		}
		m = append(m, specs.Mount{Destination: b.Guest, Type: "bind", Source: p.folders[b.Guest], Options: []string{kind, mode, "nosuid", "nodev"}})
	}
	return m
}

// baseCapabilities are those of a process in an ordinary OCI container.
var baseCapabilities = []string{"CAP_CHOWN", "CAP_DAC_OVERRIDE", "CAP_FSETID", "CAP_FOWNER", "CAP_MKNOD", "CAP_NET_RAW", "CAP_SETGID",
	"CAP_SETUID", "CAP_SETFCAP", "CAP_SETPCAP", "CAP_NET_BIND_SERVICE", "CAP_SYS_CHROOT", "CAP_KILL", "CAP_AUDIT_WRITE"}

// capabilityNames are all the kernel has, by number.
var capabilityNames = []string{"CAP_CHOWN", "CAP_DAC_OVERRIDE", "CAP_DAC_READ_SEARCH", "CAP_FOWNER", "CAP_FSETID", "CAP_KILL", "CAP_SETGID",
	"CAP_SETUID", "CAP_SETPCAP", "CAP_LINUX_IMMUTABLE", "CAP_NET_BIND_SERVICE", "CAP_NET_BROADCAST", "CAP_NET_ADMIN", "CAP_NET_RAW",
	"CAP_IPC_LOCK", "CAP_IPC_OWNER", "CAP_SYS_MODULE", "CAP_SYS_RAWIO", "CAP_SYS_CHROOT", "CAP_SYS_PTRACE", "CAP_SYS_PACCT", "CAP_SYS_ADMIN",
	"CAP_SYS_BOOT", "CAP_SYS_NICE", "CAP_SYS_RESOURCE", "CAP_SYS_TIME", "CAP_SYS_TTY_CONFIG", "CAP_MKNOD", "CAP_LEASE", "CAP_AUDIT_WRITE",
	"CAP_AUDIT_CONTROL", "CAP_SETFCAP", "CAP_MAC_OVERRIDE", "CAP_MAC_ADMIN", "CAP_SYSLOG", "CAP_WAKE_ALARM", "CAP_BLOCK_SUSPEND",
	"CAP_AUDIT_READ", "CAP_PERFMON", "CAP_BPF", "CAP_CHECKPOINT_RESTORE"}

// grantedCapabilities hold in the Sandbox's own user namespace only, whatever the Runner itself has. With nested
// containers they are all there are: `docker run --privileged` needs them in the bounding set (facts/sandbox.md §2.8).
func grantedCapabilities(nested bool) []string {
	var out []string
	for n, name := range capabilityNames {
		if !nested && !slices.Contains(baseCapabilities, name) {
			continue
		}
		// An error says that this kernel is too old for the capability.
		if _, err := unix.PrctlRetInt(unix.PR_CAPBSET_READ, uintptr(n), 0, 0, 0); err == nil {
			out = append(out, name)
		}
	}
	return out
}

// withheld are the capabilities that an agent with a Store has beside those granted, by number: to mount, and to see with which path
// and in which folder another process asks the kernel for something. What it starts never has them.
func withheld(s sandbox.Spec) []int {
	if s.Store == nil || s.Nested {
		return nil
	}
	return []int{unix.CAP_SYS_ADMIN, unix.CAP_SYS_PTRACE}
}

func capabilityTexts(numbers []int) []string {
	var out []string
	for _, n := range numbers {
		out = append(out, capabilityNames[n])
	}
	return out
}

// rlimits never ask for more than the Runner has: raising a hard limit needs CAP_SYS_RESOURCE.
func rlimits() []specs.POSIXRlimit {
	hard := func(resource int, want uint64) uint64 {
		var l unix.Rlimit
		if err := unix.Getrlimit(resource, &l); err != nil {
			return 0
		}
		return min(want, l.Max)
	}
	files := hard(unix.RLIMIT_NOFILE, 1<<20)
	// No core files, ever: one in /workspace holds every Variable. 1 byte is too small for any, and also keeps the
	// kernel from piping one to the host's core handler, which 0 doesn't (facts/sandbox.md §2.9).
	core := hard(unix.RLIMIT_CORE, 1)
	return []specs.POSIXRlimit{{Type: "RLIMIT_NOFILE", Hard: files, Soft: files}, {Type: "RLIMIT_CORE", Hard: core, Soft: core}}
}
