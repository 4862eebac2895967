package environment

import (
	"context"
	"fmt"
	"strings"

	"github.com/claude-hub/claude-hub/app/access"
	"github.com/claude-hub/claude-hub/app/audit"
	"github.com/claude-hub/claude-hub/app/fleet"
	"github.com/claude-hub/claude-hub/app/github"
	"github.com/claude-hub/claude-hub/runner/wire"
	"github.com/claude-hub/claude-hub/store"
)

// CancelAll asks for the end of every Test build of a Repo that runs, in the Hub's own name: the App was taken from the
// Repo, say. reason is a sentence for who reads the Test build, and for the audit log. A Repo that the Hub doesn't know has none. Like Cancel it may be repeated.
func (s *Service) CancelAll(ctx context.Context, repo github.RepoID, reason string) error {
	return s.db.Write(ctx, func(tx *store.Tx) error {
		tests, err := store.All(tx, scanTest, openTestsSQL, int64(repo))
		if err != nil {
			return fmt.Errorf("list running Test builds: %w", err)
		}
		if len(tests) == 0 {
			return nil
		}
		r, err := access.ReadRepo(tx, repo)
		if err != nil {
			return err
		}
		for _, t := range tests {
			who := byHub + reason
			n, err := tx.Exec(cancelSQL, t.ID, who)
			if err != nil {
				return fmt.Errorf("cancel Test build: %w", err)
			}
			if n == 0 {
				continue
			}
			if _, err := s.fleet.Change(tx, t.assignment, fleet.Stop, tx.Now().Add(cancelGrace)); err != nil {
				return err
			}
			if err := s.changed(tx, r, t.ID); err != nil {
				return err
			}
			if err := audit.Record(tx, audit.Entry{Who: who, Repo: int64(repo), Action: "test-build.cancel", Subject: t.ID}); err != nil {
				return err
			}
		}
		return nil
	})
}

// byHub begins what cancelled_by says of the Hub itself, as access.System's actors do.
const byHub = "system: "

// whyCancelled says, of a Test build that no person cancelled, why the Hub did.
func whyCancelled(by string, d wire.TestBuildDetail) *wire.Failure {
	reason, ok := strings.CutPrefix(by, byHub)
	if !ok {
		return d.Failure
	}
	f := wire.Failure{Code: "cancelled", Phase: lastPhase(d)}
	if d.Failure != nil {
		f = *d.Failure
	}
	f.Message = "Cancelled by the Hub: " + strings.TrimSuffix(reason, ".") + "."
	return &f
}
