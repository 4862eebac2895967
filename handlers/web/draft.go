package web

import (
	"errors"
	"fmt"
	"net/http"
	"strconv"

	"github.com/gorilla/mux"

	"github.com/claude-hub/claude-hub/app/access"
	"github.com/claude-hub/claude-hub/app/environment"
	"github.com/claude-hub/claude-hub/app/fault"
	"github.com/claude-hub/claude-hub/envspec"
	"github.com/claude-hub/claude-hub/handlers/request"
)

// draftWord names the draft among the sides of a diff.
const draftWord = "draft"

// Side is one of what can be compared.
type Side struct {
	Value, Label string
	Chosen       bool
}

type diffPage struct {
	Page
	From, To string // as in the address
	FromSide []Side
	ToSide   []Side
	FromName string
	ToName   string
	Diff     envspec.Diff
	Changes  []envspec.Change
	CanUndo  bool // to is the draft, and it can be discarded
}

// nothing is the side before a first version.
const nothing = "none"

func sideName(side string) string {
	switch side {
	case draftWord:
		return "the draft"
	case nothing:
		return "no Environment"
	}
	return "version " + side
}

func sideNumber(side string) (int, error) {
	if side == draftWord {
		return environment.Web, nil
	}
	n, err := strconv.Atoi(side)
	if err != nil || n < 1 {
		return 0, fault.New(fault.NotFound, "This Repo's Environment has no such version.")
	}
	return n, nil
}

// diff is between any two of the draft and the versions: by default what applying the draft would change.
func (w *Web) diff(rw http.ResponseWriter, r *http.Request, g access.Grant) error {
	p := diffPage{Page: w.repoPage(r, g, "versions", "What changes")}
	env, err := w.d.Environments.Get(r.Context(), g)
	if err != nil {
		return err
	}
	versions, err := w.d.Environments.Versions(r.Context(), g, listLimit)
	if err != nil {
		return err
	}
	if p.From, p.To = r.URL.Query().Get("from"), r.URL.Query().Get("to"); p.From == "" {
		p.From = nothing
		if env.Current != nil {
			p.From = strconv.Itoa(env.Current.Number)
		}
	}
	if p.To == "" {
		p.To = draftWord
	}
	var before envspec.Spec
	if p.From != nothing {
		if before, err = w.side(r, g, p.From); err != nil {
			return err
		}
	}
	after, err := w.side(r, g, p.To)
	if err != nil {
		return err
	}
	p.FromSide, p.ToSide = sides(env, versions, p.From), sides(env, versions, p.To)
	p.FromName, p.ToName = sideName(p.From), sideName(p.To)
	p.Diff, p.Changes = envspec.Compare(before, after), envspec.Explain(before, after)
	p.CanUndo = p.To == draftWord && env.Current != nil && p.From == strconv.Itoa(env.Current.Number) && len(p.Changes) > 0
	return w.render(rw, r, http.StatusOK, "diff", p)
}

func (w *Web) side(r *http.Request, g access.Grant, side string) (envspec.Spec, error) {
	n, err := sideNumber(side)
	if err != nil {
		return envspec.Spec{}, err
	}
	specs, err := w.d.Environments.Sides(r.Context(), g, n)
	if err != nil {
		return envspec.Spec{}, err
	}
	return specs[0], nil
}

func sides(env environment.Environment, versions []environment.Version, chosen string) []Side {
	var all []Side
	if env.Draft != nil {
		all = append(all, Side{draftWord, "the draft", chosen == draftWord})
	}
	for _, v := range versions {
		n := strconv.Itoa(v.Number)
		label := "version " + n
		if env.Current != nil && env.Current.Number == v.Number {
			label += " (current)"
		}
		all = append(all, Side{n, label, chosen == n})
	}
	return all
}

type discardPage struct {
	Page
	Base    int64
	Current int // 0: there is no version, so the draft is gone afterwards
	Changes []envspec.Change
}

func (w *Web) discardPage(rw http.ResponseWriter, r *http.Request, g access.Grant) error {
	return w.showDiscard(rw, r, g, http.StatusOK, "")
}

