package web

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/gorilla/mux"

	"github.com/claude-hub/claude-hub/app/access"
	"github.com/claude-hub/claude-hub/app/environment"
	"github.com/claude-hub/claude-hub/app/fault"
	"github.com/claude-hub/claude-hub/app/fleet"
	"github.com/claude-hub/claude-hub/handlers/request"
	"github.com/claude-hub/claude-hub/runner/wire"
)

// listLimit bounds lists whose rows are never deleted.
const listLimit = 200

// TestRow is one Test build in a list.
type TestRow struct {
	ID, State, Runner string
	Revision          int64
	By                string
	At                time.Time
	Took              string
	Final             bool
	Phase             string // where it is, or where it failed
	PullRequest       int    // whose draft it is of; 0: the web's
}

func testRows(tests []environment.TestBuild, runners []fleet.Runner, now time.Time) []TestRow {
	rows := make([]TestRow, 0, len(tests))
	for _, t := range tests {
		end := t.FinishedAt
		if !t.Final() {
			end = now
		}
		row := TestRow{
			ID: t.ID, State: t.State, Runner: runnerName(runners, t.Runner), Revision: t.Revision, By: t.CreatedBy, At: t.CreatedAt,
			Took: took(end.Sub(t.CreatedAt)), Final: t.Final(), PullRequest: t.PullRequest,
		}
		if f := t.Detail.Failure; f != nil {
			row.Phase = wire.PhaseTitle(f.Phase)
		} else if n := len(t.Detail.Phases); n > 0 && !t.Final() {
			row.Phase = wire.PhaseTitle(t.Detail.Phases[n-1].Name)
		}
		rows = append(rows, row)
	}
	return rows
}

func movingTests(rows []TestRow) bool {
	for _, r := range rows {
		if !r.Final {
			return true
		}
	}
	return false
}

// TestStart is the form that starts a Test build.
type TestStart struct {
	Repo     *RepoNav
	Form     Form
	Revision int64
	Runners  []RunnerOption
	AnyFit   bool
	// Draft is nil where nothing is saved yet.
	HasDraft bool
}

func (w *Web) testStart(ctx context.Context, nav *RepoNav, repo access.Repo, env environment.Environment, form Form) (TestStart, error) {
	runners, err := w.d.Fleet.Runners(ctx)
	if err != nil {
		return TestStart{}, err
	}
	s := TestStart{Repo: nav, Form: form, Runners: w.runnerOptions(runners, form.Value("runner"), repo, draftSpec(env)), HasDraft: env.Draft != nil}
	s.AnyFit = anyFit(s.Runners)
	if env.Draft != nil {
		s.Revision = env.Draft.Revision
	}
	return s, nil
}

type testsPage struct {
	Page
	Start TestStart
	Tests []TestRow
}

func (w *Web) tests(rw http.ResponseWriter, r *http.Request, g access.Grant) error {
	return w.showTests(rw, r, g, http.StatusOK, Form{})
}

func (w *Web) showTests(rw http.ResponseWriter, r *http.Request, g access.Grant, status int, form Form) error {
	p := testsPage{Page: w.repoPage(r, g, "tests", "Test builds of "+g.Repo().Name)}
	env, err := w.d.Environments.Get(r.Context(), g)
	if err != nil {
		return err
	}
	if p.Start, err = w.testStart(r.Context(), p.Repo, g.Repo(), env, form); err != nil {
		return err
	}
	tests, err := w.d.Environments.TestBuilds(r.Context(), g, listLimit)
	if err != nil {
		return err
	}
	runners, err := w.d.Fleet.Runners(r.Context())
	if err != nil {
		return err
	}
	p.Tests = testRows(tests, runners, w.d.Now())
	if movingTests(p.Tests) && !form.Failed() {
		p.Refresh = pollMoving
	}
	return w.render(rw, r, status, "tests", p)
}

