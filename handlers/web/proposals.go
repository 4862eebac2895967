package web

import (
	"errors"
	"net/http"
	"net/url"
	"slices"
	"strconv"

	"github.com/claude-hub/claude-hub/app/access"
	"github.com/claude-hub/claude-hub/app/fault"
	"github.com/claude-hub/claude-hub/app/proposal"
	"github.com/claude-hub/claude-hub/app/variable"
	"github.com/claude-hub/claude-hub/envspec"
	"github.com/claude-hub/claude-hub/handlers/request"
)

type proposalsPage struct {
	Page
	Proposals []ProposalRow
	File      string // the path that is read
}

// ProposalRow is a pull request in a list.
type ProposalRow struct {
	proposal.Proposal
	Short string // of its commit
	Says  string
}

func (w *Web) proposals(rw http.ResponseWriter, r *http.Request, g access.Grant) error {
	p := proposalsPage{Page: w.repoPage(r, g, "proposals", "Pull requests of "+g.Repo().Name), File: proposal.Path}
	all, err := w.d.Proposals.List(r.Context(), g)
	if err != nil {
		return err
	}
	for _, one := range all {
		p.Proposals = append(p.Proposals, ProposalRow{one, shortCommit(one.SHA), proposalState(one)})
	}
	return w.render(rw, r, http.StatusOK, "proposals", p)
}

func shortCommit(sha string) string { return sha[:min(12, len(sha))] }

// proposalState is what a list says of one.
func proposalState(p proposal.Proposal) string {
	switch {
	case p.State == proposal.Merged:
		return "merged, not applied"
	case p.File == proposal.Deleted:
		return "deletes the file"
	}
	return string(p.File)
}

type proposalPage struct {
	Page
	Proposal proposal.Detail
	Short    string
	Path     string // of this page
	Diff     envspec.Diff
	Values   []ProposedValue
	Tests    []TestRow
	Start    Form // the form that starts a Test build
	Runners  []RunnerOption
	AnyFit   bool
	Apply    Form
	WebBase  int64 // the revision of the web draft; 0: there is none
	Own      bool  // the web draft has changes of its own
	Adopted  bool  // the web draft says the same
}

// ProposedValue is a Sensitive Variable or a Link that has no value.
type ProposedValue struct {
	Name, Query, Link string
	Lost              bool
}

func proposalPath(g access.Grant, number int) string {
	return "/repos/" + g.Repo().ID.String() + "/proposals/" + strconv.Itoa(number)
}

func (w *Web) proposal(rw http.ResponseWriter, r *http.Request, g access.Grant) error {
	p, err := w.proposalPage(r, g)
	if err != nil {
		return err
	}
	switch q := r.URL.Query(); {
	case q.Has("entered"):
		p.Notice = "The value of " + q.Get("entered") + " is saved with this draft."
	case q.Has("again"):
		p.Notice = "It was looked at again."
	}
	return w.render(rw, r, http.StatusOK, "proposal", p)
}

func (w *Web) proposalPage(r *http.Request, g access.Grant) (proposalPage, error) {
	number, err := request.ProposalNumber(r)
	if err != nil {
		return proposalPage{}, err
	}
	d, err := w.d.Proposals.Get(r.Context(), g, number)
	if err != nil {
		return proposalPage{}, err
	}
	p := proposalPage{
		Page: w.repoPage(r, g, "proposals", "Pull request #"+strconv.Itoa(number)), Proposal: d, Short: shortCommit(d.SHA), Path: proposalPath(g, number),
	}
	p.Typing = true
	runners, err := w.d.Fleet.Runners(r.Context())
	if err != nil {
		return p, err
	}
	p.Tests = testRows(d.Tests, runners, w.d.Now())
	if movingTests(p.Tests) {
		p.Refresh = pollMoving
	}
	if d.Web != nil {
		p.WebBase = d.Web.Revision
		p.Own = d.Current == nil || len(envspec.Explain(d.Current.Spec, d.Web.Spec)) > 0
	}
	if d.Draft == nil {
		return p, nil
	}
	var before envspec.Spec
	if d.Current != nil {
		before = d.Current.Spec
	}
	p.Diff = envspec.Compare(before, d.Draft.Spec)
	p.Adopted = d.Web != nil && len(envspec.Explain(d.Web.Spec, d.Draft.Spec)) == 0
	p.Runners = w.runnerOptions(runners, "", g.Repo(), d.Draft.Spec)
	p.AnyFit = anyFit(p.Runners)
	for _, v := range d.States {
		if v.Status != variable.Set {
			p.Values = append(p.Values, ProposedValue{v.Name, url.PathEscape(v.Name), v.Link, v.Status == variable.Lost})
		}
	}
	return p, nil
}

