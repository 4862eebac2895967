package github

import "sync/atomic"

// NoApp is the Kind of what is asked of GitHub by a Hub that has no App (yet).
const NoApp Kind = "no-app"

// Holder has the App that the Hub is at present: none before one is set up, another one after its credentials were
// changed. Ask it for each use and keep no App. May be used from many goroutines.
type Holder struct{ app atomic.Pointer[App] }

// NewHolder holds app; nil is none.
func NewHolder(app *App) *Holder {
	h := &Holder{}
	h.Set(app)
	return h
}

// Set has app used from now on; nil is none.
func (h *Holder) Set(app *App) { h.app.Store(app) }

// App is the present one, or an *Error of Kind NoApp.
func (h *Holder) App() (*App, error) {
	if app := h.app.Load(); app != nil {
		return app, nil
	}
	return nil, &Error{Kind: NoApp, Message: "This Hub has no GitHub App yet. Its operator sets one up on the Hub's set-up page, or in the section github of its config."}
}
