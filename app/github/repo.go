package github

import (
	"context"
	"fmt"
	"net/http"
	"net/url"
	"time"

	ghapi "github.com/google/go-github/v62/github"
)

// PullRequest is one as it is now.
type PullRequest struct {
	Number      int
	Title, URL  string
	Author      Account
	Open, Draft bool
	Merged      bool
	MergedBy    Account // zero in lists, and unless merged
	MergedAt    time.Time
	MergeCommit string // on the base branch, once merged
	Base, Head  Side
	// Fork says that the head is in another Repo, or in one that is gone. Its author may have no rights here at all.
	Fork bool
}

// Side is one end of a pull request. Repo is 0 when that repository is gone.
type Side struct {
	Repo RepoID
	Ref  string
	SHA  string
}

type sideJSON struct {
	Ref  string `json:"ref"`
	SHA  string `json:"sha"`
	Repo *struct {
		ID RepoID `json:"id"`
	} `json:"repo"`
}

func (j sideJSON) side() Side {
	s := Side{Ref: j.Ref, SHA: j.SHA}
	if j.Repo != nil {
		s.Repo = j.Repo.ID
	}
	return s
}

type pullJSON struct {
	Number      int          `json:"number"`
	Title       string       `json:"title"`
	URL         string       `json:"html_url"`
	State       string       `json:"state"`
	Draft       bool         `json:"draft"`
	User        *accountJSON `json:"user"`
	MergedAt    *moment      `json:"merged_at"`
	MergedBy    *accountJSON `json:"merged_by"`
	MergeCommit *string      `json:"merge_commit_sha"`
	Base        sideJSON     `json:"base"`
	Head        sideJSON     `json:"head"`
}

func (j pullJSON) pull() PullRequest {
	p := PullRequest{
		Number: j.Number, Title: j.Title, URL: j.URL, Author: j.User.account(), Open: j.State == "open", Draft: j.Draft,
		MergedBy: j.MergedBy.account(), Base: j.Base.side(), Head: j.Head.side(),
	}
	if j.MergedAt != nil {
		p.Merged, p.MergedAt = true, j.MergedAt.Time
		if j.MergeCommit != nil { // before the merge it is a commit that GitHub only tries
			p.MergeCommit = *j.MergeCommit
		}
	}
	p.Fork = p.Head.Repo != p.Base.Repo // also when the head's is gone: 0
	return p
}

// PullRequest reads one.
func (a *App) PullRequest(ctx context.Context, repo RepoID, number int) (PullRequest, error) {
	var j pullJSON
	if _, err := a.onRepo(ctx, repo, http.MethodGet, fmt.Sprintf("/pulls/%d", number), nil, &j); err != nil {
		return PullRequest{}, err
	}
	p := j.pull()
	if p.Number != number || p.Base.Repo != repo {
		return PullRequest{}, away(nil)
	}
	return p, nil
}

// PullRequests lists those that are open, newest first.
func (a *App) PullRequests(ctx context.Context, repo RepoID) ([]PullRequest, error) {
	return a.pulls(ctx, repo, "/pulls?state=open&sort=created&direction=desc")
}

// PullRequestsWith lists those that brought a commit into the Repo, or have it as head.
func (a *App) PullRequestsWith(ctx context.Context, repo RepoID, sha string) ([]PullRequest, error) {
	if !isSHA(sha) {
		return nil, notACommit(sha)
	}
	return a.pulls(ctx, repo, "/commits/"+sha+"/pulls")
}

func (a *App) pulls(ctx context.Context, repo RepoID, path string) ([]PullRequest, error) {
	var all []PullRequest
	seen := map[int]bool{}
	err := list(ctx, path, func(path string) (*ghapi.Response, error) {
		var page []pullJSON
		resp, err := a.onRepo(ctx, repo, http.MethodGet, path, nil, &page)
		for _, j := range page {
			if p := j.pull(); !seen[p.Number] && p.Base.Repo == repo {
				seen[p.Number] = true
				all = append(all, p)
			}
		}
		return resp, err
	})
	return all, err
}

// Repository is the Repo as the App sees it; its Level is empty.
func (a *App) Repository(ctx context.Context, repo RepoID) (Repository, error) {
	var j repositoryJSON
	if _, err := a.onRepo(ctx, repo, http.MethodGet, "", nil, &j); err != nil {
		return Repository{}, err
	}
	if j.ID != repo {
		return Repository{}, away(nil)
	}
	r := j.repository()
	r.Level = ""
	return r, nil
}

