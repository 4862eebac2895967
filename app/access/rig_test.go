package access_test

import (
	"context"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/rs/zerolog"

	"github.com/claude-hub/claude-hub/app/access"
	"github.com/claude-hub/claude-hub/app/fault"
	"github.com/claude-hub/claude-hub/app/github"
	"github.com/claude-hub/claude-hub/app/github/githubtest"
	"github.com/claude-hub/claude-hub/app/github/githubtest/checked"
	"github.com/claude-hub/claude-hub/app/seal"
	"github.com/claude-hub/claude-hub/store"
	"github.com/claude-hub/claude-hub/store/storetest"
)

// rig is a Hub's gate beside a GitHub: the App is installed on octo's app and, not chosen, there is octo/other. ana may
// write app and read other; bob has access to nothing of the App's. Both clocks stand until advance.
type rig struct {
	*access.Gate
	t           *testing.T
	gh          *githubtest.Server
	clock       *storetest.Clock
	db          *store.DB
	seal        *seal.Service
	cred        githubtest.App
	holder      *github.Holder
	ana, bob    githubtest.Account
	org         githubtest.Account
	repo, other githubtest.Repo
	inst        githubtest.Installation
	options     access.Options
}

const callback = "http://hub.example/auth/github/callback"

// each runs f on both databases beside github.com, and on one beside an Enterprise Server.
func each(t *testing.T, f func(t *testing.T, r *rig)) {
	t.Helper()
	t.Parallel()
	storetest.Each(t, func(t *testing.T, db *store.DB) {
		f(t, newRig(t, db, githubtest.Options{}, githubtest.AppOptions{}, access.Options{}))
	})
	t.Run("GHES", func(t *testing.T) {
		t.Parallel()
		f(t, newRig(t, storetest.New(t), githubtest.Options{GHES: true}, githubtest.AppOptions{}, access.Options{}))
	})
}

// one is a rig on SQLite beside github.com.
func one(t *testing.T, o access.Options) *rig {
	t.Helper()
	t.Parallel()
	return newRig(t, storetest.New(t), githubtest.Options{}, githubtest.AppOptions{}, o)
}

func newRig(t *testing.T, db *store.DB, gh githubtest.Options, app githubtest.AppOptions, o access.Options) *rig {
	t.Helper()
	s := checked.New(t, gh)
	r := &rig{t: t, gh: s, db: db, clock: storetest.NewClock(db), ana: s.Person("ana"), bob: s.Person("bob"), org: s.Org("octo")}
	r.repo = s.Repo("octo/app", true, githubtest.Files{"README.md": githubtest.Text("app\n")})
	r.other = s.Repo("octo/other", true, githubtest.Files{"README.md": githubtest.Text("other\n")})
	r.repo.Allow(r.ana, "write")
	r.other.Allow(r.ana, "read")
	app.Callbacks = []string{callback}
	r.cred = s.App(app)
	r.inst = s.Install(r.cred.ID, r.org, r.ana, r.repo)
	r.holder = github.NewHolder(r.app())
	r.seal = seal.New(db, keys(t, 1), seal.Columns())
	if err := r.seal.Start(t.Context(), "test"); err != nil {
		t.Fatal(err)
	}
	o.GitHub, o.Seal, o.Log = r.holder, r.seal, zerolog.New(zerolog.NewTestWriter(t))
	r.options = o
	r.Gate = r.another()
	return r
}

// another is the gate of another Hub on the same database.
func (r *rig) another() *access.Gate {
	r.t.Helper()
	g, err := access.Open(r.t.Context(), r.db, r.options)
	if err != nil {
		r.t.Fatal(err)
	}
	r.t.Cleanup(g.Stop)
	return g
}

