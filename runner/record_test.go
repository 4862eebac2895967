package runner

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/claude-hub/claude-hub/envspec"
	"github.com/claude-hub/claude-hub/runner/build"
	"github.com/claude-hub/claude-hub/runner/redact"
	"github.com/claude-hub/claude-hub/runner/session"
	"github.com/claude-hub/claude-hub/runner/wire"
)

func TestARecordIsWrittenWithoutTheValuesThatMessagesRepeat(t *testing.T) {
	t.Parallel()
	const value = "a value of eight or more"
	var set redact.Set
	if err := set.Add("KEY", []byte(value)); err != nil {
		t.Fatal(err)
	}
	failure := func() *wire.Failure {
		return &wire.Failure{Code: "exit", Message: "no " + value, LastLines: value + "\n"}
	}
	rec := record{ID: "a", Failure: failure(), Notes: []string{value, "a note"}, Phases: []wire.Phase{{Name: "start", Note: value}},
		Session: session.State{StartFailed: failure(), Build: build.Marks{Failed: failure()}}, Marks: build.Marks{Failed: failure()}}
	text := func(s string) string { return set.Text(s).String() }
	b, err := json.Marshal(rec.redacted(text))
	if err != nil {
		t.Fatal(err)
	}
	if strings.Contains(string(b), value) || strings.Count(string(b), redact.Mask) != 10 || !strings.Contains(string(b), "a note") {
		t.Errorf("written: %s", b)
	}
	if rec.Failure.Message != "no "+value || rec.Notes[0] != value {
		t.Error("the record in memory was changed under those who read it")
	}
}

func TestNothingIsStoredAfterTheRunnerHasStopped(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.start()
	recipe, key := w.version(envspec.Spec{Image: w.image("app:v1", nil)})
	id := w.session(recipe, key, w.repo())
	w.untilState(id, wire.StateRunning)
	worker := w.runner.worker(id)
	worker.changed(false) // progress, to be reported in a moment
	w.stop()
	worker.mu.Lock()
	defer worker.mu.Unlock()
	if !worker.gone || worker.late != nil {
		t.Error("a report that waits for its turn is still to come")
	}
}
