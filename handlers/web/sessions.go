package web

import (
	"context"
	"errors"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"

	"github.com/gorilla/mux"

	"github.com/claude-hub/claude-hub/app/access"
	"github.com/claude-hub/claude-hub/app/environment"
	"github.com/claude-hub/claude-hub/app/fault"
	"github.com/claude-hub/claude-hub/app/fleet"
	"github.com/claude-hub/claude-hub/app/session"
	"github.com/claude-hub/claude-hub/envspec"
	"github.com/claude-hub/claude-hub/handlers/request"
	"github.com/claude-hub/claude-hub/runner/wire"
)

// SessionRow is one Session in a list.
type SessionRow struct {
	ID, State, Runner, WorkBranch string
	Unreachable                   bool
	Moving                        bool
	Version                       int
	Outdated                      bool // a newer version is applied
	By                            string
	At                            time.Time
}

func sessionRows(all []session.Session, runners []fleet.Runner, current *environment.Version) []SessionRow {
	rows := make([]SessionRow, 0, len(all))
	for _, sn := range all {
		rows = append(rows, SessionRow{
			ID: sn.ID, State: sn.State, Runner: runnerName(runners, sn.Runner), WorkBranch: sn.WorkBranch, Unreachable: sn.Unreachable, Moving: moving(sn.State),
			Version: sn.Version, Outdated: current != nil && current.Number > sn.Version, By: sn.CreatedBy, At: sn.CreatedAt,
		})
	}
	return rows
}

// moving tells that a state leads to another by itself.
func moving(state string) bool {
	switch state {
	case session.Starting, session.Stopping, session.Waking, session.Archiving, session.Deleting:
		return true
	}
	return false
}

// apart takes archived Sessions out of a list.
func apart(all []SessionRow) (rows, archived []SessionRow) {
	for _, r := range all {
		if r.State == session.Archived {
			archived = append(archived, r)
		} else {
			rows = append(rows, r)
		}
	}
	return rows, archived
}

func movingSessions(rows []SessionRow) bool {
	for _, r := range rows {
		if r.Moving {
			return true
		}
	}
	return false
}

type sessionsPage struct {
	Page
	Form     Form
	Runners  []RunnerOption
	AnyFit   bool
	Current  *environment.Version
	Sessions []SessionRow
	Archived []SessionRow
	Lacking  []LackingValue // of the applied version
}

func (w *Web) sessions(rw http.ResponseWriter, r *http.Request, g access.Grant) error {
	return w.showSessions(rw, r, g, http.StatusOK, Form{})
}

func (w *Web) showSessions(rw http.ResponseWriter, r *http.Request, g access.Grant, status int, form Form) error {
	p := sessionsPage{Page: w.repoPage(r, g, "sessions", "Sessions of "+g.Repo().Name), Form: form}
	env, err := w.d.Environments.Get(r.Context(), g)
	if err != nil {
		return err
	}
	p.Current, p.Typing = env.Current, true
	if p.Lacking, err = w.lacking(r.Context(), g, env.Current); err != nil {
		return err
	}
	runners, err := w.d.Fleet.Runners(r.Context())
	if err != nil {
		return err
	}
	var recipe envspec.Spec
	if env.Current != nil {
		recipe = env.Current.Spec
	}
	p.Runners = w.runnerOptions(runners, form.Value("runner"), g.Repo(), recipe)
	p.AnyFit = anyFit(p.Runners)
	all, err := w.d.Sessions.List(r.Context(), g)
	if err != nil {
		return err
	}
	p.Sessions, p.Archived = apart(sessionRows(all, runners, env.Current))
	if movingSessions(p.Sessions) && !form.Failed() {
		p.Refresh = pollMoving
	}
	return w.render(rw, r, status, "sessions", p)
}

