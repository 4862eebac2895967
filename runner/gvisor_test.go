package runner

import (
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/claude-hub/claude-hub/app/fleet"
	"github.com/claude-hub/claude-hub/envspec"
	"github.com/claude-hub/claude-hub/runner/build"
	"github.com/claude-hub/claude-hub/runner/wire"
)

// runsc is the pinned build of gVisor, which `make test` puts into bin.
func runsc(t *testing.T) string {
	t.Helper()
	built, err := filepath.Abs("../bin/runsc")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := exec.LookPath(built); err != nil {
		if built, err = exec.LookPath("runsc"); err != nil {
			t.Fatalf("these tests need gVisor's runsc: run scripts/runsc bin/runsc (%v)", err)
		}
	}
	return built
}

func TestASessionRunsWithGVisor(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.cfg.Runtime, w.cfg.Memory = runsc(t), 300<<20
	w.start()
	recipe, key := w.version(envspec.Spec{Image: w.image("app:v1", asCoder), Bootstrap: "echo built >/built", Start: "dmesg | grep -c gVisor; cat /built; id -un; pwd"})
	id := w.session(recipe, key, w.repo())
	w.untilState(id, wire.StateRunning)
	w.untilLog(id, "1\nbuilt\ncoder\n/workspace\n")
	w.untilLog(id, "boot: dependency folders stay in the Workspace: gVisor can't bind them")
	w.sh(id, "echo kept >mine && mkdir node_modules && rm -rf node_modules")
	w.nap(id, nil)
	w.shows(id, "cat mine", "kept\n")

	w.stop() // the Runner; the Sandbox lives on
	w.start()
	w.untilState(id, wire.StateRunning)
	w.shows(id, "cat mine", "kept\n")

	w.nap(id, nil)
	w.open(id, wire.ChannelSpec{Argv: []string{"sh", "-c", "dd if=/dev/zero of=/dev/null bs=900M count=9"}}).end()
	const why = ": its programs needed more memory than it has, and in gVisor that ends all of them"
	w.untilLog(id, why)
	if f := sessionDetail(t, w.untilState(id, wire.StateFailed)).Failure; f == nil || f.Code != build.CodeEnded || !strings.Contains(f.Message, why+"; the Workspace is untouched") {
		t.Errorf("a Sandbox that needed more memory than it has failed with %+v", f)
	}
	w.change(id, fleet.Run)
	w.untilState(id, wire.StateRunning)
	w.shows(id, "cat mine", "kept\n")
}
