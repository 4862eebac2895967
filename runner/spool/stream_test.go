package spool

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"os"
	"strings"
	"testing"
)

func TestStreamReachesTheHubOnceWhateverIsLostOnTheWay(t *testing.T) {
	t.Parallel()
	for seed := range uint64(5) {
		rng := rand.New(rand.NewPCG(seed, 1))
		s := open(t, t.TempDir(), Options{Segment: 300})
		st := stream(t, s)
		h := &hub{}
		var want strings.Builder
		for step := range 200 {
			switch rng.IntN(6) {
			case 0, 1, 2:
				line := strings.Repeat(fmt.Sprintf("%d,", step), rng.IntN(30))
				add(t, st, line, int64(step+1))
				want.WriteString(line)
				if st.Writer("p").RawEnd() != int64(step+1) {
					t.Fatalf("seed %d: raw end %d after %d", seed, st.Writer("p").RawEnd(), step+1)
				}
			case 3, 4: // the answer may be lost
				p, ok, err := st.Next(1 + rng.IntN(500))
				if err != nil {
					t.Fatal(err)
				}
				if !ok {
					continue
				}
				next := h.take(p)
				if rng.IntN(3) > 0 {
					if err := st.Ack(next, p.End); err != nil {
						t.Fatal(err)
					}
				}
			case 5:
				raw := st.Writer("p").RawEnd()
				s = reopen(t, s)
				st = stream(t, s)
				if st.End() != int64(want.Len()) || st.Writer("p").RawEnd() != raw {
					t.Fatalf("seed %d: after reopening end %d of %d, raw %d of %d", seed, st.End(), want.Len(), st.Writer("p").RawEnd(), raw)
				}
			}
		}
		if err := st.Finish(); err != nil {
			t.Fatal(err)
		}
		h.drain(t, st, 1000)
		if h.text() != want.String() || h.gaps != 0 || !h.ended || !st.Done() {
			t.Fatalf("seed %d: %d gaps, ended %v, done %v, %d of %d bytes", seed, h.gaps, h.ended, st.Done(), len(h.got), want.Len())
		}
	}
}

func TestTornLastRecordIsCutAtAnyByte(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	s := open(t, dir, Options{})
	st := stream(t, s)
	add(t, st, "first\n", 10)
	add(t, st, "second\n", 20)
	whole := st.active().size
	add(t, st, "third\n", 30)
	path, full := st.active().path, st.active().size
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	content, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	for size := whole; size < full; size++ {
		for _, garbage := range [][]byte{nil, bytes.Repeat([]byte{0}, 40), bytes.Repeat([]byte{0xff}, 40)} {
			if err := os.WriteFile(path, append(bytes.Clone(content[:size]), garbage...), 0o600); err != nil {
				t.Fatal(err)
			}
			s, err := Open(dir, Options{})
			if err != nil {
				t.Fatal(err)
			}
			st := stream(t, s)
			if st.End() != int64(len("first\nsecond\n")) || st.Writer("p").RawEnd() != 20 {
				t.Fatalf("cut at %d: end %d, raw %d", size, st.End(), st.Writer("p").RawEnd())
			}
			add(t, st, "again\n", 31)
			h := &hub{}
			h.drain(t, st, 7)
			if h.text() != "first\nsecond\nagain\n" {
				t.Fatalf("cut at %d: %q", size, h.text())
			}
			if err := s.Close(); err != nil {
				t.Fatal(err)
			}
		}
	}
}

func TestMiddleIsDroppedBeyondTheLimitAndTheHubIsTold(t *testing.T) {
	t.Parallel()
	s := open(t, t.TempDir(), Options{Segment: 1 << 10, Limit: 16 << 10})
	st := stream(t, s)
	var want strings.Builder
	for i := range 3000 {
		line := fmt.Sprintf("line %06d of three thousand\n", i)
		add(t, st, line, int64(i+1))
		want.WriteString(line)
	}
	if used := diskUse(t, s.dir); used > 20<<10 {
		t.Fatalf("%d bytes on disk, the limit is 16 KiB", used)
	}
	s = reopen(t, s)
	st = stream(t, s)
	if st.End() != int64(want.Len()) || st.Writer("p").RawEnd() != 3000 {
		t.Fatalf("end %d, raw end %d", st.End(), st.Writer("p").RawEnd())
	}
	h := &hub{}
	h.drain(t, st, 1<<10)
	got := h.text()
	if len(got) != want.Len() || h.gaps != 1 {
		t.Fatalf("%d of %d bytes, %d gaps", len(got), want.Len(), h.gaps)
	}
	head, tail := strings.IndexByte(got, '_'), strings.LastIndexByte(got, '_')+1
	if head < 4<<10 || len(got)-tail < 4<<10 {
		t.Fatalf("head of %d and tail of %d bytes are kept", head, len(got)-tail)
	}
	if got[:head] != want.String()[:head] || got[tail:] != want.String()[tail:] {
		t.Fatal("head or tail is not what was written")
	}
}

