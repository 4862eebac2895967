// Package forms is the ways in which programs print a value: the table of the canary test (facts/reliability.md §1.4 (5), §7 P3). It is
// written apart from the product's redactor and shares nothing with it.
package forms

import (
	"encoding/base64"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"
)

// Piece is something that a form prints: Text, of which [From, To) depends on the value alone. What is before and behind stands for
// what a program printed around it.
type Piece struct {
	Text     string
	From, To int
}

// Secret is the part that depends on the value alone.
func (p Piece) Secret() string { return p.Text[p.From:p.To] }

// Form is one way to print a value.
type Form struct {
	Name  string
	Print func(value string) []Piece
}

func whole(of func(string) string) func(string) []Piece {
	return func(v string) []Piece {
		s := of(v)
		return []Piece{{s, 0, len(s)}}
	}
}

// Table is all forms.
var Table = []Form{
	{"raw", whole(func(v string) string { return v })},
	{"each-line", func(v string) (all []Piece) {
		for _, l := range strings.Split(v, "\n") {
			text := "line| " + l + " |"
			all = append(all, Piece{text, 6, 6 + len(l)})
		}
		return all
	}},
	{"coloured", whole(func(v string) string {
		colour := 30
		return each(v, func(r string) string {
			colour++
			return fmt.Sprintf("\x1b[1;%dm%s\x1b[0m", 30+colour%8, r)
		})
	})},
	{"spaced", whole(func(v string) string { return each(v, func(r string) string { return r + " " }) })},
	{"crlf", whole(func(v string) string { return strings.ReplaceAll(v, "\n", "\r\n") })},
	{"indented", whole(func(v string) string { return "\t    " + strings.ReplaceAll(v, "\n", "\n\t    ") })},
	{"base64", func(v string) []Piece { return []Piece{aligned(base64.StdEncoding, v, 0)} }},
	{"base64-after-1", func(v string) []Piece { return []Piece{aligned(base64.StdEncoding, v, 1)} }},
	{"base64-after-2", func(v string) []Piece { return []Piece{aligned(base64.StdEncoding, v, 2)} }},
	{"base64-url", func(v string) (all []Piece) {
		for before := range 3 {
			all = append(all, aligned(base64.RawURLEncoding, v, before))
		}
		return all
	}},
	{"base64-wrapped", func(v string) (all []Piece) {
		for before := range 3 {
			p := aligned(base64.StdEncoding, v, before)
			var b strings.Builder
			from, to := 0, 0
			for i := range p.Text {
				if i > 0 && i%24 == 0 {
					b.WriteByte('\n')
				}
				if i == p.From {
					from = b.Len()
				}
				b.WriteByte(p.Text[i])
				if i == p.To-1 {
					to = b.Len()
				}
			}
			all = append(all, Piece{b.String(), from, to})
		}
		return all
	}},
	{"hex", whole(func(v string) string { return fmt.Sprintf("%x", v) })},
	{"hex-upper", whole(func(v string) string { return fmt.Sprintf("%X", v) })},
	{"url-query", whole(func(v string) string { return strings.ReplaceAll(percent(v, "-._~", "%%%02X"), "%20", "+") })},
	{"url-path", whole(func(v string) string { return percent(v, "-._~/", "%%%02X") })},
	{"url-lower-case", whole(func(v string) string { return percent(v, "-._~", "%%%02x") })},
	{"json", whole(func(v string) string { return json(v, false) })},
	{"json-html", whole(func(v string) string { return json(v, true) })},
	{"go-q", whole(func(v string) string { q := strconv.Quote(v); return q[1 : len(q)-1] })},
	{"sh-backslash-quote", whole(func(v string) string { return strings.Join(strings.Split(v, "'"), `'\''`) })},
	{"sh-double-quoted-quote", whole(func(v string) string { return strings.Join(strings.Split(v, "'"), `'"'"'`) })},
	{"sh-backslashes", whole(func(v string) string { // bash's printf %q of each line
		return each(v, func(r string) string {
			if strings.Contains(" \t!\"$&'()*,;<>?[\\]^`{|}", r) {
				return `\` + r
			}
			return r
		})
	})},
	{"bash-dollar-quote", whole(func(v string) string {
		return each(v, func(r string) string {
			switch r {
			case "\n":
				return `\n`
			case "\t":
				return `\t`
			case "'", `\`:
				return `\` + r
			}
			return r
		})
	})},
	{"escaped-double-quotes", whole(func(v string) string { return strings.Join(strings.Split(v, `"`), `\"`) })},
	{"xml", whole(func(v string) string {
		named := map[string]string{"&": "&amp;", "<": "&lt;", ">": "&gt;", `"`: "&quot;", "'": "&apos;"}
		return each(v, func(r string) string {
			if n, ok := named[r]; ok {
				return n
			}
			return r
		})
	})},
}

func each(v string, of func(string) string) string {
	var b strings.Builder
	for _, r := range v {
		b.WriteString(of(string(r)))
	}
	return b.String()
}

// aligned is the value in base64 with so many bytes before it and one behind, and which of its characters hold bits of the value
// only.
func aligned(enc *base64.Encoding, v string, before int) Piece {
	text := enc.EncodeToString([]byte("::"[:before] + v + "."))
	bit := before * 8
	return Piece{text, (bit + 5) / 6, (bit + 8*len(v)) / 6}
}

func percent(v, leave, format string) string {
	var b strings.Builder
	for i := range len(v) {
		c := v[i]
		plain := c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c >= '0' && c <= '9' || strings.Contains(leave, string(rune(c)))
		if c < utf8.RuneSelf && plain {
			b.WriteByte(c)
		} else {
			fmt.Fprintf(&b, format, c)
		}
	}
	return b.String()
}

func json(v string, html bool) string {
	return each(v, func(r string) string {
		switch {
		case r == `"` || r == `\`:
			return `\` + r
		case r == "\n":
			return `\n`
		case r == "\t":
			return `\t`
		case html && strings.Contains("<>&", r):
			return fmt.Sprintf(`\u%04x`, r[0])
		}
		return r
	})
}

// Mark stands before each printed piece, so that what is found later tells where it was printed and how.
func Mark(channel, form string) string { return "<<canary:" + channel + ":" + form + ">>" }

// Printed is what a channel prints of a value: each piece of each form behind its mark. only picks forms by name; nil: all.
func Printed(channel, value string, only []string) string {
	var b strings.Builder
	for _, f := range Table {
		if only != nil && !slices.Contains(only, f.Name) {
			continue
		}
		for _, p := range f.Print(value) {
			b.WriteString(Mark(channel, f.Name) + p.Text + "\n")
		}
	}
	return b.String()
}
