package seal_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/claude-hub/claude-hub/app/seal"
	"github.com/claude-hub/claude-hub/store"
	"github.com/claude-hub/claude-hub/store/storetest"
)

// retired are the ids of the keys that are.
func retired(t testing.TB, db *store.DB) (ids []string) {
	t.Helper()
	if err := db.Read(context.Background(), func(tx *store.Tx) (err error) {
		ids, err = store.All(tx, store.Scan1[string], `SELECT key_id FROM encryption_keys WHERE retired_at IS NOT NULL ORDER BY key_id`)
		return err
	}); err != nil {
		t.Fatal(err)
	}
	return ids
}

func TestRotateSealsEverythingUnderTheFirstKeyAndRetiresTheOthers(t *testing.T) {
	t.Parallel()
	storetest.Each(t, func(t *testing.T, db *store.DB) {
		makeTables(t, db)
		a, b := keysOf(t, fixed(1)), keysOf(t, fixed(2), fixed(1))
		c := keysOf(t, fixed(3), fixed(2), fixed(1))
		n := 2*seal.Batch + 50
		clock := storetest.NewClock(db)
		put(t, db, started(t, db, a, "a"), 0, n)
		put(t, db, started(t, db, b, "b"), n, 30)
		clock.Advance(time.Hour) // those Hubs are gone
		write(t, db, func(tx *store.Tx) error {
			_, err := tx.Exec(`INSERT INTO letters (id, name) VALUES ('cleared', 'of no value')`)
			return err
		})
		var steps []seal.Progress
		done, err := seal.New(db, c, tables).Rotate(t.Context(), func(p seal.Progress) { steps = append(steps, p) })
		if err != nil {
			t.Fatal(err)
		}
		all := int64(n + 30)
		if fmt.Sprint(done.Values) != fmt.Sprintf("[letters.body: %d pins.pin: %d]", all, all) || done.To != c.Primary() {
			t.Errorf("done: %+v", done)
		}
		want := []string{a.Primary(), b.Primary()}
		slices.Sort(want)
		slices.Sort(done.Retired)
		if !slices.Equal(done.Retired, want) {
			t.Errorf("retired %v, want %v", done.Retired, want)
		}
		if got := retired(t, db); !slices.Equal(got, want) {
			t.Errorf("retired in the database: %v, want %v", got, want)
		}
		for i, p := range steps {
			if p.Total != 2*all || i > 0 && p.Done <= steps[i-1].Done || p.Done > p.Total {
				t.Fatalf("step %d: %+v", i, p)
			}
		}
		if last := steps[len(steps)-1]; last.Done != last.Total || len(steps) != 8 {
			t.Errorf("%d steps, the last is %+v", len(steps), last)
		}
		only := keysOf(t, fixed(3))
		if s := look(t, db, only); s.open != 2*int(all) || s.null != 1 || len(s.under) != 1 {
			t.Errorf("with the new key only: %+v", s)
		}
		started(t, db, only, "without the old keys")
		if again, err := seal.New(db, c, tables).Rotate(t.Context(), nil); err != nil || len(again.Values)+len(again.Retired) != 0 {
			t.Errorf("run again: %+v, %v", again, err)
		}

		// Back to an old key: it is in use again.
		clock.Advance(time.Hour)
		back := seal.New(db, keysOf(t, fixed(1), fixed(3)), tables)
		if done, err := back.Rotate(t.Context(), nil); err != nil || !slices.Equal(done.Retired, []string{only.Primary()}) {
			t.Errorf("rotated back: %+v, %v", done, err)
		}
		if s := look(t, db, a); s.open != 2*int(all) {
			t.Errorf("rotated back: %+v", s)
		}
	})
}

