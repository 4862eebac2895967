package bench

import (
	"bytes"
	"context"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"io"
	"math"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/claude-hub/claude-hub/app/github/githubtest"
	"github.com/claude-hub/claude-hub/app/github/githubtest/examples"
	"github.com/claude-hub/claude-hub/app/seal"
	"github.com/claude-hub/claude-hub/e2e/world"
	"github.com/claude-hub/claude-hub/store"
	"github.com/claude-hub/claude-hub/store/storetest"
)

const (
	deliveryRate = 200 // a second
	// deliveryTime is how long deliveries come in one run: a thousand of them, so that p99 is the tenth slowest.
	deliveryTime = 5 * time.Second
	deliveryRuns = 5
)

// webhooks is the p99 from when a delivery should leave until its answer is there, at 200 deliveries a second, to a Hub in a process
// of its own that works them off meanwhile, against a GitHub that answers it. The peer is a bare net/http handler that only
// verifies the signature.
func webhooks(t *testing.T, b *bench) {
	few := &bench{t: b.t, runs: min(b.runs, deliveryRuns), warmUps: min(b.warmUps, 1), peers: b.peers}
	lasting := deliveryTime
	if !b.peers {
		lasting = time.Second / 2 // only to see that it works
	}
	a, p := webhook(t, few, "", lasting)
	record("webhook", "ms", a, "net/http, signature only", p)
	a, p = webhook(t, few, storetest.PostgreSQL(t), lasting)
	record("webhook_postgres", "ms", a, "net/http, signature only", p)
}

func webhook(t *testing.T, b *bench, database string, lasting time.Duration) (ours, peers []float64) {
	gh, err := githubtest.New(githubtest.Options{Folder: t.TempDir()})
	if err != nil {
		t.Fatal(err)
	}
	defer gh.Close()
	org, ana := gh.Org("acme"), gh.Person("ana")
	repo := gh.Repo("acme/rocket", true, githubtest.Files{"README.md": githubtest.Text("rocket\n")})
	app := gh.App(githubtest.AppOptions{})
	inst := gh.Install(app.ID, org, ana, repo)
	pull := repo.Propose(ana, "feature", githubtest.Files{"x": githubtest.Text("x")})
	w := world.Empty(t, world.Options{
		Database: database, NoDev: true, Hub: map[string]string{"encryption_keys": "[" + seal.NewKey() + "]"}, GitHub: appConfig(t, gh, app),
	})
	w.StartHub()
	defer w.Hub.Stop()
	bare := httptest.NewServer(verifying(app.WebhookSecret))
	defer bare.Close()

	payloads := deliveries(t, map[string]any{"repository": repo.ID, "installation": inst.ID, "sender": ana.ID, "number": pull.Number})
	send := func(to string) float64 { return p99(t, to, app.WebhookSecret, payloads, lasting) }
	return b.inTurns(func() float64 { return send(w.URL + "/webhook/github") }, func() float64 { return send(bare.URL) })
}

// appConfig is the section github of a Hub that is app.
func appConfig(t *testing.T, gh *githubtest.Server, app githubtest.App) map[string]string {
	t.Helper()
	key := filepath.Join(t.TempDir(), "key.pem")
	if err := os.WriteFile(key, []byte(app.PrivateKey), 0o600); err != nil {
		t.Fatal(err)
	}
	return map[string]string{
		"url": gh.URLs().Web, "api_url": gh.URLs().API, "app_id": fmt.Sprint(app.ID), "client_id": app.ClientID, "client_secret": app.ClientSecret,
		"private_key_file": key, "webhook_secrets": "[" + app.WebhookSecret + "]",
	}
}

// verifying is the least that takes a webhook safely.
func verifying(secret string) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, err := io.ReadAll(http.MaxBytesReader(w, r.Body, 25<<20))
		if err != nil {
			http.Error(w, "too large", http.StatusRequestEntityTooLarge)
			return
		}
		mac := hmac.New(sha256.New, []byte(secret))
		mac.Write(body)
		if !hmac.Equal([]byte("sha256="+hex.EncodeToString(mac.Sum(nil))), []byte(r.Header.Get("X-Hub-Signature-256"))) {
			http.Error(w, "not signed", http.StatusUnauthorized)
			return
		}
		w.WriteHeader(http.StatusAccepted)
	})
}

type delivery struct {
	event   string
	payload []byte
}

// deliveries are GitHub's own examples of what comes most, about things that are there.
func deliveries(t *testing.T, ids map[string]any) []delivery {
	t.Helper()
	var all []delivery
	for _, x := range examples.All() {
		if !slices.Contains([]string{"push", "pull_request", "check_run", "member"}, x.Event) {
			continue
		}
		var m map[string]any
		if err := json.Unmarshal(x.Payload, &m); err != nil {
			t.Fatal(err)
		}
		for _, name := range []string{"repository", "sender"} {
			if thing, ok := m[name].(map[string]any); ok {
				thing["id"] = ids[name]
			}
		}
		m["installation"] = map[string]any{"id": ids["installation"]}
		if pull, ok := m["pull_request"].(map[string]any); ok {
			pull["number"] = ids["number"]
		}
		b, err := json.Marshal(m)
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, delivery{x.Event, b})
	}
	return all
}

// p99 sends deliveries evenly for so long and waits for all answers. Each is timed from when it should have left, so that a
// slow answer doesn't make the next ones look quick.
func p99(t *testing.T, to, secret string, payloads []delivery, lasting time.Duration) float64 {
	t.Helper()
	client := &http.Client{Timeout: 30 * time.Second, Transport: &http.Transport{MaxIdleConnsPerHost: 64}}
	defer client.CloseIdleConnections()
	n := int(lasting.Seconds() * deliveryRate)
	requests := make([]*http.Request, n) // signed before: it's the Hub that is measured
	for i := range requests {
		d := payloads[i%len(payloads)]
		r, err := http.NewRequestWithContext(context.Background(), http.MethodPost, to, bytes.NewReader(d.payload))
		if err != nil {
			t.Fatal(err)
		}
		r.Header = githubtest.Signed(d.event, store.NewID(), secret, d.payload)
		requests[i] = r
	}
	took := make([]float64, n)
	var all sync.WaitGroup
	begin := time.Now()
	for i, r := range requests {
		due := begin.Add(time.Duration(i) * time.Second / deliveryRate)
		time.Sleep(time.Until(due))
		all.Go(func() {
			res, err := client.Do(r)
			if err != nil {
				t.Error(err)
				return
			}
			defer res.Body.Close()
			if _, err := io.Copy(io.Discard, res.Body); err != nil || res.StatusCode != http.StatusAccepted {
				t.Errorf("status %d, %v", res.StatusCode, err)
			}
			took[i] = ms(time.Since(due))
		})
	}
	all.Wait()
	slices.Sort(took)
	return took[int(math.Ceil(0.99*float64(n)))-1]
}
