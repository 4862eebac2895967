package runner

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/rs/zerolog"
	"gopkg.in/yaml.v3"

	"github.com/claude-hub/claude-hub/app/fleet"
	"github.com/claude-hub/claude-hub/envspec"
	"github.com/claude-hub/claude-hub/handlers/runnerapi"
	"github.com/claude-hub/claude-hub/runner/hubclient"
	"github.com/claude-hub/claude-hub/runner/image/imagetest"
	"github.com/claude-hub/claude-hub/runner/redact"
	"github.com/claude-hub/claude-hub/runner/sandbox/oci"
	"github.com/claude-hub/claude-hub/runner/wire"
	"github.com/claude-hub/claude-hub/store"
	"github.com/claude-hub/claude-hub/store/storetest"
)

// limit is how long any single thing in these tests may take: a minute, or what $CLAUDE_HUB_TEST_LIMIT says for a slow machine.
var limit = func() time.Duration {
	if d, err := time.ParseDuration(os.Getenv("CLAUDE_HUB_TEST_LIMIT")); err == nil {
		return d
	}
	return time.Minute
}()

// world is a real fleet behind real HTTP, a registry, and a Runner that talks to it.
type world struct {
	t        *testing.T
	db       *store.DB
	fleet    *fleet.Fleet
	options  fleet.Options
	api      atomic.Pointer[http.Handler]
	owner    *owner
	identity hubclient.Identity
	data     string
	cfg      Config
	registry string
	down     atomic.Bool            // the Hub doesn't answer
	asked    atomic.Int32           // how often the Runner has asked for values
	unheard  atomic.Pointer[string] // the assignment whose reports don't come through

	hostEnds   bool          // the host goes down when the Runner does
	countEvery time.Duration // 0: as the Runner has it

	hides   redact.Group // in the own log of the Runner
	runner  *Runner      // in this process
	runs    bool         // it does
	stop    func()
	process *exec.Cmd // or in one of its own
}

// owner keeps payloads and reports of all assignments, as app/environment and app/session would.
type owner struct {
	mu       sync.Mutex
	payloads map[string]any
	reports  map[string][]fleet.Report
	values   []*wire.Value // of every assignment
	refused  string
	repo     int64 // that every assignment clones, as GitHub knows it
	may      fleet.Rights
}

func (o *owner) Values(_ context.Context, _ *store.Tx, _ fleet.Assignment) ([]*wire.Value, string, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.refused != "" {
		return nil, o.refused, nil
	}
	return o.values, "", nil
}

// give sets what the Hub answers when it is asked for values.
func (o *owner) give(refused string, values ...*wire.Value) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.values, o.refused = values, refused
}

func (o *owner) Payload(_ context.Context, _ *store.Tx, a fleet.Assignment) ([]byte, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	return json.Marshal(o.payloads[a.Subject])
}

func (o *owner) Observe(_ context.Context, _ *store.Tx, a fleet.Assignment, r fleet.Report) error {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.reports[a.ID] = append(o.reports[a.ID], r)
	return nil
}

func (o *owner) Lost(context.Context, *store.Tx, fleet.Assignment) error { return nil }

// newWorld makes everything but the Runner itself. tokens are what its Hub lets Repos be cloned with, if any.
func newWorld(t *testing.T, tokens ...fleet.Tokens) *world {
	t.Helper()
	w := &world{t: t, db: storetest.New(t), owner: &owner{payloads: map[string]any{}, reports: map[string][]fleet.Report{}}}
	o := fleet.Options{Log: zerolog.Nop()}
	for _, t := range tokens {
		o.Tokens = t
		o.Push, _ = t.(fleet.PushTokens)
	}
	w.options = o
	path := w.startHub()
	t.Cleanup(func() { w.fleet.Stop() })
	mux := http.NewServeMux()
	mux.Handle(path, http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
		if w.down.Load() {
			http.Error(rw, "down", http.StatusBadGateway)
			return
		}
		if id := w.unheard.Load(); id != nil && strings.HasSuffix(r.URL.Path, "/Report") {
			body, err := io.ReadAll(r.Body)
			if err != nil || bytes.Contains(body, []byte(*id)) {
				http.Error(rw, "lost", http.StatusBadGateway)
				return
			}
			r.Body = io.NopCloser(bytes.NewReader(body))
		}
		if strings.HasSuffix(r.URL.Path, "/Values") {
			w.asked.Add(1)
		}
		(*w.api.Load()).ServeHTTP(rw, r)
	}))
	server := httptest.NewServer(mux)
	t.Cleanup(server.Close)
	token, _, err := w.fleet.NewRegistration(context.Background(), "test")
	if err != nil {
		t.Fatal(err)
	}
	id, secret, err := hubclient.Register(context.Background(), nil, server.URL, token, "r1")
	if err != nil {
		t.Fatal(err)
	}
	w.identity = hubclient.Identity{Hub: server.URL, Runner: id, Name: "r1", Token: secret}
	w.registry = imagetest.Registry(t)
	w.data = t.TempDir()
	w.cfg = DefaultConfig()
	w.cfg.RunDir, w.cfg.Agent, w.cfg.CPU, w.cfg.Memory, w.cfg.LocalRepos = testRunDir(), selfAgent(), 2, 1<<30, true
	w.cfg.LowWater, w.cfg.BuildDisk, w.cfg.SessionDisk = 64<<20, 2<<30, 2<<30
	t.Cleanup(func() {
		w.halt()
		if err := teardown(filepath.Join(Folder(w.data), "engine"), w.cfg.RunDir); err != nil {
			t.Errorf("tear down: %v", err)
		}
	})
	return w
}

