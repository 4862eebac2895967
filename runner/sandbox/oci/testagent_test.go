package oci

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// The tests' own small agent: PID 1 of the Sandboxes they boot is this test binary. It answers one request a
// connection: run a program in the group `user`, wait for it, give code and output.
type agentRequest struct {
	Argv  []string
	UID   int
	Stdin string
}

type agentAnswer struct {
	Code   int
	Output string
	Err    string
}

func agentMain() int {
	unix.CloseOnExec(3)
	var boot AgentBoot
	if err := json.Unmarshal([]byte(os.Getenv(AgentEnv)), &boot); err != nil {
		return 90
	}
	_ = os.Mkdir("/etc", 0o755)
	for name, text := range map[string]string{"hostname": boot.Hostname + "\n", "hosts": boot.Hosts, "resolv.conf": boot.Resolv} {
		if err := os.WriteFile("/etc/"+name, []byte(text), 0o644); err != nil {
			return 91
		}
	}
	l, err := net.FileListener(os.NewFile(3, "listener"))
	if err != nil {
		return 92
	}
	for {
		c, err := l.Accept()
		if err != nil {
			return 93
		}
		go agentServe(c.(*net.UnixConn))
	}
}

func agentServe(c *net.UnixConn) {
	defer c.Close()
	raw, err := c.SyscallConn()
	if err != nil {
		return
	}
	var peer *unix.Ucred
	if err := raw.Control(func(fd uintptr) { peer, err = unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED) }); err != nil || peer == nil || peer.Pid != 0 {
		return
	}
	var req agentRequest
	if json.NewDecoder(c).Decode(&req) != nil {
		return
	}
	var ans agentAnswer
	var out bytes.Buffer
	// The first stage moves itself to its group and only then becomes the program.
	cmd := exec.Command(agentGuestPath, append([]string{"stage", fmt.Sprint(req.UID)}, req.Argv...)...)
	cmd.Stdin, cmd.Stdout, cmd.Stderr = strings.NewReader(req.Stdin), &out, &out
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	cmd.WaitDelay = 200 * time.Millisecond
	if err := cmd.Run(); err != nil {
		var x *exec.ExitError
		switch {
		case errors.As(err, &x) && x.ExitCode() >= 0:
			ans.Code = x.ExitCode()
		case errors.As(err, &x):
			ans.Code = 128 + int(x.Sys().(syscall.WaitStatus).Signal())
		case errors.Is(err, exec.ErrWaitDelay):
		default:
			ans.Code, ans.Err = -1, err.Error()
		}
	}
	ans.Output = out.String()
	_ = json.NewEncoder(c).Encode(ans)
}

func stageMain(args []string) int {
	groups := []string{"/sys/fs/cgroup/user"}
	if _, err := os.Stat("/sys/fs/cgroup/cgroup.controllers"); err != nil {
		groups = []string{"/sys/fs/cgroup/memory/user", "/sys/fs/cgroup/pids/user", "/sys/fs/cgroup/cpu/user"}
	}
	for _, g := range groups {
		if err := os.WriteFile(g+"/cgroup.procs", []byte("0"), 0); err != nil {
			fmt.Println("stage:", err)
			return 94
		}
	}
	var uid int
	fmt.Sscan(args[0], &uid)
	os.Clearenv()
	if uid != 0 {
		if err := errors.Join(unix.Setgroups(nil), unix.Setresgid(uid, uid, uid), unix.Setresuid(uid, uid, uid)); err != nil {
			fmt.Println("stage:", err)
			return 95
		}
	}
	path, err := exec.LookPath(args[1])
	if err != nil && !errors.Is(err, exec.ErrDot) {
		for _, d := range []string{"/bin/", "/usr/bin/", "/sbin/", "/usr/sbin/"} {
			if exists(d + args[1]) {
				path, err = d+args[1], nil
				break
			}
		}
	}
	if err == nil {
		err = unix.Exec(path, args[1:], []string{"PATH=/bin:/usr/bin:/sbin:/usr/sbin", "HOME=/root"})
	}
	fmt.Println("stage:", err)
	return 127
}
