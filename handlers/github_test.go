package handlers_test

import (
	"net/http"
	"net/http/httptest"
	"net/url"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/claude-hub/claude-hub/app/access"
	"github.com/claude-hub/claude-hub/app/apptest"
	"github.com/claude-hub/claude-hub/app/fleet"
	"github.com/claude-hub/claude-hub/app/github/githubtest"
	"github.com/claude-hub/claude-hub/app/github/githubtest/checked"
	"github.com/claude-hub/claude-hub/handlers"
	"github.com/claude-hub/claude-hub/store/storetest"
)

func TestSignInWithGitHubComesBackToWhereItBegan(t *testing.T) {
	t.Parallel()
	checked.Both(t, func(t *testing.T, gh *githubtest.Server) {
		w := newTown(t, storetest.New(t), gh, apptest.Options{})
		b := w.browser()
		p := b.get(pathOf(w.rocket))
		link := "/auth/github?return_to=" + url.QueryEscape(pathOf(w.rocket))
		p = b.see(p.header.Get("Location"), "Sign in with GitHub", `href="`+link+`"`)
		if strings.Contains(p.body, "<form") {
			t.Error("the way to GitHub must be a link: the policy holds a form's redirects to form-action")
		}
		p = b.get(link)
		half := regexp.MustCompile(`^claude-hub-sign-in=[A-Za-z0-9_-]{43}\.[0-9a-z]+\.[A-Za-z0-9_-]+; Path=/; Max-Age=600; HttpOnly; SameSite=Lax$`)
		if got := p.header["Set-Cookie"]; len(got) != 1 || !half.MatchString(got[0]) {
			t.Errorf("the browser's half of the state: %q", got)
		}
		p = b.get(w.leave(b, w.ana, link))
		if p.status != http.StatusSeeOther || p.header.Get("Location") != pathOf(w.rocket) {
			t.Fatalf("back: %d to %s\n%s", p.status, p.header.Get("Location"), p.body)
		}
		if b.cookie("claude-hub-sign-in") != "" {
			t.Error("the half of the state stays in the browser")
		}
		p = b.see(pathOf(w.rocket), "acme/rocket", ">ana</a>")
		if strings.Contains(p.body, "Dev login") {
			t.Error("dev login is off")
		}
		b.see("/", "acme/rocket", "As GitHub said")
		if p := b.get(pathOf(w.other)); p.status != http.StatusNotFound {
			t.Errorf("the App isn't installed on it: %d", p.status)
		}
		if p := b.get("/sign-in"); p.status != http.StatusSeeOther {
			t.Errorf("the page to sign in, signed in: %d", p.status)
		}
		b.see("/account", "GitHub, "+strings.TrimPrefix(gh.URLs().Web, "http://"), "1 browser signed in")
	})
}

func TestOneBrowserNeverHasTwoSessions(t *testing.T) {
	t.Parallel()
	w := newTown(t, storetest.New(t), checked.New(t, githubtest.Options{}), apptest.Options{})
	b := w.in(w.ana)
	before := b.carry()
	if p := b.get(w.leave(b, w.ana, "/auth/github")); p.status != http.StatusSeeOther {
		t.Fatal(p.status)
	}
	if b.cookie("claude-hub") == before.cookie("claude-hub") {
		t.Error("a sign-in gives a new id")
	}
	if p := before.get("/"); p.status != http.StatusSeeOther || p.header.Get("Location") != "/sign-in" {
		t.Errorf("the session from before still works: %d", p.status)
	}
	b.see("/account", "1 browser signed in")
}

