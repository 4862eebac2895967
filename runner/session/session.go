// Package session is a Session on the Runner's host: its disk with the Workspace, which outlives every Sandbox, and the
// Sandbox that runs on it while the Session is awake (ADR 0006).
//
// A Machine does what its caller says, one thing at a time: Wake, Sleep, Archive, Remove. Each can be repeated after the Runner's
// process was killed at any point of it. What is in the Workspace is lost by none of them but Remove.
package session

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"time"

	"github.com/claude-hub/claude-hub/runner/agent"
	"github.com/claude-hub/claude-hub/runner/build"
	"github.com/claude-hub/claude-hub/runner/login"
	"github.com/claude-hub/claude-hub/runner/sandbox"
	"github.com/claude-hub/claude-hub/runner/secret"
	"github.com/claude-hub/claude-hub/runner/wire"
)

// ErrBusy refuses a Sleep because the Session became active.
var ErrBusy = errors.New("the Session is active")

// State is what a Session remembers between two processes of the Runner.
type State struct {
	Workspace bool         `json:"workspace,omitempty"` // it was cloned, whole
	Remote    string       `json:"remote,omitempty"`    // from where
	Owner     *build.Owner `json:"owner,omitempty"`     // of the Workspace; nil: whoever owns its folder
	Folders   bool         `json:"folders,omitempty"`   // dependency folders and caches were made on the disk
	Docker    bool         `json:"docker,omitempty"`    // so was a Docker disk
	DiskSize  int64        `json:"disk_size,omitempty"`
	Base      string       `json:"base,omitempty"` // the build its root filesystem stands on
	Version   int          `json:"version,omitempty"`
	Awake     bool         `json:"awake,omitempty"`
	Boots     int          `json:"boots,omitempty"`  // counts; names the start script of each boot
	Boot      string       `json:"boot,omitempty"`   // the agent's name of the running boot
	Stages    []wire.Stage `json:"stages,omitempty"` // of the newest boot
	// Handed names the Sensitive values that processes of the running boot may have: secret.Values.Handed.
	Handed []string `json:"handed,omitempty"`
	// Starting: the start script of this boot has not ended.
	Starting    bool          `json:"starting,omitempty"`
	StartFailed *wire.Failure `json:"start_failed,omitempty"`
	Unsaved     *wire.Unsaved `json:"unsaved,omitempty"`
	// Login is what a login shell in the Workspace ended with last, on the build LoginOf; Probed is the boot that was asked.
	Login   *login.Env  `json:"login,omitempty"`
	LoginOf string      `json:"login_of,omitempty"`
	Probed  string      `json:"probed,omitempty"`
	Build   build.Marks `json:"build"` // of a build for this Session that is under way
}

// Machine is one Session. Wake, Sleep, Archive, Remove and Adopt are called by one goroutine at a time, the rest by any.
type Machine struct {
	id    string
	b     *build.Builder
	dir   string
	track *build.Track
	save  func() error
	token build.TokenFunc
	loans loans
	act   activity
	life  context.Context
	// countEvery is how often is counted what exists in the Workspace only.
	countEvery time.Duration

	serving  sync.WaitGroup
	mu       sync.Mutex
	out      *build.Log
	st       State
	booted   time.Time
	payload  wire.Session
	values   *secret.Values // of the newest wake; in memory only
	box      sandbox.Sandbox
	base     build.Base
	follow   bool               // values are known, so what the Sandbox prints may be read
	withheld string             // why they are not, for who opens a channel; empty while that may only take a moment
	script   context.CancelFunc // ends following the start script, and the probe after it
	ended    chan struct{}      // closed when neither is followed any more
	chans    map[string]*channel
	served   map[string]bool // channels that came to their end, while the Hub's list still has them
}

// Options of a Machine.
type Options struct {
	ID      string // of the assignment
	Dir     string // folder of all Sessions' disks
	Builder *build.Builder
	Log     *build.Log
	Track   *build.Track
	State   State
	Payload wire.Session
	Save    func() error // stores State and Track durably
	Token   build.TokenFunc
	Lender  Lender // for git in the Sandbox; nil: it asks only the person
	// CountEvery is how often is counted what exists in the Workspace only, while the Session is at work.
	CountEvery time.Duration
	// Life is the Runner's: what goes on beside the Session's steps ends with it, and is found again by the next process.
	Life context.Context
}

// New makes a Machine from what was remembered; it does nothing yet.
func New(o Options) *Machine {
	m := &Machine{id: o.ID, b: o.Builder, dir: o.Dir, out: o.Log, track: o.Track, save: o.Save, token: o.Token, life: o.Life, countEvery: o.CountEvery, st: o.State,
		payload: o.Payload, loans: loans{lender: o.Lender}, chans: map[string]*channel{}, served: map[string]bool{}}
	m.act.open()
	return m
}

