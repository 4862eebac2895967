package cmd

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"time"

	"github.com/rs/zerolog"
	"github.com/spf13/cobra"

	"github.com/claude-hub/claude-hub/runner"
	"github.com/claude-hub/claude-hub/runner/hubclient"
)

const (
	devPerson = "dev"
	devRunner = "local"
	// devSleep is how long Ctrl-C waits for Sandboxes to go to sleep. What is still awake then lives on and is
	// adopted at the next start.
	devSleep = 60 * time.Second
)

func devCommand() *cobra.Command {
	var flags configFlags
	var fake bool
	c := &cobra.Command{
		Use: "dev", Short: "Run a Hub and a Runner on this machine, with an example to try", Args: cobra.NoArgs,
		Long: `Run a Hub on SQLite with dev login, and a Runner, in one process: they talk over loopback exactly as on two
machines. The first start makes an example Repo with a draft of its Environment, and an encryption key in the data
folder unless the config has one.

With --fake-github there is a GitHub for development beside them, and no dev login: set the Hub up as a GitHub App there, install it, sign in,
propose an Environment by a pull request, test and merge it, all on this machine.

Ctrl-C puts awake Sessions to sleep and stops; the next start wakes them and finds everything as it was. A second
Ctrl-C, not within the same second, stops at once: Sandboxes then live on and are adopted at the next start.`,
		Example: "  claude-hub dev\n  claude-hub dev --data /srv/claude-hub-dev\n  claude-hub dev --fake-github --data /srv/claude-hub-github",
		RunE: func(c *cobra.Command, _ []string) error {
			cfg, err := flags.load()
			if err != nil {
				return err
			}
			log, err := logger(cmp.Or(cfg.Log, "warn")) // what this command says itself is enough for a person
			if err != nil {
				return err
			}
			return withRemedy(dev(c.Context(), cfg, log, c.OutOrStdout(), fake), flags)
		},
	}
	flags.add(c)
	c.Flags().BoolVar(&fake, "fake-github", false, "run a GitHub for development too, and be a GitHub App there")
	return c
}

func dev(ctx context.Context, cfg fileConfig, log zerolog.Logger, out io.Writer, fake bool) error {
	cfg.Dev.Login, cfg.Runner.LocalRepos = true, true
	if err := makeKey(ctx, cfg, out); err != nil { // first: it may refuse, and then nothing was written
		return err
	}
	if fake {
		gh, err := startFakeGitHub(cfg.Data)
		if err != nil {
			return err
		}
		defer gh.Close() // last: the Hub asks it until its own end
		cfg = gh.only(cfg)
		if err := gh.dropApp(ctx, cfg); err != nil {
			return err
		}
		return devWith(ctx, cfg, log, out, func(h *hub) error {
			image, err := exampleImage(ctx, cfg, out)
			if err != nil {
				return err
			}
			if err := gh.scene(image); err != nil {
				return fmt.Errorf("make the example Repo: %w", err)
			}
			return gh.ready(ctx, h, out)
		})
	}
	example, err := makeExample(ctx, cfg.Data)
	if err != nil {
		return fmt.Errorf("make the example Repo: %w", err)
	}
	cfg.Dev.Repos = append(cfg.Dev.Repos, example.repo)
	return devWith(ctx, cfg, log, out, func(h *hub) error {
		if err := example.draft(ctx, h, cfg, out); err != nil {
			return err
		}
		if err := devToken(ctx, h); err != nil {
			return err
		}
		_, err := fmt.Fprintf(out, "\n  claude-hub is ready: %s\n  sign in under any name; the example Repo is %s\n  Ctrl-C stops, and leaves Sandboxes asleep\n\n", h.url, example.repo.Name)
		return err
	})
}

