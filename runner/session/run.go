package session

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/claude-hub/claude-hub/runner/agent"
	"github.com/claude-hub/claude-hub/runner/build"
	"github.com/claude-hub/claude-hub/runner/wire"
)

// Run is a headless run: a command in a Session that runs without anybody connected, both its streams in one log. Its process is
// known at the agent by the ID and lives on when the Runner is killed: the next process finds it there.
type Run struct {
	ID      string
	Argv    []string
	Dir     string
	User    string
	Limit   time.Duration // since Started, until the process is ended; 0: none
	Boot    string        // of the Sandbox that it began in; empty: it has not begun
	Started time.Time
}

const (
	// runGrace is how long a run's process gets between SIGTERM and SIGKILL.
	runGrace = 10 * time.Second
	// timedOut is how a run ends whose time is up, as with timeout(1).
	timedOut = 124
)

// ErrNotUp: the Session has no Sandbox yet that a run could begin in, or whose output may be read.
var ErrNotUp = errors.New("the Session is not up yet")

// RunLost is how a run ended that went with its Sandbox.
const RunLost = "the Sandbox that it ran in has ended: the Session was put to sleep or restarted, or its Sandbox crashed"

var errRunLost = errors.New(RunLost)

// Hold keeps the Session from falling asleep for idleness, until Release.
func (m *Machine) Hold() { m.act.hold() }

// Release ends one Hold.
func (m *Machine) Release() { m.act.release() }

// Headless starts a run, or goes on with one that an earlier process of the Runner began, and returns how it ended. It begins when
// the start script has ended, with began called before: what that gets has to be remembered in Run.Boot and Run.Started. When stop is closed, or
// the run's time is up, its process is ended. ErrNotUp is to be tried again. The error is ctx's when that ends: the run goes on.
func (m *Machine) Headless(ctx context.Context, r Run, log *build.Log, stop <-chan struct{}, began func(boot string, at time.Time) error) (wire.ChannelExit, error) {
	m.mu.Lock()
	box, boot, starting, follow, withheld := m.box, m.st.Boot, m.st.Starting, m.follow, m.withheld
	m.mu.Unlock()
	switch {
	case box != nil && r.Boot != "" && r.Boot != boot:
		return wire.ChannelExit{Code: 125, Failed: RunLost}, nil
	case box != nil && !follow && withheld != "" && r.Boot == "":
		return wire.ChannelExit{Code: 125, Failed: withheld}, nil
	case box == nil || !follow || r.Boot == "" && starting:
		return wire.ChannelExit{}, ErrNotUp
	}
	cmd, _ := m.command(r.ID, r.Argv, r.Dir, r.User)
	cmd.Env = append(cmd.Env, m.variables()...)
	if r.Boot == "" {
		r.Started = time.Now()
		if err := began(boot, r.Started); err != nil {
			return wire.ChannelExit{}, err
		}
	}
	over, end := context.WithCancel(ctx)
	defer end()
	var late atomic.Bool
	go m.endRun(over, build.Dial(box), r, stop, &late)
	exit, err := m.b.RunCommand(ctx, box, log, "what it prints", boot, cmd, errRunLost)
	switch {
	case err != nil && ctx.Err() != nil:
		return wire.ChannelExit{}, err
	case err != nil:
		m.EndRun(ctx, r.ID)
		return wire.ChannelExit{Code: refusal(err), Failed: log.Text(err.Error())}, nil
	case late.Load():
		return wire.ChannelExit{Code: timedOut, Signal: exit.Signal, Failed: fmt.Sprintf("its time limit of %s was over, so it was ended", r.Limit)}, nil
	}
	how := wire.ChannelExit{Code: exit.Code, Signal: exit.Signal, OOM: exit.OOM}
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.box != box && exit.Code != 0 { // it was asked to end with all else in the Sandbox, and did
		how.Failed = RunLost
	}
	return how, nil
}

// endRun ends a run's process when it has to, with all that it started and that did not leave its session. It is over when ctx is.
func (m *Machine) endRun(ctx context.Context, c *agent.Client, r Run, stop <-chan struct{}, late *atomic.Bool) {
	var limit <-chan time.Time
	if r.Limit > 0 {
		limit = time.After(time.Until(r.Started.Add(r.Limit)))
	}
	select {
	case <-stop:
	case <-limit:
		late.Store(true)
	case <-ctx.Done():
		return
	}
	signal := 15
	kill := time.After(runGrace)
	for ctx.Err() == nil {
		err := c.Signal(ctx, r.ID, signal, true)
		again := time.NewTimer(200 * time.Millisecond) // it may not have begun yet, or the connection broke
		if err == nil && signal == 15 {
			again.Stop()
		}
		select {
		case <-again.C:
		case <-kill:
			signal = 9
		case <-ctx.Done():
		}
		again.Stop()
	}
}

// EndRun kills what a run left, if its Sandbox is there, and has the agent forget it.
func (m *Machine) EndRun(ctx context.Context, id string) {
	c := m.client()
	if c == nil {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, runGrace)
	defer cancel()
	c.Signal(ctx, id, 9, true) //nolint:errcheck // it never began, or the Sandbox's end will end it
	c.Forget(ctx, id)          //nolint:errcheck // agents bound what they remember
}

// ForgetRun has the agent forget a run that has ended. What it left in the background lives on.
func (m *Machine) ForgetRun(ctx context.Context, id string) {
	if c := m.client(); c != nil {
		c.Forget(ctx, id) //nolint:errcheck // agents bound what they remember
	}
}
