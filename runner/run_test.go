package runner

import (
	"encoding/json"
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/claude-hub/claude-hub/app/fleet"
	"github.com/claude-hub/claude-hub/envspec"
	"github.com/claude-hub/claude-hub/runner/session"
	"github.com/claude-hub/claude-hub/runner/wire"
	"github.com/claude-hub/claude-hub/store"
)

// run assigns a headless run of a shell script.
func (w *world) run(session, script string, edit ...func(*wire.Run)) string {
	w.t.Helper()
	p := wire.Run{Session: session, Argv: []string{"sh", "-c", script}}
	for _, e := range edit {
		e(&p)
	}
	return w.assign(wire.KindRun, store.NewID(), p, time.Time{})
}

// ended waits for the end of a run, and has it removed as the Hub does.
func (w *world) ended(id string) wire.RunDetail {
	w.t.Helper()
	r := w.untilState(id, wire.StateEnded)
	var d wire.RunDetail
	if err := json.Unmarshal(r.Detail, &d); err != nil || d.Exit == nil {
		w.t.Fatalf("the end of a run: %s, %v", r.Detail, err)
	}
	w.change(id, fleet.Remove)
	w.untilState(id, wire.StateRemoved)
	return d
}

func TestARunGoesOnWhileTheRunnerIsKilledAndItsLogIsWholeAndMasked(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.start()
	const value = "correct horse battery"
	w.owner.give("", &wire.Value{Name: "SECRET", Value: []byte(value), Id: "v", Sensitive: true})
	spec := envspec.Spec{Image: w.image("app:v1", asCoder), Start: "sleep 1; echo made >from-start",
		Variables: []envspec.Variable{{Name: "SECRET", Sensitive: true, ValueID: "v"}}}
	recipe, key := w.version(spec)
	w.halt()
	w.spawn()
	id := w.session(recipe, key, w.repo())
	// It is asked for before there is a Sandbox, and begins when the start script has ended.
	run := w.run(id, `pwd; id -un; cat from-start; cat; echo once >>/tmp/times; echo "is $SECRET." >&2
		for i in $(seq 1 400); do echo line $i; [ $i = 100 ] && touch /tmp/going; sleep 0.01; done; exit 7`)
	w.untilLog(run, "line 5\n")
	w.untilState(run, wire.StateRunning)
	w.kill()
	w.spawn()
	w.untilLog(run, "line 200\n")
	w.kill()
	w.restartHub()
	w.spawn()
	d := w.ended(run)
	if d.Exit.Code != 7 || d.Exit.Failed != "" || d.Started == 0 {
		t.Errorf("it ended with %+v, %+v", d, d.Exit)
	}
	var want strings.Builder
	want.WriteString("/workspace\ncoder\nmade\nis [SECRET].\n")
	for i := range 400 {
		fmt.Fprintf(&want, "line %d\n", i+1)
	}
	got := w.wholeLog(run)
	if strings.Contains(got, value) {
		t.Error("the value is in the log")
	}
	masked, rest, _ := strings.Cut(got[strings.Index(got, "is ")+3:], ".\n")
	if got = strings.Replace(got, masked, "[SECRET]", 1); got != want.String() || masked == "" || rest == "" {
		t.Errorf("the log is\n%s", got)
	}
	if times := w.sh(id, "cat /tmp/times"); times != "once\n" {
		t.Errorf("it was run %q", times)
	}
	w.untilForgotten(run)
	if _, err := os.Stat(Folder(w.data) + "/assignments/" + run + ".json"); err == nil {
		t.Error("its record is still there")
	}
}

func TestARunKeepsItsSessionAwakeAlsoWhileItWaits(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.start()
	recipe, key := w.version(envspec.Spec{Image: w.image("app:v1", nil), Start: "until [ -e /tmp/go ]; do sleep 0.05; done"})
	id := w.session(recipe, key, w.repo(), func(p *wire.Session) { p.IdleMS = 700 })
	w.untilState(id, wire.StateRunning)
	run := w.run(id, "echo up; until [ -e /tmp/end ]; do sleep 0.05; done")
	busy := func(while string) {
		t.Helper()
		w.change(id, fleet.Stop)
		if r := w.until(id, "busy or asleep", func(r fleet.Report) bool { return r.State == wire.StateBusy || r.State == wire.StateAsleep }); r.State != wire.StateBusy {
			t.Fatalf("it falls asleep while a run %s", while)
		}
		w.change(id, fleet.Run)
		w.untilState(id, wire.StateRunning)
	}
	for end := time.Now().Add(limit); w.runner.session(id).Idle() != 0; time.Sleep(5 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatal("a run that waits is no activity")
		}
	}
	busy("waits")
	w.sh(id, "touch /tmp/go")
	w.untilLog(run, "up\n")
	busy("runs")
	w.sh(id, "touch /tmp/end")
	if d := w.ended(run); d.Exit.Code != 0 || d.Exit.Failed != "" {
		t.Errorf("it ended with %+v", d.Exit)
	}
	w.untilIdle(id, 700*time.Millisecond)
	w.change(id, fleet.Stop)
	w.untilState(id, wire.StateAsleep)
}

// session is the Machine of a Session in the Runner of this process.
func (r *Runner) session(id string) *session.Machine { return r.sessionWorker(id).machine }

