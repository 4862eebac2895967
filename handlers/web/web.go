// Package web is the pages: server-rendered, whole without JavaScript. Scripts add live logs and fresh states, nothing
// else. Every form posts and is answered with a redirect, or with the page again and what is wrong beside its field.
package web

import (
	"cmp"
	"context"
	"embed"
	"errors"
	"html/template"
	"net/http"
	"net/url"
	"time"

	"github.com/gorilla/mux"

	"github.com/claude-hub/claude-hub/app/access"
	"github.com/claude-hub/claude-hub/app/environment"
	"github.com/claude-hub/claude-hub/app/fault"
	"github.com/claude-hub/claude-hub/app/fleet"
	"github.com/claude-hub/claude-hub/app/github"
	"github.com/claude-hub/claude-hub/app/proposal"
	"github.com/claude-hub/claude-hub/app/session"
	"github.com/claude-hub/claude-hub/app/setup"
	"github.com/claude-hub/claude-hub/app/variable"
	"github.com/claude-hub/claude-hub/envspec"
	"github.com/claude-hub/claude-hub/envspec/dotenv"
	"github.com/claude-hub/claude-hub/handlers/ports"
	"github.com/claude-hub/claude-hub/handlers/request"
	"github.com/claude-hub/claude-hub/store"
)

//go:embed templates assets
var files embed.FS

// Changes tells when something with a topic changed; store.DB does.
type Changes interface {
	Changed(topic string) <-chan struct{}
}

// Deps is what the pages lead to.
type Deps struct {
	Gate         *access.Gate
	Environments *environment.Service
	Sessions     *session.Service
	Proposals    *proposal.Service
	Setup        *setup.Service
	Fleet        *fleet.Fleet
	Vault        *variable.Vault
	Deliveries   Deliveries
	Changes      Changes
	Now          func() time.Time
	PublicURL    *url.URL
	// SecureCookies has cookies bound to this host over https (__Host-, Secure).
	SecureCookies bool
	// Ports have origins of their own in it.
	Ports    ports.Domain
	Version  string
	Stopping <-chan struct{} // closed when streams should end; nil: never
}

// Web serves the pages.
type Web struct {
	d      Deps
	pages  map[string]*template.Template
	assets map[string]asset
	router *mux.Router
}

// New parses every template and wires the routes.
func New(d Deps) (*Web, error) {
	w := &Web{d: d}
	var err error
	if w.assets, err = loadAssets(); err != nil {
		return nil, err
	}
	if w.pages, err = parse(w.funcs()); err != nil {
		return nil, err
	}
	w.router = w.routes()
	return w, nil
}

// Router is for tests that walk every route.
func (w *Web) Router() *mux.Router { return w.router }

func (w *Web) ServeHTTP(rw http.ResponseWriter, r *http.Request) { w.router.ServeHTTP(rw, r) }