func TestWhatComesBackWithoutItsOwnStateSignsNobodyIn(t *testing.T) {
	t.Parallel()
	db := storetest.New(t)
	clock := storetest.NewClock(db)
	w := newTown(t, db, checked.New(t, githubtest.Options{}), apptest.Options{})
	nobody := func(what string, b *browser, path string) {
		t.Helper()
		p := b.get(path)
		if p.status != http.StatusUnauthorized || !strings.Contains(p.body, "Begin it again.") || !strings.Contains(p.body, `href="/sign-in"`) {
			t.Errorf("%s: %d\n%s", what, p.status, p.body)
		}
		if b.cookie("claude-hub") != "" {
			t.Errorf("%s: there is a session", what)
		}
	}
	change := func(path, key, value string) string {
		u, err := url.Parse(path)
		if err != nil {
			t.Fatal(err)
		}
		q := u.Query()
		q.Set(key, value)
		u.RawQuery = q.Encode()
		return u.String()
	}
	b := w.browser()
	nobody("another state", b, change(w.leave(b, w.ana, "/auth/github"), "state", "x"))
	b = w.browser()
	nobody("no state", b, change(w.leave(b, w.ana, "/auth/github"), "state", ""))
	nobody("another browser", w.browser(), w.leave(w.browser(), w.ana, "/auth/github"))
	b = w.browser()
	b.get("/auth/github") // this one has begun a sign-in of its own
	nobody("another browser's", b, w.leave(w.browser(), w.bob, "/auth/github"))
	nobody("nothing", w.browser(), "/auth/github/callback")
	b = w.browser()
	late := w.leave(b, w.ana, "/auth/github")
	clock.Advance(11 * time.Minute)
	nobody("after eleven minutes", b, late)

	b = w.browser()
	back := w.leave(b, w.ana, "/auth/github")
	half := b.carry()
	if p := b.get(back); p.status != http.StatusSeeOther {
		t.Fatal(p.status)
	}
	nobody("used before", half, back)
}

func TestWhoCantSignInIsToldWhy(t *testing.T) {
	t.Parallel()
	w := newTown(t, storetest.New(t), checked.New(t, githubtest.Options{}), apptest.Options{})
	b := w.browser()
	p := b.get("/auth/github/callback?error=access_denied&error_description=The+user+%3Cb%3Ehas%3C%2Fb%3E+denied&state=x")
	b.want(p, http.StatusConflict, "GitHub was not allowed to tell this Hub who you are", "Sign in again")
	if strings.Contains(p.body, "<b>has") {
		t.Error("what came along with the address is shown")
	}
	b.want(b.get("/auth/github/callback?error=nonsense"), http.StatusConflict, "GitHub did not let you sign in.")

	p = b.get(w.leave(b, w.gh.Person("mallory"), "/auth/github"))
	b.want(p, http.StatusConflict, "GitHub shows no Repo that you have access to", `href="`+w.gh.URLs().Web+"/apps/"+w.app.Slug+`/installations/new`, "Install the App")
	if b.cookie("claude-hub") != "" {
		t.Error("there is a session")
	}

	mend := w.gh.Break(githubtest.Fault{Path: "/login/oauth/access_token", Status: http.StatusBadGateway})
	b.want(b.get(w.leave(b, w.ana, "/auth/github")), http.StatusServiceUnavailable, "GitHub")
	mend()
	b.want(b.get(w.leave(b, w.ana, "/auth/github")), http.StatusSeeOther)
}

func TestSignInSaysWhatThereIs(t *testing.T) {
	t.Parallel()
	gh := checked.New(t, githubtest.Options{})
	w := newTown(t, storetest.New(t), gh, apptest.Options{})
	w.holder.Set(nil)
	b := w.browser()
	p := b.see("/sign-in", "Nobody can sign in yet", "set-up page")
	if strings.Contains(p.body, "/auth/github") {
		t.Error("a way to a GitHub that there is none of")
	}
	b.want(b.get("/auth/github"), http.StatusConflict, "You are not signed in")

	both := newSite(t, storetest.New(t), apptest.Options{Access: access.Options{GitHub: w.holder}})
	w.connect(w.url + "/auth/github/callback")
	both.browser().see("/sign-in", "Sign in with GitHub", `name="login"`, "Dev login is on.")
}

func TestSignOutEverywhereEndsEveryBrowserAndNoToken(t *testing.T) {
	t.Parallel()
	w := newTown(t, storetest.New(t), checked.New(t, githubtest.Options{}), apptest.Options{})
	one, two, bob := w.in(w.ana), w.in(w.ana), w.in(w.bob)
	token := one.tokenOf()
	one.see("/account", "2 browsers signed in", "1 token")
	if to := one.posted("/account/sign-out-everywhere", nil); to != "/sign-in" {
		t.Fatal(to)
	}
	for i, b := range []*browser{one, two} {
		if p := b.get("/"); p.status != http.StatusSeeOther {
			t.Errorf("browser %d: %d", i, p.status)
		}
	}
	bob.see("/", "tools/saw")
	if p := w.api(http.MethodGet, "/me", token, nil, nil); p.status != http.StatusOK {
		t.Errorf("the token: %d", p.status)
	}
}