// Permission is what a person may do with the Repo, by login. For a public Repo everyone has read (facts/github.md §3):
// only write and more say something. NotFound if GitHub knows no such person.
func (a *App) Permission(ctx context.Context, repo RepoID, login string) (Account, Level, error) {
	var j struct {
		Permission string       `json:"permission"`
		User       *accountJSON `json:"user"`
	}
	_, err := a.onRepo(ctx, repo, http.MethodGet, "/collaborators/"+url.PathEscape(login)+"/permission", nil, &j)
	if err != nil {
		return Account{}, "", err
	}
	if j.Permission == "none" {
		j.Permission = ""
	}
	return j.User.account(), Level(j.Permission), nil
}

// Commit is one commit. Parents has two or more for a merge.
type Commit struct {
	SHA, Tree, Message string
	Parents            []string
}

// Commit reads what a branch, tag or commit means. Empty if the Repo has no commit at all.
func (a *App) Commit(ctx context.Context, repo RepoID, ref string) (Commit, error) {
	var j struct {
		SHA    string `json:"sha"`
		Commit struct {
			Message string `json:"message"`
			Tree    struct {
				SHA string `json:"sha"`
			} `json:"tree"`
		} `json:"commit"`
		Parents []struct {
			SHA string `json:"sha"`
		} `json:"parents"`
	}
	if _, err := a.onRepo(ctx, repo, http.MethodGet, "/commits/"+url.PathEscape(ref), nil, &j); err != nil {
		return Commit{}, noCommit(err, ref)
	}
	if !isSHA(j.SHA) {
		return Commit{}, away(nil)
	}
	c := Commit{SHA: j.SHA, Tree: j.Commit.Tree.SHA, Message: j.Commit.Message}
	for _, p := range j.Parents {
		c.Parents = append(c.Parents, p.SHA)
	}
	return c, nil
}

// Branch is the commit that a branch is at.
func (a *App) Branch(ctx context.Context, repo RepoID, name string) (string, error) {
	var j struct {
		Commit struct {
			SHA string `json:"sha"`
		} `json:"commit"`
	}
	if _, err := a.onRepo(ctx, repo, http.MethodGet, "/branches/"+url.PathEscape(name), nil, &j); err != nil {
		return "", err
	}
	if !isSHA(j.Commit.SHA) {
		return "", away(nil)
	}
	return j.Commit.SHA, nil
}

// Comparison is how head differs from base.
type Comparison struct {
	Status        string // identical, ahead, behind, diverged
	Ahead, Behind int
	MergeBase     string
	// Files are the first 300 paths that changed since MergeBase: GitHub lists no more.
	Files []string
}

// Compare compares two commits or branches of one Repo.
func (a *App) Compare(ctx context.Context, repo RepoID, base, head string) (Comparison, error) {
	var j struct {
		Status    string `json:"status"`
		Ahead     int    `json:"ahead_by"`
		Behind    int    `json:"behind_by"`
		MergeBase struct {
			SHA string `json:"sha"`
		} `json:"merge_base_commit"`
		Files []struct {
			Name string `json:"filename"`
		} `json:"files"`
	}
	path := "/compare/" + url.PathEscape(base) + "..." + url.PathEscape(head) + "?per_page=1"
	if _, err := a.onRepo(ctx, repo, http.MethodGet, path, nil, &j); err != nil {
		return Comparison{}, err
	}
	c := Comparison{Status: j.Status, Ahead: j.Ahead, Behind: j.Behind, MergeBase: j.MergeBase.SHA}
	for _, f := range j.Files {
		c.Files = append(c.Files, f.Name)
	}
	return c, nil
}

func isSHA(s string) bool {
	if len(s) != 40 {
		return false
	}
	for _, r := range s {
		if (r < '0' || r > '9') && (r < 'a' || r > 'f') {
			return false
		}
	}
	return true
}

func notACommit(sha string) error {
	return fail(Invalid, "%.60q is no commit: write its whole id, 40 characters of 0-9 and a-f.", sha)
}

// noCommit makes one answer of GitHub's several for a commit that isn't there.
func noCommit(err error, ref string) error {
	if NotFound.Is(err) || Invalid.Is(err) {
		return fail(NotFound, "The Repo has no commit %.60s.", ref)
	}
	return err
}
