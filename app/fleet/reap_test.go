package fleet

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/claude-hub/claude-hub/runner/wire"
	"github.com/claude-hub/claude-hub/store"
	"github.com/claude-hub/claude-hub/store/storetest"
)

func TestDeadlineIsToldOnceAndAgainOnlyForANewOne(t *testing.T) {
	t.Parallel()
	storetest.Each(t, func(t *testing.T, db *store.DB) {
		r := newRig(t, db, Options{})
		a := r.assign(r.runner("r1"), "s1", time.Minute)
		stay := func(d time.Duration) { // the Runner stays in contact
			r.clock.add(d)
			r.sync(a.Runner)
			r.reap()
		}
		stay(59 * time.Second)
		r.expect()
		stay(2 * time.Second)
		stay(2 * time.Second)
		r.expect("lost: deadline passed")
		r.write(func(tx *store.Tx) error { return r.Deadline(tx, a.ID, tx.Now().Add(10*time.Second)) })
		stay(9 * time.Second)
		r.expect("lost: deadline passed")
		stay(time.Second)
		stay(time.Second)
		r.expect("lost: deadline passed", "lost: deadline passed")
	})
}

func TestSilenceIsToldOnceAndTheReturnToo(t *testing.T) {
	t.Parallel()
	storetest.Each(t, func(t *testing.T, db *store.DB) {
		r := newRig(t, db, Options{})
		runner, other := r.runner("r1"), r.runner("r2")
		a, b := r.assign(runner, "s1", 0), r.assign(other, "s2", 0)
		pass := func(d time.Duration) {
			for step := 5 * time.Second; d > 0; d -= step {
				r.clock.add(step)
				r.sync(other)
				r.reap()
			}
		}
		r.sync(runner)
		pass(60 * time.Second)
		r.expect()
		pass(15 * time.Second)
		r.expect("lost: runner silent")
		if r.get(a.ID).LostSince.IsZero() || !r.get(b.ID).LostSince.IsZero() {
			t.Fatal("the wrong assignment is lost")
		}
		r.sync(runner)
		r.sync(runner)
		r.expect("lost: runner silent", "found")
		if !r.get(a.ID).LostSince.IsZero() {
			t.Fatal("still lost")
		}
		pass(75 * time.Second)
		r.expect("lost: runner silent", "found", "lost: runner silent")
	})
}

func TestLeasesStartAfreshAfterAnOutageOfTheHub(t *testing.T) {
	t.Parallel()
	storetest.Each(t, func(t *testing.T, db *store.DB) {
		r := newRig(t, db, Options{})
		runner := r.runner("r1")
		r.assign(runner, "s1", 0)
		r.sync(runner)
		r.reap()
		r.clock.add(10 * time.Minute) // the process stood still
		r.reap()
		r.expect()
		// A Hub that was away for minutes starts: it counts from its own start.
		again := New(db, Options{})
		again.Own(kind, r.owner)
		for range 12 {
			if err := again.RunOnce(t.Context()); err != nil {
				t.Fatal(err)
			}
			r.clock.add(5 * time.Second)
		}
		r.expect()
		for range 2 {
			r.clock.add(5 * time.Second)
			if err := again.RunOnce(t.Context()); err != nil {
				t.Fatal(err)
			}
		}
		r.expect("lost: runner silent")
	})
}

func TestLeasesStartAfreshAfterAnOutageOfTheDatabase(t *testing.T) {
	t.Parallel()
	r := newRig(t, storetest.New(t), Options{})
	runner := r.runner("r1")
	r.assign(runner, "s1", 0)
	r.reap()
	broken, cancel := context.WithCancel(t.Context())
	cancel()
	for range 20 { // every run fails, as with a database that is away
		r.clock.add(5 * time.Second)
		if err := r.RunOnce(broken); err == nil {
			t.Fatal("a run without a database must fail")
		}
	}
	r.clock.add(5 * time.Second)
	r.reap()
	r.expect()
	for range 13 {
		r.clock.add(5 * time.Second)
		r.reap()
	}
	r.expect("lost: runner silent")
}

