package cmd

import (
	"fmt"

	"github.com/rs/zerolog"
	"github.com/spf13/cobra"

	"github.com/claude-hub/claude-hub/runner"
)

func doctorCommand() *cobra.Command {
	var flags configFlags
	var output string
	c := &cobra.Command{
		Use: "doctor", Short: "Say what this host lacks as a Runner", Args: cobra.NoArgs,
		Long:    "Look at this host as a Runner would, and say what is missing and what to do about it. It needs root, and works beside a Runner.",
		Example: "  claude-hub doctor\n  claude-hub doctor -o json",
		RunE: func(c *cobra.Command, _ []string) error {
			cfg, err := flags.load()
			if err != nil {
				return err
			}
			found, err := runner.Probe(c.Context(), cfg.Runner, zerolog.Nop())
			if err != nil {
				return err
			}
			if output == "json" {
				return printJSON(c, map[string]any{"engine": found.Kind, "nested": found.Nested, "quota": found.Quota, "missing": append([]string{}, found.Missing...)})
			}
			for _, m := range found.Missing {
				fmt.Fprintln(c.OutOrStdout(), "- "+m)
			}
			if len(found.Missing) == 0 {
				fmt.Fprintln(c.OutOrStdout(), "this host has all that a Runner needs")
			}
			return nil
		},
	}
	flags.add(c)
	outputFlag(c, &output)
	return c
}
