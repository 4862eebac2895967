package handlers_test

import (
	"net/http"
	"net/url"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/claude-hub/claude-hub/app/access"
	"github.com/claude-hub/claude-hub/app/apptest"
	"github.com/claude-hub/claude-hub/app/github/githubtest"
	"github.com/claude-hub/claude-hub/app/github/githubtest/checked"
	"github.com/claude-hub/claude-hub/handlers"
	"github.com/claude-hub/claude-hub/handlers/api/schema"
	"github.com/claude-hub/claude-hub/store"
	"github.com/claude-hub/claude-hub/store/storetest"
)

func TestEveryRouteOfTheAPIAsksForItsScope(t *testing.T) {
	t.Parallel()
	s, all := furnished(t)
	ana := s.Grant("ana").Who()
	with := func(scopes ...access.Scope) string {
		secret, _, err := s.Gate.CreateToken(t.Context(), ana, access.TokenOptions{Name: "test", Scopes: scopes, Life: time.Hour})
		if err != nil {
			t.Fatal(err)
		}
		return secret
	}
	only, without := map[access.Scope]string{}, map[access.Scope]string{}
	for _, scope := range access.Scopes() {
		only[scope] = with(scope)
		without[scope] = with(slices.DeleteFunc(access.Scopes(), func(s access.Scope) bool { return s == scope })...)
	}
	before := s.everything(t)
	used := map[access.Scope]int{}
	send := func(r route, token string) page {
		// A body that no call takes: what may be called does nothing here.
		req := s.browser().request(r.method, r.path, strings.NewReader(`{"no such field": 1}`))
		req.Header.Set("Authorization", "Bearer "+token)
		return s.browser().do(req)
	}
	for _, r := range all {
		if !r.api {
			continue
		}
		used[r.scope]++
		if read := !r.changes(); read != (r.scope == access.ScopeRead) && r.template != "/api/v1/repos/open" {
			t.Errorf("%s %s asks for the scope %s", r.method, r.template, r.scope)
		}
		p := send(r, without[r.scope])
		if p.status != http.StatusForbidden || !strings.Contains(p.body, `"code":"forbidden"`) || !strings.Contains(p.body, "lacks the scope “"+string(r.scope)+"”") ||
			!strings.Contains(p.body, s.url+"/account/tokens") || !strings.Contains(p.header.Get("Www-Authenticate"), `scope="`+string(r.scope)+`"`) {
			t.Errorf("%s %s without %s: %d %s", r.method, r.template, r.scope, p.status, p.body)
		}
		if r.method == http.MethodDelete { // closing a channel takes no body
			continue
		}
		if p := send(r, only[r.scope]); p.status == http.StatusForbidden || p.status == http.StatusUnauthorized {
			t.Errorf("%s %s with %s only: %d %s", r.method, r.template, r.scope, p.status, p.body)
		}
	}
	for _, scope := range access.Scopes() {
		if used[scope] == 0 {
			t.Errorf("no route asks for the scope %s", scope)
		}
	}
	if after := s.everything(t); after != before {
		t.Errorf("something was changed: %d audited acts before, %d after", before, after)
	}
}

