package runner

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/claude-hub/claude-hub/app/fleet"
	"github.com/claude-hub/claude-hub/envspec"
	"github.com/claude-hub/claude-hub/runner/build"
	"github.com/claude-hub/claude-hub/runner/image/imagetest"
	"github.com/claude-hub/claude-hub/runner/wire"
	"github.com/claude-hub/claude-hub/store"
)

// version makes what an applied version of an Environment says, as if a Hub had tested it elsewhere.
func (w *world) version(spec envspec.Spec) (wire.Recipe, string) {
	w.t.Helper()
	img, err := w.runner.images.Pull(context.Background(), spec.Image, nil)
	if err != nil {
		w.t.Fatal(err)
	}
	return wire.Recipe{Environment: "env", Spec: raw(w.t, spec), ImageDigest: img.Digest}, build.Key(spec, img.Digest, w.cfg.ClaudeCode.Version, nil)
}

func (w *world) session(recipe wire.Recipe, key, url string, edit ...func(*wire.Session)) string {
	w.t.Helper()
	p := wire.Session{ID: store.NewID(), Recipe: recipe, Version: 1, BuildKey: key, Repo: wire.Repo{Name: "team/The_App", CloneURL: url},
		WorkBranch: "claude/work"}
	for _, e := range edit {
		e(&p)
	}
	return w.assign(wire.KindSession, p.ID, p, time.Time{})
}

// edit changes a Session's payload and what the Hub wants of it.
func (w *world) edit(id string, want fleet.Want, edit func(*wire.Session)) {
	w.t.Helper()
	var a fleet.Assignment
	err := w.db.Read(context.Background(), func(tx *store.Tx) (err error) {
		a, err = w.fleet.Get(tx, id)
		return err
	})
	if err != nil {
		w.t.Fatal(err)
	}
	w.owner.mu.Lock()
	p := w.owner.payloads[a.Subject].(wire.Session)
	edit(&p)
	w.owner.payloads[a.Subject] = p
	w.owner.mu.Unlock()
	w.change(id, want)
}

type result struct {
	out, err string
	exit     wire.ChannelExit
}

// client is a person at the Hub's side of a channel.
type client struct {
	w        *world
	id       string
	out      [2]strings.Builder
	in       int64
	controls []*wire.Control
	exit     *wire.ChannelExit
}

func (w *world) open(id string, spec wire.ChannelSpec) *client {
	w.t.Helper()
	ch, err := w.fleet.OpenChannel(context.Background(), id, spec)
	if err != nil {
		w.t.Fatal(err)
	}
	return &client{w: w, id: ch}
}

// move exchanges once; data follows what was given before.
func (c *client) move(data []byte, closed bool) {
	c.w.t.Helper()
	st, err := c.w.fleet.ClientExchange(context.Background(), c.id, fleet.ClientMove{In: data, InOffset: c.in, InClosed: closed,
		Controls: c.controls, Out1: int64(c.out[0].Len()), Out2: int64(c.out[1].Len()), Wait: time.Second})
	if err != nil {
		c.w.t.Fatal(err)
	}
	c.in = st.InNext
	for _, p := range st.Out {
		o := &c.out[p.Stream-1]
		if p.Offset != int64(o.Len()) {
			c.w.t.Fatalf("a piece at %d came after %d bytes", p.Offset, o.Len())
		}
		o.Write(p.Data)
	}
	if st.Ended {
		c.exit = &st.Exit
	}
}

// until exchanges until words came.
func (c *client) until(words string) {
	c.w.t.Helper()
	for end := time.Now().Add(limit); !strings.Contains(c.out[0].String(), words); c.move(nil, false) {
		if time.Now().After(end) || c.exit != nil {
			c.w.t.Fatalf("%q never came: %q %q %+v", words, c.out[0].String(), c.out[1].String(), c.exit)
		}
	}
}

func (c *client) end() result {
	c.w.t.Helper()
	for end := time.Now().Add(limit); c.exit == nil; c.move(nil, false) {
		if time.Now().After(end) {
			c.w.t.Fatalf("it never ended: %q %q", c.out[0].String(), c.out[1].String())
		}
	}
	return result{c.out[0].String(), c.out[1].String(), *c.exit}
}

// exec runs a command in a Session.
func (w *world) exec(id string, argv ...string) result {
	w.t.Helper()
	return w.open(id, wire.ChannelSpec{Argv: argv}).end()
}

