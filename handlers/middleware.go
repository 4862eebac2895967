package handlers

import (
	"context"
	"net"
	"net/http"
	"net/url"
	"runtime/debug"
	"strings"
	"time"

	"github.com/rs/zerolog"

	"github.com/claude-hub/claude-hub/app/metrics"
	"github.com/claude-hub/claude-hub/app/setup"
	"github.com/claude-hub/claude-hub/handlers/api"
	"github.com/claude-hub/claude-hub/handlers/request"
)

const (
	// bodyLimit bounds what a person or the CLI sends at once; the Runner's API has its own, larger one.
	bodyLimit = 2 << 20
	// bodyTime is how long a request's body may take to arrive.
	bodyTime = 60 * time.Second
	// answerTime is how long an answer may take: above the longest poll. Streams extend it with each write.
	answerTime = 60 * time.Second
)

// answer remembers what was answered, for the log and for recovery.
type answer struct {
	http.ResponseWriter
	status int
	bytes  int64
}

func (a *answer) WriteHeader(status int) {
	if a.status == 0 && status >= 200 {
		a.status = status
	}
	a.ResponseWriter.WriteHeader(status)
}

func (a *answer) Write(b []byte) (int, error) {
	if a.status == 0 {
		a.status = http.StatusOK
	}
	n, err := a.ResponseWriter.Write(b)
	a.bytes += int64(n)
	return n, err
}

// Unwrap lets http.ResponseController reach the connection.
func (a *answer) Unwrap() http.ResponseWriter { return a.ResponseWriter }

// traced gives each request an id and one line in the log, and turns a panic into an answer.
// Requests that machines make again and again are logged only when they fail or on level debug: quiet tells which.
func traced(log zerolog.Logger, quiet func(path string) bool, next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		began := time.Now()
		r, id := request.With(r, log)
		w.Header().Set(request.Header, id)
		a := &answer{ResponseWriter: w}
		defer func() {
			if p := recover(); p != nil {
				if p == http.ErrAbortHandler { //nolint:errorlint // the very value, as net/http compares it
					panic(p)
				}
				request.Log(r.Context()).Error().Interface("panic", p).Bytes("stack", debug.Stack()).Msg("a handler panicked")
				if a.status == 0 {
					http.Error(a, "Something went wrong inside claude-hub. Its log has the details under this request's id, "+id+".", http.StatusInternalServerError)
				}
			}
			level := zerolog.InfoLevel
			switch {
			case a.status >= 500:
				level = zerolog.ErrorLevel
			case quiet(r.URL.Path):
				level = zerolog.DebugLevel
			}
			// Only the path: a query may hold what somebody typed.
			request.Log(r.Context()).WithLevel(level).Str("method", r.Method).Str("path", r.URL.Path).Int("status", a.status).
				Int64("bytes", a.bytes).Dur("ms", time.Since(began)).Str("from", host(r.RemoteAddr)).Msg("request")
		}()
		next.ServeHTTP(a, r)
	})
}

// measured counts requests by kind of route. What lasts as long as somebody looks is a kind of its own.
func measured(m *metrics.Metrics, class func(path string) string, next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		began := time.Now()
		a := &answer{ResponseWriter: w}
		defer func() { m.Request(class(r.URL.Path), a.status, time.Since(began)) }()
		next.ServeHTTP(a, r)
	})
}

// classes are few and fixed, whatever anybody asks for.
func classes(runners string) func(path string) string {
	return func(path string) string {
		switch {
		case path == "/healthz", path == "/readyz", path == metrics.Path:
			return "health"
		case path == setup.HookPath:
			return "webhook"
		case strings.HasPrefix(path, runners):
			return "runner"
		case strings.HasSuffix(path, "/events"), strings.HasSuffix(path, "/exchange"), strings.HasSuffix(path, "/socket"):
			return "stream"
		case strings.HasPrefix(path, api.Prefix+"/"):
			return "api"
		}
		return "page"
	}
}

func host(addr string) string {
	h, _, err := net.SplitHostPort(addr)
	if err != nil {
		return addr
	}
	return h
}

// timed bounds how long a body may arrive and an answer may take. The read deadline is set only where a body comes: on a
// stream it would end the request when it passes.
func timed(next http.Handler) http.Handler { return timedBy(bodyTime, answerTime, next) }

func timedBy(body, answer time.Duration, next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		rc := http.NewResponseController(w)
		if r.ContentLength != 0 {
			_ = rc.SetReadDeadline(time.Now().Add(body))
		}
		_ = rc.SetWriteDeadline(time.Now().Add(answer))
		next.ServeHTTP(w, r)
	})
}

func limited(n int64, next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		r.Body = http.MaxBytesReader(w, r.Body, n)
		next.ServeHTTP(w, r)
	})
}

// contentSecurity is facts/reliability.md §6. Avatars come with GitHub sign-in.
const contentSecurity = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; " +
	"base-uri 'none'; object-src 'none'; frame-ancestors 'none'; form-action 'self'"

func secured(https bool, next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		h := w.Header()
		h.Set("Content-Security-Policy", contentSecurity)
		h.Set("X-Content-Type-Options", "nosniff")
		h.Set("Referrer-Policy", "same-origin")
		h.Set("Cross-Origin-Opener-Policy", "same-origin")
		h.Set("Cross-Origin-Resource-Policy", "same-origin")
		if https {
			h.Set("Strict-Transport-Security", "max-age=31536000")
		}
		next.ServeHTTP(w, r)
	})
}

// sameOrigin refuses what another site's page sends (P32). public is the Hub's own origin, for a proxy that changes Host.
func sameOrigin(public *url.URL, deny http.HandlerFunc, next http.Handler) (http.Handler, error) {
	guard := http.NewCrossOriginProtection()
	if public != nil {
		if err := guard.AddTrustedOrigin(public.Scheme + "://" + public.Host); err != nil {
			return nil, err
		}
	}
	guard.SetDenyHandler(deny)
	return guard.Handler(next), nil
}

// namedHost refuses a Host that is a name of somebody else's: with dev login on, a page that had its own name point here
// (DNS rebinding) could sign in and run commands. Addresses can't be rebound.
func namedHost(public *url.URL, deny http.HandlerFunc, next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		name := (&url.URL{Host: r.Host}).Hostname()
		if name != "localhost" && net.ParseIP(name) == nil && (public == nil || name != public.Hostname()) {
			deny(w, r)
			return
		}
		next.ServeHTTP(w, r)
	})
}

// ready answers whether the Hub can work now; alive only that it runs.
func ready(check func(context.Context) error) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		ctx, cancel := context.WithTimeout(r.Context(), 5*time.Second)
		defer cancel()
		w.Header().Set("Cache-Control", "no-store")
		if err := check(ctx); err != nil {
			request.Log(r.Context()).Warn().Err(err).Msg("not ready")
			http.Error(w, "not ready", http.StatusServiceUnavailable)
			return
		}
		_, _ = w.Write([]byte("ready\n"))
	}
}

func alive(w http.ResponseWriter, _ *http.Request) {
	w.Header().Set("Cache-Control", "no-store")
	_, _ = w.Write([]byte("ok\n"))
}

// NewServer is an http.Server for New's handler. It has no write timeout, since streams last; New bounds each answer.
func NewServer(h http.Handler, log zerolog.Logger) *http.Server {
	return &http.Server{
		Handler:           h,
		ReadHeaderTimeout: 10 * time.Second,
		IdleTimeout:       2 * time.Minute,
		MaxHeaderBytes:    64 << 10,
		ErrorLog:          newErrorLog(log),
	}
}
