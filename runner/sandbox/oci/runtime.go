package oci

import (
	"bufio"
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

// runtimeRun boots the bundle of id and gives the host's pid of its PID 1. The process stays when the engine goes: it
// has /dev/null and the agent's listener, and nothing of ours.
func (e *Engine) runtimeRun(ctx context.Context, id sandbox.ID, s *specs.Spec) (int, error) {
	dir := e.bundleDir(id)
	if err := writeJSON(filepath.Join(dir, "config.json"), s, false); err != nil {
		return 0, err
	}
	listener, err := e.listen(id)
	if err != nil {
		return 0, err
	}
	defer listener.Close()
	pidFile := filepath.Join(dir, "pid")
	cmd := exec.CommandContext(ctx, tool(e.cfg.Runtime), e.runtimeArgs(id, "run", "--detach", "--preserve-fds", "1",
		"--pid-file", pidFile, "--bundle", dir, string(id))...)
	cmd.Env = append(os.Environ(), "GOGC=off") // it lives for 50 ms, 2 of which it would spend on collecting garbage
	cmd.ExtraFiles = []*os.File{listener}
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	if err := cmd.Run(); err != nil {
		return 0, fmt.Errorf("%s can't boot the Sandbox: %w: %s", e.cfg.Runtime, err, e.runtimeErrors(id))
	}
	b, err := os.ReadFile(pidFile)
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

// runtimeDelete makes the runtime forget id. force also ends what still runs.
func (e *Engine) runtimeDelete(ctx context.Context, id sandbox.ID, force bool) error {
	if !exists(filepath.Join(e.cfg.RunDir, "rt", string(id))) {
		return nil
	}
	args := []string{"delete"}
	if force {
		args = append(args, "--force")
	}
	_, err := runTool(ctx, e.cfg.Runtime, e.runtimeArgs(id, append(args, string(id))...)...)
	if err == nil || !exists(filepath.Join(e.cfg.RunDir, "rt", string(id))) {
		return nil
	}
	return fmt.Errorf("%s can't delete the Sandbox %s: %w: %s", e.cfg.Runtime, id, err, e.runtimeErrors(id))
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
