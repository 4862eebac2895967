package runner

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/claude-hub/claude-hub/app/fleet"
	"github.com/claude-hub/claude-hub/envspec"
	"github.com/claude-hub/claude-hub/runner/image/imagetest"
	"github.com/claude-hub/claude-hub/runner/wire"
)

// gate holds requests back until it is opened, and says when one waits.
type gate struct {
	waits chan struct{}
	open  chan struct{}
}

func newGate() *gate { return &gate{make(chan struct{}, 100), make(chan struct{})} }

func (g *gate) pass(r *http.Request) {
	g.waits <- struct{}{}
	select {
	case <-g.open:
	case <-r.Context().Done():
	}
}

// waiting returns when a request waits.
func (g *gate) waiting(t *testing.T) {
	t.Helper()
	select {
	case <-g.waits:
	case <-time.After(limit):
		t.Fatal("nothing was asked for")
	}
}

// slowImage is an image whose layers come only once the gate is open.
func slowImage(t *testing.T, g *gate) string {
	host := imagetest.Registry(t, func(next http.Handler) http.Handler {
		return http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
			if r.Method == http.MethodGet && strings.Contains(r.URL.Path, "/blobs/") {
				g.pass(r)
			}
			next.ServeHTTP(rw, r)
		})
	})
	return imagetest.Push(t, host, "slow:v1", imagetest.Busybox(t, nil))
}

// slowRepo is a Repo whose clone hangs.
func slowRepo(t *testing.T, g *gate) string {
	s := httptest.NewServer(http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
		g.pass(r)
		http.NotFound(rw, r)
	}))
	t.Cleanup(s.Close)
	return s.URL + "/team/app.git"
}

func TestCancelWorksInEachPhaseAndLeavesNothing(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.start()
	app, url := w.image("app:v1", asCoder), w.repo()
	pull, cloning := newGate(), newGate()
	for _, c := range []struct {
		phase string
		spec  envspec.Spec
		url   string
		ready func(w *world, id string)
	}{
		{wire.PhaseImage, envspec.Spec{Image: slowImage(t, pull)}, url, func(w *world, _ string) { pull.waiting(w.t) }},
		{wire.PhaseBootstrap, envspec.Spec{Image: app, Bootstrap: "trap '' TERM; echo here; sleep 1000"}, url,
			func(w *world, id string) { w.untilLog(id, "here") }},
		{wire.PhaseClone, envspec.Spec{Image: app}, slowRepo(t, cloning), func(w *world, _ string) { cloning.waiting(w.t) }},
		{wire.PhaseStart, envspec.Spec{Image: app, Start: "trap '' TERM; echo here; sleep 1000"}, url,
			func(w *world, id string) { w.untilLog(id, "here") }},
	} {
		t.Run(c.phase, func(t *testing.T) {
			t.Parallel()
			w := w.as(t)
			id := w.test(c.spec, c.url)
			c.ready(w, id)
			began := time.Now()
			w.change(id, fleet.Stop)
			r := w.untilState(id, wire.StateCancelled)
			if took := time.Since(began); took > 20*time.Second {
				t.Errorf("it took %s", took)
			}
			d := testDetail(t, r)
			if last := d.Phases[len(d.Phases)-1]; last.Name != c.phase || last.State != wire.PhaseCancelled || d.Failure != nil {
				t.Errorf("detail: %+v", d)
			}
			if log := w.wholeLog(id); !strings.HasSuffix(log, "==> cancelled\n") {
				t.Errorf("log: %s", log)
			}
			w.nothingLeft(id)
			w.change(id, fleet.Remove)
			w.untilState(id, wire.StateRemoved)
			w.untilForgotten(id)
		})
	}
}

// untilForgotten waits until the Runner has no record of an assignment.
func (w *world) untilForgotten(id string) {
	w.t.Helper()
	for end := time.Now().Add(limit); time.Now().Before(end); time.Sleep(10 * time.Millisecond) {
		if _, err := os.Stat(w.runner.recordPath(id)); os.IsNotExist(err) {
			return
		}
	}
	w.t.Errorf("the Runner still has a record of %s", id)
}

