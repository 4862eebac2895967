package canary

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/http"
	"net/http/cookiejar"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/mutate"

	"github.com/claude-hub/claude-hub/e2e/canary/forms"
	"github.com/claude-hub/claude-hub/e2e/world"
	"github.com/claude-hub/claude-hub/envspec"
	"github.com/claude-hub/claude-hub/handlers/api/client"
	"github.com/claude-hub/claude-hub/handlers/api/schema"
	"github.com/claude-hub/claude-hub/runner/image/imagetest"
	"github.com/claude-hub/claude-hub/runner/wire"
)

const repo = 7

// story is one World in which the value is printed in every channel.
type story struct {
	*world.World
	t         *testing.T
	database  string
	sensitive bool
	value     string
	search    *search
	c         *client.Client
	wire      *tap
	processes *processes
	image     string
	logs      string // folder of the logs and core files of Hub and Runner

	channels []string
	forms    map[string][]string // that a channel prints
}

func tell(t *testing.T, database, address string, sensitive bool) *story {
	st := begin(t, database, address, sensitive)
	watch, stop := context.WithCancel(t.Context())
	defer stop()
	st.processes = watchProcesses(watch)

	st.failingTestBuild()
	st.passingTestBuild()
	id := st.session()
	st.execAndTerminal(id)
	if *long {
		st.git(id)
		st.failingStartScript(id)
		st.loginShell()
	}
	st.refusedValues()
	st.pages(id)
	st.commandLine(id)
	stop()
	st.lookEverywhere()
	return st
}

// begin starts Hub and Runner so that their logs are kept whole and they would leave core files.
func begin(t *testing.T, database, address string, sensitive bool) *story {
	t.Helper()
	value, tags := bird()
	w := world.Empty(t, world.Options{Database: address, Runner: map[string]string{"build_disk": "2GiB"}})
	st := &story{World: w, t: t, database: database, sensitive: sensitive, value: value, search: newSearch(value, tags), forms: map[string][]string{}}
	st.logs = filepath.Join(w.Dir, "logs")
	for _, d := range []string{"serve", "runner"} {
		if err := os.MkdirAll(filepath.Join(st.logs, d), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	script := fmt.Sprintf(`#!/bin/sh
case "$1 $2" in
"serve --config" | "runner --config")
	ulimit -c unlimited
	cd %[1]s/$1 || exit 1
	GOTRACEBACK=crash exec %[2]s "$@" >>log 2>&1
	;;
esac
exec %[2]s "$@"
`, st.logs, w.Binary)
	w.Binary = filepath.Join(w.Dir, "claude-hub")
	if err := os.WriteFile(w.Binary, []byte(script), 0o755); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		for _, d := range []string{"serve", "runner"} {
			if b, err := os.ReadFile(filepath.Join(st.logs, d, "log")); err == nil && t.Failed() {
				t.Logf("end of the log of %s:\n%s", d, beforeAbort(b))
			}
		}
	})
	w.Options.Hub = map[string]string{"encryption_keys": fmt.Sprintf("[%q]", strings.TrimSpace(w.OK("keygen")))}
	w.WriteConfig()
	w.StartHub()
	w.Token = strings.TrimSpace(w.OK("token", "--login", "ana", "--name", "e2e"))
	token := strings.TrimSpace(w.OK("runner", "token"))
	if r := w.CLIWith(token, "runner", "register", "--config", w.Config, "--hub", w.URL, "--name", "r1"); r.Code != 0 {
		t.Fatal(r)
	}
	w.StartRunner()

	var err error
	if st.wire, err = newTap(w.URL); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(st.wire.Close)
	if st.c, err = client.New(st.wire.URL, w.Token, nil); err != nil {
		t.Fatal(err)
	}
	st.image = st.push()
	return st
}

var printer = sync.OnceValues(func() ([]byte, error) {
	dir, err := os.MkdirTemp("", "canary-")
	if err != nil {
		return nil, err
	}
	defer os.RemoveAll(dir)
	path := filepath.Join(dir, "print")
	cmd := exec.Command("go", "build", "-trimpath", "-ldflags", "-s -w", "-o", path, "github.com/claude-hub/claude-hub/e2e/canary/print")
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := cmd.CombinedOutput(); err != nil {
		return nil, fmt.Errorf("build what prints the value: %w\n%s", err, out)
	}
	return os.ReadFile(path)
})

