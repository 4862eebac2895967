package cmd

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"strings"
	"time"

	"github.com/rs/zerolog"

	"github.com/claude-hub/claude-hub/app/access"
	"github.com/claude-hub/claude-hub/app/checks"
	"github.com/claude-hub/claude-hub/app/environment"
	"github.com/claude-hub/claude-hub/app/fleet"
	"github.com/claude-hub/claude-hub/app/github"
	"github.com/claude-hub/claude-hub/app/metrics"
	"github.com/claude-hub/claude-hub/app/proposal"
	"github.com/claude-hub/claude-hub/app/seal"
	"github.com/claude-hub/claude-hub/app/session"
	"github.com/claude-hub/claude-hub/app/setup"
	"github.com/claude-hub/claude-hub/app/token"
	"github.com/claude-hub/claude-hub/app/variable"
	"github.com/claude-hub/claude-hub/handlers"
	"github.com/claude-hub/claude-hub/handlers/webhook"
	"github.com/claude-hub/claude-hub/store"
)

// hub is a running Hub.
type hub struct {
	url       string
	cfg       fileConfig
	app       *github.Holder // the App of the config; none if that names none
	db        *store.DB
	seal      *seal.Service
	gate      *access.Gate
	setup     *setup.Service
	fleet     *fleet.Fleet
	vault     *variable.Vault
	env       *environment.Service
	sessions  *session.Service
	proposals *proposal.Service
	checks    *checks.Reconciler
	webhook   *webhook.Service
	listener  net.Listener
	server    *http.Server
	metrics   *http.Server // nil: not at an address of its own
	metricsOn net.Listener
	stopping  chan struct{} // closed when streams and long polls should end
	console   io.Writer     // what the operator reads; nil: nobody does
	log       zerolog.Logger
}

// openHub opens everything a Hub needs and listens; it answers once run is called. It reads from top to bottom what
// the Hub consists of.
func openHub(ctx context.Context, cfg fileConfig, log zerolog.Logger) (*hub, error) {
	if err := os.MkdirAll(cfg.Data, 0o755); err != nil {
		return nil, fmt.Errorf("make the data folder: %w", err)
	}
	keys, err := encryptionKeys(cfg)
	if err != nil {
		return nil, err
	}
	// Listening comes early, since the App has to know the Hub's address; nothing is answered yet.
	listener, err := net.Listen("tcp", cfg.Hub.Listen)
	if err != nil {
		return nil, fmt.Errorf("listen on %s (key hub.listen): %w", cfg.Hub.Listen, err)
	}
	opened := false
	defer func() {
		if !opened {
			_ = listener.Close()
		}
	}()
	url := cmp.Or(cfg.Hub.URL, "http://"+listener.Addr().String())
	m := metrics.New(version)
	app, given, err := openApp(cfg, url, m)
	if err != nil {
		return nil, err
	}
	db, err := store.Open(ctx, databaseOf(cfg))
	if err != nil {
		return nil, fmt.Errorf("open the database: %w", err)
	}
	h := &hub{url: url, cfg: cfg, app: github.NewHolder(app), db: db, listener: listener, log: log, stopping: make(chan struct{})}
	// Before anything writes: a Hub that can't open what is sealed leaves the database as it is.
	h.seal = seal.New(db, keys, seal.Columns())
	if err := h.seal.Start(ctx, hubName()); err != nil {
		return nil, errors.Join(err, db.Close())
	}
	if lacking, err := h.seal.Strangers(ctx); err != nil {
		return nil, errors.Join(err, db.Close())
	} else if len(lacking) > 0 {
		log.Warn().Str("hub", lacking[0].Name).Str("key", keys.Primary()).Msg("another Hub on this database lacks the first encryption key of this one, and can't open what this one saves: add the key to its config and restart it")
	}

	repos := make([]access.Repo, 0, len(cfg.Dev.Repos))
	for _, r := range cfg.Dev.Repos {
		repos = append(repos, access.Repo{ID: r.ID, Name: r.Name, CloneURL: r.URL})
	}
	if h.gate, err = access.Open(ctx, db, access.Options{
		DevLogin: cfg.Dev.Login, DevRepos: repos, GitHub: h.app, Seal: h.seal,
		People: cfg.Access.People, Age: cfg.Access.Age, Outage: cfg.Access.Outage, Log: log,
	}); err != nil {
		return nil, errors.Join(err, db.Close())
	}
	tokens := token.Of(h.app, log)
	fleetOptions := fleet.Options{LogLimit: int64(cfg.Hub.LogLimit), Version: version, Tokens: tokens, PeerURL: strings.TrimRight(cfg.Hub.PeerURL, "/"), Log: log}
	if cfg.GitHub.Push {
		fleetOptions.Push = tokens
	}
	h.fleet = fleet.New(db, fleetOptions)
	h.setup = setup.New(db, h.seal, h.app, setup.Options{Given: given, PublicURL: url, Suggest: cfg.GitHub.URL, At: cfg.GitHub.At, Formerly: cfg.GitHub.Formerly, Push: cfg.GitHub.Push, Connect: makeApp(url, m), Gate: h.gate,
		Changed: func(tx *store.Tx, in setup.Installation) error { return checks.Wake(tx, in.ID) },
		Found: func(tx *store.Tx, in setup.Installation) error {
			return h.webhook.Found(tx, in.ID, in.Removed || in.Suspended)
		}, Log: log})
	h.vault = variable.New(db, h.seal, h.gate)
	h.env = environment.New(db, h.fleet, h.vault, environment.Options{TestDeadline: cfg.Hub.TestDeadline, NoHostCredentials: !devMode(cfg)})
	h.proposals = proposal.New(db, h.app, h.gate, h.env, h.fleet, proposal.Options{PublicURL: url, AutoTest: cfg.Hub.AutoTest, Log: log})
	h.sessions = session.New(db, h.env, h.fleet, session.Options{IdleAfter: cfg.Hub.IdleAfter, DiskSize: int64(cfg.Hub.SessionDisk), DiskLimit: int64(cfg.Hub.SessionDiskLimit), ArchiveKeepsDisks: cfg.Hub.ArchiveKeepsDisks, Gate: h.gate, GitHub: h.app})
	h.checks = checks.New(db, h.app, checks.Options{Log: log})
	if h.webhook, err = webhook.New(db, webhook.Options{
		GitHub: h.app, Access: h.gate, Setup: h.setup, Proposals: h.proposals, Builds: h.env, Log: log,
		Observe: func(o webhook.Outcome) { m.Delivery(string(o)) },
	}); err != nil {
		return nil, errors.Join(err, db.Close())
	}

	if cfg.Dev.Login && !onLoopback(h.listener.Addr()) {
		log.Warn().Str("listen", h.listener.Addr().String()).Msg("dev login is on: whoever reaches this address may sign in under any name and run commands in Sandboxes")
	}
	routes, err := handlers.New(handlers.Deps{
		DB: db, Gate: h.gate, Setup: h.setup, Fleet: h.fleet, Vault: h.vault, Environments: h.env, Proposals: h.proposals, Sessions: h.sessions, Webhook: h.webhook, Metrics: m, MetricsToken: cfg.Metrics.Token.Reveal(), PublicURL: h.url, PortsDomain: cfg.Hub.PortsDomain, Version: version, Stopping: h.stopping, Log: log,
	})
	if err != nil {
		return nil, errors.Join(err, db.Close())
	}
	h.measure(m)
	if err := h.openMetrics(m); err != nil {
		return nil, errors.Join(err, db.Close())
	}
	h.server = handlers.NewServer(routes, log)
	opened = true
	return h, nil
}

