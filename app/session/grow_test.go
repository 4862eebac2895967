package session_test

import (
	"testing"

	"github.com/claude-hub/claude-hub/app/fault"
	"github.com/claude-hub/claude-hub/app/session"
	"github.com/claude-hub/claude-hub/runner/wire"
	"github.com/claude-hub/claude-hub/store"
	"github.com/claude-hub/claude-hub/store/storetest"
)

func TestADiskGrowsWhileItsSessionSleeps(t *testing.T) {
	t.Parallel()
	storetest.Each(t, func(t *testing.T, db *store.DB) {
		r := setup(t, db)
		grow := func(size int64) error { return r.Sessions.Grow(t.Context(), r.ana, r.sn.ID, size) }
		wantFault(t, grow(40<<30), fault.Refused, "This Session is running. Its disk can grow while it is asleep.")
		r.must(r.Sessions.Sleep(t.Context(), r.ana, r.sn.ID))
		r.asleep()
		wantFault(t, grow(20<<30), fault.Invalid, "The disk has room for 20 GiB already. A disk only grows")
		wantFault(t, grow(201<<30), fault.Invalid, "A Session's disk has at most 200 GiB on this Hub.")
		r.must(grow(40 << 30))
		if sn := r.want(session.Asleep); sn.DiskSize != 40<<30 || r.audited("session.grow") != 1 {
			t.Errorf("%+v, %d audited", sn, r.audited("session.grow"))
		}
		r.asleep()
		r.must(r.Sessions.Wake(t.Context(), r.ana, r.sn.ID))
		var p wire.Session
		if r.runner.Fetch(r.runner.Item(), &p); p.DiskSize != 40<<30 {
			t.Errorf("the Runner is told %d bytes", p.DiskSize)
		}
		r.runner.MustReport(r.runner.Item(), wire.StateFailed, wire.SessionDetail{Workspace: true, Failure: &wire.Failure{Message: "no space"}})
		r.must(grow(50 << 30))
		r.asleep()
		if sn := r.want(session.Failed); sn.Detail.Failure == nil || sn.Detail.Failure.Message != "no space" {
			t.Errorf("%+v", sn)
		}
		r.must(r.Sessions.Retry(t.Context(), r.ana, r.sn.ID))
	})
}