func (w *Web) routes() *mux.Router {
	root := mux.NewRouter()
	root.NotFoundHandler = http.HandlerFunc(w.noPage)
	root.MethodNotAllowedHandler = http.HandlerFunc(w.noMethod)
	get := func(path string, h http.Handler) { root.Path(path).Methods(http.MethodGet, http.MethodHead).Handler(h) }
	stream := func(path string, h http.Handler) { root.Path(path).Methods(http.MethodGet).Handler(h) }
	post := func(path string, h http.Handler) { root.Path(path).Methods(http.MethodPost).Handler(h) }

	get("/assets/{file}", http.HandlerFunc(w.asset))
	get("/sign-in", w.open(w.signInPage))
	post("/sign-in", w.open(w.signIn))
	post("/sign-out", w.open(w.signOut))
	stream("/auth/github", w.open(w.beginGitHub))
	stream("/auth/github/callback", w.open(w.finishGitHub))

	get("/setup", w.open(w.setupPage))
	post("/setup", w.open(w.enterSetup))
	post("/setup/create", w.open(w.createApp))
	get("/setup/created", w.open(w.appCreated))
	post("/setup/values", w.open(w.takeApp))
	post("/setup/webhook-secret", w.open(w.rotateHook))
	get("/setup/install", w.open(w.install))
	get("/setup/installed", w.open(w.installed))
	get("/setup/checklist", w.open(w.checklist))

	get("/", w.signedIn(w.repos))
	get("/open", w.signedIn(w.openRepoPage))
	post("/open", w.signedIn(w.openRepo))
	get("/account", w.signedIn(w.account))
	post("/account/sign-out-everywhere", w.signedIn(w.signOutEverywhere))
	get("/account/tokens", w.signedIn(w.tokens))
	post("/account/tokens", w.current(w.createToken))
	post("/account/tokens/{token}/revoke", w.signedIn(w.revokeToken))
	get("/deliveries", w.signedIn(w.deliveries))
	post("/deliveries/{delivery}/again", w.signedIn(w.tryDeliveryAgain))
	get(ports.AdmitPath, w.signedIn(w.admit))
	get("/runners", w.signedIn(w.runners))
	post("/runners/registrations", w.current(w.newRegistration))
	post("/runners/{runner}/revoke", w.current(w.revokeRunner))
	get("/shared", w.signedIn(w.shared))
	get("/add-shared", w.signedIn(w.addSharedPage))
	post("/add-shared", w.current(w.addShared))
	get("/shared/{shared}", w.signedIn(w.sharedOne))
	post("/shared/{shared}/value", w.current(w.changeShared("value", setShared)))
	post("/shared/{shared}/note", w.current(w.changeShared("note", noteShared)))
	post("/shared/{shared}/rename", w.current(w.changeShared("rename", renameShared)))
	get("/shared/{shared}/delete", w.signedIn(w.deleteSharedPage))
	post("/shared/{shared}/delete", w.current(w.deleteShared))

	get("/repos/{repo}", w.granted(w.repo))
	get("/repos/{repo}/environment", w.granted(w.environment))
	post("/repos/{repo}/environment", w.granted(w.saveDraft))
	post("/repos/{repo}/environment/apply", w.granted(w.apply))
	get("/repos/{repo}/environment/discard", w.granted(w.discardPage))
	post("/repos/{repo}/environment/discard", w.granted(w.discard))
	get("/repos/{repo}/environment/add-variable", w.granted(w.addVariable))
	post("/repos/{repo}/environment/add-variable", w.granted(w.saveNewVariable))
	get("/repos/{repo}/environment/import", w.granted(w.importPage))
	post("/repos/{repo}/environment/import", w.granted(w.previewImport))
	post("/repos/{repo}/environment/import/add", w.granted(w.addImport))
	get("/repos/{repo}/environment/variables/{variable}", w.granted(w.variable))
	post("/repos/{repo}/environment/variables/{variable}", w.granted(w.saveOldVariable))
	get("/repos/{repo}/environment/variables/{variable}/delete", w.granted(w.deleteVariablePage))
	post("/repos/{repo}/environment/variables/{variable}/delete", w.granted(w.deleteVariable))
	post("/repos/{repo}/environment/variables/{variable}/build", w.granted(w.makeAvailable))
	get("/repos/{repo}/environment/variables/{variable}/value", w.granted(w.valuePage))
	post("/repos/{repo}/environment/variables/{variable}/value", w.granted(w.enterValue))
	get("/repos/{repo}/environment/propose", w.granted(w.propose))
	get("/repos/{repo}/proposals", w.granted(w.proposals))
	get("/repos/{repo}/proposals/{proposal:[0-9]+}", w.granted(w.proposal))
	post("/repos/{repo}/proposals/{proposal:[0-9]+}/tests", w.granted(w.testProposal))
	post("/repos/{repo}/proposals/{proposal:[0-9]+}/apply", w.granted(w.applyProposal))
	post("/repos/{repo}/proposals/{proposal:[0-9]+}/adopt", w.granted(w.adoptProposal))
	post("/repos/{repo}/proposals/{proposal:[0-9]+}/again", w.granted(w.lookAtProposal))
	get("/repos/{repo}/proposals/{proposal:[0-9]+}/variables/{variable}", w.granted(w.proposedValuePage))
	post("/repos/{repo}/proposals/{proposal:[0-9]+}/variables/{variable}", w.granted(w.enterProposedValue))
	get("/repos/{repo}/diff", w.granted(w.diff))
	get("/repos/{repo}/tests", w.granted(w.tests))
	post("/repos/{repo}/tests", w.granted(w.startTest))
	get("/repos/{repo}/tests/{test}", w.granted(w.test))
	post("/repos/{repo}/tests/{test}/cancel", w.granted(w.cancelTest))
	stream("/repos/{repo}/tests/{test}/events", w.granted(w.testEvents))
	get("/repos/{repo}/tests/{test}/log", w.granted(w.testLog))
	get("/repos/{repo}/versions", w.granted(w.versions))
	get("/repos/{repo}/versions/{number:[0-9]+}", w.granted(w.version))
	get("/repos/{repo}/versions/{number:[0-9]+}/restore", w.granted(w.restorePage))
	post("/repos/{repo}/versions/{number:[0-9]+}/restore", w.granted(w.restore))
	get("/repos/{repo}/sessions", w.granted(w.sessions))
	post("/repos/{repo}/sessions", w.granted(w.startSession))
	get("/repos/{repo}/sessions/{session}", w.granted(w.session))
	post("/repos/{repo}/sessions/{session}/sleep", w.granted(w.changeSession(w.d.Sessions.Sleep)))
	post("/repos/{repo}/sessions/{session}/wake", w.granted(w.changeSession(w.d.Sessions.Wake)))
	get("/repos/{repo}/sessions/{session}/restart", w.granted(w.restartPage))
	post("/repos/{repo}/sessions/{session}/restart", w.granted(w.changeSession(w.d.Sessions.Restart)))
	post("/repos/{repo}/sessions/{session}/retry", w.granted(w.changeSession(w.d.Sessions.Retry)))
	post("/repos/{repo}/sessions/{session}/grow", w.granted(w.growSession))
	get("/repos/{repo}/sessions/{session}/archive", w.granted(w.archivePage))
	post("/repos/{repo}/sessions/{session}/archive", w.granted(w.changeSession(w.d.Sessions.Archive)))
	post("/repos/{repo}/sessions/{session}/restore", w.granted(w.restoreSession))
	post("/repos/{repo}/sessions/{session}/count", w.granted(w.countUnsaved))
	get("/repos/{repo}/sessions/{session}/delete", w.granted(w.deletePage))
	post("/repos/{repo}/sessions/{session}/delete", w.granted(w.deleteSession))
	stream("/repos/{repo}/sessions/{session}/events", w.granted(w.sessionEvents))
	get("/repos/{repo}/sessions/{session}/log", w.granted(w.sessionLog))
	get("/repos/{repo}/sessions/{session}/ports", w.granted(w.openPort))
	get("/repos/{repo}/sessions/{session}/ports/{port}", w.granted(w.port))
	post("/repos/{repo}/sessions/{session}/ports/{port}/wake", w.granted(w.wakePort))
	post("/repos/{repo}/sessions/{session}/terminals", w.granted(w.atHome(w.openTerminal)))
	post("/repos/{repo}/sessions/{session}/runs", w.granted(w.startRun))
	get("/repos/{repo}/sessions/{session}/runs/{run}", w.granted(w.run))
	post("/repos/{repo}/sessions/{session}/runs/{run}/stop", w.granted(w.stopRun))
	stream("/repos/{repo}/sessions/{session}/runs/{run}/events", w.granted(w.runEvents))
	get("/repos/{repo}/sessions/{session}/runs/{run}/log", w.granted(w.runLog))
	get("/repos/{repo}/sessions/{session}/terminals/{terminal}", w.granted(w.terminal))
	post("/repos/{repo}/sessions/{session}/terminals/{terminal}/close", w.granted(w.atHome(w.closeTerminal)))
	stream("/repos/{repo}/sessions/{session}/terminals/{terminal}/socket", w.underWay(w.terminalSocket))
	stream("/repos/{repo}/sessions/{session}/terminals/{terminal}/events", w.underWay(w.terminalEvents))
	post("/repos/{repo}/sessions/{session}/terminals/{terminal}/input", w.underWay(w.terminalType))
	post("/repos/{repo}/sessions/{session}/terminals/{terminal}/steer", w.underWay(w.terminalSteer))
	return root
}

