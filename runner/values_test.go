package runner

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/claude-hub/claude-hub/app/fleet"
	"github.com/claude-hub/claude-hub/envspec"
	"github.com/claude-hub/claude-hub/runner/build"
	"github.com/claude-hub/claude-hub/runner/sandbox"
	"github.com/claude-hub/claude-hub/runner/secret"
	"github.com/claude-hub/claude-hub/runner/wire"
)

// sensitive is a value that the bootstrap receives if build says so.
func sensitive(name, value, id string, build bool) *wire.Value {
	return &wire.Value{Name: name, Value: []byte(value), Id: id, Sensitive: true, Build: build}
}

func plain(name, value, id string) *wire.Value {
	return &wire.Value{Name: name, Value: []byte(value), Id: id, Build: true}
}

// having is spec with Variables for values, as a stored Spec has them: without the values.
func having(spec envspec.Spec, values ...*wire.Value) envspec.Spec {
	for _, v := range values {
		spec.Variables = append(spec.Variables, envspec.Variable{Name: v.Name, Sensitive: v.Sensitive, Build: v.Build && v.Sensitive, ValueID: v.Id})
	}
	return spec
}

func sum(b []byte) string {
	s := sha256.Sum256(b)
	return hex.EncodeToString(s[:])
}

const pemValue = "-----BEGIN EC PRIVATE KEY-----\nMHcCAQEEIB1n0tAReALk3yJustA7estF0rClaudeHubXoAoGCCqGSM49\nAwEHoUQDQgAE\n-----END EC PRIVATE KEY-----\n"

func TestValuesArriveByteForByteAndOnlyWhereTheyBelong(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.start()
	values := []*wire.Value{
		plain("EMPTY", "", "p1"),
		plain("PLAIN", "a=b # \"$HOME\" 'x' `y` \\ \xff\xfe 🔑\n\n", "p2"),
		plain("PATH_LIKE", "${APP_NAME}", "p3"),
		plain("LANG", "POSIX", "p4"),
		sensitive("PEM", pemValue, "s1", true),
		sensitive("LARGE_OF_THESE", strings.Repeat("aLargeValue64KiB", secret.Max/16-1)+"itsLastLineEnds\n", "s2", true),
		sensitive("JSON", `{"a":["b c d e f g"],"q":"\"'$"}`, "s3", false),
	}
	w.owner.give("", values...)
	var show strings.Builder
	for _, v := range values {
		fmt.Fprintf(&show, "if [ -n \"${%[1]s+x}\" ]; then printf %%s \"$%[1]s\" | sha256sum | sed 's/ .*/ %[1]s/'; else echo unset %[1]s; fi\n", v.Name)
	}
	spec := having(envspec.Spec{Image: w.image("app:v1", asCoder), Bootstrap: show.String(), Start: show.String() + "printf '%s\\n' \"$JSON\" \"$PEM\""}, values...)
	id := w.test(spec, w.repo())
	state, d := w.outcome(id)
	log := w.wholeLog(id)
	if state != wire.StatePassed {
		t.Fatalf("%s: %+v\n%s", state, d.Failure, log)
	}
	for _, v := range values {
		line, times := sum(v.Value)+" "+v.Name+"\n", 2
		if !v.Build {
			times = 1
			if !strings.Contains(log, "unset "+v.Name+"\n") {
				t.Errorf("%s reached the bootstrap:\n%s", v.Name, log)
			}
		}
		if got := strings.Count(log, line); got != times {
			t.Errorf("%s arrived %d times as it is, want %d:\n%s", v.Name, got, times, log)
		}
	}
	if n := w.asked.Load(); n != 1 {
		t.Errorf("the Hub was asked for values %d times in one attempt", n)
	}
	img, err := w.runner.images.Get(d.ImageDigest)
	if err != nil {
		t.Fatal(err)
	}
	recipe := wire.Recipe{Environment: "env", Spec: raw(t, spec), ImageDigest: img.Digest}
	session := w.session(recipe, d.BuildKey, w.repo())
	w.untilState(session, wire.StateRunning)
	if strings.Contains(w.log(session), "==> bootstrap:") {
		t.Error("the tested build was not used: the key of a Session's build is another one")
	}
	got := w.sh(session, show.String())
	for _, v := range values {
		if !strings.Contains(got, sum(v.Value)+" "+v.Name+"\n") {
			t.Errorf("an exec didn't get %s as it is: %s", v.Name, got)
		}
	}
	term := w.open(session, wire.ChannelSpec{TTY: true, Rows: 24, Cols: 200})
	term.move([]byte("printf %s \"$LARGE_OF_THESE\" | sha256sum; printf '<%s>' \"$JSON\"\n"), false)
	term.until(sum(values[5].Value))
	term.until("<***>")
	if out := w.sh(session, `printf '%s\n' "$JSON" "$PEM"; echo "$LARGE_OF_THESE" | head -c 3000; tr '\0' '\n' </proc/self/environ`); strings.Contains(out, "b c d e") || strings.Contains(out, "MHcC") ||
		strings.Contains(out, "64KiBaLarge") {
		t.Errorf("an exec shows %.400q", out)
	}
	w.noneOnDisk("MHcCAQEEIB1n0tAReALk3yJustA7estF0rClaudeHubXoAoGCCqGSM49", `{"a":["b c d e f g"]`, "Value64KiBaLargeValue64KiB", "LARGE_OF_THESE=")
}

