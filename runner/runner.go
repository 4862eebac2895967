// Package runner is the daemon on a Linux host that builds Environments and runs Sandboxes. It dials the Hub, learns
// what it should hold, and moves each assignment there, one goroutine an assignment. Whatever of it is killed at any
// moment, the next process goes on: Sandboxes live on, scripts are found again by their ids, and what the Hub does not
// know yet waits in the spool (design.md §5).
package runner

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"github.com/rs/zerolog"
	"golang.org/x/sys/unix"

	"github.com/claude-hub/claude-hub/runner/build"
	"github.com/claude-hub/claude-hub/runner/claudecode"
	"github.com/claude-hub/claude-hub/runner/hubclient"
	"github.com/claude-hub/claude-hub/runner/image"
	"github.com/claude-hub/claude-hub/runner/redact"
	"github.com/claude-hub/claude-hub/runner/sandbox"
	"github.com/claude-hub/claude-hub/runner/sandbox/oci"
	"github.com/claude-hub/claude-hub/runner/secret"
	"github.com/claude-hub/claude-hub/runner/spool"
	"github.com/claude-hub/claude-hub/runner/wire"
)

// Runner is the daemon. Make it with New, run it with Run, then Close it.
type Runner struct {
	cfg      Config
	data     string
	identity hubclient.Identity
	version  string
	log      zerolog.Logger
	records  string
	sessions string
	retry    time.Duration
	// countEvery is session.Options.CountEvery.
	countEvery time.Duration
	hides      *redact.Group // what this process's own log hides
	hostEnds   func() bool

	lock    *os.File
	engine  *oci.Engine
	images  *image.Store
	spool   *spool.Spool
	builder *build.Builder
	client  *hubclient.Client

	ctx  context.Context // the Runner's own life; ends with build.ErrShutdown
	stop context.CancelCauseFunc

	mu         sync.Mutex
	workers    map[string]*worker
	wg         sync.WaitGroup
	prune      chan struct{}
	builds     int // how many, and what they take: guarded by mu
	buildBytes int64
}

// Folder is where a Runner with that data folder keeps its things.
func Folder(data string) string { return filepath.Join(data, "runner") }

// IdentityPath is where a Runner's identity is kept (hubclient.WriteIdentity).
func IdentityPath(data string) string { return filepath.Join(Folder(data), "identity.json") }

// ImageFolder is the image store of a data folder, which `claude-hub image` shares with a running Runner.
func ImageFolder(data string) string { return filepath.Join(Folder(data), "images") }

// New opens everything on this host below the data folder, one process at a time, and reads what an earlier process
// left. It needs root. Nothing is sent before Run. version is of claude-hub, for the Hub.
func New(data string, identity hubclient.Identity, cfg Config, version string, log zerolog.Logger) (*Runner, error) {
	cfg, err := cfg.withDefaults()
	if err != nil {
		return nil, err
	}
	if err := secret.NoCoreDumps(); err != nil {
		return nil, err
	}
	if data, err = filepath.Abs(data); err != nil {
		return nil, err
	}
	dir := Folder(data)
	r := &Runner{cfg: cfg, data: data, identity: identity, version: version, log: log, records: filepath.Join(dir, "assignments"), sessions: filepath.Join(dir, "sessions"), retry: 2 * time.Second, countEvery: 2 * time.Minute, hides: redact.Process, hostEnds: hostEnds,
		workers: map[string]*worker{}, prune: make(chan struct{}, 1)}
	r.ctx, r.stop = context.WithCancelCause(context.Background())
	for _, d := range []string{dir, r.records, r.sessions, filepath.Join(dir, "engine")} {
		if err := os.MkdirAll(d, 0o700); err != nil {
			return nil, err
		}
	}
	if r.lock, err = lockFolder(dir); err != nil {
		return nil, err
	}
	if err := r.open(dir); err != nil {
		return nil, errors.Join(err, r.Close())
	}
	return r, nil
}

