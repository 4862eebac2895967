package session

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/claude-hub/claude-hub/app/access"
	"github.com/claude-hub/claude-hub/app/audit"
	"github.com/claude-hub/claude-hub/app/fault"
	"github.com/claude-hub/claude-hub/app/fleet"
	"github.com/claude-hub/claude-hub/runner/wire"
	"github.com/claude-hub/claude-hub/store"
)

var (
	_ fleet.Owner  = (*Service)(nil)
	_ fleet.Finder = (*Service)(nil)
	_ fleet.Idler  = (*Service)(nil)
	_ fleet.Cloner = (*Service)(nil)
	_ fleet.Lender = (*Service)(nil)
)

// Payload is the Session as its Runner needs it: the version it should stand on and where its Workspace comes from.
func (s *Service) Payload(_ context.Context, tx *store.Tx, a fleet.Assignment) ([]byte, error) {
	sn, err := scanSession(tx.Row(byIDSQL, a.Subject).Scan)
	if err != nil {
		return nil, fmt.Errorf("read Session %s: %w", a.Subject, err)
	}
	version, environmentID, err := s.env.ByID(tx, sn.versionID)
	if err != nil {
		return nil, fmt.Errorf("read version of Session %s: %w", a.Subject, err)
	}
	repo, err := access.ReadRepo(tx, sn.repo)
	if err != nil {
		return nil, err
	}
	spec, err := json.Marshal(version.Spec)
	if err != nil {
		return nil, fmt.Errorf("encode Spec: %w", err)
	}
	return json.Marshal(wire.Session{
		ID:         sn.ID,
		Recipe:     wire.Recipe{Environment: environmentID, Spec: spec, ImageDigest: version.ImageDigest},
		Version:    version.Number,
		BuildKey:   string(version.BuildKey),
		Repo:       s.env.WireRepo(repo),
		Branch:     sn.Branch,
		WorkBranch: sn.WorkBranch,
		DiskSize:   sn.DiskSize,
		IdleMS:     sn.idle.Milliseconds(),
		Archive:    sn.archive,
		Person:     s.person(sn),
	})
}

// Values are those of the Variables of the version that the Session stands on, as they are now.
func (s *Service) Values(_ context.Context, tx *store.Tx, a fleet.Assignment) ([]*wire.Value, string, error) {
	sn, err := scanSession(tx.Row(byIDSQL, a.Subject).Scan)
	if err != nil {
		return nil, "", fmt.Errorf("read Session %s: %w", a.Subject, err)
	}
	version, environmentID, err := s.env.ByID(tx, sn.versionID)
	if err != nil {
		return nil, "", fmt.Errorf("read version of Session %s: %w", a.Subject, err)
	}
	return s.env.Resolve(tx, environmentID, version.Spec, cantStart)
}

// CloneRepo is the Repo that the Session's Workspace is cloned from.
func (s *Service) CloneRepo(_ context.Context, tx *store.Tx, a fleet.Assignment) (int64, string, error) {
	sn, err := scanSession(tx.Row(byIDSQL, a.Subject).Scan)
	if err != nil {
		return 0, "", fmt.Errorf("read Session %s: %w", a.Subject, err)
	}
	repo, err := access.ReadRepo(tx, sn.repo)
	if err != nil {
		return 0, "", err
	}
	return s.env.TokenRepo(repo)
}

// Observe takes a report of a Session's Runner.
func (s *Service) Observe(_ context.Context, tx *store.Tx, a fleet.Assignment, r fleet.Report) error {
	sn, err := scanSession(tx.Row(byIDSQL, a.Subject).Scan)
	if err != nil {
		return fmt.Errorf("read Session %s: %w", a.Subject, err)
	}
	if sn.State == Deleted {
		return nil
	}
	if r.State == wire.StateRemoved {
		return s.removed(tx, sn, a)
	}
	var detail wire.SessionDetail
	if err := json.Unmarshal(r.Detail, &detail); err != nil {
		return fleet.Permanent(fmt.Errorf("decode report of Session %s: %w", sn.ID, err))
	}
	if detail.Unsaved == nil {
		detail.Unsaved = sn.Detail.Unsaved // what was counted last stays known, with its time
	}
	older := r.Generation < a.Generation
	if sn.State == Failed && detail.Failure == nil && (older || r.State == wire.StateStopping || r.State == wire.StateAsleep) {
		detail.Failure = sn.Detail.Failure // being stopped after a start that ran out of time: its reason stays
	}
	sn.Detail = detail
	defer s.wake(tx, sn)
	if older { // the Hub wants something newer: only what is told matters, not the state
		return s.save(tx, sn, sn.State)
	}
	switch r.State {
	case wire.StateStarting, wire.StateStopping:
		return s.save(tx, sn, sn.State)
	case wire.StateArchived:
		return s.archived(tx, &sn, a)
	case wire.StateRunning, wire.StateAsleep, wire.StateFailed:
		if err := s.fleet.Deadline(tx, a.ID, time.Time{}); err != nil {
			return err
		}
		if sn.State == Deleting {
			return s.save(tx, sn, Deleting)
		}
		if sn.State == Failed && r.State == wire.StateAsleep {
			return s.save(tx, sn, Failed)
		}
		if err := s.unarchive(tx, &sn); err != nil {
			return err
		}
		if err := s.save(tx, sn, r.State); err != nil {
			return err
		}
		if sn.Restarting {
			if r.State == wire.StateAsleep && a.Want == fleet.Stop {
				return s.restarted(tx, &sn)
			}
			if err := s.end(tx, &sn); err != nil {
				return err
			}
		}
		if r.State != wire.StateRunning || a.Want != fleet.Run {
			return nil
		}
		moved, err := s.runs(tx, &sn, detail.Version)
		if err != nil || !moved {
			return err
		}
		return s.stay(tx, &sn)
	case wire.StateBusy: // somebody came back between the Hub's request and the Runner's look
		if a.Want != fleet.Stop {
			return s.save(tx, sn, sn.State)
		}
		if err := s.save(tx, sn, Running); err != nil {
			return err
		}
		sn.Restarting = false
		if _, err := s.runs(tx, &sn, detail.Version); err != nil {
			return err
		}
		return s.stay(tx, &sn)
	}
	return fleet.Permanent(fmt.Errorf("session %s reports an unknown state %q", sn.ID, r.State))
}

