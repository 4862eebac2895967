package fleet

import (
	"context"
	"crypto/sha256"
	"encoding/base64"
	"encoding/binary"
	"errors"
	"fmt"
	"hash"
	"sync"
	"time"

	"github.com/claude-hub/claude-hub/runner/wire"
	"github.com/claude-hub/claude-hub/store"
)

// Sync renews the lease on everything runner holds and answers what it should hold: its assignments that are not
// removed, and the channels open into them. It waits, for at most 15 s and without a transaction, only while that is
// what q.Revision names. Held items that are not in the answer are the Runner's to drop (a Test build) or to put to
// sleep with their data kept (a Session). ErrHello asks for a Hello first.
func (f *Fleet) Sync(ctx context.Context, runner string, q *wire.SyncRequest) (*wire.SyncResponse, error) {
	f.contacts.touch(runner, f.now())
	f.contacts.weighed(runner, q.GetDisk())
	wait := min(max(time.Duration(q.GetWaitMs())*time.Millisecond, 0), maxPoll)
	timer := time.NewTimer(wait)
	defer timer.Stop()
	for first := true; ; first = false {
		changed, channelsChanged := f.db.Changed(runnerTopic(runner)), f.channels.changed(runner)
		rows, terminals, err := f.held(ctx, runner)
		if err != nil {
			return nil, err
		}
		if first {
			if err := f.welcome(ctx, runner, rows); err != nil {
				return nil, err
			}
			f.noteIdle(rows, q.GetHeld())
		}
		res, err := f.list(runner, rows, terminals)
		if err != nil {
			return nil, err
		}
		if res.GetRevision() != q.GetRevision() {
			return res, nil
		}
		select {
		case <-changed:
		case <-channelsChanged:
		case <-timer.C:
			f.contacts.touch(runner, f.now())
			return res, nil
		case <-f.stopping:
			return res, nil
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		}
		f.contacts.touch(runner, f.now())
	}
}

// held reads what runner should hold.
func (f *Fleet) held(ctx context.Context, runner string) (rows []row, terminals []terminalRow, err error) {
	err = f.db.Read(ctx, func(tx *store.Tx) error {
		r, err := scanRunner(tx.Row(runnerByID, runner).Scan)
		switch {
		case errors.Is(err, store.ErrNotFound), err == nil && r.revoked:
			return ErrRevoked
		case err != nil:
			return fmt.Errorf("read Runner %s: %w", runner, err)
		case !r.hello || f.updateFor(r) != "":
			return ErrHello
		}
		f.contacts.stored(runner, r.LastContact)
		if rows, err = store.All(tx, scanAssignment, assignmentsOfRunner, runner); err != nil {
			return fmt.Errorf("read what Runner %s should hold: %w", runner, err)
		}
		if terminals, err = store.All(tx, scanTerminalRow, terminalsOfRunnerSQL, runner); err != nil {
			return fmt.Errorf("read the terminals of Runner %s: %w", runner, err)
		}
		return nil
	})
	return rows, terminals, err
}

// welcome takes back the loss of everything a Runner that is here again holds, and writes its contact when the
// background's writes are late.
func (f *Fleet) welcome(ctx context.Context, runner string, rows []row) error {
	if f.contacts.overdue(runner, f.o.Lease/2) {
		if err := f.flush(ctx); err != nil {
			return err
		}
	}
	for _, r := range rows {
		if r.LostSince.IsZero() {
			continue
		}
		err := f.db.Write(ctx, func(tx *store.Tx) error {
			n, err := tx.Exec(foundSQL, r.ID)
			if err != nil || n == 0 {
				return err
			}
			// The contact goes with it, so that another Hub's reaper can't lose it again before this Hub's next flush.
			if _, err := tx.Exec(contactSQL, runner, tx.Now().UnixMilli()); err != nil {
				return err
			}
			o, err := f.owner(r.Kind)
			if err != nil {
				return err
			}
			finder, ok := o.(Finder)
			if !ok {
				return nil
			}
			a, err := f.Get(tx, r.ID)
			if err != nil {
				return err
			}
			return guarded(func() error { return finder.Found(tx.Context(), tx, a) })
		})
		if err != nil && ctx.Err() != nil {
			return err
		}
		if err != nil {
			f.log.Error().Err(err).Str("assignment", r.ID).Msg("the return of an assignment's Runner could not be recorded; tried again at its next Sync")
		}
	}
	return nil
}

