// Package api is the HTTP API in JSON that the CLI and other programs use, under Prefix: a bearer token with each call, no
// cookies. Its bodies are package schema; its errors are problem+json (schema.Error).
//
// Long polls: a read with ?wait=15s and an If-None-Match of the ETag last seen answers when the resource is no longer
// that, or 304 after the wait. Logs are read by byte offset, channels exchanged by offset in both directions: every call
// can be repeated after a lost answer.
package api

import (
	"bytes"
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"net/url"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/gorilla/mux"

	"github.com/claude-hub/claude-hub/app/access"
	"github.com/claude-hub/claude-hub/app/environment"
	"github.com/claude-hub/claude-hub/app/fault"
	"github.com/claude-hub/claude-hub/app/fleet"
	"github.com/claude-hub/claude-hub/app/github"
	"github.com/claude-hub/claude-hub/app/proposal"
	"github.com/claude-hub/claude-hub/app/session"
	"github.com/claude-hub/claude-hub/app/variable"
	"github.com/claude-hub/claude-hub/handlers/api/schema"
	"github.com/claude-hub/claude-hub/handlers/peer"
	"github.com/claude-hub/claude-hub/handlers/request"
	"github.com/claude-hub/claude-hub/store"
)

// Prefix of every path.
const Prefix = "/api/v1"

// Changes tells when something with a topic changed; store.DB does.
type Changes interface {
	Changed(topic string) <-chan struct{}
}

// Deps is what the API leads to.
type Deps struct {
	Gate         *access.Gate
	Environments *environment.Service
	Sessions     *session.Service
	Proposals    *proposal.Service
	Fleet        *fleet.Fleet
	Vault        *variable.Vault
	Changes      Changes
	PublicURL    *url.URL
	Stopping     <-chan struct{}
}

type api struct{ Deps }