// TestAKilledRunnerGoesOnWhereItWas kills the Runner's process in each phase. Each script says a numbered line ten times a
// second, so that a lost, doubled or disordered byte of log is seen, and that the script ran once.
func TestAKilledRunnerGoesOnWhereItWas(t *testing.T) {
	t.Parallel()
	const count = `i=0; while [ $i -lt 40 ]; do echo "NAME $i"; i=$((i+1)); sleep 0.1; done; echo NAME ran >>/tally; cat /tally`
	script := func(name string) string { return strings.ReplaceAll(count, "NAME", name) }
	for _, c := range []struct {
		phase string
		ready string // in the log before the kill
	}{
		{wire.PhaseBootstrap, "boot 5\n"},
		{wire.PhaseSnapshot, "boot ran\n"},
		{wire.PhaseClone, "==> clone: "},
		{wire.PhaseStart, "start 5\n"},
	} {
		t.Run(c.phase, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t)
			w.spawn()
			start := strings.ReplaceAll(script("start"), "/tally", "tally")
			id := w.test(envspec.Spec{Image: w.image("app:v1", nil), Bootstrap: script("boot"), Start: start}, w.repo())
			for range 3 {
				w.untilLog(id, c.ready)
				w.kill()
				w.spawn()
			}
			state, d := w.outcome(id)
			log := w.wholeLog(id)
			if state != wire.StatePassed {
				t.Fatalf("%s: %+v\n%s", state, d.Failure, log)
			}
			for _, name := range []string{"boot", "start"} {
				var want strings.Builder
				for i := range 40 {
					fmt.Fprintf(&want, "%s %d\n", name, i)
				}
				want.WriteString(name + " ran\n")
				var got strings.Builder
				for line := range strings.Lines(log) {
					if strings.HasPrefix(line, name+" ") {
						got.WriteString(line)
					}
				}
				if got.String() != want.String() {
					t.Errorf("the output of %s is not whole, once and in order:\n%s", name, log)
				}
			}
			if got := phases(d); got != "image:done bootstrap:done snapshot:done clone:done start:done" {
				t.Errorf("phases: %s", got)
			}
		})
	}
}

func TestAKillDuringThePullGoesOn(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	g := newGate()
	w.spawn()
	id := w.test(envspec.Spec{Image: slowImage(t, g)}, w.repo())
	g.waiting(t)
	w.kill()
	close(g.open)
	w.spawn()
	if state, d := w.outcome(id); state != wire.StatePassed {
		t.Fatalf("%s: %+v", state, d.Failure)
	}
}

func TestABootstrapWhoseSandboxIsGoneStartsAfresh(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.spawn()
	// As after a reboot of the host: no process is left, the disk has a half-made root filesystem.
	id := w.test(envspec.Spec{Image: w.image("app:v1", nil),
		Bootstrap: `[ -e /half ] && echo "half made"; echo x >/half; echo here; [ -e /host-is-up ] || sleep 3; echo done`}, w.repo())
	w.untilLog(id, "here")
	w.kill()
	if err := stopSandboxes(w); err != nil {
		t.Fatal(err)
	}
	w.spawn()
	state, d := w.outcome(id)
	log := w.wholeLog(id)
	if state != wire.StatePassed || strings.Contains(log, "half made") || !strings.Contains(log, "the bootstrap starts afresh") {
		t.Fatalf("%s: %+v\n%s", state, d.Failure, log)
	}
}

