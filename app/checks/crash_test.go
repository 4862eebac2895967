package checks_test

import (
	"fmt"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/claude-hub/claude-hub/app/checks"
	"github.com/claude-hub/claude-hub/app/github"
	"github.com/claude-hub/claude-hub/app/github/githubtest"
	"github.com/claude-hub/claude-hub/store"
	"github.com/claude-hub/claude-hub/store/storetest"
)

// broken are the ways in which an answer doesn't come, or not as it should.
var broken = map[string]githubtest.Fault{
	"nothing":               {},
	"502 that did the work": {Times: 1, Status: http.StatusBadGateway, After: true},
	"502 that did not":      {Times: 1, Status: http.StatusBadGateway},
	"no answer":             {Times: 1, Cut: -1, After: true},
	"no request":            {Times: 1, Cut: -1},
	"half an answer":        {Times: 1, Cut: 100, After: true},
	"an empty answer":       {Times: 1, Status: http.StatusCreated, After: true},
	"slow":                  {Times: 1, Delay: 1500 * time.Millisecond, After: true}, // the App waits for a second
}

// points are where a Hub dies.
var points = []string{
	"", // it lives
	"claimed locate", "did locate", "claimed create", "did create", "claimed find", "did find", "claimed count", "did count", "claimed update", "did update",
}

// TestOneCheckRunWhateverDiesAndWhateverIsLost takes a Test build from its begin to its end with a failure of GitHub at each
// kind of write, and a Hub that is killed at each step. However it goes, GitHub has one check run, completed within a minute
// of the Test build's end, with each annotation once.
func TestOneCheckRunWhateverDiesAndWhateverIsLost(t *testing.T) {
	t.Parallel()
	var deaths sync.Map
	t.Cleanup(func() {
		for _, point := range points {
			if _, ok := deaths.Load(point); !ok && point != "" {
				t.Errorf("no Hub ever died at %q", point)
			}
		}
	})
	for _, method := range []string{"POST", "PATCH"} {
		for name, fault := range broken {
			t.Run(method+" "+name, func(t *testing.T) {
				t.Parallel()
				r := newRig(t, storetest.New(t))
				each := points
				if fault.Delay > 0 { // in real time
					r.wait = time.Second
					r.connect()
					each = []string{"", "did create", "did update"}
				}
				for i, point := range each {
					if r.oneStory(fmt.Sprintf("t%d", i), point, method, fault) {
						deaths.Store(point, true)
					}
				}
				if all := r.repo.Checks(r.head()); len(all) != len(each) {
					t.Errorf("GitHub has %d check runs, want %d", len(all), len(each))
				}
			})
		}
	}
}

// oneStory shows a Test build's life while GitHub has one failure and a Hub dies, if it comes to that point.
func (r *rig) oneStory(id, point, method string, fault githubtest.Fault) (died bool) {
	r.t.Helper()
	mend := func() {}
	if fault.Times > 0 {
		fault.Method, fault.Path = method, "/check-runs"
		mend = r.gh.Break(fault)
	}
	defer mend()
	hub, killed := r.hub(), func() bool { return false }
	if point != "" {
		killed = hub.KillAt(point)
	}
	// work lets the Hub do what is due now. Once it is dead, another one is there.
	work := func() {
		r.once(hub)
		if killed() {
			died = true
			hub, killed = r.hub(), func() bool { return false }
			r.once(hub)
		}
	}
	r.show(r.view(id, checks.Queued))
	work()
	r.show(r.view(id, checks.InProgress))
	for range 3 {
		work()
		r.clock.Advance(2 * time.Second)
	}
	end := r.view(id, checks.Completed)
	end.Annotations = annotations(60)
	r.show(end)
	ended := r.clock.Now()
	for {
		work()
		if r.pending(hub) == 0 {
			break
		}
		if r.clock.Now().Sub(ended) > time.Minute {
			r.t.Fatalf("killed at %q: not shown a minute after its end", point)
		}
		next := r.once(hub)
		r.clock.Advance(max(0, next.Sub(r.clock.Now())))
	}
	found := 0
	for _, c := range r.repo.Checks(r.head()) {
		if c.ExternalID == id {
			found++
			if c.Status != "completed" || c.Conclusion != "failure" || c.Title != "Title of completed" {
				r.t.Errorf("killed at %q: GitHub shows %+v", point, c)
			}
			wantAnnotations(r.t, c, 60)
		}
	}
	if found != 1 {
		r.t.Errorf("killed at %q: GitHub has %d check runs of one", point, found)
	}
	return died
}

