package proposal

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/claude-hub/claude-hub/app/access"
	"github.com/claude-hub/claude-hub/app/environment"
	"github.com/claude-hub/claude-hub/app/fault"
	"github.com/claude-hub/claude-hub/app/github"
	"github.com/claude-hub/claude-hub/store"
)

// keepPushes is how long it is known who pushed a commit.
const keepPushes = 30 * 24 * time.Hour

// keepPusher keeps who pushed a commit, and has the open pull requests looked at that have it as head: events come in any order.
func (s *Service) keepPusher(ctx context.Context, repo github.RepoID, sha string, by github.Account) error {
	if !s.o.AutoTest || sha == "" || by.ID == 0 || by.Type == "Bot" {
		return nil
	}
	return s.db.Write(ctx, func(tx *store.Tx) error {
		if _, err := tx.Exec(oldPushesSQL, tx.Now().Add(-keepPushes)); err != nil {
			return fmt.Errorf("forget who pushed long ago: %w", err)
		}
		if _, err := tx.Exec(pushSQL, int64(repo), store.Text(sha), by.ID, tx.Now()); err != nil {
			return fmt.Errorf("save who pushed %s: %w", sha, err)
		}
		all, err := at(tx, repo, sha)
		for _, p := range all {
			if err == nil && p.State == Open {
				err = due(tx, repo, p.Number, tx.Now(), false)
			}
		}
		return err
	})
}

// autoTest starts a Test build of what is proposed from the same repository, once for each draft that needs one, if its author has
// access and somebody who has pushed that very commit: the least trusted of both decides. By its author alone a bot, or whoever else can
// push there, would have run what they like by pushing to the branch of somebody with access; by who pushed alone, the branch of
// anybody would be built because somebody brought it up to date. Each look at the pull request tries again what could not be done.
func (s *Service) autoTest(ctx context.Context, repo github.RepoID, p Proposal, branch string) error {
	if !s.o.AutoTest || p.State != Open || p.File != Valid || p.Fork {
		return nil
	}
	var pushers []int64
	wanted := false
	err := s.db.Read(ctx, func(tx *store.Tx) (err error) {
		if wanted, err = s.untested(tx, repo, p); err != nil || !wanted {
			return err
		}
		pushers, err = store.All(tx, store.Scan1[int64], pushersSQL, int64(repo), p.SHA)
		return err
	})
	if err != nil || !wanted || len(pushers) == 0 {
		return err
	}
	switch _, err := s.sender(ctx, repo, p.Author); {
	case fault.Is(err, fault.NotFound):
		return nil
	case err != nil:
		return err
	}
	for _, id := range pushers {
		g, err := s.sender(ctx, repo, github.Account{ID: id})
		switch {
		case fault.Is(err, fault.NotFound):
		case err != nil:
			return err
		default:
			return s.autoStart(ctx, g, p, branch)
		}
	}
	return nil
}

// errNoRunner says that a look came to its end, but for a Test build that no Runner can take now.
var errNoRunner = errors.New("no Runner can take a Test build")

// untested says that a pull request's draft needs a Test build, and that there was none of it.
func (s *Service) untested(tx *store.Tx, repo github.RepoID, p Proposal) (bool, error) {
	g, err := system(tx, repo, p.Number)
	if err != nil {
		return false, err
	}
	env, _, err := s.env.Proposed(tx, g, p.Number)
	if err != nil || env.Draft == nil || env.Draft.Commit != p.SHA || env.Current != nil && env.Current.TestKey == env.Draft.TestKey {
		return false, err
	}
	verdict, err := s.env.CheckProposed(tx, g, p.Number)
	if err != nil || verdict.OK {
		return false, err
	}
	tests, err := s.env.ProposedTests(tx, g, p.Number, 20)
	return !slices.ContainsFunc(tests, func(t environment.TestBuild) bool { return t.TestKey == env.Draft.TestKey }), err
}

func (s *Service) autoStart(ctx context.Context, g access.Grant, p Proposal, branch string) error {
	repo := g.Repo().ID
	_, err := s.start(ctx, g, p.Number, p.SHA, "", branch, "")
	log := s.o.Log.Info().Err(err).Int64("repo", int64(repo)).Int("pull_request", p.Number)
	switch {
	case isRunnerAway(err):
		log.Msg("no Runner can take a Test build that the Hub starts by itself; tried again later")
		return errNoRunner
	case fault.Is(err, fault.Refused), fault.Is(err, fault.Conflict):
		log.Msg("no Test build was started by itself")
		return nil // a person who looks at the check run sees what is missing
	}
	return err
}