type handler func(http.ResponseWriter, *http.Request) error

// open is for pages that need nobody signed in.
func (w *Web) open(h handler) http.Handler {
	return http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
		rw.Header().Set("Cache-Control", "no-store")
		if err := h(rw, r); err != nil {
			w.fail(rw, r, err)
		}
	})
}

type personKey struct{}

// person who is signed in, nobody outside of signedIn.
func person(ctx context.Context) access.Person {
	who, _ := ctx.Value(personKey{}).(access.Person)
	return who
}

// signedIn sends who isn't to the sign-in page, and back afterwards.
func (w *Web) signedIn(h func(http.ResponseWriter, *http.Request, access.Person) error) http.Handler {
	return w.open(func(rw http.ResponseWriter, r *http.Request) error {
		if request.Looks(r) {
			r = r.WithContext(access.Reading(r.Context()))
		}
		who, err := w.who(r)
		if fault.Is(err, fault.Unauthorized) {
			return w.sendToSignIn(rw, r)
		}
		if err != nil {
			return err
		}
		return h(rw, r.WithContext(context.WithValue(r.Context(), personKey{}, who)), who)
	})
}

// current is signedIn for what changes something that belongs to no Repo: like a Repo's, it waits until GitHub can say that the person
// is still welcome.
func (w *Web) current(h func(http.ResponseWriter, *http.Request, access.Person) error) http.Handler {
	return w.signedIn(func(rw http.ResponseWriter, r *http.Request, who access.Person) error {
		if err := w.d.Gate.Current(r.Context(), who); err != nil {
			return err
		}
		return h(rw, r, who)
	})
}