func TestPagesSayAsOfWhenWhileGitHubIsAway(t *testing.T) {
	t.Parallel()
	db := storetest.New(t)
	clock := storetest.NewClock(db)
	w := newTown(t, db, checked.New(t, githubtest.Options{}), apptest.Options{})
	b := w.in(w.ana)
	token := b.tokenOf()
	b.see(pathOf(w.rocket), "acme/rocket")
	terminal := w.terminal(b)
	mend := w.gh.Break(githubtest.Fault{Status: http.StatusBadGateway})
	clock.Advance(10 * time.Minute)
	const away = "As of 12:00 UTC: GitHub can't be reached now."
	for _, path := range []string{"/", pathOf(w.rocket), pathOf(w.rocket) + "/environment", pathOf(w.rocket) + "/tests", pathOf(w.rocket) + "/sessions", pathOf(w.rocket) + "/versions"} {
		b.see(path, "acme/rocket", away)
	}
	if p := w.api(http.MethodGet, pathOf(w.rocket), token, nil, nil); p.status != http.StatusOK {
		t.Errorf("the API, reading: %d %s", p.status, p.body)
	}
	// What changes something waits.
	p := b.post(pathOf(w.rocket)+"/environment", draft(0, "debian:12", "", "", "", ""))
	b.want(p, http.StatusServiceUnavailable, "GitHub")
	if p := w.api(http.MethodPost, pathOf(w.rocket)+"/sessions/x/channels", token, map[string]any{}, nil); p.status != http.StatusServiceUnavailable {
		t.Errorf("a terminal isn't reading: %d %s", p.status, p.body)
	}
	if p := w.api(http.MethodPost, terminal+"/exchange", token, map[string]any{}, nil); p.status != http.StatusOK {
		t.Errorf("a terminal that was opened before: %d %s", p.status, p.body)
	}
	if p := w.api(http.MethodPost, pathOf(w.rocket)+"/sessions", token, map[string]any{}, nil); p.status != http.StatusServiceUnavailable || !strings.Contains(p.body, `"code":"unavailable"`) {
		t.Errorf("the API, starting: %d %s", p.status, p.body)
	}
	clock.Advance(2 * time.Hour) // too old for anything
	b.want(b.get(pathOf(w.rocket)), http.StatusServiceUnavailable, "GitHub")
	mend()
	clock.Advance(time.Minute)
	if p := b.see(pathOf(w.rocket), "acme/rocket"); strings.Contains(p.body, "be reached now") {
		t.Error("GitHub is back")
	}
}

func TestALostRepoEndsAnOpenTerminalAtOnce(t *testing.T) {
	t.Parallel()
	w := newTown(t, storetest.New(t), checked.New(t, githubtest.Options{}), apptest.Options{})
	b := w.in(w.ana)
	second := w.gh.Repo("acme/second", true, nil)
	second.Allow(w.ana, "read") // so that she stays signed in
	w.inst.Add(second)
	terminal, token, before := w.terminal(b), b.tokenOf(), b.grant(w.rocket)
	h, err := handlers.New(w.deps())
	if err != nil {
		t.Fatal(err)
	}
	ctx, asked := storetest.Watch(t.Context())
	r := httptest.NewRequestWithContext(ctx, http.MethodPost, w.url+"/api/v1"+terminal+"/exchange", strings.NewReader(`{"wait_ms": 15000}`))
	r.Header.Set("Authorization", "Bearer "+token)
	rw, answered := httptest.NewRecorder(), make(chan struct{})
	go func() { h.ServeHTTP(rw, r); close(answered) }()
	deadline := time.After(10 * time.Second)
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	for granted := false; ; {
		select {
		case <-answered:
			if !granted || rw.Code != http.StatusNotFound || !strings.Contains(rw.Body.String(), "no access to it") {
				t.Errorf("granted: %v, then %d %s", granted, rw.Code, rw.Body)
			}
			parts := strings.Split(terminal, "/")
			if _, err := w.Sessions.Exchange(t.Context(), before, parts[4], parts[6], fleet.ClientMove{}); err == nil {
				t.Error("what runs in the terminal goes on")
			}
			return
		case <-deadline:
			t.Fatal("the terminal goes on")
		case <-tick.C:
		}
		switch {
		case len(asked.All()) < 2: // whose token it is, and whether the Repo is theirs
		case !granted:
			w.rocket.Allow(w.ana, "")
			granted = true
		default: // as a webhook says it
			if err := w.Gate.ForgetPerson(t.Context(), w.ana.ID); err != nil {
				t.Fatal(err)
			}
		}
	}
}

