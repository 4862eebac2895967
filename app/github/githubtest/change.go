package githubtest

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"
)

// pull is one pull request.
type pull struct {
	id                int64
	number            int
	base, head        *repository // head is nil once a fork was deleted
	baseRef, headRef  string
	sha, baseSHA      string
	author            *account
	title, body       string
	state             string // open, closed
	merged, draft     bool
	mergedBy          *account
	mergeSHA          string
	mergedAt, created time.Time
}

// Pull is a pull request of this GitHub.
type Pull struct {
	Repo   Repo
	Number int
}

// branchOf is the default branch.
func (s *Server) branchOf(r *repository) string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return r.branch
}

// Head is the commit of a branch, or "".
func (r Repo) Head(branch string) string { return r.s.resolve(r.get(), "refs/heads/"+branch) }

// Push commits files on branch (a new branch begins at the default one) and returns the commit. What a push sets off
// follows: events push, check_suite, and pull_request where a pull request has this branch as its head.
func (r Repo) Push(by Account, branch, message string, files Files) string {
	repo := r.get()
	from := r.s.resolve(repo, "refs/heads/"+r.s.branchOf(repo))
	before := r.s.refs(repo)
	r.s.mu.Lock()
	who := by.get()
	r.s.mu.Unlock()
	sha := r.s.commit(repo, who, branch, from, message, files)
	r.s.pushedBy(repo, who, before, r.s.refs(repo))
	return sha
}

// ForcePush sets branch to a commit that may be anywhere.
func (r Repo) ForcePush(by Account, branch, sha string) {
	repo := r.get()
	before := r.s.refs(repo)
	r.s.must(r.s.folder(repo), nil, "update-ref", "refs/heads/"+branch, sha)
	r.s.mu.Lock()
	who := by.get()
	r.s.mu.Unlock()
	r.s.pushedBy(repo, who, before, r.s.refs(repo))
}

func (s *Server) pushed(r *repository, who principal, before, after map[string]string) {
	by := who.user()
	if by == nil {
		by = r.owner
	}
	s.pushedBy(r, by, before, after)
}

const zeros = "0000000000000000000000000000000000000000"

// pushedBy tells of the branches that changed.
func (s *Server) pushedBy(r *repository, by *account, before, after map[string]string) {
	branches := slices.Sorted(maps.Keys(after))
	for b := range before {
		if after[b] == "" {
			branches = append(branches, b)
		}
	}
	for _, b := range branches {
		old, now := before[b], after[b]
		if old == now {
			continue
		}
		forced := false
		if old != "" && now != "" {
			_, err := s.git(s.folder(r), nil, "merge-base", "--is-ancestor", old, now)
			forced = err != nil
		}
		s.tellPush(r, by, b, old, now, forced)
	}
}