// noneOnDisk fails when one of these stands in any file of the Runner's, its disks included, or on a command line of this
// machine: values must be ones that no other test shows.
func (w *world) noneOnDisk(values ...string) {
	w.t.Helper()
	if w.onDisk("sha256sum") == nil {
		w.t.Error("a script's text is in no file, so nothing could be found")
	}
	for _, v := range values {
		if files := w.onDisk(v); files != nil {
			w.t.Errorf("%.40q stands in %s", v, files)
		}
	}
	files, _ := filepath.Glob("/proc/[0-9]*/cmdline")
	for _, f := range files {
		b, _ := os.ReadFile(f)
		for _, v := range values {
			if strings.Contains(string(b), v) {
				w.t.Errorf("%s holds %.40q: %.200q", f, v, b)
			}
		}
	}
}

// onDisk are the Runner's files in which a value stands.
func (w *world) onDisk(value string) (in []string) {
	w.t.Helper()
	for _, dir := range []string{w.data, w.cfg.RunDir} {
		err := filepath.WalkDir(dir, func(file string, e os.DirEntry, err error) error {
			if err == nil && e.Type().IsRegular() && contains(file, value) {
				in = append(in, file)
			}
			return nil
		})
		if err != nil {
			w.t.Error(err)
		}
	}
	return in
}

// contains reads a file but for its holes, which disks mostly are. A file that is gone contains nothing.
func contains(file, value string) bool {
	f, err := os.Open(file)
	if err != nil {
		return false
	}
	defer f.Close()
	buf, kept := make([]byte, 1<<20+len(value)), 0
	for pos := int64(0); ; {
		data, err := unix.Seek(int(f.Fd()), pos, unix.SEEK_DATA)
		if err != nil {
			return false
		}
		pos = max(pos, data)
		n, err := f.ReadAt(buf[kept:kept+1<<20], pos)
		if bytes.Contains(buf[:kept+n], []byte(value)) {
			return true
		}
		if err != nil {
			return false
		}
		pos += int64(n)
		kept = copy(buf, buf[max(0, kept+n-len(value)):kept+n])
	}
}

