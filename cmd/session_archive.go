package cmd

import (
	"errors"
	"fmt"

	"github.com/spf13/cobra"

	"github.com/claude-hub/claude-hub/handlers/api/client"
	"github.com/claude-hub/claude-hub/handlers/api/schema"
)

func sessionArchiveCommand() *cobra.Command {
	var output string
	var detach, yes bool
	c := &cobra.Command{
		Use: "archive SESSION", Short: "Put a Session away: its Workspace stays, its Sandbox and disks are given up", Args: cobra.ExactArgs(1),
		Long: `Put a Session away that nobody works in for now. Its Workspace stays on its Runner's host, with all that was never pushed. Its
Sandbox is given up, and so are its dependency folders, package caches and Docker's data, unless the Hub is set to keep them: that has to
be confirmed by typing yes, or with --yes. Nothing wakes an archived Session but claude-hub session restore.`,
		Example: "  claude-hub session archive 1a2b3c4d\n  claude-hub session archive 1a2b3c4d --yes",
		RunE: func(c *cobra.Command, args []string) error {
			return onSession(c, args[0], func(hub *client.Client, s schema.Session) error {
				if s.State != archived && !yes {
					fmt.Fprintf(c.ErrOrStderr(), "%s on %s, branch %s. %s\n", s.ID, s.Repo.Name, s.WorkBranch, s.Loses)
					if !agree(c, "Archive it?") {
						return errors.New("nothing was archived")
					}
				}
				s, err := hub.Archive(c.Context(), s.Repo.ID, s.ID)
				if err != nil {
					return err
				}
				return done(c, hub, s, archived, detach, output)
			})
		},
	}
	c.Flags().BoolVar(&detach, "detach", false, "don't wait until it is done")
	c.Flags().BoolVar(&yes, "yes", false, "don't ask")
	outputFlag(c, &output)
	return c
}

func sessionRestoreCommand() *cobra.Command {
	var output string
	var detach, wake bool
	c := &cobra.Command{
		Use: "restore SESSION", Short: "Bring an archived Session back", Args: cobra.ExactArgs(1),
		Long:    `Bring an archived Session back, asleep, or with --wake in a fresh Sandbox from the newest version. Its Workspace is as it was.`,
		Example: "  claude-hub session restore 1a2b3c4d\n  claude-hub session restore 1a2b3c4d --wake",
		RunE: func(c *cobra.Command, args []string) error {
			return onSession(c, args[0], func(hub *client.Client, s schema.Session) error {
				s, err := hub.RestoreSession(c.Context(), s.Repo.ID, s.ID, wake)
				if err != nil {
					return err
				}
				state := asleep
				if wake {
					state = running
				}
				return done(c, hub, s, state, detach, output)
			})
		},
	}
	c.Flags().BoolVar(&detach, "detach", false, "don't wait until it is done")
	c.Flags().BoolVar(&wake, "wake", false, "wake it at once")
	outputFlag(c, &output)
	return c
}
