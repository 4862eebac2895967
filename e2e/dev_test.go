package e2e

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/claude-hub/claude-hub/e2e/world"
	"github.com/claude-hub/claude-hub/handlers/api/schema"
	"github.com/claude-hub/claude-hub/runner/image/imagetest"
)

const exampleRepo = "example/wordcount"

// A newcomer types make run: the example is test-built, applied and worked in; Ctrl-C leaves Sandboxes asleep, and
// starting again finds everything as it was.
func TestDevKeepsItsExampleOverCtrlCAndKill(t *testing.T) {
	t.Parallel()
	w := world.Empty(t, world.Options{})
	w.Options.Runner = map[string]string{"images": fmt.Sprintf("{mirrors: {docker.io: [%q]}, plain_http: [%q]}", w.Registry, w.Registry)}
	w.WriteConfig()
	w.Push("library/buildpack-deps:bookworm", imagetest.DebianImage(t))

	start := func() *world.Process {
		t.Helper()
		p := w.Start("dev", "dev", "--config", w.Config)
		w.Eventually(60*time.Second, "dev is ready", func() error {
			if !p.Running() {
				t.Fatalf("dev ended:\n%s", p.Log())
			}
			if log := p.Log(); !strings.Contains(log, "claude-hub is ready: "+w.URL) {
				return fmt.Errorf("it printed only %q", log)
			}
			return nil
		})
		return p
	}
	state := func(id string) string {
		t.Helper()
		var s schema.Session
		if err := w.JSON(&s, "session", "show", id, "-o", "json"); err != nil {
			t.Fatal(err)
		}
		return s.State
	}
	running := func(id string) {
		t.Helper()
		w.Eventually(60*time.Second, "the Session runs again", func() error {
			if s := state(id); s != "running" {
				return fmt.Errorf("it is %s", s)
			}
			return nil
		})
	}

	dev := start()
	w.OK("env", "test", "--repo", exampleRepo)
	w.OK("env", "apply", "--repo", exampleRepo)
	id := strings.TrimSpace(w.OK("session", "start", "--repo", exampleRepo))
	by := strings.TrimSpace(w.OK("session", "start", "--repo", exampleRepo))
	w.OK("session", "sleep", by)
	w.OK("session", "exec", id, "--", "sh", "-c", "echo mine > mine; sync mine")

	dev.Interrupt()
	if !strings.Contains(dev.Log(), "putting Sessions to sleep (1)") {
		t.Errorf("dev says what it does when it stops: %s", dev.Log())
	}
	dev = start()
	running(id)
	if s := state(by); s != "asleep" {
		t.Errorf("what was put to sleep by hand stays so, it is %s", s)
	}
	if out := w.OK("session", "exec", id, "--", "cat", "mine"); out != "mine\n" {
		t.Errorf("the Workspace holds %q", out)
	}
	if out := w.CLIWith("to be or not to be", "session", "exec", "-i", id, "--", "wordcount"); out.Stdout != "2 be\n2 to\n1 not\n1 or\n" {
		t.Errorf("the tool of the bootstrap: %s", out)
	}

	dev.Kill()
	dev = start()
	running(id)
	if out := w.OK("session", "exec", id, "--", "sh", "-c", "cat mine; curl -s -d 'a b a' http://127.0.0.1:8000"); out != "mine\n[[\"a\", 2], [\"b\", 1]]" {
		t.Errorf("the service of the start script lives on over a kill of dev: %q", out)
	}
	if out := w.OK("env", "versions", "--repo", exampleRepo, "-o", "json"); strings.Count(out, `"number"`) != 1 {
		t.Errorf("one version: %s", out)
	}
	dev.Interrupt()
}