func lockFolder(dir string) (*os.File, error) {
	f, err := os.OpenFile(filepath.Join(dir, "lock"), os.O_CREATE|os.O_RDWR|unix.O_CLOEXEC, 0o600)
	if err != nil {
		return nil, err
	}
	// A child that a killed Runner was just forking holds the lock until it has become its program.
	deadline := time.Now().Add(2 * time.Second)
	for {
		err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB)
		switch {
		case err == nil:
			return f, nil
		case !errors.Is(err, unix.EWOULDBLOCK) && !errors.Is(err, unix.EINTR):
			return nil, errors.Join(fmt.Errorf("the data folder %s can't be locked: %w", dir, err), f.Close())
		case time.Now().After(deadline):
			return nil, errors.Join(fmt.Errorf("another Runner runs on the data folder %s; stop it first", dir), f.Close())
		}
		time.Sleep(10 * time.Millisecond)
	}
}

func (r *Runner) open(dir string) error {
	engine, err := r.engineAt(filepath.Join(dir, "engine"))
	if err != nil {
		return err
	}
	r.engine = engine
	pulls, err := r.cfg.ImageOptions()
	if err != nil {
		return err
	}
	if r.images, err = image.Open(ImageFolder(r.data), pulls); err != nil {
		return err
	}
	if r.spool, err = spool.Open(filepath.Join(dir, "spool"), spool.Options{}); err != nil {
		return err
	}
	var binds []sandbox.Bind
	if r.cfg.CA != "" {
		binds = []sandbox.Bind{{Folder: r.cfg.CA, Guest: caGuest, ReadOnly: true}}
	}
	claude, err := claudecode.Open(claudecode.Options{Version: r.cfg.ClaudeCode.Version, Folder: r.cfg.ClaudeCode.Folder,
		Dir: filepath.Join(dir, "claude-code"), Env: r.cfg.proxyEnv()})
	if err != nil {
		return err
	}
	if claude != nil {
		binds = append(binds, sandbox.Bind{Folder: claude.Folder(), Guest: claudecode.Guest, ReadOnly: true})
	}
	r.builder, err = build.New(build.Config{
		Dir: filepath.Join(dir, "build"), Runner: r.identity.Name, CPU: r.cfg.CPU, Memory: int64(r.cfg.Memory), Pids: r.cfg.Pids,
		BuildDisk: int64(r.cfg.BuildDisk), SessionDisk: int64(r.cfg.SessionDisk), Env: r.cfg.sandboxEnv(), CloneEnv: r.cfg.cloneEnv(),
		Binds: binds, ClaudeCode: claude, LocalRepos: r.cfg.LocalRepos, CloneDepth: r.cfg.CloneDepth, Keep: r.cfg.KeepBuilds, Quiet: r.cfg.Quiet, BuildTimeout: r.cfg.BuildTimeout,
		Log: r.log,
	}, r.engine, r.images)
	if err != nil {
		return err
	}
	r.dial()
	recs, err := r.readRecords()
	if err != nil {
		return err
	}
	for _, rec := range recs {
		w, err := newWorker(r, rec)
		if err != nil {
			return err
		}
		r.workers[rec.ID] = w
	}
	return nil
}

// defaultData is the data folder whose engine has the plain run_dir.
const defaultData = "/var/lib/claude-hub"

// runDir keeps Runners on different data folders of one host apart: each finds only its own Sandboxes and mounts.
func runDir(engineDir string) string {
	if engineDir == filepath.Join(Folder(defaultData), "engine") {
		return "/run/claude-hub"
	}
	sum := sha256.Sum256([]byte(engineDir))
	return "/run/claude-hub-" + hex.EncodeToString(sum[:4])
}

