package github_test

import (
	"net/http"
	"slices"
	"strings"
	"testing"

	"github.com/claude-hub/claude-hub/app/github"
	"github.com/claude-hub/claude-hub/app/github/githubtest"
	"github.com/claude-hub/claude-hub/app/github/githubtest/checked"
)

const environment = ".claude-hub/environment.yml"

func TestPullRequestIsReadWithForkMergeAndDraft(t *testing.T) {
	t.Parallel()
	checked.Both(t, func(t *testing.T, gh *githubtest.Server) {
		r := setScene(t, gh)
		own := r.repo.Propose(r.ana, "feature", githubtest.Files{environment: githubtest.Text("image: debian\n")})
		got := must[github.PullRequest](t)(r.app.PullRequest(t.Context(), r.id(), own.Number))
		if !got.Open || got.Fork || got.Head.SHA != own.SHA() || got.Head.Ref != "feature" || got.Base.Ref != "main" || got.Author.ID != r.ana.ID {
			t.Errorf("got %+v", got)
		}
		fork := r.repo.Fork(r.bob)
		fork.Push(r.bob, "patch", "Patch", githubtest.Files{"x": githubtest.Text("x")})
		theirs := r.repo.OpenPull(r.bob, fork, "patch", "From a fork")
		if got := must[github.PullRequest](t)(r.app.PullRequest(t.Context(), r.id(), theirs.Number)); !got.Fork || got.Head.Repo != github.RepoID(fork.ID) {
			t.Errorf("got %+v", got)
		}
		fork.Delete()
		if got := must[github.PullRequest](t)(r.app.PullRequest(t.Context(), r.id(), theirs.Number)); !got.Fork || got.Head.Repo != 0 {
			t.Errorf("after the fork was deleted: got %+v", got)
		}
		if got := must[[]github.PullRequest](t)(r.app.PullRequests(t.Context(), r.id())); len(got) != 2 || got[0].Number != theirs.Number {
			t.Errorf("got %+v", got)
		}
		own.Ready(r.ana, false)
		if got := must[github.PullRequest](t)(r.app.PullRequest(t.Context(), r.id(), own.Number)); !got.Draft {
			t.Errorf("got %+v", got)
		}
		sha := own.Merge(r.ana, "merge")
		merged := must[github.PullRequest](t)(r.app.PullRequest(t.Context(), r.id(), own.Number))
		if merged.Open || !merged.Merged || merged.MergedBy.ID != r.ana.ID || merged.MergeCommit != sha {
			t.Errorf("got %+v", merged)
		}
		if got := must[[]github.PullRequest](t)(r.app.PullRequestsWith(t.Context(), r.id(), sha)); len(got) != 1 || got[0].Number != own.Number {
			t.Errorf("got %+v", got)
		}
		if got := must[string](t)(r.app.Branch(t.Context(), r.id(), "main")); got != sha {
			t.Errorf("main is at %s, want %s", got, sha)
		}
		commit := must[github.Commit](t)(r.app.Commit(t.Context(), r.id(), sha))
		if len(commit.Parents) != 2 || commit.Parents[1] != own.SHA() || commit.Tree == "" {
			t.Errorf("got %+v", commit)
		}
		diff := must[github.Comparison](t)(r.app.Compare(t.Context(), r.id(), commit.Parents[0], sha))
		if diff.Status != "ahead" || !slices.Equal(diff.Files, []string{environment}) {
			t.Errorf("got %+v", diff)
		}
		_, err := r.app.PullRequest(t.Context(), r.id(), 99)
		wantKind(t, err, github.NotFound)
	})
}

func TestBranchWithSlashIsFound(t *testing.T) {
	t.Parallel()
	checked.Both(t, func(t *testing.T, gh *githubtest.Server) {
		r := setScene(t, gh)
		sha := r.repo.Push(r.ana, "ana/try#1%2F", "Try", githubtest.Files{"x": githubtest.Text("x")})
		if got := must[string](t)(r.app.Branch(t.Context(), r.id(), "ana/try#1%2F")); got != sha {
			t.Errorf("got %s, want %s", got, sha)
		}
		if got := must[github.Commit](t)(r.app.Commit(t.Context(), r.id(), "ana/try#1%2F")); got.SHA != sha {
			t.Errorf("got %+v, want %s", got, sha)
		}
	})
}