// push makes the image: with git and bash where all channels are tried.
func (st *story) push() string {
	st.t.Helper()
	program, err := printer()
	if err != nil {
		st.t.Fatal(err)
	}
	file := imagetest.File("usr/bin/canary-print", 0o755, string(program))
	if !*long {
		return st.Push("canary:1", imagetest.Busybox(st.t, func(c *v1.ConfigFile) { c.Config.User = "coder" }, file))
	}
	image, err := mutate.AppendLayers(imagetest.DebianImage(st.t), imagetest.Layer(st.t, file))
	if err != nil {
		st.t.Fatal(err)
	}
	return st.Push("canary:1", image)
}

// channel notes that a channel is used; it prints the given forms, or, where there are none, the value in a way of its own.
func (st *story) channel(name string, printed ...string) string {
	if !slices.Contains(st.channels, name) {
		st.channels = append(st.channels, name)
	}
	for _, f := range printed {
		if !slices.Contains(st.forms[name], f) {
			st.forms[name] = append(st.forms[name], f)
		}
	}
	return name
}

func every() (names []string) {
	for _, f := range forms.Table {
		names = append(names, f.Name)
	}
	return names
}

// test saves a draft with these scripts and test-builds it.
func (st *story) test(bootstrap, start string) schema.TestBuild {
	st.t.Helper()
	ctx := st.t.Context()
	env, err := st.c.Environment(ctx, repo)
	if err != nil {
		st.t.Fatal(err)
	}
	canary := envspec.Variable{Name: "CANARY", Value: st.value}
	values := map[string]schema.Value{}
	if st.sensitive {
		canary = envspec.Variable{Name: "CANARY", Sensitive: true, Build: true}
		values["CANARY"] = schema.ValueOf([]byte(st.value))
	}
	in := schema.SaveDraft{Values: values, Spec: &envspec.Spec{
		Image: st.image, Bootstrap: bootstrap, Start: start, CPU: 1, Memory: 512 << 20,
		Variables: []envspec.Variable{canary, {Name: "LINKED", Link: "SHARED_CANARY", Build: true}},
	}}
	if env.Draft != nil {
		in.Base = env.Draft.Revision
	} else if _, err := st.c.CreateShared(ctx, schema.CreateShared{Name: "SHARED_CANARY", Sensitive: st.sensitive, Value: schema.ValueOf([]byte(st.value))}); err != nil {
		st.t.Fatal(err)
	}
	draft, err := st.c.Save(ctx, repo, in)
	if err != nil {
		st.t.Fatal(err)
	}
	test, err := st.c.StartTest(ctx, repo, draft.Revision, "r1")
	if err != nil {
		st.t.Fatal(err)
	}
	if test, err = st.c.WaitTest(ctx, repo, test.ID, nil); err != nil {
		st.t.Fatal(err)
	}
	var log bytes.Buffer
	if _, err := st.c.CopyLog(ctx, client.TestLog(repo, test.ID), client.Follow{}, &log); err != nil {
		st.t.Fatal(err)
	}
	st.search.look("API answers", log.Bytes())
	return test
}

func (st *story) failingTestBuild() {
	st.t.Helper()
	all := every()
	if !*long {
		all = all[:5]
	}
	st.channel("last-lines", all...)
	for part := range slices.Chunk(all, 5) { // few enough to be among the last lines
		test := st.test("canary-print last-lines "+strings.Join(part, ",")+"\nexit 3\n", "")
		if test.State != "failed" || test.Detail.Failure == nil || !strings.Contains(test.Detail.Failure.LastLines, forms.Mark("last-lines", part[len(part)-1])) {
			st.t.Fatalf("the bootstrap's last lines: %s %+v", test.State, test.Detail.Failure)
		}
	}
}

func (st *story) passingTestBuild() {
	st.t.Helper()
	st.channel("bootstrap-stdout", every()...)
	st.channel("bootstrap-stderr", every()...)
	st.channel("start-stdout", every()...)
	st.channel("start-stderr", every()...)
	st.channel("set-x")
	st.channel("names-of-background-processes")
	st.channel("names-of-files-in-the-build")
	test := st.test(`mkdir -p /opt/canary; cd /opt/canary && canary-print -file
canary-print bootstrap-stdout
canary-print -2 bootstrap-stderr
set -x
echo $LINKED
: "$CANARY"
`, `canary-print start-stdout
canary-print -2 start-stderr
canary-print -leave
set -x
: "$CANARY" $LINKED
set +x
[ ! -e fail ] || { canary-print start-last-lines $(cat fail); exit 4; }
`)
	if test.State != "passed" {
		st.t.Fatalf("the Test build: %s %+v", test.State, test.Detail.Failure)
	}
	notes := fmt.Sprintf("%q %+v", test.Detail.Notes, test.Detail.Phases)
	if !strings.Contains(notes, "background process") {
		st.t.Errorf("no background processes are named: %s", notes)
	}
	if st.sensitive && !strings.Contains(notes, "wrote the value of CANARY") {
		st.t.Errorf("the file that the bootstrap wrote is not named: %s", notes)
	}
	if _, err := st.c.Apply(st.t.Context(), repo, test.Revision, "canary"); err != nil {
		st.t.Fatal(err)
	}
}

