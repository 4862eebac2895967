package bench

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/rs/zerolog"

	"github.com/claude-hub/claude-hub/envspec"
	"github.com/claude-hub/claude-hub/runner/agent"
	"github.com/claude-hub/claude-hub/runner/build"
	"github.com/claude-hub/claude-hub/runner/image"
	"github.com/claude-hub/claude-hub/runner/image/imagetest"
	"github.com/claude-hub/claude-hub/runner/redact"
	"github.com/claude-hub/claude-hub/runner/sandbox"
	"github.com/claude-hub/claude-hub/runner/sandbox/oci"
	"github.com/claude-hub/claude-hub/runner/session"
	"github.com/claude-hub/claude-hub/runner/spool"
	"github.com/claude-hub/claude-hub/runner/wire"
	"github.com/claude-hub/claude-hub/store"
)

// host is what a Runner has without its Hub: the engine, images, builds, and Sessions on them, all as in the product.
type host struct {
	t       *testing.T
	dir     string
	engine  *stopwatch
	builder *build.Builder
	spool   *spool.Spool
	image   image.Image // Debian
	repo    string      // a file:// URL
}

// stopwatch is an engine that remembers when it was last told what.
type stopwatch struct {
	sandbox.Engine

	mu                             sync.Mutex
	started, stopped, snapshotDone time.Time
}

func (s *stopwatch) note(at *time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	*at = time.Now()
}

func (s *stopwatch) Start(ctx context.Context, id sandbox.ID, spec sandbox.Spec) (sandbox.Sandbox, error) {
	s.note(&s.started)
	return s.Engine.Start(ctx, id, spec)
}

func (s *stopwatch) Stop(ctx context.Context, id sandbox.ID, grace time.Duration) error {
	s.note(&s.stopped)
	return s.Engine.Stop(ctx, id, grace)
}

func (s *stopwatch) Snapshot(ctx context.Context, id sandbox.ID, name string, meta json.RawMessage) (sandbox.Base, error) {
	b, err := s.Engine.Snapshot(ctx, id, name, meta)
	s.note(&s.snapshotDone)
	return b, err
}

// began is when the newest boot began, sealed how long the newest snapshot took from the stop of its Sandbox on.
func (s *stopwatch) began() time.Time {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.started
}

func (s *stopwatch) sealed() time.Duration {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.snapshotDone.Sub(s.stopped)
}

// newHost lives as long as the test of all rows; t is the one that needs it first.
func newHost(all, t *testing.T) *host {
	t.Helper()
	h := &host{t: t, image: imagetest.Debian(t), dir: folder(all, t)}
	h.repo = repository(t, h.dir)
	runDir := fmt.Sprintf("%s%d", runDirs, os.Getpid())
	bin := smallAgent(t, h.dir)
	e, err := oci.Open(oci.Config{Dir: filepath.Join(h.dir, "engine"), RunDir: runDir, Agent: []string{bin, "agent"}, LowWater: 64 << 20,
		Pool: netip.MustParsePrefix(fmt.Sprintf("10.%d.0.0/16", 50+os.Getpid()%50)), Log: zerolog.Nop()})
	if err != nil {
		t.Fatal(err)
	}
	h.engine = &stopwatch{Engine: e}
	all.Cleanup(func() {
		err := errors.Join(e.Close(), teardown(filepath.Join(h.dir, "engine"), runDir, bin))
		if err != nil {
			all.Errorf("tear down: %v", err)
		}
	})
	if h.spool, err = spool.Open(filepath.Join(h.dir, "spool"), spool.Options{}); err != nil {
		t.Fatal(err)
	}
	all.Cleanup(func() {
		if err := h.spool.Close(); err != nil {
			all.Error(err)
		}
	})
	h.builder, err = build.New(build.Config{Dir: filepath.Join(h.dir, "build"), Runner: "r1", CPU: 2, Memory: 2 << 30, Pids: 4096, BuildDisk: 20 << 30,
		SessionDisk: 20 << 30, LocalRepos: true, Log: zerolog.Nop()}, h.engine, imagetest.DebianStore(t))
	if err != nil {
		t.Fatal(err)
	}
	return h
}

// smallAgent builds what `make build` embeds: Sandboxes have it as their PID 1.
func smallAgent(t *testing.T, dir string) string {
	t.Helper()
	path := filepath.Join(dir, "claude-hub-agent")
	build := exec.Command("go", "build", "-trimpath", "-ldflags", "-s -w", "-o", path, "github.com/claude-hub/claude-hub/runner/agent/claude-hub-agent")
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("build the agent: %v\n%s", err, out)
	}
	return path
}

// folder is a temporary one that the ids of Sandboxes can pass, which t.TempDir isn't.
func folder(all, t *testing.T) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "chb-")
	if err != nil {
		t.Fatal(err)
	}
	all.Cleanup(func() {
		if err := os.RemoveAll(dir); err != nil {
			all.Error(err)
		}
	})
	if err := os.Chmod(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	return dir
}

