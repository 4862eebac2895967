package api

import (
	"cmp"
	"context"
	"errors"
	"net/http"
	"time"

	"github.com/gorilla/mux"

	"github.com/claude-hub/claude-hub/app/access"
	"github.com/claude-hub/claude-hub/app/fault"
	"github.com/claude-hub/claude-hub/app/fleet"
	"github.com/claude-hub/claude-hub/app/session"
	"github.com/claude-hub/claude-hub/handlers/api/schema"
	"github.com/claude-hub/claude-hub/handlers/request"
	"github.com/claude-hub/claude-hub/runner/wire"
)

// allSessions lists the Sessions of every Repo the caller may use, so that one can be found by its id alone.
func (a *api) allSessions(w http.ResponseWriter, r *http.Request, who access.Person) error {
	repos, err := a.Gate.Repos(r.Context(), who)
	if err != nil {
		return err
	}
	names, err := a.names(r.Context())
	if err != nil {
		return err
	}
	list := []schema.Session{}
	for _, repo := range repos {
		g, err := a.Gate.Repo(r.Context(), who, repo.ID)
		if errors.Is(err, access.ErrNotFound) {
			continue
		}
		if err != nil {
			return err
		}
		all, err := a.Sessions.List(r.Context(), g)
		if err != nil {
			return err
		}
		for _, sn := range all {
			list = append(list, a.sessionOf(sn, repo, names))
		}
	}
	return answer(w, http.StatusOK, list)
}

func (a *api) sessions(w http.ResponseWriter, r *http.Request, g access.Grant) error {
	return a.answerChanged(w, r, session.TopicOf(g.Repo()), func(ctx context.Context) (any, error) {
		all, err := a.Sessions.List(ctx, g)
		if err != nil {
			return nil, err
		}
		names, err := a.names(ctx)
		if err != nil {
			return nil, err
		}
		list := make([]schema.Session, 0, len(all))
		for _, sn := range all {
			list = append(list, a.sessionOf(sn, g.Repo(), names))
		}
		return list, nil
	})
}

func (a *api) sessionOf(sn session.Session, repo access.Repo, names map[string]string) schema.Session {
	return schema.Session{
		ID: sn.ID, Repo: repoOf(repo), State: sn.State, Restarting: sn.Restarting, Unreachable: sn.Unreachable, Runner: schema.RunnerRef{ID: sn.Runner, Name: cmp.Or(names[sn.Runner], "(revoked)")},
		Version: sn.Version, BuildKey: sn.BuildKey, Branch: sn.Branch, WorkBranch: sn.WorkBranch, DiskSize: sn.DiskSize, Detail: sn.Detail, Unsaved: sn.UnsavedSentence(), Loses: a.Sessions.ArchiveLoses(),
		CreatedAt: sn.CreatedAt.UTC(), CreatedBy: sn.CreatedBy, ChangedAt: sn.ChangedAt.UTC(),
	}
}

func (a *api) startSession(w http.ResponseWriter, r *http.Request, g access.Grant) error {
	var in schema.StartSession
	if err := decode(r, &in); err != nil {
		return err
	}
	if in.Runner != "" {
		runner, err := a.findRunner(r.Context(), in.Runner)
		if err != nil {
			return err
		}
		in.Runner = runner.ID
	}
	sn, err := a.Sessions.Start(r.Context(), g, session.StartInput{Runner: in.Runner, Branch: in.Branch, WorkBranch: in.WorkBranch})
	if err != nil {
		return err
	}
	names, err := a.names(r.Context())
	if err != nil {
		return err
	}
	return answer(w, http.StatusCreated, a.sessionOf(sn, g.Repo(), names))
}

func (a *api) session(w http.ResponseWriter, r *http.Request, g access.Grant) error {
	return a.answerChanged(w, r, session.TopicOf(g.Repo()), func(ctx context.Context) (any, error) { return a.readSession(ctx, g, mux.Vars(r)["session"]) })
}

func (a *api) readSession(ctx context.Context, g access.Grant, id string) (schema.Session, error) {
	sn, err := a.Sessions.Get(ctx, g, id)
	if err != nil {
		return schema.Session{}, err
	}
	names, err := a.names(ctx)
	if err != nil {
		return schema.Session{}, err
	}
	return a.sessionOf(sn, g.Repo(), names), nil
}

func (a *api) restoreSession(w http.ResponseWriter, r *http.Request, g access.Grant) error {
	var in schema.RestoreSession
	if err := decode(r, &in); err != nil {
		return err
	}
	id := mux.Vars(r)["session"]
	if err := a.Sessions.Restore(r.Context(), g, id, in.Wake); err != nil {
		return err
	}
	return a.answerSession(w, r, g, id)
}

func (a *api) growSession(w http.ResponseWriter, r *http.Request, g access.Grant) error {
	var in schema.GrowSession
	if err := decode(r, &in); err != nil {
		return err
	}
	id := mux.Vars(r)["session"]
	if err := a.Sessions.Grow(r.Context(), g, id, in.DiskSize); err != nil {
		return err
	}
	return a.answerSession(w, r, g, id)
}

