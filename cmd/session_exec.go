package cmd

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"syscall"

	"github.com/spf13/cobra"
	"golang.org/x/term"

	"github.com/claude-hub/claude-hub/handlers/api/client"
	"github.com/claude-hub/claude-hub/handlers/api/schema"
	"github.com/claude-hub/claude-hub/runner/wire"
)

func sessionExecCommand() *cobra.Command {
	var spec wire.ChannelSpec
	var stdin bool
	c := &cobra.Command{
		Use: "exec SESSION -- COMMAND [ARG…]", Short: "Run a command in a Session", Args: cobra.MinimumNArgs(2),
		Long: `Run a command in a Session's Workspace, with its output here and its exit code as this command's: 128 + signal when a
signal ended it, 127 when there is no such program, 126 when it can't be run, 125 when claude-hub itself failed. Signals are passed on.`,
		Example: "  claude-hub session exec 1a2b3c4d -- make test\n  tar c . | claude-hub session exec -i 1a2b3c4d -- tar x\n  claude-hub session exec -t 1a2b3c4d -- top",
		RunE: func(c *cobra.Command, args []string) error {
			spec.Argv = args[1:]
			if spec.Argv[0] == "--" { // flags end at SESSION, so pflag leaves it
				spec.Argv = spec.Argv[1:]
			}
			if len(spec.Argv) == 0 {
				return usage(c, errors.New("say what to run"))
			}
			return remote(c, args[0], spec, stdin || spec.TTY)
		},
	}
	c.Flags().BoolVarP(&stdin, "stdin", "i", false, "pass this command's stdin on")
	c.Flags().BoolVarP(&spec.TTY, "tty", "t", false, "give it a terminal")
	c.Flags().StringVarP(&spec.User, "user", "u", "", "user in the Sandbox; default: the image's")
	c.Flags().StringVarP(&spec.Dir, "dir", "C", "", "folder it runs in; default: /workspace")
	c.Flags().SetInterspersed(false)
	return c
}

// remote runs spec in a Session, connected to this process, and ends with its exit code.
func remote(c *cobra.Command, session string, spec wire.ChannelSpec, stdin bool) error {
	exit, err := connected(c, session, spec, stdin)
	return ended(c, exit, err)
}

func connected(c *cobra.Command, session string, spec wire.ChannelSpec, stdin bool) (exit wire.ChannelExit, err error) {
	hub, err := connect()
	if err != nil {
		return exit, err
	}
	s, err := hub.FindSession(c.Context(), session)
	if err != nil {
		return exit, err
	}
	stdio := client.Stdio{Out: c.OutOrStdout(), Err: c.ErrOrStderr()}
	if stdin {
		stdio.In = c.InOrStdin()
	}
	if spec.TTY {
		restore, err := terminal(&spec, &stdio)
		if err != nil {
			return exit, err
		}
		defer restore()
	} else {
		stop := passSignals(&stdio)
		defer stop()
	}
	// Signals are for the process over there, so they must not end this context.
	return hub.Run(context.WithoutCancel(c.Context()), s.Repo.ID, s.ID, spec, stdio)
}

// terminal makes this terminal raw and follows its size.
func terminal(spec *wire.ChannelSpec, stdio *client.Stdio) (restore func(), err error) {
	in := int(os.Stdin.Fd())
	if !term.IsTerminal(in) {
		return nil, usageError{errors.New("-t needs a terminal on stdin")}
	}
	if spec.Term = os.Getenv("TERM"); spec.Term == "" {
		spec.Term = "xterm-256color"
	}
	cols, rows, err := term.GetSize(in)
	if err != nil {
		return nil, fmt.Errorf("read the terminal's size: %w", err)
	}
	spec.Rows, spec.Cols = uint16(rows), uint16(cols)
	before, err := term.MakeRaw(in)
	if err != nil {
		return nil, fmt.Errorf("make the terminal raw: %w", err)
	}
	resized := make(chan os.Signal, 1)
	signal.Notify(resized, syscall.SIGWINCH)
	sizes := make(chan schema.Size, 1)
	stdio.Resize = sizes
	go func() {
		for range resized {
			if cols, rows, err := term.GetSize(in); err == nil {
				sizes <- schema.Size{Rows: uint16(rows), Cols: uint16(cols)}
			}
		}
	}()
	return func() {
		signal.Stop(resized)
		_ = term.Restore(in, before)
	}, nil
}

// passSignals hands the signals that end programs on to the process in the Sandbox.
func passSignals(stdio *client.Stdio) (stop func()) {
	came := make(chan os.Signal, 8)
	signal.Notify(came, syscall.SIGINT, syscall.SIGTERM, syscall.SIGHUP, syscall.SIGQUIT)
	passed := make(chan int, 8)
	stdio.Signals = passed
	go func() {
		for s := range came {
			if number, ok := s.(syscall.Signal); ok {
				select {
				case passed <- int(number):
				default: // eight are waiting already
				}
			}
		}
	}()
	return func() {
		signal.Stop(came)
		close(came)
	}
}
