package handlers_test

import (
	"context"
	"net/http"
	"net/url"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/gorilla/mux"

	"github.com/claude-hub/claude-hub/app/access"
	"github.com/claude-hub/claude-hub/app/apptest"
	"github.com/claude-hub/claude-hub/app/environment"
	"github.com/claude-hub/claude-hub/app/github/githubtest"
	"github.com/claude-hub/claude-hub/app/github/githubtest/checked"
	"github.com/claude-hub/claude-hub/app/session"
	"github.com/claude-hub/claude-hub/app/variable"
	"github.com/claude-hub/claude-hub/envspec"
	"github.com/claude-hub/claude-hub/handlers/api"
	"github.com/claude-hub/claude-hub/handlers/web"
	"github.com/claude-hub/claude-hub/runner/wire"
	"github.com/claude-hub/claude-hub/store"
	"github.com/claude-hub/claude-hub/store/storetest"
)

// route is one way in, with a path whose things exist.
type route struct {
	method, template, path string
	api                    bool
	scope                  access.Scope // of the API's
	repo                   string       // the id in path
}

// hasRepo tells that the route is about a Repo.
func (r route) hasRepo() bool { return strings.Contains(r.template, "{repo}") }

func (r route) changes() bool { return r.method != http.MethodGet && r.method != http.MethodHead }

// in is the route's path for another Repo.
func (r route) in(repo string) string {
	return strings.Replace(r.path, "/repos/"+r.repo, "/repos/"+repo, 1)
}

