package spool

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/claude-hub/claude-hub/runner/redact"
)

func open(t *testing.T, dir string, o Options) *Spool {
	t.Helper()
	s, err := Open(dir, o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = s.Close() })
	return s
}

func reopen(t *testing.T, s *Spool) *Spool {
	t.Helper()
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	return open(t, s.dir, s.o)
}

func stream(t *testing.T, s *Spool) *Stream {
	t.Helper()
	st, err := s.Stream("a1", 1)
	if err != nil {
		t.Fatal(err)
	}
	return st
}

func text(s string) redact.Text { return new(redact.Set).Text(s) }

func add(t *testing.T, st *Stream, s string, raw int64) {
	t.Helper()
	if err := st.Writer("p").Append(text(s), raw); err != nil {
		t.Fatal(err)
	}
}

// hub stores pieces as the Hub does: by offset, once, gaps only where they are announced.
type hub struct {
	got   map[int64]byte
	next  int64
	gaps  int
	ended bool
}

func (h *hub) take(p Piece) int64 {
	if h.got == nil {
		h.got = map[int64]byte{}
	}
	if p.Offset > h.next {
		if !p.Skipped {
			return h.next
		}
		h.gaps++
		h.next = p.Offset
	}
	for i, b := range p.Data {
		if at := p.Offset + int64(i); at >= h.next {
			h.got[at] = b
			h.next = at + 1
		}
	}
	h.ended = h.ended || p.End
	return h.next
}

func (h *hub) drain(t *testing.T, st *Stream, limit int) {
	t.Helper()
	for {
		p, ok, err := st.Next(limit)
		if err != nil {
			t.Fatal(err)
		}
		if !ok {
			return
		}
		if len(p.Data) > limit {
			t.Fatalf("a piece of %d bytes, limit %d", len(p.Data), limit)
		}
		if err := st.Ack(h.take(p), p.End); err != nil {
			t.Fatal(err)
		}
	}
}

func (h *hub) text() string {
	var b strings.Builder
	for i := range h.next {
		if c, ok := h.got[i]; ok {
			b.WriteByte(c)
		} else {
			b.WriteByte('_')
		}
	}
	return b.String()
}

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

