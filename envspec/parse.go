package envspec

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"

	"gopkg.in/yaml.v3"
)

// maxProblems is how many problems of one document are told.
const maxProblems = 50

// Parse reads a document. name is the file's name, for the problems. When something is wrong the error is [Problems]
// with all that was found, warnings among them; a document with warnings only is returned without them, see [Check].
// The Spec is normalized.
func Parse(name string, b []byte) (Spec, error) {
	s, p := Check(name, b)
	if p.Failed() {
		return Spec{}, p
	}
	return s, nil
}

// Check reads a document and returns all problems, also when there are only warnings. The Spec holds what could be
// read; it is good when not Problems.Failed.
func Check(name string, b []byte) (Spec, Problems) {
	p := parser{file: name, spec: Default()}
	p.document(b)
	p.problems.sort()
	if len(p.problems) > maxProblems {
		more := len(p.problems) - maxProblems
		last := p.problems[maxProblems-1]
		failed := p.problems.Failed()
		p.problems = append(p.problems[:maxProblems:maxProblems], Problem{File: name, Line: last.Line, Column: last.Column,
			Message: fmt.Sprintf("%d more problems are not shown", more), Warning: !failed})
	}
	if !p.problems.Failed() {
		p.spec = Normalize(p.spec)
	}
	return p.spec, p.problems
}

type parser struct {
	file     string
	spec     Spec
	problems Problems
}

func (p *parser) at(n *yaml.Node, path, format string, args ...any) {
	p.place(n.Line, n.Column, path, format, args...)
}

func (p *parser) place(line, column int, path, format string, args ...any) {
	p.problems = append(p.problems, Problem{File: p.file, Path: path, Line: max(1, line), Column: max(1, column), Message: fmt.Sprintf(format, args...)})
}

// known are the keys of a document and what reads each.
var known = map[string]func(*parser, *yaml.Node){
	"image": func(p *parser, n *yaml.Node) {
		v, ok := p.text(n, "image")
		if !ok {
			return
		}
		v = strings.TrimSpace(v)
		if v == "" {
			p.at(n, "image", "image is empty: leave the line out to get %s", DefaultImage)
			return
		}
		p.spec.Image = v
		p.check(n, "image", checkImage(v))
	},
	"bootstrap": func(p *parser, n *yaml.Node) { p.script(n, "bootstrap", &p.spec.Bootstrap) },
	"start":     func(p *parser, n *yaml.Node) { p.script(n, "start", &p.spec.Start) },
	"cpu": func(p *parser, n *yaml.Node) {
		v, ok := p.number(n, "cpu", "2 or 0.5", "!!int", "!!float")
		if !ok {
			return
		}
		c, err := ParseCPU(v)
		p.spec.CPU = c
		p.check(n, "cpu", err)
	},
	"memory": func(p *parser, n *yaml.Node) {
		v, ok := p.number(n, "memory", "4GiB", "!!str", "!!int", "!!float")
		if !ok {
			return
		}
		m, err := ParseMemory(v)
		p.spec.Memory = m
		p.check(n, "memory", err)
	},
}

// meant are keys of other products, and what they are called here.
var meant = map[string]string{
	"from": "image", "base": "image", "container": "image", "docker-image": "image", "dockerimage": "image",
	"setup": "bootstrap", "install": "bootstrap", "build": "bootstrap", "init": "bootstrap", "oncreatecommand": "bootstrap",
	"run": "start", "command": "start", "startup": "start", "poststartcommand": "start", "postcreatecommand": "start",
	"cpus": "cpu", "cores": "cpu", "vcpu": "cpu", "mem": "memory", "ram": "memory",
}

func (p *parser) document(b []byte) {
	if len(b) > MaxDocument {
		p.place(1, 1, "", "the document is %d KiB long: at most %d KiB", len(b)>>10, MaxDocument>>10)
		return
	}
	if !p.readable(b) {
		return
	}
	d := yaml.NewDecoder(bytes.NewReader(b))
	var doc yaml.Node
	switch err := d.Decode(&doc); {
	case errors.Is(err, io.EOF):
		return // nothing but comments: all defaults
	case err != nil:
		p.syntax(b, err)
		return
	}
	var second yaml.Node
	switch err := d.Decode(&second); {
	case err == nil:
		p.at(&second, "", "there is a second document after ---: one Environment is one document")
	case !errors.Is(err, io.EOF):
		p.syntax(b, err)
	}
	root := &doc
	if doc.Kind == yaml.DocumentNode && len(doc.Content) == 1 {
		root = doc.Content[0]
	}
	if root.Kind == yaml.ScalarNode && root.ShortTag() == "!!null" {
		return
	}
	if root.Kind != yaml.MappingNode {
		p.at(root, "", "the document is %s: it should be keys and values, such as image: %s", kind(root), DefaultImage)
		return
	}
	p.mapping(root)
}

