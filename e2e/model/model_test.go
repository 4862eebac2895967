// Package model is the property test of Sessions: random operations on several Sessions at once, with the real engine and Hub and Runner
// as real processes that are killed meanwhile, against a model of each Workspace's bytes, modes and links. At the end every Workspace is as
// its model says, and no Session is stuck (issue 5 item 5).
//
// make model OPS=1000 SEED=n replays the plan of a seed. How far operations have come when something is killed varies with the machine.
package model

import (
	"context"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/claude-hub/claude-hub/e2e/world"
	"github.com/claude-hub/claude-hub/handlers/api/client"
	"github.com/claude-hub/claude-hub/runner/image/imagetest"
)

var (
	operations = flag.Int("ops", 40, "how many operations, kills included")
	sessions   = flag.Int("sessions", 3, "how many Sessions")
	seed       = flag.Uint64("seed", 1, "of the plan")
)

// opLimit is how long one operation may take, kills meanwhile included.
const opLimit = 3 * time.Minute

// tally counts what went wrong.
type tally struct {
	mu                 sync.Mutex
	kills, lost, stuck int
}

// result is what the last line says.
var result tally

func TestMain(m *testing.M) {
	flag.Parse()
	code := m.Run()
	fmt.Printf("ops=%d sessions=%d kills=%d lost=%d stuck=%d seed=%d\n", *operations, *sessions, result.kills, result.lost, result.stuck, *seed)
	os.Exit(code)
}

// model is one run of the test.
type model struct {
	world.Turns
	t     *testing.T
	w     *world.World
	c     *client.Client
	repo  int64
	image string
	slots []*slot

	mu      sync.Mutex
	done    []string   // what was done, with kills, in its order
	version sync.Mutex // one new version at a time
	number  int        // of versions that were made
}

// note keeps a line of what was done, for the report of a failure.
func (m *model) note(format string, a ...any) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.done = append(m.done, time.Now().UTC().Format("15:04:05.000 ")+fmt.Sprintf(format, a...))
}

// fault counts and reports what went wrong with a Session, with what was done with it before, and kills.
func (s *slot) fault(n *int, kind, format string, a ...any) {
	result.mu.Lock()
	*n++
	result.mu.Unlock()
	what := kind + ": " + fmt.Sprintf(format, a...)
	s.note("%s", what)
	s.t.Error(what)
	s.mu.Lock()
	defer s.mu.Unlock()
	fmt.Printf("%s\nbefore it (make model OPS=%d SESSIONS=%d SEED=%d):\n", what, *operations, *sessions, *seed)
	for _, line := range s.done {
		if strings.Contains(line, s.String()) || strings.Contains(line, "kill -9") || strings.Contains(line, "up again") {
			fmt.Println("  " + line)
		}
	}
}

func TestEveryWorkspaceIsAsTheModelSays(t *testing.T) {
	ctx, stop := signal.NotifyContext(t.Context(), syscall.SIGINT, syscall.SIGTERM)
	defer stop()
	if deadline, ok := t.Deadline(); ok { // a test that panics on its timeout cleans nothing up
		var cancel context.CancelFunc
		ctx, cancel = context.WithDeadline(ctx, deadline.Add(-60*time.Second))
		defer cancel()
	}
	m := begin(ctx, t)
	m.play(ctx, draw(*seed, *operations, *sessions))
	if ctx.Err() != nil {
		t.Fatalf("stopped: %v", context.Cause(ctx))
	}
	m.finish(ctx)
}

// begin makes a World with an applied Environment and the Sessions.
func begin(ctx context.Context, t *testing.T) *model {
	w := world.New(t, world.Options{Hub: map[string]string{"session_disk": "1GiB"}, Runner: map[string]string{"build_disk": "1GiB", "pids": "1024"}})
	c, err := client.New(w.URL, w.Token, nil)
	if err != nil {
		t.Fatal(err)
	}
	repo, err := c.Repo(ctx, w.Repo)
	if err != nil {
		t.Fatal(err)
	}
	m := &model{t: t, w: w, c: c, repo: repo.ID, image: w.Push("tools:1", imagetest.Busybox(t, nil))}
	if err := m.newVersion(ctx); err != nil {
		t.Fatal(err)
	}
	var all sync.WaitGroup
	for i := range *sessions {
		s := &slot{model: m, number: i}
		m.slots = append(m.slots, s)
		all.Go(func() {
			if err := s.start(ctx); err != nil {
				s.broken = true
				t.Errorf("start Session %d: %v", i, err)
			}
		})
	}
	all.Wait()
	if t.Failed() {
		t.FailNow()
	}
	return m
}

// play has the plan's operations begin in their order: those of one Session one after the other, those of different Sessions, and
// kills, at any moment of each other.
func (m *model) play(ctx context.Context, plan []op) {
	var all sync.WaitGroup
	queues := make([]chan op, len(m.slots))
	for i, s := range m.slots {
		queues[i] = make(chan op, 1)
		all.Go(func() {
			for o := range queues[i] {
				s.do(ctx, o)
			}
		})
	}
	began := time.Now()
	for i, o := range plan {
		if i > 0 && i%50 == 0 {
			fmt.Printf("%d operations after %s\n", i, time.Since(began).Round(time.Second))
		}
		if o.slot < 0 {
			m.kill(o)
			continue
		}
		select {
		case queues[o.slot] <- o:
		case <-ctx.Done():
		}
	}
	for _, q := range queues {
		close(q)
	}
	all.Wait()
}

func (m *model) kill(o op) {
	m.note("%s", o)
	result.mu.Lock()
	result.kills++
	result.mu.Unlock()
	m.Turn()
	if o.hub {
		m.w.Hub.Kill()
	}
	if o.runner {
		m.w.Runner.Kill()
	}
	<-time.After(o.outage)
	m.w.Restart()
	m.Turn()
	m.note("op %d: up again", o.n)
}

// finish looks at every Workspace twice: as it is, and after a sleep.
func (m *model) finish(ctx context.Context) {
	var all sync.WaitGroup
	for _, s := range m.slots {
		if s.broken {
			continue
		}
		all.Go(func() {
			for i, what := range []string{"settle", "read", "sleep", "wake", "read", "exec"} {
				s.do(ctx, op{n: *operations + i, slot: s.number, what: what})
			}
		})
	}
	all.Wait()
	m.w.Runner.Stop()
	m.w.Hub.Stop()
}

func TestThePlanOfASeedIsAlwaysTheSame(t *testing.T) {
	t.Parallel()
	a, b := draw(7, 500, 8), draw(7, 500, 8)
	if !slices.Equal(a, b) || slices.Equal(a, draw(8, 500, 8)) {
		t.Error("the plan depends on something else than its seed, or not on that")
	}
	seen := map[string]bool{}
	for _, o := range a {
		seen[o.what] = true
	}
	for _, w := range slices.Concat(whileRunning, whileAsleep) {
		if !seen[w.what] {
			t.Errorf("no %s in 500 operations", w.what)
		}
	}
	if !seen["kill"] {
		t.Error("no kill in 500 operations")
	}
}
