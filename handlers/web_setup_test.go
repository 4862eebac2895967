package handlers_test

import (
	"bytes"
	"fmt"
	"html"
	"mime/multipart"
	"net/http"
	"net/http/httptest"
	"net/url"
	"regexp"
	"strings"
	"testing"

	"github.com/claude-hub/claude-hub/app/access"
	"github.com/claude-hub/claude-hub/app/apptest"
	"github.com/claude-hub/claude-hub/app/github"
	"github.com/claude-hub/claude-hub/app/github/githubtest"
	"github.com/claude-hub/claude-hub/app/github/githubtest/checked"
	"github.com/claude-hub/claude-hub/app/setup"
	"github.com/claude-hub/claude-hub/handlers"
	"github.com/claude-hub/claude-hub/store/storetest"
)

// bare is a Hub without an App and without dev login, beside a GitHub.
type bare struct {
	*site
	gh   *githubtest.Server
	ana  githubtest.Account
	org  githubtest.Account
	repo githubtest.Repo
}

func newBare(t *testing.T, gh *githubtest.Server) *bare {
	t.Helper()
	server := httptest.NewUnstartedServer(nil)
	u := gh.URLs()
	hub := apptest.New(t, storetest.New(t), apptest.Options{NoDev: true, Setup: setup.Options{
		PublicURL: "http://" + server.Listener.Addr().String(),
		At:        func(string) github.Endpoints { return github.Endpoints{Web: u.Web, API: u.API, GraphQL: u.GraphQL} },
	}})
	b := &bare{site: siteOn(t, server, hub), gh: gh, ana: gh.Person("ana"), org: gh.Org("octo")}
	b.repo = gh.Repo("octo/app", true, githubtest.Files{"README.md": githubtest.Text("hello\n")})
	b.repo.Allow(b.ana, "write")
	return b
}

// operator is a browser with a token of the console.
func (s *bare) operator(changes bool) *browser {
	s.t.Helper()
	token, _, err := s.Setup.NewToken(s.t.Context(), "test", changes)
	if err != nil {
		s.t.Fatal(err)
	}
	b := s.browser()
	p := b.see(strings.TrimPrefix(s.Setup.URL(token), s.url), "works once")
	if got := field(s.t, p, "token"); got != token {
		s.t.Fatalf("the page has the token %q", got)
	}
	if to := b.posted("/setup", url.Values{"token": {token}}); to != "/setup" {
		s.t.Fatalf("it leads to %s", to)
	}
	return b
}

// field is a hidden field of a page.
func field(t *testing.T, p page, name string) string {
	t.Helper()
	m := regexp.MustCompile(`name="` + name + `" value="([^"]*)"`).FindStringSubmatch(p.body)
	if m == nil {
		t.Fatalf("the page has no field %s:\n%s", name, p.body)
	}
	return html.UnescapeString(m[1])
}

// created posts the page's form to GitHub, as org's owner, and is the path that GitHub sends the browser back to.
func (s *bare) created(p page) string {
	s.t.Helper()
	m := regexp.MustCompile(`<form method="post" action="(` + regexp.QuoteMeta(s.gh.URLs().Web) + `[^"]*)"`).FindStringSubmatch(p.body)
	if m == nil {
		s.t.Fatalf("no form goes to GitHub:\n%s", p.body)
	}
	action, err := url.Parse(html.UnescapeString(m[1]))
	if err != nil {
		s.t.Fatal(err)
	}
	back, err := s.gh.Manifest(field(s.t, p, "manifest"), action.Query().Get("state"), s.org)
	if err != nil {
		s.t.Fatal(err)
	}
	return s.local(back)
}

func (s *bare) local(to string) string {
	s.t.Helper()
	path, ok := strings.CutPrefix(to, s.url)
	if !ok {
		s.t.Fatalf("GitHub leads to %s", to)
	}
	return path
}

