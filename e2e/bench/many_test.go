package bench

import (
	"path/filepath"
	"testing"

	"github.com/claude-hub/claude-hub/e2e/world"
	"github.com/claude-hub/claude-hub/envspec"
	"github.com/claude-hub/claude-hub/handlers/api/schema"
	"github.com/claude-hub/claude-hub/runner/wire"
)

const (
	manyAsleep = 25
	manyAwake  = 10
)

// manySessions is what Sessions take on one host, 25 asleep and 10 awake: the disk of each that is asleep, that of each that is awake, the
// memory of each that is awake (its Sandbox, in which nothing runs; of its own, without the pages that all share), and that of Hub and
// Runner together.
func manySessions(t *testing.T, b *bench) {
	// Of the 32,768 processes that a kernel allows as it is, ten Sandboxes can't be promised 4,096 each.
	h := newHub(t, world.Options{Runner: map[string]string{"pids": "1024"}})
	revision := h.draft(envspec.Spec{Image: h.Push("debian:1", debian(t))})
	test, err := h.api.StartTest(t.Context(), repoID, revision, "r1")
	h.check(err)
	h.passed(test.ID)
	_, err = h.api.Apply(t.Context(), repoID, revision, "")
	h.check(err)
	sessions := filepath.Join(h.Dir, "data", "runner", "sessions")
	var asleep, awake float64
	for n := range manyAsleep + manyAwake {
		s, err := h.api.StartSession(t.Context(), repoID, schema.StartSession{})
		h.check(err)
		h.until(s.ID, wire.StateRunning)
		h.run(s.ID, "/bin/true")
		if n < manyAsleep {
			_, err := h.api.Sleep(t.Context(), repoID, s.ID)
			h.check(err)
			h.until(s.ID, wire.StateAsleep)
		}
		if n == manyAsleep-1 {
			asleep = taken(t, sessions)
		}
	}
	awake = taken(t, sessions) - asleep
	idle(t)
	_, anonymous := residentOf(t, "/s-")
	record("many_asleep_disk", "KB", []float64{asleep / manyAsleep}, "", nil)
	record("many_awake_disk", "KB", []float64{awake / manyAwake}, "", nil)
	record("many_awake_memory", "MB", []float64{anonymous / manyAwake}, "", nil)
	record("many_rss", "MB", []float64{h.memory("VmRSS", h.Hub) + h.memory("VmRSS", h.Runner)}, "", nil)
}