func diskUse(t *testing.T, dir string) (n int64) {
	t.Helper()
	err := filepath.Walk(dir, func(_ string, info os.FileInfo, err error) error {
		if err == nil && info.Mode().IsRegular() {
			n += info.Size()
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return n
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

func TestNewestReportSurvivesAndItsSeqRises(t *testing.T) {
	t.Parallel()
	s := open(t, t.TempDir(), Options{})
	put := func(fence int64, state string) Report {
		t.Helper()
		r, err := s.PutReport(Report{ID: "a1", Fence: fence, Generation: 1, State: state, Detail: json.RawMessage(`{"a":1}`)})
		if err != nil {
			t.Fatal(err)
		}
		return r
	}
	first := put(1, "running")
	second := put(1, "passed")
	if first.Seq < 1 || second.Seq != first.Seq+1 {
		t.Fatalf("seqs %d, %d", first.Seq, second.Seq)
	}
	s.Sent(first) // the answer to an older one says nothing of the newer
	if unsent := s.Unsent(); len(unsent) != 1 || unsent[0].State != "passed" {
		t.Fatalf("unsent %+v", unsent)
	}
	s.Sent(second)
	if len(s.Unsent()) != 0 {
		t.Fatal("sent, and still there")
	}
	s = reopen(t, s)
	if third := put(1, "removed"); third.Seq != first.Seq+2 {
		t.Fatalf("after a restart seq %d", third.Seq)
	}
	s = reopen(t, s)
	if r, sent, ok := s.Newest("a1"); !ok || sent || r.State != "removed" || string(r.Detail) != `{"a":1}` {
		t.Fatalf("%+v %v %v", r, sent, ok)
	}
	put(2, "running")
	if _, err := s.PutReport(Report{ID: "a1", Fence: 1, State: "late"}); err == nil {
		t.Fatal("an older fence must be refused")
	}
	r, _, _ := s.Newest("a1")
	if err := s.Refused(r); err != nil {
		t.Fatal(err)
	}
	s = reopen(t, s)
	if len(s.Unsent()) != 0 {
		t.Fatal("a refused report came back")
	}
	// The Hub has taken reports of this fence up to the refused one's Seq: one at or below it would change nothing there.
	if again := put(2, "failed"); again.Seq < r.Seq {
		t.Fatalf("after a refused report of seq %d comes one of seq %d", r.Seq, again.Seq)
	}
}

func TestReportsGoOnRisingWhereTheLastOneWasLost(t *testing.T) {
	t.Parallel()
	s := open(t, t.TempDir(), Options{})
	var last Report
	for range 3 {
		var err error
		if last, err = s.PutReport(Report{ID: "a1", Fence: 1, State: "running"}); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.WriteFile(filepath.Join(s.reportDir(), "a1.json"), nil, 0o600); err != nil { // as a power cut leaves it
		t.Fatal(err)
	}
	s = reopen(t, s)
	for time.Now().UnixMilli() <= last.Seq { // three reports in the same millisecond
		runtime.Gosched()
	}
	if r, err := s.PutReport(Report{ID: "a1", Fence: 1, State: "passed"}); err != nil || r.Seq <= last.Seq {
		t.Fatalf("seq %d after %d: the Hub would pass it over (%v)", r.Seq, last.Seq, err)
	}
}

func TestUnfinishedWriteOfAReportIsDroppedAtOpen(t *testing.T) {
	t.Parallel()
	s := open(t, t.TempDir(), Options{})
	if _, err := s.PutReport(Report{ID: "a1", Fence: 1, State: "running"}); err != nil {
		t.Fatal(err)
	}
	for name, content := range map[string]string{"a1.json.new": `{"id":"a1","sta`, "a2.json": `{"id":"a2"`, "a3.json": `{"id":"a4"}`} {
		if err := os.WriteFile(filepath.Join(s.reportDir(), name), []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	s = reopen(t, s)
	if unsent := s.Unsent(); len(unsent) != 1 || unsent[0].ID != "a1" {
		t.Fatalf("%+v", unsent)
	}
}

func TestForgetDeletesLogAndReport(t *testing.T) {
	t.Parallel()
	s := open(t, t.TempDir(), Options{})
	st := stream(t, s)
	add(t, st, "x", 1)
	if _, err := s.PutReport(Report{ID: "a1", Fence: 1, State: "running"}); err != nil {
		t.Fatal(err)
	}
	if err := s.Forget("a1"); err != nil {
		t.Fatal(err)
	}
	if err := st.Writer("p").Append(text("y"), 2); err == nil {
		t.Fatal("a removed stream must not take bytes")
	}
	s = reopen(t, s)
	if len(s.Streams()) != 0 || len(s.Unsent()) != 0 {
		t.Fatal("something is left")
	}
}

func TestIdsThatAreNoFileNamesAreRefused(t *testing.T) {
	t.Parallel()
	s := open(t, t.TempDir(), Options{})
	for _, id := range []string{"", ".", "..", "../x", "a/b", "a\x00b", strings.Repeat("a", 101)} {
		if _, err := s.Stream(id, 1); err == nil {
			t.Errorf("a stream named %q was made", id)
		}
		if _, err := s.PutReport(Report{ID: id, Fence: 1, State: "x"}); err == nil {
			t.Errorf("a report named %q was made", id)
		}
	}
}

func TestSecondProcessIsRefused(t *testing.T) {
	t.Parallel()
	s := open(t, t.TempDir(), Options{})
	if _, err := Open(s.dir, Options{}); !errors.Is(err, ErrInUse) {
		t.Fatalf("got %v", err)
	}
}

const killedEnv = "CLAUDE_HUB_SPOOL_KILLED"

// TestMain runs this binary as the process that TestKill9LosesNothingThatWasAppended kills.
func TestMain(m *testing.M) {
	if dir := os.Getenv(killedEnv); dir != "" {
		if err := writeUntilKilled(dir); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
	}
	os.Exit(m.Run())
}

func writeUntilKilled(dir string) error {
	s, err := Open(dir, Options{Segment: 4 << 10})
	if err != nil {
		return err
	}
	st, err := s.Stream("a1", 1)
	if err != nil {
		return err
	}
	for i := st.Writer("p").RawEnd(); ; i++ {
		if err := st.Writer("p").Append(text(fmt.Sprintf("line %d\n", i)), i+1); err != nil {
			return err
		}
		if i%10 == 0 {
			if _, err := s.PutReport(Report{ID: "a1", Fence: 1, Generation: i, State: "running"}); err != nil {
				return err
			}
		}
		fmt.Println(i)
	}
}

func TestKill9LosesNothingThatWasAppended(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	h := &hub{}
	for round := range 10 {
		cmd := exec.Command(os.Args[0])
		cmd.Env = append(os.Environ(), killedEnv+"="+dir)
		cmd.Stderr = os.Stderr
		out, err := cmd.StdoutPipe()
		if err != nil {
			t.Fatal(err)
		}
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		last := int64(-1)
		lines := bufio.NewScanner(out)
		for n := 0; lines.Scan(); n++ {
			if _, err := fmt.Sscan(lines.Text(), &last); err != nil {
				t.Fatal(err)
			}
			if n == 200+37*round {
				if err := cmd.Process.Kill(); err != nil {
					t.Fatal(err)
				}
			}
		}
		_ = cmd.Wait() // it was killed
		s := open(t, dir, Options{Segment: 4 << 10})
		st := stream(t, s)
		raw := st.Writer("p").RawEnd()
		if raw < last+1 {
			t.Fatalf("round %d: line %d was appended, the spool ends at %d", round, last, raw)
		}
		if r, _, ok := s.Newest("a1"); !ok || r.Generation < last/10*10 {
			t.Fatalf("round %d: report of %d is the newest, line %d was reached", round, r.Generation, last)
		}
		h.drain(t, st, 1<<20)
		var want strings.Builder
		for i := range raw {
			fmt.Fprintf(&want, "line %d\n", i)
		}
		if h.text() != want.String() {
			t.Fatalf("round %d: the Hub has %d bytes, %d were written", round, h.next, want.Len())
		}
		if err := s.Close(); err != nil {
			t.Fatal(err)
		}
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
