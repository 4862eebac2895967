package webhook

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/claude-hub/claude-hub/app/github"
	"github.com/claude-hub/claude-hub/store"
)

const (
	// memory is how far back GitHub knows its deliveries.
	memory = 72 * time.Hour
	// overlap is how much of what was looked at is looked at again: an entry may come late, and its time is GitHub's.
	overlap = 10 * time.Minute
	// sweepLimit bounds one search, log and requests together; asks how many deliveries it asks for, the rest the next one.
	sweepLimit = 2 * time.Minute
	sweepAsks  = 300
)

// sweep looks for missed deliveries at start and every o.Sweep.
func (s *Service) sweep(ctx context.Context) {
	began := true
	for ctx.Err() == nil {
		n, err := s.Missed(ctx, began)
		switch {
		case ctx.Err() != nil:
			return
		case err != nil && !github.NoApp.Is(err):
			s.log.Warn().Err(err).Msg("missed deliveries can't be looked for now; tried again")
		case n > 0:
			s.log.Info().Int("deliveries", n).Msg("asked GitHub again for deliveries that this Hub missed")
		}
		began = began && err != nil
		t := time.NewTimer(s.o.Sweep + rand.N(s.o.Sweep/10+1))
		select {
		case <-ctx.Done():
		case <-t.C:
		}
		t.Stop()
	}
}

// Missed asks GitHub again for what its log says no Hub took, as far as anything follows from it, and says for how many.
// One Hub at a time does; unless now is set, only when the last one was long enough ago. How far the log was read is
// remembered only when all of it was asked for.
func (s *Service) Missed(ctx context.Context, now bool) (asked int, err error) {
	app, err := s.o.GitHub.App()
	if err != nil {
		return 0, err
	}
	ctx, cancel := context.WithTimeout(ctx, sweepLimit)
	defer cancel()
	id := store.NewID()
	since, mine, err := s.holdSweep(ctx, app.ID(), id, now)
	if err != nil || !mine {
		return 0, err
	}
	asked, to, err := s.askMissed(ctx, app, since)
	end, stop := context.WithTimeout(context.WithoutCancel(ctx), 5*time.Second)
	defer stop()
	return asked, errors.Join(err, s.db.Write(end, func(tx *store.Tx) error {
		_, err := tx.Exec(endSweepSQL, app.ID(), id, to.UnixMilli(), tx.Now().Add(s.o.Sweep*9/10).UnixMilli())
		return err
	}))
}

// holdSweep takes the search for this Hub and says from when on to look.
func (s *Service) holdSweep(ctx context.Context, app int64, id string, atOnce bool) (since time.Time, mine bool, err error) {
	err = s.db.Write(ctx, func(tx *store.Tx) error {
		mine = false
		if _, err := tx.Exec(insertSweepSQL, app, tx.Now().Add(-memory).UnixMilli()); err != nil {
			return err
		}
		var seen, next time.Time
		var holder string
		if err := tx.Row(sweepSQL, app).Scan(store.At(&seen), &holder, store.At(&next)); err != nil {
			return err
		}
		if tx.Now().Before(next) && (holder != "" || !atOnce) {
			return nil
		}
		if oldest := tx.Now().Add(-memory); seen.Before(oldest) {
			seen = oldest
		}
		since, mine = seen, true
		_, err := tx.Exec(holdSweepSQL, app, id, tx.Now().Add(sweepLimit+time.Minute).UnixMilli())
		return err
	})
	if err != nil {
		return since, false, fmt.Errorf("begin to look for missed deliveries: %w", err)
	}
	return since, mine, nil
}

// askMissed returns up to when everything was taken or asked for.
func (s *Service) askMissed(ctx context.Context, app *github.App, since time.Time) (asked int, to time.Time, err error) {
	log, err := app.Attempts(ctx, since.Add(-overlap))
	if err != nil {
		return 0, since, err
	}
	to = since
	if len(log) > 0 && log[0].At.After(to) {
		to = log[0].At
	}
	for _, t := range github.Missed(log) {
		k, known := s.table[t.Event]
		if !known || !k.wants(t.Action) {
			continue
		}
		had, err := s.had(ctx, t.GUID)
		if err != nil {
			return asked, earlier(since, t.At), err
		}
		if had { // it was stored, but GitHub did not hear that
			continue
		}
		if asked == sweepAsks {
			return asked, earlier(to, t.At), nil
		}
		switch err := app.Redeliver(ctx, t.ID); {
		case github.NotFound.Is(err), github.Invalid.Is(err): // GitHub forgot it in between
		case err != nil:
			return asked, earlier(to, t.At), err
		default:
			asked++
		}
	}
	return asked, to, nil
}

func earlier(a, b time.Time) time.Time {
	if b.Before(a) {
		return b
	}
	return a
}

// had says whether a delivery is stored and not set aside.
func (s *Service) had(ctx context.Context, guid string) (bool, error) {
	var n int
	err := s.db.Read(ctx, func(tx *store.Tx) error { return tx.Row(knownSQL, store.Text(guid)).Scan(&n) })
	return n > 0, err
}
