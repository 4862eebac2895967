package web

import (
	"context"
	"net/http"
	"strings"

	"github.com/gorilla/mux"

	"github.com/claude-hub/claude-hub/app/access"
	"github.com/claude-hub/claude-hub/app/session"
	"github.com/claude-hub/claude-hub/envspec"
)

func archivable(sn session.Session) bool {
	switch sn.State {
	case session.Running, session.Stopping, session.Asleep, session.Failed:
		return sn.Detail.Workspace && !sn.Restarting
	}
	return false
}

// freed goes on in a sentence about what an archived Session gives up.
func freed(sn session.Session) string {
	if sn.Freed {
		return ", with dependency folders, package caches and Docker's data"
	}
	return ""
}

type archivePage struct {
	Page
	Session session.Session
	Loses   string
	Unsaved string
}

// archivePage says what archiving takes away before anybody asks for it.
func (w *Web) archivePage(rw http.ResponseWriter, r *http.Request, g access.Grant) error {
	sn, err := w.d.Sessions.Get(r.Context(), g, mux.Vars(r)["session"])
	if err != nil {
		return err
	}
	if !archivable(sn) {
		return seeOther(rw, r, sessionPath(g, sn.ID))
	}
	return w.render(rw, r, http.StatusOK, "archive", archivePage{
		Page: w.repoPage(r, g, "sessions", "Archive Session "+short(sn.ID)), Session: sn, Loses: w.d.Sessions.ArchiveLoses(), Unsaved: sn.UnsavedSentence(),
	})
}

// restoreSession restores to sleep, or wakes at once with the button that says so.
func (w *Web) restoreSession(rw http.ResponseWriter, r *http.Request, g access.Grant) error {
	if err := parseForm(r); err != nil {
		return err
	}
	wake := r.PostForm.Get("wake") != ""
	return w.changeSession(func(ctx context.Context, g access.Grant, id string) error {
		return w.d.Sessions.Restore(ctx, g, id, wake)
	})(rw, r, g)
}

// growSession gives a Session a larger disk.
func (w *Web) growSession(rw http.ResponseWriter, r *http.Request, g access.Grant) error {
	if err := parseForm(r); err != nil {
		return err
	}
	size, err := envspec.ParseSize(strings.TrimSpace(r.PostForm.Get("disk")))
	if err != nil {
		return w.showSession(rw, r, g, http.StatusUnprocessableEntity, Form{General: sentence(err.Error())})
	}
	return w.changeSession(func(ctx context.Context, g access.Grant, id string) error {
		return w.d.Sessions.Grow(ctx, g, id, int64(size))
	})(rw, r, g)
}
