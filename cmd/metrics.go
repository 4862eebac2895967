package cmd

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"time"

	"github.com/claude-hub/claude-hub/app/access"
	"github.com/claude-hub/claude-hub/app/environment"
	"github.com/claude-hub/claude-hub/app/metrics"
	"github.com/claude-hub/claude-hub/handlers"
	"github.com/claude-hub/claude-hub/runner/wire"
	"github.com/claude-hub/claude-hub/store"
)

// measure has m count Test builds and ask what is in the database. Called before the fleet is started.
func (h *hub) measure(m *metrics.Metrics) {
	h.env.Watch(func(tx *store.Tx, _ access.Repo, t environment.TestBuild) error {
		if t.Final() {
			tx.After(func() { m.TestBuild(t.State) })
		}
		return nil
	})
	backlog := func(of func(waiting, aside int, oldest time.Duration) float64) func(context.Context) (float64, error) {
		return func(ctx context.Context) (float64, error) {
			b, err := h.webhook.Backlog(ctx)
			return of(b.Waiting, b.Aside, b.Oldest), err
		}
	}
	count := func(ask func(context.Context) (int, error)) func(context.Context) (float64, error) {
		return func(ctx context.Context) (float64, error) {
			n, err := ask(ctx)
			return float64(n), err
		}
	}
	m.Ask(
		metrics.Gauge{Name: "deliveries_waiting", Help: "Webhooks that are stored and not worked off yet.",
			Ask: backlog(func(waiting, _ int, _ time.Duration) float64 { return float64(waiting) })},
		metrics.Gauge{Name: "deliveries_oldest_seconds", Help: "Since when the oldest of those waits; 0 without any.",
			Ask: backlog(func(_, _ int, oldest time.Duration) float64 { return oldest.Seconds() })},
		metrics.Gauge{Name: "deliveries_aside", Help: "Webhooks that could not be worked off and were set aside.",
			Ask: backlog(func(_, aside int, _ time.Duration) float64 { return float64(aside) })},
		metrics.Gauge{Name: "check_runs_pending", Help: "Check runs that GitHub doesn't show as they are yet.", Ask: count(h.checks.Pending)},
		metrics.Gauge{Name: "check_runs_parked", Help: "Check runs that GitHub doesn't take until something changes there.", Ask: count(h.checks.Parked)},
		metrics.Gauge{Name: "runners_connected", Help: "Runners that were in contact within the last lease.", Ask: count(func(ctx context.Context) (int, error) {
			n, _, _, err := h.load(ctx)
			return n, err
		})},
		metrics.Gauge{Name: "sessions_awake", Help: "Sessions whose Sandbox is to run.", Ask: count(func(ctx context.Context) (int, error) {
			_, n, _, err := h.load(ctx)
			return n, err
		})},
		metrics.Gauge{Name: "test_builds_running", Help: "Test builds that have not ended.", Ask: count(func(ctx context.Context) (int, error) {
			_, _, n, err := h.load(ctx)
			return n, err
		})},
	)
}

// load is how many Runners are connected, and what all of them should run.
func (h *hub) load(ctx context.Context) (connected, sessions, tests int, err error) {
	all, err := h.fleet.Runners(ctx)
	for _, r := range all {
		if r.Online {
			connected++
		}
		sessions += r.Load[wire.KindSession]
		tests += r.Load[wire.KindTestBuild]
	}
	return connected, sessions, tests, err
}

// serveMetrics does until the server is closed.
func (h *hub) serveMetrics() {
	if err := h.metrics.Serve(h.metricsOn); err != nil && !errors.Is(err, http.ErrServerClosed) {
		h.log.Error().Err(err).Msg("metrics are no longer shown")
	}
}

// openMetrics listens where the config says, if it says so.
func (h *hub) openMetrics(m *metrics.Metrics) error {
	c := h.cfg.Metrics
	if c.Listen == "" {
		return nil
	}
	l, err := net.Listen("tcp", c.Listen)
	if err != nil {
		return fmt.Errorf("listen on %s (key metrics.listen): %w", c.Listen, err)
	}
	routes := http.NewServeMux()
	routes.Handle(metrics.Path, m.Handler(c.Token.Reveal()))
	h.metrics, h.metricsOn = handlers.NewServer(routes, h.log), l
	h.log.Info().Str("url", "http://"+l.Addr().String()+metrics.Path).Msg("metrics are shown")
	return nil
}
