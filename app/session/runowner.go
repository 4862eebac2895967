package session

import (
	"context"
	"encoding/json"
	"fmt"
	"time"

	"github.com/claude-hub/claude-hub/app/audit"
	"github.com/claude-hub/claude-hub/app/fleet"
	"github.com/claude-hub/claude-hub/runner/wire"
	"github.com/claude-hub/claude-hub/store"
)

// runs is the Service as the Owner of headless runs.
type runs struct{ *Service }

var _ fleet.Owner = runs{}

// of is the run of an assignment, and its Session.
func (o runs) of(tx *store.Tx, a fleet.Assignment) (Run, Session, error) {
	r, err := scanRun(tx.Row(runByIDSQL, a.Subject).Scan)
	if err != nil {
		return r, Session{}, fmt.Errorf("read run %s: %w", a.Subject, err)
	}
	sn, err := scanSession(tx.Row(byIDSQL, r.session).Scan)
	if err != nil {
		return r, sn, fmt.Errorf("read Session %s: %w", r.session, err)
	}
	return r, sn, nil
}

// Payload is the run as its Runner needs it.
func (o runs) Payload(_ context.Context, tx *store.Tx, a fleet.Assignment) ([]byte, error) {
	r, _, err := o.of(tx, a)
	return []byte(r.spec), err
}

// Values are the Session's: what the run prints may hold any of them.
func (o runs) Values(ctx context.Context, tx *store.Tx, a fleet.Assignment) ([]*wire.Value, string, error) {
	r, _, err := o.of(tx, a)
	if err != nil {
		return nil, "", err
	}
	return o.Service.Values(ctx, tx, fleet.Assignment{Subject: r.session})
}

// Observe takes a report of a run's Runner. Its end is reached once; what comes after it changes nothing.
func (o runs) Observe(_ context.Context, tx *store.Tx, a fleet.Assignment, report fleet.Report) error {
	if report.State == wire.StateRemoved {
		return nil
	}
	r, sn, err := o.of(tx, a)
	if err != nil {
		return err
	}
	var detail wire.RunDetail
	if err := json.Unmarshal(report.Detail, &detail); err != nil {
		return fleet.Permanent(fmt.Errorf("decode report of run %s: %w", r.ID, err))
	}
	switch {
	case report.State == wire.StateRunning:
		n, err := tx.Exec(startedRunSQL, r.ID, detail.Started)
		if err != nil {
			return fmt.Errorf("save that run %s runs: %w", r.ID, err)
		}
		if n > 0 {
			o.wake(tx, sn)
		}
		return nil
	case report.State == wire.StateEnded && detail.Exit != nil:
		return o.end(tx, r, sn, detail)
	}
	return fleet.Permanent(fmt.Errorf("run %s reports a state %q without what belongs to it", r.ID, report.State))
}

func (o runs) end(tx *store.Tx, r Run, sn Session, detail wire.RunDetail) error {
	how, err := json.Marshal(detail.Exit)
	if err != nil {
		return fmt.Errorf("encode how run %s ended: %w", r.ID, err)
	}
	n, err := tx.Exec(endRunSQL, r.ID, detail.Started, tx.Now().UnixMilli(), string(how))
	if err != nil {
		return fmt.Errorf("end run %s: %w", r.ID, err)
	}
	if n == 0 {
		return nil
	}
	if _, err := o.fleet.Change(tx, r.assignment, fleet.Remove, time.Time{}); err != nil {
		return err
	}
	o.wake(tx, sn)
	tx.Wake(fleet.LogTopic(r.assignment))
	return audit.Record(tx, audit.Entry{Who: "system: Runner's report", Repo: int64(sn.repo), Action: "session.run.ended", Subject: sn.ID,
		Detail: map[string]any{"run": r.ID, "code": detail.Exit.Code}})
}

// Lost does nothing: a run has no deadline at the Hub, and of a silent Runner the Session says so. What the Runner's host still runs
// counts when it is back.
func (o runs) Lost(context.Context, *store.Tx, fleet.Assignment) error { return nil }
