package oci

import (
	"bufio"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	specs "github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"

	"github.com/claude-hub/claude-hub/runner/sandbox"
)

// runtimeArgs begin every call. The state of the runtime is this engine's own.
func (e *Engine) runtimeArgs(id sandbox.ID, args ...string) []string {
	return append([]string{"--root", filepath.Join(e.cfg.RunDir, "rt"), "--log", e.runtimeLog(id), "--log-format", "json"}, args...)
}

func (e *Engine) runtimeLog(id sandbox.ID) string {
	return filepath.Join(e.bundleDir(id), "runtime.log")
}

// booting is a boot that the runtime is about to do.
type booting interface {
	// run boots s and gives the host's pid of its PID 1. The process stays when the engine goes: it has /dev/null and the socket
	// that the agent is called on, and nothing of ours.
	run(s *specs.Spec) (int, error)
	// giveUp ends a boot that has nothing to run.
	giveUp()
}

// waiting is one run of runc that waits for what to boot.
type waiting struct {
	e    *Engine
	id   sandbox.ID
	cmd  *exec.Cmd
	spec *os.File // what it waits for
}

// runtimeStart starts the runtime for the bundle of id before it is known what to boot: it takes some milliseconds to come to
// where it reads that, which the disk is prepared in. It reads from a pipe, so that it gives up when this process is gone. The
// caller calls either run or giveUp.
func (e *Engine) runtimeStart(ctx context.Context, id sandbox.ID) (*waiting, error) {
	dir := e.bundleDir(id)
	listener, err := e.listen(id)
	if err != nil {
		return nil, err
	}
	defer listener.Close()
	theirs, ours, err := os.Pipe()
	if err != nil {
		return nil, err
	}
	defer theirs.Close()
	config := filepath.Join(dir, "config.json")
	if err := os.Remove(config); err != nil && !errors.Is(err, os.ErrNotExist) {
		return nil, errors.Join(err, ours.Close())
	}
	if err := os.Symlink("/proc/self/fd/4", config); err != nil {
		return nil, errors.Join(err, ours.Close())
	}
	// The runtime itself closes the descriptors behind the preserved one before it runs anything of the Sandbox.
	cmd := exec.CommandContext(ctx, tool(e.cfg.Runtime), e.runtimeArgs(id, "run", "--detach", "--preserve-fds", "1",
		"--pid-file", e.pidFile(id), "--bundle", dir, string(id))...)
	cmd.Env = append(os.Environ(), "GOGC=off") // it lives for 50 ms, 2 of which it would spend on collecting garbage
	cmd.ExtraFiles = []*os.File{listener, theirs}
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	if err := cmd.Start(); err != nil {
		return nil, errors.Join(fmt.Errorf("%s can't boot the Sandbox: %w", e.cfg.Runtime, err), ours.Close())
	}
	return &waiting{e: e, id: id, cmd: cmd, spec: ours}, nil
}

// run is booting's.
func (r *waiting) run(s *specs.Spec) (int, error) {
	// One that ended already says more of it than the pipe does.
	err := errors.Join(json.NewEncoder(r.spec).Encode(s), r.spec.Close())
	if ended := r.cmd.Wait(); ended != nil {
		return 0, fmt.Errorf("%s can't boot the Sandbox: %w: %s", r.e.cfg.Runtime, ended, r.e.runtimeErrors(r.id))
	}
	if err != nil {
		return 0, err
	}
	return r.e.readPID(r.id)
}

// giveUp is booting's.
func (r *waiting) giveUp() {
	r.spec.Close()
	r.cmd.Process.Kill() //nolint:errcheck // it has ended, then
	r.cmd.Wait()         //nolint:errcheck // nothing was asked of it
}

func (e *Engine) pidFile(id sandbox.ID) string { return filepath.Join(e.bundleDir(id), "pid") }

func (e *Engine) readPID(id sandbox.ID) (int, error) {
	b, err := os.ReadFile(e.pidFile(id))
	if err != nil {
		return 0, err
	}
	return strconv.Atoi(strings.TrimSpace(string(b)))
}

