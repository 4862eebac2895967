package redact

import (
	"slices"
	"strings"
	"sync"
)

// Process is the Sets of all assignments that this process works on: for its own log, which belongs to none of them.
var Process = new(Group)

// Group is what several Sets know together, for whole texts. It holds no value itself: what a Set learns after it has joined is
// known here too, and nothing of a Set that has left is kept. So who joins a Set has it leave when what it belongs to ends. The
// zero Group is ready to use: it knows the shapes that every Set knows. Its methods may be called from many goroutines.
//
// A text is looked through once for each Set, so a Group is for lines of a log, not for floods of output.
type Group struct {
	mu     sync.RWMutex
	sets   map[*Set]struct{}
	shapes Set // for when there is no other
}

// Join adds a Set. Once it has returned, each Text hides what the Set knows by then. Joining again changes nothing.
func (g *Group) Join(s *Set) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.sets == nil {
		g.sets = map[*Set]struct{}{}
	}
	g.sets[s] = struct{}{}
}

// Leave takes a Set out. What another one knows too is hidden still. It does nothing for a Set that isn't there.
func (g *Group) Leave(s *Set) {
	g.mu.Lock()
	defer g.mu.Unlock()
	delete(g.sets, s)
}

// Text redacts a text that is whole, as one Set would that knows all values: also where values of two Sets overlap.
func (g *Group) Text(v string) Text {
	g.mu.RLock()
	sets := make([]*Set, 0, len(g.sets)+1)
	for s := range g.sets {
		sets = append(sets, s)
	}
	g.mu.RUnlock()
	if len(sets) == 0 {
		sets = append(sets, &g.shapes)
	}
	var w Writer
	text := []byte(v)
	for _, s := range sets {
		s.look(&w, text)
	}
	hits := w.hits
	slices.SortFunc(hits, func(x, y hit) int { return int(x.from - y.from) })
	var b strings.Builder
	at := 0
	for i := 0; i < len(hits); {
		u := hits[i]
		for i++; i < len(hits) && hits[i].from < u.to; i++ {
			u.to = max(u.to, hits[i].to)
		}
		b.WriteString(v[at:u.from] + Mask)
		at = min(int(u.to), len(v))
	}
	b.WriteString(v[at:])
	return Text{b.String()}
}
