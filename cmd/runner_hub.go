package cmd

import (
	"errors"
	"fmt"
	"time"

	"github.com/spf13/cobra"

	"github.com/claude-hub/claude-hub/runner"
)

// runnerTokenCommand asks the Hub for what runner register needs.
func runnerTokenCommand() *cobra.Command {
	var output string
	c := &cobra.Command{
		Use: "token", Short: "Make a one-time token that registers a Runner", Args: cobra.NoArgs,
		Example: "  claude-hub runner token | ssh r1 claude-hub runner register --hub https://hub.example.org --name r1",
		RunE: func(c *cobra.Command, _ []string) error {
			hub, err := connect()
			if err != nil {
				return err
			}
			made, err := hub.NewRegistration(c.Context())
			if err != nil {
				return err
			}
			if output == "json" {
				return printJSON(c, made)
			}
			fmt.Fprintf(c.ErrOrStderr(), "it registers one Runner, until %s\n", made.Expires.Format(time.DateTime))
			_, err = fmt.Fprintln(c.OutOrStdout(), made.Token)
			return err
		},
	}
	outputFlag(c, &output)
	return c
}

func runnerListCommand() *cobra.Command {
	var output string
	c := &cobra.Command{
		Use: "ls", Aliases: []string{"list"}, Short: "List the Hub's Runners", Args: cobra.NoArgs, Example: "  claude-hub runner ls -o json",
		RunE: func(c *cobra.Command, _ []string) error {
			hub, err := connect()
			if err != nil {
				return err
			}
			all, err := hub.Runners(c.Context())
			if err != nil {
				return err
			}
			if output == "json" {
				return printJSON(c, all)
			}
			rows := make([][]string, 0, len(all))
			for _, r := range all {
				state := "offline"
				if r.Online {
					state = "online"
				}
				builds, free := "", ""
				if d := r.Disk; d != nil {
					builds, free = fmt.Sprintf("%d (%s)", d.Builds, imageSize(d.BuildBytes)), imageSize(d.Free)
				}
				rows = append(rows, []string{r.Name, state, r.Platform, r.Version, r.Engine, builds, free, r.Update})
			}
			return printTable(c, "NAME|STATE|PLATFORM|VERSION|ENGINE|BUILDS|DISK FREE|NOTE", rows)
		},
	}
	outputFlag(c, &output)
	return c
}

func runnerPurgeCommand() *cobra.Command {
	var flags configFlags
	var yes bool
	c := &cobra.Command{
		Use: "purge", Short: "Take away all that a Runner made on this host, Workspaces included", Args: cobra.NoArgs,
		Long: `End every Sandbox on this host and delete the Runner's part of the data folder: images, builds, and every Session's
Workspace. It is for a host that stops being a Runner; a Runner that runs has to be stopped first.`,
		Example: "  claude-hub runner purge --data /var/lib/claude-hub --yes",
		RunE: func(c *cobra.Command, _ []string) error {
			cfg, err := flags.load()
			if err != nil {
				return err
			}
			if !yes {
				return usageError{errors.New("this deletes every Session's Workspace on this host: say --yes if that is meant")}
			}
			log, err := logger(cfg.Log)
			if err != nil {
				return err
			}
			return runner.Purge(c.Context(), cfg.Data, cfg.Runner, log)
		},
	}
	flags.add(c)
	c.Flags().BoolVar(&yes, "yes", false, "delete")
	return c
}
