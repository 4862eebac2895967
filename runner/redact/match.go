package redact

import (
	"bytes"
	"slices"
)

// cand is an occurrence of a needle that has matched so far.
type cand struct {
	n     int32
	m     int32 // text bytes seen
	start int64 // in the stream
	last  int64 // where the last text byte stood
	pem   *pem
}

func (c cand) clone() cand {
	if c.pem != nil {
		p := *c.pem
		p.label = slices.Clone(p.label)
		c.pem = &p
	}
	return c
}

// look finds what the new text of the plain view, and of the stripped one if there is any, completes and begins. The
// text before index oldP, and oldS, was there already. Needles below the given number are passed over.
func (w *Writer) look(p, s *view, base int64, oldP, oldS int, from int32) {
	w.goOn(p, base, oldP, from)
	if s != nil {
		w.goOn(s, base, oldS, from)
		// A window with no escape sequence inside or right after it stands in the plain view as well, with the bytes
		// that follow up to the next one that is looked at, and is found there.
		seen, reach := oldS, w.set.reach()
		upTo := func(end int) {
			first := max(seen, end-reach)
			if end = min(end, s.n-window+1); end <= first {
				return
			}
			seen = end
			for i := first; i < end; i++ {
				if uint32(s.eight(i))&0xff00ffff == tokenBits {
					w.beginToken(s, base, i, from)
				}
			}
			for ; first < end; first += w.set.stride {
				i := min(first+w.set.stride, end)
				if !w.set.may(s.eight(i-1) & windowMask) {
					continue
				}
				for k := first; k < i; k++ {
					w.begin(s, base, k, from)
				}
			}
		}
		for _, g := range s.gaps {
			upTo(g.index)
		}
		upTo(s.n)
	}
	n := p.n
	if n-oldP < window {
		return
	}
	// The loop every byte goes through, at a stride.
	filter, shift, stride := w.set.filter, w.set.shift&63, w.set.stride
	last := n - window
	for first := oldP; first <= last; first += stride {
		i := min(first+stride-1, last)
		h := hash(p.eight(i)&windowMask) >> shift
		if filter[h/64]>>(h%64)&1 == 0 {
			continue
		}
		for k := first; k <= i; k++ {
			w.beginBoth(p, s, base, k, oldS, from)
		}
	}
	// Tokens begin with less than a window, but not without this byte.
	for i := oldP + len(tokenPrefix) - 1; i <= n-window+len(tokenPrefix)-1; i++ {
		next := bytes.IndexByte(p.b[i:n-window+len(tokenPrefix)], '_')
		if next < 0 {
			break
		}
		i += next
		k := i - len(tokenPrefix) + 1
		if !w.beginToken(p, base, k, from) || s == nil {
			continue
		}
		if j := s.find(p.place[k], w.set.reach()); j >= oldS {
			w.beginToken(s, base, j, from)
		}
	}
}

// goOn takes the candidates of a view, and the text that was kept, on.
func (w *Writer) goOn(v *view, base int64, old int, from int32) {
	live := v.live[:0]
	for _, c := range v.live {
		if w.advance(v, &c, base, old) {
			live = append(live, c)
		}
	}
	v.live = live
	v.dead = 0
	for i := range old {
		if w.in-base-int64(v.place[i]) >= span && w.stretched(v, base, i) {
			v.dead = i + 1
		} else if i+window <= v.n {
			w.begin(v, base, i, from)
			w.beginToken(v, base, i, from)
		}
	}
}

// find is the index of the text byte that stands at the given place, when so many bytes from there on have no escape
// sequence inside or right after them and are not the last; else -1.
func (v *view) find(at int32, reach int) int {
	j, ok := slices.BinarySearch(v.at(), at)
	if !ok || j+reach >= v.n {
		return -1
	}
	for _, g := range v.gaps {
		if g.index > j && g.index <= j+reach {
			return -1
		}
	}
	return j
}

// rest keeps of a view what may begin a needle when the chunk, so many bytes long, is done with.
func (v *view) rest(w *Writer, base int64, size int) {
	n := v.n
	keep := max(0, n-window+1, v.dead)
	for keep < n {
		if l := n - keep; l > 2 && !w.set.mayBegin(v.eight(keep), l) {
			keep++
			continue
		}
		if b := w.set.begin(v.eight(keep), n-keep); b&loose != 0 || b != 0 && w.tight(v, base, keep) {
			break
		}
		keep++
	}
	v.keep(keep, size)
}

// tight reports that from the text byte at k to the end of the stream there is nothing between the text but escape
// sequences.
func (w *Writer) tight(v *view, base int64, k int) bool {
	gaps := w.in - base - int64(v.place[k]) - int64(v.n-k) - int64(v.pending)
	for _, g := range v.gaps {
		if g.index > k {
			gaps -= int64(g.n)
		}
	}
	return gaps == 0
}

// beginBoth starts what stands at index i of the plain view, in the stripped one as well.
func (w *Writer) beginBoth(p, s *view, base int64, i, oldS int, from int32) {
	if w.begin(p, base, i, from) && s != nil {
		if j := s.find(p.place[i], w.set.reach()); j >= oldS {
			w.begin(s, base, j, from)
		}
	}
}