// State is a copy of what has to be remembered.
func (m *Machine) State() State {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.st
}

func (m *Machine) edit(f func(*State)) error {
	m.mu.Lock()
	f(&m.st)
	m.mu.Unlock()
	return m.save()
}

// beside runs f beside the Session's steps; a crash of it is one line in the log and ends nothing else.
func (m *Machine) beside(f func()) {
	m.serving.Go(func() {
		defer func() {
			if p := recover(); p != nil {
				m.log().Mark("claude-hub itself failed here: %v", p)
			}
		}()
		f()
	})
}

func (m *Machine) log() *build.Log {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.out
}

// SetLog has what happens from now on written to another log, under a newer fence.
func (m *Machine) SetLog(l *build.Log) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.out = l
}

// Lived is for how long the Sandbox has been up, as this process knows it.
func (m *Machine) Lived() time.Duration {
	m.mu.Lock()
	defer m.mu.Unlock()
	return time.Since(m.booted)
}

// Idle is for how long nothing counted as activity.
func (m *Machine) Idle() time.Duration { return m.act.idle() }

// Detail is what is reported beside the state, without a failure.
func (m *Machine) Detail() wire.SessionDetail {
	st := m.State()
	return wire.SessionDetail{
		Phases: m.track.Phases(), Progress: m.track.Progress(), Notes: m.track.Notes(), StartFailed: st.StartFailed,
		Version: st.Version, Workspace: st.Workspace, Unsaved: st.Unsaved, Stages: slices.Clone(st.Stages),
	}
}

// Keeps says whether the Session stands on a build, or is about to: it must not be pruned.
func (m *Machine) Keeps(name, key string) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.payload.Archive != "" { // it wakes on whatever is the newest version then
		return m.st.Base == name
	}
	return m.st.Base == name || m.st.Build.Base == name || m.st.Build.Key == key || m.payload.BuildKey == key
}

// Building is the key of a build that this Session has under way, or empty.
func (m *Machine) Building() string {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.st.Build.Script == "" && m.st.Build.Rested == "" {
		return ""
	}
	return m.st.Build.Key
}

func (m *Machine) boxID() sandbox.ID { return sandbox.ID("s-" + m.id) }

func (m *Machine) disk() sandbox.Disk {
	m.mu.Lock()
	defer m.mu.Unlock()
	return sandbox.Disk{Path: filepath.Join(m.dir, m.id), Size: max(m.st.DiskSize, 1)}
}

// Wake starts the Session, or wakes it: it makes the build if this Runner hasn't it, clones the Workspace if it never
// was, boots, and starts the start script, which it does not wait for. It returns an error that build.Explain puts in
// words. What it could not do leaves Workspace, disks and root filesystem as they were, and the Session asleep. The Log's Set knows values already.
// again says that an earlier process of the Runner was killed in this very start: a bootstrap that failed then has failed.
func (m *Machine) Wake(ctx context.Context, p wire.Session, values *secret.Values, again bool) error {
	m.mu.Lock()
	m.payload, m.values, m.follow, m.withheld = p, values, true, ""
	if !again {
		m.st.Build.Failed = nil
	}
	m.mu.Unlock()
	m.track.Reset()
	err := m.wake(ctx, p)
	if err != nil && !errors.Is(err, build.ErrShutdown) {
		// Asleep, with a disk that is unmounted; what fails here is tried again by the next Sleep or Wake.
		if serr := m.halt(context.WithoutCancel(ctx), 0); serr != nil {
			m.log().Mark("the Sandbox of the failed start could not be stopped: %v", serr)
		} else if serr := m.b.Engine().Settle(context.WithoutCancel(ctx), m.boxID(), m.disk(), false); serr != nil {
			m.log().Mark("the root filesystem from before the failed start could not be put back: %v", serr)
		}
	}
	return err
}