// TestADeedThatIsDoneAfterItsCallerGaveUpIsFound: GitHub may still be at a POST whose connection is gone.
func TestADeedThatIsDoneAfterItsCallerGaveUpIsFound(t *testing.T) {
	t.Parallel()
	r := newRig(t, storetest.New(t))
	hub := r.hub()
	r.gh.Break(githubtest.Fault{Method: "POST", Path: "/check-runs", Times: 1, Cut: -1})
	r.show(r.view("t", checks.Completed))
	for range 4 { // asked for at once, and not there
		r.once(hub)
		r.clock.Advance(2 * time.Second)
	}
	if n := r.gh.Asked("GET", "/check-runs"); n == 0 {
		t.Fatal("it was not looked for")
	}
	if n := r.gh.Asked("POST", "/check-runs"); n != 1 {
		t.Fatalf("it was sent %d times before it was certain that it is lost", n)
	}
	app, err := r.holder.App()
	if err != nil {
		t.Fatal(err)
	}
	_, err = app.CreateCheckRun(t.Context(), github.RepoID(r.repo.ID), github.CheckRun{ // now GitHub does it
		SHA: r.head(), Name: "Environment / Test build", ExternalID: "t", Status: "queued",
	})
	if err != nil {
		t.Fatal(err)
	}
	r.drain(hub, time.Minute)
	if c := r.only(); c.Conclusion != "failure" {
		t.Errorf("GitHub shows %+v", c)
	}
}

// twoHubs are two processes on one database.
func twoHubs(t *testing.T, url string) (r *rig, other *store.DB, advance func(time.Duration)) {
	t.Helper()
	r = newRig(t, storetest.Open(t, url))
	other = storetest.Open(t, url)
	clock := storetest.NewClock(other)
	return r, other, func(d time.Duration) {
		r.clock.Advance(d)
		clock.Advance(d)
	}
}

// TestAKilledHubIsSucceededByAnother kills one of two Hubs at each step; the other one goes on once its lease is over.
func TestAKilledHubIsSucceededByAnother(t *testing.T) {
	t.Parallel()
	storetest.EachURL(t, func(t *testing.T, url string) {
		r, otherDB, advance := twoHubs(t, url)
		other := r.hubOn(otherDB)
		for i, point := range points[1:] {
			id := fmt.Sprintf("t%d", i)
			r.gh.Break(githubtest.Fault{Method: "POST", Path: "/check-runs", Times: 1, Status: http.StatusBadGateway, After: i%2 == 0})
			hub := r.hub()
			killed := hub.KillAt(point)
			v := r.view(id, checks.Completed)
			v.Annotations = annotations(3)
			r.show(v)
			for range 20 { // until it is dead, or done
				if r.once(hub); killed() {
					break
				}
				advance(time.Second)
			}
			begun := r.clock.Now()
			for r.pending(other) > 0 {
				if r.clock.Now().Sub(begun) > time.Minute {
					t.Fatalf("killed at %q: the other Hub doesn't go on", point)
				}
				next := r.once(other)
				advance(max(0, next.Sub(r.clock.Now())))
			}
		}
		all := r.repo.Checks(r.head())
		if len(all) != len(points)-1 {
			t.Errorf("GitHub has %d check runs, want %d", len(all), len(points)-1)
		}
		for _, c := range all {
			if c.Conclusion != "failure" {
				t.Errorf("GitHub shows %+v", c)
			}
			wantAnnotations(t, c, 3)
		}
	})
}

// TestTwoHubsAtOnceMakeEachCheckRunOnce has both work at the same time, on many check runs.
func TestTwoHubsAtOnceMakeEachCheckRunOnce(t *testing.T) {
	t.Parallel()
	storetest.EachURL(t, func(t *testing.T, url string) {
		r := newRig(t, storetest.Open(t, url))
		r.db.SetClock(time.Now)
		const all = 40
		for i := range all {
			r.show(r.view(fmt.Sprintf("t%d", i), checks.InProgress))
		}
		fast := checks.Options{Pace: time.Millisecond, Progress: time.Millisecond}
		hubs := []*checks.Reconciler{checks.New(r.db, r.holder, fast), checks.New(storetest.Open(t, url), r.holder, fast)}
		for _, h := range hubs {
			if err := h.Start(t.Context()); err != nil {
				t.Fatal(err)
			}
		}
		var shown sync.WaitGroup
		shown.Go(func() {
			for i := range all {
				show(t, r.db, r.view(fmt.Sprintf("t%d", i), checks.Completed))
			}
		})
		shown.Wait()
		eventually(t, func() bool { return r.pending(hubs[0]) == 0 })
		for _, h := range hubs {
			h.Stop()
		}
		got := r.repo.Checks(r.head())
		if len(got) != all {
			t.Errorf("GitHub has %d check runs, want %d", len(got), all)
		}
		for _, c := range got {
			if c.Conclusion != "failure" {
				t.Errorf("GitHub shows %+v", c)
			}
		}
	})
}

