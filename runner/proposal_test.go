package runner

import (
	"strings"
	"testing"
	"time"

	"github.com/claude-hub/claude-hub/envspec"
	"github.com/claude-hub/claude-hub/runner/wire"
	"github.com/claude-hub/claude-hub/store"
)

func TestTheLogOfAPullRequestsTestBuildBeginsWithBothCommits(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.start()
	const head, trunk = "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa", "bbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbb"
	id := store.NewID()
	id = w.assign(wire.KindTestBuild, id, wire.TestBuild{
		ID: id, Recipe: wire.Recipe{Environment: "env", Spec: raw(t, envspec.Spec{Image: w.image("app:v1", nil)})},
		Repo: wire.Repo{Name: "acme/rocket", CloneURL: w.repo()}, Proposal: &wire.Proposal{PullRequest: 7, Commit: head, Branch: trunk, Withheld: true},
	}, time.Now().Add(10*time.Minute))
	state, d := w.outcome(id)
	log := w.wholeLog(id)
	first, _, _ := strings.Cut(log, "\n")
	if state != wire.StatePassed || !strings.HasPrefix(first, "==> pull request #7 ") || !strings.Contains(first, head) || !strings.Contains(first, trunk) || !strings.Contains(first, "withheld") {
		t.Errorf("%s\n%s", state, log)
	}
	if !strings.Contains(log, "==> clone: main at "+d.Commit) {
		t.Errorf("the log doesn't say what was cloned:\n%s", log)
	}
}
