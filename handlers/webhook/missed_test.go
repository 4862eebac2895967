package webhook_test

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/claude-hub/claude-hub/app/github"
	"github.com/claude-hub/claude-hub/app/github/githubtest"
	"github.com/claude-hub/claude-hub/app/github/githubtest/checked"
	"github.com/claude-hub/claude-hub/handlers/webhook"
	"github.com/claude-hub/claude-hub/store"
	"github.com/claude-hub/claude-hub/store/storetest"
)

// losing has GitHub lose what lose says, until it is told otherwise.
func (s *scene) losing(lose func(githubtest.Delivery) bool) {
	s.gh.Deliver(func(d githubtest.Delivery) githubtest.Fate { return githubtest.Fate{Lose: lose(d)} })
}

func all(githubtest.Delivery) bool { return true }

func TestMissedDeliveriesAreAskedForAgain(t *testing.T) {
	t.Parallel()
	checked.Both(t, func(t *testing.T, gh *githubtest.Server) {
		s := setScene(t, gh, storetest.New(t), webhook.Options{})
		s.losing(all)
		s.repo.Allow(s.bob, "read")                           // member: matters
		s.gh.Send(s.cred.ID, "sponsorship", []byte(`{}`))     // matters to nobody
		s.repo.Push(s.ana, "main", "One", githubtest.Files{}) // push, and a check_suite that is no work
		s.settled(t)
		s.losing(func(d githubtest.Delivery) bool { return d.Event == "push" && !d.Redelivery })
		s.started(t) // looks at start
		eventually(t, "both arrive", func() bool { return rows(t, s.db, "done") == 2 })
		s.gh.Deliver(nil)
		if n := s.gh.Asked("POST", "/attempts"); n != 2 {
			t.Errorf("asked for %d", n)
		}
		if n, err := s.Missed(t.Context(), true); err != nil || n != 0 {
			t.Errorf("asked for %d more, %v", n, err)
		}
		if got := s.told.list(); len(got) != 2 {
			t.Errorf("led to %q", got)
		}
	})
}

// TestWhatWasStoredIsNotAskedForAgain is an answer that GitHub didn't hear.
func TestWhatWasStoredIsNotAskedForAgain(t *testing.T) {
	t.Parallel()
	s := setScene(t, checked.New(t, githubtest.Options{}), storetest.New(t), webhook.Options{})
	s.losing(all)
	s.repo.Allow(s.bob, "read")
	s.settled(t)
	log := s.gh.Delivered()
	d := log[len(log)-1]
	s.send(t, githubtest.Signed(d.Event, d.GUID, s.cred.WebhookSecret, d.Payload), string(d.Payload))
	if n, err := s.Missed(t.Context(), false); err != nil || n != 0 {
		t.Errorf("asked for %d, %v", n, err)
	}
}

func TestHowFarTheLogWasReadIsRemembered(t *testing.T) {
	t.Parallel()
	db := storetest.New(t)
	clock := storetest.NewClock(db)
	clock.Advance(time.Until(clock.Now()) * -1) // GitHub's clock is the real one
	s := setScene(t, checked.New(t, githubtest.Options{}), db, webhook.Options{})
	s.losing(all)
	s.repo.Allow(s.bob, "read")
	s.settled(t)
	mend := s.gh.Break(githubtest.Fault{Method: "POST", Path: "/attempts", Status: 502})
	if n, err := s.Missed(t.Context(), false); !github.Unavailable.Is(err) || n != 0 {
		t.Fatalf("GitHub is away: asked for %d, %v", n, err)
	}
	mend()
	if n, err := s.Missed(t.Context(), false); err != nil || n != 0 {
		t.Fatalf("looked again too soon: asked for %d, %v", n, err)
	}
	for i, want := range []int{1, 1, 0} { // the first one is lost once more, and found once more; then it arrives
		if i == 2 {
			eventually(t, "it arrived", func() bool { return rows(t, db, "waiting") == 1 })
		}
		if i == 1 {
			s.gh.Deliver(nil)
		}
		clock.Advance(5 * time.Minute)
		if n, err := s.Missed(t.Context(), false); err != nil || n != want {
			t.Fatalf("the %d. time asked for %d, %v", i+1, n, err)
		}
		if i == 0 {
			eventually(t, "GitHub tried again", func() bool { return len(s.gh.Delivered()) > 1 })
		}
	}
	if err := db.Read(t.Context(), func(tx *store.Tx) error {
		var seen time.Time
		var holder string
		if err := tx.Row(`SELECT seen_to, held_by FROM delivery_sweeps WHERE app = $1`, s.cred.ID).Scan(store.At(&seen), &holder); err != nil {
			return err
		}
		if holder != "" || time.Since(seen) > time.Minute {
			t.Errorf("read up to %s, held by %q", seen, holder)
		}
		return nil
	}); err != nil {
		t.Fatal(err)
	}
}

func TestOneHubAtATimeLooksForMissedDeliveries(t *testing.T) {
	t.Parallel()
	url := storetest.PostgreSQL(t)
	gh := checked.New(t, githubtest.Options{})
	s := setScene(t, gh, storetest.Open(t, url), webhook.Options{})
	other := newHub(t, storetest.Open(t, url), webhook.Options{GitHub: github.NewHolder(s.app)})
	s.losing(all)
	for i := range 5 {
		s.repo.Push(s.ana, "main", fmt.Sprint("Push ", i), githubtest.Files{})
	}
	s.settled(t)
	mend := gh.Break(githubtest.Fault{Method: "GET", Path: "/app/hook/deliveries", Delay: 300 * time.Millisecond})
	defer mend()
	asked := make(chan int, 2)
	for _, h := range []*hub{s.hub, other} {
		go func() {
			n, err := h.Missed(t.Context(), true)
			if err != nil {
				t.Error(err)
			}
			asked <- n
		}()
	}
	got := []int{<-asked, <-asked}
	slices.Sort(got)
	if got[0] != 0 || got[1] != 5 {
		t.Errorf("the Hubs asked for %v", got)
	}
}

func TestWithoutAnAppNothingIsMissed(t *testing.T) {
	t.Parallel()
	h := newHub(t, storetest.New(t), webhook.Options{})
	if n, err := h.Missed(t.Context(), true); !github.NoApp.Is(err) || n != 0 {
		t.Errorf("%d, %v", n, err)
	}
}
