package cmd

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"syscall"
	"testing"
	"time"
)

// stubborn makes this test binary a process that takes for ever to stop once it was asked to.
const stubborn = "CLAUDE_HUB_TEST_STUBBORN"

func TestMain(m *testing.M) {
	if os.Getenv(stubborn) != "" {
		ctx, stop := firstSignal(context.Background())
		defer stop()
		fmt.Println("ready")
		<-ctx.Done()
		fmt.Println("stopping")
		io.Copy(io.Discard, os.Stdin) //nolint:errcheck // the test keeps it open
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

func TestTheSecondSignalEndsWhatTheFirstAskedToStop(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	c := exec.CommandContext(ctx, os.Args[0])
	c.Env = append(os.Environ(), stubborn+"=1")
	in, err := c.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	defer in.Close()
	out, err := c.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := c.Start(); err != nil {
		t.Fatal(err)
	}
	lines := bufio.NewScanner(out)
	for _, want := range []string{"ready", "stopping"} {
		if !lines.Scan() || lines.Text() != want {
			t.Fatalf("got %q, want %q", lines.Text(), want)
		}
		if err := c.Process.Signal(os.Interrupt); err != nil {
			t.Fatal(err)
		}
	}
	ended := make(chan error, 1)
	go func() { ended <- c.Wait() }()
	for again := time.NewTicker(50 * time.Millisecond); ; { // the default comes back beside "stopping"
		select {
		case err := <-ended:
			var exit *exec.ExitError
			if !errors.As(err, &exit) || exit.Sys().(syscall.WaitStatus).Signal() != syscall.SIGINT || ctx.Err() != nil {
				t.Fatalf("ended with %v, want by SIGINT", err)
			}
			return
		case <-again.C:
			c.Process.Signal(os.Interrupt) //nolint:errcheck // it may have ended just now
		}
	}
}
