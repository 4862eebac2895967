// Package cmd is the command line: one file per command, nothing but flags and wiring.
package cmd

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"strings"
	"syscall"
	"time"

	"github.com/spf13/cobra"

	"github.com/claude-hub/claude-hub/runner/agent"
)

// Exit codes, the same for every command (README). session exec, shell and run return the remote code instead, and
// exitOwnFault when claude-hub itself failed.
const (
	exitOK          = 0
	exitFailed      = 1
	exitUsage       = 2
	exitUnreachable = 3
	exitNotAllowed  = 4
	exitOwnFault    = 125
)

// usageError is input that the command line can't take.
type usageError struct{ error }

func (e usageError) Unwrap() error { return e.error }

// exitError ends the process with a code and says nothing more.
type exitError struct{ code int }

func (e exitError) Error() string { return fmt.Sprintf("exit code %d", e.code) }

// Main runs a command line and returns its exit code.
func Main(args []string) int {
	if len(args) > 0 && args[0] == "agent" { // PID 1 of a Sandbox: nothing else is set up before it
		return agent.Main(args[1:])
	}
	ctx, stop := firstSignal(context.Background())
	defer stop()
	root := rootCommand()
	root.SetArgs(args)
	err := root.ExecuteContext(ctx)
	if err == nil {
		return exitOK
	}
	var exit exitError
	if errors.As(err, &exit) {
		return exit.code
	}
	fmt.Fprintf(os.Stderr, "claude-hub: %s\n", sentence(ctx, err))
	return exitCode(err)
}

// sentence is err for a person. Who pressed Ctrl-C knows why it ended, and needs no trace of it.
func sentence(ctx context.Context, err error) string {
	if ctx.Err() != nil && errors.Is(err, context.Canceled) {
		return "stopped by a signal before it was done"
	}
	return strings.TrimSpace(err.Error())
}

// sameSignal is how soon after the first signal another one counts as the same. Some senders send each twice: timeout(1) to
// its child and then to the process group that the child is in.
const sameSignal = time.Second

// firstSignal is a context that the first SIGINT or SIGTERM ends. From sameSignal later on they do what they do by default, so
// that a second one ends the process however long it takes to stop. NotifyContext would go on swallowing them.
func firstSignal(parent context.Context) (context.Context, context.CancelFunc) {
	ctx, stop := context.WithCancel(parent)
	came := make(chan os.Signal, 1)
	signal.Notify(came, os.Interrupt, syscall.SIGTERM)
	go func() {
		defer signal.Stop(came)
		select {
		case <-ctx.Done():
		case <-came:
			stop()
			<-time.After(sameSignal)
		}
	}()
	return ctx, stop
}

func rootCommand() *cobra.Command {
	root := &cobra.Command{
		Use:   "claude-hub",
		Short: "Environments and Sessions for the Repos of a team, on machines of their own",
		Long: `claude-hub gives every Repo one Environment, the recipe its Sandboxes are built from, and runs Sessions in
those Sandboxes. The Hub decides and keeps; Runners build and run.

Commands that talk to a Hub find it by CLAUDE_HUB_URL and CLAUDE_HUB_TOKEN (claude-hub token makes one), else as
claude-hub dev on this machine left it.

Exit codes: 0 ok, 1 failed, 2 usage, 3 the Hub can't be reached, 4 not allowed. session exec and session shell
return the code of what ran (128 + signal), and 125 when claude-hub itself failed.`,
		SilenceUsage: true, SilenceErrors: true,
		Args: noArgs,
		RunE: func(c *cobra.Command, _ []string) error { return c.Help() },
	}
	root.SetFlagErrorFunc(func(c *cobra.Command, err error) error { return usage(c, err) })
	root.AddCommand(devCommand(), serveCommand(), runnerCommand(), envCommand(), sharedCommand(), repoCommand(), sessionCommand(), imageCommand(), doctorCommand(), versionCommand(), tokenCommand(), keygenCommand(), setupTokenCommand(), secretsRotateCommand(), secretsResetCommand())
	wrapArgs(root)
	return root
}

func noArgs(_ *cobra.Command, args []string) error {
	if len(args) > 0 {
		return fmt.Errorf("unknown command %q", args[0])
	}
	return nil
}

// wrapArgs makes every complaint about arguments a usage error: cobra itself exits with 1 for them.
func wrapArgs(c *cobra.Command) {
	check := c.Args
	if check == nil {
		check = cobra.ArbitraryArgs
		if c.HasSubCommands() {
			check = noArgs
		}
	}
	if c.RunE == nil && c.HasSubCommands() { // else cobra shows the help of a mistyped command, and succeeds
		c.RunE = func(c *cobra.Command, _ []string) error { return c.Help() }
	}
	c.Args = func(c *cobra.Command, args []string) error {
		if err := check(c, args); err != nil {
			return usage(c, err)
		}
		return nil
	}
	for _, sub := range c.Commands() {
		wrapArgs(sub)
	}
}

func usage(c *cobra.Command, err error) error {
	return usageError{fmt.Errorf("%w\nSee: %s --help", err, c.CommandPath())}
}
