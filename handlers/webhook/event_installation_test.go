package webhook_test

import (
	"fmt"
	"net/http"
	"net/url"
	"testing"

	"github.com/claude-hub/claude-hub/app/access"
	"github.com/claude-hub/claude-hub/app/apptest"
	"github.com/claude-hub/claude-hub/app/environment"
	"github.com/claude-hub/claude-hub/app/github"
	"github.com/claude-hub/claude-hub/app/github/githubtest"
	"github.com/claude-hub/claude-hub/app/github/githubtest/checked"
	"github.com/claude-hub/claude-hub/envspec"
	"github.com/claude-hub/claude-hub/handlers/webhook"
	"github.com/claude-hub/claude-hub/runner/wire"
	"github.com/claude-hub/claude-hub/store/storetest"
)

// GitHub may leave out which Repos an installation had (they are optional in its description of the event): the Hub knows them.
func TestAnInstallationThatIsRemovedWithoutAListOfItsReposEndsTheirTestBuilds(t *testing.T) {
	t.Parallel()
	s := setScene(t, checked.New(t, githubtest.Options{}), storetest.New(t), webhook.Options{})
	domain := apptest.New(t, s.db, apptest.Options{
		Access: access.Options{GitHub: github.NewHolder(s.app)}, Environment: environment.Options{NoHostCredentials: true},
	})
	s.hub = newHub(t, s.db, webhook.Options{
		GitHub: domain.App, Access: domain.Gate, Setup: knowing{domain.Setup, s.told}, Proposals: domain.Proposals, Builds: domain.Environments,
	})
	s.gh.HookURL(s.cred.ID, s.url)
	s.hub.started(t)

	to, browser, err := domain.Gate.BeginSignIn(t.Context(), "/")
	if err != nil {
		t.Fatal(err)
	}
	back, err := s.gh.Authorize(to, s.ana)
	if err != nil {
		t.Fatal(err)
	}
	answer, err := url.Parse(back)
	if err != nil {
		t.Fatal(err)
	}
	who, _, _, err := domain.Gate.FinishSignIn(t.Context(), browser, answer.Query().Get("state"), answer.Query().Get("code"))
	if err != nil {
		t.Fatal(err)
	}
	grant, err := domain.Gate.Repo(t.Context(), who, github.RepoID(s.repo.ID))
	if err != nil {
		t.Fatal(err)
	}
	runner := domain.Runner("r1")
	spec := envspec.Default()
	spec.Bootstrap = "sleep 60"
	draft, err := domain.Environments.Save(t.Context(), grant, 0, spec, nil)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := domain.Environments.Test(t.Context(), grant, draft.Revision, runner.ID); err != nil {
		t.Fatal(err)
	}
	runner.MustReport(runner.Item(), wire.StateRunning, wire.TestBuildDetail{})

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
