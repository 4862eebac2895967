package oci

import (
	"bytes"
	"context"
	"debug/elf"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/rs/zerolog"

	"github.com/claude-hub/claude-hub/runner/agent"
	"github.com/claude-hub/claude-hub/runner/sandbox"
)

// testRuntime is what the tests boot Sandboxes with.
var testRuntime = flag.String("runtime", defaultRuntime, "runc, or gVisor's runsc: a name on PATH or a path")

func TestMain(m *testing.M) {
	if len(os.Args) > 1 {
		switch os.Args[1] {
		case "agent":
			os.Exit(agent.Main(os.Args[2:]))
		case "runner":
			os.Exit(runnerMain(os.Args[2:]))
		case "try":
			os.Exit(tryMain(os.Args[2:]))
		}
	}
	flag.Parse()
	if err := ready(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	sweep()
	code := m.Run()
	if busyboxLayer.dir != "" {
		_ = os.RemoveAll(filepath.Dir(busyboxLayer.dir))
	}
	os.Exit(code)
}

// ready says in a sentence what these tests need.
func ready() error {
	if os.Geteuid() != 0 {
		return errors.New("these tests boot real Sandboxes: run them as root")
	}
	for _, p := range [][2]string{{"runc", "runc"}, {"nft", "nftables"}, {"mkfs.ext4", "e2fsprogs"}, {"ip", "iproute2"}, {"busybox", "busybox-static"}} {
		if _, err := exec.LookPath(p[0]); err != nil {
			return fmt.Errorf("these tests need the program %s: apt-get install %s", p[0], p[1])
		}
	}
	self, err := os.Executable()
	if err != nil {
		return err
	}
	bb, _ := exec.LookPath("busybox")
	for file, hint := range map[string]string{self: "run the tests with CGO_ENABLED=0", bb: "apt-get install busybox-static"} {
		f, err := elf.Open(file)
		if err != nil {
			return err
		}
		dynamic := f.Section(".interp") != nil
		f.Close()
		if dynamic {
			return fmt.Errorf("%s is not a static binary, and PID 1 of a Sandbox must be one: %s", file, hint)
		}
	}
	return nil
}

const testRunDirs = "/run/cht-"

var testDirs atomic.Int64

func testRunDir() string {
	return fmt.Sprintf("%s%d-%d", testRunDirs, os.Getpid(), testDirs.Add(1))
}

// sweep takes away what test processes that were killed left on the host.
func sweep() {
	nets, _ := filepath.Glob("/run/netns/cht-*")
	for _, n := range nets {
		pid, _, _ := strings.Cut(strings.TrimPrefix(filepath.Base(n), "cht-"), "-")
		if p, err := strconv.Atoi(pid); err != nil || syscall.Kill(p, 0) != nil {
			_ = exec.Command("ip", "netns", "del", filepath.Base(n)).Run()
		}
	}
	dirs, _ := filepath.Glob(testRunDirs + "*")
	for _, d := range dirs {
		pid, _, _ := strings.Cut(strings.TrimPrefix(d, testRunDirs), "-")
		if n, err := strconv.Atoi(pid); err == nil && syscall.Kill(n, 0) == nil {
			continue
		}
		data, err := os.MkdirTemp("", "sweep")
		if err != nil {
			continue
		}
		self, _ := os.Executable()
		if e, err := Open(Config{Dir: data, RunDir: d, Agent: []string{self, "agent"}, Log: zerolog.Nop()}); err == nil {
			if err := teardown(e); err != nil {
				fmt.Fprintln(os.Stderr, "leftovers of an earlier run:", err)
			}
		}
		_ = os.RemoveAll(data)
	}
}

func teardown(e *Engine) error {
	var errs []error
	for _, id := range e.running() {
		errs = append(errs, e.Stop(context.Background(), id, 0))
	}
	return errors.Join(append(errs, e.Teardown())...)
}

// testEngine opens an engine of its own for a test and takes everything away after it, whatever happened.
func testEngine(t testing.TB, change ...func(*Config)) *Engine {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	cfg := Config{Dir: t.TempDir(), RunDir: testRunDir(), Agent: []string{self, "agent"}, LowWater: 64 << 20,
		Runtime: *testRuntime, Log: zerolog.New(zerolog.NewTestWriter(t)).Level(zerolog.InfoLevel)}
	for _, f := range change {
		f(&cfg)
	}
	e, err := Open(cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { closeEngine(t, e) })
	return e
}

func closeEngine(t testing.TB, e *Engine) {
	if err := teardown(e); err != nil {
		t.Errorf("the engine can't be torn down: %v", err)
	}
}

var busyboxLayer struct {
	once sync.Once
	dir  string
	err  error
}

// busybox gives a layer with Debian's static busybox, made once. Files belong to the ids an image would give them.
func busybox(t testing.TB) string {
	t.Helper()
	b := &busyboxLayer
	b.once.Do(func() { b.dir, b.err = makeBusybox() })
	if b.err != nil {
		t.Fatal(b.err)
	}
	return b.dir
}

func makeBusybox() (string, error) {
	tmp, err := os.MkdirTemp("", "busybox-layer")
	if err != nil {
		return "", err
	}
	if err := os.Chmod(tmp, 0o755); err != nil {
		return "", err
	}
	dir := filepath.Join(tmp, "layer")
	for _, d := range []string{"", "bin", "etc", "proc", "sys", "dev", "run", "tmp", "root", "home/dev", "var/data"} {
		if err := os.MkdirAll(filepath.Join(dir, d), 0o755); err != nil {
			return "", err
		}
	}
	bb, err := exec.LookPath("busybox")
	if err != nil {
		return "", err
	}
	self, err := os.Executable()
	if err != nil {
		return "", err
	}
	for name, from := range map[string]string{"busybox": bb, "try": self, "try-setuid": self, "try-caps": self} {
		if err := copyFile(from, filepath.Join(dir, "bin", name)); err != nil {
			return "", err
		}
	}
	list, err := exec.Command(bb, "--list").Output()
	if err != nil {
		return "", err
	}
	for _, a := range strings.Fields(string(list)) {
		if err := os.Symlink("busybox", filepath.Join(dir, "bin", a)); err != nil && !errors.Is(err, os.ErrExist) {
			return "", err
		}
	}
	files := map[string]string{
		"etc/passwd": "root:x:0:0:root:/root:/bin/sh\ndev:x:1000:1000::/home/dev:/bin/sh\n",
		"etc/group":  "root:x:0:\ndev:x:1000:\n",
		"var/data/a": "from the image\n",
	}
	for name, text := range files {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o644); err != nil {
			return "", err
		}
	}
	// cap_net_bind_service,cap_net_raw=ep in the form of version 2.
	caps := []byte{1, 0, 0, 2, 0, 0x24, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0}
	return dir, errors.Join(
		os.Chown(filepath.Join(dir, "home/dev"), 1000, 1000),
		os.Chmod(filepath.Join(dir, "bin/try-setuid"), 0o755|os.ModeSetuid),
		syscall.Setxattr(filepath.Join(dir, "bin/try-caps"), "security.capability", caps, 0),
	)
}