func TestWhatTheHubRefusesFailsWithItsSentenceAndIsNotAskedAgain(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.start()
	const sentence = "the Variables API_KEY and NPM_TOKEN have no value; set them on the Environment's page"
	v := sensitive("API_KEY", "a value of eight or more", "s1", false)
	w.owner.give(sentence)
	spec := having(envspec.Spec{Image: w.image("app:v1", nil)}, v)
	id := w.test(spec, w.repo())
	if state, d := w.outcome(id); state != wire.StateFailed || d.Failure.Message != sentence || d.Failure.Code != build.CodeValues {
		t.Errorf("%s: %+v", state, d.Failure)
	}
	recipe, key := w.version(spec)
	session := w.session(recipe, key, w.repo())
	d := sessionDetail(t, w.untilState(session, wire.StateFailed))
	if d.Failure.Message != sentence || d.Failure.Code != build.CodeValues || d.Workspace {
		t.Errorf("%+v", d.Failure)
	}
	if n := w.asked.Load(); n != 2 {
		t.Errorf("asked %d times in a Test build and a start", n)
	}
	w.owner.give("", v)
	w.change(session, fleet.Run)
	w.untilState(session, wire.StateRunning)
	if got := w.sh(session, `printf %s "$API_KEY" | wc -c`); strings.TrimSpace(got) != "24" {
		t.Errorf("after a Retry: %q", got)
	}
}

func TestAWakeBringsTheValuesOfNowAndTheOldOnesStayHidden(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.start()
	old, now := sensitive("API_KEY", "the-old-value-of-it", "s1", false), sensitive("API_KEY", "the-new-value-of-it", "s2", false)
	w.owner.give("", old)
	spec := having(envspec.Spec{Image: w.image("app:v1", nil), Start: `[ -e seen ] || printf %s "$API_KEY" >seen; cat seen; echo " $API_KEY"`}, old)
	recipe, key := w.version(spec)
	id := w.session(recipe, key, w.repo())
	w.untilState(id, wire.StateRunning)
	w.untilLog(id, "*** ***\n==> start script: done")
	w.change(id, fleet.Stop)
	w.untilState(id, wire.StateAsleep)
	w.owner.give("", now)
	w.change(id, fleet.Run)
	w.untilState(id, wire.StateRunning)
	if got := w.sh(id, `[ "$API_KEY" = the-"new"-value-of-it ] && echo new; cat seen`); got != "new\n***" {
		t.Errorf("after the wake: %q", got)
	}
	if n := w.asked.Load(); n != 2 {
		t.Errorf("asked %d times in a start and a wake", n)
	}
	w.untilLog(id, "*** ***\n==> start script: done\n==> going to sleep\n==> asleep\n==> boot")
	for end := time.Now().Add(limit); strings.Count(w.log(id), "*** ***\n") != 2 && time.Now().Before(end); time.Sleep(10 * time.Millisecond) {
	}
	if log := w.log(id); strings.Contains(log, "-value-of-it") || strings.Count(log, "*** ***\n") != 2 {
		t.Errorf("the log:\n%s", log)
	}
}

func TestANewSharedValueUsedAtBuildHasTheNextWakeBuildAgain(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.start()
	link := sensitive("REGISTRY_TOKEN", "first-shared-value", "v1", true)
	w.owner.give("", link)
	spec := envspec.Spec{Image: w.image("app:v1", nil), Bootstrap: `printf %s "$REGISTRY_TOKEN" | sha256sum >/built`,
		Variables: []envspec.Variable{{Name: "REGISTRY_TOKEN", Link: "SHARED", Build: true}}}
	recipe, key := w.version(spec)
	id := w.session(recipe, key, w.repo())
	w.untilState(id, wire.StateRunning)
	if got := w.sh(id, "cat /built"); !strings.HasPrefix(got, sum([]byte("first-shared-value"))) {
		t.Fatalf("built with %s", got)
	}
	w.change(id, fleet.Stop)
	w.untilState(id, wire.StateAsleep)
	w.owner.give("", sensitive("REGISTRY_TOKEN", "second-shared-value", "v2", true))
	w.change(id, fleet.Run)
	w.untilState(id, wire.StateRunning)
	if got := w.sh(id, "cat /built"); !strings.HasPrefix(got, sum([]byte("second-shared-value"))) {
		t.Errorf("built with %s", got)
	}
	if log := w.log(id); strings.Count(log, "==> bootstrap: done") != 2 {
		t.Errorf("the log of the second build is not in the Session's:\n%s", log)
	}
}

