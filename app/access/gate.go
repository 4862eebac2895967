// Package access decides who may use which Repo.
//
// A Gate makes Grants, and nothing else does: every method of the domain that touches a Repo takes one, so that a
// forgotten check doesn't compile.
//
// What decides is GitHub's own answer to the person's own token: the Repos that it lists for them in the installations of
// this Hub's App (ADR 0009 "Who can use an Environment", facts/github.md §3 "What may a user see?"). The answer is kept in
// the store for all Hubs, with a hard age; webhooks only drop it sooner. Dev login reaches every Repo while it is on.
package access

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/rs/zerolog"

	"github.com/claude-hub/claude-hub/app/fault"
	"github.com/claude-hub/claude-hub/app/github"
	"github.com/claude-hub/claude-hub/app/seal"
	"github.com/claude-hub/claude-hub/store"
)

// Grant proves that a person could use a Repo when it was made.
type Grant struct {
	who    Person
	repo   Repo
	level  github.Level
	asOf   time.Time
	stale  bool
	system string // the reason for which the Hub acts by itself
}

// Repo is the Repo the Grant is for.
func (g Grant) Repo() Repo { return g.repo }

// Who is the person; nobody where the Hub acts by itself.
func (g Grant) Who() Person { return g.who }

// Actor is what the audit log says of who acts.
func (g Grant) Actor() string {
	if g.system != "" {
		return "system: " + g.system
	}
	return g.who.id
}

// AsOf is when GitHub was asked for what the Grant stands on.
func (g Grant) AsOf() time.Time { return g.asOf }

// Stale tells that this is longer ago than [Options].Age, since GitHub can't be reached: good for looking only.
func (g Grant) Stale() bool { return g.stale }

// Level is what GitHub lets the person do with the Repo, as of then. The Hub has no roles: any level suffices for everything
// here (ADR 0009). It is for what happens at GitHub in the person's name, above all a push. Dev login proves nothing to
// GitHub, so it has no more than read of a Repo there. It is "" where the Hub acts by itself.
func (g Grant) Level() github.Level { return g.level }

// System is for what the Hub does for itself and not for a person, such as applying what was merged. reason stands in the
// audit log as "system: reason".
func System(r Repo, reason string) Grant {
	return Grant{repo: r, system: cmp.Or(reason, "unnamed")}
}

// Repo is one repository as the Hub knows it.
type Repo struct {
	ID       github.RepoID
	Name     string // owner/name
	CloneURL string
	Dev      bool // from the config's dev.repos: cloned with the Runner's host's own credentials

	// Of GitHub's only, as last seen.
	Private, Archived bool
	DefaultBranch     string
	Installation      int64 // of the App
	Account           int64 // whose Repo it is: a person's or an organization's id
}

// Options of a Gate. The zero value lets nobody in.
type Options struct {
	// DevLogin lets anyone sign in under any name, with access to every Repo (ADR 0009).
	DevLogin bool
	DevRepos []Repo

	// GitHub has the App that people sign in through; Seal seals their tokens. Without either nobody comes from GitHub.
	GitHub *github.Holder
	Seal   *seal.Service
	// People may sign in though GitHub shows them no Repo of this Hub, by GitHub's numeric ids.
	People []int64
	// Age is how old GitHub's answer may be to decide on anything. Default: 5 minutes.
	Age time.Duration
	// Outage is how old it may be for what only looks, while GitHub can't be reached. Default: 1 hour; never less than Age.
	Outage time.Duration
	Log    zerolog.Logger
}

// Gate decides. Its methods may be called concurrently.
type Gate struct {
	db          *store.DB
	dev         bool
	github      *github.Holder
	seal        *seal.Service
	people      []int64
	age, outage time.Duration
	log         zerolog.Logger

	// patience is how long a call that only looks waits for GitHub where what was said before is still good for it;
	// wait is how long any other does.
	patience, wait time.Duration
	finished       int // how many sign-ins that came back are kept

	life    context.Context
	end     context.CancelFunc
	mu      sync.Mutex
	flights map[string]*flight    // questions to GitHub under way, by person
	active  map[string]*lastKnown // people who asked for something lately
	running sync.WaitGroup
}

// Open makes a Gate and takes the Repos of the config into the store. It asks GitHub nothing by itself until Start.
func Open(ctx context.Context, db *store.DB, o Options) (*Gate, error) {
	err := db.Write(ctx, func(tx *store.Tx) error {
		for _, r := range o.DevRepos {
			if _, err := tx.Exec(upsertRepoSQL, int64(r.ID), sourceDev, r.Name, r.CloneURL, tx.Now().UnixMilli()); err != nil {
				return fmt.Errorf("save Repo %s of dev.repos: %w", r.Name, err)
			}
		}
		return nil
	})
	if o.GitHub == nil {
		o.GitHub = github.NewHolder(nil)
	}
	g := &Gate{
		db: db, dev: o.DevLogin, github: o.GitHub, seal: o.Seal, people: slices.Clone(o.People), log: o.Log,
		age: cmp.Or(o.Age, 5*time.Minute), patience: 2 * time.Second, wait: 15 * time.Second, finished: maxFinished,
		flights: map[string]*flight{}, active: map[string]*lastKnown{},
	}
	g.outage = max(cmp.Or(o.Outage, time.Hour), g.age)
	g.life, g.end = context.WithCancel(context.Background())
	return g, err
}