// New makes the API's handler. It is a Router so that tests can walk every route.
func New(d Deps) *mux.Router {
	a := &api{d}
	root := mux.NewRouter()
	root.NotFoundHandler = http.HandlerFunc(noRoute)
	root.MethodNotAllowedHandler = http.HandlerFunc(noMethod)
	on := func(method, path string, scope access.Scope, answer reply) {
		root.Path(Prefix + path).Methods(method).Handler(call{a, scope, answer})
	}
	const (
		read, environments, sessions = access.ScopeRead, access.ScopeEnvironments, access.ScopeSessions
		shared, runners, tokens      = access.ScopeShared, access.ScopeRunners, access.ScopeTokens
	)
	on(http.MethodGet, "/me", read, a.me)
	on(http.MethodGet, "/runners", read, a.runners)
	on(http.MethodPost, "/runners/registrations", runners, a.current(a.newRegistration))
	on(http.MethodPost, "/runners/{runner}/revoke", runners, a.current(a.revokeRunner))
	on(http.MethodGet, "/sessions", read, a.allSessions)
	on(http.MethodGet, "/repos", read, a.repos)
	on(http.MethodPost, "/repos/open", read, a.openRepo)
	on(http.MethodGet, "/tokens", read, a.tokens)
	on(http.MethodPost, "/tokens", tokens, a.current(a.createToken))
	on(http.MethodPost, "/tokens/{token}/revoke", tokens, a.revokeToken)
	// Shared variables belong to no Repo: anyone signed in manages them (ADR 0009).
	on(http.MethodGet, "/shared", read, a.allShared)
	on(http.MethodPost, "/shared", shared, a.current(a.createShared))
	on(http.MethodGet, "/shared/{shared}", read, a.shared)
	on(http.MethodPut, "/shared/{shared}/value", shared, a.current(a.setShared))
	on(http.MethodPut, "/shared/{shared}/note", shared, a.current(a.noteShared))
	on(http.MethodPost, "/shared/{shared}/rename", shared, a.current(a.renameShared))
	on(http.MethodPost, "/shared/{shared}/delete", shared, a.current(a.deleteShared))

	on(http.MethodGet, "/repos/{repo}", read, a.granted(a.repo))
	on(http.MethodGet, "/repos/{repo}/environment", read, a.granted(a.environment))
	on(http.MethodPut, "/repos/{repo}/environment/draft", environments, a.granted(a.saveDraft))
	on(http.MethodPost, "/repos/{repo}/environment/draft/discard", environments, a.granted(a.discardDraft))
	on(http.MethodPost, "/repos/{repo}/environment/draft/restore", environments, a.granted(a.restoreDraft))
	on(http.MethodGet, "/repos/{repo}/environment/draft/variables", read, a.granted(a.draftVariables))
	on(http.MethodGet, "/repos/{repo}/environment/diff", read, a.granted(a.diff))
	on(http.MethodPost, "/repos/{repo}/environment/variables/{variable}/enter", environments, a.granted(a.enterValue))
	on(http.MethodGet, "/repos/{repo}/environment/sessions", read, a.granted(a.onVersions))
	on(http.MethodPost, "/repos/{repo}/environment/apply", environments, a.granted(a.apply))
	on(http.MethodGet, "/repos/{repo}/environment/versions", read, a.granted(a.versions))
	on(http.MethodGet, "/repos/{repo}/environment/versions/{number:[0-9]+}", read, a.granted(a.version))
	on(http.MethodGet, "/repos/{repo}/environment/versions/{number:[0-9]+}/variables", read, a.granted(a.versionVariables))
	on(http.MethodGet, "/repos/{repo}/environment/versions/{number:[0-9]+}/shared-changes", read, a.granted(a.sharedChanges))
	on(http.MethodGet, "/repos/{repo}/environment/tests", read, a.granted(a.tests))
	on(http.MethodPost, "/repos/{repo}/environment/tests", environments, a.granted(a.startTest))
	on(http.MethodGet, "/repos/{repo}/environment/tests/{test}", read, a.granted(a.test))
	on(http.MethodPost, "/repos/{repo}/environment/tests/{test}/cancel", environments, a.granted(a.cancelTest))
	on(http.MethodGet, "/repos/{repo}/environment/tests/{test}/log", read, a.granted(a.testLog))
	on(http.MethodGet, "/repos/{repo}/proposals", read, a.granted(a.proposals))
	on(http.MethodGet, "/repos/{repo}/proposals/{proposal:[0-9]+}", read, a.granted(a.proposal))
	on(http.MethodPost, "/repos/{repo}/proposals/{proposal:[0-9]+}/tests", environments, a.granted(a.testProposal))
	on(http.MethodPost, "/repos/{repo}/proposals/{proposal:[0-9]+}/variables/{variable}/enter", environments, a.granted(a.enterProposed))
	on(http.MethodPost, "/repos/{repo}/proposals/{proposal:[0-9]+}/apply", environments, a.granted(a.applyProposal))
	on(http.MethodPost, "/repos/{repo}/proposals/{proposal:[0-9]+}/adopt", environments, a.granted(a.adoptProposal))
	on(http.MethodPost, "/repos/{repo}/proposals/{proposal:[0-9]+}/again", environments, a.granted(a.lookAtProposal))
	on(http.MethodGet, "/repos/{repo}/sessions", read, a.granted(a.sessions))
	on(http.MethodPost, "/repos/{repo}/sessions", sessions, a.granted(a.startSession))
	on(http.MethodGet, "/repos/{repo}/sessions/{session}", read, a.granted(a.session))
	on(http.MethodPost, "/repos/{repo}/sessions/{session}/sleep", sessions, a.granted(a.changeSession(d.Sessions.Sleep)))
	on(http.MethodPost, "/repos/{repo}/sessions/{session}/wake", sessions, a.granted(a.changeSession(d.Sessions.Wake)))
	on(http.MethodPost, "/repos/{repo}/sessions/{session}/restart", sessions, a.granted(a.changeSession(d.Sessions.Restart)))
	on(http.MethodPost, "/repos/{repo}/sessions/{session}/retry", sessions, a.granted(a.changeSession(d.Sessions.Retry)))
	on(http.MethodPost, "/repos/{repo}/sessions/{session}/archive", sessions, a.granted(a.changeSession(d.Sessions.Archive)))
	on(http.MethodPost, "/repos/{repo}/sessions/{session}/restore", sessions, a.granted(a.restoreSession))
	on(http.MethodPost, "/repos/{repo}/sessions/{session}/grow", sessions, a.granted(a.growSession))
	on(http.MethodPost, "/repos/{repo}/sessions/{session}/count", sessions, a.granted(a.changeSession(d.Sessions.CountUnsaved)))
	on(http.MethodPost, "/repos/{repo}/sessions/{session}/delete", sessions, a.granted(a.deleteSession))
	on(http.MethodGet, "/repos/{repo}/sessions/{session}/log", read, a.granted(a.sessionLog))
	on(http.MethodPost, "/repos/{repo}/sessions/{session}/channels", sessions, a.granted(a.atHome(a.openChannel)))
	on(http.MethodPost, "/repos/{repo}/sessions/{session}/channels/{channel}/exchange", sessions, underWay(a.granted(a.atHome(a.exchange))))
	on(http.MethodDelete, "/repos/{repo}/sessions/{session}/channels/{channel}", sessions, underWay(a.granted(a.atHome(a.closeChannel))))
	on(http.MethodGet, "/repos/{repo}/sessions/{session}/terminals", read, a.granted(a.terminals))
	on(http.MethodPost, "/repos/{repo}/sessions/{session}/terminals", sessions, a.granted(a.atHome(a.openTerminal)))
	on(http.MethodPost, "/repos/{repo}/sessions/{session}/terminals/{terminal}/exchange", sessions, underWay(a.granted(a.atHome(a.lookAtTerminal))))
	on(http.MethodDelete, "/repos/{repo}/sessions/{session}/terminals/{terminal}", sessions, a.granted(a.atHome(a.closeTerminal)))
	on(http.MethodGet, "/repos/{repo}/sessions/{session}/runs", read, a.granted(a.runs))
	on(http.MethodPost, "/repos/{repo}/sessions/{session}/runs", sessions, a.granted(a.startRun))
	on(http.MethodGet, "/repos/{repo}/sessions/{session}/runs/{run}", read, a.granted(a.run))
	on(http.MethodGet, "/repos/{repo}/sessions/{session}/runs/{run}/log", read, a.granted(a.runLog))
	on(http.MethodPost, "/repos/{repo}/sessions/{session}/runs/{run}/stop", sessions, a.granted(a.stopRun))
	return root
}

