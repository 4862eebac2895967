package cmd

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"strings"
	"syscall"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/term"

	"github.com/claude-hub/claude-hub/handlers/api/client"
	"github.com/claude-hub/claude-hub/handlers/api/schema"
	"github.com/claude-hub/claude-hub/runner/wire"
)

func sessionShellCommand() *cobra.Command {
	var user, attach string
	c := &cobra.Command{
		Use: "shell SESSION", Short: "Open a shell in a Session", Args: cobra.ExactArgs(1),
		Long: `Open a login shell in a Session's Workspace. It returns the shell's exit code, and 125 when claude-hub itself failed.

On a terminal, the shell is one of the Session's terminals: it is on the Session's page, others may watch it and type, and a lost
connection, a restart of the Hub or of the Runner doesn't end it. It ends with this command, unless that is killed; --attach goes back to
one that runs, which then stays.`,
		Example: "  claude-hub session shell 1a2b3c4d\n  claude-hub session shell 1a2b3c4d -u root\n  claude-hub session shell 1a2b3c4d --attach 9f8e7d6c",
		RunE: func(c *cobra.Command, args []string) error {
			if !term.IsTerminal(int(os.Stdin.Fd())) {
				if attach != "" {
					return usage(c, errors.New("--attach needs a terminal on stdin"))
				}
				return remote(c, args[0], wire.ChannelSpec{User: user}, true)
			}
			exit, err := inTerminal(c, args[0], user, attach)
			return ended(c, exit, err)
		},
	}
	c.Flags().StringVarP(&user, "user", "u", "", "user in the Sandbox; default: the image's")
	c.Flags().StringVar(&attach, "attach", "", "a terminal that runs, by the start or the end of its id, or “newest”")
	return c
}

// inTerminal connects this terminal to one of a Session's.
func inTerminal(c *cobra.Command, name, user, attach string) (exit wire.ChannelExit, err error) {
	hub, err := connect()
	if err != nil {
		return exit, err
	}
	s, err := hub.FindSession(c.Context(), name)
	if err != nil {
		return exit, err
	}
	var id string
	if attach != "" {
		if id, err = findTerminal(c.Context(), hub, s, attach); err != nil {
			return exit, err
		}
	}
	spec := wire.ChannelSpec{User: user}
	stdio := client.Stdio{In: c.InOrStdin(), Out: c.OutOrStdout()}
	restore, err := terminal(&spec, &stdio)
	if err != nil {
		return exit, err
	}
	defer restore()
	if id == "" {
		t, err := hub.OpenTerminal(c.Context(), s.Repo.ID, s.ID, schema.OpenTerminal{Rows: spec.Rows, Cols: spec.Cols, Term: spec.Term, User: spec.User})
		if err != nil {
			return exit, err
		}
		id = t.ID
	}
	ctx, stop := signal.NotifyContext(context.WithoutCancel(c.Context()), syscall.SIGTERM, syscall.SIGHUP)
	defer stop()
	sizes := make(chan schema.Size, 1)
	sizes <- schema.Size{Rows: spec.Rows, Cols: spec.Cols}
	stdio.Resize = joined(ctx, sizes, stdio.Resize)
	exit, err = hub.Attach(ctx, s.Repo.ID, s.ID, id, stdio)
	if ctx.Err() != nil && attach == "" {
		away, cancel := context.WithTimeout(context.WithoutCancel(ctx), 5*time.Second)
		defer cancel()
		return wire.ChannelExit{Code: 129}, hub.CloseTerminal(away, s.Repo.ID, s.ID, id)
	}
	return exit, err
}

// joined is what comes of first, and then of more.
func joined(ctx context.Context, first chan schema.Size, more <-chan schema.Size) <-chan schema.Size {
	go func() {
		for {
			select {
			case size := <-more:
				select {
				case first <- size:
				case <-ctx.Done():
					return
				}
			case <-ctx.Done():
				return
			}
		}
	}()
	return first
}

func findTerminal(ctx context.Context, hub *client.Client, s schema.Session, name string) (string, error) {
	all, err := hub.Terminals(ctx, s.Repo.ID, s.ID)
	if err != nil {
		return "", err
	}
	var ids []string
	for _, t := range all {
		if t.EndedAt == nil {
			ids = append(ids, t.ID)
		}
	}
	return named("terminal", name, ids)
}

// named finds one of ids, oldest first, by its start or its end or as the newest.
func named(what, name string, ids []string) (string, error) {
	var found []string
	for _, id := range ids {
		if name == "newest" || len(name) >= 6 && (strings.HasPrefix(id, name) || strings.HasSuffix(id, name)) {
			found = append(found, id)
		}
	}
	switch {
	case len(found) == 0:
		return "", fmt.Errorf("this Session has no such %s: %s", what, name)
	case len(found) > 1 && name != "newest":
		return "", fmt.Errorf("%d %ss of this Session are named so; give more of the id", len(found), what)
	}
	return found[len(found)-1], nil
}

// ended is how a command ends that ran something in a Session.
func ended(c *cobra.Command, exit wire.ChannelExit, err error) error {
	var wrongUse usageError
	switch {
	case errors.As(err, &wrongUse):
		return err
	case err != nil:
		fmt.Fprintf(c.ErrOrStderr(), "claude-hub: %v\n", err)
		return exitError{exitOwnFault}
	case exit.Failed != "":
		fmt.Fprintf(c.ErrOrStderr(), "claude-hub: %s\n", exit.Failed)
		return exitError{exit.Code}
	case exit.OOM:
		fmt.Fprintln(c.ErrOrStderr(), "claude-hub: the Sandbox ran out of memory")
	}
	if exit.Code != 0 {
		return exitError{exit.Code}
	}
	return nil
}

// quietly runs spec in a Session and fails with what it said on stderr.
func quietly(ctx context.Context, hub *client.Client, s schema.Session, argv []string, in io.Reader, out io.Writer) error {
	var says strings.Builder
	exit, err := hub.Run(ctx, s.Repo.ID, s.ID, wire.ChannelSpec{Argv: argv}, client.Stdio{In: in, Out: out, Err: &says})
	switch {
	case err != nil:
		return err
	case exit.Masked:
		return errMasked
	case exit.Failed != "":
		return errors.New(exit.Failed)
	case exit.Code != 0:
		return fmt.Errorf("in the Sandbox: %s", strings.TrimSpace(says.String()+fmt.Sprintf(" (code %d)", exit.Code)))
	}
	return nil
}