func TestANewProcessOfTheRunnerReadsNoOutputBeforeItKnowsTheValues(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	v := sensitive("API_KEY", "value-that-is-printed-forever", "s1", false)
	w.owner.give("", v)
	w.start()
	spec := having(envspec.Spec{Image: w.image("app:v1", nil), Start: `i=0; while [ ! -e stop ]; do i=$((i+1)); echo "$i $API_KEY"; sleep 0.05; done; echo "last $API_KEY"`}, v)
	recipe, key := w.version(spec)
	id := w.session(recipe, key, w.repo())
	w.untilLog(id, "3 ***\n")
	w.stop()
	const sentence = "the Variable API_KEY lost its value"
	w.owner.give(sentence)
	w.start()
	w.untilLog(id, "what it prints is not shown until its values are there to be hidden: "+sentence)
	w.until(id, "told to be withheld", func(r fleet.Report) bool { return strings.Contains(string(r.Detail), notShown(sentence)) })
	if out, err := exec.Command("touch", filepath.Join(w.sessionFolder(id), "stop")).CombinedOutput(); err != nil {
		t.Fatalf("%v %s", err, out)
	}
	before := w.log(id)
	w.owner.give("", v)
	w.runner.worker(id).wake() // as the Hub's next list does
	w.untilLog(id, "last ***\n==> start script: done")
	if log := w.log(id); strings.Contains(log, "value-that-is") || !strings.HasPrefix(log, before) {
		t.Errorf("the log:\n%s", log)
	}
	if got := w.sh(id, `echo "$API_KEY"`); got != "***\n" {
		t.Errorf("an exec: %q", got)
	}
	w.until(id, "shown again", func(r fleet.Report) bool { return !strings.Contains(string(r.Detail), notShown(sentence)) })
}

func TestANewProcessOfTheRunnerShowsNothingOfASandboxWhoseValuesWereReplaced(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	const old = "the-old-value-that-still-runs"
	link := sensitive("API_KEY", old, "v1", false)
	w.owner.give("", link)
	w.start()
	recipe, key := w.version(envspec.Spec{Image: w.image("app:v1", nil), Variables: []envspec.Variable{{Name: "API_KEY", Link: "SHARED"}},
		Start: `while [ ! -e stop ]; do sleep 0.05; done; echo "last $API_KEY"`})
	id := w.session(recipe, key, w.repo())
	w.untilState(id, wire.StateRunning)
	w.untilLog(id, "start script: starting")
	w.stop()
	w.owner.give("", sensitive("API_KEY", "the-new-value-of-the-link", "v2", false))
	w.start()
	w.untilLog(id, "what it prints is not shown until its values are there to be hidden: "+replacedValues)
	w.until(id, "told to be withheld", func(r fleet.Report) bool { return strings.Contains(string(r.Detail), notShown(replacedValues)) })
	if out, err := exec.Command("touch", filepath.Join(w.sessionFolder(id), "stop")).CombinedOutput(); err != nil {
		t.Fatalf("%v %s", err, out)
	}
	w.change(id, fleet.Stop)
	w.untilState(id, wire.StateAsleep)
	w.change(id, fleet.Run)
	w.untilState(id, wire.StateRunning)
	w.untilLog(id, "last ***\n==> start script: done")
	if log := w.log(id); strings.Count(log, "last ") != 1 || w.fleet.Caught() != 0 {
		t.Errorf("the Hub caught %d values; the log:\n%s", w.fleet.Caught(), log)
	}
	if got := w.sh(id, `[ "$API_KEY" = the-"new"-value-of-the-link ] && echo new`); got != "new\n" {
		t.Errorf("an exec after the wake: %q", got)
	}
	w.until(id, "shown again", func(r fleet.Report) bool { return !strings.Contains(string(r.Detail), notShown(replacedValues)) })
}