func (m *Machine) wake(ctx context.Context, p wire.Session) error {
	watch := newStopwatch()
	base, err := m.ensure(ctx, p, "")
	if err != nil {
		return err
	}
	watch.lap(wire.StageBuild)
	user := base.Meta.User
	if err := m.workspace(ctx, p, user, watch); err != nil {
		return err
	}
	m.track.Begin(wire.PhaseBoot)
	env, err := build.Spec(p.Recipe)
	if err != nil {
		return err
	}
	limits, notes := m.b.Limits(env)
	for _, n := range notes {
		m.track.Note(n)
	}
	spec := m.b.SandboxSpec(base, hostname(p), m.disk(), limits, env)
	s, err := m.boot(ctx, spec)
	if errors.Is(err, sandbox.ErrBaseLost) {
		m.log().Mark("boot: %v; the build is made anew", err)
		if base, err = m.ensure(ctx, p, base.Name); err != nil {
			return err
		}
		watch.lap(wire.StageBuild)
		m.track.Begin(wire.PhaseBoot)
		spec = m.b.SandboxSpec(base, hostname(p), m.disk(), limits, env)
		s, err = m.boot(ctx, spec)
	}
	if err != nil {
		return cause(ctx, err)
	}
	watch.lap(wire.StageSandbox)
	c, hello, err := build.Ready(ctx, s)
	if err != nil {
		return cause(ctx, err)
	}
	watch.lap(wire.StageAgent)
	if err := m.b.Bind(ctx, c, m.log(), m.track, env, base.Meta.Image, m.State().Boots == 0); err != nil {
		return err
	}
	watch.lap(wire.StageFolders)
	for _, problem := range hello.Problems {
		m.log().Mark("boot: %s", problem)
	}
	m.sayFresh(s, base)
	m.act.open()
	err = m.edit(func(st *State) {
		m.box, m.base, m.booted = s, base, time.Now()
		if st.Boot != hello.BootID {
			st.Boots++
		}
		st.Boot, st.Base, st.Version, st.Awake = hello.BootID, base.Name, p.Version, true
		st.Stages = watch.all
		st.Starting, st.StartFailed, st.Build, st.Handed, st.Folders = true, nil, build.Marks{}, m.values.Handed(false), true
		st.Docker = st.Docker || env.Docker
	})
	if err != nil {
		return err
	}
	// It has answered: what it had before may go.
	if err := m.b.Engine().Settle(ctx, m.boxID(), spec.Disk, true); err != nil {
		m.log().Mark("boot: the root filesystem from before could not be given up: %v", err)
	}
	m.beside(func() { m.watchDisk(s, p) })
	m.beside(func() { m.watchUnsaved(s) })
	m.beside(func() { m.b.FetchClaudeCode(m.life, m.log(), base.Meta.ClaudeCode) })
	if m.setUpGit(ctx, s, p) {
		m.beside(func() { m.serveGit(s, p) })
	}
	if env.Docker {
		before := time.Now()
		if err := m.dockerUp(ctx, c, base); err != nil {
			return err
		}
		if err := m.edit(func(st *State) { st.stage(wire.StageDocker, time.Since(before)) }); err != nil {
			return err
		}
	}
	m.track.End(wire.PhaseBoot, "", nil)
	m.log().Mark("boot: %s", wire.BootText(m.State().Stages))
	m.start(p, base)
	return nil
}

// workspace makes sure that the Workspace is there: cloned once, and never again.
func (m *Machine) workspace(ctx context.Context, p wire.Session, user build.User, watch *stopwatch) error {
	if err := m.edit(func(st *State) { st.DiskSize = max(st.DiskSize, p.DiskSize, m.defaultDisk(p)) }); err != nil {
		return err
	}
	disk := m.disk()
	had := m.State().Workspace
	if had {
		if _, err := os.Stat(disk.Path); err != nil {
			return m.lost()
		}
	} else {
		m.track.Begin(wire.PhaseClone)
	}
	mounted, err := m.b.Engine().Mount(ctx, disk)
	if err != nil {
		return cause(ctx, err)
	}
	folder, lost, err := build.PrepareFolders(mounted, m.State().Folders)
	if err != nil {
		return err
	}
	docker, err := build.PrepareDocker(mounted, m.State().Docker)
	if err != nil {
		return err
	}
	if docker != "" {
		lost = append(lost, docker)
	}
	for _, what := range lost {
		m.log().Mark("disk: %s", what)
	}
	watch.lap(wire.StageDisk)
	if had {
		if st, err := os.Lstat(folder); err != nil || !st.IsDir() {
			return m.lost()
		}
		return m.own(mounted, folder, user)
	}
	if _, err := os.Lstat(folder); err == nil {
		// A clone gets its name when it is whole. The mark of it was lost, perhaps long ago: it is never thrown away.
		m.track.End(wire.PhaseClone, "already there", nil)
		return m.edit(func(st *State) { st.Workspace = true })
	}
	res, err := m.b.Clone(ctx, m.log(), m.track, build.CloneJob{Repo: p.Repo, Token: m.token, Branch: p.Branch, WorkBranch: p.WorkBranch, Folder: folder,
		UID: mounted.IDBase + user.UID, GID: mounted.IDBase + user.GID})
	if err != nil {
		return cause(ctx, err)
	}
	if err := m.edit(func(st *State) {
		st.Workspace, st.Remote, st.Owner = true, p.Repo.CloneURL, &build.Owner{UID: user.UID, GID: user.GID}
	}); err != nil {
		return err
	}
	watch.lap(wire.StageClone)
	m.track.End(wire.PhaseClone, fmt.Sprintf("%s at %.12s", res.Branch, res.Commit), nil)
	return nil
}

