package session_test

import (
	"strings"
	"testing"
	"time"

	"github.com/claude-hub/claude-hub/app/access"
	"github.com/claude-hub/claude-hub/app/apptest"
	"github.com/claude-hub/claude-hub/app/fault"
	"github.com/claude-hub/claude-hub/app/session"
	"github.com/claude-hub/claude-hub/envspec"
	"github.com/claude-hub/claude-hub/runner/wire"
	"github.com/claude-hub/claude-hub/store"
	"github.com/claude-hub/claude-hub/store/storetest"
)

func wantFault(t *testing.T, err error, code fault.Code, says string) {
	t.Helper()
	if !fault.Is(err, code) || !strings.Contains(err.Error(), says) {
		t.Fatalf("want a fault %s that says %q, got %v", code, says, err)
	}
}

// rig is a Hub with a Runner, an applied Environment and a running Session.
type rig struct {
	*apptest.Hub
	*testing.T
	clock  *storetest.Clock
	ana    access.Grant
	runner *apptest.Runner
	sn     session.Session
}

func spec() envspec.Spec {
	s := envspec.Default()
	s.Bootstrap = "echo one"
	return s
}

func setup(t *testing.T, db *store.DB) *rig {
	t.Helper()
	r := &rig{T: t, clock: storetest.NewClock(db), Hub: apptest.New(t, db, apptest.Options{})}
	r.ana, r.runner = r.Grant("ana"), r.Runner("r1")
	r.Applied(r.ana, r.runner, spec())
	sn, err := r.Sessions.Start(t.Context(), r.ana, session.StartInput{})
	if err != nil {
		t.Fatal(err)
	}
	r.sn = sn
	r.runner.MustReport(r.runner.Item(), wire.StateRunning, wire.SessionDetail{Workspace: true, Version: 1})
	r.want(session.Running)
	return r
}

func (r *rig) get() session.Session {
	r.Helper()
	sn, err := r.Sessions.Get(r.Context(), r.ana, r.sn.ID)
	if err != nil {
		r.Fatal(err)
	}
	return sn
}

func (r *rig) want(state string) session.Session {
	r.Helper()
	sn := r.get()
	if sn.State != state {
		r.Fatalf("the Session is %s, want %s", sn.State, state)
	}
	return sn
}

func (r *rig) must(err error) {
	r.Helper()
	if err != nil {
		r.Fatal(err)
	}
}

// pass lets time go by with the Hub looking, and the Runner in contact if it is said to be.
func (r *rig) pass(d time.Duration, contact bool) {
	r.Helper()
	for ; d > 0; d -= 5 * time.Second {
		r.clock.Advance(5 * time.Second)
		if contact {
			r.runner.Items()
		}
		r.must(r.Fleet.RunOnce(r.Context()))
	}
}

func TestASessionNeedsAnAppliedEnvironment(t *testing.T) {
	t.Parallel()
	h := apptest.New(t, storetest.New(t), apptest.Options{})
	h.Runner("r1")
	_, err := h.Sessions.Start(t.Context(), h.Grant("ana"), session.StartInput{})
	wantFault(t, err, fault.Refused, "acme/rocket has no applied Environment yet")
}

func TestTheRunnerIsToldWhatToRun(t *testing.T) {
	t.Parallel()
	r := setup(t, storetest.New(t))
	var p wire.Session
	r.runner.Fetch(r.runner.Item(), &p)
	if p.ID != r.sn.ID || p.Version != 1 || p.BuildKey != apptest.BuildKey || p.Recipe.ImageDigest != apptest.Digest ||
		!strings.HasPrefix(p.WorkBranch, "claude-hub/") || p.DiskSize != 20<<30 || p.IdleMS != 0 {
		t.Fatalf("payload: %+v", p)
	}
}

func TestSleepAndWakeMoveToTheNewestVersion(t *testing.T) {
	t.Parallel()
	storetest.Each(t, func(t *testing.T, db *store.DB) {
		r := setup(t, db)
		r.must(r.Sessions.Sleep(t.Context(), r.ana, r.sn.ID))
		r.want(session.Stopping)
		item := r.runner.Item()
		if item.GetWant() != wire.WantStop {
			t.Fatalf("want stop, got %v", item)
		}
		r.runner.MustReport(item, wire.StateAsleep, wire.SessionDetail{Workspace: true, Version: 1})
		r.want(session.Asleep)

		changed := spec()
		changed.Bootstrap = "echo two"
		r.Applied(r.ana, r.runner, changed)
		r.must(r.Sessions.Wake(t.Context(), r.ana, r.sn.ID))
		if sn := r.want(session.Waking); sn.Version != 2 {
			t.Fatalf("a wake moves to version 2, got %d", sn.Version)
		}
		var p wire.Session
		item = r.runner.Item()
		r.runner.Fetch(item, &p)
		if p.Version != 2 || !strings.Contains(string(p.Recipe.Spec), "echo two") {
			t.Fatalf("payload: %+v", p)
		}
		r.runner.MustReport(item, wire.StateRunning, wire.SessionDetail{Workspace: true, Version: 2})
		r.want(session.Running)
	})
}

