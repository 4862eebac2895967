package web

import (
	"bytes"
	"strings"
	"unicode/utf8"
)

// clean turns one line of a log, without its newline, into text that can stand on a page: what a progress bar overwrote
// is gone, escape sequences and control bytes are dropped, and what is no UTF-8 is shown as U+FFFD (facts/web.md §1.3).
func clean(line []byte) string {
	line = bytes.TrimRight(line, "\r")
	if i := bytes.LastIndexByte(line, '\r'); i >= 0 {
		line = line[i+1:]
	}
	var b strings.Builder
	b.Grow(len(line))
	for len(line) > 0 {
		if line[0] == 0x1b {
			line = line[escape(line):]
			continue
		}
		r, n := utf8.DecodeRune(line)
		switch {
		case r == utf8.RuneError && n == 1:
			b.WriteRune(utf8.RuneError)
		case r == '\t' || (r >= ' ' && r != 0x7f && (r < 0x80 || r > 0x9f)):
			b.Write(line[:n])
		}
		line = line[n:]
	}
	return b.String()
}

// escape is the length of the escape sequence that line begins with. One that doesn't end takes the rest of the line.
func escape(line []byte) int {
	if len(line) < 2 {
		return len(line)
	}
	switch line[1] {
	case '[': // CSI: parameters, intermediates, one final byte
		for i := 2; i < len(line); i++ {
			if line[i] < 0x20 || line[i] > 0x3f {
				if line[i] >= 0x40 && line[i] <= 0x7e {
					return i + 1
				}
				return i // broken: what follows is text again
			}
		}
		return len(line)
	case ']', 'P', 'X', '^', '_': // OSC, DCS, SOS, PM, APC: up to BEL or ESC \
		for i := 2; i < len(line); i++ {
			if line[i] == 0x07 {
				return i + 1
			}
			if line[i] == 0x1b {
				if i+1 < len(line) && line[i+1] == '\\' {
					return i + 2
				}
				return i
			}
		}
		return len(line)
	}
	i := 1 // ESC, intermediates, one final byte
	for i < len(line) && line[i] >= 0x20 && line[i] <= 0x2f {
		i++
	}
	if i < len(line) && line[i] >= 0x30 && line[i] <= 0x7e {
		return i + 1
	}
	return i
}

// maxLine is where a line that doesn't end is cut, in bytes.
const maxLine = 64 << 10

// lines cleans the whole lines of b and tells how many bytes they took; a rest that is too long counts as whole.
func lines(b []byte) (text string, took int) {
	var out strings.Builder
	for {
		i := bytes.IndexByte(b[took:], '\n')
		switch {
		case i > maxLine || (i < 0 && len(b)-took > maxLine):
			n := maxLine
			for n > maxLine-utf8.UTFMax && !utf8.RuneStart(b[took+n]) {
				n--
			}
			out.WriteString(clean(b[took : took+n]))
			out.WriteByte('\n')
			took += n
		case i < 0:
			return out.String(), took
		default:
			out.WriteString(clean(b[took : took+i]))
			out.WriteByte('\n')
			took += i + 1
		}
	}
}
