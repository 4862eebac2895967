package webhook_test

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/rs/zerolog"

	"github.com/claude-hub/claude-hub/app/checks"
	"github.com/claude-hub/claude-hub/app/environment"
	"github.com/claude-hub/claude-hub/app/github/githubtest"
	"github.com/claude-hub/claude-hub/app/proposal"
	"github.com/claude-hub/claude-hub/runner/wire"
	"github.com/claude-hub/claude-hub/store"
)

// The signature covers the body, and not the delivery's id: whoever came by a delivery can send it again under another one.
func TestABodyThatIsSentAgainUnderAnotherIdDoesNothingTwice(t *testing.T) {
	t.Parallel()
	s := setHub(t)
	shown := checks.New(s.db, s.domain.App, checks.Options{Pace: time.Millisecond, Progress: time.Millisecond, Log: zerolog.New(zerolog.NewTestWriter(t)).Level(zerolog.WarnLevel)})
	if err := shown.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(shown.Stop)
	runner := s.domain.Runner("r1")
	pull := s.repo.Propose(s.ana, "env", githubtest.Files{proposal.Path: githubtest.Text("image: node:22\n")})
	all := func() []environment.TestBuild {
		t.Helper()
		all, err := s.domain.Environments.TestBuilds(t.Context(), s.grant(t), 50)
		if err != nil {
			t.Fatal(err)
		}
		return all
	}
	newest := func(name, conclusion string, buttons int) (id int64) {
		t.Helper()
		eventually(t, fmt.Sprintf("%s is %s at GitHub, with %d buttons", name, conclusion, buttons), func() bool {
			var last githubtest.Check
			for _, c := range s.repo.Checks(pull.SHA()) {
				if c.Name == name {
					last = c
				}
			}
			id = last.ID
			return last.Conclusion == conclusion && len(last.Actions) == buttons
		})
		return id
	}
	// fails ends the Test build that runs, so that another one could start.
	fails := func(n int) {
		t.Helper()
		eventually(t, fmt.Sprintf("%d Test builds were started", n), func() bool { return len(all()) == n })
		runner.MustReport(runner.Item(), wire.StateFailed, wire.TestBuildDetail{Failure: &wire.Failure{Phase: wire.PhaseBootstrap, Code: "exit", Message: "it ended"}})
		for _, left := range runner.Items() {
			runner.MustReport(left, wire.StateRemoved, wire.TestBuildDetail{})
		}
		s.due(t)
	}
	replays := 0
	// again sends all that was delivered once more, each body under another id, and wants nothing to come of it.
	again := func(after string) {
		t.Helper()
		s.settled(t)
		s.due(t)
		tests, runs := len(all()), s.runs(t)
		for _, d := range s.gh.Delivered() {
			replays++
			s.send(t, githubtest.Signed(d.Event, fmt.Sprint("replay-", replays), s.cred.WebhookSecret, d.Payload), string(d.Payload))
		}
		s.settled(t)
		s.due(t)
		if got := len(all()); got != tests {
			t.Errorf("after %s: %d Test builds, and %d once all was sent again", after, tests, got)
		}
		if got := s.runs(t); got != runs {
			t.Errorf("after %s: %d check runs, and %d once all was sent again", after, runs, got)
		}
		if n := rows(t, s.db, "aside"); n != 0 {
			t.Errorf("%d were set aside", n)
		}
	}

	button := newest(proposal.CheckName, "action_required", 1)
	press := func() {
		t.Helper()
		for _, c := range s.repo.Checks(pull.SHA()) {
			if c.ID == button {
				if err := s.repo.Press(c.ID, c.Actions[0], s.ana); err != nil {
					t.Fatal(err)
				}
			}
		}
	}
	press()
	fails(1)
	again("a press")
	run := newest(proposal.TestName, "failure", 0)
	if err := s.repo.Rerun(run, s.ana); err != nil {
		t.Fatal(err)
	}
	fails(2)
	again("a re-run of a Test build")
	if err := s.repo.Rerun(newest(proposal.CheckName, "action_required", 1), s.ana); err != nil {
		t.Fatal(err)
	}
	again("a re-run of the check run Environment")
	s.repo.RerunAll(pull.SHA(), s.ana)
	fails(3)
	again("re-run all")
	// Who does it again at GitHub means it.
	button = newest(proposal.CheckName, "action_required", 1)
	press()
	fails(4)
	s.repo.RerunAll(pull.SHA(), s.ana)
	fails(5)
	s.inst.Suspend(true)
	s.inst.Suspend(false)
	s.repo.Rename("app2")
	s.repo.Allow(s.bob, "read")
	pull.Merge(s.ana, "squash")
	again("a merge")
}

// due looks at all pull requests that are due.
func (s *whole) due(t *testing.T) {
	t.Helper()
	eventually(t, "nothing is due", func() bool {
		wait, err := s.domain.Proposals.Due(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		return wait > 0
	})
}

// runs counts check runs as GitHub should show them.
func (s *whole) runs(t *testing.T) (n int) {
	t.Helper()
	if err := s.db.Read(context.WithoutCancel(t.Context()), func(tx *store.Tx) error {
		return tx.Row(`SELECT COUNT(*) FROM check_runs`).Scan(&n)
	}); err != nil {
		t.Fatal(err)
	}
	return n
}
