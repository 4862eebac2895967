package githubtest_test

import (
	"bytes"
	"context"
	"encoding/json"
	"io"
	"net/http"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/golang-jwt/jwt/v4"

	"github.com/claude-hub/claude-hub/app/github/githubtest"
)

// scene is an App on an organization with one private Repo, and one that it wasn't given.
type scene struct {
	gh          *githubtest.Server
	ana, bob    githubtest.Account
	org         githubtest.Account
	repo, other githubtest.Repo
	app         githubtest.App
	inst        githubtest.Installation
}

func begin(t *testing.T, gh *githubtest.Server) *scene {
	t.Helper()
	s := &scene{gh: gh, ana: gh.Person("ana"), bob: gh.Person("bob"), org: gh.Org("octo")}
	s.repo = gh.Repo("octo/app", true, githubtest.Files{"README.md": githubtest.Text("hello\n")})
	s.other = gh.Repo("octo/other", true, githubtest.Files{"README.md": githubtest.Text("other\n")})
	s.repo.Allow(s.ana, "write")
	s.app = gh.App(githubtest.AppOptions{Callbacks: []string{"http://hub.example/callback"}, SetupURL: "http://hub.example/setup"})
	s.inst = gh.Install(s.app.ID, s.org, s.ana, s.repo)
	return s
}

// jwt is the App's own token: issued now, for so long.
func (s *scene) jwt(t *testing.T, life time.Duration, change func(*jwt.Token)) string {
	t.Helper()
	key, err := jwt.ParseRSAPrivateKeyFromPEM([]byte(s.app.PrivateKey))
	if err != nil {
		t.Fatal(err)
	}
	tok := jwt.NewWithClaims(jwt.SigningMethodRS256, jwt.RegisteredClaims{
		Issuer: strconv.FormatInt(s.app.ID, 10), IssuedAt: jwt.NewNumericDate(time.Now().Add(-30 * time.Second)),
		ExpiresAt: jwt.NewNumericDate(time.Now().Add(life)),
	})
	if change != nil {
		change(tok)
	}
	out, err := tok.SignedString(key)
	if err != nil {
		t.Fatal(err)
	}
	return out
}

type reply struct {
	status int
	header http.Header
	body   []byte
}

func (r reply) field(name string) any {
	var m map[string]any
	_ = json.Unmarshal(r.body, &m)
	return m[name]
}

// ask is one request on the API; auth is the header Authorization, or "".
func (s *scene) ask(t *testing.T, auth, method, path, body string) reply {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), method, s.gh.URLs().API+path, strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	if body == "" {
		req.Body = nil
		req.ContentLength = 0
	} else {
		req.Header.Set("Content-Type", "application/json")
	}
	if auth != "" {
		req.Header.Set("Authorization", auth)
	}
	client := &http.Client{CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}
	resp, err := client.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	return reply{resp.StatusCode, resp.Header, bytes.TrimSpace(b)}
}

func (s *scene) asApp(t *testing.T) string { return "Bearer " + s.jwt(t, 5*time.Minute, nil) }

// token is an installation's, made with the given request.
func (s *scene) token(t *testing.T, body string) string {
	t.Helper()
	r := s.ask(t, s.asApp(t), "POST", "/app/installations/"+strconv.FormatInt(s.inst.ID, 10)+"/access_tokens", body)
	tok, _ := r.field("token").(string)
	if r.status != http.StatusCreated || tok == "" {
		t.Fatalf("no token: %d %s", r.status, r.body)
	}
	return tok
}

func settle(t *testing.T, gh *githubtest.Server) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	if err := gh.Settle(ctx); err != nil {
		t.Fatalf("webhooks are still on their way: %v", err)
	}
}
