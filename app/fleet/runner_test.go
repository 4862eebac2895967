package fleet

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/claude-hub/claude-hub/app/fault"
	"github.com/claude-hub/claude-hub/runner/wire"
	"github.com/claude-hub/claude-hub/store"
	"github.com/claude-hub/claude-hub/store/storetest"
)

func TestRegistrationTokenWorksOnceAndForAnHour(t *testing.T) {
	t.Parallel()
	storetest.Each(t, func(t *testing.T, db *store.DB) {
		r := newRig(t, db, Options{})
		token, expires, err := r.NewRegistration(t.Context(), "ada")
		if err != nil || expires.Sub(r.clock.Now()) != time.Hour {
			t.Fatalf("expires %v, %v", expires, err)
		}
		if _, _, err := r.Register(t.Context(), token, "no spaces"); !fault.Is(err, fault.Invalid) {
			t.Fatalf("a bad name: %v", err)
		}
		if _, _, err := r.Register(t.Context(), token+"x", "r1"); !fault.Is(err, fault.Refused) {
			t.Fatalf("an unknown token: %v", err)
		}
		id, secret, err := r.Register(t.Context(), token, "r1")
		if err != nil {
			t.Fatal(err)
		}
		if got, err := r.Authenticate(t.Context(), secret); err != nil || got.ID != id || got.Name != "r1" {
			t.Fatalf("%+v %v", got, err)
		}
		if _, _, err := r.Register(t.Context(), token, "r2"); !fault.Is(err, fault.Refused) {
			t.Fatalf("a used token: %v", err)
		}
		late, _, err := r.NewRegistration(t.Context(), "ada")
		if err != nil {
			t.Fatal(err)
		}
		r.clock.add(time.Hour)
		if _, _, err := r.Register(t.Context(), late, "r2"); !fault.Is(err, fault.Refused) || !strings.Contains(err.Error(), "expired") {
			t.Fatalf("an expired token: %v", err)
		}
		var stored int
		err = db.Read(t.Context(), func(tx *store.Tx) error {
			return tx.Row(`SELECT COUNT(*) FROM runners r, runner_registrations g WHERE r.token_hash IN ($1, $2) OR g.token_hash IN ($1, $2)`, token, secret).Scan(&stored)
		})
		if err != nil || stored != 0 {
			t.Fatalf("a token is stored in the clear (%d), %v", stored, err)
		}
	})
}

func TestRunnersNameIsItsOwnOnceItWasInContact(t *testing.T) {
	t.Parallel()
	storetest.Each(t, func(t *testing.T, db *store.DB) {
		r := newRig(t, db, Options{})
		register := func() (string, error) {
			token, _, err := r.NewRegistration(t.Context(), "ada")
			if err != nil {
				t.Fatal(err)
			}
			id, _, err := r.Register(t.Context(), token, "r1")
			return id, err
		}
		first, err := register()
		if err != nil {
			t.Fatal(err)
		}
		second, err := register() // the answer to the first was lost
		if err != nil || second == first {
			t.Fatalf("%v", err)
		}
		if _, err := r.Hello(t.Context(), first, hello(1)); !errors.Is(err, ErrRevoked) {
			t.Fatalf("the first is replaced: %v", err)
		}
		r.hello(second)
		if _, err := register(); !fault.Is(err, fault.Invalid) {
			t.Fatalf("a taken name: %v", err)
		}
		if err := r.Revoke(t.Context(), second, "ada"); err != nil {
			t.Fatal(err)
		}
		if _, err := register(); err != nil {
			t.Fatalf("the name of a revoked Runner is free: %v", err)
		}
	})
}

func TestRevokedRunnerIsRefusedEverywhereAndItsWaitingSyncEnds(t *testing.T) {
	t.Parallel()
	storetest.Each(t, func(t *testing.T, db *store.DB) {
		r := newRig(t, db, Options{})
		id, token := r.runnerToken("r1")
		if _, err := r.Authenticate(t.Context(), token); err != nil {
			t.Fatal(err)
		}
		list := r.sync(id)
		ended := make(chan error, 1)
		go func() {
			_, err := r.Sync(context.Background(), id, &wire.SyncRequest{Revision: list.GetRevision(), WaitMs: 15_000})
			ended <- err
		}()
		if err := r.Revoke(t.Context(), id, "ada"); err != nil {
			t.Fatal(err)
		}
		select {
		case err := <-ended:
			if !errors.Is(err, ErrRevoked) {
				t.Fatalf("the waiting Sync ended with %v", err)
			}
		case <-time.After(10 * time.Second):
			t.Fatal("the waiting Sync goes on")
		}
		if _, err := r.Authenticate(t.Context(), token); !errors.Is(err, ErrRevoked) {
			t.Fatalf("got %v", err)
		}
		if err := r.Revoke(t.Context(), id, "ada"); !fault.Is(err, fault.NotFound) {
			t.Fatalf("twice: %v", err)
		}
		var audited int
		err := db.Read(t.Context(), func(tx *store.Tx) error {
			return tx.Row(`SELECT COUNT(*) FROM audit_log WHERE action IN ('runner.invite', 'runner.register', 'runner.revoke') AND who = 'ada'`).Scan(&audited)
		})
		if err != nil || audited != 3 {
			t.Fatalf("%d entries of audit, %v", audited, err)
		}
	})
}

