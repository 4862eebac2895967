// Package handlers is every way into the Hub: pages, the JSON API, and the Runners' calls, wired in one place.
package handlers

import (
	"context"
	"fmt"
	stdlog "log"
	"net/http"
	"net/url"
	"strings"

	"github.com/gorilla/mux"
	"github.com/rs/zerolog"

	"github.com/claude-hub/claude-hub/app/access"
	"github.com/claude-hub/claude-hub/app/environment"
	"github.com/claude-hub/claude-hub/app/fleet"
	"github.com/claude-hub/claude-hub/app/metrics"
	"github.com/claude-hub/claude-hub/app/proposal"
	"github.com/claude-hub/claude-hub/app/session"
	"github.com/claude-hub/claude-hub/app/setup"
	"github.com/claude-hub/claude-hub/app/variable"
	"github.com/claude-hub/claude-hub/handlers/api"
	"github.com/claude-hub/claude-hub/handlers/ports"
	"github.com/claude-hub/claude-hub/handlers/runnerapi"
	"github.com/claude-hub/claude-hub/handlers/web"
	"github.com/claude-hub/claude-hub/handlers/webhook"
	"github.com/claude-hub/claude-hub/store"
)

// Deps is what the ways in lead to.
type Deps struct {
	DB           *store.DB
	Gate         *access.Gate
	Environments *environment.Service
	Sessions     *session.Service
	Proposals    *proposal.Service
	Setup        *setup.Service
	Fleet        *fleet.Fleet
	Vault        *variable.Vault
	Webhook      *webhook.Service
	Metrics      *metrics.Metrics // nil: nothing is counted
	// MetricsToken shows Metrics to who sends it; "": not here.
	MetricsToken string
	// PublicURL is how people and Runners reach this Hub. Over https, cookies are bound to it (__Host-).
	PublicURL string
	// PortsDomain is what ports of Sandboxes have their origins below; "": they have none.
	PortsDomain string
	Version     string // of claude-hub
	// Stopping is closed when the Hub begins to stop: streams and long polls end. nil: never.
	Stopping <-chan struct{}
	Log      zerolog.Logger
}

// New wires every route. Read it top to bottom: what is refused first stands first.
func New(d Deps) (http.Handler, error) {
	public, err := url.Parse(d.PublicURL)
	if err != nil || public.Host == "" || (public.Scheme != "http" && public.Scheme != "https") {
		return nil, fmt.Errorf("the Hub's own URL must look like https://hub.example.com, not %q", d.PublicURL)
	}
	https := public.Scheme == "https"
	domain, err := ports.DomainOf(d.PortsDomain, public)
	if err != nil {
		return nil, err
	}

	pages, err := web.New(web.Deps{
		Gate: d.Gate, Environments: d.Environments, Proposals: d.Proposals, Sessions: d.Sessions, Setup: d.Setup, Fleet: d.Fleet, Vault: d.Vault, Deliveries: d.Webhook, Changes: d.DB, Now: d.DB.Now,
		PublicURL: public, SecureCookies: https, Ports: domain, Version: d.Version, Stopping: d.Stopping,
	})
	if err != nil {
		return nil, err
	}
	// People's browsers. Only here are there cookies, so only here can another site's page act for somebody.
	var browser http.Handler = pages
	browser, err = sameOrigin(public, pages.CrossSite, browser)
	if err != nil {
		return nil, fmt.Errorf("the Hub's own URL can't be an origin: %w", err)
	}
	if d.Gate.DevLogin() {
		browser = namedHost(public, pages.ForeignHost, browser)
	}
	browser = limited(bodyLimit, browser)

	calls := api.New(api.Deps{
		Gate: d.Gate, Environments: d.Environments, Proposals: d.Proposals, Sessions: d.Sessions, Fleet: d.Fleet, Vault: d.Vault, Changes: d.DB,
		PublicURL: public, Stopping: d.Stopping,
	})
	runnerPath, runners := runnerapi.New(d.Fleet, d.Log)

	r := mux.NewRouter()
	if d.MetricsToken != "" {
		r.Path(metrics.Path).Handler(d.Metrics.Handler(d.MetricsToken))
	}
	r.Path("/healthz").Methods(http.MethodGet, http.MethodHead).HandlerFunc(alive)
	r.Path("/readyz").Methods(http.MethodGet, http.MethodHead).HandlerFunc(ready(func(ctx context.Context) error {
		return d.DB.Read(ctx, func(*store.Tx) error { return nil })
	}))
	r.Path("/schemas/environment.v1.json").Methods(http.MethodGet, http.MethodHead).HandlerFunc(environmentSchema)
	r.Path(setup.HookPath).Handler(d.Webhook)                         // GitHub: a signature, no cookies, limits of its own
	r.PathPrefix(runnerPath).Handler(runners)                         // Runners: a token each, limits of its own
	r.PathPrefix(api.Prefix + "/").Handler(limited(bodyLimit, calls)) // the CLI and programs: a token, no cookies
	r.PathPrefix("/").Handler(browser)                                // pages

	quiet := func(path string) bool {
		return path == "/healthz" || path == "/readyz" || path == setup.HookPath || path == metrics.Path || strings.HasPrefix(path, runnerPath) || strings.HasSuffix(path, "/exchange") || strings.HasSuffix(path, "/input") || strings.HasSuffix(path, "/steer")
	}
	own := measured(d.Metrics, classes(runnerPath), traced(d.Log, quiet, secured(https, timed(r))))
	if !domain.On() {
		return own, nil
	}
	// What runs in Sandboxes answers under its own hosts, apart from all of the above.
	always := func(string) bool { return true }
	port := func(string) string { return "port" }
	theirs := measured(d.Metrics, port, traced(d.Log, always, timed(ports.New(ports.Deps{Gate: d.Gate, Sessions: d.Sessions, Domain: domain, Hub: public}))))
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if domain.Has(r.Host) {
			theirs.ServeHTTP(w, r)
			return
		}
		own.ServeHTTP(w, r)
	}), nil
}

// newErrorLog carries what net/http itself complains about into our log.
func newErrorLog(log zerolog.Logger) *stdlog.Logger {
	return stdlog.New(log.With().Str("part", "http").Logger(), "", 0)
}
