package setup_test

import (
	"context"
	"net/url"
	"strings"
	"sync"
	"testing"

	"github.com/rs/zerolog"

	"github.com/claude-hub/claude-hub/app/access"
	"github.com/claude-hub/claude-hub/app/apptest"
	"github.com/claude-hub/claude-hub/app/fault"
	"github.com/claude-hub/claude-hub/app/github"
	"github.com/claude-hub/claude-hub/app/github/githubtest"
	"github.com/claude-hub/claude-hub/app/github/githubtest/checked"
	"github.com/claude-hub/claude-hub/app/seal"
	"github.com/claude-hub/claude-hub/app/setup"
	"github.com/claude-hub/claude-hub/store"
	"github.com/claude-hub/claude-hub/store/storetest"
)

const hubURL = "https://hub.example"

// rig is a Hub without an App beside a GitHub with an organization.
type rig struct {
	*setup.Service
	t      *testing.T
	gh     *githubtest.Server
	db     *store.DB
	keys   seal.Keys
	holder *github.Holder
	ana    githubtest.Account
	org    githubtest.Account
	repo   githubtest.Repo
	log    text
	o      setup.Options
}

// text is a log that is read while it is written.
type text struct {
	mu sync.Mutex
	b  strings.Builder
}

func (l *text) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(p)
}

func (l *text) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.String()
}

// each runs f against github.com on SQLite and against an Enterprise Server on PostgreSQL, side by side.
func each(t *testing.T, f func(r *rig), change ...func(*rig)) {
	t.Helper()
	storetest.Each(t, func(t *testing.T, db *store.DB) {
		f(newRig(t, db, checked.New(t, githubtest.Options{GHES: strings.HasSuffix(t.Name(), "/postgres")}), change...))
	})
}

func newRig(t *testing.T, db *store.DB, gh *githubtest.Server, change ...func(*rig)) *rig {
	t.Helper()
	r := &rig{t: t, gh: gh, db: db, keys: apptest.Keys(t, 1), ana: gh.Person("ana"), org: gh.Org("octo")}
	r.repo = gh.Repo("octo/app", true, githubtest.Files{"README.md": githubtest.Text("hello\n")})
	r.o = setup.Options{PublicURL: hubURL, At: r.at, Log: zerolog.New(&r.log)}
	for _, c := range change {
		c(r)
	}
	r.Service, r.holder = r.hub()
	return r
}

// at is where the only GitHub of the test is, whatever was typed.
func (r *rig) at(string) github.Endpoints {
	u := r.gh.URLs()
	return github.Endpoints{Web: u.Web, API: u.API, GraphQL: u.GraphQL}
}

// hub is one more Hub on the database.
func (r *rig) hub() (*setup.Service, *github.Holder) {
	r.t.Helper()
	sealer := seal.New(r.db, r.keys, seal.Columns())
	if err := sealer.Start(r.t.Context(), "test"); err != nil {
		r.t.Fatal(err)
	}
	holder := github.NewHolder(nil)
	return setup.New(r.db, sealer, holder, r.o), holder
}

func (r *rig) ctx() context.Context { return r.t.Context() }

// enter is a browser that brought a token.
func (r *rig) enter(changes bool) string {
	r.t.Helper()
	token, _, err := r.NewToken(r.ctx(), "test", changes)
	if err != nil {
		r.t.Fatal(err)
	}
	visit, _, err := r.Enter(r.ctx(), token)
	if err != nil {
		r.t.Fatal(err)
	}
	return visit
}

// created is where GitHub sends the browser back to after the form was posted there.
func (r *rig) created(f setup.Form, owner githubtest.Account) (state, code string) {
	r.t.Helper()
	action, err := url.Parse(f.Action)
	if err != nil {
		r.t.Fatal(err)
	}
	back, err := r.gh.Manifest(f.Manifest, action.Query().Get("state"), owner)
	if err != nil {
		r.t.Fatal(err)
	}
	if !strings.HasPrefix(back, hubURL+setup.CreatedPath+"?") {
		r.t.Fatalf("GitHub sends the browser to %s", back)
	}
	u, err := url.Parse(back)
	if err != nil {
		r.t.Fatal(err)
	}
	return u.Query().Get("state"), u.Query().Get("code")
}

// create sets the App up from a manifest, with a token of its own.
func (r *rig) create(name string, changes bool) {
	r.t.Helper()
	visit := r.enter(changes)
	f, err := r.Begin(r.ctx(), visit, setup.Plan{Org: "octo", Name: name})
	if err != nil {
		r.t.Fatal(err)
	}
	state, code := r.created(f, r.org)
	if err := r.Finish(r.ctx(), visit, state, code); err != nil {
		r.t.Fatal(err)
	}
}

// app is the one that the Hub is.
func (r *rig) app() *github.App {
	r.t.Helper()
	a, err := r.holder.App()
	if err != nil {
		r.t.Fatal(err)
	}
	return a
}

func (r *rig) want(err error, code fault.Code, says ...string) {
	r.t.Helper()
	if !fault.Is(err, code) {
		r.t.Fatalf("got %v, want %s", err, code)
	}
	for _, s := range says {
		if !strings.Contains(err.Error(), s) {
			r.t.Fatalf("%q doesn't say %q", err, s)
		}
	}
}

// dev is somebody who came by dev login.
func (r *rig) dev(name string) access.Person {
	r.t.Helper()
	gate, err := access.Open(r.ctx(), r.db, access.Options{DevLogin: true})
	if err != nil {
		r.t.Fatal(err)
	}
	who, _, err := gate.SignInDev(r.ctx(), name)
	if err != nil {
		r.t.Fatal(err)
	}
	return who
}

func hidden(s string) github.Secret { return github.NewSecret(s) }

// count is how many rows a table has.
func (r *rig) count(table string) (n int) {
	r.t.Helper()
	if err := r.db.Read(r.ctx(), func(tx *store.Tx) error { return tx.Row(`SELECT COUNT(*) FROM ` + table).Scan(&n) }); err != nil {
		r.t.Fatal(err)
	}
	return n
}
