package webhook

import (
	"context"
	"fmt"
	"slices"

	"github.com/claude-hub/claude-hub/app/checks"
	"github.com/claude-hub/claude-hub/app/github"
	"github.com/claude-hub/claude-hub/store"
)

// uninstalled is what readers of a cancelled Test build's log are told.
const (
	uninstalled = "The GitHub App was removed from this Repo."
	suspended   = "The GitHub App's installation was suspended."
)

var installation = event{
	name:    "installation",
	subject: func(e github.Event) string { return fmt.Sprintf("installation %d %s", e.Installation, e.Action) },
	work: func(ctx context.Context, s *Service, e github.Event) error {
		if err := s.forgetInstallation(ctx, e.Installation); err != nil {
			return err
		}
		if err := s.o.Setup.Installation(ctx, e); err != nil {
			return err
		}
		if err := s.db.Write(ctx, func(tx *store.Tx) error { return checks.Wake(tx, e.Installation) }); err != nil {
			return err
		}
		if e.Action != "deleted" && e.Action != "suspend" {
			return nil
		}
		// GitHub may leave out which Repos they were, and then these are known here.
		repos, err := s.o.Access.Installed(ctx, e.Installation)
		if err != nil {
			return err
		}
		for _, r := range slices.Concat(e.Added, e.Removed) {
			if !slices.Contains(repos, r.ID) {
				repos = append(repos, r.ID)
			}
		}
		for _, repo := range repos {
			if err := s.stopUninstalled(ctx, repo); err != nil {
				return err
			}
		}
		return nil
	},
}

// forgetInstallation drops what is cached of it: tokens that were made before other permissions were granted keep the old
// ones for their hour.
func (s *Service) forgetInstallation(ctx context.Context, id int64) error {
	if app, err := s.o.GitHub.App(); err == nil {
		app.Forget(id)
	}
	return s.o.Access.ForgetInstallation(ctx, id)
}

// stopUninstalled cancels the Test builds of a Repo which the App can't read any more. Events come late: GitHub says whether
// that is so now.
func (s *Service) stopUninstalled(ctx context.Context, repo github.RepoID) error {
	app, err := s.o.GitHub.App()
	if err != nil {
		return err
	}
	app.ForgetRepo(repo)
	id, err := app.InstallationOf(ctx, repo)
	if err == nil {
		var on github.Installation
		if on, err = app.Installation(ctx, id); err == nil && !on.Suspended {
			return nil
		}
	}
	switch {
	case err == nil, github.Suspended.Is(err):
		return s.o.Builds.CancelAll(ctx, repo, suspended)
	case github.NotInstalled.Is(err), github.NotFound.Is(err):
		return s.o.Builds.CancelAll(ctx, repo, uninstalled)
	}
	return err
}
