package oci

import (
	"bufio"
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/rs/zerolog"

	"github.com/claude-hub/claude-hub/runner/sandbox"
)

// runnerOrder is what a process that stands for a Runner does, until it is killed.
type runnerOrder struct {
	Dir, RunDir string
	Runtime     string
	Spec        sandbox.Spec
	Snapshot    string // make one of "a"
	DNS         string
}

// runnerMain opens an engine as a Runner does, says so, carries out its order and says what came of it.
func runnerMain(args []string) int {
	var o runnerOrder
	if _, err := readJSON(args[0], &o); err != nil {
		return 80
	}
	self, _ := os.Executable()
	e, err := Open(Config{Dir: o.Dir, RunDir: o.RunDir, Agent: []string{self, "agent"}, LowWater: 64 << 20, Runtime: o.Runtime, Log: zerolog.Nop()})
	if err != nil {
		fmt.Println("error", err)
		return 81
	}
	fmt.Println("open")
	if o.Snapshot != "" {
		_, err = e.Snapshot(context.Background(), "a", o.Snapshot, json.RawMessage(`{"k":1}`))
		fmt.Println("snapshot", err)
		select {}
	}
	sb, err := e.Start(context.Background(), "a", o.Spec)
	if err != nil {
		fmt.Println("error", err)
		return 82
	}
	fmt.Println("up", sb.Generation())
	select {}
}

type runner struct {
	t     *testing.T
	cmd   *exec.Cmd
	lines *bufio.Scanner
}

func startRunner(t *testing.T, o runnerOrder) *runner {
	t.Helper()
	o.Runtime = cmp.Or(o.Runtime, *testRuntime)
	order := filepath.Join(t.TempDir(), "order.json")
	if err := writeJSON(order, o, false); err != nil {
		t.Fatal(err)
	}
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(self, "runner", order)
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	r := &runner{t: t, cmd: cmd, lines: bufio.NewScanner(out)}
	t.Cleanup(r.kill)
	return r
}

func (r *runner) line() string {
	r.t.Helper()
	if !r.lines.Scan() {
		r.t.Fatal("the runner process ended without a word")
	}
	return r.lines.Text()
}

func (r *runner) kill() {
	_ = r.cmd.Process.Kill()
	_ = r.cmd.Wait()
}

// killTestEngine opens the engine that follows a killed one. The caller's last one is torn down at the end.
func killTestEngine(t *testing.T, o runnerOrder) *Engine {
	t.Helper()
	self, _ := os.Executable()
	e, err := Open(Config{Dir: o.Dir, RunDir: o.RunDir, Agent: []string{self, "agent"}, LowWater: 64 << 20, Runtime: cmp.Or(o.Runtime, *testRuntime), Log: zerolog.New(zerolog.NewTestWriter(t))})
	if err != nil {
		t.Fatal(err)
	}
	return e
}

func TestSandboxesOutliveAKilledRunner(t *testing.T) {
	t.Parallel()
	o := runnerOrder{Dir: t.TempDir(), RunDir: testRunDir()}
	o.Spec = testSpec(t, &Engine{cfg: Config{Dir: o.Dir}}, "a")
	r := startRunner(t, o)
	r.line()
	up := r.line()
	// Nobody else gets at the data folder meanwhile.
	for _, c := range []Config{
		{Dir: o.Dir, RunDir: o.RunDir}, {Dir: t.TempDir(), RunDir: o.RunDir}, {Dir: o.Dir, RunDir: testRunDir()},
	} {
		c.Agent, c.Log = []string{os.Args[0], "agent"}, zerolog.Nop()
		if e2, err := Open(c); err == nil {
			e2.Close()
			t.Fatalf("a second engine opened %s and %s, which are in use", c.Dir, c.RunDir)
		}
		if c.RunDir != o.RunDir {
			_ = os.RemoveAll(c.RunDir)
		}
	}
	r.kill()

	e := killTestEngine(t, o)
	t.Cleanup(func() { closeEngine(t, e) })
	list, err := e.List(t.Context())
	if err != nil || len(list) != 1 || !list[0].Running || "up "+list[0].Generation != up {
		t.Fatalf("after the kill: %+v, %v (the runner said %q)", list, err, up)
	}
	sb, err := e.Open(t.Context(), "a")
	if err != nil {
		t.Fatal(err)
	}
	sh(t, sb, "echo kept > /root/f; sleep 1000 >/dev/null 2>&1 &")
	if again := start(t, e, "a", o.Spec); again.Generation() != sb.Generation() {
		t.Error("a repeated Start booted the adopted Sandbox again")
	}
	if _, err := sb.Usage(t.Context()); err != nil {
		t.Error(err)
	}
	select {
	case <-sb.Done():
		t.Error("the adopted Sandbox is said to be done")
	default:
	}
	stop(t, e, "a")
	select {
	case <-sb.Done():
	case <-time.After(time.Minute):
		t.Error("a stopped adopted Sandbox isn't done")
	}
	if got := sh(t, start(t, e, "a", o.Spec), "cat /root/f; ps | grep -c '[s]leep 1000'; true"); got != "kept\n0" {
		t.Errorf("after stop and start: %q", got)
	}
}

