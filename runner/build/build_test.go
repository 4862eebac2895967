package build

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"strings"
	"testing"

	"github.com/claude-hub/claude-hub/envspec"
	"github.com/claude-hub/claude-hub/runner/agent"
	"github.com/claude-hub/claude-hub/runner/clone"
	"github.com/claude-hub/claude-hub/runner/image"
	"github.com/claude-hub/claude-hub/runner/redact"
	"github.com/claude-hub/claude-hub/runner/sandbox"
	"github.com/claude-hub/claude-hub/runner/spool"
	"github.com/claude-hub/claude-hub/runner/wire"
)

func TestUserIsFoundInTheAccountFiles(t *testing.T) {
	t.Parallel()
	const passwd = "root:x:0:0::/root:/bin/bash\nbroken\nbig:x:9999999999:1::/:\ncoder:x:1000:1001::/home/coder:/bin/zsh\r\ncoder:x:5:5::/:\n"
	const groups = "root:x:0:\nstaff:x:50:coder\n"
	for in, want := range map[string]User{
		"":            {0, 0, "root", "/bin/bash"},
		"coder":       {1000, 1001, "coder", "/bin/zsh"},
		"1000":        {1000, 1001, "coder", "/bin/zsh"},
		"coder:staff": {1000, 50, "coder", "/bin/zsh"},
		"coder:7":     {1000, 7, "coder", "/bin/zsh"},
		"4242":        {UID: 4242},
		"4242:staff":  {UID: 4242, GID: 50},
	} {
		if got, err := resolveUser(passwd, groups, in); err != nil || got != want {
			t.Errorf("%q: %+v %v, want %+v", in, got, err, want)
		}
	}
	for in, says := range map[string]string{"nobody": "not in its /etc/passwd", "coder:x": "not in its /etc/group", "big": "not in", "-1": "not in", "1048576": "not in"} {
		_, err := resolveUser(passwd, groups, in)
		if err == nil || !strings.Contains(err.Error(), says) || Explain("x", err).Code != "no-user" {
			t.Errorf("%q: %v", in, err)
		}
	}
	if u, err := resolveUser("", "", ""); err != nil || u.UID != 0 {
		t.Errorf("root without account files: %+v %v", u, err)
	}
}

func TestExplainGivesStableCodes(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		err  error
		code string
	}{
		{&image.Error{Code: image.NoTag, Message: "m"}, "image-no-tag"},
		{fmt.Errorf("x: %w", &clone.Error{Code: clone.CodeRefused, Message: "m"}), "clone-refused"},
		{agent.ErrNoShell, "no-shell"},
		{sandbox.Errorf(sandbox.ErrHostFull, "m"), "host-full"},
		{sandbox.Errorf(sandbox.ErrDiskDamaged, "m"), "disk-damaged"},
		{ErrDeadline, "timeout"},
		{context.DeadlineExceeded, "timeout"},
		{errors.New("m"), "internal"},
		{&Failed{wire.Failure{Code: "own", Message: "m"}}, "own"},
	} {
		if f := Explain(wire.PhaseClone, c.err); f.Code != c.code || f.Phase != wire.PhaseClone || f.Message == "" {
			t.Errorf("%v: %+v", c.err, f)
		}
	}
}

func TestAnExitIsToldInWords(t *testing.T) {
	t.Parallel()
	if f := ExitFailure(wire.PhaseStart, agent.Exit{}, 0, ""); f != nil {
		t.Errorf("exit code 0: %v", f)
	}
	for says, exit := range map[string]agent.Exit{
		"the start script ended with exit code 3":                     {Code: 3},
		"the start script was ended by SIGTERM":                       {Code: 143, Signal: "SIGTERM"},
		"the start script ran out of memory (the Sandbox has 4 GiB)":  {Code: 137, Signal: "SIGKILL", OOM: true},
		"exit code 127: a command was not found or can't be run; the": {Code: 127},
	} {
		if f := ExitFailure(wire.PhaseStart, exit, 4<<30, "tail"); f == nil || !strings.Contains(f.Message, says) || f.LastLines != "tail" || *f.ExitCode != exit.Code {
			t.Errorf("%+v: %v", exit, f)
		}
	}
}