// runs has sn stand on the version, by its number, that its Runner says it runs: one that was asked to wake before it slept goes
// on on the version it had. Only a version that it was given before is believed, so that no Runner gets values by naming one.
func (s *Service) runs(tx *store.Tx, sn *Session, number int) (moved bool, err error) {
	if number == 0 || number == sn.Version {
		return false, nil
	}
	var id string
	err = tx.Row(ranSQL, sn.ID, number).Scan(&id)
	if errors.Is(err, store.ErrNotFound) {
		return false, nil
	}
	if err != nil {
		return false, fmt.Errorf("read what Session %s ran: %w", sn.ID, err)
	}
	sn.versionID, sn.Version = id, number
	return true, nil
}

// stay wants sn awake as it is. That is a new wish, since the payload of one never changes.
func (s *Service) stay(tx *store.Tx, sn *Session) error {
	if err := s.want(tx, sn, fleet.Run, Running); err != nil {
		return err
	}
	return s.fleet.Deadline(tx, sn.assignment, time.Time{})
}

func (s *Service) save(tx *store.Tx, sn Session, state string) error {
	encoded, err := json.Marshal(sn.Detail)
	if err != nil {
		return fmt.Errorf("encode detail: %w", err)
	}
	if state == sn.State {
		_, err = tx.Exec(detailSQL, sn.ID, string(encoded))
	} else {
		_, err = tx.Exec(observeSQL, sn.ID, stored(state), string(encoded), tx.Now().UnixMilli())
	}
	if err != nil {
		return fmt.Errorf("save Session %s: %w", sn.ID, err)
	}
	return nil
}

func (s *Service) removed(tx *store.Tx, sn Session, a fleet.Assignment) error {
	if a.Want != fleet.Remove {
		return fleet.Permanent(fmt.Errorf("session %s was removed by its Runner without being asked to", sn.ID))
	}
	if _, err := tx.Exec(deletedSQL, sn.ID, tx.Now().UnixMilli()); err != nil {
		return fmt.Errorf("end Session %s: %w", sn.ID, err)
	}
	if err := s.forgetRuns(tx, sn.ID, runsSQL, 0); err != nil {
		return err
	}
	s.wake(tx, sn)
	return audit.Record(tx, audit.Entry{Who: "system: Runner's report", Repo: int64(sn.repo), Action: "session.deleted", Subject: sn.ID})
}

// endRevoked ends a Session that is being deleted on a Runner that was revoked: no report will say that it is.
func (s *Service) endRevoked(tx *store.Tx, sn Session) (ended bool, err error) {
	revoked, err := s.fleet.Revoked(tx, sn.Runner)
	if err != nil || !revoked {
		return false, err
	}
	if _, err := tx.Exec(deletedSQL, sn.ID, tx.Now().UnixMilli()); err != nil {
		return false, fmt.Errorf("end Session %s: %w", sn.ID, err)
	}
	if err := s.forgetRuns(tx, sn.ID, runsSQL, 0); err != nil {
		return false, err
	}
	s.wake(tx, sn)
	return true, audit.Record(tx, audit.Entry{Who: "system: its Runner was revoked", Repo: int64(sn.repo), Action: "session.deleted", Subject: sn.ID})
}

func (s *Service) wake(tx *store.Tx, sn Session) { tx.Wake(fmt.Sprintf("sessions:%d", sn.repo)) }

