package redact

import (
	"bytes"
	"encoding/binary"
	"slices"
)

const esc = 0x1b

// text says which bytes are text: white space, control bytes and DEL are not.
var text = func() (t [256]uint8) {
	for b := range t {
		if b > ' ' && b != 0x7f {
			t[b] = 1
		}
	}
	return t
}()

// ansi is where a terminal would be inside an escape sequence (ECMA-48, as xterm reads it).
type ansi uint8

const (
	ground     ansi = iota
	escape          // after ESC
	escapeMore      // ESC and intermediates
	csi             // ESC [
	control         // a string: OSC, DCS, SOS, PM, APC
)

// next takes a byte in a state other than ground. drawn says that b is not part of the sequence but ended it.
func (a ansi) next(b byte) (to ansi, drawn bool) {
	switch {
	case b == esc:
		return escape, false
	case b == 0x18 || b == 0x1a:
		return ground, false
	case a == control:
		// A newline ends a string that nobody ended, so that garbage in the output can't hide what follows.
		if b == 0x07 || b == '\n' {
			return ground, false
		}
		return control, false
	case b < ' ' || b == 0x7f:
		return a, false
	case b >= 0x80:
		return ground, true
	}
	switch a {
	case escape:
		switch b {
		case '[':
			return csi, false
		case ']', 'P', 'X', '^', '_':
			return control, false
		}
		if b < 0x30 {
			return escapeMore, false
		}
	case escapeMore:
		if b < 0x30 {
			return escapeMore, false
		}
	case csi:
		if b < 0x40 {
			return csi, false
		}
	}
	return ground, false
}

// view is one way to read the stream as text only. There are two: the plain view leaves out control bytes, the
// stripped view escape sequences as well. Both are needed: the plain one misses a value with a colour change inside,
// the stripped one a value inside a window title, or after a sequence that was never ended.
type view struct {
	// b is text, n bytes of it: at first the last few (fewer than window) that may begin a needle, then that of the
	// chunk. A window is read as eight bytes, so there is always room for more. The sizes are powers of two, and
	// indices are masked, so that the loops every byte goes through need no bounds checks.
	b     *[room + 8]byte
	place *[room]int32 // where each byte of b stands in the stream, relative to the start of the chunk
	n     int
	// gaps says for some indices of b how many bytes of escape sequences lie before it (stripped view only).
	gaps    []gap
	pending int32 // bytes of escape sequences since the last text byte
	state   ansi
	live    []cand
	dead    int // text before this index can begin nothing any more
	// runs is, by the number of its needle, where the last run of a token's characters ended or has come to. A token
	// that begins inside is part of it.
	runs [len(shapes)]int64
}

// room is for one chunk and what was kept of the one before.
const room = 2 * chunk

type gap struct {
	index int
	n     int32
}

func (v *view) init() {
	if v.b == nil {
		v.b, v.place = new([room + 8]byte), new([room]int32)
	}
}

// c is the text.
func (v *view) c() []byte { return v.b[:v.n] }

// at is the place of each byte of the text.
func (v *view) at() []int32 { return v.place[:v.n] }

// eight are the bytes from index i on, the first one lowest.
func (v *view) eight(i int) uint64 { return binary.LittleEndian.Uint64(v.b[i : i+8]) }

// plain appends the text of p.
func (v *view) plain(p []byte, off int32) {
	n := 0
	b, place := v.b[v.n:v.n+len(p)], v.place[v.n:v.n+len(p)]
	for i, c := range p {
		b[n], place[n] = c, off+int32(i)
		n += int(text[c])
	}
	v.n += n
}

// stripped appends the text of p that is outside escape sequences. The plain view has read p already and has its text
// from index k on.
func (v *view) stripped(p []byte, plain *view, k int) {
	for i := 0; i < len(p); {
		if v.state != ground {
			to, drawn := v.state.next(p[i])
			v.state = to
			if !drawn {
				v.pending++
				k += int(text[p[i]])
				i++
			}
			continue
		}
		j := bytes.IndexByte(p[i:], esc)
		if j == 0 {
			v.state, v.pending = escape, v.pending+1
			i++
			continue
		}
		if j < 0 {
			j = len(p) - i
		}
		n := v.n
		if j < worthCopying {
			v.plain(p[i:i+j], int32(i))
		} else {
			more, _ := slices.BinarySearch(plain.place[k:min(k+j, plain.n)], int32(i+j))
			copy(v.b[n:], plain.b[k:k+more])
			copy(v.place[n:], plain.place[k:k+more])
			v.n += more
		}
		k += v.n - n
		if v.pending > 0 && v.n > n {
			v.gaps = append(v.gaps, gap{n, v.pending})
			v.pending = 0
		}
		i += j
	}
}

// worthCopying is the length from which the plain view's text is copied, rather than read again.
const worthCopying = 48

// escaped is the number of bytes of escape sequences right before the text byte k.
func (v *view) escaped(k int) int32 {
	for _, g := range v.gaps {
		if g.index == k {
			return g.n
		}
	}
	return 0
}

// keep drops all text before index k and moves the origin of the places on by the length of the chunk.
func (v *view) keep(k int, chunk int) {
	copy(v.b[:], v.b[k:v.n])
	copy(v.place[:], v.place[k:v.n])
	v.n -= k
	for i := range v.n {
		v.place[i] -= int32(chunk)
	}
	if len(v.gaps) > 0 {
		kept := v.gaps[:0]
		for _, g := range v.gaps {
			if g.index >= k && v.n > 0 {
				kept = append(kept, gap{g.index - k, g.n})
			}
		}
		v.gaps = kept
	}
}

// become makes v a copy of o.
func (v *view) become(o *view) {
	v.init()
	v.n = copy(v.b[:], o.c())
	copy(v.place[:], o.at())
	v.gaps = v.gaps[:0]
	v.pending, v.state, v.runs = 0, ground, o.runs
	v.live = v.live[:0]
	for _, c := range o.live {
		v.live = append(v.live, c.clone())
	}
}

// clear forgets everything but the memory.
func (v *view) clear() {
	*v = view{b: v.b, place: v.place, gaps: v.gaps[:0], live: v.live[:0]}
}

// same reports whether v and o will read on alike.
func (v *view) same(o *view) bool {
	if v.state != ground || v.n != o.n || len(v.live) != len(o.live) || v.pending != 0 && len(v.live) > 0 {
		return false
	}
	for i := range v.n {
		if v.b[i] != o.b[i] || v.place[i] != o.place[i] {
			return false
		}
	}
	for i := range v.live {
		if v.live[i] != o.live[i] || v.live[i].pem != nil {
			return false
		}
	}
	return true
}

// canonical is a needle as the plain view reads it, and as the stripped one does when that differs.
func canonical(form []byte) (plain, stripped []byte) {
	plain = make([]byte, 0, len(form))
	state, differs := ground, false
	for _, c := range form {
		if text[c] == 1 {
			plain = append(plain, c)
		}
	}
	if bytes.IndexByte(form, esc) < 0 {
		return plain, nil
	}
	for _, c := range form {
		inside := state != ground
		if inside {
			var drawn bool
			state, drawn = state.next(c)
			inside = !drawn
		} else if c == esc {
			state = escape
		}
		if text[c] == 1 && !inside {
			stripped = append(stripped, c)
		}
		differs = differs || text[c] == 1 && inside
	}
	if !differs {
		return plain, nil
	}
	return plain, stripped
}
