package web

import (
	"errors"
	"net/http"
	"strconv"

	"github.com/claude-hub/claude-hub/app/access"
	"github.com/claude-hub/claude-hub/app/environment"
	"github.com/claude-hub/claude-hub/app/fault"
	"github.com/claude-hub/claude-hub/app/variable"
	"github.com/claude-hub/claude-hub/envspec"
	"github.com/claude-hub/claude-hub/handlers/request"
)

type environmentPage struct {
	Page
	Form    Form
	Base    int64              // the revision that what is in the form was made from
	Was     map[string]string  // what the form said at that revision; nil: unknown
	Draft   *environment.Draft // as it is saved
	Current *environment.Version
	// After somebody else saved meanwhile: the fields where a choice is to be made, and those that only they changed.
	Conflicts []FieldConflict
	Taken     []TakenField
	Conflict  bool
	Changes   []envspec.Change // from the current version to the saved draft
	Verdict   environment.Verdict
	Start     TestStart
	Apply     Form
	Newest    *TestRow // the newest Test build
	// Warnings are about what is saved.
	Warnings    []string
	Unavailable []UnavailableRow
	Variables   []VariableRow
	// VariablesNotice is what was just done to them.
	VariablesNotice string
	Lacking         []LackingValue // of the applied version
	Drift           string         // between the file on the default branch and what is applied
}

// Pending tells that the draft says something else than the applied version.
func (p environmentPage) Pending() bool { return p.Current != nil && len(p.Changes) > 0 }

// FieldConflict is a field that two people changed.
type FieldConflict struct {
	Label               string
	Base, Theirs, Yours string
	HasBase             bool
}

// TakenField is one that only the other one changed.
type TakenField struct{ Label, Value string }

func (w *Web) environment(rw http.ResponseWriter, r *http.Request, g access.Grant) error {
	p, err := w.environmentPage(r, g)
	if err != nil {
		return err
	}
	q := r.URL.Query()
	if n := q.Get("saved"); n != "" && p.Draft != nil && n == strconv.FormatInt(p.Draft.Revision, 10) {
		p.Notice = "Saved as revision " + n + "."
	}
	if q.Has("variables") { // where the address leads to, so that it is seen
		p.VariablesNotice, p.Notice = p.Notice, ""
	}
	if q.Get("discarded") != "" && len(p.Changes) == 0 {
		p.Notice = "The changes are discarded."
	}
	for _, v := range p.Variables {
		if q.Get("entered") == v.Name && v.Status == variable.Set {
			p.VariablesNotice = "The value of " + v.Name + " is entered, and holds at once: no Test build and no new version is needed."
		}
	}
	return w.render(rw, r, http.StatusOK, "environment", p)
}

// environmentPage is the page as what is saved makes it.
func (w *Web) environmentPage(r *http.Request, g access.Grant) (environmentPage, error) {
	p := environmentPage{Page: w.repoPage(r, g, "environment", "Environment of "+g.Repo().Name)}
	env, err := w.d.Environments.Get(r.Context(), g)
	if err != nil {
		return p, err
	}
	p.Draft, p.Current, p.Typing = env.Draft, env.Current, true
	spec := envspec.Default()
	if p.Draft != nil {
		p.Base, spec = p.Draft.Revision, p.Draft.Spec
		var before envspec.Spec
		if p.Current != nil {
			before = p.Current.Spec
		}
		p.Changes, p.Warnings, p.Unavailable = envspec.Explain(before, spec), warnings(spec), unavailable(spec)
	}
	p.Form.Values = formOf(spec)
	p.Was = formOf(spec)
	if p.Variables, err = w.variableRows(r.Context(), g, env.Draft); err != nil {
		return p, err
	}
	if p.Lacking, err = w.lacking(r.Context(), g, env.Current); err != nil {
		return p, err
	}
	if p.Verdict, err = w.d.Environments.Check(r.Context(), g); err != nil {
		return p, err
	}
	if p.Drift, err = w.d.Proposals.Drift(r.Context(), g); err != nil {
		return p, err
	}
	if p.Start, err = w.testStart(r.Context(), p.Repo, g.Repo(), env, Form{}); err != nil {
		return p, err
	}
	tests, err := w.d.Environments.TestBuilds(r.Context(), g, 1)
	if err != nil {
		return p, err
	}
	runners, err := w.d.Fleet.Runners(r.Context())
	if err != nil {
		return p, err
	}
	if rows := testRows(tests, runners, w.d.Now()); len(rows) > 0 {
		p.Newest = &rows[0]
		if !rows[0].Final {
			p.Refresh = pollMoving
		}
	}
	return p, nil
}

