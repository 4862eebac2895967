package cmd

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/rs/zerolog"

	"github.com/claude-hub/claude-hub/app/github"
)

// openApp makes the GitHub App of the config; nil: the config has none. It asks GitHub nothing.
func openApp(cfg fileConfig) (*github.App, error) {
	if !cfg.GitHub.On() {
		return nil, nil
	}
	cred, err := cfg.GitHub.Credentials()
	if err != nil {
		return nil, usageError{err}
	}
	o := github.Options{Endpoints: cfg.GitHub.Endpoints(), Credentials: cred, Version: version}
	if cfg.Hub.URL != "" {
		o.Callback = strings.TrimRight(cfg.Hub.URL, "/") + "/auth/github/callback"
	}
	app, err := github.New(o)
	if err != nil {
		return nil, usageError{fmt.Errorf("the section github of the config: %w", err)}
	}
	return app, nil
}

// introduce says in the log which GitHub App the Hub is, and what it lacks. GitHub may be away: then it says that.
func introduce(ctx context.Context, holder *github.Holder, cfg fileConfig, log zerolog.Logger) {
	app, none := holder.App()
	switch {
	case none != nil && !devMode(cfg):
		log.Warn().Msg("the Hub has no GitHub App (section github of the config) and is not in dev mode (keys dev.login and dev.repos): nobody can sign in and nothing is cloned")
		return
	case none != nil:
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
	if lacking := github.Lacking(self.Permissions); len(lacking) > 0 {
		log.Warn().Strs("permissions", lacking).Msgf("the GitHub App lacks permissions: grant them in its settings, %s", app.Endpoints().AppPage(self.Slug))
	}
}

// devMode is a matter of the config alone: having no GitHub App, or having lost it, never turns it on (ADR 0009).
func devMode(cfg fileConfig) bool { return cfg.Dev.Login || len(cfg.Dev.Repos) > 0 }
