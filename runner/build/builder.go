// Package build makes an Environment into a snapshot that Sandboxes boot from (ADR 0009): it pulls the image, runs the
// bootstrap script in a Sandbox without the Workspace, and has the engine keep the result under the build key. A Test
// build goes on from there: it clones the Repo and runs the start script in a Sandbox booted from that snapshot.
//
// Each step can be repeated after the Runner's process was killed at any point: what was done is marked, scripts run
// under ids chosen here and are found again, and a root filesystem whose Sandbox is gone in the middle of a bootstrap
// is thrown away, since nobody knows what it holds.
package build

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/rs/zerolog"

	"github.com/claude-hub/claude-hub/envspec"
	"github.com/claude-hub/claude-hub/runner/agent"
	"github.com/claude-hub/claude-hub/runner/claudecode"
	"github.com/claude-hub/claude-hub/runner/image"
	"github.com/claude-hub/claude-hub/runner/login"
	"github.com/claude-hub/claude-hub/runner/sandbox"
	"github.com/claude-hub/claude-hub/runner/secret"
	"github.com/claude-hub/claude-hub/runner/wire"
)

// Config of a Builder. Sizes are in bytes.
type Config struct {
	Dir    string // folder of this package below the Runner's data folder
	Runner string // the Runner's name, for sentences
	// CPU and Memory are the most one Sandbox gets; what an Environment asks beyond is cut, and said.
	CPU    float64
	Memory int64
	Pids   int64
	// BuildDisk and SessionDisk are the sizes promised to a build's and to a Test build's or Session's Sandbox.
	BuildDisk, SessionDisk int64
	// Env is given to every process in a Sandbox: proxy variables, where the CA certificates are.
	Env []string
	// Binds are put into every Sandbox: CA certificates. They are folders or files of the host.
	Binds []sandbox.Bind
	// ClaudeCode is what Sandboxes get of it, seen through a Bind of its folder; nil: none.
	ClaudeCode *claudecode.Store
	// CloneEnv is git's on the host, beside its own: proxy variables, GIT_SSL_CAINFO.
	CloneEnv []string
	// LocalRepos allows Repos with file:// URLs.
	LocalRepos bool
	// CloneDepth is clone.Options.Depth.
	CloneDepth int
	// Keep is how many builds of each Environment are kept beside those in use.
	Keep int
	// Quiet is how long a script says nothing before the log says that it is still running.
	Quiet time.Duration
	// BuildTimeout bounds a build inside a Session's start.
	BuildTimeout time.Duration
	Log          zerolog.Logger
}

// Builder makes builds. Its methods may be called from many goroutines.
type Builder struct {
	cfg    Config
	engine sandbox.Engine
	images *image.Store
	pidMax func() (int64, error)

	mu      sync.Mutex
	flights map[string]*flight
	used    map[string]map[string]int64 // when builds were used last, by name and Environment, Unix ms
}

// New makes a Builder.
func New(cfg Config, engine sandbox.Engine, images *image.Store) (*Builder, error) {
	if cfg.Quiet == 0 {
		cfg.Quiet = 3 * time.Minute
	}
	if cfg.Keep == 0 {
		cfg.Keep = 3
	}
	if cfg.BuildTimeout == 0 {
		cfg.BuildTimeout = 2 * time.Hour
	}
	if err := os.MkdirAll(filepath.Join(cfg.Dir, "disks"), 0o700); err != nil {
		return nil, err
	}
	b := &Builder{cfg: cfg, engine: engine, images: images, pidMax: readPidMax, flights: map[string]*flight{}}
	b.readUsed()
	return b, nil
}

// Engine is what the Builder's Sandboxes run on.
func (b *Builder) Engine() sandbox.Engine { return b.engine }

// Config is what the Builder was made with, with defaults filled in.
func (b *Builder) Config() Config { return b.cfg }

// Meta is kept with each build.
type Meta struct {
	Key         string       `json:"key"`
	Environment string       `json:"environment"`
	ImageDigest string       `json:"image_digest"`
	Image       image.Config `json:"image"`
	User        User         `json:"user"` // the image's USER
	Created     int64        `json:"created"`
	ClaudeCode  string       `json:"claude_code,omitempty"` // which of its builds the root filesystem needs, such as linux-x64-musl
	Login       *login.Env   `json:"login,omitempty"`       // what the image's user's login shell ended with after the bootstrap; no Variable
}

// Base is a build that Sandboxes can boot from.
type Base struct {
	sandbox.Base
	Meta Meta
}