func TestAReportAboutAnOlderWishDoesNotChangeTheState(t *testing.T) {
	t.Parallel()
	r := setup(t, storetest.New(t))
	old := r.runner.Item()
	r.must(r.Sessions.Sleep(t.Context(), r.ana, r.sn.ID))
	r.runner.MustReport(old, wire.StateRunning, wire.SessionDetail{Workspace: true, Version: 1, Notes: []string{"late"}})
	if sn := r.want(session.Stopping); len(sn.Detail.Notes) != 1 {
		t.Fatalf("what it tells is kept: %+v", sn.Detail)
	}
}

func TestAnIdleSessionIsAskedToSleepAndMayRefuse(t *testing.T) {
	t.Parallel()
	storetest.Each(t, func(t *testing.T, db *store.DB) {
		r := setup(t, db)
		item := r.runner.Item()
		_, err := r.Fleet.Sync(t.Context(), r.runner.ID, &wire.SyncRequest{Held: []*wire.Held{{
			Id: item.GetId(), Generation: item.GetGeneration(), Fence: item.GetFence(), State: wire.StateRunning, IdleMs: (16 * time.Minute).Milliseconds(),
		}}})
		r.must(err)
		r.must(r.Fleet.RunOnce(t.Context()))
		r.want(session.Stopping)
		item = r.runner.Item()
		var p wire.Session
		r.runner.Fetch(item, &p)
		if item.GetWant() != wire.WantStop || p.IdleMS != (15*time.Minute).Milliseconds() {
			t.Fatalf("asked to sleep if idle for 15 minutes: %v %+v", item, p)
		}
		r.runner.MustReport(item, wire.StateBusy, wire.SessionDetail{Workspace: true, Version: 1})
		r.want(session.Running)
		if item := r.runner.Item(); item.GetWant() != wire.WantRun {
			t.Fatalf("a busy Session is wanted awake: %v", item)
		}
	})
}

func TestASilentRunnerOnlyMarksASessionUnreachable(t *testing.T) {
	t.Parallel()
	storetest.Each(t, func(t *testing.T, db *store.DB) {
		r := setup(t, db)
		r.pass(90*time.Second, false)
		if sn := r.want(session.Running); !sn.Unreachable {
			t.Fatal("want it unreachable")
		}
		_, err := r.Sessions.Open(t.Context(), r.ana, r.sn.ID, wire.ChannelSpec{Argv: []string{"true"}})
		wantFault(t, err, fault.Unavailable, "does not answer")
		item := r.runner.Item()
		r.pass(5*time.Second, true)
		if sn := r.want(session.Running); sn.Unreachable {
			t.Fatal("found again")
		}
		r.runner.MustReport(item, wire.StateRunning, wire.SessionDetail{Workspace: true, Version: 1}) // under the same fence
	})
}

func TestAStartThatTakesTooLongFailsAndCanBeTriedAgain(t *testing.T) {
	t.Parallel()
	r := setup(t, storetest.New(t))
	r.must(r.Sessions.Sleep(t.Context(), r.ana, r.sn.ID))
	r.runner.MustReport(r.runner.Item(), wire.StateAsleep, wire.SessionDetail{Workspace: true, Version: 1})
	r.must(r.Sessions.Wake(t.Context(), r.ana, r.sn.ID))
	waking := r.runner.Item()
	r.pass(time.Hour+time.Minute, true)
	sn := r.want(session.Failed)
	if !strings.Contains(sn.Detail.Failure.Message, "was waking") {
		t.Fatalf("failure: %+v", sn.Detail.Failure)
	}
	stopping := r.runner.Item()
	for _, late := range []struct {
		item  *wire.Item
		state string
	}{{waking, wire.StateStarting}, {stopping, wire.StateStopping}, {stopping, wire.StateAsleep}} {
		r.runner.MustReport(late.item, late.state, wire.SessionDetail{Workspace: true, Version: 1})
		if sn := r.want(session.Failed); sn.Detail.Failure == nil || !strings.Contains(sn.Detail.Failure.Message, "was waking") {
			t.Fatalf("after %s its reason stays, got %+v", late.state, sn.Detail.Failure)
		}
	}
	err := r.Sessions.Wake(t.Context(), r.ana, r.sn.ID)
	wantFault(t, err, fault.Refused, "failed")
	r.must(r.Sessions.Retry(t.Context(), r.ana, r.sn.ID))
	r.runner.MustReport(r.runner.Item(), wire.StateRunning, wire.SessionDetail{Workspace: true, Version: 1})
	r.want(session.Running)
}