func TestARunEndsWithItsSandboxAndNoneBeginsInASessionThatDoesNotComeUp(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.start()
	recipe, key := w.version(envspec.Spec{Image: w.image("app:v1", nil)})
	w.halt()
	w.spawn()
	id := w.session(recipe, key, w.repo())
	failed := func(run, says string) {
		t.Helper()
		if d := w.ended(run); d.Exit.Code != 125 || !strings.Contains(d.Exit.Failed, says) {
			t.Errorf("want an end that says %q: %+v", says, d.Exit)
		}
		w.wholeLog(run)
	}
	run := w.run(id, "echo up; exec sleep 1000")
	w.untilLog(run, "up")
	w.change(id, fleet.Stop)
	w.untilState(id, wire.StateAsleep)
	// It is asked to end like everything in the Sandbox; how it did may not come through any more.
	if d := w.ended(run); d.Exit.Code != 143 && d.Exit.Code != 125 || d.Exit.Failed != session.RunLost {
		t.Errorf("one that ran as its Session was put to sleep ended with %+v", d.Exit)
	}
	failed(w.run(id, "true"), "the Session was put to sleep before it began")

	// The Sandbox ends while no Runner looks.
	w.change(id, fleet.Run)
	w.untilState(id, wire.StateRunning)
	run = w.run(id, "echo up; exec sleep 1000")
	w.untilLog(run, "up")
	w.kill()
	if err := stopSandboxes(w); err != nil {
		t.Fatal(err)
	}
	w.spawn()
	failed(run, session.RunLost)
	w.untilState(id, wire.StateRunning)
	if got := w.sh(id, "echo here"); got != "here\n" {
		t.Errorf("the Session says %q", got)
	}

	none := w.session(recipe, key, w.repo()+"/nowhere")
	failed(w.run(none, "true"), "the Session could not start before it began")
	failed(w.run("00000000-0000-0000-0000-000000000000", "true"), "not on this Runner any more")
}

func TestTheEndOfARunIsToldAfterThatItsSessionIsUp(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.start()
	recipe, key := w.version(envspec.Spec{Image: w.image("app:v1", nil)})
	id := w.session(recipe, key, w.repo())
	w.untilState(id, wire.StateRunning)
	w.change(id, fleet.Stop)
	w.untilState(id, wire.StateAsleep)
	w.unheard.Store(&id)
	w.change(id, fleet.Run)
	run := w.run(id, "echo done")
	w.wholeLog(run) // it has ended
	time.AfterFunc(time.Second, func() { w.unheard.Store(nil) })
	w.untilState(run, wire.StateEnded)
	if state := w.newest(id).State; state != wire.StateRunning {
		t.Errorf("a run in it has ended, and the Hub hears that it is %s", state)
	}
}

func TestARunIsEndedWhenSomebodyStopsItOrItsTimeIsOver(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.start()
	recipe, key := w.version(envspec.Spec{Image: w.image("app:v1", nil)})
	id := w.session(recipe, key, w.repo())
	const sleeping = `n=0; for p in /proc/[0-9]*/comm; do read c 2>/dev/null <$p && [ "$c" = sleep ] && n=$((n+1)); done; echo $n`
	long := "echo up; sleep 1000 & while :; do sleep 1; done"
	gentle := w.run(id, "trap 'echo bye; exit 5' TERM; "+long)
	plain := w.run(id, long)
	deaf := w.run(id, "trap '' TERM; echo up; while :; do sleep 1; done")
	late := w.run(id, long, func(p *wire.Run) { p.LimitMS = 1500 })
	absent := w.run(id, "", func(p *wire.Run) { p.Argv = []string{"no-such-program"} })
	elsewhere := w.run(id, "", func(p *wire.Run) { p.Dir = "nowhere" })
	for _, run := range []string{gentle, plain, deaf} {
		w.untilLog(run, "up")
		w.change(run, fleet.Stop)
	}
	for _, c := range []struct {
		what, run, signal, says string
		code                    int
	}{
		{"gentle", gentle, "", "", 5}, {"plain", plain, "SIGTERM", "", 143}, {"deaf", deaf, "SIGKILL", "", 137},
		{"late", late, "SIGTERM", "its time limit of 1.5s was over", 124},
		{"absent", absent, "", "no-such-program", 127}, {"elsewhere", elsewhere, "", "/workspace/nowhere", 125},
	} {
		if d := w.ended(c.run); d.Exit.Code != c.code || d.Exit.Signal != c.signal || !strings.Contains(d.Exit.Failed, c.says) || (c.says == "") != (d.Exit.Failed == "") {
			t.Errorf("%s: it ended with %+v", c.what, d.Exit)
		}
	}
	if got := w.wholeLog(gentle); !strings.HasPrefix(got, "up\n") || !strings.HasSuffix(got, "bye\n") {
		t.Errorf("the log of a stopped run is %q", got)
	}
	if got := w.sh(id, sleeping); got != "0\n" {
		t.Errorf("processes that are left: %q", got)
	}
	// A run that is taken away while it runs leaves nothing either.
	gone := w.run(id, "trap '' TERM; echo up; exec sleep 1000")
	w.untilLog(gone, "up")
	w.change(gone, fleet.Remove)
	w.untilState(gone, wire.StateRemoved)
	if got := w.sh(id, sleeping); got != "0\n" {
		t.Errorf("processes that are left: %q", got)
	}
}
