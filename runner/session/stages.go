package session

import (
	"slices"
	"time"

	"github.com/claude-hub/claude-hub/runner/wire"
)

// stopwatch measures the stages of one start or wake, each from the end of the one before.
type stopwatch struct {
	last time.Time
	all  []wire.Stage
}

func newStopwatch() *stopwatch { return &stopwatch{last: time.Now()} }

// lap ends a stage.
func (w *stopwatch) lap(name string) {
	now := time.Now()
	w.all = append(w.all, wire.Stage{Name: name, US: max(1, now.Sub(w.last).Microseconds())})
	w.last = now
}

// stage remembers one that came after the Sandbox was up.
func (st *State) stage(name string, took time.Duration) {
	st.Stages = append(slices.Clone(st.Stages), wire.Stage{Name: name, US: max(1, took.Microseconds())})
}
