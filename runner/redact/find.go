package redact

import (
	"maps"
	"slices"
)

// Span is the bytes [From, To) of a text.
type Span struct{ From, To int }

// Find is where in a whole text the Set's values stand, and what is shaped like a secret, in order and with those that overlap or
// touch as one; and the names of what was found, sorted. It is for who must not change the length of a text: others use
// [Set.Text]. It does not keep or change b.
func (s *Set) Find(b []byte) (spans []Span, names []string) {
	var w Writer
	s.look(&w, b)
	slices.SortFunc(w.hits, func(a, b hit) int { return int(a.from - b.from) })
	for _, h := range w.hits {
		from, to := int(h.from), int(min(h.to, w.in))
		if n := len(spans); n > 0 && from <= spans[n-1].To {
			spans[n-1].To = max(spans[n-1].To, to)
		} else if from < to {
			spans = append(spans, Span{from, to})
		}
	}
	return spans, slices.Sorted(maps.Keys(w.found))
}

// look looks through a whole text, and masks nothing: what it finds is added to w's hits, in no order. One Writer may look with
// several Sets in turn.
func (s *Set) look(w *Writer, b []byte) {
	s.mu.Lock()
	s.init()
	s.mu.Unlock()
	s.mu.RLock()
	defer s.mu.RUnlock()
	w.set, w.known, w.in = s, len(s.needles), 0
	for len(b) > 0 {
		n := min(len(b), chunk)
		w.scan(b[:n])
		b = b[n:]
	}
	w.decide()
}