func TestEnteringARepoIsCheckedUpFront(t *testing.T) {
	t.Parallel()
	checked.Both(t, func(t *testing.T, gh *githubtest.Server) {
		w := newTown(t, storetest.New(t), gh, apptest.Options{})
		gh.Org("open")
		gh.Repo("open/hammer", false, githubtest.Files{"a": githubtest.Text("a\n")})
		b := w.in(w.ana)
		token := b.tokenOf()
		install := gh.URLs().Web
		for _, text := range []string{"acme/rocket", " ACME/rocket ", gh.URLs().Web + "/acme/rocket", gh.URLs().Web + "/acme/rocket.git"} {
			if to := b.posted("/open", url.Values{"repo": {text}}); to != pathOf(w.rocket) {
				t.Errorf("%q leads to %s", text, to)
			}
		}
		var repo struct{ ID int64 }
		if p := w.api(http.MethodPost, "/repos/open", token, map[string]string{"repo": "acme/rocket"}, &repo); p.status != http.StatusOK || repo.ID != w.rocket.ID {
			t.Errorf("by the API: %d %s", p.status, p.body)
		}
		refused := func(text string, status int, code, says string) page {
			t.Helper()
			p := b.post("/open", url.Values{"repo": {text}})
			b.want(p, status, says, `value="`+text+`"`, `href="/setup/install"`)
			a := w.api(http.MethodPost, "/repos/open", token, map[string]string{"repo": text}, nil)
			if a.status != status || !strings.Contains(a.body, `"code":"`+code+`"`) || !strings.Contains(a.body, says) || !strings.Contains(a.body, `"install_url":"`+install) {
				t.Errorf("%s by the API: %d %s", text, a.status, a.body)
			}
			return p
		}
		const none = "You have no access to it, or the App isn"
		first := refused("acme/absent", http.StatusNotFound, "not-found", none)
		for _, text := range []string{"tools/saw", "nobody/nothing"} {
			p := refused(text, http.StatusNotFound, "not-found", none)
			if got := strings.ReplaceAll(p.body, text, "acme/absent"); stripID(got) != stripID(first.body) {
				t.Errorf("%s is answered otherwise than what is absent:\n%s\n%s", text, got, first.body)
			}
		}
		refused("open/hammer", http.StatusConflict, "refused", "The App isn") // public, so that everybody may know of it
		p := b.post("/open", url.Values{"repo": {"https://example.com/acme/rocket"}})
		b.want(p, http.StatusUnprocessableEntity, "example.com", `aria-invalid="true"`)
		p = b.post("/open", url.Values{"repo": {"rocket"}})
		b.want(p, http.StatusUnprocessableEntity, "owner/name")
	})
}

func stripID(body string) string {
	return regexp.MustCompile(`<code>[0-9a-f]{16}</code>`).ReplaceAllString(body, "<code>ID</code>")
}

func TestTheListOfReposIsSearchedAndTurnedWithoutScripts(t *testing.T) {
	t.Parallel()
	gh := checked.New(t, githubtest.Options{})
	w := newTown(t, storetest.New(t), gh, apptest.Options{})
	for i := range 64 {
		r := gh.Repo("acme/"+string([]byte{'a' + byte(i/26), 'a' + byte(i%26)})+"-service", true, nil)
		r.Allow(w.ana, "read")
		w.inst.Add(r)
	}
	b := w.in(w.ana)
	w.Applied(b.grant(w.rocket), w.Runner("r1"), spec())
	p := b.see("/", "acme/aa-service", `href="/?page=2" rel="next"`, "version 1")
	if strings.Index(p.body, "acme/rocket") > strings.Index(p.body, "acme/aa-service") {
		t.Error("those with an Environment come first")
	}
	if strings.Contains(p.body, "acme/cl-service") {
		t.Error("everything is on one page")
	}
	b.see("/?page=3", "acme/cl-service", `href="/?page=2" rel="prev"`)
	p = b.see("/?q=CA-", "acme/ca-service", "1 Repo of 65 with “CA-” in its name", `value="CA-"`)
	if strings.Contains(p.body, "acme/ab-service") {
		t.Error("the search finds too much")
	}
	b.see("/?q=nothing&page=7", "0 Repos of 65 with")
	b.see("/?page=99", "acme/rocket")
	if p := b.see("/?q=%3Cscript%3E", "&lt;script&gt;"); strings.Contains(p.body, "<script>") {
		t.Error("what is looked for becomes markup")
	}
}
