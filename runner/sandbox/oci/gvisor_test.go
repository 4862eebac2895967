package oci

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/claude-hub/claude-hub/runner/agent"
	"github.com/claude-hub/claude-hub/runner/sandbox"
)

// These boot with gVisor whatever -runtime says; `make test-runsc` has all the others do so, too.

// runsc is the pinned build, which `make test` puts into bin.
func runsc(t testing.TB) string {
	t.Helper()
	built, err := filepath.Abs("../../../bin/runsc")
	if err != nil {
		t.Fatal(err)
	}
	if exists(built) {
		return built
	}
	path, err := exec.LookPath("runsc")
	if err != nil {
		t.Fatalf("these tests need gVisor's runsc: run scripts/runsc bin/runsc (%v)", err)
	}
	return path
}

func TestTheScriptBuildsTheVersionThatIsAskedFor(t *testing.T) {
	t.Parallel()
	b, err := os.ReadFile("../../../scripts/runsc")
	if err != nil {
		t.Fatal(err)
	}
	for _, line := range []string{"\nmodule=" + GVisorModule + "\n", "\nversion=" + GVisorVersion + " "} {
		if !strings.Contains(string(b), line) {
			t.Errorf("scripts/runsc has no %q", line)
		}
	}
}

func withGVisor(t testing.TB) func(*Config) {
	return func(c *Config) { c.Runtime = runsc(t) }
}

func TestGVisorSandboxRunsProgramsAndGoesOnAfterASleep(t *testing.T) {
	t.Parallel()
	e := testEngine(t, withGVisor(t))
	s := testSpec(t, e, "a")
	s.Binds = []sandbox.Bind{{Folder: "work", Guest: "/workspace", UID: 1000, GID: 1000}}
	sb := start(t, e, "a", s)
	if got := sh(t, sb, "dmesg | grep -c gVisor; hostname; cat /etc/hostname"); got != "1\nbox-a\nbox-a" {
		t.Errorf("kernel and names are %q", got)
	}
	if ans, err := ask(t.Context(), sb, 1000, "sh", "-c", "id -u; echo kept > /workspace/f; stat -c %u /workspace/f; exit 7"); err != nil || ans.Code != 7 || ans.Output != "1000\n1000\n" {
		t.Errorf("a program as the image's user: %+v, %v", ans, err)
	}
	var out bytes.Buffer
	if x, err := client(sb).Run(t.Context(), agent.Cmd{ID: "tty", Argv: []string{"sh", "-c", "stty size; test -t 0 && echo terminal"}, TTY: &agent.Size{Rows: 33, Cols: 77},
		Env: []string{"PATH=/bin"}}, &out, nil); err != nil || x.Code != 0 || out.String() != "33 77\r\nterminal\r\n" {
		t.Errorf("a program on a terminal: %+v, %v, %q", x, err, out.String())
	}
	m, err := e.Mount(t.Context(), s.Disk)
	if err != nil {
		t.Fatal(err)
	}
	fi, err := os.Stat(filepath.Join(m.Folder, "work", "f"))
	if err != nil {
		t.Fatal(err)
	}
	if uid := int(fi.Sys().(*syscall.Stat_t).Uid); uid != m.IDBase+1000 {
		t.Errorf("the file is owned by %d on the host, not by %d", uid, m.IDBase+1000)
	}
	sh(t, sb, "echo root > /root/f; echo gone > /tmp/f")
	stop(t, e, "a")
	if _, err := sb.Dial(t.Context()); !errors.Is(err, syscall.ECONNREFUSED) && !errors.Is(err, syscall.ENOENT) {
		t.Errorf("calling the agent of a stopped Sandbox gave %v", err)
	}
	if got := sh(t, start(t, e, "a", s), "cat /workspace/f /root/f; ls /tmp"); got != "kept\nroot" {
		t.Errorf("after stop and start: %q", got)
	}
}

func TestGVisorSandboxReachesOnlyTheOutside(t *testing.T) {
	t.Parallel()
	o := newOutside(t)
	port := o.listen(t)
	e := testEngine(t, withGVisor(t))
	sb := start(t, e, "a", testSpec(t, e, "a"))
	if ok, out := reach(t, sb, "tcp", fmt.Sprintf("%s:%d", o.self, port)); !ok {
		t.Errorf("the Sandbox can't reach the outside: %s", out)
	}
	refused(t, sb, fmt.Sprintf("try try tcp %s:22", boxLease(e, "a").gateway()))
	refused(t, sb, "try try tcp 169.254.169.254:80")
	sh(t, sb, "try try serve 127.0.0.1:7000 >/dev/null 2>&1 </dev/null &")
	eventually(t, "loopback works", func() bool { ok, _ := reach(t, sb, "tcp", "127.0.0.1:7000"); return ok })
}

