package spool

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

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
