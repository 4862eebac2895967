package oci

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"syscall"
	"time"

	specs "github.com/opencontainers/runtime-spec/specs-go"
	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"

	"github.com/claude-hub/claude-hub/runner/sandbox"
)

// gVisor's runsc takes runc's commands, but its kernel is a program on the host, which makes these differences:
// it takes the network over when it boots, so that the interface must be there before; it accepts no connection on a
// socket of the host, so that the Runner hands each over (box.Dial); and the processes of a Sandbox are none of the host's, so that
// the host can neither signal them nor limit them apart from the kernel itself (facts/runtimes.md §1, §4).

// GVisorModule and GVisorVersion are the build that Sandboxes were tried with; scripts/runsc makes it.
const (
	GVisorModule  = "gvisor.dev/gvisor"
	GVisorVersion = "v0.0.0-20260905035102-160fafc42237"
)

// isGVisor says whether a runtime is gVisor's, by its program's name.
func isGVisor(runtime string) bool { return strings.HasPrefix(filepath.Base(runtime), "runsc") }

// gvisorID is what runsc calls a Sandbox. It takes an id for all that begin with it, so each is as long as another; and short, since a
// socket's path is made of it.
func gvisorID(id sandbox.ID) string {
	h := sha256.Sum256([]byte(id))
	return hex.EncodeToString(h[:8])
}

// gvisorState is the file that runsc has of a Sandbox.
func (e *Engine) gvisorState(id sandbox.ID) string {
	return filepath.Join(e.gvisorRoot(), fmt.Sprintf("%[1]s_sandbox:%[1]s.state", gvisorID(id)))
}

// gvisorForget removes what a runsc that was killed in the middle of a boot left of it: it would find no place for the next one.
func (e *Engine) gvisorForget(id sandbox.ID) error {
	left, err := filepath.Glob(filepath.Join(e.gvisorRoot(), "*"+gvisorID(id)+"*"))
	for _, f := range left {
		err = errors.Join(err, os.Remove(f))
	}
	return err
}

func (e *Engine) gvisorRoot() string { return filepath.Join(e.cfg.RunDir, "rg") }

// gvisorArgs begin every call, as runtimeArgs do.
func (e *Engine) gvisorArgs(id sandbox.ID, args ...string) []string {
	return append([]string{"--root", e.gvisorRoot(), "--log", e.runtimeLog(id), "--log-format", "json"}, args...)
}

// gvisorBoot are a boot's own. With overlay2 files would be lost with gVisor's kernel (facts/runtimes.md §1).
func gvisorBoot(s *specs.Spec) []string {
	args := []string{"--network", "sandbox", "--overlay2", "none", "--allow-suid", "--net-raw", "--host-settings", "ignore"}
	if slices.Contains(s.Process.Capabilities.Bounding, "CAP_NET_ADMIN") {
		args = append(args, "--allow-packet-socket-write") // bridges of containers take it
	}
	return args
}

// gvisorPids is how many processes a Sandbox may have inside. On the host each is two, of those that Limits allow, and gVisor's own
// kernel takes as many as the agent does elsewhere.
func gvisorPids(l sandbox.Limits) int64 { return (l.Pids - sandbox.AgentPids) / 2 }

// gvisor is a boot that runsc is about to do.
type gvisor struct {
	e     *Engine
	ctx   context.Context
	id    sandbox.ID
	calls *os.File // the socket that the agent is called on
	net   netns.NsHandle
}

// gvisorStart makes the socket and the network namespace of a boot. The caller calls either run or giveUp.
func (e *Engine) gvisorStart(ctx context.Context, id sandbox.ID) (*gvisor, error) {
	calls, err := e.receive(id)
	if err != nil {
		return nil, err
	}
	ns, err := newNetns()
	if err != nil {
		return nil, errors.Join(err, calls.Close())
	}
	return &gvisor{e: e, ctx: ctx, id: id, calls: calls, net: ns}, nil
}

// newNetns makes a network namespace, with its loopback up, that is there for as long as its descriptor, or a process in it.
func newNetns() (netns.NsHandle, error) {
	type made struct {
		ns  netns.NsHandle
		err error
	}
	out := make(chan made)
	go func() {
		runtime.LockOSThread() // and never unlocked: the thread ends, since it is in the new namespace
		if err := unix.Unshare(unix.CLONE_NEWNET); err != nil {
			out <- made{netns.None(), fmt.Errorf("a network namespace can't be made: %w", err)}
			return
		}
		lo, err := netlink.LinkByName("lo")
		if err == nil {
			err = netlink.LinkSetUp(lo)
		}
		if err != nil {
			out <- made{netns.None(), fmt.Errorf("the loopback interface of a Sandbox can't be used: %w", err)}
			return
		}
		ns, err := netns.Get()
		out <- made{ns, err}
	}()
	m := <-out
	return m.ns, m.err
}

