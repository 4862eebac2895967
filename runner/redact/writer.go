package redact

import (
	"bytes"
	"errors"
	"maps"
	"slices"
	"sync"
	"unsafe"
)

const (
	// span is how many bytes of the stream one occurrence may hold back. When it is stretched further, by white
	// space or escape sequences, what is held is masked, and the rest of the occurrence likewise when it comes.
	span = 64 << 10
	// unionMax is how many bytes of overlapping occurrences are held back for one mask to stand at their end; in a
	// longer run the mask comes early. It is the longest form of the longest value (64 KiB, as octal escapes).
	unionMax = 256 << 10
	// chunk is how much is looked at in one go.
	chunk = 1 << 10

	// releaseText is how many text bytes [Writer.Release] lets go, and releaseBytes how many in all.
	releaseText  = 3
	releaseBytes = 64
)

// ErrClosed is returned by Write after Close.
var ErrClosed = errors.New("the redacted stream is closed")

// Writer is one stream through a Set. Its methods may be called from many goroutines; the sink is called by one at a
// time, in order, and must not call the Writer. The sink gets a text at most once a call, and never an empty one. After
// the sink has failed, every call returns its error, and what was held stays held.
//
// Only what may be the beginning of a value is held back, so nothing else is delayed: at most 320 KiB, and next to
// nothing as a rule. A Writer uses less than 1 MiB.
type Writer struct {
	mu   sync.Mutex
	set  *Set
	sink func(Text) error
	err  error

	known    int // how many needles of the set have been looked for so far
	plain    view
	stripped view
	split    bool // the stripped view differs from the plain one and is read apart
	even     bool // masks are as long as what they hide

	in     int64  // bytes taken
	out    int64  // bytes given to the sink, as they were or as masks
	held   []byte // bytes from out to in
	masked int64  // end of the run of occurrences whose mask was given last
	hits   []hit
	// text is for the sink, from given on what was collected in this call. What was given before lies in the same memory, which
	// Texts share as they are never changed: an allocation for each small one would cost as much as finding out what may pass.
	text  []byte
	given int
	found map[string]struct{}
}

type hit struct{ from, to int64 }

// Writer starts a stream. The sink gets the redacted text.
func (s *Set) Writer(sink func(Text) error) *Writer {
	s.mu.Lock()
	s.init()
	s.mu.Unlock()
	return &Writer{set: s, sink: sink}
}

// KeepLength has the Writer put an asterisk in the place of each hidden byte, ends of lines excepted, instead of Mask: what
// was written and what the sink got then have the same offsets. It is called before the first Write, and returns the Writer.
func (w *Writer) KeepLength() *Writer {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.even = true
	return w
}

// Text redacts a text that is whole.
func (s *Set) Text(v string) Text {
	var t Text
	w := s.Writer(func(part Text) error {
		t = Concat(t, part)
		return nil
	})
	w.step([]byte(v), true)
	return t
}

// Write takes all of p, unless the sink fails. It does not keep p.
func (w *Writer) Write(p []byte) (int, error) {
	if err := w.step(p, false); err != nil {
		return 0, err
	}
	return len(p), nil
}

// Flush gives the sink everything that is held: nothing more of this output will come, or the reader can't wait. An
// occurrence that was not complete passes, and one that goes on afterwards is not found. The stream may go on.
func (w *Writer) Flush() error { return w.step(nil, true) }

// Close flushes; after it Write fails with [ErrClosed]. A second Close does nothing.
func (w *Writer) Close() error {
	err := w.step(nil, true)
	w.mu.Lock()
	defer w.mu.Unlock()
	if errors.Is(w.err, ErrClosed) {
		return nil
	}
	if err == nil {
		w.err = ErrClosed
	}
	return err
}

// Held is the number of bytes taken that the sink's text does not cover yet: bytes written minus Held is an offset
// from which another Writer can go on without losing, doubling or showing anything. (Two exceptions: after Release,
// and within a run of overlapping occurrences of more than 256 KiB, such a Writer can miss the rest of a value.)
func (w *Writer) Held() int {
	w.mu.Lock()
	defer w.mu.Unlock()
	return int(w.in - w.out)
}

// Found is the names of the Variables of which an occurrence was masked so far, sorted. A token or key that was
// recognised by its shape is named as that.
func (w *Writer) Found() []string {
	w.mu.Lock()
	defer w.mu.Unlock()
	return slices.Sorted(maps.Keys(w.found))
}

