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

func (s *story) session(id string) schema.Session {
	s.t.Helper()
	var sn schema.Session
	if err := s.JSON(&sn, "session", "show", id, "-o", "json"); err != nil {
		s.t.Fatal(err)
	}
	return sn
}

func (s *story) becomes(id, state string, limit time.Duration) {
	s.t.Helper()
	s.Eventually(limit, "the Session is "+state, func() error {
		if sn := s.session(id); sn.State != state {
			return fmt.Errorf("it is %s: %+v", sn.State, sn.Detail)
		}
		return nil
	})
}

// logs waits until a Session's log has what so many times: it is shipped a little behind what runs.
func (s *story) logs(id, what string, times int) {
	s.t.Helper()
	s.Eventually(time.Minute, "the Session's log is there", func() error {
		if log := s.OK("session", "logs", id); strings.Count(log, what) != times {
			return fmt.Errorf("want %q %d times in:\n%s", what, times, log)
		}
		return nil
	})
}

func (s *story) applied(image, bootstrap, start string) {
	s.t.Helper()
	s.OK("env", "test", "--repo", s.Repo, "--runner", "r1", "-f", s.document(image, bootstrap, start))
	s.OK("env", "apply", "--repo", s.Repo)
}

func TestAnIdleSessionSleepsAndABusyOneDoesNot(t *testing.T) {
	t.Parallel()
	s := &story{world.New(t, world.Options{Hub: map[string]string{"idle_after": "6s"}}), t}
	s.applied(s.Push("idle:1", imagetest.Busybox(t, nil)), "true", "sleep 1000 > /dev/null 2>&1 & echo a service runs")
	id := strings.TrimSpace(s.OK("session", "start", "--repo", s.Repo))
	s.wants(s.CLI("session", "exec", id, "--", "sh", "-c", "sleep 15; echo still here"), 0, "still here", "") // longer than idle_after
	if sn := s.session(id); sn.State != "running" {
		t.Errorf("an exec in progress keeps a Session awake; it is %s", sn.State)
	}
	s.becomes(id, "asleep", 60*time.Second) // the service of the start script doesn't count
	s.wants(s.CLI("session", "wake", id), 0, "", "is running")
}

func TestASecondRunnerBuildsLazilyAndAFailedBuildCanBeRetried(t *testing.T) {
	t.Parallel()
	s := &story{world.New(t, world.Options{}), t}
	s.AddRunner("r2")
	s.applied(s.Push("lazy:1", imagetest.Busybox(t, nil)), "mkdir -p /opt; echo made by the bootstrap | tee /opt/made", "cat /opt/made")

	s.RegistryDown.Store(true)
	r := s.CLI("session", "start", "--repo", s.Repo, "--runner", "r2")
	s.wants(r, 1, "", "failed in phase image")
	id := strings.TrimSpace(r.Stdout)
	if sn := s.session(id); sn.State != "failed" || sn.Runner.Name != "r2" || sn.Detail.Failure == nil {
		t.Fatalf("failed with its reason: %+v", sn)
	}
	s.logs(id, "failed:", 1)
	s.wants(s.CLI("session", "wake", id), 1, "", "failed")

	s.RegistryDown.Store(false)
	s.wants(s.CLI("session", "retry", id), 0, "", "is running")
	s.wants(s.CLI("session", "exec", id, "--", "cat", "/opt/made"), 0, "made by the bootstrap\n", "")
	s.logs(id, "made by the bootstrap", 2)                       // once by tee in the lazy build, once by the start script
	s.OK("session", "start", "--repo", s.Repo, "--runner", "r1") // from the tested snapshot: nothing is pulled or built
	s.OK("session", "start", "--repo", s.Repo, "--runner", "r2")
}

func TestWhatWasNeverPushedIsCountedAndNamed(t *testing.T) {
	t.Parallel()
	s := &story{world.New(t, world.Options{}), t}
	s.applied(s.Push("debian:1", imagetest.DebianImage(t)), "git --version", "git log --oneline")
	id := strings.TrimSpace(s.OK("session", "start", "--repo", s.Repo, "--work-branch", "fix/@ana/#42"))
	s.OK("session", "exec", id, "--", "bash", "-c", `set -e
git -c user.name=a -c user.email=a@localhost commit -q --allow-empty -m one
echo x > new; echo y >> README.md
git branch --show-current > /tmp/branch; test "$(cat /tmp/branch)" = "fix/@ana/#42"`)
	s.wants(s.CLIWith("no\n", "session", "rm", id), 1, "", "2 uncommitted files and 1 unpushed commit")
	s.OK("session", "exec", id, "--", "bash", "-c", `set -e
git stash -q -u; git checkout -q --detach
git -c user.name=a -c user.email=a@localhost commit -q --allow-empty -m two`)
	s.OK("session", "sleep", id)
	s.wants(s.CLIWith("no\n", "session", "rm", id), 1, "", "0 uncommitted files and 3 unpushed commits")
	s.OK("session", "rm", id, "--yes")
}

func TestLimitsAreCutToTheRunnersAndChangeWithoutATestBuild(t *testing.T) {
	t.Parallel()
	s := &story{world.New(t, world.Options{Runner: map[string]string{"cpu": "1", "memory": "512MiB"}}), t}
	doc := func(cpu, memory string) string {
		t.Helper()
		path := s.document(s.Push("limits:1", imagetest.Busybox(t, nil)), "true", "true")
		replace(t, path, "cpu: 1\nmemory: 512MiB", "cpu: "+cpu+"\nmemory: "+memory)
		return path
	}
	r := s.CLI("env", "test", "--repo", s.Repo, "-f", doc("8", "4GiB"))
	s.wants(r, 0, "", "asked 8 CPUs, runner r1 gives 1")
	s.wants(r, 0, "", "asked 4GiB of memory, runner r1 gives 512MiB")
	s.OK("env", "apply", "--repo", s.Repo)
	s.OK("env", "save", "--repo", s.Repo, "-f", doc("0.5", "256MiB"))
	s.contains(s.OK("env", "show", "--repo", s.Repo), "Nothing that needs a Test build changed")
	s.contains(s.OK("env", "apply", "--repo", s.Repo), "version 2")
	id := strings.TrimSpace(s.OK("session", "start", "--repo", s.Repo))
	s.wants(s.CLI("session", "exec", id, "--", "sh", "-c", "head -c 400000000 /dev/zero | tail -c 400000000 | wc -c"), 0, "0", "") // tail alone is over 256 MiB
	s.wants(s.CLI("session", "exec", id, "--", "echo", "alive"), 0, "alive", "")
}
