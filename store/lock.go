package store

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"
)

// ErrInUse is what Open answers when it needs the database alone, or somebody else has it alone.
var ErrInUse = errors.New("another claude-hub process uses this database (a running Hub, an update, secrets-reset or " +
	"db copy); stop it, or wait until it is done, and try again")

// ErrFenced is what Write answers when this DB lost its hold on the database and may not go on.
var ErrFenced = errors.New("this process lost its hold on the database, and another one had it alone since then " +
	"(an update, secrets-reset or db copy); restart this process")

// held is an instance lock in one of the two ways a database has them.
type held interface {
	alive(ctx context.Context) error
	release()
}

// keeper holds the instance lock for a DB's life and takes it again when it drops.
type keeper struct {
	mu        sync.Mutex
	held      held // nil while lost
	exclusive bool
	lost      bool // an exclusive lock was lost: it is never taken again
	every     time.Duration
}

// prepare takes the instance lock and brings the schema up to date under it. Every Hub holds a shared lock for its life;
// a migration, like an Exclusive open, needs all others gone.
func (db *DB) prepare(ctx context.Context, o options) (*keeper, error) {
	deadline := time.Now().Add(o.wait)
	for {
		todo, err := db.pending(ctx, o.migrations)
		if err != nil {
			return nil, err
		}
		alone := o.exclusive || len(todo) > 0
		h, err := db.d.tryLock(ctx, alone)
		if err != nil {
			return nil, err
		}
		if h == nil {
			// Somebody else has it; perhaps a Hub that started with us and is migrating, so look anew each time.
			switch {
			case time.Now().Before(deadline):
			case alone && !o.exclusive:
				return nil, fmt.Errorf("the database must be updated, which needs all other Hubs stopped: %w", ErrInUse)
			default:
				return nil, ErrInUse
			}
			if err := db.sleep(ctx, 50*time.Millisecond); err != nil {
				return nil, err
			}
			continue
		}
		if done, err := db.settle(ctx, o, alone); err != nil || !done {
			h.release()
			if err != nil {
				return nil, err
			}
			continue
		}
		return &keeper{held: h, exclusive: o.exclusive, every: o.look}, nil
	}
}

// settle brings the schema up to date under the lock that prepare holds, and says whether that lock is the one to keep.
func (db *DB) settle(ctx context.Context, o options, alone bool) (bool, error) {
	if !alone {
		todo, err := db.pending(ctx, o.migrations)
		return len(todo) == 0, err // else the database was replaced between our look and our lock
	}
	if err := db.migrate(ctx, o.migrations); err != nil {
		return false, err
	}
	return o.exclusive, db.newEpoch(ctx)
}

// keep looks after the lock until ctx ends.
func (k *keeper) keep(ctx context.Context, d dialect) {
	tick := time.NewTicker(k.every)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		k.check(ctx, d)
	}
}

func (k *keeper) check(ctx context.Context, d dialect) {
	ctx, cancel := context.WithTimeout(ctx, 2*k.every)
	defer cancel()
	k.mu.Lock()
	h := k.held
	k.mu.Unlock()
	if h != nil {
		if h.alive(ctx) == nil || errors.Is(ctx.Err(), context.Canceled) {
			return
		}
		h.release()
		k.mu.Lock()
		k.held, k.lost = nil, k.exclusive
		k.mu.Unlock()
	}
	if k.exclusive {
		return
	}
	if h, err := d.tryLock(ctx, false); err == nil && h != nil {
		k.mu.Lock()
		k.held = h
		k.mu.Unlock()
	}
}

func (k *keeper) release() {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.held != nil {
		k.held.release()
		k.held = nil
	}
}

// guard keeps a Write out when another process has, or has had, the database alone: the instance lock may have dropped
// without our having noticed yet.
func (db *DB) guard(tx *Tx) error {
	db.lock.mu.Lock()
	lost := db.lock.lost
	db.lock.mu.Unlock()
	if lost {
		return ErrFenced
	}
	q := db.d.guardQuery()
	if q == "" {
		return nil
	}
	if db.lock.exclusive { // it holds the lock that the query tries
		q = `SELECT 1, epoch FROM store_state`
	}
	var free bool
	var epoch string
	if err := tx.Row(q).Scan(&free, &epoch); err != nil {
		return err
	}
	switch {
	case !free:
		return ErrInUse
	case epoch != db.epoch:
		return ErrFenced
	}
	return nil
}
