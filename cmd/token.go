package cmd

import (
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/claude-hub/claude-hub/app/access"
	"github.com/claude-hub/claude-hub/handlers/api/schema"
)

func tokenCommand() *cobra.Command {
	var flags configFlags
	var login, name string
	var days int
	c := &cobra.Command{
		Use: "token", Short: "Tokens for the command line and the API: create, list, revoke; or make one on the Hub's host", Args: cobra.NoArgs,
		Long: `Make, list and revoke your tokens. The first one is made in the browser, at /account/tokens of the Hub.

With --login, make a token under any name and print it, once. That works on the Hub's own database, so it runs on the Hub's
host, also while the Hub runs, and it needs dev login (key dev.login).`,
		Example: "  export CLAUDE_HUB_URL=http://127.0.0.1:7780 CLAUDE_HUB_TOKEN=$(claude-hub token --login ana --name laptop)\n  claude-hub token ls",
		RunE: func(c *cobra.Command, _ []string) error {
			cfg, err := flags.load()
			if err != nil {
				return err
			}
			if login == "" {
				return usageError{errors.New("say what to do (create, ls, revoke), or whose token to make on the Hub's host: --login NAME")}
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
	c.Flags().StringVar(&name, "name", "cli", "what it is for")
	c.Flags().IntVar(&days, "days", 90, "days until it expires")
	c.AddCommand(tokenCreateCommand(), tokenListCommand(), tokenRevokeCommand())
	return c
}

func tokenCreateCommand() *cobra.Command {
	var output string
	var in schema.NewToken
	c := &cobra.Command{
		Use: "create NAME", Short: "Make a token of yours and print it, once", Args: cobra.ExactArgs(1),
		Long: `Make a token and print it, once. It can do no more than the token that makes it, which needs the scope tokens, and lasts no
longer.

Scopes: read (see everything there is to see), environments (drafts, Test builds, Apply), sessions (start, change, delete and
run commands in them), shared (change Shared variables), runners (register and revoke), tokens (make and revoke tokens).`,
		Example: "  claude-hub token create ci --scope read,environments --repo acme/rocket --days 30",
		RunE: func(c *cobra.Command, args []string) error {
			hub, err := connect()
			if err != nil {
				return err
			}
			in.Name = args[0]
			made, err := hub.CreateToken(c.Context(), in)
			if err != nil {
				return err
			}
			if output == "json" {
				return printJSON(c, made)
			}
			fmt.Fprintf(c.ErrOrStderr(), "it ends at %s\n", made.Expires.Format(time.DateTime))
			_, err = fmt.Fprintln(c.OutOrStdout(), made.Secret)
			return err
		},
	}
	c.Flags().StringSliceVar(&in.Scopes, "scope", []string{string(access.ScopeRead)}, "what it may do")
	c.Flags().StringSliceVar(&in.Repos, "repo", nil, "only for this Repo, as owner/name or its id; may be given again (default all that you have access to)")
	c.Flags().IntVar(&in.Days, "days", 90, "days until it ends, at most 365")
	outputFlag(c, &output)
	return c
}

func tokenListCommand() *cobra.Command {
	var output string
	c := &cobra.Command{
		Use: "ls", Aliases: []string{"list"}, Short: "List your tokens", Args: cobra.NoArgs, Example: "  claude-hub token ls -o json",
		RunE: func(c *cobra.Command, _ []string) error {
			hub, err := connect()
			if err != nil {
				return err
			}
			all, err := hub.Tokens(c.Context())
			if err != nil {
				return err
			}
			if output == "json" {
				return printJSON(c, all)
			}
			rows := make([][]string, 0, len(all))
			for _, t := range all {
				used := since(t.Used)
				if used == "" {
					used = "never"
				}
				rows = append(rows, []string{t.ID, oneLine(t.Name), strings.Join(t.Scopes, ","), tokenRepos(t), used, t.Expires.Format(time.DateTime)})
			}
			return printTable(c, "ID|NAME|SCOPES|REPOS|LAST USED|ENDS", rows)
		},
	}
	outputFlag(c, &output)
	return c
}

func tokenRepos(t schema.Token) string {
	var all []string
	for _, r := range t.Repos {
		all = append(all, r.Name)
	}
	switch {
	case t.Hidden > 0:
		all = append(all, fmt.Sprintf("%d without access", t.Hidden))
	case len(all) == 0:
		return "all"
	}
	return strings.Join(all, ",")
}

func tokenRevokeCommand() *cobra.Command {
	return &cobra.Command{
		Use: "revoke ID", Short: "End a token of yours, at once", Args: cobra.ExactArgs(1),
		Example: "  claude-hub token revoke 0198a5c2-5b0e-7f4b-9a39-f2b6f2f0c001",
		RunE: func(c *cobra.Command, args []string) error {
			hub, err := connect()
			if err != nil {
				return err
			}
			if err := hub.RevokeToken(c.Context(), args[0]); err != nil {
				return err
			}
			_, err = fmt.Fprintf(c.OutOrStdout(), "%s is revoked\n", args[0])
			return err
		},
	}
}
