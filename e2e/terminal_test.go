package e2e

import (
	"bufio"
	"bytes"
	"crypto/sha256"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/claude-hub/claude-hub/e2e/world"
	"github.com/claude-hub/claude-hub/runner/image/imagetest"
)

// tty is a terminal of this machine with the CLI in it.
type tty struct {
	s    *story
	file *os.File
	cmd  *exec.Cmd
	done chan struct{}
	mu   sync.Mutex
	out  bytes.Buffer
}

func (s *story) tty(args ...string) *tty {
	s.t.Helper()
	file, err := os.OpenFile("/dev/ptmx", os.O_RDWR|syscall.O_NOCTTY, 0)
	if err != nil {
		s.t.Fatal(err)
	}
	fd := int(file.Fd())
	if err := unix.IoctlSetPointerInt(fd, unix.TIOCSPTLCK, 0); err != nil {
		s.t.Fatal(err)
	}
	n, err := unix.IoctlGetInt(fd, unix.TIOCGPTN)
	if err != nil {
		s.t.Fatal(err)
	}
	peer, err := os.OpenFile(fmt.Sprintf("/dev/pts/%d", n), os.O_RDWR|syscall.O_NOCTTY, 0)
	if err != nil {
		s.t.Fatal(err)
	}
	defer peer.Close()
	if err := unix.IoctlSetWinsize(fd, unix.TIOCSWINSZ, &unix.Winsize{Row: 31, Col: 97}); err != nil {
		s.t.Fatal(err)
	}
	y := &tty{s: s, file: file, done: make(chan struct{}), cmd: s.Command(args...)}
	y.cmd.Env = append(y.cmd.Env, "TERM=xterm-256color")
	y.cmd.Stdin, y.cmd.Stdout, y.cmd.Stderr = peer, peer, peer
	y.cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true, Setctty: true}
	if err := y.cmd.Start(); err != nil {
		s.t.Fatal(err)
	}
	go func() {
		defer close(y.done)
		buf := make([]byte, 4096)
		for {
			n, err := file.Read(buf)
			y.mu.Lock()
			y.out.Write(buf[:n])
			y.mu.Unlock()
			if err != nil {
				return // nobody has the other end any more
			}
		}
	}()
	s.t.Cleanup(func() {
		_ = y.cmd.Process.Kill()
		file.Close()
	})
	return y
}

func (y *tty) text() string {
	y.mu.Lock()
	defer y.mu.Unlock()
	return y.out.String()
}

func (y *tty) types(text string) {
	y.s.t.Helper()
	if _, err := y.file.WriteString(text); err != nil {
		y.s.t.Fatal(err)
	}
}

func (y *tty) shows(what string) {
	y.s.t.Helper()
	y.s.Eventually(60*time.Second, "the terminal shows "+what, func() error {
		if text := y.text(); !strings.Contains(text, what) {
			return fmt.Errorf("it shows %q", text)
		}
		return nil
	})
}

func (y *tty) ends() int {
	y.s.t.Helper()
	<-y.done
	_ = y.cmd.Wait() // the code says it
	return y.cmd.ProcessState.ExitCode()
}

func TestStoryTerminalsCopiesAndPortsOfASession(t *testing.T) {
	t.Parallel()
	s := &story{world.New(t, world.Options{}), t}
	s.applied(s.Push("terminal:1", imagetest.Busybox(t, nil)), "true", "httpd -p 127.0.0.1:8000 -h /workspace")
	id := strings.TrimSpace(s.OK("session", "start", "--repo", s.Repo))

	shell := s.tty("session", "shell", id)
	shell.types("stty size; echo up-$((20+3)) as-$$\r")
	shell.shows("31 97\r\n")
	shell.shows("up-23 as-")
	_, pid, _ := strings.Cut(shell.text(), "up-23 as-")
	pid, _, _ = strings.Cut(pid, "\r")

	// Hub and Runner are killed under its hands.
	for i, cut := range []func(){s.Hub.Kill, s.Runner.Kill} {
		cut()
		s.Restart()
		shell.types(fmt.Sprintf("echo again-%d-$((1+%d))-$$\r", i, i))
		shell.shows(fmt.Sprintf("again-%d-%d-%s\r\n", i, i+1, pid))
	}
	other := s.tty("session", "shell", id, "--attach", "newest")
	other.shows("again-1-2-" + pid) // the scrollback
	other.types("exit 7\r")
	if code := shell.ends(); code != 7 {
		t.Errorf("the shell ended with %d:\n%s", code, shell.text())
	}
	if code := other.ends(); code != 7 {
		t.Errorf("who looked on ended with %d:\n%s", code, other.text())
	}
	s.wants(s.CLI("session", "shell", id, "-u", "nobody-of-that-name"), 125, "", "nobody-of-that-name")

	s.copies(id)
	s.forwards(id)
}

