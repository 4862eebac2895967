package envspec

import (
	"strconv"
	"strings"
)

// Format writes a Spec as the canonical document: keys in their order, scripts as blocks, nothing that is a default
// but the image. [Parse] reads the same Spec from it, normalized.
func Format(s Spec) []byte {
	s = Normalize(s)
	var b strings.Builder
	b.WriteString("image: " + scalar(s.Image) + "\n")
	for _, f := range []struct{ key, script string }{{"bootstrap", s.Bootstrap}, {"start", s.Start}} {
		if f.script != "" {
			b.WriteString(f.key + ": " + block(f.script))
		}
	}
	if s.CPU != 0 {
		b.WriteString("cpu: " + FormatCPU(s.CPU) + "\n")
	}
	if s.Memory != 0 {
		b.WriteString("memory: " + FormatMemory(s.Memory) + "\n")
	}
	return []byte(b.String())
}

// block writes a script as a literal block, or in quotes where a block can't hold it.
func block(v string) string {
	if !blockable(v) {
		return strconv.Quote(v) + "\n"
	}
	var b strings.Builder
	b.WriteByte('|')
	// Without the number a reader takes the first line's own indentation for the block's.
	if strings.IndexByte(" \t\n", v[0]) >= 0 {
		b.WriteByte('2')
	}
	body := strings.TrimRight(v, "\n")
	switch len(v) - len(body) {
	case 0:
		b.WriteByte('-')
	case 1:
	default:
		b.WriteByte('+')
	}
	b.WriteByte('\n')
	for l := range strings.Lines(v) {
		if l != "\n" {
			b.WriteString("  ")
		}
		b.WriteString(l)
	}
	if !strings.HasSuffix(v, "\n") {
		b.WriteByte('\n')
	}
	return b.String()
}

func blockable(v string) bool {
	for _, r := range v {
		switch {
		case r == '\t' || r == '\n':
		case r < ' ', r >= 0x7f && r < 0xa0, r == 0x2028, r == 0x2029, r == 0xfeff, r == 0xfffd, r == 0xfffe, r == 0xffff:
			return false
		}
	}
	return strings.Trim(v, " \t\n") != ""
}

// scalar writes a short text, in quotes unless it is certain that it needs none.
func scalar(v string) string {
	if v != "" && strings.Trim(v, "abcdefghijklmnopqrstuvwxyz0123456789./:_-@") == "" && strings.IndexByte("abcdefghijklmnopqrstuvwxyz", v[0]) >= 0 &&
		!strings.HasSuffix(v, ":") && !words.MatchString(v) && v != "null" {
		return v
	}
	return strconv.Quote(v)
}