// DevLogin tells whether anyone can sign in under any name.
func (g *Gate) DevLogin() bool { return g.dev }

// invited tells whether the config lists a person.
func (g *Gate) invited(githubID int64) bool {
	return githubID != 0 && slices.Contains(g.people, githubID)
}

// ErrNotFound is the one answer for a Repo that is absent, forbidden or not installed (ADR 0009, "Who can use an
// Environment").
var ErrNotFound = fault.New(fault.NotFound, "There is no such Repo, or you have no access to it.")

type readingKey struct{}

// Reading marks a call that only looks. While GitHub can't be reached, an answer of the Gate that is older than
// [Options].Age is good for it, up to [Options].Outage; for any other call the fault is Unavailable.
func Reading(ctx context.Context) context.Context {
	return context.WithValue(ctx, readingKey{}, true)
}

func isReading(ctx context.Context) bool { return ctx.Value(readingKey{}) != nil }

// Repo answers ErrNotFound for absent, forbidden and uninstalled alike. Where what GitHub said is older than
// [Options].Age, or a webhook said that it may have changed, GitHub is asked first; a refusal that is older than half a
// minute is asked again, since access may just have been given. Unauthorized means that GitHub ended the person's sign-in,
// Unavailable that GitHub can't be asked (see Reading).
func (g *Gate) Repo(ctx context.Context, who Person, id github.RepoID) (Grant, error) {
	return g.grant(ctx, who, grantSQL, int64(id))
}

// Named is Repo by its name, for people who type it. Several may have had a name: it is that of the one that was seen with
// it last.
func (g *Gate) Named(ctx context.Context, who Person, name string) (Grant, error) {
	return g.grant(ctx, who, namedSQL, store.Text(name))
}

func (g *Gate) grant(ctx context.Context, who Person, query string, arg any) (Grant, error) {
	var out Grant
	stale, err := g.current(ctx, func() (v view, err error) {
		err = g.db.Read(ctx, func(tx *store.Tx) error {
			v, out = view{who: who, now: tx.Now()}, Grant{who: who}
			var source string
			dest := append(append(repoDest(&out.repo, &source), &out.level), v.standing.dest()...)
			err := tx.Row(query, who.id, arg).Scan(dest...)
			if errors.Is(err, store.ErrNotFound) { // nobody
				return nil
			}
			out.repo.Dev = source == sourceDev
			out.asOf = v.standing.listed
			v.yes = out.repo.ID != 0 && who.reaches(out.repo.ID) && (out.level != "" || who.Dev() && g.dev)
			return err
		})
		return v, err
	})
	if errors.Is(err, errDenied) {
		return Grant{}, ErrNotFound
	}
	if err != nil {
		return Grant{}, fmt.Errorf("read Repo: %w", explain(err))
	}
	out.stale = stale
	if who.Dev() {
		out.asOf, out.level = g.db.Now(), devLevel(out.repo)
	}
	return out, nil
}

func devLevel(r Repo) github.Level {
	if r.Dev {
		return "admin"
	}
	return "read"
}

// reaches tells whether a token is for this Repo.
func (p Person) reaches(id github.RepoID) bool {
	return p.limits == nil || p.limits.repos == nil || slices.Contains(p.limits.repos, id)
}

// List is what somebody may use, by name.
type List struct {
	Repos []Repo
	// AsOf is when GitHub was asked for it. Stale tells that this is longer ago than it should be, since GitHub can't be
	// reached.
	AsOf  time.Time
	Stale bool
}

// Repos lists what who may use, by name.
func (g *Gate) Repos(ctx context.Context, who Person) ([]Repo, error) {
	list, err := g.List(ctx, who)
	return list.Repos, err
}

// List is Repos with its age.
func (g *Gate) List(ctx context.Context, who Person) (List, error) {
	var out List
	stale, err := g.current(ctx, func() (v view, err error) {
		err = g.db.Read(ctx, func(tx *store.Tx) error {
			v, out = view{who: who, now: tx.Now(), yes: true}, List{AsOf: tx.Now()}
			err := tx.Row(standingSQL, who.id).Scan(v.standing.dest()...)
			if errors.Is(err, store.ErrNotFound) {
				return nil
			}
			if err != nil {
				return err
			}
			if who.github != 0 {
				out.AsOf = v.standing.listed
				out.Repos, err = listOf(tx, who.id)
			} else if who.Dev() && g.dev {
				out.Repos, err = store.All(tx, scanRepo, reposSQL)
			}
			v.eager = len(out.Repos) == 0 // who has none waits to see one
			return err
		})
		return v, err
	})
	if err != nil {
		return List{}, fmt.Errorf("list Repos: %w", explain(err))
	}
	out.Repos = slices.DeleteFunc(out.Repos, func(r Repo) bool { return !who.reaches(r.ID) })
	out.Stale = stale
	return out, nil
}

