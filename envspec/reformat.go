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
// endings, no document markers. Unlike Format it adds and removes no key, and keeps every comment: those above a key go
// with it, those at its end stay there, those at the top and the bottom of the document too. One empty line between
// things stays one. [Parse] reads the same Spec before and after, and reformatting twice changes nothing more.
//
// The error is [Problems] when the document is wrong.
func Reformat(name string, b []byte) ([]byte, error) {
	s, err := Parse(name, b, unread)
	if err != nil {
		return nil, err
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
	if again, err := Parse(name, out, unread); err != nil || !reflect.DeepEqual(again, s) || !slices.Equal(before.texts(), after.texts()) {
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

// section is what is written for one key.
type section struct {
	entry
	above []comment
	end   string // the comment at the end of its line
}

// sections gives each comment its place: the document's top, a key, or the document's bottom.
func (l layout) sections() (top []comment, keys []section, bottom []comment) {
	waiting := l.comments
	for i, e := range l.entries {
		var own section
		own.entry = e
		n := slices.IndexFunc(waiting, func(c comment) bool { return c.at >= e.at })
		if n < 0 {
			n = len(waiting)
		}
		own.above, waiting = slices.Clone(waiting[:n]), waiting[n:]
		if i == 0 {
			top, own = split(own)
		}
		next := slices.IndexFunc(waiting, func(c comment) bool {
			return c.own && c.at > e.value || i+1 < len(l.entries) && c.at >= l.entries[i+1].at
		})
		if next < 0 {
			next = len(waiting)
		}
		inside := waiting[:next]
		waiting = waiting[next:]
		if len(inside) == 1 {
			own.end = inside[0].text
		} else {
			for _, c := range inside {
				own.above = append(own.above, comment{text: c.text})
			}
			own.blank = own.blank && len(inside) == 0 // else it would come between them and the key
		}
		keys = append(keys, own)
	}
	return top, keys, waiting
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

func (w *writer) comments(all []comment) {
	for _, c := range all {
		if c.blank {
			w.empty()
		}
		w.WriteString(c.text + "\n")
		w.kept = false
	}
}

func (l layout) write(s Spec) []byte {
	var w writer
	top, keys, bottom := l.sections()
	w.comments(top)
	if len(top) > 0 && len(keys) > 0 {
		w.empty()
	}
	slices.SortStableFunc(keys, func(a, b section) int { return place(a.key) - place(b.key) })
	for _, k := range keys {
		w.comments(k.above)
		if k.blank {
			w.empty()
		}
		text := value(s, k.key)
		line, rest, _ := strings.Cut(text, "\n")
		if k.end != "" {
			line += " " + k.end
		}
		w.WriteString(k.key + ":" + line + "\n" + rest)
		line = strings.TrimLeft(line, " ")
		w.kept = strings.HasPrefix(line, "|") && strings.Contains(line[:min(3, len(line))], "+")
	}
	w.comments(bottom)
	return w.Bytes()
}

// place is where a key stands in a canonical document.
func place(key string) int {
	return slices.Index(keys, key)
}
