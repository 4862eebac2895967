package agent

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"
)

func (b *box) names() string {
	b.t.Helper()
	ps, err := b.Processes(ctx(b.t))
	if err != nil {
		b.t.Fatal(err)
	}
	var out []string
	for _, p := range ps {
		out = append(out, strings.Join(p.Argv, " "))
	}
	return strings.Join(out, "\n")
}

func (b *box) wrote(id, want string) {
	b.t.Helper()
	r, err := b.Output(ctx(b.t), id, Out, 0)
	if err != nil {
		b.t.Fatal(err)
	}
	defer r.Close()
	var got []byte
	buf := make([]byte, 4096)
	for !strings.Contains(string(got), want) {
		n, err := r.Read(buf)
		if err != nil {
			b.t.Fatalf("%q came, then %v, without %q", got, err, want)
		}
		got = append(got, buf[:n]...)
	}
}

func TestSignalReachesTheProcessOrTheTree(t *testing.T) {
	t.Parallel()
	b := boot(t, image{})
	id := b.start(Cmd{Argv: []string{"bash", "-c", "trap 'echo hup' HUP; sleep 1111 & echo up; while :; do wait; done"}})
	b.wrote(id, "up")
	if err := b.Signal(ctx(t), id, 1, false); err != nil {
		t.Fatal(err)
	}
	b.wrote(id, "hup")
	if n := b.names(); !strings.Contains(n, "sleep 1111") {
		t.Errorf("a signal to the process reached its child: %s", n)
	}
	if err := b.Signal(ctx(t), id, 15, true); err != nil {
		t.Fatal(err)
	}
	if e := b.wait(id); e.Signal != "SIGTERM" || e.Code != 143 {
		t.Errorf("%+v", e)
	}
	until(t, "the child's end", func() (bool, string) { n := b.names(); return n == "", n })
	if err := b.Signal(ctx(t), id, 15, false); !errors.Is(err, ErrEnded) {
		t.Errorf("a signal after the end: %v", err)
	}
	if err := b.Signal(ctx(t), id, 15, true); err != nil {
		t.Errorf("a tree signal after the end: %v", err)
	}
	if err := b.Signal(ctx(t), id, 99, false); err == nil {
		t.Error("there is no signal 99")
	}
}

func TestKillReachesWhatIgnoresSIGTERMAndLeftTheSession(t *testing.T) {
	t.Parallel()
	b := boot(t, image{})
	id := b.start(Cmd{Script: script(`trap '' TERM HUP
set -m
(trap '' TERM; setsid --wait bash -c 'trap "" TERM; sleep 2001 & echo one; wait') &
bash -c 'trap "" TERM; sleep 2002 & echo two; wait; sleep 2003' &
sleep 2004 &
echo up
while :; do wait; sleep 0.1; done
`)})
	for _, w := range []string{"one", "two", "up"} {
		b.wrote(id, w)
	}
	until(t, "four sleeps", func() (bool, string) {
		n := b.names()
		return strings.Contains(n, "sleep 2001") && strings.Contains(n, "sleep 2002") && strings.Contains(n, "sleep 2004"), n
	})
	if err := b.Signal(ctx(t), id, 15, true); err != nil {
		t.Fatal(err)
	}
	short, cancel := context.WithTimeout(ctx(t), 300*time.Millisecond)
	defer cancel()
	if e, err := b.Wait(short, id); !errors.Is(err, context.DeadlineExceeded) {
		t.Fatalf("it should ignore SIGTERM: %+v %v", e, err)
	}
	if err := b.Signal(ctx(t), id, 9, true); err != nil {
		t.Fatal(err)
	}
	if e := b.wait(id); e.Signal != "SIGKILL" || e.Code != 137 {
		t.Errorf("%+v", e)
	}
	until(t, "the end of all", func() (bool, string) { n := b.names(); return n == "", n })
}

func TestKillOfATreeReachesAChildWhoseParentDiedOfTheFirstSignal(t *testing.T) {
	t.Parallel()
	b := boot(t, image{})
	id := b.start(Cmd{Argv: []string{"bash", "-c",
		`setsid bash -c 'trap "" TERM; echo stubborn; while :; do sleep 1; done' & wait; wait`}})
	b.wrote(id, "stubborn")
	if err := b.Signal(ctx(t), id, 15, true); err != nil {
		t.Fatal(err)
	}
	b.wait(id)
	left, err := b.Leftovers(ctx(t), id)
	if err != nil || len(left) == 0 {
		t.Fatalf("the stubborn one isn't named: %+v %v", left, err)
	}
	if err := b.Signal(ctx(t), id, 9, true); err != nil {
		t.Fatal(err)
	}
	until(t, "the end of all", func() (bool, string) { n := b.names(); return n == "", n })
}