func (w *world) sh(id, script string) string {
	w.t.Helper()
	r := w.exec(id, "sh", "-c", script)
	if r.exit.Code != 0 || r.exit.Failed != "" {
		w.t.Fatalf("%s: %+v", script, r)
	}
	return r.out
}

func TestASessionLivesThroughSleepWakeAndANewVersion(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.start()
	spec := envspec.Spec{Image: w.image("app:v1", asCoder), Bootstrap: "echo building; echo 1 >/version", Start: "echo started as $(id -un) at version $(cat /version)"}
	recipe, key := w.version(spec)
	id := w.session(recipe, key, w.repo())
	r := w.untilState(id, wire.StateRunning)
	w.untilLog(id, "started as coder at version 1\n")
	d := sessionDetail(t, r)
	if !d.Workspace || d.Version != 1 || len(d.Stages) == 0 || d.Failure != nil {
		t.Errorf("detail: %+v", d)
	}
	if log := w.log(id); !strings.Contains(log, "building\n") {
		t.Errorf("the build's log is not in the Session's:\n%s", log)
	}
	if got := w.sh(id, "id -un; pwd; hostname; cat .git/HEAD; echo $HOME; ls -ldn . | awk '{print $3}'"); got !=
		"coder\n/workspace\nthe-app\nref: refs/heads/claude/work\n/home/coder\n1000\n" {
		t.Errorf("inside: %q", got)
	}
	w.sh(id, "echo work >mine; echo x >/tmp/scratch; mkdir -p ~/kept")

	w.change(id, fleet.Stop)
	r = w.untilState(id, wire.StateAsleep)
	if d := sessionDetail(t, r); !d.Workspace || d.Unsaved == nil || d.Unsaved.Unknown == "" { // no git in the image: unknown, not zero
		t.Errorf("asleep: %+v, unsaved %+v", d, d.Unsaved)
	}
	w.change(id, fleet.Run)
	w.untilState(id, wire.StateRunning)
	if got := w.sh(id, "cat mine; ls -d ~/kept; ls /tmp"); got != "work\n/home/coder/kept\n" {
		t.Errorf("after waking: %q", got)
	}
	w.untilStarts(id, 2)

	spec.Bootstrap = "echo 2 >/version"
	recipe, key = w.version(spec)
	w.change(id, fleet.Stop)
	w.untilState(id, wire.StateAsleep)
	w.edit(id, fleet.Run, func(p *wire.Session) { p.Recipe, p.BuildKey, p.Version = recipe, key, 2 })
	r = w.untilState(id, wire.StateRunning)
	if d := sessionDetail(t, r); d.Version != 2 || len(d.Notes) == 0 {
		t.Errorf("new version: %+v", d)
	}
	if got := w.sh(id, "cat /version mine; ls -d ~/kept 2>&1 | grep -c kept$ || true"); got != "2\nwork\n0\n" {
		t.Errorf("at the new version: %q", got)
	}

	w.change(id, fleet.Remove)
	w.untilState(id, wire.StateRemoved)
	w.untilForgotten(id)
	if left, _ := filepath.Glob(filepath.Join(w.runner.sessions, "*")); len(left) > 0 || len(w.sandboxes()) > 0 {
		t.Errorf("left: %v %v", left, w.sandboxes())
	}
}

// untilStarts waits until the start script has run so often.
func (w *world) untilStarts(id string, n int) {
	w.t.Helper()
	for end := time.Now().Add(limit); strings.Count(w.log(id), "\nstarted as ") < n; time.Sleep(10 * time.Millisecond) {
		if time.Now().After(end) {
			w.t.Fatalf("the start script did not run %d times:\n%s", n, w.log(id))
		}
	}
}