func TestStartCanBeRepeatedAfterAKillAtAnyMoment(t *testing.T) {
	t.Parallel()
	rounds := 14
	if testing.Short() {
		rounds = 5
	}
	o := runnerOrder{Dir: t.TempDir(), RunDir: testRunDir()}
	o.Spec = testSpec(t, &Engine{cfg: Config{Dir: o.Dir}}, "a")
	var last *Engine
	t.Cleanup(func() {
		if last == nil {
			last = killTestEngine(t, o)
		}
		closeEngine(t, last)
	})
	for i := range rounds {
		if last != nil {
			if err := last.Close(); err != nil {
				t.Fatal(err)
			}
			last = nil
		}
		r := startRunner(t, o)
		if l := r.line(); l != "open" {
			t.Fatal(l)
		}
		// A boot takes some 100 ms here; the kills are spread over it and a little beyond.
		timer := time.NewTimer(time.Duration(i*12) * time.Millisecond)
		<-timer.C
		r.kill()
		last = killTestEngine(t, o)
		sb, err := last.Start(t.Context(), "a", o.Spec)
		if err != nil {
			t.Fatalf("round %d: %v", i, err)
		}
		if got, want := sh(t, sb, "touch /root/f; echo x >> /root/f; wc -l < /root/f"), fmt.Sprint(i+1); got != want {
			t.Fatalf("round %d: the root filesystem has %s lines and not %s", i, got, want)
		}
		stop(t, last, "a")
		if n := len(last.cgroups.processes("a")); n > 0 {
			t.Fatalf("round %d: %d processes are left", i, n)
		}
	}
}

func TestSnapshotIsWholeOrNotThereAfterAKillAtAnyMoment(t *testing.T) {
	t.Parallel()
	rounds := 10
	if testing.Short() {
		rounds = 4
	}
	o := runnerOrder{Dir: t.TempDir(), RunDir: testRunDir()}
	o.Spec = testSpec(t, &Engine{cfg: Config{Dir: o.Dir}}, "a")
	var last *Engine
	t.Cleanup(func() {
		if last == nil {
			last = killTestEngine(t, o)
		}
		closeEngine(t, last)
	})
	last = killTestEngine(t, o)
	var finished int
	for i := range rounds {
		sb := start(t, last, "a", o.Spec)
		sh(t, sb, fmt.Sprintf("mkdir /opt; for n in $(seq 300); do echo %d-$n > /opt/$n; done", i))
		stop(t, last, "a")
		if err := last.Close(); err != nil {
			t.Fatal(err)
		}
		last = nil
		o.Snapshot = fmt.Sprintf("snap-%d", i)
		r := startRunner(t, o)
		if l := r.line(); l != "open" {
			t.Fatal(l)
		}
		timer := time.NewTimer(time.Duration(i*25) * time.Millisecond)
		<-timer.C
		r.kill()
		last = killTestEngine(t, o)
		b, found, err := last.Base(t.Context(), o.Snapshot)
		if err != nil {
			t.Fatal(err)
		}
		if found {
			finished++
		}
		// Repeated, it is there in any case, with all files.
		again, err := last.Snapshot(t.Context(), "a", o.Snapshot, json.RawMessage(`{"k":1}`))
		if err != nil {
			t.Fatalf("round %d: %v", i, err)
		}
		if found && strings.Join(again.Layers, ":") != strings.Join(b.Layers, ":") {
			t.Errorf("round %d: the snapshot changed from %v to %v", i, b, again)
		}
		s := o.Spec
		s.Base, s.Disk.Path = again, o.Spec.Disk.Path+"-check"
		check := start(t, last, "check", s)
		if got, want := sh(t, check, "cat /opt/300; ls /opt | wc -l"), fmt.Sprintf("%d-300\n300", i); got != want {
			t.Errorf("round %d: the snapshot has %q and not %q", i, got, want)
		}
		stop(t, last, "check")
		if err := last.Remove(t.Context(), "check"); err != nil {
			t.Fatal(err)
		}
		// A record that outlived its disk is in nobody's way.
		if err := last.Remove(t.Context(), "a"); err != nil {
			t.Fatal(err)
		}
	}
	t.Logf("%d of %d snapshots were made before the kill", finished, rounds)
}
