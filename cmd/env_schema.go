package cmd

import (
	"github.com/spf13/cobra"

	"github.com/claude-hub/claude-hub/envspec"
)

func envSchemaCommand() *cobra.Command {
	return &cobra.Command{
		Use: "schema", Short: "Print the JSON Schema of an environment.yml, for editors", Args: cobra.NoArgs,
		Long: `Print the JSON Schema (draft-07) of an Environment's document. A Hub serves the same at /schemas/environment.v1.json: with
"# yaml-language-server: $schema=" and that address in the document's first line, editors complete and check it.`,
		Example: "  claude-hub env schema > environment.v1.json",
		RunE: func(c *cobra.Command, _ []string) error {
			_, err := c.OutOrStdout().Write(envspec.Schema())
			return err
		},
	}
}
