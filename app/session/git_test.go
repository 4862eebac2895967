package session_test

import (
	"net/http"
	"net/url"
	"strings"
	"testing"

	"github.com/rs/zerolog"

	"github.com/claude-hub/claude-hub/app/access"
	"github.com/claude-hub/claude-hub/app/apptest"
	"github.com/claude-hub/claude-hub/app/fleet"
	"github.com/claude-hub/claude-hub/app/github"
	"github.com/claude-hub/claude-hub/app/github/githubtest"
	"github.com/claude-hub/claude-hub/app/github/githubtest/checked"
	"github.com/claude-hub/claude-hub/app/session"
	apptoken "github.com/claude-hub/claude-hub/app/token"
	"github.com/claude-hub/claude-hub/runner/wire"
	"github.com/claude-hub/claude-hub/store/storetest"
)

const callback = "http://hub.example/auth/github/callback"

// atGitHub is a Hub beside a GitHub, with a Session that ana, who may write, has started on octo/app.
type atGitHub struct {
	*apptest.Hub
	t      *testing.T
	gh     *githubtest.Server
	ana    githubtest.Account
	who    access.Person
	repo   githubtest.Repo
	app    int64
	runner *apptest.Runner
	item   *wire.Item
}

func startAtGitHub(t *testing.T, gh *githubtest.Server) *atGitHub {
	t.Helper()
	h := &atGitHub{t: t, gh: gh, ana: gh.Person("ana")}
	org := gh.Org("octo")
	h.repo = gh.Repo("octo/app", true, githubtest.Files{"README.md": githubtest.Text("app\n")})
	h.repo.Allow(h.ana, "write")
	cred := gh.App(githubtest.AppOptions{Callbacks: []string{callback}})
	h.app = cred.ID
	gh.Install(cred.ID, org, h.ana, h.repo).Grant(map[string]string{"checks": "write", "contents": "write", "metadata": "read", "pull_requests": "read", "members": "read"})
	u := gh.URLs()
	app, err := github.New(github.Options{
		Endpoints: github.Endpoints{Web: u.Web, API: u.API, GraphQL: u.GraphQL}, Callback: callback, Version: "test",
		Credentials: github.Credentials{
			AppID: cred.ID, Slug: cred.Slug, ClientID: cred.ClientID, ClientSecret: github.NewSecret(cred.ClientSecret),
			PrivateKey: github.NewSecret(cred.PrivateKey), WebhookSecrets: []github.Secret{github.NewSecret(cred.WebhookSecret)},
		},
	})
	if err != nil {
		t.Fatal(err)
	}
	holder := github.NewHolder(app)
	tokens := apptoken.Of(holder, zerolog.New(zerolog.NewTestWriter(t)))
	h.Hub = apptest.New(t, storetest.New(t), apptest.Options{NoDev: true, Access: access.Options{GitHub: holder}, Fleet: fleet.Options{Tokens: tokens, Push: tokens}})
	h.who = h.signIn(h.ana)
	g, err := h.Gate.Repo(t.Context(), h.who, github.RepoID(h.repo.ID))
	if err != nil {
		t.Fatal(err)
	}
	h.runner = h.Runner("r1")
	h.Applied(g, h.runner, spec())
	if _, err := h.Sessions.Start(t.Context(), g, session.StartInput{}); err != nil {
		t.Fatal(err)
	}
	h.item = h.runner.Item()
	return h
}

func (h *atGitHub) signIn(who githubtest.Account) access.Person {
	h.t.Helper()
	to, browser, err := h.Gate.BeginSignIn(h.t.Context(), "/")
	if err != nil {
		h.t.Fatal(err)
	}
	back, err := h.gh.Authorize(to, who)
	if err != nil {
		h.t.Fatal(err)
	}
	u, err := url.Parse(back)
	if err != nil {
		h.t.Fatal(err)
	}
	p, _, _, err := h.Gate.FinishSignIn(h.t.Context(), browser, u.Query().Get("state"), u.Query().Get("code"))
	if err != nil {
		h.t.Fatal(err)
	}
	return p
}

// ask is git in the Session's Sandbox, which has a token that may do have.
func (h *atGitHub) ask(have string) *wire.SessionTokenResponse {
	h.t.Helper()
	res, err := h.Fleet.SessionToken(h.t.Context(), h.runner.ID, &wire.SessionTokenRequest{Id: h.item.GetId(), Generation: h.item.GetGeneration(), Fence: h.item.GetFence(), Have: have})
	if err != nil {
		h.t.Fatal(err)
	}
	return res
}

