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
	w := s.look(b)
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

// look is a Writer that has looked through a whole text, and masked nothing: its hits are all that was found, in no order.
func (s *Set) look(b []byte) *Writer {
	w := s.Writer(nil)
	s.mu.RLock()
	defer s.mu.RUnlock()
	w.known = len(s.needles)
	for len(b) > 0 {
		n := min(len(b), chunk)
		w.scan(b[:n])
		b = b[n:]
	}
	w.decide()
	return w
}
