package webhook_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/claude-hub/claude-hub/app/fault"
	"github.com/claude-hub/claude-hub/app/github"
	"github.com/claude-hub/claude-hub/handlers/webhook"
	"github.com/claude-hub/claude-hub/store"
	"github.com/claude-hub/claude-hub/store/storetest"
)

func TestWhatIsStoredIsWorkedOnce(t *testing.T) {
	t.Parallel()
	storetest.Each(t, func(t *testing.T, db *store.DB) {
		h := newHub(t, db, webhook.Options{})
		h.taken(t, "push", "before", pushOf(1)) // while nobody works
		h.started(t)
		for i := range 40 {
			h.taken(t, "push", fmt.Sprint("g-", i), pushOf(i+2))
		}
		eventually(t, "all is worked", func() bool { return rows(t, db, "done") == 41 })
		seen := map[string]int{}
		for _, what := range h.told.list() {
			seen[what]++
		}
		for what, n := range seen {
			if n != 1 {
				t.Errorf("%s: %d times", what, n)
			}
		}
		if len(seen) != 41 {
			t.Errorf("worked %d", len(seen))
		}
		eventually(t, "each is counted", func() bool { return h.count(webhook.Worked) == 41 })
		h.post(t, "push", "g-7", pushOf(9)) // again, later
		h.taken(t, "push", "last", pushOf(99))
		eventually(t, "the last one is worked", func() bool { return rows(t, db, "done") == 42 })
		if n := len(h.told.list()); n != 42 {
			t.Errorf("%d were worked", n)
		}
		if err := db.Read(t.Context(), func(tx *store.Tx) error {
			var bodies int
			if err := tx.Row(`SELECT COUNT(*) FROM deliveries WHERE body IS NOT NULL`).Scan(&bodies); err != nil || bodies != 0 {
				t.Errorf("%d payloads are kept (%v)", bodies, err)
			}
			return nil
		}); err != nil {
			t.Fatal(err)
		}
	})
}

func TestManyDeliveriesAboutOnePullRequestAreOneLook(t *testing.T) {
	t.Parallel()
	storetest.Each(t, func(t *testing.T, db *store.DB) {
		h := newHub(t, db, webhook.Options{})
		looking, look := make(chan struct{}, 10), make(chan struct{})
		h.told.failing(func(what string) error {
			if strings.HasPrefix(what, "look at 7 #1") {
				looking <- struct{}{}
				<-look
			}
			return nil
		})
		for i := range 50 {
			h.taken(t, "pull_request", fmt.Sprint("a-", i), pull(7, 1))
		}
		h.taken(t, "pull_request", "b", pull(7, 2))
		h.started(t)
		<-looking
		for i := range 50 { // while it is being looked at: it may have changed since
			h.taken(t, "pull_request", fmt.Sprint("c-", i), pull(7, 1))
		}
		eventually(t, "others are not held up", func() bool { return len(h.told.list()) == 1 })
		if len(looking) > 0 {
			t.Error("one pull request is looked at twice at the same time")
		}
		close(look)
		eventually(t, "all is done", func() bool { return rows(t, db, "done") == 101 })
		if got := fmt.Sprint(h.told.list()); got != "[look at 7 #2 look at 7 #1 look at 7 #1]" {
			t.Errorf("got %s", got)
		}
		eventually(t, "each is counted", func() bool { return h.count(webhook.Worked) == 101 })
	})
}

func TestWhatFailsIsTriedAgainLaterAndLater(t *testing.T) {
	t.Parallel()
	storetest.Each(t, func(t *testing.T, db *store.DB) {
		clock := storetest.NewClock(db)
		h := newHub(t, db, webhook.Options{})
		var tries atomic.Int64
		h.told.failing(func(what string) error {
			if !strings.HasPrefix(what, "pushed 1 ") {
				return nil
			}
			switch tries.Add(1) {
			case 1:
				return errors.New("it went wrong")
			case 2:
				panic("it went very wrong")
			}
			return nil
		})
		h.started(t)
		h.taken(t, "push", "bad", pushOf(1))
		h.taken(t, "push", "good", pushOf(2))
		eventually(t, "the first try failed, and the other one was worked", func() bool { return h.count(webhook.Failed) == 1 && h.count(webhook.Worked) == 1 })
		for n := range 2 {
			h.taken(t, "push", fmt.Sprint("rest-", n), pushOf(3)) // a turn of the worker that may not touch it
			eventually(t, "another one is worked", func() bool { return h.count(webhook.Worked) == 2+n })
			if tries.Load() != int64(n+1) {
				t.Fatalf("tried %d times without rest", tries.Load())
			}
			clock.Advance(time.Second << n)
			h.taken(t, "push", fmt.Sprint("now-", n), pushOf(3))
			eventually(t, "it is tried again", func() bool { return tries.Load() == int64(n+2) })
			if n == 0 {
				eventually(t, "the panic is a failure", func() bool { return h.count(webhook.Failed) == 2 && h.count(webhook.Worked) == 3 })
				h.mu.Lock()
				h.outcomes[webhook.Worked] = 2
				h.mu.Unlock()
			}
		}
		eventually(t, "all is done", func() bool { return rows(t, db, "waiting") == 0 })
		if n := rows(t, db, "aside"); n != 0 {
			t.Errorf("%d are set aside", n)
		}
	})
}