func (r *rig) app() *github.App {
	r.t.Helper()
	u := r.gh.URLs()
	a, err := github.New(github.Options{
		Endpoints: github.Endpoints{Web: u.Web, API: u.API, GraphQL: u.GraphQL}, Callback: callback, Version: "test",
		Credentials: github.Credentials{
			AppID: r.cred.ID, Slug: r.cred.Slug, ClientID: r.cred.ClientID, ClientSecret: github.NewSecret(r.cred.ClientSecret),
			PrivateKey: github.NewSecret(r.cred.PrivateKey), WebhookSecrets: []github.Secret{github.NewSecret(r.cred.WebhookSecret)},
		},
	})
	if err != nil {
		r.t.Fatal(err)
	}
	return a
}

func keys(t *testing.T, n byte) seal.Keys {
	t.Helper()
	k, err := seal.ParseKeys(seal.Given{Text: keyText(n)})
	if err != nil {
		t.Fatal(err)
	}
	return k
}

func keyText(n byte) string {
	const hex = "0123456789abcdef"
	text := make([]byte, 64)
	for i := range text {
		text[i] = hex[(int(n)*7+i)%16]
	}
	return string(text)
}

// advance lets time pass, here and at GitHub.
func (r *rig) advance(d time.Duration) {
	r.clock.Advance(d)
	r.gh.Advance(d)
}

// tryIn is a whole sign-in of a browser.
func (r *rig) tryIn(who githubtest.Account) (access.Person, string, error) {
	r.t.Helper()
	to, browser, err := r.BeginSignIn(r.t.Context(), "/repos")
	if err != nil {
		r.t.Fatal(err)
	}
	q := r.back(to, who)
	p, session, _, err := r.FinishSignIn(r.t.Context(), browser, q.Get("state"), q.Get("code"))
	return p, session, err
}

// back is what the browser comes back from GitHub with.
func (r *rig) back(to string, who githubtest.Account) url.Values {
	r.t.Helper()
	back, err := r.gh.Authorize(to, who)
	if err != nil {
		r.t.Fatal(err)
	}
	u, err := url.Parse(back)
	if err != nil {
		r.t.Fatal(err)
	}
	return u.Query()
}

func (r *rig) in(who githubtest.Account) (access.Person, string) {
	r.t.Helper()
	p, session, err := r.tryIn(who)
	if err != nil {
		r.t.Fatalf("%s can't sign in: %v", who.Login(), err)
	}
	return p, session
}

func (r *rig) id() github.RepoID { return github.RepoID(r.repo.ID) }

// may fails the test unless who has access, and returns the Grant.
func (r *rig) may(who access.Person, repo githubtest.Repo) access.Grant {
	r.t.Helper()
	g, err := r.Repo(r.t.Context(), who, github.RepoID(repo.ID))
	if err != nil {
		r.t.Fatalf("%s has access to Repo %d, but: %v", who.Login(), repo.ID, err)
	}
	return g
}

// mayNot fails the test unless the answer is the one for what there is not.
func (r *rig) mayNot(who access.Person, repo githubtest.Repo) {
	r.t.Helper()
	if _, err := r.Repo(r.t.Context(), who, github.RepoID(repo.ID)); err != access.ErrNotFound { //nolint:errorlint // the very same answer
		r.t.Fatalf("%s has no access to Repo %d, but: %v", who.Login(), repo.ID, err)
	}
}

func (r *rig) wants(code fault.Code, err error) {
	r.t.Helper()
	if !fault.Is(err, code) {
		r.t.Fatalf("want %s, got %v", code, err)
	}
}

// asked counts the questions for people's lists so far. Each begins with their installations.
func (r *rig) asked() (n int) {
	for _, q := range r.gh.Requests() {
		if q.Path == "/user/installations" && !strings.Contains(q.Query, "page=2") {
			n++
		}
	}
	return n
}

func (r *rig) write(f func(*store.Tx) error) {
	r.t.Helper()
	if err := r.db.Write(r.t.Context(), f); err != nil {
		r.t.Fatal(err)
	}
}

// eventually waits until f is true.
func eventually(t *testing.T, what string, f func() bool) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for !f() {
		select {
		case <-tick.C:
		case <-ctx.Done():
			t.Fatalf("it took too long until %s", what)
		}
	}
}
