package session_test

import (
	"slices"
	"strings"
	"testing"

	"github.com/claude-hub/claude-hub/app/apptest"
	"github.com/claude-hub/claude-hub/app/fault"
	"github.com/claude-hub/claude-hub/app/session"
	"github.com/claude-hub/claude-hub/app/variable"
	"github.com/claude-hub/claude-hub/envspec"
	"github.com/claude-hub/claude-hub/runner/wire"
	"github.com/claude-hub/claude-hub/store"
	"github.com/claude-hub/claude-hub/store/storetest"
)

const token, other = "npm-token-0123456789", "another-token-0123456789"

// withVariables has the Environment have a Variable of each sort, with a Session that stands on it and runs.
func withVariables(t *testing.T, db *store.DB) *rig {
	t.Helper()
	r := setup(t, db)
	if _, err := r.Vault.CreateShared(t.Context(), r.ana.Who(), variable.NewShared{Name: "HUB_WIDE", Sensitive: true, Value: []byte(other)}); err != nil {
		t.Fatal(err)
	}
	s := spec()
	s.Variables = []envspec.Variable{
		{Name: "NPM", Sensitive: true, Build: true}, {Name: "REGION", Value: "eu-1"}, {Name: "WIDE", Link: "HUB_WIDE"},
	}
	r.AppliedWith(r.ana, r.runner, s, map[string][]byte{"NPM": []byte(token)})
	r.sleep()
	r.must(r.Sessions.Wake(t.Context(), r.ana, r.sn.ID))
	r.report(wire.StateRunning)
	r.want(session.Running)
	return r
}

func (r *rig) item() *wire.Item {
	r.Helper()
	for _, item := range r.runner.Items() {
		if item.GetKind() == wire.KindSession {
			return item
		}
	}
	r.Fatal("the Runner holds no Session")
	return nil
}

func (r *rig) report(state string) {
	r.Helper()
	r.runner.MustReport(r.item(), state, wire.SessionDetail{Workspace: true})
}

func (r *rig) sleep() {
	r.Helper()
	r.must(r.Sessions.Sleep(r.Context(), r.ana, r.sn.ID))
	r.report(wire.StateAsleep)
	r.want(session.Asleep)
}

// loseKey is the Hub after secrets-reset, with the same people, Runner and Session.
func (r *rig) loseKey() {
	r.Helper()
	r.Hub = r.Hub.LoseKey(2)
	r.runner = r.runner.Of(r.Hub)
	r.ana = r.Grant("ana")
}

func TestASessionGetsTheValuesOfItsVersion(t *testing.T) {
	t.Parallel()
	storetest.Each(t, func(t *testing.T, db *store.DB) {
		r := withVariables(t, db)
		values, refused := r.runner.Values(r.item())
		if refused != "" || string(values["NPM"].GetValue()) != token || string(values["REGION"].GetValue()) != "eu-1" || string(values["WIDE"].GetValue()) != other {
			t.Fatalf("refused %q, %d values", refused, len(values))
		}
		if !values["NPM"].GetBuild() || values["WIDE"].GetBuild() || !values["REGION"].GetBuild() {
			t.Error("at build are the wrong ones")
		}
		var payload wire.Session
		r.runner.Fetch(r.item(), &payload)
		for _, v := range []string{token, other, "eu-1"} {
			if strings.Contains(string(payload.Recipe.Spec), v) || !strings.Contains(string(payload.Recipe.Spec), "value_id") {
				t.Errorf("the Spec has a value, or no ids: %s", payload.Recipe.Spec)
			}
		}
		// A new value that is not at build applies without a Test build, and is there from the next wake on; a new shared one
		// is there at once for who asks.
		env, err := r.Environments.Get(t.Context(), r.ana)
		r.must(err)
		if _, err := r.Vault.SetShared(t.Context(), r.ana.Who(), "HUB_WIDE", 1, true, []byte(other+"2")); err != nil {
			t.Fatal(err)
		}
		again, _ := r.runner.Values(r.item())
		if string(again["WIDE"].GetValue()) != other+"2" || again["WIDE"].GetId() == values["WIDE"].GetId() {
			t.Error("the new shared value isn't there, or has the old one's id")
		}
		d, err := r.Environments.Save(t.Context(), r.ana, env.Draft.Revision, withLate(env.Draft.Spec), map[string][]byte{"LATE": []byte("late-token-0123")})
		r.must(err)
		_, err = r.Environments.Apply(t.Context(), r.ana, d.Revision, "")
		r.must(err)
		if again, _ = r.runner.Values(r.item()); len(again) != 3 {
			t.Errorf("a running Session was given %d values, of a version that it doesn't stand on", len(again))
		}
		versions, err := r.Sessions.OnVersions(t.Context(), r.ana)
		r.must(err)
		if !slices.Equal(versions, []session.OnVersion{{Version: 2, Awake: 1}}) {
			t.Errorf("%+v", versions)
		}
		r.sleep()
		r.must(r.Sessions.Wake(t.Context(), r.ana, r.sn.ID))
		if again, _ = r.runner.Values(r.item()); string(again["LATE"].GetValue()) != "late-token-0123" {
			t.Error("the new Variable isn't there after the wake")
		}
	})
}