func (w *Web) startSession(rw http.ResponseWriter, r *http.Request, g access.Grant) error {
	if err := parseForm(r); err != nil {
		return err
	}
	form := Form{Values: map[string]string{}}
	for _, field := range []string{"runner", "branch", "work_branch"} {
		form.Values[field] = strings.TrimSpace(r.PostForm.Get(field))
	}
	sn, err := w.d.Sessions.Start(r.Context(), g, session.StartInput{
		Runner: form.Value("runner"), Branch: form.Value("branch"), WorkBranch: form.Value("work_branch"),
	})
	var f *fault.Error
	if errors.As(err, &f) {
		form.take(f, "runner", "branch", "work_branch")
		return w.showSessions(rw, r, g, request.Status(f.Code), form)
	}
	if err != nil {
		return err
	}
	return seeOther(rw, r, sessionPath(g, sn.ID))
}

func sessionPath(g access.Grant, id string) string {
	return "/repos/" + g.Repo().ID.String() + "/sessions/" + id
}

type sessionPage struct {
	Page
	Session     session.Session
	Meaning     string // of its state, and what to do
	Runner      string
	Next        int  // the version it will boot from next, if that is another; 0: the same
	Fresh       bool // it will with a fresh root filesystem
	Phases      []Phase
	Progress    *wire.Progress
	Failure     *Failure
	StartFailed *Failure
	Boot        string // the newest one's stages
	Unsaved     string // what exists in the Workspace only; empty: there is no Workspace
	Log         Tail
	Ports       bool      // can be opened in the browser
	Opened      []PortRow // of them, lately
	Shell       string    // what to type for a shell
	Terminals   []TerminalRow
	Runs        []RunRow
	Form        Form           // for another one
	Lacking     []LackingValue // of the version it boots from next
}

// Can tells which of sleep, wake, restart, retry, grow, archive, restore and delete the Session takes now.
func (p sessionPage) Can(what string) bool {
	switch what {
	case "sleep":
		return p.Session.State == session.Running || p.Session.State == session.Starting || p.Session.State == session.Waking || p.Session.Restarting
	case "wake":
		return p.Session.State == session.Asleep || p.Session.State == session.Stopping && !p.Session.Restarting
	case "restart":
		return p.Session.State == session.Running
	case "retry":
		return p.Session.State == session.Failed
	case "grow":
		return p.Session.State == session.Asleep || p.Session.State == session.Failed
	case "archive":
		return archivable(p.Session)
	case "restore":
		return p.Session.State == session.Archived || p.Session.State == session.Archiving
	}
	return p.Session.State != session.Deleting
}

// newer is the number of the applied version if sn stands on an older one, else 0; fresh: the root filesystem doesn't outlive the
// move, since it is of another build.
func newer(env environment.Environment, sn session.Session) (next int, fresh bool) {
	if env.Current != nil && env.Current.Number > sn.Version {
		return env.Current.Number, string(env.Current.BuildKey) != sn.BuildKey
	}
	return 0, false
}

// Announce is the state in one sentence.
func (p sessionPage) Announce() string { return "The Session is " + p.Session.State + "." }

func meaning(sn session.Session, runner string) string {
	switch sn.State {
	case session.Starting:
		return "Runner " + runner + " is making its Sandbox."
	case session.Running:
		if sn.Detail.StartFailed != nil {
			return "Its Sandbox is up, but the start script failed: use it to find out why."
		}
		return "Its Sandbox is up."
	case session.Stopping:
		if sn.Restarting {
			return "Its Sandbox is being stopped, and boots again right after. Workspace and disks stay."
		}
		return "Its Sandbox is being stopped. Workspace and disks stay."
	case session.Asleep:
		return "It has no Sandbox. Workspace and disks are kept on Runner " + runner + "."
	case session.Waking:
		return "Runner " + runner + " is booting its Sandbox again."
	case session.Failed:
		if sn.Detail.Workspace {
			return "Its Sandbox did not come up. The Workspace is kept. Look at the log, then try again."
		}
		return "Its Sandbox did not come up. Look at the log, then try again."
	case session.Archiving:
		return "It is being put away: its Sandbox is stopped and given up" + freed(sn) + ". The Workspace stays."
	case session.Archived:
		return "It is put away on Runner " + runner + ": the Workspace is kept, its Sandbox was given up" + freed(sn) + ". Nothing wakes it until it is restored."
	case session.Deleting:
		return "Its Workspace and disks are being deleted."
	}
	return ""
}

func (w *Web) session(rw http.ResponseWriter, r *http.Request, g access.Grant) error {
	return w.showSession(rw, r, g, http.StatusOK, Form{})
}