func TestWhatTheHubKeepsWholeIsKeptWholeWhileItIsAway(t *testing.T) {
	t.Parallel()
	s := open(t, t.TempDir(), Options{Segment: 1 << 10, Limit: 16 << 10})
	st := stream(t, s)
	s.KeepAtLeast(100_000)
	s.KeepAtLeast(10) // never less than before
	var want strings.Builder
	for i := range 3200 {
		line := fmt.Sprintf("line %06d of about three thousand\n", i)[:31]
		add(t, st, line, int64(i+1))
		want.WriteString(line)
	}
	h := &hub{}
	h.drain(t, st, 1<<10)
	if want.Len() > 100_000 || h.text() != want.String() {
		t.Fatalf("%d of %d bytes, %d gaps", len(h.text()), want.Len(), h.gaps)
	}
}

func TestAcknowledgedSegmentsAreDeletedButTheTailStays(t *testing.T) {
	t.Parallel()
	s := open(t, t.TempDir(), Options{Segment: 16 << 10})
	st := stream(t, s)
	line := strings.Repeat("x", 99) + "\n"
	h := &hub{}
	for i := range 10_000 {
		add(t, st, line, int64(i))
		if i%100 == 0 {
			h.drain(t, st, 64<<10)
		}
	}
	h.drain(t, st, 64<<10)
	if used := diskUse(t, s.dir); used > 150<<10 {
		t.Fatalf("%d bytes on disk although the Hub has all", used)
	}
	got, err := st.Tail(3, 0)
	if err != nil || got != strings.TrimSuffix(strings.Repeat(line, 3), "\n") {
		t.Fatalf("tail %d bytes, %v", len(got), err)
	}
}

func TestTailAnswersLastLinesOfAPhase(t *testing.T) {
	t.Parallel()
	s := open(t, t.TempDir(), Options{})
	st := stream(t, s)
	add(t, st, "bootstrap one\nbootstrap two\n", 1)
	start := st.End()
	add(t, st, "start one\nsta", 2)
	add(t, st, "rt two\nstart three", 3)
	for _, c := range []struct {
		lines int
		from  int64
		want  string
	}{
		{1, 0, "start three"}, {2, 0, "start two\nstart three"}, {9, start, "start one\nstart two\nstart three"},
		{4, 0, "bootstrap two\nstart one\nstart two\nstart three"}, {0, 0, ""}, {5, st.End(), ""},
	} {
		if got, err := st.Tail(c.lines, c.from); err != nil || got != c.want {
			t.Errorf("Tail(%d, %d) = %q, %v; want %q", c.lines, c.from, got, err, c.want)
		}
	}
}

func TestSourcesKeepTheirRawEndsApartAcrossSegments(t *testing.T) {
	t.Parallel()
	s := open(t, t.TempDir(), Options{Segment: 200})
	st := stream(t, s)
	for i := range 50 {
		for _, source := range []string{"bootstrap", "start"} {
			if err := st.Writer(source).Append(text(source+" says something\n"), int64(i*10+len(source))); err != nil {
				t.Fatal(err)
			}
		}
	}
	(&hub{}).drain(t, st, 1<<20)
	s = reopen(t, s)
	st = stream(t, s)
	if a, b := st.Writer("bootstrap").RawEnd(), st.Writer("start").RawEnd(); a != 499 || b != 495 || st.Writer("other").RawEnd() != 0 {
		t.Fatalf("raw ends %d, %d", a, b)
	}
}

func TestStreamGoesOnBehindAHubThatHasMore(t *testing.T) {
	t.Parallel()
	s := open(t, t.TempDir(), Options{})
	st := stream(t, s)
	if err := st.Ack(1000, false); err != nil {
		t.Fatal(err)
	}
	add(t, st, "more", 1)
	p, ok, err := st.Next(100)
	if err != nil || !ok || p.Offset != 1000 || p.Skipped || string(p.Data) != "more" {
		t.Fatalf("%+v %v %v", p, ok, err)
	}
}

func TestStreamAnnouncesWhatAHubThatWasRestoredLacks(t *testing.T) {
	t.Parallel()
	s := open(t, t.TempDir(), Options{Segment: 1 << 10})
	st := stream(t, s)
	for range 3000 {
		add(t, st, strings.Repeat("x", 99)+"\n", 1)
	}
	(&hub{}).drain(t, st, 1<<20)
	restored := &hub{}
	if err := st.Ack(0, false); err != nil {
		t.Fatal(err)
	}
	restored.drain(t, st, 1<<20)
	if restored.next != st.End() || restored.gaps != 1 {
		t.Fatalf("at %d of %d with %d gaps", restored.next, st.End(), restored.gaps)
	}
}

func BenchmarkAppendAndShip(b *testing.B) {
	s, err := Open(b.TempDir(), Options{})
	if err != nil {
		b.Fatal(err)
	}
	st, err := s.Stream("a1", 1)
	if err != nil {
		b.Fatal(err)
	}
	chunk := text(strings.Repeat(strings.Repeat("y", 99)+"\n", 327)) // about 32 KiB
	b.SetBytes(int64(chunk.Len()))
	for i := range b.N {
		if err := st.Writer("p").Append(chunk, int64(i)); err != nil {
			b.Fatal(err)
		}
		for i%32 == 31 {
			p, ok, err := st.Next(1 << 20)
			if err != nil {
				b.Fatal(err)
			}
			if !ok {
				break
			}
			if err := st.Ack(p.Offset+int64(len(p.Data)), p.End); err != nil {
				b.Fatal(err)
			}
		}
	}
}
