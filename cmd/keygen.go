package cmd

import (
	"fmt"

	"github.com/spf13/cobra"

	"github.com/claude-hub/claude-hub/app/seal"
)

func keygenCommand() *cobra.Command {
	return &cobra.Command{
		Use: "keygen", Short: "Make a key that Sensitive values are encrypted with", Args: cobra.NoArgs,
		Long: `Make an encryption key and print it: 32 random bytes in base64. It is kept nowhere.

Put it into the Hub's config, in the list hub.encryption_keys, or as a line of the file that hub.encryption_key_file
names (readable by the Hub's user only), and restart the Hub. From then on Sensitive values are encrypted with it in the
database. The key itself is in no backup of the database: keep a copy where you would find it after losing the Hub's
host. Without the key the values are lost, and a Hub that lacks a key which is in use does not start.

To change the key, so that every value can be read at every moment:
  1. add the new key at the end of the list, on every Hub of the database, and restart each of them
  2. put it first in the list, on every Hub, and restart each: what is saved now is encrypted with it
  3. claude-hub secrets-rotate encrypts everything else anew; the old key may leave the lists once it says so`,
		Example: "  claude-hub keygen\n  (umask 077; claude-hub keygen > /etc/claude-hub/keys)",
		RunE: func(c *cobra.Command, _ []string) error {
			_, err := fmt.Fprintln(c.OutOrStdout(), seal.NewKey())
			return err
		},
	}
}