func (w *Web) startTest(rw http.ResponseWriter, r *http.Request, g access.Grant) error {
	if err := parseForm(r); err != nil {
		return err
	}
	form := Form{Values: map[string]string{"runner": r.PostForm.Get("runner")}}
	revision, err := strconv.ParseInt(r.PostForm.Get("revision"), 10, 64)
	if err != nil {
		return errInput
	}
	if form.Value("runner") == "" {
		form.Errors = []FieldError{{"runner", "Choose the Runner it should run on."}}
		return w.showTests(rw, r, g, http.StatusUnprocessableEntity, form)
	}
	test, err := w.d.Environments.Test(r.Context(), g, revision, form.Value("runner"))
	var f *fault.Error
	if errors.As(err, &f) {
		form.take(f, "runner")
		return w.showTests(rw, r, g, request.Status(f.Code), form)
	}
	if err != nil {
		return err
	}
	return seeOther(rw, r, "/repos/"+g.Repo().ID.String()+"/tests/"+test.ID)
}

// Phase is one step as a page shows it.
type Phase struct {
	Title, State, Took, Note string
	Exit                     string // "exit code 1"
}

// phases shows how far something is. now is for a phase that is running: its start is on the Runner's clock.
func phases(list []wire.Phase, now time.Time) []Phase {
	out := make([]Phase, 0, len(list))
	for _, p := range list {
		v := Phase{Title: wire.PhaseTitle(p.Name), State: p.State, Note: p.Note}
		switch {
		case p.State == wire.PhaseSkipped:
		case p.Ended != 0:
			v.Took = took(time.Duration(p.Ended-p.Started) * time.Millisecond)
		case p.Started != 0:
			v.Took = took(max(0, now.Sub(time.UnixMilli(p.Started))))
		}
		if p.ExitCode != nil {
			v.Exit = fmt.Sprintf("exit code %d", *p.ExitCode)
		}
		out = append(out, v)
	}
	return out
}

// Failure is why something ended badly, as a page shows it.
type Failure struct {
	Heading, Message, Exit, LastLines string
}

func failure(f *wire.Failure) *Failure {
	if f == nil {
		return nil
	}
	v := &Failure{Heading: "Failed", Message: f.Message}
	if f.Phase != "" {
		v.Heading = wire.PhaseTitle(f.Phase) + " failed"
	}
	switch f.Code {
	case "cancelled":
		v.Heading = "Cancelled"
	case "lost":
		v.Heading = "Lost"
	case "timeout":
		v.Heading = "Out of time"
		if f.Phase != "" {
			v.Heading += " in: " + wire.PhaseTitle(f.Phase)
		}
	}
	switch {
	case f.Signal != "":
		v.Exit = "ended by " + f.Signal
	case f.ExitCode != nil:
		v.Exit = fmt.Sprintf("exit code %d", *f.ExitCode)
	}
	var lines []string
	for _, line := range strings.Split(strings.TrimRight(f.LastLines, "\n"), "\n") {
		lines = append(lines, clean([]byte(line)))
	}
	v.LastLines = strings.Join(lines, "\n")
	return v
}

type testPage struct {
	Page
	Test       environment.TestBuild
	Runner     string
	Waiting    string // why it has not begun
	Cancelling bool
	Took       string
	Phases     []Phase
	Progress   *wire.Progress
	Failure    *Failure
	Log        Tail
	Applied    int // the version that stands on it; 0: none
	// Next is what a passed one leads to: apply, or a draft that moved on.
	Current bool // it is of exactly what the draft says now
}

// Announce is the state in one sentence, for those who don't see the page change.
func (p testPage) Announce() string {
	if p.Failure != nil {
		return "Test build " + p.Test.State + ": " + p.Failure.Heading
	}
	if p.Test.State == environment.Running && len(p.Phases) > 0 {
		return "Test build running: " + p.Phases[len(p.Phases)-1].Title
	}
	return "Test build " + p.Test.State
}

func (w *Web) test(rw http.ResponseWriter, r *http.Request, g access.Grant) error {
	return w.showTest(rw, r, g, http.StatusOK, "")
}

