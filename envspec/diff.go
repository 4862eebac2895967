package envspec

import (
	"fmt"
	"reflect"
	"strings"
)

// Diff is what is different between two Specs, for people: as a program's answer, a page or a text. No value of a Variable is
// in it, of Plain ones neither (ADR 0009: never the values).
type Diff struct {
	Fields    []FieldDiff    `json:"fields"`    // in the order of the document
	Scripts   []ScriptDiff   `json:"scripts"`   // likewise
	Variables []VariableDiff `json:"variables"` // by name
}

// FieldDiff is a field that differs and that fits into a line.
type FieldDiff struct {
	Field   string  `json:"field"` // as in a [Change]
	Noun    string  `json:"noun"`  // "image"
	Old     string  `json:"old"`   // as a person reads it: "the defaults" where it is left out; "" when there was no Spec
	New     string  `json:"new"`
	Affects Affects `json:"affects"`
}

// ScriptDiff is a script that differs, by lines.
type ScriptDiff struct {
	Field   string  `json:"field"`
	Noun    string  `json:"noun"`
	Affects Affects `json:"affects"`
	Added   int     `json:"added"` // lines
	Removed int     `json:"removed"`
	Hunks   []Hunk  `json:"hunks"`
}

// Hunk is a part of a script with what changes in it, and at most three lines before and after that. Lines are counted from
// 1; an empty part has the number of the line before it, as in unified diffs.
type Hunk struct {
	OldStart int    `json:"old_start"`
	OldLines int    `json:"old_lines"`
	NewStart int    `json:"new_start"`
	NewLines int    `json:"new_lines"`
	Lines    []Line `json:"lines"`
}

// Line is one line of a Hunk.
type Line struct {
	Op      string `json:"op"`            // " ", "-" or "+"
	Old     int    `json:"old,omitempty"` // its number before; 0 for an added one
	New     int    `json:"new,omitempty"`
	Text    string `json:"text"`              // without its line break
	Unended bool   `json:"unended,omitempty"` // it is the script's last and has no line break
}

// VariableDiff is a Variable that differs.
type VariableDiff struct {
	Name         string         `json:"name"`
	Op           string         `json:"op"`            // "added", "removed" or "changed"
	Old          *VariableState `json:"old,omitempty"` // nil when added
	New          *VariableState `json:"new,omitempty"` // nil when removed
	ValueChanges bool           `json:"value_changes"` // of a "changed" one that stays what it is: Plain, Sensitive or a Link
	Affects      Affects        `json:"affects"`
	Words        string         `json:"words"` // the same in words: "value changes (hidden), note changes"
}

// VariableState is what may be shown of a Variable.
type VariableState struct {
	Kind  string `json:"kind"`           // "plain", "sensitive" or "link"
	Link  string `json:"link,omitempty"` // the name of the Shared variable
	Build bool   `json:"build"`          // the bootstrap receives it
	Note  string `json:"note,omitempty"`
}

// Compare says what is different between two Specs. The zero Spec as the old one stands for no Environment.
func Compare(old, new Spec) Diff {
	first := reflect.DeepEqual(old, Spec{})
	if !first {
		old = Normalize(old)
	}
	new = Normalize(new)
	out := Diff{Fields: []FieldDiff{}, Scripts: []ScriptDiff{}, Variables: []VariableDiff{}}
	for _, f := range fields {
		a, b := f.value(old), f.value(new)
		switch {
		case a == b:
		case f.text:
			s := ScriptDiff{Field: f.name, Noun: f.noun, Affects: f.affects}
			s.Hunks, s.Added, s.Removed = diffLines(a, b)
			out.Scripts = append(out.Scripts, s)
		default:
			d := FieldDiff{Field: f.name, Noun: f.noun, Affects: f.affects, New: orEmpty(f, b)}
			if !first {
				d.Old = orEmpty(f, a)
			}
			out.Fields = append(out.Fields, d)
		}
	}
	for _, p := range pairs(old.Variables, new.Variables) {
		if d, differs := p.diff(); differs {
			out.Variables = append(out.Variables, d)
		}
	}
	return out
}

// Empty says that there is no difference.
func (d Diff) Empty() bool { return len(d.Fields)+len(d.Scripts)+len(d.Variables) == 0 }

// String is the difference as a text of lines, for a terminal.
func (d Diff) String() string {
	var b strings.Builder
	for _, f := range d.Fields {
		if f.Old == "" {
			fmt.Fprintf(&b, "%s: %s\n", f.Field, f.New)
		} else {
			fmt.Fprintf(&b, "%s: %s → %s\n", f.Field, f.Old, f.New)
		}
	}
	for _, v := range d.Variables {
		fmt.Fprintf(&b, "%s: %s\n", variablePath(v.Name), v.Words)
	}
	for _, s := range d.Scripts {
		b.WriteString(s.Unified())
	}
	return b.String()
}

// Unified is the difference as a unified diff.
func (s ScriptDiff) Unified() string {
	var b strings.Builder
	fmt.Fprintf(&b, "--- %s\n+++ %[1]s\n", s.Field)
	for _, h := range s.Hunks {
		fmt.Fprintf(&b, "@@ -%s +%s @@\n", span(h.OldStart, h.OldLines), span(h.NewStart, h.NewLines))
		for _, l := range h.Lines {
			b.WriteString(l.Op + l.Text + "\n")
			if l.Unended {
				b.WriteString("\\ No newline at end of file\n")
			}
		}
	}
	return b.String()
}

func span(start, lines int) string {
	if lines == 1 {
		return fmt.Sprint(start)
	}
	return fmt.Sprintf("%d,%d", start, lines)
}

func (v *Variable) state() *VariableState {
	s := VariableState{Kind: "plain", Link: v.Link, Build: v.AtBuild(), Note: v.Note}
	switch {
	case v.Link != "":
		s.Kind = "link"
	case v.Sensitive:
		s.Kind = "sensitive"
	}
	return &s
}

// diff says what is different about a Variable, if anything is.
func (p pair) diff() (VariableDiff, bool) {
	d := VariableDiff{Name: p.name, Op: "changed", Affects: Nothing}
	switch {
	case p.old == nil:
		d.Op, d.New, d.Words = "added", p.new.state(), "is added ("+p.new.kind()+")"
		if p.new.AtBuild() {
			d.Affects = Build
		}
	case p.new == nil:
		d.Op, d.Old, d.Words = "removed", p.old.state(), "is removed"
		if p.old.AtBuild() {
			d.Affects = Build
		}
	default:
		words, affects := changes(*p.old, *p.new)
		if len(words) == 0 {
			return d, false
		}
		d.Old, d.New, d.Words, d.Affects = p.old.state(), p.new.state(), strings.Join(words, ", "), affects
		d.ValueChanges = d.Old.Kind == d.New.Kind && valueChanges(*p.old, *p.new)
	}
	return d, true
}
