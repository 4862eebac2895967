package canary

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
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
		st.remote()
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