func TestATokenIsShownOnceAndActsAsFarAsItsScopes(t *testing.T) {
	t.Parallel()
	storetest.Each(t, func(t *testing.T, db *store.DB) {
		clock := storetest.NewClock(db)
		w := newTown(t, db, checked.New(t, githubtest.Options{}), apptest.Options{})
		ana, bob := w.in(w.ana), w.in(w.bob)
		ana.see("/account/tokens", "You have no token.", `value="read" checked`, `value="tokens" aria`, `<option value="90" selected>`)

		form := func(set url.Values) url.Values {
			f := url.Values{"name": {"ci"}, "scope": {"read", "sessions"}, "repos": {"acme/rocket\r\n"}, "life": {"7"}}
			for k, v := range set {
				f[k] = v
			}
			return f
		}
		for _, c := range []struct {
			set  url.Values
			says []string
		}{
			{url.Values{"name": {" "}}, []string{`<a href="#name">`, "what the token is for"}},
			{url.Values{"scope": nil}, []string{`id="scopes-error"`}},
			{url.Values{"scope": {"everything"}}, []string{`id="scopes-error"`, "There is no scope"}},
			{url.Values{"repos": {"acme/rocket acme/other"}}, []string{`id="repos-error"`, "There is no Repo acme/other, or you have no access to it."}},
			{url.Values{"life": {"3650"}}, []string{`id="life-error"`}},
		} {
			p := ana.post("/account/tokens", form(c.set))
			ana.want(p, http.StatusUnprocessableEntity, c.says...)
			if strings.Contains(p.body, "shown only this once") {
				t.Errorf("%v: there is a token", c.set)
			}
		}
		p := ana.post("/account/tokens", form(nil))
		ana.want(p, http.StatusCreated, "it is shown only this once", "2026-01-09 12:00:00 UTC", "export CLAUDE_HUB_URL="+w.url)
		secret := regexp.MustCompile(`<pre class="command" tabindex="0">([A-Za-z0-9_-]{43})</pre>`).FindStringSubmatch(p.body)
		if secret == nil || p.header.Get("Cache-Control") != "no-store" {
			t.Fatalf("the token's secret: %v\n%s", p.header, p.body)
		}
		p = ana.see("/account/tokens", "read, sessions", "acme/rocket", "never", "2026-01-09")
		if strings.Contains(p.body, secret[1]) {
			t.Fatal("a token is shown a second time")
		}
		for path, want := range map[string]int{"/me": http.StatusOK, pathOf(w.rocket): http.StatusOK, pathOf(w.rocket) + "/sessions": http.StatusOK} {
			if p := w.api(http.MethodGet, path, secret[1], nil, nil); p.status != want {
				t.Errorf("%s: %d %s", path, p.status, p.body)
			}
		}
		if p := w.api(http.MethodPost, "/tokens", secret[1], map[string]any{}, nil); p.status != http.StatusForbidden {
			t.Errorf("a token makes a token without the scope: %d %s", p.status, p.body)
		}
		clock.Advance(6 * time.Minute)
		w.api(http.MethodGet, "/me", secret[1], nil, nil)
		ana.see("/account/tokens", "just now")

		id := regexp.MustCompile(`/account/tokens/([0-9a-f]+)/revoke`).FindStringSubmatch(ana.see("/account/tokens").body)[1]
		if p := bob.post("/account/tokens/"+id+"/revoke", nil); p.status != http.StatusNotFound {
			t.Errorf("bob revokes ana's: %d", p.status)
		}
		if to := ana.posted("/account/tokens/"+id+"/revoke", nil); to != "/account/tokens" {
			t.Error(to)
		}
		if p := w.api(http.MethodGet, "/me", secret[1], nil, nil); p.status != http.StatusUnauthorized || !strings.Contains(p.body, "unknown or has expired") {
			t.Errorf("a revoked one: %d %s", p.status, p.body)
		}
		ana.see("/account/tokens", "You have no token.")
	})
}

func TestATokenMakesNoneThatCanDoMore(t *testing.T) {
	t.Parallel()
	w := newTown(t, storetest.New(t), checked.New(t, githubtest.Options{}), apptest.Options{})
	ana := w.in(w.ana)
	maker := ana.tokenOf(access.ScopeRead, access.ScopeTokens)
	var refused schema.Error
	for field, in := range map[string]schema.NewToken{
		"scopes": {Name: "x", Scopes: []string{"read", "sessions"}, Days: 1},
		"days":   {Name: "x", Scopes: []string{"read"}, Days: 31},
		"repos":  {Name: "x", Scopes: []string{"read"}, Days: 1, Repos: []string{"tools/saw"}},
		"name":   {Scopes: []string{"read"}, Days: 1},
	} {
		if p := w.api(http.MethodPost, "/tokens", maker, in, &refused); p.status != http.StatusUnprocessableEntity || refused.Fields[field] == "" {
			t.Errorf("%s: %d %s", field, p.status, p.body)
		}
	}
	var made schema.MadeToken
	if p := w.api(http.MethodPost, "/tokens", maker, schema.NewToken{Name: "small", Scopes: []string{"read"}, Days: 1, Repos: []string{"acme/rocket"}}, &made); p.status != http.StatusCreated ||
		made.Secret == "" || made.Used != nil || len(made.Repos) != 1 || made.Repos[0].Name != "acme/rocket" {
		t.Fatalf("%d %s", p.status, p.body)
	}
	var list []schema.Token
	if w.api(http.MethodGet, "/tokens", made.Secret, nil, &list); len(list) != 2 || list[0].Name != "small" {
		t.Errorf("the list: %+v", list)
	}
	if p := w.api(http.MethodPost, "/tokens/"+made.ID+"/revoke", maker, nil, nil); p.status != http.StatusNoContent {
		t.Errorf("revoke: %d %s", p.status, p.body)
	}
	if p := w.api(http.MethodGet, "/me", made.Secret, nil, nil); p.status != http.StatusUnauthorized {
		t.Errorf("a revoked one: %d", p.status)
	}
}

