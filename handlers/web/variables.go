package web

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/claude-hub/claude-hub/app/access"
	"github.com/claude-hub/claude-hub/app/environment"
	"github.com/claude-hub/claude-hub/app/fault"
	"github.com/claude-hub/claude-hub/app/variable"
	"github.com/claude-hub/claude-hub/envspec"
)

// The kinds of a Variable, as forms have them.
const (
	kindPlain     = "plain"
	kindSensitive = "sensitive"
	kindLink      = "link"
)

func kindOf(v envspec.Variable) string {
	switch {
	case v.Link != "":
		return kindLink
	case v.Sensitive:
		return kindSensitive
	}
	return kindPlain
}

// VariableRow is a Variable in a list.
type VariableRow struct {
	Name, Kind, Note string
	Value            string // of a Plain one, cut to a line
	Link             string
	Hidden           bool // the value is Sensitive; of a Link: the Shared variable's is
	AtBuild          bool
	Status           variable.Status
	SetAt            time.Time
	SetBy            string
	Digest           string
}

// Query is the name as an address has it.
func (v VariableRow) Query() string { return url.PathEscape(v.Name) }

func rowsOf(vars []envspec.Variable, states []variable.State) []VariableRow {
	of := map[string]variable.State{}
	for _, s := range states {
		of[s.Name] = s
	}
	rows := make([]VariableRow, 0, len(vars))
	for _, v := range vars {
		row := VariableRow{Name: v.Name, Kind: kindOf(v), Note: v.Note, Link: v.Link, Hidden: v.Sensitive, AtBuild: v.AtBuild(), Status: variable.Set}
		if v.Plain() {
			row.Value = brief(v.Value)
		}
		if s, ok := of[v.Name]; ok && s.Link == v.Link {
			row.Hidden, row.Status, row.SetAt, row.SetBy, row.Digest = s.Sensitive, s.Status, s.SetAt, s.SetBy, s.Digest
		}
		rows = append(rows, row)
	}
	return rows
}

// brief is a Plain value in a line.
func brief(v string) string {
	const most = 80
	line, rest, more := strings.Cut(v, "\n")
	r := []rune(line)
	switch {
	case len(r) > most:
		return string(r[:most]) + fmt.Sprintf("… (%s)", size(int64(len(v))))
	case more && rest != "":
		return line + fmt.Sprintf("… (%d lines)", strings.Count(strings.TrimSuffix(v, "\n"), "\n")+1)
	case more:
		return line + "⏎"
	}
	return line
}

func (w *Web) variableRows(ctx context.Context, g access.Grant, draft *environment.Draft) ([]VariableRow, error) {
	if draft == nil || len(draft.Spec.Variables) == 0 {
		return nil, nil
	}
	states, err := w.d.Environments.Variables(ctx, g, environment.Web)
	if err != nil {
		return nil, err
	}
	return rowsOf(draft.Spec.Variables, states), nil
}

// LackingValue is a Variable of the applied version that has no value: Sessions don't start and don't wake until it has.
type LackingValue struct {
	Name string
	Why  string
	Path string // where the value is entered
}

func lackingOf(nav *RepoNav, states []variable.State) (all []LackingValue) {
	for _, s := range states {
		if s.Status == variable.Set {
			continue
		}
		l := LackingValue{Name: s.Name, Why: "its value was lost with an encryption key", Path: nav.Path() + "/environment/variables/" + url.PathEscape(s.Name) + "/value"}
		switch {
		case s.Link != "" && s.Status == variable.Missing:
			l.Why, l.Path = "there is no Shared variable "+s.Link+" any more", "/shared"
		case s.Link != "":
			l.Why, l.Path = "the value of the Shared variable "+s.Link+" was lost with an encryption key", sharedPath(s.Link)
		case s.Status == variable.Missing:
			l.Why = "no value was ever entered"
		}
		all = append(all, l)
	}
	return all
}

// lacking lists what the applied version lacks.
func (w *Web) lacking(ctx context.Context, g access.Grant, current *environment.Version) ([]LackingValue, error) {
	if current == nil || len(current.Spec.Variables) == 0 {
		return nil, nil
	}
	states, err := w.d.Environments.Variables(ctx, g, current.Number)
	if err != nil {
		return nil, err
	}
	return lackingOf(&RepoNav{ID: g.Repo().ID.String()}, states), nil
}

// find is the Variable of a name.
func find(spec envspec.Spec, name string) (envspec.Variable, bool) {
	i := slices.IndexFunc(spec.Variables, func(v envspec.Variable) bool { return v.Name == name })
	if i < 0 {
		return envspec.Variable{}, false
	}
	return spec.Variables[i], true
}

