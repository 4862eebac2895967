package agent

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// The tests run the agent for real: the test binary starts itself as PID 1 of new user, pid, mount, ipc and uts
// namespaces, builds a small root filesystem there, and executes itself as `agent`.
func TestMain(m *testing.M) {
	if len(os.Args) > 1 {
		switch os.Args[1] {
		case "agent":
			os.Exit(Main(os.Args[2:]))
		case "boot":
			fmt.Fprintln(os.Stderr, "boot:", bootInside(os.Getenv("TEST_ROOT")))
			os.Exit(3)
		case "dial":
			os.Exit(dialInside(os.Args[2]))
		}
	}
	os.Exit(m.Run())
}

const passwd = `root:x:0:0:root:/root:/bin/bash
daemon:x:1:1:daemon:/usr/sbin:/usr/sbin/nologin
coder:x:1000:1000:Coder,,,:/home/coder:/bin/sh
odd:x:1234:77::/opt/odd:
`

const group = `root:x:0:
tty:x:5:
docker:x:998:coder,daemon
sudo:x:27:odd,coder
coder:x:1000:
users:x:100:nobody
`

// image says what the root filesystem has.
type image struct {
	Shells    []string          // programs of the host's /usr/bin to have, instead of all of /usr
	Bare      bool              // only the libraries and Shells
	Files     map[string]string // by absolute path; a name that ends with / is a folder
	Links     map[string]string
	Binds     map[string]string // host path to path inside
	Env       string            // CLAUDE_HUB_AGENT
	Store     string            // host folder with `workspace` and `dependencies` in it
	Tmp, Self string
}

func bootInside(config string) error {
	var im image
	if err := json.Unmarshal([]byte(config), &im); err != nil {
		return err
	}
	os.Unsetenv("TEST_ROOT")
	root := im.Tmp
	steps := []func() error{
		func() error { return unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, "") },
		func() error { return unix.Mount("tmpfs", root, "tmpfs", 0, "mode=755,size=512m") },
		func() error { return unix.Mkdir(root+"/proc", 0o755) },
		func() error { return unix.Mount("proc", root+"/proc", "proc", 0, "") },
		func() error { return devices(root) },
		func() error { return programs(root, im) },
		func() error { return im.write(root) },
		func() error { return im.store(root) },
		func() error { return bind(im.Self, root+"/agent", true) },
		func() error { return os.Mkdir(root+"/.old", 0o700) },
		func() error { return unix.PivotRoot(root, root+"/.old") },
		func() error { return unix.Chdir("/") },
		func() error { return unix.Unmount("/.old", unix.MNT_DETACH) },
		func() error { return os.Remove("/.old") },
		func() error {
			return unix.Exec("/agent", []string{"claude-hub", "agent"}, []string{BootEnv + "=" + im.Env})
		},
	}
	for i, step := range steps {
		if err := step(); err != nil {
			return fmt.Errorf("step %d: %w", i, err)
		}
	}
	return nil
}

func devices(root string) error {
	dev := root + "/dev"
	if err := os.MkdirAll(dev+"/pts", 0o755); err != nil {
		return err
	}
	for _, d := range []string{"null", "zero", "full", "random", "urandom", "tty"} {
		if err := bind("/dev/"+d, dev+"/"+d, false); err != nil {
			return err
		}
	}
	os.Symlink("/proc/self/fd", dev+"/fd")
	os.Symlink("pts/ptmx", dev+"/ptmx")
	return unix.Mount("devpts", dev+"/pts", "devpts", 0, "newinstance,ptmxmode=0666,mode=0620,gid=5")
}

func programs(root string, im image) error {
	if !im.Bare {
		if err := bind("/usr", root+"/usr", true); err != nil {
			return err
		}
		for _, l := range []string{"bin", "sbin", "lib", "lib64"} {
			if err := os.Symlink("usr/"+l, root+"/"+l); err != nil {
				return err
			}
		}
		return nil
	}
	for _, l := range []string{"/lib", "/lib64"} {
		if err := bind(l, root+l, true); err != nil {
			return err
		}
	}
	for _, s := range im.Shells {
		if err := bind("/usr/bin/"+s, root+"/bin/"+s, true); err != nil {
			return err
		}
	}
	return nil
}