// signIn is ana's sign-in in a browser, past its pages.
func (s *bare) signIn(b *browser) {
	s.t.Helper()
	to, half, err := s.Gate.BeginSignIn(s.t.Context(), "/")
	if err != nil {
		s.t.Fatal(err)
	}
	back, err := s.gh.Authorize(to, s.ana)
	if err != nil {
		s.t.Fatal(err)
	}
	u, err := url.Parse(back)
	if err != nil {
		s.t.Fatal(err)
	}
	_, session, _, err := s.Gate.FinishSignIn(s.t.Context(), half, u.Query().Get("state"), u.Query().Get("code"))
	if err != nil {
		s.t.Fatal(err)
	}
	b.set("claude-hub", session)
}

// set gives a browser a cookie.
func (b *browser) set(name, value string) {
	u, err := url.Parse(b.s.url)
	if err != nil {
		b.t.Fatal(err)
	}
	b.http.Jar.SetCookies(u, []*http.Cookie{{Name: name, Value: value, Path: "/"}})
}

// step is how a step of the checklist stands.
func step(t *testing.T, p page, id string) string {
	t.Helper()
	m := regexp.MustCompile(`(?s)<li id="` + id + `">.*?<span class="state[^>]*>([^<]*)</span>`).FindStringSubmatch(p.body)
	if m == nil {
		t.Fatalf("the checklist has no step %s:\n%s", id, p.body)
	}
	return m[1]
}

func TestAnAppIsCreatedInstalledAndSignedInToFromTheSetUpPage(t *testing.T) {
	t.Parallel()
	checked.Both(t, func(t *testing.T, gh *githubtest.Server) {
		s := newBare(t, gh)
		b := s.operator(false)
		b.see("/setup", "Create a new App", "Or enter one that exists")
		if p := b.see("/setup/checklist", `href="/setup"`); step(t, p, "app") != "to do" {
			t.Error(p.body)
		}

		// What GitHub will be asked for is shown first; the page's policy lets its form go there, and nowhere else.
		p := b.post("/setup/create", url.Values{"name": {"Our Hub"}, "org": {"octo"}})
		b.want(p, http.StatusOK, "Our Hub", "pull_requests", s.url+"/webhook/github", s.url+"/auth/github/callback")
		if policy := p.header.Get("Content-Security-Policy"); !strings.HasSuffix(policy, "form-action 'self' "+gh.URLs().Web) {
			t.Errorf("the policy is %q", policy)
		}
		back := s.created(p)
		p = b.get(back)
		if p.status != http.StatusSeeOther || p.header.Get("Location") != "/setup/checklist?done=app" {
			t.Fatalf("%d %s\n%s", p.status, p.header.Get("Location"), p.body)
		}
		p = b.see("/setup/checklist?done=app", "The Hub is a GitHub App now", `href="/setup/install"`, `data-refresh="10"`, "Sign in</a>")
		for id, want := range map[string]string{"app": "done", "permissions": "done", "hook": "done", "webhook": "to do", "install": "to do", "runner": "to do", "environment": "to do"} {
			if got := step(t, p, id); got != want {
				t.Errorf("%s: %s, want %s", id, got, want)
			}
		}
		if p := b.get(back); p.status != http.StatusConflict {
			t.Errorf("the same way back twice: %d", p.status)
		}

		// GitHub leads back from the installation; who comes there signs in first.
		p = b.get("/setup/install")
		inst, back, err := gh.InstallFrom(p.header.Get("Location"), s.org, s.ana, s.repo)
		if err != nil {
			t.Fatal(err)
		}
		back = s.local(back)
		if p := b.get(back); p.header.Get("Location") != "/sign-in?"+(url.Values{"return_to": {back}}).Encode() {
			t.Fatalf("%d %s", p.status, p.header.Get("Location"))
		}
		s.signIn(b)
		if p := b.get(back); p.header.Get("Location") != "/setup/checklist?done=installed" {
			t.Fatalf("%d\n%s", p.status, p.body)
		}
		p = b.see("/setup/checklist?done=installed", "Sign out", "The App is installed", "On octo.", "Install it on another account")
		if got := step(t, p, "install"); got != "done" {
			t.Error(got)
		}
		r := s.Runner("r1")
		r.Items()
		if err := s.Setup.Heard(t.Context(), "installation"); err != nil {
			t.Fatal(err)
		}
		who, err := s.Gate.Sender(t.Context(), s.ana.ID, github.RepoID(s.repo.ID))
		if err != nil {
			t.Fatal(err)
		}
		s.Applied(who, r, spec())
		p = b.see("/setup/checklist", "Everything is in place", "(installation)", "Sign out")
		if strings.Contains(p.body, "data-refresh") || strings.Contains(p.body, "http-equiv") {
			t.Error("the page goes on testing when there is nothing left to do")
		}
		for id, want := range map[string]string{"webhook": "done", "install": "done", "runner": "done", "environment": "done"} {
			if got := step(t, p, id); got != want {
				t.Errorf("%s: %s, want %s", id, got, want)
			}
		}

		// Trouble afterwards is found again. Who has no Repo any more isn't signed in any more: the operator's browser still sees it.
		inst.Suspend(true)
		if err := s.Setup.Installation(t.Context(), github.Event{Name: "installation", Action: "suspend", Installation: inst.ID}); err != nil {
			t.Fatal(err)
		}
		p = b.see("/setup/checklist", "It is suspended", `data-refresh="10"`)
		if got := step(t, p, fmt.Sprintf("installation-%d", inst.ID)); got != "wrong" {
			t.Error(got)
		}
	})
}

