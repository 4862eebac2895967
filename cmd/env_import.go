package cmd

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"path/filepath"

	"github.com/spf13/cobra"

	"github.com/claude-hub/claude-hub/envspec"
	"github.com/claude-hub/claude-hub/envspec/importer"
	"github.com/claude-hub/claude-hub/envspec/lint"
)

func envImportCommand() *cobra.Command {
	var from, output string
	var write bool
	c := &cobra.Command{
		Use: "import [DIR]", Short: "Propose an environment.yml from what a repository has for other products", Args: cobra.MaximumNArgs(1),
		Long: `Make a proposal for an Environment from a repository's devcontainer.json, copilot-setup-steps.yml, .cursor/environment.json,
.gitpod.yml, mise.toml or .tool-versions: the first that there is, or the one that --from names. The document goes to stdout,
and everything that it could not hold is named on stderr. Nothing is run, and nothing leaves this host. Read the proposal
before you use it: commands that only install packages went into the bootstrap, all others into the start script. The exit
code is 1 when there is nothing to import.`,
		Example: "  claude-hub env import\n  claude-hub env import --write\n  claude-hub env import ~/src/rocket --from .gitpod.yml -o json",
		RunE: func(c *cobra.Command, args []string) error {
			dir := "."
			if len(args) > 0 {
				dir = args[0]
			}
			repo, err := os.OpenRoot(dir)
			if err != nil {
				return usageError{err}
			}
			defer repo.Close() //nolint:errcheck // nothing is written through it that is not closed by itself
			p, err := importer.Import(repo.FS(), filepath.ToSlash(from))
			if err != nil {
				for _, left := range p.Left {
					fmt.Fprintln(c.ErrOrStderr(), left)
				}
				return err
			}
			problems := lint.Check(c.Context(), environmentFile, []byte(p.Document), p.Spec)
			if output == "json" {
				if problems == nil {
					problems = envspec.Problems{}
				}
				err = printJSON(c, struct {
					importer.Proposal
					Problems envspec.Problems `json:"problems"`
				}{p, problems})
			} else {
				sayProposal(c, p, problems)
				_, err = c.OutOrStdout().Write([]byte(p.Document))
			}
			if err != nil || !write {
				return err
			}
			if err := writeNew(repo, environmentFile, []byte(p.Document)); err != nil {
				return err
			}
			fmt.Fprintf(c.ErrOrStderr(), "wrote %s\n", filepath.Join(dir, environmentFile))
			return nil
		},
	}
	c.Flags().StringVar(&from, "from", "", "the file to import, relative to the repository")
	c.Flags().BoolVar(&write, "write", false, "also write "+environmentFile+", unless it is there already")
	outputFlag(c, &output)
	return c
}

func sayProposal(c *cobra.Command, p importer.Proposal, problems envspec.Problems) {
	out := c.ErrOrStderr()
	if len(p.Left) > 0 {
		fmt.Fprintf(out, "not carried over from %s and other files:\n", p.Source)
	}
	for _, left := range p.Left {
		fmt.Fprintf(out, "  %s\n", left)
	}
	for _, problem := range problems {
		fmt.Fprintf(out, "%s\n", problem)
	}
}

// writeNew writes a file that is not there yet, and never outside of the repository.
func writeNew(repo *os.Root, name string, b []byte) error {
	if err := repo.MkdirAll(path.Dir(name), 0o755); err != nil {
		return err
	}
	f, err := repo.OpenFile(name, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o644)
	if errors.Is(err, fs.ErrExist) {
		return fmt.Errorf("%s is there already, and was left as it is: remove it first, or leave --write out and compare", name)
	}
	if err != nil {
		return err
	}
	_, err = f.Write(b)
	return errors.Join(err, f.Close())
}