func TestRotateLeavesAKeyThatARunningHubSealsWith(t *testing.T) {
	t.Parallel()
	storetest.Each(t, func(t *testing.T, db *store.DB) {
		makeTables(t, db)
		clock := storetest.NewClock(db)
		old := started(t, db, keysOf(t, fixed(1), fixed(2)), "hub-7 on rack-2")
		put(t, db, old, 0, 5)
		rotate := seal.New(db, keysOf(t, fixed(2), fixed(1)), tables)
		done, err := rotate.Rotate(t.Context(), nil)
		var kept *seal.KeptError
		if !errors.As(err, &kept) || len(kept.KeptBack) != 1 || kept.KeptBack[0].ID != keysOf(t, fixed(1)).Primary() || !strings.Contains(err.Error(), "hub-7 on rack-2") {
			t.Fatalf("got %v", err)
		}
		if len(done.Retired) != 0 || len(retired(t, db)) != 0 || len(done.Values) != 2 {
			t.Errorf("done: %+v", done)
		}
		put(t, db, old, 5, 1) // that Hub goes on
		if s := look(t, db, keysOf(t, fixed(1))); s.open != 2 || s.unknown != 10 {
			t.Errorf("under the old key alone: %+v", s)
		}
		clock.Advance(seal.Live + time.Second)
		if done, err = rotate.Rotate(t.Context(), nil); err != nil || len(done.Retired) != 1 {
			t.Fatalf("once the Hub is gone: %+v, %v", done, err)
		}
		// A Hub that was only silent doesn't seal under the retired key.
		var retired *seal.RetiredError
		err = db.Write(t.Context(), func(tx *store.Tx) error { return putOne(tx, old, 6) })
		if !errors.As(err, &retired) || !strings.Contains(err.Error(), "restart this Hub") {
			t.Errorf("sealed under a retired key: %v", err)
		}
	})
}

func TestRotateStopsBeforeAHubThatCouldNotRead(t *testing.T) {
	t.Parallel()
	storetest.Each(t, func(t *testing.T, db *store.DB) {
		makeTables(t, db)
		old := started(t, db, keysOf(t, fixed(1)), "hub-7")
		put(t, db, old, 0, 5)
		before := dump(t, db)
		rotate := seal.New(db, keysOf(t, fixed(2), fixed(1)), tables)
		if _, err := rotate.Rotate(t.Context(), nil); err == nil || !strings.Contains(err.Error(), "hub-7") || !strings.Contains(err.Error(), rotate2(t)) {
			t.Fatalf("got %v", err)
		}
		if _, err := seal.New(db, keysOf(t, fixed(2)), tables).Rotate(t.Context(), nil); !errors.As(err, new(*seal.LostError)) {
			t.Fatalf("without the old key: %v", err)
		}
		if after := dump(t, db); after != before {
			t.Errorf("something was written:\n%s", after)
		}
	})
}

func rotate2(t testing.TB) string { return keysOf(t, fixed(2)).Primary() }

func TestRotateLeavesWhatIsDamagedAsItIs(t *testing.T) {
	t.Parallel()
	storetest.Each(t, func(t *testing.T, db *store.DB) {
		makeTables(t, db)
		clock := storetest.NewClock(db)
		put(t, db, started(t, db, keysOf(t, fixed(1)), "a"), 0, seal.Batch+5)
		clock.Advance(time.Hour)
		blob := bytes.Repeat([]byte{1}, 40)
		write(t, db, func(tx *store.Tx) error {
			_, err := tx.Exec(`UPDATE pins SET pin = $1 WHERE pin_id IN ('row-00000', 'row-00102')`, blob)
			return err
		})
		_, err := seal.New(db, keysOf(t, fixed(2), fixed(1)), tables).Rotate(t.Context(), nil)
		if !errors.As(err, new(*seal.KeptError)) || !strings.Contains(err.Error(), "2 values") || !strings.Contains(err.Error(), "pins.pin of row-00102") {
			t.Fatalf("got %v", err)
		}
		s := look(t, db, keysOf(t, fixed(2)))
		if s.open != 2*(seal.Batch+5)-2 || s.under[keysOf(t, fixed(1)).Primary()] != 2 || len(retired(t, db)) != 0 {
			t.Errorf("%+v", s)
		}
		var left []byte
		if err := db.Read(t.Context(), func(tx *store.Tx) error { return tx.Row(`SELECT pin FROM pins WHERE pin_id = 'row-00102'`).Scan(&left) }); err != nil || !bytes.Equal(left, blob) {
			t.Errorf("the damaged value was changed (%v)", err)
		}
	})
}