func (im image) write(root string) error {
	for _, d := range []string{"/etc", "/run", "/root", "/home/coder"} {
		if err := os.MkdirAll(root+d, 0o755); err != nil {
			return err
		}
	}
	os.Chown(root+"/home/coder", 1000, 1000)
	os.Mkdir(root+"/tmp", 0o777)
	os.Chmod(root+"/tmp", 0o1777)
	for p, content := range im.Files {
		os.MkdirAll(filepath.Dir(root+strings.TrimSuffix(p, "/")), 0o755)
		if strings.HasSuffix(p, "/") {
			// A file of it may have come first.
			if err := errors.Join(os.MkdirAll(root+p, 0o700), os.Chmod(root+p, 0o700)); err != nil {
				return err
			}
			continue
		}
		if err := os.WriteFile(root+p, []byte(content), 0o644); err != nil {
			return err
		}
	}
	for p, to := range im.Links {
		if err := os.Symlink(to, root+p); err != nil {
			return err
		}
	}
	for from, to := range im.Binds {
		if err := bind(from, root+to, false); err != nil {
			return err
		}
	}
	return nil
}

// store shows a Store as an engine does.
func (im image) store(root string) error {
	if im.Store == "" {
		return nil
	}
	if err := bind(im.Store, root+"/run/claude-hub/store", false); err != nil {
		return err
	}
	return bind(im.Store+"/workspace", root+"/workspace", false)
}

func bind(from, to string, readOnly bool) error {
	st, err := os.Stat(from)
	if err != nil {
		return err
	}
	os.MkdirAll(filepath.Dir(to), 0o755)
	if st.IsDir() {
		err = os.MkdirAll(to, 0o755)
	} else {
		err = os.WriteFile(to, nil, 0o755)
	}
	if err != nil {
		return err
	}
	if err := unix.Mount(from, to, "", unix.MS_BIND|unix.MS_REC, ""); err != nil {
		return fmt.Errorf("bind %s: %w", from, err)
	}
	if readOnly {
		return unix.Mount("", to, "", unix.MS_BIND|unix.MS_REMOUNT|unix.MS_RDONLY, "")
	}
	return nil
}

// dialInside tries what no process of a Sandbox may be able to: to get an answer from the agent.
func dialInside(socket string) int {
	c := &Client{Dial: func(ctx context.Context) (net.Conn, error) { return (&net.Dialer{}).DialContext(ctx, "unix", socket) }}
	h, err := c.Hello(context.Background())
	fmt.Printf("hello=%+v err=%v\n", h, err)
	if err == nil {
		return 0
	}
	return 9
}

type box struct {
	*Client
	t      testing.TB
	pid    int
	folder string // host folder of the socket
	ended  chan struct{}
	serial atomic.Int64
}

func (im image) with() image {
	if im.Files == nil {
		im.Files = map[string]string{}
	}
	for p, c := range map[string]string{"/etc/passwd": passwd, "/etc/group": group} {
		if _, ok := im.Files[p]; !ok {
			im.Files[p] = c
		}
	}
	return im
}

