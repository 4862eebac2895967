package github_test

import (
	"context"
	"encoding/json"
	"errors"
	"testing"
	"time"

	"github.com/claude-hub/claude-hub/app/github"
	"github.com/claude-hub/claude-hub/app/github/githubtest"
)

// rig is a scene that most tests begin with: the App on an organization that has two Repos, of which it was given one.
type rig struct {
	gh       *githubtest.Server
	ana, bob githubtest.Account
	org      githubtest.Account
	repo     githubtest.Repo // installed, private; ana writes
	other    githubtest.Repo // of the same organization, not installed
	inst     githubtest.Installation
	cred     githubtest.App
	app      *github.App
}

func setScene(t *testing.T, gh *githubtest.Server) *rig {
	t.Helper()
	r := &rig{gh: gh, ana: gh.Person("ana"), bob: gh.Person("bob"), org: gh.Org("octo")}
	r.repo = gh.Repo("octo/app", true, githubtest.Files{"README.md": githubtest.Text("hello\n")})
	r.other = gh.Repo("octo/other", true, githubtest.Files{"README.md": githubtest.Text("other\n")})
	r.repo.Allow(r.ana, "write")
	r.cred = gh.App(githubtest.AppOptions{Callbacks: []string{callback}, SetupURL: "http://hub.example/setup"})
	r.inst = gh.Install(r.cred.ID, r.org, r.ana, r.repo)
	r.app = r.connect(t, nil)
	return r
}

const callback = "http://hub.example/callback"

func endpoints(gh *githubtest.Server) github.Endpoints {
	u := gh.URLs()
	return github.Endpoints{Web: u.Web, API: u.API, GraphQL: u.GraphQL}
}

func credentials(a githubtest.App) github.Credentials {
	return github.Credentials{
		AppID: a.ID, Slug: a.Slug, ClientID: a.ClientID, ClientSecret: github.NewSecret(a.ClientSecret),
		PrivateKey: github.NewSecret(a.PrivateKey), WebhookSecrets: []github.Secret{github.NewSecret(a.WebhookSecret)},
	}
}

func (r *rig) connect(t *testing.T, change func(*github.Options)) *github.App {
	t.Helper()
	o := github.Options{Endpoints: endpoints(r.gh), Credentials: credentials(r.cred), Callback: callback, Version: "test"}
	if change != nil {
		change(&o)
	}
	a, err := github.New(o)
	if err != nil {
		t.Fatal(err)
	}
	return a
}

func (r *rig) id() github.RepoID { return github.RepoID(r.repo.ID) }

func (r *rig) user(who githubtest.Account) *github.User {
	return r.app.User(github.NewSecret(r.gh.UserToken(r.cred.ID, who)))
}

func wantKind(t *testing.T, err error, kind github.Kind) *github.Error {
	t.Helper()
	var e *github.Error
	if !errors.As(err, &e) || e.Kind != kind {
		t.Fatalf("got %v (%#v), want the kind %s", err, err, kind)
	}
	return e
}

func must[T any](t *testing.T) func(v T, err error) T {
	return func(v T, err error) T {
		t.Helper()
		if err != nil {
			var e *github.Error
			if errors.As(err, &e) {
				t.Fatalf("%v (%s)", err, e.Detail)
			}
			t.Fatal(err)
		}
		return v
	}
}

func ok(t *testing.T, err error) {
	t.Helper()
	must[int](t)(0, err)
}

func within(t *testing.T, d time.Duration) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), d)
	t.Cleanup(cancel)
	return ctx
}

func jsonOf(all ...any) (string, error) {
	b, err := json.Marshal(all)
	return string(b), err
}