func TestADeadlineThatPassedWithoutAHubLeavesTimeToSayThatItWasMet(t *testing.T) {
	t.Parallel()
	storetest.Each(t, func(t *testing.T, db *store.DB) {
		r := newRig(t, db, Options{})
		runner := r.runner("r1")
		r.assign(runner, "met", time.Minute)
		r.clock.add(10 * time.Minute) // the Hub was away
		again := New(db, Options{})
		again.Own(kind, r.owner)
		late := r.assign(runner, "late", 10*time.Second)
		pass := func(d time.Duration) {
			for ; d > 0; d -= 5 * time.Second {
				if err := again.RunOnce(t.Context()); err != nil {
					t.Fatal(err)
				}
				r.clock.add(5 * time.Second)
				if _, err := again.Sync(t.Context(), runner, &wire.SyncRequest{}); err != nil {
					t.Fatal(err)
				}
			}
		}
		pass(55 * time.Second)
		r.expect("lost: deadline passed")
		if err := r.db.Read(t.Context(), func(tx *store.Tx) error {
			told, err := store.All(tx, store.Scan1[string], `SELECT assignment FROM told`)
			if err == nil && (len(told) != 1 || told[0] != late.ID) {
				t.Errorf("told of %v, want the one that a Hub could hear of", told)
			}
			return err
		}); err != nil {
			t.Fatal(err)
		}
		pass(15 * time.Second)
		r.expect("lost: deadline passed", "lost: deadline passed")
	})
}

func TestContactOnAnotherHubCounts(t *testing.T) {
	t.Parallel()
	storetest.Each(t, func(t *testing.T, db *store.DB) {
		r := newRig(t, db, Options{})
		runner := r.runner("r1")
		r.assign(runner, "s1", 0)
		other := New(db, Options{})
		other.Own(kind, r.owner)
		for range 40 {
			r.clock.add(5 * time.Second)
			if _, err := other.Sync(t.Context(), runner, &wire.SyncRequest{}); err != nil {
				t.Fatal(err)
			}
			if err := other.RunOnce(t.Context()); err != nil {
				t.Fatal(err)
			}
			r.reap()
		}
		r.expect()
	})
}

func TestRefenceInLostShutsTheOldHolderOut(t *testing.T) {
	t.Parallel()
	storetest.Each(t, func(t *testing.T, db *store.DB) {
		r := newRig(t, db, Options{})
		r.owner.refence = true
		runner := r.runner("r1")
		a := r.assign(runner, "s1", time.Second)
		if _, err := r.AppendLog(t.Context(), runner, &wire.AppendLogRequest{Id: a.ID, Fence: 1, Data: []byte("so far")}); err != nil {
			t.Fatal(err)
		}
		r.clock.add(time.Minute)
		r.reap()
		if err := r.report(runner, a, 1, "passed"); !errors.Is(err, ErrFenced) {
			t.Fatalf("got %v", err)
		}
		part, err := r.ReadLog(t.Context(), a.ID, 0, 100)
		if err != nil || len(part.Chunks) != 1 || string(part.Chunks[0].Data) != "so far" || !part.Ended {
			t.Fatalf("the log up to the loss must stay, and end: %+v %v", part, err)
		}
	})
}

func TestOneBadRowHoldsUpNoOther(t *testing.T) {
	t.Parallel()
	storetest.Each(t, func(t *testing.T, db *store.DB) {
		r := newRig(t, db, Options{})
		runner := r.runner("r1")
		var bad string
		for i := range 30 {
			a := r.assign(runner, fmt.Sprint(i), time.Second)
			if i == 11 {
				bad = a.ID
			}
		}
		calls := 0
		r.owner.lost = func(a Assignment) error {
			if a.ID != bad {
				return nil
			}
			if calls++; calls%2 == 0 {
				panic("and panics, too")
			}
			return errOwner
		}
		r.clock.add(2 * time.Second)
		r.reap()
		if n := len(r.told()); n != 29 {
			t.Fatalf("%d of 29 others were told", n)
		}
		before := calls
		r.reap()
		if calls != before {
			t.Fatal("a row that failed must rest before it is tried again")
		}
		r.owner.lost = nil
		for range 4 {
			r.clock.add(10 * time.Second)
			r.sync(runner)
			r.reap()
		}
		if n := len(r.told()); n != 30 {
			t.Fatalf("%d of 30 were told in the end", n)
		}
	})
}

