package session_test

import (
	"strings"
	"testing"
	"time"

	"github.com/claude-hub/claude-hub/app/apptest"
	"github.com/claude-hub/claude-hub/app/fault"
	"github.com/claude-hub/claude-hub/app/fleet"
	"github.com/claude-hub/claude-hub/app/session"
	"github.com/claude-hub/claude-hub/runner/wire"
	"github.com/claude-hub/claude-hub/store"
	"github.com/claude-hub/claude-hub/store/storetest"
)

// asleep has the Runner do what it is asked to: stop.
func (r *rig) asleep() {
	r.Helper()
	item := r.runner.Item()
	if item.GetWant() != wire.WantStop {
		r.Fatalf("want stop, got %v", item)
	}
	r.runner.MustReport(item, wire.StateAsleep, wire.SessionDetail{Workspace: true, Version: 1})
}

func (r *rig) newVersion() {
	r.Helper()
	changed := spec()
	changed.Bootstrap = "echo two"
	r.Applied(r.ana, r.runner, changed)
}

func (r *rig) restart() error {
	return r.Sessions.Restart(r.Context(), r.ana, r.sn.ID)
}

func TestARestartSleepsAndWakesOnTheNewestVersion(t *testing.T) {
	t.Parallel()
	storetest.Each(t, func(t *testing.T, db *store.DB) {
		r := setup(t, db)
		r.newVersion()
		r.must(r.restart())
		r.must(r.restart())                                                    // again changes nothing
		r.must(r.Sessions.Wake(t.Context(), r.ana, r.sn.ID))                   // it wakes by itself
		if sn := r.want(session.Stopping); !sn.Restarting || sn.Version != 1 { // what it runs until it sleeps
			t.Fatalf("%+v", sn)
		}
		r.asleep()
		if sn := r.want(session.Waking); !sn.Restarting || sn.Version != 2 {
			t.Fatalf("%+v", sn)
		}
		var p wire.Session
		item := r.runner.Item()
		r.runner.Fetch(item, &p)
		if p.Version != 2 || !strings.Contains(string(p.Recipe.Spec), "echo two") {
			t.Fatalf("payload: %+v", p)
		}
		r.runner.MustReport(item, wire.StateRunning, wire.SessionDetail{Workspace: true, Version: 2})
		if sn := r.want(session.Running); sn.Restarting || sn.Version != 2 {
			t.Fatalf("%+v", sn)
		}
	})
}

func TestARestartCanBeGivenUpForSleep(t *testing.T) {
	t.Parallel()
	r := setup(t, storetest.New(t))
	r.must(r.restart())
	r.must(r.Sessions.Sleep(t.Context(), r.ana, r.sn.ID))
	r.asleep()
	if sn := r.want(session.Asleep); sn.Restarting {
		t.Fatalf("%+v", sn)
	}
	r.must(r.restart()) // of one that sleeps: a wake
	r.want(session.Waking)
	wantFault(t, r.restart(), fault.Refused, "is waking")
}

func TestARestartThatDoesNotSleepInTimeFailsAndIsNotGoneOnWithLater(t *testing.T) {
	t.Parallel()
	r := setup(t, storetest.New(t))
	r.must(r.restart())
	r.pass(6*time.Minute, true)
	if sn := r.want(session.Failed); sn.Restarting {
		t.Fatalf("%+v", sn)
	}
	wantFault(t, r.restart(), fault.Refused, "try it again instead")
	r.asleep()
	r.want(session.Failed)
	r.must(r.Sessions.Retry(t.Context(), r.ana, r.sn.ID))
	r.want(session.Starting)
}

func TestStoppingDevInTheMiddleOfARestartWakesAtTheNextStart(t *testing.T) {
	t.Parallel()
	r := setup(t, storetest.New(t))
	r.must(r.restart())
	if n, err := r.Sessions.SleepAll(t.Context(), r.runner.ID); err != nil || n != 1 {
		t.Fatalf("asked %d, %v", n, err)
	}
	r.asleep()
	r.want(session.Asleep)
	if n, err := r.Sessions.ResumeAll(t.Context(), r.runner.ID); err != nil || n != 1 {
		t.Fatalf("woke %d, %v", n, err)
	}
	if sn := r.want(session.Waking); sn.Restarting {
		t.Fatalf("%+v", sn)
	}
}

