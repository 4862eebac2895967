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
	"sync"
	"unicode/utf8"

	"gopkg.in/yaml.v3"
)

// maxProblems is how many problems of one document are told.
const maxProblems = 50

// Parse reads a document. name is the file's name, for the problems. files reads the scripts that the document names
// instead of holding them; with nil naming one is a problem. When something is wrong the error is [Problems] with all that
// was found, warnings among them; a document with warnings only is returned without them, see [Check]. The Spec is normalized.
// No problem repeats the value of a Variable.
func Parse(name string, b []byte, files Files) (Spec, error) {
	s, p := Check(name, b, files)
	if p.Failed() {
		return Spec{}, p
	}
	return s, nil
}

// Check reads a document and returns all problems, also when there are only warnings. The Spec holds what could be
// read; it is good when not Problems.Failed.
func Check(name string, b []byte, files Files) (Spec, Problems) {
	s, p := check(name, b, files)
	if !p.Failed() {
		s = Normalize(s)
	}
	return s, p
}

// check is Check without Normalize: folders and Variables are in the order of the document.
func check(name string, b []byte, files Files) (Spec, Problems) {
	p := parser{file: name, files: files, spec: Default()}
	p.document(b)
	if !p.problems.Failed() {
		p.uses(b)
	}
	p.problems.sort()
	if len(p.problems) > maxProblems {
		more := len(p.problems) - maxProblems
		last := p.problems[maxProblems-1]
		failed := p.problems.Failed()
		p.problems = append(p.problems[:maxProblems:maxProblems], Problem{File: name, Line: last.Line, Column: last.Column,
			Message: fmt.Sprintf("%d more problems are not shown", more), Warning: !failed})
	}
	return p.spec, p.problems
}

// uses warns of Variables that the bootstrap uses and doesn't receive, where they stand.
func (p *parser) uses(b []byte) {
	in := sync.OnceValue(func() places { return newPlaces(b) })
	warnUses(p.spec, func(u Use, sentence string) {
		one := Problem{File: p.spec.BootstrapFile, Path: "bootstrap", Line: u.Line, Column: 1, Message: sentence, Warning: true}
		if one.File == "" {
			exact := false
			one.File = p.file
			if one.Line, one.Column, exact = in().of("bootstrap", u.Line); !exact {
				one.Message += inScript(u.Line)
			}
		}
		p.problems = append(p.problems, one)
	})
}

func inScript(line int) string { return fmt.Sprintf(" (line %d of the script)", line) }

type parser struct {
	file     string
	files    Files
	spec     Spec
	problems Problems
	hidden   bool // what is read now may be secret: no problem repeats it
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
	"bootstrap": func(p *parser, n *yaml.Node) { p.script(n, "bootstrap", &p.spec.Bootstrap, &p.spec.BootstrapFile) },
	"start":     func(p *parser, n *yaml.Node) { p.script(n, "start", &p.spec.Start, &p.spec.StartFile) },
	"docker":    func(p *parser, n *yaml.Node) { p.boolean(n, "docker", &p.spec.Docker) },
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
	"dependency-folders": (*parser).folders,
	"variables":          (*parser).variables,
}

// meant are keys of other products, and what they are called here.
var meant = map[string]string{
	"from": "image", "base": "image", "container": "image", "docker-image": "image", "dockerimage": "image",
	"setup": "bootstrap", "install": "bootstrap", "build": "bootstrap", "init": "bootstrap", "oncreatecommand": "bootstrap",
	"run": "start", "command": "start", "startup": "start", "poststartcommand": "start", "postcreatecommand": "start",
	"cpus": "cpu", "cores": "cpu", "vcpu": "cpu", "mem": "memory", "ram": "memory",
	"dind": "docker", "docker-in-docker": "docker", "dependency_folders": "dependency-folders", "dependencyfolders": "dependency-folders",
	"dependencies": "dependency-folders", "folders": "dependency-folders", "cache": "dependency-folders", "volumes": "dependency-folders",
	"env": "variables", "environment": "variables", "vars": "variables", "secrets": "variables", "remoteenv": "variables", "containerenv": "variables",
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
	p.anchor(root, "")
	p.group(root, "", grammar{"an Environment", keys, meant}, func(key, value *yaml.Node) {
		known[key.Value](p, value)
	})
}

// grammar is what a group of keys may have.
type grammar struct {
	of    string
	keys  []string
	meant map[string]string
}