// refusedOn shows the page again with what was refused of one of its forms.
func (w *Web) refusedOn(rw http.ResponseWriter, r *http.Request, g access.Grant, err error, at func(*proposalPage, *fault.Error)) error {
	var f *fault.Error
	if !errors.As(err, &f) || f.Code == fault.NotFound {
		return err
	}
	p, perr := w.proposalPage(r, g)
	if perr != nil {
		return perr
	}
	if at(&p, f); len(f.Fields) == 0 {
		p.Alert = f.Message // on top: its form may not be there any more
	}
	p.Refresh = 0
	return w.render(rw, r, statusOf(f), "proposal", p)
}

func (w *Web) testProposal(rw http.ResponseWriter, r *http.Request, g access.Grant) error {
	number, err := request.ProposalNumber(r)
	if err == nil {
		err = parseForm(r)
	}
	if err != nil {
		return err
	}
	test, err := w.d.Proposals.Test(r.Context(), g, number, r.PostForm.Get("commit"), r.PostForm.Get("runner"))
	if err != nil {
		return w.refusedOn(rw, r, g, err, func(p *proposalPage, f *fault.Error) { p.Start.fields(f, "runner") })
	}
	return seeOther(rw, r, "/repos/"+g.Repo().ID.String()+"/tests/"+test.ID)
}

func (w *Web) applyProposal(rw http.ResponseWriter, r *http.Request, g access.Grant) error {
	number, err := request.ProposalNumber(r)
	if err == nil {
		err = parseForm(r)
	}
	if err != nil {
		return err
	}
	message := unix(r.PostForm.Get("message"))
	v, err := w.d.Proposals.Apply(r.Context(), g, number, r.PostForm.Get("commit"), message)
	if err != nil {
		return w.refusedOn(rw, r, g, err, func(p *proposalPage, f *fault.Error) {
			p.Apply = Form{Values: map[string]string{"message": message}}
			p.Apply.fields(f, "message")
		})
	}
	return seeOther(rw, r, "/repos/"+g.Repo().ID.String()+"/versions/"+strconv.Itoa(v.Number)+"?applied=1")
}

func (w *Web) adoptProposal(rw http.ResponseWriter, r *http.Request, g access.Grant) error {
	number, err := request.ProposalNumber(r)
	if err == nil {
		err = parseForm(r)
	}
	if err != nil {
		return err
	}
	base, err := strconv.ParseInt(r.PostForm.Get("base"), 10, 64)
	if err != nil {
		return errInput
	}
	draft, err := w.d.Proposals.Adopt(r.Context(), g, number, base)
	if err != nil {
		return w.refusedOn(rw, r, g, err, func(*proposalPage, *fault.Error) {})
	}
	return w.saved(rw, r, g, draft)
}

func (w *Web) lookAtProposal(rw http.ResponseWriter, r *http.Request, g access.Grant) error {
	number, err := request.ProposalNumber(r)
	if err != nil {
		return err
	}
	if err := w.d.Proposals.Again(r.Context(), g, number); err != nil {
		return w.refusedOn(rw, r, g, err, func(*proposalPage, *fault.Error) {})
	}
	return seeOther(rw, r, proposalPath(g, number)+"?again=1")
}

type proposedValuePage struct {
	Page
	Name   string
	Number int
	Form   Form
	Retype bool
	Path   string // of the pull request's page
	Query  string // the name in a path
}

func (w *Web) proposedValuePage(rw http.ResponseWriter, r *http.Request, g access.Grant) error {
	return w.showProposedValue(rw, r, g, http.StatusOK, Form{}, false)
}

