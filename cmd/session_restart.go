package cmd

import (
	"errors"
	"fmt"

	"github.com/spf13/cobra"

	"github.com/claude-hub/claude-hub/handlers/api/client"
	"github.com/claude-hub/claude-hub/handlers/api/schema"
)

func sessionRestartCommand() *cobra.Command {
	var output string
	var detach, yes bool
	c := &cobra.Command{
		Use: "restart SESSION", Short: "Stop the Sandbox and boot it again at once, from the newest version", Args: cobra.ExactArgs(1),
		Long: `Stop the Sandbox of a running Session and boot it again at once, from the newest applied version. What runs in it is ended;
Workspace and disks stay. On another version than before the root filesystem is a fresh one: programs that were installed
outside the Workspace and the disks are gone, so that has to be confirmed by typing yes, or with --yes.`,
		Example: "  claude-hub session restart 1a2b3c4d\n  claude-hub session restart 1a2b3c4d --yes",
		RunE: func(c *cobra.Command, args []string) error {
			return onSession(c, args[0], func(hub *client.Client, s schema.Session) error {
				env, err := hub.Environment(c.Context(), s.Repo.ID)
				if err != nil {
					return err
				}
				if env.Current != nil && env.Current.Number > s.Version && !yes {
					fmt.Fprintf(c.ErrOrStderr(), "%s moves from version %d to version %d: programs installed outside the Workspace and the disks will be gone.\n",
						s.ID, s.Version, env.Current.Number)
					if !agree(c, "Restart it?") {
						return errors.New("nothing was restarted")
					}
				}
				if s, err = hub.Restart(c.Context(), s.Repo.ID, s.ID); err != nil {
					return err
				}
				return done(c, hub, s, running, detach, output)
			})
		},
	}
	c.Flags().BoolVar(&detach, "detach", false, "don't wait until it is done")
	c.Flags().BoolVar(&yes, "yes", false, "don't ask")
	outputFlag(c, &output)
	return c
}