// Release is for a person who types: it gives the sink the first bytes that are held, three characters at most and the
// colour changes among them, and keeps looking for what they may begin. So at most three characters of a value can be
// seen. It is called when a stream has been idle for a moment (100 ms) and Held is not 0; logs don't need it.
func (w *Writer) Release() error {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.err != nil {
		return w.err
	}
	start := w.hold()
	if start < w.out-releaseBytes {
		return nil
	}
	// Bytes already released are not in held any more; they count as characters.
	left := releaseText - int(max(0, w.out-start))
	end := w.out
	state := ground
	for i, b := range w.held[:min(len(w.held), releaseBytes)] {
		if state == ground || state == control {
			if text[b] == 1 {
				if left <= 0 {
					break
				}
				left--
			}
		}
		if state != ground {
			state, _ = state.next(b)
		} else if b == esc {
			state = escape
		}
		end = w.out + int64(i) + 1
	}
	for _, h := range w.hits {
		end = min(end, h.from)
	}
	if end <= w.out {
		return nil
	}
	w.pass(nil, w.out, end)
	w.held = w.held[:copy(w.held, w.held[end-w.out:])]
	w.out = end
	return w.give()
}

// step takes p, and after it, if asked, gives up everything held.
func (w *Writer) step(p []byte, flush bool) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.err != nil {
		return w.err
	}
	w.set.mu.RLock()
	if w.known != len(w.set.needles) {
		w.again()
	}
	w.room(len(p) + len(w.held))
	for len(p) > 0 {
		n := min(len(p), chunk)
		w.take(p[:n])
		p = p[n:]
	}
	if flush {
		w.end()
	}
	w.set.mu.RUnlock()
	return w.give()
}

// slab is how much memory small Texts share. The first ones of a Writer share less, as there may be no others.
const slab = 4 << 10

// room makes sure that so many bytes more can be collected in the memory there is.
func (w *Writer) room(n int) {
	if cap(w.text)-len(w.text) >= n {
		return
	}
	begun := w.text[w.given:]
	w.text, w.given = append(make([]byte, 0, max(n+len(begun), 2*len(begun), min(slab, 2*cap(w.text)))), begun...), 0
}

func (w *Writer) give() error {
	if len(w.text) == w.given {
		return nil
	}
	t := Text{unsafe.String(&w.text[w.given], len(w.text)-w.given)}
	w.given = len(w.text)
	if w.err = w.sink(t); w.err != nil {
		return w.err
	}
	return nil
}

func (w *Writer) take(p []byte) {
	w.scan(p)
	w.settle(p, w.hold())
}

// scan looks for what p completes and begins.
func (w *Writer) scan(p []byte) {
	w.plain.init()
	if !w.split && bytes.IndexByte(p, esc) >= 0 {
		w.stripped.become(&w.plain)
		w.split = true
	}
	base := w.in
	w.in += int64(len(p))
	old := w.plain.n
	w.plain.plain(p, 0)
	if w.split {
		before := w.stripped.n
		w.stripped.stripped(p, &w.plain, old)
		w.look(&w.plain, &w.stripped, base, old, before, 0)
		w.plain.rest(w, base, len(p))
		w.stripped.rest(w, base, len(p))
		w.split = !w.stripped.same(&w.plain)
	} else {
		w.look(&w.plain, nil, base, old, 0, 0)
		w.plain.rest(w, base, len(p))
	}
}

// hold is the place before which everything is decided.
func (w *Writer) hold() int64 {
	at := w.plain.hold(w.in)
	if w.split {
		at = min(at, w.stripped.hold(w.in))
	}
	return at
}

func (v *view) hold(end int64) int64 {
	at := end
	if v.n > 0 {
		at = end + int64(v.place[0])
	}
	for i := range v.live {
		at = min(at, v.live[i].start)
	}
	return at
}

// settle writes what lies before the place given, with masks. p is the chunk that was just taken.
func (w *Writer) settle(p []byte, hold int64) {
	if len(w.held) > 0 {
		w.held = append(w.held, p...)
		p = nil
	}
	if len(w.hits) > 0 {
		w.mask(p, hold)
	}
	to := hold
	if len(w.hits) > 0 {
		to = min(to, w.hits[0].from)
	}
	w.pass(p, w.out, to)
	from := w.out
	if p != nil {
		from = w.in - int64(len(p))
	}
	w.out = max(w.out, to)
	switch {
	case w.out == w.in:
		w.held = w.held[:0]
	case p != nil:
		w.held = append(w.held[:0], p[w.out-from:]...)
	case w.out > w.in-int64(len(w.held)):
		w.held = w.held[:copy(w.held, w.held[int64(len(w.held))-(w.in-w.out):])]
	}
}

