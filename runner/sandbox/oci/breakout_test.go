package oci

import (
	"fmt"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/claude-hub/claude-hub/runner/sandbox"
)

// Numbers of the calls that the profile refuses by name. Those that this architecture doesn't have are in none of them.
var refusedNumbers = map[string]uintptr{
	"keyctl": unix.SYS_KEYCTL, "add_key": unix.SYS_ADD_KEY, "request_key": unix.SYS_REQUEST_KEY,
	"io_uring_setup": unix.SYS_IO_URING_SETUP, "io_uring_enter": unix.SYS_IO_URING_ENTER, "io_uring_register": unix.SYS_IO_URING_REGISTER,
	"bpf": unix.SYS_BPF, "perf_event_open": unix.SYS_PERF_EVENT_OPEN, "userfaultfd": unix.SYS_USERFAULTFD,
	"fanotify_init": unix.SYS_FANOTIFY_INIT, "fanotify_mark": unix.SYS_FANOTIFY_MARK, "quotactl": unix.SYS_QUOTACTL,
	"quotactl_fd": unix.SYS_QUOTACTL_FD, "syslog": unix.SYS_SYSLOG, "kcmp": unix.SYS_KCMP, "lookup_dcookie": unix.SYS_LOOKUP_DCOOKIE,
	"init_module": unix.SYS_INIT_MODULE, "finit_module": unix.SYS_FINIT_MODULE, "delete_module": unix.SYS_DELETE_MODULE,
	"kexec_load": unix.SYS_KEXEC_LOAD, "kexec_file_load": unix.SYS_KEXEC_FILE_LOAD, "acct": unix.SYS_ACCT,
	"settimeofday": unix.SYS_SETTIMEOFDAY, "clock_settime": unix.SYS_CLOCK_SETTIME, "swapon": unix.SYS_SWAPON, "swapoff": unix.SYS_SWAPOFF,
	"open_by_handle_at": unix.SYS_OPEN_BY_HANDLE_AT, "nfsservctl": unix.SYS_NFSSERVCTL, "vhangup": unix.SYS_VHANGUP,
	"set_mempolicy_home_node": unix.SYS_SET_MEMPOLICY_HOME_NODE,
}

// Only x86 has iopl, ioperm and create_module; clock_settime64, stime, vm86 and vm86old belong to 32-bit programs, none of
// whose calls get through.
var refusedElsewhere = []string{"clock_settime64", "stime", "vm86", "vm86old", "iopl", "ioperm", "create_module"}

func TestEachRefusedCallIsRefused(t *testing.T) {
	t.Parallel()
	e := testEngine(t)
	for _, n := range append(slices.Clone(seccompAbsent), seccompRemoved...) {
		if _, ok := refusedNumbers[n]; !ok && !slices.Contains(refusedElsewhere, n) {
			t.Errorf("the profile refuses %s and nothing tries it", n)
		}
	}
	for _, nested := range []bool{false, true} {
		name := fmt.Sprintf("nested-%t", nested)
		s := testSpec(t, e, name)
		s.Nested = nested
		sb := start(t, e, sandbox.ID(name), s)
		args := []string{"try", "try", "calls"}
		var names []string
		for n, nr := range refusedNumbers {
			names, args = append(names, n), append(args, strconv.Itoa(int(nr)))
		}
		ans, err := ask(t.Context(), sb, 0, args...)
		got := strings.Fields(ans.Output)
		if err != nil || ans.Code != 0 || len(got) != len(names)+1 {
			t.Fatalf("%s: %+v, %v", name, ans, err)
		}
		for i, n := range names {
			if isGVisor(*testRuntime) {
				// They are the calls of gVisor's own kernel. What it has, it says no to.
				if got[i] == "0" {
					t.Errorf("%s: %s was done", name, n)
				}
				continue
			}
			want := unix.EPERM
			if slices.Contains(seccompAbsent, n) {
				want = unix.ENOSYS
			}
			if got[i] != strconv.Itoa(int(want)) {
				t.Errorf("%s: %s was answered with errno %s and not %d", name, n, got[i], want)
			}
		}
	}
}

