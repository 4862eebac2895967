package runner

import (
	"context"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/claude-hub/claude-hub/app/fleet"
	"github.com/claude-hub/claude-hub/envspec"
	"github.com/claude-hub/claude-hub/runner/image"
	"github.com/claude-hub/claude-hub/runner/sandbox"
	"github.com/claude-hub/claude-hub/runner/wire"
)

func TestASessionThatTheHubNoLongerListsIsPutToSleepAndKept(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.start()
	recipe, key := w.version(envspec.Spec{Image: w.image("app:v1", nil)})
	id := w.session(recipe, key, w.repo())
	w.untilState(id, wire.StateRunning)
	w.sh(id, "echo work >mine")
	w.runner.take(nil, nil)
	wk := w.runner.workers[id]
	for end := time.Now().Add(limit); wk.machine.State().Awake; time.Sleep(10 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatal("it is still awake")
		}
	}
	if _, err := os.Stat(filepath.Join(w.runner.sessions, id)); err != nil {
		t.Fatalf("its disk: %v", err)
	}
	// The next list has it again, and it goes on.
	w.change(id, fleet.Run)
	for end := time.Now().Add(limit); !wk.machine.State().Awake; time.Sleep(10 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatal("it did not wake again")
		}
	}
	if got := w.sh(id, "cat mine"); got != "work\n" {
		t.Errorf("the Workspace: %q", got)
	}
}

func TestASandboxThatEndsByItselfIsBootedAgainUnlessItKeepsEnding(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.start()
	recipe, key := w.version(envspec.Spec{Image: w.image("app:v1", nil)})
	id := w.session(recipe, key, w.repo())
	w.untilState(id, wire.StateRunning)
	w.sh(id, "echo work >mine")
	if err := w.runner.engine.Stop(context.Background(), "s-"+sandbox.ID(id), 0); err != nil {
		t.Fatal(err)
	}
	d := sessionDetail(t, w.untilState(id, wire.StateFailed))
	if d.Failure.Code != "sandbox-ended" || !d.Workspace {
		t.Errorf("detail: %+v", d.Failure)
	}
	w.change(id, fleet.Run)
	w.untilState(id, wire.StateRunning)
	if got := w.sh(id, "cat mine"); got != "work\n" {
		t.Errorf("the Workspace: %q", got)
	}
}

func TestPruningKeepsTheNewestBuildsAndThoseInUse(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.cfg.KeepBuilds = 2
	w.start()
	img, url := w.image("app:v1", nil), w.repo()
	recipe, key := w.version(envspec.Spec{Image: img, Bootstrap: "echo 0"})
	id := w.session(recipe, key, url)
	w.untilState(id, wire.StateRunning)
	var keys []string
	for i := range 4 {
		tb := w.test(envspec.Spec{Image: img, Bootstrap: fmt.Sprintf("echo %d", i+1)}, url)
		state, d := w.outcome(tb)
		if state != wire.StatePassed {
			t.Fatalf("%s %+v", state, d.Failure)
		}
		keys = append(keys, d.BuildKey)
	}
	want := map[string]bool{key: true, keys[2]: true, keys[3]: true}
	for end := time.Now().Add(limit); ; time.Sleep(20 * time.Millisecond) {
		all, err := w.runner.builder.All(context.Background())
		if err != nil {
			t.Fatal(err)
		}
		got := map[string]bool{}
		for _, b := range all {
			got[b.Meta.Key] = true
		}
		if maps.Equal(got, want) {
			break
		}
		if time.Now().After(end) {
			t.Fatalf("builds: %v, want %v", got, want)
		}
	}
	w.change(id, fleet.Stop)
	w.untilState(id, wire.StateAsleep)
	// Nothing is mounted now, and image rm still must not take the layers from under the sleeping Session.
	if err := w.runner.images.Remove(context.Background(), img, nil); image.CodeOf(err) != image.InUse {
		t.Fatalf("want %s, got %v", image.InUse, err)
	}
	if holds, err := w.runner.images.Holds(); err != nil || len(holds) != len(want) {
		t.Fatalf("each build that is kept holds its image, and nothing else does: %v, %v", holds, err)
	}
	w.change(id, fleet.Run)
	w.untilState(id, wire.StateRunning)
	for i := range 2 {
		if state, d := w.outcome(w.test(envspec.Spec{Image: img, Bootstrap: fmt.Sprintf("echo %d", i+5)}, url)); state != wire.StatePassed {
			t.Fatalf("%s %+v", state, d.Failure)
		}
	}
	w.untilBuilds(3)
	// The disk of a build that nobody stands on any more is freed at once.
	w.change(id, fleet.Remove)
	w.untilState(id, wire.StateRemoved)
	w.untilBuilds(2)
}

