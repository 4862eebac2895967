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

	"github.com/claude-hub/claude-hub/app/access"
	"github.com/claude-hub/claude-hub/app/environment"
	"github.com/claude-hub/claude-hub/app/fault"
	"github.com/claude-hub/claude-hub/app/variable"
	"github.com/claude-hub/claude-hub/envspec"
)

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
		row := VariableRow{
			Name: v.Name, Kind: v.Kind(), Note: v.Note, Link: v.Link, Hidden: v.Sensitive, AtBuild: v.AtBuild(), Status: variable.Set,
		}
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
		l := LackingValue{
			Name: s.Name, Why: "its value was lost with an encryption key",
			Path: nav.Path() + "/environment/variables/" + url.PathEscape(s.Name) + "/value",
		}
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
func (w *Web) edit(
	ctx context.Context, g access.Grant, base int64, name, mark string, change func(*envspec.Spec) variable.Given,
) (environment.Draft, error) {
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

// makeAvailable ticks "available at build" of a Variable that the bootstrap script uses.
func (w *Web) makeAvailable(rw http.ResponseWriter, r *http.Request, g access.Grant) error {
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
		for i := range s.Variables {
			if v := &s.Variables[i]; v.Name == name && !v.Plain() {
				v.Build = true
			}
		}
		return nil
	})
	var f *fault.Error
	if errors.As(err, &f) {
		p, perr := w.environmentPage(r, g)
		if perr != nil {
			return perr
		}
		p.Alert, p.Refresh = stale(err, f, "changed", "ask"), 0
		return w.render(rw, r, statusOf(f), "environment", p)
	}
	if err != nil {
		return err
	}
	return w.saved(rw, r, g, draft)
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
	p := deleteVariablePage{
		Page: w.repoPage(r, g, "environment", "Delete "+name), Name: name, Base: env.Draft.Revision, Mark: markOf(env.Draft.Spec, name),
		AtBuild: v.AtBuild(), Query: url.PathEscape(name),
	}
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
		return w.showDeleteVariable(rw, r, g, statusOf(f), stale(err, f, "deleted", "delete"))
	}
	if err != nil {
		return err
	}
	return w.savedVariables(rw, r, g, draft)
}

// noSensitive is said at the field of a Sensitive value that is empty; given tells that it is that of a file.
func noSensitive(given bool) string {
	if given {
		return "this file is empty: a Sensitive value has at least 8 characters"
	}
	return "enter its value, of at least 8 characters"
}

type valuePage struct {
	Page
	Name   string
	Form   Form
	Retype bool
	Query  string
}

// valuePage asks for a value in place of a lost one. Where none is lost (any more) a value is a change of the draft.
func (w *Web) valuePage(rw http.ResponseWriter, r *http.Request, g access.Grant) error {
	name := variableName(r)
	env, err := w.d.Environments.Get(r.Context(), g)
	if err != nil {
		return err
	}
	if _, ok := find(draftSpec(env), name); ok {
		rows, err := w.variableRows(r.Context(), g, env.Draft)
		if err != nil {
			return err
		}
		lacking, err := w.lacking(r.Context(), g, env.Current)
		if err != nil {
			return err
		}
		lost := slices.ContainsFunc(rows, func(v VariableRow) bool { return v.Name == name && v.Status == variable.Lost }) ||
			slices.ContainsFunc(lacking, func(l LackingValue) bool { return l.Name == name })
		if !lost {
			return seeOther(rw, r, environmentPath(g)+"/variables/"+url.PathEscape(name))
		}
	}
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
	p := valuePage{
		Page: w.repoPage(r, g, "environment", "Value of "+name), Name: name, Form: form, Retype: retype, Query: url.PathEscape(name),
	}
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
	case value == "":
		form.Errors = []FieldError{{"value", noSensitive(given)}}
	}
	if form.Failed() {
		return w.showValue(rw, r, g, http.StatusUnprocessableEntity, form, given)
	}
	err = w.d.Environments.Enter(r.Context(), g, name, []byte(value))
	var f *fault.Error
	if errors.As(err, &f) && f.Code != fault.NotFound {
		form.take(variableFault(f, name, envspec.KindSensitive), "value")
		return w.showValue(rw, r, g, statusOf(f), form, true)
	}
	if err != nil {
		return err
	}
	return seeOther(rw, r, environmentPath(g)+"?"+url.Values{"entered": {name}}.Encode()+"#variables")
}
