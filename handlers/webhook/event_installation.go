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
			if there, err := s.lookInstalled(ctx, e.Installation, nil); err != nil || there {
				return err
			} // it is gone by now, whose own event may find nothing new
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

// lookInstalled has the open pull requests looked at of an installation's Repos, or of some of them: what was opened before the App
// came had no event here. It says whether the installation is there, and not suspended.
func (s *Service) lookInstalled(ctx context.Context, installation int64, only []github.Repository) (there bool, err error) {
	app, err := s.o.GitHub.App()
	if err != nil {
		return false, err
	}
	asked := s.db.Now()
	all, err := app.InstalledRepositories(ctx, installation)
	switch {
	case github.NotInstalled.Is(err), github.NotFound.Is(err), github.Suspended.Is(err):
		return false, nil
	case github.Forbidden.Is(err):
		return true, nil // it lacks permissions, as the checklist says
	case err != nil:
		return false, err
	}
	var ids []github.RepoID
	has := all[:0]
	for _, r := range all {
		if only == nil || slices.ContainsFunc(only, func(o github.Repository) bool { return o.ID == r.ID }) {
			has, ids = append(has, r), append(ids, r.ID)
		}
	}
	if err := s.o.Access.InstallationHas(ctx, installation, has, asked); err != nil {
		return true, err
	}
	return true, s.o.Proposals.LookAll(ctx, ids)
}

// Found has worked off, as if GitHub had sent an event of it, what the Hub found itself of an installation: that it is there, or (lost)
// that it was suspended or removed. It is in the caller's transaction, so that no end of a Hub loses it.
func (s *Service) Found(tx *store.Tx, id int64, lost bool) error {
	e := github.Event{Name: installation.name, Action: "created", Installation: id}
	if lost {
		e.Action = "deleted"
	}
	body := fmt.Appendf(nil, `{"action":%q,"installation":{"id":%d}}`, e.Action, id)
	return insert(tx, []*arrived{{guid: "hub-" + store.NewID(), event: e.Name, action: e.Action, subject: installation.subject(e), body: s.zip.EncodeAll(body, nil)}})
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