func TestDeleteAsksFirstAndNamesWhatWouldBeLost(t *testing.T) {
	t.Parallel()
	storetest.Each(t, func(t *testing.T, db *store.DB) {
		r := setup(t, db)
		err := r.Sessions.Delete(t.Context(), r.ana, r.sn.ID, "")
		wantFault(t, err, fault.Invalid, "never pushed is unknown")
		r.runner.MustReport(r.runner.Item(), wire.StateRunning, wire.SessionDetail{Workspace: true, Version: 1,
			Unsaved: &wire.Unsaved{Files: 2, Commits: 1, At: r.clock.Now().UnixMilli()}})
		err = r.Sessions.Delete(t.Context(), r.ana, r.sn.ID, "yes")
		wantFault(t, err, fault.Invalid, "2 uncommitted files and 1 unpushed commit at 2026-01-02 12:00 UTC")
		r.must(r.Sessions.Delete(t.Context(), r.ana, r.sn.ID, r.sn.ID))
		item := r.runner.Item()
		if item.GetWant() != wire.WantRemove {
			t.Fatalf("want remove, got %v", item)
		}
		r.runner.MustReport(item, wire.StateRunning, wire.SessionDetail{Workspace: true})
		r.want(session.Deleting)
		r.runner.MustReport(item, wire.StateRemoved, nil)
		_, err = r.Sessions.Get(t.Context(), r.ana, r.sn.ID)
		wantFault(t, err, fault.NotFound, "no such Session")
		if items := r.runner.Items(); len(items) != 0 {
			t.Fatalf("nothing is held any more: %v", items)
		}
	})
}

func TestASessionOfARevokedRunnerCanBeDeleted(t *testing.T) {
	t.Parallel()
	for name, before := range map[string]bool{"asked before the revocation": true, "asked after it": false} {
		storetest.Each(t, func(t *testing.T, db *store.DB) {
			r := setup(t, db)
			if before {
				r.must(r.Sessions.Delete(t.Context(), r.ana, r.sn.ID, r.sn.ID))
				r.want(session.Deleting)
			}
			r.must(r.Fleet.Revoke(t.Context(), r.sn.Runner, "ana"))
			if before {
				r.pass(2*time.Minute, false)
			} else {
				r.must(r.Sessions.Delete(t.Context(), r.ana, r.sn.ID, r.sn.ID))
			}
			_, err := r.Sessions.Get(t.Context(), r.ana, r.sn.ID)
			if err == nil {
				t.Errorf("%s: it is still there", name)
			}
			wantFault(t, err, fault.NotFound, "no such Session")
		})
	}
}

func TestStoppingDevSleepsAndStartingItWakes(t *testing.T) {
	t.Parallel()
	r := setup(t, storetest.New(t))
	second, err := r.Sessions.Start(t.Context(), r.ana, session.StartInput{})
	r.must(err)
	for _, item := range r.runner.Items() {
		r.runner.MustReport(item, wire.StateRunning, wire.SessionDetail{Workspace: true, Version: 1})
	}
	r.must(r.Sessions.Sleep(t.Context(), r.ana, second.ID)) // by hand: stays asleep over the restart
	asleep := func() {
		for _, item := range r.runner.Items() {
			if item.GetWant() == wire.WantStop {
				r.runner.MustReport(item, wire.StateAsleep, wire.SessionDetail{Workspace: true, Version: 1})
			}
		}
	}
	asleep()
	if n, err := r.Sessions.SleepAll(t.Context(), r.runner.ID); err != nil || n != 1 {
		t.Fatalf("asked %d, %v", n, err)
	}
	asleep()
	if n, err := r.Sessions.Awake(t.Context(), r.runner.ID); err != nil || n != 0 {
		t.Fatalf("%d awake, %v", n, err)
	}
	if n, err := r.Sessions.ResumeAll(t.Context(), r.runner.ID); err != nil || n != 1 {
		t.Fatalf("woke %d, %v", n, err)
	}
	r.want(session.Waking)
	if sn, err := r.Sessions.Get(t.Context(), r.ana, second.ID); err != nil || sn.State != session.Asleep {
		t.Fatalf("%+v, %v", sn, err)
	}
	if n, err := r.Sessions.ResumeAll(t.Context(), r.runner.ID); err != nil || n != 0 {
		t.Fatalf("woke %d again, %v", n, err)
	}
}

func TestASessionStartsOnlyWhereItsTestedImageRuns(t *testing.T) {
	t.Parallel()
	r := setup(t, storetest.New(t))
	r.RunnerOn("arm", "linux/arm64")
	for range 3 { // r1 holds more with each, and is chosen all the same
		sn, err := r.Sessions.Start(t.Context(), r.ana, session.StartInput{})
		r.must(err)
		if sn.Runner != r.runner.ID {
			t.Fatal("a version tested on linux/amd64 went to a Runner of linux/arm64")
		}
	}
	_, err := r.Sessions.Start(t.Context(), r.ana, session.StartInput{Runner: "arm"})
	wantFault(t, err, fault.Unavailable, "arm is linux/arm64, not linux/amd64")
}

func TestBranchNamesThatGitWouldRefuseAreRefused(t *testing.T) {
	t.Parallel()
	r := setup(t, storetest.New(t))
	for _, name := range []string{"--upload-pack=x", "a..b", "a b", "x.lock", "/a", "a/", "a//b", "a/.b", "a\x00"} {
		_, err := r.Sessions.Start(t.Context(), r.ana, session.StartInput{WorkBranch: name})
		wantFault(t, err, fault.Invalid, "not a branch name")
	}
}
