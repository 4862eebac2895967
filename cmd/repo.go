package cmd

import (
	"fmt"
	"strconv"
	"strings"

	"github.com/spf13/cobra"
)

func repoCommand() *cobra.Command {
	c := &cobra.Command{
		Use: "repo", Short: "The Repos that you can use: list, open",
		Long:    `Your Repos are those of the Hub's GitHub App that you have access to on GitHub yourself. A public Repo's public doesn't count.`,
		Example: "  claude-hub repo ls\n  claude-hub repo open acme/rocket",
	}
	c.AddCommand(repoListCommand(), repoOpenCommand())
	return c
}

func repoListCommand() *cobra.Command {
	var output string
	c := &cobra.Command{
		Use: "ls [TEXT]", Aliases: []string{"list"}, Short: "List your Repos, or those with TEXT in their name", Args: cobra.MaximumNArgs(1),
		Example: "  claude-hub repo ls\n  claude-hub repo ls rocket -o json",
		RunE: func(c *cobra.Command, args []string) error {
			hub, err := connect()
			if err != nil {
				return err
			}
			all, err := hub.Repos(c.Context())
			if err != nil {
				return err
			}
			found := all[:0]
			for _, r := range all {
				if len(args) == 0 || strings.Contains(strings.ToLower(r.Name), strings.ToLower(args[0])) {
					found = append(found, r)
				}
			}
			if output == "json" {
				return printJSON(c, found)
			}
			rows := make([][]string, 0, len(found))
			for _, r := range found {
				rows = append(rows, []string{oneLine(r.Name), strconv.FormatInt(r.ID, 10)})
			}
			return printTable(c, "REPO|ID", rows)
		},
	}
	outputFlag(c, &output)
	return c
}

func repoOpenCommand() *cobra.Command {
	var output string
	c := &cobra.Command{
		Use: "open REPO", Short: "Check that you can use a Repo, and say where its page is", Args: cobra.ExactArgs(1),
		Long: `Check a Repo before setting anything up: whether you have access to it, and whether the Hub's GitHub App is installed on it,
with where to install it. REPO is owner/name, or an address of it that a browser or git uses.`,
		Example: "  claude-hub repo open acme/rocket\n  claude-hub repo open git@github.com:acme/rocket.git",
		RunE: func(c *cobra.Command, args []string) error {
			hub, err := connect()
			if err != nil {
				return err
			}
			repo, err := hub.OpenRepo(c.Context(), args[0])
			if err != nil {
				return err
			}
			if output == "json" {
				return printJSON(c, repo)
			}
			_, err = fmt.Fprintf(c.OutOrStdout(), "%s %s/repos/%d\n", oneLine(repo.Name), hub.Hub(), repo.ID)
			return err
		},
	}
	outputFlag(c, &output)
	return c
}