const (
	// idleStep is by how much an idle time must have moved to be written again.
	idleStep = 5 * time.Second
	// maxIdle bounds what a Runner may claim.
	maxIdle = 365 * 24 * time.Hour
)

func (f *Fleet) noteIdle(rows []row, held []*wire.Held) {
	if len(held) == 0 {
		return
	}
	byID := make(map[string]row, len(rows))
	for _, r := range rows {
		byID[r.ID] = r
	}
	now := f.now()
	for _, h := range held {
		r, ok := byID[h.GetId()]
		if !ok || h.GetFence() != r.Fence || h.GetGeneration() != r.Generation {
			continue
		}
		var since time.Time
		if h.GetIdleMs() > 0 {
			since = now.Add(-time.Duration(min(h.GetIdleMs(), maxIdle.Milliseconds())) * time.Millisecond)
		}
		if since.IsZero() != r.IdleSince.IsZero() || since.Sub(r.IdleSince).Abs() > idleStep {
			f.contacts.idle(r.ID, idle{since: millis(since), generation: r.Generation, fence: r.Fence})
		}
	}
}

func (f *Fleet) list(runner string, rows []row, terminals []terminalRow) (*wire.SyncResponse, error) {
	channels, err := f.channels.of(runner, terminals)
	if err != nil {
		return nil, err
	}
	res := &wire.SyncResponse{LeaseMs: f.o.Lease.Milliseconds(), Channels: channels}
	digest := sha256.New()
	for _, r := range rows {
		item := &wire.Item{
			Id: r.ID, Kind: string(r.Kind), Want: string(r.Want),
			Generation: r.Generation, Fence: r.Fence, DeadlineMs: millis(r.Deadline),
		}
		res.Items = append(res.Items, item)
		mix(digest, item.GetId(), item.GetKind(), item.GetWant())
		mixInts(digest, item.GetGeneration(), item.GetFence(), item.GetDeadlineMs())
	}
	mix(digest, "channels")
	for _, c := range res.Channels {
		mix(digest, c.GetId(), c.GetAssignment())
	}
	res.Revision = base64.RawURLEncoding.EncodeToString(digest.Sum(nil)[:18])
	return res, nil
}

func mix(h hash.Hash, parts ...string) {
	for _, p := range parts {
		mixInts(h, int64(len(p)))
		h.Write([]byte(p))
	}
}

func mixInts(h hash.Hash, ns ...int64) {
	for _, n := range ns {
		var b [8]byte
		binary.BigEndian.PutUint64(b[:], uint64(n))
		h.Write(b[:])
	}
}

// Fetch answers an assignment's payload for its newest generation. ErrUnknown, ErrFenced and ErrStale say that the
// Runner's list is old.
func (f *Fleet) Fetch(ctx context.Context, runner string, q *wire.FetchRequest) (*wire.FetchResponse, error) {
	res := &wire.FetchResponse{}
	err := f.ask(ctx, runner, q, func(tx *store.Tx, o Owner, a Assignment) (err error) {
		res.Payload, err = o.Payload(tx.Context(), tx, a)
		return err
	})
	if err != nil {
		return nil, err
	}
	return res, nil
}

// Values answers the values of an assignment's Variables as they are now, with the errors of Fetch: ErrStale also while the assignment
// should not run. A Runner learns no value for what it once had. From here on they are masked in whatever it sends of the
// assignment.
func (f *Fleet) Values(ctx context.Context, runner string, q *wire.ValuesRequest) (*wire.ValuesResponse, error) {
	res := &wire.ValuesResponse{}
	err := f.ask(ctx, runner, q, func(tx *store.Tx, o Owner, a Assignment) (err error) {
		if a.Want != Run {
			return ErrStale
		}
		res.Values, res.Refused, err = o.Values(tx.Context(), tx, a)
		return err
	})
	if err != nil {
		return nil, err
	}
	if res.Refused != "" {
		res.Values = nil // those that are there are for the guard alone
	}
	f.guard.learn(runner, q.GetId(), res.Values)
	return res, nil
}

// question is what a Runner asks about one of its assignments, as it knows it.
type question interface {
	GetId() string
	GetGeneration() int64
	GetFence() int64
}

// ask calls the Owner of the assignment that q names, if q is about what it is now.
func (f *Fleet) ask(ctx context.Context, runner string, q question, call func(*store.Tx, Owner, Assignment) error) error {
	f.contacts.touch(runner, f.now())
	return f.db.Read(ctx, func(tx *store.Tx) error {
		a, o, err := f.current(tx, runner, q)
		if err != nil {
			return err
		}
		return guarded(func() error { return call(tx, o, a) })
	})
}

