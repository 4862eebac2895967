package metrics_test

import (
	"context"
	"errors"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/palantir/go-githubapp/githubapp"

	"github.com/claude-hub/claude-hub/app/github"
	"github.com/claude-hub/claude-hub/app/metrics"
	"github.com/claude-hub/claude-hub/app/metrics/metricstest"
)

func get(t *testing.T, h http.Handler, token string) *httptest.ResponseRecorder {
	t.Helper()
	r := httptest.NewRequest(http.MethodGet, metrics.Path, nil)
	if token != "" {
		r.Header.Set("Authorization", "Bearer "+token)
	}
	w := httptest.NewRecorder()
	h.ServeHTTP(w, r)
	return w
}

func TestWhatIsCountedCanBeReadAsPrometheusDoes(t *testing.T) {
	t.Parallel()
	m := metrics.New(`v1 "x"\y`)
	githubapp.ClientMetrics(m.Registry())(answering{})

	m.Ask(
		metrics.Gauge{Name: "sessions_awake", Help: "Sessions.", Ask: func(context.Context) (float64, error) { return 3, nil }},
		metrics.Gauge{Name: "broken", Help: "Broken.", Ask: func(context.Context) (float64, error) { return 0, errors.New("away") }},
	)
	var all sync.WaitGroup
	for range 50 {
		all.Go(func() {
			m.Request("api", 200, 20*time.Millisecond)
			m.Request("api", 503, 20*time.Millisecond)
			m.Delivery("received")
			m.TestBuild("passed")
			m.GitHub(observed)
			m.Text(t.Context())
		})
	}
	all.Wait()
	rt := githubapp.ClientMetrics(m.Registry())(answering{})
	req := httptest.NewRequest(http.MethodGet, "https://api.example/app", nil)
	if _, err := rt.RoundTrip(req); err != nil {
		t.Fatal(err)
	}
	read := metricstest.Read(t, get(t, m.Handler(""), "").Body.String())
	for name, want := range map[string]float64{
		`claude_hub_http_requests_total{class="api",status="2xx"}`:                                     50,
		`claude_hub_http_requests_total{class="api",status="5xx"}`:                                     50,
		`claude_hub_http_request_seconds{class="api",quantile="0.99"}`:                                 0.02,
		`claude_hub_http_request_seconds_count{class="api"}`:                                           100,
		`claude_hub_http_request_seconds_sum{class="api"}`:                                             2,
		`claude_hub_deliveries_total{outcome="received"}`:                                              50,
		`claude_hub_test_builds_total{outcome="passed"}`:                                               50,
		`claude_hub_github_requests_total{operation="POST /repositories/{}/check-runs",status="none"}`: 50,
		`claude_hub_sessions_awake`:                                                                    3,
		`claude_hub_info{version="v1 \"x\"\\y"}`:                                                       1,
		`github_requests_total`:                                                                        1,
		`github_requests_2xx_total`:                                                                    1,
		`github_rate_limit{installation="0"}`:                                                          5000,
		`github_rate_remaining{installation="0"}`:                                                      4999,
	} {
		if got, ok := read[name]; !ok || got < want*0.999 || got > want*1.001 {
			t.Errorf("%s is %v (there: %v), not %v", name, got, ok, want)
		}
	}
	if read[`claude_hub_metrics_errors_total{name="broken"}`] == 0 {
		t.Error("a gauge that can't be asked isn't counted")
	}
	if _, there := read["claude_hub_broken"]; there {
		t.Error("a gauge that can't be asked is shown")
	}
}

var observed = github.Observed{Operation: "POST /repositories/{}/check-runs", Took: time.Second}

func TestOnlyWhoHasTheTokenReads(t *testing.T) {
	t.Parallel()
	h := metrics.New("v1").Handler("0123456789abcdef")
	for token, want := range map[string]int{"": 401, "0123456789abcde": 401, "0123456789abcdef": 200} {
		if w := get(t, h, token); w.Code != want || (want == 401) != strings.Contains(w.Body.String(), "metrics.token") {
			t.Errorf("%q: %d %s", token, w.Code, w.Body)
		}
	}
	w := httptest.NewRecorder()
	h.ServeHTTP(w, httptest.NewRequest(http.MethodPost, metrics.Path, nil))
	if w.Code != http.StatusMethodNotAllowed {
		t.Errorf("a POST: %d", w.Code)
	}
}

func TestWithoutMetricsNothingIsCounted(t *testing.T) {
	t.Parallel()
	var m *metrics.Metrics
	m.Request("api", 200, time.Second)
	m.Delivery("received")
	m.TestBuild("passed")
	m.GitHub(observed)
	m.Ask(metrics.Gauge{})
	if m.Registry() != nil {
		t.Error("it has a registry")
	}
}

type answering struct{}

func (answering) RoundTrip(*http.Request) (*http.Response, error) {
	return &http.Response{StatusCode: 200, Header: http.Header{"X-Ratelimit-Limit": {"5000"}, "X-Ratelimit-Remaining": {"4999"}}}, nil
}
