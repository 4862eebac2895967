package bench

import (
	"io"
	"math"
	"net/http"
	"net/http/httptest"
	"net/url"
	"testing"
	"time"

	"github.com/rs/zerolog"

	"github.com/claude-hub/claude-hub/app/access"
	"github.com/claude-hub/claude-hub/app/apptest"
	"github.com/claude-hub/claude-hub/app/github"
	"github.com/claude-hub/claude-hub/app/github/githubtest"
	"github.com/claude-hub/claude-hub/envspec"
	"github.com/claude-hub/claude-hub/handlers"
	"github.com/claude-hub/claude-hub/store"
	"github.com/claude-hub/claude-hub/store/storetest"
)

// refusal is what the time of an answer tells of a Repo that somebody has no access to (P31 of facts/reliability.md): the
// difference between the medians for one that exists, with an Environment, and for one that doesn't. Both are asked for in
// turns, by a person of GitHub, over HTTP, a page each.
func refusalSQLite(t *testing.T, b *bench) { refusal(t, b, "refusal", storetest.New(t)) }

func refusalPostgreSQL(t *testing.T, b *bench) {
	refusal(t, b, "refusal_postgres", storetest.Open(t, storetest.PostgreSQL(t)))
}

func refusal(t *testing.T, b *bench, row string, db *store.DB) {
	gh, err := githubtest.New(githubtest.Options{Folder: t.TempDir()})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(gh.Close)
	ana, bob := gh.Person("ana"), gh.Person("bob")
	rocket, saw := gh.Repo("ana/rocket", true, nil), gh.Repo("bob/saw", true, nil)
	holder := github.NewHolder(nil)
	hub := apptest.New(t, db, apptest.Options{NoDev: true, Access: access.Options{GitHub: holder}})
	server := httptest.NewUnstartedServer(nil)
	at := "http://" + server.Listener.Addr().String()
	app := gh.App(githubtest.AppOptions{Callbacks: []string{at + "/auth/github/callback"}})
	gh.Install(app.ID, ana, ana, rocket)
	gh.Install(app.ID, bob, bob, saw)
	client, err := github.New(github.Options{
		Endpoints: github.Endpoints{Web: gh.URLs().Web, API: gh.URLs().API, GraphQL: gh.URLs().GraphQL}, Callback: at + "/auth/github/callback", Version: "bench",
		Credentials: github.Credentials{
			AppID: app.ID, Slug: app.Slug, ClientID: app.ClientID, ClientSecret: github.NewSecret(app.ClientSecret),
			PrivateKey: github.NewSecret(app.PrivateKey), WebhookSecrets: []github.Secret{github.NewSecret(app.WebhookSecret)},
		},
	})
	if err != nil {
		t.Fatal(err)
	}
	holder.Set(client)
	h, err := handlers.New(handlers.Deps{
		DB: db, Gate: hub.Gate, Environments: hub.Environments, Sessions: hub.Sessions, Setup: hub.Setup, Fleet: hub.Fleet, Vault: hub.Vault,
		PublicURL: at, Version: "bench", Log: zerolog.Nop(),
	})
	if err != nil {
		t.Fatal(err)
	}
	server.Config = handlers.NewServer(h, zerolog.Nop())
	server.Start()
	t.Cleanup(server.Close)

	signIn := func(who githubtest.Account) (access.Person, string) {
		to, browser, err := hub.Gate.BeginSignIn(t.Context(), "/")
		if err != nil {
			t.Fatal(err)
		}
		back, err := gh.Authorize(to, who)
		if err != nil {
			t.Fatal(err)
		}
		u, err := url.Parse(back)
		if err != nil {
			t.Fatal(err)
		}
		person, session, _, err := hub.Gate.FinishSignIn(t.Context(), browser, u.Query().Get("state"), u.Query().Get("code"))
		if err != nil {
			t.Fatal(err)
		}
		return person, session
	}
	owner, _ := signIn(ana)
	g, err := hub.Gate.Repo(t.Context(), owner, github.RepoID(rocket.ID))
	if err != nil {
		t.Fatal(err)
	}
	hub.Applied(g, hub.Runner("r1"), envspec.Default())
	_, session := signIn(bob)

	ask := func(repo github.RepoID) float64 {
		req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, at+"/repos/"+repo.String(), nil)
		if err != nil {
			t.Fatal(err)
		}
		req.AddCookie(&http.Cookie{Name: "claude-hub", Value: session})
		began := time.Now()
		res, err := server.Client().Do(req)
		if err != nil {
			t.Fatal(err)
		}
		_, err = io.Copy(io.Discard, res.Body)
		took := time.Since(began)
		_ = res.Body.Close()
		if err != nil || res.StatusCode != http.StatusNotFound {
			t.Fatalf("%s, %v", res.Status, err)
		}
		return float64(took.Nanoseconds()) / 1000
	}
	each := 100
	if *runs > 0 {
		each = 5_000 // of both: 10,000 requests
	}
	var differences, forbidden, absent []float64
	for i := range b.warmUps + b.runs {
		var is, isnt []float64
		for range each {
			is = append(is, ask(github.RepoID(rocket.ID)))
			isnt = append(isnt, ask(999_999_999))
		}
		if i < b.warmUps {
			continue
		}
		forbidden, absent = append(forbidden, median(is)), append(absent, median(isnt))
		differences = append(differences, math.Abs(median(is)-median(isnt)))
	}
	record(row, "µs", differences, "", nil)
	record(row+"_answer", "µs", forbidden, "absent Repo", absent)
}
