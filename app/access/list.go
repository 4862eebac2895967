package access

import (
	"fmt"
	"time"

	"github.com/claude-hub/claude-hub/app/github"
	"github.com/claude-hub/claude-hub/store"
)

// allowed is a Repo of somebody's list.
type allowed struct {
	Repo
	level github.Level
}

func scanAllowed(scan func(...any) error) (a allowed, err error) {
	var source string // GitHub's
	return a, scan(append(repoDest(&a.Repo, &source), &a.level)...)
}

// listOf is a person's list, by name.
func listOf(tx *store.Tx, person string) ([]Repo, error) {
	all, err := store.All(tx, scanAllowed, listedSQL, person)
	repos := make([]Repo, len(all))
	for i, a := range all {
		repos[i] = a.Repo
	}
	return repos, err
}

// keepList makes list the person's, as of asked. It writes what differs, which is usually nothing.
func (g *Gate) keepList(tx *store.Tx, person string, asked time.Time, list []listed) error {
	rows, err := store.All(tx, scanAllowed, listedSQL, person)
	if err != nil {
		return fmt.Errorf("read the list of %s: %w", person, err)
	}
	before := map[github.RepoID]allowed{}
	for _, a := range rows {
		before[a.ID] = a
	}
	for _, l := range list {
		level := l.Level
		if level == "" { // it is listed
			level = "read"
		}
		old, there := before[l.ID]
		delete(before, l.ID)
		if now := repoOf(l); !there || old.Repo != now {
			if err := keepRepo(tx, now, asked); err != nil {
				return err
			}
		}
		if !there || old.level != level {
			n, err := tx.Exec(allowSQL, person, int64(l.ID), string(level))
			if err != nil {
				return fmt.Errorf("save access to Repo %d: %w", l.ID, err)
			}
			if n == 0 {
				g.log.Error().Int64("repo", int64(l.ID)).Msg("the config's dev.repos has the id of a Repo of GitHub, which nobody can use for that: give it another id")
			}
		}
	}
	for id := range before {
		if _, err := tx.Exec(disallowSQL, person, int64(id)); err != nil {
			return fmt.Errorf("end access to Repo %d: %w", id, err)
		}
	}
	if _, err := tx.Exec(reseenSQL, person, asked.UnixMilli()); err != nil {
		return fmt.Errorf("save whose names are whose: %w", err)
	}
	return nil
}

func repoOf(l listed) Repo {
	return Repo{
		ID: l.ID, Name: store.Text(l.FullName), CloneURL: l.clone, Private: l.Private, Archived: l.Archived,
		DefaultBranch: store.Text(l.DefaultBranch), Installation: l.installation, Account: l.Owner.ID,
	}
}

func keepRepo(tx *store.Tx, r Repo, asked time.Time) error {
	_, err := tx.Exec(upsertGitHubRepoSQL, int64(r.ID), r.Name, r.CloneURL, asked.UnixMilli(), r.Private, r.Archived, r.DefaultBranch, r.Installation, r.Account)
	if err != nil {
		return fmt.Errorf("save Repo %d: %w", r.ID, err)
	}
	return nil
}

// rename gives a person of GitHub the login they have now. Whoever had it here has another one.
func rename(tx *store.Tx, id int64, login string) error {
	login = store.Text(login)
	if _, err := tx.Exec(displaceSQL, login, id); err != nil {
		return fmt.Errorf("take the login %q from who had it: %w", login, err)
	}
	if _, err := tx.Exec(upsertGitHubPersonSQL, store.NewID(), login, tx.Now().UnixMilli(), id); err != nil {
		return fmt.Errorf("save person %d: %w", id, err)
	}
	return nil
}
