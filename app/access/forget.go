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

// Webhooks come late, twice and in any order, or not at all (facts/github.md §3, §4): here they only drop what is kept, so
// that the next check asks GitHub. What is dropped is no access until then, also while GitHub can't be reached.

// ForgetPerson drops what is kept of a person's access, by GitHub's id. Who never signed in is no error.
func (g *Gate) ForgetPerson(ctx context.Context, githubID int64) error {
	return g.db.Write(ctx, func(tx *store.Tx) error {
		var who Person
		err := tx.Row(personByGitHubIDSQL, githubID).Scan(&who.id, &who.source, &who.login, &who.github)
		if err := forgot(tx, forgetPerson, githubID); err != nil {
			return err
		}
		if errors.Is(err, store.ErrNotFound) {
			return nil
		}
		if err == nil {
			_, err = tx.Exec(nothingSQL, who.id)
		}
		if err == nil {
			_, err = tx.Exec(bumpSQL, who.id)
		}
		if err != nil {
			return fmt.Errorf("forget the access of %s: %w", who.id, err)
		}
		tx.Wake(topic(who.id))
		return nil
	})
}

// askAgain has the next check ask GitHub. What is there stays until then: it can only have become more.
func (g *Gate) askAgain(ctx context.Context, who Person) error {
	return g.db.Write(ctx, func(tx *store.Tx) error {
		if _, err := tx.Exec(bumpSQL, who.id); err != nil {
			return fmt.Errorf("have the access of %s asked for again: %w", who.id, err)
		}
		return nil
	})
}

// ForgetRepo drops everybody's access to a Repo.
func (g *Gate) ForgetRepo(ctx context.Context, repo github.RepoID) error {
	if app, err := g.github.App(); err == nil {
		app.ForgetRepo(repo)
	}
	return g.forget(ctx, forgetRepo, ofRepoSQL, int64(repo))
}

// ForgetInstallation drops everybody's access to the Repos of an installation: it was removed, suspended, or has others
// now.
func (g *Gate) ForgetInstallation(ctx context.Context, installation int64) error {
	if app, err := g.github.App(); err == nil {
		app.Forget(installation)
	}
	return g.forget(ctx, forgetInstallation, ofInstallationSQL, installation)
}

// ForgetAccount drops everybody's access to the Repos of a person or an organization: somebody left or joined it, or one of
// its teams.
func (g *Gate) ForgetAccount(ctx context.Context, accountID int64) error {
	return g.forget(ctx, forgetAccount, ofAccountSQL, accountID)
}

func (g *Gate) forget(ctx context.Context, kind, which string, id int64) error {
	return g.db.Write(ctx, func(tx *store.Tx) error {
		if err := forgot(tx, kind, id); err != nil {
			return err
		}
		people, err := store.All(tx, store.Scan1[string], `SELECT DISTINCT person_id FROM repo_access WHERE `+which, id)
		if err != nil {
			return fmt.Errorf("look up whose access to forget: %w", err)
		}
		for _, person := range people {
			if _, err := tx.Exec(bumpSQL, person); err != nil {
				return fmt.Errorf("forget the access of %s: %w", person, err)
			}
			tx.Wake(topic(person))
		}
		if _, err := tx.Exec(`DELETE FROM repo_access WHERE `+which, id); err != nil {
			return fmt.Errorf("forget access: %w", err)
		}
		return nil
	})
}

// Kinds of what is forgotten.
const (
	forgetPerson       = "person"
	forgetRepo         = "repo"
	forgetInstallation = "installation"
	forgetAccount      = "account"
)

// forgetsKept is longer than any question to GitHub takes.
const forgetsKept = time.Hour

// forgot notes what was forgotten, for whoever is being asked about at this moment.
func forgot(tx *store.Tx, kind string, ref int64) error {
	_, err := tx.Exec(countForgetSQL)
	if err == nil {
		_, err = tx.Exec(insertForgetSQL, kind, ref, tx.Now().UnixMilli())
	}
	if err == nil {
		_, err = tx.Exec(oldForgetsSQL, tx.Now().Add(-forgetsKept).UnixMilli())
	}
	if err != nil {
		return fmt.Errorf("note what was forgotten: %w", err)
	}
	return nil
}

// forgottenSince tells whether something in what GitHub listed for a person was forgotten after the count was ever: the list may
// be from before that.
func forgottenSince(tx *store.Tx, ever, githubID int64, list []listed) (bool, error) {
	type forgotten struct {
		kind string
		ref  int64
	}
	after, err := store.All(tx, func(scan func(...any) error) (f forgotten, err error) { return f, scan(&f.kind, &f.ref) }, forgetsAfterSQL, ever)
	if err != nil {
		return false, fmt.Errorf("read what was forgotten: %w", err)
	}
	for _, f := range after {
		if f.kind == forgetPerson && f.ref == githubID || slices.ContainsFunc(list, func(l listed) bool {
			return f.kind == forgetRepo && f.ref == int64(l.ID) || f.kind == forgetInstallation && f.ref == l.installation || f.kind == forgetAccount && f.ref == l.Owner.ID
		}) {
			return true, nil
		}
	}
	return false, nil
}

