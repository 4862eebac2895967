package session

import (
	"context"
	"os"

	"github.com/claude-hub/claude-hub/runner/build"
	"github.com/claude-hub/claude-hub/runner/wire"
)

// Archive gives up the Sandbox of a Session that sleeps, and as p.Archive says all of its disk but the Workspace. The next Wake boots a
// fresh Sandbox on what is kept. A Workspace that is gone is a build.Failed.
func (m *Machine) Archive(ctx context.Context, p wire.Session) error {
	m.mu.Lock()
	m.payload, m.values = p, nil
	m.mu.Unlock()
	disk, engine := m.disk(), m.b.Engine()
	if _, err := os.Stat(disk.Path); err != nil {
		return m.lost()
	}
	if err := engine.Remove(ctx, m.boxID()); err != nil {
		return err
	}
	frees := p.Archive == wire.ArchiveDisks
	// Before it is given up, so that the next boot doesn't take it for lost.
	err := m.edit(func(st *State) {
		st.Base, st.Version, st.Build, st.Login = "", 0, build.Marks{}, nil
		st.Folders, st.Docker = st.Folders && !frees, st.Docker && !frees
	})
	if err != nil || !frees {
		return err
	}
	return engine.Clear(ctx, disk, build.KeptWhenArchived()...)
}