// While Rotate runs, Hubs that have both keys read everything and enter new values, under the one key or the other. No
// read fails, and what was entered stays.
func TestHubsReadAndWriteDuringRotate(t *testing.T) {
	t.Parallel()
	storetest.Each(t, func(t *testing.T, db *store.DB) {
		makeTables(t, db)
		const n = 600
		old := started(t, db, keysOf(t, fixed(1), fixed(2)), "old first")
		young := started(t, db, keysOf(t, fixed(2), fixed(1)), "new first")
		put(t, db, old, 0, n)
		ctx, stop := context.WithCancel(t.Context())
		var wg sync.WaitGroup
		var reads int
		entered := map[string]string{}
		wg.Go(func() {
			for ctx.Err() == nil {
				if err := readAll(db, keysOf(t, fixed(1), fixed(2))); err != nil {
					t.Errorf("a reader failed: %v", err)
					return
				}
				reads++
			}
		})
		wg.Go(func() {
			for i := 0; ctx.Err() == nil; i++ {
				id, value := fmt.Sprintf("row-%05d", rand.IntN(n)), fmt.Sprint("entered ", i)
				hub := []*seal.Service{old, young}[i%2]
				err := db.Write(context.Background(), func(tx *store.Tx) error {
					sealed, key, err := hub.Seal(tx, seal.Place{Table: "letters", Column: "body", Row: id}, []byte(value))
					if err != nil {
						return err
					}
					_, err = tx.Exec(`UPDATE letters SET body = $1, body_key_id = $2, name = $3 WHERE id = $4`, sealed, key, value, id)
					return err
				})
				if err != nil {
					t.Errorf("entering a value: %v", err)
					return
				}
				entered[id] = value
			}
		})
		rotate := seal.New(db, keysOf(t, fixed(2), fixed(1)), tables)
		for range 3 {
			if _, err := rotate.Rotate(ctx, nil); !errors.As(err, new(*seal.KeptError)) {
				t.Errorf("rotate beside a Hub that has the old key first: %v", err)
			}
		}
		stop()
		wg.Wait()
		if reads == 0 || len(entered) == 0 {
			t.Errorf("%d reads and %d values entered meanwhile: nothing was tried", reads, len(entered))
		}
		for id, want := range entered {
			var sealed []byte
			if err := db.Read(t.Context(), func(tx *store.Tx) error { return tx.Row(`SELECT body FROM letters WHERE id = $1`, id).Scan(&sealed) }); err != nil {
				t.Fatal(err)
			}
			got, err := young.Open(seal.Place{Table: "letters", Column: "body", Row: id}, sealed)
			if err != nil || string(got) != want {
				t.Errorf("%s holds %q (%v), the last value entered was %q", id, got, err, want)
			}
		}
	})
}

// readAll opens every letter and pin; a letter's value must be what its name says, or the one it began with.
func readAll(db *store.DB, keys seal.Keys) error {
	return db.Read(context.Background(), func(tx *store.Tx) error {
		type letter struct {
			id, name string
			body     []byte
		}
		all, err := store.All(tx, func(scan func(...any) error) (l letter, err error) { return l, scan(&l.id, &l.name, &l.body) },
			`SELECT id, name, body FROM letters UNION ALL SELECT pin_id, 'name of ' || pin_id, pin FROM pins`)
		if err != nil {
			return err
		}
		for i, l := range all {
			place := seal.Place{Table: "letters", Column: "body", Row: l.id}
			if i >= len(all)/2 {
				place = seal.Place{Table: "pins", Column: "pin", Row: l.id}
			}
			plain, err := keys.Open(place, l.body)
			if err != nil {
				return err
			}
			if string(plain) != l.name && "name of "+l.id != l.name {
				return fmt.Errorf("%s opens to %q beside the name %q", place, plain, l.name)
			}
		}
		return nil
	})
}