func TestARestartIsRefusedBeforeAnythingStopsWhileAValueIsMissing(t *testing.T) {
	t.Parallel()
	r := withVariables(t, storetest.New(t))
	r.loseKey()
	wantFault(t, r.restart(), fault.Refused, "This Session can't restart: the Variables NPM and WIDE")
	r.want(session.Running)
}

func TestARestartWhoseValuesAreLostBeforeItsWakeFailsWithTheReason(t *testing.T) {
	t.Parallel()
	r := withVariables(t, storetest.New(t))
	r.must(r.restart())
	r.loseKey()
	r.report(wire.StateAsleep)
	sn := r.want(session.Failed)
	if f := sn.Detail.Failure; f == nil || !strings.Contains(f.Message, "have no value") || sn.Restarting {
		t.Fatalf("%+v", sn)
	}
	wantFault(t, r.Sessions.Retry(t.Context(), r.ana, r.sn.ID), fault.Refused, "have no value")
}

// idles has the Hub ask the Session to sleep because nothing happened in it.
func (r *rig) idles() {
	r.Helper()
	item := r.runner.Item()
	_, err := r.Fleet.Sync(r.Context(), r.runner.ID, &wire.SyncRequest{Held: []*wire.Held{{
		Id: item.GetId(), Generation: item.GetGeneration(), Fence: item.GetFence(), State: wire.StateRunning, IdleMs: (16 * time.Minute).Milliseconds(),
	}}})
	r.must(err)
	r.must(r.Fleet.RunOnce(r.Context()))
	r.want(session.Stopping)
}

func (r *rig) wantUnconditionalStop() {
	r.Helper()
	var p wire.Session
	item := r.runner.Item()
	r.runner.Fetch(item, &p)
	if item.GetWant() != wire.WantStop || p.IdleMS != 0 {
		r.Fatalf("a stop that activity does not end is wanted: %v, idle %d ms", item, p.IdleMS)
	}
}

func TestAPersonsRestartOrSleepIsNotGivenUpForActivityLikeTheIdleSleepItMeets(t *testing.T) {
	t.Parallel()
	storetest.Each(t, func(t *testing.T, db *store.DB) {
		r := setup(t, db)
		r.newVersion()
		r.idles()
		r.must(r.restart())
		r.wantUnconditionalStop()
		r.asleep()
		r.want(session.Waking)
		r.runner.MustReport(r.runner.Item(), wire.StateRunning, wire.SessionDetail{Workspace: true, Version: 2})
		r.want(session.Running)
		r.idles()
		r.must(r.Sessions.Sleep(t.Context(), r.ana, r.sn.ID))
		r.wantUnconditionalStop()
		before := r.runner.Item().GetGeneration()
		r.must(r.Sessions.Sleep(t.Context(), r.ana, r.sn.ID))
		if after := r.runner.Item().GetGeneration(); after != before {
			t.Fatalf("asked for sleep again: generation %d, was %d", after, before)
		}
	})
}

func TestARestartIsRefusedBeforeAnythingStopsWhereTheRunnerIsTooOldForTokens(t *testing.T) {
	t.Parallel()
	db := storetest.New(t)
	h := apptest.New(t, db, apptest.Options{Fleet: fleet.Options{Tokens: &tokens{}}})
	ana, old := h.Grant("ana"), h.OldRunner("old", 2)
	h.Applied(ana, old, spec())
	sn, err := h.Sessions.Start(t.Context(), ana, session.StartInput{})
	if err != nil {
		t.Fatal(err)
	}
	old.MustReport(old.Item(), wire.StateRunning, wire.SessionDetail{Workspace: true, Version: 1})
	ofTheApp(t, db)
	ana = h.Grant("ana")
	wantFault(t, h.Sessions.Restart(t.Context(), ana, sn.ID), fault.Refused, "too old to clone with tokens")
	if sn, err = h.Sessions.Get(t.Context(), ana, sn.ID); err != nil || sn.State != session.Running {
		t.Fatalf("%+v, %v", sn, err)
	}
}
