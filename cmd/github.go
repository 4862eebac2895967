package cmd

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/rs/zerolog"

	"github.com/claude-hub/claude-hub/app/github"
	"github.com/claude-hub/claude-hub/app/metrics"
	"github.com/claude-hub/claude-hub/app/setup"
)

// makeApp makes a GitHub App of a Hub at url, whichever way its credentials came.
func makeApp(url string, m *metrics.Metrics) func(github.Endpoints, github.Credentials) (*github.App, error) {
	return func(at github.Endpoints, c github.Credentials) (*github.App, error) {
		return github.New(github.Options{Endpoints: at, Credentials: c, Callback: strings.TrimRight(url, "/") + setup.CallbackPath, Version: version,
			Observe: m.GitHub, Metrics: m.Registry()})
	}
}

// openApp makes the GitHub App of the config; nil: the config has none. It asks GitHub nothing.
func openApp(cfg fileConfig, url string, m *metrics.Metrics) (*github.App, *github.Credentials, error) {
	if !cfg.GitHub.On() {
		return nil, nil, nil
	}
	cred, err := cfg.GitHub.Credentials()
	if err != nil {
		return nil, nil, usageError{err}
	}
	app, err := makeApp(url, m)(cfg.GitHub.Endpoints(), cred)
	if err != nil {
		return nil, nil, usageError{fmt.Errorf("the section github of the config: %w", err)}
	}
	return app, &cred, nil
}

// openSetup prints, where the Hub has no GitHub App, where the operator sets one up. The log doesn't get the address: a token is
// for the console, and logs go further.
func openSetup(ctx context.Context, s *setup.Service, console io.Writer, log zerolog.Logger) error {
	if is, err := s.Configured(ctx); err != nil || is {
		return err
	}
	log.Warn().Msg("the Hub has no GitHub App and is not in dev mode (keys dev.login and dev.repos): nobody can sign in and nothing is cloned. " +
		"Its console (standard output) says where to set one up; claude-hub setup-token makes a new address; or name one in the section github of the config")
	token, _, err := s.NewToken(ctx, "system: start of "+hubName(), false)
	if err != nil {
		return err
	}
	_, err = fmt.Fprintf(console, "\nThis Hub has no GitHub App yet. Set one up here, within an hour (the address works once):\n\n  %s\n\n", s.URL(token))
	return err
}

// introduce says in the log which GitHub App the Hub is, and what it lacks. GitHub may be away: then it says that.
func introduce(ctx context.Context, holder *github.Holder, s *setup.Service, log zerolog.Logger) {
	app, err := holder.App()
	if err != nil {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, 20*time.Second)
	defer cancel()
	self, err := app.Self(ctx)
	var e *github.Error
	switch {
	case ctx.Err() != nil && errors.Is(ctx.Err(), context.Canceled):
		return
	case errors.As(err, &e):
		log.Warn().Int64("app", app.ID()).Str("github", app.Endpoints().Web).Str("detail", e.Detail).Msg("the GitHub App could not be asked about itself: " + e.Message)
		return
	case err != nil:
		log.Warn().Err(err).Int64("app", app.ID()).Msg("the GitHub App could not be asked about itself")
		return
	}
	log.Info().Int64("app", self.ID).Str("slug", self.Slug).Str("owner", self.Owner.Login).Str("github", app.Endpoints().Web).
		Msgf("the Hub is the GitHub App %q", self.Name)
	if lacking := s.Lacking(self.Permissions); len(lacking) > 0 {
		log.Warn().Strs("permissions", lacking).Msgf("the GitHub App lacks permissions: grant them in its settings, %s", app.Endpoints().AppPage(self.Slug))
	}
}

// devMode is a matter of the config alone: having no GitHub App, or having lost it, never turns it on (ADR 0009).
func devMode(cfg fileConfig) bool { return cfg.Dev.Login || len(cfg.Dev.Repos) > 0 }
