package checks_test

import (
	"fmt"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/claude-hub/claude-hub/app/checks"
	"github.com/claude-hub/claude-hub/app/github"
	"github.com/claude-hub/claude-hub/app/github/githubtest"
	"github.com/claude-hub/claude-hub/app/github/githubtest/checked"
	"github.com/claude-hub/claude-hub/store"
	"github.com/claude-hub/claude-hub/store/storetest"
)

func TestGitHubShowsWhatWasShown(t *testing.T) {
	t.Parallel()
	checked.Both(t, func(t *testing.T, gh *githubtest.Server) {
		r := rigOn(t, storetest.New(t), gh)
		hub := r.hub()
		r.show(r.view("t", checks.Queued))
		r.drain(hub, 5*time.Second)
		if c := r.only(); c.Status != "queued" || c.ExternalID != "t" || c.Title != "Title of queued" || c.DetailsURL != "https://hub.example/t/t" {
			t.Fatalf("GitHub shows %+v", c)
		}
		v := r.view("t", checks.InProgress)
		v.Started = r.clock.Now()
		r.show(v)
		r.drain(hub, 5*time.Second)
		if c := r.only(); c.Status != "in_progress" || !c.Started.Equal(v.Started) || c.Summary != "Summary of in_progress" {
			t.Fatalf("GitHub shows %+v", c)
		}
		v = r.view("t", checks.Completed)
		v.Buttons = []github.Button{{Label: "Again", Description: "Runs it again", Identifier: "again"}}
		v.Annotations = annotations(2)
		r.show(v)
		r.drain(hub, 5*time.Second)
		c := r.only()
		if c.Status != "completed" || c.Conclusion != "failure" || !slices.Equal(c.Actions, []string{"again"}) {
			t.Fatalf("GitHub shows %+v", c)
		}
		wantAnnotations(t, c, 2)
		err := r.db.Read(t.Context(), func(tx *store.Tx) error {
			if got, found, err := checks.ByRun(tx, c.ID); err != nil || !found || got.ExternalID != "t" {
				t.Errorf("by GitHub's id: %+v, %v, %v", got, found, err)
			}
			_, found, err := checks.ByRun(tx, c.ID+1)
			if found {
				t.Error("found one that isn't ours")
			}
			return err
		})
		if err != nil {
			t.Fatal(err)
		}
		r.gh.Forget()
		r.show(v) // the same again
		if r.once(hub); len(r.gh.Requests()) != 0 {
			t.Error("GitHub was asked for nothing")
		}
	})
}

func TestOnlyTheNewestProgressIsSentAndNotTooOften(t *testing.T) {
	t.Parallel()
	r := newRig(t, storetest.New(t))
	hub := r.hub()
	r.show(r.view("t", checks.InProgress))
	r.drain(hub, 5*time.Second)
	sent := len(r.written())
	for i := range 60 { // a minute of chatter
		v := r.view("t", checks.InProgress)
		v.Text = text(fmt.Sprintf("line %d", i))
		r.show(v)
		r.once(hub)
		r.clock.Advance(time.Second)
	}
	if n := len(r.written()) - sent; n < 5 || n > 6 {
		t.Errorf("a minute of progress was %d writes, want one each 10 s", n)
	}
	done := r.view("t", checks.Completed)
	r.show(done)
	if took := r.drain(hub, 5*time.Second); took > time.Second {
		t.Errorf("its end waited %s", took)
	}
	if c := r.only(); c.Conclusion != "failure" || c.Text != "" {
		t.Errorf("GitHub shows %+v", c)
	}
}

// TestTwoHundredDrainAtThePaceAndInOrder has one installation written to once a second: what completed first, in the order
// in which it did, and then what has begun.
func TestTwoHundredDrainAtThePaceAndInOrder(t *testing.T) {
	t.Parallel()
	r := newRig(t, storetest.New(t))
	hub := r.hub()
	const all = 200
	named := func(i int, status string) checks.View {
		v := r.view(fmt.Sprintf("t%03d", i), status)
		v.Name = fmt.Sprint("check ", i)
		return v
	}
	for i := range all {
		r.show(named(i, checks.InProgress))
		r.clock.Advance(time.Millisecond)
	}
	for i := range all / 2 { // every other one ends, the last one first
		r.show(named(all-1-2*i, checks.Completed))
		r.clock.Advance(time.Millisecond)
	}
	took := r.drain(hub, 4*time.Minute)
	if took < (all-1)*time.Second || took > (all+5)*time.Second {
		t.Errorf("it took %s", took)
	}
	writes := r.written()
	for i := 1; i < len(writes); i++ {
		if gap := writes[i].Sub(writes[i-1]); gap < time.Second {
			t.Fatalf("write %d came %s after the one before", i, gap)
		}
	}
	got := r.repo.Checks(r.head())
	if len(got) != all || len(writes) != all {
		t.Fatalf("%d check runs by %d writes", len(got), len(writes))
	}
	for i, c := range got { // in the order in which they were made
		want, status := fmt.Sprintf("t%03d", 2*(i-all/2)), "in_progress"
		if i < all/2 {
			want, status = fmt.Sprintf("t%03d", all-1-2*i), "completed"
		}
		if c.ExternalID != want || c.Status != status {
			t.Fatalf("number %d is %s %s, want %s %s", i, c.ExternalID, c.Status, want, status)
		}
	}
}