// changed has the Gate ask GitHub again, as a webhook does.
func (h *atGitHub) changed() {
	h.t.Helper()
	if err := h.Gate.ForgetPerson(h.t.Context(), h.ana.ID); err != nil {
		h.t.Fatal(err)
	}
}

func TestGitInASessionHasTheRightsThatItsPersonHasAtGitHubNow(t *testing.T) {
	t.Parallel()
	checked.Both(t, func(t *testing.T, gh *githubtest.Server) {
		h := startAtGitHub(t, gh)
		if res := h.ask(""); res.GetContents() != "write" || len(res.GetToken()) == 0 {
			t.Fatalf("may write: %q %q", res.GetReadOnly(), res.GetRefused())
		}
		h.repo.Allow(h.ana, "triage")
		h.changed()
		if res := h.ask("write"); res.GetContents() != "read" || res.GetReadOnly() != "Pushing needs write access to octo/app, which ana doesn't have at GitHub. Or push with credentials of your own." {
			t.Errorf("may only read: %q %q", res.GetReadOnly(), res.GetRefused())
		}
		h.repo.Allow(h.ana, "")
		h.changed()
		if res := h.ask("read"); res.GetRefused() != "ana has no access to octo/app now, or is signed out of the Hub. Sign in there, then try again." || res.GetKeep() {
			t.Errorf("has lost access: %+v", res)
		}
		h.repo.Allow(h.ana, "admin")
		h.changed()
		if res := h.ask(""); res.GetContents() != "write" {
			t.Errorf("has it again: %q %q", res.GetReadOnly(), res.GetRefused())
		}
		gh.Unauthorize(h.app, h.ana)
		if err := h.Gate.Revoked(t.Context(), h.ana.ID); err != nil {
			t.Fatal(err)
		}
		if res := h.ask("write"); !strings.Contains(res.GetRefused(), "or is signed out of the Hub") {
			t.Errorf("has taken the App's authorization back: %+v", res)
		}
	})
}

func TestGitInASessionGetsNothingWhileGitHubCantBeAsked(t *testing.T) {
	t.Parallel()
	h := startAtGitHub(t, checked.New(t, githubtest.Options{}))
	h.changed()
	defer h.gh.Break(githubtest.Fault{Status: http.StatusBadGateway})()
	if res := h.ask("write"); res.GetRefused() == "" || res.GetKeep() {
		t.Errorf("%+v", res)
	}
}

func TestGitNamesTheSessionsPersonByTheAddressThatGitHubKnows(t *testing.T) {
	t.Parallel()
	h := startAtGitHub(t, checked.New(t, githubtest.Options{}))
	var p wire.Session
	h.runner.Fetch(h.item, &p)
	u, err := url.Parse(h.gh.URLs().Web)
	if err != nil {
		t.Fatal(err)
	}
	if want := (wire.Person{Name: "ana", Email: github.RepoID(h.ana.ID).String() + "+ana@users.noreply." + u.Hostname()}); p.Person != want {
		t.Errorf("%+v, want %+v", p.Person, want)
	}
}

func TestGitInASessionOfDevModeGetsNoCredentialsAndKnowsThePerson(t *testing.T) {
	t.Parallel()
	m := &tokens{}
	h := apptest.New(t, storetest.New(t), apptest.Options{Fleet: fleet.Options{Tokens: m}})
	ana, r := h.Grant("ana"), h.Runner("r1")
	h.Applied(ana, r, spec())
	if _, err := h.Sessions.Start(t.Context(), ana, session.StartInput{}); err != nil {
		t.Fatal(err)
	}
	var p wire.Session
	item := r.Item()
	if r.Fetch(item, &p); p.Person != (wire.Person{Name: "ana", Email: "ana@localhost"}) {
		t.Errorf("%+v", p.Person)
	}
	ask := func() string {
		res, err := h.Fleet.SessionToken(t.Context(), r.ID, &wire.SessionTokenRequest{Id: item.GetId(), Generation: item.GetGeneration(), Fence: item.GetFence()})
		if err != nil || len(res.GetToken()) > 0 || len(m.repos) > 0 {
			t.Fatalf("%+v %v", res, err)
		}
		return res.GetRefused()
	}
	if says := ask(); says != "acme/rocket is one of the Hub's dev.repos, for which it has no credentials." {
		t.Errorf("%q", says)
	}
	ofTheApp(t, h.DB)
	if says := ask(); says != "This Session was started by ana, who isn't signed in through GitHub, so the Hub has no credentials for it." {
		t.Errorf("%q", says)
	}
}