// TestAHubThatStoodStillChangesNothingForGood: it wakes up after its lease, and what it wrote late is written over.
func TestAHubThatStoodStillChangesNothingForGood(t *testing.T) {
	t.Parallel()
	storetest.EachURL(t, func(t *testing.T, url string) {
		r, otherDB, advance := twoHubs(t, url)
		slow, other := r.hub(), r.hubOn(otherDB)
		r.show(r.view("t", checks.InProgress))
		r.drain(slow, 5*time.Second)
		advance(time.Minute)
		asleep, wakeUp := slow.StopAt("did update")
		v := r.view("t", checks.InProgress)
		v.Text = text("old")
		r.show(v)
		var done sync.WaitGroup
		done.Go(func() { r.once(slow) })
		<-asleep
		advance(checks.Lease + time.Second)
		r.show(r.view("t", checks.Completed))
		for r.pending(other) > 0 {
			next := r.once(other)
			advance(max(0, next.Sub(otherDB.Now())))
		}
		wakeUp()
		done.Wait()
		if n := r.pending(other); n != 1 {
			t.Errorf("%d are pending: what may be older than what should be shown is written again", n)
		}
		for r.pending(other) > 0 {
			next := r.once(other)
			advance(max(0, next.Sub(otherDB.Now())))
		}
		if c := r.only(); c.Conclusion != "failure" || c.Text != "" {
			t.Errorf("GitHub shows %+v", c)
		}
	})
}

func TestAnInstallationThatAnotherHubWritesToIsLeftAlone(t *testing.T) {
	t.Parallel()
	storetest.EachURL(t, func(t *testing.T, url string) {
		r, otherDB, advance := twoHubs(t, url)
		slow, other := r.hub(), r.hubOn(otherDB)
		r.show(r.view("t", checks.InProgress))
		r.drain(slow, 5*time.Second)
		r.show(r.view("t", checks.Completed))
		r.show(r.view("u", checks.Completed))
		r.once(other) // finds out where it is installed
		advance(2 * time.Second)
		writes := len(r.written())
		asleep, wakeUp := slow.StopAt("claimed update")
		var done sync.WaitGroup
		done.Go(func() { r.once(slow) })
		<-asleep
		if err := other.Step(t.Context(), r.inst.ID); err != nil { // whatever it believes to be due
			t.Fatal(err)
		}
		if n := len(r.written()); n != writes {
			t.Errorf("two Hubs write to one installation at once: %d writes", n-writes)
		}
		wakeUp()
		done.Wait()
		if n := len(r.written()); n != writes+1 {
			t.Errorf("the one that holds it made %d writes", n-writes)
		}
	})
}

// TestTheNewestOfOneNameIsTheNewestAtGitHub: people and branch protection look at the newest check run of a name, so an
// older one must not be made after it.
func TestTheNewestOfOneNameIsTheNewestAtGitHub(t *testing.T) {
	t.Parallel()
	refused := githubtest.Fault{Status: http.StatusForbidden, Body: `{"message":"Resource not accessible by integration","documentation_url":"https://docs.github.com"}`}
	for name, c := range map[string]struct {
		fault githubtest.Fault // of the first one's POST
		want  string           // what GitHub has in the end, in the order in which it was made
	}{
		"nothing goes wrong":                   {githubtest.Fault{}, "first second"},
		"the first one's answer is lost":       {broken["no answer"], "first second"},
		"the first one may be under way":       {broken["no request"], "first second"},
		"the first one isn't taken for a time": {refused, "second"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			storetest.Each(t, func(t *testing.T, db *store.DB) {
				r := newRig(t, db)
				hub := r.hub()
				if c.fault.Status != 0 || c.fault.Cut != 0 {
					c.fault.Method, c.fault.Path, c.fault.Times = "POST", "/check-runs", 1
					r.gh.Break(c.fault)
				}
				r.show(r.view("first", checks.Queued))
				if c.fault.Status != 0 {
					r.drainUntil(hub, 10*time.Second, func() bool { return r.parked(hub) == 1 })
				} else {
					r.once(hub)
					r.once(hub)
				}
				r.show(r.view("second", checks.Completed)) // more urgent
				r.clock.Advance(time.Second)
				r.drain(hub, time.Minute)
				wakeUp(t, db, func(tx *store.Tx) error { return checks.WakeRepo(tx, github.RepoID(r.repo.ID)) })
				r.show(r.view("first", checks.Completed))
				r.drain(hub, time.Minute)
				if n := r.parked(hub); n != 0 {
					t.Errorf("%d are parked", n)
				}
				var got []string
				for _, check := range r.repo.Checks(r.head()) {
					got = append(got, check.ExternalID)
					if check.Conclusion != "failure" {
						t.Errorf("GitHub shows %+v", check)
					}
				}
				if s := strings.Join(got, " "); s != c.want {
					t.Errorf("GitHub has %q, want %q", s, c.want)
				}
			})
		})
	}
}
