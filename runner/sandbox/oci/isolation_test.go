package oci

import (
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/claude-hub/claude-hub/runner/sandbox"
)

// limitFiles reads what limits a Sandbox, from the host.
func limitFiles(t *testing.T, e *Engine, id sandbox.ID) map[string]string {
	t.Helper()
	files := map[string][]string{
		"memory": {"memory.limit_in_bytes", "memory.max", "memory.swap.max", "memory.memsw.limit_in_bytes"},
		"pids":   {"pids.max"},
		"cpu":    {"cpu.cfs_quota_us", "cpu.max"},
	}
	out := map[string]string{}
	for controller, names := range files {
		for _, group := range []string{"", agentGroup, userGroup} {
			for _, n := range names {
				path := filepath.Join(e.cgroups.dir(controller, id), group, n)
				if b, err := os.ReadFile(path); err == nil {
					out[path] = strings.TrimSpace(string(b))
				}
			}
		}
	}
	return out
}

func TestRootInsideCanLiftNoLimit(t *testing.T) {
	t.Parallel()
	e := testEngine(t)
	s := testSpec(t, e, "a")
	s.Nested = true
	sb := start(t, e, "a", s)
	before := limitFiles(t, e, "a")
	if len(before) < 4 {
		t.Fatalf("only %d limits are set: %v", len(before), before)
	}
	wantUser := strconv.FormatInt(s.Limits.Memory-sandbox.AgentMemory, 10)
	wantPids := strconv.FormatInt(s.Limits.Pids-sandbox.AgentPids, 10)
	var sawMemory, sawPids bool
	for path, v := range before {
		sawMemory = sawMemory || strings.Contains(path, "/user/memory.") && v == wantUser
		sawPids = sawPids || strings.HasSuffix(path, "/user/pids.max") && v == wantPids
	}
	if (!sawMemory || !sawPids) && !isGVisor(*testRuntime) {
		t.Errorf("the group user isn't limited to leave room for the agent: %v", before)
	}
	// Every file, with every kind of value that would lift something, also after a remount and after taking ownership.
	sh(t, sb, `chown -R 0:0 /sys/fs/cgroup 2>/dev/null; chmod -R u+w /sys/fs/cgroup 2>/dev/null; mount -o remount,rw /sys/fs/cgroup 2>/dev/null
		find /sys/fs/cgroup -type f ! -name cgroup.procs ! -name tasks ! -name cgroup.threads ! -name cgroup.kill ! -name cgroup.freeze ! -name freezer.state ! -name cgroup.subtree_control |
		while read f; do for v in max -1 9223372036854771712 "max 100000" 1; do echo "$v" > "$f"; done; done 2>/dev/null; true`)
	for path, v := range limitFiles(t, e, "a") {
		if before[path] != v {
			t.Errorf("%s went from %s to %s", path, before[path], v)
		}
	}
	if isGVisor(*testRuntime) {
		return // the groups it sees are gVisor's own, and hold nothing back that the host wants to
	}
	// Leaving the group `user` for one with more room.
	refused(t, sb, `for g in /sys/fs/cgroup/memory /sys/fs/cgroup; do [ -e $g/cgroup.procs ] && echo $$ > $g/cgroup.procs && exit 0; done; exit 1`)
	refused(t, sb, `for g in /sys/fs/cgroup/memory /sys/fs/cgroup; do [ -e $g/agent/cgroup.procs ] && echo $$ > $g/agent/cgroup.procs && exit 0; done; exit 1`)
	// What it may do: groups of its own below user.
	sh(t, sb, `for g in /sys/fs/cgroup/memory/user /sys/fs/cgroup/user; do [ -d $g ] && mkdir $g/mine && rmdir $g/mine && exit 0; done; exit 1`)
}