func (r *Runner) engineConfig(dir string) (oci.Config, error) {
	c := oci.Config{Dir: dir, RunDir: cmp.Or(r.cfg.RunDir, runDir(dir)), Runtime: r.cfg.Runtime, Agent: r.cfg.Agent,
		LowWater: int64(r.cfg.LowWater), Log: r.log}
	var err error
	if len(c.Agent) == 0 {
		if c.Agent, err = agentIn(filepath.Join(dir, "agent")); err != nil {
			return c, fmt.Errorf("the agent of Sandboxes can't be put in place: %w", err)
		}
	}
	if r.cfg.Net.Pool != "" {
		if c.Pool, err = netip.ParsePrefix(r.cfg.Net.Pool); err != nil {
			return c, fmt.Errorf("runner.network.pool: %q is not a network; write it like 10.213.0.0/16", r.cfg.Net.Pool)
		}
	}
	for _, s := range r.cfg.Net.Refuse {
		p, err := netip.ParsePrefix(s)
		if err != nil {
			return c, fmt.Errorf("runner.network.refuse: %q is not a network; write it like 192.168.0.0/16", s)
		}
		c.Refused = append(c.Refused, p)
	}
	for _, s := range r.cfg.Net.DNS {
		a, err := netip.ParseAddr(s)
		if err != nil {
			return c, fmt.Errorf("runner.network.dns: %q is not an address", s)
		}
		c.DNS = append(c.DNS, a)
	}
	return c, nil
}

// Run works until ctx ends. Sandboxes, and scripts in them, go on without it, unless the host goes down.
func (r *Runner) Run(ctx context.Context) error {
	defer r.stop(build.ErrShutdown)
	defer context.AfterFunc(ctx, func() { r.stop(build.ErrShutdown) })()
	ctx = r.ctx
	r.mu.Lock()
	first := make([]*worker, 0, len(r.workers))
	for _, w := range r.workers {
		first = append(first, w)
	}
	r.mu.Unlock()
	if err := r.sweep(ctx); err != nil {
		r.log.Warn().Err(err).Msg("what earlier builds left could not be cleaned up; it is tried again at the next start")
	}
	for _, w := range first {
		r.launch(w, true)
	}
	r.weigh(ctx)
	r.wg.Go(func() { r.pruneLoop(ctx) })
	err := r.client.Run(ctx, r, r.take)
	r.stop(build.ErrShutdown)
	r.wg.Wait()
	if r.hostEnds() {
		r.rest()
	}
	if errors.Is(err, build.ErrShutdown) {
		return nil
	}
	return err
}

// launch starts a worker's goroutine.
func (r *Runner) launch(w *worker, adopt bool) {
	r.wg.Go(func() {
		if adopt {
			if err := w.reportAgain(); err != nil {
				w.log.Warn().Err(err).Msg("the state an earlier process left could not be reported")
			}
			if err := w.adopt(r.ctx); err != nil {
				w.log.Warn().Err(err).Msg("a running Session could not be adopted; it is booted again")
			}
		}
		w.run(r.ctx)
	})
}

// Held is what this Runner holds, for the next Sync.
func (r *Runner) Held() []*wire.Held {
	r.mu.Lock()
	defer r.mu.Unlock()
	held := make([]*wire.Held, 0, len(r.workers))
	for _, w := range r.workers {
		held = append(held, w.held())
	}
	return held
}

// take is the Hub's newest list.
func (r *Runner) take(items []*wire.Item, channels []*wire.Channel) {
	of := map[string][]*wire.Channel{}
	for _, c := range channels {
		of[c.Assignment] = append(of[c.Assignment], c)
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	listed := map[string]bool{}
	for _, it := range items {
		listed[it.Id] = true
		w, known := r.workers[it.Id]
		if !known {
			var err error
			if w, err = r.begin(it); err != nil {
				r.log.Error().Err(err).Str("assignment", it.Id).Msg("an assignment could not be begun; it is tried again at the next list")
				continue
			}
		}
		w.want(it, of[it.Id])
		if !known {
			r.launch(w, false)
		}
	}
	for id, w := range r.workers {
		if !listed[id] {
			w.want(nil, nil)
		}
	}
}

// begin makes the worker of a new assignment. The caller holds the lock.
func (r *Runner) begin(it *wire.Item) (*worker, error) {
	if it.Kind != wire.KindTestBuild && it.Kind != wire.KindSession && it.Kind != wire.KindRun {
		return nil, fmt.Errorf("this Runner knows no assignments of kind %q; update it", it.Kind)
	}
	if !safeID(it.Id) {
		return nil, fmt.Errorf("%q is no id of an assignment", it.Id)
	}
	rec := record{ID: it.Id, Kind: it.Kind, Want: it.Want, Generation: it.Generation, Fence: it.Fence, Deadline: it.DeadlineMs}
	if err := r.writeRecord(rec, true); err != nil {
		return nil, err
	}
	w, err := newWorker(r, rec)
	if err != nil {
		return nil, err
	}
	r.workers[it.Id] = w
	return w, nil
}

// safeID keeps ids what names of folders and Sandboxes can be.
func safeID(id string) bool {
	if id == "" || len(id) > 60 || id[0] == '-' {
		return false
	}
	return strings.Trim(id, "abcdefghijklmnopqrstuvwxyz0123456789-") == ""
}

// forget drops a worker whose assignment is gone. What the Hub has not acknowledged of its log and its reports stays in
// the spool: hubclient sends it, and then tidies up.
func (r *Runner) forget(w *worker) error {
	if err := os.Remove(r.recordPath(w.id)); err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	r.hides.Leave(w.set)
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.workers, w.id)
	return nil
}