func (w *Web) saveDraft(rw http.ResponseWriter, r *http.Request, g access.Grant) error {
	in, err := readForm(r)
	if err != nil {
		return err
	}
	base, err := in.number("base")
	if err != nil {
		return err
	}
	typed, was := map[string]string{}, map[string]string(nil)
	for _, name := range inputs {
		typed[name] = in.text(name)
		if in.values.Has("was." + name) {
			if was == nil {
				was = map[string]string{}
			}
			was[name] = in.text("was." + name)
		}
	}
	env, err := w.d.Environments.Get(r.Context(), g)
	if err != nil {
		return err
	}
	spec, wrong := specOf(typed, draftSpec(env))
	if len(wrong) > 0 {
		f := fault.New(fault.Invalid, "Some fields need another look.")
		f.Fields = wrong
		return w.notSaved(rw, r, g, base, typed, was, f)
	}
	draft, err := w.d.Environments.Save(r.Context(), g, base, spec, nil)
	if err != nil {
		return w.notSaved(rw, r, g, base, typed, was, err)
	}
	return w.saved(rw, r, g, draft)
}

// draftSpec is what a change of the draft begins with.
func draftSpec(env environment.Environment) envspec.Spec {
	if env.Draft != nil {
		return env.Draft.Spec
	}
	return envspec.Default()
}

// environmentPath is the Environment's page.
func environmentPath(g access.Grant) string {
	return "/repos/" + g.Repo().ID.String() + "/environment"
}

// savedVariables ends a POST that changed Variables of the draft.
func (w *Web) savedVariables(rw http.ResponseWriter, r *http.Request, g access.Grant, draft environment.Draft) error {
	return seeOther(rw, r, environmentPath(g)+"?saved="+strconv.FormatInt(draft.Revision, 10)+"&variables=1#variables")
}

// saved ends a POST that made a revision of the draft.
func (w *Web) saved(rw http.ResponseWriter, r *http.Request, g access.Grant, draft environment.Draft) error {
	return seeOther(rw, r, environmentPath(g)+"?saved="+strconv.FormatInt(draft.Revision, 10))
}

// notSaved shows the form again with what the person typed: nothing of it is lost, whatever the reason.
func (w *Web) notSaved(rw http.ResponseWriter, r *http.Request, g access.Grant, base int64, typed, was map[string]string, err error) error {
	var f *fault.Error
	if !errors.As(err, &f) {
		return err
	}
	p, perr := w.environmentPage(r, g)
	if perr != nil {
		return perr
	}
	p.Form = Form{Values: typed}
	p.Form.take(f, inputs...)
	p.Refresh = 0 // a page that fetches itself would lose what was typed
	if f.Code == fault.Conflict {
		p.Conflict = true
		// Saving again is a decision made with all in sight, so the form goes on from the revision it now shows.
		if p.Draft != nil {
			p.Conflicts, p.Taken = threeWay(draftFields(), typed, formOf(p.Draft.Spec), was)
		}
	} else if base != p.Base {
		p.Base, p.Was = base, was
	}
	return w.render(rw, r, request.Status(f.Code), "environment", p)
}

// compared is a field of a form, or some that are one choice, for threeWay: what it says for a person, equal texts being the
// same choice, and how it is taken over from another form.
type compared struct {
	label string
	said  func(form map[string]string) string
	take  func(to, from map[string]string)
}

func draftFields() (all []compared) {
	for _, f := range fields {
		all = append(all, compared{
			f.label, func(form map[string]string) string { return said(form, f.name) },
			func(to, from map[string]string) { copyField(to, from, f.name) },
		})
	}
	return all
}

// threeWay compares what is typed with what somebody else saved, and with what both began with (nil: unknown). What only they
// changed is taken over into typed, so that saving it reverts nothing that the person never saw.
func threeWay(all []compared, typed, theirs, was map[string]string) (conflicts []FieldConflict, taken []TakenField) {
	for _, field := range all {
		yours, other := field.said(typed), field.said(theirs)
		if yours == other {
			continue
		}
		if was != nil && yours == field.said(was) {
			field.take(typed, theirs)
			taken = append(taken, TakenField{field.label, other})
			continue
		}
		c := FieldConflict{Label: field.label, Theirs: other, Yours: yours}
		if was != nil {
			c.Base, c.HasBase = field.said(was), true
			if c.Base == other {
				continue // only changed here
			}
		}
		conflicts = append(conflicts, c)
	}
	return conflicts, taken
}

func (w *Web) apply(rw http.ResponseWriter, r *http.Request, g access.Grant) error {
	if err := parseForm(r); err != nil {
		return err
	}
	revision, err := strconv.ParseInt(r.PostForm.Get("revision"), 10, 64)
	if err != nil {
		return errInput
	}
	message := unix(r.PostForm.Get("message"))
	v, err := w.d.Environments.Apply(r.Context(), g, revision, message)
	var f *fault.Error
	if errors.As(err, &f) {
		p, perr := w.environmentPage(r, g)
		if perr != nil {
			return perr
		}
		p.Apply = Form{Values: map[string]string{"message": message}}
		p.Apply.take(f, "message")
		p.Refresh = 0
		return w.render(rw, r, request.Status(f.Code), "environment", p)
	}
	if err != nil {
		return err
	}
	return seeOther(rw, r, "/repos/"+g.Repo().ID.String()+"/versions/"+strconv.Itoa(v.Number)+"?applied=1")
}