func TestExecAndShellGiveWhatTheProcessGives(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.start()
	recipe, key := w.version(envspec.Spec{Image: w.image("app:v1", asCoder)})
	id := w.session(recipe, key, w.repo())
	w.untilState(id, wire.StateRunning)

	if r := w.exec(id, "sh", "-c", "echo out; echo err >&2; exit 7"); r.out != "out\n" || r.err != "err\n" || r.exit.Code != 7 {
		t.Errorf("exec: %+v", r)
	}
	if r := w.exec(id, "sh", "-c", "kill -15 $$"); r.exit.Code != 143 || r.exit.Signal != "SIGTERM" {
		t.Errorf("signal: %+v", r)
	}
	if r := w.exec(id, "nosuchtool"); r.exit.Code != 127 || !strings.Contains(r.exit.Failed, "nosuchtool") {
		t.Errorf("not found: %+v", r)
	}
	if r := w.exec(id, "/etc/passwd"); r.exit.Code != 126 || !strings.Contains(r.exit.Failed, "/etc/passwd") {
		t.Errorf("not executable: %+v", r)
	}
	c := w.open(id, wire.ChannelSpec{Argv: []string{"wc", "-c"}, Stdin: true})
	data := []byte(strings.Repeat("x", 1<<20))
	for end := time.Now().Add(limit); c.in < int64(len(data)) && time.Now().Before(end); {
		c.move(data[c.in:min(c.in+100_000, int64(len(data)))], false)
	}
	c.move(nil, true)
	if r := c.end(); strings.TrimSpace(r.out) != fmt.Sprint(len(data)) || r.exit.Code != 0 {
		t.Errorf("stdin: %+v", r)
	}
	if r := w.exec(id, "sh", "-c", "head -c 5000000 /dev/zero | tr '\\0' x"); len(r.out) != 5_000_000 {
		t.Errorf("5 MB of output came as %d bytes", len(r.out))
	}

	sh := w.open(id, wire.ChannelSpec{TTY: true, Rows: 30, Cols: 90, Term: "xterm"})
	sh.move([]byte("stty size; echo $TERM-$USER; pwd\n"), false)
	sh.until("30 90")
	sh.until("xterm-coder")
	sh.until("/workspace")
	sh.controls = append(sh.controls, &wire.Control{Seq: 1, Rows: 40, Cols: 100})
	sh.move([]byte("sleep 0.3; stty size\n"), false)
	sh.until("40 100")
	sh.move([]byte("exit 5\n"), false)
	if r := sh.end(); r.exit.Code != 5 {
		t.Errorf("shell: %+v", r)
	}

	gone := w.open(id, wire.ChannelSpec{Argv: []string{"sh", "-c", "echo $$ >/tmp/pid; echo up; sleep 1000"}})
	gone.until("up")
	w.fleet.CloseChannel(gone.id)
	for end := time.Now().Add(limit); w.exec(id, "sh", "-c", "kill -0 $(cat /tmp/pid)").exit.Code == 0; time.Sleep(50 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatal("a process that nobody wants lives on")
		}
	}
}

func TestAKilledRunnerFindsItsSessionsAndTheirChannelsAgain(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.start()
	recipe, key := w.version(envspec.Spec{Image: w.image("app:v1", nil),
		Start: "echo started as root; i=0; while [ $i -lt 60 ]; do echo tick $i; i=$((i+1)); sleep 0.1; done; echo ticked"})
	w.halt()
	w.spawn()
	id := w.session(recipe, key, w.repo())
	w.untilState(id, wire.StateRunning)
	w.untilLog(id, "tick 5\n")
	w.sh(id, "echo here >/tmp/alive")
	c := w.open(id, wire.ChannelSpec{Argv: []string{"sh", "-c", "i=0; while read x; do echo got $x; done; echo end"}, Stdin: true})
	c.move([]byte("one\n"), false)
	c.until("got one\n")
	w.kill()
	w.spawn()
	c.move([]byte("two\n"), false)
	c.until("got two\n")
	c.move(nil, true)
	if r := c.end(); r.out != "got one\ngot two\nend\n" || r.exit.Code != 0 {
		t.Errorf("the channel: %+v", r)
	}
	if got := w.sh(id, "cat /tmp/alive"); got != "here\n" {
		t.Errorf("the Sandbox did not live on: %q", got)
	}
	w.untilLog(id, "ticked\n")
	var ticks, want strings.Builder
	for line := range strings.Lines(w.log(id)) {
		if strings.HasPrefix(line, "tick ") {
			ticks.WriteString(line)
		}
	}
	for i := range 60 {
		fmt.Fprintf(&want, "tick %d\n", i)
	}
	if ticks.String() != want.String() || strings.Count(w.log(id), "started as root") != 1 {
		t.Errorf("the start script's output is not whole and once:\n%s", w.log(id))
	}
	// The host's reboot: the Session is woken on the same disk, and the start script runs again.
	w.sh(id, "echo work >mine")
	w.kill()
	if err := stopSandboxes(w); err != nil {
		t.Fatal(err)
	}
	w.spawn()
	w.untilStarts(id, 2)
	if got := w.sh(id, "cat mine"); got != "work\n" {
		t.Errorf("after the reboot: %q", got)
	}
}