func TestANewProcessOfTheRunnerServesNoChannelOfABusySessionBeforeItKnowsTheValues(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	v := sensitive("API_KEY", "value-that-an-exec-prints", "s1", false)
	w.owner.give("", v)
	w.start()
	recipe, key := w.version(having(envspec.Spec{Image: w.image("app:v1", nil)}, v))
	id := w.session(recipe, key, w.repo(), func(p *wire.Session) { p.IdleMS = time.Hour.Milliseconds() })
	w.untilState(id, wire.StateRunning)
	busy := w.open(id, wire.ChannelSpec{Argv: []string{"sh", "-c", `echo up; while [ ! -e stop ]; do sleep 0.05; done; echo "last $API_KEY"`}})
	busy.until("up")
	w.change(id, fleet.Stop)
	w.untilState(id, wire.StateBusy)
	w.stop()
	if out, err := exec.Command("touch", filepath.Join(w.sessionFolder(id), "stop")).CombinedOutput(); err != nil {
		t.Fatalf("%v %s", err, out)
	}
	asked := w.asked.Load()
	w.start()
	for end := time.Now().Add(limit); len(w.runner.Held()) == 0; time.Sleep(10 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatal("the new process never held the Session")
		}
	}
	busy.move(nil, false) // waits a second for output that doesn't come
	if busy.exit != nil || strings.Contains(busy.out[0].String(), "last") || w.asked.Load() != asked {
		t.Errorf("while the Hub asks for sleep: %q %+v", busy.out[0].String(), busy.exit)
	}
	w.change(id, fleet.Run)
	if r := busy.end(); r.out != "up\nlast ***\n" || w.fleet.Caught() != 0 {
		t.Errorf("the exec's output, of which the Hub caught %d values: %+v", w.fleet.Caught(), r)
	}
}

func TestAStartScriptWhoseValueIsReplacedWhileTheRunnerIsDeadStartsAgain(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.owner.give("", sensitive("API_KEY", "the-old-value-that-is-printed", "v1", false))
	w.start()
	id := w.test(envspec.Spec{Image: w.image("app:v1", nil), Variables: []envspec.Variable{{Name: "API_KEY", Link: "SHARED"}},
		Start: `echo up; [ "$API_KEY" = the-"new"-value ] || while :; do echo "$API_KEY"; sleep 0.05; done; echo "new $API_KEY"`}, w.repo())
	w.untilLog(id, "up\n***\n")
	w.stop()
	w.owner.give("", sensitive("API_KEY", "the-new-value", "v2", false))
	w.start()
	if state, d := w.outcome(id); state != wire.StatePassed {
		t.Errorf("%s: %+v", state, d.Failure)
	}
	log := w.wholeLog(id)
	if !strings.Contains(log, "a Sensitive value that its Sandbox has was replaced, so it starts again in a fresh one") ||
		!strings.Contains(log, "up\nnew ***\n") || w.fleet.Caught() != 0 {
		t.Errorf("the Hub caught %d values; the log:\n%s", w.fleet.Caught(), log)
	}
}

// sessionFolder is a running Session's Workspace on the host.
func (w *world) sessionFolder(id string) string {
	w.t.Helper()
	m, err := w.runner.engine.Mount(context.Background(), sandbox.Disk{Path: filepath.Join(w.runner.sessions, id), Size: int64(w.cfg.SessionDisk)})
	if err != nil {
		w.t.Fatal(err)
	}
	return filepath.Join(m.Folder, build.WorkspaceFolder)
}

func (r *Runner) worker(id string) *worker {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.workers[id]
}

