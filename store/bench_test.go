package store_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"sync/atomic"
	"testing"

	"github.com/claude-hub/claude-hub/store"
	"github.com/claude-hub/claude-hub/store/storetest"
)

// eachB runs bench on both databases. The tests' PostgreSQL doesn't wait for its disk: name a real one with
// CLAUDE_HUB_TEST_POSTGRES for figures that can be compared.
func eachB(b *testing.B, bench func(b *testing.B, db *store.DB)) {
	b.Run("sqlite", func(b *testing.B) { bench(b, storetest.New(b)) })
	b.Run("postgres", func(b *testing.B) { bench(b, storetest.Open(b, storetest.PostgreSQL(b))) })
}

// BenchmarkLogAppend is what a build's log costs: chunks of one size, one transaction each.
func BenchmarkLogAppend(b *testing.B) {
	for _, size := range []int{64 << 10, 512 << 10, 4 << 20} {
		chunk := make([]byte, size)
		r := rand.NewChaCha8([32]byte{1})
		_, _ = r.Read(chunk) // never fails
		b.Run(fmt.Sprintf("%dKiB", size>>10), func(b *testing.B) {
			eachB(b, func(b *testing.B, db *store.DB) {
				write(b, db, `CREATE TABLE log (stream TEXT, at BIGINT, data BYTEA, PRIMARY KEY (stream, at))`)
				b.SetBytes(int64(size))
				at := int64(0)
				for b.Loop() {
					if err := db.Write(context.Background(), func(tx *store.Tx) error {
						tx.Wake("log")
						_, err := tx.Exec(`INSERT INTO log VALUES ($1, $2, $3)`, "stream", at, chunk)
						return err
					}); err != nil {
						b.Fatal(err)
					}
					at += int64(size)
				}
			})
		})
	}
}

// BenchmarkSmallWrites is leases and states: many small transactions from many goroutines.
func BenchmarkSmallWrites(b *testing.B) {
	eachB(b, func(b *testing.B, db *store.DB) {
		write(b, db, `CREATE TABLE lease (id BIGINT PRIMARY KEY, until BIGINT)`)
		var next atomic.Int64
		b.SetParallelism(8)
		b.RunParallel(func(pb *testing.PB) {
			id := next.Add(1)
			for pb.Next() {
				if err := db.Write(context.Background(), func(tx *store.Tx) error {
					_, err := tx.Exec(`INSERT INTO lease VALUES ($1, $2) ON CONFLICT (id) DO UPDATE SET until = excluded.until`, id, tx.Now())
					return err
				}); err != nil {
					b.Error(err)
				}
			}
		})
	})
}

func BenchmarkRead(b *testing.B) {
	eachB(b, func(b *testing.B, db *store.DB) {
		for b.Loop() {
			var n int
			if err := db.Read(context.Background(), func(tx *store.Tx) error {
				return tx.Row(`SELECT count(*) FROM topics WHERE hub = $1`, "x").Scan(&n)
			}); err != nil {
				b.Fatal(err)
			}
		}
	})
}

// BenchmarkStreams is many logs at once: each transaction looks up its stream's offset, appends, and moves the offset.
func BenchmarkStreams(b *testing.B) {
	chunk := make([]byte, 64<<10)
	eachB(b, func(b *testing.B, db *store.DB) {
		write(b, db, `CREATE TABLE stream (id BIGINT PRIMARY KEY, next BIGINT NOT NULL)`,
			`CREATE TABLE log (stream BIGINT REFERENCES stream (id), at BIGINT, data BYTEA, PRIMARY KEY (stream, at))`)
		for id := range 16 {
			write(b, db, fmt.Sprintf(`INSERT INTO stream VALUES (%d, 0)`, id))
		}
		write(b, db, `ANALYZE stream`) // a table this small is scanned whole by a planner that knows its size
		var next, runs, done atomic.Int64
		b.SetBytes(int64(len(chunk)))
		b.ResetTimer()
		b.SetParallelism(8)
		b.RunParallel(func(pb *testing.PB) {
			id := next.Add(1) % 16
			for pb.Next() {
				if err := db.Write(context.Background(), func(tx *store.Tx) error {
					runs.Add(1)
					tx.Wake(fmt.Sprint("log ", id))
					var at int64
					if err := tx.Row(tx.Locked(`SELECT next FROM stream WHERE id = $1`), id).Scan(&at); err != nil {
						return err
					}
					if _, err := tx.Exec(`INSERT INTO log VALUES ($1, $2, $3)`, id, at, chunk); err != nil {
						return err
					}
					_, err := tx.Exec(`UPDATE stream SET next = $1 WHERE id = $2`, at+int64(len(chunk)), id)
					return err
				}); err != nil {
					b.Error(err)
				}
				done.Add(1)
			}
		})
		b.ReportMetric(float64(runs.Load())/float64(done.Load()), "runs/tx")
	})
}