func TestASessionWhoseStartScriptFailsIsThereForRepair(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.start()
	recipe, key := w.version(envspec.Spec{Image: w.image("app:v1", nil), Start: "echo broken; exit 3"})
	id := w.session(recipe, key, w.repo())
	r := w.until(id, "running with a failed start script", func(r fleet.Report) bool {
		return r.State == wire.StateRunning && sessionDetail(t, r).StartFailed != nil
	})
	d := sessionDetail(t, r)
	if d.StartFailed.Code != "exit" || *d.StartFailed.ExitCode != 3 || !strings.Contains(d.StartFailed.LastLines, "broken") {
		t.Errorf("start failed: %+v", d.StartFailed)
	}
	if w.sh(id, "echo fine") != "fine\n" {
		t.Error("it can't be used")
	}
}

func TestAFailedBuildFailsTheStartAndARetryBuildsAgain(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.start()
	spec := envspec.Spec{Image: w.image("app:v1", nil), Bootstrap: "echo trying; exit 6"}
	recipe, key := w.version(spec)
	id := w.session(recipe, key, w.repo())
	d := sessionDetail(t, w.untilState(id, wire.StateFailed))
	if d.Failure == nil || d.Failure.Phase != wire.PhaseBootstrap || !strings.Contains(d.Failure.LastLines, "trying") || d.Workspace {
		t.Fatalf("detail: %+v", d.Failure)
	}
	before := strings.Count(w.log(id), "trying\n")
	w.change(id, fleet.Run)
	for end := time.Now().Add(limit); strings.Count(w.log(id), "trying\n") == before; time.Sleep(10 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatal("Retry did not build again")
		}
	}
	w.untilState(id, wire.StateFailed)
	spec.Bootstrap = "echo mended"
	recipe, key = w.version(spec)
	w.edit(id, fleet.Run, func(p *wire.Session) { p.Recipe, p.BuildKey = recipe, key })
	w.untilState(id, wire.StateRunning)
}

func TestSessionsThatNeedTheSameBuildShareItAndItsLog(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.start()
	recipe, key := w.version(envspec.Spec{Image: w.image("app:v1", nil), Bootstrap: "echo begin-$$; sleep 2; echo end-$$"})
	url := w.repo()
	first := w.session(recipe, key, url)
	w.untilLog(first, "begin-")
	second := w.session(recipe, key, url)
	w.untilLog(second, "under way already")
	w.change(first, fleet.Stop) // the one that began it gives up; the other still gets it
	w.untilState(first, wire.StateAsleep)
	w.untilState(second, wire.StateRunning)
	if log := w.log(second); strings.Count(log, "begin-") != 1 || strings.Count(log, "end-") != 1 {
		t.Errorf("the log of the one that waited:\n%s", log)
	}
	third := w.session(recipe, key, url)
	w.untilState(third, wire.StateRunning)
	if log := w.log(third); strings.Contains(log, "begin-") {
		t.Errorf("it was built again:\n%s", log)
	}
}

func TestOnlyAnIdleSessionGoesToSleepByItself(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.start()
	recipe, key := w.version(envspec.Spec{Image: w.image("app:v1", nil), Start: "sleep 1000"})
	id := w.session(recipe, key, w.repo(), func(p *wire.Session) { p.IdleMS = 700 })
	w.untilState(id, wire.StateRunning)
	busy := w.open(id, wire.ChannelSpec{Argv: []string{"sh", "-c", "echo up; read x"}, Stdin: true})
	busy.until("up")
	busy.move(nil, false) // waits a second for output that doesn't come: an exec in progress keeps the Session awake
	w.change(id, fleet.Stop)
	w.untilState(id, wire.StateBusy)
	w.change(id, fleet.Run)
	w.untilState(id, wire.StateRunning)
	busy.move([]byte("x\n"), true)
	if r := busy.end(); r.exit.Code != 0 || r.exit.Failed != "" {
		t.Fatalf("the exec that the Session was busy with: %+v", r)
	}
	shell := w.open(id, wire.ChannelSpec{TTY: true, Rows: 24, Cols: 80})
	shell.until("#")
	w.untilIdle(id, 700*time.Millisecond) // a shell at its prompt doesn't count
	w.change(id, fleet.Stop)
	w.untilState(id, wire.StateAsleep)
}

func (w *world) untilIdle(id string, least time.Duration) {
	w.t.Helper()
	for end := time.Now().Add(limit); ; time.Sleep(10 * time.Millisecond) {
		for _, h := range w.runner.Held() {
			if h.Id == id && h.IdleMs >= least.Milliseconds() {
				return
			}
		}
		if time.Now().After(end) {
			w.t.Fatal("the Session never was idle")
		}
	}
}

