package cmd

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/claude-hub/claude-hub/app/audit"
	"github.com/claude-hub/claude-hub/app/seal"
	"github.com/claude-hub/claude-hub/runner/secret"
	"github.com/claude-hub/claude-hub/store"
)

// openSecrets opens the Hub's database and the keys of its config, whose values this process opens, too.
func openSecrets(ctx context.Context, flags configFlags, opts ...store.Option) (*store.DB, *seal.Service, error) {
	if err := secret.NoCoreDumps(); err != nil {
		return nil, nil, err
	}
	cfg, err := flags.load()
	if err != nil {
		return nil, nil, err
	}
	keys, err := encryptionKeys(cfg)
	if err != nil {
		return nil, nil, err
	}
	db, err := openExisting(ctx, cfg, opts...)
	if err != nil {
		return nil, nil, err
	}
	return db, seal.New(db, keys, seal.Columns()), nil
}

func secretsRotateCommand() *cobra.Command {
	var flags configFlags
	c := &cobra.Command{
		Use: "secrets-rotate", Short: "Encrypt every Sensitive value anew, under the first key of the config", Args: cobra.NoArgs,
		Long: `Encrypt every Sensitive value anew under the first key of the Hub's config, and retire each older key that nothing is
left under: it may then leave the config. It runs on the Hub's host with the Hub's config, while Hubs run. Stopped at
any moment, it goes on where it was when run again.

Every running Hub of the database must have the new key in its list, and have it first before the old one can be
retired. claude-hub keygen --help says how to change a key.`,
		Example: "  claude-hub secrets-rotate --config config.yml",
		RunE: func(c *cobra.Command, _ []string) error {
			db, s, err := openSecrets(c.Context(), flags)
			if err != nil {
				return err
			}
			defer db.Close()
			var said time.Time
			done, err := s.Rotate(c.Context(), func(p seal.Progress) {
				if time.Since(said) > 2*time.Second {
					said = time.Now()
					fmt.Fprintf(c.ErrOrStderr(), "%d of %d values, now in %s\n", p.Done, p.Total, p.Table)
				}
			})
			if done.To == "" {
				return err
			}
			out := c.OutOrStdout()
			for _, n := range done.Values {
				fmt.Fprintf(out, "encrypted anew: %s\n", n)
			}
			for _, id := range done.Retired {
				fmt.Fprintf(out, "retired: key %s, which may now leave the config\n", id)
			}
			if err == nil {
				fmt.Fprintf(out, "every Sensitive value is encrypted with key %s\n", done.To)
			}
			return err
		},
	}
	flags.add(c)
	return c
}

func secretsResetCommand() *cobra.Command {
	var flags configFlags
	var dryRun, yes bool
	c := &cobra.Command{
		Use: "secrets-reset", Short: "Give up the Sensitive values whose encryption key is lost", Args: cobra.NoArgs,
		Long: `Clear the Sensitive values that the keys of the Hub's config don't open, and only those: where the key is lost, so are
they. Each Variable stays, with its name, its “available at build” and its Links, and needs a value again; until then
its Repo's Sessions don't start and Test builds are refused. The keys of a GitHub App that was set up in the browser and people's sign-ins at
GitHub go the same way: the App is then set up again, where the Hub's console says, and everybody signs in again.

No Hub may run on the database. It says what it would clear and asks before it does.`,
		Example: "  claude-hub secrets-reset --config config.yml --dry-run\n  claude-hub secrets-reset --config config.yml",
		RunE: func(c *cobra.Command, _ []string) error {
			var opts []store.Option
			if !dryRun {
				opts = append(opts, store.Exclusive())
			}
			db, s, err := openSecrets(c.Context(), flags, opts...)
			if err != nil {
				return err
			}
			defer db.Close()
			return resetSecrets(c.Context(), s, dryRun, yes, c.InOrStdin(), c.OutOrStdout())
		},
	}
	flags.add(c)
	c.Flags().BoolVar(&dryRun, "dry-run", false, "only say what would be cleared")
	c.Flags().BoolVar(&yes, "yes", false, "don't ask")
	return c
}

func resetSecrets(ctx context.Context, s *seal.Service, dryRun, yes bool, in io.Reader, out io.Writer) error {
	found, err := s.Reset(ctx, true, nil)
	if err != nil {
		return err
	}
	for _, id := range found.Keys {
		fmt.Fprintf(out, "not configured: key %s\n", id)
	}
	for _, id := range found.Mended {
		fmt.Fprintf(out, "damaged: the check value of key %s, which is made anew\n", id)
	}
	for _, n := range found.Columns {
		fmt.Fprintf(out, "to clear: %s\n", n)
	}
	if found.Values() == 0 {
		fmt.Fprintln(out, "every Sensitive value can be opened with the configured keys")
	}
	if dryRun || found.Nothing() {
		return nil
	}
	if found.Values() > 0 && !yes {
		fmt.Fprintf(out, "%d values would be gone for good. Type reset to clear them: ", found.Values())
		answer, err := bufio.NewReader(in).ReadString('\n')
		if err != nil && !errors.Is(err, io.EOF) {
			return fmt.Errorf("read the answer: %w", err)
		}
		if strings.TrimSpace(answer) != "reset" {
			return errors.New("nothing was cleared")
		}
	}
	done, err := s.Reset(ctx, false, func(tx *store.Tx, c seal.Cleared) error {
		return audit.Record(tx, audit.Entry{Who: "system: secrets-reset", Action: "secrets.reset", Detail: map[string]any{
			"cleared": c.Columns, "keys": c.Keys, "mended": c.Mended,
		}})
	})
	if err != nil {
		return err
	}
	_, err = fmt.Fprintf(out, "cleared %d values\n", done.Values())
	return err
}