func TestALostRepoIsLostToTokensAndPagesAtTheNextCheck(t *testing.T) {
	t.Parallel()
	db := storetest.New(t)
	clock := storetest.NewClock(db)
	w := newTown(t, db, checked.New(t, githubtest.Options{}), apptest.Options{})
	second := w.gh.Repo("acme/second", true, githubtest.Files{"a": githubtest.Text("a\n")})
	second.Allow(w.ana, "read")
	w.inst.Add(second)
	ana := w.in(w.ana)
	secret, _, err := w.Gate.CreateToken(t.Context(), ana.person(), access.TokenOptions{Name: "x", Scopes: access.Scopes(), Repos: ana.ids(w.rocket, second), Life: time.Hour})
	if err != nil {
		t.Fatal(err)
	}
	w.rocket.Allow(w.ana, "")
	clock.Advance(6 * time.Minute)
	if p := ana.get(pathOf(w.rocket)); p.status != http.StatusNotFound {
		t.Errorf("the page: %d", p.status)
	}
	if p := w.api(http.MethodGet, pathOf(w.rocket), secret, nil, nil); p.status != http.StatusNotFound {
		t.Errorf("by the token: %d %s", p.status, p.body)
	}
	ana.see("/account/tokens", "acme/second and 1 Repo that you have no access to now")
	var list []schema.Token
	if w.api(http.MethodGet, "/tokens", secret, nil, &list); len(list) != 1 || list[0].Hidden != 1 || len(list[0].Repos) != 1 {
		t.Errorf("the list: %+v", list)
	}
}

// Where no Repo is asked for, the person is: a token is theirs as long as GitHub knows them.
func TestATokenEndsWithItsPersonsAuthorizationAlsoWhereNoRepoIsAskedFor(t *testing.T) {
	t.Parallel()
	for name, ends := range map[string]func(w *town, clock *storetest.Clock){
		"an event says so": func(w *town, _ *storetest.Clock) {
			if err := w.Gate.Revoked(w.t.Context(), w.ana.ID); err != nil {
				w.t.Fatal(err)
			}
		},
		"GitHub says so once it is asked": func(_ *town, clock *storetest.Clock) { clock.Advance(6 * time.Minute) },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			db := storetest.New(t)
			clock := storetest.NewClock(db)
			w := newTown(t, db, checked.New(t, githubtest.Options{}), apptest.Options{})
			ana := w.in(w.ana)
			token := ana.tokenOf()
			calls := map[string]int{}
			for _, c := range ofNoRepo() {
				calls[c.String()] = w.api(c.method, c.path, token, c.body, nil).status
			}
			for call, status := range calls {
				if status == http.StatusUnauthorized {
					t.Fatalf("%s is refused while she is signed in", call)
				}
			}
			w.gh.Unauthorize(w.app.ID, w.ana)
			ends(w, clock)
			for _, c := range ofNoRepo() {
				if p := w.api(c.method, c.path, token, c.body, nil); p.status != http.StatusUnauthorized {
					t.Errorf("%s: %d %s, want 401", c, p.status, p.body)
				}
			}
			for _, path := range []string{"/", "/shared", "/runners", "/account/tokens", "/deliveries"} {
				if p := ana.get(path); p.status != http.StatusSeeOther || !strings.HasPrefix(p.header.Get("Location"), "/sign-in") {
					t.Errorf("the page %s: %d, want the way to sign in", path, p.status)
				}
			}
		})
	}
}

