package cmd

import (
	"errors"
	"fmt"

	"github.com/spf13/cobra"

	"github.com/claude-hub/claude-hub/envspec"
	"github.com/claude-hub/claude-hub/handlers/api/client"
	"github.com/claude-hub/claude-hub/handlers/api/schema"
)

func sessionGrowCommand() *cobra.Command {
	var disk string
	c := &cobra.Command{
		Use: "grow SESSION --disk SIZE", Short: "Give a sleeping Session a larger disk", Args: cobra.ExactArgs(1),
		Long:    "Give a Session that is asleep, or failed, a larger disk. It has it from its next wake on. A disk never shrinks.",
		Example: "  claude-hub session grow 1a2b3c4d --disk 40GiB",
		RunE: func(c *cobra.Command, args []string) error {
			if disk == "" {
				return usage(c, errors.New("say how large the disk is to be, such as --disk 40GiB"))
			}
			size, err := envspec.ParseSize(disk)
			if err != nil {
				return usage(c, err)
			}
			return onSession(c, args[0], func(hub *client.Client, s schema.Session) error {
				s, err := hub.GrowSession(c.Context(), s.Repo.ID, s.ID, int64(size))
				if err != nil {
					return err
				}
				_, err = fmt.Fprintf(c.ErrOrStderr(), "%s has a disk of %s from its next wake on\n", s.ID, envspec.FormatMemory(s.DiskSize))
				return err
			})
		},
	}
	c.Flags().StringVar(&disk, "disk", "", "size of the whole disk, such as 40GiB")
	return c
}