// copies brings a file and a folder in and out again, byte for byte.
func (s *story) copies(id string) {
	s.t.Helper()
	dir := s.t.TempDir()
	random := make([]byte, 3<<20+17)
	rng := rand.NewChaCha8([32]byte{1})
	rng.Read(random) //nolint:errcheck // it never fails
	tree := filepath.Join(dir, "tree")
	for name, body := range map[string]string{"a/b/deep.txt": "deep\n", "run.sh": "#!/bin/sh\necho ran\n", "a/empty": ""} {
		path := filepath.Join(tree, name)
		mode := os.FileMode(0o644)
		if strings.HasSuffix(name, ".sh") {
			mode = 0o755
		}
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			s.t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(body), mode); err != nil {
			s.t.Fatal(err)
		}
	}
	if err := os.Symlink("a/b/deep.txt", filepath.Join(tree, "link")); err != nil {
		s.t.Fatal(err)
	}
	file := filepath.Join(dir, "random.bin")
	if err := os.WriteFile(file, random, 0o644); err != nil {
		s.t.Fatal(err)
	}
	s.OK("session", "cp", file, id+":")
	s.OK("session", "cp", tree, id+":")
	s.wants(s.CLI("session", "exec", id, "--", "sh", "-c", "sha256sum random.bin; ./tree/run.sh; cat tree/link; readlink tree/link"), 0,
		fmt.Sprintf("%x  random.bin\nran\ndeep\na/b/deep.txt\n", sha256.Sum256(random)), "")
	back := filepath.Join(dir, "back")
	s.OK("session", "cp", id+":random.bin", back)
	if got, err := os.ReadFile(back); err != nil || !bytes.Equal(got, random) {
		s.t.Errorf("a file came back as another one: %d bytes, %v", len(got), err)
	}
	folder := filepath.Join(dir, "folder")
	s.OK("session", "cp", id+":/workspace/tree", folder)
	if out, err := exec.Command("diff", "-r", "--no-dereference", tree, folder).CombinedOutput(); err != nil {
		s.t.Errorf("a folder came back as another one: %s", out)
	}
	if info, err := os.Stat(filepath.Join(folder, "run.sh")); err != nil || info.Mode()&0o100 == 0 {
		s.t.Errorf("an executable file came back as %v, %v", info.Mode(), err)
	}

	// What would be masked on its way is not copied at all.
	s.OK("session", "exec", id, "--", "sh", "-c", "echo token ghp_"+strings.Repeat("aB3", 12)+" >tree/token")
	for _, source := range []string{"tree/token", "tree"} {
		target := filepath.Join(dir, "refused")
		s.wants(s.CLI("session", "cp", id+":"+source, target), 1, "", "Sensitive Variable")
		if _, err := os.Lstat(target); err == nil {
			s.t.Errorf("%s was copied", source)
		}
	}
	s.wants(s.CLI("session", "cp", id+":nothing", dir), 1, "", "the Session has no nothing")
}

// forwards opens a web server of the Session here.
func (s *story) forwards(id string) {
	s.t.Helper()
	c := s.Command("session", "port-forward", id, "0:8000", "0:8001")
	out, err := c.StdoutPipe()
	if err != nil {
		s.t.Fatal(err)
	}
	var says lockedText
	c.Stderr = &says
	if err := c.Start(); err != nil {
		s.t.Fatal(err)
	}
	defer func() {
		_ = c.Process.Signal(os.Interrupt)
		if err := c.Wait(); err != nil {
			s.t.Errorf("port-forward ended with %v: %s", err, says.String())
		}
	}()
	lines := bufio.NewScanner(out)
	var at []string
	for len(at) < 2 && lines.Scan() {
		address, _, _ := strings.Cut(lines.Text(), " -> ")
		at = append(at, address)
	}
	client := &http.Client{Timeout: 30 * time.Second}
	for range 3 {
		res, err := client.Get("http://" + at[0] + "/README.md")
		if err != nil {
			s.t.Fatal(err)
		}
		body, err := io.ReadAll(res.Body)
		res.Body.Close()
		if err != nil || string(body) != "# rocket\n" {
			s.t.Errorf("through the port came %q, %v", body, err)
		}
	}
	if res, err := client.Get("http://" + at[1] + "/"); err == nil {
		res.Body.Close()
		s.t.Error("a port that nobody listens on answers")
	}
	s.Eventually(time.Minute, "it is said why", func() error {
		if !strings.Contains(says.String(), "port 8001") {
			return fmt.Errorf("it says %q", says.String())
		}
		return nil
	})
}

type lockedText struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (l *lockedText) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(p)
}

func (l *lockedText) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.String()
}
