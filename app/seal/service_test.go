package seal_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/claude-hub/claude-hub/app/seal"
	"github.com/claude-hub/claude-hub/store"
	"github.com/claude-hub/claude-hub/store/storetest"
)

// Two tables of these tests, one that marks lost values and one that doesn't.
var (
	letters = seal.Column{Table: "letters", Column: "body", KeyColumn: "body_key_id", ID: "id", LostAt: "lost_at"}
	pins    = seal.Column{Table: "pins", Column: "pin", KeyColumn: "pin_key_id", ID: "pin_id"}
	tables  = []seal.Column{letters, pins}
)

func makeTables(t testing.TB, db *store.DB) {
	t.Helper()
	write(t, db, func(tx *store.Tx) error {
		for _, ddl := range []string{
			`CREATE TABLE letters (id TEXT PRIMARY KEY, name TEXT NOT NULL, body BYTEA, body_key_id TEXT REFERENCES encryption_keys (key_id),
				lost_at BIGINT, CHECK ((body IS NULL) = (body_key_id IS NULL)))`,
			`CREATE INDEX letters_key ON letters (body_key_id, id)`,
			`CREATE TABLE pins (pin_id TEXT PRIMARY KEY, pin BYTEA, pin_key_id TEXT REFERENCES encryption_keys (key_id),
				CHECK ((pin IS NULL) = (pin_key_id IS NULL)))`,
			`CREATE INDEX pins_key ON pins (pin_key_id, pin_id)`,
		} {
			if _, err := tx.Exec(ddl); err != nil {
				return err
			}
		}
		return nil
	})
}

func write(t testing.TB, db *store.DB, f func(*store.Tx) error) {
	t.Helper()
	if err := db.Write(context.Background(), f); err != nil {
		t.Fatal(err)
	}
}

func started(t testing.TB, db *store.DB, keys seal.Keys, name string) *seal.Service {
	t.Helper()
	s := seal.New(db, keys, tables)
	if err := s.Start(context.Background(), name); err != nil {
		t.Fatal(err)
	}
	return s
}

// put seals n letters and n pins, named from the number from on. The value of a row is its id, twice.
func put(t testing.TB, db *store.DB, s *seal.Service, from, n int) {
	t.Helper()
	for start := from; start < from+n; start += 500 {
		write(t, db, func(tx *store.Tx) error {
			for i := start; i < min(start+500, from+n); i++ {
				if err := putOne(tx, s, i); err != nil {
					return err
				}
			}
			return nil
		})
	}
}

func putOne(tx *store.Tx, s *seal.Service, i int) error {
	id := fmt.Sprintf("row-%05d", i)
	sealed, key, err := s.Seal(tx, seal.Place{Table: "letters", Column: "body", Row: id}, []byte(id+id))
	if err != nil {
		return err
	}
	if _, err := tx.Exec(`INSERT INTO letters (id, name, body, body_key_id) VALUES ($1, $2, $3, $4)`, id, "name of "+id, sealed, key); err != nil {
		return err
	}
	if sealed, key, err = s.Seal(tx, seal.Place{Table: "pins", Column: "pin", Row: id}, []byte(id+id)); err != nil {
		return err
	}
	_, err = tx.Exec(`INSERT INTO pins (pin_id, pin, pin_key_id) VALUES ($1, $2, $3)`, id, sealed, key)
	return err
}

// state is what is in the two tables, as somebody with keys finds it.
type state struct {
	open, null, unknown, damaged int
	under                        map[string]int
}

