// Package world is everything a story needs, for real: the binary as separate processes, a registry, a bare git remote, and a
// database. Nothing in it is faked.
package world

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	v1 "github.com/google/go-containerregistry/pkg/v1"

	"github.com/claude-hub/claude-hub/handlers/api/schema"
	"github.com/claude-hub/claude-hub/runner/image/imagetest"
)

// World is one Hub, one Runner and what they need.
type World struct {
	Dir      string // everything is below it
	Binary   string
	Registry string // host:port
	Remote   string // path of the bare repository
	Repo     string // owner/name
	URL      string // of the Hub
	Token    string // of a person, for CLI and API
	Hub      *Process
	Runner   *Process
	// RegistryDown has the registry answer 503.
	RegistryDown atomic.Bool
	Config       string // path of the config file
	Options      Options

	t      testing.TB
	runDir string
}

// Options of a World.
type Options struct {
	Database string            // URL or path; empty: SQLite in Dir
	Hub      map[string]string // further keys of the section hub, as YAML
	Runner   map[string]string // of the section runner
	GitHub   map[string]string // of the section github
	// NoDev: neither dev login nor Repos of the config, as a Hub with a GitHub App is in use.
	NoDev bool
}

func lockThread() { runtime.LockOSThread() }

var (
	buildOnce sync.Once
	built     string
	buildErr  error
)

// Binary builds claude-hub once for all Worlds of this process, into the tests' cache folder. CLAUDE_HUB_BINARY names one
// that is there.
func Binary(t testing.TB) string {
	t.Helper()
	buildOnce.Do(func() {
		if built = os.Getenv("CLAUDE_HUB_BINARY"); built == "" {
			built, buildErr = build()
		}
	})
	if buildErr != nil {
		t.Fatal(buildErr)
	}
	return built
}

func build() (string, error) {
	cache, err := imagetest.CacheDir()
	if err != nil {
		return "", err
	}
	if err := os.MkdirAll(cache, 0o755); err != nil {
		return "", err
	}
	path := filepath.Join(cache, "claude-hub")
	// Another test process may run the one that is there, so it is replaced and not written to.
	fresh := fmt.Sprintf("%s.%d", path, os.Getpid())
	cmd := exec.Command("go", "build", "-o", fresh, "github.com/claude-hub/claude-hub")
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := cmd.CombinedOutput(); err != nil {
		return "", fmt.Errorf("build claude-hub: %w\n%s", err, out)
	}
	return path, os.Rename(fresh, path)
}

// New makes a World whose Hub and Runner run, and whose Repo has one commit.
func New(t testing.TB, o Options) *World {
	t.Helper()
	w := Empty(t, o)
	w.StartHub()
	w.Token = strings.TrimSpace(w.OK("token", "--login", "ana", "--name", "e2e"))
	w.Register()
	w.StartRunner()
	return w
}

// Empty is a World in which nothing runs yet. Its Config is written.
func Empty(t testing.TB, o Options) *World {
	t.Helper()
	w := &World{t: t, Options: o, Binary: Binary(t), Repo: "acme/rocket"}
	w.Registry = imagetest.Registry(t, func(up http.Handler) http.Handler {
		return http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
			if w.RegistryDown.Load() {
				http.Error(rw, "down for the test", http.StatusServiceUnavailable)
				return
			}
			up.ServeHTTP(rw, r)
		})
	})
	// Folders of Sandboxes must be reachable by their ids, and short: not t.TempDir.
	var err error
	if w.Dir, err = os.MkdirTemp("", "chw-"); err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(w.Dir, 0o755); err != nil {
		t.Fatal(err)
	}
	if w.runDir, err = os.MkdirTemp("/run", "chw-"); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(w.close)
	w.Remote = filepath.Join(w.Dir, "rocket.git")
	w.makeRemote()
	w.URL = "http://" + FreeAddress(t)
	w.WriteConfig()
	return w
}

