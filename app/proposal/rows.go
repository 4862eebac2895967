package proposal

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/claude-hub/claude-hub/app/github"
	"github.com/claude-hub/claude-hub/store"
)

func scan(scan func(...any) error) (Proposal, error) {
	var p Proposal
	var problems string
	err := scan(&p.Number, &p.version, &p.Title, &p.URL, &p.Author.ID, &p.Author.Login, &p.SHA, &p.Base, &p.ToDefault, &p.Fork, &p.State, &p.File,
		&problems, &p.MergedSHA, &p.MergedBy, &p.Outcome, &p.Detail, store.At(&p.UpdatedAt))
	if err != nil {
		return p, err
	}
	if err := json.Unmarshal([]byte(problems), &p.Problems); err != nil {
		return p, fmt.Errorf("decode the problems of pull request #%d: %w", p.Number, err)
	}
	return p, nil
}

// read is the row of a pull request; found is false, and its version 0, for one that was never looked at.
func read(tx *store.Tx, repo github.RepoID, number int) (p Proposal, found bool, err error) {
	p, err = scan(tx.Row(oneSQL, int64(repo), number).Scan)
	if errors.Is(err, store.ErrNotFound) {
		return Proposal{}, false, nil
	}
	if err != nil {
		return Proposal{}, false, fmt.Errorf("read pull request #%d: %w", number, err)
	}
	return p, true, nil
}

// errMoved says that somebody wrote what they read of GitHub later, or at the same time: read again.
var errMoved = errors.New("the pull request was looked at by somebody else meanwhile")

// write stores p over the row that was read before GitHub was asked, and over no other: so an older head never replaces a newer
// one. Every write was read after the one before it was committed.
func write(tx *store.Tx, repo github.RepoID, p Proposal) error {
	if p.Problems == nil {
		p.Problems = []Problem{}
	}
	problems, err := json.Marshal(p.Problems)
	if err != nil {
		return fmt.Errorf("encode the problems of pull request #%d: %w", p.Number, err)
	}
	rest := []any{
		store.Text(p.Title), store.Text(p.URL), p.Author.ID, store.Text(p.Author.Login), p.SHA, store.Text(p.Base), p.ToDefault, p.Fork,
		string(p.State), string(p.File), string(problems), p.MergedSHA, store.Text(p.MergedBy), string(p.Outcome), store.Text(p.Detail), tx.Now(),
	}
	var n int64
	if p.version == 0 {
		n, err = tx.Exec(insertSQL, append([]any{int64(repo), p.Number}, rest...)...)
	} else {
		n, err = tx.Exec(updateSQL, append([]any{int64(repo), p.Number, p.version}, rest...)...)
	}
	if err != nil {
		return fmt.Errorf("save pull request #%d: %w", p.Number, err)
	}
	if n != 1 {
		return errMoved
	}
	return nil
}

// at lists the pull requests that a commit speaks for: open ones with it as head, and those that were merged as it.
func at(tx *store.Tx, repo github.RepoID, sha string) ([]Proposal, error) {
	all, err := store.All(tx, scan, atSQL, int64(repo), sha)
	if err != nil {
		return nil, fmt.Errorf("list the pull requests at %s: %w", sha, err)
	}
	return all, nil
}

// due has a pull request looked at again, at a time or earlier; afresh has its files read again.
func due(tx *store.Tx, repo github.RepoID, number int, when time.Time, afresh bool) error {
	if _, err := tx.Exec(dueSQL, int64(repo), number, when, afresh); err != nil {
		return fmt.Errorf("have pull request #%d looked at: %w", number, err)
	}
	tx.Wake(topic)
	return nil
}

// topic is woken when there is something to look at.
const topic = "proposals"

func sortedKeys[V any](m map[string]V) []string { return slices.Sorted(maps.Keys(m)) }
