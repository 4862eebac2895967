// Package store is the Hub's database: open, transactions, migrations, wakeups, and the few places where SQLite and
// PostgreSQL differ. SQL text lives in the package that owns the table (app/*/sql.go); the tables themselves are made
// by the files in migrations/.
//
// One SQL text runs on both databases. The rules that make that true:
//
//   - Parameters are $1, $2 … in any order. No JSON operators, arrays, enums, triggers or engine-specific functions.
//   - Ids are TEXT from NewID. Times are BIGINT milliseconds since 1970 UTC: pass a time.Time (the zero time is NULL) and
//     scan into At(&t). Truth values are BIGINT with CHECK (x IN (0, 1)): pass a bool and scan into a *bool.
//   - Bytes are BYTEA and []byte (nil is NULL; empty bytes are not, but may be scanned as nil). Documents are JSON in TEXT: pass a string or json.RawMessage.
//   - TEXT is valid UTF-8 without NUL, on both: anything else is an error. Text makes any string fit.
//   - After a statement failed, its transaction can only be rolled back, on both: say ON CONFLICT instead of trying.
//   - Close the rows of one statement before the next statement of that transaction starts (All does).
package store

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"io/fs"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"time"

	"github.com/google/uuid"
)

// ErrNotFound is what Row.Scan answers when there is no row.
var ErrNotFound = sql.ErrNoRows

// ErrClosed is what a DB answers after Close.
var ErrClosed = errors.New("the database was closed")

const (
	// patience is how long one Write or Read may wait for its turn, and for how long a Write is run again.
	patience = 30 * time.Second
	// commitLimit bounds a commit on a connection that went silent.
	commitLimit = 30 * time.Second
)

// DB is an open database. All methods may be called from many goroutines.
type DB struct {
	d           dialect
	read, write *sql.DB
	id          string // this handle, among all that have the database open
	slots       chan int
	readers     chan struct{}
	turn        chan struct{} // held by a transaction that was refused before, so that refused ones don't refuse each other
	clock       atomic.Pointer[func() time.Time]
	lock        *keeper
	epoch       string
	topics      topics

	stop   context.CancelFunc
	done   chan struct{}
	ending sync.Once
	bg     sync.WaitGroup
}

// Option changes how Open opens.
type Option func(*options)

type options struct {
	exclusive  bool
	notify     bool
	poll       time.Duration
	wait       time.Duration
	look       time.Duration // how often the instance lock is looked after
	migrations fs.FS
}

// Exclusive opens the database for this process alone: it fails with ErrInUse while any other process, or any other
// DB, has it open, and nothing else can open it until Close. For secrets-reset, db copy and the like.
func Exclusive() Option { return func(o *options) { o.exclusive = true } }

// Open opens the database at url, brings its schema up to date, and holds the instance lock until Close.
//
// url is "sqlite:///path/file.db", a plain path, or "postgres://…" (also "postgresql://"); a search_path parameter
// naming one schema is made if it doesn't exist. A missing SQLite file is made, readable by its owner only; on a
// network file system it is refused, since SQLite's locks don't hold there. Migrations run alone: Open waits some
// seconds for other processes to let go, then fails with ErrInUse. A database with a newer schema than this binary
// knows fails with ErrNewer. Behind a pooler that gives out connections by transaction, add
// default_query_exec_mode=exec; there wakeups from other Hubs come by polling.
func Open(ctx context.Context, url string, opts ...Option) (*DB, error) {
	o := options{notify: true, poll: 2 * time.Second, wait: 15 * time.Second, look: 3 * time.Second, migrations: shipped()}
	for _, f := range opts {
		f(&o)
	}
	d, err := dialectFor(url)
	if err != nil {
		return nil, err
	}
	pools, err := d.open(ctx)
	if err != nil {
		return nil, err
	}
	db := &DB{
		d: d, read: pools.read, write: pools.write, id: NewID(),
		slots: make(chan int, pools.writers), readers: make(chan struct{}, pools.readers),
		turn: make(chan struct{}, 1), done: make(chan struct{}),
	}
	for i := range pools.writers {
		db.slots <- i
	}
	db.write.SetMaxOpenConns(pools.writers)
	db.write.SetMaxIdleConns(pools.writers)
	db.read.SetMaxOpenConns(pools.readers + 1) // one for the watcher
	db.read.SetMaxIdleConns(pools.readers + 1)
	db.SetClock(time.Now)
	if err := db.start(ctx, o); err != nil {
		if db.lock != nil {
			db.lock.release()
		}
		return nil, errors.Join(err, db.read.Close(), db.write.Close())
	}
	return db, nil
}

