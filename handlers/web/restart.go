package web

import (
	"net/http"

	"github.com/gorilla/mux"

	"github.com/claude-hub/claude-hub/app/access"
	"github.com/claude-hub/claude-hub/app/session"
)

type restartPage struct {
	Page
	Session session.Session
	Next    int  // the version it moves to, if that is another; 0: the same
	Fresh   bool // it does with a fresh root filesystem
}

// restartPage says what a restart takes away before anybody asks for one.
func (w *Web) restartPage(rw http.ResponseWriter, r *http.Request, g access.Grant) error {
	sn, err := w.d.Sessions.Get(r.Context(), g, mux.Vars(r)["session"])
	if err != nil {
		return err
	}
	if sn.State != session.Running {
		return seeOther(rw, r, sessionPath(g, sn.ID))
	}
	env, err := w.d.Environments.Get(r.Context(), g)
	if err != nil {
		return err
	}
	p := restartPage{Page: w.repoPage(r, g, "sessions", "Restart Session "+short(sn.ID)), Session: sn}
	p.Next, p.Fresh = newer(env, sn)
	return w.render(rw, r, http.StatusOK, "restart", p)
}
