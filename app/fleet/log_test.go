package fleet

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/claude-hub/claude-hub/runner/wire"
	"github.com/claude-hub/claude-hub/store"
	"github.com/claude-hub/claude-hub/store/storetest"
)

func (r *rig) append(runner string, a Assignment, offset int64, data string, flags ...string) int64 {
	r.t.Helper()
	q := &wire.AppendLogRequest{Id: a.ID, Fence: a.Fence, Offset: offset, Data: []byte(data)}
	for _, f := range flags {
		q.Skipped = q.Skipped || f == "skipped"
		q.End = q.End || f == "end"
	}
	res, err := r.AppendLog(r.t.Context(), runner, q)
	if err != nil {
		r.t.Fatal(err)
	}
	return res.GetNext()
}

// readAll reads a log in parts of max bytes; bytes that were not kept are underscores.
func (r *rig) readAll(id string, max int) (string, LogPart) {
	r.t.Helper()
	var b strings.Builder
	for from := int64(0); ; {
		part, err := r.ReadLog(r.t.Context(), id, from, max)
		if err != nil {
			r.t.Fatal(err)
		}
		n := 0
		for _, c := range part.Chunks {
			b.WriteString(strings.Repeat("_", int(c.Offset)-b.Len()))
			b.Write(c.Data)
			n += len(c.Data)
		}
		if n > max {
			r.t.Fatalf("%d bytes were read, at most %d were asked for", n, max)
		}
		b.WriteString(strings.Repeat("_", int(part.Next)-b.Len()))
		if from = part.Next; from == part.End {
			return b.String(), part
		}
	}
}

func TestLogIsStoredOnceWhateverComesTwiceOverlappingOrOutOfOrder(t *testing.T) {
	t.Parallel()
	storetest.Each(t, func(t *testing.T, db *store.DB) {
		r := newRig(t, db, Options{})
		runner := r.runner("r1")
		for seed := range uint64(3) {
			rng := rand.New(rand.NewPCG(seed, 7))
			a := r.assign(runner, fmt.Sprint(seed), 0)
			want := make([]byte, 300_000)
			for i := range want {
				want[i] = "abcdefgh \n"[rng.IntN(10)]
			}
			for next := int64(0); next < int64(len(want)); {
				from := max(0, next+int64(rng.IntN(30_000))-25_000) // mostly overlapping, at times beyond the end
				to := min(from+int64(rng.IntN(60_000)), int64(len(want)))
				if from > int64(len(want)) {
					continue
				}
				got := r.append(runner, a, from, string(want[from:max(from, to)]))
				expect := next
				if from <= next && to > next {
					expect = to
				}
				if got != expect {
					t.Fatalf("seed %d: [%d,%d) onto %d answered %d", seed, from, to, next, got)
				}
				next = got
			}
			for _, max := range []int{1 << 20, 70_001, 4096} {
				if got, part := r.readAll(a.ID, max); got != string(want) || part.Ended || part.Dropped != 0 {
					t.Fatalf("seed %d: read %d of %d bytes by %d: %+v", seed, len(got), len(want), max, part.Dropped)
				}
			}
		}
	})
}

func TestGapInALogOnlyWhereTheRunnerSaysSo(t *testing.T) {
	t.Parallel()
	storetest.Each(t, func(t *testing.T, db *store.DB) {
		r := newRig(t, db, Options{})
		runner := r.runner("r1")
		a := r.assign(runner, "s1", 0)
		steps := []struct {
			offset int64
			data   string
			flag   string
			next   int64
		}{
			{5, "early", "", 0}, {0, "abc", "", 3}, {8, "later", "", 3}, {8, "later", "skipped", 13},
			{8, "later", "skipped", 13}, {20, "", "skipped", 20}, {20, "x", "end", 21}, {20, "x", "end", 21},
		}
		for i, s := range steps {
			if got := r.append(runner, a, s.offset, s.data, s.flag); got != s.next {
				t.Fatalf("step %d answered %d, want %d", i, got, s.next)
			}
		}
		got, part := r.readAll(a.ID, 100)
		if got != "abc_____later_______x" || !part.Ended || part.Dropped != 12 {
			t.Fatalf("%q %+v", got, part)
		}
		if part, err := r.ReadLog(t.Context(), a.ID, 15, 1); err != nil || len(part.Chunks) != 1 || part.Chunks[0].Offset != 20 {
			t.Fatalf("reading inside a gap: %+v %v", part, err)
		}
	})
}