func (db *DB) start(ctx context.Context, o options) (err error) {
	if db.lock, err = db.prepare(ctx, o); err != nil {
		return err
	}
	if db.epoch, err = db.readEpoch(ctx); err != nil {
		return err
	}
	db.topics.init()
	if err := db.poll(ctx); err != nil {
		return err
	}
	var bg context.Context
	bg, db.stop = context.WithCancel(context.Background())
	db.bg.Go(func() { db.lock.keep(bg, db.d) })
	db.bg.Go(func() { db.watch(bg, o.poll) })
	if o.notify {
		db.bg.Go(func() { db.announce(bg) })
		db.bg.Go(func() { db.hear(bg) })
	}
	return nil
}

// Close waits for running transactions, gives up the instance lock and closes the database. Every channel that
// Changed gave out is closed. Closing twice does nothing.
func (db *DB) Close() (err error) {
	db.ending.Do(func() {
		close(db.done)
		db.stop()
		db.bg.Wait()
		for range cap(db.slots) {
			<-db.slots
		}
		for range cap(db.readers) {
			db.readers <- struct{}{}
		}
		err = errors.Join(db.read.Close(), db.write.Close())
		db.lock.release()
		db.topics.wakeAll()
	})
	return err
}

// Now is the time by this DB's clock, in whole milliseconds, UTC.
func (db *DB) Now() time.Time { return (*db.clock.Load())().UTC().Truncate(time.Millisecond) }

// SetClock replaces the clock of Now and Tx.Now, for tests.
func (db *DB) SetClock(now func() time.Time) { db.clock.Store(&now) }

// Write runs f in one transaction, which is safe against every other: what f read is still true when it commits. f is
// run again when the database asks for it (a conflict with another transaction), so it changes nothing but tx; what must
// follow the commit goes through tx.After. When f returns an error, nothing is stored and Write returns that error.
//
// Cancelling ctx rolls back until the commit has begun. An error from the commit itself (a lost connection) leaves it
// open whether the transaction was stored: do things that can be repeated. f starts no other Write or Read and waits
// for nothing: on SQLite it holds the only writer.
func (db *DB) Write(ctx context.Context, f func(*Tx) error) error {
	began := time.Now()
	for attempt := 0; ; attempt++ {
		again, err := db.attempt(ctx, attempt, f)
		if !again {
			return err
		}
		if time.Since(began) > patience {
			return fmt.Errorf("the database refused a change for %s because of others at the same time: %w", patience, err)
		}
		pause := min(time.Millisecond<<min(attempt, 8), 200*time.Millisecond)
		if err := db.sleep(ctx, time.Duration(float64(pause)*(0.5+rand.Float64()))); err != nil {
			return err
		}
	}
}

