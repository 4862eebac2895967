package spool

import (
	"os"
	"path/filepath"
	"testing"
)

// FuzzOpen gives a spool a segment and a report of any content. Whatever is there: it opens, takes what is appended,
// and hands it out.
func FuzzOpen(f *testing.F) {
	whole, err := record{kind: recordStart, data: []byte(`{"offset":0}`)}.encode()
	if err != nil {
		f.Fatal(err)
	}
	line, err := record{kind: recordData, source: "p", raw: 3, data: []byte("abc")}.encode()
	if err != nil {
		f.Fatal(err)
	}
	f.Add([]byte{}, []byte{})
	f.Add(append(append([]byte{}, whole...), line...), []byte(`{"id":"a1","fence":1,"seq":9223372036854775807}`))
	f.Add(append(append([]byte{}, line...), whole...), []byte(`null`))
	f.Add(append(append([]byte{}, whole...), line[:len(line)-1]...), []byte(`{"id":"a1"`))
	f.Fuzz(func(t *testing.T, segment, report []byte) {
		dir := t.TempDir()
		logs, reports := filepath.Join(dir, "log", "a1.1"), filepath.Join(dir, "report")
		for _, d := range []string{logs, reports} {
			if err := os.MkdirAll(d, 0o700); err != nil {
				t.Fatal(err)
			}
		}
		for path, b := range map[string][]byte{segmentPath(logs, 0): segment, filepath.Join(reports, "a1.json"): report} {
			if err := os.WriteFile(path, b, 0o600); err != nil {
				t.Fatal(err)
			}
		}
		s, err := Open(dir, Options{})
		if err != nil {
			t.Fatal(err)
		}
		defer s.Close()
		st := stream(t, s)
		before := st.End()
		add(t, st, "more", 9)
		if st.Writer("p").RawEnd() != 9 || st.End() != before+4 {
			t.Fatalf("raw end %d, end %d after %d", st.Writer("p").RawEnd(), st.End(), before)
		}
		h := &hub{}
		h.drain(t, st, 1<<20)
		if h.next != st.End() || h.gaps != 0 {
			t.Fatalf("the Hub is at %d of %d, %d gaps", h.next, st.End(), h.gaps)
		}
		_ = s.Unsent()
	})
}