func (w *Web) showDiscard(rw http.ResponseWriter, r *http.Request, g access.Grant, status int, alert string) error {
	env, err := w.d.Environments.Get(r.Context(), g)
	if err != nil {
		return err
	}
	if env.Draft == nil {
		return seeOther(rw, r, environmentPath(g))
	}
	p := discardPage{Page: w.repoPage(r, g, "environment", "Discard the changes"), Base: env.Draft.Revision}
	p.Alert = alert
	var before envspec.Spec
	if env.Current != nil {
		p.Current, before = env.Current.Number, env.Current.Spec
	}
	p.Changes = envspec.Explain(before, env.Draft.Spec)
	if env.Current != nil && len(p.Changes) == 0 && alert == "" {
		return seeOther(rw, r, environmentPath(g)) // there is nothing to discard, or somebody else did meanwhile
	}
	return w.render(rw, r, status, "discard", p)
}

func (w *Web) discard(rw http.ResponseWriter, r *http.Request, g access.Grant) error {
	in, err := readForm(r)
	if err != nil {
		return err
	}
	base, err := in.number("base")
	if err != nil {
		return err
	}
	_, err = w.d.Environments.Discard(r.Context(), g, base)
	var f *fault.Error
	if errors.As(err, &f) {
		return w.showDiscard(rw, r, g, request.Status(f.Code), stale(err, f, "discarded", "discard"))
	}
	if err != nil {
		return err
	}
	return seeOther(rw, r, environmentPath(g)+"?discarded=1")
}

// stale says of what was asked on a page with nothing typed that it was not done, and what to do when somebody else saved the
// draft meanwhile; f is what else there is to say of err.
func stale(err error, f *fault.Error, done, do string) string {
	var c *environment.ConflictError
	if !errors.As(err, &c) || c.Theirs == nil {
		return f.Message
	}
	return fmt.Sprintf("%s saved this draft meanwhile. Nothing was %s: look at the newer draft and %s again.", c.Theirs.UpdatedBy, done, do)
}

type restorePage struct {
	Page
	Base    int64
	Version environment.Version
	// Changes are those that it makes to what the draft says now.
	Changes []envspec.Change
	Pending bool // the draft has changes of its own, which are replaced
}

func (w *Web) restorePage(rw http.ResponseWriter, r *http.Request, g access.Grant) error {
	v, err := w.numbered(r, g)
	if err != nil {
		return err
	}
	return w.showRestore(rw, r, g, http.StatusOK, v, "")
}

func (w *Web) numbered(r *http.Request, g access.Grant) (environment.Version, error) {
	number, err := sideNumber(mux.Vars(r)["number"])
	if err != nil {
		return environment.Version{}, err
	}
	return w.d.Environments.Version(r.Context(), g, number)
}

func (w *Web) showRestore(rw http.ResponseWriter, r *http.Request, g access.Grant, status int, v environment.Version, alert string) error {
	env, err := w.d.Environments.Get(r.Context(), g)
	if err != nil {
		return err
	}
	p := restorePage{Page: w.repoPage(r, g, "versions", "Restore version "+strconv.Itoa(v.Number)), Version: v}
	p.Alert = alert
	var before envspec.Spec
	if env.Draft != nil {
		p.Base, before = env.Draft.Revision, env.Draft.Spec
		p.Pending = env.Current == nil || len(envspec.Explain(env.Current.Spec, before)) > 0
	}
	p.Changes = envspec.Explain(before, v.Spec)
	return w.render(rw, r, status, "restore", p)
}

func (w *Web) restore(rw http.ResponseWriter, r *http.Request, g access.Grant) error {
	v, err := w.numbered(r, g)
	if err != nil {
		return err
	}
	in, err := readForm(r)
	if err != nil {
		return err
	}
	base, err := in.number("base")
	if err != nil {
		return err
	}
	draft, err := w.d.Environments.Restore(r.Context(), g, base, v.Number)
	var f *fault.Error
	if errors.As(err, &f) {
		return w.showRestore(rw, r, g, request.Status(f.Code), v, stale(err, f, "restored", "restore"))
	}
	if err != nil {
		return err
	}
	return w.saved(rw, r, g, draft)
}