// Revoked is for github_app_authorization.revoked: the person took back what they let the App do. What is kept of their
// access is dropped, and GitHub asked whether it still knows their tokens; if it doesn't, their sessions end. The event may
// be older than their last sign-in, which then stays. Unavailable if GitHub can't be asked: ask again later.
func (g *Gate) Revoked(ctx context.Context, githubID int64) error {
	if err := g.ForgetPerson(ctx, githubID); err != nil {
		return err
	}
	var who Person
	err := g.db.Read(ctx, func(tx *store.Tx) error {
		return tx.Row(personByGitHubIDSQL, githubID).Scan(&who.id, &who.source, &who.login, &who.github)
	})
	if errors.Is(err, store.ErrNotFound) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("look up who took the authorization back: %w", err)
	}
	err = g.refresh(ctx, who.id, g.db.Now(), g.wait)
	var signedOut *signedOutError
	if errors.As(err, &signedOut) {
		return nil
	}
	return explain(err)
}

// RepoIs takes what an event says of a Repo: it was renamed, transferred, archived or is new here. Since events come in any
// order, what differs from what is known is read from GitHub, by id. A Repo that went to another account, or to no
// installation, is nobody's until GitHub lists it for them again. Unavailable if GitHub can't be asked: ask again later.
func (g *Gate) RepoIs(ctx context.Context, r github.Repository) error {
	if r.ID <= 0 {
		return nil
	}
	var known Repo
	err := g.db.Read(ctx, func(tx *store.Tx) (err error) {
		known, err = ReadRepo(tx, r.ID)
		return err
	})
	if err != nil && !errors.Is(err, store.ErrNotFound) {
		return err
	}
	if known.Dev || known.ID != 0 && known.Installation != 0 && known == told(known, r) {
		return nil
	}
	app, err := g.github.App()
	if err != nil {
		return fault.New(fault.Unavailable, "%s", words(err))
	}
	app.ForgetRepo(r.ID)
	asked := g.db.Now()
	now, err := app.Repository(ctx, r.ID)
	var installation int64
	if err == nil {
		installation, err = app.InstallationOf(ctx, r.ID)
	}
	if github.NotInstalled.Is(err) || github.NotFound.Is(err) || github.Suspended.Is(err) {
		return g.ForgetRepo(ctx, r.ID)
	}
	if err != nil {
		return inWords(err)
	}
	is := repoOf(listed{now, installation, app.Endpoints().CloneURL(now.FullName)})
	if known.ID != 0 && (is.Account != known.Account || is.Installation != known.Installation) {
		if err := g.ForgetRepo(ctx, r.ID); err != nil {
			return err
		}
	}
	return g.db.Write(ctx, func(tx *store.Tx) error { return keepRepo(tx, is, asked) })
}

// InstallationHas takes which Repos GitHub said, when it was asked, an installation has. One that was in another installation, or another
// account's, is nobody's until GitHub lists it for them again.
func (g *Gate) InstallationHas(ctx context.Context, installation int64, repos []github.Repository, asked time.Time) error {
	app, err := g.github.App()
	if err != nil {
		return fault.New(fault.Unavailable, "%s", words(err))
	}
	for _, r := range repos {
		is := repoOf(listed{r, installation, app.Endpoints().CloneURL(r.FullName)})
		var known Repo
		err := g.db.Read(ctx, func(tx *store.Tx) (err error) {
			known, err = ReadRepo(tx, r.ID)
			return err
		})
		switch {
		case err != nil && !errors.Is(err, store.ErrNotFound):
			return err
		case known.Dev || known == is:
			continue
		case known.ID != 0 && (is.Account != known.Account || is.Installation != known.Installation):
			if err := g.ForgetRepo(ctx, r.ID); err != nil {
				return err
			}
		}
		if err := g.db.Write(ctx, func(tx *store.Tx) error { return keepRepo(tx, is, asked) }); err != nil {
			return err
		}
	}
	return nil
}

// told is known with what an event says of it.
func told(known Repo, r github.Repository) Repo {
	known.Name, known.Private, known.Archived, known.Account = store.Text(r.FullName), r.Private, r.Archived, r.Owner.ID
	known.DefaultBranch = store.Text(r.DefaultBranch)
	return known
}