// repository makes a bare one with one commit.
func repository(t *testing.T, dir string) string {
	t.Helper()
	script := `set -e
git init -q -b main work && cd work
echo hello > README && git add . && git -c user.name=t -c user.email=t@localhost commit -q -m first
git clone -q --bare . ../app.git`
	cmd := exec.Command("sh", "-c", script)
	cmd.Dir = dir
	cmd.Env = append(os.Environ(), "GIT_CONFIG_GLOBAL=/dev/null", "GIT_CONFIG_NOSYSTEM=1")
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("make a repository: %v\n%s", err, out)
	}
	return "file://" + filepath.Join(dir, "app.git")
}

// teardown ends all Sandboxes of an engine and takes away what it has on the host but its data folder.
func teardown(dir, runDir, agent string) error {
	e, err := oci.Open(oci.Config{Dir: dir, RunDir: runDir, Agent: []string{agent, "agent"}, Log: zerolog.Nop()})
	if err != nil {
		return err
	}
	list, err := e.List(context.Background())
	errs := []error{err}
	for _, s := range list {
		errs = append(errs, e.Stop(context.Background(), s.ID, 0))
	}
	return errors.Join(append(errs, e.Teardown())...)
}

// recipe is an Environment on Debian, at the version that pins it.
func (h *host) recipe(bootstrap string) wire.Recipe {
	h.t.Helper()
	raw, err := json.Marshal(envspec.Spec{Image: "debian:bench", Bootstrap: bootstrap})
	if err != nil {
		h.t.Fatal(err)
	}
	return wire.Recipe{Environment: "bench", Spec: raw, ImageDigest: h.image.Digest}
}

// build makes a build as a Session that lacks it does.
func (h *host) build(r wire.Recipe) build.Base {
	h.t.Helper()
	job := &build.Job{ID: store.NewID(), Recipe: r, Track: build.NewTrack(nil, nil, func(bool) {}), Marks: &build.Marks{}, Save: func() error { return nil }}
	job.Log = h.log(job.ID)
	base, err := h.builder.Ensure(context.Background(), job)
	if err != nil {
		h.t.Fatalf("build: %v\n%s", err, job.Log.Tail())
	}
	return base
}

func (h *host) log(assignment string) *build.Log {
	h.t.Helper()
	s, err := h.spool.Stream(assignment, 1)
	if err != nil {
		h.t.Fatal(err)
	}
	return build.NewLog(&redact.Set{}, s)
}

// awake is a Session that is up.
type awake struct {
	*session.Machine
	host *host
	id   string
	c    *agent.Client
	kept session.State // newest
}

// start starts a Session on a Recipe that has been built.
func (h *host) start(r wire.Recipe) *awake {
	h.t.Helper()
	a := &awake{host: h, id: store.NewID()}
	track := build.NewTrack(nil, nil, func(urgent bool) {
		if urgent {
			h.check(a.save())
		}
	})
	a.Machine = session.New(session.Options{ID: a.id, Dir: h.sessions(), Builder: h.builder, Log: h.log(a.id), Track: track, Save: a.save,
		Life: context.Background()})
	payload := wire.Session{ID: a.id, Recipe: r, Version: 1, Repo: wire.Repo{Name: "acme/rocket", CloneURL: h.repo}, WorkBranch: "work",
		DiskSize: 20 << 30}
	h.check(a.Wake(context.Background(), payload, nil, false))
	s, err := h.engine.Open(context.Background(), a.box())
	h.check(err)
	a.c = build.Dial(s)
	return a
}

func (h *host) sessions() string {
	dir := filepath.Join(h.dir, "sessions")
	h.check(os.MkdirAll(dir, 0o700))
	return dir
}

func (a *awake) box() sandbox.ID { return sandbox.ID("s-" + a.id) }

// disk is the folder of all that the Session has on the host.
func (a *awake) disk() string { return filepath.Join(a.host.sessions(), a.id) }

// save waits for the disk where the Runner does: for what a power cut must not undo.
func (a *awake) save() error {
	st := a.State()
	b, err := json.Marshal(st)
	if err != nil {
		return err
	}
	f, err := os.OpenFile(filepath.Join(a.host.dir, a.id+".json"), os.O_WRONLY|os.O_CREATE|os.O_TRUNC, 0o600)
	if err != nil {
		return err
	}
	if _, err = f.Write(b); err == nil && (st.Base != a.kept.Base || st.Workspace != a.kept.Workspace) {
		err = f.Sync()
	}
	a.kept = st
	return errors.Join(err, f.Close())
}

// run runs a command in the Session's Sandbox, which has to succeed.
func (a *awake) run(argv ...string) {
	a.host.t.Helper()
	e, err := a.c.Run(context.Background(), agent.Cmd{ID: store.NewID(), Argv: argv, Dir: build.WorkspaceGuest}, nil, nil)
	if err != nil || e.Code != 0 {
		a.host.t.Fatalf("%q: %+v, %v", argv, e, err)
	}
}

// remove gives the Session up.
func (a *awake) remove() {
	a.host.t.Helper()
	a.host.check(a.Remove(context.Background()))
	a.host.check(a.host.spool.Forget(a.id))
}

func (h *host) check(err error) {
	h.t.Helper()
	if err != nil {
		h.t.Fatal(err)
	}
}

func ms(d time.Duration) float64 { return float64(d) / float64(time.Millisecond) }
