package webhook_test

import (
	"context"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/claude-hub/claude-hub/app/access"
	"github.com/claude-hub/claude-hub/app/apptest"
	"github.com/claude-hub/claude-hub/app/environment"
	"github.com/claude-hub/claude-hub/app/github"
	"github.com/claude-hub/claude-hub/app/github/githubtest"
	"github.com/claude-hub/claude-hub/app/github/githubtest/checked"
	"github.com/claude-hub/claude-hub/app/github/githubtest/examples"
	"github.com/claude-hub/claude-hub/app/setup"
	"github.com/claude-hub/claude-hub/handlers/webhook"
	"github.com/claude-hub/claude-hub/runner/wire"
	"github.com/claude-hub/claude-hub/store"
	"github.com/claude-hub/claude-hub/store/storetest"
)

// knowing is the real set-up with secrets that a test says, since the App is none that it set up.
type knowing struct {
	*setup.Service
	*told
}

func (k knowing) Heard(ctx context.Context, event string) error { return k.Service.Heard(ctx, event) }
func (k knowing) Installation(ctx context.Context, e github.Event) error {
	return k.Service.Installation(ctx, e)
}
func (k knowing) WebhookSecrets(ctx context.Context) ([]github.Secret, error) {
	return k.told.WebhookSecrets(ctx)
}

// TestEveryExampleOfGitHubLeavesTheStoreConsistent sends each example twice, in any order, to a whole Hub: as it is, about things that this
// GitHub doesn't have, and rewritten to be about those that it has. What counts afterwards is what GitHub says, not what the
// examples say.
func TestEveryExampleOfGitHubLeavesTheStoreConsistent(t *testing.T) {
	t.Parallel()
	for name, database := range map[string]func(testing.TB) string{"sqlite": storetest.SQLite, "postgres": storetest.PostgreSQL} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			everyExample(t, storetest.Open(t, database(t)), name == "sqlite")
		})
	}
}

func everyExample(t *testing.T, db *store.DB, sqlite bool) {
	gh := checked.New(t, githubtest.Options{})
	s := setScene(t, gh, db, webhook.Options{})
	domain := apptest.New(t, db, apptest.Options{
		Access: access.Options{GitHub: github.NewHolder(s.app)}, Environment: environment.Options{NoHostCredentials: true},
	})
	s.hub = newHub(t, db, webhook.Options{
		GitHub: domain.App, Access: domain.Gate, Setup: knowing{domain.Setup, &told{}}, Proposals: domain.Proposals, Builds: domain.Environments,
	})
	pull := s.repo.Propose(s.ana, "feature", githubtest.Files{".claude-hub/environment.yml": githubtest.Text("image: debian:12\n")})
	if err := domain.Setup.Sync(t.Context()); err != nil {
		t.Fatal(err)
	}

	type sent struct{ event, guid, payload string }
	var deliveries []sent
	for i, x := range examples.All() {
		raw := sent{x.Event, fmt.Sprint("raw-", i), string(x.Payload)}
		ours := sent{x.Event, fmt.Sprint("ours-", i), s.rewritten(t, x, pull)}
		deliveries = append(deliveries, raw, raw, ours, ours)
	}
	order := rand.New(rand.NewPCG(1, 2)) //nolint:gosec // the same order each time
	order.Shuffle(len(deliveries), func(i, j int) { deliveries[i], deliveries[j] = deliveries[j], deliveries[i] })
	s.hub.started(t)
	for _, d := range deliveries {
		header := githubtest.Signed(d.event, d.guid, secret, []byte(d.payload))
		if status, text := s.hub.send(t, header, d.payload); status != http.StatusAccepted && (d.event != "ping" || status != http.StatusOK) {
			t.Errorf("%s: %d %s", d.event, status, text)
		}
	}
	deadline := time.Now().Add(time.Minute)
	for rows(t, db, "waiting") > 0 && time.Now().Before(deadline) {
		<-time.After(50 * time.Millisecond)
	}
	s.Stop()

	count := func(what, query string, args ...any) {
		t.Helper()
		var n int
		if err := db.Read(t.Context(), func(tx *store.Tx) error { return tx.Row(query, args...).Scan(&n) }); err != nil || n != 0 {
			t.Errorf("%s: %d (%v)", what, n, err)
		}
	}
	count("deliveries that still wait or were set aside", `SELECT COUNT(*) FROM deliveries WHERE state <> 'done'`)
	count("claims on what is done", `SELECT COUNT(*) FROM deliveries WHERE claimed_by <> ''`)
	count("Repos that GitHub has under another name, or not at all", `SELECT COUNT(*) FROM repos WHERE source = 'github' AND NOT (id = $1 AND name = $2)`, s.repo.ID, "octo/app")
	count("pull requests that there are none of", `SELECT COUNT(*) FROM proposals WHERE NOT (repo_id = $1 AND number = $2)`, s.repo.ID, pull.Number)
	count("check runs of commits that there are none of", `SELECT COUNT(*) FROM check_runs WHERE NOT (repo_id = $1 AND sha = $2)`, s.repo.ID, pull.SHA())
	count("check runs that hide each other", `SELECT COUNT(*) - COUNT(DISTINCT name) FROM check_runs`)
	count("Test builds that nobody asked for", `SELECT COUNT(*) FROM test_builds`)
	count("versions that nobody applied", `SELECT COUNT(*) FROM versions`)
	if sqlite {
		count("broken references", `SELECT COUNT(*) FROM pragma_foreign_key_check`)
	}
	if err := db.Read(t.Context(), func(tx *store.Tx) error {
		i, ok, err := setup.Of(tx, s.inst.ID)
		if err != nil || !ok || i.Suspended || i.Removed {
			t.Errorf("the installation is %+v, known %v, %v", i, ok, err)
		}
		var pulls int
		if err := tx.Row(`SELECT COUNT(*) FROM proposals`).Scan(&pulls); err != nil || pulls != 1 {
			t.Errorf("%d pull requests were looked at, %v", pulls, err)
		}
		return nil
	}); err != nil {
		t.Fatal(err)
	}
}

