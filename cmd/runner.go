package cmd

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"strings"

	"github.com/spf13/cobra"

	"github.com/claude-hub/claude-hub/handlers/api/client"
	"github.com/claude-hub/claude-hub/runner"
	"github.com/claude-hub/claude-hub/runner/hubclient"
)

func runnerCommand() *cobra.Command {
	var flags configFlags
	var hub string
	c := &cobra.Command{
		Use: "runner", Short: "Run a Runner on this host", Args: cobra.NoArgs,
		Long: `Run a Runner: it connects to the Hub, builds Environments, and runs Sessions in Sandboxes on this host. It needs
root, and to be registered once: see claude-hub runner register.

When it stops, or is killed, Sandboxes and scripts in them live on; the next start goes on with them. When systemd
takes the host down, Sandboxes are stopped in good order, containers in them with their grace time, and the next start boots them.`,
		Example: "  claude-hub runner --config config.yml\n  claude-hub runner --data /srv/claude-hub --hub https://hub.example.org",
		RunE: func(c *cobra.Command, _ []string) error {
			cfg, err := flags.load()
			if err != nil {
				return err
			}
			log, err := logger(cfg.Log)
			if err != nil {
				return err
			}
			identity, err := hubclient.ReadIdentity(runner.IdentityPath(cfg.Data))
			if errors.Is(err, fs.ErrNotExist) {
				return fmt.Errorf("this Runner is not registered in %s: make a token on the Hub's page of Runners, or with claude-hub runner token, then run: claude-hub runner register%s", cfg.Data, flags.again())
			}
			if err != nil {
				return err
			}
			if hub != "" {
				identity.Hub = hub
			}
			r, err := runner.New(cfg.Data, identity, cfg.Runner, version, log)
			if err != nil {
				return fmt.Errorf("start the Runner: %w", err)
			}
			return errors.Join(r.Run(c.Context()), r.Close())
		},
	}
	flags.add(c)
	c.Flags().StringVar(&hub, "hub", "", "URL of the Hub; default: the one it was registered at")
	c.AddCommand(registerCommand(), runnerTokenCommand(), runnerListCommand(), runnerPurgeCommand())
	return c
}

func registerCommand() *cobra.Command {
	var flags configFlags
	var hub, name, tokenFile string
	c := &cobra.Command{
		Use: "register", Short: "Register this host as a Runner of a Hub", Args: cobra.NoArgs,
		Long: `Register this host as a Runner: trade a one-time token, from the Hub's page of Runners, for an identity that is kept
in the data folder, readable by root only. An identity that is there already is replaced.`,
		Example: "  claude-hub runner register --hub https://hub.example.org --name r1 < token\n" +
			"  claude-hub runner register --hub https://hub.example.org --name r1 --token-file token",
		RunE: func(c *cobra.Command, _ []string) error {
			cfg, err := flags.load()
			if err != nil {
				return err
			}
			if hub == "" {
				return usage(c, errors.New("say which Hub: --hub https://hub.example.org"))
			}
			if _, err := client.New(hub, "", nil); err != nil {
				return usage(c, err)
			}
			if name == "" {
				if name, err = os.Hostname(); err != nil {
					return fmt.Errorf("find this host's name: %w", err)
				}
			}
			token, err := readToken(tokenFile, c.InOrStdin())
			if err != nil {
				return usage(c, err)
			}
			id, secret, err := hubclient.Register(c.Context(), nil, hub, token, name)
			if err != nil {
				return err
			}
			identity := hubclient.Identity{Hub: hub, Runner: id, Name: name, Token: secret}
			if err := hubclient.WriteIdentity(runner.IdentityPath(cfg.Data), identity); err != nil {
				return err
			}
			fmt.Fprintf(c.OutOrStdout(), "registered as Runner %s; start it with: claude-hub runner%s\n", name, flags.again())
			return nil
		},
	}
	flags.add(c)
	c.Flags().StringVar(&hub, "hub", "", "URL of the Hub")
	c.Flags().StringVar(&name, "name", "", "name shown to people; default: this host's")
	c.Flags().StringVar(&tokenFile, "token-file", "-", "file with the registration token; - is standard input")
	return c
}

// readToken reads a token without ever taking it from the command line, where every process of the host sees it.
func readToken(file string, stdin io.Reader) (string, error) {
	in := stdin
	if file != "-" {
		f, err := os.Open(file)
		if err != nil {
			return "", err
		}
		defer f.Close()
		in = f
	}
	b, err := io.ReadAll(io.LimitReader(in, 4096))
	if err != nil {
		return "", fmt.Errorf("read the registration token: %w", err)
	}
	token := strings.TrimSpace(string(b))
	if token == "" {
		return "", errors.New("there is no registration token: give it on standard input or by --token-file")
	}
	return token, nil
}
