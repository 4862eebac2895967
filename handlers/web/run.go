package web

import (
	"context"
	"errors"
	"net/http"
	"strings"
	"time"

	"github.com/gorilla/mux"

	"github.com/claude-hub/claude-hub/app/access"
	"github.com/claude-hub/claude-hub/app/fault"
	"github.com/claude-hub/claude-hub/app/fleet"
	"github.com/claude-hub/claude-hub/app/session"
	"github.com/claude-hub/claude-hub/handlers/request"
)

// RunRow is one headless run in a Session's list.
type RunRow struct {
	Path, State, Command, By string
	At                       time.Time
	How                      string // it ended, in words; empty: it has not
}

func runRows(all []session.Run, path string) []RunRow {
	rows := make([]RunRow, 0, len(all))
	for _, r := range all {
		rows = append(rows, RunRow{Path: path + "/runs/" + r.ID, State: r.State(), Command: clean([]byte(r.Command)), By: r.CreatedBy, At: r.CreatedAt,
			How: howEnded(r.EndedAt.IsZero(), r.Exit)})
	}
	return rows
}

// startRun has a shell run what was typed. Other than the API's it wakes no Session: a wake may have something to ask first.
func (w *Web) startRun(rw http.ResponseWriter, r *http.Request, g access.Grant) error {
	if err := parseForm(r); err != nil {
		return err
	}
	id := mux.Vars(r)["session"]
	form := Form{Values: map[string]string{"command": strings.TrimSpace(unix(r.PostForm.Get("command"))), "time_limit": strings.TrimSpace(r.PostForm.Get("time_limit"))}}
	refuse := func(status int, field, message string) error {
		if field == "" {
			form.General = message
		} else {
			form.Errors = []FieldError{{field, message}}
		}
		return w.showSession(rw, r, g, status, form)
	}
	in := session.RunInput{Argv: []string{"sh", "-c", form.Value("command")}}
	if form.Value("command") == "" {
		return refuse(http.StatusUnprocessableEntity, "command", "Say what to run.")
	}
	if text := form.Value("time_limit"); text != "" {
		limit, err := time.ParseDuration(text)
		if err != nil || limit <= 0 {
			return refuse(http.StatusUnprocessableEntity, "time_limit", "A time limit is a number with a unit, such as 90m or 2h.")
		}
		in.Limit = limit
	}
	sn, err := w.d.Sessions.Get(r.Context(), g, id)
	if err != nil {
		return err
	}
	if sn.State != session.Running {
		return refuse(http.StatusConflict, "", "This Session is "+sn.State+". It runs commands when it is up.")
	}
	run, err := w.d.Sessions.StartRun(r.Context(), g, id, in)
	var f *fault.Error
	if errors.As(err, &f) && f.Code != fault.NotFound {
		for of, field := range map[string]string{"argv": "command", "time_limit_ms": "time_limit"} {
			if message, ok := f.Fields[of]; ok {
				return refuse(request.Status(f.Code), field, message)
			}
		}
		return refuse(request.Status(f.Code), "", f.Message)
	}
	if err != nil {
		return err
	}
	return seeOther(rw, r, sessionPath(g, id)+"/runs/"+run.ID)
}

type runPage struct {
	Page
	Run     session.Run
	Session string // its id
	Path    string
	Meaning string
	Took    string
	Log     Tail
}

// Announce is the state in one sentence.
func (p runPage) Announce() string { return "The run is " + p.Run.State() + "." }

func (w *Web) run(rw http.ResponseWriter, r *http.Request, g access.Grant) error {
	return w.showRun(rw, r, g, http.StatusOK, "")
}

func (w *Web) showRun(rw http.ResponseWriter, r *http.Request, g access.Grant, status int, alert string) error {
	id, name := mux.Vars(r)["session"], mux.Vars(r)["run"]
	run, err := w.d.Sessions.Run(r.Context(), g, id, name)
	if err != nil {
		return err
	}
	run.Command = clean([]byte(run.Command))
	path := sessionPath(g, id) + "/runs/" + run.ID
	p := runPage{Page: w.repoPage(r, g, "sessions", "Run in Session "+short(id)), Run: run, Session: id, Path: path, Meaning: sentenceCase(howEnded(run.EndedAt.IsZero(), run.Exit))}
	p.Alert = alert
	end := run.EndedAt
	switch run.State() {
	case session.RunWaiting:
		p.Meaning = "It begins when the Session is up and its start script has ended."
	case session.RunRunning:
		end = w.d.Now()
	}
	if !run.StartedAt.IsZero() {
		p.Took = took(max(0, end.Sub(run.StartedAt)))
	}
	if run.EndedAt.IsZero() && alert == "" {
		p.Refresh = pollMoving
	}
	if p.Log, err = tail(r.Context(), w.runLogReader(g, id, name), tailSize); err != nil {
		return err
	}
	p.Log.Events, p.Log.Raw = path+"/events", path+"/log"
	return w.render(rw, r, status, "run", p)
}

func (w *Web) runLogReader(g access.Grant, id, run string) readLog {
	return func(ctx context.Context, from int64, max int) (fleet.LogPart, error) {
		return w.d.Sessions.RunLog(ctx, g, id, run, from, max)
	}
}

func (w *Web) stopRun(rw http.ResponseWriter, r *http.Request, g access.Grant) error {
	id, name := mux.Vars(r)["session"], mux.Vars(r)["run"]
	err := w.d.Sessions.StopRun(r.Context(), g, id, name)
	var f *fault.Error
	if errors.As(err, &f) && f.Code != fault.NotFound {
		return w.showRun(rw, r, g, request.Status(f.Code), f.Message)
	}
	if err != nil {
		return err
	}
	return seeOther(rw, r, sessionPath(g, id)+"/runs/"+name)
}

func (w *Web) runEvents(rw http.ResponseWriter, r *http.Request, g access.Grant) error {
	id, name := mux.Vars(r)["session"], mux.Vars(r)["run"]
	run, err := w.d.Sessions.Run(r.Context(), g, id, name)
	if err != nil {
		return err
	}
	l := w.live(g)
	l.log, l.state, l.read = w.d.Sessions.RunTopic(run), session.TopicOf(g.Repo()), w.runLogReader(g, id, name)
	l.over = func(ctx context.Context) (bool, error) {
		run, err := w.d.Sessions.Run(ctx, g, id, name)
		return !run.EndedAt.IsZero(), err
	}
	return l.serve(rw, r)
}

func (w *Web) runLog(rw http.ResponseWriter, r *http.Request, g access.Grant) error {
	id, name := mux.Vars(r)["session"], mux.Vars(r)["run"]
	run, err := w.d.Sessions.Run(r.Context(), g, id, name)
	if err != nil {
		return err
	}
	return download(rw, r, "run-"+short(run.ID), w.runLogReader(g, id, name))
}