// mask deals with the hits that begin before the place given, one union after the other. A union that may still grow
// waits.
func (w *Writer) mask(p []byte, hold int64) {
	if len(w.hits) > 1 {
		slices.SortFunc(w.hits, func(a, b hit) int {
			switch {
			case a.from < b.from:
				return -1
			case a.from > b.from:
				return 1
			}
			return 0
		})
	}
	i := 0
	for i < len(w.hits) {
		u, j := w.hits[i], i+1
		for j < len(w.hits) && w.hits[j].from < u.to {
			u.to = max(u.to, w.hits[j].to)
			j++
		}
		goesOn := u.from < w.masked
		if u.from >= hold || u.to > hold && !goesOn && w.in-u.from <= unionMax {
			w.hits[i] = u
			w.hits = append(w.hits[:i+1], w.hits[j:]...)
			break
		}
		if !goesOn {
			w.pass(p, w.out, u.from)
			if !w.even {
				w.room(len(Mask))
				w.text = append(w.text, Mask...)
			}
		}
		if w.even {
			w.cover(p, max(w.out, u.from), min(u.to, w.in))
		}
		w.masked = max(w.masked, u.to)
		w.out = max(w.out, min(u.to, w.in))
		i = j
	}
	w.hits = w.hits[:copy(w.hits, w.hits[i:])]
}

// pass writes the bytes between two places of the stream as they are.
func (w *Writer) pass(p []byte, from, to int64) {
	if to <= from {
		return
	}
	if p == nil {
		p = w.held
	}
	base := w.in - int64(len(p))
	w.room(int(to - from))
	w.text = append(w.text, p[from-base:to-base]...)
}

// cover writes asterisks for the bytes between two places of the stream.
func (w *Writer) cover(p []byte, from, to int64) {
	if to <= from {
		return
	}
	w.room(int(to - from)) // first, since it may move what was collected
	at := len(w.text)
	w.pass(p, from, to)
	for i, b := range w.text[at:] {
		if b != '\n' {
			w.text[at+i] = '*'
		}
	}
}

// end decides everything that is open, and gives it up.
func (w *Writer) end() {
	w.decide()
	w.settle(nil, w.in)
	w.masked = 0
}

// decide has nothing follow: shapes end here, values that are not complete are none.
func (w *Writer) decide() {
	for _, v := range []*view{&w.plain, &w.stripped} {
		for i := range v.live {
			c := &v.live[i]
			if s := w.set.needles[c.n].shape; s != nil {
				w.close(c, s, c.last+1)
			}
		}
		v.clear()
	}
	w.split = false
}

// again looks through what is held for the needles that were added since.
func (w *Writer) again() {
	from := int32(w.known)
	w.known = len(w.set.needles)
	if len(w.held) == 0 || from == 0 {
		return
	}
	if !w.split && bytes.IndexByte(w.held, esc) >= 0 {
		w.stripped.become(&w.plain)
		w.split = true
	}
	var p, s view
	p.init()
	s.init()
	end := w.in
	for rest := w.held; len(rest) > 0; {
		n := min(len(rest), chunk)
		base := end - int64(len(rest))
		w.in = base + int64(n)
		before := p.n
		p.plain(rest[:n], 0)
		if w.split {
			beforeS := s.n
			s.stripped(rest[:n], &p, before)
			w.look(&p, &s, base, before, beforeS, from)
			s.rest(w, base, n)
		} else {
			w.look(&p, nil, base, before, 0, from)
		}
		p.rest(w, base, n)
		rest = rest[n:]
	}
	w.plain.adopt(&p, true)
	if w.split {
		w.stripped.adopt(&s, s.state == w.stripped.state)
	}
}

// adopt takes over what a second look found in the bytes that are held: its candidates, and the text at the end that
// may begin a needle, unless less of it is there now.
func (v *view) adopt(o *view, tail bool) {
	v.live = append(v.live, o.live...)
	if tail && o.n > v.n {
		v.b, v.place, v.n, v.gaps = o.b, o.place, o.n, o.gaps
	}
}