func TestRunnerOfAnotherProtocolIsToldWhatToDoAndGetsNoWork(t *testing.T) {
	t.Parallel()
	storetest.Each(t, func(t *testing.T, db *store.DB) {
		r := newRig(t, db, Options{MinProtocol: 4, MaxProtocol: 5, Version: "5.0.0"})
		token, _, err := r.NewRegistration(t.Context(), "ada")
		if err != nil {
			t.Fatal(err)
		}
		id, _, err := r.Register(t.Context(), token, "r1")
		if err != nil {
			t.Fatal(err)
		}
		if _, err := r.Sync(t.Context(), id, &wire.SyncRequest{}); !errors.Is(err, ErrHello) {
			t.Fatalf("before Hello: %v", err)
		}
		for protocol, says := range map[int32]string{3: "too old", 4: "", 5: "", 6: "newer than this Hub"} {
			res, err := r.Hello(t.Context(), id, hello(protocol))
			if err != nil {
				t.Fatal(err)
			}
			if (says == "") != (res.GetUpdate() == "") || !strings.Contains(res.GetUpdate(), says) {
				t.Errorf("protocol %d: %q", protocol, res.GetUpdate())
			}
			if says != "" && !strings.Contains(res.GetUpdate(), "5.0.0") {
				t.Errorf("protocol %d: %q doesn't say which version to install", protocol, res.GetUpdate())
			}
			_, err = r.Sync(t.Context(), id, &wire.SyncRequest{})
			if says != "" && !errors.Is(err, ErrHello) || says == "" && err != nil {
				t.Errorf("protocol %d: Sync %v", protocol, err)
			}
			if err := r.Ready(t.Context(), "r1"); (err == nil) != (says == "") {
				t.Errorf("protocol %d: ready %v", protocol, err)
			}
		}
	})
}

func TestPickChoosesTheLeastLoadedOrSaysWhyNoneFits(t *testing.T) {
	t.Parallel()
	storetest.Each(t, func(t *testing.T, db *store.DB) {
		r := newRig(t, db, Options{})
		pick := func(w Filter) (got Runner, err error) {
			err = db.Read(t.Context(), func(tx *store.Tx) error {
				got, err = r.Pick(tx, w)
				return err
			})
			return got, err
		}
		if _, err := pick(Filter{}); !fault.Is(err, fault.Unavailable) || !strings.Contains(err.Error(), "No Runner is registered") {
			t.Fatalf("none registered: %v", err)
		}
		one, two := r.runner("r1"), r.runner("r2")
		r.assign(one, "a", 0)
		if got, err := pick(Filter{}); err != nil || got.ID != two || got.Limits.CPU != 4 {
			t.Fatalf("%+v %v", got, err)
		}
		if got, err := pick(Filter{Runner: "r1"}); err != nil || got.ID != one || got.Load[kind] != 1 {
			t.Fatalf("%+v %v", got, err)
		}
		if _, err := pick(Filter{Runner: "r9"}); !fault.Is(err, fault.NotFound) {
			t.Fatalf("%v", err)
		}
		if _, err := pick(Filter{Platform: "linux/arm64"}); !fault.Is(err, fault.Unavailable) || !strings.Contains(err.Error(), "r1 is linux/amd64, not linux/arm64; r2 is") {
			t.Fatalf("%v", err)
		}
		r.clock.add(2 * time.Minute)
		r.sync(one)
		if got, err := pick(Filter{}); err != nil || got.ID != one {
			t.Fatalf("%+v %v", got, err)
		}
		if _, err := pick(Filter{Runner: "r2"}); !fault.Is(err, fault.Unavailable) || !strings.Contains(err.Error(), "r2 is offline since 2026-11-30 12:00:00 UTC") {
			t.Fatalf("%v", err)
		}
		all, err := r.Runners(t.Context())
		if err != nil || len(all) != 2 || !all[0].Online || all[1].Online {
			t.Fatalf("%+v %v", all, err)
		}
	})
}

