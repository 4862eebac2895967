package webhook

import (
	"context"
	"errors"
	"fmt"

	"github.com/claude-hub/claude-hub/app/checks"
	"github.com/claude-hub/claude-hub/app/github"
	"github.com/claude-hub/claude-hub/store"
)

var (
	repository = event{name: "repository", subject: aboutRepo, work: lookAtRepo}
	public     = event{name: "public", subject: aboutRepo, work: lookAtRepo}
)

// The default branch may be another one afterwards. The App doesn't subscribe to these by itself.
var (
	branchCreated = event{name: "create", matters: ofBranch, subject: aboutRepo, work: lookAtRepo}
	branchDeleted = event{name: "delete", matters: ofBranch, subject: aboutRepo, work: lookAtRepo}
)

func ofBranch(e github.Event) bool { return e.Branch != "" && e.Repo.ID != 0 }

func aboutRepo(e github.Event) string { return fmt.Sprintf("repository %d", e.Repo.ID) }

// lookAtRepo reads what the Repo is now: renamed, transferred, archived, private or public. What the event says may be older
// than what is stored.
func lookAtRepo(ctx context.Context, s *Service, e github.Event) error {
	if err := s.forgetRepo(ctx, e.Repo.ID); err != nil {
		return err
	}
	app, err := s.o.GitHub.App()
	if err != nil {
		return err
	}
	now, err := app.Repository(ctx, e.Repo.ID)
	var at *github.Error
	if errors.As(err, &at) && (at.Kind == github.NotFound || at.Kind == github.NotInstalled || at.Kind == github.Suspended) {
		return nil // it is out of our sight; what is stored of it stays
	}
	if err != nil {
		return err
	}
	return s.o.Access.RepoIs(ctx, now)
}

// forgetRepo drops where a Repo is installed, and who may use it. What GitHub didn't take of its check runs is tried again.
func (s *Service) forgetRepo(ctx context.Context, repo github.RepoID) error {
	if app, err := s.o.GitHub.App(); err == nil {
		app.ForgetRepo(repo)
	}
	if err := s.o.Access.ForgetRepo(ctx, repo); err != nil {
		return err
	}
	return s.db.Write(ctx, func(tx *store.Tx) error { return checks.WakeRepo(tx, repo) })
}
