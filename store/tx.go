package store

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"encoding/json"
	"errors"
	"fmt"
	"reflect"
	"strings"
	"time"
	"unicode/utf8"
)

// Tx is one transaction, given to f by Write or Read and valid until f returns. It is for one goroutine.
type Tx struct {
	ctx    context.Context
	db     *DB
	tx     *sql.Tx
	now    time.Time
	writes bool
	over   bool
	failed error
	wakes  []string
	after  []func()
}

// Now is the one time of this transaction, in whole milliseconds, UTC. When f is run again, it is a new one.
func (t *Tx) Now() time.Time { return t.now }

// Context is the transaction's own: it ends when the transaction is rolled back.
func (t *Tx) Context() context.Context { return t.ctx }

// Exec runs a statement and says how many rows it changed.
func (t *Tx) Exec(q string, a ...any) (int64, error) {
	args, err := t.ready(q, a)
	if err != nil {
		return 0, err
	}
	res, err := t.tx.ExecContext(t.ctx, q, args...)
	if err != nil {
		return 0, t.fail(err)
	}
	n, err := res.RowsAffected()
	return n, t.fail(err)
}

// Row runs a query whose first row counts. The error, ErrNotFound if there is no row, comes with Scan.
func (t *Tx) Row(q string, a ...any) Row {
	args, err := t.ready(q, a)
	if err != nil {
		return Row{err: err}
	}
	return Row{t: t, row: t.tx.QueryRowContext(t.ctx, q, args...)}
}

// Row is the answer of Tx.Row.
type Row struct {
	t   *Tx
	row *sql.Row
	err error
}

// Scan copies the row's columns into dest, or answers ErrNotFound.
func (r Row) Scan(dest ...any) error {
	if r.err != nil {
		return r.err
	}
	return r.t.fail(r.row.Scan(dest...))
}

// Rows runs a query. Close the rows, and look at their Err, before the transaction's next statement; All does both.
func (t *Tx) Rows(q string, a ...any) (*sql.Rows, error) {
	args, err := t.ready(q, a)
	if err != nil {
		return nil, err
	}
	rows, err := t.tx.QueryContext(t.ctx, q, args...)
	return rows, t.fail(err)
}

// All runs a query and makes one T of each row. The rows are closed when it returns.
func All[T any](t *Tx, one func(scan func(dest ...any) error) (T, error), q string, a ...any) ([]T, error) {
	rows, err := t.Rows(q, a...)
	if err != nil {
		return nil, err
	}
	defer rows.Close()
	var all []T
	for rows.Next() {
		v, err := one(rows.Scan)
		if err != nil {
			return nil, err
		}
		all = append(all, v)
	}
	return all, t.fail(rows.Err())
}

// Scan1 scans a row of one column, for All.
func Scan1[T any](scan func(dest ...any) error) (v T, err error) { return v, scan(&v) }

// Locked appends to a SELECT what locks its rows until the end of a Write: others that want them wait instead of running
// their transaction in vain. Never needed to be right, since Write is serializable; SQLite has one writer and needs nothing.
func (t *Tx) Locked(q string) string {
	if wait, _ := t.db.d.locks(); t.writes {
		return q + wait
	}
	return q
}

// LockedSkip is Locked for taking work from a queue: rows that another transaction has locked are passed over.
func (t *Tx) LockedSkip(q string) string {
	if _, skip := t.db.d.locks(); t.writes {
		return q + skip
	}
	return q
}

// Wake closes what Changed(topic) gave out, in this process as soon as the transaction is committed, on other Hubs
// shortly after. Waking twice is waking once. Only in a Write.
func (t *Tx) Wake(topic string) {
	if !t.writes {
		panic("store: Wake in a Read, which commits nothing")
	}
	for _, w := range t.wakes {
		if w == topic {
			return
		}
	}
	t.wakes = append(t.wakes, topic)
}

// After runs f after the commit, before Write returns and before woken waiters hear of it; several run in the order
// in which they were given. It never runs when the transaction was rolled back, and not for a run of f that was
// repeated. It must be quick, and may not use the transaction.
func (t *Tx) After(f func()) { t.after = append(t.after, f) }

func (t *Tx) end() {
	if !t.over {
		t.over = true
		_ = t.tx.Rollback() // nothing was promised yet
	}
}

type toldKey struct{}

// Told is ctx under which f is told of each statement, by its text, before it runs: also of those that fail, and again
// when a Write is run again. It is how tests show that two requests do the same work. f may be called by several
// goroutines.
func Told(ctx context.Context, f func(statement string)) context.Context {
	return context.WithValue(ctx, toldKey{}, f)
}

