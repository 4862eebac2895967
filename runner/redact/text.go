// Package redact keeps Sensitive values out of everything the Hub and the Runner store or relay (ADR 0009).
//
// A [Set] knows the values of one assignment. A [Writer] is a stream through it: what goes in is any output, what
// comes out is [Text], in which each value, in each form the Set knows, is replaced by [Mask]. Sinks take a Text, and
// only this package makes one, so a path that forgets to redact does not compile.
//
// Matching does not see white space, control bytes and terminal escape sequences, so that a value that was wrapped,
// indented, coloured or printed in UTF-16 is found like the plain one. The result does not depend on how the output
// was cut into writes. Overlapping occurrences are replaced by one mask; adjacent ones by one each.
//
// Control bytes and invalid UTF-8 pass as they are: making output safe to display is the displayer's job.
package redact

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"unicode/utf8"
)

// Mask stands in the output in the place of a value.
const Mask = "***"

// Text is text that went through a Set, or a constant of the program. The zero Text is empty. A Text is immutable and
// comparable. There is no way to read one back in (from JSON, say) but through [Set.Text].
type Text struct{ s string }

// String returns the text.
func (t Text) String() string { return t.s }

// Len is the length in bytes.
func (t Text) Len() int { return len(t.s) }

// After is the text without its first n bytes.
func (t Text) After(n int) Text { return Text{t.s[min(max(n, 0), len(t.s)):]} }

// MarshalJSON writes the text as a JSON string; bytes that are not UTF-8 become U+FFFD.
func (t Text) MarshalJSON() ([]byte, error) { return json.Marshal(t.s) }

// constant has no name outside, so that only an untyped constant can become one.
type constant string

// Static makes a Text of a constant that stands in the program's source. A string variable does not compile.
func Static(s constant) Text { return Text{string(s)} }

// Concat puts texts together. A value whose parts lie in two of them is not looked for: pieces of one stream belong
// through one Writer.
func Concat(parts ...Text) Text {
	var b strings.Builder
	for _, p := range parts {
		b.WriteString(p.s)
	}
	return Text{b.String()}
}

// Textf formats and then redacts. The format is a constant of the program; the arguments may be anything, values
// included. It is how messages with a name, a path or an error in them are made.
func (s *Set) Textf(format constant, args ...any) Text {
	return s.Text(fmt.Sprintf(string(format), args...))
}

// Tail returns the last lines of t that fit in the given number of bytes. When even the last line does not fit, its
// end is returned, cut between runes. A newline at the very end does not count as a line.
func (t Text) Tail(lines, bytes int) Text {
	s := t.s
	if lines <= 0 || bytes <= 0 {
		return Text{}
	}
	end := len(strings.TrimSuffix(s, "\n"))
	start, before := 0, end
	for ; lines > 0; lines-- {
		before = strings.LastIndexByte(s[:before], '\n')
		start = before + 1
		if before < 0 {
			break
		}
	}
	if cut := len(s) - bytes; cut > start {
		start = runeStart(s, cut)
		if nl := strings.IndexByte(s[cut-1:end], '\n'); nl >= 0 && cut+nl < end {
			start = cut + nl
		}
	}
	return Text{s[start:]}
}

// Head returns at most the first bytes of t, cut between runes.
func (t Text) Head(bytes int) Text {
	if bytes >= len(t.s) {
		return t
	}
	if bytes <= 0 {
		return Text{}
	}
	cut := bytes
	for cut > 0 && cut > bytes-utf8.UTFMax && !utf8.RuneStart(t.s[cut]) {
		cut--
	}
	if !utf8.RuneStart(t.s[cut]) {
		cut = bytes
	}
	return Text{t.s[:cut]}
}

// runeStart is the first place from i on where a rune starts; i itself when the text there is not UTF-8.
func runeStart(s string, i int) int {
	for j := i; j < len(s) && j < i+utf8.UTFMax; j++ {
		if utf8.RuneStart(s[j]) {
			return j
		}
	}
	return i
}

// Tail keeps the last lines of a stream of Texts, within a number of bytes. It is for one goroutine.
type Tail struct {
	lines, bytes int
	b            []byte
}

// NewTail makes a Tail that keeps so many lines and bytes.
func NewTail(lines, bytes int) *Tail { return &Tail{lines: lines, bytes: bytes} }

// Add appends a Text. It has the signature of a Writer's sink and never fails.
func (k *Tail) Add(t Text) error {
	k.b = append(k.b, t.s...)
	if keep := k.bytes + utf8.UTFMax; len(k.b) > 2*keep+4096 {
		k.b = append(k.b[:0], k.b[len(k.b)-keep:]...)
	}
	return nil
}

// Text is what the Tail holds now.
func (k *Tail) Text() Text { return Text{string(k.b)}.Tail(k.lines, k.bytes) }

// Holds says whether an occurrence of a value that was added stands in v. What is only shaped like a secret doesn't count.
func (s *Set) Holds(v string) bool {
	w := s.Writer(func(Text) error { return nil })
	w.step([]byte(v), true) //nolint:errcheck // the sink never fails
	w.mu.Lock()
	defer w.mu.Unlock()
	for name := range w.found {
		if !slices.ContainsFunc(shapes[:], func(sh shape) bool { return sh.name == name }) {
			return true
		}
	}
	return false
}
