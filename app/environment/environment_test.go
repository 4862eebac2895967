package environment_test

import (
	"errors"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/claude-hub/claude-hub/app/apptest"
	"github.com/claude-hub/claude-hub/app/environment"
	"github.com/claude-hub/claude-hub/app/fault"
	"github.com/claude-hub/claude-hub/app/fleet"
	"github.com/claude-hub/claude-hub/envspec"
	"github.com/claude-hub/claude-hub/runner/wire"
	"github.com/claude-hub/claude-hub/store"
	"github.com/claude-hub/claude-hub/store/storetest"
)

func spec() envspec.Spec {
	s := envspec.Default()
	s.Bootstrap = "echo one"
	return s
}

func wantFault(t *testing.T, err error, code fault.Code, says string) {
	t.Helper()
	if !fault.Is(err, code) || !strings.Contains(err.Error(), says) {
		t.Fatalf("want a fault %s that says %q, got %v", code, says, err)
	}
}

func TestTwoPeopleWhoMakeAnEnvironmentAtOnceGetOne(t *testing.T) {
	t.Parallel()
	storetest.Each(t, func(t *testing.T, db *store.DB) {
		h := apptest.New(t, db, apptest.Options{})
		ana, bob := h.Grant("ana"), h.Grant("bob")
		errs := make([]error, 2)
		var both sync.WaitGroup
		both.Go(func() { _, errs[0] = h.Environments.Save(t.Context(), ana, 0, spec(), nil) })
		both.Go(func() { _, errs[1] = h.Environments.Save(t.Context(), bob, 0, spec(), nil) })
		both.Wait()
		if (errs[0] == nil) == (errs[1] == nil) {
			t.Fatalf("exactly one of two first saves wins, got %v and %v", errs[0], errs[1])
		}
		wantFault(t, errors.Join(errs...), fault.Conflict, "meanwhile")
		if env, err := h.Environments.Get(t.Context(), ana); err != nil || env.Draft == nil || env.Draft.Revision != 1 {
			t.Fatalf("the winner's draft at revision 1: %+v, %v", env, err)
		}
	})
}

func TestASecondWriterLosesNothingOfTheFirst(t *testing.T) {
	t.Parallel()
	h := apptest.New(t, storetest.New(t), apptest.Options{})
	ana, bob := h.Grant("ana"), h.Grant("bob")
	first, err := h.Environments.Save(t.Context(), ana, 0, spec(), nil)
	if err != nil {
		t.Fatal(err)
	}
	changed := spec()
	changed.Bootstrap = "echo two"
	if _, err := h.Environments.Save(t.Context(), ana, first.Revision, changed, nil); err != nil {
		t.Fatal(err)
	}
	_, err = h.Environments.Save(t.Context(), bob, first.Revision, spec(), nil)
	wantFault(t, err, fault.Conflict, "ana saved this draft meanwhile: you edited revision 1, it is at 2 now")
	env, err := h.Environments.Get(t.Context(), bob)
	if err != nil || env.Draft.Spec.Bootstrap != "echo two" {
		t.Fatalf("ana's draft stays: %+v, %v", env.Draft, err)
	}
}