func TestTheAuthorHearsOfValuesThatTheBootstrapWroteToFiles(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.start()
	values := []*wire.Value{
		sensitive("NPM_TOKEN", "npm-token-of-sixteen-and-more", "s1", true), sensitive("SHORT", "only-8-b", "s2", true),
		sensitive("NOT_AT_BUILD", "npm-token-of-another-kind", "s3", false), plain("PLAIN", "a plain value of some length", "p1"),
	}
	w.owner.give("", values...)
	spec := having(envspec.Spec{Image: w.image("app:v1", nil), Bootstrap: `
mkdir -p /etc/deep/er
{ head -c 3000000 /dev/zero; printf %s "x$NPM_TOKEN"; head -c 100 /dev/zero; } >/etc/deep/er/binary
echo "//registry/:_authToken=$NPM_TOKEN $NPM_TOKEN" >/root/npmrc
echo "$SHORT $PLAIN" >/root/other
ln -s /root/npmrc /root/link; mkfifo /root/pipe
echo "$NPM_TOKEN" >/tmp/gone
`}, values...)
	id := w.test(spec, w.repo())
	state, d := w.outcome(id)
	log := w.wholeLog(id)
	if state != wire.StatePassed {
		t.Fatalf("%s: %+v\n%s", state, d.Failure, log)
	}
	var got []string
	for _, n := range d.Notes {
		if strings.Contains(n, "the bootstrap wrote") {
			got = append(got, n)
		}
	}
	for _, file := range []string{"/etc/deep/er/binary", "/root/npmrc"} {
		want := "the bootstrap wrote the value of NPM_TOKEN to " + file + ", so it is in the build on this Runner's disk"
		if !strings.Contains(strings.Join(got, "\n"), want) || !strings.Contains(log, "==> snapshot: "+want) {
			t.Errorf("no warning %q:\n%s", want, log)
		}
	}
	if len(got) != 2 {
		t.Errorf("warnings: %q", got)
	}
}

func TestATestBuildAndASessionOfOneKeyShareOneBuild(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.start()
	url := w.repo()
	spec := envspec.Spec{Image: w.image("app:v1", nil), Bootstrap: `cat /proc/sys/kernel/random/uuid | tee /built; for i in 1 2 3 4 5 6 7 8 9 10; do echo step $i; sleep 0.2; done`}
	recipe, key := w.version(spec)
	test := w.test(spec, url)
	w.untilLog(test, "step 1\n")
	session := w.session(recipe, key, url)
	w.untilLog(session, "this build is under way already")
	again := w.test(spec, url)
	w.untilState(session, wire.StateRunning)
	for _, id := range []string{test, again} {
		if state, d := w.outcome(id); state != wire.StatePassed || d.BuildKey != key {
			t.Fatalf("%s: %+v", state, d.Failure)
		}
	}
	built := w.sh(session, "cat /built")
	for what, log := range map[string]string{"the Test build": w.wholeLog(test), "the Session": w.log(session), "another Test build": w.wholeLog(again)} {
		if strings.Count(log, built) != 1 || strings.Count(log, "step 10\n") != 1 {
			t.Errorf("%s has another log than %s:\n%s", what, built, log)
		}
	}
	all, err := w.runner.builder.All(t.Context())
	if err != nil || len(all) != 1 {
		t.Errorf("%d builds were made, %v", len(all), err)
	}
}

func TestACancelledTestBuildLeavesItsBuildToThoseWhoWaitForIt(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.start()
	url := w.repo()
	spec := envspec.Spec{Image: w.image("app:v1", nil), Bootstrap: `echo begun; while [ ! -e /go ]; do sleep 0.1; i=$((i+1)); [ "$i" -lt 30 ] || exit 0; done`}
	recipe, key := w.version(spec)
	test := w.test(spec, url)
	w.untilLog(test, "begun\n")
	session := w.session(recipe, key, url)
	w.untilLog(session, "begun\n")
	w.change(test, fleet.Stop)
	w.untilState(test, wire.StateCancelled)
	w.untilState(session, wire.StateRunning)
	if log := w.log(session); strings.Count(log, "begun\n") != 1 {
		t.Errorf("the bootstrap began again:\n%s", log)
	}
	last := w.test(having(envspec.Spec{Image: spec.Image, Bootstrap: "echo begun; sleep 1000"}), url)
	w.untilLog(last, "begun\n")
	w.change(last, fleet.Stop)
	w.untilState(last, wire.StateCancelled)
	for end := time.Now().Add(limit); len(w.sandboxes()) != 1; time.Sleep(10 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("Sandboxes are left: %v", w.sandboxes())
		}
	}
}

