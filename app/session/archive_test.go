package session_test

import (
	"strings"
	"testing"
	"time"

	"github.com/claude-hub/claude-hub/app/apptest"
	"github.com/claude-hub/claude-hub/app/fault"
	"github.com/claude-hub/claude-hub/app/session"
	"github.com/claude-hub/claude-hub/runner/wire"
	"github.com/claude-hub/claude-hub/store"
	"github.com/claude-hub/claude-hub/store/storetest"
)

func (r *rig) archive() error { return r.Sessions.Archive(r.Context(), r.ana, r.sn.ID) }

func (r *rig) restore(wake bool) error {
	return r.Sessions.Restore(r.Context(), r.ana, r.sn.ID, wake)
}

// archived has the Runner archive the Session, as it is asked to.
func (r *rig) archived(gives string) {
	r.Helper()
	r.must(r.archive())
	r.want(session.Archiving)
	item := r.runner.Item()
	var p wire.Session
	r.runner.Fetch(item, &p)
	if item.GetWant() != wire.WantStop || p.Archive != gives || p.IdleMS != 0 {
		r.Fatalf("want a stop that gives up %q, got %v with %+v", gives, item, p)
	}
	r.runner.MustReport(item, wire.StateStopping, wire.SessionDetail{Workspace: true, Version: 1})
	r.want(session.Archiving)
	r.runner.MustReport(item, wire.StateArchived, wire.SessionDetail{Workspace: true})
	r.want(session.Archived)
}

// gives is what the Runner is told now that an archived Session gives up.
func (r *rig) gives() string {
	r.Helper()
	var p wire.Session
	r.runner.Fetch(r.runner.Item(), &p)
	return p.Archive
}

func TestAnArchivedSessionIsTakenByRestoreAndDeleteOnly(t *testing.T) {
	t.Parallel()
	storetest.Each(t, func(t *testing.T, db *store.DB) {
		r := setup(t, db)
		r.archived(wire.ArchiveDisks)
		before := r.runner.Item().GetGeneration()
		r.must(r.archive()) // again changes nothing
		r.pass(2*time.Minute, true)
		if sn := r.want(session.Archived); !sn.Freed || r.runner.Item().GetGeneration() != before {
			t.Fatalf("%+v", sn)
		}
		wantFault(t, r.Sessions.Wake(t.Context(), r.ana, r.sn.ID), fault.Refused, "This Session is archived. Restore it first.")
		wantFault(t, r.Sessions.Sleep(t.Context(), r.ana, r.sn.ID), fault.Refused, "This Session is archived and can't be put to sleep.")
		wantFault(t, r.restart(), fault.Refused, "This Session is archived and can't be restarted.")
		wantFault(t, r.Sessions.Retry(t.Context(), r.ana, r.sn.ID), fault.Refused, "this one is archived")
		_, err := r.Sessions.Open(t.Context(), r.ana, r.sn.ID, wire.ChannelSpec{Argv: []string{"true"}})
		wantFault(t, err, fault.Refused, "This Session is archived. Restore it first.")

		r.must(r.Sessions.Delete(t.Context(), r.ana, r.sn.ID, r.sn.ID))
		r.want(session.Deleting)
		r.runner.MustReport(r.runner.Item(), wire.StateRemoved, wire.SessionDetail{})
		_, err = r.Sessions.Get(t.Context(), r.ana, r.sn.ID)
		wantFault(t, err, fault.NotFound, "no such Session")
	})
}

func TestRestoreBringsASessionBackAsleepOrAwake(t *testing.T) {
	t.Parallel()
	storetest.Each(t, func(t *testing.T, db *store.DB) {
		r := setup(t, db)
		wantFault(t, r.restore(false), fault.Refused, "Only an archived Session can be restored; this one is running.")
		r.archived(wire.ArchiveDisks)
		r.newVersion()
		r.must(r.restore(false))
		if sn := r.want(session.Asleep); sn.Freed || r.gives() != "" || r.runner.Item().GetWant() != wire.WantStop {
			t.Fatalf("%+v, the Runner is told %v", sn, r.runner.Item())
		}
		r.pass(10*time.Minute, true) // nothing that could be late
		r.want(session.Asleep)

		r.archived(wire.ArchiveDisks)
		r.must(r.restore(true))
		if sn := r.want(session.Waking); sn.Version != 2 || r.gives() != "" {
			t.Fatalf("%+v", sn)
		}
		r.runner.MustReport(r.runner.Item(), wire.StateRunning, wire.SessionDetail{Workspace: true, Version: 2})
		r.want(session.Running)
		if n := r.audited("session.archive") + r.audited("session.restore"); n != 4 {
			t.Errorf("%d entries about archiving and restoring, want 4", n)
		}
	})
}

