package web

import (
	"errors"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/claude-hub/claude-hub/app/access"
	"github.com/claude-hub/claude-hub/app/environment"
	"github.com/claude-hub/claude-hub/app/fleet"
	"github.com/claude-hub/claude-hub/app/session"
	"github.com/claude-hub/claude-hub/envspec"
)

// pollMoving is how often a page without a stream looks again while something on it is moving, in seconds.
const pollMoving = 5

// reposShown is how many Repos one page lists.
const reposShown = 30

type reposPage struct {
	Page
	Repos      []RepoRow
	Total      int       // that the person can use
	Found      int       // of those, the ones that Query finds
	Query      string    // a part of the name
	Checked    time.Time // when GitHub said which they are; zero: they are not from GitHub
	Previous   string    // the address of the page before; empty: there is none
	Next       string
	Form       Form   // to open another one
	App        bool   // this Hub has a GitHub App
	InstallURL string // where the App is installed on more
	NoRunner   bool   // nothing can run yet: say how to register one
	AnyOnline  bool
}

// RepoRow is one Repo with how far it is.
type RepoRow struct {
	ID, Name string
	Version  int // 0: none applied
	Draft    int64
	Testing  bool // a Test build is running
	Running  int  // Sessions that are awake or on their way
	Asleep   int
	Failed   int
}

// Sessions counts all of them.
func (r RepoRow) Sessions() int { return r.Running + r.Asleep + r.Failed }

// repos lists what the person can use, those with an Environment first.
func (w *Web) repos(rw http.ResponseWriter, r *http.Request, who access.Person) error {
	p := reposPage{Page: w.page(r, "Repos"), Query: strings.TrimSpace(r.URL.Query().Get("q"))}
	p.Typing = true
	list, err := w.d.Gate.List(r.Context(), who)
	if err != nil {
		return err
	}
	p.Total = len(list.Repos)
	if !who.Dev() {
		p.Checked, p.AsOf = list.AsOf, asOf(list.AsOf, list.Stale)
	}
	having, err := w.d.Environments.Having(r.Context(), list)
	if err != nil {
		return err
	}
	found := slices.DeleteFunc(list.Repos, func(repo access.Repo) bool {
		return !strings.Contains(strings.ToLower(repo.Name), strings.ToLower(p.Query))
	})
	slices.SortStableFunc(found, func(a, b access.Repo) int {
		switch {
		case having[a.ID] && !having[b.ID]:
			return -1
		case having[b.ID] && !having[a.ID]:
			return 1
		}
		return 0
	})
	p.Found = len(found)
	from := p.turn(r)
	for _, repo := range found[from:min(from+reposShown, p.Found)] {
		g, err := w.d.Gate.Repo(r.Context(), who, repo.ID)
		if errors.Is(err, access.ErrNotFound) { // since a moment
			continue
		}
		if err != nil {
			return err
		}
		row, err := w.repoRow(r, g)
		if err != nil {
			return err
		}
		p.Repos = append(p.Repos, row)
		if row.Testing {
			p.Refresh = pollMoving
		}
	}
	if p.App = w.hasApp(); p.App {
		p.InstallURL = w.installPath()
	}
	runners, err := w.d.Fleet.Runners(r.Context())
	if err != nil {
		return err
	}
	p.NoRunner = len(runners) == 0
	for _, runner := range runners {
		p.AnyOnline = p.AnyOnline || runner.Online
	}
	return w.render(rw, r, http.StatusOK, "repos", p)
}

// turn says from which Repo on the page lists those that were found, and where the pages beside it are.
func (p *reposPage) turn(r *http.Request) int {
	n, err := strconv.Atoi(r.URL.Query().Get("page"))
	if err != nil || n < 1 || (n-1)*reposShown >= p.Found {
		n = 1
	}
	at := func(n int) string {
		q := url.Values{"page": {strconv.Itoa(n)}}
		if p.Query != "" {
			q.Set("q", p.Query)
		}
		return "/?" + q.Encode()
	}
	if n > 1 {
		p.Previous = at(n - 1)
	}
	if n*reposShown < p.Found {
		p.Next = at(n + 1)
	}
	return (n - 1) * reposShown
}

