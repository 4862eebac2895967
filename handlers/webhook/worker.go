package webhook

import (
	"context"
	"errors"
	"fmt"
	"runtime/debug"
	"time"

	"github.com/claude-hub/claude-hub/app/github"
	"github.com/claude-hub/claude-hub/store"
)

const (
	// poll is how often due deliveries are looked for when nothing says that there are any.
	poll = 5 * time.Second
	// breath is between two turns: what ends and arrives meanwhile goes into one transaction, and leaves the writer to intake.
	breath     = 20 * time.Millisecond
	pruneEvery = time.Hour
	pruneRows  = 1000
	// keep is how long a delivery is known after its work: longer than GitHub can send it again.
	keep = 7 * 24 * time.Hour
	// keepAside is how long one that was set aside waits for somebody.
	keepAside = 30 * 24 * time.Hour
)

// claim is deliveries about the same, of which the newest is worked. Its id is the fence: once another has claimed them,
// nothing more can be said under it.
type claim struct {
	id       string
	subject  string
	delivery github.Delivery
	action   string
	received time.Time
	tries    int64
}

// result is how the work on a claim ended.
type result struct {
	claim
	err   error
	given bool // back: this Hub stops
}

// work hands out what is due until ctx ends, and gives back what was not finished. Results are stored together with taking
// the next deliveries, so that many small pieces of work don't wait for the disk twice each.
func (s *Service) work(ctx context.Context) {
	results := make(chan result, s.o.Workers) // so that no worker waits to say what came of it
	held := map[string]claim{}
	var ended []result
	var pruned time.Time
	renewed := time.Now()
	wait := time.NewTimer(0)
	defer wait.Stop()
	for ctx.Err() == nil {
		changed := s.db.Changed(topic)
		if now := s.db.Now(); now.Sub(pruned) >= pruneEvery {
			pruned = now
			s.prune(ctx)
		}
		if now := time.Now(); now.Sub(renewed) >= s.o.Lease/3 && len(held) > 0 {
			renewed = now
			s.renew(ctx, held)
		}
		claims, next, err := s.turn(ctx, ended, s.o.Workers-len(held)+len(ended))
		if err != nil && ctx.Err() == nil {
			s.log.Error().Err(err).Msg("deliveries can't be worked off now; tried again")
			next = poll
		}
		if err == nil {
			for _, r := range ended {
				delete(held, r.id)
			}
			ended = nil
		}
		for _, c := range claims {
			held[c.id] = c
			s.done.Go(func() {
				err := s.do(ctx, c)
				results <- result{c, err, err != nil && ctx.Err() != nil}
			})
		}
		wait.Reset(min(next, poll, max(s.o.Lease/3, time.Millisecond)))
		select {
		case <-ctx.Done():
		case <-changed:
		case <-wait.C:
		case r := <-results:
			ended = append(ended, r)
		}
		wait.Reset(breath)
		select {
		case <-ctx.Done():
		case <-wait.C:
		}
		for len(results) > 0 {
			ended = append(ended, <-results)
		}
	}
	for len(ended) < len(held) { // each worker ends with ctx
		ended = append(ended, <-results)
	}
	last, cancel := context.WithTimeout(context.WithoutCancel(ctx), 5*time.Second)
	defer cancel()
	if _, _, err := s.turn(last, ended, 0); err != nil {
		s.log.Warn().Err(err).Int("deliveries", len(ended)).Msg("what was being worked on can't be given back; it is taken up when its lease has passed")
	}
}

// turn stores how ended work ended, takes up to room deliveries that are due, and says how long there is nothing else to do.
func (s *Service) turn(ctx context.Context, ended []result, room int) (claims []claim, next time.Duration, err error) {
	due, err := s.nextDue(ctx)
	if err != nil {
		return nil, 0, err
	}
	switch {
	case len(ended) > 0:
	case room == 0:
		return nil, poll, nil
	case due > 0:
		return nil, due, nil
	}
	err = s.db.Write(ctx, func(tx *store.Tx) error {
		claims = nil
		for _, r := range ended {
			if err := s.settle(tx, r); err != nil {
				return err
			}
		}
		if room == 0 {
			return nil
		}
		if err := s.setDeadlyAside(tx); err != nil {
			return err
		}
		claims, err = s.claim(tx, room)
		return err
	})
	if err != nil || len(claims) < room {
		return claims, poll, err
	}
	return claims, 0, nil
}

