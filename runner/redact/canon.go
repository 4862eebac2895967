package redact

import "bytes"

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
	// c is text: at first the last few bytes (fewer than window) that may begin a needle, then that of the chunk.
	// There is always room for eight more bytes, since a window is read as eight.
	c  []byte
	at []int32 // where each byte of c stands in the stream, relative to the start of the chunk
	// gaps says for some indices of c how many bytes of escape sequences lie before it (stripped view only).
	gaps    []gap
	pending int32 // bytes of escape sequences since the last text byte
	state   ansi
	live    []cand
	dead    int // text before this index can begin nothing any more
	// runs is, by the number of its needle, where the last run of a token's characters ended or has come to. A token
	// that begins inside is part of it.
	runs [len(shapes)]int64
}

type gap struct {
	index int
	n     int32
}

// plain appends the text of p.
func (v *view) plain(p []byte, off int32) {
	n := len(v.c)
	v.grow(len(p))
	c, at := v.c[:n+len(p)], v.at[:n+len(p)]
	for i, b := range p {
		c[n], at[n] = b, off+int32(i)
		n += int(text[b])
	}
	v.c, v.at = c[:n], at[:n]
}

// stripped appends the text of p that is outside escape sequences.
func (v *view) stripped(p []byte) {
	for i := 0; i < len(p); {
		if v.state == ground {
			j := bytes.IndexByte(p[i:], esc)
			if j < 0 {
				j = len(p) - i
			}
			if j > 0 {
				n := len(v.c)
				v.plain(p[i:i+j], int32(i))
				if v.pending > 0 && len(v.c) > n {
					v.gaps = append(v.gaps, gap{n, v.pending})
					v.pending = 0
				}
				i += j
				continue
			}
			v.state, v.pending = escape, v.pending+1
			i++
			continue
		}
		to, drawn := v.state.next(p[i])
		v.state = to
		if !drawn {
			v.pending++
			i++
		}
	}
}

func (v *view) grow(n int) {
	need := len(v.c) + n
	if need+8 > cap(v.c) {
		c := make([]byte, len(v.c), need+need/2+64)
		copy(c, v.c)
		v.c = c
	}
	if need > cap(v.at) {
		at := make([]int32, len(v.at), need+need/2+64)
		copy(at, v.at)
		v.at = at
	}
}

// escaped is the number of bytes of escape sequences right before the text byte k.
func (v *view) escaped(k int) int32 {
	for _, g := range v.gaps {
		if g.index == k {
			return g.n
		}
	}
	return 0
}

// keep drops all text before index k and moves the origin of at on by the length of the chunk.
func (v *view) keep(k int, chunk int) {
	v.c = v.c[:copy(v.c, v.c[k:])]
	v.at = v.at[:copy(v.at, v.at[k:])]
	for i := range v.at {
		v.at[i] -= int32(chunk)
	}
	if len(v.gaps) > 0 {
		kept := v.gaps[:0]
		for _, g := range v.gaps {
			if g.index >= k && len(v.c) > 0 {
				kept = append(kept, gap{g.index - k, g.n})
			}
		}
		v.gaps = kept
	}
}

// become makes v a copy of o.
func (v *view) become(o *view) {
	v.grow(len(o.c))
	v.c = append(v.c[:0], o.c...)
	v.at = append(v.at[:0], o.at...)
	v.gaps = v.gaps[:0]
	v.pending, v.state, v.runs = 0, ground, o.runs
	v.live = v.live[:0]
	for _, c := range o.live {
		v.live = append(v.live, c.clone())
	}
}

// same reports whether v and o will read on alike.
func (v *view) same(o *view) bool {
	if v.state != ground || len(v.c) != len(o.c) || len(v.live) != len(o.live) || v.pending != 0 && len(v.live) > 0 {
		return false
	}
	for i := range v.c {
		if v.c[i] != o.c[i] || v.at[i] != o.at[i] {
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
	var v view
	v.plain(form, 0)
	plain = v.c
	if bytes.IndexByte(form, esc) < 0 {
		return plain, nil
	}
	var s view
	s.stripped(form)
	if bytes.Equal(s.c, plain) {
		return plain, nil
	}
	return plain, s.c
}