// granted is signedIn with the Repo of the path: one answer for absent, forbidden and malformed.
func (w *Web) granted(h func(http.ResponseWriter, *http.Request, access.Grant) error) http.Handler {
	return w.signedIn(func(rw http.ResponseWriter, r *http.Request, who access.Person) error {
		id, ok := github.ParseRepoID(mux.Vars(r)["repo"])
		if !ok {
			return access.ErrNotFound
		}
		g, err := w.d.Gate.Repo(r.Context(), who, id)
		if err != nil {
			return err
		}
		return h(rw, r, g)
	})
}

type errorPage struct {
	Page
	Status  int
	Message string
}

// fail answers err with a page. What is no fault is logged and its text is not shown.
func (w *Web) fail(rw http.ResponseWriter, r *http.Request, err error) {
	if r.Context().Err() != nil {
		return
	}
	f := fault.Of(err)
	if f.Code == fault.Internal {
		request.Log(r.Context()).Error().Err(err).Msg("internal error")
		f.Message = cmp.Or(store.Trouble(err), f.Message)
	}
	w.failWith(rw, r, request.Status(f.Code), f.Message)
}

func (w *Web) failWith(rw http.ResponseWriter, r *http.Request, status int, message string) {
	rw.Header().Set("Cache-Control", "no-store")
	p := errorPage{Page: w.page(r, title(status)), Status: status, Message: message}
	if err := w.render(rw, r, status, "error", p); err != nil {
		request.Log(r.Context()).Error().Err(err).Msg("render the error page")
		http.Error(rw, message+" Request "+p.RequestID+".", status)
	}
}

func title(status int) string {
	switch status {
	case http.StatusNotFound:
		return "Not found"
	case http.StatusInternalServerError:
		return "Something went wrong"
	}
	return "That did not work"
}

func (w *Web) noPage(rw http.ResponseWriter, r *http.Request) {
	who, err := w.who(r)
	if err == nil {
		r = r.WithContext(context.WithValue(r.Context(), personKey{}, who))
	}
	w.failWith(rw, r, http.StatusNotFound, "There is no such page.")
}

func (w *Web) noMethod(rw http.ResponseWriter, r *http.Request) {
	w.failWith(rw, r, http.StatusMethodNotAllowed, "This address can't be used that way.")
}

// CrossSite answers what another site's page sent.
func (w *Web) CrossSite(rw http.ResponseWriter, r *http.Request) {
	w.failWith(rw, r, http.StatusForbidden, "This request came from another site's page, so nothing was done. Open claude-hub itself and try there.")
}

// ForeignHost answers a Host that is not this Hub's.
func (w *Web) ForeignHost(rw http.ResponseWriter, r *http.Request) {
	w.failWith(rw, r, http.StatusMisdirectedRequest, "With dev login on, this Hub answers only under its own address: "+w.d.PublicURL.String()+". The key hub.url of its config changes that.")
}

// errInput is a form that could not be read.
var errInput = fault.New(fault.Invalid, "The form did not arrive whole, so nothing was saved. Go back and send it again.")

func parseForm(r *http.Request) error {
	if err := r.ParseForm(); err != nil {
		return unreadable(err)
	}
	return nil
}

// unreadable is the fault for a form whose reading ended with err.
func unreadable(err error) error {
	var large *http.MaxBytesError
	if errors.As(err, &large) {
		return errors.Join(fault.New(fault.Invalid, "Nothing was saved: the form with its files is larger than the %s that are possible. A value has at most %s, a .env file %s.",
			size(large.Limit), size(envspec.MaxValue), size(dotenv.MaxFile)), err)
	}
	return errors.Join(errInput, err)
}

// seeOther ends a POST.
func seeOther(rw http.ResponseWriter, r *http.Request, path string) error {
	http.Redirect(rw, r, path, http.StatusSeeOther)
	return nil
}
