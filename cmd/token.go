package cmd

import (
	"errors"
	"fmt"
	"time"

	"github.com/spf13/cobra"

	"github.com/claude-hub/claude-hub/app/access"
)

func tokenCommand() *cobra.Command {
	var flags configFlags
	var login, name string
	var days int
	c := &cobra.Command{
		Use: "token", Short: "Make a token for the CLI and the API, on the Hub's host", Args: cobra.NoArgs,
		Long: `Make a token for the CLI and the API and print it, once. It works on the Hub's own database, so it runs on the Hub's
host, also while the Hub runs. It needs dev login (key dev.login).`,
		Example: "  export CLAUDE_HUB_URL=http://127.0.0.1:7780 CLAUDE_HUB_TOKEN=$(claude-hub token --login ana --name laptop)",
		RunE: func(c *cobra.Command, _ []string) error {
			cfg, err := flags.load()
			if err != nil {
				return err
			}
			if login == "" {
				return usageError{errors.New("say whose token it is: --login NAME")}
			}
			db, err := openExisting(c.Context(), cfg)
			if err != nil {
				return err
			}
			defer db.Close()
			gate, err := access.Open(c.Context(), db, access.Options{DevLogin: cfg.Dev.Login})
			if err != nil {
				return err
			}
			_, token, err := gate.IssueToken(c.Context(), login, name, time.Duration(days)*24*time.Hour)
			if err != nil {
				return err
			}
			_, err = fmt.Fprintln(c.OutOrStdout(), token)
			return err
		},
	}
	flags.add(c)
	c.Flags().StringVar(&login, "login", "", "the person it belongs to")
	c.Flags().StringVar(&name, "name", "cli", "what it is for, shown in the audit log")
	c.Flags().IntVar(&days, "days", 90, "days until it expires")
	return c
}
