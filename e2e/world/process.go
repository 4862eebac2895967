package world

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"sync"
	"syscall"
	"testing"
	"time"
)

// Process is one process of the binary: a Hub or a Runner.
type Process struct {
	t    testing.TB
	name string
	cmd  *exec.Cmd
	done chan struct{}
	err  error
	log  *lastBytes
}

// Start runs the binary with args. What it prints is kept.
func (w *World) Start(name string, args ...string) *Process {
	w.t.Helper()
	p := &Process{t: w.t, name: name, done: make(chan struct{}), log: &lastBytes{max: 256 << 10}}
	p.cmd = exec.Command(w.Binary, args...)
	p.cmd.Env = w.env()
	p.cmd.Stdout, p.cmd.Stderr = p.log, p.log
	// A test that is killed takes its processes along.
	p.cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
	started := make(chan error)
	go func() { // Pdeathsig follows the thread that forked, so that thread has to stay
		lockThread()
		err := p.cmd.Start()
		started <- err
		if err == nil {
			p.err = p.cmd.Wait()
			close(p.done)
		}
	}()
	if err := <-started; err != nil {
		w.t.Fatalf("start %s: %v", name, err)
	}
	return p
}

// Kill ends the process with SIGKILL and waits for its end.
func (p *Process) Kill() {
	_ = p.cmd.Process.Kill()
	<-p.done
}

// Stop asks the process to end, as systemd would, and fails the test when it doesn't end well.
func (p *Process) Stop() {
	p.t.Helper()
	p.end(syscall.SIGTERM)
}

// Interrupt is Stop by Ctrl-C.
func (p *Process) Interrupt() {
	p.t.Helper()
	p.end(syscall.SIGINT)
}

func (p *Process) end(with syscall.Signal) {
	p.t.Helper()
	_ = p.cmd.Process.Signal(with)
	select {
	case <-p.done:
	case <-time.After(90 * time.Second):
		p.Kill()
		p.t.Errorf("the %s did not stop within 90 s of a signal (%s):\n%s", p.name, with, p.Log())
		return
	}
	if p.err != nil {
		p.t.Errorf("the %s ended with %v:\n%s", p.name, p.err, p.Log())
	}
}

// Running tells that it has not ended.
func (p *Process) Running() bool {
	select {
	case <-p.done:
		return false
	default:
		return true
	}
}

// PID of the process.
func (p *Process) PID() int { return p.cmd.Process.Pid }

// Log is the end of what it wrote.
func (p *Process) Log() string { return p.log.String() }

// lastBytes keeps the end of what is written to it.
type lastBytes struct {
	mu  sync.Mutex
	buf bytes.Buffer
	max int
}

func (l *lastBytes) Write(b []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.buf.Write(b)
	if over := l.buf.Len() - l.max; over > 0 {
		l.buf.Next(over)
	}
	return len(b), nil
}

func (l *lastBytes) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.buf.String()
}

// Result is how a command of the CLI ended.
type Result struct {
	Args           []string
	Stdout, Stderr string
	Code           int
}

func (r Result) String() string {
	return fmt.Sprintf("claude-hub %q: exit code %d\nstdout: %s\nstderr: %s", r.Args, r.Code, r.Stdout, r.Stderr)
}

// CLI runs a command of the command line as a person would.
func (w *World) CLI(args ...string) Result { return w.CLIWith("", args...) }

// CLIWith runs one with something on its stdin.
func (w *World) CLIWith(stdin string, args ...string) Result {
	w.t.Helper()
	var stdout, stderr bytes.Buffer
	c := exec.Command(w.Binary, args...)
	c.Env = w.env()
	c.Stdin, c.Stdout, c.Stderr = bytes.NewBufferString(stdin), &stdout, &stderr
	began := time.Now()
	err := c.Run()
	if took := time.Since(began); took > 5*time.Second {
		w.t.Logf("claude-hub %q took %s", args, took.Round(100*time.Millisecond))
	}
	r := Result{Args: args, Stdout: stdout.String(), Stderr: stderr.String(), Code: c.ProcessState.ExitCode()}
	if err != nil && r.Code < 0 {
		w.t.Fatalf("%v: %s", err, r)
	}
	return r
}

// Command is one of the CLI that is not started yet.
func (w *World) Command(args ...string) *exec.Cmd {
	c := exec.Command(w.Binary, args...)
	c.Env = w.env()
	return c
}

// OK runs a command that has to succeed and returns its stdout.
func (w *World) OK(args ...string) string {
	w.t.Helper()
	r := w.CLI(args...)
	if r.Code != 0 {
		w.t.Fatal(r)
	}
	return r.Stdout
}

func (w *World) env() []string {
	return append(os.Environ(),
		"CLAUDE_HUB_URL="+w.URL, "CLAUDE_HUB_TOKEN="+w.Token, "XDG_CONFIG_HOME="+w.Dir, "CLAUDE_HUB_CONFIG="+w.Config)
}