func TestApplyTakesOnlyWhatWasTested(t *testing.T) {
	t.Parallel()
	storetest.Each(t, func(t *testing.T, db *store.DB) {
		h := apptest.New(t, db, apptest.Options{})
		ana, r := h.Grant("ana"), h.Runner("r1")
		draft, err := h.Environments.Save(t.Context(), ana, 0, spec(), nil)
		if err != nil {
			t.Fatal(err)
		}
		_, err = h.Environments.Apply(t.Context(), ana, draft.Revision, "")
		wantFault(t, err, fault.Refused, "needs a passing Test build of exactly what it says now")

		test, err := h.Environments.Test(t.Context(), ana, draft.Revision, "r1")
		if err != nil {
			t.Fatal(err)
		}
		_, err = h.Environments.Test(t.Context(), ana, draft.Revision, "r1")
		wantFault(t, err, fault.Refused, "already queued on r1")
		item := r.Item()
		var payload wire.TestBuild
		r.Fetch(item, &payload)
		if payload.ID != test.ID || payload.Repo.Name != "acme/rocket" || !payload.Repo.HostCredentials || !strings.Contains(string(payload.Recipe.Spec), "echo one") {
			t.Fatalf("payload: %+v", payload)
		}
		r.MustReport(item, wire.StateRunning, wire.TestBuildDetail{Phases: []wire.Phase{{Name: wire.PhaseImage, State: "running"}}})
		if got, err := h.Environments.TestBuild(t.Context(), ana, test.ID); err != nil || got.State != environment.Running || len(got.Detail.Phases) != 1 {
			t.Fatalf("running with its phase: %+v, %v", got, err)
		}
		r.Pass(item)
		if items := r.Items(); len(items) != 0 {
			t.Fatalf("a passed Test build is given up: %v", items)
		}

		v, err := h.Environments.Apply(t.Context(), ana, draft.Revision, "first")
		if err != nil {
			t.Fatal(err)
		}
		if v.Number != 1 || v.ImageDigest != apptest.Digest || string(v.BuildKey) != apptest.BuildKey || v.TestBuild != test.ID || v.AppliedBy != "ana" || v.Message != "first" {
			t.Fatalf("version: %+v", v)
		}
		_, err = h.Environments.Apply(t.Context(), ana, draft.Revision, "again")
		wantFault(t, err, fault.Refused, "nothing to apply")

		changed := spec()
		changed.Start = "true"
		draft, err = h.Environments.Save(t.Context(), ana, draft.Revision, changed, nil)
		if err != nil {
			t.Fatal(err)
		}
		_, err = h.Environments.Apply(t.Context(), ana, draft.Revision, "")
		wantFault(t, err, fault.Refused, "needs a passing Test build")
	})
}

func TestCPUAndMemoryApplyWithoutATestBuild(t *testing.T) {
	t.Parallel()
	h := apptest.New(t, storetest.New(t), apptest.Options{})
	ana, r := h.Grant("ana"), h.Runner("r1")
	first := h.Applied(ana, r, spec())
	more := spec()
	more.CPU, more.Memory = 3, 3<<30
	draft, err := h.Environments.Save(t.Context(), ana, 1, more, nil)
	if err != nil {
		t.Fatal(err)
	}
	second, err := h.Environments.Apply(t.Context(), ana, draft.Revision, "")
	if err != nil {
		t.Fatal(err)
	}
	if second.Number != 2 || second.BuildKey != first.BuildKey || second.TestBuild != first.TestBuild || second.Spec.CPU != 3 {
		t.Fatalf("second version: %+v", second)
	}
}

// "Rebuild from newest" is an explicit act: test the same draft again, and apply what the tag points to now (facts/field.md P9).
func TestATagThatMovedIsAppliedByTestingAgain(t *testing.T) {
	t.Parallel()
	h := apptest.New(t, storetest.New(t), apptest.Options{})
	ana, r := h.Grant("ana"), h.Runner("r1")
	h.Applied(ana, r, spec())
	again := func(digest, key string) {
		t.Helper()
		if _, err := h.Environments.Test(t.Context(), ana, 1, r.ID); err != nil {
			t.Fatal(err)
		}
		r.PassOn(r.Item(), digest, key)
	}
	again(apptest.Digest, apptest.BuildKey)
	_, err := h.Environments.Apply(t.Context(), ana, 1, "")
	wantFault(t, err, fault.Refused, "nothing to apply")

	newer, key := "sha256:"+strings.Repeat("3", 64), strings.Repeat("4", 64)
	again(newer, key)
	v, err := h.Environments.Apply(t.Context(), ana, 1, "")
	if err != nil || v.Number != 2 || v.ImageDigest != newer || string(v.BuildKey) != key {
		t.Fatalf("version 2 on the newer image: %+v, %v", v, err)
	}
}

func TestOfTwoAppliesAtOnceOneMakesAVersion(t *testing.T) {
	t.Parallel()
	storetest.Each(t, func(t *testing.T, db *store.DB) {
		h := apptest.New(t, db, apptest.Options{})
		ana, r := h.Grant("ana"), h.Runner("r1")
		h.Applied(ana, r, spec())
		more := spec()
		more.CPU = 3
		draft, err := h.Environments.Save(t.Context(), ana, 1, more, nil)
		if err != nil {
			t.Fatal(err)
		}
		errs := make([]error, 4)
		var all sync.WaitGroup
		for i := range errs {
			all.Go(func() { _, errs[i] = h.Environments.Apply(t.Context(), ana, draft.Revision, "") })
		}
		all.Wait()
		won := 0
		for _, err := range errs {
			if err == nil {
				won++
			}
		}
		versions, err := h.Environments.Versions(t.Context(), ana, 10)
		if err != nil || won != 1 || len(versions) != 2 || versions[0].Number != 2 {
			t.Fatalf("%d of 4 applied (%v), %d versions, %v", won, errs, len(versions), err)
		}
	})
}

