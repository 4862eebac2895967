// Everything that differs between SQLite and PostgreSQL. No other file mentions a driver (a test looks).

package store

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"net/url"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/stdlib"
	"modernc.org/sqlite"
	sqlite3 "modernc.org/sqlite/lib"
)

func classify(err error) class {
	var l *sqlite.Error
	var p *pgconn.PgError
	switch {
	case errors.As(err, new(*pgconn.ConnectError)):
		return classAway
	case errors.As(err, &l):
		switch {
		case l.Code() == sqlite3.SQLITE_CONSTRAINT_UNIQUE, l.Code() == sqlite3.SQLITE_CONSTRAINT_PRIMARYKEY:
			return classUnique
		case l.Code()&0xff == sqlite3.SQLITE_CONSTRAINT:
			return classConstraint
		case l.Code()&0xff == sqlite3.SQLITE_FULL:
			return classFull
		case l.Code()&0xff == sqlite3.SQLITE_BUSY, l.Code()&0xff == sqlite3.SQLITE_LOCKED:
			return classConflict
		}
	case errors.As(err, &p):
		switch {
		case p.Code == "23505":
			return classUnique
		case strings.HasPrefix(p.Code, "23"):
			return classConstraint
		case p.Code == "53100":
			return classFull
		case p.Code == "40001", p.Code == "40P01": // serialization failure, deadlock
			return classConflict
		}
	}
	return classOther
}

// lite is SQLite: one file, one writer.
type lite struct{ path string }

func newLite(path string) (dialect, error) {
	p, err := place(path)
	return &lite{p}, err
}

func (l *lite) open(ctx context.Context) (pools, error) {
	at := (&url.URL{Scheme: "file", Path: l.path}).String() + "?_pragma=busy_timeout(5000)&_pragma=foreign_keys(1)"
	// Checkpoints are rarer than by default since log chunks are megabytes, and a WAL that grew is cut again.
	write, err := sql.Open("sqlite", at+"&_txlock=immediate&_pragma=page_size(8192)&_pragma=journal_mode(WAL)"+
		"&_pragma=synchronous(FULL)&_pragma=wal_autocheckpoint(4000)&_pragma=journal_size_limit(67108864)")
	if err == nil {
		if err = pingUnlocked(ctx, write); err != nil {
			err = errors.Join(err, write.Close())
		}
	}
	if err != nil {
		return pools{}, fmt.Errorf("the database %s can't be opened: %w", l.path, err)
	}
	read, err := sql.Open("sqlite", at+"&_pragma=query_only(1)")
	return pools{write: write, writers: 1, read: read, readers: 8}, err
}

func (l *lite) txOptions(write bool) *sql.TxOptions        { return &sql.TxOptions{ReadOnly: !write} }
func (l *lite) locks() (wait, skip string)                 { return "", "" }
func (l *lite) guardQuery() string                         { return "" }
func (l *lite) notify(context.Context, *sql.DB, string)    {}
func (l *lite) listen(context.Context, func(string)) error { return errNoNotify }
func (l *lite) tableExists() string {
	return `SELECT count(*) > 0 FROM sqlite_master WHERE type = 'table' AND name = $1`
}
func (l *lite) tryLock(_ context.Context, exclusive bool) (held, error) {
	return lockFile(l.path+".lock", exclusive)
}

// postgres is PostgreSQL 13 or newer; everything of ours is in the connection's current schema.
type postgres struct{ config *pgx.ConnConfig }

func newPostgres(at string) (dialect, error) {
	c, err := pgx.ParseConfig(at)
	if err != nil {
		return nil, fmt.Errorf("the database URL is not right: %w", err) // pgx leaves the password out
	}
	c.RuntimeParams["application_name"] = "claude-hub"
	return &postgres{c}, nil
}

const lockKey = `hashtextextended('claude-hub ' || current_schema(), 0)`
const hints = `'claude_hub_' || md5(current_schema())`