func TestAHubThatIsAwayAbortsNothing(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.start()
	id := w.test(envspec.Spec{Image: w.image("app:v1", nil), Bootstrap: "echo here; sleep 2; echo later"}, w.repo())
	w.untilLog(id, "here")
	w.down.Store(true)
	end := time.Now().Add(limit)
	for w.runner.builderIdle(id) == false {
		if time.Now().After(end) {
			t.Fatal("the Test build did not go on without the Hub")
		}
		time.Sleep(10 * time.Millisecond)
	}
	if r := w.newest(id); r.State != wire.StateRunning {
		t.Fatalf("the Hub heard %q while it was away", r.State)
	}
	w.down.Store(false)
	if state, _ := w.outcome(id); state != wire.StatePassed {
		t.Fatal(state)
	}
	if log := w.wholeLog(id); !strings.Contains(log, "later\n") {
		t.Fatalf("log: %s", log)
	}
}

// TestAnOutcomeIsReportedThoughTheRunnerWasKilledJustBefore is a kill between what the record says and its report.
func TestAnOutcomeIsReportedThoughTheRunnerWasKilledJustBefore(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.start()
	id := w.test(envspec.Spec{Image: w.image("app:v1", nil), Bootstrap: "echo here; sleep 1"}, w.repo())
	w.untilLog(id, "here")
	w.down.Store(true)
	for end := time.Now().Add(limit); ; time.Sleep(10 * time.Millisecond) {
		if r, _, ok := w.runner.spool.Newest(id); ok && r.State == wire.StatePassed {
			break
		}
		if time.Now().After(end) {
			t.Fatal("the Test build did not end")
		}
	}
	w.halt()
	if err := os.Remove(filepath.Join(Folder(w.data), "spool", "report", id+".json")); err != nil {
		t.Fatal(err)
	}
	w.start()
	w.down.Store(false)
	if state, d := w.outcome(id); state != wire.StatePassed || d.BuildKey == "" {
		t.Fatalf("%s %+v", state, d)
	}
}

func (r *Runner) builderIdle(id string) bool {
	r.mu.Lock()
	w := r.workers[id]
	r.mu.Unlock()
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.rec.Ended
}

func TestTheDeadlineHoldsWhileTheHubIsAway(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.start()
	id := w.testUntil(envspec.Spec{Image: w.image("app:v1", nil), Bootstrap: "echo here; sleep 1000"}, w.repo(), time.Now().Add(5*time.Second))
	w.untilLog(id, "here")
	w.down.Store(true)
	for end := time.Now().Add(limit); !w.runner.builderIdle(id); time.Sleep(10 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatal("the deadline did not end it")
		}
	}
	w.down.Store(false)
	state, d := w.outcome(id)
	if state != wire.StateFailed || d.Failure.Code != "timeout" || !strings.Contains(d.Failure.LastLines, "here") {
		t.Fatalf("%s: %+v", state, d.Failure)
	}
}

var peak = regexp.MustCompile(`VmHWM:\s+(\d+) kB`)

func TestAFloodOf200MBTakesBoundedMemory(t *testing.T) {
	t.Parallel()
	if testing.Short() {
		t.Skip("it takes 15 s")
	}
	w := newWorld(t)
	w.spawn()
	id := w.test(envspec.Spec{Image: w.image("app:v1", nil), Bootstrap: "echo first; yes 0123456789abcdef0123456789abcdef | head -c 200000000; echo; echo last"}, w.repo())
	state, d := w.outcome(id)
	if state != wire.StatePassed {
		t.Fatalf("%s: %+v", state, d.Failure)
	}
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", w.process.Process.Pid))
	if err != nil {
		t.Fatal(err)
	}
	m := peak.FindSubmatch(b)
	if m == nil {
		t.Fatal("no peak of memory is known")
	}
	if kb, _ := strconv.Atoi(string(m[1])); kb > 200<<10 {
		t.Errorf("the Runner took %d MB at its peak", kb>>10)
	} else {
		t.Logf("peak: %d MB", kb>>10)
	}
	log := w.wholeLog(id)
	if !strings.Contains(log, "first\n") || !strings.Contains(log, "\nlast\n") {
		t.Error("the log lacks its head or tail")
	}
}