func TestSyncWaitsOnlyWhileTheListIsTheSame(t *testing.T) {
	t.Parallel()
	storetest.Each(t, func(t *testing.T, db *store.DB) {
		r := newRig(t, db, Options{})
		runner := r.runner("r1")
		list := r.sync(runner)
		if list.GetLeaseMs() != 60_000 || len(list.GetItems()) != 0 || list.GetRevision() == "" {
			t.Fatalf("%v", list)
		}
		wait := func(revision string, ms int64) (*wire.SyncResponse, time.Duration) {
			t.Helper()
			began := time.Now()
			res, err := r.Sync(t.Context(), runner, &wire.SyncRequest{Revision: revision, WaitMs: ms})
			if err != nil {
				t.Fatal(err)
			}
			return res, time.Since(began)
		}
		if res, took := wait(list.GetRevision(), 300); res.GetRevision() != list.GetRevision() || took < 300*time.Millisecond {
			t.Fatalf("answered %v after %s", res, took)
		}
		var a Assignment
		for _, step := range []struct {
			name   string
			change func(tx *store.Tx) error
		}{
			{"assigned", func(tx *store.Tx) (err error) {
				a, err = r.Assign(tx, Assignment{Runner: runner, Kind: kind, Subject: "s1"})
				return err
			}},
			{"changed", func(tx *store.Tx) error { _, err := r.Change(tx, a.ID, Stop, time.Time{}); return err }},
			{"deadline", func(tx *store.Tx) error { return r.Deadline(tx, a.ID, tx.Now().Add(time.Hour)) }},
			{"fence", func(tx *store.Tx) error { return r.Refence(tx, a.ID) }},
		} {
			list := r.sync(runner)
			got := make(chan *wire.SyncResponse, 1)
			go func() {
				res, _ := r.Sync(context.Background(), runner, &wire.SyncRequest{Revision: list.GetRevision(), WaitMs: 15_000})
				got <- res
			}()
			r.write(step.change)
			select {
			case res := <-got:
				if res.GetRevision() == list.GetRevision() {
					t.Errorf("%s: the same list", step.name)
				}
			case <-time.After(10 * time.Second):
				t.Errorf("%s: not woken", step.name)
			}
		}
		list = r.sync(runner)
		if i := list.GetItems()[0]; i.GetWant() != wire.WantStop || i.GetGeneration() != 2 || i.GetFence() != 2 || i.GetDeadlineMs() == 0 || i.GetKind() != string(kind) {
			t.Fatalf("%v", i)
		}
		res, err := r.Fetch(t.Context(), runner, &wire.FetchRequest{Id: a.ID, Generation: 2, Fence: 2})
		if err != nil || string(res.GetPayload()) != "s1/2" {
			t.Fatalf("%v %v", res, err)
		}
		if _, err := r.Fetch(t.Context(), runner, &wire.FetchRequest{Id: a.ID, Generation: 1, Fence: 2}); !errors.Is(err, ErrStale) {
			t.Fatalf("an older generation: %v", err)
		}
	})
}

func TestChangeOnAnotherHubReachesAWaitingSync(t *testing.T) {
	t.Parallel()
	storetest.EachURL(t, func(t *testing.T, url string) {
		r := newRig(t, storetest.Open(t, url), Options{})
		other := New(storetest.Open(t, url), Options{})
		other.Own(kind, r.owner)
		runner := r.runner("r1")
		list := r.sync(runner)
		got := make(chan error, 1)
		go func() {
			res, err := r.Sync(context.Background(), runner, &wire.SyncRequest{Revision: list.GetRevision(), WaitMs: 15_000})
			if err == nil && len(res.GetItems()) != 1 {
				err = fmt.Errorf("items %v", res.GetItems())
			}
			got <- err
		}()
		err := other.db.Write(t.Context(), func(tx *store.Tx) error {
			_, err := other.Assign(tx, Assignment{Runner: runner, Kind: kind, Subject: "s1"})
			return err
		})
		if err != nil {
			t.Fatal(err)
		}
		select {
		case err := <-got:
			if err != nil {
				t.Fatal(err)
			}
		case <-time.After(14 * time.Second):
			t.Fatal("not woken")
		}
	})
}

func TestStopEndsWaitingSyncs(t *testing.T) {
	t.Parallel()
	r := newRig(t, storetest.New(t), Options{})
	runner := r.runner("r1")
	list := r.sync(runner)
	ended := make(chan error, 1)
	go func() {
		_, err := r.Sync(context.Background(), runner, &wire.SyncRequest{Revision: list.GetRevision(), WaitMs: 15_000})
		ended <- err
	}()
	r.Stop()
	select {
	case err := <-ended:
		if err != nil {
			t.Fatal(err)
		}
	case <-time.After(10 * time.Second):
		t.Fatal("a Hub that stops must not wait for its Runners")
	}
}
