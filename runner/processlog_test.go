package runner

import (
	"strings"
	"testing"
	"time"

	"github.com/claude-hub/claude-hub/app/fleet"
	"github.com/claude-hub/claude-hub/envspec"
	"github.com/claude-hub/claude-hub/runner/wire"
)

// untilLogHides waits until the Runner's own log hides a value, or no longer does.
func (w *world) untilLogHides(value string, hides bool) {
	w.t.Helper()
	for end := time.Now().Add(limit); ; time.Sleep(5 * time.Millisecond) {
		got := w.hides.Text("a line with " + value + " in it").String()
		if strings.Contains(got, value) != hides {
			return
		}
		if time.Now().After(end) {
			w.t.Fatalf("the log shows %q", got)
		}
	}
}

func TestTheRunnersOwnLogHidesValuesForAsLongAsAnAssignmentHasThem(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.start()
	const shared, first, second = "value-of-both-assignments", "value-of-the-first-start", "value-of-the-second-start"
	both := sensitive("SHARED", shared, "s1", false)
	own := func(value, id string) *wire.Value { return sensitive("OWN", value, id, false) }
	spec := having(envspec.Spec{Image: w.image("app:v1", nil)}, both, own(first, "s2"))
	w.owner.give("", both, own(first, "s2"))
	recipe, key := w.version(spec)
	session := w.session(recipe, key, w.repo())
	w.untilState(session, wire.StateRunning)
	w.untilLogHides(first, true)
	w.change(session, fleet.Stop)
	w.untilState(session, wire.StateAsleep)
	w.owner.give("", both, own(second, "s3"))
	w.change(session, fleet.Run)
	w.untilState(session, wire.StateRunning)
	w.untilLogHides(first, true) // processes may still print it from the files they wrote
	w.untilLogHides(second, true)

	const tested = "value-of-the-test-build"
	w.owner.give("", both, own(tested, "s4"))
	test := w.test(spec, w.repo())
	if state, d := w.outcome(test); state != wire.StatePassed {
		t.Fatalf("%s: %+v", state, d.Failure)
	}
	w.untilLogHides(tested, true)
	w.change(session, fleet.Remove)
	w.untilLogHides(first, false)
	w.untilLogHides(second, false)
	w.untilLogHides(shared, true) // the Test build has it still
	w.change(test, fleet.Remove)
	w.untilLogHides(tested, false)
	w.untilLogHides(shared, false)
}

func TestARunnerThatIsClosedLeavesNoValueInItsProcess(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.start()
	const value = "value-of-a-closed-runner"
	v := sensitive("API_KEY", value, "s1", false)
	w.owner.give("", v)
	recipe, key := w.version(having(envspec.Spec{Image: w.image("app:v1", nil)}, v))
	w.untilState(w.session(recipe, key, w.repo()), wire.StateRunning)
	w.untilLogHides(value, true)
	w.stop()
	w.untilLogHides(value, false)
}