// reply is what a call answers: a value to encode, or an error.
type reply func(w http.ResponseWriter, r *http.Request, who access.Person) error

// call is one way in: whose token it is and whether that has the scope is looked at before anything else.
type call struct {
	*api
	scope  access.Scope
	answer reply
}

// Scope is what a token needs for a route of New's; false for what isn't one.
func Scope(r *mux.Route) (access.Scope, bool) {
	c, ok := r.GetHandler().(call)
	return c.scope, ok
}

func (c call) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	w.Header().Set("Cache-Control", "no-store")
	scheme, token, _ := strings.Cut(r.Header.Get("Authorization"), " ")
	if !strings.EqualFold(scheme, "Bearer") || token == "" {
		fail(w, r, fault.New(fault.Unauthorized, "This call needs a token: “Authorization: Bearer <token>”."))
		return
	}
	if request.Looks(r) {
		r = r.WithContext(access.Reading(r.Context()))
	}
	who, err := c.Gate.Token(r.Context(), token)
	if err != nil {
		fail(w, r, err)
		return
	}
	if !who.Can(c.scope) {
		w.Header().Set("WWW-Authenticate", `Bearer realm="claude-hub", error="insufficient_scope", scope="`+string(c.scope)+`"`)
		fail(w, r, fault.New(fault.Forbidden, "This token lacks the scope “%s”, which this call needs. Make one that has it: %s/account/tokens", c.scope, c.hub()))
		return
	}
	if err := c.answer(w, r, who); err != nil {
		fail(w, r, err)
	}
}