func (m *Machine) defaultDisk(p wire.Session) int64 {
	if p.DiskSize > 0 {
		return 0
	}
	return m.b.Config().SessionDisk
}

func (m *Machine) lost() error {
	return &build.Failed{Failure: wire.Failure{Code: "workspace-lost", Message: fmt.Sprintf(
		"the Workspace of this Session is gone from Runner %s; it is not cloned again, so that nobody takes a fresh clone for the "+
			"lost work. Delete the Session and start a new one, or restore the Runner's data folder", m.b.Config().Runner)}}
}

// Done is closed when the Sandbox has ended; nil while there is none.
func (m *Machine) Done() <-chan struct{} {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.box == nil {
		return nil
	}
	return m.box.Done()
}

// WhyEnded is the end of a sentence about a Sandbox that ended by itself, as far as that is known; Halt forgets it.
func (m *Machine) WhyEnded(ctx context.Context) string {
	m.mu.Lock()
	box := m.box
	m.mu.Unlock()
	if box == nil {
		return ""
	}
	if u, err := box.Usage(ctx); err != nil || !u.OOMEnded {
		return ""
	}
	return ": its programs needed more memory than it has, and in gVisor that ends all of them"
}

// stopGrace is how long processes get between SIGTERM and SIGKILL at sleep.
const stopGrace = 10 * time.Second

// Sleep stops the Sandbox; its root filesystem and the Workspace stay. least: refuse with ErrBusy if the Session has
// been idle for less; 0 never refuses.
func (m *Machine) Sleep(ctx context.Context, least time.Duration) error {
	if !m.act.close(least) {
		return ErrBusy
	}
	m.Count(ctx)
	return m.halt(ctx, stopGrace)
}

// Halt cleans up after a Sandbox that ended by itself.
func (m *Machine) Halt(ctx context.Context) error { return m.halt(ctx, 0) }

// halt stops whatever runs, and unmounts the disk. It may be repeated.
func (m *Machine) halt(ctx context.Context, grace time.Duration) error {
	m.act.close(0)
	m.mu.Lock()
	box, script, ended := m.box, m.script, m.ended
	m.box, m.script = nil, nil
	m.mu.Unlock()
	m.dockerDown(ctx)
	if box != nil && grace > 0 {
		stop, cancel := context.WithTimeout(ctx, grace+5*time.Second)
		if err := build.Dial(box).Stop(stop, grace); err == nil {
			select {
			case <-box.Done():
			case <-stop.Done():
			}
		}
		cancel()
	}
	engine := m.b.Engine()
	if err := engine.Stop(ctx, m.boxID(), 0); err != nil {
		return err
	}
	lent := m.loans.take()
	m.beside(func() { m.loans.giveBack(ctx, lent) })
	if script != nil {
		script()
		<-ended
	}
	if m.State().DiskSize > 0 {
		if _, err := os.Stat(m.disk().Path); err == nil {
			if err := engine.Unmount(ctx, m.disk()); err != nil {
				return err
			}
		}
	}
	if !m.State().Awake {
		return nil
	}
	return m.edit(func(st *State) { st.Awake, st.Starting, st.Boot = false, false, "" })
}

// Remove deletes everything of the Session, the Workspace included.
func (m *Machine) Remove(ctx context.Context) error {
	if err := m.halt(ctx, stopGrace); err != nil {
		return err
	}
	engine := m.b.Engine()
	if err := engine.Remove(ctx, m.boxID()); err != nil {
		return err
	}
	if err := engine.DeleteDisk(ctx, m.disk()); err != nil {
		return err
	}
	m.mu.Lock()
	m.payload, m.values = wire.Session{}, nil // it stands on no build any more
	m.mu.Unlock()
	return m.edit(func(st *State) { st.Base, st.Build, st.Login = "", build.Marks{}, nil })
}

func cause(ctx context.Context, err error) error {
	if err != nil && ctx.Err() != nil {
		return context.Cause(ctx)
	}
	return err
}

// client speaks to the running Sandbox's agent; nil while there is none.
func (m *Machine) client() *agent.Client {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.box == nil {
		return nil
	}
	return build.Dial(m.box)
}
