package checks_test

import (
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/rs/zerolog"

	"github.com/claude-hub/claude-hub/app/checks"
	"github.com/claude-hub/claude-hub/app/github"
	"github.com/claude-hub/claude-hub/app/github/githubtest"
	"github.com/claude-hub/claude-hub/app/github/githubtest/checked"
	"github.com/claude-hub/claude-hub/store"
	"github.com/claude-hub/claude-hub/store/storetest"
)

// rig is a Hub's database and a GitHub that has the App on one Repo. Time passes when the test says so.
type rig struct {
	t      *testing.T
	gh     *githubtest.Server
	owner  githubtest.Account
	repo   githubtest.Repo
	inst   githubtest.Installation
	cred   githubtest.App
	holder *github.Holder
	db     *store.DB
	clock  *storetest.Clock
	wait   time.Duration // the App's, for an answer; in real time

	mu     sync.Mutex
	writes []time.Time // when check runs were written
}

func newRig(t *testing.T, db *store.DB) *rig {
	t.Helper()
	return rigOn(t, db, checked.New(t, githubtest.Options{}))
}

func rigOn(t *testing.T, db *store.DB, gh *githubtest.Server) *rig {
	t.Helper()
	r := &rig{t: t, gh: gh, db: db, clock: storetest.NewClock(db), owner: gh.Org("acme"), holder: github.NewHolder(nil), wait: 10 * time.Second}
	r.repo = gh.Repo("acme/rocket", true, githubtest.Files{"README.md": githubtest.Text("x\n")})
	r.cred = gh.App(githubtest.AppOptions{})
	r.inst = gh.Install(r.cred.ID, r.owner, r.owner, r.repo)
	r.connect()
	return r
}

// connect gives the Hub an App that remembers nothing of before, as a Hub that has just been started.
func (r *rig) connect() {
	r.t.Helper()
	u := r.gh.URLs()
	app, err := github.New(github.Options{
		Endpoints: github.Endpoints{Web: u.Web, API: u.API, GraphQL: u.GraphQL}, Timeout: r.wait,
		Credentials: github.Credentials{
			AppID: r.cred.ID, Slug: r.cred.Slug, ClientID: r.cred.ClientID, ClientSecret: github.NewSecret(r.cred.ClientSecret),
			PrivateKey: github.NewSecret(r.cred.PrivateKey), WebhookSecrets: []github.Secret{github.NewSecret(r.cred.WebhookSecret)},
		},
		Observe: func(o github.Observed) {
			if o.Operation == "POST /repositories/{}/check-runs" || o.Operation == "PATCH /repositories/{}/check-runs/{}" {
				r.mu.Lock()
				defer r.mu.Unlock()
				r.writes = append(r.writes, r.clock.Now())
			}
		},
	})
	if err != nil {
		r.t.Fatal(err)
	}
	r.holder.Set(app)
}

func (r *rig) written() []time.Time {
	r.mu.Lock()
	defer r.mu.Unlock()
	return append([]time.Time(nil), r.writes...)
}

// hub is a Reconciler on the rig's database, as another Hub has it.
func (r *rig) hub() *checks.Reconciler { return r.hubOn(r.db) }

func (r *rig) hubOn(db *store.DB) *checks.Reconciler {
	return checks.New(db, r.holder, checks.Options{Log: zerolog.New(zerolog.NewTestWriter(r.t))})
}

// once runs one round and says when the next is due.
func (r *rig) once(hub *checks.Reconciler) time.Time {
	r.t.Helper()
	next, err := hub.RunOnce(r.t.Context())
	if err != nil {
		r.t.Fatal(err)
	}
	return next
}

// drain has hub work until GitHub shows everything, letting as much time pass as it waits for, and says how long that took.
func (r *rig) drain(hub *checks.Reconciler, limit time.Duration) time.Duration {
	r.t.Helper()
	return r.drainUntil(hub, limit, func() bool { return r.pending(hub) == 0 })
}

func (r *rig) drainUntil(hub *checks.Reconciler, limit time.Duration, done func() bool) time.Duration {
	r.t.Helper()
	begun := r.clock.Now()
	for {
		next := r.once(hub)
		took := r.clock.Now().Sub(begun)
		switch {
		case done():
			return took
		case took > limit:
			r.t.Fatalf("%d check runs are not shown after %s", r.pending(hub), took)
		case next.IsZero():
			r.t.Fatal("nothing is to be done any more, but it isn't as it should be")
		}
		r.clock.Advance(max(0, next.Sub(r.clock.Now())))
	}
}

func (r *rig) pending(hub *checks.Reconciler) int {
	r.t.Helper()
	n, err := hub.Pending(r.t.Context())
	if err != nil {
		r.t.Fatal(err)
	}
	return n
}

func (r *rig) parked(hub *checks.Reconciler) int {
	r.t.Helper()
	n, err := hub.Parked(r.t.Context())
	if err != nil {
		r.t.Fatal(err)
	}
	return n
}

// head is the commit that check runs are on.
func (r *rig) head() string { return r.repo.Head("main") }

func (r *rig) view(externalID, status string) checks.View {
	v := checks.View{
		Repo: github.RepoID(r.repo.ID), SHA: r.head(), Name: "Environment / Test build", ExternalID: externalID, Status: status,
		DetailsURL: "https://hub.example/t/" + externalID, Title: text("Title of " + status), Summary: text("Summary of " + status),
	}
	if status == checks.Completed {
		v.Conclusion = "failure"
	}
	return v
}

func (r *rig) show(v checks.View) { r.t.Helper(); show(r.t, r.db, v) }

// only is the one check run on the head.
func (r *rig) only() githubtest.Check {
	r.t.Helper()
	all := r.repo.Checks(r.head())
	if len(all) != 1 {
		r.t.Fatalf("GitHub has %d check runs, want one: %+v", len(all), all)
	}
	return all[0]
}

func annotations(n int) (all []github.Annotation) {
	for i := range n {
		all = append(all, github.Annotation{Path: ".claude-hub/environment.yml", Start: i + 1, End: i + 1, Level: "failure", Message: fmt.Sprint(i)})
	}
	return all
}

// wantAnnotations wants each of n there exactly once.
func wantAnnotations(t *testing.T, c githubtest.Check, n int) {
	t.Helper()
	seen := map[string]int{}
	for _, a := range c.Annotations {
		seen[a.Message]++
	}
	if len(c.Annotations) != n || len(seen) != n {
		t.Errorf("GitHub has %d annotations, %d different ones, want %d", len(c.Annotations), len(seen), n)
	}
}