func (st *story) session() (id string) {
	st.t.Helper()
	sn, err := st.c.StartSession(st.t.Context(), repo, schema.StartSession{})
	if err != nil {
		st.t.Fatal(err)
	}
	st.settled(sn.ID, "running")
	return sn.ID
}

func (st *story) settled(id string, state string) schema.Session {
	st.t.Helper()
	ctx, cancel := context.WithTimeout(st.t.Context(), 90*time.Second)
	defer cancel()
	sn, err := st.c.WaitSession(ctx, repo, id, func(s schema.Session) bool { return s.State == state || s.State == "failed" }, nil)
	if err != nil || sn.State != state {
		st.t.Fatalf("the Session should be %s: %v %+v", state, err, sn)
	}
	return sn
}

// run runs a command in the Session, and searches what it printed as its client got it.
func (st *story) run(id string, spec wire.ChannelSpec) (exit wire.ChannelExit, out string) {
	st.t.Helper()
	var stdout, stderr bytes.Buffer
	ctx, cancel := context.WithTimeout(st.t.Context(), 2*time.Minute)
	defer cancel()
	exit, err := st.c.Run(ctx, repo, id, spec, client.Stdio{Out: &stdout, Err: &stderr})
	if err != nil {
		st.t.Fatal(err)
	}
	st.search.look("output of exec and terminals", stdout.Bytes())
	st.search.look("output of exec and terminals", stderr.Bytes())
	return exit, stdout.String() + stderr.String()
}

func (st *story) execAndTerminal(id string) {
	st.t.Helper()
	st.channel("exec-stdout", every()...)
	st.channel("exec-stderr", every()...)
	st.channel("terminal", every()...)
	st.channel("terminal-slowly", "raw", "base64-after-1")
	st.channel("terminal-title")
	st.channel("error-of-a-shell")
	for _, spec := range []wire.ChannelSpec{
		{Argv: []string{"canary-print", "exec-stdout"}},
		{Argv: []string{"canary-print", "-2", "exec-stderr"}},
		{Argv: []string{"canary-print", "terminal"}, TTY: true, Rows: 24, Cols: 80, Term: "xterm"},
		{Argv: []string{"canary-print", "-slow", "terminal-slowly", "raw,base64-after-1"}, TTY: true, Rows: 24, Cols: 80},
		{Argv: []string{"sh", "-c", `printf '\033]0;%s\007' "$CANARY"; printf '\033P%s\033\\' "$CANARY"`}, TTY: true, Rows: 24, Cols: 80},
	} {
		if exit, out := st.run(id, spec); exit.Code != 0 {
			st.t.Fatalf("%q: %+v\n%s", spec.Argv, exit, out)
		}
	}
	if exit, out := st.run(id, wire.ChannelSpec{Argv: []string{"sh", "-c", `"$CANARY"`}}); exit.Code != 127 {
		st.t.Errorf("a shell that finds no command of that name: %+v\n%s", exit, out)
	}
}

// git has the value in what git shows, and in what it says when it can't count.
func (st *story) git(id string) {
	st.t.Helper()
	st.channel("git-messages-and-branches")
	st.channel("git-errors")
	script := `set -e
git -c user.name="$(printf %s "$CANARY" | tail -n1)" -c user.email=a@localhost commit --allow-empty -m "$CANARY"
git log -3
git branch "$(printf %s "$CANARY" | od -An -v -tx1 | tr -d ' \n')"
git branch -a
git checkout "no-such-$(printf %s "$CANARY" | base64 -w0)" || true
printf 'ref: refs/heads/%s\n' "$(printf %s "$CANARY" | head -n1)" > .git/HEAD
git status || true`
	if exit, out := st.run(id, wire.ChannelSpec{Argv: []string{"bash", "-c", script}}); exit.Code != 0 {
		st.t.Fatalf("git: %+v\n%s", exit, out)
	}
	asked := time.Now().UnixMilli()
	if _, err := st.c.Count(st.t.Context(), repo, id); err != nil {
		st.t.Fatal(err)
	}
	st.Eventually(30*time.Second, "what was never pushed is counted", func() error {
		sn, _, _, err := st.c.Session(st.t.Context(), repo, id, client.Wait{})
		if err == nil && (sn.Detail.Unsaved == nil || sn.Detail.Unsaved.At < asked) {
			err = errors.New("not counted yet")
		}
		return err
	})
	if exit, out := st.run(id, wire.ChannelSpec{Argv: []string{"bash", "-c", "echo ref: refs/heads/main > .git/HEAD"}}); exit.Code != 0 {
		st.t.Fatalf("mend git: %+v\n%s", exit, out)
	}
}

