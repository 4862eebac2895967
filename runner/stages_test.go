package runner

import (
	"strings"
	"testing"
	"time"

	"github.com/claude-hub/claude-hub/app/fleet"
	"github.com/claude-hub/claude-hub/envspec"
	"github.com/claude-hub/claude-hub/runner/wire"
)

// stages wants the newest boot of a Session to have had these, and gives how long each took.
func (w *world) stages(id string, want ...string) map[string]time.Duration {
	w.t.Helper()
	took := map[string]time.Duration{}
	var got string
	w.until(id, "running with the stages "+strings.Join(want, " "), func(r fleet.Report) bool {
		if r.State != wire.StateRunning {
			return false
		}
		var names []string
		for _, s := range sessionDetail(w.t, r).Stages {
			names = append(names, s.Name)
			took[s.Name] = s.Took()
		}
		got = strings.Join(names, " ")
		return got == strings.Join(want, " ")
	})
	return took
}

func TestABootSaysHowLongEachOfItsStagesTook(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.start()
	recipe, key := w.version(envspec.Spec{Image: w.image("app:v1", asCoder), Bootstrap: "sleep 0.3", Start: "sleep 0.2"})
	before := time.Now()
	id := w.session(recipe, key, w.repo())
	took := w.stages(id, wire.StageBuild, wire.StageDisk, wire.StageClone, wire.StageSandbox, wire.StageAgent, wire.StageFolders, wire.StageStart)
	whole := time.Since(before)
	if took[wire.StageBuild] < 300*time.Millisecond || took[wire.StageStart] < 200*time.Millisecond {
		t.Errorf("a bootstrap of 0.3 s and a start script of 0.2 s took %v", took)
	}
	var sum time.Duration
	for name, d := range took {
		if sum += d; d <= 0 {
			t.Errorf("%s took %s", name, d)
		}
	}
	if sum > whole {
		t.Errorf("the stages took %s together, and all of it %s", sum, whole)
	}
	w.untilLog(id, "==> boot: up after ")
	w.nap(id, nil)
	took = w.stages(id, wire.StageBuild, wire.StageDisk, wire.StageSandbox, wire.StageAgent, wire.StageFolders, wire.StageStart)
	if strings.Count(w.log(id), "==> bootstrap: done") != 1 {
		t.Errorf("a wake made the build anew: %v\n%s", took, w.log(id))
	}
}