func TestFilesAreWhatTheyAre(t *testing.T) {
	t.Parallel()
	checked.Both(t, func(t *testing.T, gh *githubtest.Server) {
		r := setScene(t, gh)
		binary := string([]byte{0, 1, 2, 255, 254, '\n'})
		sha := r.repo.Push(r.ana, "kinds", "Kinds", githubtest.Files{
			environment:          githubtest.Text("image: debian\n"),
			"run.sh":             githubtest.Program("#!/bin/sh\n"),
			"binary":             githubtest.Text(binary),
			"empty":              githubtest.Text(""),
			"link":               githubtest.Symlink("README.md"),
			"away":               githubtest.Symlink("/etc/passwd"),
			"linked":             githubtest.Symlink(".claude-hub"),
			"module":             githubtest.Submodule(strings.Repeat("a", 40)),
			"big":                githubtest.Text(strings.Repeat("x", 2000)),
			"ümläut/a b?c#d.yml": githubtest.Text("odd\n"),
		})
		paths := []string{
			environment, "run.sh", "binary", "empty", "link", "away", "linked/environment.yml", "module/x", "big", "ümläut/a b?c#d.yml",
			".claude-hub", "none", "none/at/all", "README.md/x", "module",
		}
		files := must[[]github.File](t)(r.app.Files(t.Context(), r.id(), sha, 1000, paths...))
		want := []github.File{
			{Kind: github.Regular, Content: []byte("image: debian\n")},
			{Kind: github.Regular, Content: []byte("#!/bin/sh\n"), Executable: true},
			{Kind: github.Regular, Content: []byte(binary)},
			{Kind: github.Regular, Content: nil},
			{Kind: github.Symlink}, {Kind: github.Symlink},
			{Kind: github.Symlink, At: "linked"},
			{Kind: github.Submodule, At: "module"},
			{Kind: github.TooBig, Size: 2000},
			{Kind: github.Regular, Content: []byte("odd\n")},
			{Kind: github.Directory}, {Kind: github.Missing}, {Kind: github.Missing},
			{Kind: github.Missing, At: "README.md"},
			{Kind: github.Submodule},
		}
		for i, f := range files {
			w := want[i]
			if f.Path != paths[i] || f.Kind != w.Kind || string(f.Content) != string(w.Content) || f.Executable != w.Executable || f.At != w.At ||
				w.Size != 0 && f.Size != w.Size {
				t.Errorf("%s: got %+v, want %+v", paths[i], f, w)
			}
		}
		if gh.Asked("GET", "/git/blobs/") != 5 {
			t.Errorf("fetched %d blobs: a file beyond the limit isn't fetched", gh.Asked("GET", "/git/blobs/"))
		}
		_, err := r.app.Files(t.Context(), r.id(), strings.Repeat("0", 40), 1000, environment)
		wantKind(t, err, github.NotFound)
		for _, p := range []string{"", "/x", "a//b", "../x", "a/./b"} {
			_, err := r.app.Files(t.Context(), r.id(), sha, 1000, p)
			wantKind(t, err, github.Invalid)
		}
		_, err = r.app.Files(t.Context(), r.id(), "main", 1000, environment)
		wantKind(t, err, github.Invalid)
	})
}

func TestHalfAFileIsNoFile(t *testing.T) {
	t.Parallel()
	r := setScene(t, checked.New(t, githubtest.Options{}))
	sha := r.repo.Head("main")
	for _, f := range []githubtest.Fault{{Status: http.StatusOK, Body: "hel"}, {Cut: 3}, {Status: http.StatusOK}, {Status: http.StatusBadGateway}} {
		f.Path = "/git/blobs/"
		mend := r.gh.Break(f)
		_, err := r.app.Files(t.Context(), r.id(), sha, 1000, "README.md")
		wantKind(t, err, github.Unavailable)
		mend()
	}
	ok(t, errOf(r.app.Files(t.Context(), r.id(), sha, 1000, "README.md")))
}