func TestAPersonWaitsForNoMoreThanAMomentForWhatMayBeginAValue(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.start()
	v := sensitive("API_KEY", "zebra-crossing-9", "s1", false)
	w.owner.give("", v)
	recipe, key := w.version(having(envspec.Spec{Image: w.image("app:v1", nil)}, v))
	id := w.session(recipe, key, w.repo())
	w.untilState(id, wire.StateRunning)
	for name, tty := range map[string]bool{"exec": false, "terminal": true} {
		c := w.open(id, wire.ChannelSpec{Argv: []string{"sh", "-c", `stty -echo 2>/dev/null; printf 'name: zeb'; read x; printf 'ra-crossing-9 then %s zebra-cros' "$x"; sleep 0.2; echo sing-9.`},
			Stdin: true, TTY: tty, Rows: 24, Cols: 80})
		c.until("name: zeb")
		c.move([]byte("me\n"), false)
		out := strings.ReplaceAll(c.end().out, "\r", "")
		if strings.Contains(out, "ra-crossing") || !strings.Contains(out, " then me ") || !strings.HasSuffix(out, ".\n") {
			t.Errorf("%s: %q", name, out)
		}
	}
}

func TestARunnerKilledInABootstrapAsksForTheValuesAgainAndHidesThem(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	v := sensitive("NPM_TOKEN", "npm-token-of-sixteen-and-more", "s1", true)
	w.owner.give("", v)
	w.spawn()
	id := w.test(having(envspec.Spec{Image: w.image("app:v1", nil),
		Bootstrap: `for i in 1 2 3 4 5 6 7 8 9 10; do echo "$i <$NPM_TOKEN>"; sleep 0.2; done`, Start: `echo "start <$NPM_TOKEN>"`}, v), w.repo())
	w.untilLog(id, "3 <***>\n")
	w.kill()
	w.spawn()
	state, d := w.outcome(id)
	log := w.wholeLog(id)
	if state != wire.StatePassed || strings.Contains(log, "npm-token") || !strings.Contains(log, "10 <***>\n") || !strings.Contains(log, "start <***>\n") {
		t.Errorf("%s: %+v\n%s", state, d.Failure, log)
	}
	if strings.Count(log, "==> bootstrap: as root") != 1 || w.asked.Load() != 2 {
		t.Errorf("asked %d times:\n%s", w.asked.Load(), log)
	}
}

func TestAValueThatChangesWhileTheRunnerIsDeadHasTheBootstrapBeginAfresh(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	v := sensitive("NPM_TOKEN", "npm-token-of-sixteen-and-more", "s1", true)
	w.owner.give("", v)
	w.spawn()
	id := w.test(having(envspec.Spec{Image: w.image("app:v1", nil), Bootstrap: `printf %s "$NPM_TOKEN" | sha256sum >/built; echo begun; sleep 2`, Start: "cat /built"}, v), w.repo())
	w.untilLog(id, "begun\n")
	w.kill()
	const now = "npm-token-that-came-later"
	w.owner.give("", sensitive("NPM_TOKEN", now, "s2", true))
	w.spawn()
	state, d := w.outcome(id)
	if log := w.wholeLog(id); state != wire.StatePassed || !strings.Contains(log, sum([]byte(now))) || strings.Count(log, "begun\n") != 2 {
		t.Errorf("%s: %+v\n%s", state, d.Failure, log)
	}
}
