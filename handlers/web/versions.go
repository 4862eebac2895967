package web

import (
	"net/http"
	"strconv"

	"github.com/gorilla/mux"

	"github.com/claude-hub/claude-hub/app/access"
	"github.com/claude-hub/claude-hub/app/environment"
	"github.com/claude-hub/claude-hub/app/fault"
	"github.com/claude-hub/claude-hub/app/variable"
	"github.com/claude-hub/claude-hub/envspec"
)

type versionsPage struct {
	Page
	Versions []VersionRow
	Current  int
	HasDraft bool
}

// VersionRow is one version with the Sessions that stand on it.
type VersionRow struct {
	environment.Version
	Awake, Asleep int
}

func (w *Web) versions(rw http.ResponseWriter, r *http.Request, g access.Grant) error {
	p := versionsPage{Page: w.repoPage(r, g, "versions", "Versions of "+g.Repo().Name)}
	all, err := w.d.Environments.Versions(r.Context(), g, listLimit)
	if err != nil {
		return err
	}
	on, err := w.d.Sessions.OnVersions(r.Context(), g)
	if err != nil {
		return err
	}
	for _, v := range all {
		row := VersionRow{Version: v}
		for _, o := range on {
			if o.Version == v.Number {
				row.Awake, row.Asleep = o.Awake, o.Asleep
			}
		}
		p.Versions = append(p.Versions, row)
	}
	if len(p.Versions) > 0 {
		p.Current = p.Versions[0].Number
	}
	env, err := w.d.Environments.Get(r.Context(), g)
	if err != nil {
		return err
	}
	p.HasDraft = env.Draft != nil
	return w.render(rw, r, http.StatusOK, "versions", p)
}

type versionPage struct {
	Page
	Version environment.Version
	Current bool
	Before  int // the version it followed; 0: none
	// Changed is what is different from that one. What a change needs is of no use any more: it is applied.
	Changed envspec.Diff
	Runner  string // the Test build's
	YAML    string
	Awake   int // Sessions on it
	Asleep  int
	// Moved are its Links whose Shared variable has another value since it was tested.
	Moved     []variable.Moved
	Variables []VariableRow
	Lacking   []LackingValue // when it is the current one
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
	p := versionPage{
		Page: w.repoPage(r, g, "versions", "Version "+strconv.Itoa(number)), Version: v, Before: number - 1, YAML: string(envspec.Format(v.Spec)),
	}
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
		p.Changed = envspec.Compare(before.Spec, v.Spec)
	}
	if p.Moved, err = w.d.Environments.SharedChanged(r.Context(), g, number); err != nil {
		return err
	}
	states, err := w.d.Environments.Variables(r.Context(), g, number)
	if err != nil {
		return err
	}
	p.Variables = rowsOf(v.Spec.Variables, states)
	if p.Current {
		p.Lacking = lackingOf(p.Repo, states)
	}
	on, err := w.d.Sessions.OnVersions(r.Context(), g)
	if err != nil {
		return err
	}
	for _, o := range on {
		if o.Version == number {
			p.Awake, p.Asleep = o.Awake, o.Asleep
		}
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