// Current fails as Repos does: it is for what changes something that belongs to no Repo. Browser and Token are content with an older answer
// of GitHub's while that can't be reached, which is good for looking only.
func (g *Gate) Current(ctx context.Context, who Person) error {
	_, err := g.List(ctx, who)
	return err
}

// Called finds a Repo by its id or its name, for people who give either.
func (g *Gate) Called(ctx context.Context, who Person, name string) (Grant, error) {
	if id, ok := github.ParseRepoID(name); ok {
		return g.Repo(ctx, who, id)
	}
	return g.Named(ctx, who, name)
}

// Installed are the Repos that were last seen in an installation, for the Hub itself.
func (g *Gate) Installed(ctx context.Context, installation int64) (repos []github.RepoID, err error) {
	err = g.db.Read(ctx, func(tx *store.Tx) (err error) {
		repos, err = store.All(tx, store.Scan1[github.RepoID], `SELECT id FROM repos WHERE `+installedSQL, installation)
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("list the Repos of an installation: %w", err)
	}
	return repos, nil
}

// ReadRepo reads a Repo for the Hub itself, in its own transaction and without asking whether anybody may: what it
// says goes to the Repo's own Runner, never to a person.
func ReadRepo(tx *store.Tx, id github.RepoID) (Repo, error) {
	var r Repo
	var source string
	if err := tx.Row(readRepoSQL, int64(id)).Scan(repoDest(&r, &source)...); err != nil {
		return r, fmt.Errorf("read Repo %d: %w", id, err)
	}
	r.Dev = source == sourceDev
	return r, nil
}

// repoDest takes repoColumns.
func repoDest(r *Repo, source *string) []any {
	return []any{&r.ID, source, &r.Name, &r.CloneURL, &r.Private, &r.Archived, &r.DefaultBranch, &r.Installation, &r.Account}
}

func scanRepo(scan func(...any) error) (r Repo, err error) {
	var source string
	err = scan(repoDest(&r, &source)...)
	r.Dev = source == sourceDev
	return r, err
}

// Sender is the Gate for somebody who isn't here, but pressed a button at GitHub or merged there, by GitHub's numeric id.
// ErrNotFound too for who never signed in, or whose sign-in has ended: they have to come to the Hub's pages.
func (g *Gate) Sender(ctx context.Context, githubID int64, repo github.RepoID) (Grant, error) {
	var who Person
	err := g.db.Read(ctx, func(tx *store.Tx) error {
		return tx.Row(personByGitHubIDSQL, githubID).Scan(&who.id, &who.source, &who.login, &who.github)
	})
	if err != nil && !errors.Is(err, store.ErrNotFound) {
		return Grant{}, fmt.Errorf("look up who did it: %w", err)
	}
	grant, err := g.Repo(ctx, who, repo)
	if fault.Is(err, fault.Unauthorized) {
		err = ErrNotFound
	}
	return grant, err
}

// holdEvery is how often a held Grant is checked again: streams and terminals end so soon after access did.
const holdEvery = 30 * time.Second

// Hold returns a context that is cancelled when the person's access to the Grant's Repo ends, or the session or token that
// they came with: streams and terminals run under it. It looks every half minute, and at once when a webhook or a sign-out
// said that something changed. While GitHub can't be reached, what it said last is good up to [Options].Outage; what a
// webhook told to forget is not, and ends half a minute later unless GitHub is back.
func (g *Gate) Hold(ctx context.Context, gr Grant) (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithCancel(ctx)
	if gr.system != "" {
		return ctx, cancel
	}
	go func() {
		tick := time.NewTicker(holdEvery)
		defer tick.Stop()
		for ticked := false; ; {
			changed := g.db.Changed(topic(gr.who.id)) // before looking, so that nothing is missed in between
			switch lost, err := g.lost(ctx, gr); {
			case lost, ticked && fault.Is(err, fault.Unavailable):
				cancel()
				return
			}
			select {
			case <-ctx.Done():
				return
			case <-changed:
				ticked = false
			case <-tick.C:
				ticked = true
			}
		}
	}()
	return ctx, cancel
}

// lost tells whether what a Grant stands on has ended.
func (g *Gate) lost(ctx context.Context, gr Grant) (bool, error) {
	if gr.who.credential != "" {
		var expires time.Time
		err := g.db.Read(ctx, func(tx *store.Tx) error {
			return tx.Row(credentialEndsSQL, []byte(gr.who.credential)).Scan(store.At(&expires))
		})
		if errors.Is(err, store.ErrNotFound) || err == nil && !g.db.Now().Before(expires) {
			return true, nil
		}
		if err != nil {
			return false, err
		}
	}
	_, err := g.Repo(Reading(ctx), gr.who, gr.repo.ID)
	return errors.Is(err, ErrNotFound) || fault.Is(err, fault.Unauthorized), err
}