// failingStartScript has each form among the last lines of a start script that fails.
func (st *story) failingStartScript(id string) {
	st.t.Helper()
	st.channel("start-last-lines", every()...)
	for part := range slices.Chunk(every(), 5) {
		exit, out := st.run(id, wire.ChannelSpec{Argv: []string{"sh", "-c", "echo " + strings.Join(part, ",") + " > fail"}})
		if exit.Code != 0 {
			st.t.Fatalf("%+v\n%s", exit, out)
		}
		for _, step := range []struct {
			do    func(context.Context, int64, string) (schema.Session, error)
			state string
		}{{st.c.Sleep, "asleep"}, {st.c.Wake, "running"}} {
			if _, err := step.do(st.t.Context(), repo, id); err != nil {
				st.t.Fatal(err)
			}
			st.settled(id, step.state)
		}
		st.Eventually(60*time.Second, "the start script has failed", func() error {
			sn, _, _, err := st.c.Session(st.t.Context(), repo, id, client.Wait{})
			if f := sn.Detail.StartFailed; err == nil && (f == nil || !strings.Contains(f.LastLines, forms.Mark("start-last-lines", part[len(part)-1]))) {
				err = fmt.Errorf("%+v", sn.Detail)
			}
			return err
		})
	}
	if exit, out := st.run(id, wire.ChannelSpec{Argv: []string{"rm", "fail"}}); exit.Code != 0 {
		st.t.Fatalf("%+v\n%s", exit, out)
	}
}

// loginShell hangs in a file that is named as the value, which the note names.
func (st *story) loginShell() {
	st.t.Helper()
	st.channel("file-in-which-a-login-shell-hangs")
	test := st.test(`f=/root/$(printf %s "$CANARY" | od -An -v -tx1 | tr -d ' \n' | head -c 250)
echo 'sleep 60' > $f
echo ". $f" >> /root/.bashrc
chmod 755 /root
cp /root/.bashrc /etc/skel/.bashrc
`, "")
	notes := fmt.Sprintf("%q %+v", test.Detail.Notes, test.Detail.Phases)
	if test.State != "passed" || !strings.Contains(notes, "did not end within") {
		st.t.Errorf("a login shell that hangs: %s %s", test.State, notes)
	}
}

// refusedValues has the Hub refuse requests that hold the value.
func (st *story) refusedValues() {
	st.t.Helper()
	st.channel("refused-requests")
	ctx := st.t.Context()
	for what, err := range map[string]error{
		"a value with NUL": errOf(st.c.CreateShared(ctx, schema.CreateShared{Name: "OTHER", Sensitive: true, Value: schema.ValueOf([]byte(st.value + "\x00"))})),
		"a taken name":     errOf(st.c.CreateShared(ctx, schema.CreateShared{Name: "SHARED_CANARY", Sensitive: true, Value: schema.ValueOf([]byte(st.value))})),
		"nothing lost":     st.c.EnterValue(ctx, repo, "CANARY", []byte(st.value)),
		"a draft's base": errOf(st.c.Save(ctx, repo, schema.SaveDraft{Base: 1, Spec: &envspec.Spec{Image: st.image, Variables: []envspec.Variable{{Name: "CANARY", Sensitive: true}}},
			Values: map[string]schema.Value{"CANARY": schema.ValueOf([]byte(st.value))}})),
		"no such Variable": errOf(st.c.Save(ctx, repo, schema.SaveDraft{Spec: &envspec.Spec{Image: st.image}, Values: map[string]schema.Value{"NONE": schema.ValueOf([]byte(st.value))}})),
	} {
		if err == nil {
			st.t.Errorf("%s is not refused", what)
			continue
		}
		st.search.look("errors of the client", []byte(err.Error()))
	}
	// What is no JSON, with the value in it.
	r, err := http.NewRequestWithContext(ctx, http.MethodPost, st.wire.URL+"/api/v1/shared", strings.NewReader(`{"name":"X","value":{"text":"`+st.value))
	if err != nil {
		st.t.Fatal(err)
	}
	r.Header.Set("Authorization", "Bearer "+st.Token)
	r.Header.Set("Content-Type", "application/json")
	res, err := http.DefaultClient.Do(r)
	if err != nil {
		st.t.Fatal(err)
	}
	defer res.Body.Close()
	if _, err := io.Copy(io.Discard, res.Body); err != nil || res.StatusCode < 400 {
		st.t.Errorf("half a request is answered %s %v", res.Status, err)
	}
}

