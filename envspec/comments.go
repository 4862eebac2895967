package envspec

import (
	"bytes"
	"strings"
	"unicode/utf8"

	"gopkg.in/yaml.v3"
)

// comment is one comment of a document. The YAML library has them too, attached to nodes, but not all of them: those of
// a document without keys are lost, and some of what stands around blocks.
type comment struct {
	text  string // from the # on, without white space at its end
	at    int    // its offset
	own   bool   // nothing else is on its line
	blank bool   // the line before is empty
}

// entry is one key of a document with its value, and the comments that belong to it.
type entry struct {
	key   string
	at    int // the key's offset
	value int // the value's offset
	blank bool
}

// layout is what a document has besides its values.
type layout struct {
	entries  []entry
	comments []comment
}

// scanner finds the comments of a document that is right. It goes from scalar to scalar, whose places and styles the
// library says: between them each # begins a comment.
type scanner struct {
	b    []byte
	i    int
	flow bool
	kept int // the end of a block that keeps its empty lines: they separate nothing
	out  layout
}

// scan reads the layout of a document without byte order mark. root is its mapping, nil when it has none.
func scan(b []byte, root *yaml.Node) layout {
	s := scanner{b: b}
	if root == nil {
		s.between(len(b), false)
		return s.out
	}
	s.flow = root.Style&yaml.FlowStyle != 0
	places := offsets(b, root.Content)
	after := false
	for n, node := range root.Content {
		s.between(places[n], after)
		s.i = max(s.i, places[n])
		if n%2 == 0 {
			s.out.entries = append(s.out.entries, entry{key: node.Value, at: s.i, blank: s.emptyBefore(s.i)})
		}
		next := len(b)
		if n+1 < len(places) {
			next = places[n+1]
		}
		s.properties(next)
		if n%2 == 1 {
			s.out.entries[n/2].value = s.i
		}
		after = s.scalar(node, root.Column-1)
	}
	s.between(len(b), after)
	return s.out
}

// offsets are the places of nodes, which are in the order of the document.
func offsets(b []byte, nodes []*yaml.Node) []int {
	out := make([]int, len(nodes))
	line, i := 1, 0
	for n, node := range nodes {
		for line < node.Line && i < len(b) {
			if size := lineBreak(b[i:]); size > 0 {
				line, i = line+1, i+size
			} else {
				i++
			}
		}
		at := i
		for range node.Column - 1 {
			_, size := utf8.DecodeRune(b[at:])
			at += size
		}
		out[n] = at
	}
	return out
}

// lineBreak is the length of the line break that b begins with, of those that YAML 1.1 has; 0 for none.
func lineBreak(b []byte) int {
	switch {
	case len(b) == 0:
		return 0
	case bytes.HasPrefix(b, []byte("\r\n")), bytes.HasPrefix(b, []byte("\u0085")):
		return 2
	case b[0] == '\n', b[0] == '\r':
		return 1
	case bytes.HasPrefix(b, []byte("\u2028")), bytes.HasPrefix(b, []byte("\u2029")):
		return 3
	}
	return 0
}

// between takes what is not part of a scalar that ends where it must, up to an offset: white space, indicators, comments,
// and plain scalars, in which a # without white space before it is text. after says that there is no such scalar.
func (s *scanner) between(to int, after bool) {
	for s.i < to {
		if s.b[s.i] == '#' && (after || s.separated()) {
			s.comment()
		} else {
			s.i++
		}
	}
}

func (s *scanner) separated() bool {
	if s.i == 0 {
		return true
	}
	switch c := s.b[s.i-1]; {
	case c == ' ', c == '\t', c == '\n', c == '\r':
		return true
	case s.flow && strings.IndexByte(",[]{}", c) >= 0, c == '{':
		return s.flow
	}
	for _, long := range []string{"\u0085", "\u2028", "\u2029"} {
		if bytes.HasSuffix(s.b[:s.i], []byte(long)) {
			return true
		}
	}
	return false
}

func (s *scanner) comment() {
	begin := s.i
	for s.i < len(s.b) && lineBreak(s.b[s.i:]) == 0 {
		s.i++
	}
	line := s.lineStart(begin)
	s.out.comments = append(s.out.comments, comment{
		text: strings.TrimRight(string(s.b[begin:s.i]), " \t"), at: begin,
		own: len(bytes.Trim(s.b[line:begin], " \t")) == 0, blank: s.emptyBefore(begin),
	})
}