func TestWhatBelongsToNoRepoIsNotChangedWhileGitHubCannotSayWhoIsWelcome(t *testing.T) {
	t.Parallel()
	db := storetest.New(t)
	clock := storetest.NewClock(db)
	w := newTown(t, db, checked.New(t, githubtest.Options{}), apptest.Options{})
	ana := w.in(w.ana)
	token := ana.tokenOf()
	w.gh.Break(githubtest.Fault{Status: http.StatusBadGateway})
	clock.Advance(10 * time.Minute)
	for _, c := range ofNoRepo() {
		want := http.StatusServiceUnavailable
		if c.method == http.MethodGet {
			want = http.StatusOK
		}
		if p := w.api(c.method, c.path, token, c.body, nil); p.status != want && (want != http.StatusOK || p.status != http.StatusNotFound) {
			t.Errorf("%s: %d %s, want %d", c, p.status, p.body, want)
		}
	}
	for path, form := range map[string]url.Values{
		"/add-shared": {"name": {"MORE"}, "value": {"more"}}, "/runners/registrations": nil, "/account/tokens": {"name": {"x"}, "scopes": {"read"}, "days": {"1"}},
	} {
		ana.want(ana.post(path, form), http.StatusServiceUnavailable, "GitHub")
	}
	if p := ana.post("/account/sign-out-everywhere", nil); p.status != http.StatusSeeOther {
		t.Errorf("sign out everywhere: %d, want it to work", p.status)
	}
}

// apiCall is one of the API.
type apiCall struct {
	method, path string
	body         any
}

func (c apiCall) String() string { return c.method + " " + c.path }

// ofNoRepo are calls that ask for no Repo.
func ofNoRepo() []apiCall {
	return []apiCall{
		{http.MethodGet, "/me", nil}, {http.MethodGet, "/runners", nil}, {http.MethodGet, "/shared", nil}, {http.MethodGet, "/tokens", nil},
		{http.MethodGet, "/shared/NONE", nil},
		{http.MethodPost, "/runners/registrations", map[string]any{}}, {http.MethodPost, "/runners/none/revoke", nil},
		{http.MethodPost, "/shared", map[string]any{"name": "MORE", "value": "more"}}, {http.MethodPut, "/shared/MORE/value", map[string]any{"value": "less"}},
		{http.MethodPut, "/shared/MORE/note", map[string]any{"note": "less"}}, {http.MethodPost, "/shared/MORE/rename", map[string]any{"name": "LESS"}},
		{http.MethodPost, "/shared/LESS/delete", map[string]any{}},
		{http.MethodPost, "/tokens", schema.NewToken{Name: "x", Scopes: []string{"read"}, Days: 1}},
	}
}

func TestCookiesAreBoundToThisHostOverHTTPS(t *testing.T) {
	t.Parallel()
	w := newTown(t, storetest.New(t), checked.New(t, githubtest.Options{}), apptest.Options{})
	d := w.deps()
	d.PublicURL = "https://hub.example"
	h, err := handlers.New(d)
	if err != nil {
		t.Fatal(err)
	}
	got := look(t, h, http.MethodGet, "https://hub.example/auth/github", nil, nil)
	bound := regexp.MustCompile(`^__Host-claude-hub-sign-in=[^;]{43,}; Path=/; Max-Age=600; HttpOnly; Secure; SameSite=Lax$`)
	if c := got.header["Set-Cookie"]; got.status != http.StatusSeeOther || len(c) != 1 || !bound.MatchString(c[0]) {
		t.Fatalf("%d %q", got.status, c)
	}
	back, err := w.gh.Authorize(got.header.Get("Location"), w.ana)
	if err != nil {
		t.Fatal(err)
	}
	u, err := url.Parse(back)
	if err != nil {
		t.Fatal(err)
	}
	half, _, _ := strings.Cut(got.header.Get("Set-Cookie"), ";")
	got = look(t, h, http.MethodGet, "https://hub.example"+u.RequestURI(), nil, func(q *http.Request) { q.Header.Set("Cookie", half) })
	session := regexp.MustCompile(`^__Host-claude-hub=[^;]{43}; Path=/; Max-Age=2592000; HttpOnly; Secure; SameSite=Lax$`)
	if c := got.header["Set-Cookie"]; got.status != http.StatusSeeOther || len(c) != 2 || !strings.HasPrefix(c[0], "__Host-claude-hub-sign-in=; Path=/; Max-Age=0;") || !session.MatchString(c[1]) {
		t.Errorf("%d %q\n%s", got.status, c, got.body)
	}
	if got := look(t, h, http.MethodGet, "https://hub.example/", nil, func(q *http.Request) { q.Header.Set("Cookie", "claude-hub=x") }); got.status != http.StatusSeeOther {
		t.Errorf("a cookie without the prefix: %d", got.status)
	}
}