func look(t testing.TB, db *store.DB, keys seal.Keys) state {
	t.Helper()
	s, err := read(db, keys)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// read fails when a value opens to something else than what was put there.
func read(db *store.DB, keys seal.Keys) (state, error) {
	s := state{under: map[string]int{}}
	err := db.Read(context.Background(), func(tx *store.Tx) error {
		for _, c := range tables {
			rows, err := tx.Rows(`SELECT ` + c.ID + `, ` + c.Column + `, coalesce(` + c.KeyColumn + `, '') FROM ` + c.Table)
			if err != nil {
				return err
			}
			defer rows.Close()
			for rows.Next() {
				var id, key string
				var sealed []byte
				if err := rows.Scan(&id, &sealed, &key); err != nil {
					return err
				}
				if key == "" && sealed == nil {
					s.null++
					continue
				}
				s.under[key]++
				plain, err := keys.Open(seal.Place{Table: c.Table, Column: c.Column, Row: id}, sealed)
				switch {
				case errors.As(err, new(*seal.UnknownKeyError)):
					s.unknown++
				case errors.As(err, new(*seal.DamagedError)):
					s.damaged++
				case err != nil:
					return err
				case string(plain) != id+id:
					return fmt.Errorf("%s of %s opens to %q", c.Table, id, plain)
				default:
					s.open++
				}
			}
			if err := errors.Join(rows.Err(), rows.Close()); err != nil {
				return err
			}
		}
		return nil
	})
	return s, err
}

// dump is every row of every table that sealing touches, to see that nothing was written.
func dump(t testing.TB, db *store.DB) string {
	t.Helper()
	var b strings.Builder
	if err := db.Read(context.Background(), func(tx *store.Tx) error {
		for _, q := range []string{
			`SELECT key_id, check_blob, created_at, coalesce(retired_at, 0) FROM encryption_keys ORDER BY key_id`,
			`SELECT hub, name, key_ids, seen_at FROM encryption_hubs ORDER BY hub`,
			`SELECT id, body, coalesce(body_key_id, ''), coalesce(lost_at, 0) FROM letters ORDER BY id`,
			`SELECT pin_id, pin, coalesce(pin_key_id, ''), 0 FROM pins ORDER BY pin_id`,
		} {
			rows, err := tx.Rows(q)
			if err != nil {
				return err
			}
			for rows.Next() {
				v := make([]any, 4)
				if err := rows.Scan(&v[0], &v[1], &v[2], &v[3]); err != nil {
					return err
				}
				fmt.Fprintln(&b, v...)
			}
			if err := errors.Join(rows.Err(), rows.Close()); err != nil {
				return err
			}
		}
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	return b.String()
}

func TestAHubWithoutItsKeysDoesNotStartAndWritesNothing(t *testing.T) {
	t.Parallel()
	storetest.Each(t, func(t *testing.T, db *store.DB) {
		makeTables(t, db)
		a, b := keysOf(t, fixed(1)), keysOf(t, fixed(2))
		put(t, db, started(t, db, a, "a"), 0, 3)
		both := started(t, db, keysOf(t, fixed(2), fixed(1)), "b")
		put(t, db, both, 3, 2)
		before := dump(t, db)
		for name, keys := range map[string]seal.Keys{
			"no key": {}, "another key": keysOf(t, fixed(3)), "only the new one": b, "only the old one": a,
		} {
			s := seal.New(db, keys, tables)
			for _, check := range []error{s.Check(t.Context()), s.Start(t.Context(), "c")} {
				var lost *seal.LostError
				if !errors.As(check, &lost) {
					t.Fatalf("%s: got %v, want LostError", name, check)
				}
				for _, m := range lost.Missing {
					want := map[string]string{a.Primary(): "letters.body: 3, pins.pin: 3", b.Primary(): "letters.body: 2, pins.pin: 2"}[m.ID]
					if want == "" || !strings.Contains(check.Error(), m.ID+" (values in "+want+")") {
						t.Errorf("%s: want key %s with %q in: %v", name, m.ID, want, check)
					}
				}
				for _, remedy := range []string{"hub.encryption_keys", "hub.encryption_key_file", "secrets-reset --dry-run"} {
					if !strings.Contains(check.Error(), remedy) {
						t.Errorf("%s: %q is not in: %v", name, remedy, check)
					}
				}
				want := 1
				if name == "no key" || name == "another key" {
					want = 2
				}
				if len(lost.Missing) != want || len(lost.Damaged) != 0 {
					t.Errorf("%s: %d keys missing, want %d: %+v", name, len(lost.Missing), want, lost)
				}
			}
		}
		if after := dump(t, db); after != before {
			t.Errorf("something was written:\n%s\nbefore:\n%s", after, before)
		}
		started(t, db, keysOf(t, fixed(1), fixed(3), fixed(2)), "in any order")
	})
}

func TestAKeyThatDoesNotOpenItsCheckValueStopsTheHub(t *testing.T) {
	t.Parallel()
	storetest.Each(t, func(t *testing.T, db *store.DB) {
		makeTables(t, db)
		k := keysOf(t, fixed(1))
		started(t, db, k, "a")
		write(t, db, func(tx *store.Tx) error {
			_, err := tx.Exec(`UPDATE encryption_keys SET check_blob = $1`, []byte("x"))
			return err
		})
		before := dump(t, db)
		err := seal.New(db, k, tables).Start(t.Context(), "b")
		var lost *seal.LostError
		if !errors.As(err, &lost) || len(lost.Damaged) != 1 || lost.Damaged[0] != k.Primary() || !strings.Contains(err.Error(), "secrets-reset") {
			t.Fatalf("got %v", err)
		}
		if after := dump(t, db); after != before {
			t.Errorf("something was written:\n%s", after)
		}
		started(t, db, keysOf(t, fixed(2)), "with another key, as nothing is sealed under the first one")
	})
}

func TestWithoutKeysAHubRunsUntilSomethingMustBeSealed(t *testing.T) {
	t.Parallel()
	storetest.Each(t, func(t *testing.T, db *store.DB) {
		makeTables(t, db)
		s := started(t, db, seal.Keys{}, "a")
		if err := db.Write(t.Context(), func(tx *store.Tx) error { return putOne(tx, s, 1) }); !errors.Is(err, seal.ErrNoKey) {
			t.Fatalf("got %v, want ErrNoKey", err)
		}
		if _, err := s.Rotate(t.Context(), nil); !errors.Is(err, seal.ErrNoKey) {
			t.Fatalf("rotate: got %v, want ErrNoKey", err)
		}
	})
}

func TestOnlyListedColumnsAndRegisteredKeysSeal(t *testing.T) {
	t.Parallel()
	db := storetest.New(t)
	makeTables(t, db)
	s := seal.New(db, keysOf(t, fixed(1)), []seal.Column{letters})
	try := func(p seal.Place) error {
		return db.Write(t.Context(), func(tx *store.Tx) error {
			_, _, err := s.Seal(tx, p, []byte("x"))
			return err
		})
	}
	if err := try(seal.Place{Table: "letters", Column: "body", Row: "1"}); err == nil || !strings.Contains(err.Error(), "before Start") {
		t.Errorf("before Start: %v", err)
	}
	if err := s.Start(t.Context(), "a"); err != nil {
		t.Fatal(err)
	}
	if err := try(seal.Place{Table: "letters", Column: "body", Row: "1"}); err != nil {
		t.Error(err)
	}
	if err := try(seal.Place{Table: "letters", Column: "body"}); err == nil {
		t.Error("sealed for a row without an id")
	}
	if err := try(seal.Place{Table: "pins", Column: "pin", Row: "1"}); err == nil || !strings.Contains(err.Error(), "not listed") {
		t.Errorf("a column that is not listed: %v", err)
	}
	defer func() {
		if recover() == nil {
			t.Error("New takes a column name that is no name")
		}
	}()
	seal.New(db, seal.Keys{}, []seal.Column{{Table: "a; DROP TABLE b", Column: "c", KeyColumn: "d", ID: "e"}})
}

func TestHubsThatLackAKeyAreFoundWhileTheyRun(t *testing.T) {
	t.Parallel()
	storetest.Each(t, func(t *testing.T, db *store.DB) {
		makeTables(t, db)
		clock := storetest.NewClock(db)
		one := started(t, db, keysOf(t, fixed(1)), "the first Hub")
		two := started(t, db, keysOf(t, fixed(2), fixed(1)), "the second Hub")
		strangers := func(s *seal.Service) (names string) {
			t.Helper()
			hubs, err := s.Strangers(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			for _, h := range hubs {
				names += h.Name + ";"
			}
			return names
		}
		if got := strangers(two); got != "the first Hub;" {
			t.Errorf("lacking the second Hub's key: %q", got)
		}
		if got := strangers(one); got != "" {
			t.Errorf("lacking the first Hub's key: %q", got)
		}
		clock.Advance(seal.Live + time.Second)
		if got := strangers(two); got != "" {
			t.Errorf("a Hub that was not heard of for long still counts: %q", got)
		}
		ctx, stop := context.WithCancel(t.Context())
		three := started(t, db, keysOf(t, fixed(3)), "the third Hub")
		kept := make(chan struct{})
		go func() { three.Keep(ctx); close(kept) }()
		if got := strangers(two); got != "the third Hub;" {
			t.Errorf("lacking the second Hub's key: %q", got)
		}
		stop()
		<-kept
		if got := strangers(two); got != "" {
			t.Errorf("a Hub that stopped still counts: %q", got)
		}
	})
}

// P15: what is on disk holds no value, neither as it is nor encoded.
func TestTheFilesOfTheDatabaseHoldNoValue(t *testing.T) {
	t.Parallel()
	url := storetest.SQLite(t)
	db := storetest.Open(t, url)
	makeTables(t, db)
	text := fixed(1)
	put(t, db, started(t, db, keysOf(t, text), "a"), 0, 20)
	write(t, db, func(tx *store.Tx) error {
		_, err := tx.Exec(`INSERT INTO letters (id, name) VALUES ('findable', 'findable-name')`)
		return err
	})
	var all []byte
	path := strings.TrimPrefix(url, "sqlite://")
	for _, file := range []string{path, path + "-wal"} {
		b, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, b...)
	}
	if !strings.Contains(string(all), "findable-name") || !strings.Contains(string(all), "row-00007") {
		t.Fatal("what is not sealed is not found either, so this test looks at nothing")
	}
	for _, form := range []string{"row-00007row-00007", "cm93LTAwMDA3cm93LTAwMDA3", "726f772d3030303037726f77", text, text[:16]} {
		if strings.Contains(string(all), form) {
			t.Errorf("%q is in the database's files", form)
		}
	}
}