// hub is this Hub's address, without a slash at its end.
func (a *api) hub() string { return a.PublicURL.Scheme + "://" + a.PublicURL.Host }

// granted answers with the Repo of the path, which is one answer for absent, forbidden and malformed.
func (a *api) granted(h func(http.ResponseWriter, *http.Request, access.Grant) error) reply {
	return func(w http.ResponseWriter, r *http.Request, who access.Person) error {
		id, ok := github.ParseRepoID(mux.Vars(r)["repo"])
		if !ok {
			return access.ErrNotFound
		}
		g, err := a.Gate.Repo(r.Context(), who, id)
		if err != nil {
			return err
		}
		return h(w, r, g)
	}
}

// current is for what changes something that belongs to no Repo: like a Repo's, it waits until GitHub can say that the person is still
// welcome.
func (a *api) current(h reply) reply {
	return func(w http.ResponseWriter, r *http.Request, who access.Person) error {
		if err := a.Gate.Current(r.Context(), who); err != nil {
			return err
		}
		return h(w, r, who)
	}
}

// atHome answers at the Hub that has the Session's terminals and commands in its memory.
func (a *api) atHome(h func(http.ResponseWriter, *http.Request, access.Grant) error) func(http.ResponseWriter, *http.Request, access.Grant) error {
	return func(w http.ResponseWriter, r *http.Request, g access.Grant) error {
		home, err := a.Sessions.Home(r.Context(), g, mux.Vars(r)["session"])
		if err != nil || peer.Pass(w, r, home, nil) {
			return err
		}
		return h(w, r, g)
	}
}

// underWay is for what goes on with something that was opened before: it takes no fresher answer of GitHub's than Gate.Hold
// does, so that GitHub's being away ends no terminal at once.
func underWay(h reply) reply {
	return func(w http.ResponseWriter, r *http.Request, who access.Person) error {
		return h(w, r.WithContext(access.Reading(r.Context())), who)
	}
}

// fail answers err. What is no fault is logged and answered without its text.
func fail(w http.ResponseWriter, r *http.Request, err error) {
	if r.Context().Err() != nil {
		return // nobody is there to read it
	}
	f := fault.Of(err)
	if f.Code == fault.Internal {
		request.Log(r.Context()).Error().Err(err).Msg("internal error")
		f.Message = cmp.Or(store.Trouble(err), f.Message)
	}
	body := schema.Error{Status: request.Status(f.Code), Detail: f.Message, Code: f.Code, Fields: f.Fields}
	var b *badRequest
	if errors.As(err, &b) {
		body.Status = b.status
	}
	var p *problemsError
	if errors.As(err, &p) {
		body.Problems = p.problems
	}
	var e *entryError
	if errors.As(err, &e) {
		body.InstallURL = e.installURL
	}
	var c *environment.ConflictError
	if errors.As(err, &c) {
		body.Conflict = &schema.Conflict{}
		if c.Theirs != nil {
			theirs := draftOf(*c.Theirs)
			body.Conflict.Theirs = &theirs
		}
	}
	if f.Code == fault.Unauthorized {
		w.Header().Set("WWW-Authenticate", `Bearer realm="claude-hub"`)
	}
	problem(w, r, body)
}

func problem(w http.ResponseWriter, r *http.Request, body schema.Error) {
	body.Type, body.Title, body.RequestID = "about:blank", http.StatusText(body.Status), request.ID(r.Context())
	w.Header().Set("Cache-Control", "no-store")
	w.Header().Set("Content-Type", "application/problem+json")
	w.WriteHeader(body.Status)
	_ = json.NewEncoder(w).Encode(body)
}

func noRoute(w http.ResponseWriter, r *http.Request) {
	problem(w, r, schema.Error{Status: http.StatusNotFound, Code: fault.NotFound, Detail: "The API has no such path."})
}