func TestTenThousandExpiredAssignmentsAreReapedInOneRun(t *testing.T) {
	t.Parallel()
	storetest.Each(t, func(t *testing.T, db *store.DB) {
		r := newRig(t, db, Options{})
		runner := r.runner("r1")
		const n = 10_000
		r.write(func(tx *store.Tx) error {
			for i := range n {
				if _, err := tx.Exec(insertAssignmentSQL, store.NewID(), runner, kind, fmt.Sprint(i), Run, tx.Now().UnixMilli()+int64(1+i%7), tx.Now().UnixMilli()); err != nil {
					return err
				}
			}
			return nil
		})
		r.clock.add(time.Second)
		began := time.Now()
		r.reap()
		took := time.Since(began)
		t.Logf("%d losses in %s", n, took)
		told := r.told()
		if len(told) != n {
			t.Fatalf("%d of %d were told", len(told), n)
		}
		r.reap()
		if again := len(r.told()); again != n {
			t.Fatalf("%d were told twice", again-n)
		}
	})
}

func TestTwoHubsReapEachLossOnce(t *testing.T) {
	t.Parallel()
	storetest.Each(t, func(t *testing.T, db *store.DB) {
		r := newRig(t, db, Options{})
		other := New(db, Options{})
		other.Own(kind, r.owner)
		runner := r.runner("r1")
		for i := range 50 {
			r.assign(runner, fmt.Sprint(i), time.Second)
		}
		r.clock.add(2 * time.Second)
		errs := make(chan error, 2)
		for _, f := range []*Fleet{r.Fleet, other} {
			go func() { errs <- f.RunOnce(context.Background()) }()
		}
		for range 2 {
			if err := <-errs; err != nil {
				t.Fatal(err)
			}
		}
		if n := len(r.told()); n != 50 {
			t.Fatalf("told %d times of 50 losses", n)
		}
	})
}

func TestIdleOwnerIsToldAndActivityTakesItBack(t *testing.T) {
	t.Parallel()
	storetest.Each(t, func(t *testing.T, db *store.DB) {
		r := newRig(t, db, Options{})
		runner := r.runner("r1")
		a := r.assign(runner, "s1", 0)
		held := func(idle time.Duration) *wire.Held {
			return &wire.Held{Id: a.ID, Generation: a.Generation, Fence: a.Fence, State: "running", IdleMs: idle.Milliseconds()}
		}
		r.sync(runner, held(14*time.Minute))
		r.reap()
		if since := r.get(a.ID).IdleSince; r.clock.Now().Sub(since) != 14*time.Minute {
			t.Fatalf("idle since %v", since)
		}
		r.sync(runner, held(0))
		r.reap()
		r.clock.add(2 * time.Minute)
		r.reap()
		r.expect()
		stale := held(time.Hour)
		stale.Generation = 7
		r.sync(runner, stale)
		r.reap()
		r.expect()
		r.sync(runner, held(16*time.Minute))
		r.reap()
		r.reap()
		r.expect("idle 16m0s")
		if a := r.get(a.ID); a.Want != Stop || !a.IdleSince.IsZero() {
			t.Fatalf("%+v", a)
		}
	})
}

func TestStartedFleetFindsDeadlinesItself(t *testing.T) {
	t.Parallel()
	storetest.Each(t, func(t *testing.T, db *store.DB) {
		r := newRig(t, db, Options{Flush: 10 * time.Millisecond})
		r.assign(r.runner("r1"), "s1", time.Second)
		if err := r.Start(t.Context()); err != nil {
			t.Fatal(err)
		}
		if err := r.Start(t.Context()); err == nil {
			t.Fatal("a second Start must fail")
		}
		r.clock.add(2 * time.Second)
		until(t, func() bool { return slices.Contains(r.told(), "lost: deadline passed") })
	})
}

// until waits for a condition that other goroutines bring about.
func until(t *testing.T, ok func() bool) {
	t.Helper()
	deadline := time.NewTimer(20 * time.Second)
	defer deadline.Stop()
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for !ok() {
		select {
		case <-deadline.C:
			t.Fatal("not so within 20 s")
		case <-tick.C:
		}
	}
}
