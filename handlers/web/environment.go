package web

import (
	"errors"
	"net/http"
	"strconv"

	"github.com/gorilla/mux"

	"github.com/claude-hub/claude-hub/app/access"
	"github.com/claude-hub/claude-hub/app/environment"
	"github.com/claude-hub/claude-hub/app/fault"
	"github.com/claude-hub/claude-hub/envspec"
	"github.com/claude-hub/claude-hub/handlers/request"
)

type environmentPage struct {
	Page
	Form    Form
	Base    int64              // the revision that what is in the form was made from
	Draft   *environment.Draft // as it is saved
	Current *environment.Version
	// Theirs is what somebody else saved meanwhile, field by field, where it differs from what is in the form.
	Theirs  []TheirField
	Changes []envspec.Change // from the current version to the saved draft
	Verdict environment.Verdict
	Start   TestStart
	Apply   Form
	Newest  *TestRow // the newest Test build
	// Warnings are about what is saved.
	Warnings []string
}

// TheirField is one field of somebody else's draft.
type TheirField struct {
	Label, Value string
	Long         bool
}

func (w *Web) environment(rw http.ResponseWriter, r *http.Request, g access.Grant) error {
	p, err := w.environmentPage(r, g)
	if err != nil {
		return err
	}
	if n := r.URL.Query().Get("saved"); n != "" && p.Draft != nil && n == strconv.FormatInt(p.Draft.Revision, 10) {
		p.Notice = "Saved as revision " + n + "."
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
		p.Changes, p.Warnings = envspec.Explain(before, spec), warnings(spec)
	}
	p.Form.Values = formOf(spec)
	if p.Verdict, err = w.d.Environments.Check(r.Context(), g); err != nil {
		return p, err
	}
	if p.Start, err = w.testStart(r.Context(), p.Repo, env, Form{}); err != nil {
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
	if err := parseForm(r); err != nil {
		return err
	}
	base, err := strconv.ParseInt(r.PostForm.Get("base"), 10, 64)
	if err != nil {
		return errInput
	}
	typed := map[string]string{}
	for _, f := range fields {
		typed[f.name] = r.PostForm.Get(f.name)
	}
	spec, wrong := specOf(typed)
	if len(wrong) == 0 {
		env, err := w.d.Environments.Get(r.Context(), g)
		if err != nil {
			return err
		}
		if env.Draft != nil {
			spec = carry(env.Draft.Spec, spec)
		}
		draft, err := w.d.Environments.Save(r.Context(), g, base, spec, nil)
		if err == nil {
			return seeOther(rw, r, "/repos/"+g.Repo().ID.String()+"/environment?saved="+strconv.FormatInt(draft.Revision, 10))
		}
		return w.notSaved(rw, r, g, base, typed, err)
	}
	f := fault.New(fault.Invalid, "Some fields need another look.")
	f.Fields = wrong
	return w.notSaved(rw, r, g, base, typed, f)
}

// carry puts what the form shows into the draft that it was made from: what the form doesn't show stays. A draft that
// was saved meanwhile is for Save to find.
func carry(draft, form envspec.Spec) envspec.Spec {
	form = envspec.Normalize(form)
	if form.Bootstrap != draft.Bootstrap {
		draft.BootstrapFile = ""
	}
	if form.Start != draft.Start {
		draft.StartFile = ""
	}
	draft.Image, draft.Bootstrap, draft.Start, draft.CPU, draft.Memory = form.Image, form.Bootstrap, form.Start, form.CPU, form.Memory
	return draft
}

// notSaved shows the form again with what the person typed: nothing of it is lost, whatever the reason.
func (w *Web) notSaved(rw http.ResponseWriter, r *http.Request, g access.Grant, base int64, typed map[string]string, err error) error {
	var f *fault.Error
	if !errors.As(err, &f) {
		return err
	}
	p, perr := w.environmentPage(r, g)
	if perr != nil {
		return perr
	}
	p.Form = Form{Values: typed}
	p.Form.take(f, fieldNames()...)
	p.Refresh = 0 // a page that fetches itself would lose what was typed
	p.Base = base
	if f.Code == fault.Conflict {
		// Saving again is a decision made with both in sight, so the form goes on from the revision it now shows.
		p.Base = 0
		if p.Draft != nil {
			p.Base, p.Theirs = p.Draft.Revision, differing(typed, formOf(p.Draft.Spec))
		}
	}
	return w.render(rw, r, request.Status(f.Code), "environment", p)
}

// differing is what theirs says where it isn't what mine does.
func differing(mine, theirs map[string]string) []TheirField {
	var out []TheirField
	for _, field := range fields {
		if unix(theirs[field.name]) != unix(mine[field.name]) {
			out = append(out, TheirField{Label: field.label, Value: theirs[field.name], Long: field.script})
		}
	}
	return out
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

type versionsPage struct {
	Page
	Versions []environment.Version
	Current  int
}

func (w *Web) versions(rw http.ResponseWriter, r *http.Request, g access.Grant) error {
	p := versionsPage{Page: w.repoPage(r, g, "versions", "Versions of "+g.Repo().Name)}
	var err error
	if p.Versions, err = w.d.Environments.Versions(r.Context(), g, listLimit); err != nil {
		return err
	}
	if len(p.Versions) > 0 {
		p.Current = p.Versions[0].Number
	}
	return w.render(rw, r, http.StatusOK, "versions", p)
}

type versionPage struct {
	Page
	Version environment.Version
	Current bool
	Before  int // the version it followed; 0: none
	Changes []envspec.Change
	Runner  string // the Test build's
	YAML    string
}

func (w *Web) version(rw http.ResponseWriter, r *http.Request, g access.Grant) error {
	number, err := strconv.Atoi(mux.Vars(r)["number"])
	if err != nil {
		return fault.New(fault.NotFound, "This Repo's Environment has no such version.")
	}
	v, err := w.d.Environments.Version(r.Context(), g, number)
	if err != nil {
		return err
	}
	p := versionPage{Page: w.repoPage(r, g, "versions", "Version "+strconv.Itoa(number)), Version: v, Before: number - 1, YAML: string(envspec.Format(v.Spec))}
	env, err := w.d.Environments.Get(r.Context(), g)
	if err != nil {
		return err
	}
	p.Current = env.Current != nil && env.Current.Number == number
	if p.Before > 0 {
		before, err := w.d.Environments.Version(r.Context(), g, p.Before)
		if err != nil {
			return err
		}
		p.Changes = envspec.Explain(before.Spec, v.Spec)
	}
	test, err := w.d.Environments.TestBuild(r.Context(), g, v.TestBuild)
	if err != nil {
		return err
	}
	runners, err := w.d.Fleet.Runners(r.Context())
	if err != nil {
		return err
	}
	p.Runner = runnerName(runners, test.Runner)
	if r.URL.Query().Get("applied") != "" && p.Current {
		p.Notice = "Version " + strconv.Itoa(number) + " is applied. New Sessions start on it; sleeping ones move to it when they wake."
	}
	return w.render(rw, r, http.StatusOK, "version", p)
}