func (s *Server) tellPush(r *repository, by *account, branch, old, now string, forced bool) {
	var head commitInfo
	if now != "" {
		head, _ = s.commitInfo(r, now)
	}
	s.mu.Lock()
	var follow []*pull
	for _, other := range s.repos {
		for _, p := range other.pulls {
			if p.head == r && p.headRef == branch && p.state == "open" && now != "" {
				follow = append(follow, p)
			}
		}
	}
	s.mu.Unlock()
	for _, p := range follow {
		s.fetchHead(p, now)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	payload := object{
		"ref": "refs/heads/" + branch, "before": or(old, zeros), "after": or(now, zeros), "created": old == "",
		"deleted": now == "", "forced": forced, "base_ref": nil, "compare": s.urls.Web + "/" + r.full() + "/compare",
		"pusher": object{"name": by.Login, "email": by.Login + "@users.noreply.github.example"}, "commits": []any{},
		"head_commit": nil,
	}
	if now != "" {
		c := object{
			"id": now, "tree_id": head.Tree, "distinct": true, "message": head.Message, "timestamp": head.Date, "url": s.urls.Web,
			"author":    object{"name": head.Name, "email": head.Email, "username": by.Login},
			"committer": object{"name": head.Name, "email": head.Email}, "added": []any{}, "removed": []any{}, "modified": []any{},
		}
		payload["head_commit"], payload["commits"] = c, []any{c}
	}
	if old == "" {
		s.emitTo(r, by, "create", "", object{"ref": branch, "ref_type": "branch", "master_branch": r.branch, "pusher_type": "user", "description": nil})
	}
	s.emitTo(r, by, "push", "", payload)
	if now == "" {
		s.emitTo(r, by, "delete", "", object{"ref": branch, "ref_type": "branch", "pusher_type": "user"})
		return
	}
	s.beginSuites(r, now, branch)
	for _, p := range follow {
		before := p.sha
		p.sha = now
		if p.base != r {
			s.beginSuites(p.base, now, "")
		}
		s.emitTo(p.base, by, "pull_request", "synchronize", object{
			"number": p.number, "pull_request": s.pullJSON(p, false), "before": before, "after": now,
		})
	}
}

func or(a, b string) string {
	if a != "" {
		return a
	}
	return b
}

// fetchHead makes the head of p reachable in the base repository, as refs/pull/N/head.
func (s *Server) fetchHead(p *pull, sha string) {
	p.base.writing.Lock()
	defer p.base.writing.Unlock()
	ref := fmt.Sprintf("refs/pull/%d/head", p.number)
	if p.head == p.base {
		s.must(s.folder(p.base), nil, "update-ref", ref, sha)
		return
	}
	s.must(s.folder(p.base), nil, "fetch", "--quiet", "--no-tags", s.folder(p.head), "+"+sha+":"+ref)
}

// Fork makes by's own copy of the repository, as public as this one.
func (r Repo) Fork(by Account) Repo {
	parent := r.get()
	fork := r.s.Repo(by.Login()+"/"+parent.name, parent.private, nil)
	repo := fork.get()
	r.s.must(r.s.folder(repo), nil, "fetch", "--quiet", r.s.folder(parent), "+refs/heads/*:refs/heads/*")
	r.s.mu.Lock()
	defer r.s.mu.Unlock()
	repo.parent, repo.branch = parent, parent.branch
	return fork
}

// OpenPull asks for headBranch of head (this repository or a fork of it) to be merged into the default branch.
func (r Repo) OpenPull(by Account, head Repo, headBranch, title string) Pull {
	base, from := r.get(), head.get()
	sha := r.s.resolve(from, "refs/heads/"+headBranch)
	if sha == "" {
		wrong("%s has no branch %s", from.full(), headBranch)
	}
	r.s.mu.Lock()
	p := &pull{
		id: r.s.id(), number: len(base.pulls) + 1, base: base, head: from, baseRef: base.branch, headRef: headBranch,
		sha: sha, author: by.get(), title: title, state: "open", created: r.s.now(),
	}
	base.pulls = append(base.pulls, p)
	r.s.mu.Unlock()
	p.baseSHA = r.s.resolve(base, "refs/heads/"+base.branch)
	r.s.fetchHead(p, sha)
	r.s.mu.Lock()
	defer r.s.mu.Unlock()
	if from != base {
		r.s.beginSuites(base, sha, "")
	}
	r.s.emitTo(base, p.author, "pull_request", "opened", object{"number": p.number, "pull_request": r.s.pullJSON(p, false)})
	return Pull{r, p.number}
}

// Propose is the usual way to a pull request: a branch with files, and the pull request of it.
func (r Repo) Propose(by Account, branch string, files Files) Pull {
	r.Push(by, branch, "Change "+branch, files)
	return r.OpenPull(by, r, branch, "Change "+branch)
}

func (p Pull) locked() *pull {
	repo := p.Repo.locked()
	if p.Number < 1 || p.Number > len(repo.pulls) {
		wrong("%s has no pull request %d", repo.full(), p.Number)
	}
	return repo.pulls[p.Number-1]
}

func (p Pull) get() *pull {
	p.Repo.s.mu.Lock()
	defer p.Repo.s.mu.Unlock()
	return p.locked()
}

// SHA is the head's commit.
func (p Pull) SHA() string {
	p.Repo.s.mu.Lock()
	defer p.Repo.s.mu.Unlock()
	return p.locked().sha
}

// Close closes it without merging, or opens it again.
func (p Pull) Close(by Account, yes bool) {
	s := p.Repo.s
	s.mu.Lock()
	defer s.mu.Unlock()
	pr := p.locked()
	action := "reopened"
	pr.state = "open"
	if yes {
		action, pr.state = "closed", "closed"
	}
	s.emitTo(pr.base, by.get(), "pull_request", action, object{"number": pr.number, "pull_request": s.pullJSON(pr, false)})
}

// Ready ends that it is a draft, or makes it one.
func (p Pull) Ready(by Account, yes bool) {
	s := p.Repo.s
	s.mu.Lock()
	defer s.mu.Unlock()
	pr := p.locked()
	action := "converted_to_draft"
	if yes {
		action = "ready_for_review"
	}
	pr.draft = !yes
	s.emitTo(pr.base, by.get(), "pull_request", action, object{"number": pr.number, "pull_request": s.pullJSON(pr, false)})
}

// Merge merges it as by (a person, or a bot): how is "merge" or "squash". It returns the commit on the base branch.
func (p Pull) Merge(by Account, how string) string {
	s, pr := p.Repo.s, p.get()
	before := s.refs(pr.base)
	sha := s.merge(pr, how, func(string) string { return pr.baseRef })
	s.mu.Lock()
	who := by.get()
	pr.state, pr.merged, pr.mergedBy, pr.mergeSHA, pr.mergedAt = "closed", true, who, sha, s.now()
	s.mu.Unlock()
	s.pushedBy(pr.base, who, before, s.refs(pr.base))
	s.mu.Lock()
	defer s.mu.Unlock()
	s.emitTo(pr.base, who, "pull_request", "closed", object{"number": pr.number, "pull_request": s.pullJSON(pr, false)})
	return sha
}

// merge makes the merged commit and sets the branch that onto names for it.
func (s *Server) merge(pr *pull, how string, onto func(sha string) string) string {
	s.mu.Lock()
	state, head := pr.state, pr.sha
	s.mu.Unlock()
	if state != "open" {
		wrong("pull request %d is not open", pr.number)
	}
	pr.base.writing.Lock()
	defer pr.base.writing.Unlock()
	dir := s.folder(pr.base)
	base := s.must(dir, nil, "rev-parse", "refs/heads/"+pr.baseRef)
	tree, _, _ := strings.Cut(s.must(dir, nil, "merge-tree", "--write-tree", base, head), "\n")
	args := []string{"commit-tree", tree, "-p", base, "-m", fmt.Sprintf("%s (#%d)", pr.title, pr.number)}
	switch how {
	case "squash":
	case "merge":
		args = append(args, "-p", head)
	default:
		wrong("a pull request is merged by merge or squash, not by %q", how)
	}
	sha := s.must(dir, nil, args...)
	s.must(dir, nil, "update-ref", "refs/heads/"+onto(sha), sha)
	return sha
}

// Queue puts it into a merge queue: a commit of the queue's own, on a branch of its own, with the event merge_group. Merge
// with a bot ends it.
func (p Pull) Queue() string {
	s, pr := p.Repo.s, p.get()
	var branch string
	sha := s.merge(pr, "merge", func(sha string) string {
		branch = fmt.Sprintf("gh-readonly-queue/%s/pr-%d-%s", pr.baseRef, pr.number, sha)
		return branch
	})
	s.mu.Lock()
	defer s.mu.Unlock()
	s.beginSuites(pr.base, sha, branch)
	s.emitTo(pr.base, pr.author, "merge_group", "checks_requested", object{"merge_group": object{
		"head_sha": sha, "head_ref": "refs/heads/" + branch, "base_sha": pr.baseSHA, "base_ref": "refs/heads/" + pr.baseRef,
		"head_commit": object{"id": sha, "message": pr.title},
	}})
	return sha
}