func TestAFailedTestBuildCanNotBeApplied(t *testing.T) {
	t.Parallel()
	h := apptest.New(t, storetest.New(t), apptest.Options{})
	ana, r := h.Grant("ana"), h.Runner("r1")
	draft, err := h.Environments.Save(t.Context(), ana, 0, spec(), nil)
	if err != nil {
		t.Fatal(err)
	}
	test, err := h.Environments.Test(t.Context(), ana, draft.Revision, r.ID)
	if err != nil {
		t.Fatal(err)
	}
	one := 1
	r.MustReport(r.Item(), wire.StateFailed, wire.TestBuildDetail{Failure: &wire.Failure{Phase: wire.PhaseBootstrap, Code: "exit", Message: "exit code 1", ExitCode: &one}})
	got, err := h.Environments.TestBuild(t.Context(), ana, test.ID)
	if err != nil || got.State != environment.Failed || !got.Final() || got.Detail.Failure.Message != "exit code 1" {
		t.Fatalf("failed with its reason: %+v, %v", got, err)
	}
	_, err = h.Environments.Apply(t.Context(), ana, draft.Revision, "")
	wantFault(t, err, fault.Refused, "needs a passing Test build")
}

func TestARefusalToApplySaysWhatBecameOfTheNewestTestBuild(t *testing.T) {
	t.Parallel()
	db := storetest.New(t)
	clock := storetest.NewClock(db)
	h := apptest.New(t, db, apptest.Options{})
	ana, r := h.Grant("ana"), h.Runner("r1")
	draft := save(t, h, ana, spec(), nil)
	const needs = "This draft needs a passing Test build of exactly what it says now"
	want := func(then string) {
		t.Helper()
		if v, err := h.Environments.Check(t.Context(), ana); err != nil || v.OK || v.Reason != needs+then {
			t.Errorf("want …%s, got %+v, %v", then, v, err)
		}
	}
	start := func() string {
		t.Helper()
		clock.Advance(time.Second)
		r.Items() // it is in contact
		test, err := h.Environments.Test(t.Context(), ana, draft.Revision, "r1")
		if err != nil {
			t.Fatal(err)
		}
		return test.ID
	}
	// report is one about what the Runner holds and has not ended.
	report := func(state string, detail wire.TestBuildDetail) {
		t.Helper()
		for _, item := range r.Items() {
			if item.GetWant() != wire.WantRemove {
				r.MustReport(item, state, detail)
			}
		}
	}
	want(". Start one first.")

	id := start()
	want(", and one is queued (" + id + "). Wait until it has passed.")
	report(wire.StateRunning, wire.TestBuildDetail{})
	want(", and one is running (" + id + "). Wait until it has passed.")
	report(wire.StateFailed, wire.TestBuildDetail{Failure: &wire.Failure{Phase: wire.PhaseStart, Message: "no"}})
	want(", and the newest one failed in the phase start (" + id + "). Look at its log, then change the draft or start another.")

	id = start()
	if err := h.Environments.Cancel(t.Context(), ana, id); err != nil {
		t.Fatal(err)
	}
	report(wire.StateCancelled, wire.TestBuildDetail{})
	want(", and the newest one was cancelled (" + id + "). Start another.")

	id = start()
	report(wire.StateFailed, wire.TestBuildDetail{Failure: &wire.Failure{Phase: "a Runner's own words", Message: "no"}})
	want(", and the newest one failed (" + id + "). Look at its log, then change the draft or start another.")

	id = start()
	for range 24 { // its Runner is silent
		clock.Advance(5 * time.Second)
		if err := h.Fleet.RunOnce(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	want(", and the newest one was lost with its Runner (" + id + "). Start another.")

	changed := spec()
	changed.Bootstrap = "echo never tested"
	draft = save(t, h, ana, changed, nil)
	want(". Start one first.")
	draft = save(t, h, ana, spec(), nil)
	want(", and the newest one was lost with its Runner (" + id + "). Start another.")
	start()
	report(wire.StatePassed, wire.TestBuildDetail{ImageDigest: apptest.Digest, BuildKey: apptest.BuildKey})
	if v, err := h.Environments.Check(t.Context(), ana); err != nil || !v.OK {
		t.Errorf("after one passed: %+v, %v", v, err)
	}
}

func TestAResultIsTakenOnce(t *testing.T) {
	t.Parallel()
	h := apptest.New(t, storetest.New(t), apptest.Options{})
	ana, r := h.Grant("ana"), h.Runner("r1")
	draft, err := h.Environments.Save(t.Context(), ana, 0, spec(), nil)
	if err != nil {
		t.Fatal(err)
	}
	test, err := h.Environments.Test(t.Context(), ana, draft.Revision, r.ID)
	if err != nil {
		t.Fatal(err)
	}
	item := r.Item()
	r.MustReport(item, wire.StateFailed, wire.TestBuildDetail{Failure: &wire.Failure{Message: "no"}})
	if err := r.Report(item, wire.StatePassed, wire.TestBuildDetail{ImageDigest: apptest.Digest, BuildKey: apptest.BuildKey}); err != nil {
		t.Fatal(err)
	}
	if got, err := h.Environments.TestBuild(t.Context(), ana, test.ID); err != nil || got.State != environment.Failed {
		t.Fatalf("the first result stands: %+v, %v", got, err)
	}
}

func TestAPassOfWhatIsNoBuildIsNoPass(t *testing.T) {
	t.Parallel()
	h := apptest.New(t, storetest.New(t), apptest.Options{})
	ana, r := h.Grant("ana"), h.Runner("r1")
	draft, err := h.Environments.Save(t.Context(), ana, 0, spec(), nil)
	if err != nil {
		t.Fatal(err)
	}
	test, err := h.Environments.Test(t.Context(), ana, draft.Revision, r.ID)
	if err != nil {
		t.Fatal(err)
	}
	item := r.Item()
	for _, d := range []wire.TestBuildDetail{
		{ImageDigest: apptest.Digest}, {BuildKey: apptest.BuildKey}, {ImageDigest: "latest", BuildKey: apptest.BuildKey},
		{ImageDigest: apptest.Digest + "/../..", BuildKey: apptest.BuildKey}, {ImageDigest: apptest.Digest, BuildKey: "../" + apptest.BuildKey},
	} {
		r.MustReport(item, wire.StatePassed, d)
		if got, err := h.Environments.TestBuild(t.Context(), ana, test.ID); err != nil || got.Final() {
			t.Fatalf("%+v made it %s, %v", d, got.State, err)
		}
	}
	if _, err := h.Environments.Apply(t.Context(), ana, draft.Revision, ""); !fault.Is(err, fault.Refused) {
		t.Fatalf("applied: %v", err)
	}
}

func TestCancelIsFinalEvenWhenTheRunnerNeverAnswers(t *testing.T) {
	t.Parallel()
	storetest.Each(t, func(t *testing.T, db *store.DB) {
		clock := storetest.NewClock(db)
		h := apptest.New(t, db, apptest.Options{})
		ana, r := h.Grant("ana"), h.Runner("r1")
		draft, err := h.Environments.Save(t.Context(), ana, 0, spec(), nil)
		if err != nil {
			t.Fatal(err)
		}
		test, err := h.Environments.Test(t.Context(), ana, draft.Revision, r.ID)
		if err != nil {
			t.Fatal(err)
		}
		if err := h.Environments.Cancel(t.Context(), ana, test.ID); err != nil {
			t.Fatal(err)
		}
		if item := r.Item(); item.GetWant() != wire.WantStop {
			t.Fatalf("the Runner is told to stop: %v", item)
		}
		item := r.Item()
		clock.Advance(60 * time.Second)
		if err := h.Environments.Cancel(t.Context(), ana, test.ID); err != nil { // pressed again: prolongs nothing
			t.Fatal(err)
		}
		r.Items() // the Runner is in contact, but does nothing
		clock.Advance(31 * time.Second)
		r.Items()
		if err := h.Fleet.RunOnce(t.Context()); err != nil {
			t.Fatal(err)
		}
		got, err := h.Environments.TestBuild(t.Context(), ana, test.ID)
		if err != nil || got.State != environment.Cancelled || !strings.Contains(got.Detail.Failure.Message, "did not confirm") {
			t.Fatalf("cancelled 90 s after the first press: %+v, %v", got, err)
		}
		if err := r.Report(item, wire.StatePassed, wire.TestBuildDetail{ImageDigest: apptest.Digest, BuildKey: apptest.BuildKey}); !errors.Is(err, fleet.ErrFenced) {
			t.Fatalf("what comes under the old fence is refused, got %v", err)
		}
	})
}

func TestATestBuildOfASilentRunnerIsLost(t *testing.T) {
	t.Parallel()
	storetest.Each(t, func(t *testing.T, db *store.DB) {
		clock := storetest.NewClock(db)
		h := apptest.New(t, db, apptest.Options{})
		ana, r := h.Grant("ana"), h.Runner("r1")
		draft, err := h.Environments.Save(t.Context(), ana, 0, spec(), nil)
		if err != nil {
			t.Fatal(err)
		}
		test, err := h.Environments.Test(t.Context(), ana, draft.Revision, r.ID)
		if err != nil {
			t.Fatal(err)
		}
		r.MustReport(r.Item(), wire.StateRunning, wire.TestBuildDetail{Phases: []wire.Phase{{Name: wire.PhaseBootstrap, State: "running"}}})
		for range 16 { // the Hub is up and looks all the while
			clock.Advance(5 * time.Second)
			if err := h.Fleet.RunOnce(t.Context()); err != nil {
				t.Fatal(err)
			}
		}
		got, err := h.Environments.TestBuild(t.Context(), ana, test.ID)
		if err != nil || got.State != environment.Lost || got.Detail.Failure.Phase != wire.PhaseBootstrap {
			t.Fatalf("lost in its bootstrap: %+v, %v", got, err)
		}
		if p := got.Detail.Phases[0]; p.State != wire.PhaseFailed || p.Ended == 0 {
			t.Errorf("a Test build that is over has a phase that runs on: %+v", p)
		}
	})
}

func TestATestBuildThatRunsTooLongFails(t *testing.T) {
	t.Parallel()
	db := storetest.New(t)
	clock := storetest.NewClock(db)
	h := apptest.New(t, db, apptest.Options{Environment: environment.Options{TestDeadline: 10 * time.Minute}})
	ana, r := h.Grant("ana"), h.Runner("r1")
	draft, err := h.Environments.Save(t.Context(), ana, 0, spec(), nil)
	if err != nil {
		t.Fatal(err)
	}
	test, err := h.Environments.Test(t.Context(), ana, draft.Revision, r.ID)
	if err != nil {
		t.Fatal(err)
	}
	for range 21 {
		clock.Advance(30 * time.Second)
		r.Items()
		if err := h.Fleet.RunOnce(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	got, err := h.Environments.TestBuild(t.Context(), ana, test.ID)
	if err != nil || got.State != environment.Failed || got.Detail.Failure.Code != "timeout" || !strings.Contains(got.Detail.Failure.Message, "10m0s") {
		t.Fatalf("failed by its deadline: %+v, %v", got, err)
	}
}

func TestABadSpecSaysWhichFieldIsWrong(t *testing.T) {
	t.Parallel()
	h := apptest.New(t, storetest.New(t), apptest.Options{})
	bad := spec()
	bad.Image = "two words"
	bad.CPU = -1
	_, err := h.Environments.Save(t.Context(), h.Grant("ana"), 0, bad, nil)
	var f *fault.Error
	if !errors.As(err, &f) || f.Code != fault.Invalid || f.Fields["image"] == "" || f.Fields["cpu"] == "" {
		t.Fatalf("want an invalid fault about image and cpu, got %#v", err)
	}
}

func TestAnUnknownOrOfflineRunnerIsNamedInWords(t *testing.T) {
	t.Parallel()
	db := storetest.New(t)
	clock := storetest.NewClock(db)
	h := apptest.New(t, db, apptest.Options{})
	ana := h.Grant("ana")
	draft, err := h.Environments.Save(t.Context(), ana, 0, spec(), nil)
	if err != nil {
		t.Fatal(err)
	}
	_, err = h.Environments.Test(t.Context(), ana, draft.Revision, "")
	wantFault(t, err, fault.Invalid, "Choose the Runner")
	h.Runner("r1")
	_, err = h.Environments.Test(t.Context(), ana, draft.Revision, "r2")
	wantFault(t, err, fault.NotFound, "no such Runner")
	clock.Advance(5 * time.Minute)
	_, err = h.Environments.Test(t.Context(), ana, draft.Revision, "r1")
	wantFault(t, err, fault.Unavailable, "r1 is offline since 2026-01-02 12:00:00 UTC")
}
