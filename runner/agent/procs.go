package agent

import (
	"bytes"
	"os"
	"strconv"
	"syscall"
	"time"
)

func itoa(n int) string { return strconv.Itoa(n) }

// process is a line of /proc/PID/stat.
type process struct {
	pid, ppid, pgid, sid int
	state                byte
	start                uint64 // in clock ticks since boot; pid and start together are never used twice
}

func (p process) alive() bool { return p.state != 'Z' && p.state != 'X' && p.state != 'x' }

// processes are all of this pid namespace except the agent. What ends meanwhile is left out.
func processes() []process {
	d, err := os.Open("/proc")
	if err != nil {
		return nil
	}
	defer d.Close()
	names, _ := d.Readdirnames(-1)
	out := make([]process, 0, len(names))
	for _, n := range names {
		if pid, err := strconv.Atoi(n); err == nil && pid != os.Getpid() {
			if p, ok := readProcess(pid); ok && p.alive() {
				out = append(out, p)
			}
		}
	}
	return out
}

func readProcess(pid int) (process, bool) {
	b, ok := readProc(pid, "stat", 1024)
	i := bytes.LastIndexByte(b, ')') // the name before it may contain anything
	if !ok || i < 0 {
		return process{}, false
	}
	f := bytes.Fields(b[i+1:])
	if len(f) < 20 || len(f[0]) != 1 {
		return process{}, false
	}
	num := func(i int) int {
		n, _ := strconv.Atoi(string(f[i]))
		return n
	}
	start, _ := strconv.ParseUint(string(f[19]), 10, 64)
	return process{pid: pid, state: f[0][0], ppid: num(1), pgid: num(2), sid: num(3), start: start}, true
}

// readProc reads at most limit bytes of a file of a process, in one read, so that it never waits on more.
func readProc(pid int, name string, limit int) ([]byte, bool) {
	fd, err := syscall.Open("/proc/"+itoa(pid)+"/"+name, syscall.O_RDONLY|syscall.O_CLOEXEC, 0)
	if err != nil {
		return nil, false
	}
	defer syscall.Close(fd)
	b := make([]byte, limit)
	n, err := syscall.Read(fd, b)
	if err != nil || n < 0 {
		return nil, false
	}
	return b[:n], true
}

// sessionOf are the living members of a session.
func sessionOf(sid int) []process {
	var out []process
	for _, p := range processes() {
		if p.sid == sid {
			out = append(out, p)
		}
	}
	return out
}

// tree is what belongs to c: its process, its session and group, their descendants, and what was found so before, though
// it may have left since. The own process comes last, so that a parent doesn't replace what is killed.
func (c *command) tree() []process {
	c.mu.Lock()
	defer c.mu.Unlock()
	running := c.running()
	all := processes()
	in := map[int]bool{}
	for _, p := range all {
		// After the process ended its number names a session only while a member lives.
		if (running || c.leftover) && (p.sid == c.pid || p.pgid == c.pid) {
			in[p.pid] = true
		}
		if start, ok := c.marked[p.pid]; ok && start == p.start {
			in[p.pid] = true
		}
	}
	for grown := true; grown; {
		grown = false
		for _, p := range all {
			if !in[p.pid] && in[p.ppid] {
				in[p.pid], grown = true, true
			}
		}
	}
	marked := make(map[int]uint64, len(in))
	var out, own []process
	for _, p := range all {
		switch {
		case !in[p.pid]:
			continue
		case p.pid == c.pid && running:
			own = append(own, p)
		default:
			out = append(out, p)
		}
		marked[p.pid] = p.start
	}
	c.marked = marked
	return append(out, own...)
}

