package store_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/claude-hub/claude-hub/store"
	"github.com/claude-hub/claude-hub/store/storetest"
)

// write runs statements in one Write and fails the test if one fails.
func write(t testing.TB, db *store.DB, statements ...string) {
	t.Helper()
	if err := db.Write(context.Background(), func(tx *store.Tx) error {
		for _, q := range statements {
			if _, err := tx.Exec(q); err != nil {
				return fmt.Errorf("%s: %w", q, err)
			}
		}
		return nil
	}); err != nil {
		t.Fatal(err)
	}
}

// number reads one number.
func number(t testing.TB, db *store.DB, q string, a ...any) (n int64) {
	t.Helper()
	if err := db.Read(context.Background(), func(tx *store.Tx) error { return tx.Row(q, a...).Scan(&n) }); err != nil {
		t.Fatal(err)
	}
	return n
}

func TestParametersBindByNumberNotByPlace(t *testing.T) {
	t.Parallel()
	storetest.Each(t, func(t *testing.T, db *store.DB) {
		write(t, db, `CREATE TABLE pair (a TEXT, b TEXT)`)
		if err := db.Write(t.Context(), func(tx *store.Tx) error {
			_, err := tx.Exec(`INSERT INTO pair (b, a) VALUES ($2, $1)`, "one", "two")
			return err
		}); err != nil {
			t.Fatal(err)
		}
		var got [2]string
		if err := db.Read(t.Context(), func(tx *store.Tx) error {
			return tx.Row(`SELECT b, a FROM pair WHERE b = $2 AND a = $1 AND a <> $2`, "one", "two").Scan(&got[0], &got[1])
		}); err != nil {
			t.Fatal(err)
		}
		if got != [2]string{"two", "one"} {
			t.Errorf("b, a = %q, want two, one", got)
		}
	})
}

func TestValuesComeBackAsTheyWentIn(t *testing.T) {
	t.Parallel()
	storetest.Each(t, func(t *testing.T, db *store.DB) {
		write(t, db, `CREATE TABLE v (id TEXT PRIMARY KEY, yes BIGINT CHECK (yes IN (0, 1)), at BIGINT, doc TEXT, data BYTEA)`)
		type name string
		when := time.Date(2026, 3, 4, 5, 6, 7, 890_123_456, time.FixedZone("x", 3600))
		big := bytes.Repeat([]byte{0, 1, 2, 0xff}, 1<<20)
		rows := []struct {
			id   string
			yes  any
			at   any
			doc  any
			data any
		}{
			{"full", true, when, json.RawMessage(`{"a":1}`), big},
			{"empty", false, time.Time{}, name("n"), []byte{}},
			{"null", nil, (*time.Time)(nil), (*string)(nil), []byte(nil)},
		}
		if err := db.Write(t.Context(), func(tx *store.Tx) error {
			for _, r := range rows {
				if _, err := tx.Exec(`INSERT INTO v VALUES ($1, $2, $3, $4, $5)`, r.id, r.yes, r.at, r.doc, r.data); err != nil {
					return err
				}
			}
			return nil
		}); err != nil {
			t.Fatal(err)
		}
		type row struct {
			yes  *bool
			at   time.Time
			doc  *string
			data []byte
		}
		get := func(id string) (r row) {
			t.Helper()
			if err := db.Read(t.Context(), func(tx *store.Tx) error {
				// The document is compared too, as bytes stored in TEXT would not be equal to text.
				return tx.Row(`SELECT yes, at, doc, data FROM v WHERE id = $1 AND (doc IS NULL OR doc = $2 OR doc = 'n')`,
					id, `{"a":1}`).Scan(&r.yes, store.At(&r.at), &r.doc, &r.data)
			}); err != nil {
				t.Fatal(id, err)
			}
			return r
		}
		full, empty, null := get("full"), get("empty"), get("null")
		if full.yes == nil || !*full.yes || !full.at.Equal(when.Truncate(time.Millisecond)) || full.at.Location() != time.UTC ||
			full.doc == nil || *full.doc != `{"a":1}` || !bytes.Equal(full.data, big) {
			t.Errorf("full came back as yes=%v at=%v doc=%v and %d bytes", full.yes, full.at, full.doc, len(full.data))
		}
		if empty.yes == nil || *empty.yes || !empty.at.IsZero() || empty.doc == nil || *empty.doc != "n" ||
			len(empty.data) != 0 {
			t.Errorf("empty came back as %+v", empty)
		}
		if n := number(t, db, `SELECT count(*) FROM v WHERE data IS NULL`); n != 1 { // only nil is NULL
			t.Errorf("%d rows hold NULL bytes, want 1", n)
		}
		if null.yes != nil || !null.at.IsZero() || null.doc != nil || null.data != nil {
			t.Errorf("null came back as %+v", null)
		}
	})
}