// rewritten makes an example be about this GitHub's things.
func (s *scene) rewritten(t *testing.T, x examples.Example, pull githubtest.Pull) string {
	t.Helper()
	var m map[string]any
	if err := json.Unmarshal(x.Payload, &m); err != nil {
		t.Fatal(err)
	}
	set := func(path string, v any) {
		at := m
		keys := strings.Split(path, ".")
		for _, k := range keys[:len(keys)-1] {
			next, ok := at[k].(map[string]any)
			if !ok {
				return
			}
			at = next
		}
		at[keys[len(keys)-1]] = v
	}
	m["installation"] = map[string]any{"id": s.inst.ID}
	set("repository.id", s.repo.ID)
	set("sender.id", s.ana.ID)
	set("member.id", s.bob.ID)
	set("membership.user.id", s.bob.ID)
	set("organization.id", s.org.ID)
	set("pull_request.number", pull.Number)
	set("check_run.app.id", s.cred.ID)
	set("check_suite.app.id", s.cred.ID)
	b, err := json.Marshal(m)
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

// TestAnInstallationRemovedInTheMiddleOfATestBuildEndsIt goes from the owner's deed at GitHub to what the Runner is told.
func TestAnInstallationRemovedInTheMiddleOfATestBuildEndsIt(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		do   func(s *scene)
		says string
	}{
		"uninstalled":    {func(s *scene) { s.inst.Remove() }, "The GitHub App was removed from this Repo."},
		"the Repo taken": {func(s *scene) { s.inst.Add(s.other); s.inst.Drop(s.repo) }, "The GitHub App was removed from this Repo."},
		"suspended":      {func(s *scene) { s.inst.Suspend(true) }, "The GitHub App's installation was suspended."},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := setHub(t)
			grant := s.grant(t)
			runner := s.building(t)
			all, err := s.domain.Environments.TestBuilds(t.Context(), grant, 1)
			if err != nil || len(all) != 1 {
				t.Fatalf("%d Test builds, %v", len(all), err)
			}

			c.do(s.scene)
			s.settled(t)
			item := runner.Item()
			if item.GetWant() != wire.WantStop {
				t.Fatalf("the Runner is told to %s", item.GetWant())
			}
			runner.MustReport(item, wire.StateCancelled, wire.TestBuildDetail{})
			got, err := s.domain.Environments.TestBuild(t.Context(), grant, all[0].ID)
			if err != nil || got.State != environment.Cancelled || got.Detail.Failure == nil || got.Detail.Failure.Message != "Cancelled by the Hub: "+c.says {
				t.Errorf("%+v, %v", got.Detail.Failure, err)
			}
		})
	}
}
