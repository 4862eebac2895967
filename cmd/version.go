package cmd

import (
	"encoding/json"
	"fmt"
	"runtime"

	"github.com/spf13/cobra"

	"github.com/claude-hub/claude-hub/runner/wire"
)

// version is set by the Makefile from git.
var version = "dev"

func versionCommand() *cobra.Command {
	var output string
	c := &cobra.Command{
		Use: "version", Short: "Print the version", Args: cobra.NoArgs,
		Example: "  claude-hub version -o json",
		RunE: func(c *cobra.Command, _ []string) error {
			if output == "json" {
				return json.NewEncoder(c.OutOrStdout()).Encode(map[string]any{"version": version, "go": runtime.Version(), "protocol": wire.Protocol})
			}
			_, err := fmt.Fprintf(c.OutOrStdout(), "claude-hub %s, protocol %d, %s\n", version, wire.Protocol, runtime.Version())
			return err
		},
	}
	outputFlag(c, &output)
	return c
}