// Marks is what a build has done, kept in the assignment's state so that another process goes on from there.
type Marks struct {
	ImageDigest string `json:"image_digest,omitempty"`
	Key         string `json:"key,omitempty"`
	// Boot names the agent's start in which the running script was started; with another one, the script is gone.
	Boot   string `json:"boot,omitempty"`
	Script string `json:"script,omitempty"` // id of the script that was started last
	// Handed names the Sensitive values that its Sandbox may still print: secret.Values.Handed.
	Handed []string `json:"handed,omitempty"`
	// Rested is the host's boot in which the bootstrap ended well and its Sandbox came to rest.
	Rested string `json:"rested,omitempty"`
	User   User   `json:"user"` // the image's USER, known once it is Rested
	// ClaudeCode goes into the build's Meta, known before the bootstrap.
	ClaudeCode string `json:"claude_code,omitempty"`
	// Login is what goes into the build's Meta, known then, too.
	Login *login.Env `json:"login,omitempty"`
	Base  string     `json:"base,omitempty"` // the finished snapshot
	// Failed is what the bootstrap came to, kept before its Sandbox is given up: an attempt runs it once.
	Failed *wire.Failure `json:"failed,omitempty"`
	Cloned bool          `json:"cloned,omitempty"`
	Commit string        `json:"commit,omitempty"`
	Branch string        `json:"branch,omitempty"`
}

// Job is one assignment as a build sees it.
type Job struct {
	ID     string // of the assignment
	Recipe wire.Recipe
	Values *secret.Values // of the Recipe's Variables, which the Log's Set knows already; in memory only
	Token  TokenFunc      // for the clone of a Test build
	Log    *Log
	Track  *Track
	Marks  *Marks
	// Save stores Marks and Track durably. Called before each step that must not be done twice.
	Save func() error
	// Lost names a build of this key that nothing can be booted from any more; empty: none. It counts as not there.
	Lost string
}

// Spec reads a Recipe's Environment.
func Spec(r wire.Recipe) (envspec.Spec, error) {
	var s envspec.Spec
	if err := json.Unmarshal(r.Spec, &s); err != nil {
		return s, &Failed{wire.Failure{Code: CodeSpec, Message: "this Runner can't read the Environment it was sent; update the Runner"}}
	}
	return s, nil
}

// Limits cuts what an Environment asks to what this Runner gives, and says so.
func (b *Builder) Limits(s envspec.Spec) (sandbox.Limits, []string) {
	got, notes := envspec.Limits{Runner: b.cfg.Runner, CPU: b.cfg.CPU, Memory: b.cfg.Memory}.Cut(s)
	l := sandbox.Limits{CPU: got.CPU, Memory: got.Memory, Pids: b.cfg.Pids}
	if l.Memory < sandbox.MinMemory {
		notes = append(notes, fmt.Sprintf("asked %s of memory, a Sandbox needs at least %s", Bytes(l.Memory), Bytes(sandbox.MinMemory)))
		l.Memory = sandbox.MinMemory
	}
	if l.CPU < sandbox.MinCPU {
		l.CPU = sandbox.MinCPU
	}
	return l, notes
}

// Env is what every process in a Sandbox of that image gets, without the Variables and what names the user (the agent adds
// that): the image's, over it what a login shell made of it, then the Runner's own. Variables come after it, since the last counts.
func (b *Builder) Env(img image.Config, shell *login.Env, more ...string) []string {
	env := slices.Clone(img.Env)
	if !slices.ContainsFunc(env, func(e string) bool { return strings.HasPrefix(e, "LANG=") || strings.HasPrefix(e, "LC_ALL=") }) {
		env = append(env, "LANG=C.UTF-8")
	}
	env = append(shell.Over(env), b.cfg.Env...)
	return append(env, more...)
}

// SnapshotName is where a build of that key by that assignment is kept. Two Test builds of one key are two snapshots,
// since a Test build never starts from an older one; the newest counts.
func SnapshotName(key, assignment string) string {
	return key + "." + strings.ReplaceAll(assignment, "-", "")
}

// Find looks for the newest build of a key.
func (b *Builder) Find(ctx context.Context, key string) (Base, bool, error) {
	return b.findBut(ctx, key, "")
}

// findBut is Find that passes over the build named lost.
func (b *Builder) findBut(ctx context.Context, key, lost string) (Base, bool, error) {
	all, err := b.All(ctx)
	if err != nil {
		return Base{}, false, err
	}
	for _, base := range all {
		if base.Meta.Key == key && base.Name != lost {
			return base, true, nil
		}
	}
	return Base{}, false, nil
}