// group reads a group of keys, each of which is one of the grammar's and stands once.
func (p *parser) group(n *yaml.Node, path string, g grammar, read func(key, value *yaml.Node)) {
	p.pairs(n, path, "it should be one of "+and(g.keys), func(key, value *yaml.Node) {
		if slices.Contains(g.keys, key.Value) {
			read(key, value)
			return
		}
		shown := plain(key.Value)
		guess := g.suggest(key.Value)
		switch {
		case guess != "":
			p.at(key, path, "%s is no key of %s: did you mean %s?", shown, g.of, guess)
		case p.hidden:
			p.at(key, path, "this is no key of %s: there are %s", g.of, and(g.keys))
		default:
			p.at(key, path, "%s is no key of %s: there are %s", shown, g.of, and(g.keys))
		}
	})
}

// pairs gives each key of a group that is one to a function, with its value, and those that stand twice once.
func (p *parser) pairs(n *yaml.Node, path, should string, read func(key, value *yaml.Node)) {
	seen := map[string]*yaml.Node{}
	for i := 0; i+1 < len(n.Content); i += 2 {
		key, value := n.Content[i], n.Content[i+1]
		if key.Kind != yaml.ScalarNode && key.Kind != yaml.AliasNode {
			p.at(key, path, "a key is %s: %s", kind(key), should)
			continue
		}
		if !p.anchor(key, path) && key.Kind == yaml.AliasNode {
			continue
		}
		if key.ShortTag() == "!!merge" {
			p.at(key, path, "merging with << is not supported: write the keys out")
			continue
		}
		if before, twice := seen[key.Value]; twice {
			below, shown := key.Value, plain(key.Value)
			switch {
			case path == "variables" && isName(key.Value):
				below = variablePath(key.Value)
			case path != "":
				below = path
			}
			if p.hidden && !isName(key.Value) {
				shown = "this key"
			}
			p.at(key, below, "%s stands here a second time, the first is in line %d", shown, before.Line)
			continue
		}
		seen[key.Value] = key
		read(key, value)
	}
}

// plain shows a key as it is when it is an ordinary word.
func plain(key string) string {
	if key != "" && len(key) <= 40 && strings.Trim(strings.ToLower(key), "abcdefghijklmnopqrstuvwxyz0123456789-_.") == "" {
		return key
	}
	return quote(key)
}

// and lists names in a sentence.
func and(names []string) string {
	if len(names) < 2 {
		return strings.Join(names, "")
	}
	return strings.Join(names[:len(names)-1], ", ") + " and " + names[len(names)-1]
}

func (g grammar) suggest(key string) string {
	lower := strings.ToLower(key)
	if m, ok := g.meant[lower]; ok {
		return m
	}
	best, least := "", 3
	for _, name := range g.keys {
		if len(lower) > len(name)+least || len(name) > len(lower)+least {
			continue
		}
		// A word of three letters is like many others.
		if d := Distance(lower, name); d < least && d < len(name)-1 {
			best, least = name, d
		}
	}
	return best
}

