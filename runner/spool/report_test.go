package spool

import (
	"encoding/json"
	"os"
	"path/filepath"
	"runtime"
	"testing"
	"time"
)

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