// TestRateLimitsAreRespected asks nothing of GitHub while it wants to be left alone, and counts no attempt.
func TestRateLimitsAreRespected(t *testing.T) {
	t.Parallel()
	for _, status := range []int{http.StatusForbidden, http.StatusTooManyRequests} {
		t.Run(fmt.Sprint(status), func(t *testing.T) {
			t.Parallel()
			r := newRig(t, storetest.New(t))
			hub := r.hub()
			f := githubtest.Secondary(status, 90*time.Second)
			f.Method, f.Path, f.Times = "POST", "/check-runs", 1
			r.gh.Break(f)
			r.show(r.view("t", checks.Completed))
			r.drainUntil(hub, time.Minute, func() bool { return len(r.written()) == 1 })
			r.connect() // another Hub, which GitHub didn't tell
			r.gh.Forget()
			for range 8 {
				r.clock.Advance(10 * time.Second)
				r.once(r.hub())
			}
			if n := len(r.gh.Requests()); n != 0 {
				t.Fatalf("GitHub was asked %d times while it wanted to be left alone", n)
			}
			if took := r.drain(r.hub(), 15*time.Second); took > 11*time.Second {
				t.Errorf("it took %s after that", took)
			}
			if n := r.gh.Asked("GET", "/check-runs"); n != 0 {
				t.Errorf("what was refused was looked for %d times", n)
			}
			if c := r.only(); c.Conclusion != "failure" {
				t.Errorf("GitHub shows %+v", c)
			}
		})
	}
}

// TestGitHubAwayForTenMinutes has everything shown within a minute after it is back.
func TestGitHubAwayForTenMinutes(t *testing.T) {
	t.Parallel()
	r := newRig(t, storetest.New(t))
	hub := r.hub()
	r.show(r.view("a", checks.InProgress))
	r.drain(hub, 5*time.Second)
	mend := r.gh.Break(githubtest.Fault{Cut: -1})
	for i := range 10 {
		r.show(r.view(fmt.Sprintf("b%d", i), checks.Queued))
	}
	r.show(r.view("a", checks.Completed))
	r.gh.Forget()
	for begun := r.clock.Now(); r.clock.Now().Sub(begun) < 10*time.Minute; {
		next := r.once(hub)
		r.clock.Advance(max(next.Sub(r.clock.Now()), time.Millisecond))
	}
	if n := len(r.gh.Requests()); n > 200 {
		t.Errorf("GitHub was asked %d times in ten minutes without an answer", n)
	}
	mend()
	took := r.drain(hub, time.Minute)
	for _, c := range r.repo.Checks(r.head()) {
		if c.ExternalID == "a" && c.Conclusion != "failure" {
			t.Errorf("after %s GitHub shows %+v", took, c)
		}
	}
	if n := len(r.repo.Checks(r.head())); n != 11 {
		t.Errorf("GitHub has %d check runs", n)
	}
}

func TestWithoutAnAppCheckRunsWaitForOne(t *testing.T) {
	t.Parallel()
	r := newRig(t, storetest.New(t))
	hub := r.hub()
	r.holder.Set(nil)
	r.show(r.view("t", checks.Completed))
	r.once(hub)
	if n := r.pending(hub); n != 1 {
		t.Fatalf("%d are pending", n)
	}
	r.connect()
	r.drain(hub, 5*time.Second)
	r.only()
}