// AddRunner makes a second Runner on this host, with a data folder of its own, and waits until the Hub calls it online.
func (w *World) AddRunner(name string) *Process {
	w.t.Helper()
	dir := filepath.Join(w.Dir, name)
	run := w.runDir + "-" + name
	config := filepath.Join(w.Dir, name+".yml")
	text := fmt.Sprintf("data: %s\nlog: debug\nrunner:\n  run_dir: %s\n  local_repos: true\n  images: {plain_http: [%q]}\n", dir, run, w.Registry)
	if err := os.WriteFile(config, []byte(text), 0o644); err != nil {
		w.t.Fatal(err)
	}
	token := strings.TrimSpace(w.OK("runner", "token"))
	if r := w.CLIWith(token, "runner", "register", "--config", config, "--hub", w.URL, "--name", name); r.Code != 0 {
		w.t.Fatal(r)
	}
	p := w.Start(name, "runner", "--config", config)
	w.t.Cleanup(func() {
		if w.t.Failed() {
			w.t.Logf("end of the log of Runner %s:\n%s", name, tail(p.Log(), 12<<10))
		}
		p.Kill()
		w.purge(config)
		_ = os.RemoveAll(run)
	})
	w.online(p, name)
	return p
}

func (w *World) purge(config string) {
	w.t.Helper()
	if out, err := exec.Command(w.Binary, "runner", "purge", "--config", config, "--yes").CombinedOutput(); err != nil {
		w.t.Errorf("remove what a Runner left on this host: %v\n%s", err, out)
	}
}

func (w *World) close() {
	if w.t.Failed() {
		for _, p := range []*Process{w.Hub, w.Runner} {
			if p != nil {
				w.t.Logf("end of the %s's log:\n%s", p.name, tail(p.Log(), 12<<10))
			}
		}
	}
	for _, p := range []*Process{w.Runner, w.Hub} {
		if p != nil && p.Running() {
			p.Kill()
		}
	}
	w.purge(w.Config)
	if err := os.RemoveAll(w.Dir); err != nil {
		w.t.Error(err)
	}
	_ = os.RemoveAll(w.runDir)
}

func tail(s string, n int) string { return s[max(0, len(s)-n):] }

// FreeAddress is one that nothing listens on now: a Hub that is started again must come back under it. Its port is below those that
// the kernel gives to connections, any of which could take it while the Hub is away.
func FreeAddress(t testing.TB) string {
	t.Helper()
	for tries := 0; ; tries++ {
		l, err := net.Listen("tcp", fmt.Sprintf("127.0.0.1:%d", 20_000+rand.IntN(12_000)))
		if err == nil {
			defer l.Close()
			return l.Addr().String()
		}
		if tries == 100 {
			t.Fatal(err)
		}
	}
}

// WriteConfig writes the config file from Options.
func (w *World) WriteConfig() {
	w.t.Helper()
	var b strings.Builder
	section := func(name string, keys map[string]string) {
		fmt.Fprintf(&b, "%s:\n", name)
		for k, v := range keys {
			fmt.Fprintf(&b, "  %s: %s\n", k, v)
		}
	}
	fmt.Fprintf(&b, "data: %s\nlog: debug\n", filepath.Join(w.Dir, "data"))
	hub := map[string]string{"listen": strings.TrimPrefix(w.URL, "http://"), "database": fmt.Sprintf("%q", w.Options.Database)}
	run := map[string]string{
		"images": fmt.Sprintf("{plain_http: [%q]}", w.Registry), "run_dir": w.runDir, "local_repos": "true",
		"network": fmt.Sprintf("{pool: %s}", pool()),
	}
	for k, v := range w.Options.Hub {
		hub[k] = v
	}
	for k, v := range w.Options.Runner {
		run[k] = v
	}
	section("hub", hub)
	if len(w.Options.GitHub) > 0 {
		section("github", w.Options.GitHub)
	}
	section("runner", run)
	if !w.Options.NoDev {
		fmt.Fprintf(&b, "dev:\n  login: true\n  repos:\n    - {id: 7, name: %s, url: %q}\n", w.Repo, "file://"+w.Remote)
	}
	w.Config = filepath.Join(w.Dir, "config.yml")
	if err := os.WriteFile(w.Config, []byte(b.String()), 0o644); err != nil {
		w.t.Fatal(err)
	}
}

// pool is a net for this World's Sandboxes, so that Worlds of processes that run at once don't share addresses.
func pool() string { return fmt.Sprintf("10.%d.0.0/16", 100+os.Getpid()%100) }

// StartHub starts the Hub and waits until it is ready.
func (w *World) StartHub() {
	w.t.Helper()
	w.Hub = w.Start("Hub", "serve", "--config", w.Config)
	w.Eventually(30*time.Second, "the Hub is ready", func() error {
		if !w.Hub.Running() {
			w.t.Fatalf("the Hub ended:\n%s", w.Hub.Log())
		}
		r, err := http.Get(w.URL + "/readyz")
		if err != nil {
			return err
		}
		defer r.Body.Close()
		if r.StatusCode != http.StatusOK {
			return fmt.Errorf("status %d", r.StatusCode)
		}
		return nil
	})
}