func TestAReferenceIsPinnedByDigest(t *testing.T) {
	t.Parallel()
	for in, want := range map[string]string{
		"debian":                       "debian@sha256:1",
		"debian:bookworm":              "debian@sha256:1",
		"localhost:5000/a/b":           "localhost:5000/a/b@sha256:1",
		"localhost:5000/a/b:v1":        "localhost:5000/a/b@sha256:1",
		"ghcr.io/a/b:v1@sha256:old":    "ghcr.io/a/b@sha256:1",
		"registry.example/x@sha256:ab": "registry.example/x@sha256:1",
	} {
		if got := pin(in, "sha256:1"); got != want {
			t.Errorf("%s: %s", in, got)
		}
	}
}

func TestLeftoversAreNamedShortly(t *testing.T) {
	t.Parallel()
	p := func(argv ...string) agent.Process { return agent.Process{Argv: argv} }
	if got := leftovers(&redact.Set{}, nil, "stopped"); got != "" {
		t.Error(got)
	}
	if got := leftovers(&redact.Set{}, []agent.Process{p("/usr/bin/redis-server", "*:6379")}, "stopped"); got != "1 background process stopped: redis-server" {
		t.Error(got)
	}
	if got := leftovers(&redact.Set{}, []agent.Process{p("sleep"), p("/bin/sleep"), p("a%s")}, "still running"); got != "3 background processes still running: a%s, sleep (2)" {
		t.Error(got)
	}
	var set redact.Set
	if err := set.Add("V", []byte("pass/word-of-a-value")); err != nil {
		t.Fatal(err)
	}
	if got := leftovers(&set, []agent.Process{p("worker-pass/word-of-a-value")}, "stopped"); strings.Contains(got, "word-of") {
		t.Errorf("the part of a value behind its slash is shown: %q", got)
	}
	var many []agent.Process
	for i := range 12 {
		many = append(many, p(fmt.Sprintf("p%02d", i)))
	}
	if got := leftovers(&redact.Set{}, many, "stopped"); !strings.HasSuffix(got, "p07 and 4 more") {
		t.Error(got)
	}
}

func TestMemoryBelowWhatASandboxNeedsIsRaisedAndSaid(t *testing.T) {
	t.Parallel()
	b := &Builder{cfg: Config{Runner: "r1", CPU: 4, Memory: 8 << 30, Pids: 4096}}
	l, notes := b.Limits(envspec.Spec{CPU: 8, Memory: 64 << 20})
	if l.CPU != 4 || l.Memory != sandbox.MinMemory || l.Pids != 4096 || len(notes) != 2 {
		t.Errorf("%+v %q", l, notes)
	}
	if l, notes := b.Limits(envspec.Spec{}); l.CPU != 4 || l.Memory != 8<<30 || len(notes) != 0 {
		t.Errorf("%+v %q", l, notes)
	}
}

func TestLangIsSetUnlessTheImageSetsOne(t *testing.T) {
	t.Parallel()
	b := &Builder{cfg: Config{Env: []string{"http_proxy=p"}}}
	if got := strings.Join(b.Env(image.Config{Env: []string{"A=1"}}, nil, "B=2"), " "); got != "A=1 LANG=C.UTF-8 http_proxy=p B=2" {
		t.Error(got)
	}
	if got := strings.Join(b.Env(image.Config{Env: []string{"LC_ALL=de"}}, nil), " "); got != "LC_ALL=de http_proxy=p" {
		t.Error(got)
	}
}

