package web

import (
	"errors"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"unicode/utf8"

	"github.com/claude-hub/claude-hub/app/access"
	"github.com/claude-hub/claude-hub/app/fault"
	"github.com/claude-hub/claude-hub/app/variable"
	"github.com/claude-hub/claude-hub/envspec"
)

// variableInputs are those of a Variable's form, in its order.
var variableInputs = []string{"name", "kind", "value", "link", "build", "note"}

func variableForm(v envspec.Variable) map[string]string {
	m := map[string]string{"name": v.Name, "kind": v.Kind(), "value": v.Value, "link": v.Link, "build": "", "note": v.Note}
	if v.Build {
		m["build"] = "on"
	}
	return m
}

type variablePage struct {
	Page
	Form   Form
	Old    string // its name as it is saved; "": it is new
	Base   int64
	Mark   string
	Was    map[string]string
	Before VariableRow // as it is saved
	Shared []string
	// Conflict tells that somebody else changed it meanwhile, Theirs the fields where a choice is to be made, and Taken those
	// that only they changed.
	Conflict bool
	Theirs   []FieldConflict
	Taken    []TakenField
	Gone     bool // they deleted it
	Retype   bool // a Sensitive value, or a file, was given and is not in the form any more
	Action   string
}

// Kind tells which of the three is chosen.
func (p variablePage) Kind(kind string) bool { return p.Form.Value("kind") == kind }

func (w *Web) addVariable(rw http.ResponseWriter, r *http.Request, g access.Grant) error {
	p, err := w.variablePage(r, g, "")
	if err != nil {
		return err
	}
	return w.render(rw, r, http.StatusOK, "variable", p)
}

func (w *Web) variable(rw http.ResponseWriter, r *http.Request, g access.Grant) error {
	p, err := w.variablePage(r, g, variableName(r))
	if err != nil {
		return err
	}
	return w.render(rw, r, http.StatusOK, "variable", p)
}

// noVariable is the fault for a name that the draft doesn't have.
func noVariable() error {
	return fault.New(fault.NotFound, "This Repo's draft has no Variable of that name.")
}

// variablePage is the form of a Variable of the draft, or with no name of a new one.
func (w *Web) variablePage(r *http.Request, g access.Grant, name string) (variablePage, error) {
	title := "Add a Variable"
	if name != "" {
		title = name
	}
	p := variablePage{Page: w.repoPage(r, g, "environment", title), Old: name, Form: Form{Values: map[string]string{"kind": envspec.KindPlain}}}
	p.Action = environmentPath(g) + "/add-variable"
	env, err := w.d.Environments.Get(r.Context(), g)
	if err != nil {
		return p, err
	}
	if env.Draft != nil {
		p.Base = env.Draft.Revision
	}
	if name != "" {
		v, ok := find(draftSpec(env), name)
		if !ok {
			return p, noVariable()
		}
		p.Action = environmentPath(g) + "/variables/" + url.PathEscape(name)
		p.Mark, p.Form.Values, p.Was = markOf(env.Draft.Spec, name), variableForm(v), variableForm(v)
		rows, err := w.variableRows(r.Context(), g, env.Draft)
		if err != nil {
			return p, err
		}
		for _, row := range rows {
			if row.Name == name {
				p.Before = row
			}
		}
	}
	all, _, err := w.d.Vault.Shared(r.Context(), person(r.Context()))
	if err != nil {
		return p, err
	}
	for _, s := range all {
		p.Shared = append(p.Shared, s.Name)
	}
	return p, nil
}

func (w *Web) saveNewVariable(rw http.ResponseWriter, r *http.Request, g access.Grant) error {
	return w.saveVariable(rw, r, g, "")
}

func (w *Web) saveOldVariable(rw http.ResponseWriter, r *http.Request, g access.Grant) error {
	return w.saveVariable(rw, r, g, variableName(r))
}

// typedVariable is what a Variable's form holds.
type typedVariable struct {
	form        map[string]string
	given, both bool
	isFile      bool
	again       bool // see posted.again
	value       string
}

func readVariable(in posted) typedVariable {
	t := typedVariable{form: map[string]string{}}
	for _, name := range variableInputs {
		t.form[name] = in.text(name)
	}
	t.form["name"], t.form["link"] = strings.TrimSpace(t.form["name"]), strings.TrimSpace(t.form["link"])
	t.value, t.given, t.both = in.input("value")
	_, t.isFile = in.files["value-file"]
	t.again = in.again(t.given)
	return t
}