func TestHostLoopbackAndAbstractSocketsAreOutOfReach(t *testing.T) {
	t.Parallel()
	e := testEngine(t)
	s := testSpec(t, e, "a")
	s.Nested = true
	a := start(t, e, "a", s)
	l := boxLease(e, "a")
	host, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer host.Close()
	accept(host, func(net.Conn) { t.Error("a connection from the Sandbox arrived at the host's loopback") })
	port := host.Addr().(*net.TCPAddr).Port
	abstract := fmt.Sprintf("@cht-%d-abstract", os.Getpid())
	sock, err := net.Listen("unix", abstract)
	if err != nil {
		t.Fatal(err)
	}
	defer sock.Close()
	accept(sock, func(net.Conn) { t.Error("a connection from the Sandbox arrived at an abstract socket of the host") })

	if ok, _ := reach(t, a, "tcp", fmt.Sprintf("127.0.0.1:%d", port)); ok {
		t.Error("127.0.0.1 in the Sandbox is the host's")
	}
	if ok, _ := reach(t, a, "unix", abstract); ok {
		t.Error("an abstract socket of the host can be reached")
	}
	// With the Sandbox's own loopback out of the way, and the host's addressed through the gateway.
	sh(t, a, fmt.Sprintf(`mount -o remount,rw /proc/sys 2>/dev/null; echo 1 > /proc/sys/net/ipv4/conf/eth0/route_localnet
		ip route flush table local; ip addr flush dev lo
		ip route add local %s dev eth0 table local
		ip route add 127.0.0.0/8 via %s dev eth0`, l.guest(), l.gateway()))
	if out := sh(t, a, "ip route get 127.0.0.1"); !strings.Contains(out, "eth0") {
		t.Fatalf("the Sandbox doesn't send 127.0.0.1 to the host, so the test tries nothing: %s", out)
	}
	if ok, _ := reach(t, a, "tcp-from", l.guest().String(), fmt.Sprintf("127.0.0.1:%d", port)); ok {
		t.Error("the host's loopback can be reached through the gateway")
	}
}

func TestNoPathOfTheHostIsInside(t *testing.T) {
	t.Parallel()
	e := testEngine(t)
	secret := filepath.Join(e.cfg.Dir, "secret-of-the-host")
	if err := os.WriteFile(secret, []byte("x"), 0o644); err != nil {
		t.Fatal(err)
	}
	other := start(t, e, "other", testSpec(t, e, "other"))
	sh(t, other, "echo x > /tmp/secret-of-the-other")
	s := testSpec(t, e, "a")
	s.Nested = true
	sb := start(t, e, "a", s)
	for _, line := range []string{
		"ls " + e.cfg.Dir, "ls " + e.cfg.RunDir, "ls /proc/*/root" + e.cfg.Dir, "ls /proc/*/cwd" + e.cfg.Dir,
		"[ -n \"$(find / -xdev -name 'secret-of-the-*' 2>/dev/null)\" ]",
		// Only its own processes are there, and no namespace of anybody else can be entered.
		"ps -o comm | grep -E 'systemd|runner|runc'", "[ $(ls -d /proc/[0-9]* | wc -l) -gt 20 ]",
		// Descriptors that the runtime might have left open lead out (CVE-2024-21626).
		"for f in /proc/self/fd/* /proc/1/fd/*; do ls $f/../../../../../.." + e.cfg.Dir + " 2>/dev/null && exit 0; done; exit 1",
		// More of the tree than the root filesystem's own.
		"mkdir -p /mnt/x && mount --rbind /.. /mnt/x && ls /mnt/x" + e.cfg.Dir,
		"chroot /proc/1/root ls " + e.cfg.Dir,
	} {
		refused(t, sb, line)
	}
}