func (s *scanner) lineStart(at int) int {
	for at > 0 {
		size := 1
		if at >= 3 && lineBreak(s.b[at-3:at]) == 3 {
			size = 3
		} else if at >= 2 && lineBreak(s.b[at-2:at]) == 2 {
			size = 2
		}
		if lineBreak(s.b[at-size:at]) == size {
			return at
		}
		at--
	}
	return 0
}

// emptyBefore says whether the line before the one of an offset is empty, or begins the document.
func (s *scanner) emptyBefore(at int) bool {
	end := s.lineStart(at)
	if end == 0 || end <= s.kept {
		return false
	}
	begin := s.lineStart(end - 1)
	if bytes.HasSuffix(s.b[:end], []byte("\r\n")) {
		begin = s.lineStart(end - 2)
	}
	line := strings.Trim(string(s.b[begin:end]), " \t\r\n\u0085\u2028\u2029")
	return line == "" || strings.HasPrefix(line, "---")
}

// properties takes a tag, and what stands between it and its scalar.
func (s *scanner) properties(to int) {
	for s.i < to && (s.b[s.i] == '!' || s.b[s.i] == '&') {
		for s.i < to && strings.IndexByte(" \t\r\n", s.b[s.i]) < 0 && lineBreak(s.b[s.i:]) == 0 && (!s.flow || strings.IndexByte(",}", s.b[s.i]) < 0) {
			s.i++
		}
		for s.i < to {
			if size := lineBreak(s.b[s.i:]); size > 0 {
				s.i += size
			} else if s.b[s.i] == ' ' || s.b[s.i] == '\t' {
				s.i++
			} else if s.b[s.i] == '#' {
				s.comment()
			} else {
				break
			}
		}
	}
}

// scalar takes a scalar that has an end of its own, and says whether this is one.
func (s *scanner) scalar(n *yaml.Node, indent int) bool {
	if s.i >= len(s.b) {
		return false
	}
	switch c := s.b[s.i]; {
	case n.Style&yaml.DoubleQuotedStyle != 0 && c == '"':
		for s.i++; s.i < len(s.b) && s.b[s.i] != '"'; s.i++ {
			if s.b[s.i] == '\\' {
				s.i++
			}
		}
		s.i++
	case n.Style&yaml.SingleQuotedStyle != 0 && c == '\'':
		for s.i++; s.i < len(s.b); s.i++ {
			if s.b[s.i] != '\'' {
				continue
			}
			if s.i+1 == len(s.b) || s.b[s.i+1] != '\'' {
				break
			}
			s.i++
		}
		s.i++
	case n.Style&(yaml.LiteralStyle|yaml.FoldedStyle) != 0 && (c == '|' || c == '>'):
		s.block(indent)
	default:
		return false
	}
	s.i = min(s.i, len(s.b))
	return true
}

// block takes a literal or folded block. indent is that of the mapping it stands in.
func (s *scanner) block(indent int) {
	keep, want := false, 0
	for s.i++; s.i < len(s.b) && strings.IndexByte("+-123456789", s.b[s.i]) >= 0; s.i++ {
		switch c := s.b[s.i]; c {
		case '+':
			keep = true
		case '-':
		default:
			want = indent + int(c-'0')
		}
	}
	for s.i < len(s.b) && lineBreak(s.b[s.i:]) == 0 {
		if s.b[s.i] == '#' {
			s.comment()
		} else {
			s.i++
		}
	}
	s.i += lineBreak(s.b[s.i:])
	if want == 0 {
		want = s.deepest(indent)
	}
	end := s.i
	for s.i < len(s.b) {
		begin := s.i
		for s.i < len(s.b) && s.b[s.i] == ' ' && s.i-begin < want {
			s.i++
		}
		empty := lineBreak(s.b[s.i:]) > 0 || s.i == len(s.b)
		if s.i-begin < want && !empty {
			s.i = begin
			break
		}
		for s.i < len(s.b) && lineBreak(s.b[s.i:]) == 0 {
			s.i++
		}
		s.i += lineBreak(s.b[s.i:])
		if !empty || keep {
			end = s.i
		}
	}
	s.i = end
	if keep {
		s.kept = end
	}
}

// deepest is how far a block without a number is indented: as its first line with text, or an emptier one before it.
func (s *scanner) deepest(indent int) int {
	most := indent + 1
	for i := s.i; i < len(s.b); {
		begin := i
		for i < len(s.b) && s.b[i] == ' ' {
			i++
		}
		most = max(most, i-begin)
		size := lineBreak(s.b[i:])
		if size == 0 {
			break
		}
		i += size
	}
	return most
}
