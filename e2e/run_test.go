package e2e

import (
	"fmt"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/claude-hub/claude-hub/e2e/world"
	"github.com/claude-hub/claude-hub/handlers/api/schema"
	"github.com/claude-hub/claude-hub/runner/image/imagetest"
)

// runs waits until the newest run of a Session is in a state.
func (s *story) run(id, state string) schema.Run {
	s.t.Helper()
	var runs []schema.Run
	s.Eventually(60*time.Second, "the run is "+state, func() error {
		if err := s.JSON(&runs, "session", "runs", id, "-o", "json"); err != nil {
			return err
		}
		if len(runs) == 0 || runs[0].State != state {
			return fmt.Errorf("runs: %+v", runs)
		}
		return nil
	})
	return runs[0]
}

func TestARunWakesItsSessionAndGoesOnWithoutAnybodyConnected(t *testing.T) {
	t.Parallel()
	s := &story{world.New(t, world.Options{Hub: map[string]string{"idle_after": "6s"}}), t}
	s.applied(s.Push("run:1", imagetest.Busybox(t, nil)), "true", "echo started >>/workspace/starts")
	id := strings.TrimSpace(s.OK("session", "start", "--repo", s.Repo))
	s.OK("session", "sleep", id)

	s.wants(s.CLI("session", "run", id, "--dir", "/tmp", "--", "sh", "-c", "pwd; wc -l </workspace/starts; echo complains >&2; exit 3"), 3, "/tmp\n2\ncomplains\n", "it is woken first")
	s.wants(s.CLI("session", "run", id, "--time-limit", "1s", "--", "sleep", "100"), 124, "", "its time limit of 1s was over")
	s.wants(s.CLI("session", "run", id, "--", "no-such-program"), 127, "", "no-such-program")
	s.wants(s.CLI("session", "run", id, "--"), 2, "", "requires at least 2 arg")

	// It goes on through kills, longer than the Session may be idle for, and nobody looks.
	name := strings.TrimSpace(s.OK("session", "run", id, "--detach", "--", "sh", "-c", "for i in $(seq 1 15); do echo tick $i; sleep 1; done"))
	s.run(id, "running")
	s.Hub.Kill()
	s.Runner.Kill()
	s.StartHub()
	s.StartRunner()
	b := s.Browser()
	b.Press(b.Open("/"), "Sign in", url.Values{"login": {"ana"}})
	page := b.Open(fmt.Sprintf("/repos/%d/sessions/%s", s.session(id).Repo.ID, id))
	if !strings.Contains(page.Text, "for i in $(seq 1 15)") || !strings.Contains(page.Text, "ended with code 3") {
		t.Errorf("the Session's page says\n%s", page.Text)
	}
	var want strings.Builder
	for i := range 15 {
		fmt.Fprintf(&want, "tick %d\n", i+1)
	}
	s.wants(s.CLI("session", "run-log", id, name, "-f"), 0, want.String(), "")
	if got := s.OK("session", "run-log", id, name[:13]); got != want.String() {
		t.Errorf("its log says\n%s", got)
	}
	if run := s.run(id, "ended"); run.ID != name || run.Exit.Code != 0 {
		t.Errorf("%+v", run)
	}
	if sn := s.session(id); sn.State != "running" {
		t.Errorf("a run keeps a Session awake; it is %s", sn.State)
	}

	s.OK("session", "run", id, "--detach", "--", "sh", "-c", "trap 'echo bye; exit 9' TERM; echo up; while :; do sleep 1; done")
	s.Eventually(time.Minute, "it is up", func() error {
		if out := s.OK("session", "run-log", id, "newest"); out != "up\n" {
			return fmt.Errorf("its log says %q", out)
		}
		return nil
	})
	s.wants(s.CLI("session", "run-stop", id, "newest"), 0, "", "ended with code 9")
	s.OK("session", "run", id, "--detach", "--", "sleep", "1000")
	s.run(id, "running")
	s.OK("session", "sleep", id)
	s.wants(s.CLI("session", "run-log", id, "newest", "-f"), s.run(id, "ended").Exit.Code, "", "the Sandbox that it ran in has ended")
}