// P13. A child process rotates and kills itself, with SIGKILL, after a certain row, inside that row's transaction.
func TestRotateGoesOnAfterBeingKilledAtAnyRow(t *testing.T) {
	if url := os.Getenv("SEAL_TEST_ROTATE"); url != "" {
		left, err := strconv.Atoi(os.Getenv("SEAL_TEST_ROWS"))
		if err != nil {
			t.Fatal(err)
		}
		db, err := store.Open(context.Background(), url)
		if err != nil {
			t.Fatal(err)
		}
		s := seal.New(db, keysOf(t, fixed(2), fixed(1)), tables)
		s.EachRow(func() {
			if left--; left == 0 {
				_ = syscall.Kill(os.Getpid(), syscall.SIGKILL)
				select {} // until it arrives
			}
		})
		_, err = s.Rotate(context.Background(), nil)
		t.Fatalf("it was not killed: %v", err)
	}
	t.Parallel()
	storetest.EachURL(t, func(t *testing.T, url string) {
		db := storetest.Open(t, url)
		makeTables(t, db)
		const n = 450 // and as many pins
		both := keysOf(t, fixed(2), fixed(1))
		put(t, db, started(t, db, keysOf(t, fixed(1), fixed(2)), "a Hub"), 0, n)
		// Beside the others a Hub that has both keys, the new one first.
		write(t, db, func(tx *store.Tx) error {
			_, err := tx.Exec(`DELETE FROM encryption_hubs`)
			return err
		})
		started(t, db, both, "a new Hub")
		seed := uint64(time.Now().UnixNano())
		random := rand.New(rand.NewPCG(seed, 1))
		t.Logf("seed %d", seed)
		rows := []int{1, seal.Batch - 1, seal.Batch, seal.Batch + 1, 1, seal.Batch + 2}
		for range 4 {
			rows = append(rows, 1+random.IntN(2*seal.Batch))
		}
		before := 2 * n
		for _, row := range rows {
			cmd := exec.CommandContext(t.Context(), os.Args[0], "-test.run=^TestRotateGoesOnAfterBeingKilledAtAnyRow$")
			cmd.Env = append(os.Environ(), "SEAL_TEST_ROTATE="+url, "SEAL_TEST_ROWS="+strconv.Itoa(row))
			out, err := cmd.CombinedOutput()
			var exit *exec.ExitError
			if status, ok := (syscall.WaitStatus)(0), errors.As(err, &exit); ok {
				status, _ = exit.Sys().(syscall.WaitStatus)
				if status.Signal() != syscall.SIGKILL {
					t.Fatalf("row %d: the child ended by itself: %v\n%s", row, err, out)
				}
			} else {
				t.Fatalf("row %d: %v\n%s", row, err, out)
			}
			s := look(t, db, both)
			if s.open != 2*n {
				t.Fatalf("killed at row %d: %+v", row, s)
			}
			left := s.under[keysOf(t, fixed(1)).Primary()]
			if left > before || left < before-(row-1) {
				t.Fatalf("killed at row %d: %d under the old key, %d before", row, left, before)
			}
			before = left
		}
		if before == 2*n || before == 0 {
			t.Fatalf("%d of %d are under the old key after all kills: they tried nothing", before, 2*n)
		}
		done, err := seal.New(db, both, tables).Rotate(t.Context(), nil)
		if err != nil || len(done.Retired) != 1 {
			t.Fatalf("the last run: %+v, %v", done, err)
		}
		if s := look(t, db, keysOf(t, fixed(2))); s.open != 2*n || len(s.under) != 1 {
			t.Errorf("afterwards, with the new key only: %+v", s)
		}
	})
}