// Distance is how many bytes must be inserted, left out or changed to come from a to b: small when one is the other, mistyped.
func Distance(a, b string) int {
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
func (p *parser) anchor(n *yaml.Node, path string) bool {
	switch {
	case n.Kind == yaml.AliasNode && p.hidden:
		p.at(n, path, "an alias, which is what begins with *, is not supported: write a text that begins with * in quotes")
	case n.Anchor != "" && p.hidden:
		p.at(n, path, "an anchor, which is what begins with &, is not supported: write a text that begins with & in quotes")
	case n.Kind == yaml.AliasNode:
		p.at(n, path, "the alias *%s is not supported: write the value out", n.Value)
	case n.Anchor != "":
		p.at(n, path, "the anchor &%s is not supported: write the value out where it is needed", n.Anchor)
	default:
		return true
	}
	return false
}

// scalar refuses what is no single value, and none at all.
func (p *parser) scalar(n *yaml.Node, path, like string) bool {
	if !p.anchor(n, path) {
		return false
	}
	if n.Kind != yaml.ScalarNode {
		p.at(n, path, "%s is %s: it should be %s", path, kind(n), like)
		return false
	}
	return p.something(n, path)
}

// something refuses nothing, which YAML writes in several ways.
func (p *parser) something(n *yaml.Node, path string) bool {
	if n.Kind != yaml.ScalarNode || n.ShortTag() != "!!null" {
		return true
	}
	written, advice := "nothing", "give it a value or leave the line out"
	if n.Value != "" && n.Style&yaml.TaggedStyle == 0 {
		written = n.Value + ", which is nothing in YAML"
	}
	if p.hidden && path != "variables" {
		advice += `; an empty text is ""`
	}
	p.at(n, path, "%s says %s: %s", path, written, advice)
	return false
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
	shown, example := plain(n.Value), ", "+strconv.Quote(n.Value)
	if p.hidden {
		shown, example = "what stands here", ""
	}
	switch tag := n.ShortTag(); {
	case tag == "!!int" || tag == "!!float":
		p.at(n, path, "%s is a text, and %s is a number in YAML: write it in quotes%s", path, shown, example)
	case tag == "!!bool" || tag == "!!str" && n.Style&yaml.TaggedStyle == 0 && words.MatchString(n.Value):
		p.at(n, path, "%s is a text, and %s is true or false in YAML: write it in quotes%s", path, shown, example)
	case tag == "!!timestamp":
		p.at(n, path, "%s is a text, and %s is a date in YAML: write it in quotes%s", path, shown, example)
	case tag != "!!str" && p.hidden:
		p.at(n, path, "%s begins with a tag, which is not supported: write a text that begins with ! in quotes", path)
	case tag != "!!str":
		p.at(n, path, "%s has the tag %s, which is not supported", path, plain(strings.TrimLeft(n.Tag, "!")))
	default:
		return n.Value, true
	}
	return "", false
}

// boolean reads true or false. What is neither stays as it is in into.
func (p *parser) boolean(n *yaml.Node, path string, into *bool) bool {
	if !p.scalar(n, path, "true or false") {
		return false
	}
	if n.ShortTag() != "!!bool" || n.Style&yaml.TaggedStyle != 0 {
		p.at(n, path, "%s is true or false, without quotes", path)
		return false
	}
	*into = strings.EqualFold(n.Value, "true")
	return true
}

// script reads a script that is written here, or the file that is named.
func (p *parser) script(n *yaml.Node, path string, into, file *string) {
	if n.Kind == yaml.MappingNode {
		p.scriptFile(n, path, into, file)
		return
	}
	v, ok := p.text(n, path)
	if !ok {
		return
	}
	v = script(v)
	*into = v
	p.check(n, path, checkScript(path, v))
	p.warn(n, path, warnScript(path, v))
}

func (p *parser) warn(n *yaml.Node, path string, warnings []string) {
	for _, w := range warnings {
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

var (
	yamlAlias = regexp.MustCompile(`^unknown anchor '((?s).*)' referenced$`)
	yamlLine  = regexp.MustCompile(`^yaml: (?:line (\d+): )?((?s).*)$`)
)

// syntax tells what the YAML library says, at the place where a person should look.
func (p *parser) syntax(b []byte, err error) {
	line, what := 1, err.Error()
	if m := yamlLine.FindStringSubmatch(what); m != nil {
		line, _ = strconv.Atoi(m[1]) //nolint:errcheck // digits, or none: then 0
		what = m[2]
	}
	all := strings.Split(string(b), "\n")
	// The only thing that the library repeats of a document, which may be a secret, and it says no line.
	if m := yamlAlias.FindStringSubmatch(what); m != nil {
		at := max(0, bytes.Index(b, []byte("*"+m[1])))
		begin := bytes.LastIndexByte(b[:at], '\n') + 1
		p.place(1+bytes.Count(b[:at], []byte("\n")), 1+utf8.RuneCount(b[begin:at]), "",
			"an alias, which is what begins with *, is not supported: write the value out, and a text that begins with * in quotes")
		return
	}
	line = min(max(line, 1), len(all))
	// The library counts some lines from 0.
	for _, near := range []int{line, line + 1} {
		if near <= len(all) && strings.HasPrefix(strings.TrimLeft(all[near-1], " "), "\t") {
			p.place(near, 1+len(all[near-1])-len(strings.TrimLeft(all[near-1], " ")), "", "this line is indented with a tab: YAML takes only spaces")
			return
		}
	}
	if what == "found character that cannot start any token" {
		what += "; a text that begins with @, ` or % is written in quotes"
	}
	p.place(line, 1, "", "this is not YAML: %s", what)
}