// begin starts an occurrence of each needle whose window stands at index i. It is false when there is none.
func (w *Writer) begin(v *view, base int64, i int, from int32) bool {
	key := v.eight(i) & windowMask
	if !w.set.may(key) {
		return false
	}
	start := base + int64(v.place[i])
	head := w.set.head(key)
	for n := head; n >= from && n >= 0; n = w.set.needles[n].next {
		if w.set.needles[n].shape != nil {
			w.start(v, cand{n: n, start: start}, base, i)
		} else {
			w.start(v, cand{n: n, m: window, start: start}, base, i+window)
		}
	}
	return head >= 0
}

func (w *Writer) start(v *view, c cand, base int64, k int) {
	if w.advance(v, &c, base, k) {
		v.live = append(v.live, c)
	}
}

// beginToken starts a token of GitHub when one can stand at index i.
func (w *Writer) beginToken(v *view, base int64, i int, from int32) bool {
	four := uint32(v.eight(i))
	if !isToken(four) || from > 0 {
		return false
	}
	w.start(v, cand{n: token(four), start: base + int64(v.place[i])}, base, i)
	return true
}

// stretched deals with a text byte at i, a span behind the end of the stream, that was kept because it may begin a needle,
// when the bytes that would decide it don't come within the span. It is true when i is done with.
func (w *Writer) stretched(v *view, base int64, i int) bool {
	start := base + int64(v.place[i])
	r := 1
	for r < window && i+r < v.n && base+int64(v.place[i+r])-start < span {
		r++
	}
	if r == window {
		return false
	}
	if w.set.begin(v.eight(i), r)&loose == 0 {
		return true
	}
	w.hits = append(w.hits, hit{start, start + span})
	for n := range w.set.needles {
		if d := &w.set.needles[n]; d.shape == nil && bytes.HasPrefix(d.b, v.b[i:i+r]) {
			w.start(v, cand{n: int32(n), m: int32(r), start: start + span}, base, i+r)
		}
	}
	return true
}

// advance compares a candidate with the text from index k on. It is false when the candidate is done with.
func (w *Writer) advance(v *view, c *cand, base int64, k int) bool {
	n := &w.set.needles[c.n]
	if n.shape != nil {
		if c.m == 0 && c.start < v.runs[c.n] {
			return false
		}
		alive := w.advanceShape(v, c, n.shape, base, k)
		if !n.shape.pem && int(c.m) >= len(n.shape.prefix) {
			v.runs[c.n] = c.last + 1
		}
		return alive
	}
	b := n.b[c.m:]
	t := v.b[k:v.n]
	l := min(len(b), len(t))
	for i := range l {
		if b[i] != t[i] {
			w.stretch(c, base+int64(v.place[k+i])) // the byte that differs still tells how far it was stretched
			return false
		}
	}
	if l == len(b) {
		last := base + int64(v.place[k+l-1])
		w.stretch(c, last)
		w.hit(c.start, last+1, n.name)
		return false
	}
	c.m += int32(l)
	w.stretch(c, w.in)
	return true
}

// stretch masks what a candidate holds beyond the span, up to the given place.
func (w *Writer) stretch(c *cand, at int64) {
	for at-c.start >= span {
		w.hits = append(w.hits, hit{c.start, c.start + span})
		c.start += span
	}
}

func (w *Writer) advanceShape(v *view, c *cand, s *shape, base int64, k int) bool {
	for ; k < v.n; k++ {
		at := base + int64(v.place[k])
		if c.m > 0 {
			gap := at - c.last - 1
			if gap > shapeGap || gap > 0 && (!s.pem || int(c.m) < len(s.prefix)) && gap != int64(v.escaped(k)) {
				return w.close(c, s, c.last+1)
			}
		}
		b := v.b[k]
		m := int(c.m)
		switch {
		case m < len(s.prefix):
			if b != s.prefix[m] {
				return false
			}
			if m++; m == len(s.prefix) && s.pem {
				c.pem = &pem{}
			}
		case s.pem:
			switch c.pem.next(b) {
			case none:
				return false
			case over:
				return w.close(c, s, c.last+1)
			case full:
				return w.close(c, s, at+1)
			}
		default:
			if !s.holds(b) {
				return w.close(c, s, c.last+1)
			}
			if m == tokenMax {
				w.close(c, s, c.last+1)
				c.start, c.m = c.last+1, int32(len(s.prefix)+s.least)
			}
		}
		c.m++
		c.last = at
	}
	if w.in-1-c.last > shapeGap {
		return w.close(c, s, c.last+1)
	}
	return true
}

// close ends a shape; it is a hit when enough of it was there.
func (w *Writer) close(c *cand, s *shape, end int64) bool {
	if s.pem && c.pem != nil && c.pem.begun() || !s.pem && int(c.m)-len(s.prefix) >= s.least {
		w.hit(c.start, end, s.name)
	}
	return false
}

func (w *Writer) hit(from, to int64, name string) {
	w.hits = append(w.hits, hit{from, to})
	if w.found == nil {
		w.found = make(map[string]struct{})
	}
	w.found[name] = struct{}{}
}