// markOf tells whether a Variable is still what a form was made from. Of a value only its id is in it.
func markOf(spec envspec.Spec, name string) string {
	v, ok := find(spec, name)
	if !ok {
		return ""
	}
	v.Value = ""
	b, err := json.Marshal(v)
	if err != nil {
		return ""
	}
	sum := sha256.Sum256(b)
	return hex.EncodeToString(sum[:])
}

// tries is how often a change of one Variable is made again on what somebody else saved elsewhere in the draft.
const tries = 5

// edit saves a change of the draft's Variables. name is the one that it is about and mark what that was when the form was
// made: what somebody else saved of the draft beside it is no conflict.
func (w *Web) edit(ctx context.Context, g access.Grant, base int64, name, mark string, change func(*envspec.Spec) variable.Given) (environment.Draft, error) {
	env, err := w.d.Environments.Get(ctx, g)
	if err != nil {
		return environment.Draft{}, err
	}
	from := draftSpec(env)
	for n := 0; ; n++ {
		spec := from
		spec.Variables = slices.Clone(spec.Variables)
		given := change(&spec)
		draft, err := w.d.Environments.Save(ctx, g, base, spec, given)
		var c *environment.ConflictError
		if !errors.As(err, &c) || c.Theirs == nil || markOf(c.Theirs.Spec, name) != mark || n == tries {
			return draft, err
		}
		base, from = c.Theirs.Revision, c.Theirs.Spec
	}
}

// variableInputs are those of a Variable's form, in its order.
var variableInputs = []string{"name", "kind", "value", "link", "build", "note"}

func variableForm(v envspec.Variable) map[string]string {
	m := map[string]string{"name": v.Name, "kind": kindOf(v), "value": v.Value, "link": v.Link, "build": "", "note": v.Note}
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
	// Theirs is what somebody else made of it meanwhile, and Conflict that somebody did.
	Conflict bool
	Theirs   []FieldConflict
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
	p := variablePage{Page: w.repoPage(r, g, "environment", title), Old: name, Form: Form{Values: map[string]string{"kind": kindPlain}}}
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
	value       string
}

func readVariable(in posted) typedVariable {
	t := typedVariable{form: map[string]string{}}
	for _, name := range variableInputs {
		t.form[name] = in.text(name)
	}
	t.form["name"], t.form["link"] = strings.TrimSpace(t.form["name"]), strings.TrimSpace(t.form["link"])
	t.value, t.given, t.both = in.input("value")
	return t
}

