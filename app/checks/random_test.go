package checks_test

import (
	"flag"
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/claude-hub/claude-hub/app/checks"
	"github.com/claude-hub/claude-hub/store"
	"github.com/claude-hub/claude-hub/store/storetest"
)

var seeds = flag.Int("seeds", 8, "how many random stories to try")

// TestWhateverHappensGitHubAgreesInTheEnd mixes lives of check runs with failures of GitHub, deaths of Hubs and suspensions,
// at random but the same in each run; a subtest's name is its seed. When all of that is over, GitHub agrees within a minute.
func TestWhateverHappensGitHubAgreesInTheEnd(t *testing.T) {
	t.Parallel()
	for seed := range *seeds {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			t.Parallel()
			c := &chaos{rig: newRig(t, storetest.New(t)), rand: rand.New(rand.NewPCG(uint64(seed), 1)), killed: func() bool { return false }}
			c.hub = c.rig.hub()
			for range 120 {
				c.something()
			}
			c.end()
		})
	}
}

type chaos struct {
	*rig
	rand      *rand.Rand
	hub       *checks.Reconciler
	killed    func() bool
	lives     []*life
	mend      []func()
	suspended bool
}

// life is a check run on its way.
type life struct {
	view  checks.View
	texts int
}

var paths = []string{"/check-runs", "/check-runs", "/check-runs", "/installation", "/access_tokens", "/commits"}

func (c *chaos) something() {
	switch n := c.rand.IntN(20); {
	case n < 8:
		c.live()
	case n < 11:
		f := broken[[]string{"502 that did the work", "502 that did not", "no answer", "no request", "half an answer"}[c.rand.IntN(5)]]
		f.Method, f.Path, f.Times = []string{"", "GET", "POST", "PATCH"}[c.rand.IntN(4)], paths[c.rand.IntN(len(paths))], 1+c.rand.IntN(3)
		c.mend = append(c.mend, c.gh.Break(f))
	case n == 11:
		c.hub = c.rig.hub()
		c.killed = c.hub.KillAt(points[1+c.rand.IntN(len(points)-1)])
	case n == 12:
		c.suspend(!c.suspended)
	default:
		c.clock.Advance(time.Duration(c.rand.IntN(5000)) * time.Millisecond)
		c.round()
	}
}

// round has the present Hub do what is due; a dead one is succeeded.
func (c *chaos) round() time.Time {
	next := c.once(c.hub)
	if c.killed() {
		c.hub, c.killed = c.rig.hub(), func() bool { return false }
	}
	return next
}

func (c *chaos) suspend(yes bool) {
	c.suspended = yes
	c.inst.Suspend(yes)
	wakeUp(c.t, c.db, func(tx *store.Tx) error { return checks.Wake(tx, c.inst.ID) })
}

// live begins a check run, of which two have each name, or goes on with one.
func (c *chaos) live() {
	if n := len(c.lives); n == 0 || n < 8 && c.rand.IntN(3) == 0 {
		v := c.view(fmt.Sprint("t", n), checks.Queued)
		v.Name = fmt.Sprint("check ", n/2)
		c.lives = append(c.lives, &life{view: v})
		c.show(v)
		c.clock.Advance(time.Millisecond)
		return
	}
	l := c.lives[c.rand.IntN(len(c.lives))]
	switch l.texts++; {
	case l.view.Status == checks.Queued:
		l.view.Status = checks.InProgress
	case l.view.Status == checks.InProgress && c.rand.IntN(3) == 0:
		c.complete(l)
		return
	}
	l.view.Text = text(fmt.Sprintf("text %d", l.texts))
	if c.rand.IntN(2) == 0 {
		l.view.Annotations = annotations(max(len(l.view.Annotations), c.rand.IntN(130)))
	}
	c.show(l.view)
}

func (c *chaos) complete(l *life) {
	if l.view.Status != checks.Completed {
		l.view.Status, l.view.Conclusion = checks.Completed, "failure"
		c.show(l.view)
	}
}

func (c *chaos) end() {
	c.t.Helper()
	for _, l := range c.lives {
		c.complete(l)
	}
	for _, mend := range c.mend {
		mend()
	}
	c.suspend(false)
	c.hub, c.killed = c.rig.hub(), func() bool { return false } // which doesn't die
	c.until(time.Minute, c.concluded)
	c.until(5*time.Minute, func() bool { return c.pending(c.hub) == 0 }) // annotations may take longer
	if n := c.parked(c.hub); n != 0 {
		c.t.Errorf("%d are parked", n)
	}
	c.compare()
}

func (c *chaos) until(limit time.Duration, done func() bool) {
	c.t.Helper()
	for began := c.clock.Now(); !done(); {
		next := c.round()
		if took := c.clock.Now().Sub(began); took > limit {
			c.t.Fatalf("%d check runs are not shown after %s", c.pending(c.hub), took)
		}
		c.clock.Advance(max(0, next.Sub(c.clock.Now())))
	}
}

// concluded says that nothing at GitHub is still in progress, and that the newest of each name is there.
func (c *chaos) concluded() bool {
	there := map[string]bool{}
	for _, check := range c.repo.Checks(c.head()) {
		if check.Status != "completed" {
			return false
		}
		there[check.ExternalID] = true
	}
	for i, l := range c.lives {
		if newest := i%2 == 1 || i == len(c.lives)-1; newest && !there[l.view.ExternalID] {
			return false
		}
	}
	return true
}

// compare holds what GitHub has against what should be shown.
func (c *chaos) compare() {
	c.t.Helper()
	want, newest := map[string]checks.View{}, map[string]string{}
	for _, l := range c.lives {
		want[l.view.ExternalID], newest[l.view.Name] = l.view, l.view.ExternalID
	}
	there, last := map[string]int{}, map[string]string{}
	for _, got := range c.repo.Checks(c.head()) {
		there[got.ExternalID]++
		last[got.Name] = got.ExternalID
		v := want[got.ExternalID]
		if got.Conclusion != v.Conclusion || got.Text != v.Text.String() || got.Summary != v.Summary.String() {
			c.t.Errorf("GitHub shows %s as %s with %q, want %s with %q", got.ExternalID, got.Conclusion, got.Text, v.Conclusion, v.Text)
		}
		wantAnnotations(c.t, got, len(v.Annotations))
	}
	for id, n := range there {
		if n != 1 {
			c.t.Errorf("GitHub has %d check runs of %s", n, id)
		}
	}
	for name, id := range newest {
		if last[name] != id {
			c.t.Errorf("the newest %q at GitHub is %q, want %q", name, last[name], id)
		}
	}
}
