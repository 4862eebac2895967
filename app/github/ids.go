// Package github is the GitHub App: everything the Hub asks of GitHub goes through it, as the App, as one of its
// installations or as a person, and what arrives from GitHub is verified and read here. It keeps nothing but tokens in
// memory, and decides nothing.
//
// It is built on go-githubapp and go-github, around the traps that facts/github.md §1 lists. Its tests run against
// githubtest, a GitHub of one's own.
package github

import "strconv"

// RepoID is GitHub's numeric id of a repository. Everything is keyed by it and never by a name: names are given to
// others after a rename (facts/github.md §4, 17).
type RepoID int64

func (id RepoID) String() string { return strconv.FormatInt(int64(id), 10) }

// ParseRepoID reads an id from a path or a form.
func ParseRepoID(s string) (RepoID, bool) {
	n, err := strconv.ParseInt(s, 10, 64)
	return RepoID(n), err == nil && n > 0
}