// untilAside lets time pass until nothing waits.
func untilAside(t *testing.T, h *hub, clock *storetest.Clock, step time.Duration) {
	t.Helper()
	for i := 0; rows(t, h.db, "waiting") > 0; i++ {
		if i > 2000 {
			t.Fatal("it is tried for ever")
		}
		clock.Advance(step)
		done := h.count(webhook.Worked)
		h.taken(t, "push", fmt.Sprintf("turn-%s", store.NewID()), pushOf(1000))
		eventually(t, "the worker had a turn", func() bool { return h.count(webhook.Worked) > done })
	}
}

func TestPoisonIsSetAsideShownAndCanBeTriedAgain(t *testing.T) {
	t.Parallel()
	storetest.Each(t, func(t *testing.T, db *store.DB) {
		clock := storetest.NewClock(db)
		h := newHub(t, db, webhook.Options{})
		var tries atomic.Int64
		h.told.failing(func(what string) error {
			switch {
			case strings.HasPrefix(what, "pushed 1 "):
				tries.Add(1)
				return errors.New("acme/secret-repo makes trouble")
			case strings.HasPrefix(what, "pushed 2 "):
				return fault.New(fault.Invalid, "This can't be done.")
			}
			return nil
		})
		h.started(t)
		h.taken(t, "push", "poison", pushOf(1))
		h.taken(t, "push", "invalid", pushOf(2))
		untilAside(t, h, clock, 6*time.Minute)
		eventually(t, "both are set aside", func() bool { return h.count(webhook.SetAside) == 2 })
		if tries.Load() != 12 {
			t.Errorf("tried %d times", tries.Load())
		}
		all, err := h.Asides(t.Context())
		if err != nil || len(all) != 2 {
			t.Fatalf("%v, %v", all, err)
		}
		if a := all[0]; a.ID != "poison" || a.Event != "push" || a.Tries != 12 || strings.Contains(a.Why, "acme") || !strings.Contains(a.Why, "failed 12 times") || !a.Set.After(a.Received) {
			t.Errorf("got %+v", a)
		}
		if a := all[1]; a.ID != "invalid" || a.Tries != 1 {
			t.Errorf("got %+v", a)
		}
		if b, err := h.Backlog(t.Context()); err != nil || b.Aside != 2 || b.Waiting != 0 || b.Oldest != 0 {
			t.Errorf("%+v, %v", b, err)
		}

		h.told.failing(nil)
		if err := h.Again(t.Context(), "ana", "poison"); err != nil {
			t.Fatal(err)
		}
		h.taken(t, "push", "invalid", pushOf(2)) // GitHub was asked to send it again
		eventually(t, "both are worked", func() bool { return rows(t, db, "aside") == 0 && rows(t, db, "waiting") == 0 })
		if err := h.Again(t.Context(), "ana", "poison"); !fault.Is(err, fault.NotFound) {
			t.Errorf("what isn't set aside is tried again: %v", err)
		}
		if err := db.Read(t.Context(), func(tx *store.Tx) error {
			var n int
			if err := tx.Row(`SELECT COUNT(*) FROM audit_log WHERE who = 'ana' AND action = 'delivery.again' AND subject = 'poison'`).Scan(&n); err != nil || n != 1 {
				t.Errorf("%d in the audit log (%v)", n, err)
			}
			return nil
		}); err != nil {
			t.Fatal(err)
		}
	})
}