func copyFile(from, to string) error {
	in, err := os.Open(from)
	if err != nil {
		return err
	}
	defer in.Close()
	out, err := os.OpenFile(to, os.O_WRONLY|os.O_CREATE|os.O_TRUNC, 0o755)
	if err != nil {
		return err
	}
	_, err = io.Copy(out, in)
	return errors.Join(err, out.Close())
}

// testSpec is a Sandbox of busybox on a disk of its own.
func testSpec(t testing.TB, e *Engine, name string) sandbox.Spec {
	return sandbox.Spec{
		Base:     sandbox.Base{Name: "busybox", Layers: []string{busybox(t)}},
		Hostname: "box-" + name,
		Disk:     sandbox.Disk{Path: filepath.Join(e.cfg.Dir, "disks", name), Size: 512 << 20},
		Limits:   sandbox.Limits{CPU: 1, Memory: 512 << 20, Pids: 512},
	}
}

// onlyRunc skips what is not there with gVisor, and says why.
func onlyRunc(t testing.TB, why string) {
	t.Helper()
	if isGVisor(*testRuntime) {
		t.Skip("not with gVisor: " + why)
	}
}

func start(t testing.TB, e *Engine, id sandbox.ID, s sandbox.Spec) sandbox.Sandbox {
	t.Helper()
	sb, err := e.Start(t.Context(), id, s)
	if err != nil {
		t.Fatalf("Start: %v", err)
	}
	return sb
}

func stop(t testing.TB, e *Engine, id sandbox.ID) {
	t.Helper()
	if err := e.Stop(t.Context(), id, 0); err != nil {
		t.Fatalf("Stop: %v", err)
	}
}

type answer struct {
	Code   int
	Output string
}

func client(sb sandbox.Sandbox) *agent.Client { return &agent.Client{Dial: sb.Dial} }

// ask runs a program in a Sandbox as a user.
func ask(ctx context.Context, sb sandbox.Sandbox, uid int, argv ...string) (answer, error) {
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	var out bytes.Buffer
	x, err := client(sb).Run(ctx, agent.Cmd{ID: randomID(), Argv: argv, User: fmt.Sprintf("%d:%d", uid, uid),
		Env: []string{"PATH=/bin:/usr/bin:/sbin:/usr/sbin"}}, &out, nil)
	return answer{x.Code, out.String()}, err
}

// sh runs a line of shell as root of a Sandbox and wants it to succeed.
func sh(t testing.TB, sb sandbox.Sandbox, line string) string {
	t.Helper()
	ans, err := ask(t.Context(), sb, 0, "sh", "-c", line)
	if err != nil {
		t.Fatalf("%s: %v", line, err)
	}
	if ans.Code != 0 {
		t.Fatalf("%s: exit code %d: %s", line, ans.Code, ans.Output)
	}
	return strings.TrimSpace(ans.Output)
}

// refused wants a line of shell to fail in a Sandbox.
func refused(t testing.TB, sb sandbox.Sandbox, line string) {
	t.Helper()
	ans, err := ask(t.Context(), sb, 0, "sh", "-c", line)
	if err != nil {
		t.Fatalf("%s: %v", line, err)
	}
	if ans.Code == 0 {
		t.Errorf("%s succeeded in the Sandbox and must not: %s", line, ans.Output)
	}
}

// eventually polls until ok, for at most a minute.
func eventually(t testing.TB, what string, ok func() bool) {
	t.Helper()
	deadline := time.Now().Add(time.Minute)
	for !ok() {
		if time.Now().After(deadline) {
			t.Fatalf("not in a minute: %s", what)
		}
		time.Sleep(5 * time.Millisecond)
	}
}
