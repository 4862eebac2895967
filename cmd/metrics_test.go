package cmd

import (
	"context"
	"io"
	"net/http"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/rs/zerolog"

	"github.com/claude-hub/claude-hub/app/github/githubtest"
	"github.com/claude-hub/claude-hub/app/github/githubtest/checked"
	"github.com/claude-hub/claude-hub/app/metrics/metricstest"
)

// TestMetricsOfAHubAreTheDocumentedOnes runs a Hub that is an App, scrapes it at both addresses, and holds what it shows against
// docs/metrics.md, in both directions.
func TestMetricsOfAHubAreTheDocumentedOnes(t *testing.T) {
	t.Parallel()
	gh := checked.New(t, githubtest.Options{GHES: true})
	app := gh.App(githubtest.AppOptions{})
	cfg := appHub(t, gh, app)
	cfg.Metrics.Listen, cfg.Metrics.Token = "127.0.0.1:0", "0123456789abcdef"
	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	h, err := openHub(ctx, cfg, zerolog.Nop())
	if err != nil {
		t.Fatal(err)
	}
	gh.HookURL(app.ID, h.url+"/webhook/github")
	ended := make(chan error, 1)
	go func() { ended <- h.run(ctx) }()
	defer func() {
		stop()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	}()
	scrape := func(url, token string) (int, string) {
		req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, url, nil)
		if err != nil {
			t.Fatal(err)
		}
		req.Header.Set("Authorization", "Bearer "+token)
		resp, err := http.DefaultClient.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		defer resp.Body.Close()
		b, err := io.ReadAll(resp.Body)
		if err != nil {
			t.Fatal(err)
		}
		return resp.StatusCode, string(b)
	}
	gh.Send(app.ID, "member", []byte(`{"action":"added","member":{"id":1}}`))
	if err := gh.Settle(t.Context()); err != nil {
		t.Fatal(err)
	}
	own := "http://" + h.metricsOn.Addr().String() + "/metrics"
	for _, url := range []string{own, h.url + "/metrics"} {
		if status, _ := scrape(url, "wrong"); status != http.StatusUnauthorized {
			t.Errorf("%s with a wrong token: %d", url, status)
		}
	}
	status, text := scrape(h.url+"/metrics", "0123456789abcdef")
	read := metricstest.Read(t, text)
	if status != http.StatusOK || read[`claude_hub_deliveries_total{outcome="received"}`] != 1 || read[`claude_hub_http_requests_total{class="webhook",status="2xx"}`] != 1 {
		t.Errorf("%d\n%s", status, text)
	}

	docs, err := os.ReadFile("../docs/metrics.md")
	if err != nil {
		t.Fatal(err)
	}
	named := regexp.MustCompile("`(claude_hub_[a-z_]+|github_[a-z0-9_]+)`").FindAllStringSubmatch(string(docs), -1)
	var documented []string
	for _, n := range named {
		documented = append(documented, n[1])
	}
	shown := metricstest.Families(text)
	for _, f := range shown {
		if !slices.Contains(documented, f) && !strings.HasPrefix(f, "github_requests_") {
			t.Errorf("docs/metrics.md lacks %s", f)
		}
	}
	later := []string{ // what has not happened here
		"claude_hub_test_builds_total", "claude_hub_metrics_errors_total", "github_rate_limit", "github_rate_remaining",
	}
	for _, f := range documented {
		if !slices.Contains(shown, f) && !slices.Contains(later, f) {
			t.Errorf("docs/metrics.md has %s, which isn't shown", f)
		}
	}
}