func TestTheSetUpIsForWhoHasATokenOfTheConsole(t *testing.T) {
	t.Parallel()
	s := newBare(t, checked.New(t, githubtest.Options{}))
	stranger := s.browser()
	stranger.see("/setup", "claude-hub setup-token")
	before := s.everything(t)
	for path, form := range map[string]url.Values{
		"/setup": {"token": {"guessed"}}, "/setup/create": {"name": {"x"}}, "/setup/values": {"app-id": {"1"}}, "/setup/webhook-secret": nil,
	} {
		if p := stranger.post(path, form); p.status != http.StatusUnauthorized && p.status != http.StatusConflict || strings.Contains(p.body, "Create a new App") {
			t.Errorf("%s: %d\n%s", path, p.status, p.body)
		}
	}
	if p := stranger.get("/setup/created?state=x&code=y"); p.status != http.StatusUnauthorized {
		t.Errorf("created: %d", p.status)
	}
	for _, path := range []string{"/setup/checklist", "/setup/install", "/setup/installed?installation_id=1&setup_action=install"} {
		if p := stranger.get(path); p.status != http.StatusSeeOther || !strings.HasPrefix(p.header.Get("Location"), "/sign-in?") {
			t.Errorf("%s: %d %s", path, p.status, p.header.Get("Location"))
		}
	}
	stranger.see("/setup/installed?setup_action=request", "An owner has to approve")
	if after := s.everything(t); after != before {
		t.Errorf("something was done: %d audited acts, %d before", after, before)
	}

	// An address that something fetched ahead still works; a used one doesn't, and says the same as a wrong one.
	token, _, err := s.Setup.NewToken(t.Context(), "test", false)
	if err != nil {
		t.Fatal(err)
	}
	for range 2 {
		stranger.see("/setup?token="+token, "Begin")
	}
	stranger.posted("/setup", url.Values{"token": {token}})
	used, wrong := s.browser().post("/setup", url.Values{"token": {token}}), s.browser().post("/setup", url.Values{"token": {"x"}})
	same := regexp.MustCompile(`[0-9a-f]{16}`)
	if used.status != wrong.status || same.ReplaceAllString(used.body, "") != same.ReplaceAllString(wrong.body, "") || !strings.Contains(used.body, "was used already, or is too old") {
		t.Errorf("used: %d, wrong: %d", used.status, wrong.status)
	}
}