func TestBombsLeaveTheAgentAndOtherSandboxesAlive(t *testing.T) {
	t.Parallel()
	onlyRunc(t, "what reaches a limit there ends its Sandbox: TestGVisorBombsEndNoOtherSandbox")
	e := testEngine(t)
	victim := start(t, e, "victim", testSpec(t, e, "victim"))
	s := testSpec(t, e, "bomber")
	s.Disk.Size = 64 << 20
	s.Limits.Memory = 256 << 20
	bomber := start(t, e, "bomber", s)

	alive := func(what string) {
		t.Helper()
		began := time.Now()
		if got := sh(t, victim, "echo alive"); got != "alive" {
			t.Errorf("after the %s the other Sandbox says %q", what, got)
		}
		if took := time.Since(began); took > 30*time.Second {
			t.Errorf("after the %s the other Sandbox took %s to answer", what, took)
		}
		eventually(t, "the agent answers after the "+what, func() bool {
			ans, err := ask(t.Context(), bomber, 0, "true")
			return err == nil && ans.Code == 0
		})
	}

	// Memory: of a process, and in a tmpfs, which no killing frees.
	if ans, err := ask(t.Context(), bomber, 0, "try", "try", "eat", "1000"); err != nil || ans.Code == 0 {
		t.Errorf("eating 1000 MiB of 256: %+v, %v", ans, err)
	}
	alive("memory bomb")
	if ans, err := ask(t.Context(), bomber, 0, "sh", "-c", "mkdir -p /dev/shm/x; dd if=/dev/zero of=/dev/shm/x/f bs=1M count=2000 2>&1 | cat; dd if=/dev/zero of=/run/f bs=1M count=2000"); err != nil {
		t.Errorf("filling a tmpfs: %+v, %v", ans, err)
	}
	alive("tmpfs bomb")
	sh(t, bomber, "rm -rf /dev/shm/x /run/f")
	u, err := bomber.Usage(t.Context())
	if err != nil || u.OOMKills < 1 {
		t.Errorf("usage after out of memory is %+v, %v", u, err)
	}

	// Processes, which stay: the bomb's own shells wait.
	if _, err := ask(t.Context(), bomber, 0, "sh", "-c", "i=0; while [ $i -lt 2000 ]; do sleep 1000 & i=$((i+1)); done 2>/dev/null"); err != nil {
		t.Errorf("fork bomb: %v", err)
	}
	u, err = bomber.Usage(t.Context())
	if err != nil || int64(u.Pids) > s.Limits.Pids || u.Pids < 100 {
		t.Errorf("usage during the fork bomb is %+v, %v", u, err)
	}
	// A new program finds no room, but the agent lives and says so.
	if _, err := client(bomber).Hello(t.Context()); err != nil {
		t.Errorf("the agent doesn't answer while all processes are taken: %v", err)
	}
	for _, pid := range e.cgroups.processes("bomber") {
		if comm, _ := os.ReadFile(fmt.Sprintf("/proc/%d/comm", pid)); strings.TrimSpace(string(comm)) == "sleep" {
			_ = unix.Kill(pid, unix.SIGKILL)
		}
	}
	alive("fork bomb")

	// Disk.
	if ans, err := ask(t.Context(), bomber, 0, "sh", "-c", "dd if=/dev/zero of=/big bs=1M count=300"); err != nil || ans.Code == 0 || !strings.Contains(ans.Output, "No space left") {
		t.Errorf("writing 300 MiB on a disk of 64: %+v, %v", ans, err)
	}
	refused(t, bomber, "fallocate -l 20G /huge")
	alive("disk bomb")
	u, err = bomber.Usage(t.Context())
	if err != nil || u.Disk > s.Disk.Size+(1<<20) {
		t.Errorf("a disk of %d bytes takes %d on the host, %v", s.Disk.Size, u.Disk, err)
	}
}

