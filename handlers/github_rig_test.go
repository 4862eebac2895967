package handlers_test

import (
	"net/http"
	"net/http/cookiejar"
	"net/http/httptest"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/claude-hub/claude-hub/app/access"
	"github.com/claude-hub/claude-hub/app/apptest"
	"github.com/claude-hub/claude-hub/app/github"
	"github.com/claude-hub/claude-hub/app/github/githubtest"
	"github.com/claude-hub/claude-hub/app/session"
	"github.com/claude-hub/claude-hub/runner/wire"
	"github.com/claude-hub/claude-hub/store"
)

// town is a Hub that is a GitHub App, without dev login, and the GitHub of it: acme/rocket is ana's and has the App,
// tools/saw is bob's and has it too, acme/other is ana's and hasn't.
type town struct {
	*site
	gh                 *githubtest.Server
	app                githubtest.App
	holder             *github.Holder
	ana, bob           githubtest.Account
	acme               githubtest.Account
	rocket, other, saw githubtest.Repo
	inst, tools        githubtest.Installation
}

func newTown(t *testing.T, db *store.DB, gh *githubtest.Server, o apptest.Options) *town {
	t.Helper()
	return townWith(t, db, gh, o, "")
}

// townWith is newTown with a domain for ports.
func townWith(t *testing.T, db *store.DB, gh *githubtest.Server, o apptest.Options, ports string) *town {
	t.Helper()
	w := &town{gh: gh, holder: github.NewHolder(nil), ana: gh.Person("ana"), bob: gh.Person("bob"), acme: gh.Org("acme")}
	w.rocket = gh.Repo("acme/rocket", true, githubtest.Files{"README.md": githubtest.Text("rocket\n")})
	w.other = gh.Repo("acme/other", true, githubtest.Files{"README.md": githubtest.Text("other\n")})
	tools := gh.Org("tools")
	w.saw = gh.Repo("tools/saw", true, githubtest.Files{"README.md": githubtest.Text("saw\n")})
	w.rocket.Allow(w.ana, "write")
	w.other.Allow(w.ana, "write")
	w.saw.Allow(w.bob, "read")

	o.Access.GitHub, o.NoDev = w.holder, true
	w.site = siteWith(t, httptest.NewUnstartedServer(nil), &site{Hub: apptest.New(t, db, o), ports: ports})
	callback := w.url + "/auth/github/callback"
	w.app = gh.App(githubtest.AppOptions{Callbacks: []string{callback}})
	w.inst = gh.Install(w.app.ID, w.acme, w.ana, w.rocket)
	w.tools = gh.Install(w.app.ID, tools, w.bob)
	w.connect(callback)
	return w
}

// connect makes the Hub the App, as setting it up does.
func (w *town) connect(callback string) {
	w.t.Helper()
	u := w.gh.URLs()
	app, err := github.New(github.Options{
		Endpoints: github.Endpoints{Web: u.Web, API: u.API, GraphQL: u.GraphQL}, Callback: callback, Version: "test",
		Credentials: github.Credentials{
			AppID: w.app.ID, Slug: w.app.Slug, ClientID: w.app.ClientID, ClientSecret: github.NewSecret(w.app.ClientSecret),
			PrivateKey: github.NewSecret(w.app.PrivateKey), WebhookSecrets: []github.Secret{github.NewSecret(w.app.WebhookSecret)},
		},
	})
	if err != nil {
		w.t.Fatal(err)
	}
	w.holder.Set(app)
}

// leave begins a sign-in and agrees to it at GitHub. It answers where GitHub sends the browser back to, as a path here.
func (w *town) leave(b *browser, who githubtest.Account, from string) string {
	w.t.Helper()
	p := b.get(from)
	if p.status != http.StatusSeeOther {
		w.t.Fatalf("begin a sign-in: %d\n%s", p.status, p.body)
	}
	back, err := w.gh.Authorize(p.header.Get("Location"), who)
	if err != nil {
		w.t.Fatal(err)
	}
	path, ok := strings.CutPrefix(back, w.url)
	if !ok {
		w.t.Fatalf("GitHub sends the browser to %s", back)
	}
	return path
}

// in signs somebody in through GitHub.
func (w *town) in(who githubtest.Account) *browser {
	w.t.Helper()
	b := w.browser()
	if p := b.get(w.leave(b, who, "/auth/github")); p.status != http.StatusSeeOther || p.header.Get("Location") != "/" {
		w.t.Fatalf("sign in: %d to %q\n%s", p.status, p.header.Get("Location"), p.body)
	}
	return b
}

// person is who a browser is signed in as.
func (b *browser) person() access.Person {
	b.t.Helper()
	who, err := b.s.Gate.Browser(b.t.Context(), b.cookie("claude-hub"))
	if err != nil {
		b.t.Fatal(err)
	}
	return who
}

// cookie is the value of one, or "".
func (b *browser) cookie(name string) string {
	b.t.Helper()
	u, err := url.Parse(b.s.url)
	if err != nil {
		b.t.Fatal(err)
	}
	for _, c := range b.http.Jar.Cookies(u) {
		if c.Name == name {
			return c.Value
		}
	}
	return ""
}

// carry gives another browser this one's cookies.
func (b *browser) carry() *browser {
	b.t.Helper()
	other := b.s.browser()
	u, err := url.Parse(b.s.url)
	if err != nil {
		b.t.Fatal(err)
	}
	jar, err := cookiejar.New(nil)
	if err != nil {
		b.t.Fatal(err)
	}
	jar.SetCookies(u, b.http.Jar.Cookies(u))
	other.http.Jar = jar
	return other
}

// grant is what a browser's person has of a Repo.
func (b *browser) grant(repo githubtest.Repo) access.Grant {
	b.t.Helper()
	g, err := b.s.Gate.Repo(b.t.Context(), b.person(), github.RepoID(repo.ID))
	if err != nil {
		b.t.Fatal(err)
	}
	return g
}

// tokenOf makes one of a browser's person, for everything or for some scopes.
func (b *browser) tokenOf(scopes ...access.Scope) string {
	b.t.Helper()
	if len(scopes) == 0 {
		scopes = access.Scopes()
	}
	secret, _, err := b.s.Gate.CreateToken(b.t.Context(), b.person(), access.TokenOptions{Name: "test", Scopes: scopes, Life: 30 * 24 * time.Hour})
	if err != nil {
		b.t.Fatal(err)
	}
	return secret
}

func pathOf(repo githubtest.Repo) string { return "/repos/" + github.RepoID(repo.ID).String() }

// ids are Repos as tokens are limited to them.
func (b *browser) ids(repos ...githubtest.Repo) (all []github.RepoID) {
	for _, r := range repos {
		all = append(all, github.RepoID(r.ID))
	}
	return all
}

// terminal opens one in a new Session of acme/rocket, and answers its path.
func (w *town) terminal(b *browser) string {
	w.t.Helper()
	g, r := b.grant(w.rocket), w.Runner("r1")
	w.Applied(g, r, spec())
	sn, err := w.Sessions.Start(w.t.Context(), g, session.StartInput{Runner: r.ID})
	if err != nil {
		w.t.Fatal(err)
	}
	r.MustReport(r.Item(), wire.StateRunning, wire.SessionDetail{Workspace: true})
	channel, err := w.Sessions.Open(w.t.Context(), g, sn.ID, wire.ChannelSpec{Argv: []string{"true"}})
	if err != nil {
		w.t.Fatal(err)
	}
	return pathOf(w.rocket) + "/sessions/" + sn.ID + "/channels/" + channel
}
