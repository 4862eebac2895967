package runner

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/claude-hub/claude-hub/app/fleet"
	"github.com/claude-hub/claude-hub/envspec"
	"github.com/claude-hub/claude-hub/runner/wire"
)

// fills has a Session's user fill its disk.
func (w *world) fills(id string) {
	w.t.Helper()
	if r := w.exec(id, "sh", "-c", "cat /dev/zero >/workspace/big"); r.exit.Code == 0 || !strings.Contains(r.err, "No space left on device") {
		w.t.Fatalf("writing to a full disk: %+v", r)
	}
}

const fullLine = "the Session's disk has no space left: it has its limit of 300 MiB, and writes fail with ENOSPC"

func TestAFullDiskIsSaidOnceAndTheSessionGoesOn(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.cfg.SessionDisk = 300 << 20
	w.start()
	recipe, key := w.version(envspec.Spec{Image: w.image("app:v1", asCoder)})
	id := w.session(recipe, key, w.repo())
	w.untilState(id, wire.StateRunning)
	w.fills(id)
	w.untilLog(id, fullLine)
	w.until(id, "noted", func(r fleet.Report) bool {
		return slices.ContainsFunc(sessionDetail(t, r).Notes, func(n string) bool { return strings.HasPrefix(n, "its disk of 300 MiB was full") })
	})
	w.nap(id, nil) // it wakes though its disk is full, and says it again
	w.sh(id, "test -s /workspace/big")
	w.untilLogs(id, fullLine, 2)
	w.sh(id, "rm /workspace/big; echo fine >/workspace/again")
	if n := strings.Count(w.log(id), fullLine); n != 2 {
		t.Errorf("two boots on a full disk said it %d times:\n%s", n, w.log(id))
	}
}

func TestAFullDiskGrowsWhileItsSessionSleeps(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.start()
	recipe, key := w.version(envspec.Spec{Image: w.image("app:v1", asCoder)})
	id := w.session(recipe, key, w.repo(), func(p *wire.Session) { p.DiskSize = 300 << 20 })
	w.untilState(id, wire.StateRunning)
	w.sh(id, "echo work >mine")
	w.fills(id)
	before := strings.TrimSpace(w.sh(id, "wc -c <big"))
	w.change(id, fleet.Stop)
	w.untilState(id, wire.StateAsleep)
	w.edit(id, fleet.Run, func(p *wire.Session) { p.DiskSize = 600 << 20 })
	w.untilState(id, wire.StateRunning)
	w.shows(id, "cat mine; wc -c <big", "work\n"+before+"\n")
	w.sh(id, "head -c 250000000 /dev/zero >more")
	if r := w.exec(id, "sh", "-c", "head -c 250000000 /dev/zero >again"); r.exit.Code == 0 {
		t.Error("it has more room than it was given")
	}
	w.nap(id, nil)
	w.shows(id, "cat mine; wc -c <big", "work\n"+before+"\n")
}

// untilLogs waits until words came in the log so often.
func (w *world) untilLogs(id, words string, n int) {
	w.t.Helper()
	for end := time.Now().Add(limit); strings.Count(w.log(id), words) < n; time.Sleep(10 * time.Millisecond) {
		if time.Now().After(end) {
			w.t.Fatalf("%q never came %d times in the log:\n%s", words, n, w.log(id))
		}
	}
}