// startHub has a fresh process of the Hub, in effect: it knows what the database does. It answers where Runners call.
func (w *world) startHub() string {
	w.t.Helper()
	f := fleet.New(w.db, w.options)
	f.Own(wire.KindTestBuild, w.owner)
	f.Own(wire.KindSession, w.owner)
	f.Own(wire.KindRun, w.owner)
	if err := f.Start(context.Background()); err != nil {
		w.t.Fatal(err)
	}
	path, api := runnerapi.New(f, zerolog.Nop())
	w.api.Store(&api)
	w.fleet = f
	return path
}

// restartHub cuts off what is under way, and forgets what the Hub had in memory.
func (w *world) restartHub() {
	w.t.Helper()
	w.down.Store(true)
	w.fleet.Stop()
	w.startHub()
	w.down.Store(false)
}

// start runs the Runner in this process.
func (w *world) start() {
	w.t.Helper()
	log := zerolog.New(zerolog.NewTestWriter(w.t)).Level(zerolog.InfoLevel)
	r, err := New(w.data, w.identity, w.cfg, "test", log)
	if err != nil {
		w.t.Fatal(err)
	}
	if r.hides != redact.Process {
		w.t.Error("a Runner's values are not hidden in the log of its process")
	}
	if w.hostEnds {
		r.hostEnds = func() bool { return true }
	}
	if w.countEvery > 0 {
		r.countEvery = w.countEvery
	}
	r.retry, r.hides = 100*time.Millisecond, &w.hides // the Hub of these tests is in this process too, and hides what it knows
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- r.Run(ctx) }()
	w.runner, w.runs = r, true
	w.stop = sync.OnceFunc(func() {
		w.runs = false
		cancel()
		select {
		case err := <-done:
			if err := errors.Join(err, r.Close()); err != nil {
				w.t.Errorf("the Runner ended with: %v", err)
			}
		case <-time.After(limit):
			w.t.Error("the Runner did not stop")
		}
	})
}

// spawn runs the Runner in a process of its own.
func (w *world) spawn() {
	w.t.Helper()
	plan, err := yaml.Marshal(process{Data: w.data, Identity: w.identity, Config: w.cfg})
	if err != nil {
		w.t.Fatal(err)
	}
	cmd := exec.Command("/proc/self/exe")
	cmd.Args[0] = os.Args[0]
	cmd.Env = append(os.Environ(), processEnv+"="+string(plan))
	cmd.Stderr, cmd.WaitDelay = testWriter{w.t}, time.Second
	if err := cmd.Start(); err != nil {
		w.t.Fatal(err)
	}
	w.process = cmd
}

type testWriter struct{ t *testing.T }

func (w testWriter) Write(p []byte) (int, error) {
	w.t.Logf("runner: %s", strings.TrimSpace(string(p)))
	return len(p), nil
}

// kill is kill -9 of the Runner's process.
func (w *world) kill() {
	w.t.Helper()
	if err := w.process.Process.Kill(); err != nil {
		w.t.Fatal(err)
	}
	w.process.Wait() //nolint:errcheck // it was killed
	w.process = nil
}