// hubName is how operators tell this Hub from others on its database.
func hubName() string {
	host, err := os.Hostname()
	if err != nil {
		host = "unknown host"
	}
	return fmt.Sprintf("%s (process %d)", host, os.Getpid())
}

func onLoopback(a net.Addr) bool {
	t, ok := a.(*net.TCPAddr)
	return ok && t.IP.IsLoopback()
}

// run serves until ctx ends, then lets what is under way finish and closes everything.
func (h *hub) run(ctx context.Context) error {
	if err := h.fleet.Start(ctx); err != nil {
		return fmt.Errorf("start the fleet: %w", err)
	}
	if err := h.gate.Start(ctx); err != nil {
		return fmt.Errorf("start the gate: %w", err)
	}
	if err := h.checks.Start(ctx); err != nil {
		return fmt.Errorf("start check runs: %w", err)
	}
	if err := h.proposals.Start(ctx); err != nil {
		return fmt.Errorf("start the proposals: %w", err)
	}
	if err := h.setup.Start(ctx); err != nil {
		return fmt.Errorf("start the set-up of the GitHub App: %w", err)
	}
	if err := h.webhook.Start(ctx); err != nil {
		return fmt.Errorf("start to work off webhooks: %w", err)
	}
	failed := make(chan error, 1)
	go func() { failed <- h.server.Serve(h.listener) }()
	if h.metrics != nil {
		go h.serveMetrics()
	}
	known, stopKeeping := context.WithCancel(context.WithoutCancel(ctx))
	kept := make(chan struct{})
	go func() { h.seal.Keep(known); close(kept) }()
	introduced := make(chan struct{})
	go func() { introduce(known, h.app, h.setup, h.log); close(introduced) }()
	h.log.Info().Str("url", h.url).Msg("the Hub serves")
	var err error
	if h.console != nil && !devMode(h.cfg) {
		err = openSetup(context.WithoutCancel(ctx), h.setup, h.console, h.log)
	}
	if err == nil {
		select {
		case <-ctx.Done():
		case err = <-failed:
		}
	}
	close(h.stopping)
	h.fleet.Stop() // first: it answers the long polls that Shutdown would wait for
	grace, cancel := context.WithTimeout(context.WithoutCancel(ctx), 10*time.Second)
	defer cancel()
	if e := h.server.Shutdown(grace); e != nil {
		err = errors.Join(err, h.server.Close())
	}
	if h.metrics != nil {
		err = errors.Join(err, h.metrics.Close())
	}
	h.webhook.Stop()
	h.proposals.Stop()
	h.checks.Stop()
	h.gate.Stop()
	stopKeeping()
	<-kept
	<-introduced
	h.setup.Stop()
	return errors.Join(err, h.db.Close())
}