func TestGVisorBombsEndNoOtherSandbox(t *testing.T) {
	t.Parallel()
	e := testEngine(t, withGVisor(t))
	quiet := start(t, e, "quiet", testSpec(t, e, "quiet"))
	s := testSpec(t, e, "bomber")
	s.Limits.Memory = 256 << 20
	bomber := start(t, e, "bomber", s)
	sh(t, bomber, "echo kept > /root/f")
	if _, err := ask(t.Context(), bomber, 0, "sh", "-c", "i=0; while [ $i -lt 2000 ]; do sleep 1000 & i=$((i+1)); done 2>/dev/null"); err != nil {
		t.Errorf("fork bomb: %v", err)
	}
	if _, err := client(bomber).Hello(t.Context()); err != nil {
		t.Errorf("the agent doesn't answer while all processes are taken: %v", err)
	}
	u, err := bomber.Usage(t.Context())
	if err != nil || int64(u.Pids) > s.Limits.Pids || u.Pids < 200 {
		t.Errorf("usage during the fork bomb is %+v, %v", u, err)
	}
	// Root can lift what holds programs back inside, and not what holds the Sandbox.
	_, _ = ask(t.Context(), bomber, 0, "sh", "-c", "killall -9 sleep")
	if ans, err := ask(t.Context(), bomber, 0, "try", "try", "eat", "1000"); err == nil && ans.Code == 0 {
		t.Errorf("eating 1000 MiB of 256: %+v", ans)
	}
	select {
	case <-bomber.Done():
	case <-time.After(20 * time.Second):
		t.Fatal("a Sandbox that took more memory than it has goes on")
	}
	if u, err := bomber.Usage(t.Context()); err != nil || !u.OOMEnded {
		t.Errorf("usage says nothing of the end for want of memory: %+v, %v", u, err)
	}
	if got := sh(t, quiet, "echo alive"); got != "alive" {
		t.Errorf("the other Sandbox says %q", got)
	}
	if got := sh(t, start(t, e, "bomber", s), "cat /root/f"); got != "kept" {
		t.Errorf("after the next start the file reads %q", got)
	}
}

func TestGVisorSandboxIsAdoptedAfterAKill(t *testing.T) {
	t.Parallel()
	o := runnerOrder{Dir: t.TempDir(), RunDir: testRunDir(), Runtime: runsc(t)}
	o.Spec = testSpec(t, &Engine{cfg: Config{Dir: o.Dir}}, "a")
	r := startRunner(t, o)
	r.line()
	up := r.line()
	r.kill()
	e := killTestEngine(t, o)
	t.Cleanup(func() { closeEngine(t, e) })
	sb, err := e.Open(t.Context(), "a")
	if err != nil || "up "+sb.Generation() != up {
		t.Fatalf("after the kill: %v (the runner said %q)", err, up)
	}
	sh(t, sb, "echo kept > /root/f")
	stop(t, e, "a")
	if got := sh(t, start(t, e, "a", o.Spec), "cat /root/f"); got != "kept" {
		t.Errorf("after stop and start: %q", got)
	}
}

func TestGVisorSandboxCanBeStoppedAfterRunscWasRemoved(t *testing.T) {
	t.Parallel()
	link := filepath.Join(t.TempDir(), "runsc")
	if err := os.Symlink(runsc(t), link); err != nil {
		t.Fatal(err)
	}
	e := testEngine(t, func(c *Config) { c.Runtime = link })
	s := testSpec(t, e, "a")
	sh(t, start(t, e, "a", s), "echo kept > /root/f")
	if err := os.Remove(link); err != nil {
		t.Fatal(err)
	}
	stop(t, e, "a")
	if n := len(e.cgroups.processes("a")); n > 0 {
		t.Errorf("%d processes are left", n)
	}
	if _, err := e.Start(t.Context(), "a", s); err == nil || !strings.Contains(err.Error(), "not on this host") {
		t.Errorf("a start without runsc gave %v", err)
	}
	if err := os.Symlink(runsc(t), link); err != nil {
		t.Fatal(err)
	}
	if got := sh(t, start(t, e, "a", s), "cat /root/f"); got != "kept" {
		t.Errorf("after the next start the file reads %q", got)
	}
}

// A Runner that is set to another runtime goes on with what the earlier one booted, and boots with the other next time.
func TestSandboxesOutliveAChangeOfTheRuntime(t *testing.T) {
	t.Parallel()
	o := runnerOrder{Dir: t.TempDir(), RunDir: testRunDir(), Runtime: defaultRuntime}
	o.Spec = storeSpec(t, &Engine{cfg: Config{Dir: o.Dir}}, "a")
	var e *Engine
	t.Cleanup(func() { closeEngine(t, e) })
	last := 0
	for _, step := range []struct{ runtime, adopted, booted string }{{defaultRuntime, "", "0"}, {runsc(t), "0", "1"}, {defaultRuntime, "1", "0"}} {
		if e != nil {
			if err := e.Close(); err != nil {
				t.Fatal(err)
			}
		}
		o.Runtime = step.runtime
		e = killTestEngine(t, o)
		const kernel = "dmesg 2>/dev/null | grep -c gVisor; true"
		if step.adopted != "" {
			sb, err := e.Open(t.Context(), "a")
			if err != nil {
				t.Fatal(err)
			}
			if got := sh(t, sb, kernel); got != step.adopted {
				t.Errorf("adopted with %s: %q lines of gVisor's kernel and not %s", step.runtime, got, step.adopted)
			}
			stop(t, e, "a")
		}
		sb := start(t, e, "a", o.Spec)
		last++
		if got, want := sh(t, sb, kernel+"; echo x >> /workspace/f; wc -l < /workspace/f"), fmt.Sprintf("%s\n%d", step.booted, last); got != want {
			t.Errorf("booted with %s: %q and not %q", step.runtime, got, want)
		}
	}
}

func TestGVisorSaysThatDependencyFoldersStay(t *testing.T) {
	t.Parallel()
	e := testEngine(t, withGVisor(t))
	sb := start(t, e, "a", storeSpec(t, e, "a"))
	dev(t, sb, "mkdir node_modules && touch node_modules/a")
	_, err := client(sb).Bind(t.Context(), agent.Folders{Patterns: []agent.Pattern{{Pattern: "**/node_modules"}}, User: "dev", Guest: "/workspace",
		Workspace: "workspace", Own: "dependencies"})
	if err == nil || !strings.Contains(err.Error(), "gVisor") {
		t.Errorf("binding dependency folders gave %v", err)
	}
	dev(t, sb, "rm -rf node_modules && mkdir node_modules && mv node_modules x")
}