func TestTheWayBackFromGitHubIsForTheBrowserThatBegan(t *testing.T) {
	t.Parallel()
	checked.Both(t, func(t *testing.T, gh *githubtest.Server) {
		s := newBare(t, gh)
		mine, other := s.operator(false), s.operator(false)
		back := s.created(mine.post("/setup/create", url.Values{"name": {"Our Hub"}}))
		if p := other.get(back); p.status != http.StatusConflict || gh.Asked(http.MethodPost, "/conversions") != 0 {
			t.Errorf("another browser: %d, GitHub was asked %d times", p.status, gh.Asked(http.MethodPost, "/conversions"))
		}
		if p := mine.get(back); p.header.Get("Location") != "/setup/checklist?done=app" {
			t.Errorf("%d\n%s", p.status, p.body)
		}
	})
}

func TestAnInstallationThatGitHubDoesNotListForThePersonIsNothing(t *testing.T) {
	t.Parallel()
	checked.Both(t, func(t *testing.T, gh *githubtest.Server) {
		s := newBare(t, gh)
		b := s.operator(false)
		b.get(s.created(b.post("/setup/create", url.Values{"name": {"Our Hub"}, "org": {"octo"}})))
		app, err := s.App.App()
		if err != nil {
			t.Fatal(err)
		}
		gh.Install(app.ID(), s.org, s.ana, s.repo)
		bob, theirs := gh.Person("bob"), gh.Org("theirs")
		foreign := gh.Install(app.ID(), theirs, bob, gh.Repo("theirs/secret", true, githubtest.Files{"a": githubtest.Text("a")}))
		s.signIn(b)
		var answers []string
		for _, id := range []string{fmt.Sprint(foreign.ID), "999999999", "0", "-1", "x", ""} {
			p := b.get("/setup/installed?setup_action=install&installation_id=" + id)
			if p.status != http.StatusNotFound {
				t.Errorf("%q: %d\n%s", id, p.status, p.body)
			}
			answers = append(answers, regexp.MustCompile(`[0-9a-f]{16}`).ReplaceAllString(p.body, ""))
		}
		for i, a := range answers {
			if a != answers[0] {
				t.Errorf("answer %d is another one", i)
			}
		}
		if gh.Asked(http.MethodGet, fmt.Sprintf("/app/installations/%d", foreign.ID)) != 0 {
			t.Error("the Hub asked as the App about an installation that isn't the person's")
		}
		if p := b.see("/setup/checklist"); strings.Contains(p.body, "theirs") {
			t.Error("the checklist names an account that isn't theirs")
		}
	})
}

// handForm is the form for an App by hand, with the key as a file.
func handForm(t *testing.T, app githubtest.App, key string, change map[string]string) (kind string, body *bytes.Buffer) {
	t.Helper()
	body = &bytes.Buffer{}
	w := multipart.NewWriter(body)
	fields := map[string]string{"app-id": fmt.Sprint(app.ID), "client-id": app.ClientID, "client-secret": app.ClientSecret, "webhook-secret": app.WebhookSecret}
	for name, value := range change {
		fields[name] = value
	}
	for name, value := range fields {
		if err := w.WriteField(name, value); err != nil {
			t.Fatal(err)
		}
	}
	f, err := w.CreateFormFile("private-key-file", "key.pem")
	if err == nil {
		_, err = f.Write([]byte(key))
	}
	if err == nil {
		err = w.Close()
	}
	if err != nil {
		t.Fatal(err)
	}
	return w.FormDataContentType(), body
}

func TestAnAppIsEnteredByHandAndItsSecretsNeverSentBack(t *testing.T) {
	t.Parallel()
	checked.Both(t, func(t *testing.T, gh *githubtest.Server) {
		s := newBare(t, gh)
		b := s.operator(false)
		app := gh.App(githubtest.AppOptions{Owner: "octo", HookURL: s.url + "/webhook/github", Callbacks: []string{s.url + "/auth/github/callback"}})
		send := func(change map[string]string) page {
			kind, body := handForm(t, app, app.PrivateKey, change)
			req := b.request(http.MethodPost, "/setup/values", body)
			req.Header.Set("Content-Type", kind)
			return b.do(req)
		}
		p := send(map[string]string{"client-secret": "canary-wrong-secret"})
		b.want(p, http.StatusUnprocessableEntity, "accept this client secret", fmt.Sprintf(`value="%d"`, app.ID), "give it again")
		for _, secret := range []string{"canary", app.WebhookSecret, app.PrivateKey[40:80]} {
			if strings.Contains(p.body, secret) {
				t.Error("a secret was sent back")
			}
		}
		if p := send(nil); p.header.Get("Location") != "/setup/checklist?done=app" {
			t.Fatalf("%d\n%s", p.status, p.body)
		}
		if p := b.see("/setup/checklist"); step(t, p, "hook") != "done" || step(t, p, "app") != "done" {
			t.Error(p.body)
		}
	})
}