// attempt runs f once and says whether to run it again.
func (db *DB) attempt(ctx context.Context, attempt int, f func(*Tx) error) (again bool, err error) {
	wait, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	if attempt > 1 {
		select {
		case db.turn <- struct{}{}:
			defer func() { <-db.turn }()
		case <-wait.Done():
			return false, db.notMyTurn(ctx)
		}
	}
	var slot int
	select {
	case <-db.done:
		return false, ErrClosed
	default:
	}
	select {
	case slot = <-db.slots:
		defer func() { db.slots <- slot }()
	case <-db.done:
		return false, ErrClosed
	case <-wait.Done():
		return false, db.notMyTurn(ctx)
	}

	// The transaction has a life of its own, so that cancelling ctx can't cut a commit in half.
	life, end := context.WithCancel(context.WithoutCancel(ctx))
	defer end()
	detach := context.AfterFunc(ctx, end)
	defer detach()
	tx := &Tx{ctx: life, db: db, writes: true, now: db.Now()}
	if tx.tx, err = begin(life, db.write, db.d.txOptions(true)); err != nil {
		return retryable(err), cause(ctx, err)
	}
	defer tx.end()
	if err := db.guard(tx); err != nil {
		return retryable(err), cause(ctx, err)
	}
	err = f(tx)
	if err == nil {
		err = tx.failed
	}
	if err == nil {
		err = db.topics.store(tx, slot)
	}
	if err != nil {
		return retryable(err) || retryable(tx.failed), cause(ctx, err)
	}
	if !detach() {
		return false, cause(ctx, ctx.Err())
	}
	defer time.AfterFunc(commitLimit, end).Stop()
	if err := tx.tx.Commit(); err != nil {
		if retryable(err) {
			return true, err
		}
		db.topics.wake(tx.wakes) // it may have been stored
		return false, explain(err)
	}
	tx.over = true
	defer db.topics.wake(tx.wakes)
	for _, after := range tx.after {
		after()
	}
	return false, nil
}

// Read runs f on one snapshot: it sees nothing that is committed while it runs. Writing in it is an error. Never held
// while waiting for a person or a Runner. tx.After runs when f has returned nil.
func (db *DB) Read(ctx context.Context, f func(*Tx) error) error {
	wait, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	select {
	case <-db.done:
		return ErrClosed
	default:
	}
	select {
	case db.readers <- struct{}{}:
		defer func() { <-db.readers }()
	case <-db.done:
		return ErrClosed
	case <-wait.Done():
		return db.notMyTurn(ctx)
	}
	return db.snapshot(ctx, f)
}

func (db *DB) snapshot(ctx context.Context, f func(*Tx) error) error {
	life, end := context.WithCancel(ctx)
	defer end()
	tx := &Tx{ctx: life, db: db, now: db.Now()}
	var err error
	if tx.tx, err = begin(life, db.read, db.d.txOptions(false)); err != nil {
		return cause(ctx, err)
	}
	defer tx.end()
	if err := f(tx); err != nil {
		return cause(ctx, err)
	}
	tx.end()
	for _, after := range tx.after {
		after()
	}
	return nil
}

// begin starts a transaction, again when the connection of the pool turns out to be dead: nothing was asked of it yet.
func begin(ctx context.Context, pool *sql.DB, o *sql.TxOptions) (tx *sql.Tx, err error) {
	for range 3 {
		if tx, err = pool.BeginTx(ctx, o); err == nil || ctx.Err() != nil || retryable(err) {
			break
		}
	}
	return tx, err
}

func (db *DB) notMyTurn(ctx context.Context) error {
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	return fmt.Errorf("the database was busy for %s: another transaction is taking too long", patience)
}

func (db *DB) sleep(ctx context.Context, d time.Duration) error {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return nil
	case <-db.done:
		return ErrClosed
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// cause prefers the reason of a cancelled context to whatever the driver made of it.
func cause(ctx context.Context, err error) error {
	if err != nil && ctx.Err() != nil && !errors.Is(err, context.Cause(ctx)) {
		return fmt.Errorf("%w (%v)", context.Cause(ctx), err)
	}
	return explain(err)
}

// NewID makes an id: a UUIDv7, so ids sort roughly by when they were made.
func NewID() string { return uuid.Must(uuid.NewV7()).String() }