func errOf[T any](_ T, err error) error { return err }

// pages opens every page and every answer of the API that is about this Repo, in a browser.
func (st *story) pages(id string) {
	st.t.Helper()
	ctx := st.t.Context()
	jar, err := cookiejar.New(nil)
	if err != nil {
		st.t.Fatal(err)
	}
	browser := &http.Client{Jar: jar, Timeout: 30 * time.Second}
	res, err := browser.PostForm(st.wire.URL+"/sign-in", url.Values{"login": {"bob"}})
	if err != nil {
		st.t.Fatal(err)
	}
	_ = res.Body.Close()
	tests, err := st.c.Tests(ctx, repo)
	if err != nil {
		st.t.Fatal(err)
	}
	pages := []string{"/", "/runners", "/shared", "/shared/SHARED_CANARY", "/repos/7", "/repos/7/environment", "/repos/7/environment/variables/CANARY",
		"/repos/7/environment/variables/CANARY/value", "/repos/7/diff", "/repos/7/diff?from=none&to=1", "/repos/7/tests", "/repos/7/versions", "/repos/7/versions/1",
		"/repos/7/versions/1/restore", "/repos/7/sessions", "/repos/7/sessions/" + id, "/repos/7/sessions/" + id + "/log", "/repos/7/sessions/" + id + "/delete"}
	for _, t := range tests {
		pages = append(pages, "/repos/7/tests/"+t.ID, "/repos/7/tests/"+t.ID+"/log", "/repos/7/tests/"+t.ID+"/events")
	}
	opened := 0
	for _, p := range pages {
		page, cancel := context.WithTimeout(ctx, 10*time.Second)
		r, err := http.NewRequestWithContext(page, http.MethodGet, st.wire.URL+p, nil)
		if err != nil {
			st.t.Fatal(err)
		}
		res, err := browser.Do(r)
		if err != nil {
			st.t.Fatal(err)
		}
		if _, err := io.Copy(io.Discard, res.Body); err != nil && page.Err() == nil {
			st.t.Errorf("%s: %v", p, err)
		}
		_ = res.Body.Close()
		cancel()
		if res.StatusCode == http.StatusOK {
			opened++
		}
	}
	if opened < len(pages)*2/3 {
		st.t.Errorf("only %d of %d pages are there", opened, len(pages))
	}
	st.events(browser, "/repos/7/sessions/"+id+"/events")
	for _, call := range []func() error{
		func() error { return errOf(st.c.Runners(ctx)) },
		func() error { return errOf(st.c.AllSessions(ctx)) },
		func() error { return errOf(st.c.Environment(ctx, repo)) },
		func() error { return errOf(st.c.Versions(ctx, repo)) },
		func() error { return errOf(st.c.DraftVariables(ctx, repo)) },
		func() error { return errOf(st.c.VersionVariables(ctx, repo, 1)) },
		func() error { return errOf(st.c.Diff(ctx, repo, "none", "1")) },
		func() error { return errOf(st.c.AllShared(ctx)) },
		func() error { return errOf(st.c.Shared(ctx, "SHARED_CANARY")) },
	} {
		if err := call(); err != nil {
			st.t.Error(err)
		}
	}
}

// events reads a page's stream until the first quiet moment.
func (st *story) events(browser *http.Client, path string) {
	st.t.Helper()
	ctx, cancel := context.WithCancel(st.t.Context())
	defer cancel()
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, st.wire.URL+path, nil)
	if err != nil {
		st.t.Fatal(err)
	}
	res, err := browser.Do(r)
	if err != nil {
		st.t.Fatal(err)
	}
	defer res.Body.Close()
	quiet := time.AfterFunc(3*time.Second, cancel)
	defer quiet.Stop()
	buf := make([]byte, 64<<10)
	for n := 0; ; {
		got, err := res.Body.Read(buf)
		n += got
		if err != nil {
			if n == 0 {
				st.t.Errorf("%s sent nothing: %v", path, err)
			}
			return
		}
		quiet.Reset(3 * time.Second)
	}
}

