package session

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/claude-hub/claude-hub/envspec"
	"github.com/claude-hub/claude-hub/runner/build"
	"github.com/claude-hub/claude-hub/runner/login"
	"github.com/claude-hub/claude-hub/runner/sandbox"
	"github.com/claude-hub/claude-hub/runner/wire"
)

// start runs the start script of this boot, or goes on following it, beside the Session: it may be long, and what it
// leaves running lives on. Its failure makes the Session no less usable (ADR 0009: for repair). After it, a login shell in the
// Workspace is asked for its environment.
func (m *Machine) start(p wire.Session, base build.Base) {
	ctx, cancel := context.WithCancel(m.life)
	ended := make(chan struct{})
	m.mu.Lock()
	st, box := m.st, m.box
	m.script, m.ended = cancel, ended
	m.mu.Unlock()
	spec, err := build.Spec(p.Recipe)
	var script func() bool
	if st.Starting {
		if err != nil || strings.TrimSpace(spec.Start) == "" {
			m.track.Skip(wire.PhaseStart, "no start script")
			m.edit(func(st *State) { st.Starting = false }) //nolint:errcheck // told by the next step that saves
		} else {
			script = m.startScript(ctx, spec, base, box, st)
		}
	}
	m.beside(func() {
		defer close(ended)
		defer cancel()
		if script != nil && !script() {
			return
		}
		m.probe(ctx, spec, base, box, st.Boot, script == nil)
	})
}

// startScript is the start script's run; it answers false when following it was given up.
func (m *Machine) startScript(ctx context.Context, spec envspec.Spec, base build.Base, box sandbox.Sandbox, st State) func() bool {
	if m.track.Phase(wire.PhaseStart).State == "" {
		m.log().Mark("start script: starting in %s", build.WorkspaceGuest)
	}
	m.track.Begin(wire.PhaseStart)
	limits, _ := m.b.Limits(spec)
	env := append(m.b.Env(build.WithCaches(base.Meta.Image), base.Meta.Login), m.variables()...)
	cmd := build.Script(fmt.Sprintf("start-%d", st.Boots), "start", spec.Start, env, build.WorkspaceGuest, base.Meta.Image.User)
	log := m.log()
	return func() bool {
		exit, err := m.b.RunScript(ctx, box, log, wire.PhaseStart, st.Boot, cmd)
		if ctx.Err() != nil {
			return false
		}
		var failed *wire.Failure
		if err != nil {
			f := build.Explain(wire.PhaseStart, err)
			failed = &f
		} else if f := build.ExitFailure(wire.PhaseStart, exit, limits.Memory, log.Tail()); f != nil {
			failed = &f.Failure
		}
		if failed != nil {
			failed.Message, failed.LastLines = log.Text(failed.Message), log.Text(failed.LastLines)
		}
		took := m.track.Since(wire.PhaseStart)
		m.edit(func(st *State) { //nolint:errcheck // the Track saves again
			st.Starting, st.StartFailed = false, failed
			st.stage(wire.StageStart, took)
		})
		if failed != nil {
			m.log().Mark("start script: %s", failed.Message)
			m.track.Fail(wire.PhaseStart, "", failed.ExitCode)
			return true
		}
		m.log().Mark("start script: done")
		m.track.End(wire.PhaseStart, "", &exit.Code)
		return true
	}
}

// probePause lets the first commands after a boot go first: they don't wait for the probe, and need not share the processor
// with it.
const probePause = 300 * time.Millisecond

// probe asks a login shell in the Workspace for its environment. Until it has answered, processes get the last answer.
func (m *Machine) probe(ctx context.Context, spec envspec.Spec, base build.Base, box sandbox.Sandbox, boot string, pause bool) {
	if pause {
		select {
		case <-time.After(probePause):
		case <-ctx.Done():
			return
		}
	}
	log, c := m.log(), build.Dial(box)
	if err := login.Sweep(ctx, c); err != nil {
		return
	}
	env, warning, err := m.b.LoginProbe(c, build.WithCaches(base.Meta.Image), spec, log.Set()).Run(ctx)
	if err != nil {
		return // the Sandbox ended, or the next process of the Runner asks
	}
	m.edit(func(st *State) { //nolint:errcheck // told by the next step that saves
		if env != nil {
			st.Login, st.LoginOf = env, base.Name
		}
		st.Probed = boot
	})
	if warning != "" {
		log.Mark("%s", warning)
		m.track.Note(log.Text(warning))
	}
}

// login is what a login shell of the image's user ended with last: in the Workspace, else in the build.
func (m *Machine) login() *login.Env {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.st.Login != nil && m.st.LoginOf == m.base.Name {
		return m.st.Login
	}
	return m.base.Meta.Login
}

// variables are those of the newest wake as a process is given them.
func (m *Machine) variables() []string {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.values.Env(false)
}
