package session

import (
	"context"
	"time"

	"github.com/claude-hub/claude-hub/app/access"
	"github.com/claude-hub/claude-hub/app/audit"
	"github.com/claude-hub/claude-hub/app/fault"
	"github.com/claude-hub/claude-hub/app/fleet"
	"github.com/claude-hub/claude-hub/runner/wire"
	"github.com/claude-hub/claude-hub/store"
)

const cantRestart = "This Session can't restart"

// Restart moves a Session to the newest applied version at once (ADR 0009): its Sandbox sleeps, in order, and boots again. The
// Workspace and the disks stay; on another version the root filesystem is a fresh one, so that what was installed outside
// of them is gone. What would keep it from waking is refused before anything is stopped.
func (s *Service) Restart(ctx context.Context, g access.Grant, id string) error {
	return s.change(ctx, g, id, "session.restart", func(tx *store.Tx, sn *Session) (bool, error) {
		switch sn.State {
		case Running:
			if err := s.ready(tx, g, sn.Runner); err != nil {
				return false, err
			}
			sn.Restarting = true
			return true, s.want(tx, sn, fleet.Stop, Stopping)
		case Asleep:
			return true, s.boot(tx, g, sn, Waking)
		case Stopping:
			if sn.Restarting {
				return false, nil
			}
			if err := s.ready(tx, g, sn.Runner); err != nil {
				return false, err
			}
			sn.Restarting, sn.idle = true, 0 // it may have been about to sleep for idleness, which activity would end
			return true, s.want(tx, sn, fleet.Stop, Stopping)
		case Failed:
			return false, fault.New(fault.Refused, "This Session is failed: try it again instead, which also takes the newest version.")
		}
		return false, fault.New(fault.Refused, "This Session is %s and can't be restarted.", sn.State)
	})
}

// ready refuses a restart whose second half would be refused.
func (s *Service) ready(tx *store.Tx, g access.Grant, runner string) error {
	version, environmentID, err := s.env.Current(tx, g)
	if err != nil {
		return err
	}
	return s.takes(tx, g, runner, environmentID, version, cantRestart)
}

// restarted wakes a Session that is asleep on its way through a restart. What has come to refuse that meanwhile leaves it
// Failed, with the reason: somebody waits for it.
func (s *Service) restarted(tx *store.Tx, sn *Session) error {
	repo, err := access.ReadRepo(tx, sn.repo)
	if err != nil {
		return err
	}
	g := access.System(repo, "restart")
	err = s.boot(tx, g, sn, Waking)
	if fault.Is(err, fault.Refused) {
		sn.Detail.Failure = &wire.Failure{Code: "refused", Phase: wire.PhaseBoot, Message: fault.Of(err).Message}
		if err := s.fleet.Deadline(tx, sn.assignment, time.Time{}); err != nil {
			return err
		}
		if err := s.end(tx, sn); err != nil {
			return err
		}
		return s.save(tx, *sn, Failed)
	}
	if err != nil {
		return err
	}
	return audit.Record(tx, audit.Entry{Who: g.Actor(), Repo: int64(sn.repo), Action: "session.wake", Subject: sn.ID})
}

// end ends a restart, whatever became of it.
func (s *Service) end(tx *store.Tx, sn *Session) error {
	sn.Restarting = false
	_, err := tx.Exec(restartSQL, sn.ID, 0)
	return err
}