func TestAMissingWorkspaceIsLostAndNeverClonedAgain(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.start()
	recipe, key := w.version(envspec.Spec{Image: w.image("app:v1", nil)})
	id := w.session(recipe, key, w.repo())
	w.untilState(id, wire.StateRunning)
	w.change(id, fleet.Stop)
	w.untilState(id, wire.StateAsleep)
	if err := os.RemoveAll(filepath.Join(w.runner.sessions, id)); err != nil {
		t.Fatal(err)
	}
	w.change(id, fleet.Run)
	d := sessionDetail(t, w.untilState(id, wire.StateFailed))
	if d.Failure.Code != "workspace-lost" || !strings.Contains(d.Failure.Message, "not cloned again") {
		t.Fatalf("failure: %+v", d.Failure)
	}
	if _, err := os.Stat(filepath.Join(w.runner.sessions, id)); !os.IsNotExist(err) {
		t.Error("a new disk was made in its place")
	}
}

// fakeGit answers the two questions of a count, and says who asked.
const fakeGit = `#!/bin/sh
[ "$1" = --no-optional-locks ] && shift
[ "$(id -un) $(pwd)" = "coder /workspace" ] || exit 9
case $1 in
status) printf ' M a\0?? b\0R  new\0old\0';;
rev-list) [ -e hang ] && sleep 1000; echo 4;;
esac
`

func TestWhatIsUnsavedIsCountedInTheSandboxAtSleep(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.start()
	recipe, key := w.version(envspec.Spec{Image: w.image("app:v1", asCoder, imagetest.File("usr/bin/git", 0o755, fakeGit))})
	id := w.session(recipe, key, w.repo())
	w.untilState(id, wire.StateRunning)
	w.change(id, fleet.Stop)
	if u := sessionDetail(t, w.untilState(id, wire.StateAsleep)).Unsaved; u == nil || u.Files != 3 || u.Commits != 4 || u.At == 0 || u.Unknown != "" {
		t.Errorf("unsaved: %+v", u)
	}
	w.change(id, fleet.Run)
	w.untilState(id, wire.StateRunning)
	w.sh(id, "touch hang")
	w.change(id, fleet.Stop)
	if u := sessionDetail(t, w.untilState(id, wire.StateAsleep)).Unsaved; u == nil || !strings.Contains(u.Unknown, "did not answer within 10s") {
		t.Errorf("unsaved with a git that hangs: %+v", u)
	}
}

func TestWhatIsUnsavedIsCountedWhileSomebodyWorks(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.countEvery = 200 * time.Millisecond
	w.start()
	const git = "#!/bin/sh\nshift\n[ $1 != status ] || cat changed\n[ $1 != rev-list ] || echo 0\n"
	recipe, key := w.version(envspec.Spec{Image: w.image("app:v1", asCoder, imagetest.File("usr/bin/git", 0o755, git)), Start: "touch changed"})
	id := w.session(recipe, key, w.repo())
	counts := func(files int) int64 {
		var at int64
		w.until(id, fmt.Sprintf("known to have %d uncommitted files", files), func(r fleet.Report) bool {
			if r.State != wire.StateRunning {
				return false
			}
			u := sessionDetail(t, r).Unsaved
			if u == nil || u.Unknown != "" || u.Files != files {
				return false
			}
			at = u.At
			return true
		})
		return at
	}
	counts(0)
	w.sh(id, "printf '?? b\\0' >changed")
	before := counts(1)
	w.halt()
	w.start() // adopted
	w.sh(id, "printf '?? b\\0?? c\\0' >changed")
	if at := counts(2); at <= before {
		t.Errorf("counted at %d, and before at %d", at, before)
	}
}

// The Hub opens an exec and, before the Runner has heard of it, asks the Session to sleep.
func TestAnExecThatMeetsASleepIsToldSo(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.start()
	recipe, key := w.version(envspec.Spec{Image: w.image("app:v1", nil)})
	id := w.session(recipe, key, w.repo())
	w.untilState(id, wire.StateRunning)
	c := w.open(id, wire.ChannelSpec{Argv: []string{"sleep", "1000"}})
	w.change(id, fleet.Stop)
	if r := c.end(); r.exit.Failed == "" && r.exit.Code == 0 {
		t.Fatalf("it neither ran to its end nor says why not: %+v", r)
	}
	w.untilState(id, wire.StateAsleep)
}
