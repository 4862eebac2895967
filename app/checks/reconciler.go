package checks

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"runtime/debug"
	"sync"
	"time"

	"github.com/rs/zerolog"

	"github.com/claude-hub/claude-hub/app/github"
	"github.com/claude-hub/claude-hub/store"
)

// Options of a Reconciler. Zero values are the defaults.
type Options struct {
	// Pace is the least time between two writes to one installation, whichever Hub makes them. GitHub asks for a second
	// (facts/github.md §3), which is the default.
	Pace time.Duration
	// Progress is the least time between two writes of one check run while its state stays the same. GitHub takes 500
	// writes an hour. Default: 10 s.
	Progress time.Duration
	Log      zerolog.Logger
}

const (
	// workLimit bounds what is done under one lease: a process that stood still for longer finds its call cancelled before
	// another Hub goes on. Hubs' clocks may differ by the rest of the lease.
	workLimit = 20 * time.Second
	lease     = 30 * time.Second
	// settle is how long a POST without an answer may still be at work: GitHub ends requests after 10 s. Until then it isn't
	// given up as lost.
	settle = 10 * time.Second

	firstBackoff = time.Second
	maxBackoff   = 5 * time.Minute
	finalBackoff = 30 * time.Second // for what completed: a check may hang for a minute at most
	laneBackoff  = 15 * time.Second
	parkedFor    = time.Hour
	maxAttempts  = 10 // for a commit that GitHub doesn't know yet, until it counts as one that it doesn't have

	maxBusy      = 32 // installations at once
	poll         = 5 * time.Second
	stopPatience = 5 * time.Second
)

// Reconciler makes GitHub show what Show was told. Any number of them may work on one database: each installation is
// written to by one at a time, at its pace, and one that was killed is succeeded after its lease.
type Reconciler struct {
	db     *store.DB
	holder *github.Holder
	o      Options
	log    zerolog.Logger
	ended  chan struct{} // a step ended: look again

	mu    sync.Mutex
	busy  map[int64]bool // installations that this Reconciler works on
	stop  func()         // while it runs: ends the loop
	abort func()         // cancels what is under way
	loop  sync.WaitGroup
	steps sync.WaitGroup

	// at is told where a step has come to, for tests: an error there ends the step as a kill would.
	at func(point string) error
}

// New makes a Reconciler of db's check runs. Without an App in holder it waits for one.
func New(db *store.DB, holder *github.Holder, o Options) *Reconciler {
	o.Pace, o.Progress = cmp.Or(o.Pace, time.Second), cmp.Or(o.Progress, 10*time.Second)
	return &Reconciler{
		db: db, holder: holder, o: o, log: o.Log.With().Str("part", "checks").Logger(),
		ended: make(chan struct{}, 1), busy: map[int64]bool{}, at: func(string) error { return nil },
	}
}

// Start reconciles until Stop is called or ctx ends. It returns an error when it runs already.
func (r *Reconciler) Start(ctx context.Context) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.stop != nil {
		return errors.New("check runs are reconciled already")
	}
	work, abort := context.WithCancel(context.WithoutCancel(ctx))
	loop, stop := context.WithCancel(ctx)
	r.stop, r.abort = stop, abort
	r.loop.Go(func() { r.run(loop, work) })
	return nil
}

// Stop begins nothing any more, gives what is under way five seconds, and returns when nothing runs. What had to be given
// up is picked up by whoever comes next. Stopping twice does nothing.
func (r *Reconciler) Stop() {
	r.mu.Lock()
	stop, abort := r.stop, r.abort
	r.stop = nil
	r.mu.Unlock()
	if stop == nil {
		return
	}
	stop()
	r.loop.Wait()
	patience := time.AfterFunc(stopPatience, abort)
	r.steps.Wait()
	patience.Stop()
	abort()
}

// Pending counts the check runs that GitHub doesn't show as they are yet, without those that it doesn't take until
// something changes there.
func (r *Reconciler) Pending(ctx context.Context) (int, error) { return r.count(ctx, pendingSQL) }

// Parked counts the check runs that GitHub doesn't take: the App isn't installed there any more, is suspended, lacks a
// permission, the Repo or the commit is gone. They are tried again each hour, and when Wake or WakeRepo says so.
func (r *Reconciler) Parked(ctx context.Context) (int, error) { return r.count(ctx, parkedSQL) }

