// Package access decides who may use which Repo.
//
// A Gate makes Grants, and nothing else does: every method of the domain that touches a Repo takes one, so that a
// forgotten check doesn't compile.
package access

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/claude-hub/claude-hub/app/fault"
	"github.com/claude-hub/claude-hub/app/github"
	"github.com/claude-hub/claude-hub/store"
)

// Grant proves that a person could use a Repo when it was made.
type Grant struct {
	who  Person
	repo Repo
}

// Repo is the Repo the Grant is for.
func (g Grant) Repo() Repo { return g.repo }

// Who is the person.
func (g Grant) Who() Person { return g.who }

// Actor is what the audit log says of who acts.
func (g Grant) Actor() string { return g.who.id }

// Repo is one repository as the Hub knows it.
type Repo struct {
	ID       github.RepoID
	Name     string // owner/name
	CloneURL string
	Dev      bool // from the config's dev.repos: cloned with the Runner's host's own credentials
}

// Gate decides. Its methods may be called concurrently.
type Gate struct {
	db  *store.DB
	dev bool
}

// Options of a Gate. DevLogin lets anyone sign in under any name, with access to every Repo (ADR 0009).
type Options struct {
	DevLogin bool
	DevRepos []Repo
}

// Open makes a Gate and takes the Repos of the config into the store.
func Open(ctx context.Context, db *store.DB, o Options) (*Gate, error) {
	err := db.Write(ctx, func(tx *store.Tx) error {
		for _, r := range o.DevRepos {
			if _, err := tx.Exec(upsertRepoSQL, int64(r.ID), sourceDev, r.Name, r.CloneURL, tx.Now().UnixMilli()); err != nil {
				return fmt.Errorf("save Repo %s of dev.repos: %w", r.Name, err)
			}
		}
		return nil
	})
	return &Gate{db: db, dev: o.DevLogin}, err
}

// DevLogin tells whether anyone can sign in under any name.
func (g *Gate) DevLogin() bool { return g.dev }

// ErrNotFound is the one answer for a Repo that is absent, forbidden or not installed (ADR 0009, "Who can use an
// Environment").
var ErrNotFound = fault.New(fault.NotFound, "There is no such Repo, or you have no access to it.")

// Repo answers ErrNotFound for absent, forbidden and uninstalled alike.
func (g *Gate) Repo(ctx context.Context, who Person, id github.RepoID) (Grant, error) {
	return g.grant(ctx, who, repoSQL, int64(id))
}

// Named is Repo by its name, for people who type it.
func (g *Gate) Named(ctx context.Context, who Person, name string) (Grant, error) {
	return g.grant(ctx, who, repoNamedSQL, store.Text(name))
}

func (g *Gate) grant(ctx context.Context, who Person, query string, arg any) (Grant, error) {
	var repo Repo
	err := g.db.Read(ctx, func(tx *store.Tx) (err error) {
		repo, err = scanRepo(tx.Row(query, arg).Scan)
		return err
	})
	if err != nil && !errors.Is(err, store.ErrNotFound) {
		return Grant{}, fmt.Errorf("read Repo: %w", err)
	}
	if err != nil || !g.may(who, repo) {
		return Grant{}, ErrNotFound
	}
	return Grant{who: who, repo: repo}, nil
}

func (g *Gate) may(who Person, _ Repo) bool { return who.id != "" && who.Dev() && g.dev }

// Repos lists what who may use, by name.
func (g *Gate) Repos(ctx context.Context, who Person) ([]Repo, error) {
	var repos []Repo
	err := g.db.Read(ctx, func(tx *store.Tx) (err error) {
		repos, err = store.All(tx, scanRepo, reposSQL)
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("list Repos: %w", err)
	}
	return slices.DeleteFunc(repos, func(r Repo) bool { return !g.may(who, r) }), nil
}

// ReadRepo reads a Repo for the Hub itself, in its own transaction and without asking whether anybody may: what it
// says goes to the Repo's own Runner, never to a person.
func ReadRepo(tx *store.Tx, id github.RepoID) (Repo, error) {
	r, err := scanRepo(tx.Row(repoSQL, int64(id)).Scan)
	if err != nil {
		return r, fmt.Errorf("read Repo %d: %w", id, err)
	}
	return r, nil
}

func scanRepo(scan func(...any) error) (r Repo, err error) {
	var source string
	err = scan(&r.ID, &source, &r.Name, &r.CloneURL)
	r.Dev = source == sourceDev
	return r, err
}

// holdEvery is how often a held Grant is checked again: streams and terminals end so soon after access did.
const holdEvery = 30 * time.Second

// Hold returns a context that is cancelled when the person's access to the Grant's Repo ends, at the next check:
// streams and terminals run under it.
func (g *Gate) Hold(ctx context.Context, gr Grant) (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithCancel(ctx)
	go func() {
		tick := time.NewTicker(holdEvery)
		defer tick.Stop()
		for {
			select {
			case <-ctx.Done():
				return
			case <-tick.C:
				if _, err := g.Repo(ctx, gr.who, gr.repo.ID); errors.Is(err, ErrNotFound) {
					cancel()
					return
				}
			}
		}
	}()
	return ctx, cancel
}
