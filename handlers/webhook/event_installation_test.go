package webhook_test

import (
	"fmt"
	"net/http"
	"testing"

	"github.com/claude-hub/claude-hub/app/apptest"
	"github.com/claude-hub/claude-hub/app/github/githubtest"
	"github.com/claude-hub/claude-hub/app/proposal"
	"github.com/claude-hub/claude-hub/envspec"
	"github.com/claude-hub/claude-hub/runner/wire"
	"github.com/claude-hub/claude-hub/store"
)

// GitHub may leave out which Repos an installation had (they are optional in its description of the event): the Hub knows them.
func TestAnInstallationThatIsRemovedWithoutAListOfItsReposEndsTheirTestBuilds(t *testing.T) {
	t.Parallel()
	s := setHub(t)
	runner := s.building(t)

	s.gh.Deliver(func(d githubtest.Delivery) githubtest.Fate { return githubtest.Fate{Lose: true} })
	s.inst.Remove()
	payload := fmt.Sprintf(`{"action":"deleted","installation":{"id":%d,"account":{"id":%d,"login":"octo","type":"Organization"}},"sender":{"id":%d,"login":"ana","type":"User"}}`, s.inst.ID, s.org.ID, s.ana.ID)
	if status, text := s.hub.send(t, githubtest.Signed("installation", "no-list", s.cred.WebhookSecret, []byte(payload)), payload); status != http.StatusAccepted {
		t.Fatalf("%d %s", status, text)
	}
	eventually(t, "all is worked off", func() bool { return rows(t, s.db, "waiting") == 0 })
	if item := runner.Item(); item.GetWant() != wire.WantStop {
		t.Fatalf("the Runner is told to %s", item.GetWant())
	}
}

// Events may be lost for longer than GitHub can send them again, or never come, as on a Hub that GitHub can't reach.
func TestAnInstallationThatTheHubFindsGoneItselfEndsItsTestBuilds(t *testing.T) {
	t.Parallel()
	for name, gone := range map[string]func(*whole){
		"removed":   func(s *whole) { s.inst.Remove() },
		"suspended": func(s *whole) { s.inst.Suspend(true) },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := setHub(t)
			if err := s.domain.Setup.Sync(t.Context()); err != nil {
				t.Fatal(err)
			}
			runner := s.building(t)
			s.gh.Deliver(func(githubtest.Delivery) githubtest.Fate { return githubtest.Fate{Lose: true} })
			gone(s)
			if err := s.domain.Setup.Sync(t.Context()); err != nil {
				t.Fatal(err)
			}
			s.settled(t)
			if item := runner.Item(); item.GetWant() != wire.WantStop {
				t.Fatalf("the Runner is told to %s, want stop", item.GetWant())
			}
		})
	}
}

// What an event finds at GitHub counts, and not what it says: where it finds the installation gone, the one that says so finds nothing new.
func TestAnEventThatFindsTheInstallationGoneEndsItsTestBuilds(t *testing.T) {
	t.Parallel()
	s := setHub(t)
	if err := s.domain.Setup.Sync(t.Context()); err != nil {
		t.Fatal(err)
	}
	s.settled(t)
	runner := s.building(t)
	s.gh.Deliver(func(githubtest.Delivery) githubtest.Fate { return githubtest.Fate{Lose: true} })
	s.inst.Suspend(true)
	payload := fmt.Sprintf(`{"action":"created","installation":{"id":%d}}`, s.inst.ID)
	if status, text := s.hub.send(t, githubtest.Signed("installation", "late", s.cred.WebhookSecret, []byte(payload)), payload); status != http.StatusAccepted {
		t.Fatalf("%d %s", status, text)
	}
	s.settled(t)
	if err := s.domain.Setup.Sync(t.Context()); err != nil {
		t.Fatal(err)
	}
	s.settled(t)
	if item := runner.Item(); item.GetWant() != wire.WantStop {
		t.Fatalf("the Runner is told to %s, want stop", item.GetWant())
	}
}

// Nothing was heard of what was opened before the App came.
func TestPullRequestsThatWereOpenBeforeTheAppCameAreLookedAtSoon(t *testing.T) {
	t.Parallel()
	for name, heard := range map[string]bool{"GitHub says so": true, "the Hub finds it": false} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := setHub(t)
			if err := s.domain.Proposals.Start(t.Context()); err != nil { // by itself it compares every 5 minutes
				t.Fatal(err)
			}
			t.Cleanup(s.domain.Proposals.Stop)
			if !heard {
				s.gh.Deliver(func(githubtest.Delivery) githubtest.Fate { return githubtest.Fate{Lose: true} })
			}
			propose := func(r githubtest.Repo) githubtest.Repo {
				r.Propose(s.ana, "env", githubtest.Files{proposal.Path: githubtest.Text("image: node:22\n")})
				return r
			}
			looked := func(r githubtest.Repo) {
				t.Helper()
				if !heard {
					if err := s.domain.Setup.Sync(t.Context()); err != nil {
						t.Fatal(err)
					}
				}
				eventually(t, "the pull request is looked at", func() bool { return s.pulls(t, r) > 0 })
			}
			own := propose(s.gh.Repo("bob/own", true, githubtest.Files{"README.md": githubtest.Text("own\n")}))
			inst := s.gh.Install(s.cred.ID, s.bob, s.bob, own)
			looked(own)
			if heard {
				propose(s.other)
				s.inst.Add(s.other)
				looked(s.other)
			}
			// Nor of what is opened while it is away.
			inst.Suspend(true)
			s.settled(t)
			if err := s.domain.Setup.Sync(t.Context()); err != nil {
				t.Fatal(err)
			}
			s.settled(t)
			own.Propose(s.bob, "more", githubtest.Files{proposal.Path: githubtest.Text("image: node:24\n")})
			inst.Suspend(false)
			looked(own)
			eventually(t, "both pull requests are looked at", func() bool { return s.pulls(t, own) == 2 })
		})
	}
}

// pulls counts the pull requests of a Repo that were looked at.
func (s *whole) pulls(t *testing.T, r githubtest.Repo) (n int) {
	t.Helper()
	if err := s.db.Read(t.Context(), func(tx *store.Tx) error {
		return tx.Row(`SELECT COUNT(*) FROM proposals WHERE repo_id = $1`, r.ID).Scan(&n)
	}); err != nil {
		t.Fatal(err)
	}
	return n
}

// building has a Runner run a Test build of the Repo.
func (s *whole) building(t *testing.T) *apptest.Runner {
	t.Helper()
	grant := s.grant(t)
	runner := s.domain.Runner("r1")
	spec := envspec.Default()
	spec.Bootstrap = "sleep 60"
	draft, err := s.domain.Environments.Save(t.Context(), grant, 0, spec, nil)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := s.domain.Environments.Test(t.Context(), grant, draft.Revision, runner.ID); err != nil {
		t.Fatal(err)
	}
	runner.MustReport(runner.Item(), wire.StateRunning, wire.TestBuildDetail{})
	return runner
}
