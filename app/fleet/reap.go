package fleet

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/claude-hub/claude-hub/store"
)

const (
	reapPage   = 1000 // ids read at a time
	reapBatch  = 200  // assignments in one transaction
	maxBackoff = 5 * time.Minute
)

// reaper is what this process knows about losses. up is since when this Hub and its database have been working without
// a break: silence counts from there, so that leases start afresh after an outage (design.md §5).
type reaper struct {
	mu     sync.Mutex
	up     time.Time
	last   time.Time // of the newest complete run
	failed map[string]retry
}

type retry struct {
	at    time.Time
	after time.Duration
}

func (p *reaper) init(now time.Time) { p.up, p.failed = now, map[string]retry{} }

func (p *reaper) restart(now time.Time) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.up, p.last = now, time.Time{}
}

// began notes a run at now and answers since when the Hub is up. A long pause between two runs means that the process
// or its database stood still.
func (p *reaper) began(now time.Time, every time.Duration) time.Time {
	p.mu.Lock()
	defer p.mu.Unlock()
	if !p.last.IsZero() && now.Sub(p.last) > 3*every+5*time.Second {
		p.up = now
	}
	return p.up
}

func (p *reaper) ended(now time.Time, err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.last = now; err != nil {
		p.up = now
	}
}

func (p *reaper) resting(id string, now time.Time) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return now.Before(p.failed[id].at)
}

func (p *reaper) failedOne(id string, now time.Time, first time.Duration) {
	p.mu.Lock()
	defer p.mu.Unlock()
	r := p.failed[id]
	r.after = min(max(2*r.after, first), maxBackoff)
	r.at = now.Add(r.after)
	p.failed[id] = r
}

func (p *reaper) succeeded(ids []string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, id := range ids {
		delete(p.failed, id)
	}
}

func (f *Fleet) reapUntil(ctx context.Context) {
	tick := time.NewTicker(f.o.Flush)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		if err := f.RunOnce(ctx); err != nil && ctx.Err() == nil {
			f.log.Error().Err(err).Msg("deadlines and leases could not be looked at; tried again, leases start afresh")
		}
	}
}

// RunOnce writes contacts, then tells Owners of every deadline that passed, every Runner that fell silent, and what is
// idle. An assignment whose Owner fails is tried again later and holds up no other. The error is the database's.
func (f *Fleet) RunOnce(ctx context.Context) (err error) {
	now := f.now()
	up := f.reaper.began(now, f.o.Flush)
	defer func() { f.reaper.ended(f.now(), err) }()
	f.channels.expire(now)
	if err := f.beat(ctx); err != nil {
		return err
	}
	if err := f.flush(ctx); err != nil {
		return err
	}
	if err := f.guard.rest(ctx, now); err != nil {
		return err
	}
	// What ended in time while no Hub was there to hear it is told soon after one is: a deadline that passed meanwhile is
	// looked at a lease later.
	var heard time.Time
	if now.Sub(up) < f.o.Lease {
		heard = up
	}
	if err := f.reap(ctx, now, deadlines, heard, now); err != nil {
		return err
	}
	// Other Hubs write contacts every o.Flush; nobody is silent for less than that on top of the lease.
	silentSince := now.Add(-f.o.Lease - f.o.Flush)
	if !up.After(silentSince) {
		if err := f.reap(ctx, now, silences, time.Time{}, silentSince); err != nil {
			return err
		}
	}
	return f.tellIdle(ctx, now)
}

// losses is one way to be lost: what finds it, what is still true in the transaction that acts, and what marks it told.
type losses struct {
	due, still, mark string
	loss             Loss
}

var (
	deadlines = losses{deadlineDueSQL, stillDeadline, markDeadlineSQL, DeadlinePassed}
	silences  = losses{silentDueSQL, stillSilent, markSilentSQL, RunnerSilent}
)

// reap tells of what is due before a time; of deadlines, those from a time on.
func (f *Fleet) reap(ctx context.Context, now time.Time, l losses, from, before time.Time) error {
	type due struct {
		deadline int64
		id       string
	}
	after := due{deadline: millis(from)}
	for {
		var page []due
		err := f.db.Read(ctx, func(tx *store.Tx) (err error) {
			page, err = store.All(tx, func(scan func(...any) error) (d due, err error) { return d, scan(&d.deadline, &d.id) },
				l.due, millis(before), after.deadline, after.id, reapPage)
			return err
		})
		if err != nil {
			return fmt.Errorf("look for lost assignments: %w", err)
		}
		var ids []string
		for _, d := range page {
			if !f.reaper.resting(d.id, now) {
				ids = append(ids, d.id)
			}
		}
		for len(ids) > 0 {
			n := min(len(ids), reapBatch)
			if err := f.lose(ctx, ids[:n], l, before); err != nil {
				return err
			}
			ids = ids[n:]
		}
		if len(page) < reapPage {
			return nil
		}
		after = page[len(page)-1]
	}
}

