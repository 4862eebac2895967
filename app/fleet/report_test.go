package fleet

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/claude-hub/claude-hub/app/fault"
	"github.com/claude-hub/claude-hub/runner/wire"
	"github.com/claude-hub/claude-hub/store"
	"github.com/claude-hub/claude-hub/store/storetest"
)

func TestReportIsTakenOnceAndOlderOnesChangeNothing(t *testing.T) {
	t.Parallel()
	storetest.Each(t, func(t *testing.T, db *store.DB) {
		r := newRig(t, db, Options{})
		runner := r.runner("r1")
		a := r.assign(runner, "s1", time.Hour)
		for _, seq := range []int64{1, 1, 3, 2, 3} {
			state := map[int64]string{1: "one", 2: "two", 3: "three"}[seq]
			if err := r.report(runner, a, seq, state); err != nil {
				t.Fatalf("seq %d: %v", seq, err)
			}
		}
		r.expect("observe one", "observe three")
		if got := r.get(a.ID); got.State != "three" || string(got.Detail) != `{"n":1}` || got.ReportedOf != 1 {
			t.Fatalf("stored %+v", got)
		}
	})
}

func TestReportUnderAnotherFenceChangesNothing(t *testing.T) {
	t.Parallel()
	storetest.Each(t, func(t *testing.T, db *store.DB) {
		r := newRig(t, db, Options{})
		runner, other := r.runner("r1"), r.runner("r2")
		a := r.assign(runner, "s1", 0)
		if err := r.report(runner, a, 5, "early"); err != nil {
			t.Fatal(err)
		}
		r.write(func(tx *store.Tx) error { return r.Refence(tx, a.ID) })
		if err := r.report(runner, a, 6, "late"); !errors.Is(err, ErrFenced) {
			t.Fatalf("older fence: %v", err)
		}
		if _, err := r.AppendLog(t.Context(), runner, &wire.AppendLogRequest{Id: a.ID, Fence: 1, Data: []byte("x")}); !errors.Is(err, ErrFenced) {
			t.Fatalf("log under the older fence: %v", err)
		}
		if _, err := r.Fetch(t.Context(), runner, &wire.FetchRequest{Id: a.ID, Generation: 1, Fence: 1}); !errors.Is(err, ErrFenced) {
			t.Fatalf("fetch under the older fence: %v", err)
		}
		newer := a
		newer.Fence = 3
		if err := r.report(runner, newer, 1, "future"); !errors.Is(err, ErrFenced) {
			t.Fatalf("fence of the future: %v", err)
		}
		newer.Fence = 2
		if err := r.report(other, newer, 1, "foreign"); !errors.Is(err, ErrUnknown) {
			t.Fatalf("another Runner's assignment: %v", err)
		}
		if err := r.report(runner, newer, 1, "new"); err != nil {
			t.Fatalf("seq begins again with the fence: %v", err)
		}
		r.expect("observe early", "observe new")
	})
}

func TestReportThatItsOwnerCannotTakeIsRolledBackUnlessPermanent(t *testing.T) {
	t.Parallel()
	storetest.Each(t, func(t *testing.T, db *store.DB) {
		r := newRig(t, db, Options{})
		runner := r.runner("r1")
		a := r.assign(runner, "s1", 0)
		r.owner.setObserve(errOwner)
		if err := r.report(runner, a, 1, "one"); !errors.Is(err, errOwner) {
			t.Fatalf("got %v", err)
		}
		if got := r.get(a.ID); got.State != "" {
			t.Fatalf("stored %q although the Owner failed", got.State)
		}
		r.owner.setObserve(Permanent(errOwner))
		if err := r.report(runner, a, 1, "one"); err != nil {
			t.Fatalf("a permanent error must not come back to the Runner: %v", err)
		}
		if got := r.get(a.ID); got.State != "one" {
			t.Fatalf("stored %q", got.State)
		}
		r.owner.setObserve(nil)
		if err := r.report(runner, a, 1, "one"); err != nil {
			t.Fatal(err)
		}
		r.expect() // what the Owner wrote before it failed is gone, and the report is not offered again
	})
}

func TestMalformedReportsAreRefusedForGood(t *testing.T) {
	t.Parallel()
	r := newRig(t, storetest.New(t), Options{})
	runner := r.runner("r1")
	a := r.assign(runner, "s1", 0)
	for name, q := range map[string]*wire.ReportRequest{
		"no state":   {Id: a.ID, Fence: 1, Seq: 1},
		"nul state":  {Id: a.ID, Fence: 1, Seq: 1, State: "a\x00b"},
		"no seq":     {Id: a.ID, Fence: 1, State: "x"},
		"not json":   {Id: a.ID, Fence: 1, Seq: 1, State: "x", Detail: []byte("{")},
		"too large":  {Id: a.ID, Fence: 1, Seq: 1, State: "x", Detail: []byte(`"` + strings.Repeat("x", maxDetail) + `"`)},
		"long state": {Id: a.ID, Fence: 1, Seq: 1, State: strings.Repeat("x", 65)},
	} {
		if err := r.Report(t.Context(), runner, q); !errors.Is(err, ErrInvalid) {
			t.Errorf("%s: %v", name, err)
		}
	}
	if err := r.Report(t.Context(), runner, &wire.ReportRequest{Id: a.ID, Fence: 1, Seq: 1, State: "x", Detail: []byte("\"\xff\"")}); err != nil {
		t.Errorf("bytes that are not UTF-8 must not make a report unsendable: %v", err)
	}
}

func TestRemovedEndsAnAssignmentAndFreesItsSubject(t *testing.T) {
	t.Parallel()
	storetest.Each(t, func(t *testing.T, db *store.DB) {
		r := newRig(t, db, Options{})
		runner := r.runner("r1")
		a := r.assign(runner, "s1", 0)
		if err := r.report(runner, a, 1, wire.StateRemoved); err != nil {
			t.Fatal(err)
		}
		if len(r.sync(runner).GetItems()) != 1 {
			t.Fatal("a Runner that lost what should run must be told again")
		}
		err := db.Write(t.Context(), func(tx *store.Tx) error {
			_, err := r.Assign(tx, Assignment{Runner: runner, Kind: kind, Subject: "s1"})
			return err
		})
		if !fault.Is(err, fault.Conflict) {
			t.Fatalf("two assignments of one subject: %v", err)
		}
		r.write(func(tx *store.Tx) (err error) {
			a, err = r.Change(tx, a.ID, Remove, time.Time{})
			return err
		})
		if items := r.sync(runner).GetItems(); len(items) != 1 || items[0].GetWant() != wire.WantRemove || items[0].GetGeneration() != 2 {
			t.Fatalf("items %v", items)
		}
		if err := db.Write(t.Context(), func(tx *store.Tx) error { _, err := r.Change(tx, a.ID, Run, time.Time{}); return err }); !fault.Is(err, fault.Refused) {
			t.Fatalf("remove is final: %v", err)
		}
		for range 2 {
			if err := r.report(runner, a, 2, wire.StateRemoved); err != nil {
				t.Fatal(err)
			}
		}
		if items := r.sync(runner).GetItems(); len(items) != 0 {
			t.Fatalf("items %v", items)
		}
		if r.get(a.ID).Removed.IsZero() {
			t.Fatal("not removed")
		}
		if b := r.assign(runner, "s1", 0); b.ID == a.ID || b.Fence != 1 {
			t.Fatalf("assigned anew: %+v", b)
		}
	})
}
