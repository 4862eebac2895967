package api

import (
	"context"
	"net/http"
	"time"

	"github.com/gorilla/mux"

	"github.com/claude-hub/claude-hub/app/access"
	"github.com/claude-hub/claude-hub/app/fleet"
	"github.com/claude-hub/claude-hub/app/session"
	"github.com/claude-hub/claude-hub/handlers/api/schema"
)

func runOf(r session.Run) schema.Run {
	out := schema.Run{ID: r.ID, State: r.State(), Command: r.Command, CreatedAt: r.CreatedAt.UTC(), CreatedBy: r.CreatedBy, Stopping: r.Stopping}
	if !r.StartedAt.IsZero() {
		at := r.StartedAt.UTC()
		out.StartedAt = &at
	}
	if !r.EndedAt.IsZero() {
		at := r.EndedAt.UTC()
		out.EndedAt, out.Exit, out.Stopping = &at, &r.Exit, false
	}
	return out
}

func (a *api) runs(w http.ResponseWriter, r *http.Request, g access.Grant) error {
	return a.answerChanged(w, r, session.TopicOf(g.Repo()), func(ctx context.Context) (any, error) {
		all, err := a.Sessions.Runs(ctx, g, mux.Vars(r)["session"])
		if err != nil {
			return nil, err
		}
		list := make([]schema.Run, 0, len(all))
		for _, run := range all {
			list = append(list, runOf(run))
		}
		return list, nil
	})
}

func (a *api) startRun(w http.ResponseWriter, r *http.Request, g access.Grant) error {
	var in schema.StartRun
	if err := decode(r, &in); err != nil {
		return err
	}
	run, err := a.Sessions.StartRun(r.Context(), g, mux.Vars(r)["session"],
		session.RunInput{Argv: in.Argv, Dir: in.Dir, User: in.User, Limit: time.Duration(in.TimeLimitMS) * time.Millisecond})
	if err != nil {
		return err
	}
	return answer(w, http.StatusCreated, runOf(run))
}

func (a *api) run(w http.ResponseWriter, r *http.Request, g access.Grant) error {
	return a.answerChanged(w, r, session.TopicOf(g.Repo()), func(ctx context.Context) (any, error) {
		run, err := a.Sessions.Run(ctx, g, mux.Vars(r)["session"], mux.Vars(r)["run"])
		return runOf(run), err
	})
}

func (a *api) stopRun(w http.ResponseWriter, r *http.Request, g access.Grant) error {
	if err := decode(r, &struct{}{}); err != nil {
		return err
	}
	id, name := mux.Vars(r)["session"], mux.Vars(r)["run"]
	if err := a.Sessions.StopRun(r.Context(), g, id, name); err != nil {
		return err
	}
	run, err := a.Sessions.Run(r.Context(), g, id, name)
	if err != nil {
		return err
	}
	return answer(w, http.StatusOK, runOf(run))
}

func (a *api) runLog(w http.ResponseWriter, r *http.Request, g access.Grant) error {
	id, name := mux.Vars(r)["session"], mux.Vars(r)["run"]
	run, err := a.Sessions.Run(r.Context(), g, id, name)
	if err != nil {
		return err
	}
	return a.log(w, r, a.Sessions.RunTopic(run), func(ctx context.Context, from int64) (fleet.LogPart, error) {
		return a.Sessions.RunLog(ctx, g, id, name, from, logPart)
	})
}