// ownerError is an Owner's, not the database's.
type ownerError struct{ error }

func (e ownerError) Unwrap() error { return e.error }

// lose tells the Owners of ids in one transaction. When one fails, the halves are tried apart, so that only it is left.
func (f *Fleet) lose(ctx context.Context, ids []string, l losses, before time.Time) error {
	err := f.db.Write(ctx, func(tx *store.Tx) error { return f.loseIn(tx, ids, l, before) })
	switch {
	case err == nil:
		f.reaper.succeeded(ids)
		return nil
	case ctx.Err() != nil:
		return err
	case len(ids) > 1:
		if err := f.lose(ctx, ids[:len(ids)/2], l, before); err != nil {
			return err
		}
		return f.lose(ctx, ids[len(ids)/2:], l, before)
	}
	if !errors.As(err, new(ownerError)) {
		return err
	}
	f.reaper.failedOne(ids[0], f.now(), f.o.Flush)
	f.log.Error().Err(err).Str("assignment", ids[0]).Msg("an assignment is lost, but its Owner could not take that; tried again later")
	return nil
}

func (f *Fleet) loseIn(tx *store.Tx, ids []string, l losses, before time.Time) error {
	args := make([]any, 0, len(ids)+1)
	args = append(args, millis(before))
	for _, id := range ids {
		args = append(args, id)
	}
	rows, err := store.All(tx, scanAssignment, `SELECT `+assignmentColumns+` FROM assignments a WHERE 0 = 0`+in("a.id", 2, len(ids))+l.still+` ORDER BY a.id`, args...)
	if err != nil {
		return fmt.Errorf("read lost assignments: %w", err)
	}
	if len(rows) == 0 {
		return nil
	}
	args = args[:1]
	args[0] = tx.Now().UnixMilli()
	for _, r := range rows {
		args = append(args, r.ID)
	}
	if _, err := tx.Exec(l.mark+in("id", 2, len(rows)), args...); err != nil {
		return fmt.Errorf("mark lost assignments: %w", err)
	}
	for _, r := range rows {
		o, err := f.owner(r.Kind)
		if err != nil {
			return ownerError{err}
		}
		r.Loss = l.loss
		if l.loss == RunnerSilent {
			r.LostSince = tx.Now()
		}
		if err := guarded(func() error { return o.Lost(tx.Context(), tx, r.Assignment) }); err != nil {
			return ownerError{err}
		}
	}
	return nil
}

// tellIdle tells Idlers of what is idle for long enough.
func (f *Fleet) tellIdle(ctx context.Context, now time.Time) error {
	var rows []row
	err := f.db.Read(ctx, func(tx *store.Tx) (err error) {
		rows, err = store.All(tx, scanAssignment, idleDueSQL, millis(now))
		return err
	})
	if err != nil {
		return fmt.Errorf("look for idle assignments: %w", err)
	}
	for _, r := range rows {
		o, err := f.owner(r.Kind)
		if err != nil || f.reaper.resting("idle/"+r.ID, now) {
			continue
		}
		idler, ok := o.(Idler)
		if !ok || !f.longIdle(idler, r.Assignment, now) {
			continue
		}
		err = f.db.Write(ctx, func(tx *store.Tx) error {
			a, err := f.Get(tx, r.ID)
			if err != nil {
				return err
			}
			if a.Want != Run || !a.LostSince.IsZero() || !f.longIdle(idler, a, tx.Now()) {
				return nil
			}
			return guarded(func() error { return idler.Idle(tx.Context(), tx, a, tx.Now().Sub(a.IdleSince)) })
		})
		if ctx.Err() != nil {
			return err
		}
		if err != nil {
			f.reaper.failedOne("idle/"+r.ID, now, f.o.Flush)
			f.log.Error().Err(err).Str("assignment", r.ID).Msg("an Owner could not take that an assignment is idle; tried again later")
			continue
		}
		f.reaper.succeeded([]string{"idle/" + r.ID})
	}
	return nil
}

func (f *Fleet) longIdle(o Idler, a Assignment, now time.Time) bool {
	after := o.IdleAfter(a)
	return after > 0 && !a.IdleSince.IsZero() && now.Sub(a.IdleSince) >= after
}