func (p *parser) mapping(root *yaml.Node) {
	seen := map[string]*yaml.Node{}
	p.anchor(root)
	for i := 0; i+1 < len(root.Content); i += 2 {
		key, value := root.Content[i], root.Content[i+1]
		if key.Kind != yaml.ScalarNode {
			p.at(key, "", "a key is %s: it should be one of %s", kind(key), keys())
			continue
		}
		p.anchor(key)
		if key.ShortTag() == "!!merge" {
			p.at(key, "", "merging with << is not supported: write the keys out")
			continue
		}
		if before, twice := seen[key.Value]; twice {
			p.at(key, key.Value, "%s stands here a second time, the first is in line %d", plain(key.Value), before.Line)
			continue
		}
		seen[key.Value] = key
		if read, ok := known[key.Value]; ok {
			read(p, value)
			continue
		}
		if guess := suggest(key.Value); guess != "" {
			p.at(key, "", "%s is no key of an Environment: did you mean %s?", plain(key.Value), guess)
		} else {
			p.at(key, "", "%s is no key of an Environment: there are %s", plain(key.Value), keys())
		}
	}
}

// plain shows a key as it is when it is an ordinary word.
func plain(key string) string {
	if key != "" && len(key) <= 40 && strings.Trim(strings.ToLower(key), "abcdefghijklmnopqrstuvwxyz0123456789-_.") == "" {
		return key
	}
	return quote(key)
}

func keys() string {
	names := make([]string, len(fields))
	for i, f := range fields {
		names[i] = f.name
	}
	return strings.Join(names[:len(names)-1], ", ") + " and " + names[len(names)-1]
}

func suggest(key string) string {
	lower := strings.ToLower(key)
	if m, ok := meant[lower]; ok {
		return m
	}
	best, least := "", 3
	for _, f := range fields {
		// A word of three letters is like many others.
		if d := distance(lower, f.name); d < least && d < len(f.name)-1 {
			best, least = f.name, d
		}
	}
	return best
}

// distance is the number of letters to insert, leave out or change; a large one is only said to be large.
func distance(a, b string) int {
	if len(a) > len(b)+2 || len(b) > len(a)+2 {
		return 3
	}
	row := make([]int, len(b)+1)
	for j := range row {
		row[j] = j
	}
	for i := range len(a) {
		diagonal := row[0]
		row[0] = i + 1
		for j := range len(b) {
			cost := diagonal
			if a[i] != b[j] {
				cost = 1 + min(diagonal, row[j], row[j+1])
			}
			diagonal, row[j+1] = row[j+1], cost
		}
	}
	return row[len(b)]
}

// anchor refuses what would let a short document be a long one.
func (p *parser) anchor(n *yaml.Node) bool {
	switch {
	case n.Kind == yaml.AliasNode:
		p.at(n, "", "the alias *%s is not supported: write the value out", n.Value)
	case n.Anchor != "":
		p.at(n, "", "the anchor &%s is not supported: write the value out where it is needed", n.Anchor)
	default:
		return true
	}
	return false
}

// scalar refuses what is no single value, and none at all.
func (p *parser) scalar(n *yaml.Node, path, like string) bool {
	if !p.anchor(n) {
		return false
	}
	if n.Kind != yaml.ScalarNode {
		p.at(n, path, "%s is %s: it should be %s", path, kind(n), like)
		return false
	}
	if n.ShortTag() == "!!null" {
		written := "nothing"
		if n.Value != "" {
			written = n.Value + ", which is nothing in YAML"
		}
		p.at(n, path, "%s says %s: give it a value or leave the line out", path, written)
		return false
	}
	return true
}

var words = regexp.MustCompile(`^(?i:y|n|yes|no|on|off|true|false)$`)