func TestPruningKeepsABuildForAnotherEnvironmentThatUsesIt(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.cfg.KeepBuilds = 1
	w.start()
	img, url := w.image("app:v1", nil), w.repo()
	recipe, shared := w.version(envspec.Spec{Image: img, Bootstrap: "echo 0; sleep 1"})
	test := w.test(envspec.Spec{Image: img, Bootstrap: "echo 0; sleep 1"}, url)
	w.untilLog(test, "0\n")
	recipe.Environment = "another"
	id := w.session(recipe, shared, url) // waits for the build that is under way
	w.untilState(id, wire.StateRunning)
	w.change(id, fleet.Remove)
	w.untilState(id, wire.StateRemoved)
	var newest string
	for i := range 2 {
		state, d := w.outcome(w.test(envspec.Spec{Image: img, Bootstrap: fmt.Sprintf("echo %d", i+1)}, url))
		if state != wire.StatePassed {
			t.Fatalf("%s %+v", state, d.Failure)
		}
		newest = d.BuildKey
	}
	want := map[string]bool{shared: true, newest: true}
	for end := time.Now().Add(limit); ; time.Sleep(20 * time.Millisecond) {
		all, err := w.runner.builder.All(context.Background())
		if err != nil {
			t.Fatal(err)
		}
		got := map[string]bool{}
		for _, b := range all {
			got[b.Meta.Key] = true
		}
		if maps.Equal(got, want) {
			break
		}
		if time.Now().After(end) {
			t.Fatalf("builds: %v, want %v", got, want)
		}
	}
}

// untilBuilds waits until there are so many builds, each of which takes some space.
func (w *world) untilBuilds(want int) {
	w.t.Helper()
	for end := time.Now().Add(limit); ; time.Sleep(20 * time.Millisecond) {
		n, bytes, err := w.runner.builder.Usage(context.Background())
		if err == nil && n == want && bytes >= int64(n)<<14 {
			return
		}
		if time.Now().After(end) {
			w.t.Fatalf("%d builds of %d bytes, want %d: %v", n, bytes, want, err)
		}
	}
}

func TestAFailedWakeLeavesEverythingAsItWas(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.start()
	img := w.image("app:v1", nil)
	recipe, key := w.version(envspec.Spec{Image: img})
	id := w.session(recipe, key, w.repo())
	w.untilState(id, wire.StateRunning)
	w.sh(id, "echo tool >/usr/local/tool; echo work >mine")
	w.change(id, fleet.Stop)
	w.untilState(id, wire.StateAsleep)
	bad, badKey := w.version(envspec.Spec{Image: img, Bootstrap: "exit 1"})
	w.edit(id, fleet.Run, func(p *wire.Session) { p.Recipe, p.BuildKey, p.Version = bad, badKey, 2 })
	if d := sessionDetail(t, w.untilState(id, wire.StateFailed)); !d.Workspace || d.Version != 1 {
		t.Errorf("detail: %+v", d)
	}
	w.edit(id, fleet.Run, func(p *wire.Session) { p.Recipe, p.BuildKey, p.Version = recipe, key, 1 })
	w.untilState(id, wire.StateRunning)
	if got := w.sh(id, "cat /usr/local/tool mine"); got != "tool\nwork\n" {
		t.Errorf("after the failed wake: %q", got)
	}
}

func TestASessionsStartIsEndedByStopAndRemoveInEachPhase(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.start()
	app, url := w.image("app:v1", nil), w.repo()
	cloning := newGate()
	long, longKey := w.version(envspec.Spec{Image: app, Bootstrap: "echo here; sleep 1000"})
	fine, fineKey := w.version(envspec.Spec{Image: app})
	hung := slowRepo(t, cloning)
	for _, c := range []struct {
		name  string
		id    func(w *world) string
		ready func(w *world, id string)
	}{
		{"build", func(w *world) string { return w.session(long, longKey, url) }, func(w *world, id string) { w.untilLog(id, "here") }},
		{"clone", func(w *world) string { return w.session(fine, fineKey, hung) }, func(w *world, _ string) { cloning.waiting(w.t) }},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			w := w.as(t)
			id := c.id(w)
			c.ready(w, id)
			w.change(id, fleet.Stop)
			if d := sessionDetail(t, w.untilState(id, wire.StateAsleep)); d.Workspace {
				t.Errorf("detail: %+v", d)
			}
			w.change(id, fleet.Run)
			c.ready(w, id)
			w.change(id, fleet.Remove)
			w.untilState(id, wire.StateRemoved)
			w.untilForgotten(id)
			if _, err := os.Stat(filepath.Join(w.runner.sessions, id)); !os.IsNotExist(err) {
				t.Error("its disk is left")
			}
		})
	}
}

func TestASessionsStartSurvivesKillsOfTheRunner(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.start()
	recipe, key := w.version(envspec.Spec{Image: w.image("app:v1", nil), Bootstrap: "i=0; while [ $i -lt 30 ]; do echo boot $i; i=$((i+1)); sleep 0.1; done"})
	w.halt()
	w.spawn()
	id := w.session(recipe, key, w.repo())
	for _, words := range []string{"boot 3\n", "boot 20\n", "==> snapshot", "==> clone"} {
		w.untilLog(id, words)
		w.kill()
		w.spawn()
	}
	w.untilState(id, wire.StateRunning)
	log := w.log(id)
	for i := range 30 {
		if n := strings.Count(log, fmt.Sprintf("\nboot %d\n", i)); n != 1 {
			t.Errorf("line %d of the bootstrap came %d times:\n%s", i, n, log)
			break
		}
	}
	if got := w.sh(id, "cat README"); got != "hello\n" {
		t.Errorf("the Workspace: %q", got)
	}
}