func (w *Web) showTest(rw http.ResponseWriter, r *http.Request, g access.Grant, status int, alert string) error {
	test, err := w.d.Environments.TestBuild(r.Context(), g, mux.Vars(r)["test"])
	if err != nil {
		return err
	}
	runners, err := w.d.Fleet.Runners(r.Context())
	if err != nil {
		return err
	}
	env, err := w.d.Environments.Get(r.Context(), g)
	if err != nil {
		return err
	}
	now := w.d.Now()
	p := testPage{
		Page: w.repoPage(r, g, "tests", "Test build "+short(test.ID)), Test: test, Runner: runnerName(runners, test.Runner),
		Cancelling: test.CancelledBy != "" && !test.Final(), Phases: phases(test.Detail.Phases, now), Failure: failure(test.Detail.Failure),
		Current: env.Draft != nil && env.Draft.TestKey == test.TestKey,
	}
	p.Alert = alert
	end := test.FinishedAt
	if !test.Final() {
		end, p.Progress = now, test.Detail.Progress
		if alert == "" { // the answer to a POST has no address of its own to be fetched from
			p.Refresh = pollMoving
		}
	}
	p.Took = took(end.Sub(test.CreatedAt))
	if test.State == environment.Queued {
		p.Waiting = "Waiting for Runner " + p.Runner + " to begin."
		if runner, ok := runnerByID(runners, test.Runner); !ok {
			p.Waiting = "Its Runner was revoked. Cancel this Test build and start it on another one."
		} else if why := unfit(runner); why != "" {
			p.Waiting = "Runner " + p.Runner + " can't begin: " + why + ". Cancel this Test build to start it on another one, or wait until the Runner is back."
		}
	}
	if env.Current != nil && env.Current.TestBuild == test.ID {
		p.Applied = env.Current.Number
	}
	if p.Log, err = tail(r.Context(), w.testLogReader(g, test.ID), tailSize); err != nil {
		return err
	}
	p.Log.Events, p.Log.Raw = "/repos/"+p.Repo.ID+"/tests/"+test.ID+"/events", "/repos/"+p.Repo.ID+"/tests/"+test.ID+"/log"
	return w.render(rw, r, status, "test", p)
}

func (w *Web) testLogReader(g access.Grant, id string) readLog {
	return func(ctx context.Context, from int64, max int) (fleet.LogPart, error) {
		return w.d.Environments.Follow(ctx, g, id, from, max)
	}
}

func (w *Web) cancelTest(rw http.ResponseWriter, r *http.Request, g access.Grant) error {
	id := mux.Vars(r)["test"]
	err := w.d.Environments.Cancel(r.Context(), g, id)
	var f *fault.Error
	if errors.As(err, &f) && f.Code != fault.NotFound {
		return w.showTest(rw, r, g, request.Status(f.Code), f.Message)
	}
	if err != nil {
		return err
	}
	return seeOther(rw, r, "/repos/"+g.Repo().ID.String()+"/tests/"+id)
}

func (w *Web) testEvents(rw http.ResponseWriter, r *http.Request, g access.Grant) error {
	id := mux.Vars(r)["test"]
	test, err := w.d.Environments.TestBuild(r.Context(), g, id)
	if err != nil {
		return err
	}
	l := w.live(g)
	l.log, l.state, l.read = w.d.Environments.LogTopic(test), environment.TopicOf(g.Repo()), w.testLogReader(g, id)
	l.over = func(ctx context.Context) (bool, error) {
		test, err := w.d.Environments.TestBuild(ctx, g, id)
		return test.Final(), err
	}
	return l.serve(rw, r)
}

func (w *Web) testLog(rw http.ResponseWriter, r *http.Request, g access.Grant) error {
	id := mux.Vars(r)["test"]
	if _, err := w.d.Environments.TestBuild(r.Context(), g, id); err != nil {
		return err
	}
	return download(rw, r, "test-build-"+short(id), w.testLogReader(g, id))
}
