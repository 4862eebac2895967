package fleet

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"

	"github.com/claude-hub/claude-hub/runner/wire"
	"github.com/claude-hub/claude-hub/store"
)

// maxDetail bounds a report's detail, in bytes: with the rest of the request less than nginx forwards by default.
const maxDetail = 768 << 10

// Report stores a state change and hands it to its Owner in the same transaction. The same report again, or an older
// one of its fence, changes nothing and is no error. ErrFenced: the fence is not the newest. ErrUnknown: this Runner has
// no such assignment. ErrInvalid: it can't be stored, now or later. Any other error: nothing is stored, send it again.
// StateRemoved of what should be removed ends the assignment; its log stays. Sensitive values of the assignment that stand in the
// detail are masked first.
func (f *Fleet) Report(ctx context.Context, runner string, q *wire.ReportRequest) error {
	f.contacts.touch(runner, f.now())
	detail := q.GetDetail()
	if len(detail) == 0 {
		detail = []byte("{}")
	}
	switch {
	case q.GetState() == "" || len(q.GetState()) > 64 || store.Text(q.GetState()) != q.GetState():
		return fmt.Errorf("%w: a report has a state of at most 64 bytes", ErrInvalid)
	case q.GetSeq() < 1:
		return fmt.Errorf("%w: a report's seq begins at 1", ErrInvalid)
	case len(detail) > maxDetail || !json.Valid(detail):
		return fmt.Errorf("%w: a report's detail is JSON of at most %d bytes", ErrInvalid, maxDetail)
	}
	if !storable(q.GetId()) {
		return ErrUnknown
	}
	set, err := f.guard.setOf(ctx, runner, q.GetId())
	if err != nil {
		return err
	}
	detail, hits, names := hideJSON(set, []byte(store.Text(string(detail))))
	r := Report{
		ID: q.GetId(), Fence: q.GetFence(), Seq: q.GetSeq(), Generation: q.GetGeneration(),
		State: set.Text(q.GetState()).String(), Detail: json.RawMessage(detail),
	}
	err = f.report(ctx, runner, r, nil)
	var never permanentError
	if errors.As(err, &never) {
		f.log.Error().Err(never.error).Str("assignment", r.ID).Str("state", r.State).Msg("a report was stored without its Owner, who will never take it")
		err = f.report(ctx, runner, r, never.error)
	}
	if err == nil {
		f.guard.tell(ctx, runner, r.ID, "report", hits, names)
	}
	return err
}

// report stores r, and hands it to its Owner unless the Owner refused it for good.
func (f *Fleet) report(ctx context.Context, runner string, r Report, refused error) error {
	return f.db.Write(ctx, func(tx *store.Tx) error {
		a, err := f.of(tx, runner, r.ID)
		switch {
		case err != nil:
			return err
		case r.Fence != a.Fence:
			return ErrFenced
		case a.reportFence == r.Fence && r.Seq <= a.reportSeq:
			return nil
		}
		why := ""
		if refused != nil {
			why = text(refused.Error())
		}
		if _, err := tx.Exec(reportSQL, r.ID, r.Fence, r.Seq, r.Generation, tx.Now().UnixMilli(), why, r.State, r.Detail); err != nil {
			return fmt.Errorf("store a report of assignment %s: %w", r.ID, err)
		}
		if refused == nil {
			o, err := f.owner(a.Kind)
			if err != nil {
				return err
			}
			if err := guarded(func() error { return o.Observe(tx.Context(), tx, a.Assignment, r) }); err != nil {
				return fmt.Errorf("take the report %q of assignment %s: %w", r.State, r.ID, err)
			}
		}
		if r.State != wire.StateRemoved {
			return nil
		}
		n, err := tx.Exec(removedSQL, r.ID, tx.Now().UnixMilli())
		if err != nil {
			return fmt.Errorf("end assignment %s: %w", r.ID, err)
		}
		if n > 0 {
			tx.After(func() {
				f.channels.closeOf(r.ID, 0)
				f.guard.drop(runner, r.ID)
			})
			tx.Wake(runnerTopic(runner))
		}
		return nil
	})
}
