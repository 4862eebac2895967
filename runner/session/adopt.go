package session

import (
	"context"
	"errors"
	"time"

	"github.com/claude-hub/claude-hub/runner/build"
	"github.com/claude-hub/claude-hub/runner/sandbox"
	"github.com/claude-hub/claude-hub/runner/secret"
	"github.com/claude-hub/claude-hub/runner/wire"
)

// Adopt finds the Sandbox that an earlier process left running. false: there is none. Nothing that it prints is read before
// Follow; what git in it asks is answered.
func (m *Machine) Adopt(ctx context.Context) (bool, error) {
	st := m.State()
	if !st.Awake {
		return false, nil
	}
	s, err := m.b.Engine().Open(ctx, m.boxID())
	if errors.Is(err, sandbox.ErrNotFound) || errors.Is(err, sandbox.ErrNotRunning) {
		return false, m.edit(func(st *State) { st.Awake, st.Starting, st.Boot = false, false, "" })
	}
	if err != nil {
		return false, err
	}
	base, found, err := m.b.Named(ctx, st.Base)
	if err != nil {
		return false, err
	}
	_, hello, rerr := build.Ready(ctx, s)
	if !found || rerr != nil || hello.BootID != st.Boot {
		// Not one we know how to speak to: it is booted again.
		return false, m.halt(ctx, 0)
	}
	m.mu.Lock()
	m.box, m.base, m.booted, m.follow, m.withheld = s, base, time.Now(), false, ""
	p := m.payload
	m.mu.Unlock()
	m.act.open()
	m.beside(func() { m.watchDisk(s, p) })
	m.beside(func() { m.watchUnsaved(s) })
	m.beside(func() {
		if m.setUpGit(m.life, s, p) {
			m.serveGit(s, p)
		}
	})
	return true, nil
}

// Followed says whether what the Sandbox prints is read: not yet, after Adopt.
func (m *Machine) Followed() bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.follow
}

// Payload is what the Session was started or woken with last.
func (m *Machine) Payload() wire.Session {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.payload
}

// Follow goes on with an adopted Sandbox: with its start script if it runs, else with the probe after it. The Log's Set knows
// values already, and they cover State.Handed.
func (m *Machine) Follow(values *secret.Values) {
	m.mu.Lock()
	m.values, m.follow, m.withheld = values, true, ""
	p, base, st := m.payload, m.base, m.st
	m.mu.Unlock()
	if st.Starting || st.Probed != st.Boot {
		m.start(p, base)
	}
}

// Withhold says of an adopted Sandbox that its values are nowhere to be had: why, in a sentence that says what to do. From now on
// that is what Channels answers, until Follow or Wake.
func (m *Machine) Withhold(why string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if !m.follow {
		m.withheld = why
	}
}