func TestAnAppOfTheConfigIsNamedAndNotChanged(t *testing.T) {
	t.Parallel()
	checked.Both(t, func(t *testing.T, gh *githubtest.Server) {
		server := httptest.NewUnstartedServer(nil)
		address := "http://" + server.Listener.Addr().String()
		ana := gh.Person("ana")
		gh.Org("octo")
		made := gh.App(githubtest.AppOptions{Owner: "octo", Name: "Configured", HookURL: address + "/webhook/github", Callbacks: []string{address + "/auth/github/callback"}})
		u := gh.URLs()
		cred := github.Credentials{
			AppID: made.ID, ClientID: made.ClientID, ClientSecret: github.NewSecret(made.ClientSecret), PrivateKey: github.NewSecret(made.PrivateKey),
			WebhookSecrets: []github.Secret{github.NewSecret(made.WebhookSecret)},
		}
		app, err := github.New(github.Options{Endpoints: github.Endpoints{Web: u.Web, API: u.API, GraphQL: u.GraphQL}, Credentials: cred, Callback: address + "/auth/github/callback"})
		if err != nil {
			t.Fatal(err)
		}
		hub := apptest.New(t, storetest.New(t), apptest.Options{
			NoDev: true, Access: access.Options{GitHub: github.NewHolder(app)}, Setup: setup.Options{Given: &cred, PublicURL: address},
		})
		s := &bare{site: siteOn(t, server, hub), gh: gh, ana: ana}
		repo := gh.Repo("octo/app", true, githubtest.Files{"a": githubtest.Text("a")})
		repo.Allow(ana, "read")
		inst := gh.Install(made.ID, gh.Org("octo"), ana, repo)
		if err := hub.Setup.Sync(t.Context()); err != nil {
			t.Fatal(err)
		}
		b := s.browser()
		s.signIn(b)
		b.see("/setup", "section github", "changed there, and not here")
		if p := b.post("/setup", url.Values{"token": {"x"}}); p.status != http.StatusConflict || !strings.Contains(p.body, "section github") {
			t.Errorf("%d\n%s", p.status, p.body)
		}
		p := b.see("/setup/checklist", "named by the Hub&#39;s config", "On octo.")
		for id, want := range map[string]string{"app": "done", "hook": "done", "install": "done"} {
			if got := step(t, p, id); got != want {
				t.Errorf("%s: %s, want %s (installation %d)", id, got, want, inst.ID)
			}
		}
	})
}

func TestTheSetUpsCookiesAreBoundToThisHostOverHTTPS(t *testing.T) {
	t.Parallel()
	s := newBare(t, checked.New(t, githubtest.Options{}))
	d := s.deps()
	d.PublicURL = "https://hub.example"
	h, err := handlers.New(d)
	if err != nil {
		t.Fatal(err)
	}
	token, _, err := s.Setup.NewToken(t.Context(), "test", false)
	if err != nil {
		t.Fatal(err)
	}
	got := look(t, h, http.MethodPost, "https://hub.example/setup", strings.NewReader("token="+token), func(q *http.Request) {
		q.Header.Set("Content-Type", "application/x-www-form-urlencoded")
	})
	bound := regexp.MustCompile(`^__Host-claude-hub-setup=[^;]{43}; Path=/; Max-Age=3[56][0-9]{2}; HttpOnly; Secure; SameSite=Lax$`)
	if c := got.header["Set-Cookie"]; got.status != http.StatusSeeOther || len(c) != 1 || !bound.MatchString(c[0]) {
		t.Fatalf("%d %q", got.status, c)
	}
}