// signal sends sig to the process or its tree.
func (a *agent) signal(c *command, sig syscall.Signal, tree bool) error {
	if sig < 0 || sig > 64 {
		return fail(CodeBad, "there is no signal %d", int(sig))
	}
	if !tree {
		return a.signalOwn(c, sig)
	}
	// What forks faster than it is found is found again; SIGKILL leaves nothing.
	for deadline := time.Now().Add(10 * time.Second); ; time.Sleep(5 * time.Millisecond) {
		members := c.tree()
		for _, p := range members {
			if p.pid == c.pid {
				a.signalOwn(c, sig) //nolint:errcheck // it may just have ended
				continue
			}
			syscall.Kill(p.pid, sig) //nolint:errcheck // it may just have ended
		}
		if sig != syscall.SIGKILL || len(members) == 0 {
			return nil
		}
		if time.Now().After(deadline) {
			return fail(CodeInternal, "%d processes of the command survive SIGKILL; they hang in the kernel", len(members))
		}
	}
}

func (a *agent) signalOwn(c *command, sig syscall.Signal) error {
	err := a.reaper.kill(c.pid, sig)
	if err == nil || err == error(ErrEnded) {
		return err
	}
	return fail(CodeInternal, "the signal could not be sent: %v", err)
}

// killAll ends everything but the agent. kill(-1) of PID 1 reaches its whole namespace, and only that.
func (a *agent) killAll(grace time.Duration) error {
	a.killing.Add(1)
	defer a.killing.Add(-1)
	gone := func(sig syscall.Signal, wait time.Duration, again bool) bool {
		syscall.Kill(-1, sig) //nolint:errcheck // ESRCH: nothing is left
		for deadline := time.Now().Add(wait); ; time.Sleep(5 * time.Millisecond) {
			if len(processes()) == 0 {
				return true
			}
			if !time.Now().Before(deadline) {
				return false
			}
			if again {
				syscall.Kill(-1, sig) //nolint:errcheck // see above
			}
		}
	}
	if grace > 0 {
		// A stopped process takes SIGTERM only when it goes on.
		syscall.Kill(-1, syscall.SIGTERM) //nolint:errcheck // see above
		if gone(syscall.SIGCONT, grace, false) {
			return nil
		}
	}
	if gone(syscall.SIGKILL, 10*time.Second, true) {
		return nil
	}
	return fail(CodeInternal, "%d processes survive SIGKILL; they hang in the kernel", len(processes()))
}

// describe tells ps to people, at most 1,000 of them and each shortened, so that the answer fits its frame.
func (a *agent) describe(ps []process) []Process {
	names := map[int]string{}
	bySession := a.sessions()
	out, size := []Process{}, 0
	for _, p := range ps[:min(len(ps), 1000)] {
		if size > maxAnswer/2 {
			break
		}
		var st syscall.Stat_t
		if syscall.Stat("/proc/"+itoa(p.pid), &st) != nil {
			continue
		}
		uid := int(st.Uid)
		if b, ok := readProc(p.pid, "status", 4096); ok {
			uid = effectiveUID(b, uid)
		}
		if _, ok := names[uid]; !ok {
			names[uid] = userName(uid)
		}
		argv := argvOf(p.pid)
		for _, a := range argv {
			size += 6*len(a) + 100 // what JSON makes of a byte at most
		}
		out = append(out, Process{PID: p.pid, Argv: argv, User: names[uid], Command: bySession[p.sid]})
	}
	return out
}

func effectiveUID(status []byte, otherwise int) int {
	_, rest, ok := bytes.Cut(status, []byte("\nUid:"))
	if f := bytes.Fields(rest); ok && len(f) > 1 {
		if n, err := strconv.Atoi(string(f[1])); err == nil {
			return n
		}
	}
	return otherwise
}

// argvOf is a process's command line, at most eight arguments and 256 bytes; a process that hides it shows its name.
func argvOf(pid int) []string {
	b, _ := readProc(pid, "cmdline", maxArg)
	b = bytes.TrimRight(b, "\x00")
	if len(b) == 0 {
		name, _ := readProc(pid, "comm", 64)
		return []string{"[" + string(bytes.TrimRight(name, "\n")) + "]"}
	}
	var out []string
	for _, a := range bytes.Split(b, []byte{0}) {
		if len(out) < maxArgs {
			out = append(out, string(a))
		}
	}
	return out
}
