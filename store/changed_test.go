package store_test

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/claude-hub/claude-hub/store"
	"github.com/claude-hub/claude-hub/store/storetest"
)

func wake(t *testing.T, db *store.DB, topics ...string) {
	t.Helper()
	if err := db.Write(context.Background(), func(tx *store.Tx) error {
		for _, topic := range topics {
			tx.Wake(topic)
		}
		return nil
	}); err != nil {
		t.Fatal(err)
	}
}

func closed(ch <-chan struct{}) bool {
	select {
	case <-ch:
		return true
	default:
		return false
	}
}

func within(t *testing.T, ch <-chan struct{}, limit time.Duration, what string) time.Duration {
	t.Helper()
	began := time.Now()
	select {
	case <-ch:
	case <-time.After(limit):
		t.Fatalf("%s: not woken within %s", what, limit)
	}
	return time.Since(began)
}

func TestACommitWakesWhoWaitsForItsTopics(t *testing.T) {
	t.Parallel()
	storetest.Each(t, func(t *testing.T, db *store.DB) {
		a, again, b, c := db.Changed("a"), db.Changed("a"), db.Changed("b"), db.Changed("c")
		refused := errors.New("refused")
		if err := db.Write(t.Context(), func(tx *store.Tx) error { tx.Wake("a"); return refused }); !errors.Is(err, refused) {
			t.Fatal(err)
		}
		if closed(a) {
			t.Error("a rollback woke")
		}
		wake(t, db, "a", "b", "a")
		if !closed(a) || !closed(again) || !closed(b) {
			t.Error("when Write returns, all who waited must have been woken")
		}
		if closed(c) || closed(db.Changed("a")) {
			t.Error("somebody was woken for another topic, or for an earlier commit")
		}
	})
}

func TestManyTopicsInOneCommit(t *testing.T) {
	t.Parallel()
	storetest.EachURL(t, func(t *testing.T, url string) {
		here, there := storetest.Open(t, url), storetest.Open(t, url)
		var names []string
		var waiting []<-chan struct{}
		for i := range 500 {
			names = append(names, fmt.Sprint("topic ", i))
			waiting = append(waiting, there.Changed(names[i]))
		}
		wake(t, here, names...)
		for i, ch := range waiting {
			within(t, ch, 10*time.Second, names[i])
		}
	})
}

func TestAnotherHubIsWoken(t *testing.T) {
	t.Parallel()
	for name, opts := range map[string][]store.Option{"notified": nil, "polling": {store.WithoutNotify()}} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			storetest.EachURL(t, func(t *testing.T, url string) {
				here, there := storetest.Open(t, url, opts...), storetest.Open(t, url, opts...)
				for range 2 {
					ch, other := there.Changed("x"), there.Changed("y")
					wake(t, here, "x")
					t.Logf("woken after %s", within(t, ch, 10*time.Second, "x"))
					if closed(other) {
						t.Error("another topic was woken, too")
					}
				}
			})
		})
	}
}

// TestNotifyIsQuickerThanPolling: 20 wakeups by polling alone would take about 20 s.
func TestNotifyIsQuickerThanPolling(t *testing.T) {
	t.Parallel()
	url := storetest.PostgreSQL(t)
	here, there := storetest.Open(t, url), storetest.Open(t, url)
	ready := there.Changed("ready")
	wake(t, here, "ready")
	within(t, ready, 10*time.Second, "ready")
	began := time.Now()
	for range 20 {
		ch := there.Changed("x")
		wake(t, here, "x")
		within(t, ch, 10*time.Second, "x")
	}
	if took := time.Since(began); took > 10*time.Second {
		t.Errorf("20 wakeups took %s: nobody listens", took)
	}
}

// TestNoWakeupIsLostToTheOrderOfCommits: a transaction that began first and commits last must still be noticed by a Hub
// that saw the other one.
func TestNoWakeupIsLostToTheOrderOfCommits(t *testing.T) {
	t.Parallel()
	url := storetest.PostgreSQL(t) // SQLite has one writer
	here, there := storetest.Open(t, url), storetest.Open(t, url)
	slow, quick := there.Changed("slow"), there.Changed("quick")
	if err := here.Write(t.Context(), func(tx *store.Tx) error {
		tx.Wake("slow")
		wake(t, here, "quick")
		within(t, quick, 10*time.Second, "quick")
		if closed(slow) {
			t.Error("woken before the commit")
		}
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	within(t, slow, 10*time.Second, "slow")
}

func TestWaitersForTopicsThatNeverChangeTakeBoundedMemory(t *testing.T) {
	t.Parallel()
	db := storetest.New(t)
	first := db.Changed("first")
	for i := range 20_000 {
		db.Changed(fmt.Sprint(i))
	}
	if !closed(first) {
		t.Error("20,000 topics are kept")
	}
	last := db.Changed("last")
	wake(t, db, "last")
	if !closed(last) {
		t.Error("not woken after many topics")
	}
}

func TestWakeupsDoNotPileUp(t *testing.T) {
	t.Parallel()
	storetest.Each(t, func(t *testing.T, db *store.DB) {
		wake(t, db, "new")
		if err := db.Write(t.Context(), func(tx *store.Tx) error {
			for hub, age := range map[string]time.Duration{"running": 10 * time.Minute, "gone": 2 * time.Hour} {
				if _, err := tx.Exec(`INSERT INTO topics (hub, slot, topic, revision, woken_at) VALUES ($1, 0, 'old', 1, $2)`,
					hub, time.Now().Add(-age)); err != nil {
					return err
				}
			}
			_, err := tx.Exec(`INSERT INTO topics (hub, slot, topic, revision, woken_at)
				SELECT hub, 0, 'own', 1, $1 FROM topics WHERE topic = 'new'`, time.Now().Add(-10*time.Minute))
			return err
		}); err != nil {
			t.Fatal(err)
		}
		store.Prune(db)
		var left []string
		if err := db.Read(t.Context(), func(tx *store.Tx) (err error) {
			left, err = store.All(tx, store.Scan1[string], `SELECT topic FROM topics ORDER BY topic`)
			return err
		}); err != nil {
			t.Fatal(err)
		}
		if got := fmt.Sprint(left); got != "[new old]" {
			t.Errorf("left are %s, want what is new and what another running Hub looks after", got)
		}
	})
}