func TestTextThatOneDatabaseCannotHoldIsRefusedByBoth(t *testing.T) {
	t.Parallel()
	storetest.Each(t, func(t *testing.T, db *store.DB) {
		write(t, db, `CREATE TABLE x (s TEXT)`)
		for _, bad := range []string{"a\x00b", "a\xffb"} {
			err := db.Write(t.Context(), func(tx *store.Tx) error {
				_, err := tx.Exec(`INSERT INTO x VALUES ($1)`, bad)
				return err
			})
			if err == nil || !strings.Contains(err.Error(), "store.Text") {
				t.Errorf("%q: got %v, want an error that names store.Text", bad, err)
			}
			if err := db.Write(t.Context(), func(tx *store.Tx) error {
				_, err := tx.Exec(`INSERT INTO x VALUES ($1)`, store.Text(bad))
				return err
			}); err != nil {
				t.Errorf("%q through Text: %v", bad, err)
			}
		}
		if n := number(t, db, `SELECT count(*) FROM x WHERE s = $1`, "a\uFFFDb"); n != 2 {
			t.Errorf("%d rows were cleaned to a\uFFFDb, want 2", n)
		}
	})
}

func TestBrokenConstraintsAreRecognized(t *testing.T) {
	t.Parallel()
	storetest.Each(t, func(t *testing.T, db *store.DB) {
		write(t, db, `CREATE TABLE p (id TEXT PRIMARY KEY, n BIGINT UNIQUE CHECK (n > 0))`,
			`CREATE TABLE c (p TEXT NOT NULL REFERENCES p (id))`, `INSERT INTO p VALUES ('a', 1)`)
		for q, unique := range map[string]bool{
			`INSERT INTO p VALUES ('a', 2)`:  true,
			`INSERT INTO p VALUES ('b', 1)`:  true,
			`INSERT INTO p VALUES ('b', -1)`: false,
			`INSERT INTO c VALUES ('none')`:  false,
			`INSERT INTO c VALUES (NULL)`:    false,
		} {
			err := db.Write(t.Context(), func(tx *store.Tx) error {
				_, err := tx.Exec(q)
				return err
			})
			if !store.IsConstraint(err) || store.IsUnique(err) != unique {
				t.Errorf("%s: constraint=%t unique=%t, want true, %t (%v)", q, store.IsConstraint(err), store.IsUnique(err), unique, err)
			}
		}
		if err := db.Read(t.Context(), func(tx *store.Tx) error {
			var s string
			return tx.Row(`SELECT id FROM p WHERE id = 'none'`).Scan(&s)
		}); !errors.Is(err, store.ErrNotFound) || store.IsConstraint(err) {
			t.Errorf("no row: got %v, want ErrNotFound", err)
		}
	})
}

