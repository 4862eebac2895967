package api

import (
	"net/http"
	"regexp"
	"time"

	"github.com/gorilla/mux"

	"github.com/claude-hub/claude-hub/app/access"
	"github.com/claude-hub/claude-hub/app/fault"
	"github.com/claude-hub/claude-hub/app/fleet"
	"github.com/claude-hub/claude-hub/handlers/api/schema"
	"github.com/claude-hub/claude-hub/handlers/request"
	"github.com/claude-hub/claude-hub/runner/wire"
)

func terminalOf(t fleet.Terminal) schema.Terminal {
	out := schema.Terminal{ID: t.ID, OpenedBy: t.OpenedBy, OpenedAt: t.Opened}
	if !t.Ended.IsZero() {
		out.EndedAt, out.Exit = &t.Ended, &t.Exit
	}
	return out
}

func (a *api) terminals(w http.ResponseWriter, r *http.Request, g access.Grant) error {
	all, err := a.Sessions.Terminals(r.Context(), g, mux.Vars(r)["session"])
	if err != nil {
		return err
	}
	list := make([]schema.Terminal, 0, len(all))
	for _, t := range all {
		list = append(list, terminalOf(t))
	}
	return answer(w, http.StatusOK, list)
}

func (a *api) openTerminal(w http.ResponseWriter, r *http.Request, g access.Grant) error {
	var in schema.OpenTerminal
	if err := decode(r, &in); err != nil {
		return err
	}
	if len(in.Term)+len(in.User) > 1024 {
		return fault.Field("term", "This is no terminal's or user's name.")
	}
	spec := wire.ChannelSpec{Rows: max(in.Rows, 1), Cols: max(in.Cols, 1), Term: in.Term, User: in.User}
	t, err := a.Sessions.OpenTerminal(r.Context(), g, mux.Vars(r)["session"], spec)
	if err != nil {
		return err
	}
	return answer(w, http.StatusCreated, terminalOf(t))
}

func (a *api) closeTerminal(w http.ResponseWriter, r *http.Request, g access.Grant) error {
	if err := a.Sessions.CloseTerminal(r.Context(), g, mux.Vars(r)["session"], mux.Vars(r)["terminal"]); err != nil {
		return err
	}
	w.WriteHeader(http.StatusNoContent)
	return nil
}

// lookMost is how much output one answer carries, typeMost how much input one call.
const (
	lookMost = 256 << 10
	typeMost = 64 << 10
)

var viewerName = regexp.MustCompile(`^[A-Za-z0-9-]{8,64}$`)

func (a *api) lookAtTerminal(w http.ResponseWriter, r *http.Request, g access.Grant) error {
	var in schema.Look
	if err := decode(r, &in); err != nil {
		return err
	}
	t, err := a.Sessions.Terminal(r.Context(), g, mux.Vars(r)["session"], mux.Vars(r)["terminal"])
	if err != nil {
		return err
	}
	switch {
	case !viewerName.MatchString(in.Viewer):
		return fault.Field("viewer", "A viewer is named by 8 to 64 letters, digits and hyphens.")
	case len(in.In) > typeMost || in.InOffset < 0:
		return fault.Field("in", "At most %d bytes of input come at once, from offset 0 on.", typeMost)
	}
	wait := min(max(time.Duration(in.WaitMS)*time.Millisecond, 0), request.MaxWait)
	look := fleet.Look{Viewer: g.Actor() + "/" + in.Viewer, From: in.From, Taken: in.Taken, Most: lookMost, Wait: wait}
	ctx, release := a.Gate.Hold(r.Context(), g)
	defer release()
	if len(in.In) > 0 {
		// Its answer says what was taken at once: output is for the call that waits for it.
		if _, err := a.Sessions.Type(ctx, t.ID, look.Viewer, in.InOffset, in.In, wait); err != nil {
			return err
		}
		look.Wait = 0
	}
	if in.Size != nil {
		if err := a.Sessions.Resize(ctx, t.ID, look.Viewer, in.Size.Rows, in.Size.Cols); err != nil {
			return err
		}
		look.Wait = 0
	}
	if look.Wait > 0 { // the newest it knows is the newest there is: only output is news here
		now, err := a.Sessions.LookAt(ctx, t.ID, fleet.Look{Viewer: look.Viewer, From: in.From, Taken: in.Taken})
		if err != nil {
			return err
		}
		look.Sizes, look.InNext = now.Sizes, now.InNext
	}
	v, err := a.Sessions.LookAt(ctx, t.ID, look)
	if ctx.Err() != nil && r.Context().Err() == nil {
		return access.ErrNotFound // access ended while this waited
	}
	if err != nil {
		return err
	}
	out := schema.Looked{Offset: v.Offset, Data: v.Data, InOffset: v.InNext, Picked: v.Picked}
	switch {
	case v.Ended:
		out.Exit = &v.Exit
	case v.Gone != "" && len(v.Data) == 0:
		out.Exit = &wire.ChannelExit{Code: 129, Failed: v.Gone}
	}
	return answer(w, http.StatusOK, out)
}