func TestNoMountCrossesTheWallOfASandbox(t *testing.T) {
	t.Parallel()
	e := testEngine(t)
	s := testSpec(t, e, "a")
	s.Nested = true
	sb := start(t, e, "a", s)
	hostMounts := func() string {
		b, err := os.ReadFile("/proc/self/mountinfo")
		if err != nil {
			t.Fatal(err)
		}
		return string(b)
	}
	sh(t, sb, "mkdir -p /mnt/cht-inside; mount --make-rshared / 2>/dev/null; mount -t tmpfs cht-inside-tmpfs /mnt/cht-inside; mount --bind /mnt/cht-inside /etc")
	if strings.Contains(hostMounts(), "cht-inside") {
		t.Error("a mount of the Sandbox is on the host, too")
	}
	outside := filepath.Join(e.cfg.Dir, "later")
	if err := os.Mkdir(outside, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := unix.Mount("cht-outside-tmpfs", outside, "tmpfs", 0, ""); err != nil {
		t.Fatal(err)
	}
	defer unix.Unmount(outside, unix.MNT_DETACH)
	if got := sh(t, sb, "grep -c cht-outside /proc/self/mountinfo || true"); got != "0" {
		t.Errorf("a later mount of the host is in the Sandbox, too: %s", got)
	}
}

func TestSharedLayersStayAsTheyAreWhateverARootDoes(t *testing.T) {
	t.Parallel()
	e := testEngine(t)
	layer := filepath.Join(busybox(t), "var/data/a")
	before, err := os.Stat(layer)
	if err != nil {
		t.Fatal(err)
	}
	s := testSpec(t, e, "a")
	s.Nested = true
	sb := start(t, e, "a", s)
	other := start(t, e, "b", testSpec(t, e, "b"))
	sh(t, sb, `mount -o remount,rw / 2>/dev/null
		echo changed >> /var/data/a; chown 1000 /var/data/a; chmod 777 /var/data/a; touch -d '2001-01-01 00:00' /var/data/a; mv /var/data /var/gone; true`)
	if got := sh(t, other, "cat /var/data/a; stat -c %a:%u /var/data/a"); got != "from the image\n644:0" {
		t.Errorf("the other Sandbox sees %q", got)
	}
	after, err := os.Stat(layer)
	if b, rerr := os.ReadFile(layer); err != nil || rerr != nil || string(b) != "from the image\n" || !after.ModTime().Equal(before.ModTime()) || after.Mode() != before.Mode() {
		t.Errorf("the layer's file is now %q, %v", b, err)
	}
	// Through an overlay of its own making, whose lower is the shared one, and through one that names the host's layer.
	refused(t, sb, "mkdir -p /mnt/o; mount -t overlay o -o lowerdir="+busybox(t)+",upperdir=/tmp,workdir=/tmp /mnt/o && echo x > /mnt/o/var/data/a")
}

func TestCapabilitiesInsideAreWorthNothingOutside(t *testing.T) {
	t.Parallel()
	e := testEngine(t)
	s := testSpec(t, e, "a")
	s.Nested = true
	sb := start(t, e, "a", s)
	name, err := os.Hostname()
	if err != nil {
		t.Fatal(err)
	}
	sh(t, sb, "hostname cht-changed")
	if now, err := os.Hostname(); err != nil || now != name {
		t.Errorf("the host is called %s now, %v", now, err)
	}
	// What the kernel asks the first user namespace's capabilities for.
	for _, line := range []string{
		"chrt -f 50 true", "echo 100000 > /proc/sys/fs/file-max", "echo 1 > /proc/sys/kernel/sysrq",
		"echo 0 > /proc/sys/kernel/randomize_va_space", "echo x > /proc/sys/kernel/modprobe", "echo 9 > /proc/sys/vm/overcommit_memory",
		"echo f > /proc/sysrq-trigger", "mknod /root/kmsg c 1 11", "losetup /dev/loop0 /bin/busybox", "hwclock -w",
	} {
		refused(t, sb, line)
	}
	// gVisor has these, for its own processes and of its own kernel.
	for _, line := range []string{"renice -n -10 -p $$", "echo 0 > /proc/sys/kernel/yama/ptrace_scope", "dmesg"} {
		if !isGVisor(*testRuntime) {
			refused(t, sb, line)
		}
	}
	if isGVisor(*testRuntime) {
		nobodyIsFavoured(t, e, "a")
		if out := sh(t, sb, "dmesg"); !strings.Contains(out, "gVisor") {
			t.Errorf("the kernel's log is not gVisor's own: %s", out)
		}
	}
	// Since Linux 6.14 each pid namespace has its own pid_max; before, it is refused.
	limit := func() string {
		b, err := os.ReadFile("/proc/sys/kernel/pid_max")
		if err != nil {
			t.Fatal(err)
		}
		return string(b)
	}
	was := limit()
	sh(t, sb, "echo 9999 > /proc/sys/kernel/pid_max 2>/dev/null; true")
	if now := limit(); now != was {
		t.Errorf("the host's pid_max went from %s to %s", was, now)
	}
	for _, f := range []string{"uid_map", "gid_map"} {
		b, err := os.ReadFile(fmt.Sprintf("/proc/%d/%s", e.cgroups.processes("a")[0], f))
		if fields := strings.Fields(string(b)); err != nil || len(fields) != 3 || fields[0] != "0" || fields[1] == "0" {
			t.Errorf("%s is %q, %v", f, b, err)
		}
	}
}

// nobodyIsFavoured wants none of a Sandbox's processes to have more of the host's processors than others.
func nobodyIsFavoured(t *testing.T, e *Engine, id sandbox.ID) {
	t.Helper()
	for _, pid := range e.cgroups.processes(id) {
		if n, err := unix.Getpriority(unix.PRIO_PROCESS, pid); err == nil && n > 20 { // the kernel says 20 for nice 0, and more for less
			t.Errorf("process %d of the host has the priority %d", pid, 20-n)
		}
	}
}

// ended says whether gVisor ended a Sandbox for want of memory, as it may, before it said anything else.
func ended(sb sandbox.Sandbox) bool {
	select {
	case <-sb.Done():
		return isGVisor(*testRuntime)
	case <-time.After(time.Second):
		return false
	}
}

// The bombs one by one, each for as long as it takes to ask a quiet Sandbox many times. [noisy] of make bench has the figures.
func TestAQuietSandboxAnswersBesideEachBomb(t *testing.T) {
	t.Parallel()
	e := testEngine(t)
	quiet := start(t, e, "quiet", testSpec(t, e, "quiet"))
	for name, line := range map[string]string{
		"inode bomb":   "i=0; while [ $i -lt 40 ]; do i=$((i+1)); mkdir -p /bomb/$i; try try files /bomb/$i 100000 && i=0; done",
		"log bomb":     "yes 0123456789012345678901234567890123456789",
		"process bomb": "b() { b | b & }; b",
		"rename bomb":  "touch /a; while mv /a /b && mv /b /a; do :; done",
		"mount bomb":   "mkdir -p /mnt/m; i=0; while [ $i -lt 200000 ]; do mount -t tmpfs m /mnt/m || break; i=$((i+1)); done; sleep 1000",
		"spin bomb":    "for i in 1 2 3 4 5 6 7 8; do while :; do :; done & done; wait",
	} {
		id := sandbox.ID("b-" + name[:3])
		s := testSpec(t, e, string(id))
		s.Nested = true
		s.Disk.Size, s.Limits.Memory, s.Limits.CPU = 64<<20, 192<<20, 0.5
		loud := start(t, e, id, s)
		var wait sync.WaitGroup
		wait.Go(func() { _, _ = ask(t.Context(), loud, 0, "sh", "-c", line) })
		var worst time.Duration
		for range 50 {
			began := time.Now()
			if got := sh(t, quiet, "echo alive"); got != "alive" {
				t.Errorf("beside the %s the quiet Sandbox says %q", name, got)
			}
			worst = max(worst, time.Since(began))
		}
		if worst > 20*time.Second {
			t.Errorf("beside the %s the quiet Sandbox took up to %s to answer", name, worst)
		}
		if _, err := client(loud).Hello(t.Context()); err != nil && !ended(loud) {
			t.Errorf("the agent doesn't answer during its own Sandbox's %s: %v", name, err)
		}
		u, err := loud.Usage(t.Context())
		if err != nil || int64(u.Pids) > s.Limits.Pids || u.Disk > s.Disk.Size+1<<20 {
			t.Errorf("usage during the %s is %+v, %v", name, u, err)
		}
		began := time.Now()
		stop(t, e, id)
		if took := time.Since(began); took > 30*time.Second {
			t.Errorf("a Sandbox with a %s took %s to stop", name, took)
		}
		wait.Wait()
		t.Logf("%s: the slowest of 50 answers took %s", name, worst)
	}
}

// reboot(2) in a pid namespace ends its PID 1, and no more than that.
func TestARebootEndsOnlyTheSandboxThatAsksForIt(t *testing.T) {
	t.Parallel()
	e := testEngine(t)
	other := start(t, e, "other", testSpec(t, e, "other"))
	s := testSpec(t, e, "a")
	s.Nested = true
	sb := start(t, e, "a", s)
	sh(t, sb, "echo kept > /root/kept")
	if isGVisor(*testRuntime) {
		refused(t, sb, "reboot -f -d 0") // gVisor has no such call; nor is one needed to end its kernel's processes
		stop(t, e, "a")
	} else {
		_, _ = ask(t.Context(), sb, 0, "reboot", "-f", "-d", "0")
	}
	select {
	case <-sb.Done():
	case <-time.After(time.Minute):
		t.Fatal("the Sandbox did not end")
	}
	if got := sh(t, other, "echo alive"); got != "alive" {
		t.Errorf("the other Sandbox says %q", got)
	}
	sb = start(t, e, "a", s)
	if got := sh(t, sb, "cat /root/kept"); got != "kept" {
		t.Errorf("after the next start the file reads %q", got)
	}
}