// TestAnOutageOfGitHubSetsNothingAside is longer than what twelve tries last.
func TestAnOutageOfGitHubSetsNothingAside(t *testing.T) {
	t.Parallel()
	db := storetest.New(t)
	clock := storetest.NewClock(db)
	h := newHub(t, db, webhook.Options{})
	up := clock.Now().Add(5 * time.Hour)
	var tries, early atomic.Int64
	h.told.failing(func(what string) error {
		switch {
		case strings.HasPrefix(what, "pushed 1 ") && clock.Now().Before(up):
			tries.Add(1)
			return fmt.Errorf("look: %w", &github.Error{Kind: github.Unavailable, Message: "GitHub is away."})
		case strings.HasPrefix(what, "pushed 2 ") && clock.Now().Before(up):
			early.Add(1)
			return &github.Error{Kind: github.RateLimited, Message: "Too many requests.", Until: up}
		}
		return nil
	})
	h.started(t)
	h.taken(t, "push", "away", pushOf(1))
	h.taken(t, "push", "limited", pushOf(2))
	eventually(t, "both failed", func() bool { return h.count(webhook.Failed) == 2 })
	untilAside(t, h, clock, 10*time.Minute)
	if rows(t, db, "aside") != 0 || tries.Load() < 20 || early.Load() != 1 {
		t.Errorf("%d are set aside after %d tries, and %d before the limit ended", rows(t, db, "aside"), tries.Load(), early.Load())
	}

	up = clock.Now().Add(48 * time.Hour)
	h.taken(t, "push", "for-good", pushOf(1))
	untilAside(t, h, clock, 30*time.Minute)
	if all, err := h.Asides(t.Context()); err != nil || len(all) != 1 || !strings.Contains(all[0].Why, "for a day") {
		t.Errorf("%+v, %v", all, err)
	}
}

func TestWhatIsGoneIsNotPoison(t *testing.T) {
	t.Parallel()
	db := storetest.New(t)
	clock := storetest.NewClock(db)
	h := newHub(t, db, webhook.Options{})
	var tries atomic.Int64
	h.told.failing(func(what string) error {
		if strings.HasPrefix(what, "look") {
			tries.Add(1)
			return &github.Error{Kind: github.NotInstalled, Message: "The App isn't installed on it."}
		}
		return nil
	})
	h.started(t)
	h.taken(t, "pull_request", "gone", pull(7, 1))
	untilAside(t, h, clock, 10*time.Minute)
	if rows(t, db, "aside") != 0 || tries.Load() != 3 {
		t.Errorf("%d are set aside after %d tries", rows(t, db, "aside"), tries.Load())
	}
}

// TestAHubThatLosesItsLeaseChangesNothingMore is a Hub that stands still, or was killed: another one takes over.
func TestAHubThatLosesItsLeaseChangesNothingMore(t *testing.T) {
	t.Parallel()
	storetest.Each(t, func(t *testing.T, db *store.DB) {
		clock := storetest.NewClock(db)
		still, other := newHub(t, db, webhook.Options{Workers: 1}), newHub(t, db, webhook.Options{})
		began, wake := make(chan struct{}), make(chan struct{})
		still.told.failing(func(string) error { close(began); <-wake; return errors.New("too late") })
		still.started(t)
		t.Cleanup(sync.OnceFunc(func() { close(wake) })) // before it is stopped
		still.taken(t, "push", "g", pushOf(1))
		<-began
		clock.Advance(31 * time.Second)
		other.started(t)
		eventually(t, "the other Hub takes over", func() bool { return rows(t, db, "done") == 1 && len(other.told.list()) == 1 })
		still.told.failing(nil)
		wake <- struct{}{}
		still.taken(t, "push", "next", pushOf(2))
		eventually(t, "nothing waits", func() bool { return rows(t, db, "done") == 2 })
		if n := still.count(webhook.Failed); n != 0 {
			t.Errorf("what it lost was counted as failed %d times", n)
		}
	})
}

func TestAStoppedHubGivesBackWhatItHolds(t *testing.T) {
	t.Parallel()
	db := storetest.New(t)
	first, second := newHub(t, db, webhook.Options{}), newHub(t, db, webhook.Options{})
	began := make(chan struct{})
	first.told.failing(func(string) error { return errors.New("unreached") })
	blocking := &blocker{told: first.told, began: began}
	first = newHub(t, db, webhook.Options{Access: first.told, Setup: first.told, Builds: first.told, Proposals: blocking})
	if err := first.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := first.Start(t.Context()); err == nil {
		t.Error("it starts twice")
	}
	first.taken(t, "push", "g", pushOf(1))
	<-began
	first.Stop()
	second.started(t)
	eventually(t, "the other Hub works it at once", func() bool { return rows(t, db, "done") == 1 })
	if err := db.Read(t.Context(), func(tx *store.Tx) error {
		var tries, faults int
		if err := tx.Row(`SELECT tries, faults FROM deliveries`).Scan(&tries, &faults); err != nil || tries != 1 || faults != 1 {
			t.Errorf("%d tries, %d faults, %v", tries, faults, err)
		}
		return nil
	}); err != nil {
		t.Fatal(err)
	}
}

