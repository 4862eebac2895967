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
	"github.com/claude-hub/claude-hub/app/session"
	"github.com/claude-hub/claude-hub/app/variable"
	"github.com/claude-hub/claude-hub/handlers/api/schema"
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
	on := func(method, path string, h http.Handler) { root.Path(Prefix + path).Methods(method).Handler(h) }
	on(http.MethodGet, "/me", a.signedIn(a.me))
	on(http.MethodGet, "/runners", a.signedIn(a.runners))
	on(http.MethodPost, "/runners/registrations", a.signedIn(a.newRegistration))
	on(http.MethodPost, "/runners/{runner}/revoke", a.signedIn(a.revokeRunner))
	on(http.MethodGet, "/sessions", a.signedIn(a.allSessions))
	on(http.MethodGet, "/repos", a.signedIn(a.repos))
	// Shared variables belong to no Repo: anyone signed in manages them (ADR 0009).
	on(http.MethodGet, "/shared", a.signedIn(a.allShared))
	on(http.MethodPost, "/shared", a.signedIn(a.createShared))
	on(http.MethodGet, "/shared/{shared}", a.signedIn(a.shared))
	on(http.MethodPut, "/shared/{shared}/value", a.signedIn(a.setShared))
	on(http.MethodPut, "/shared/{shared}/note", a.signedIn(a.noteShared))
	on(http.MethodPost, "/shared/{shared}/rename", a.signedIn(a.renameShared))
	on(http.MethodPost, "/shared/{shared}/delete", a.signedIn(a.deleteShared))

	on(http.MethodGet, "/repos/{repo}", a.granted(a.repo))
	on(http.MethodGet, "/repos/{repo}/environment", a.granted(a.environment))
	on(http.MethodPut, "/repos/{repo}/environment/draft", a.granted(a.saveDraft))
	on(http.MethodPost, "/repos/{repo}/environment/draft/discard", a.granted(a.discardDraft))
	on(http.MethodPost, "/repos/{repo}/environment/draft/restore", a.granted(a.restoreDraft))
	on(http.MethodGet, "/repos/{repo}/environment/draft/variables", a.granted(a.draftVariables))
	on(http.MethodGet, "/repos/{repo}/environment/diff", a.granted(a.diff))
	on(http.MethodPost, "/repos/{repo}/environment/variables/{variable}/enter", a.granted(a.enterValue))
	on(http.MethodGet, "/repos/{repo}/environment/sessions", a.granted(a.onVersions))
	on(http.MethodPost, "/repos/{repo}/environment/apply", a.granted(a.apply))
	on(http.MethodGet, "/repos/{repo}/environment/versions", a.granted(a.versions))
	on(http.MethodGet, "/repos/{repo}/environment/versions/{number:[0-9]+}", a.granted(a.version))
	on(http.MethodGet, "/repos/{repo}/environment/versions/{number:[0-9]+}/variables", a.granted(a.versionVariables))
	on(http.MethodGet, "/repos/{repo}/environment/versions/{number:[0-9]+}/shared-changes", a.granted(a.sharedChanges))
	on(http.MethodGet, "/repos/{repo}/environment/tests", a.granted(a.tests))
	on(http.MethodPost, "/repos/{repo}/environment/tests", a.granted(a.startTest))
	on(http.MethodGet, "/repos/{repo}/environment/tests/{test}", a.granted(a.test))
	on(http.MethodPost, "/repos/{repo}/environment/tests/{test}/cancel", a.granted(a.cancelTest))
	on(http.MethodGet, "/repos/{repo}/environment/tests/{test}/log", a.granted(a.testLog))
	on(http.MethodGet, "/repos/{repo}/sessions", a.granted(a.sessions))
	on(http.MethodPost, "/repos/{repo}/sessions", a.granted(a.startSession))
	on(http.MethodGet, "/repos/{repo}/sessions/{session}", a.granted(a.session))
	on(http.MethodPost, "/repos/{repo}/sessions/{session}/sleep", a.granted(a.changeSession(d.Sessions.Sleep)))
	on(http.MethodPost, "/repos/{repo}/sessions/{session}/wake", a.granted(a.changeSession(d.Sessions.Wake)))
	on(http.MethodPost, "/repos/{repo}/sessions/{session}/retry", a.granted(a.changeSession(d.Sessions.Retry)))
	on(http.MethodPost, "/repos/{repo}/sessions/{session}/count", a.granted(a.changeSession(d.Sessions.CountUnsaved)))
	on(http.MethodPost, "/repos/{repo}/sessions/{session}/delete", a.granted(a.deleteSession))
	on(http.MethodGet, "/repos/{repo}/sessions/{session}/log", a.granted(a.sessionLog))
	on(http.MethodPost, "/repos/{repo}/sessions/{session}/channels", a.granted(a.openChannel))
	on(http.MethodPost, "/repos/{repo}/sessions/{session}/channels/{channel}/exchange", a.granted(a.exchange))
	on(http.MethodDelete, "/repos/{repo}/sessions/{session}/channels/{channel}", a.granted(a.closeChannel))
	return root
}

// reply is what a call answers: a value to encode, or an error.
type reply func(w http.ResponseWriter, r *http.Request, who access.Person) error

// signedIn asks for a token before anything else is looked at.
func (a *api) signedIn(h reply) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Cache-Control", "no-store")
		scheme, token, _ := strings.Cut(r.Header.Get("Authorization"), " ")
		if !strings.EqualFold(scheme, "Bearer") || token == "" {
			fail(w, r, fault.New(fault.Unauthorized, "This call needs a token: “Authorization: Bearer <token>”."))
			return
		}
		who, err := a.Gate.Token(r.Context(), token)
		if err != nil {
			if fault.Is(err, fault.Unauthorized) {
				err = fault.New(fault.Unauthorized, "This token is unknown or has expired.")
			}
			fail(w, r, err)
			return
		}
		if err := h(w, r, who); err != nil {
			fail(w, r, err)
		}
	})
}

// granted is signedIn with the Repo of the path, which is one answer for absent, forbidden and malformed.
func (a *api) granted(h func(http.ResponseWriter, *http.Request, access.Grant) error) http.Handler {
	return a.signedIn(func(w http.ResponseWriter, r *http.Request, who access.Person) error {
		id, ok := github.ParseRepoID(mux.Vars(r)["repo"])
		if !ok {
			return access.ErrNotFound
		}
		g, err := a.Gate.Repo(r.Context(), who, id)
		if err != nil {
			return err
		}
		return h(w, r, g)
	})
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
