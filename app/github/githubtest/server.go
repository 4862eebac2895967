// Package githubtest is a GitHub of one's own: REST, sign-in, App manifests, installations, checks, git over HTTP and
// webhooks, as far as the Hub uses them, with GitHub's limits and refusals (facts/github.md §1 and §3).
//
// It serves tests, and people who click through the App's flows on one machine (claude-hub dev --fake-github). It keeps
// real bare repositories in a folder and everything else in memory. Tests take it through package checked, which
// holds every request and answer against GitHub's OpenAPI description.
//
// Functions that set the scene panic when the scene is impossible (a Repo of nobody, a commit to a deleted one): that is a
// mistake of the caller. All functions may be called from many goroutines.
package githubtest

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"net"
	"net/http"
	"strings"
	"sync"
	"time"

	"github.com/gorilla/mux"
)

// Options say which GitHub it is. The zero value is github.com on free ports of 127.0.0.1.
type Options struct {
	// Folder takes the bare repositories. It must exist and stay until Close.
	Folder string
	// GHES serves everything on one address, with the API below /api/v3, as an Enterprise Server does. Otherwise the API
	// has an address of its own, as api.github.com has.
	GHES bool
	// Web and API are the addresses to listen on. API is not used with GHES.
	Web, API string
	// Checker looks at everything that is asked and answered on the API.
	Checker Checker
	// Violation is told what Checker found. The request that violates is answered 500 with the reason.
	Violation func(error)
}

// Checker knows what may be asked and answered. The request's path is without the API's base path.
type Checker interface {
	Request(r *http.Request, body []byte) error
	Answer(r *http.Request, body []byte, status int, header http.Header, answer []byte) error
}

// URLs are where a client finds this GitHub, without slashes at their ends.
type URLs struct{ Web, API, GraphQL string }

// Server is one GitHub.
type Server struct {
	opts  Options
	urls  URLs
	stop  context.CancelFunc
	ctx   context.Context
	https []*http.Server
	idle  sync.WaitGroup // background work: deliveries, listeners

	mu       sync.Mutex
	skew     time.Duration
	nextID   int64
	accounts map[int64]*account
	repos    map[int64]*repository
	oldNames map[string]int64 // lower-case owner/name → repository, until somebody else takes the name
	apps     map[int64]*app
	installs map[int64]*installation
	tokens   map[string]*token
	refresh  map[string]*token
	codes    map[string]*code
	pending  map[string]*pendingApp
	checks   map[int64]*checkRun
	suites   map[int64]*suite
	suiteOf  map[suiteKey]*suite
	rates    map[string]*rate
	faults   []*Fault
	requests []Request

	trees sync.Map // repository and sha → []entry: those never change
	hooks hooks
}

// Request is something that was asked of this GitHub, REST, sign-in and git alike.
type Request struct {
	Method, Path, Query string // Path is without the API's base path
	Header              http.Header
	Body                []byte
	As                  string // "app 1", "installation 2", "user ana", "client Iv1…" or "" for nobody
	Status              int    // 0 when no answer was given
	At                  time.Time
}

// New starts a GitHub. It listens until Close.
func New(o Options) (*Server, error) {
	if o.Folder == "" {
		return nil, errors.New("githubtest: say in which folder the repositories go")
	}
	s := &Server{
		opts: o, nextID: 1000,
		accounts: map[int64]*account{}, repos: map[int64]*repository{}, oldNames: map[string]int64{},
		apps: map[int64]*app{}, installs: map[int64]*installation{}, tokens: map[string]*token{},
		refresh: map[string]*token{}, codes: map[string]*code{}, pending: map[string]*pendingApp{},
		checks: map[int64]*checkRun{}, suites: map[int64]*suite{}, suiteOf: map[suiteKey]*suite{}, rates: map[string]*rate{},
	}
	s.ctx, s.stop = context.WithCancel(context.Background())
	s.hooks.init(s)
	web, err := listen(o.Web)
	if err != nil {
		return nil, fmt.Errorf("githubtest: %w", err)
	}
	s.urls.Web = "http://" + web.Addr().String()
	if o.GHES {
		s.urls.API, s.urls.GraphQL = s.urls.Web+"/api/v3", s.urls.Web+"/api/graphql"
		api, pages := http.StripPrefix("/api/v3", s.api()), s.web()
		s.serve(web, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if strings.HasPrefix(r.URL.Path, "/api/v3/") {
				api.ServeHTTP(w, r)
				return
			}
			pages.ServeHTTP(w, r)
		}))
		return s, nil
	}
	api, err := listen(o.API)
	if err != nil {
		_ = web.Close()
		return nil, fmt.Errorf("githubtest: %w", err)
	}
	s.urls.API = "http://" + api.Addr().String()
	s.urls.GraphQL = s.urls.API + "/graphql"
	s.serve(web, s.web())
	s.serve(api, s.api())
	return s, nil
}

func listen(address string) (net.Listener, error) {
	if address == "" {
		address = "127.0.0.1:0"
	}
	return net.Listen("tcp", address)
}

func (s *Server) serve(l net.Listener, h http.Handler) {
	srv := &http.Server{
		Handler: h, ReadHeaderTimeout: 10 * time.Second,
		BaseContext: func(net.Listener) context.Context { return s.ctx },
	}
	s.https = append(s.https, srv)
	s.idle.Add(1)
	go func() {
		defer s.idle.Done()
		_ = srv.Serve(l)
	}()
}