// devWith runs Hub and Runner; ready is called when both run.
func devWith(ctx context.Context, cfg fileConfig, log zerolog.Logger, out io.Writer, ready func(*hub) error) error {
	h, err := openHub(ctx, cfg, log)
	if err != nil {
		return err
	}
	// The Hub outlives the Runner, so that what the Runner says last is heard.
	hubCtx, stopHub := context.WithCancel(context.WithoutCancel(ctx))
	runnerCtx, stopRunner := context.WithCancel(hubCtx)
	defer stopHub()
	defer stopRunner()
	hubEnded, runnerEnded := make(chan error, 1), make(chan error, 1)
	go func() { hubEnded <- h.run(hubCtx) }()

	identity, err := devIdentity(ctx, h, cfg.Data)
	if err != nil {
		return err
	}
	r, err := runner.New(cfg.Data, identity, cfg.Runner, version, log)
	if err != nil {
		return fmt.Errorf("start the Runner: %w", err)
	}
	go func() { runnerEnded <- r.Run(runnerCtx) }()

	if n, err := h.sessions.ResumeAll(ctx, identity.Runner); err != nil {
		return fmt.Errorf("wake the Sessions of the last run: %w", err)
	} else if n > 0 {
		fmt.Fprintf(out, "waking what was awake when dev stopped (%d)\n", n)
	}
	if err := ready(h); err != nil {
		return err
	}

	select {
	case <-ctx.Done():
	case err := <-hubEnded:
		return fmt.Errorf("the Hub ended: %w", err)
	case err := <-runnerEnded:
		return fmt.Errorf("the Runner ended: %w", err)
	}
	err = sleepAll(h, identity.Runner, out)
	stopRunner()
	err = errors.Join(err, <-runnerEnded, r.Close())
	stopHub()
	return errors.Join(err, <-hubEnded)
}

// sleepAll puts what is awake to sleep and waits for it. A second signal ends the process (firstSignal).
func sleepAll(h *hub, runnerID string, out io.Writer) error {
	ctx, cancel := context.WithTimeout(context.Background(), devSleep)
	defer cancel()
	n, err := h.sessions.SleepAll(ctx, runnerID)
	if err != nil {
		return fmt.Errorf("put Sessions to sleep: %w", err)
	}
	if n == 0 {
		return nil
	}
	fmt.Fprintf(out, "putting Sessions to sleep (%d). Ctrl-C again leaves them running\n", n)
	tick := time.NewTicker(100 * time.Millisecond)
	defer tick.Stop()
	for {
		left, err := h.sessions.Awake(ctx, runnerID)
		if err != nil || left == 0 {
			return err
		}
		select {
		case <-ctx.Done():
			fmt.Fprintf(out, "%d Sessions are still awake after %s; they live on and are found again at the next start\n", left, devSleep)
			return nil
		case <-tick.C:
		}
	}
}

// devIdentity registers the Runner over loopback the first time, as an operator would on another machine.
func devIdentity(ctx context.Context, h *hub, data string) (hubclient.Identity, error) {
	path := runner.IdentityPath(data)
	identity, err := hubclient.ReadIdentity(path)
	if err == nil {
		identity.Hub = h.url
		return identity, nil
	}
	if !errors.Is(err, fs.ErrNotExist) {
		return identity, err
	}
	token, _, err := h.fleet.NewRegistration(ctx, "system: dev")
	if err != nil {
		return identity, fmt.Errorf("make a registration: %w", err)
	}
	id, secret, err := hubclient.Register(ctx, nil, h.url, token, devRunner)
	if err != nil {
		return identity, fmt.Errorf("register the Runner: %w", err)
	}
	identity = hubclient.Identity{Hub: h.url, Runner: id, Name: devRunner, Token: secret}
	return identity, hubclient.WriteIdentity(path, identity)
}

// devToken leaves the CLI a token, so that it finds this Hub by itself.
func devToken(ctx context.Context, h *hub) error {
	_, token, err := h.gate.IssueToken(ctx, devPerson, "claude-hub dev", 90*24*time.Hour)
	if err != nil {
		return fmt.Errorf("make a token for the CLI: %w", err)
	}
	return writeCLIConfig(cliConfig{URL: h.url, Token: token})
}