// listen makes the agent's socket. Its folder is the host's alone and the Sandbox gets the listener, no path: a path
// inside could be replaced by a link that the Runner follows (facts/sandbox.md §2.1).
func (e *Engine) listen(id sandbox.ID) (*os.File, error) {
	path := e.socketPath(id)
	if err := os.Remove(path); err != nil && !errors.Is(err, os.ErrNotExist) {
		return nil, err
	}
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: path, Net: "unix"})
	if err != nil {
		return nil, err
	}
	defer l.Close()
	l.SetUnlinkOnClose(false)
	return l.File()
}

// runtimeDelete makes the runtime that booted id forget it. force also ends what still runs.
func (e *Engine) runtimeDelete(ctx context.Context, id sandbox.ID, runtime string, force bool) error {
	known := func() bool { return exists(filepath.Join(e.cfg.RunDir, "rt", string(id))) }
	args := []string{"delete"}
	if force {
		args = append(args, "--force")
	}
	if isGVisor(runtime) {
		known = func() bool { return exists(e.gvisorState(id)) }
		args = e.gvisorArgs(id, append(args, gvisorID(id))...)
	} else {
		args = e.runtimeArgs(id, append(args, string(id))...)
	}
	if !known() {
		return nil
	}
	out, err := runTool(ctx, runtime, args...)
	if err == nil || !known() || isGVisor(runtime) && absent(err) { // what it knows are files, which are removed in any case
		return nil
	}
	return fmt.Errorf("%s can't delete the Sandbox %s: %w: %s", runtime, id, err, cmp.Or(e.runtimeErrors(id), out))
}

// runtimeErrors are the last errors the runtime logged.
func (e *Engine) runtimeErrors(id sandbox.ID) string {
	f, err := os.Open(e.runtimeLog(id))
	if err != nil {
		return "no log of the runtime"
	}
	defer f.Close()
	var last []string
	sc := bufio.NewScanner(f)
	for sc.Scan() {
		var line struct{ Level, Msg string }
		if json.Unmarshal(sc.Bytes(), &line) == nil && (line.Level == "error" || line.Level == "fatal") {
			last = append(last, line.Msg)
		}
	}
	if len(last) > 3 {
		last = last[len(last)-3:]
	}
	return strings.Join(last, "; ")
}

// process is PID 1 of a boot, told apart from a later process with the same pid by its start time.
type process struct {
	PID       int    `json:"pid"`
	StartTime uint64 `json:"start_time"` // clock ticks since the host booted
	HostBoot  string `json:"host_boot"`
}

func identify(pid int) (process, error) {
	st, err := startTime(pid)
	if err != nil {
		return process{}, err
	}
	return process{PID: pid, StartTime: st, HostBoot: hostBoot()}, nil
}

func hostBoot() string {
	b, _ := os.ReadFile("/proc/sys/kernel/random/boot_id")
	return strings.TrimSpace(string(b))
}

func startTime(pid int) (uint64, error) {
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return 0, err
	}
	// The second field is a name in parentheses that may hold anything.
	i := strings.LastIndexByte(string(b), ')')
	f := strings.Fields(string(b[i+1:]))
	if i < 0 || len(f) < 20 {
		return 0, fmt.Errorf("/proc/%d/stat can't be read", pid)
	}
	if f[0] == "Z" || f[0] == "X" {
		return 0, unix.ESRCH
	}
	return strconv.ParseUint(f[19], 10, 64)
}

// open gives a pidfd if the very process still runs.
func (p process) open() (fd int, alive bool) {
	if p.PID <= 1 || p.HostBoot != hostBoot() {
		return -1, false
	}
	fd, err := unix.PidfdOpen(p.PID, 0)
	if err != nil {
		return -1, false
	}
	if st, err := startTime(p.PID); err != nil || st != p.StartTime {
		unix.Close(fd)
		return -1, false
	}
	return fd, true
}

// waitExit waits until the process of a pidfd has ended; false if that takes longer. It reaps it where it is ours,
// which it is when the Runner is the host's (or a container's) PID 1.
func waitExit(fd int, limit time.Duration) bool {
	deadline := time.Now().Add(limit)
	for {
		ms := -1
		if limit >= 0 {
			ms = max(int(time.Until(deadline).Milliseconds()), 0)
		}
		n, err := unix.Poll([]unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}, ms)
		if errors.Is(err, unix.EINTR) {
			continue
		}
		if n > 0 {
			_ = unix.Waitid(unix.P_PIDFD, fd, nil, unix.WEXITED|unix.WNOHANG, nil)
			return true
		}
		return false
	}
}