func TestAFailedStatementEndsItsTransaction(t *testing.T) {
	t.Parallel()
	storetest.Each(t, func(t *testing.T, db *store.DB) {
		write(t, db, `CREATE TABLE x (id TEXT PRIMARY KEY)`, `INSERT INTO x VALUES ('a')`)
		err := db.Write(t.Context(), func(tx *store.Tx) error {
			if _, err := tx.Exec(`INSERT INTO x VALUES ('a')`); !store.IsUnique(err) {
				t.Errorf("got %v, want a broken UNIQUE", err)
			}
			if _, err := tx.Exec(`INSERT INTO x VALUES ('b')`); err == nil {
				t.Error("a statement after a failed one ran")
			}
			return nil // the error was swallowed
		})
		if !store.IsUnique(err) {
			t.Errorf("Write answered %v, want the statement's error although f returned nil", err)
		}
		if n := number(t, db, `SELECT count(*) FROM x`); n != 1 {
			t.Errorf("%d rows, want 1", n)
		}
	})
}

// TestWritesAreSerializable: each transaction sees that both are on call and takes one off. One of each pair must see
// what the other did.
func TestWritesAreSerializable(t *testing.T) {
	t.Parallel()
	storetest.EachURL(t, func(t *testing.T, url string) {
		hubs := []*store.DB{storetest.Open(t, url), storetest.Open(t, url)}
		write(t, hubs[0], `CREATE TABLE oncall (pair BIGINT, who BIGINT, yes BIGINT, PRIMARY KEY (pair, who))`)
		var runs atomic.Int64
		const pairs = 20
		for p := range pairs {
			write(t, hubs[0], fmt.Sprintf(`INSERT INTO oncall VALUES (%d, 0, 1), (%d, 1, 1)`, p, p))
			var wg sync.WaitGroup
			for who := range 2 {
				wg.Go(func() {
					if err := hubs[who].Write(context.Background(), func(tx *store.Tx) error {
						runs.Add(1)
						var n int
						if err := tx.Row(`SELECT count(*) FROM oncall WHERE pair = $1 AND yes = 1`, p).Scan(&n); err != nil || n < 2 {
							return err
						}
						_, err := tx.Exec(`UPDATE oncall SET yes = 0 WHERE pair = $1 AND who = $2`, p, who)
						return err
					}); err != nil {
						t.Error(err)
					}
				})
			}
			wg.Wait()
		}
		if n := number(t, hubs[0], `SELECT count(*) FROM oncall WHERE yes = 1`); n != pairs {
			t.Errorf("%d of %d pairs have somebody on call", n, pairs)
		}
		t.Logf("%d runs for %d transactions", runs.Load(), 2*pairs)
	})
}

// TestWriteSkewIsPrevented: both transactions read both rows before either writes its own.
func TestWriteSkewIsPrevented(t *testing.T) {
	t.Parallel()
	db := storetest.Open(t, storetest.PostgreSQL(t)) // SQLite has one writer: nothing can conflict
	write(t, db, `CREATE TABLE oncall (who BIGINT PRIMARY KEY, yes BIGINT)`, `INSERT INTO oncall VALUES (0, 1), (1, 1)`)
	leave := func(who int, meanwhile func()) {
		t.Helper()
		if err := db.Write(t.Context(), func(tx *store.Tx) error {
			var n int
			if err := tx.Row(`SELECT count(*) FROM oncall WHERE yes = 1`).Scan(&n); err != nil || n < 2 {
				return err
			}
			meanwhile()
			meanwhile = func() {}
			_, err := tx.Exec(`UPDATE oncall SET yes = 0 WHERE who = $1`, who)
			return err
		}); err != nil {
			t.Fatal(err)
		}
	}
	leave(0, func() { leave(1, func() {}) })
	if n := number(t, db, `SELECT count(*) FROM oncall WHERE yes = 1`); n != 1 {
		t.Errorf("%d are on call, want 1", n)
	}
}