func (st *story) commandLine(id string) {
	st.t.Helper()
	for _, args := range [][]string{
		{"session", "logs", id}, {"session", "show", id}, {"session", "show", id, "-o", "json"}, {"session", "ls"}, {"runner", "ls", "-o", "json"},
		{"env", "show", "--repo", st.Repo}, {"env", "versions", "--repo", st.Repo},
		{"session", "exec", id, "--", "canary-print", "exec-stdout"},
	} {
		r := st.CLI(args...)
		if r.Code != 0 {
			st.t.Errorf("%s", r)
		}
		st.search.look("output of the command line", []byte(r.Stdout))
		st.search.look("output of the command line", []byte(r.Stderr))
	}
}

// lookEverywhere searches while Hub and Runner run, has both abort, and searches what that leaves.
func (st *story) lookEverywhere() {
	st.t.Helper()
	must := func(what string, err error) {
		st.t.Helper()
		if err != nil {
			st.t.Errorf("search %s: %v", what, err)
		}
	}
	st.wire.look(st.search)
	if n := st.processes.look(st.search); n == 0 {
		st.t.Error("no process of a Sandbox was seen: command lines were watched at the wrong time")
	}
	scratch := st.t.TempDir()
	if st.database == "sqlite" {
		must("the database", lookSQLite(st.search, filepath.Join(st.Dir, "data", "hub.db"), scratch))
	} else {
		must("the database", lookPostgreSQL(st.search, st.Options.Database))
	}
	for _, p := range []*world.Process{st.Hub, st.Runner} {
		if err := syscall.Kill(p.PID(), syscall.SIGABRT); err != nil {
			st.t.Fatal(err)
		}
		st.Eventually(30*time.Second, "it ends", func() error {
			if p.Running() {
				return errors.New("it runs")
			}
			return nil
		})
	}
	for dir, what := range map[string]string{"serve": "Hub", "runner": "Runner"} {
		b, err := os.ReadFile(filepath.Join(st.logs, dir, "log"))
		must("a log", err)
		if len(b) == 0 || !bytes.Contains(b, []byte("SIGABRT")) {
			st.t.Errorf("the log of the %s has no end: %d bytes", what, len(b))
		}
		st.search.look("log of the "+what, b)
		cores, err := filepath.Glob(filepath.Join(st.logs, dir, "core*"))
		must("core files", err)
		st.search.look("core files", nil)
		st.t.Logf("core files of the %s: %d; a process that may leave one left %d", what, len(cores), control(st.t))
		for _, c := range cores {
			b, err := os.ReadFile(c)
			must("a core file", err)
			st.search.look("core files", b)
		}
	}
	database := filepath.Join(st.Dir, "data", "hub.db")
	disks := func(path string) bool { // of Sandboxes: what runs inside may write what it likes
		return strings.HasPrefix(path, database) || strings.HasPrefix(filepath.Base(path), "disk.ext4")
	}
	must("the data folder", lookFiles(st.search, "data folder of Hub and Runner", filepath.Join(st.Dir, "data"), disks))
	runs, err := filepath.Glob("/run/chw-*")
	must("run folders", err)
	for _, r := range runs {
		must("a run folder", ignoring(lookFiles(st.search, "run folder of the Runner", r, nil), fs.ErrNotExist))
	}
}

// control is how many core files a process leaves that aborts under the same limits; 0 where the kernel gives them to a program.
func control(t *testing.T) int {
	t.Helper()
	dir := t.TempDir()
	c := exec.Command("sh", "-c", "ulimit -c unlimited; kill -ABRT $$")
	c.Dir = dir
	if err := c.Run(); err == nil {
		t.Error("a shell that aborts ended well")
	}
	cores, err := filepath.Glob(filepath.Join(dir, "core*"))
	if err != nil {
		t.Error(err)
	}
	return len(cores)
}

// ignoring: another World's folders go away in between.
func ignoring(err, target error) error {
	if errors.Is(err, target) {
		return nil
	}
	return err
}

// beforeAbort is the end of a log, without what the Go runtime says of goroutines.
func beforeAbort(log []byte) []byte {
	log, _, _ = bytes.Cut(log, []byte("SIGABRT"))
	return log[max(0, len(log)-4000):]
}