func TestLogBeyondTheLimitKeepsHeadAndTail(t *testing.T) {
	t.Parallel()
	storetest.Each(t, func(t *testing.T, db *store.DB) {
		const limit = 80_000
		r := newRig(t, db, Options{LogLimit: limit})
		runner := r.runner("r1")
		a := r.assign(runner, "s1", 0)
		var want strings.Builder
		for i := 0; want.Len() < 10*limit; i++ {
			line := strings.Repeat(fmt.Sprintf("%d.", i), 1+i%2500)
			if next := r.append(runner, a, int64(want.Len()), line); next != int64(want.Len()+len(line)) {
				t.Fatalf("answered %d", next)
			}
			want.WriteString(line)
		}
		got, part := r.readAll(a.ID, 30_000)
		if len(got) != want.Len() {
			t.Fatalf("the log ends at %d, %d were written", len(got), want.Len())
		}
		head, tail := strings.IndexByte(got, '_'), len(got)-strings.LastIndexByte(got, '_')-1
		if got[:head] != want.String()[:head] || got[len(got)-tail:] != want.String()[want.Len()-tail:] {
			t.Fatal("head or tail is not what was written")
		}
		if kept := head + tail; kept > limit || head < limit/2 || tail < limit/4 || part.Dropped != int64(len(got)-kept) {
			t.Fatalf("head %d, tail %d, dropped %d of %d", head, tail, part.Dropped, len(got))
		}
		if strings.Count(strings.Trim(got, "_"), "_") != len(got)-head-tail {
			t.Fatal("there is more than one gap")
		}
		var rows, bytes int64
		err := db.Read(t.Context(), func(tx *store.Tx) error {
			return tx.Row(`SELECT COUNT(*), SUM(size) FROM log_chunks WHERE assignment = $1`, a.ID).Scan(&rows, &bytes)
		})
		if err != nil || bytes > limit {
			t.Fatalf("%d rows of %d bytes, %v", rows, bytes, err)
		}
	})
}

func TestOneAppendLargerThanTheLimitIsBoundedToo(t *testing.T) {
	t.Parallel()
	r := newRig(t, storetest.New(t), Options{LogLimit: 64})
	runner := r.runner("r1")
	a := r.assign(runner, "s1", 0)
	data := strings.Repeat("0123456789", 100)
	if next := r.append(runner, a, 0, data); next != 1000 {
		t.Fatalf("answered %d", next)
	}
	got, part := r.readAll(a.ID, 1000)
	if part.Dropped < 1000-64 || got[:32] != data[:32] || got[len(got)-16:] != data[len(data)-16:] {
		t.Fatalf("%q dropped %d", got, part.Dropped)
	}
}

func TestSmallAppendsShareChunks(t *testing.T) {
	t.Parallel()
	storetest.Each(t, func(t *testing.T, db *store.DB) {
		r := newRig(t, db, Options{})
		runner := r.runner("r1")
		a := r.assign(runner, "s1", 0)
		for i := range 300 {
			r.append(runner, a, int64(i*10), "123456789\n")
		}
		var rows int
		err := db.Read(t.Context(), func(tx *store.Tx) error {
			return tx.Row(`SELECT COUNT(*) FROM log_chunks WHERE assignment = $1`, a.ID).Scan(&rows)
		})
		if err != nil || rows != 1 {
			t.Fatalf("300 lines are %d rows, %v", rows, err)
		}
		if got, _ := r.readAll(a.ID, 1000); got != strings.Repeat("123456789\n", 300) {
			t.Fatalf("%d bytes", len(got))
		}
	})
}

func TestStreamsOfLaterFencesFollowInOneLog(t *testing.T) {
	t.Parallel()
	storetest.Each(t, func(t *testing.T, db *store.DB) {
		r := newRig(t, db, Options{})
		runner := r.runner("r1")
		a := r.assign(runner, "s1", 0)
		r.append(runner, a, 0, "first attempt\n")
		r.write(func(tx *store.Tx) error { return r.Refence(tx, a.ID) })
		if _, part := r.readAll(a.ID, 100); !part.Ended {
			t.Fatal("nothing can follow under the old fence")
		}
		a.Fence = 2
		if next := r.append(runner, a, 0, "second\n"); next != 7 {
			t.Fatalf("a new stream begins at 0, answered %d", next)
		}
		if got, part := r.readAll(a.ID, 100); got != "first attempt\nsecond\n" || part.Ended {
			t.Fatalf("%q %+v", got, part)
		}
	})
}

