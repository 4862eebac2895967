package proposal

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/claude-hub/claude-hub/app/access"
	"github.com/claude-hub/claude-hub/app/github"
	"github.com/claude-hub/claude-hub/store"
)

const (
	// sweepAtOnce bounds how many Repos one round compares: the others come first in the next one.
	sweepAtOnce = 200
	// trunkEvery is how often the default branch is compared, too: pull requests say most of what becomes of it.
	trunkEvery = time.Hour
	// lookFor is how long a look may take until another Hub may do it.
	lookFor = 2 * time.Minute
	dueMost = 20
	// tryEvery and tryMost are how long a look waits that GitHub was away for, doubling.
	tryEvery = 5 * time.Second
	tryMost  = 5 * time.Minute
)

// Start begins to look at what is due, and compares all open pull requests with what is known, now and every SweepEvery: so what a
// lost event would have said is seen all the same.
func (s *Service) Start(ctx context.Context) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.stop != nil {
		return errors.New("the proposals were started already")
	}
	ctx, s.stop = context.WithCancel(context.WithoutCancel(ctx))
	s.done.Go(func() { s.workOff(ctx) })
	s.done.Go(func() { s.sweeps(ctx) })
	return nil
}

// Stop ends what Start began and waits for it. Stopping twice does nothing.
func (s *Service) Stop() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.stop == nil {
		return
	}
	s.stop()
	s.done.Wait()
	s.stop = nil
}

func (s *Service) workOff(ctx context.Context) {
	for ctx.Err() == nil {
		changed := s.db.Changed(topic)
		wait, err := s.Due(ctx)
		if err != nil && ctx.Err() == nil {
			s.o.Log.Error().Err(err).Msg("look at pull requests that are due")
			wait = tryEvery
		}
		if wait <= 0 {
			continue
		}
		t := time.NewTimer(wait)
		select {
		case <-ctx.Done():
		case <-changed:
		case <-t.C:
		}
		t.Stop()
	}
}

// entry is a row of what is due.
type entry struct {
	repo   github.RepoID
	number int
	at     int64
	afresh bool
	tries  int
}

func scanEntry(scan func(...any) error) (e entry, err error) {
	err = scan(&e.repo, &e.number, &e.at, &e.afresh, &e.tries)
	return e, err
}

// Due looks at what is due now, and says how long until the next is. Start calls it; tests do, too.
func (s *Service) Due(ctx context.Context) (time.Duration, error) {
	var all []entry
	var next int64
	now := s.db.Now()
	err := s.db.Read(ctx, func(tx *store.Tx) (err error) {
		if all, err = store.All(tx, scanEntry, duesSQL, now, dueMost); err != nil {
			return fmt.Errorf("list the pull requests that are due: %w", err)
		}
		return tx.Row(nextSQL).Scan(&next)
	})
	if err != nil {
		return 0, err
	}
	if len(all) == 0 {
		if next == 0 {
			return s.o.SweepEvery, nil
		}
		return min(s.o.SweepEvery, max(time.Millisecond, time.UnixMilli(next).Sub(now))), nil
	}
	for _, e := range all {
		if err := s.lookAt(ctx, e); err != nil {
			return 0, err
		}
	}
	return 0, nil
}

// lookAt claims an entry for lookFor, looks, and gives it up, or has it tried again later. What becomes due meanwhile stays due.
func (s *Service) lookAt(ctx context.Context, e entry) error {
	until := s.db.Now().Add(lookFor).UnixMilli()
	mine := false
	err := s.db.Write(ctx, func(tx *store.Tx) error {
		n, err := tx.Exec(claimSQL, int64(e.repo), e.number, e.at, until)
		mine = n == 1
		return err
	})
	if err != nil || !mine {
		return err
	}
	looked := s.lookNow(ctx, e.repo, e.number, look{afresh: e.afresh})
	if ctx.Err() != nil {
		return ctx.Err()
	}
	return s.db.Write(ctx, func(tx *store.Tx) error {
		if looked == nil {
			_, err := tx.Exec(lookedSQL, int64(e.repo), e.number, until)
			return err
		}
		if errors.Is(looked, errNoRunner) {
			_, err := tx.Exec(laterSQL, int64(e.repo), e.number, until, tx.Now().Add(s.o.SweepEvery))
			return err
		}
		wait := min(tryMost, tryEvery<<min(e.tries, 10))
		var gh *github.Error
		if errors.As(looked, &gh) && gh.Kind == github.RateLimited {
			wait = max(wait, gh.Until.Sub(tx.Now()))
		}
		s.o.Log.Warn().Err(looked).Int64("repo", int64(e.repo)).Int("pull_request", e.number).Dur("again_in", wait).Msg("look at a pull request")
		_, err := tx.Exec(laterSQL, int64(e.repo), e.number, until, tx.Now().Add(wait))
		return err
	})
}

