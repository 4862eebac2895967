package build

import (
	"slices"
	"sync"
	"time"

	"github.com/claude-hub/claude-hub/runner/wire"
)

// Track is how far an assignment is: its phases, the progress of the running one, and notes. It survives the Runner's
// process as part of the assignment's state. A Track may be used from many goroutines.
type Track struct {
	mu       sync.Mutex
	phases   []wire.Phase
	notes    []string
	progress *wire.Progress
	changed  func(urgent bool)
}

// NewTrack makes one from what was remembered. changed is called, outside of any lock, after each change: urgent for
// all that a restarted Runner has to know, not urgent for progress.
func NewTrack(phases []wire.Phase, notes []string, changed func(urgent bool)) *Track {
	return &Track{phases: slices.Clone(phases), notes: slices.Clone(notes), changed: changed}
}

// Phases, Notes and Progress are copies of what is known now.
func (t *Track) Phases() []wire.Phase {
	t.mu.Lock()
	defer t.mu.Unlock()
	return slices.Clone(t.phases)
}

// Notes are sentences about the whole.
func (t *Track) Notes() []string {
	t.mu.Lock()
	defer t.mu.Unlock()
	return slices.Clone(t.notes)
}

// Progress of the running phase, or nil.
func (t *Track) Progress() *wire.Progress {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.progress == nil {
		return nil
	}
	p := *t.progress
	return &p
}

// Reset forgets everything: a new start or wake begins.
func (t *Track) Reset() {
	t.edit(true, func() { t.phases, t.notes, t.progress = nil, nil, nil })
}

// Note adds a sentence once.
func (t *Track) Note(s string) {
	if s != "" && !slices.Contains(t.Notes(), s) {
		t.edit(true, func() { t.notes = append(t.notes, s) })
	}
}

// Retract takes a sentence back that no longer holds.
func (t *Track) Retract(s string) {
	if slices.Contains(t.Notes(), s) {
		t.edit(true, func() { t.notes = slices.DeleteFunc(t.notes, func(n string) bool { return n == s }) })
	}
}

// Begin starts a phase, or goes on with one that an earlier process of the Runner left.
func (t *Track) Begin(name string) {
	t.edit(true, func() {
		p := t.phase(name)
		if p.State != wire.PhaseRunning {
			*p = wire.Phase{Name: name, State: wire.PhaseRunning, Started: time.Now().UnixMilli()}
		}
	})
}

// End ends a phase well.
func (t *Track) End(name, note string, exit *int) { t.end(name, wire.PhaseDone, note, exit) }

// Fail ends a phase badly.
func (t *Track) Fail(name, note string, exit *int) { t.end(name, wire.PhaseFailed, note, exit) }

// Skip says that a phase had nothing to do.
func (t *Track) Skip(name, note string) {
	t.edit(true, func() {
		now := time.Now().UnixMilli()
		*t.phase(name) = wire.Phase{Name: name, State: wire.PhaseSkipped, Started: now, Ended: now, Note: note}
	})
}

// FailRunning ends whatever phase is running badly, and returns its name.
func (t *Track) FailRunning() string { return t.endRunning(wire.PhaseFailed) }

// CancelRunning ends whatever phase is running because nobody wants it any more.
func (t *Track) CancelRunning() { t.endRunning(wire.PhaseCancelled) }

func (t *Track) endRunning(state string) string {
	name := ""
	for _, p := range t.Phases() {
		if p.State == wire.PhaseRunning {
			name = p.Name
			t.end(name, state, "", nil)
		}
	}
	return name
}

// Drop forgets a phase that will begin afresh.
func (t *Track) Drop(name string) {
	t.edit(true, func() {
		t.phases = slices.DeleteFunc(t.phases, func(p wire.Phase) bool { return p.Name == name })
	})
}

// Tell has what is known beside the Track stored and reported.
func (t *Track) Tell() { t.edit(false, func() {}) }

// Set shows progress of the running phase.
func (t *Track) Set(p wire.Progress) {
	t.edit(false, func() { t.progress = &p })
}

func (t *Track) end(name, state, note string, exit *int) {
	t.edit(true, func() {
		p := t.phase(name)
		if p.Started == 0 {
			p.Started = time.Now().UnixMilli()
		}
		p.State, p.Ended, p.ExitCode = state, time.Now().UnixMilli(), exit
		if note != "" {
			p.Note = note
		}
		t.progress = nil
	})
}

func (t *Track) phase(name string) *wire.Phase {
	i := slices.IndexFunc(t.phases, func(p wire.Phase) bool { return p.Name == name })
	if i < 0 {
		t.phases = append(t.phases, wire.Phase{Name: name})
		i = len(t.phases) - 1
	}
	return &t.phases[i]
}

func (t *Track) edit(urgent bool, f func()) {
	t.mu.Lock()
	f()
	changed := t.changed
	t.mu.Unlock()
	if changed != nil {
		changed(urgent)
	}
}

// Phase is a copy of the phase of that name; the zero Phase when it hasn't begun.
func (t *Track) Phase(name string) wire.Phase {
	for _, p := range t.Phases() {
		if p.Name == name {
			return p
		}
	}
	return wire.Phase{}
}

// Since is for how long a phase has been running.
func (t *Track) Since(name string) time.Duration {
	if p := t.Phase(name); p.Started > 0 {
		return time.Since(time.UnixMilli(p.Started))
	}
	return 0
}

// mirror takes over what another Track says of its phases.
func (t *Track) mirror(of *Track, urgent bool) {
	phases, notes, progress := of.Phases(), of.Notes(), of.Progress()
	t.edit(urgent, func() {
		for _, p := range phases {
			*t.phase(p.Name) = p
		}
		for _, n := range notes {
			if !slices.Contains(t.notes, n) {
				t.notes = append(t.notes, n)
			}
		}
		t.progress = progress
	})
}
