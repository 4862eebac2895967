package runner

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/claude-hub/claude-hub/app/fleet"
	"github.com/claude-hub/claude-hub/envspec"
	"github.com/claude-hub/claude-hub/runner/build"
	"github.com/claude-hub/claude-hub/runner/redact"
	"github.com/claude-hub/claude-hub/runner/spool"
	"github.com/claude-hub/claude-hub/runner/wire"
)

// A Runner that is killed after a Test build's end was decided, and before it was told, must not run its scripts again
// (found by the kill test).
func TestAnOutcomeThatWasDecidedBeforeAKillIsReportedAndNothingRunsAgain(t *testing.T) {
	t.Parallel()
	decided := &wire.Failure{Phase: wire.PhaseBootstrap, Code: build.CodeExit, Message: "decided"}
	end := func(rec *record) { rec.Ended, rec.Outcome, rec.Failure = true, wire.StateFailed, decided }
	for name, c := range map[string]struct {
		decide func(*record)
		said   bool
	}{
		"before its Sandbox was given up": {decide: func(rec *record) { rec.Marks.Failed = decided }},
		"before its last mark":            {decide: end},
		"after its last mark":             {decide: end, said: true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t)
			w.spawn()
			id := w.test(envspec.Spec{Image: w.image("app:v1", nil), Bootstrap: "echo here; [ -e /never ] || sleep 1000"}, w.repo())
			w.untilLog(id, "here\n")
			w.kill()
			rec := w.rewrite(id, c.decide)
			if c.said {
				appendMark(t, w, rec, "failed: decided")
			}
			w.spawn()
			state, d := w.outcome(id)
			if state != wire.StateFailed || d.Failure == nil || d.Failure.Message != "decided" {
				t.Errorf("%s: %+v", state, d.Failure)
			}
			log := w.wholeLog(id)
			if strings.Count(log, "here\n") != 1 || strings.Count(log, "==> failed: decided\n") != 1 || !strings.HasSuffix(log, "==> failed: decided\n") {
				t.Errorf("log: %s", log)
			}
			if disks, err := filepath.Glob(filepath.Join(Folder(w.data), "build", "disks", "*"+id)); err != nil || len(disks) > 0 {
				t.Errorf("disks are left: %v %v", disks, err)
			}
		})
	}
}

// A Session's start is one attempt as well, and a Retry another.
func TestABootstrapThatFailedBeforeAKillIsNotRunAgainBeforeARetry(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.start()
	recipe, key := w.version(envspec.Spec{Image: w.image("app:v1", nil), Bootstrap: "echo here; [ -e /never ] || sleep 1000"})
	w.stop()
	w.spawn()
	id := w.session(recipe, key, w.repo())
	w.untilLog(id, "here\n")
	w.kill()
	w.rewrite(id, func(rec *record) {
		rec.Session.Build.Failed = &wire.Failure{Phase: wire.PhaseBootstrap, Code: build.CodeExit, Message: "decided"}
	})
	w.spawn()
	if d := sessionDetail(t, w.untilState(id, wire.StateFailed)); d.Failure == nil || d.Failure.Message != "decided" {
		t.Errorf("%+v", d.Failure)
	}
	if log := w.log(id); strings.Count(log, "here\n") != 1 {
		t.Errorf("log: %s", log)
	}
	w.change(id, fleet.Run)
	w.untilLog(id, "here\n==> failed: decided\n==> bootstrap: as root")
	for end := time.Now().Add(limit); strings.Count(w.log(id), "here\n") != 2; time.Sleep(10 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("a Retry did not build again:\n%s", w.log(id))
		}
	}
}

// rewrite changes what a Runner that is not running has stored of an assignment.
func (w *world) rewrite(id string, change func(*record)) record {
	w.t.Helper()
	path := filepath.Join(Folder(w.data), "assignments", id+".json")
	b, err := os.ReadFile(path)
	if err != nil {
		w.t.Fatal(err)
	}
	var rec record
	if err := json.Unmarshal(b, &rec); err != nil {
		w.t.Fatal(err)
	}
	change(&rec)
	if b, err = json.Marshal(rec); err != nil {
		w.t.Fatal(err)
	}
	if err := build.WriteFile(path, b, false); err != nil {
		w.t.Fatal(err)
	}
	return rec
}

// appendMark writes to the spool of a Runner that is not running.
func appendMark(t *testing.T, w *world, rec record, text string) {
	t.Helper()
	s, err := spool.Open(filepath.Join(Folder(w.data), "spool"), spool.Options{})
	if err != nil {
		t.Fatal(err)
	}
	st, err := s.Stream(rec.ID, rec.Fence)
	if err != nil {
		t.Fatal(err)
	}
	build.NewLog(&redact.Set{}, st).Mark("%s", text)
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
}