func (r *Runner) pruneSoon() {
	select {
	case r.prune <- struct{}{}:
	default:
	}
}

func (r *Runner) pruneLoop(ctx context.Context) {
	for {
		select {
		case <-r.prune:
		case <-ctx.Done():
			return
		}
		deleted, err := r.builder.Prune(ctx, r.keeps)
		if err != nil && ctx.Err() == nil {
			r.log.Warn().Err(err).Msg("old builds could not be deleted; it is tried again after the next build")
		}
		if len(deleted) > 0 {
			r.log.Info().Strs("builds", deleted).Msg("deleted old builds")
		}
		r.weigh(ctx)
	}
}

// weigh finds out what builds take, for the Hub, and logs it when that is another number of them than before.
func (r *Runner) weigh(ctx context.Context) {
	n, bytes, err := r.builder.Usage(ctx)
	if err != nil {
		r.log.Debug().Err(err).Msg("what builds take on the disk could not be told")
		return
	}
	r.mu.Lock()
	changed := r.builds != n
	r.builds, r.buildBytes = n, bytes
	r.mu.Unlock()
	if changed {
		r.log.Info().Int("builds", n).Str("disk", build.Bytes(bytes)).Msg("builds on this host")
	}
}

// Disk is what the host has of room, for the next Sync.
func (r *Runner) Disk() *wire.Disk {
	r.mu.Lock()
	defer r.mu.Unlock()
	d := &wire.Disk{Builds: int32(r.builds), BuildBytes: r.buildBytes}
	var st unix.Statfs_t
	if err := unix.Statfs(r.data, &st); err == nil {
		d.FreeBytes = int64(st.Bavail) * st.Bsize
	}
	return d
}

// keeps says whether any assignment needs a build.
func (r *Runner) keeps(name, key string) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, w := range r.workers {
		if w.keeps(name, key) {
			return true
		}
	}
	return false
}

func (w *worker) keeps(name, key string) bool {
	if w.machine != nil {
		return w.machine.Keeps(name, key)
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	return !w.rec.Ended && w.rec.Marks.Base == name
}

// sweep gives up Sandboxes and disks of builds that no assignment owns.
func (r *Runner) sweep(ctx context.Context) error {
	r.mu.Lock()
	tests, keys := map[string]bool{}, map[string]bool{}
	for id, w := range r.workers {
		switch {
		case w.machine == nil:
			tests[id] = !w.rec.Ended
			if m := w.rec.Marks; tests[id] && m.Key != "" {
				keys[build.BoxKey(m.Key)] = true
			}
		case w.machine.Building() != "":
			keys[build.BoxKey(w.machine.Building())] = true
		}
	}
	r.mu.Unlock()
	return r.builder.Sweep(ctx, func(id string) bool { return tests[id] }, func(key string) bool { return keys[key] })
}

// Close gives the data folder back. Sandboxes live on.
func (r *Runner) Close() error {
	r.mu.Lock()
	for _, w := range r.workers {
		r.hides.Leave(w.set)
	}
	r.mu.Unlock()
	var errs []error
	if r.spool != nil {
		errs = append(errs, r.spool.Close())
	}
	if r.engine != nil {
		errs = append(errs, r.engine.Close())
	}
	if r.lock != nil {
		errs = append(errs, r.lock.Close())
	}
	return errors.Join(errs...)
}