// LookAll has the open pull requests of Repos looked at soon that the App was installed on, or came back to: nothing was heard of them
// before. Those that the Hub doesn't know are left out.
func (s *Service) LookAll(ctx context.Context, repos []github.RepoID) error {
	return s.db.Write(ctx, func(tx *store.Tx) error {
		for _, id := range repos {
			if _, err := tx.Exec(newRepoSQL, int64(id)); err != nil {
				return fmt.Errorf("have the pull requests of Repo %d looked at: %w", id, err)
			}
		}
		tx.Wake(sweepTopic)
		return nil
	})
}

// sweepTopic is woken when there are Repos to compare before their time.
const sweepTopic = "proposals/sweep"

func (s *Service) sweeps(ctx context.Context) {
	tick := time.NewTicker(s.o.SweepEvery)
	defer tick.Stop()
	for {
		changed := s.db.Changed(sweepTopic)
		if err := s.Sweep(ctx); err != nil && ctx.Err() == nil {
			s.o.Log.Error().Err(err).Msg("compare pull requests with GitHub's")
		}
		select {
		case <-ctx.Done():
			return
		case <-changed:
		case <-tick.C:
		}
	}
}

// Sweep compares the open pull requests of Repos that have an Environment, or are known to propose one, with GitHub's: one list a
// Repo. What differs is due. Several Hubs share the work. Start calls it; tests do, too.
func (s *Service) Sweep(ctx context.Context) error {
	app, err := s.github.App()
	if err != nil {
		return nil // none yet: nothing to compare with
	}
	type target struct {
		repo  github.RepoID
		swept int64
	}
	var all []target
	now := s.db.Now()
	err = s.db.Read(ctx, func(tx *store.Tx) (err error) {
		all, err = store.All(tx, func(scan func(...any) error) (t target, err error) { err = scan(&t.repo, &t.swept); return t, err },
			sweepsSQL, now.Add(-s.o.SweepEvery/2), sweepAtOnce)
		return err
	})
	if err != nil {
		return fmt.Errorf("list the Repos to compare: %w", err)
	}
	for _, t := range all {
		mine := false
		err := s.db.Write(ctx, func(tx *store.Tx) error {
			n, err := tx.Exec(sweepSQL, int64(t.repo), t.swept, tx.Now())
			mine = n == 1
			return err
		})
		if err != nil {
			return err
		}
		if !mine {
			continue // another Hub does it
		}
		if err := s.sweep(ctx, app, t.repo, time.UnixMilli(t.swept)); err != nil {
			if ctx.Err() != nil {
				return ctx.Err()
			}
			s.o.Log.Warn().Err(err).Int64("repo", int64(t.repo)).Msg("compare pull requests with GitHub's")
		}
	}
	return nil
}

func (s *Service) sweep(ctx context.Context, app *github.App, repo github.RepoID, swept time.Time) error {
	pulls, err := app.PullRequests(ctx, repo)
	if gone(err) {
		return nil
	}
	if err != nil {
		return err
	}
	var r github.Repository
	if err := s.db.Read(ctx, func(tx *store.Tx) error {
		known, err := access.ReadRepo(tx, repo)
		r = github.Repository{ID: repo, DefaultBranch: known.DefaultBranch, Archived: known.Archived}
		return err
	}); err != nil {
		return err
	}
	if r.DefaultBranch == "" || swept.Truncate(trunkEvery).Before(s.db.Now().Truncate(trunkEvery)) {
		if r, err = app.Repository(ctx, repo); err == nil {
			err = s.gate.RepoIs(ctx, r)
		}
		if err != nil {
			return err
		}
		if err := s.trunk(ctx, app, r, look{}); err != nil {
			return err
		}
	}
	if r.Archived {
		return nil
	}
	runners, err := s.fleet.Runners(ctx)
	if err != nil {
		return err
	}
	return s.db.Write(ctx, func(tx *store.Tx) error {
		known, err := store.All(tx, scan, openSQL, int64(repo))
		if err != nil {
			return fmt.Errorf("list open pull requests: %w", err)
		}
		rows := map[int]Proposal{}
		for _, p := range known {
			rows[p.Number] = p
		}
		of, err := access.ReadRepo(tx, repo)
		if err != nil {
			return err
		}
		g := access.System(of, "pull requests")
		for _, p := range pulls {
			row, ok := rows[p.Number]
			delete(rows, p.Number)
			switch {
			case !ok || row.SHA != p.Head.SHA || row.Base != p.Base.Ref || row.ToDefault != (p.Base.Ref == r.DefaultBranch):
				err = due(tx, repo, p.Number, tx.Now(), false)
			case row.mendable():
				err = due(tx, repo, p.Number, tx.Now(), true)
			case row.File == Valid:
				err = s.show(tx, g, row.SHA, showing{runners: runners}) // the web draft, values and Runners change, too
			}
			if err != nil {
				return err
			}
		}
		for number := range rows { // closed or merged meanwhile
			if err := due(tx, repo, number, tx.Now(), false); err != nil {
				return err
			}
		}
		return nil
	})
}

// mendable says that something is wrong with it that may be mended without a push.
func (p Proposal) mendable() bool {
	for _, x := range p.Problems {
		if x.Hub {
			return true
		}
	}
	return false
}