// ready converts arguments, and refuses to go on in a transaction that PostgreSQL would refuse to go on in.
func (t *Tx) ready(q string, a []any) ([]any, error) {
	if told, ok := t.ctx.Value(toldKey{}).(func(string)); ok {
		told(q)
	}
	if t.failed != nil {
		return nil, fmt.Errorf("an earlier statement of this transaction failed: %w", t.failed)
	}
	args := make([]any, len(a))
	for i, v := range a {
		w, err := argument(v)
		if err != nil {
			return nil, t.fail(fmt.Errorf("parameter $%d: %w", i+1, err))
		}
		args[i] = w
	}
	return args, nil
}

func (t *Tx) fail(err error) error {
	if err == nil || errors.Is(err, ErrNotFound) {
		return err
	}
	err = explain(err)
	if t.failed == nil {
		t.failed = err
	}
	return err
}

func argument(v any) (any, error) {
	switch v := v.(type) {
	case nil, []byte, int64:
		return v, nil
	case bool:
		if v {
			return int64(1), nil
		}
		return int64(0), nil
	case time.Time:
		if v.IsZero() {
			return nil, nil
		}
		return v.UnixMilli(), nil
	case json.RawMessage:
		if v == nil {
			return nil, nil
		}
		return argument(string(v))
	case string:
		if !fits(v) {
			return nil, errors.New("this text holds NUL or is not UTF-8; pass it through store.Text")
		}
		return v, nil
	case driver.Valuer:
		if rv := reflect.ValueOf(v); rv.Kind() == reflect.Pointer && rv.IsNil() {
			return nil, nil
		}
		w, err := v.Value()
		if err != nil {
			return nil, err
		}
		return argument(w)
	}
	rv := reflect.ValueOf(v)
	switch rv.Kind() {
	case reflect.Pointer:
		if rv.IsNil() {
			return nil, nil
		}
		return argument(rv.Elem().Interface())
	case reflect.String:
		return argument(rv.String())
	case reflect.Bool:
		return argument(rv.Bool())
	case reflect.Int, reflect.Int8, reflect.Int16, reflect.Int32, reflect.Int64:
		return rv.Int(), nil
	case reflect.Uint8, reflect.Uint16, reflect.Uint32:
		return int64(rv.Uint()), nil
	case reflect.Float32, reflect.Float64:
		return rv.Float(), nil
	case reflect.Slice:
		if rv.Type().Elem().Kind() == reflect.Uint8 {
			return rv.Bytes(), nil
		}
	}
	return nil, fmt.Errorf("a %T has no column type here", v)
}

func fits(s string) bool { return utf8.ValidString(s) && strings.IndexByte(s, 0) < 0 }

// Text makes s storable as TEXT on both databases: NUL and bytes that are not UTF-8 become U+FFFD.
func Text(s string) string {
	if fits(s) {
		return s
	}
	return strings.ReplaceAll(strings.ToValidUTF8(s, "\uFFFD"), "\x00", "\uFFFD")
}

// At scans a BIGINT of milliseconds into t, as UTC. NULL is the zero time.
func At(t *time.Time) sql.Scanner { return at{t} }

type at struct{ t *time.Time }

func (a at) Scan(v any) error {
	switch v := v.(type) {
	case nil:
		*a.t = time.Time{}
	case int64:
		*a.t = time.UnixMilli(v).UTC()
	default:
		return fmt.Errorf("a time is stored as BIGINT milliseconds, this column gave a %T", v)
	}
	return nil
}

// IsUnique says whether err is a broken UNIQUE or PRIMARY KEY.
func IsUnique(err error) bool { return isClass(err, classUnique) }

// IsConstraint says whether err is a broken constraint of any kind: UNIQUE, CHECK, NOT NULL, foreign key.
func IsConstraint(err error) bool { return isClass(err, classUnique, classConstraint) }

// IsFull says whether err is for want of room on the database's disk.
func IsFull(err error) bool { return isClass(err, classFull) }

// Trouble is a sentence for people where err says that the database as a whole is in no state to work, else "".
func Trouble(err error) string {
	switch classify(err) {
	case classAway:
		return "The Hub can't reach its database now. Nothing was lost; try again in a moment."
	case classFull:
		return "The disk of the Hub's database is full, so nothing can be saved. Make room there, then try again."
	}
	return ""
}

func isClass(err error, of ...class) bool {
	c := classify(err)
	for _, o := range of {
		if c == o {
			return true
		}
	}
	return false
}

// explain says in words what only the operator can mend.
func explain(err error) error {
	if errors.As(err, new(*explained)) {
		return err
	}
	if IsFull(err) {
		return &explained{"the disk that holds the database is full; make room and try again", err}
	}
	return err
}

type explained struct {
	say string
	err error
}

func (e *explained) Error() string { return e.say + ": " + e.err.Error() }
func (e *explained) Unwrap() error { return e.err }