func (w *Web) showProposedValue(rw http.ResponseWriter, r *http.Request, g access.Grant, status int, form Form, retype bool) error {
	number, err := request.ProposalNumber(r)
	if err != nil {
		return err
	}
	d, err := w.d.Proposals.Get(r.Context(), g, number)
	if err != nil {
		return err
	}
	name := variableName(r)
	if d.Draft == nil || !slices.ContainsFunc(d.Draft.Spec.Variables, func(v envspec.Variable) bool { return v.Name == name && v.Sensitive }) {
		return noVariable()
	}
	p := proposedValuePage{
		Page: w.repoPage(r, g, "proposals", "Value of "+name), Name: name, Number: number, Form: form, Retype: retype, Path: proposalPath(g, number), Query: url.PathEscape(name),
	}
	if p.Form.Values == nil {
		p.Form.Values = map[string]string{}
	}
	p.Form.Values["revision"] = strconv.FormatInt(d.Draft.Revision, 10)
	return w.render(rw, r, status, "proposed-value", p)
}

func (w *Web) enterProposedValue(rw http.ResponseWriter, r *http.Request, g access.Grant) error {
	number, err := request.ProposalNumber(r)
	if err != nil {
		return err
	}
	in, err := readForm(r)
	if err != nil {
		return err
	}
	revision, err := in.number("revision")
	if err != nil {
		return err
	}
	name := variableName(r)
	value, given, both := in.input("value")
	form := Form{}
	switch {
	case both:
		form.Errors = []FieldError{{"value", "there is a text and a file: give one of them"}}
	case value == "":
		form.Errors = []FieldError{{"value", noSensitive(given)}}
	}
	if form.Failed() {
		return w.showProposedValue(rw, r, g, http.StatusUnprocessableEntity, form, given)
	}
	err = w.d.Proposals.Enter(r.Context(), g, number, revision, variable.Given{name: []byte(value)})
	var f *fault.Error
	if errors.As(err, &f) && f.Code != fault.NotFound {
		form.take(variableFault(f, name, envspec.KindSensitive), "value")
		return w.showProposedValue(rw, r, g, statusOf(f), form, true)
	}
	if err != nil {
		return err
	}
	return seeOther(rw, r, proposalPath(g, number)+"?"+url.Values{"entered": {name}}.Encode()+"#values")
}

type proposePage struct {
	Page
	File      string // where it goes
	YAML      string
	Files     []ProposedFile
	Sensitive []string // whose values stay on the Hub
	NewFile   string   // GitHub's page that makes it; "" for a Repo that isn't there
	EditFile  string
}

// ProposedFile is a script that the draft was read from, with what it says in the draft.
type ProposedFile struct{ Path, Text string }

// propose is the draft as a file to be put into a pull request: the App may not write to the Repo, so a person does.
func (w *Web) propose(rw http.ResponseWriter, r *http.Request, g access.Grant) error {
	p := proposePage{Page: w.repoPage(r, g, "environment", "Propose the draft of "+g.Repo().Name), File: proposal.Path}
	env, err := w.d.Environments.Get(r.Context(), g)
	if err != nil {
		return err
	}
	spec := draftSpec(env)
	p.YAML = string(envspec.Format(spec))
	for _, f := range []ProposedFile{{spec.BootstrapFile, spec.Bootstrap}, {spec.StartFile, spec.Start}} {
		if f.Path != "" {
			p.Files = append(p.Files, f)
		}
	}
	for _, v := range spec.Variables {
		if v.Sensitive {
			p.Sensitive = append(p.Sensitive, v.Name)
		}
	}
	if repo := g.Repo(); !repo.Dev {
		web := trimGit(repo.CloneURL)
		branch := repo.DefaultBranch
		if branch == "" {
			branch = "HEAD"
		}
		p.NewFile = web + "/new/" + url.PathEscape(branch) + "?" + url.Values{"filename": {proposal.Path}}.Encode()
		p.EditFile = web + "/edit/" + url.PathEscape(branch) + "/" + proposal.Path
	}
	return w.render(rw, r, http.StatusOK, "propose", p)
}

// trimGit is a Repo's page, from where git finds it.
func trimGit(clone string) string {
	if len(clone) > 4 && clone[len(clone)-4:] == ".git" {
		return clone[:len(clone)-4]
	}
	return clone
}