func (w *Web) repoRow(r *http.Request, g access.Grant) (RepoRow, error) {
	row := RepoRow{ID: g.Repo().ID.String(), Name: g.Repo().Name}
	env, err := w.d.Environments.Get(r.Context(), g)
	if err != nil {
		return row, err
	}
	if env.Current != nil {
		row.Version = env.Current.Number
	}
	if env.Draft != nil && (env.Current == nil || len(envspec.Explain(env.Current.Spec, env.Draft.Spec)) > 0) {
		row.Draft = env.Draft.Revision
	}
	tests, err := w.d.Environments.TestBuilds(r.Context(), g, 1)
	if err != nil {
		return row, err
	}
	row.Testing = len(tests) > 0 && !tests[0].Final()
	sessions, err := w.d.Sessions.List(r.Context(), g)
	if err != nil {
		return row, err
	}
	for _, sn := range sessions {
		switch sn.State {
		case session.Asleep:
			row.Asleep++
		case session.Failed:
			row.Failed++
		case session.Archived:
		default:
			row.Running++
		}
	}
	return row, nil
}

type repoPage struct {
	Page
	Row      RepoRow
	Current  *environment.Version
	Draft    *environment.Draft
	Verdict  environment.Verdict
	Tests    []TestRow
	Sessions []SessionRow
	Lacking  []LackingValue // of the applied version
}

// Next is what to do first on a Repo that isn't ready for Sessions.
func (p repoPage) Next() string {
	switch {
	case p.Current != nil:
		return ""
	case p.Draft == nil:
		return "draft"
	case p.Verdict.OK:
		return "apply"
	}
	return "test"
}

// fewRows is how many rows of each kind the Repo's own page shows.
const fewRows = 5

func (w *Web) repo(rw http.ResponseWriter, r *http.Request, g access.Grant) error {
	p := repoPage{Page: w.repoPage(r, g, "overview", g.Repo().Name)}
	trouble, err := w.d.Setup.Trouble(r.Context(), g.Repo().Installation)
	if err != nil {
		return err
	}
	p.Alert = trouble
	env, err := w.d.Environments.Get(r.Context(), g)
	if err != nil {
		return err
	}
	p.Current, p.Draft = env.Current, env.Draft
	if p.Lacking, err = w.lacking(r.Context(), g, env.Current); err != nil {
		return err
	}
	if p.Verdict, err = w.d.Environments.Check(r.Context(), g); err != nil {
		return err
	}
	if p.Row, err = w.repoRow(r, g); err != nil {
		return err
	}
	runners, err := w.d.Fleet.Runners(r.Context())
	if err != nil {
		return err
	}
	tests, err := w.d.Environments.TestBuilds(r.Context(), g, fewRows)
	if err != nil {
		return err
	}
	p.Tests = testRows(tests, runners, w.d.Now())
	sessions, err := w.d.Sessions.List(r.Context(), g)
	if err != nil {
		return err
	}
	all, _ := apart(sessionRows(sessions, runners, env.Current))
	p.Sessions = all[:min(len(all), fewRows)]
	if movingTests(p.Tests) || movingSessions(all) {
		p.Refresh = pollMoving
	}
	return w.render(rw, r, http.StatusOK, "repo", p)
}

// RunnerOption is one Runner to choose, or why it can't be chosen.
type RunnerOption struct {
	ID, Name, Platform string
	Reason             string // why not; empty: it can
	Chosen             bool
}

// runnerOptions are all Runners, with why those that can't run spec on repo can't.
func (w *Web) runnerOptions(all []fleet.Runner, chosen string, repo access.Repo, spec envspec.Spec) []RunnerOption {
	cant := w.d.Environments.Runners(repo, spec)
	options := make([]RunnerOption, 0, len(all))
	for _, r := range all {
		why := unfit(r)
		if why == "" {
			why = cant(r)
		}
		options = append(options, RunnerOption{ID: r.ID, Name: r.Name, Platform: r.Platform, Reason: why, Chosen: r.ID == chosen})
	}
	return options
}

// unfit says in words why a Runner can't take work now.
func unfit(r fleet.Runner) string {
	switch {
	case r.LastContact.IsZero():
		return "never in contact"
	case !r.Online:
		return "offline since " + r.LastContact.UTC().Format("2006-01-02 15:04 UTC")
	case r.Update != "":
		return "must be updated first"
	}
	return ""
}

func anyFit(options []RunnerOption) bool {
	for _, o := range options {
		if o.Reason == "" {
			return true
		}
	}
	return false
}

func runnerByID(all []fleet.Runner, id string) (fleet.Runner, bool) {
	for _, r := range all {
		if r.ID == id {
			return r, true
		}
	}
	return fleet.Runner{}, false
}

func runnerName(all []fleet.Runner, id string) string {
	if r, ok := runnerByID(all, id); ok {
		return r.Name
	}
	return "(revoked)"
}
