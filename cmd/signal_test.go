package cmd

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/claude-hub/claude-hub/app/apptest"
	"github.com/claude-hub/claude-hub/runner/wire"
)

// These make this test binary another process: one that takes for ever to stop once it was asked to, and claude-hub.
const (
	stubborn  = "CLAUDE_HUB_TEST_STUBBORN"
	claudeHub = "CLAUDE_HUB_TEST_CLAUDE_HUB"
)

func TestMain(m *testing.M) {
	switch {
	case os.Getenv(claudeHub) != "":
		os.Exit(Main(os.Args[1:]))
	case os.Getenv(stubborn) != "":
		ctx, stop := firstSignal(context.Background())
		defer stop()
		fmt.Println("ready")
		<-ctx.Done()
		fmt.Println("stopping")
		io.Copy(io.Discard, os.Stdin) //nolint:errcheck // the test keeps it open
		fmt.Println("stopped")
		os.Exit(exitOK)
	}
	os.Exit(m.Run())
}

func TestWhatASignalStoppedIsSaidInOneLine(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithCancel(t.Context())
	stopped := fmt.Errorf("make image: %w\nI: a log\nof many lines", context.Canceled)
	if got := sentence(ctx, stopped); got != stopped.Error() {
		t.Errorf("without a signal: got %q", got)
	}
	cancel()
	if got := sentence(ctx, stopped); got != "stopped by a signal before it was done" {
		t.Errorf("got %q", got)
	}
	if got := sentence(ctx, errors.New("the disk is full\n")); got != "the disk is full" {
		t.Errorf("another error after a signal: got %q", got)
	}
}

// child is a process of this test binary.
type child struct {
	*exec.Cmd
	in  io.Closer
	out *bufio.Scanner
	err *bytes.Buffer
}

// starts runs args with the variable as; what is left of it ends with the test.
func starts(t *testing.T, as string, args ...string) child {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 40*time.Second)
	t.Cleanup(cancel)
	c := child{Cmd: exec.CommandContext(ctx, args[0], args[1:]...), err: &bytes.Buffer{}}
	c.Env, c.Stderr = append(os.Environ(), as+"=1"), c.err
	in, err := c.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := c.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	c.in, c.out = in, bufio.NewScanner(out)
	if err := c.Start(); err != nil {
		t.Fatal(err)
	}
	return c
}

func (c child) says(t *testing.T, want string) {
	t.Helper()
	if !c.out.Scan() || c.out.Text() != want {
		t.Fatalf("got %q, want %q", c.out.Text(), want)
	}
}

func (c child) signal(t *testing.T, s os.Signal) {
	t.Helper()
	if err := c.Process.Signal(s); err != nil {
		t.Fatal(err)
	}
}

func TestASignalThatComesTwiceAtOnceCountsOnce(t *testing.T) {
	t.Parallel()
	c := starts(t, stubborn, os.Args[0])
	c.says(t, "ready")
	c.signal(t, syscall.SIGTERM)
	c.says(t, "stopping")
	for range 3 {
		c.signal(t, syscall.SIGTERM)
	}
	if err := c.in.Close(); err != nil {
		t.Fatal(err)
	}
	c.says(t, "stopped")
	if err := c.Wait(); err != nil {
		t.Errorf("it ended with %v", err)
	}
}

func TestTheSecondSignalEndsWhatTheFirstAskedToStop(t *testing.T) {
	t.Parallel()
	c := starts(t, stubborn, os.Args[0])
	c.says(t, "ready")
	c.signal(t, os.Interrupt)
	c.says(t, "stopping")
	ended := make(chan error, 1)
	go func() { ended <- c.Wait() }()
	for again := time.NewTicker(50 * time.Millisecond); ; { // until it counts as a second one
		select {
		case err := <-ended:
			var exit *exec.ExitError
			if !errors.As(err, &exit) || exit.Sys().(syscall.WaitStatus).Signal() != syscall.SIGINT {
				t.Fatalf("ended with %v, want by SIGINT", err)
			}
			return
		case <-again.C:
			c.Process.Signal(os.Interrupt) //nolint:errcheck // it may have ended just now
		}
	}
}

// timeout(1) sends its signal to the command and to the group that both are in.
func TestATestBuildIsCancelledByTimeout(t *testing.T) {
	h := newTown(t, apptest.Options{})
	h.Grant("ana")
	r := h.Runner("r1")
	h.ok("", "env", "save", "-f", h.file("e.yml", "image: debian:12\n"))
	c := starts(t, claudeHub, "timeout", "600", os.Args[0], "env", "test")
	item := wanted(t, r, wire.WantRun)
	c.signal(t, syscall.SIGTERM) // as at the end of its time
	r.MustReport(wanted(t, r, wire.WantStop), wire.StateCancelled, wire.TestBuildDetail{})
	err := c.Wait()
	if c.ProcessState.ExitCode() != exitFailed || !strings.Contains(c.err.String(), "cancelling the Test build") || !strings.Contains(c.err.String(), "\n"+wire.StateCancelled+"\n") {
		t.Errorf("%v, and it said\n%s", err, c.err)
	}
	if item.GetKind() != wire.KindTestBuild {
		t.Errorf("what ran was no Test build: %v", item)
	}
}

// wanted is the only thing that a Runner should hold, once that is wanted of it.
func wanted(t *testing.T, r *apptest.Runner, want string) *wire.Item {
	t.Helper()
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for end := time.Now().Add(30 * time.Second); time.Now().Before(end); <-tick.C {
		if items := r.Items(); len(items) == 1 && items[0].GetWant() == want {
			return items[0]
		}
	}
	t.Fatalf("nothing that it should %s came to the Runner", want)
	return nil
}
