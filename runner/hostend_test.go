package runner

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/claude-hub/claude-hub/envspec"
	"github.com/claude-hub/claude-hub/runner/wire"
)

// A Runner that stops leaves Sandboxes running; a host that goes down kills them, so they are stopped before, as at a sleep.
func TestWhatRunsIsStoppedInGoodOrderBeforeTheHostGoesDown(t *testing.T) {
	t.Parallel()
	for _, goesDown := range []bool{false, true} {
		w := newWorld(t)
		w.hostEnds = goesDown
		w.start()
		recipe, key := w.version(envspec.Spec{Image: w.image("app:v1", asCoder),
			Start: "(trap 'echo in good order >ended; exit' TERM; touch up; while :; do sleep 0.05; done) >/dev/null 2>&1 &"})
		id := w.session(recipe, key, w.repo())
		w.untilState(id, wire.StateRunning)
		w.sh(id, "until [ -e up ]; do sleep 0.05; done; echo $$ >/tmp/here")
		w.halt()
		w.hostEnds = false
		w.start()
		want := "in good order\n"
		if !goesDown {
			want = ""
		}
		if got := w.sh(id, "cat ended 2>/dev/null; true"); got != want {
			t.Errorf("the host goes down: %t: what ran left %q, want %q", goesDown, got, want)
		}
		w.halt()
	}
}

func TestThatTheHostGoesDownIsAskedOfSystemd(t *testing.T) {
	bin := t.TempDir()
	t.Setenv("PATH", bin+":"+os.Getenv("PATH"))
	for said, want := range map[string]bool{"stopping": true, "running": false, "degraded": false, "offline": false} {
		script := "#!/bin/sh\n[ \"$*\" = is-system-running ] && echo " + said + "\n[ " + said + " = running ]\n"
		if err := os.WriteFile(filepath.Join(bin, "systemctl"), []byte(script), 0o755); err != nil {
			t.Fatal(err)
		}
		if got := hostEnds(); got != want {
			t.Errorf("systemd says %q: the host goes down: %t", said, got)
		}
	}
}