// Close ends all connections and deliveries and returns when nothing of this GitHub runs any more.
func (s *Server) Close() {
	s.stop()
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
	defer cancel()
	for _, srv := range s.https {
		if srv.Shutdown(ctx) != nil {
			_ = srv.Close()
		}
	}
	s.idle.Wait()
}

// URLs says where it listens.
func (s *Server) URLs() URLs { return s.urls }

// GHES says whether it is an Enterprise Server.
func (s *Server) GHES() bool { return s.opts.GHES }

// Advance moves this GitHub's clock forward: tokens, codes and rate limits age by d. The check of an App's JWT goes by
// the real clock, since the product has no other.
func (s *Server) Advance(d time.Duration) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.skew += d
}

func (s *Server) now() time.Time { return time.Now().Add(s.skew).UTC() }

func (s *Server) id() int64 {
	s.nextID++
	return s.nextID
}

// Requests returns what was asked so far, in the order of the answers.
func (s *Server) Requests() []Request {
	s.mu.Lock()
	defer s.mu.Unlock()
	return append([]Request(nil), s.requests...)
}

// Asked counts the requests with method ("" for any) whose path contains part.
func (s *Server) Asked(method, part string) int {
	n := 0
	for _, r := range s.Requests() {
		if (method == "" || r.Method == method) && strings.Contains(r.Path, part) {
			n++
		}
	}
	return n
}

// Forget empties Requests.
func (s *Server) Forget() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.requests = nil
}

// maxBody is more than any request of the Hub; GitHub's own limit is in the same region.
const maxBody = 32 << 20

// call is one request on the API while it is answered.
type call struct {
	s    *Server
	w    *answer
	r    *http.Request
	body []byte
	who  principal
	vars map[string]string
}

// answer is held back until it was looked at.
type answer struct {
	status int
	header http.Header
	body   bytes.Buffer
}

func (a *answer) Header() http.Header { return a.header }
func (a *answer) WriteHeader(status int) {
	if a.status == 0 {
		a.status = status
	}
}
func (a *answer) Write(b []byte) (int, error) {
	a.WriteHeader(http.StatusOK)
	return a.body.Write(b)
}

// api is the REST API: every request goes through faults, rate limits, the checker and the record.
func (s *Server) api() http.Handler {
	router := mux.NewRouter().SkipClean(true)
	s.routes(router)
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, err := io.ReadAll(http.MaxBytesReader(w, r.Body, maxBody))
		if err != nil {
			http.Error(w, `{"message":"Payload too big"}`, http.StatusRequestEntityTooLarge)
			return
		}
		r.Body = io.NopCloser(bytes.NewReader(body))
		a := &answer{header: http.Header{}}
		a.header.Set("Content-Type", "application/json; charset=utf-8")
		a.header.Set("Cache-Control", "private, max-age=60, s-maxage=60")
		a.header.Set("X-GitHub-Request-Id", fmt.Sprintf("%X", time.Now().UnixNano()))
		f := s.fault(r.Method, r.URL.Path)
		s.mu.Lock()
		who, problem := s.authenticate(r)
		s.mu.Unlock()
		c := &call{s: s, w: a, r: r, body: body, who: who}
		violation := s.check(r, body)
		switch {
		case violation != nil:
			c.fail(http.StatusInternalServerError, violation.Error())
		case f.instead():
			f.answer(a)
		case problem != "":
			c.fail(http.StatusUnauthorized, problem)
		case s.spend(c):
		default:
			var match mux.RouteMatch
			if router.Match(r, &match) && match.MatchErr == nil {
				c.vars = match.Vars
				match.Handler.(endpoint)(c)
			} else {
				c.fail(http.StatusNotFound, "Not Found")
			}
			if s.opts.Checker != nil {
				if err := s.opts.Checker.Answer(r, body, a.status, a.header, a.body.Bytes()); err != nil {
					violation = fmt.Errorf("githubtest answered what GitHub would not: %s %s: %w", r.Method, r.URL.Path, err)
					s.violated(violation)
					a.body.Reset()
					a.status = 0
					c.fail(http.StatusInternalServerError, violation.Error())
				}
			}
			f.answer(a)
		}
		s.record(r, body, who, a.status)
		f.send(s.ctx, w, r, a)
	})
}

func (s *Server) check(r *http.Request, body []byte) error {
	if s.opts.Checker == nil {
		return nil
	}
	err := s.opts.Checker.Request(r, body)
	if err != nil {
		err = fmt.Errorf("this is no request that GitHub describes: %s %s: %w", r.Method, r.URL.Path, err)
		s.violated(err)
	}
	return err
}

func (s *Server) violated(err error) {
	if s.opts.Violation != nil {
		s.opts.Violation(err)
	}
}

func (s *Server) record(r *http.Request, body []byte, who principal, status int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.requests = append(s.requests, Request{
		Method: r.Method, Path: r.URL.Path, Query: r.URL.RawQuery, Header: maps.Clone(r.Header), Body: body,
		As: who.name(), Status: status, At: time.Now(),
	})
}

// endpoint answers one kind of request. It is an http.Handler only to stand in a router.
type endpoint func(*call)

// ServeHTTP is never called: the router is only asked to match.
func (endpoint) ServeHTTP(w http.ResponseWriter, _ *http.Request) {
	http.Error(w, "githubtest: endpoints are called by api", http.StatusInternalServerError)
}