// StartRunner starts the Runner and waits until the Hub calls it online.
func (w *World) StartRunner() {
	w.t.Helper()
	w.Runner = w.Start("Runner", "runner", "--config", w.Config)
	w.online(w.Runner, "r1")
}

func (w *World) online(p *Process, name string) {
	w.t.Helper()
	w.Eventually(30*time.Second, "the Runner is online", func() error {
		if !p.Running() {
			w.t.Fatalf("the Runner ended:\n%s", p.Log())
		}
		var runners []schema.Runner
		if err := w.JSON(&runners, "runner", "ls", "-o", "json"); err != nil {
			return err
		}
		for _, r := range runners {
			if r.Name == name && r.Online {
				return nil
			}
		}
		return fmt.Errorf("the Hub lists %+v", runners)
	})
}

// Restart starts whichever of Hub and Runner is not running.
func (w *World) Restart() {
	w.t.Helper()
	if !w.Hub.Running() {
		w.StartHub()
	}
	if !w.Runner.Running() {
		w.StartRunner()
	}
}

// Register makes the Runner known to the Hub, in the name of whom Token belongs to.
func (w *World) Register() {
	w.t.Helper()
	token := strings.TrimSpace(w.OK("runner", "token"))
	if r := w.CLIWith(token, "runner", "register", "--config", w.Config, "--hub", w.URL, "--name", "r1"); r.Code != 0 {
		w.t.Fatal(r)
	}
}

// JSON runs a command with -o json and decodes what it printed.
func (w *World) JSON(into any, args ...string) error {
	r := w.CLI(args...)
	if r.Code != 0 {
		return fmt.Errorf("%s", r)
	}
	if err := json.Unmarshal([]byte(r.Stdout), into); err != nil {
		return fmt.Errorf("%w in %s", err, r)
	}
	return nil
}

// Eventually polls until f answers nil, and fails the test when it doesn't in time.
func (w *World) Eventually(limit time.Duration, what string, f func() error) {
	w.t.Helper()
	if err := Poll(w.t.Context(), limit, f); err != nil {
		w.t.Fatalf("%s: not within %s: %v", what, limit, err)
	}
}

// Poll calls f until it answers nil, and returns its last error when it doesn't in time.
func Poll(ctx context.Context, limit time.Duration, f func() error) error {
	deadline := time.After(limit)
	tick := time.NewTicker(50 * time.Millisecond)
	defer tick.Stop()
	for {
		err := f()
		if err == nil {
			return nil
		}
		select {
		case <-deadline:
			return err
		case <-ctx.Done():
			return err
		case <-tick.C:
		}
	}
}

// Git runs git with no configuration but its own.
func (w *World) Git(args ...string) string {
	w.t.Helper()
	var stdout, stderr bytes.Buffer
	c := exec.Command("git", args...)
	c.Env = append(os.Environ(), "GIT_CONFIG_NOSYSTEM=1", "GIT_CONFIG_GLOBAL=/dev/null", "GIT_AUTHOR_NAME=e2e", "GIT_AUTHOR_EMAIL=e2e@localhost",
		"GIT_COMMITTER_NAME=e2e", "GIT_COMMITTER_EMAIL=e2e@localhost")
	c.Stdout, c.Stderr = &stdout, &stderr
	if err := c.Run(); err != nil {
		w.t.Fatalf("git %q: %v\n%s", args, err, stderr.String())
	}
	return strings.TrimSpace(stdout.String())
}

func (w *World) makeRemote() {
	w.t.Helper()
	tree := filepath.Join(w.Dir, "tree")
	w.Git("init", "-q", "-b", "main", tree)
	for name, body := range map[string]string{"README.md": "# rocket\n", "hello.sh": "#!/bin/sh\necho hello from the repository\n"} {
		if err := os.WriteFile(filepath.Join(tree, name), []byte(body), 0o755); err != nil {
			w.t.Fatal(err)
		}
	}
	w.Git("-C", tree, "add", ".")
	w.Git("-C", tree, "commit", "-q", "-m", "first")
	w.Git("clone", "-q", "--bare", tree, w.Remote)
}

// Push puts an image into the registry and returns its reference.
func (w *World) Push(name string, img v1.Image) string {
	w.t.Helper()
	return imagetest.Push(w.t, w.Registry, name, img)
}