func testSpool(t *testing.T) *spool.Stream {
	t.Helper()
	s, err := spool.Open(filepath.Join(t.TempDir(), "spool"), spool.Options{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { s.Close() })
	st, err := s.Stream("a", 1)
	if err != nil {
		t.Fatal(err)
	}
	return st
}

func spooled(t *testing.T, st *spool.Stream) string {
	t.Helper()
	p, _, err := st.Next(1 << 20)
	if err != nil {
		t.Fatal(err)
	}
	return string(p.Data)
}

func TestALogHidesValuesThatAreSplitAndKeepsRawOffsets(t *testing.T) {
	t.Parallel()
	const value = "correct-horse-battery"
	set := &redact.Set{}
	if err := set.Add("TOKEN", []byte(value)); err != nil {
		t.Fatal(err)
	}
	st := testSpool(t)
	l := NewLog(set, st)
	l.Mark("begin %s", value)
	l.Begin("script@1")
	kept, err := l.write([]byte("a " + value[:9]))
	if err != nil || kept != 2 {
		t.Fatalf("kept %d %v: what may be the beginning of a value isn't kept yet", kept, err)
	}
	l.Mark("in the middle")
	// The process is killed here. What was held back is read again from the raw offset.
	l = NewLog(set, st)
	l.Begin("script@1")
	if from := l.covered(); from != 2 {
		t.Fatalf("the next process reads on from %d", from)
	}
	if _, err := l.write([]byte(value + " b\n")); err != nil {
		t.Fatal(err)
	}
	l.Mark("end")
	if got, want := spooled(t, st), "==> begin ***\na \n==> in the middle\n*** b\n==> end\n"; got != want {
		t.Errorf("got %q, want %q", got, want)
	}
	l.Begin("script@2")
	if l.covered() != 0 {
		t.Error("another script begins at its own offset")
	}
}

func TestAFlightGoesOnWithoutTheOneThatBeganIt(t *testing.T) {
	t.Parallel()
	first, second := testSpool(t), testSpool(t)
	a := &Job{Log: NewLog(&redact.Set{}, first), Track: NewTrack(nil, nil, nil)}
	b := &Job{Log: NewLog(&redact.Set{}, second), Track: NewTrack(nil, nil, nil)}
	f := &flight{waiters: map[*Job]bool{}, first: a, log: NewLog(a.Log.set, a.Log.stream)}
	f.track = NewTrack(nil, nil, f.mirror)
	f.log.Tee(f.spread)
	f.join(a, false)
	f.log.Mark("one")
	f.track.Begin(wire.PhaseBootstrap)
	f.join(b, true)
	f.log.Mark("two")
	if f.leave(a) {
		t.Fatal("one still waits")
	}
	f.log.Mark("three")
	f.track.End(wire.PhaseBootstrap, "", nil)
	a.Log.Mark("asleep")
	if got := spooled(t, first); got != "==> one\n==> two\n==> asleep\n" {
		t.Errorf("the first one's log: %q", got)
	}
	if got := spooled(t, second); got != "==> this build is under way already; its log so far:\n==> one\n==> two\n==> three\n" {
		t.Errorf("the second one's log: %q", got)
	}
	if a.Track.Phase(wire.PhaseBootstrap).State != wire.PhaseRunning || b.Track.Phase(wire.PhaseBootstrap).State != wire.PhaseDone {
		t.Errorf("phases: %+v %+v", a.Track.Phases(), b.Track.Phases())
	}
	if !f.leave(b) {
		t.Error("nobody waits")
	}
}

// listing is an engine that only lists.
type listing struct {
	sandbox.Engine
	list []sandbox.Status
}

func (l listing) List(context.Context) ([]sandbox.Status, error) { return l.list, nil }

func TestABootThatCouldTakeTheHostsLastProcessIdsIsRefused(t *testing.T) {
	t.Parallel()
	limits := sandbox.Limits{Pids: 4096}
	b := &Builder{cfg: Config{Runner: "r1"}, pidMax: func() (int64, error) { return 16384, nil }, engine: listing{list: []sandbox.Status{
		{ID: "a", Running: true, Spec: sandbox.Spec{Limits: limits}}, {ID: "b", Running: true, Spec: sandbox.Spec{Limits: limits}},
		{ID: "c", Spec: sandbox.Spec{Limits: limits}},
	}}}
	if err := b.Room(t.Context(), "d", limits); err != nil {
		t.Errorf("3 × 4,096 of 16,384: %v", err)
	}
	if err := b.Room(t.Context(), "a", sandbox.Limits{Pids: 10000}); err != nil {
		t.Errorf("what runs under the same id doesn't count twice: %v", err)
	}
	err := b.Room(t.Context(), "d", sandbox.Limits{Pids: 8192})
	if f := Explain(wire.PhaseBoot, err); err == nil || f.Code != CodeHostFull || !strings.Contains(f.Message, "may have 16384 processes") {
		t.Errorf("got %+v", f)
	}
}