func (p *postgres) open(ctx context.Context) (pools, error) {
	db := stdlib.OpenDB(*p.config)
	var version int
	var encoding, schema sql.NullString
	err := db.QueryRowContext(ctx, `SELECT current_setting('server_version_num')::int, current_setting('server_encoding'),
		current_schema()`).Scan(&version, &encoding, &schema)
	switch {
	case err != nil:
		err = fmt.Errorf("the database can't be reached: %w", err)
	case version < 130000:
		err = fmt.Errorf("the database is PostgreSQL %d; claude-hub needs 13 or newer", version/10000)
	case encoding.String != "UTF8":
		err = fmt.Errorf("the database's encoding is %s; claude-hub needs UTF8 (createdb -E UTF8 -T template0 …)", encoding.String)
	case !schema.Valid:
		name := pgx.Identifier{strings.Trim(p.config.RuntimeParams["search_path"], `" `)}.Sanitize()
		if _, err = db.ExecContext(ctx, "CREATE SCHEMA IF NOT EXISTS "+name); IsUnique(err) {
			err = nil // another process was making it at the same time
		}
	}
	if err != nil {
		return pools{}, errors.Join(err, db.Close())
	}
	return pools{write: db, writers: 8, read: stdlib.OpenDB(*p.config), readers: 16}, nil
}

func (p *postgres) txOptions(write bool) *sql.TxOptions {
	if write {
		return &sql.TxOptions{Isolation: sql.LevelSerializable}
	}
	return &sql.TxOptions{Isolation: sql.LevelRepeatableRead, ReadOnly: true}
}

func (p *postgres) locks() (wait, skip string) { return " FOR UPDATE", " FOR UPDATE SKIP LOCKED" }
func (p *postgres) guardQuery() string {
	return `SELECT pg_try_advisory_xact_lock_shared(` + lockKey + `) AND set_config('enable_seqscan', 'off', true) = 'off',
		epoch FROM store_state` // a serializable scan of a whole table conflicts with every change of it: 1.4 runs became 1.02
}
func (p *postgres) tableExists() string {
	return `SELECT to_regclass(quote_ident(current_schema()) || '.' || $1) IS NOT NULL`
}

// tryLock takes the lock in a transaction that stays open, so that it also holds behind a pooler.
func (p *postgres) tryLock(ctx context.Context, exclusive bool) (held, error) {
	try := map[bool]string{true: "pg_try_advisory_xact_lock(", false: "pg_try_advisory_xact_lock_shared("}[exclusive]
	conn, err := pgx.ConnectConfig(ctx, p.config)
	if err != nil {
		return nil, fmt.Errorf("the database can't be reached: %w", err)
	}
	h, got := &pgHeld{conn}, false
	// READ COMMITTED keeps no snapshot between statements, which would hold up VACUUM.
	if _, err = conn.Exec(ctx, `BEGIN ISOLATION LEVEL READ COMMITTED; SET LOCAL idle_in_transaction_session_timeout = 0`); err == nil {
		err = conn.QueryRow(ctx, `SELECT `+try+lockKey+`)`).Scan(&got)
	}
	if err != nil || !got {
		h.release()
		return nil, err
	}
	return h, nil
}

type pgHeld struct{ conn *pgx.Conn }

func (h *pgHeld) alive(ctx context.Context) error { return h.conn.Ping(ctx) }
func (h *pgHeld) release() {
	ctx, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	_, _ = h.conn.Exec(ctx, `ROLLBACK`) // frees the lock before we return; the connection's end frees it in any case
	_ = h.conn.Close(ctx)
}

func (p *postgres) notify(ctx context.Context, db *sql.DB, hub string) {
	_, _ = db.ExecContext(ctx, `SELECT pg_notify(`+hints+`, $1)`, hub) // a hint; others poll anyway
}

func (p *postgres) listen(ctx context.Context, hear func(hub string)) error {
	conn, err := pgx.ConnectConfig(ctx, p.config)
	if err != nil {
		return err
	}
	defer (&pgHeld{conn}).release()
	var channel string
	if err = conn.QueryRow(ctx, `SELECT `+hints).Scan(&channel); err == nil {
		_, err = conn.Exec(ctx, `LISTEN `+channel)
	}
	if err != nil {
		return err
	}
	hear("") // what was said before now is lost
	for {
		n, err := conn.WaitForNotification(ctx)
		if err != nil {
			return err
		}
		hear(n.Payload)
	}
}
