package runner

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/claude-hub/claude-hub/app/fleet"
	"github.com/claude-hub/claude-hub/envspec"
	"github.com/claude-hub/claude-hub/runner/wire"
)

// untilFile waits for a file on the host.
func (w *world) untilFile(name string) {
	w.t.Helper()
	for end := time.Now().Add(limit); ; time.Sleep(10 * time.Millisecond) {
		if _, err := os.Stat(name); err == nil {
			return
		}
		if time.Now().After(end) {
			w.t.Fatalf("%s never came", name)
		}
	}
}

// told fails unless c was answered, without any output since, with 125 and these words.
func (c *client) told(what string, words ...string) {
	c.w.t.Helper()
	r := c.end()
	if r.exit.Code != 125 || r.err != "" {
		c.w.t.Errorf("%s was answered %+v", what, r)
	}
	for _, say := range words {
		if !strings.Contains(r.exit.Failed, say) {
			c.w.t.Errorf("%s is told %q, and not %q", what, r.exit.Failed, say)
		}
	}
}

func TestAChannelOfASessionWhoseValuesWereReplacedIsToldToSleepAndWakeIt(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.owner.give("", sensitive("API_KEY", "the-old-value-that-still-runs", "v1", false))
	w.start()
	recipe, key := w.version(envspec.Spec{Image: w.image("app:v1", nil), Variables: []envspec.Variable{{Name: "API_KEY", Link: "SHARED"}}})
	id := w.session(recipe, key, w.repo())
	w.untilState(id, wire.StateRunning)
	running := w.open(id, wire.ChannelSpec{Argv: []string{"sh", "-c",
		`trap 'touch hung-up; exit 0' HUP; echo up; while [ ! -e more ]; do sleep 0.05; done; echo "$API_KEY"; touch printed; while :; do sleep 0.05; done`}})
	running.until("up\n")
	w.stop()
	w.owner.give("", sensitive("API_KEY", "the-new-value-of-the-link", "v2", false))
	folder := w.sessionFolder(id)
	if err := os.WriteFile(filepath.Join(folder, "more"), nil, 0o644); err != nil {
		t.Fatal(err)
	}
	w.untilFile(filepath.Join(folder, "printed"))
	w.start()
	running.told("an exec that ran before", replacedValues)
	if got := running.out[0].String(); got != "up\n" {
		t.Errorf("the exec's output: %q", got)
	}
	w.untilFile(filepath.Join(folder, "hung-up"))
	w.open(id, wire.ChannelSpec{Argv: []string{"touch", "was-run"}}).told("an exec", replacedValues)
	w.open(id, wire.ChannelSpec{TTY: true, Rows: 24, Cols: 80}).told("a terminal", replacedValues)
	w.change(id, fleet.Stop)
	w.untilState(id, wire.StateAsleep)
	w.change(id, fleet.Run)
	w.untilState(id, wire.StateRunning)
	if got := w.sh(id, `ls; [ "$API_KEY" = the-"new"-value-of-the-link ] && echo new`); !strings.HasSuffix(got, "\nnew\n") || strings.Contains(got, "was-run") {
		t.Errorf("after the wake: %q", got)
	}
	if n := w.fleet.Caught(); n != 0 {
		t.Errorf("the Hub caught %d values", n)
	}
}

func TestAChannelOfASessionWhoseValuesTheHubRefusesIsToldWhyAndServedOnceTheyCome(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	v := sensitive("API_KEY", "value-that-is-not-there-for-now", "s1", false)
	w.owner.give("", v)
	w.start()
	recipe, key := w.version(having(envspec.Spec{Image: w.image("app:v1", nil)}, v))
	id := w.session(recipe, key, w.repo())
	w.untilState(id, wire.StateRunning)
	w.stop()
	const sentence = "the Variable API_KEY has no value; set it on the Environment's page"
	w.owner.give(sentence)
	w.start()
	for range 2 {
		w.open(id, wire.ChannelSpec{Argv: []string{"touch", "was-run"}}).told("an exec", sentence+". After that, put the Session to sleep and wake it")
	}
	w.owner.give("", v)
	if got := w.sh(id, `ls; echo "$API_KEY"`); !strings.HasSuffix(got, "\n***\n") || strings.Contains(got, "was-run") {
		t.Errorf("an exec: %q", got)
	}
}