func TestKernelIsOutOfReach(t *testing.T) {
	t.Parallel()
	e := testEngine(t)
	for _, name := range []string{"plain", "store", "nested"} {
		s, nested := testSpec(t, e, name), name == "nested"
		if name == "store" {
			s = storeSpec(t, e, name)
		}
		s.Nested = nested
		sb := start(t, e, sandbox.ID(name), s)
		sh(t, sb, "mkdir -p /mnt")
		for _, what := range []string{"mount-ext4", "mount-debugfs", "mknod", "kexec", "bpf", "userfaultfd", "perf", "swapon", "settime", "module", "iopl", "handle", "quotactl"} {
			if ans, err := ask(t.Context(), sb, 0, "try", "try", what); err != nil || ans.Code == 0 {
				t.Errorf("%s: %s: %+v, %v", name, what, ans, err)
			}
		}
		for _, what := range []string{"keyctl", "add_key", "io_uring"} {
			if ans, err := ask(t.Context(), sb, 0, "try", "try", what); err != nil || ans.Code == 0 || !isGVisor(*testRuntime) && !strings.Contains(ans.Output, "not implemented") {
				t.Errorf("%s: %s must be unknown to the kernel: %+v, %v", name, what, ans, err)
			}
		}
		for _, line := range []string{
			"[ $(dd if=/proc/kcore bs=1 count=1 2>/dev/null | wc -c) -gt 0 ]", "echo b > /proc/sysrq-trigger", "echo x > /proc/sys/kernel/core_pattern",
			"echo 1 > /proc/sys/vm/drop_caches", "echo 1 > /proc/sys/kernel/panic", "cat /proc/1/root/etc/shadow && false",
			"dd if=/dev/mem of=/dev/null bs=1 count=1", "ls /sys/firmware/efi/efivars && false; echo x > /sys/kernel/uevent_helper",
			"echo x > /sys/fs/cgroup/memory/release_agent", "echo 1 > /sys/kernel/mm/ksm/run", "echo offline > /sys/devices/system/cpu/cpu1/online", "echo x > /sys/power/state",
		} {
			refused(t, sb, line)
		}
		if isGVisor(*testRuntime) {
			// Its kernel takes these, which its own processes are for it alone.
			sh(t, sb, "echo -1000 > /proc/self/oom_score_adj; ulimit -c unlimited; true")
			for _, pid := range e.cgroups.processes(sandbox.ID(name)) {
				if b, err := os.ReadFile(fmt.Sprintf("/proc/%d/oom_score_adj", pid)); err == nil && strings.TrimSpace(string(b)) < "0" {
					t.Errorf("%s: process %d of the host has the oom_score_adj %s", name, pid, b)
				}
			}
		} else {
			refused(t, sb, "echo -1000 > /proc/self/oom_score_adj")
			refused(t, sb, "nice -n -5 true && false; ulimit -c unlimited && [ $(ulimit -c) = unlimited ]")
		}
		// The same after everything that covers or protects was taken away from inside.
		sh(t, sb, "umount -l /proc/kcore /proc/sys /proc/sysrq-trigger 2>/dev/null; mount -o remount,rw /proc/sys /sys 2>/dev/null; true")
		for _, line := range []string{"[ $(dd if=/proc/kcore bs=1 count=1 2>/dev/null | wc -c) -gt 0 ]", "echo b > /proc/sysrq-trigger", "echo x > /proc/sys/kernel/core_pattern"} {
			refused(t, sb, line)
		}
		ans, err := ask(t.Context(), sb, 0, "try", "try", "userns")
		if err != nil || (ans.Code == 0) != nested && !isGVisor(*testRuntime) { // in gVisor it is no namespace of the host
			t.Errorf("%s: a further user namespace: %+v, %v", name, ans, err)
		}
		for _, kind := range []string{"proc", "sysfs", "devpts"} {
			// What a runtime nested in the Sandbox mounts for its containers.
			if ans, err := ask(t.Context(), sb, 0, "mount", "-t", kind, kind, "/mnt"); err != nil || (ans.Code == 0) != nested {
				t.Errorf("%s: mounting %s: %+v, %v", name, kind, ans, err)
			}
		}
		if ans, err = ask(t.Context(), sb, 0, "try", "try", "mount"); err != nil || (ans.Code == 0) != nested {
			t.Errorf("%s: mounting a tmpfs: %+v, %v", name, ans, err)
		}
	}
}

func TestDeviceNodesOfAnImageOpenNoDevice(t *testing.T) {
	t.Parallel()
	e := testEngine(t)
	evil := t.TempDir()
	if err := unix.Mknod(filepath.Join(evil, "loop-control"), unix.S_IFCHR|0o666, int(unix.Mkdev(10, 237))); err != nil {
		t.Fatal(err)
	}
	if err := unix.Mknod(filepath.Join(evil, "null"), unix.S_IFCHR|0o666, int(unix.Mkdev(1, 3))); err != nil {
		t.Fatal(err)
	}
	for _, p := range []string{evil, filepath.Join(evil, "loop-control"), filepath.Join(evil, "null")} {
		if err := os.Chmod(p, 0o777); err != nil {
			t.Fatal(err)
		}
	}
	s := testSpec(t, e, "a")
	s.Base.Layers = append(s.Base.Layers, evil)
	sb := start(t, e, "a", s)
	sh(t, sb, "[ -c /null ] && echo x > /dev/null")
	if !isGVisor(*testRuntime) { // whose own null it opens, and nothing of the host
		refused(t, sb, "echo x > /null")
	}
	refused(t, sb, "cat < /loop-control")
}

func TestSetuidAndFileCapabilitiesOfAnImageWork(t *testing.T) {
	t.Parallel()
	e := testEngine(t)
	sb := start(t, e, "a", testSpec(t, e, "a"))
	run := func(argv ...string) string {
		t.Helper()
		ans, err := ask(t.Context(), sb, 1000, argv...)
		if err != nil || ans.Code != 0 {
			t.Fatalf("%v: %+v, %v", argv, ans, err)
		}
		return strings.Fields(ans.Output)[0]
	}
	if got := run("try", "try", "euid"); got != "1000" {
		t.Errorf("a plain program runs as %s", got)
	}
	if got := run("try-setuid", "try", "euid"); got != "0" {
		t.Errorf("a set-user-id program runs as %s", got)
	}
	if got := run("try-caps", "try", "caps"); got != "0000000000002400" {
		t.Errorf("a program with file capabilities has %s", got)
	}
	if got := sh(t, sb, "stat -c '%u:%g' /home/dev /bin/busybox; chown 1048575:1048575 /root && stat -c '%u:%g' /root"); got != "1000:1000\n0:0\n1048575:1048575" {
		t.Errorf("owners are %q", got)
	}
}