func (a *api) answerSession(w http.ResponseWriter, r *http.Request, g access.Grant, id string) error {
	sn, err := a.readSession(r.Context(), g, id)
	if err != nil {
		return err
	}
	return answer(w, http.StatusOK, sn)
}

// changeSession answers the Session as it is after the change.
func (a *api) changeSession(change func(context.Context, access.Grant, string) error) func(http.ResponseWriter, *http.Request, access.Grant) error {
	return func(w http.ResponseWriter, r *http.Request, g access.Grant) error {
		if err := decode(r, &struct{}{}); err != nil {
			return err
		}
		id := mux.Vars(r)["session"]
		if err := change(r.Context(), g, id); err != nil {
			return err
		}
		return a.answerSession(w, r, g, id)
	}
}

func (a *api) deleteSession(w http.ResponseWriter, r *http.Request, g access.Grant) error {
	var in schema.Delete
	if err := decode(r, &in); err != nil {
		return err
	}
	if err := a.Sessions.Delete(r.Context(), g, mux.Vars(r)["session"], in.Confirm); err != nil {
		return err
	}
	w.WriteHeader(http.StatusNoContent)
	return nil
}

// Bounds of what may be asked to run: the Hub holds it in memory until the Runner takes it.
const (
	maxArgs  = 4096
	maxBytes = 256 << 10
)

func (a *api) openChannel(w http.ResponseWriter, r *http.Request, g access.Grant) error {
	var spec wire.ChannelSpec
	if err := decode(r, &spec); err != nil {
		return err
	}
	if spec.Keep || spec.Again || spec.Port > 0 && (len(spec.Argv) > 0 || spec.TTY) {
		return fault.New(fault.Invalid, "A command has neither a port nor what belongs to terminals, which are opened by a call of their own.")
	}
	size := len(spec.Term) + len(spec.User) + len(spec.Dir)
	for _, arg := range spec.Argv {
		size += len(arg) + 1
	}
	if len(spec.Argv) > maxArgs || size > maxBytes {
		return fault.Field("argv", "A command has at most %d arguments and %d bytes. Put more into a file or its input.", maxArgs, maxBytes)
	}
	if len(spec.Argv) > 0 && spec.Argv[0] == "" {
		return fault.Field("argv", "The command is empty.")
	}
	id, err := a.Sessions.Open(r.Context(), g, mux.Vars(r)["session"], spec)
	if err != nil {
		return err
	}
	return answer(w, http.StatusCreated, schema.Opened{Channel: id})
}

func (a *api) exchange(w http.ResponseWriter, r *http.Request, g access.Grant) error {
	var in schema.Exchange
	if err := decode(r, &in); err != nil {
		return err
	}
	move := fleet.ClientMove{
		InClosed: in.InClosed, Out1: in.Out1, Out2: in.Out2,
		Wait: min(max(time.Duration(in.WaitMS)*time.Millisecond, 0), request.MaxWait),
	}
	for i, p := range in.In {
		switch {
		case p.Stream != 0 || p.Offset < 0:
			return fault.Field("in", "Input is stream 0, from offset 0 on.")
		case i == 0:
			move.InOffset = p.Offset
		case p.Offset != move.InOffset+int64(len(move.In)):
			return fault.Field("in", "Pieces of input follow each other without a gap.")
		}
		move.In = append(move.In, p.Data...)
	}
	if in.InClosed && len(in.In) == 0 {
		return fault.Field("in_closed", "Say where the input ended: send a last piece, which may be empty, at that offset.")
	}
	for _, c := range in.Controls {
		control := &wire.Control{Seq: c.Seq}
		switch {
		case c.Signal < 0 || c.Signal > 64:
			return fault.Field("controls", "A signal's number is 1 to 64.")
		case c.Size != nil:
			control.Rows, control.Cols = uint32(c.Size.Rows), uint32(c.Size.Cols)
		default:
			control.Signal = int32(c.Signal)
		}
		move.Controls = append(move.Controls, control)
	}
	sessionID, channel := mux.Vars(r)["session"], mux.Vars(r)["channel"]
	held, release := a.Gate.Hold(r.Context(), g)
	defer release()
	state, err := a.Sessions.Exchange(held, g, sessionID, channel, move)
	if held.Err() != nil && r.Context().Err() == nil { // access ended while this waited: so does what runs
		err = errors.Join(access.ErrNotFound, a.Sessions.Close(context.WithoutCancel(r.Context()), g, sessionID, channel))
	}
	if err != nil {
		return err
	}
	out := schema.Exchanged{InOffset: state.InNext, Picked: state.Picked}
	for _, p := range state.Out {
		out.Out = append(out.Out, schema.Piece{Stream: p.GetStream(), Offset: p.GetOffset(), Data: p.GetData()})
	}
	if state.Ended {
		out.Exit = &state.Exit
	}
	return answer(w, http.StatusOK, out)
}

func (a *api) closeChannel(w http.ResponseWriter, r *http.Request, g access.Grant) error {
	if err := a.Sessions.Close(r.Context(), g, mux.Vars(r)["session"], mux.Vars(r)["channel"]); err != nil {
		return err
	}
	w.WriteHeader(http.StatusNoContent)
	return nil
}