// showSession has what is wrong with a form of the page: its run's, or in general.
func (w *Web) showSession(rw http.ResponseWriter, r *http.Request, g access.Grant, status int, form Form) error {
	sn, err := w.d.Sessions.Get(r.Context(), g, mux.Vars(r)["session"])
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
	name := runnerName(runners, sn.Runner)
	p := sessionPage{
		Page: w.repoPage(r, g, "sessions", "Session "+short(sn.ID)), Session: sn, Runner: name, Meaning: meaning(sn, name),
		Phases: phases(sn.Detail.Phases, w.d.Now()), Progress: sn.Detail.Progress, Failure: failure(sn.Detail.Failure), StartFailed: failure(sn.Detail.StartFailed),
		Shell: "claude-hub session shell " + sn.ID, Ports: w.d.Ports.On(),
	}
	p.Alert, p.Form = form.General, form
	if p.StartFailed != nil {
		p.StartFailed.Heading = "The start script failed"
	}
	terminals, err := w.d.Sessions.Terminals(r.Context(), g, sn.ID)
	if err != nil {
		return err
	}
	if p.Opened, err = w.portRows(r.Context(), g, sn.ID); err != nil {
		return err
	}
	p.Terminals = terminalRows(terminals, sessionPath(g, sn.ID))
	runs, err := w.d.Sessions.Runs(r.Context(), g, sn.ID)
	if err != nil {
		return err
	}
	p.Runs = runRows(runs, sessionPath(g, sn.ID))
	if p.Lacking, err = w.lacking(r.Context(), g, env.Current); err != nil {
		return err
	}
	p.Next, p.Fresh = newer(env, sn)
	if sn.Detail.Workspace {
		p.Unsaved = sn.UnsavedSentence()
	}
	if len(sn.Detail.Stages) > 0 {
		p.Boot = wire.BootText(sn.Detail.Stages)
	}
	if moving(sn.State) && !form.Failed() {
		p.Refresh = pollMoving
	}
	if p.Log, err = tail(r.Context(), w.sessionLogReader(g, sn.ID), tailSize); err != nil {
		return err
	}
	p.Log.Events, p.Log.Raw = sessionPath(g, sn.ID)+"/events", sessionPath(g, sn.ID)+"/log"
	return w.render(rw, r, status, "session", p)
}

func (w *Web) sessionLogReader(g access.Grant, id string) readLog {
	return func(ctx context.Context, from int64, max int) (fleet.LogPart, error) {
		return w.d.Sessions.Log(ctx, g, id, from, max)
	}
}

func (w *Web) changeSession(change func(context.Context, access.Grant, string) error) func(http.ResponseWriter, *http.Request, access.Grant) error {
	return func(rw http.ResponseWriter, r *http.Request, g access.Grant) error {
		id := mux.Vars(r)["session"]
		err := change(r.Context(), g, id)
		var f *fault.Error
		if errors.As(err, &f) && f.Code != fault.NotFound {
			return w.showSession(rw, r, g, request.Status(f.Code), Form{General: f.Message})
		}
		if err != nil {
			return err
		}
		return seeOther(rw, r, sessionPath(g, id))
	}
}

// countTime is how long the delete page waits for what it asked a Runner to count.
const countTime = 30 * time.Second

// countUnsaved has a running Session count anew what would be lost. It leads to the delete page, or with back to the Session's.
func (w *Web) countUnsaved(rw http.ResponseWriter, r *http.Request, g access.Grant) error {
	id := mux.Vars(r)["session"]
	sn, err := w.d.Sessions.Get(r.Context(), g, id)
	if err != nil {
		return err
	}
	if err := parseForm(r); err != nil {
		return err
	}
	q := url.Values{}
	if sn.State == session.Running && !sn.Unreachable {
		if err := w.d.Sessions.CountUnsaved(r.Context(), g, id); err != nil {
			return err
		}
		// Told by the count's own time, which is on the Runner's clock: any other than the one before is news.
		q.Set("before", strconv.FormatInt(countedAt(sn), 10))
		q.Set("asked", strconv.FormatInt(w.d.Now().UnixMilli(), 10))
	}
	if r.PostForm.Get("back") != "" {
		return seeOther(rw, r, sessionPath(g, id))
	}
	return seeOther(rw, r, strings.TrimSuffix(sessionPath(g, id)+"/delete?"+q.Encode(), "?"))
}

