package envspec

import (
	"bytes"
	"errors"
	"reflect"
	"slices"
	"strings"

	"gopkg.in/yaml.v3"
)

// Reformat writes a document in its canonical form: keys in the order of [Format] and values as it writes them, LF line
// endings, no document markers. Unlike Format it adds and removes no key, and keeps every comment: those above a key, a
// Variable or a pattern go with it, those at its end stay there, those at the top and the bottom of the document too. One
// empty line between things stays one. [Parse] reads the same Spec before and after, and reformatting twice changes nothing
// more. Files that are named are not read.
//
// The error is [Problems] when the document is wrong.
func Reformat(name string, b []byte) ([]byte, error) {
	s, problems := check(name, b, unread)
	if problems.Failed() {
		return nil, problems
	}
	b = bytes.TrimPrefix(b, []byte("\ufeff"))
	before, err := arrange(b)
	if err != nil {
		return nil, err
	}
	out := before.write(s)
	after, err := arrange(out)
	if err != nil {
		return nil, err
	}
	// A formatter that loses something is worse than none.
	if again, err := Parse(name, out, unread); err != nil || !reflect.DeepEqual(again, Normalize(s)) || !slices.Equal(before.texts(), after.texts()) {
		return nil, errors.New(name + " can't be formatted without losing something, which is a mistake in claude-hub: the document is left as it is")
	}
	return out, nil
}

// arrange reads the layout of a document that Parse takes.
func arrange(b []byte) (layout, error) {
	var doc yaml.Node
	if err := yaml.Unmarshal(b, &doc); err != nil {
		return layout{}, err
	}
	if doc.Kind != yaml.DocumentNode || doc.Content[0].Kind != yaml.MappingNode {
		return scan(b, nil), nil
	}
	return scan(b, doc.Content[0]), nil
}

func (l layout) texts() []string {
	out := make([]string, len(l.comments))
	for i, c := range l.comments {
		out[i] = c.text
	}
	slices.Sort(out)
	return out
}

// section is what is written for one key, Variable or pattern.
type section struct {
	entry
	index  int // among those of its group or list
	above  []comment
	end    string // the comment at the end of its line
	below  []section
	bottom []comment // those after all of below
}

// sections gives each comment its place: the document's top, a key, or the document's bottom.
func (l layout) sections() (top []comment, keys []section, bottom []comment) {
	keys, bottom = distribute(l.entries, l.comments)
	if len(keys) > 0 {
		top, keys[0] = split(keys[0])
	}
	return top, keys, bottom
}

// distribute gives each of the comments to one of the entries; rest are those after all of them.
func distribute(entries []entry, comments []comment) (out []section, rest []comment) {
	waiting := comments
	for i, e := range entries {
		own := section{entry: e, index: i}
		n := slices.IndexFunc(waiting, func(c comment) bool { return c.at >= e.at })
		if n < 0 {
			n = len(waiting)
		}
		own.above, waiting = slices.Clone(waiting[:n]), waiting[n:]
		next := slices.IndexFunc(waiting, func(c comment) bool {
			beyond := c.own && c.at > e.last && (!e.group || c.column <= e.column)
			return beyond || i+1 < len(entries) && c.at >= entries[i+1].at
		})
		if next < 0 {
			next = len(waiting)
		}
		own.take(waiting[:next])
		waiting = waiting[next:]
		out = append(out, own)
	}
	return out, waiting
}

// take gives those comments a place that stand within an entry.
func (own *section) take(inside []comment) {
	if len(own.children) > 0 {
		head := slices.IndexFunc(inside, func(c comment) bool { return c.own || c.at > own.children[0].at })
		if head < 0 {
			head = len(inside)
		}
		own.below, own.bottom = distribute(own.children, inside[head:])
		inside = inside[:head]
	}
	if len(inside) == 1 && !(own.group && inside[0].own) {
		own.end = inside[0].text
		return
	}
	for _, c := range inside {
		own.above = append(own.above, comment{text: c.text})
	}
	own.blank = own.blank && len(inside) == 0 // else it would come between them and the key
}

// split takes from the first key's comments those that an empty line separates from it: they are about the document.
func split(first section) ([]comment, section) {
	n := len(first.above)
	if !first.blank {
		for n--; n > 0 && !first.above[n].blank; n-- {
		}
		n = max(n, 0)
	}
	top := first.above[:n]
	first.above, first.blank = first.above[n:], false
	if len(first.above) > 0 {
		first.above[0].blank = false
	}
	return top, first
}

type writer struct {
	bytes.Buffer
	kept bool // what was written last takes an empty line for its own
}

func (w *writer) empty() {
	if w.Len() > 0 && !w.kept && !bytes.HasSuffix(w.Bytes(), []byte("\n\n")) {
		w.WriteByte('\n')
	}
}

func (w *writer) comments(all []comment, indent string) {
	for _, c := range all {
		if c.blank {
			w.empty()
		}
		w.WriteString(indent + c.text + "\n")
		w.kept = false
	}
}

// section writes what stands before a value, and the value's text, which begins at the end of the key's line.
func (w *writer) section(k section, indent, key, text string) {
	w.comments(k.above, indent)
	if k.blank {
		w.empty()
	}
	line, rest, _ := strings.Cut(text, "\n")
	if k.end != "" {
		line += " " + k.end
	}
	w.WriteString(indent + key + line + "\n" + rest)
	// Only a block that keeps its empty lines ends with one.
	w.kept = strings.HasSuffix(rest, "\n\n")
}

func (l layout) write(s Spec) []byte {
	var w writer
	top, sections, bottom := l.sections()
	w.comments(top, "")
	if len(top) > 0 && len(sections) > 0 {
		w.empty()
	}
	slices.SortStableFunc(sections, func(a, b section) int { return slices.Index(keys, a.key) - slices.Index(keys, b.key) })
	for _, k := range sections {
		var items func(section) string
		switch {
		case len(k.below) == 0:
		case k.key == "variables":
			slices.SortStableFunc(k.below, func(a, b section) int { return strings.Compare(a.key, b.key) })
			items = func(v section) string { return nameKey(v.key) + ":" + variableValue(s.Variables[v.index]) }
		case k.key == "dependency-folders":
			all := folderItems(s)
			items = func(v section) string { return all[v.index] }
		}
		if items == nil {
			w.section(k, "", k.key+":", value(s, k.key))
			continue
		}
		w.section(k, "", k.key+":", "\n")
		for i, v := range k.below {
			if i == 0 {
				v.first()
			}
			w.section(v, "  ", "", items(v))
		}
		w.comments(k.bottom, "  ")
	}
	w.comments(bottom, "")
	return w.Bytes()
}

// first takes the empty line before a section.
func (own *section) first() {
	if len(own.above) > 0 {
		own.above[0].blank = false
	} else {
		own.blank = false
	}
}
