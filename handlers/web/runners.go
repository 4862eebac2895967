package web

import (
	"errors"
	"net/http"
	"time"

	"github.com/gorilla/mux"

	"github.com/claude-hub/claude-hub/app/access"
	"github.com/claude-hub/claude-hub/app/fault"
	"github.com/claude-hub/claude-hub/app/fleet"
	"github.com/claude-hub/claude-hub/handlers/request"
	"github.com/claude-hub/claude-hub/runner/wire"
)

type runnersPage struct {
	Page
	Runners []RunnerRow
	// Command registers a Runner; set only in the answer that made its token.
	Command string
	Expires time.Time
}

// RunnerRow is one Runner.
type RunnerRow struct {
	fleet.Runner
	Never       bool
	Since       time.Time
	TestBuilds  int
	SessionsRun int
}

func (w *Web) runners(rw http.ResponseWriter, r *http.Request, _ access.Person) error {
	return w.showRunners(rw, r, http.StatusOK, runnersPage{})
}

func (w *Web) showRunners(rw http.ResponseWriter, r *http.Request, status int, p runnersPage) error {
	alert := p.Alert
	p.Page = w.page(r, "Runners")
	p.Section, p.Alert = "runners", alert
	all, err := w.d.Fleet.Runners(r.Context())
	if err != nil {
		return err
	}
	for _, runner := range all {
		p.Runners = append(p.Runners, RunnerRow{
			Runner: runner, Never: runner.LastContact.IsZero(), Since: runner.LastContact,
			TestBuilds: runner.Load[wire.KindTestBuild], SessionsRun: runner.Load[wire.KindSession],
		})
	}
	if p.Command == "" { // not while a token is shown: fetched again, it would be gone
		p.Refresh = 2 * pollMoving
	}
	return w.render(rw, r, status, "runners", p)
}

// newRegistration answers with the page itself, not with a redirect: the token is shown once and kept nowhere.
func (w *Web) newRegistration(rw http.ResponseWriter, r *http.Request, who access.Person) error {
	token, expires, err := w.d.Fleet.NewRegistration(r.Context(), who.ID())
	if err != nil {
		return err
	}
	return w.showRunners(rw, r, http.StatusOK, runnersPage{Command: request.RegisterCommand(w.d.PublicURL, token), Expires: expires})
}

func (w *Web) revokeRunner(rw http.ResponseWriter, r *http.Request, who access.Person) error {
	err := w.d.Fleet.Revoke(r.Context(), mux.Vars(r)["runner"], who.ID())
	var f *fault.Error
	if errors.As(err, &f) {
		p := runnersPage{}
		p.Alert = f.Message
		return w.showRunners(rw, r, request.Status(f.Code), p)
	}
	if err != nil {
		return err
	}
	return seeOther(rw, r, "/runners")
}