func countedAt(sn session.Session) int64 {
	if sn.Detail.Unsaved == nil {
		return 0
	}
	return sn.Detail.Unsaved.At
}

type deletePage struct {
	Page
	Session  session.Session
	Runner   string
	Form     Form
	Counting bool
	Unsaved  string
	Loses    bool // there is something, or it is unknown
	Revoked  bool // its Runner was: nothing on that host hears of this
}

func (w *Web) deletePage(rw http.ResponseWriter, r *http.Request, g access.Grant) error {
	return w.showDelete(rw, r, g, http.StatusOK, Form{})
}

func (w *Web) showDelete(rw http.ResponseWriter, r *http.Request, g access.Grant, status int, form Form) error {
	sn, err := w.d.Sessions.Get(r.Context(), g, mux.Vars(r)["session"])
	if err != nil {
		return err
	}
	if sn.State == session.Deleting {
		return seeOther(rw, r, sessionPath(g, sn.ID))
	}
	runners, err := w.d.Fleet.Runners(r.Context())
	if err != nil {
		return err
	}
	u := sn.Detail.Unsaved
	p := deletePage{
		Page: w.repoPage(r, g, "sessions", "Delete Session "+short(sn.ID)), Session: sn, Runner: runnerName(runners, sn.Runner), Form: form,
		Unsaved: sn.UnsavedSentence(), Loses: u == nil || u.Unknown != "" || u.Files > 0 || u.Commits > 0,
	}
	_, known := runnerByID(runners, sn.Runner)
	p.Revoked = !known
	before, err1 := strconv.ParseInt(r.URL.Query().Get("before"), 10, 64)
	asked, err2 := strconv.ParseInt(r.URL.Query().Get("asked"), 10, 64)
	if err1 == nil && err2 == nil && !form.Failed() && sn.State == session.Running && countedAt(sn) == before {
		if since := w.d.Now().Sub(time.UnixMilli(asked)); since >= 0 && since < countTime {
			p.Counting, p.Refresh = true, 2
		}
	}
	return w.render(rw, r, status, "delete", p)
}

func (w *Web) deleteSession(rw http.ResponseWriter, r *http.Request, g access.Grant) error {
	if err := parseForm(r); err != nil {
		return err
	}
	id, confirm := mux.Vars(r)["session"], strings.TrimSpace(r.PostForm.Get("confirm"))
	err := w.d.Sessions.Delete(r.Context(), g, id, confirm)
	var f *fault.Error
	if errors.As(err, &f) && f.Code != fault.NotFound {
		form := Form{Values: map[string]string{"confirm": confirm}}
		if f.Fields["confirm"] != "" { // the rest of the sentence stands on the page
			form.Errors = []FieldError{{"confirm", "This is not the Session's id. Type it as it stands above the field."}}
		} else {
			form.take(f, "confirm")
		}
		return w.showDelete(rw, r, g, request.Status(f.Code), form)
	}
	if err != nil {
		return err
	}
	return seeOther(rw, r, "/repos/"+g.Repo().ID.String()+"/sessions")
}

func (w *Web) sessionEvents(rw http.ResponseWriter, r *http.Request, g access.Grant) error {
	id := mux.Vars(r)["session"]
	sn, err := w.d.Sessions.Get(r.Context(), g, id)
	if err != nil {
		return err
	}
	l := w.live(g)
	l.log, l.state, l.read = w.d.Sessions.LogTopic(sn), session.TopicOf(g.Repo()), w.sessionLogReader(g, id)
	l.over = func(context.Context) (bool, error) { return false, nil } // it may wake again; a deleted one is not found
	return l.serve(rw, r)
}

func (w *Web) sessionLog(rw http.ResponseWriter, r *http.Request, g access.Grant) error {
	id := mux.Vars(r)["session"]
	if _, err := w.d.Sessions.Get(r.Context(), g, id); err != nil {
		return err
	}
	return download(rw, r, "session-"+short(id), w.sessionLogReader(g, id))
}
