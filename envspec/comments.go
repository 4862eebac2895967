package envspec

import (
	"bytes"
	"slices"
	"strings"
	"unicode/utf8"

	"gopkg.in/yaml.v3"
)

// comment is one comment of a document. The YAML library has them too, attached to nodes, but not all of them: those of
// a document without keys are lost, and some of what stands around blocks.
type comment struct {
	text   string // from the # on, without white space at its end
	at     int    // its offset
	column int    // in bytes
	own    bool   // nothing else is on its line
	blank  bool   // the line before is empty
}

// entry is one key of a document with its value, or one item of a list, and the comments that belong to it.
type entry struct {
	key      string // none of an item
	at       int    // the key's offset
	value    int    // the value's offset
	last     int    // the offset of what the value ends with: the value itself, or the last in it
	column   int    // of what the entry begins with, in bytes
	blank    bool
	group    bool // the value is a group or a list, and written as a block
	children []entry
}

// layout is what a document has besides its values.
type layout struct {
	entries  []entry
	comments []comment
}

// scanner finds the comments of a document that is right. It goes from scalar to scalar, whose places and styles the
// library says: between them each # begins a comment.
type scanner struct {
	b      []byte
	lines  []int // where each begins
	i      int
	places map[*yaml.Node]int
	next   []*yaml.Node // those not reached yet, in the order of the document
	flow   int          // how deep in brackets and braces
	outer  int          // how deep what was reached last stands
	blank  bool         // the line before that is empty
	ended  bool         // what was reached last has an end of its own
	last   int          // where that begins
	kept   int          // the end of a block's text: empty lines in it separate nothing
	out    layout
}

// scan reads the layout of a document without byte order mark. root is its mapping, nil when it has none.
func scan(b []byte, root *yaml.Node) layout {
	s := scanner{b: b, lines: []int{0}}
	for i := 0; i < len(b); {
		size := lineBreak(b[i:])
		i += max(1, size)
		if size > 0 {
			s.lines = append(s.lines, i)
		}
	}
	if root != nil {
		s.next = inOrder(nil, root)
		s.places = offsets(b, s.next)
		s.reach(root, 0)
		s.out.entries = s.entries(root, true)
	}
	s.between(len(b), s.ended)
	return s.out
}

func inOrder(all []*yaml.Node, n *yaml.Node) []*yaml.Node {
	all = append(all, n)
	for _, c := range n.Content {
		all = inOrder(all, c)
	}
	return all
}

// entries takes a group or a list that was reached, and tells of what is in it. deep says to tell also of each Variable and
// pattern in that.
func (s *scanner) entries(n *yaml.Node, deep bool) (out []entry) {
	step := 2
	if n.Kind == yaml.SequenceNode {
		step = 1
	}
	for i := 0; i+step <= len(n.Content); i += step {
		var e entry
		if step == 2 {
			key := n.Content[i]
			e.key = key.Value
			e.at = s.reach(key, n.Column-1)
			e.blank = s.blank
		}
		block := s.outer == 0
		value := n.Content[i+step-1]
		begin := s.reach(value, n.Column-1)
		if step == 1 {
			e.at, e.blank, block = begin, s.blank, s.outer == 0
		}
		e.value = s.last
		e.column = e.at - s.lineStart(e.at)
		e.group = block && value.Kind != yaml.ScalarNode
		if children := s.entries(value, false); deep && (e.key == "variables" || e.key == "dependency-folders") {
			e.children = children
		}
		e.last = s.last
		out = append(out, e)
	}
	return out
}

// reach goes to a node, takes it if it is a scalar, and its first character if it is in brackets or braces. It returns where
// the node begins; where it begins without its tag is in last. indent is that of the mapping or list it stands in.
func (s *scanner) reach(n *yaml.Node, indent int) int {
	place := s.places[n]
	s.between(place, s.ended)
	s.i = max(s.i, place)
	begin := s.i
	s.outer, s.blank = s.flow, s.emptyBefore(begin)
	s.next = s.next[1:]
	to := len(s.b)
	if len(s.next) > 0 {
		to = s.places[s.next[0]]
	}
	if n.Kind == yaml.ScalarNode || n.Style&yaml.FlowStyle != 0 {
		s.properties(to)
	}
	s.last = s.i
	switch {
	case n.Kind == yaml.ScalarNode:
		s.ended = s.scalar(n, indent)
	case n.Style&yaml.FlowStyle != 0 && s.i < len(s.b):
		s.i, s.flow, s.ended = s.i+1, s.flow+1, true
	}
	return begin
}

// offsets are the places of nodes, which are in the order of the document.
func offsets(b []byte, nodes []*yaml.Node) map[*yaml.Node]int {
	out := make(map[*yaml.Node]int, len(nodes))
	line, column, i := 1, 1, 0
	for _, node := range nodes {
		for i < len(b) && (line < node.Line || column < node.Column) {
			if size := lineBreak(b[i:]); size > 0 && line < node.Line {
				line, column, i = line+1, 1, i+size
				continue
			}
			_, size := utf8.DecodeRune(b[i:])
			column, i = column+1, i+size
		}
		out[node] = i
	}
	return out
}

// lineBreak is the length of the line break that b begins with, of those that YAML 1.1 has; 0 for none.
func lineBreak(b []byte) int {
	if len(b) == 0 {
		return 0
	}
	switch c := b[0]; {
	case c == '\n':
		return 1
	case c == '\r' && len(b) > 1 && b[1] == '\n':
		return 2
	case c == '\r':
		return 1
	case c == 0xc2 && bytes.HasPrefix(b, []byte("\u0085")):
		return 2
	case c == 0xe2 && (bytes.HasPrefix(b, []byte("\u2028")) || bytes.HasPrefix(b, []byte("\u2029"))):
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
			continue
		}
		if s.flow > 0 && (s.b[s.i] == '}' || s.b[s.i] == ']') {
			s.flow, after = s.flow-1, true
		}
		s.i++
	}
}

func (s *scanner) separated() bool {
	if s.i == 0 {
		return true
	}
	switch c := s.b[s.i-1]; {
	case c == ' ', c == '\t', c == '\n', c == '\r':
		return true
	case strings.IndexByte(",[]{}", c) >= 0:
		return s.flow > 0
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
		text: strings.TrimRight(string(s.b[begin:s.i]), " \t"), at: begin, column: begin - line,
		own: len(bytes.Trim(s.b[line:begin], " \t")) == 0, blank: s.emptyBefore(begin),
	})
}

// line is the number of the line of an offset, from 0.
func (s *scanner) line(at int) int {
	n, found := slices.BinarySearch(s.lines, at)
	if !found {
		n--
	}
	return n
}

func (s *scanner) lineStart(at int) int { return s.lines[s.line(at)] }

// emptyBefore says whether the line before the one of an offset is empty, or begins the document.
func (s *scanner) emptyBefore(at int) bool {
	n := s.line(at)
	if n == 0 || s.lines[n] <= s.kept {
		return false
	}
	line := s.b[s.lines[n-1]:s.lines[n]]
	return strings.Trim(string(line), " \t\r\n\u0085\u2028\u2029") == "" || bytes.HasPrefix(line, []byte("---"))
}

// properties takes a tag, and what stands between it and its scalar.
func (s *scanner) properties(to int) {
	for s.i < to && (s.b[s.i] == '!' || s.b[s.i] == '&') {
		for s.i < to && strings.IndexByte(" \t\r\n", s.b[s.i]) < 0 && lineBreak(s.b[s.i:]) == 0 && (s.flow == 0 || strings.IndexByte(",]}", s.b[s.i]) < 0) {
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
	s.kept = end
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