func (r *Reconciler) count(ctx context.Context, q string) (n int, err error) {
	err = r.db.Read(ctx, func(tx *store.Tx) error { return tx.Row(q).Scan(&n) })
	if err != nil {
		return 0, fmt.Errorf("count check runs: %w", err)
	}
	return n, nil
}

// Wake has the check runs of an installation that GitHub didn't take tried again: it was made, unsuspended, or given Repos
// or permissions.
func Wake(tx *store.Tx, installation int64) error { return wake(tx, wakeSQL, installation) }

// WakeRepo has the check runs of a Repo tried again, wherever the App has it now: it was transferred, added to an
// installation, or unarchived.
func WakeRepo(tx *store.Tx, repo github.RepoID) error { return wake(tx, wakeRepoSQL, int64(repo)) }

func wake(tx *store.Tx, q string, id int64) error {
	n, err := tx.Exec(q, id)
	if err != nil {
		return fmt.Errorf("wake check runs: %w", err)
	}
	if n > 0 {
		tx.Wake(Topic)
	}
	return nil
}

// run begins steps until ctx ends; they run under work.
func (r *Reconciler) run(ctx, work context.Context) {
	for ctx.Err() == nil {
		changed := r.db.Changed(Topic)
		next, err := r.begin(work)
		if err != nil && ctx.Err() == nil {
			r.log.Error().Err(err).Msg("check runs could not be looked at; tried again")
		}
		wait := poll
		if !next.IsZero() {
			wait = min(max(next.Sub(r.db.Now()), time.Millisecond), poll)
		}
		timer := time.NewTimer(wait)
		select {
		case <-ctx.Done():
		case <-changed:
		case <-r.ended:
		case <-timer.C:
		}
		timer.Stop()
	}
}

// runOnce does what is due now, and says when something will be: zero if nothing is known of.
func (r *Reconciler) runOnce(ctx context.Context) (next time.Time, err error) {
	_, err = r.begin(ctx)
	r.steps.Wait()
	if err != nil {
		return time.Time{}, err
	}
	lanes, err := r.lanes(ctx)
	if err != nil {
		return time.Time{}, err
	}
	for _, l := range lanes {
		next = earlier(next, l.due)
	}
	return next, nil
}

// begin starts a step in each installation that has something due, and says when the next one is.
func (r *Reconciler) begin(ctx context.Context) (next time.Time, err error) {
	app, err := r.holder.App()
	if err != nil {
		return time.Time{}, nil // there is none to write with: a check run waits like one on a Repo that isn't installed
	}
	lanes, err := r.lanes(ctx)
	if err != nil {
		return time.Time{}, err
	}
	now := r.db.Now()
	for _, l := range lanes {
		if now.Before(l.due) {
			next = earlier(next, l.due)
		} else {
			r.step(ctx, app, l.installation)
		}
	}
	return next, nil
}

func earlier(a, b time.Time) time.Time {
	if a.IsZero() || b.Before(a) {
		return b
	}
	return a
}

// lane is an installation that has something pending.
type lane struct {
	installation int64
	due          time.Time
}

func (r *Reconciler) lanes(ctx context.Context) (lanes []lane, err error) {
	err = r.db.Read(ctx, func(tx *store.Tx) error {
		lanes, err = store.All(tx, func(scan func(...any) error) (l lane, err error) {
			var row, pace, held int64
			err = scan(&l.installation, &row, &pace, &held)
			l.due = time.UnixMilli(max(row, pace, held))
			return l, err
		}, lanesSQL)
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("look for check runs that GitHub doesn't show yet: %w", err)
	}
	return lanes, nil
}

// step runs one step in an installation, if none runs there and not too many run elsewhere.
func (r *Reconciler) step(ctx context.Context, app *github.App, installation int64) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.busy[installation] || len(r.busy) >= maxBusy {
		return
	}
	r.busy[installation] = true
	r.steps.Go(func() {
		err := r.guarded(ctx, app, installation)
		r.mu.Lock()
		delete(r.busy, installation)
		r.mu.Unlock()
		if err != nil { // the database's, or ours: not to be tried again at once
			if ctx.Err() == nil {
				r.log.Error().Err(err).Int64("installation", installation).Msg("a check run could not be written; picked up later")
			}
			return
		}
		select {
		case r.ended <- struct{}{}:
		default:
		}
	})
}

func (r *Reconciler) guarded(ctx context.Context, app *github.App, installation int64) (err error) {
	defer func() {
		if p := recover(); p != nil {
			err = fmt.Errorf("panic: %v\n%s", p, debug.Stack())
		}
	}()
	return r.oneStep(ctx, app, installation)
}
