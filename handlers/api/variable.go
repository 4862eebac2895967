package api

import (
	"cmp"
	"context"
	"fmt"
	"net/http"
	"strconv"

	"github.com/gorilla/mux"

	"github.com/claude-hub/claude-hub/app/access"
	"github.com/claude-hub/claude-hub/app/environment"
	"github.com/claude-hub/claude-hub/app/fault"
	"github.com/claude-hub/claude-hub/app/variable"
	"github.com/claude-hub/claude-hub/envspec"
	"github.com/claude-hub/claude-hub/handlers/api/schema"
)

// valuesOf are new values by the names of their Variables.
func valuesOf(in map[string]schema.Value) (variable.Given, error) {
	given := variable.Given{}
	wrong := map[string]string{}
	for name, v := range in {
		b, err := v.Bytes()
		if err != nil {
			wrong["variables."+name] = fmt.Sprintf("The value of %s: %s.", name, err)
			continue
		}
		given[name] = b
	}
	if len(wrong) > 0 {
		f := fault.New(fault.Invalid, "Values are given as {\"text\": …} or {\"base64\": …}.")
		f.Fields = wrong
		return nil, f
	}
	return given, nil
}

func valueOf(v schema.Value) ([]byte, error) {
	b, err := v.Bytes()
	if err != nil {
		return nil, fault.Field("value", "The value can't be read: %s.", err)
	}
	return b, nil
}

func (a *api) discardDraft(w http.ResponseWriter, r *http.Request, g access.Grant) error {
	var in schema.Base
	if err := decode(r, &in); err != nil {
		return err
	}
	draft, err := a.Environments.Discard(r.Context(), g, in.Base)
	if err != nil {
		return err
	}
	out := schema.Discarded{}
	if draft != nil {
		d := draftOf(*draft)
		out.Draft = &d
	}
	return answer(w, http.StatusOK, out)
}

func (a *api) restoreDraft(w http.ResponseWriter, r *http.Request, g access.Grant) error {
	var in schema.Restore
	if err := decode(r, &in); err != nil {
		return err
	}
	draft, err := a.Environments.Restore(r.Context(), g, in.Base, in.Version)
	if err != nil {
		return err
	}
	return answer(w, http.StatusOK, draftOf(draft))
}

// Sides of a diff that are no version.
const (
	sideDraft = "draft"
	sideNone  = "none"
)

// diff compares ?from= with ?to=, each “draft”, “none” or a version's number. Left out: the current version, and the draft.
func (a *api) diff(w http.ResponseWriter, r *http.Request, g access.Grant) error {
	from, to := r.URL.Query().Get("from"), cmp.Or(r.URL.Query().Get("to"), sideDraft)
	if from == "" {
		env, err := a.Environments.Get(r.Context(), g)
		if err != nil {
			return err
		}
		from = sideNone
		if env.Current != nil {
			from = strconv.Itoa(env.Current.Number)
		}
	}
	var numbers []int
	for _, side := range []string{from, to} {
		switch n, err := strconv.Atoi(side); {
		case side == sideDraft:
			numbers = append(numbers, environment.Web)
		case side == sideNone:
		case err != nil || n < 1:
			return fault.New(fault.Invalid, "The sides of a diff are “draft”, “none” and the numbers of versions.")
		default:
			numbers = append(numbers, n)
		}
	}
	specs, err := a.Environments.Sides(r.Context(), g, numbers...)
	if err != nil {
		return err
	}
	var sides [2]envspec.Spec
	for i, side := range []string{from, to} {
		if side != sideNone {
			sides[i], specs = specs[0], specs[1:]
		}
	}
	out := schema.Diff{From: from, To: to}
	switch {
	case from == sideNone && to == sideNone:
		out.Diff = envspec.Compare(envspec.Default(), envspec.Default())
	case to == sideNone:
		return fault.New(fault.Invalid, "“none” can only be what a diff is from.")
	default:
		out.Diff = envspec.Compare(sides[0], sides[1])
	}
	out.Text = out.Diff.String()
	return answer(w, http.StatusOK, out)
}