func (r *rig) audited(action string) (n int) {
	r.Helper()
	r.must(r.DB.Read(r.Context(), func(tx *store.Tx) error {
		return tx.Row(`SELECT COUNT(*) FROM audit_log WHERE action = $1 AND subject = $2`, action, r.sn.ID).Scan(&n)
	}))
	return n
}

func TestASessionThatIsOnlyAboutToBeArchivedIsRestoredToSleep(t *testing.T) {
	t.Parallel()
	r := setup(t, storetest.New(t))
	r.must(r.archive())
	late := r.runner.Item()
	r.must(r.restore(false))
	r.want(session.Stopping)
	r.runner.MustReport(late, wire.StateArchived, wire.SessionDetail{Workspace: true}) // it was quicker
	r.want(session.Stopping)
	r.asleep()
	r.want(session.Asleep)
}

func TestAnArchiveWaitsForARunnerThatIsAway(t *testing.T) {
	t.Parallel()
	r := setup(t, storetest.New(t))
	r.must(r.archive())
	r.pass(10*time.Minute, false)
	if sn := r.want(session.Archiving); !sn.Unreachable || sn.Detail.Failure != nil {
		t.Fatalf("%+v", sn)
	}
	r.runner.MustReport(r.runner.Item(), wire.StateArchived, wire.SessionDetail{Workspace: true})
	r.want(session.Archived)
}

func TestAnArchiveThatFailsLeavesAFailedSession(t *testing.T) {
	t.Parallel()
	r := setup(t, storetest.New(t))
	r.must(r.archive())
	r.runner.MustReport(r.runner.Item(), wire.StateFailed, wire.SessionDetail{Failure: &wire.Failure{Code: "workspace-lost", Message: "gone"}})
	if sn := r.want(session.Failed); sn.Freed || sn.Detail.Failure == nil || sn.Detail.Failure.Message != "gone" {
		t.Fatalf("%+v", sn)
	}
	wantFault(t, r.archive(), fault.Refused, "no Workspace that could be kept")
}

func TestWhatCantBeArchivedIsRefused(t *testing.T) {
	t.Parallel()
	r := setup(t, storetest.New(t))
	r.must(r.restart())
	wantFault(t, r.archive(), fault.Refused, "about to restart")
	r.asleep()
	wantFault(t, r.archive(), fault.Refused, "This Session is waking. Wait until it runs")
	r.must(r.Sessions.Delete(t.Context(), r.ana, r.sn.ID, r.sn.ID))
	wantFault(t, r.archive(), fault.Refused, "is deleting and can't be archived")
}

func TestARunnerThatKnowsNoArchiveIsToldBeforeAnythingStops(t *testing.T) {
	t.Parallel()
	h := apptest.New(t, storetest.New(t), apptest.Options{})
	ana, old := h.Grant("ana"), h.OldRunner("old", 3)
	h.Applied(ana, old, spec())
	sn, err := h.Sessions.Start(t.Context(), ana, session.StartInput{})
	if err != nil {
		t.Fatal(err)
	}
	old.MustReport(old.Item(), wire.StateRunning, wire.SessionDetail{Workspace: true, Version: 1})
	wantFault(t, h.Sessions.Archive(t.Context(), ana, sn.ID), fault.Refused, "too old to archive Sessions")
	if sn, err = h.Sessions.Get(t.Context(), ana, sn.ID); err != nil || sn.State != session.Running {
		t.Fatalf("%+v, %v", sn, err)
	}
}

func TestADiskIsKeptWhereTheHubIsSetSo(t *testing.T) {
	t.Parallel()
	r := &rig{T: t, Hub: apptest.New(t, storetest.New(t), apptest.Options{Session: session.Options{ArchiveKeepsDisks: true}})}
	r.ana, r.runner = r.Grant("ana"), r.Runner("r1")
	r.Applied(r.ana, r.runner, spec())
	var err error
	r.sn, err = r.Sessions.Start(t.Context(), r.ana, session.StartInput{})
	r.must(err)
	r.runner.MustReport(r.runner.Item(), wire.StateRunning, wire.SessionDetail{Workspace: true, Version: 1})
	r.archived(wire.ArchiveSandbox)
	if sn := r.get(); sn.Freed || !strings.Contains(r.Sessions.ArchiveLoses(), "The Workspace and the disks stay.") {
		t.Errorf("%+v", sn)
	}
}

func TestStoppingDevLeavesAnArchivedSessionAlone(t *testing.T) {
	t.Parallel()
	r := setup(t, storetest.New(t))
	if n, err := r.Sessions.SleepAll(t.Context(), r.runner.ID); err != nil || n != 1 {
		t.Fatalf("asked %d, %v", n, err)
	}
	r.archived(wire.ArchiveDisks)
	if n, err := r.Sessions.ResumeAll(t.Context(), r.runner.ID); err != nil || n != 0 {
		t.Fatalf("woke %d, %v", n, err)
	}
	r.want(session.Archived)
}
