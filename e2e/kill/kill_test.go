// Package kill is the kill test: Hub, Runner, or both are ended by SIGKILL at random moments of Test builds and Sessions,
// and started again. It checks that nothing acknowledged is lost, that no result comes twice, and that everything comes
// to rest (facts/reliability.md §5, P17–P21).
//
// make kill ROUNDS=50 SEED=n replays the plan of a seed: what is under way, when who is killed, and for how long. How far
// the work has come at those moments still varies with the machine.
package kill

import (
	"context"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"sync"
	"syscall"
	"testing"
	"time"

	v1 "github.com/google/go-containerregistry/pkg/v1"

	"github.com/claude-hub/claude-hub/e2e/world"
	"github.com/claude-hub/claude-hub/handlers/api/client"
	"github.com/claude-hub/claude-hub/handlers/api/schema"
	"github.com/claude-hub/claude-hub/runner/image/imagetest"
	"github.com/claude-hub/claude-hub/store/storetest"
)

var (
	rounds   = flag.Int("rounds", 4, "how many rounds")
	seed     = flag.Uint64("seed", 1, "of the plan")
	only     = flag.String("only", "", "kill only after this, in the words of the plan, such as \"build: start\"")
	database = flag.String("database", "", "URL of the Hub's database; empty: SQLite; \"postgres\": one of our own")
)

// restWithin is how long after the last restart everything has to be at rest.
const restWithin = 90 * time.Second

// result is what the last line says.
var result tally

func TestMain(m *testing.M) {
	flag.Parse()
	code := m.Run()
	if result.lost+result.doubled+result.stuck > 0 && code == 0 {
		code = 1
	}
	fmt.Printf("rounds=%d lost=%d doubled=%d stuck=%d seed=%d\n", result.rounds, result.lost, result.doubled, result.stuck, *seed)
	os.Exit(code)
}

// tally counts what went wrong, and says it at once. Its methods may be called from many goroutines.
type tally struct {
	mu                           sync.Mutex
	rounds, lost, doubled, stuck int
}

func (y *tally) count(t testing.TB, n *int, kind, format string, a ...any) {
	y.mu.Lock()
	*n++
	y.mu.Unlock()
	say("%s: "+format, append([]any{kind}, a...)...)
	t.Errorf("%s: "+format, append([]any{kind}, a...)...)
}

// say prints what happens while it happens: a run of fifty rounds takes many minutes.
func say(format string, a ...any) {
	fmt.Printf("%s "+format+"\n", append([]any{time.Now().UTC().Format("15:04:05.000")}, a...)...)
}

// kills is one run of the test.
type kills struct {
	t     *testing.T
	w     *world.World
	c     *client.Client
	repo  int64
	image string

	world.Turns

	slots [slots]*session
	tests []*testBuild
	// versions that an Apply acknowledged, by number.
	versions map[int]schema.Version
}

func TestNothingIsLostWhenKilled(t *testing.T) {
	ctx, stop := signal.NotifyContext(t.Context(), syscall.SIGINT, syscall.SIGTERM)
	defer stop()
	if deadline, ok := t.Deadline(); ok { // a test that panics on its timeout cleans nothing up
		var cancel context.CancelFunc
		ctx, cancel = context.WithDeadline(ctx, deadline.Add(-90*time.Second))
		defer cancel()
	}
	k := begin(ctx, t)
	p := newPlanner(*seed)
	for i := range *rounds {
		k.round(ctx, p.round(i))
		if ctx.Err() != nil {
			t.Fatalf("stopped in round %d: %v", i, context.Cause(ctx))
		}
		result.rounds++
		if result.stuck > 3 {
			t.Fatal("too much is stuck to go on")
		}
	}
	k.finish(ctx)
}

