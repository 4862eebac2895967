package cmd

import (
	"context"
	"errors"
	"fmt"

	"github.com/spf13/cobra"

	"github.com/claude-hub/claude-hub/handlers/api/client"
	"github.com/claude-hub/claude-hub/handlers/api/schema"
)

func sessionRestartCommand() *cobra.Command {
	return bootCommand(&cobra.Command{
		Use: "restart SESSION", Short: "Stop the Sandbox and boot it again at once, from the newest version",
		Long: `Stop the Sandbox of a running Session and boot it again at once, from the newest applied version. What runs in it is ended;
Workspace and disks stay. On a version with another build the root filesystem is a fresh one: programs that were installed
outside the Workspace and the disks are gone, so that has to be confirmed by typing yes, or with --yes.`,
		Example: "  claude-hub session restart 1a2b3c4d\n  claude-hub session restart 1a2b3c4d --yes",
	}, "Restart it?", (*client.Client).Restart)
}

func sessionWakeCommand() *cobra.Command {
	return bootCommand(&cobra.Command{
		Use: "wake SESSION", Short: "Boot the Sandbox again, from the newest version",
		Long: `Boot the Sandbox of a sleeping Session again, from the newest applied version. On a version with another build the root
filesystem is a fresh one: programs that were installed outside the Workspace and the disks are gone, so that has to be confirmed
by typing yes, or with --yes.`,
		Example: "  claude-hub session wake 1a2b3c4d\n  claude-hub session wake 1a2b3c4d --yes",
	}, "Wake it?", (*client.Client).Wake)
}

// bootCommand makes of c a command that boots a Session's Sandbox by ask. It asks first where that replaces the root filesystem, since the
// applied version has another build.
func bootCommand(c *cobra.Command, question string, ask func(*client.Client, context.Context, int64, string) (schema.Session, error)) *cobra.Command {
	var output string
	var detach, yes bool
	c.Args = cobra.ExactArgs(1)
	c.RunE = func(c *cobra.Command, args []string) error {
		return onSession(c, args[0], func(hub *client.Client, s schema.Session) error {
			if s.State == asleep || s.State == running && c.Name() == "restart" {
				if err := agreeToFresh(c, hub, s, question, yes); err != nil {
					return err
				}
			}
			s, err := ask(hub, c.Context(), s.Repo.ID, s.ID)
			if err != nil {
				return err
			}
			return done(c, hub, s, running, detach, output)
		})
	}
	c.Flags().BoolVar(&detach, "detach", false, "don't wait until it is done")
	c.Flags().BoolVar(&yes, "yes", false, "don't ask")
	outputFlag(c, &output)
	return c
}

// agreeToFresh asks, unless yes was said before, where a boot would replace the root filesystem.
func agreeToFresh(c *cobra.Command, hub *client.Client, s schema.Session, question string, yes bool) error {
	env, err := hub.Environment(c.Context(), s.Repo.ID)
	if err != nil || yes || env.Current == nil || env.Current.BuildKey == s.BuildKey {
		return err
	}
	fmt.Fprintf(c.ErrOrStderr(), "%s moves from version %d to version %d: programs installed outside the Workspace and the disks will be gone.\n",
		s.ID, s.Version, env.Current.Number)
	if !agree(c, question) {
		return errors.New("nothing was done")
	}
	return nil
}
