package fleet

import (
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/claude-hub/claude-hub/app/fault"
	"github.com/claude-hub/claude-hub/store"
)

const assignedAlready = "This is on a Runner already. Remove it there first."

// Assign makes a with a new ID (unless it has one), fence 1 and generation 1, and wakes its Runner. Runner, Kind and
// Subject must be set; Want is Run unless set. A second assignment of the same Kind and Subject that is not removed is a
// fault of code conflict; an unknown or revoked Runner is not-found.
func (f *Fleet) Assign(tx *store.Tx, a Assignment) (Assignment, error) {
	if _, err := f.owner(a.Kind); err != nil {
		return Assignment{}, err
	}
	if a.Runner == "" || a.Subject == "" {
		return Assignment{}, errors.New("an assignment needs a Runner and a Subject")
	}
	r, err := scanRunner(tx.Row(runnerByID, a.Runner).Scan)
	if errors.Is(err, store.ErrNotFound) || err == nil && r.revoked {
		return Assignment{}, fault.New(fault.NotFound, "There is no such Runner. Choose another one.")
	}
	if err != nil {
		return Assignment{}, fmt.Errorf("read Runner %s: %w", a.Runner, err)
	}
	if a.ID == "" {
		a.ID = store.NewID()
	}
	if a.Want == "" {
		a.Want = Run
	}
	existing, err := f.Of(tx, a.Kind, a.Subject)
	if err == nil && existing.Removed.IsZero() {
		return Assignment{}, fault.New(fault.Conflict, assignedAlready)
	}
	if err != nil && !errors.Is(err, ErrUnknown) {
		return Assignment{}, err
	}
	_, err = tx.Exec(insertAssignmentSQL, a.ID, a.Runner, a.Kind, a.Subject, a.Want, millis(a.Deadline), tx.Now().UnixMilli())
	if store.IsUnique(err) { // another Hub, at the same time
		return Assignment{}, fault.New(fault.Conflict, assignedAlready)
	}
	if err != nil {
		return Assignment{}, fmt.Errorf("assign %s to Runner %s: %w", a.Kind, a.Runner, err)
	}
	tx.Wake(runnerTopic(a.Runner))
	return f.Get(tx, a.ID)
}

// Change says what the Hub wants of an assignment from now on, and until when (zero: no deadline). The generation rises
// by one, so that its Runner fetches the payload again, also when want is what it was. Remove is final: any other want
// after it, or any change of what the Runner has removed, is a fault of code refused. An id that does not exist is ErrUnknown.
func (f *Fleet) Change(tx *store.Tx, id string, want Want, deadline time.Time) (Assignment, error) {
	a, err := f.Get(tx, id)
	if err != nil {
		return Assignment{}, err
	}
	switch {
	case want != Run && want != Stop && want != Remove:
		return Assignment{}, fmt.Errorf("%q is nothing the Hub can want of an assignment", want)
	case !a.Removed.IsZero(), a.Want == Remove && want != Remove:
		return Assignment{}, fault.New(fault.Refused, "This was removed from its Runner, or is about to be. It can't be started again.")
	}
	if _, err := tx.Exec(changeSQL, id, want, millis(deadline)); err != nil {
		return Assignment{}, fmt.Errorf("change assignment %s to %s: %w", id, want, err)
	}
	if want == Remove {
		// Of a Stop the Runner ends them itself, if it does stop: it may find the Session busy, by one of these channels.
		tx.After(func() { f.channels.closeOf(id, 0) })
		if err := endTerminals(tx, id, a.Fence+1); err != nil {
			return Assignment{}, err
		}
	}
	tx.Wake(runnerTopic(a.Runner))
	return f.Get(tx, id)
}

// Deadline moves the deadline of an assignment without a new generation; the zero time takes it away.
func (f *Fleet) Deadline(tx *store.Tx, id string, t time.Time) error {
	a, err := f.Get(tx, id)
	if err != nil {
		return err
	}
	if _, err := tx.Exec(deadlineSQL, id, millis(t)); err != nil {
		return fmt.Errorf("move the deadline of assignment %s: %w", id, err)
	}
	tx.Wake(runnerTopic(a.Runner))
	return nil
}

// Refence raises the fence of an assignment: whatever its Runner still sends under the older one is refused. The log
// so far ends there, and open channels are closed.
func (f *Fleet) Refence(tx *store.Tx, id string) error {
	a, err := f.Get(tx, id)
	if err != nil {
		return err
	}
	if _, err := tx.Exec(refenceSQL, id); err != nil {
		return fmt.Errorf("raise the fence of assignment %s: %w", id, err)
	}
	if _, err := tx.Exec(endLogSQL, id); err != nil {
		return fmt.Errorf("end the log of assignment %s: %w", id, err)
	}
	tx.After(func() { f.channels.closeOf(id, a.Fence+1) })
	if err := endTerminals(tx, id, a.Fence+1); err != nil {
		return err
	}
	tx.Wake(runnerTopic(a.Runner))
	tx.Wake(LogTopic(id))
	return nil
}

// Forget deletes an assignment with its log. Only what is removed, or was never going to be looked at again, should be
// forgotten: its Runner drops an assignment it can't find, but keeps a Session's data.
func (f *Fleet) Forget(tx *store.Tx, id string) error {
	a, err := f.Get(tx, id)
	if errors.Is(err, ErrUnknown) {
		return nil
	}
	if err != nil {
		return err
	}
	if _, err := tx.Exec(forgetSQL, id); err != nil {
		return fmt.Errorf("forget assignment %s: %w", id, err)
	}
	tx.After(func() { f.guard.drop(a.Runner, id) })
	tx.Wake(runnerTopic(a.Runner))
	tx.Wake(LogTopic(id))
	return nil
}

// Get reads one assignment, or answers ErrUnknown.
func (f *Fleet) Get(tx *store.Tx, id string) (Assignment, error) {
	r, err := scanAssignment(tx.Row(assignmentByID, id).Scan)
	if err != nil {
		return Assignment{}, rowError(id, err)
	}
	return r.Assignment, nil
}

// Of reads the newest assignment of a Kind and Subject, removed or not, or answers ErrUnknown.
func (f *Fleet) Of(tx *store.Tx, k Kind, subject string) (Assignment, error) {
	r, err := scanAssignment(tx.Row(assignmentOf, k, subject).Scan)
	if err != nil {
		return Assignment{}, rowError(string(k)+" "+subject, err)
	}
	return r.Assignment, nil
}

func rowError(what string, err error) error {
	if errors.Is(err, store.ErrNotFound) {
		return ErrUnknown
	}
	return fmt.Errorf("read assignment %s: %w", what, err)
}

// row is an Assignment with what only the fleet looks at.
type row struct {
	Assignment
	reportFence, reportSeq int64
}

func scanAssignment(scan func(...any) error) (row, error) {
	var r row
	var deadline, reported, idle, lost, removed, created int64
	var detail string
	err := scan(&r.ID, &r.Runner, &r.Kind, &r.Subject, &r.Want, &r.Generation, &r.Fence, &deadline,
		&r.State, &detail, &reported, &r.ReportedOf, &r.reportFence, &r.reportSeq,
		&idle, &lost, &removed, &created)
	if err != nil {
		return row{}, err
	}
	if detail != "" {
		r.Detail = json.RawMessage(detail)
	}
	r.Deadline, r.Reported, r.IdleSince = at(deadline), at(reported), at(idle)
	r.LostSince, r.Removed, r.Created = at(lost), at(removed), at(created)
	return r, nil
}
