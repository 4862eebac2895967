package session

import (
	"context"
	"time"

	"github.com/claude-hub/claude-hub/runner/build"
	"github.com/claude-hub/claude-hub/runner/sandbox"
	"github.com/claude-hub/claude-hub/runner/wire"
)

// A disk counts as full below fullBelow, and as one that can fill up again once it has emptied to roomAbove.
const (
	fullBelow = 1 << 20
	roomAbove = 16 << 20
	fullEvery = time.Second
)

// watchDisk says in the log when the Session's disk is full, which is a limit that people set, and no fault: what is written then
// fails in the Sandbox, and hardly any program says why. It returns when the Sandbox has ended or the Runner stops.
func (m *Machine) watchDisk(s sandbox.Sandbox, p wire.Session) {
	ctx, cancel := context.WithCancel(m.life)
	defer cancel()
	tick := time.NewTicker(fullEvery)
	defer tick.Stop()
	said := false
	for {
		select {
		case <-s.Done():
			return
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		u, err := s.Usage(ctx)
		switch {
		case err != nil: // it is ending
		case !said && (u.DiskFree < fullBelow || u.DiskFiles == 0):
			said = true
			what := "space"
			if u.DiskFiles == 0 {
				what = "room for files"
			}
			size := build.Bytes(m.disk().Size)
			m.log().Mark("the Session's disk has no %s left: it has its limit of %s, and writes fail with ENOSPC (No space left on device). Delete files, "+
				"or put the Session to sleep and give it a larger disk: claude-hub session grow %s --disk SIZE", what, size, p.ID)
			m.track.Note("its disk of " + size + " was full, and writes failed: delete files, or put it to sleep and give it a larger disk")
		case said && u.DiskFree > roomAbove && u.DiskFiles > 0:
			said = false
		}
	}
}