// current reads the assignment that q names, with its Owner, if q is about what it is now.
func (f *Fleet) current(tx *store.Tx, runner string, q question) (Assignment, Owner, error) {
	a, err := f.of(tx, runner, q.GetId())
	switch {
	case err != nil:
		return Assignment{}, nil, err
	case q.GetFence() != a.Fence:
		return Assignment{}, nil, ErrFenced
	case q.GetGeneration() != a.Generation:
		return Assignment{}, nil, ErrStale
	}
	o, err := f.owner(a.Kind)
	return a.Assignment, o, err
}

// of reads an assignment of runner. One of another Runner is as unknown as none.
func (f *Fleet) of(tx *store.Tx, runner, id string) (row, error) {
	if !storable(id) {
		return row{}, ErrUnknown
	}
	r, err := scanAssignment(tx.Row(assignmentByID, id).Scan)
	if err != nil {
		return row{}, rowError(id, err)
	}
	if r.Runner != runner {
		return row{}, ErrUnknown
	}
	return r, nil
}

// storable: what else a Runner sends as an id can't be any row's.
func storable(id string) bool { return id != "" && store.Text(id) == id }

// contacts is when this Hub heard of each Runner, and what is idle, until flush writes it: leases are written in
// batches, not one transaction a Sync (facts/sandbox.md §2.12).
type contacts struct {
	mu    sync.Mutex
	seen  map[string]*contact
	idles map[string]idle
}

type contact struct {
	last    time.Time
	written time.Time
	disk    *Disk
}

// weighed notes what a Runner says of its disk.
func (c *contacts) weighed(runner string, d *wire.Disk) {
	if d == nil {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.of(runner).disk = &Disk{Builds: max(0, int(d.GetBuilds())), BuildBytes: max(0, d.GetBuildBytes()), Free: max(0, d.GetFreeBytes())}
}

func (c *contacts) disk(runner string) *Disk {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.of(runner).disk
}

type idle struct{ since, generation, fence int64 }

func (c *contacts) init() { c.seen, c.idles = map[string]*contact{}, map[string]idle{} }

func (c *contacts) of(runner string) *contact {
	k := c.seen[runner]
	if k == nil {
		k = &contact{}
		c.seen[runner] = k
	}
	return k
}

func (c *contacts) touch(runner string, now time.Time) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if k := c.of(runner); now.After(k.last) {
		k.last = now
	}
}

func (c *contacts) stored(runner string, at time.Time) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if k := c.of(runner); at.After(k.written) {
		k.written = at
	}
}

func (c *contacts) last(runner string) time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	if k := c.seen[runner]; k != nil {
		return k.last
	}
	return time.Time{}
}

func (c *contacts) overdue(runner string, by time.Duration) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	k := c.of(runner)
	return k.last.Sub(k.written) > by
}

func (c *contacts) idle(assignment string, i idle) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.idles[assignment] = i
}

// flush writes contacts and idle times, in one transaction. What can't be written stays for the next time.
func (f *Fleet) flush(ctx context.Context) error {
	c := &f.contacts
	c.mu.Lock()
	due := map[string]time.Time{}
	for runner, k := range c.seen {
		if k.last.After(k.written) {
			due[runner] = k.last
		}
	}
	idles := c.idles
	c.idles = map[string]idle{}
	c.mu.Unlock()
	if len(due) == 0 && len(idles) == 0 {
		return nil
	}
	err := f.db.Write(ctx, func(tx *store.Tx) error {
		for runner, last := range due {
			if _, err := tx.Exec(contactSQL, runner, millis(last)); err != nil {
				return fmt.Errorf("write the contact of Runner %s: %w", runner, err)
			}
		}
		for id, i := range idles {
			if _, err := tx.Exec(idleSQL, id, i.since, i.generation, i.fence); err != nil {
				return fmt.Errorf("write the idle time of assignment %s: %w", id, err)
			}
		}
		return nil
	})
	c.mu.Lock()
	defer c.mu.Unlock()
	if err != nil {
		for id, i := range idles {
			if _, newer := c.idles[id]; !newer {
				c.idles[id] = i
			}
		}
		return err
	}
	for runner, last := range due {
		if k := c.of(runner); last.After(k.written) {
			k.written = last
		}
	}
	return nil
}