// TestAnotherAppMakesItsOwnCheckRuns: those of the App before it can't be changed by it.
func TestAnotherAppMakesItsOwnCheckRuns(t *testing.T) {
	t.Parallel()
	r := newRig(t, storetest.New(t))
	hub := r.hub()
	r.show(r.view("t", checks.InProgress))
	r.drain(hub, 5*time.Second)
	r.cred = r.gh.App(githubtest.AppOptions{Name: "another"})
	r.inst = r.gh.Install(r.cred.ID, r.owner, r.owner, r.repo)
	r.connect()
	v := r.view("t", checks.Completed)
	v.Annotations = annotations(3)
	r.show(v)
	r.drain(hub, time.Minute)
	all := r.repo.Checks(r.head())
	if len(all) != 2 || all[1].Conclusion != "failure" || all[1].ExternalID != "t" {
		t.Fatalf("GitHub shows %+v", all)
	}
	wantAnnotations(t, all[1], 3)
}

func TestWhatGitHubRefusesWholeIsShownShorter(t *testing.T) {
	t.Parallel()
	r := newRig(t, storetest.New(t))
	hub := r.hub()
	r.gh.Break(githubtest.Fault{
		Method: "POST", Path: "/check-runs", Times: 1, Status: http.StatusUnprocessableEntity,
		Body: `{"message":"Validation Failed","errors":[{"field":"output","message":"no"}],"documentation_url":"https://docs.github.com"}`,
	})
	v := r.view("t", checks.Completed)
	v.Text, v.Annotations = text("odd"), annotations(60)
	r.show(v)
	r.drain(hub, 10*time.Second)
	c := r.only()
	if c.Conclusion != "failure" || c.Text != "" || len(c.Annotations) != 0 || !strings.Contains(c.Summary, "Details") || c.Title != "Title of completed" {
		t.Fatalf("GitHub shows %+v", c)
	}
	v.Text = text("not odd") // another version is tried whole
	r.show(v)
	r.drain(hub, 10*time.Second)
	if c = r.only(); c.Text != "not odd" {
		t.Fatalf("GitHub shows %+v", c)
	}
	wantAnnotations(t, c, 60)
}

// TestACommitThatGitHubDoesNotKnowYetIsWaitedFor: heads of forks are told of before they can be found.
func TestACommitThatGitHubDoesNotKnowYetIsWaitedFor(t *testing.T) {
	t.Parallel()
	r := newRig(t, storetest.New(t))
	hub := r.hub()
	lost := r.view("lost", checks.Completed)
	lost.SHA = strings.Repeat("0", 40)
	lost.Annotations = annotations(1)
	r.gh.Break(githubtest.Fault{Method: "POST", Path: "/check-runs", Times: 1, Status: http.StatusBadGateway}) // so that it is looked for, too
	r.show(lost)
	begun := r.clock.Now()
	r.drainUntil(hub, time.Hour, func() bool { return r.parked(hub) == 1 })
	if waited := r.clock.Now().Sub(begun); waited < 2*time.Minute || waited > 10*time.Minute {
		t.Errorf("it was given up after %s", waited)
	}
	var refused int
	err := r.db.Read(t.Context(), func(tx *store.Tx) error {
		return tx.Row(`SELECT refused FROM check_runs WHERE external_id = 'lost'`).Scan(&refused)
	})
	if err != nil || refused != 0 {
		t.Errorf("it would be shown shorter once its commit is there: %d, %v", refused, err)
	}
	r.show(r.view("t", checks.Completed)) // others aren't held up
	r.drain(hub, 5*time.Second)
	r.only()
}

func TestARepoWithoutTheAppIsTriedAgainWhenItHasIt(t *testing.T) {
	t.Parallel()
	storetest.Each(t, func(t *testing.T, db *store.DB) {
		r := newRig(t, db)
		hub := r.hub()
		r.show(r.view("t", checks.InProgress))
		r.drain(hub, 5*time.Second)
		r.inst.Remove()
		r.show(r.view("t", checks.Completed))
		r.drainUntil(hub, time.Minute, func() bool { return r.parked(hub) == 1 })
		if n := r.pending(hub); n != 0 {
			t.Errorf("%d are pending", n)
		}
		r.gh.Forget()
		r.clock.Advance(50 * time.Minute)
		if r.once(hub); len(r.gh.Requests()) != 0 {
			t.Error("GitHub was asked again before the hour was over")
		}
		r.clock.Advance(20 * time.Minute)
		if r.once(hub); len(r.gh.Requests()) == 0 {
			t.Error("GitHub wasn't asked again after an hour")
		}
		inst := r.gh.Install(r.cred.ID, r.owner, r.owner, r.repo)
		wakeUp(t, db, func(tx *store.Tx) error { return checks.Wake(tx, inst.ID) })
		r.drain(hub, 5*time.Second)
		if c := r.only(); c.Conclusion != "failure" {
			t.Errorf("GitHub shows %+v", c)
		}
	})
}