func TestKillEndsAForkBomb(t *testing.T) {
	t.Parallel()
	b := boot(t, image{})
	// A chain that forks without end, each process living a little: what is seen is gone when it is killed.
	id := b.start(Cmd{Argv: []string{"bash", "-c", `f() { sleep 0.05; f & f2=$!; disown $f2; }; echo up; for i in 1 2 3 4 5; do f & done; wait; sleep 1000`}})
	b.wrote(id, "up")
	if err := b.Signal(ctx(t), id, 9, true); err != nil {
		t.Fatal(err)
	}
	until(t, "the end of all", func() (bool, string) { n := b.names(); return n == "", n })
}

func TestProcessesNameWhatABootstrapLeft(t *testing.T) {
	t.Parallel()
	b := boot(t, image{})
	_, exit := b.run(Cmd{Script: script("setsid sleep 3001 >/dev/null 2>&1 </dev/null &\nsleep 3002 &\n"), User: "coder"})
	if exit.Code != 0 {
		t.Fatalf("%+v", exit)
	}
	until(t, "both sleeps", func() (bool, string) {
		ps, err := b.Processes(ctx(t))
		if err != nil {
			t.Fatal(err)
		}
		seen := map[string]bool{}
		for _, p := range ps {
			if p.User != "coder" || p.PID <= 1 {
				t.Errorf("%+v", p)
			}
			seen[strings.Join(p.Argv, " ")] = true
		}
		return seen["sleep 3001"] && seen["sleep 3002"] && len(ps) == 2, fmt.Sprintf("%+v", ps)
	})
}

func TestKillAllStopsEverythingAndTheAgentGoesOn(t *testing.T) {
	t.Parallel()
	b := boot(t, image{})
	soft := b.start(Cmd{Argv: []string{"bash", "-c", "trap 'echo bye; exit 3' TERM; echo up; while :; do sleep 0.05; done"}})
	hard := b.start(Cmd{Argv: []string{"bash", "-c", "trap '' TERM; echo up; while :; do sleep 0.05; done"}})
	still := b.start(Cmd{Argv: []string{"bash", "-c", "echo up; kill -STOP $$; sleep 1000"}})
	for _, id := range []string{soft, hard, still} {
		b.wrote(id, "up")
	}
	b.sh("setsid sleep 1000 >/dev/null 2>&1 &")
	done := make(chan error, 1)
	go func() { done <- b.KillAll(ctx(t), 500*time.Millisecond) }()
	if e := b.wait(soft); e.Code != 3 {
		t.Errorf("no grace: %+v", e)
	}
	if _, err := b.Start(ctx(t), Cmd{ID: "late", Argv: []string{"true"}}); !errors.Is(err, ErrStopping) {
		t.Errorf("started while all is stopped: %v", err)
	}
	if e := b.wait(hard); e.Signal != "SIGKILL" {
		t.Errorf("%+v", e)
	}
	b.wait(still)
	if err := <-done; err != nil {
		t.Fatal(err)
	}
	if n := b.names(); n != "" {
		t.Errorf("left: %s", n)
	}
	b.wrote(soft, "bye")
	b.sh("true")
}

func TestStopEndsTheSandbox(t *testing.T) {
	t.Parallel()
	b := boot(t, image{})
	b.start(Cmd{Argv: []string{"sleep", "1000"}})
	if err := b.Stop(ctx(t), 100*time.Millisecond); err != nil {
		t.Fatal(err)
	}
	select {
	case <-b.ended:
	case <-time.After(30 * time.Second):
		t.Fatal("the agent did not exit")
	}
	if _, err := b.Hello(ctx(t)); err == nil || !strings.Contains(err.Error(), "can't be reached") {
		t.Errorf("%v", err)
	}
}

func TestTheSandboxsRootCannotEndTheAgentByASignal(t *testing.T) {
	t.Parallel()
	b := boot(t, image{})
	b.sh("for s in 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 19 20 21 22 24 25 26 27 29 30 31; do kill -$s 1; done")
	b.sh("true")
}

func TestRunKillsTheTreeWhenItsContextEnds(t *testing.T) {
	t.Parallel()
	b := boot(t, image{})
	short, cancel := context.WithTimeout(ctx(t), 300*time.Millisecond)
	defer cancel()
	_, err := b.Run(short, Cmd{ID: "r", Argv: []string{"sh", "-c", "sleep 4001; true"}}, &screen{}, nil)
	if !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("%v", err)
	}
	if n := b.names(); n != "" {
		t.Errorf("left: %s", n)
	}
	if l, err := b.List(ctx(t)); err != nil || len(l) != 0 {
		t.Errorf("%+v %v", l, err)
	}
}
