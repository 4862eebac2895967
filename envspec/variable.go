package envspec

import (
	"cmp"
	"slices"
)

// Variable is one entry of the environment of the processes in a Sandbox (ADR 0009, "Variables"). It is one of three: a Link
// when Link is set, else Sensitive, else Plain.
type Variable struct {
	Name string `json:"name"`
	// Value is a Plain one's, in documents, drafts and answers. What is stored of a Spec or sent to a Runner as a Recipe
	// holds no value, of any Variable: see Detach.
	Value     string `json:"value,omitempty"`
	Sensitive bool   `json:"sensitive,omitempty"`
	Link      string `json:"link,omitempty"`  // the name of a Shared variable
	Build     bool   `json:"build,omitempty"` // available at build, too; a Plain one always is and never has it
	Note      string `json:"note,omitempty"`
	// ValueID names the stored value of a Plain or Sensitive one: in a stored Spec, and in what a program sends back. Empty: none was
	// stored yet. It is not part of a document.
	ValueID string `json:"value_id,omitempty"`
}

// AtBuild says whether the bootstrap receives it: a Plain one always, a Sensitive one and a Link when ticked.
func (v Variable) AtBuild() bool { return v.Build || v.Plain() }

// Plain says that it is neither Sensitive nor a Link.
func (v Variable) Plain() bool { return !v.Sensitive && v.Link == "" }

// Kinds of a Variable, as answers and forms name them.
const (
	KindPlain     = "plain"
	KindSensitive = "sensitive"
	KindLink      = "link"
)

// Kind is which of the three it is.
func (v Variable) Kind() string {
	switch {
	case v.Link != "":
		return KindLink
	case v.Sensitive:
		return KindSensitive
	}
	return KindPlain
}

// Detach returns s as it is stored: without the values of Plain Variables, which ValueID names. s is left as it is.
func Detach(s Spec) Spec {
	s.Variables = slices.Clone(s.Variables)
	for i := range s.Variables {
		s.Variables[i].Value = ""
	}
	return s
}

func normalizeVariables(all []Variable) []Variable {
	if len(all) == 0 {
		return nil
	}
	all = slices.Clone(all)
	for i := range all {
		all[i].Note = lineFeeds(all[i].Note)
	}
	slices.SortStableFunc(all, func(a, b Variable) int { return cmp.Compare(a.Name, b.Name) })
	return all
}

// what says in words what a Variable is.
func (v Variable) what() string {
	switch {
	case v.Link != "":
		return "a link to shared/" + v.Link
	case v.Sensitive:
		return "Sensitive"
	}
	return "Plain"
}

// valueChanges compares the values of two Variables of one kind. Specs with values are told apart by them, and those
// without by the ids of what is stored.
func valueChanges(a, b Variable) bool {
	switch {
	case a.Link != "":
		return a.Link != b.Link
	case a.Sensitive:
		return a.ValueID != b.ValueID
	case a.Value == "" && b.Value == "" && a.ValueID != "" && b.ValueID != "":
		return a.ValueID != b.ValueID
	}
	return a.Value != b.Value
}

// changes lists in words what is different about a Variable, and what of the keys that moves. Nothing of a value is in it.
func changes(a, b Variable) (words []string, affects Affects) {
	affects = Nothing
	moves := func() {
		if a.AtBuild() || b.AtBuild() {
			affects = Build
		}
	}
	switch {
	case a.what() != b.what() && b.Link != "":
		words = append(words, "link now → shared/"+b.Link)
		moves()
	case a.what() != b.what():
		words = append(words, "becomes "+b.what()+", with a value of its own (hidden)")
		moves()
	case valueChanges(a, b):
		words = append(words, "value changes (hidden)")
		moves()
	}
	if a.AtBuild() != b.AtBuild() {
		if b.AtBuild() {
			words = append(words, "becomes available at build")
		} else {
			words = append(words, "is no longer available at build")
		}
		moves()
	}
	if a.Note != b.Note {
		words = append(words, "note changes")
	}
	return words, affects
}

// variablePath is the name of a Variable's field.
func variablePath(name string) string { return "variables." + name }

// explainVariables is Explain for Variables, which are in the order of their names.
func explainVariables(old, new []Variable) (out []Change) {
	for _, p := range pairs(old, new) {
		if d, differs := p.diff(); differs {
			out = append(out, Change{Field: variablePath(p.name), Affects: d.Affects, Sentence: p.name + ": " + d.Words + ". " + consequences[d.Affects]})
		}
	}
	return out
}

// kind is what, and whether the build has it.
func (v Variable) kind() string {
	if v.Build {
		return v.what() + ", available at build"
	}
	return v.what()
}

// pair is a Variable before and after; nil where there is none.
type pair struct {
	name     string
	old, new *Variable
}

// pairs are the Variables of two lists, each in the order of names, by name.
func pairs(old, new []Variable) (out []pair) {
	for i, j := 0, 0; i < len(old) || j < len(new); {
		switch {
		case j == len(new) || i < len(old) && old[i].Name < new[j].Name:
			out = append(out, pair{old[i].Name, &old[i], nil})
			i++
		case i == len(old) || new[j].Name < old[i].Name:
			out = append(out, pair{new[j].Name, nil, &new[j]})
			j++
		default:
			out = append(out, pair{old[i].Name, &old[i], &new[j]})
			i, j = i+1, j+1
		}
	}
	return out
}