// blocker never ends what it began, until it is told to.
type blocker struct {
	*told
	began chan struct{}
}

func (b *blocker) Pushed(ctx context.Context, _ github.RepoID, _, _ string, _ github.Account) error {
	close(b.began)
	<-ctx.Done()
	return fault.New(fault.Unavailable, "GitHub can't be reached.") // whatever a caller makes of it
}

func TestWhatKillsHubsIsSetAside(t *testing.T) {
	t.Parallel()
	db := storetest.New(t)
	h := newHub(t, db, webhook.Options{})
	h.taken(t, "push", "deadly", pushOf(1))
	if err := db.Write(t.Context(), func(tx *store.Tx) error { // what twelve Hubs leave that end in the middle of it
		_, err := tx.Exec(`UPDATE deliveries SET tries = 12, faults = 12, claimed_by = 'gone'`)
		return err
	}); err != nil {
		t.Fatal(err)
	}
	h.started(t)
	eventually(t, "it is set aside", func() bool { return rows(t, db, "aside") == 1 && h.count(webhook.SetAside) == 1 })
	if n := len(h.told.list()); n != 0 {
		t.Errorf("it was worked %d times more", n)
	}
}

func TestOldDeliveriesAreForgotten(t *testing.T) {
	t.Parallel()
	db := storetest.New(t)
	clock := storetest.NewClock(db)
	h := newHub(t, db, webhook.Options{}).started(t)
	h.taken(t, "push", "old", pushOf(1))
	eventually(t, "it is worked", func() bool { return rows(t, db, "done") == 1 })
	clock.Advance(6 * 24 * time.Hour)
	h.taken(t, "push", "newer", pushOf(2))
	eventually(t, "it is worked", func() bool { return rows(t, db, "done") == 2 })
	clock.Advance(25 * time.Hour)
	h.taken(t, "push", "newest", pushOf(3))
	eventually(t, "the old one is forgotten", func() bool { return rows(t, db, "done") == 2 && rows(t, db, "waiting") == 0 })

	h.told.failing(func(string) error { return fault.New(fault.Invalid, "This can't be done.") })
	h.taken(t, "push", "aside", pushOf(4))
	eventually(t, "it is set aside", func() bool { return rows(t, db, "aside") == 1 })
	h.told.failing(nil)
	clock.Advance(29 * 24 * time.Hour)
	h.taken(t, "push", "turn", pushOf(5))
	eventually(t, "all others are forgotten", func() bool { return rows(t, db, "done") == 1 && rows(t, db, "waiting") == 0 })
	if rows(t, db, "aside") != 1 {
		t.Error("what was set aside is forgotten before anybody could have seen it")
	}
	clock.Advance(2 * 24 * time.Hour)
	h.taken(t, "push", "last", pushOf(6))
	eventually(t, "it is forgotten as well", func() bool { return rows(t, db, "aside") == 0 })
}

// TestOneDeliveryAHundredTimesOnThreeHubsIsWorkedOnce is P29 of facts/reliability.md.
func TestOneDeliveryAHundredTimesOnThreeHubsIsWorkedOnce(t *testing.T) {
	t.Parallel()
	url := storetest.PostgreSQL(t)
	all := &told{}
	hubs := make([]*hub, 3)
	for i := range hubs {
		hubs[i] = newHub(t, storetest.Open(t, url), webhook.Options{Access: all, Setup: all, Proposals: all, Builds: all}).started(t)
	}
	var senders sync.WaitGroup
	for i := range 100 {
		senders.Go(func() {
			if status, text := hubs[i%3].post(t, "push", "the-one", pushOf(1)); status != 202 {
				t.Errorf("%d %s", status, text)
			}
		})
	}
	senders.Wait()
	hubs[0].taken(t, "push", "another", pushOf(2))
	eventually(t, "both are worked", func() bool { return rows(t, hubs[0].db, "done") == 2 })
	if got := all.list(); len(got) != 2 {
		t.Errorf("worked: %v", got)
	}
	received := 0
	for _, h := range hubs {
		received += h.count(webhook.Received)
	}
	if received != 2 {
		t.Errorf("%d were new", received)
	}
}
