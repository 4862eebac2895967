package seal_test

import (
	"errors"
	"fmt"
	"testing"

	"github.com/claude-hub/claude-hub/app/audit"
	"github.com/claude-hub/claude-hub/app/seal"
	"github.com/claude-hub/claude-hub/store"
	"github.com/claude-hub/claude-hub/store/storetest"
)

func audited(tx *store.Tx, c seal.Cleared) error {
	return audit.Record(tx, audit.Entry{Who: "system: secrets-reset", Action: "secrets.reset", Detail: map[string]any{"cleared": c.Columns, "keys": c.Keys}})
}

func number(t testing.TB, db *store.DB, q string) (n int) {
	t.Helper()
	if err := db.Read(t.Context(), func(tx *store.Tx) error { return tx.Row(q).Scan(&n) }); err != nil {
		t.Fatal(err)
	}
	return n
}

// alone closes the Hub's handle and opens the database as secrets-reset does.
func alone(t testing.TB, hub *store.DB, url string) *store.DB {
	t.Helper()
	if err := hub.Close(); err != nil {
		t.Fatal(err)
	}
	return storetest.Open(t, url, store.Exclusive())
}

func TestResetClearsWhatCanNotBeOpenedAndNothingElse(t *testing.T) {
	t.Parallel()
	storetest.EachURL(t, func(t *testing.T, url string) {
		hub := storetest.Open(t, url)
		makeTables(t, hub)
		lostKey, kept := keysOf(t, fixed(1)), keysOf(t, fixed(2))
		put(t, hub, started(t, hub, lostKey, "a"), 0, 7)
		put(t, hub, started(t, hub, keysOf(t, fixed(2), fixed(1)), "b"), 7, seal.Batch+20)
		write(t, hub, func(tx *store.Tx) error { // and two that are damaged under the key that is there, one per table
			for _, q := range []string{`UPDATE letters SET body = $1 WHERE id = 'row-00110'`, `UPDATE pins SET pin = $1 WHERE pin_id = 'row-00008'`} {
				if _, err := tx.Exec(q, []byte("rubbish")); err != nil {
					return err
				}
			}
			return nil
		})
		db := alone(t, hub, url)
		s := seal.New(db, kept, tables)
		want := "[letters.body: 7 whose key is missing, 1 damaged pins.pin: 7 whose key is missing, 1 damaged]"

		before := dump(t, db)
		dry, err := s.Reset(t.Context(), true, nil)
		if err != nil || fmt.Sprint(dry.Columns) != want || dry.Values() != 16 {
			t.Fatalf("dry run: %+v, %v", dry, err)
		}
		refused := errors.New("no audit")
		if _, err := s.Reset(t.Context(), false, func(*store.Tx, seal.Cleared) error { return refused }); !errors.Is(err, refused) {
			t.Fatalf("without its audit entry: %v", err)
		}
		if after := dump(t, db); after != before {
			t.Fatalf("a dry run or one that failed changed something:\n%s", after)
		}

		done, err := s.Reset(t.Context(), false, audited)
		if err != nil || fmt.Sprint(done) != fmt.Sprint(dry) || len(done.Keys) != 1 || done.Keys[0] != lostKey.Primary() {
			t.Fatalf("reset: %+v, %v; want as the dry run: %+v", done, err, dry)
		}
		if st := look(t, db, kept); st.null != 16 || st.open != 2*(seal.Batch+20)-2 || st.unknown+st.damaged != 0 {
			t.Errorf("afterwards: %+v", st)
		}
		for q, want := range map[string]int{
			`SELECT count(*) FROM letters WHERE name = 'name of ' || id`:                      7 + seal.Batch + 20, // rows and names stay
			`SELECT count(*) FROM letters WHERE lost_at IS NOT NULL AND body IS NULL`:         8,
			`SELECT count(*) FROM letters WHERE lost_at IS NOT NULL`:                          8,
			`SELECT count(*) FROM audit_log WHERE action = 'secrets.reset'`:                   1,
			`SELECT count(*) FROM encryption_hubs`:                                            0,
			`SELECT count(*) FROM encryption_keys WHERE retired_at IS NOT NULL`:               1,
			`SELECT count(*) FROM letters WHERE body IS NULL AND id = 'row-00110'`:            1,
			`SELECT count(*) FROM pins WHERE pin IS NULL AND pin_id = 'row-00008'`:            1,
			`SELECT count(*) FROM pins WHERE pin IS NULL AND pin_id > 'row-00008'`:            0,
			`SELECT count(*) FROM letters WHERE body IS NULL AND body_key_id IS NULL`:         8,
			`SELECT count(*) FROM letters WHERE lost_at > 1700000000000 AND id < 'row-00007'`: 7,
		} {
			if got := number(t, db, q); got != want {
				t.Errorf("%s: %d, want %d", q, got, want)
			}
		}
		again, err := s.Reset(t.Context(), false, audited)
		if err != nil || again.Values() != 0 || len(again.Keys) != 0 || number(t, db, `SELECT count(*) FROM audit_log`) != 1 {
			t.Errorf("run again: %+v, %v", again, err)
		}
		if err := s.Start(t.Context(), "after the reset"); err != nil {
			t.Errorf("the Hub doesn't start after the reset: %v", err)
		}
	})
}

func TestResetMendsACheckValueAndKeepsWhatItsKeyOpens(t *testing.T) {
	t.Parallel()
	storetest.EachURL(t, func(t *testing.T, url string) {
		hub := storetest.Open(t, url)
		makeTables(t, hub)
		k := keysOf(t, fixed(1))
		put(t, hub, started(t, hub, k, "a"), 0, 3)
		write(t, hub, func(tx *store.Tx) error {
			_, err := tx.Exec(`UPDATE encryption_keys SET check_blob = $1`, []byte("x"))
			return err
		})
		db := alone(t, hub, url)
		s := seal.New(db, k, tables)
		done, err := s.Reset(t.Context(), false, audited)
		if err != nil || done.Values() != 0 || len(done.Mended) != 1 || number(t, db, `SELECT count(*) FROM audit_log`) != 1 {
			t.Fatalf("%+v, %v", done, err)
		}
		if st := look(t, db, k); st.open != 6 {
			t.Errorf("afterwards: %+v", st)
		}
		if err := s.Check(t.Context()); err != nil {
			t.Error(err)
		}
	})
}

func TestResetWithoutAnyKeyGivesUpEverything(t *testing.T) {
	t.Parallel()
	storetest.EachURL(t, func(t *testing.T, url string) {
		hub := storetest.Open(t, url)
		makeTables(t, hub)
		put(t, hub, started(t, hub, keysOf(t, fixed(1)), "a"), 0, 3)
		db := alone(t, hub, url)
		s := seal.New(db, seal.Keys{}, tables)
		if done, err := s.Reset(t.Context(), false, audited); err != nil || done.Values() != 6 {
			t.Fatalf("%+v, %v", done, err)
		}
		if err := s.Start(t.Context(), "b"); err != nil {
			t.Error(err)
		}
		if st := look(t, db, seal.Keys{}); st.null != 6 || st.open+st.unknown+st.damaged != 0 {
			t.Errorf("afterwards: %+v", st)
		}
	})
}
