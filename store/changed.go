package store

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"time"
)

const (
	// topicsKept bounds the memory for topics that somebody once waited for. Beyond it all waiters are woken for nothing.
	topicsKept = 4096
	// ownKept is how long the rows that tell other Hubs of a wakeup stay; others look every few seconds.
	ownKept = 2 * time.Minute
	// strayKept is the same for rows whose Hub is gone.
	strayKept = time.Hour
	// blind is how long the watcher may fail to look before it has to assume that everything changed.
	blind = time.Minute
	// hintEvery is the least time between two hints to other Hubs.
	hintEvery = 25 * time.Millisecond
)

// topics is who waits for what.
type topics struct {
	mu      sync.Mutex
	waiting map[string]chan struct{}
	closed  bool

	look chan struct{} // another Hub hinted at a change
	told chan struct{} // we have something to hint at

	seen   map[row]int64 // other Hubs' rows at the last look; for the watcher alone
	looked time.Time
	pruned time.Time
}

type row struct {
	hub, topic string
	slot       int64
}

func (ts *topics) init() {
	ts.waiting = map[string]chan struct{}{}
	ts.look, ts.told = make(chan struct{}, 1), make(chan struct{}, 1)
}

// Changed is closed at the next commit whose transaction woke topic: of this DB at once, of another process within a few
// seconds (by polling; sooner where the database can notify). It may also close for nothing. Get the channel first, then
// read what you look after, then wait; after it closed, do the same again. It is closed by Close, too.
func (db *DB) Changed(topic string) <-chan struct{} {
	ts := &db.topics
	ts.mu.Lock()
	defer ts.mu.Unlock()
	ch := ts.waiting[topic]
	if ch != nil {
		return ch
	}
	if len(ts.waiting) >= topicsKept {
		ts.clear()
	}
	ch = make(chan struct{})
	if ts.closed {
		close(ch)
		return ch
	}
	ts.waiting[topic] = ch
	return ch
}

func (ts *topics) wake(names []string) {
	if len(names) == 0 {
		return
	}
	ts.close(names)
	select {
	case ts.told <- struct{}{}:
	default:
	}
}

func (ts *topics) close(names []string) {
	ts.mu.Lock()
	defer ts.mu.Unlock()
	for _, n := range names {
		if ch := ts.waiting[n]; ch != nil {
			close(ch)
			delete(ts.waiting, n)
		}
	}
}

func (ts *topics) wakeAll() {
	ts.mu.Lock()
	defer ts.mu.Unlock()
	ts.closed = true
	ts.clear()
}

func (ts *topics) clear() {
	for _, ch := range ts.waiting {
		close(ch)
	}
	clear(ts.waiting)
}

// store writes what other Hubs need to notice the wakeups of tx, as part of tx.
func (ts *topics) store(tx *Tx, slot int) error {
	for part := range slices.Chunk(tx.wakes, 200) {
		var q strings.Builder
		q.WriteString(`INSERT INTO topics (hub, slot, topic, revision, woken_at) VALUES `)
		args := []any{tx.db.id, slot, time.Now()}
		for i, topic := range part {
			if i > 0 {
				q.WriteString(", ")
			}
			fmt.Fprintf(&q, "($1, $2, $%d, $%d, $3)", len(args)+1, len(args)+2)
			args = append(args, topic, rand.Int64())
		}
		q.WriteString(` ON CONFLICT (hub, slot, topic) DO UPDATE SET revision = excluded.revision, woken_at = excluded.woken_at`)
		if _, err := tx.Exec(q.String(), args...); err != nil {
			return err
		}
	}
	return nil
}

// watch looks for wakeups by other Hubs, and for rows nobody needs any more.
func (db *DB) watch(ctx context.Context, every time.Duration) {
	tick := time.NewTicker(every)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		case <-db.topics.look:
		}
		if db.topics.any() {
			// A look that failed is made up for by the next one.
			_ = db.poll(ctx)
		}
		if time.Since(db.topics.pruned) > ownKept/2 {
			db.prune(ctx)
		}
	}
}

func (ts *topics) any() bool {
	ts.mu.Lock()
	defer ts.mu.Unlock()
	return len(ts.waiting) > 0
}

// poll compares other Hubs' rows with those of the last look, each by equality: transactions become visible in
// another order than the one in which they began, so a "greater than the last one seen" would miss some.
func (db *DB) poll(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	ts := &db.topics
	now := map[row]int64{}
	err := db.snapshot(ctx, func(tx *Tx) error {
		rows, err := tx.Rows(`SELECT hub, slot, topic, revision FROM topics WHERE hub <> $1`, db.id)
		if err != nil {
			return err
		}
		defer rows.Close()
		for rows.Next() {
			var r row
			var revision int64
			if err := rows.Scan(&r.hub, &r.slot, &r.topic, &revision); err != nil {
				return err
			}
			now[r] = revision
		}
		return rows.Err()
	})
	if err != nil {
		return err
	}
	var changed []string
	for r, revision := range now {
		if old, ok := ts.seen[r]; !ok || old != revision {
			changed = append(changed, r.topic)
		}
	}
	gap := !ts.looked.IsZero() && time.Since(ts.looked) > blind
	ts.seen, ts.looked = now, time.Now()
	if gap { // rows may have come and gone
		ts.mu.Lock()
		ts.clear()
		ts.mu.Unlock()
		return nil
	}
	ts.close(changed)
	return nil
}

// prune deletes rows that every Hub has had the time to see. Its failing costs nothing but room.
func (db *DB) prune(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	select {
	case slot := <-db.slots:
		defer func() { db.slots <- slot }()
	case <-ctx.Done():
		return
	}
	now := time.Now()
	if _, err := db.write.ExecContext(ctx, `DELETE FROM topics WHERE (hub = $1 AND woken_at < $2) OR woken_at < $3`,
		db.id, now.Add(-ownKept).UnixMilli(), now.Add(-strayKept).UnixMilli()); err == nil {
		db.topics.pruned = now
	}
}

// announce hints to other Hubs, soon but not often, that there is something to look at.
func (db *DB) announce(ctx context.Context) {
	for {
		select {
		case <-ctx.Done():
			return
		case <-db.topics.told:
		}
		db.d.notify(ctx, db.read, db.id)
		if db.sleep(ctx, hintEvery) != nil {
			return
		}
	}
}

// hear looks for other Hubs' changes as soon as they say so.
func (db *DB) hear(ctx context.Context) {
	for {
		err := db.d.listen(ctx, func(hub string) {
			if hub == db.id {
				return
			}
			select {
			case db.topics.look <- struct{}{}:
			default:
			}
		})
		if errors.Is(err, errNoNotify) || db.sleep(ctx, 5*time.Second) != nil {
			return
		}
	}
}