// text reads a text. What YAML takes for something else is not read as text silently: 3.10 is not the version 3.1,
// and "on" is true for some readers.
func (p *parser) text(n *yaml.Node, path string) (string, bool) {
	if !p.scalar(n, path, "a text") {
		return "", false
	}
	if n.Style&(yaml.SingleQuotedStyle|yaml.DoubleQuotedStyle|yaml.LiteralStyle|yaml.FoldedStyle) != 0 && n.ShortTag() == "!!str" {
		return n.Value, true
	}
	switch tag := n.ShortTag(); {
	case tag == "!!int" || tag == "!!float":
		p.at(n, path, "%s is a text, and %s is a number in YAML: write it in quotes, %s", path, plain(n.Value), strconv.Quote(n.Value))
	case tag == "!!bool" || tag == "!!str" && n.Style&yaml.TaggedStyle == 0 && words.MatchString(n.Value):
		p.at(n, path, "%s is a text, and %s is true or false in YAML: write it in quotes, %s", path, n.Value, strconv.Quote(n.Value))
	case tag == "!!timestamp":
		p.at(n, path, "%s is a text, and %s is a date in YAML: write it in quotes, %s", path, plain(n.Value), strconv.Quote(n.Value))
	case tag != "!!str":
		p.at(n, path, "%s has the tag %s, which is not supported", path, plain(strings.TrimLeft(n.Tag, "!")))
	default:
		return n.Value, true
	}
	return "", false
}

func (p *parser) script(n *yaml.Node, path string, into *string) {
	v, ok := p.text(n, path)
	if !ok {
		return
	}
	v = script(v)
	*into = v
	p.check(n, path, checkScript(path, v))
	for _, w := range warnScript(path, v) {
		p.at(n, path, "%s", w)
		p.problems[len(p.problems)-1].Warning = true
	}
}

// number reads a value without quotes whose tag is one of those given; what is in it, the caller reads from the text,
// since to YAML 0123 is octal.
func (p *parser) number(n *yaml.Node, path, like string, tags ...string) (string, bool) {
	if !p.scalar(n, path, "a value such as "+like) {
		return "", false
	}
	switch {
	case slices.Contains(tags, n.ShortTag()):
		if n.Value != "" {
			return n.Value, true
		}
		p.at(n, path, "%s is empty: give it a value such as %s, or leave the line out", path, like)
	case n.ShortTag() == "!!str" && n.Style&(yaml.SingleQuotedStyle|yaml.DoubleQuotedStyle) != 0:
		p.at(n, path, "%s is a number: write it without quotes", path)
	default:
		p.at(n, path, "%s is a value such as %s, not %s", path, like, quote(n.Value))
	}
	return "", false
}

func (p *parser) check(n *yaml.Node, path string, err error) {
	if err != nil {
		p.at(n, path, "%s", err)
	}
}

func kind(n *yaml.Node) string {
	switch n.Kind {
	case yaml.SequenceNode:
		return "a list"
	case yaml.MappingNode:
		return "a group of keys"
	case yaml.AliasNode:
		return "an alias"
	}
	return "a single value"
}

// readable finds bytes that no YAML has, which the library reports without a place.
func (p *parser) readable(b []byte) bool {
	line, column := 1, 1
	for i := 0; i < len(b); {
		r, size := utf8.DecodeRune(b[i:])
		switch {
		case r == utf8.RuneError && size == 1:
			p.place(line, column, "", "the document is not UTF-8 here: save it as UTF-8")
			return false
		case r < ' ' && r != '\t' && r != '\n' && r != '\r', r >= 0x7f && r < 0xa0 && r != 0x85, r == 0xfffe, r == 0xffff,
			r == 0xfeff && i > 0:
			p.place(line, column, "", "there is a control character (U+%04X) here, which YAML doesn't allow: in quotes, \"\\u%04x\" stands for it", r, r)
			return false
		}
		column++
		if r == '\n' {
			line, column = line+1, 1
		}
		i += size
	}
	return true
}

var yamlLine = regexp.MustCompile(`^yaml: (?:line (\d+): )?((?s).*)$`)

// syntax tells what the YAML library says, at the place where a person should look.
func (p *parser) syntax(b []byte, err error) {
	line, what := 1, err.Error()
	if m := yamlLine.FindStringSubmatch(what); m != nil {
		line, _ = strconv.Atoi(m[1]) //nolint:errcheck // digits, or none: then 0
		what = m[2]
	}
	all := strings.Split(string(b), "\n")
	line = min(max(line, 1), len(all))
	// The library counts some lines from 0.
	for _, near := range []int{line, line + 1} {
		if near <= len(all) && strings.HasPrefix(strings.TrimLeft(all[near-1], " "), "\t") {
			p.place(near, 1+len(all[near-1])-len(strings.TrimLeft(all[near-1], " ")), "", "this line is indented with a tab: YAML takes only spaces")
			return
		}
	}
	p.place(line, 1, "", "this is not YAML: %s", what)
}
