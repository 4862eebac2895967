package session

import (
	"context"
	"errors"

	"github.com/claude-hub/claude-hub/runner/build"
	"github.com/claude-hub/claude-hub/runner/sandbox"
	"github.com/claude-hub/claude-hub/runner/wire"
)

// ensure is the build to boot from: the one the root filesystem stands on if it is of the wanted key. lost names one that can't be booted from.
func (m *Machine) ensure(ctx context.Context, p wire.Session, lost string) (build.Base, error) {
	spec, err := build.Spec(p.Recipe)
	if err != nil {
		return build.Base{}, err
	}
	m.mu.Lock()
	values := m.values
	m.mu.Unlock()
	if name := m.State().Base; name != "" && name != lost {
		base, found, err := m.b.Named(ctx, name)
		if err != nil {
			return base, err
		}
		if found && base.Meta.Key == m.b.Key(spec, p.Recipe.ImageDigest, values) {
			m.b.Use(name, p.Recipe.Environment)
			return base, nil
		}
	}
	marks := m.State().Build
	job := &build.Job{ID: m.id, Recipe: p.Recipe, Values: values, Lost: lost, Log: m.log(), Track: m.track, Marks: &marks}
	job.Save = func() error { return m.edit(func(st *State) { st.Build = marks }) }
	return m.b.Ensure(ctx, job)
}

// boot starts the Sandbox on the root filesystem it had, or on a fresh one if it stands on another build. The one it had stays aside until
// Settle.
func (m *Machine) boot(ctx context.Context, spec sandbox.Spec) (sandbox.Sandbox, error) {
	engine, id := m.b.Engine(), m.boxID()
	if err := m.b.Room(ctx, id, spec.Limits); err != nil {
		return nil, err
	}
	s, err := engine.Start(ctx, id, spec)
	if errors.Is(err, sandbox.ErrRunning) {
		// Up with another Spec, such as other limits: this is a boot like any other.
		m.dockerDown(ctx)
		if err = engine.Stop(ctx, id, 0); err == nil {
			s, err = engine.Start(ctx, id, spec)
		}
	}
	if errors.Is(err, sandbox.ErrOtherBase) {
		if err = engine.Renew(ctx, id, spec.Disk); err == nil {
			s, err = engine.Start(ctx, id, spec)
		}
	}
	return s, err
}

// sayFresh says why a Session that was booted before has a fresh root filesystem, if it has.
func (m *Machine) sayFresh(s sandbox.Sandbox, base build.Base) {
	st := m.State()
	switch {
	case !s.Fresh() || st.Boots == 0:
	case st.Base == base.Name:
		m.log().Mark("boot: the root filesystem was gone from the Session's disk, and is made anew; programs installed outside the Workspace and the disks are gone")
		m.track.Note("the root filesystem was lost: programs installed outside the Workspace and the disks are gone")
	default:
		m.log().Mark("boot: a fresh Sandbox on the Session's disk; programs installed outside the Workspace are gone")
		m.track.Note("a fresh Sandbox: programs installed outside the Workspace are gone")
	}
}

// hostname is the Repo's name as far as a host can be called that, and the end of the Session's id.
func hostname(p wire.Session) string {
	name := p.Repo.Name[lastSlash(p.Repo.Name)+1:]
	var b []byte
	for i := 0; i < len(name) && len(b) < 40; i++ {
		c := name[i]
		switch {
		case c >= 'A' && c <= 'Z':
			c += 'a' - 'A'
		case c >= 'a' && c <= 'z', c >= '0' && c <= '9':
		default:
			c = '-'
		}
		if c == '-' && (len(b) == 0 || b[len(b)-1] == '-') {
			continue
		}
		b = append(b, c)
	}
	for len(b) > 0 && b[len(b)-1] == '-' {
		b = b[:len(b)-1]
	}
	if len(b) == 0 {
		return "session"
	}
	return string(b)
}

func lastSlash(s string) int {
	for i := len(s) - 1; i >= 0; i-- {
		if s[i] == '/' {
			return i
		}
	}
	return -1
}