func TestHeadOfAForkIsReadableInTheBaseRepo(t *testing.T) {
	t.Parallel()
	r := setScene(t, checked.New(t, githubtest.Options{}))
	fork := r.repo.Fork(r.bob)
	fork.Push(r.bob, "patch", "Patch", githubtest.Files{environment: githubtest.Text("image: alpine\n")})
	pull := r.repo.OpenPull(r.bob, fork, "patch", "From a fork")
	sha := fork.Push(r.bob, "patch", "More", githubtest.Files{environment: githubtest.Text("image: fedora\n")})
	if pull.SHA() != sha {
		t.Fatalf("the pull request is at %s, want %s", pull.SHA(), sha)
	}
	f := must[[]github.File](t)(r.app.Files(t.Context(), r.id(), sha, 1000, environment))
	if string(f[0].Content) != "image: fedora\n" {
		t.Errorf("got %+v", f)
	}
}

func TestEmptyRepoIsSaidToBeEmpty(t *testing.T) {
	t.Parallel()
	checked.Both(t, func(t *testing.T, gh *githubtest.Server) {
		r := setScene(t, gh)
		empty := gh.Repo("octo/empty", true, nil)
		r.inst.Add(empty)
		id := github.RepoID(empty.ID)
		_, err := r.app.Commit(t.Context(), id, "main")
		wantKind(t, err, github.Empty)
		_, err = r.app.Files(t.Context(), id, strings.Repeat("0", 40), 1000, environment)
		wantKind(t, err, github.Empty)
		_, err = r.app.Branch(t.Context(), id, "main")
		wantKind(t, err, github.NotFound)
		ok(t, errOf(r.app.Mint(t.Context(), id)))
	})
}

func TestPermissionOfAPersonCountsFromWriteUp(t *testing.T) {
	t.Parallel()
	r := setScene(t, checked.New(t, githubtest.Options{}))
	public := r.gh.Repo("octo/public", false, githubtest.Files{"a": githubtest.Text("a")})
	r.inst.Add(public)
	public.Allow(r.ana, "maintain")
	for _, c := range []struct {
		repo  githubtest.Repo
		who   githubtest.Account
		level github.Level
		write bool
	}{
		{r.repo, r.ana, "write", true}, {r.repo, r.bob, "", false}, {public, r.bob, "read", false}, {public, r.ana, "write", true},
	} {
		who, level, err := r.app.Permission(t.Context(), github.RepoID(c.repo.ID), c.who.Login())
		ok(t, err)
		if who.ID != c.who.ID || level != c.level || level.CanWrite() != c.write {
			t.Errorf("%s on %s: got %+v %q", c.who.Login(), c.repo.FullName(), who, level)
		}
	}
	_, _, err := r.app.Permission(t.Context(), r.id(), "nobody")
	wantKind(t, err, github.NotFound)
}

func TestMissingPermissionIsSaid(t *testing.T) {
	t.Parallel()
	r := setScene(t, checked.New(t, githubtest.Options{}))
	r.inst.Grant(map[string]string{"metadata": "read", "contents": "read"})
	_, err := r.app.PullRequests(t.Context(), r.id())
	if e := wantKind(t, err, github.Forbidden); !strings.Contains(e.Message, "permission") {
		t.Errorf("got %q", e.Message)
	}
	// Once it is granted, the token that was made before has to go: that is what Forget is for.
	r.inst.Grant(github.Permissions())
	_, err = r.app.PullRequests(t.Context(), r.id())
	wantKind(t, err, github.Forbidden)
	r.app.Forget(r.inst.ID)
	ok(t, errOf(r.app.PullRequests(t.Context(), r.id())))
}

// TestRedirectedWriteIsNotTakenForDone: net/http makes a GET of a redirected POST, and go-github calls that success.
func TestRedirectedWriteIsNotTakenForDone(t *testing.T) {
	t.Parallel()
	for _, status := range []int{301, 302, 303, 307, 308} {
		r := setScene(t, checked.New(t, githubtest.Options{}))
		ok(t, errOf(r.app.Repository(t.Context(), r.id())))
		r.gh.Break(githubtest.Fault{
			Method: "POST", Path: "/check-runs", Status: status,
			Header: http.Header{"Location": {r.gh.URLs().API + "/repositories/1"}},
		})
		r.gh.Forget()
		_, err := r.app.CreateCheckRun(t.Context(), r.id(), github.CheckRun{SHA: r.repo.Head("main"), Name: "x", Status: "queued"})
		wantKind(t, err, github.Moved)
		if got := r.gh.Requests(); len(got) != 1 {
			t.Errorf("%d: it was followed: %+v", status, got)
		}
	}
}