// variable is what was typed as a Variable that takes the place of before, with its new Sensitive value if there is one. What
// is wrong is said field by field.
func (t typedVariable) variable(before envspec.Variable, isNew bool, others envspec.Spec) (v envspec.Variable, given variable.Given, wrong map[string]string) {
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
	if t.both && t.form["kind"] != kindLink {
		wrong["value"] = "there is a text and a file: give one of them"
	}
	switch t.form["kind"] {
	case kindLink:
		v.Link, v.Build, v.ValueID = t.form["link"], t.form["build"] != "", ""
		if v.Link == "" {
			wrong["link"] = "choose the Shared variable that it is"
		}
	case kindSensitive:
		v.Sensitive, v.Build = true, t.form["build"] != ""
		switch {
		case t.given:
			given = variable.Given{v.Name: []byte(t.value)}
		case isNew || !before.Sensitive:
			wrong["value"] = "enter its value, of at least 8 characters"
		}
	case kindPlain:
		v.Value = t.value
		if before.Plain() && !isNew {
			v.Value = kept(before.Value, t.value)
		}
		if !isNew && !before.Plain() && !t.given {
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
func (w *Web) variableNotSaved(rw http.ResponseWriter, r *http.Request, g access.Grant, old string, in posted, typed typedVariable, err error) error {
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
	if _, isFile := in.files["value-file"]; isFile || typed.given && typed.form["kind"] != kindPlain {
		p.Retype, p.Form.Values["value"] = true, ""
	}
	p.Form.take(variableFault(f, typed.form["name"], typed.form["kind"]), variableInputs...)
	if f.Code == fault.Conflict && old != "" {
		p.Conflict = true
		p.Theirs = variableConflicts(typed.form, theirs, in)
	}
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
		case field == "variables."+name && kind == kindLink:
			field = "link"
		case field == "variables."+name:
			field = "value"
		}
		out.Fields[field] = message
	}
	return out
}

// variableConflicts lists where the form differs from what somebody else saved. theirs is nil where they deleted it.
func variableConflicts(yours, theirs map[string]string, in posted) (all []FieldConflict) {
	if theirs == nil {
		return nil
	}
	for _, f := range []struct{ name, label string }{{"name", "Name"}, {"kind", "Kind"}, {"link", "Shared variable"}, {"value", "Value"}, {"build", "Available at build"}, {"note", "Note"}} {
		mine, other, was := words(f.name, yours), words(f.name, theirs), words(f.name, map[string]string{f.name: in.text("was." + f.name), "kind": in.text("was.kind")})
		if mine != other || f.name == "value" {
			all = append(all, FieldConflict{Label: f.label, Base: was, Theirs: other, Yours: mine, HasBase: in.values.Has("was.kind")})
		}
	}
	return all
}

// words is what a Variable's form says in a field.
func words(field string, form map[string]string) string {
	switch v := form[field]; {
	case field == "build" && form["kind"] == kindPlain:
		return "always"
	case field == "build" && v == "":
		return "no"
	case field == "build":
		return "yes"
	case field == "kind":
		return sentenceCase(v)
	case field == "value" && form["kind"] == kindSensitive:
		return "hidden"
	case field == "value" && form["kind"] == kindLink:
		return "the Shared variable's"
	default:
		return v
	}
}

func sentenceCase(s string) string {
	if s == "" {
		return s
	}
	return strings.ToUpper(s[:1]) + s[1:]
}

type deleteVariablePage struct {
	Page
	Name    string
	Base    int64
	Mark    string
	AtBuild bool
	Query   string
}

func (w *Web) deleteVariablePage(rw http.ResponseWriter, r *http.Request, g access.Grant) error {
	return w.showDeleteVariable(rw, r, g, http.StatusOK, "")
}

func (w *Web) showDeleteVariable(rw http.ResponseWriter, r *http.Request, g access.Grant, status int, alert string) error {
	name := variableName(r)
	env, err := w.d.Environments.Get(r.Context(), g)
	if err != nil {
		return err
	}
	v, ok := find(draftSpec(env), name)
	if !ok {
		return noVariable()
	}
	p := deleteVariablePage{Page: w.repoPage(r, g, "environment", "Delete "+name), Name: name, Base: env.Draft.Revision, Mark: markOf(env.Draft.Spec, name),
		AtBuild: v.AtBuild(), Query: url.PathEscape(name)}
	p.Alert = alert
	return w.render(rw, r, status, "delete-variable", p)
}

func (w *Web) deleteVariable(rw http.ResponseWriter, r *http.Request, g access.Grant) error {
	name := variableName(r)
	in, err := readForm(r)
	if err != nil {
		return err
	}
	base, err := in.number("base")
	if err != nil {
		return err
	}
	draft, err := w.edit(r.Context(), g, base, name, in.Get("mark"), func(s *envspec.Spec) variable.Given {
		s.Variables = slices.DeleteFunc(s.Variables, func(x envspec.Variable) bool { return x.Name == name })
		return nil
	})
	var f *fault.Error
	if errors.As(err, &f) {
		return w.showDeleteVariable(rw, r, g, statusOf(f), f.Message)
	}
	if err != nil {
		return err
	}
	return w.savedVariables(rw, r, g, draft)
}

type valuePage struct {
	Page
	Name   string
	Form   Form
	Retype bool
	Query  string
}

// valuePage asks for a value in place of a lost one.
func (w *Web) valuePage(rw http.ResponseWriter, r *http.Request, g access.Grant) error {
	return w.showValue(rw, r, g, http.StatusOK, Form{}, false)
}

func (w *Web) showValue(rw http.ResponseWriter, r *http.Request, g access.Grant, status int, form Form, retype bool) error {
	name := variableName(r)
	env, err := w.d.Environments.Get(r.Context(), g)
	if err != nil {
		return err
	}
	_, inDraft := find(draftSpec(env), name)
	inVersion := false
	if env.Current != nil {
		_, inVersion = find(env.Current.Spec, name)
	}
	if !inDraft && !inVersion {
		return noVariable()
	}
	p := valuePage{Page: w.repoPage(r, g, "environment", "Value of "+name), Name: name, Form: form, Retype: retype, Query: url.PathEscape(name)}
	return w.render(rw, r, status, "value", p)
}

func (w *Web) enterValue(rw http.ResponseWriter, r *http.Request, g access.Grant) error {
	name := variableName(r)
	in, err := readForm(r)
	if err != nil {
		return err
	}
	value, given, both := in.input("value")
	form := Form{Values: map[string]string{}}
	switch {
	case both:
		form.Errors = []FieldError{{"value", "there is a text and a file: give one of them"}}
	case !given:
		form.Errors = []FieldError{{"value", "enter its value, of at least 8 characters"}}
	}
	if form.Failed() {
		return w.showValue(rw, r, g, http.StatusUnprocessableEntity, form, given)
	}
	err = w.d.Environments.Enter(r.Context(), g, name, []byte(value))
	var f *fault.Error
	if errors.As(err, &f) && f.Code != fault.NotFound {
		form.take(variableFault(f, name, kindSensitive), "value")
		return w.showValue(rw, r, g, statusOf(f), form, true)
	}
	if err != nil {
		return err
	}
	return seeOther(rw, r, environmentPath(g)+"?"+url.Values{"entered": {name}}.Encode()+"#variables")
}