// variable is what was typed as a Variable that takes the place of before, with its new Sensitive value if there is one. What
// is wrong is said field by field.
func (t typedVariable) variable(
	before envspec.Variable, isNew bool, others envspec.Spec,
) (v envspec.Variable, given variable.Given, wrong map[string]string) {
	wrong = map[string]string{}
	v = envspec.Variable{Name: t.form["name"], Note: t.form["note"], ValueID: before.ValueID}
	if err := envspec.CheckName(v.Name); err != nil {
		wrong["name"] = err.Error()
	} else if _, taken := find(others, v.Name); taken && (isNew || v.Name != before.Name) {
		wrong["name"] = "there is a Variable or Link " + v.Name + " already: each has a name of its own"
	}
	if err := envspec.CheckNote(v.Note); err != nil {
		wrong["note"] = err.Error()
	}
	if t.both && t.form["kind"] != envspec.KindLink {
		wrong["value"] = "there is a text and a file: give one of them"
	}
	if t.again && t.form["kind"] != envspec.KindLink {
		wrong["value"] = giveAgain
	}
	switch t.form["kind"] {
	case envspec.KindLink:
		v.Link, v.Build, v.ValueID = t.form["link"], t.form["build"] != "", ""
		if v.Link == "" {
			wrong["link"] = "choose the Shared variable that it is"
		}
	case envspec.KindSensitive:
		v.Sensitive, v.Build = true, t.form["build"] != ""
		switch {
		case t.given && t.value == "":
			wrong["value"] = noSensitive(true)
		case t.given:
			given = variable.Given{v.Name: []byte(t.value)}
		case !t.again && (isNew || !before.Sensitive):
			wrong["value"] = noSensitive(false)
		}
	case envspec.KindPlain:
		v.Value = t.value
		if before.Plain() && !isNew && !t.isFile {
			v.Value = kept(before.Value, t.value)
		}
		if !isNew && !before.Plain() && !t.given && !t.again {
			wrong["value"] = "enter a value: what was Sensitive, or came from a Shared variable, never becomes Plain"
		}
		if !utf8.ValidString(v.Value) {
			wrong["value"] = "this file is not UTF-8 text. Make it Sensitive: a Sensitive value may be any bytes"
		}
	default:
		wrong["kind"] = "choose what it is"
	}
	return v, given, wrong
}

// wasOf is what the form said when it was sent to the browser; nil: unknown.
func wasOf(in posted) map[string]string {
	if !in.values.Has("was.kind") {
		return nil
	}
	was := map[string]string{}
	for _, name := range variableInputs {
		was[name] = in.text("was." + name)
	}
	return was
}

func (w *Web) saveVariable(rw http.ResponseWriter, r *http.Request, g access.Grant, old string) error {
	in, err := readForm(r)
	if err != nil {
		return err
	}
	base, err := in.number("base")
	if err != nil {
		return err
	}
	typed, mark := readVariable(in), in.Get("mark")
	env, err := w.d.Environments.Get(r.Context(), g)
	if err != nil {
		return err
	}
	spec := draftSpec(env)
	before, ok := find(spec, old)
	if old != "" && !ok && env.Draft != nil && env.Draft.Revision == base {
		return noVariable()
	}
	gone := old != "" && !ok
	v, given, wrong := typed.variable(before, old == "" || gone, spec)
	if gone || markOf(spec, old) != mark {
		f := fault.New(fault.Conflict, "Somebody else changed %s meanwhile. Nothing of yours was saved over it; look at both and save again.", old)
		return w.variableNotSaved(rw, r, g, old, in, typed, f)
	}
	if len(wrong) > 0 {
		f := fault.New(fault.Invalid, "Some fields need another look.")
		f.Fields = wrong
		return w.variableNotSaved(rw, r, g, old, in, typed, f)
	}
	draft, err := w.edit(r.Context(), g, base, old, mark, func(s *envspec.Spec) variable.Given {
		s.Variables = slices.DeleteFunc(s.Variables, func(x envspec.Variable) bool { return old != "" && x.Name == old })
		s.Variables = append(s.Variables, v)
		return given
	})
	if err != nil {
		return w.variableNotSaved(rw, r, g, old, in, typed, err)
	}
	return w.savedVariables(rw, r, g, draft)
}

// variableNotSaved shows the form again. A Sensitive value isn't in it: it is write-only from the moment it is sent.
func (w *Web) variableNotSaved(
	rw http.ResponseWriter, r *http.Request, g access.Grant, old string, in posted, typed typedVariable, err error,
) error {
	var f *fault.Error
	if !errors.As(err, &f) {
		return err
	}
	p, perr := w.variablePage(r, g, old)
	if fault.Is(perr, fault.NotFound) && f.Code == fault.Conflict { // deleted meanwhile: saving makes it anew
		if p, perr = w.variablePage(r, g, ""); perr == nil {
			p.Gone = true
		}
	}
	if perr != nil {
		return perr
	}
	theirs := p.Was
	p.Form = Form{Values: typed.form}
	if f.Code == fault.Conflict && old != "" {
		p.Conflict = true
	}
	if p.Conflict && theirs != nil {
		// Saving again is a decision made with all in sight, so the form goes on from what it now shows.
		p.Theirs, p.Taken, p.Retype = typed.merge(theirs, wasOf(in))
	} else if p.Retype = typed.retype(); p.Retype {
		p.Form.Values["value"] = ""
	}
	p.Form.take(variableFault(f, typed.form["name"], typed.form["kind"]), variableInputs...)
	return w.render(rw, r, statusOf(f), "variable", p)
}

// variableFault puts what the domain says of a Variable at the form's field.
func variableFault(f *fault.Error, name, kind string) *fault.Error {
	if len(f.Fields) == 0 {
		return f
	}
	out := fault.New(f.Code, "%s", f.Message)
	out.Fields = map[string]string{}
	for field, message := range f.Fields {
		switch {
		case field == "variables."+name && kind == envspec.KindLink:
			field = "link"
		case field == "variables."+name:
			field = "value"
		}
		out.Fields[field] = message
	}
	return out
}

func sentenceCase(s string) string {
	if s == "" {
		return s
	}
	return strings.ToUpper(s[:1]) + s[1:]
}
