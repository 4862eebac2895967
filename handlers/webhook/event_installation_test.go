package webhook_test

import (
	"fmt"
	"net/http"
	"testing"

	"github.com/claude-hub/claude-hub/app/github/githubtest"
	"github.com/claude-hub/claude-hub/envspec"
	"github.com/claude-hub/claude-hub/runner/wire"
)

// GitHub may leave out which Repos an installation had (they are optional in its description of the event): the Hub knows them.
func TestAnInstallationThatIsRemovedWithoutAListOfItsReposEndsTheirTestBuilds(t *testing.T) {
	t.Parallel()
	s := setHub(t)
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