// begin makes a World with an applied Environment.
func begin(ctx context.Context, t *testing.T) *kills {
	url := *database
	if url == "postgres" {
		url = storetest.PostgreSQL(t)
	}
	w := world.New(t, world.Options{Database: url, Hub: map[string]string{"session_disk": "2GiB"}, Runner: map[string]string{"build_disk": "2GiB"}})
	c, err := client.New(w.URL, w.Token, nil)
	if err != nil {
		t.Fatal(err)
	}
	repo, err := c.Repo(ctx, w.Repo)
	if err != nil {
		t.Fatal(err)
	}
	k := &kills{t: t, w: w, c: c, repo: repo.ID, versions: map[int]schema.Version{}}
	k.image = w.Push("tools:1", imagetest.Busybox(t, func(c *v1.ConfigFile) { c.Config.User = "coder" }))
	quiet := plan{number: -1, build: buildPlan{kind: passes, bootLines: 3, startLines: 3, apply: true}}
	r := k.newRound(ctx, quiet)
	r.testBuild()
	r.cancel()
	if t.Failed() || len(k.versions) != 1 {
		t.Fatal("the Environment could not be applied before anything was killed")
	}
	return k
}

// round is one round: its actors do what the plan says, while the test's own goroutine kills.
type round struct {
	*kills
	plan   plan
	ctx    context.Context
	cancel context.CancelFunc

	mu     sync.Mutex
	doing  map[string]string // actor → what it is at
	events map[string]chan struct{}
}

func (k *kills) newRound(ctx context.Context, p plan) *round {
	r := &round{kills: k, plan: p, doing: map[string]string{}, events: map[string]chan struct{}{}}
	r.ctx, r.cancel = context.WithCancel(ctx)
	return r
}

// event is closed when what it names has happened for the first time in this round.
func (r *round) event(name string) chan struct{} {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.events[name] == nil {
		r.events[name] = make(chan struct{})
	}
	return r.events[name]
}

func (r *round) happened(name string) {
	c := r.event(name)
	r.mu.Lock()
	defer r.mu.Unlock()
	select {
	case <-c:
	default:
		close(c)
	}
}

// at notes what an actor is doing, for the report when it is stuck there, and lets kills wait for it.
func (r *round) at(actor, event string) {
	r.mu.Lock()
	r.doing[actor] = event
	r.mu.Unlock()
	if event != "" {
		r.happened(event)
	}
}

func (k *kills) round(ctx context.Context, p plan) {
	began := time.Now()
	say("round %d: %s", p.number, p)
	r := k.newRound(ctx, p)
	var actors sync.WaitGroup
	over := false
	defer func() { // also when starting a process again failed the test
		r.cancel()
		actors.Wait()
		if !over && ctx.Err() == nil {
			result.count(k.t, &result.stuck, "stuck", "round %d: a killed process could not be started again", p.number)
		}
	}()
	actors.Go(r.testBuild)
	for slot := range k.slots {
		actors.Go(func() { r.work(slot) })
	}
	done := make(chan struct{})
	go func() { actors.Wait(); close(done) }()
	for _, kp := range p.kills {
		r.kill(kp, done)
	}
	select {
	case <-done:
	case <-ctx.Done():
	case <-time.After(restWithin):
		r.mu.Lock()
		for actor, event := range r.doing {
			if event != "" {
				result.count(k.t, &result.stuck, "stuck", "round %d: %s is still at %q, %s after the last restart", p.number, actor, event, restWithin)
			}
		}
		r.mu.Unlock()
	}
	over = true
	if ctx.Err() == nil && r.plan.number >= 0 {
		r.cancel()
		actors.Wait()
		r.check(ctx)
	}
	say("round %d took %s", p.number, time.Since(began).Round(time.Millisecond))
}

// kill waits for its moment, kills, and after the outage starts again what it killed.
func (r *round) kill(kp killPlan, done <-chan struct{}) {
	select {
	case <-r.event(kp.on):
	case <-time.After(kp.fallback):
	case <-done:
	case <-r.ctx.Done():
		return
	}
	r.wait(kp.jitter)
	if r.ctx.Err() != nil {
		return
	}
	r.mu.Lock()
	say("round %d: kill %s while %v", r.plan.number, kp.who(), r.doing)
	r.mu.Unlock()
	r.Turn()
	if kp.hub && kp.hubFirst {
		r.w.Hub.Kill()
	}
	if kp.runner {
		r.w.Runner.Kill()
	}
	if kp.hub && !kp.hubFirst {
		r.w.Hub.Kill()
	}
	r.wait(kp.outage)
	r.w.Restart()
	r.Turn()
}

// wait lets a random time of the plan pass.
func (r *round) wait(d time.Duration) {
	select {
	case <-time.After(d):
	case <-r.ctx.Done():
	}
}
