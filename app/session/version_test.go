package session_test

import (
	"slices"
	"testing"

	"github.com/claude-hub/claude-hub/app/session"
	"github.com/claude-hub/claude-hub/envspec"
	"github.com/claude-hub/claude-hub/runner/wire"
	"github.com/claude-hub/claude-hub/store"
	"github.com/claude-hub/claude-hub/store/storetest"
)

// apply makes the next version, without a Test build: it has a Variable more that is not at build.
func (r *rig) apply(name, value string) {
	r.Helper()
	env, err := r.Environments.Get(r.Context(), r.ana)
	r.must(err)
	s := env.Draft.Spec
	s.Variables = append(slices.Clone(s.Variables), envspec.Variable{Name: name, Sensitive: true})
	d, err := r.Environments.Save(r.Context(), r.ana, env.Draft.Revision, s, map[string][]byte{name: []byte(value)})
	r.must(err)
	_, err = r.Environments.Apply(r.Context(), r.ana, d.Revision, "")
	r.must(err)
}

// runs has the Runner say in which state it has the Session, on which version.
func (r *rig) runs(state string, version int) {
	r.Helper()
	r.runner.MustReport(r.item(), state, wire.SessionDetail{Workspace: true, Version: version})
}

// stands wants the Session to run on a version: in its row, in what its Runner is sent, and in the values it is given.
func (r *rig) stands(version, values int) {
	r.Helper()
	if sn := r.want(session.Running); sn.Version != version {
		r.Errorf("the Session is said to run version %d, want %d", sn.Version, version)
	}
	var p wire.Session
	r.runner.Fetch(r.item(), &p)
	if given, refused := r.runner.Values(r.item()); p.Version != version || len(given) != values || refused != "" {
		r.Errorf("the Runner is sent version %d with %d values %s, want %d with %d", p.Version, len(given), refused, version, values)
	}
	all, err := r.Sessions.OnVersions(r.Context(), r.ana)
	r.must(err)
	if !slices.Equal(all, []session.OnVersion{{Version: version, Awake: 1}}) {
		r.Errorf("%+v, want it on version %d", all, version)
	}
}

func TestASessionThatIsWokenBeforeItSleptStandsOnWhatItRuns(t *testing.T) {
	t.Parallel()
	storetest.Each(t, func(t *testing.T, db *store.DB) {
		r := setup(t, db)
		r.apply("LATE", "late-token-0123")
		r.must(r.Sessions.Sleep(t.Context(), r.ana, r.sn.ID))
		r.must(r.Sessions.Wake(t.Context(), r.ana, r.sn.ID))
		if sn := r.want(session.Waking); sn.Version != 2 {
			t.Fatalf("it wakes on version %d", sn.Version)
		}
		before := r.item().GetGeneration()
		r.runs(wire.StateRunning, 1) // the Runner saw no sleep
		r.stands(1, 0)
		item := r.item()
		if item.GetGeneration() != before+1 || item.GetWant() != wire.WantRun || item.GetDeadlineMs() != 0 {
			t.Errorf("the payload of generation %d is another now: %v", before, item)
		}
		r.runs(wire.StateRunning, 1)
		r.stands(1, 0)
		if again := r.item(); again.GetGeneration() != item.GetGeneration() {
			t.Errorf("each report makes a generation: %v", again)
		}

		// Woken and put to sleep once more before the Runner looks, it refuses to sleep: somebody is at work.
		r.must(r.Sessions.Sleep(t.Context(), r.ana, r.sn.ID))
		r.must(r.Sessions.Wake(t.Context(), r.ana, r.sn.ID))
		r.must(r.Sessions.Sleep(t.Context(), r.ana, r.sn.ID))
		r.runs(wire.StateBusy, 1)
		r.stands(1, 0)

		// The next wake after a sleep takes the newest version up.
		r.apply("LATER", "later-token-0123")
		r.must(r.Sessions.Sleep(t.Context(), r.ana, r.sn.ID))
		r.must(r.Sessions.Wake(t.Context(), r.ana, r.sn.ID))
		r.runs(wire.StateStarting, 1) // it slept, and says what it ran last
		r.runs(wire.StateRunning, 3)
		r.stands(3, 2)
	})
}

func TestARunnerIsNotBelievedThatASessionRunsAVersionItWasNeverGiven(t *testing.T) {
	t.Parallel()
	storetest.Each(t, func(t *testing.T, db *store.DB) {
		r := setup(t, db)
		r.apply("LATE", "late-token-0123")
		r.must(r.Sessions.Delete(t.Context(), r.ana, r.sn.ID, r.sn.ID))
		r.runner.MustReport(r.item(), wire.StateRemoved, nil)
		sn, err := r.Sessions.Start(t.Context(), r.ana, session.StartInput{})
		r.must(err)
		r.sn = sn
		before := r.item().GetGeneration()
		for _, version := range []int{1, 9, -1} {
			r.runs(wire.StateRunning, version)
			r.stands(2, 1)
		}
		if after := r.item().GetGeneration(); after != before {
			t.Errorf("what it made up changed generation %d to %d", before, after)
		}
	})
}