func (a *api) draftVariables(w http.ResponseWriter, r *http.Request, g access.Grant) error {
	return a.answerChanged(w, r, environment.TopicOf(g.Repo()), func(ctx context.Context) (any, error) {
		env, err := a.Environments.Get(ctx, g)
		if err != nil {
			return nil, err
		}
		if env.Draft == nil {
			return []schema.Variable{}, nil
		}
		return a.variables(ctx, g, environment.Web, env.Draft.Spec)
	})
}

func (a *api) versionVariables(w http.ResponseWriter, r *http.Request, g access.Grant) error {
	number, err := versionNumber(r)
	if err != nil {
		return err
	}
	return a.answerChanged(w, r, environment.TopicOf(g.Repo()), func(ctx context.Context) (any, error) {
		v, err := a.Environments.Version(ctx, g, number)
		if err != nil {
			return nil, err
		}
		return a.variables(ctx, g, number, v.Spec)
	})
}

// variables joins what spec says of its Variables with what may be shown of their values. A draft that was saved between
// the two reads is told by what both know.
func (a *api) variables(ctx context.Context, g access.Grant, number int, spec envspec.Spec) ([]schema.Variable, error) {
	states, err := a.Environments.Variables(ctx, g, number)
	if err != nil {
		return nil, err
	}
	of := map[string]variable.State{}
	for _, s := range states {
		of[s.Name] = s
	}
	list := make([]schema.Variable, 0, len(spec.Variables))
	for _, v := range spec.Variables {
		s, ok := of[v.Name]
		if !ok || s.Link != v.Link {
			continue
		}
		out := schema.Variable{
			Name: v.Name, Kind: "sensitive", Link: v.Link, Hidden: s.Sensitive, AtBuild: v.AtBuild(), Note: v.Note,
			Status: string(s.Status), SetAt: maybe(s.SetAt), SetBy: s.SetBy, Digest: s.Digest,
		}
		switch {
		case v.Link != "":
			out.Kind = "link"
		case v.Plain():
			out.Kind, out.Value = "plain", &v.Value
		}
		list = append(list, out)
	}
	return list, nil
}

func (a *api) enterValue(w http.ResponseWriter, r *http.Request, g access.Grant) error {
	var in schema.EnterValue
	if err := decode(r, &in); err != nil {
		return err
	}
	value, err := valueOf(in.Value)
	if err != nil {
		return err
	}
	if err := a.Environments.Enter(r.Context(), g, mux.Vars(r)["variable"], value); err != nil {
		return err
	}
	w.WriteHeader(http.StatusNoContent)
	return nil
}

func (a *api) sharedChanges(w http.ResponseWriter, r *http.Request, g access.Grant) error {
	number, err := versionNumber(r)
	if err != nil {
		return err
	}
	moved, err := a.Environments.SharedChanged(r.Context(), g, number)
	if err != nil {
		return err
	}
	list := make([]schema.SharedChange, 0, len(moved))
	for _, m := range moved {
		list = append(list, schema.SharedChange{Name: m.Name, Shared: m.Shared, At: m.At.UTC(), By: m.By})
	}
	return answer(w, http.StatusOK, list)
}

func (a *api) onVersions(w http.ResponseWriter, r *http.Request, g access.Grant) error {
	all, err := a.Sessions.OnVersions(r.Context(), g)
	if err != nil {
		return err
	}
	list := make([]schema.OnVersion, 0, len(all))
	for _, v := range all {
		list = append(list, schema.OnVersion(v))
	}
	return answer(w, http.StatusOK, list)
}

func versionNumber(r *http.Request) (int, error) {
	number, err := strconv.Atoi(mux.Vars(r)["number"])
	if err != nil || number < 1 { // 0 names the draft to the domain
		return 0, fault.New(fault.NotFound, "This Repo's Environment has no such version.")
	}
	return number, nil
}