func TestManyStreamsAppendAtOnceAndOneRefusalHurtsNoOther(t *testing.T) {
	t.Parallel()
	storetest.Each(t, func(t *testing.T, db *store.DB) {
		r := newRig(t, db, Options{})
		runner := r.runner("r1")
		const streams = 12
		all := make([]Assignment, streams)
		for i := range all {
			all[i] = r.assign(runner, fmt.Sprint(i), 0)
		}
		var wg sync.WaitGroup
		errs := make(chan error, 10*streams)
		for i, a := range all {
			wg.Go(func() {
				for n := range 10 {
					q := &wire.AppendLogRequest{Id: a.ID, Fence: 1, Offset: int64(n * 100_000), Data: bytes.Repeat([]byte{byte('a' + i)}, 100_000)}
					if i == 0 {
						q.Fence = 9
					}
					res, err := r.AppendLog(context.Background(), runner, q)
					switch {
					case i == 0 && !errors.Is(err, ErrFenced):
						errs <- fmt.Errorf("fence of the future: %v", err)
					case i > 0 && err != nil:
						errs <- err
					case i > 0 && res.GetNext() != int64((n+1)*100_000):
						errs <- fmt.Errorf("stream %d answered %d", i, res.GetNext())
					}
				}
			})
		}
		wg.Wait()
		close(errs)
		for err := range errs {
			t.Error(err)
		}
		for i, a := range all[1:] {
			if got, _ := r.readAll(a.ID, 1<<20); got != strings.Repeat(string(rune('b'+i)), 1_000_000) {
				t.Errorf("stream %d has %d bytes", i+1, len(got))
			}
		}
	})
}

func TestWaitLogReturnsWhenTheLogGrowsOrEnds(t *testing.T) {
	t.Parallel()
	storetest.Each(t, func(t *testing.T, db *store.DB) {
		r := newRig(t, db, Options{})
		runner := r.runner("r1")
		a := r.assign(runner, "s1", 0)
		woken := make(chan error)
		wait := func(from int64) { go func() { woken <- r.WaitLog(context.Background(), a.ID, from) }() }
		expect := func() {
			t.Helper()
			select {
			case err := <-woken:
				if err != nil {
					t.Fatal(err)
				}
			case <-time.After(20 * time.Second):
				t.Fatal("not woken")
			}
		}
		wait(0)
		r.append(runner, a, 0, "x")
		expect()
		wait(1)
		select {
		case <-woken:
			t.Fatal("woken although nothing came")
		case <-time.After(50 * time.Millisecond):
		}
		r.append(runner, a, 1, "", "end")
		expect()
		if err := r.WaitLog(t.Context(), "nobody", 0); !errors.Is(err, ErrUnknown) {
			t.Fatalf("got %v", err)
		}
	})
}

// BenchmarkAppendLog stores 200 MB of build log in pieces of 1 MiB (issue 2: at least 20 MB/s on SQLite).
func BenchmarkAppendLog(b *testing.B) {
	for _, database := range []struct {
		name string
		url  func(testing.TB) string
	}{{"sqlite", storetest.SQLite}, {"postgres", storetest.PostgreSQL}} {
		b.Run(database.name, func(b *testing.B) {
			db := storetest.Open(b, database.url(b))
			f := New(db, Options{LogLimit: 1 << 40})
			f.Own(kind, &owner{f: f})
			var id, runner string
			err := db.Write(context.Background(), func(tx *store.Tx) error {
				runner = store.NewID()
				if _, err := tx.Exec(insertRunnerSQL, runner, "r1", hashToken(runner), "b", 1); err != nil {
					return err
				}
				a, err := f.Assign(tx, Assignment{Runner: runner, Kind: kind, Subject: "s"})
				id = a.ID
				return err
			})
			if err != nil {
				b.Fatal(err)
			}
			const total, size = 200_000_000, 1 << 20
			data := buildLog(size)
			b.SetBytes(total)
			b.ResetTimer()
			offset := int64(0)
			for range b.N {
				for end := offset + total; offset < end; offset += size {
					if _, err := f.AppendLog(context.Background(), runner, &wire.AppendLogRequest{Id: id, Fence: 1, Offset: offset, Data: data}); err != nil {
						b.Fatal(err)
					}
				}
			}
		})
	}
}

// buildLog is text about as compressible as what compilers and package managers print.
func buildLog(size int) []byte {
	rng := rand.New(rand.NewPCG(1, 2))
	var b bytes.Buffer
	for n := 0; b.Len() < size; n++ {
		fmt.Fprintf(&b, "[%5d/9000] CC src/module_%d/file_%04x.c -O2 -o build/obj/%08x.o %d ms\n", n, rng.IntN(40), rng.IntN(65536), rng.Uint32(), rng.IntN(3000))
	}
	return b.Bytes()[:size]
}