// routes walks both muxes: a route that is added later is in every test here from then on.
func routes(t *testing.T, s *site, ids map[string]string) []route {
	t.Helper()
	pages, err := web.New(web.Deps{Gate: s.Gate, Environments: s.Environments, Sessions: s.Sessions, Proposals: s.Proposals, Setup: s.Setup, Fleet: s.Fleet, Vault: s.Vault, Deliveries: s.hook, Changes: s.DB, Now: s.DB.Now, PublicURL: &url.URL{Scheme: "http", Host: "hub"}})
	if err != nil {
		t.Fatal(err)
	}
	calls := api.New(api.Deps{Gate: s.Gate, Environments: s.Environments, Sessions: s.Sessions, Proposals: s.Proposals, Fleet: s.Fleet, Vault: s.Vault, Changes: s.DB, PublicURL: &url.URL{}})
	variable := regexp.MustCompile(`\{([a-z]+)(:[^}]*)?\}`)
	var all []route
	for isAPI, router := range map[bool]*mux.Router{false: pages.Router(), true: calls} {
		err := router.Walk(func(r *mux.Route, _ *mux.Router, _ []*mux.Route) error {
			methods, err := r.GetMethods()
			if err != nil {
				return nil // a prefix, not a route
			}
			template, err := r.GetPathTemplate()
			if err != nil {
				return err
			}
			path := variable.ReplaceAllStringFunc(template, func(v string) string {
				id, ok := ids[variable.FindStringSubmatch(v)[1]]
				if !ok {
					t.Fatalf("the test knows no value for %s of %s", v, template)
				}
				return id
			})
			for _, m := range methods {
				one := route{method: m, template: template, path: path, api: isAPI, repo: ids["repo"]}
				if isAPI {
					var ok bool
					if one.scope, ok = api.Scope(r); !ok || !slices.Contains(access.Scopes(), one.scope) {
						t.Errorf("%s %s needs no scope", m, template)
					}
				}
				all = append(all, one)
			}
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	if len(all) < 60 {
		t.Fatalf("the walk found %d routes only", len(all))
	}
	return all
}

// furnished is a site where everything that a path can name exists.
func furnished(t *testing.T) (*site, []route) {
	t.Helper()
	s := newSite(t, storetest.New(t), apptest.Options{})
	return s, s.furnish(t, s.Grant("ana"))
}

// furnish makes everything that a path can name, of a Repo.
func (s *site) furnish(t *testing.T, g access.Grant) []route {
	t.Helper()
	r := s.Runner("r1")
	if _, err := s.Vault.CreateShared(t.Context(), g.Who(), variable.NewShared{Name: "HUB_WIDE", Sensitive: true, Value: []byte("shared-token-0123456789")}); err != nil {
		t.Fatal(err)
	}
	recipe := spec()
	recipe.Variables = []envspec.Variable{{Name: "NPM", Sensitive: true}}
	v := s.AppliedWith(g, r, recipe, map[string][]byte{"NPM": []byte("npm-token-0123456789")})
	sn, err := s.Sessions.Start(t.Context(), g, session.StartInput{Runner: r.ID})
	if err != nil {
		t.Fatal(err)
	}
	terminal, err := s.Fleet.OpenTerminal(t.Context(), r.Item().GetId(), "ana", wire.ChannelSpec{Rows: 24, Cols: 80})
	if err != nil {
		t.Fatal(err)
	}
	run, err := s.Sessions.StartRun(t.Context(), g, sn.ID, session.RunInput{Argv: []string{"true"}})
	if err != nil {
		t.Fatal(err)
	}
	// What a look at a pull request would have left: this Hub has no App.
	err = s.DB.Write(t.Context(), func(tx *store.Tx) error {
		const head = "0123456789abcdef0123456789abcdef01234567"
		if _, err := s.Environments.Propose(tx, g, environment.Proposal{Number: 7, Commit: head, Spec: recipe}); err != nil {
			return err
		}
		_, err := tx.Exec(`INSERT INTO proposals (repo_id, number, version, title, url, author_id, author, head_sha, base_ref, to_default, fork, state, file, problems, updated_at)
VALUES ($1, 7, 1, 'a title', 'https://github.com/acme/rocket/pull/7', 1, 'ana', $2, 'main', 1, 0, 'open', 'valid', '[]', $3)`, int64(g.Repo().ID), head, tx.Now())
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return routes(t, s, map[string]string{
		"repo": g.Repo().ID.String(), "test": v.TestBuild, "session": sn.ID, "number": "1", "runner": r.ID, "file": "style.css", "delivery": "g-1", "channel": "0", "shared": "HUB_WIDE", "variable": "NPM", "proposal": "7", "token": "0123456789abcdef", "terminal": terminal.ID, "port": "8080", "run": run.ID,
	})
}

// open routes are those that need nobody signed in. Those of the set-up ask for a token of the console (web_setup_test.go).
func (r route) open() bool {
	return !r.api && (strings.HasPrefix(r.path, "/sign-") || strings.HasPrefix(r.path, "/auth/") || strings.HasPrefix(r.path, "/assets/") || r.path == "/setup" || strings.HasPrefix(r.path, "/setup/"))
}

func (r route) send(b *browser, path string, set func(*http.Request)) page {
	b.t.Helper()
	if r.api {
		path = strings.TrimPrefix(path, "/api/v1")
		path = "/api/v1" + path
	}
	req := b.request(r.method, path, nil)
	if set != nil {
		set(req)
	}
	return b.do(req)
}

func TestEveryRouteAsksWhoYouAre(t *testing.T) {
	t.Parallel()
	s, all := furnished(t)
	signedIn := s.as("ana")
	for _, r := range all {
		if r.open() {
			continue
		}
		if r.api {
			// A browser's cookie is nobody to the API: so no other site's page can use it.
			p := r.send(signedIn, r.path, nil)
			if p.status != http.StatusUnauthorized || p.header.Get("Www-Authenticate") == "" || (r.method != http.MethodHead && !strings.Contains(p.body, `"code":"unauthorized"`)) {
				t.Errorf("%s %s with a cookie only: %d %s", r.method, r.path, p.status, p.body)
			}
			p = r.send(s.browser(), r.path, func(q *http.Request) { q.Header.Set("Authorization", "Bearer no-such-token") })
			if p.status != http.StatusUnauthorized {
				t.Errorf("%s %s with a wrong token: %d", r.method, r.path, p.status)
			}
			continue
		}
		p := r.send(s.browser(), r.path, nil)
		if r.changes() {
			if p.status != http.StatusUnauthorized || !strings.Contains(p.body, "the form did not go through") {
				t.Errorf("%s %s signed out: %d\n%s", r.method, r.path, p.status, p.body)
			}
		} else if p.status != http.StatusSeeOther || !strings.HasPrefix(p.header.Get("Location"), "/sign-in") {
			t.Errorf("%s %s signed out: %d to %q", r.method, r.path, p.status, p.header.Get("Location"))
		}
		p = r.send(s.browser(), r.path, func(q *http.Request) { q.Header.Set("Accept", "text/event-stream") })
		if p.status != http.StatusUnauthorized {
			t.Errorf("%s %s signed out, as a stream: %d", r.method, r.path, p.status)
		}
	}
}

// TestIdsThatNoDatabaseHoldsAreAbsent sends bytes that TEXT can't be: they are no reason for an error inside the Hub.
func TestIdsThatNoDatabaseHoldsAreAbsent(t *testing.T) {
	t.Parallel()
	s, all := furnished(t)
	b := s.as("ana")
	token := s.token("ana")
	id := regexp.MustCompile(`/[0-9a-f]{8}-[0-9a-f-]{27}`)
	tried := 0
	for _, r := range all {
		for _, bad := range []string{"%00", "%ff", "x%00y"} {
			path := id.ReplaceAllString(r.path, "/"+bad)
			if path == r.path {
				continue
			}
			tried++
			p := r.send(b, path, func(q *http.Request) {
				if r.api {
					q.Header.Set("Authorization", "Bearer "+token)
				}
			})
			if p.status != http.StatusNotFound && p.status != http.StatusUnprocessableEntity {
				t.Errorf("%s %s: %d %s", r.method, path, p.status, p.body)
			}
		}
	}
	if tried < 60 {
		t.Fatalf("only %d requests were made", tried)
	}
	if p := s.api(http.MethodGet, "/repos?name=acme%00", token, nil, nil); p.status != http.StatusNotFound {
		t.Errorf("a Repo's name: %d %s", p.status, p.body)
	}
}

func sameHeader(a, b http.Header) bool {
	if len(a) != len(b) {
		return false
	}
	for name := range a {
		if strings.Join(a[name], "\n") != strings.Join(b[name], "\n") {
			return false
		}
	}
	return true
}

func TestNoRouteIsUsableFromAnotherSitesPage(t *testing.T) {
	t.Parallel()
	s, all := furnished(t)
	b := s.as("ana")
	foreign := map[string]func(*http.Request){
		"cross-site":  func(q *http.Request) { q.Header.Set("Sec-Fetch-Site", "cross-site") },
		"same-site":   func(q *http.Request) { q.Header.Set("Sec-Fetch-Site", "same-site") },
		"old browser": func(q *http.Request) { q.Header.Set("Origin", "https://evil.example") },
		"null origin": func(q *http.Request) { q.Header.Set("Origin", "null") },
	}
	before := s.everything(t)
	seen := 0
	for _, r := range all {
		if r.api || !r.changes() {
			continue
		}
		seen++
		for how, set := range foreign {
			if p := r.send(b, r.path, set); p.status != http.StatusForbidden || !strings.Contains(p.body, "came from another site") {
				t.Errorf("%s %s (%s): %d", r.method, r.path, how, p.status)
			}
		}
	}
	if seen < 14 {
		t.Fatalf("only %d routes change something", seen)
	}
	if after := s.everything(t); after != before {
		t.Errorf("something was changed: %d audited acts before, %d after", before, after)
	}
	own := func(q *http.Request) { q.Header.Set("Origin", s.url); q.Header.Set("Sec-Fetch-Site", "same-origin") }
	if p := (route{method: http.MethodPost}).send(b, "/sign-out", own); p.status != http.StatusSeeOther {
		t.Errorf("our own page: %d", p.status)
	}
}

// everything counts what was ever done: each act is audited.
func (s *site) everything(t *testing.T) (n int) {
	t.Helper()
	err := s.DB.Read(context.Background(), func(tx *store.Tx) error { return tx.Row(`SELECT COUNT(*) FROM audit_log`).Scan(&n) })
	if err != nil {
		t.Fatal(err)
	}
	return n
}

func TestEveryAnswerCarriesItsPolicy(t *testing.T) {
	t.Parallel()
	s, all := furnished(t)
	b := s.as("ana")
	token := s.token("ana")
	all = append(all, route{method: "GET", path: "/healthz"}, route{method: "GET", path: "/readyz"}, route{method: "GET", path: "/no-such-page"},
		route{method: "GET", path: "/api/v1/no-such-call", api: true}, route{method: "PATCH", path: "/"})
	for _, r := range all {
		if strings.HasSuffix(r.path, "/events") || r.changes() {
			continue // streams have a test of their own; what changes is looked at through its refusals
		}
		p := r.send(b, r.path, func(q *http.Request) { q.Header.Set("Authorization", "Bearer "+token) })
		policy := p.header.Get("Content-Security-Policy")
		for _, want := range []string{"default-src 'none'"} {
			if !strings.Contains(policy, want) || strings.Contains(policy, "unsafe") {
				t.Errorf("%s %s: policy %q", r.method, r.path, policy)
			}
		}
		if p.header.Get("X-Content-Type-Options") != "nosniff" || p.header.Get("Referrer-Policy") == "" || len(p.header.Get("X-Request-Id")) != 16 {
			t.Errorf("%s %s: headers %v", r.method, r.path, p.header)
		}
		if strings.Contains(p.body, "<style") || strings.Contains(p.body, "style=") || regexp.MustCompile(`<script[^>]*>[^<]`).MatchString(p.body) || regexp.MustCompile(`\son[a-z]+=`).MatchString(p.body) {
			t.Errorf("%s %s has something that its own policy forbids:\n%s", r.method, r.path, p.body)
		}
	}
}

func TestWhatBelongsToOneRepoIsAbsentFromAnother(t *testing.T) {
	t.Parallel()
	s, all := furnished(t)
	b, token := s.as("ana"), s.token("ana")
	before, seen := s.everything(t), 0
	for _, r := range all {
		if !strings.Contains(r.template, "{test}") && !strings.Contains(r.template, "{session}") && !strings.Contains(r.template, "{number") {
			continue
		}
		seen++
		p := r.send(b, r.in("43"), func(q *http.Request) { q.Header.Set("Authorization", "Bearer "+token) })
		if p.status != http.StatusNotFound {
			t.Errorf("%s %s: %d\n%s", r.method, r.in("43"), p.status, p.body)
		}
	}
	if seen < 30 {
		t.Fatalf("only %d routes name something of a Repo's", seen)
	}
	if after := s.everything(t); after != before {
		t.Errorf("something was changed through another Repo: %d audited acts before, %d after", before, after)
	}
}

func TestWhoUsesASharedVariableIsShownByNameToThoseWithAccessOnly(t *testing.T) {
	t.Parallel()
	w := newTown(t, storetest.New(t), checked.New(t, githubtest.Options{}), apptest.Options{})
	s, anas := w.site, w.in(w.ana)
	ana := anas.grant(w.rocket)
	if _, err := s.Vault.CreateShared(t.Context(), ana.Who(), variable.NewShared{Name: "HUB_WIDE", Value: []byte("x")}); err != nil {
		t.Fatal(err)
	}
	recipe := spec()
	recipe.Variables = []envspec.Variable{{Name: "WIDE", Link: "HUB_WIDE", Build: true}}
	if _, err := s.Environments.Save(t.Context(), ana, 0, recipe, nil); err != nil {
		t.Fatal(err)
	}
	token := w.in(w.bob).tokenOf()
	for _, path := range []string{"/shared", "/shared/HUB_WIDE"} {
		theirs := s.api(http.MethodGet, path, token, nil, nil)
		if theirs.status != http.StatusOK || strings.Contains(theirs.body, "rocket") || !strings.Contains(theirs.body, `"hidden":1`) || !strings.Contains(theirs.body, "1 Repo that you have no access to") {
			t.Errorf("%s for bob: %d %s", path, theirs.status, theirs.body)
		}
		if hers := s.api(http.MethodGet, path, anas.tokenOf(), nil, nil); !strings.Contains(hers.body, "acme/rocket") || !strings.Contains(hers.body, `"hidden":0`) {
			t.Errorf("%s for ana: %d %s", path, hers.status, hers.body)
		}
	}
	p := s.api(http.MethodPost, "/shared/HUB_WIDE/delete", token, map[string]any{"revision": 1}, nil)
	if p.status != http.StatusConflict || strings.Contains(p.body, "rocket") || !strings.Contains(p.body, "that of 1 Repo that you have no access to") {
		t.Errorf("bob deletes it: %d %s", p.status, p.body)
	}
	// Anyone signed in manages them.
	if p := s.api(http.MethodPut, "/shared/HUB_WIDE/value", token, map[string]any{"revision": 1, "sensitive": false, "value": map[string]any{"text": "y"}}, nil); p.status != http.StatusOK {
		t.Errorf("bob sets it: %d %s", p.status, p.body)
	}
}