func noMethod(w http.ResponseWriter, r *http.Request) {
	problem(w, r, schema.Error{Status: http.StatusMethodNotAllowed, Code: fault.Invalid, Detail: "This path does not take the method " + r.Method + "."})
}

// badRequest is an Invalid fault with a status of its own.
type badRequest struct {
	status int
	fault  *fault.Error
}

func bad(status int, format string, args ...any) error {
	return &badRequest{status, fault.New(fault.Invalid, format, args...)}
}

func (b *badRequest) Error() string { return b.fault.Message }
func (b *badRequest) Unwrap() error { return b.fault }

// problemsError is an Invalid fault with places.
type problemsError struct {
	fault    *fault.Error
	problems []schema.Problem
}

func (p *problemsError) Error() string { return p.fault.Message }
func (p *problemsError) Unwrap() error { return p.fault }

// decode reads the body, which must be exactly one JSON value without unknown fields. An empty body is {} .
func decode(r *http.Request, into any) error {
	body, err := io.ReadAll(r.Body)
	var large *http.MaxBytesError
	if errors.As(err, &large) {
		return bad(http.StatusRequestEntityTooLarge, "The body is larger than %d bytes.", large.Limit)
	}
	if err != nil {
		return bad(http.StatusBadRequest, "The body did not arrive whole.")
	}
	if len(bytes.TrimSpace(body)) == 0 {
		return nil
	}
	if !utf8.Valid(body) { // encoding/json would put U+FFFD in place of what is not
		return bad(http.StatusBadRequest, "The body is not UTF-8, which JSON is.")
	}
	dec := json.NewDecoder(bytes.NewReader(body))
	dec.DisallowUnknownFields()
	if err := dec.Decode(into); err != nil {
		return bad(http.StatusBadRequest, "The body is not the JSON this call takes: %s.", wrongJSON(err))
	}
	if _, err := dec.Token(); !errors.Is(err, io.EOF) {
		return bad(http.StatusBadRequest, "The body has more than one JSON value.")
	}
	return nil
}

// wrongJSON says what is wrong with a body, without anything that may be a value.
func wrongJSON(err error) string {
	var kind *json.UnmarshalTypeError
	if errors.As(err, &kind) {
		got, _, _ := strings.Cut(kind.Value, " ") // a number's own digits follow
		return "“" + kind.Field + "” is of another type than " + got
	}
	return strings.TrimPrefix(err.Error(), "json: ")
}

func answer(w http.ResponseWriter, status int, v any) error {
	b, err := json.Marshal(v)
	if err != nil {
		return err
	}
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	_, _ = w.Write(append(b, '\n'))
	return nil
}

// answerChanged answers what read reads, with an ETag; with ?wait= and If-None-Match once it is another.
func (a *api) answerChanged(w http.ResponseWriter, r *http.Request, topic string, read func(context.Context) (any, error)) error {
	timer := time.NewTimer(request.Wait(r))
	defer timer.Stop()
	seen := r.Header.Get("If-None-Match")
	over := request.Wait(r) == 0
	for {
		changed := a.Changes.Changed(topic)
		v, err := read(r.Context())
		if err != nil {
			return err
		}
		b, err := json.Marshal(v)
		if err != nil {
			return err
		}
		sum := sha256.Sum256(b)
		tag := `"` + base64.RawURLEncoding.EncodeToString(sum[:12]) + `"`
		if tag != seen {
			w.Header().Set("ETag", tag)
			w.Header().Set("Content-Type", "application/json")
			_, _ = w.Write(append(b, '\n'))
			return nil
		}
		if over {
			w.Header().Set("ETag", tag)
			w.WriteHeader(http.StatusNotModified)
			return nil
		}
		select {
		case <-changed:
		case <-timer.C:
			over = true
		case <-a.Stopping:
			over = true
		case <-r.Context().Done():
			return nil
		}
	}
}