func boot(t testing.TB, im image) *box {
	t.Helper()
	if os.Getuid() != 0 {
		t.Fatal("these tests make namespaces and mounts; run them as root")
	}
	folder, err := os.MkdirTemp("", "agent")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(folder) })
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: folder + "/sock"})
	if err != nil {
		t.Fatal(err)
	}
	l.SetUnlinkOnClose(false)
	f, err := l.File()
	if err != nil {
		t.Fatal(err)
	}
	im = im.with()
	im.Tmp = folder + "/root"
	if im.Self, err = os.Executable(); err != nil {
		t.Fatal(err)
	}
	if err := os.Mkdir(im.Tmp, 0o755); err != nil {
		t.Fatal(err)
	}
	config, err := json.Marshal(im)
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command("/proc/self/exe", "boot")
	cmd.Env = []string{"TEST_ROOT=" + string(config)}
	cmd.ExtraFiles = []*os.File{f}
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	ids := []syscall.SysProcIDMap{{ContainerID: 0, HostID: 0, Size: 1 << 20}}
	cmd.SysProcAttr = &syscall.SysProcAttr{
		Cloneflags:  unix.CLONE_NEWUSER | unix.CLONE_NEWPID | unix.CLONE_NEWNS | unix.CLONE_NEWIPC | unix.CLONE_NEWUTS,
		UidMappings: ids, GidMappings: ids, GidMappingsEnableSetgroups: true,
	}
	if err := cmd.Start(); err != nil {
		t.Fatalf("the namespaces for a test Sandbox can't be made: %v", err)
	}
	f.Close()
	l.Close()
	b := &box{t: t, pid: cmd.Process.Pid, folder: folder, ended: make(chan struct{})}
	go func() {
		cmd.Wait()
		close(b.ended)
	}()
	t.Cleanup(func() {
		cmd.Process.Kill()
		<-b.ended
		if stderr.Len() > 0 {
			t.Errorf("the agent has something to complain about: %s", stderr.String())
		}
	})
	b.Client = &Client{Dial: func(ctx context.Context) (net.Conn, error) {
		return (&net.Dialer{}).DialContext(ctx, "unix", folder+"/sock")
	}}
	if _, err := b.Hello(ctx(t)); err != nil {
		cmd.Process.Kill()
		<-b.ended
		t.Fatalf("the agent did not boot: %v: %s", err, stderr.String())
	}
	return b
}

// ctx ends after a minute, so that what hangs fails.
func ctx(t testing.TB) context.Context {
	t.Helper()
	c, cancel := context.WithTimeout(context.Background(), 2*time.Minute)
	t.Cleanup(cancel)
	return c
}

func (b *box) id() string { return fmt.Sprintf("c%d", b.serial.Add(1)) }

func (b *box) start(cmd Cmd) string {
	b.t.Helper()
	if cmd.ID == "" {
		cmd.ID = b.id()
	}
	if _, err := b.Start(ctx(b.t), cmd); err != nil {
		b.t.Fatalf("start: %v", err)
	}
	return cmd.ID
}

// run runs cmd to its end and returns all it wrote.
func (b *box) run(cmd Cmd) (string, Exit) {
	b.t.Helper()
	if cmd.ID == "" {
		cmd.ID = b.id()
	}
	var out bytes.Buffer
	if cmd.Split {
		b.t.Fatal("run has one buffer for both streams")
	}
	exit, err := b.Run(ctx(b.t), cmd, &out, nil)
	if err != nil {
		b.t.Fatalf("run: %v", err)
	}
	return out.String(), exit
}

// sh runs a line of shell as root.
func (b *box) sh(line string) string {
	b.t.Helper()
	out, exit := b.run(Cmd{Argv: []string{"/bin/sh", "-c", line}})
	if exit.Code != 0 {
		b.t.Fatalf("%s: %+v: %s", line, exit, out)
	}
	return out
}

func (b *box) wait(id string) Exit {
	b.t.Helper()
	e, err := b.Wait(ctx(b.t), id)
	if err != nil {
		b.t.Fatalf("wait: %v", err)
	}
	return e
}

// until polls a condition, and fails with what it last said.
func until(t testing.TB, what string, f func() (bool, string)) {
	t.Helper()
	var last string
	for deadline := time.Now().Add(30 * time.Second); time.Now().Before(deadline); {
		ok, said := f()
		if ok {
			return
		}
		last = said
		<-time.After(5 * time.Millisecond)
	}
	t.Fatalf("%s did not happen in 30 s: %s", what, last)
}

func script(body string) *Script { return &Script{Name: "bootstrap", Body: []byte(body)} }

// rss is the agent's resident memory in bytes, and its peak.
func (b *box) rss() (now, peak int64) {
	b.t.Helper()
	raw, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", b.pid))
	if err != nil {
		b.t.Fatal(err)
	}
	for _, l := range strings.Split(string(raw), "\n") {
		var kb int64
		if _, err := fmt.Sscanf(l, "VmRSS: %d kB", &kb); err == nil {
			now = kb << 10
		}
		if _, err := fmt.Sscanf(l, "VmHWM: %d kB", &kb); err == nil {
			peak = kb << 10
		}
	}
	return now, peak
}