func TestAConflictRunsTheTransactionAgainAndItsEffectsOnce(t *testing.T) {
	t.Parallel()
	db := storetest.Open(t, storetest.PostgreSQL(t)) // SQLite has one writer: nothing can conflict
	write(t, db, `CREATE TABLE n (id BIGINT PRIMARY KEY, v BIGINT)`, `INSERT INTO n VALUES (1, 0)`)
	runs, after := 0, 0
	var times []time.Time
	if err := db.Write(t.Context(), func(tx *store.Tx) error {
		runs++
		times = append(times, tx.Now())
		tx.After(func() { after++ })
		var v int64
		if err := tx.Row(`SELECT v FROM n WHERE id = 1`).Scan(&v); err != nil {
			return err
		}
		if runs == 1 {
			write(t, db, `UPDATE n SET v = 10 WHERE id = 1`) // another transaction is quicker
		}
		_, err := tx.Exec(`UPDATE n SET v = $1 WHERE id = 1`, v+1)
		if err != nil {
			return errors.New("an error that says nothing of its cause")
		}
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	if v := number(t, db, `SELECT v FROM n`); v != 11 || runs != 2 || after != 1 {
		t.Errorf("v=%d after %d runs with %d effects, want 11, 2, 1", v, runs, after)
	}
}

func TestManyWritersOfOneRowAllGetThrough(t *testing.T) {
	t.Parallel()
	storetest.EachURL(t, func(t *testing.T, url string) {
		hubs := []*store.DB{storetest.Open(t, url), storetest.Open(t, url)}
		write(t, hubs[0], `CREATE TABLE n (v BIGINT)`, `INSERT INTO n VALUES (0)`)
		var wg sync.WaitGroup
		for i := range 16 {
			wg.Go(func() {
				for range 5 {
					if err := hubs[i%2].Write(context.Background(), func(tx *store.Tx) error {
						tx.Wake("n")
						var v int64
						if err := tx.Row(tx.Locked(`SELECT v FROM n`)).Scan(&v); err != nil {
							return err
						}
						_, err := tx.Exec(`UPDATE n SET v = $1`, v+1)
						return err
					}); err != nil {
						t.Error(err)
					}
				}
			})
		}
		wg.Wait()
		if v := number(t, hubs[0], `SELECT v FROM n`); v != 80 {
			t.Errorf("v = %d after 80 additions", v)
		}
	})
}

func TestSkippedLocksHandOutWorkOnce(t *testing.T) {
	t.Parallel()
	storetest.Each(t, func(t *testing.T, db *store.DB) {
		write(t, db, `CREATE TABLE job (id BIGINT PRIMARY KEY, taken BIGINT NOT NULL)`)
		for i := range 20 {
			write(t, db, fmt.Sprintf(`INSERT INTO job VALUES (%d, 0)`, i))
		}
		var got sync.Map
		var wg sync.WaitGroup
		for range 4 {
			wg.Go(func() {
				for {
					var id int64
					err := db.Write(context.Background(), func(tx *store.Tx) error {
						if err := tx.Row(tx.LockedSkip(`SELECT id FROM job WHERE taken = 0 ORDER BY id LIMIT 1`)).Scan(&id); err != nil {
							return err
						}
						_, err := tx.Exec(`UPDATE job SET taken = 1 WHERE id = $1`, id)
						return err
					})
					if errors.Is(err, store.ErrNotFound) {
						return
					}
					if err != nil {
						t.Error(err)
						return
					}
					if _, twice := got.LoadOrStore(id, true); twice {
						t.Errorf("job %d was handed out twice", id)
					}
				}
			})
		}
		wg.Wait()
		if n := number(t, db, `SELECT count(*) FROM job WHERE taken = 0`); n != 0 {
			t.Errorf("%d jobs are left", n)
		}
	})
}

func TestAfterRunsInOrderAndOnlyWhenStored(t *testing.T) {
	t.Parallel()
	storetest.Each(t, func(t *testing.T, db *store.DB) {
		write(t, db, `CREATE TABLE x (id TEXT)`)
		var order []string
		woken := db.Changed("x")
		if err := db.Write(t.Context(), func(tx *store.Tx) error {
			tx.Wake("x")
			for _, s := range []string{"a", "b", "c"} {
				tx.After(func() { order = append(order, s) })
			}
			tx.After(func() {
				if n := number(t, db, `SELECT count(*) FROM x`); n != 1 {
					t.Errorf("After sees %d rows, want the committed 1", n)
				}
				select {
				case <-woken:
					t.Error("waiters were woken before After ran")
				default:
				}
			})
			_, err := tx.Exec(`INSERT INTO x VALUES ('1')`)
			if len(order) > 0 {
				t.Error("After ran before the commit")
			}
			return err
		}); err != nil {
			t.Fatal(err)
		}
		if got := strings.Join(order, ""); got != "abc" {
			t.Errorf("After ran in order %q, want abc", got)
		}
		never := func(tx *store.Tx) { tx.After(func() { t.Error("After ran for a transaction that was rolled back") }) }
		refused := errors.New("refused")
		if err := db.Write(t.Context(), func(tx *store.Tx) error { never(tx); return refused }); !errors.Is(err, refused) {
			t.Errorf("got %v, want f's own error", err)
		}
		ctx, cancel := context.WithCancel(t.Context())
		if err := db.Write(ctx, func(tx *store.Tx) error { never(tx); cancel(); return nil }); !errors.Is(err, context.Canceled) {
			t.Errorf("got %v, want context.Canceled", err)
		}
	})
}

func TestAPanicRollsBackAndFreesTheWriter(t *testing.T) {
	t.Parallel()
	storetest.Each(t, func(t *testing.T, db *store.DB) {
		write(t, db, `CREATE TABLE x (id TEXT)`)
		for range 10 { // more than there are writers
			func() {
				defer func() {
					if recover() == nil {
						t.Error("the panic was swallowed")
					}
				}()
				_ = db.Write(t.Context(), func(tx *store.Tx) error {
					if _, err := tx.Exec(`INSERT INTO x VALUES ('1')`); err != nil {
						t.Error(err)
					}
					panic("f is broken")
				})
			}()
		}
		write(t, db, `INSERT INTO x VALUES ('2')`)
		if n := number(t, db, `SELECT count(*) FROM x`); n != 1 {
			t.Errorf("%d rows, want 1", n)
		}
	})
}

func TestAReadIsOneSnapshotAndDisturbsNoWriter(t *testing.T) {
	t.Parallel()
	storetest.Each(t, func(t *testing.T, db *store.DB) {
		write(t, db, `CREATE TABLE x (id TEXT)`, `INSERT INTO x VALUES ('1')`)
		count := func(tx *store.Tx) (n int) {
			if err := tx.Row(`SELECT count(*) FROM x`).Scan(&n); err != nil {
				t.Error(err)
			}
			return n
		}
		if err := db.Read(t.Context(), func(tx *store.Tx) error {
			first := count(tx)
			write(t, db, `INSERT INTO x VALUES ('2')`)
			if second := count(tx); first != 1 || second != 1 {
				t.Errorf("one Read counted %d, then %d, want 1 twice", first, second)
			}
			return nil
		}); err != nil {
			t.Fatal(err)
		}
		if err := db.Write(t.Context(), func(tx *store.Tx) error {
			if _, err := tx.Exec(`INSERT INTO x VALUES ('3')`); err != nil {
				return err
			}
			if own, other := count(tx), number(t, db, `SELECT count(*) FROM x`); own != 3 || other != 2 {
				t.Errorf("an open Write counts %d and a Read beside it %d, want 3 and 2", own, other)
			}
			return nil
		}); err != nil {
			t.Fatal(err)
		}
	})
}

func TestAReadCannotWrite(t *testing.T) {
	t.Parallel()
	storetest.Each(t, func(t *testing.T, db *store.DB) {
		write(t, db, `CREATE TABLE x (id TEXT)`)
		if err := db.Read(t.Context(), func(tx *store.Tx) error {
			_, err := tx.Exec(`INSERT INTO x VALUES ('1')`)
			return err
		}); err == nil {
			t.Error("a Read wrote")
		}
		if n := number(t, db, `SELECT count(*) FROM x`); n != 0 {
			t.Errorf("%d rows, want 0", n)
		}
	})
}

func TestTheTransactionHasOneTime(t *testing.T) {
	t.Parallel()
	storetest.Each(t, func(t *testing.T, db *store.DB) {
		clock := storetest.NewClock(db)
		clock.Advance(123456 * time.Nanosecond)
		want := clock.Now().Truncate(time.Millisecond)
		if err := db.Write(t.Context(), func(tx *store.Tx) error {
			clock.Advance(time.Hour)
			if !tx.Now().Equal(want) || tx.Now().Location() != time.UTC {
				t.Errorf("Now is %v, want %v", tx.Now(), want)
			}
			return nil
		}); err != nil {
			t.Fatal(err)
		}
	})
}

func TestAllClosesItsRowsBeforeTheNextStatement(t *testing.T) {
	t.Parallel()
	storetest.Each(t, func(t *testing.T, db *store.DB) {
		write(t, db, `CREATE TABLE x (id TEXT)`, `INSERT INTO x VALUES ('1'), ('2')`)
		if err := db.Write(t.Context(), func(tx *store.Tx) error {
			ids, err := store.All(tx, store.Scan1[string], `SELECT id FROM x ORDER BY id`)
			if err != nil {
				return err
			}
			if strings.Join(ids, " ") != "1 2" {
				t.Errorf("got %q", ids)
			}
			for _, id := range ids {
				if n, err := tx.Exec(`DELETE FROM x WHERE id = $1`, id); err != nil || n != 1 {
					t.Errorf("deleted %d rows: %v", n, err)
				}
			}
			return nil
		}); err != nil {
			t.Fatal(err)
		}
	})
}

func TestAClosedDatabaseAnswersSo(t *testing.T) {
	t.Parallel()
	storetest.Each(t, func(t *testing.T, db *store.DB) {
		waiting := db.Changed("x")
		if err := errors.Join(db.Close(), db.Close()); err != nil {
			t.Fatal(err)
		}
		for _, err := range []error{
			db.Write(t.Context(), func(*store.Tx) error { return nil }),
			db.Read(t.Context(), func(*store.Tx) error { return nil }),
		} {
			if !errors.Is(err, store.ErrClosed) {
				t.Errorf("got %v, want ErrClosed", err)
			}
		}
		for _, ch := range []<-chan struct{}{waiting, db.Changed("x")} {
			select {
			case <-ch:
			case <-time.After(time.Minute):
				t.Error("a waiter sleeps on after Close")
			}
		}
	})
}

func TestWaitingForTheWriterCanBeCancelled(t *testing.T) {
	t.Parallel()
	db := storetest.New(t) // the one with a single writer
	if err := db.Write(t.Context(), func(*store.Tx) error {
		ctx, cancel := context.WithCancel(t.Context())
		answer := make(chan error)
		go func() { answer <- db.Write(ctx, func(*store.Tx) error { return nil }) }()
		cancel()
		select {
		case err := <-answer:
			if !errors.Is(err, context.Canceled) {
				t.Errorf("got %v, want context.Canceled", err)
			}
		case <-time.After(time.Minute):
			t.Error("it waits on for the writer")
		}
		return nil
	}); err != nil {
		t.Fatal(err)
	}
}

func TestAFullDiskIsSaidInWords(t *testing.T) {
	t.Parallel()
	db := storetest.New(t)
	write(t, db, `CREATE TABLE x (data BYTEA)`)
	err := db.Write(t.Context(), func(tx *store.Tx) error {
		if _, err := tx.Exec(`PRAGMA max_page_count = 1`); err != nil { // SQLite raises it to what is used
			return err
		}
		_, err := tx.Exec(`INSERT INTO x VALUES ($1)`, make([]byte, 1<<20))
		return err
	})
	if !store.IsFull(err) || !strings.Contains(err.Error(), "make room") {
		t.Errorf("got %v, want the sentence for a full disk", err)
	}
	if !strings.Contains(store.Trouble(err), "is full") {
		t.Errorf("people are told %q", store.Trouble(err))
	}
}