func (w *world) halt() {
	if w.stop != nil {
		w.stop()
		w.stop = nil
	}
	if w.process != nil {
		w.kill()
	}
}

// image pushes a busybox image and returns its reference.
func (w *world) image(name string, configure func(*v1.ConfigFile), more ...imagetest.Entry) string {
	w.t.Helper()
	return imagetest.Push(w.t, w.registry, name, imagetest.Busybox(w.t, configure, more...))
}

func asCoder(c *v1.ConfigFile) { c.Config.User = "coder" }

// repo makes a bare repository with one commit.
func (w *world) repo() string {
	w.t.Helper()
	dir := w.t.TempDir()
	script := `set -e
git init -q -b main work && cd work
echo hello > README && printf '#!/bin/sh\necho run\n' > run.sh && chmod +x run.sh
git add . && git -c user.name=t -c user.email=t@t commit -q -m first
git clone -q --bare . ../app.git`
	cmd := exec.Command("sh", "-c", script)
	cmd.Dir = dir
	cmd.Env = append(os.Environ(), "GIT_CONFIG_GLOBAL=/dev/null", "GIT_CONFIG_NOSYSTEM=1")
	if out, err := cmd.CombinedOutput(); err != nil {
		w.t.Fatalf("make a repository: %v\n%s", err, out)
	}
	return "file://" + filepath.Join(dir, "app.git")
}

