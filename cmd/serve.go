package cmd

import (
	"github.com/spf13/cobra"

	"github.com/claude-hub/claude-hub/runner/secret"
)

func serveCommand() *cobra.Command {
	var flags configFlags
	c := &cobra.Command{
		Use: "serve", Short: "Run the Hub", Args: cobra.NoArgs,
		Long: `Run the Hub: the web service that holds Environments and tells Runners what should run.

Several Hubs may run on one PostgreSQL database, behind a balancer: give each a hub.peer_url. Runners connect to it; the Hub connects to
none.`,
		Example: "  claude-hub serve --config config.yml",
		RunE: func(c *cobra.Command, _ []string) error {
			cfg, err := flags.load()
			if err != nil {
				return err
			}
			log, err := logger(cfg.Log)
			if err != nil {
				return err
			}
			if err := secret.NoCoreDumps(); err != nil {
				return err
			}
			h, err := openHub(c.Context(), cfg, log)
			if err != nil {
				return withRemedy(err, flags)
			}
			h.console = c.OutOrStdout()
			return h.run(c.Context())
		},
	}
	flags.add(c)
	return c
}