// All lists this Runner's builds, the newest first.
func (b *Builder) All(ctx context.Context) ([]Base, error) {
	list, err := b.engine.Bases(ctx)
	if err != nil {
		return nil, err
	}
	var all []Base
	for _, s := range list {
		if base, ok := withMeta(s); ok {
			all = append(all, base)
		}
	}
	slices.SortFunc(all, func(x, y Base) int {
		if x.Meta.Created != y.Meta.Created {
			return int(max(-1, min(1, y.Meta.Created-x.Meta.Created)))
		}
		return strings.Compare(x.Name, y.Name)
	})
	return all, nil
}

// Named looks a build up by the name of its snapshot.
func (b *Builder) Named(ctx context.Context, name string) (Base, bool, error) {
	s, found, err := b.engine.Base(ctx, name)
	if err != nil || !found {
		return Base{}, false, err
	}
	base, ok := withMeta(s)
	return base, ok, nil
}

func withMeta(s sandbox.Base) (Base, bool) {
	base := Base{Base: s}
	if json.Unmarshal(s.Meta, &base.Meta) != nil || base.Meta.Key == "" {
		return Base{}, false
	}
	return base, true
}

func platform() string { return "linux/" + runtime.GOARCH }

// disk is a build's or a Test build's own, by the id of its Sandbox.
func (b *Builder) disk(id sandbox.ID, size int64) sandbox.Disk {
	return sandbox.Disk{Path: filepath.Join(b.cfg.Dir, "disks", string(id)), Size: size}
}

// discard gives up a Sandbox with its disk. It works also when ctx has ended.
func (b *Builder) discard(ctx context.Context, id sandbox.ID) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Minute)
	defer cancel()
	if err := b.engine.Stop(ctx, id, 0); err != nil {
		return fmt.Errorf("stopping the Sandbox: %w", err)
	}
	if err := b.engine.Remove(ctx, id); err != nil {
		return fmt.Errorf("removing the Sandbox: %w", err)
	}
	if err := b.engine.DeleteDisk(ctx, b.disk(id, 0)); err != nil {
		return fmt.Errorf("deleting the Sandbox's disk: %w", err)
	}
	return b.release(ctx, heldByBox+string(id))
}

// pidsSpare is what the host itself needs of the kernel's process ids.
const pidsSpare = 2048

// Room refuses a boot that, with all Sandboxes at their limits, could leave the host without process ids: then nothing on
// it could start any more, not even what would stop a Sandbox.
func (b *Builder) Room(ctx context.Context, id sandbox.ID, l sandbox.Limits) error {
	most, err := b.pidMax()
	if err != nil {
		return err
	}
	list, err := b.engine.List(ctx)
	if err != nil {
		return err
	}
	sum := l.Pids
	for _, s := range list {
		if s.Running && s.ID != id {
			sum += s.Spec.Limits.Pids
		}
	}
	if sum+pidsSpare > most {
		return &Failed{wire.Failure{Code: CodeHostFull, Message: fmt.Sprintf(
			"Runner %s has no room for another Sandbox: those that run may have %d processes with it, the host allows %d and needs %d "+
				"itself. Put a Session to sleep, lower runner.pids, or raise the host's kernel.pid_max",
			b.cfg.Runner, sum, most, pidsSpare)}}
	}
	return nil
}

func readPidMax() (int64, error) {
	raw, err := os.ReadFile("/proc/sys/kernel/pid_max")
	if err != nil {
		return 0, err
	}
	return strconv.ParseInt(strings.TrimSpace(string(raw)), 10, 64)
}

// Dial is a Client of a Sandbox's agent.
func Dial(s sandbox.Sandbox) *agent.Client { return &agent.Client{Dial: s.Dial} }

// Ready waits until the agent answers and returns what it says of itself.
func Ready(ctx context.Context, s sandbox.Sandbox) (*agent.Client, agent.Hello, error) {
	c := Dial(s)
	ctx, cancel := context.WithTimeoutCause(ctx, 30*time.Second, errors.New("the Sandbox's agent did not answer within 30 s"))
	defer cancel()
	for {
		h, err := c.Hello(ctx)
		if err == nil {
			return c, h, nil
		}
		select {
		case <-s.Done():
			return nil, agent.Hello{}, errSandboxEnded
		case <-ctx.Done():
			return nil, agent.Hello{}, errors.Join(context.Cause(ctx), err)
		case <-time.After(5 * time.Millisecond):
		}
	}
}

var errSandboxEnded = &Failed{wire.Failure{Code: CodeEnded, Message: "the Sandbox ended"}}
