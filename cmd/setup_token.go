package cmd

import (
	"fmt"
	"net"

	"github.com/spf13/cobra"

	"github.com/claude-hub/claude-hub/app/github"
	"github.com/claude-hub/claude-hub/app/seal"
	"github.com/claude-hub/claude-hub/app/setup"
)

func setupTokenCommand() *cobra.Command {
	var flags configFlags
	c := &cobra.Command{
		Use: "setup-token", Short: "Print the address where this Hub's GitHub App is set up or changed, on the Hub's host", Args: cobra.NoArgs,
		Long: `Print an address that opens the set-up page of this Hub's GitHub App, once, within an hour. There an App is created or
entered, also in place of the one the Hub has, and the webhook secret is changed. It works on the Hub's own database, so it runs on the
Hub's host, with the Hub's own --config or --data, also while the Hub runs.

An App that the config names (section github) is changed in the config.`,
		Example: "  claude-hub setup-token --config config.yml",
		RunE: func(c *cobra.Command, _ []string) error {
			cfg, err := flags.load()
			if err != nil {
				return err
			}
			db, err := openExisting(c.Context(), cfg)
			if err != nil {
				return err
			}
			defer db.Close()
			o := setup.Options{PublicURL: guessedURL(cfg)}
			if cfg.GitHub.On() {
				o.Given = &github.Credentials{AppID: cfg.GitHub.AppID}
			}
			s := setup.New(db, seal.New(db, seal.Keys{}, seal.Columns()), github.NewHolder(nil), o)
			token, expires, err := s.NewToken(c.Context(), "system: setup-token on "+hubName(), true)
			if err != nil {
				return err
			}
			_, err = fmt.Fprintf(c.OutOrStdout(), "%s\n\nIt works once, until %s UTC.\n", s.URL(token), expires.UTC().Format("15:04"))
			return err
		},
	}
	flags.add(c)
	return c
}

// guessedURL is where a Hub with this config is reached, as far as the config says it.
func guessedURL(cfg fileConfig) string {
	if cfg.Hub.URL != "" {
		return cfg.Hub.URL
	}
	host, port, err := net.SplitHostPort(cfg.Hub.Listen)
	if ip := net.ParseIP(host); err == nil && (host == "" || ip != nil && ip.IsUnspecified()) {
		return "http://" + net.JoinHostPort("localhost", port)
	}
	return "http://" + cfg.Hub.Listen
}