// receive makes the socket that the agent gets its connections on, each as a descriptor in a datagram. As with runc, its folder is
// the host's alone, and nothing of it is a path inside.
func (e *Engine) receive(id sandbox.ID) (*os.File, error) {
	path := e.socketPath(id)
	if err := os.Remove(path); err != nil && !errors.Is(err, os.ErrNotExist) {
		return nil, err
	}
	c, err := net.ListenUnixgram("unixgram", &net.UnixAddr{Name: path, Net: "unixgram"})
	if err != nil {
		return nil, err
	}
	defer c.Close()
	return c.File()
}

// run is booting's.
func (g *gvisor) run(s *specs.Spec) (int, error) {
	defer g.giveUp()
	dir := g.e.bundleDir(g.id)
	for i := range s.Linux.Namespaces {
		if s.Linux.Namespaces[i].Type == specs.NetworkNamespace {
			s.Linux.Namespaces[i].Path = fmt.Sprintf("/proc/%d/fd/%d", os.Getpid(), int(g.net))
		}
	}
	b, err := json.Marshal(s)
	if err != nil {
		return 0, err
	}
	if err := os.WriteFile(filepath.Join(dir, "config.json"), b, 0o600); err != nil {
		return 0, err
	}
	args := append(gvisorBoot(s), "run", "--detach", "--pass-fd", "3:3", "--pid-file", g.e.pidFile(g.id), "--bundle", dir, gvisorID(g.id))
	cmd := exec.CommandContext(g.ctx, tool(g.e.cfg.Runtime), g.e.gvisorArgs(g.id, args...)...)
	cmd.ExtraFiles = []*os.File{g.calls}
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	err = cmd.Run()
	if absent(err) {
		return 0, fmt.Errorf("%s can't boot the Sandbox, since it is not on this host: %s", g.e.cfg.Runtime, getGVisor)
	}
	if err != nil {
		return 0, fmt.Errorf("%s can't boot the Sandbox: %w: %s", g.e.cfg.Runtime, err, g.e.runtimeErrors(g.id))
	}
	return g.e.readPID(g.id)
}

// absent says whether a program could not be run since it is not on this host.
func absent(err error) bool {
	return errors.Is(err, exec.ErrNotFound) || errors.Is(err, os.ErrNotExist)
}

// giveUp is booting's.
func (g *gvisor) giveUp() {
	g.calls.Close()
	g.net.Close() //nolint:errcheck // it was open
}

// hand opens a connection to an agent that gets them as descriptors. Like connect(2), it says ECONNREFUSED where the agent is gone.
func hand(ctx context.Context, path string) (net.Conn, error) {
	var d net.Dialer
	calls, err := d.DialContext(ctx, "unixgram", path)
	if err != nil {
		return nil, err
	}
	defer calls.Close()
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
	if err != nil {
		return nil, err
	}
	defer unix.Close(fds[1])
	f := os.NewFile(uintptr(fds[0]), path)
	defer f.Close()
	conn, err := net.FileConn(f)
	if err != nil {
		return nil, err
	}
	if deadline, ok := ctx.Deadline(); ok {
		calls.SetWriteDeadline(deadline) //nolint:errcheck // sockets have deadlines
	}
	defer context.AfterFunc(ctx, func() { calls.SetWriteDeadline(time.Unix(1, 0)) })() //nolint:errcheck // as above
	// WriteMsgUnix is not for a socket that is connected already.
	raw, err := calls.(*net.UnixConn).SyscallConn()
	if err == nil {
		var sent error
		err = raw.Write(func(fd uintptr) bool {
			sent = unix.Sendmsg(int(fd), []byte{0}, unix.UnixRights(fds[1]), nil, unix.MSG_NOSIGNAL)
			return !errors.Is(sent, unix.EAGAIN)
		})
		err = errors.Join(err, sent)
	}
	if err != nil {
		return nil, errors.Join(err, conn.Close())
	}
	return conn, nil
}

// gvisorTerm gives every process in a Sandbox SIGTERM. The agent, which is among them, takes no notice.
func (e *Engine) gvisorTerm(ctx context.Context, b *box) error {
	out, err := runTool(ctx, b.boot.Runtime, e.gvisorArgs(b.id, "kill", "--all", gvisorID(b.id), "TERM")...)
	if err != nil && b.running() && ctx.Err() == nil {
		return fmt.Errorf("the processes of the Sandbox %s can't be signalled: %w: %s", b.id, err, out)
	}
	return nil
}

// gvisorAlone says whether nothing but the agent is left in a Sandbox.
func (e *Engine) gvisorAlone(ctx context.Context, b *box) bool {
	out, err := runTool(ctx, b.boot.Runtime, e.gvisorArgs(b.id, "ps", "--format", "json", gvisorID(b.id))...)
	var processes []int
	return err == nil && json.Unmarshal([]byte(out), &processes) == nil && len(processes) <= 1
}