func wakeUp(t *testing.T, db *store.DB, f func(tx *store.Tx) error) {
	t.Helper()
	if err := db.Write(t.Context(), f); err != nil {
		t.Fatal(err)
	}
}

func TestASuspendedInstallationHoldsUpNoOther(t *testing.T) {
	t.Parallel()
	r := newRig(t, storetest.New(t))
	hub := r.hub()
	ana := r.gh.Person("ana")
	hers := r.gh.Repo("ana/tool", false, githubtest.Files{"README.md": githubtest.Text("x\n")})
	r.gh.Install(r.cred.ID, ana, ana, hers)
	r.inst.Suspend(true)
	for i := range 5 {
		r.show(r.view(fmt.Sprintf("t%d", i), checks.Completed))
	}
	v := r.view("hers", checks.Completed)
	v.Repo, v.SHA = github.RepoID(hers.ID), hers.Head("main")
	r.show(v)
	r.drain(hub, 5*time.Second)
	if n := r.parked(hub); n != 5 || len(hers.Checks(v.SHA)) != 1 {
		t.Fatalf("%d are parked, and hers has %d", n, len(hers.Checks(v.SHA)))
	}
	r.inst.Suspend(false)
	wakeUp(t, r.db, func(tx *store.Tx) error { return checks.Wake(tx, r.inst.ID) })
	r.drain(hub, 10*time.Second)
	if n := len(r.repo.Checks(r.head())); n != 5 {
		t.Errorf("GitHub has %d check runs after it was unsuspended", n)
	}
}

func TestAnArchivedRepoIsTriedAgainWhenItIsNoLonger(t *testing.T) {
	t.Parallel()
	r := newRig(t, storetest.New(t))
	hub := r.hub()
	r.repo.Archive(true)
	r.show(r.view("t", checks.Completed))
	r.drainUntil(hub, time.Minute, func() bool { return r.parked(hub) == 1 })
	r.repo.Archive(false)
	wakeUp(t, r.db, func(tx *store.Tx) error { return checks.WakeRepo(tx, github.RepoID(r.repo.ID)) })
	r.drain(hub, 10*time.Second)
	r.only()
}

// TestARepoThatMovedGoesOnByItsID: neither another name nor another owner, with another installation, makes a difference.
func TestARepoThatMovedGoesOnByItsID(t *testing.T) {
	t.Parallel()
	r := newRig(t, storetest.New(t))
	hub := r.hub()
	r.show(r.view("t", checks.Queued))
	r.drain(hub, 5*time.Second)
	r.repo.Rename("moon")
	r.gh.Repo("acme/rocket", true, githubtest.Files{"README.md": githubtest.Text("another\n")})
	r.show(r.view("t", checks.InProgress))
	r.drain(hub, 5*time.Second)
	if c := r.only(); c.Status != "in_progress" {
		t.Fatalf("after the rename GitHub shows %+v", c)
	}
	other := r.gh.Org("other")
	r.gh.Install(r.cred.ID, other, other)
	r.repo.Transfer(other)
	r.show(r.view("t", checks.Completed))
	r.drain(hub, 10*time.Second) // nobody has told of it
	if c := r.only(); c.Conclusion != "failure" {
		t.Fatalf("after the transfer GitHub shows %+v", c)
	}
}

func TestStartReconcilesUntilStop(t *testing.T) {
	t.Parallel()
	r := newRig(t, storetest.New(t))
	r.db.SetClock(time.Now)
	hub := r.hub()
	if err := hub.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := hub.Start(t.Context()); err == nil {
		t.Error("started twice")
	}
	r.show(r.view("t", checks.Completed))
	eventually(t, func() bool { return r.pending(hub) == 0 })
	r.only()
	hub.Stop()
	hub.Stop()
	r.gh.Forget()
	r.show(r.view("u", checks.Completed))
	if err := hub.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	eventually(t, func() bool { return r.pending(hub) == 0 })
	hub.Stop()
}

func eventually(t *testing.T, done func() bool) {
	t.Helper()
	for end := time.Now().Add(time.Minute); !done(); {
		if time.Now().After(end) {
			t.Fatal("that took too long")
		}
		time.Sleep(5 * time.Millisecond) // between two looks, not instead of one
	}
}