// Lost: a deadline passed, and what was asked for did not happen; or the Runner is silent, which only marks the
// Session unreachable: its data is never destroyed for want of a lease.
func (s *Service) Lost(_ context.Context, tx *store.Tx, a fleet.Assignment) error {
	sn, err := scanSession(tx.Row(byIDSQL, a.Subject).Scan)
	if err != nil {
		return fmt.Errorf("read Session %s: %w", a.Subject, err)
	}
	defer s.wake(tx, sn)
	if a.Loss == fleet.RunnerSilent && sn.State == Deleting {
		if ended, err := s.endRevoked(tx, sn); ended || err != nil {
			return err
		}
	}
	if a.Loss == fleet.RunnerSilent {
		_, err := tx.Exec(reachSQL, sn.ID, 1)
		return err
	}
	if err := s.fleet.Deadline(tx, a.ID, time.Time{}); err != nil {
		return err
	}
	if sn.State == Deleting || sn.State == Deleted || sn.State == Archiving { // stays wanted; the Runner does it whenever it comes back
		return nil
	}
	sn.Detail.Progress = nil
	sn.Detail.Failure = &wire.Failure{Code: "timeout", Phase: lastPhase(sn.Detail),
		Message: fmt.Sprintf("The Session was %s, and did not get further in time. Its Workspace is kept. Try again.", sn.State)}
	if _, err := s.fleet.Change(tx, a.ID, fleet.Stop, time.Time{}); err != nil {
		return err
	}
	if err := s.end(tx, &sn); err != nil {
		return err
	}
	return s.save(tx, sn, Failed)
}

func lastPhase(d wire.SessionDetail) string {
	if len(d.Phases) == 0 {
		return wire.PhaseBoot
	}
	return d.Phases[len(d.Phases)-1].Name
}

// Found: the Runner of an unreachable Session answers again.
func (s *Service) Found(_ context.Context, tx *store.Tx, a fleet.Assignment) error {
	sn, err := scanSession(tx.Row(byIDSQL, a.Subject).Scan)
	if err != nil {
		return fmt.Errorf("read Session %s: %w", a.Subject, err)
	}
	s.wake(tx, sn)
	_, err = tx.Exec(reachSQL, sn.ID, 0)
	return err
}

// IdleAfter is for how long a Session must be idle before Idle is called.
func (s *Service) IdleAfter(fleet.Assignment) time.Duration { return s.o.IdleAfter }

// Idle asks a Session to sleep that had no activity for IdleAfter (ADR 0006). The Runner looks once more under its
// lock before it stops anything.
func (s *Service) Idle(_ context.Context, tx *store.Tx, a fleet.Assignment, _ time.Duration) error {
	sn, err := scanSession(tx.Row(byIDSQL, a.Subject).Scan)
	if err != nil {
		return fmt.Errorf("read Session %s: %w", a.Subject, err)
	}
	if sn.State != Running || a.Want != fleet.Run {
		return nil
	}
	sn.idle = s.o.IdleAfter
	if err := s.want(tx, &sn, fleet.Stop, Stopping); err != nil {
		return err
	}
	s.wake(tx, sn)
	return audit.Record(tx, audit.Entry{Who: "system: idle", Repo: int64(sn.repo), Action: "session.sleep", Subject: sn.ID})
}

// SleepAll asks every Session of a Runner that is awake to sleep and remembers that it was, so that ResumeAll wakes
// it: how dev stops. It returns how many were asked.
func (s *Service) SleepAll(ctx context.Context, runner string) (n int, err error) {
	err = s.db.Write(ctx, func(tx *store.Tx) error {
		awake, err := list(tx, awakeSQL, runner)
		if err != nil {
			return err
		}
		n = len(awake)
		for i := range awake {
			awake[i].resume, awake[i].Restarting, awake[i].idle = true, false, 0
			if err := s.want(tx, &awake[i], fleet.Stop, Stopping); err != nil {
				return err
			}
			s.wake(tx, awake[i])
		}
		return nil
	})
	return n, err
}

// Awake counts the Sessions of a Runner that are not asleep yet.
func (s *Service) Awake(ctx context.Context, runner string) (n int, err error) {
	err = s.db.Read(ctx, func(tx *store.Tx) error {
		return tx.Row(`SELECT COUNT(*) FROM sessions WHERE runner_id = $1 AND unreachable = 0 AND state IN ('starting', 'running', 'waking', 'stopping')`, runner).Scan(&n)
	})
	return n, err
}

// ResumeAll wakes what SleepAll had put to sleep, on the version it had. One that lacks a Variable's value stays asleep, and
// is tried again by the next call.
func (s *Service) ResumeAll(ctx context.Context, runner string) (n int, err error) {
	err = s.db.Write(ctx, func(tx *store.Tx) error {
		sleeping, err := list(tx, resumeSQL, runner)
		if err != nil {
			return err
		}
		n = 0
		for i := range sleeping {
			version, environmentID, err := s.env.ByID(tx, sleeping[i].versionID)
			if err != nil {
				return fmt.Errorf("read version of Session %s: %w", sleeping[i].ID, err)
			}
			switch err := s.bootable(tx, runner, environmentID, version, cantWake); {
			case fault.Is(err, fault.Refused):
				continue
			case err != nil:
				return err
			}
			n++
			sleeping[i].resume = false
			if err := s.want(tx, &sleeping[i], fleet.Run, Waking); err != nil {
				return err
			}
			s.wake(tx, sleeping[i])
		}
		return nil
	})
	return n, err
}
