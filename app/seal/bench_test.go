package seal_test

import (
	"bytes"
	"context"
	"fmt"
	"testing"

	"github.com/claude-hub/claude-hub/app/seal"
	"github.com/claude-hub/claude-hub/store"
	"github.com/claude-hub/claude-hub/store/storetest"
)

// BenchmarkSeal seals and opens 10,000 values of 100 bytes.
func BenchmarkSeal(b *testing.B) {
	const n = 10_000
	k := keysOf(b, fixed(1))
	plain := bytes.Repeat([]byte("x"), 100)
	places := make([]seal.Place, n)
	sealed := make([][]byte, n)
	for i := range places {
		places[i] = seal.Place{Table: "variables", Column: "value", Row: store.NewID()}
	}
	b.Run("seal", func(b *testing.B) {
		b.SetBytes(n * int64(len(plain)))
		for b.Loop() {
			for i, p := range places {
				var err error
				if sealed[i], _, err = k.Seal(p, plain); err != nil {
					b.Fatal(err)
				}
			}
		}
	})
	b.Run("open", func(b *testing.B) {
		b.SetBytes(n * int64(len(plain)))
		for b.Loop() {
			for i, p := range places {
				if _, err := k.Open(p, sealed[i]); err != nil {
					b.Fatal(err)
				}
			}
		}
	})
}

// BenchmarkCheck is what the check at start costs beside 100,000 values, and BenchmarkRotate what sealing them anew does.
func BenchmarkCheck(b *testing.B) {
	eachB(b, func(b *testing.B, db *store.DB) {
		makeTables(b, db)
		s := started(b, db, keysOf(b, fixed(1)), "a")
		put(b, db, s, 0, 50_000)
		for b.Loop() {
			if err := s.Check(context.Background()); err != nil {
				b.Fatal(err)
			}
		}
	})
}

func BenchmarkRotate(b *testing.B) {
	eachB(b, func(b *testing.B, db *store.DB) {
		makeTables(b, db)
		const n = 5_000 // in each of two tables
		put(b, db, started(b, db, keysOf(b, fixed(1), fixed(2)), "a"), 0, n)
		from, to := byte(1), byte(2)
		for b.Loop() {
			write(b, db, func(tx *store.Tx) error {
				_, err := tx.Exec(`DELETE FROM encryption_hubs`)
				return err
			})
			done, err := seal.New(db, keysOf(b, fixed(to), fixed(from)), tables).Rotate(context.Background(), nil)
			if err != nil || fmt.Sprint(done.Values) != fmt.Sprintf("[letters.body: %d pins.pin: %d]", n, n) {
				b.Fatalf("%+v, %v", done, err)
			}
			from, to = to, from
		}
		b.ReportMetric(float64(2*n*b.N)/b.Elapsed().Seconds(), "values/s")
	})
}

func eachB(b *testing.B, bench func(b *testing.B, db *store.DB)) {
	b.Run("sqlite", func(b *testing.B) { bench(b, storetest.New(b)) })
	b.Run("postgres", func(b *testing.B) { bench(b, storetest.Open(b, storetest.PostgreSQL(b))) })
}