func raw(t *testing.T, s envspec.Spec) json.RawMessage {
	t.Helper()
	b, err := json.Marshal(s)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

func (w *world) assign(kind fleet.Kind, subject string, payload any, deadline time.Time) string {
	w.t.Helper()
	w.owner.mu.Lock()
	w.owner.payloads[subject] = payload
	w.owner.mu.Unlock()
	var a fleet.Assignment
	err := w.db.Write(context.Background(), func(tx *store.Tx) (err error) {
		a, err = w.fleet.Assign(tx, fleet.Assignment{Runner: w.identity.Runner, Kind: kind, Subject: subject, Deadline: deadline})
		return err
	})
	if err != nil {
		w.t.Fatal(err)
	}
	return a.ID
}

func (w *world) change(id string, want fleet.Want) {
	w.t.Helper()
	err := w.db.Write(context.Background(), func(tx *store.Tx) error {
		_, err := w.fleet.Change(tx, id, want, time.Time{})
		return err
	})
	if err != nil {
		w.t.Fatal(err)
	}
}

// test assigns a Test build.
func (w *world) test(spec envspec.Spec, url string) string {
	return w.testUntil(spec, url, time.Now().Add(10*time.Minute))
}

func (w *world) testUntil(spec envspec.Spec, url string, deadline time.Time) string {
	w.t.Helper()
	subject := store.NewID()
	return w.assign(wire.KindTestBuild, subject, wire.TestBuild{ID: subject, Recipe: wire.Recipe{Environment: "env", Spec: raw(w.t, spec)},
		Repo: wire.Repo{Name: "team/app", CloneURL: url}}, deadline)
}

// newest is the newest report; its State is empty before the first.
func (w *world) newest(id string) fleet.Report {
	w.owner.mu.Lock()
	defer w.owner.mu.Unlock()
	all := w.owner.reports[id]
	if len(all) == 0 {
		return fleet.Report{}
	}
	return all[len(all)-1]
}

// until waits for a report that fits.
func (w *world) until(id, what string, fits func(fleet.Report) bool) fleet.Report {
	w.t.Helper()
	for end := time.Now().Add(limit); time.Now().Before(end); time.Sleep(5 * time.Millisecond) {
		if r := w.newest(id); fits(r) {
			return r
		}
	}
	w.t.Fatalf("%s was not %s; last report: %+v\n%s", id, what, w.newest(id), w.log(id))
	return fleet.Report{}
}

func (w *world) untilState(id, state string) fleet.Report {
	w.t.Helper()
	return w.until(id, state, func(r fleet.Report) bool { return r.State == state })
}

func testDetail(t *testing.T, r fleet.Report) wire.TestBuildDetail {
	t.Helper()
	var d wire.TestBuildDetail
	if err := json.Unmarshal(r.Detail, &d); err != nil {
		t.Fatal(err)
	}
	return d
}

func sessionDetail(t *testing.T, r fleet.Report) wire.SessionDetail {
	t.Helper()
	var d wire.SessionDetail
	if err := json.Unmarshal(r.Detail, &d); err != nil {
		t.Fatal(err)
	}
	return d
}

// outcome waits for the end of a Test build.
func (w *world) outcome(id string) (string, wire.TestBuildDetail) {
	w.t.Helper()
	r := w.until(id, "at its end", func(r fleet.Report) bool {
		return r.State == wire.StatePassed || r.State == wire.StateFailed || r.State == wire.StateCancelled
	})
	return r.State, testDetail(w.t, r)
}

// log is all of an assignment's log, once the Hub has what a Runner in this process had of it by now.
func (w *world) log(id string) string {
	w.logArrives(id)
	var b strings.Builder
	for from := int64(0); ; {
		part, err := w.fleet.ReadLog(context.Background(), id, from, 1<<20)
		if err != nil {
			return fmt.Sprint(err)
		}
		for _, c := range part.Chunks {
			b.Write(c.Data)
		}
		if part.Next >= part.End || part.Next == from {
			return b.String()
		}
		from = part.Next
	}
}

// wholeLog waits until the Hub has the end of the log.
func (w *world) wholeLog(id string) string {
	w.t.Helper()
	for end := time.Now().Add(limit); time.Now().Before(end); time.Sleep(10 * time.Millisecond) {
		part, err := w.fleet.ReadLog(context.Background(), id, 0, 1)
		if err == nil && part.Ended {
			return w.log(id)
		}
	}
	w.t.Fatalf("the log of %s never ended:\n%s", id, w.log(id))
	return ""
}

// logArrives waits, unless the Hub can't be reached: what a test misses in the log is then not only late.
func (w *world) logArrives(id string) {
	if !w.runs {
		return
	}
	for _, st := range w.runner.spool.Streams() {
		if st.Assignment() != id {
			continue
		}
		end := st.End()
		for late := time.Now().Add(limit); st.Acked() < end && st.Waiting() && !w.down.Load() && time.Now().Before(late); {
			time.Sleep(time.Millisecond)
		}
	}
}

func (w *world) untilLog(id, words string) {
	w.t.Helper()
	for end := time.Now().Add(limit); time.Now().Before(end); time.Sleep(5 * time.Millisecond) {
		if strings.Contains(w.log(id), words) {
			return
		}
	}
	w.t.Fatalf("%q never came in the log:\n%s", words, w.log(id))
}

// sandboxes are the ids of all Sandboxes that this world's Runner, in this process, has.
func (w *world) sandboxes() []string {
	w.t.Helper()
	list, err := w.runner.engine.List(context.Background())
	if err != nil {
		w.t.Fatal(err)
	}
	var ids []string
	for _, s := range list {
		ids = append(ids, string(s.ID))
	}
	return ids
}

// nothingLeft fails unless neither a Sandbox nor a disk of the Test build is left.
func (w *world) nothingLeft(id string) {
	w.t.Helper()
	for _, s := range w.sandboxes() {
		if strings.Contains(s, id) {
			w.t.Errorf("the Sandbox %s is left", s)
		}
	}
	disks, err := filepath.Glob(filepath.Join(Folder(w.data), "build", "disks", "*"+id))
	if err != nil || len(disks) > 0 {
		w.t.Errorf("disks are left: %v %v", disks, err)
	}
}

// as is the same world for a subtest.
func (w *world) as(t *testing.T) *world {
	return &world{t: t, db: w.db, fleet: w.fleet, owner: w.owner, identity: w.identity, data: w.data, cfg: w.cfg, registry: w.registry,
		runner: w.runner}
}

func (w *world) emptyRepo() string {
	w.t.Helper()
	dir := filepath.Join(w.t.TempDir(), "empty.git")
	if out, err := exec.Command("git", "init", "-q", "--bare", dir).CombinedOutput(); err != nil {
		w.t.Fatalf("make a repository: %v\n%s", err, out)
	}
	return "file://" + dir
}

// stopSandboxes ends all Sandboxes of a world whose Runner doesn't run, as a reboot of the host does.
func stopSandboxes(w *world) error {
	e, err := oci.Open(oci.Config{Dir: filepath.Join(Folder(w.data), "engine"), RunDir: w.cfg.RunDir, Agent: w.cfg.Agent, Log: zerolog.Nop()})
	if err != nil {
		return err
	}
	list, err := e.List(context.Background())
	errs := []error{err}
	for _, s := range list {
		errs = append(errs, e.Stop(context.Background(), s.ID, 0))
	}
	return errors.Join(append(errs, e.Close())...)
}