// nextDue is how long nothing is due. What is under a lease counts from its end on.
func (s *Service) nextDue(ctx context.Context) (time.Duration, error) {
	due := poll
	err := s.db.Read(ctx, func(tx *store.Tx) error {
		var at time.Time
		err := tx.Row(nextDueSQL).Scan(store.At(&at))
		if errors.Is(err, store.ErrNotFound) {
			return nil
		}
		due = max(at.Sub(tx.Now()), 0)
		return err
	})
	return due, err
}

func (s *Service) claim(tx *store.Tx, room int) ([]claim, error) {
	type due struct{ guid, subject string }
	rows, err := store.All(tx, func(scan func(...any) error) (d due, err error) { return d, scan(&d.guid, &d.subject) },
		tx.LockedSkip(dueSQL), tx.Now().UnixMilli(), 4*room)
	if err != nil {
		return nil, fmt.Errorf("look for due deliveries: %w", err)
	}
	var claims []claim
	taken := map[string]bool{}
	until := tx.Now().Add(s.o.Lease).UnixMilli()
	for _, d := range rows {
		if len(claims) == room {
			break
		}
		if d.subject != "" && taken[d.subject] {
			continue
		}
		taken[d.subject] = true
		c := claim{id: store.NewID(), subject: d.subject}
		query, arg := takeSubjectSQL, d.subject
		if d.subject == "" {
			query, arg = takeOneSQL, d.guid
		}
		if _, err := tx.Exec(query, arg, c.id, until); err != nil {
			return nil, fmt.Errorf("claim a delivery: %w", err)
		}
		var body []byte
		if err := tx.Row(claimedSQL, c.id).Scan(&c.delivery.ID, &c.delivery.Event, &c.action, &body, store.At(&c.received), &c.tries); err != nil {
			return nil, fmt.Errorf("read a claimed delivery: %w", err)
		}
		if c.delivery.Payload, err = s.unzip.DecodeAll(body, nil); err != nil {
			s.log.Error().Err(err).Str("guid", c.delivery.ID).Msg("a stored delivery can't be unpacked")
			c.delivery.Payload = nil // which no event decodes from: it is set aside
		}
		claims = append(claims, c)
	}
	return claims, nil
}

// do is the work on one delivery. A panic in it is its failure and nobody else's.
func (s *Service) do(ctx context.Context, c claim) (err error) {
	defer func() {
		if p := recover(); p != nil {
			err = fmt.Errorf("panic: %v\n%s", p, debug.Stack())
		}
	}()
	ctx, cancel := context.WithTimeout(ctx, s.o.Limit)
	defer cancel()
	e, err := c.delivery.Decode()
	if err != nil {
		return err
	}
	k, ok := s.table.find(e)
	if !ok { // stored by a version that had a use for it
		return nil
	}
	return k.work(ctx, s, e)
}

// renew keeps the leases of what is being worked on.
func (s *Service) renew(ctx context.Context, held map[string]claim) {
	err := s.db.Write(ctx, func(tx *store.Tx) error {
		for id := range held {
			if _, err := tx.Exec(renewSQL, id, tx.Now().Add(s.o.Lease).UnixMilli()); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil && ctx.Err() == nil {
		s.log.Warn().Err(err).Msg("the leases of deliveries can't be renewed; another Hub may work on them too")
	}
}

func (s *Service) prune(ctx context.Context) {
	for {
		var n int64
		err := s.db.Write(ctx, func(tx *store.Tx) (err error) {
			n, err = tx.Exec(pruneSQL, tx.Now().Add(-keep).UnixMilli(), tx.Now().Add(-keepAside).UnixMilli(), pruneRows)
			return err
		})
		if err != nil && ctx.Err() == nil {
			s.log.Warn().Err(err).Msg("old deliveries can't be deleted; tried again in an hour")
		}
		if err != nil || n < pruneRows {
			return
		}
	}
}
