package webhook_test

import (
	"context"
	"net/url"
	"testing"
	"time"

	"github.com/claude-hub/claude-hub/app/access"
	"github.com/claude-hub/claude-hub/app/apptest"
	"github.com/claude-hub/claude-hub/app/environment"
	"github.com/claude-hub/claude-hub/app/github"
	"github.com/claude-hub/claude-hub/app/github/githubtest"
	"github.com/claude-hub/claude-hub/app/github/githubtest/checked"
	"github.com/claude-hub/claude-hub/app/setup"
	"github.com/claude-hub/claude-hub/handlers/webhook"
	"github.com/claude-hub/claude-hub/store"
	"github.com/claude-hub/claude-hub/store/storetest"
)

const callback = "http://hub.example/auth/github/callback"

// scene is a GitHub with the App on an organization that has two Repos, of which it was given one, and a Hub.
type scene struct {
	*hub
	gh          *githubtest.Server
	ana, bob    githubtest.Account
	org         githubtest.Account
	repo, other githubtest.Repo
	cred        githubtest.App
	inst        githubtest.Installation
	app         *github.App
}

func setScene(t *testing.T, gh *githubtest.Server, db *store.DB, o webhook.Options) *scene {
	t.Helper()
	s := &scene{gh: gh, ana: gh.Person("ana"), bob: gh.Person("bob"), org: gh.Org("octo")}
	s.repo = gh.Repo("octo/app", true, githubtest.Files{"README.md": githubtest.Text("hello\n")})
	s.other = gh.Repo("octo/other", true, githubtest.Files{"README.md": githubtest.Text("other\n")})
	s.repo.Allow(s.ana, "write")
	s.cred = gh.App(githubtest.AppOptions{Callbacks: []string{callback}})
	s.inst = gh.Install(s.cred.ID, s.org, s.ana, s.repo)
	u := gh.URLs()
	var err error
	s.app, err = github.New(github.Options{
		Endpoints: github.Endpoints{Web: u.Web, API: u.API, GraphQL: u.GraphQL},
		Credentials: github.Credentials{
			AppID: s.cred.ID, Slug: s.cred.Slug, ClientID: s.cred.ClientID, ClientSecret: github.NewSecret(s.cred.ClientSecret),
			PrivateKey: github.NewSecret(s.cred.PrivateKey), WebhookSecrets: []github.Secret{github.NewSecret(s.cred.WebhookSecret)},
		},
		Callback: callback, Version: "test",
	})
	if err != nil {
		t.Fatal(err)
	}
	o.GitHub = github.NewHolder(s.app)
	s.hub = newHub(t, db, o)
	s.told.secrets = func() ([]github.Secret, error) { return []github.Secret{github.NewSecret(s.cred.WebhookSecret)}, nil }
	gh.HookURL(s.cred.ID, s.url)
	return s
}

// settled waits until all that GitHub sent is worked off.
func (s *scene) settled(t *testing.T) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	if err := s.gh.Settle(ctx); err != nil {
		t.Fatal(err)
	}
	eventually(t, "all is worked off", func() bool { return rows(t, s.db, "waiting") == 0 })
}

// whole is a scene whose Hub has its whole domain. ana signed in on it.
type whole struct {
	*scene
	domain *apptest.Hub
	who    access.Person // ana
}

func setHub(t *testing.T) *whole {
	t.Helper()
	s := &whole{scene: setScene(t, checked.New(t, githubtest.Options{}), storetest.New(t), webhook.Options{})}
	s.domain = apptest.New(t, s.db, apptest.Options{
		Access: access.Options{GitHub: github.NewHolder(s.app)}, Environment: environment.Options{NoHostCredentials: true},
		Setup: setup.Options{Found: func(tx *store.Tx, in setup.Installation) error { return s.Found(tx, in.ID, in.Removed || in.Suspended) }},
	})
	s.hub = newHub(t, s.db, webhook.Options{
		GitHub: s.domain.App, Access: s.domain.Gate, Setup: knowing{s.domain.Setup, s.told}, Proposals: s.domain.Proposals, Builds: s.domain.Environments,
	})
	s.gh.HookURL(s.cred.ID, s.url)
	s.hub.started(t)

	to, browser, err := s.domain.Gate.BeginSignIn(t.Context(), "/")
	if err != nil {
		t.Fatal(err)
	}
	back, err := s.gh.Authorize(to, s.ana)
	if err != nil {
		t.Fatal(err)
	}
	answer, err := url.Parse(back)
	if err != nil {
		t.Fatal(err)
	}
	if s.who, _, _, err = s.domain.Gate.FinishSignIn(t.Context(), browser, answer.Query().Get("state"), answer.Query().Get("code")); err != nil {
		t.Fatal(err)
	}
	return s
}

// grant is ana's now.
func (s *whole) grant(t *testing.T) access.Grant {
	t.Helper()
	g, err := s.domain.Gate.Repo(t.Context(), s.who, github.RepoID(s.repo.ID))
	if err != nil {
		t.Fatal(err)
	}
	return g
}