// withLate adds a Sensitive Variable that needs no Test build.
func withLate(s envspec.Spec) envspec.Spec {
	s.Variables = append(slices.Clone(s.Variables), envspec.Variable{Name: "LATE", Sensitive: true})
	return s
}

// ADR 0009, "A lost key".
func TestNoSessionBootsWhileAValueIsMissingAndRunningOnesGoOn(t *testing.T) {
	t.Parallel()
	storetest.Each(t, func(t *testing.T, db *store.DB) {
		r := withVariables(t, db)
		second, err := r.Sessions.Start(t.Context(), r.ana, session.StartInput{})
		r.must(err)
		r.loseKey()
		const lacks = ": the Variables NPM and WIDE (linked from the Shared variable HUB_WIDE) have no value. Enter one for each first."

		r.want(session.Running)
		if item := r.item(); item.GetWant() != wire.WantRun {
			t.Errorf("the running Session is wanted %s", item.GetWant())
		}
		if values, refused := r.runner.Values(r.item()); len(values) != 0 || refused != "This Session can't start"+lacks {
			t.Errorf("%d values, refused %q", len(values), refused)
		}
		_, err = r.Sessions.Start(t.Context(), r.ana, session.StartInput{})
		wantFault(t, err, fault.Refused, "This Session can't start"+lacks)
		r.sleep()
		wantFault(t, r.Sessions.Wake(t.Context(), r.ana, r.sn.ID), fault.Refused, "This Session can't wake"+lacks)
		r.want(session.Asleep)
		for _, item := range r.runner.Items() {
			if item.GetWant() == wire.WantRun {
				r.runner.MustReport(item, wire.StateFailed, wire.SessionDetail{Failure: &wire.Failure{Code: "values"}})
			}
		}
		wantFault(t, r.Sessions.Retry(t.Context(), r.ana, second.ID), fault.Refused, "This Session can't start"+lacks)

		r.must(r.Environments.Enter(t.Context(), r.ana, "NPM", []byte("entered-anew-1")))
		wantFault(t, r.Sessions.Wake(t.Context(), r.ana, r.sn.ID), fault.Refused, "the Variable WIDE (linked from the Shared variable HUB_WIDE) has no value. Enter one for it first.")
		_, err = r.Vault.SetShared(t.Context(), r.ana.Who(), "HUB_WIDE", 1, true, []byte("entered-anew-2"))
		r.must(err)
		r.must(r.Sessions.Wake(t.Context(), r.ana, r.sn.ID))
		values, refused := r.runner.Values(r.item())
		if refused != "" || string(values["NPM"].GetValue()) != "entered-anew-1" || string(values["WIDE"].GetValue()) != "entered-anew-2" {
			t.Errorf("refused %q, %d values", refused, len(values))
		}
		if sn := r.get(); sn.Version != 2 {
			t.Errorf("a version was made: %d", sn.Version)
		}
	})
}

func TestDevWakesOnlyWhatHasItsValues(t *testing.T) {
	t.Parallel()
	r := withVariables(t, storetest.New(t))
	if n, err := r.Sessions.SleepAll(t.Context(), r.runner.ID); n != 1 || err != nil {
		t.Fatal(n, err)
	}
	r.report(wire.StateAsleep)
	r.loseKey()
	if n, err := r.Sessions.ResumeAll(t.Context(), r.runner.ID); n != 0 || err != nil {
		t.Fatal(n, err)
	}
	r.want(session.Asleep)
	r.must(r.Environments.Enter(t.Context(), r.ana, "NPM", []byte("entered-anew-1")))
	_, err := r.Vault.SetShared(t.Context(), r.ana.Who(), "HUB_WIDE", 1, true, []byte("entered-anew-2"))
	r.must(err)
	if n, err := r.Sessions.ResumeAll(t.Context(), r.runner.ID); n != 1 || err != nil {
		t.Fatal(n, err)
	}
	r.want(session.Waking)
}

func TestARunnerThatIsTooOldGetsNoSessionWithVariables(t *testing.T) {
	t.Parallel()
	db := storetest.New(t)
	h := apptest.New(t, db, apptest.Options{})
	ana, old := h.Grant("ana"), h.OldRunner("old", 1)
	h.Applied(ana, old, spec()) // without Variables it does
	sn, err := h.Sessions.Start(t.Context(), ana, session.StartInput{})
	if err != nil {
		t.Fatal(err)
	}
	young := h.Runner("young")
	s := spec()
	s.Variables = []envspec.Variable{{Name: "REGION", Value: "eu-1"}}
	h.Applied(ana, young, s)
	_, err = h.Sessions.Start(t.Context(), ana, session.StartInput{Runner: "old"})
	wantFault(t, err, fault.Unavailable, "old runs claude-hub test, which is too old for an Environment with Variables: install claude-hub of this Hub's version on its host and start it again")
	started, err := h.Sessions.Start(t.Context(), ana, session.StartInput{})
	if err != nil || started.Runner != young.ID {
		t.Errorf("started on %s: %v", started.Runner, err)
	}
	if err := h.Sessions.Sleep(t.Context(), ana, sn.ID); err != nil {
		t.Fatal(err)
	}
	wantFault(t, h.Sessions.Wake(t.Context(), ana, sn.ID), fault.Refused, "Runner old runs claude-hub test, which is too old for an Environment with Variables: install")
}
