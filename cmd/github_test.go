package cmd

import (
	"context"
	"crypto/rand"
	"crypto/rsa"
	"crypto/x509"
	"encoding/pem"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/rs/zerolog"

	"github.com/claude-hub/claude-hub/app/config"
	"github.com/claude-hub/claude-hub/app/github/githubtest"
	"github.com/claude-hub/claude-hub/app/github/githubtest/checked"
)

// appHub is the config of a Hub that is app at gh, an Enterprise Server.
func appHub(t *testing.T, gh *githubtest.Server, app githubtest.App) fileConfig {
	t.Helper()
	key := filepath.Join(t.TempDir(), "key.pem")
	write(t, key, app.PrivateKey)
	cfg := fileConfig{Data: t.TempDir(), Hub: config.DefaultHub(), GitHub: config.GitHub{
		URL: gh.URLs().Web, AppID: app.ID, ClientID: app.ClientID, ClientSecret: config.Secret(app.ClientSecret), PrivateKeyFile: key,
		WebhookSecrets: config.Secrets{config.Secret(app.WebhookSecret)},
	}}
	cfg.Hub.Listen = "127.0.0.1:0"
	if err := cfg.GitHub.Check(); err != nil {
		t.Fatal(err)
	}
	return cfg
}

// serves runs a Hub until its log says words, and gives the log of its whole life.
func serves(t *testing.T, cfg fileConfig, words string) string {
	t.Helper()
	var log lockedText
	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	h, err := openHub(ctx, cfg, zerolog.New(&log))
	if err != nil {
		t.Fatal(err)
	}
	var console lockedText
	h.console = &console
	ended := make(chan error, 1)
	go func() { ended <- h.run(ctx) }()
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for deadline := time.After(30 * time.Second); !strings.Contains(log.String(), words); {
		select {
		case <-deadline:
			t.Fatalf("the log doesn't say %q:\n%s", words, log.String())
		case <-tick.C:
		}
	}
	if res, err := http.Get(h.url + "/readyz"); err != nil || res.StatusCode != http.StatusOK {
		t.Errorf("the Hub isn't ready: %v %v", res, err)
	} else {
		res.Body.Close()
	}
	stop()
	if err := <-ended; err != nil {
		t.Error(err)
	}
	return log.String() + console.String()
}

func TestServeSaysWhichAppItIsAndWhatItLacks(t *testing.T) {
	t.Parallel()
	gh := checked.New(t, githubtest.Options{GHES: true})
	gh.Org("octo")
	app := gh.App(githubtest.AppOptions{Owner: "octo", Name: "Our Hub", Permissions: map[string]string{"metadata": "read", "contents": "read", "checks": "read"}})
	log := serves(t, appHub(t, gh, app), "lacks permissions")
	for _, says := range []string{`the Hub is the GitHub App \"Our Hub\"`, fmt.Sprintf(`"app":%d`, app.ID), `"owner":"octo"`, `"checks: write"`, gh.URLs().Web + "/github-apps/"} {
		if !strings.Contains(log, says) {
			t.Errorf("the log doesn't say %s:\n%s", says, log)
		}
	}
	for _, secret := range []string{app.ClientSecret, app.WebhookSecret, app.PrivateKey[40:80]} {
		if strings.Contains(log, secret) {
			t.Error("the log has a secret")
		}
	}
}

func TestServeStartsWhileGitHubIsDown(t *testing.T) {
	t.Parallel()
	gh := checked.New(t, githubtest.Options{GHES: true})
	cfg := appHub(t, gh, gh.App(githubtest.AppOptions{}))
	gh.Break(githubtest.Fault{Status: http.StatusBadGateway})
	serves(t, cfg, "the GitHub App could not be asked about itself: GitHub has trouble (status 502)")
	gh.Close()
	serves(t, cfg, "the GitHub App could not be asked about itself: GitHub can't be reached")
}

func TestServeWithAnotherKeyThanTheAppsSaysSo(t *testing.T) {
	t.Parallel()
	gh := checked.New(t, githubtest.Options{GHES: true})
	cfg := appHub(t, gh, gh.App(githubtest.AppOptions{}))
	key, err := rsa.GenerateKey(rand.Reader, 2048)
	if err != nil {
		t.Fatal(err)
	}
	write(t, cfg.GitHub.PrivateKeyFile, string(pem.EncodeToMemory(&pem.Block{Type: "RSA PRIVATE KEY", Bytes: x509.MarshalPKCS1PrivateKey(key)})))
	serves(t, cfg, "GitHub doesn't accept the App's credentials")
}

func TestAHubWithNeitherAppNorDevModeSaysThatNothingIsCloned(t *testing.T) {
	t.Parallel()
	cfg := fileConfig{Data: t.TempDir(), Hub: config.DefaultHub()}
	cfg.Hub.Listen = "127.0.0.1:0"
	log := serves(t, cfg, "the Hub has no GitHub App and is not in dev mode")
	if !regexp.MustCompile(`(?m)^  http://127\.0\.0\.1:[0-9]+/setup\?token=[A-Za-z0-9_-]{43}$`).MatchString(log) {
		t.Errorf("it doesn't say where to set one up:\n%s", log)
	}
	if strings.Count(log, "token=") != 1 {
		t.Error("the log has the token")
	}
	cfg.Dev.Login = true
	if log := serves(t, cfg, "the Hub serves"); strings.Contains(log, "no GitHub App") {
		t.Errorf("in dev mode:\n%s", log)
	}
}

func TestServeRefusesAnAppThatCantWork(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	app := "app_id: 1\n  client_id: a\n  client_secret: canary-secret\n  webhook_secrets: canary-hook\n  "
	for says, section := range map[string]string{
		"only half of a GitHub App: set github.client_id":     "app_id: 1",
		"set github.webhook_secrets (or webhook_secret_file)": "app_id: 1\n  client_id: a\n  client_secret: canary-secret\n  private_key: canary-key",
		"read github.private_key_file":                        app + "private_key_file: " + filepath.Join(dir, "gone"),
		"private key is missing or no PEM text":               app + "private_key: canary-key",
		"field app not found":                                 "app: 1",
	} {
		file, data := filepath.Join(dir, "config.yml"), filepath.Join(dir, "data")
		write(t, file, "hub: {listen: \"127.0.0.1:0\"}\ngithub:\n  "+section+"\n")
		got := say(t, "", "serve", "--config", file, "--data", data)
		if got.code != exitUsage || !strings.Contains(got.err, says) || strings.Contains(got.err+got.out, "canary") {
			t.Errorf("want %q, got %+v", says, got)
		}
		if _, err := os.Stat(filepath.Join(data, "hub.db")); err == nil {
			t.Errorf("%s: a database was made", says)
		}
	}
}

// lockedText is a log that is read while it is written.
type lockedText struct {
	mu sync.Mutex
	b  strings.Builder
}

func (l *lockedText) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(p)
}

func (l *lockedText) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.String()
}
