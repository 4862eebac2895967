package githubtest_test

import (
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/claude-hub/claude-hub/app/github/githubtest"
	"github.com/claude-hub/claude-hub/app/github/githubtest/checked"
)

// git runs git in dir with a token that no argument and no file has.
func git(t *testing.T, dir, token string, args ...string) (string, error) {
	t.Helper()
	cmd := exec.Command("git", append([]string{"-c", "credential.helper=", "-c",
		`credential.helper=!f() { test "$TOKEN" && echo username=x-access-token && echo "password=$TOKEN"; }; f`, "-c", "protocol.version=2"}, args...)...)
	cmd.Dir = dir
	cmd.Env = append(os.Environ(), "GIT_CONFIG_GLOBAL=/dev/null", "GIT_CONFIG_NOSYSTEM=1", "GIT_TERMINAL_PROMPT=0", "TOKEN="+token,
		"GIT_AUTHOR_NAME=ana", "GIT_AUTHOR_EMAIL=ana@x.example", "GIT_COMMITTER_NAME=ana", "GIT_COMMITTER_EMAIL=ana@x.example")
	out, err := cmd.CombinedOutput()
	return string(out), err
}

func TestGitIsServedToTokensOfTheRepo(t *testing.T) {
	t.Parallel()
	checked.Both(t, func(t *testing.T, gh *githubtest.Server) {
		s := begin(t, gh)
		public := gh.Repo("octo/public", false, githubtest.Files{"a": githubtest.Text("a")})
		mine := s.token(t, `{"permissions":{"contents":"read"}}`)
		checks := s.token(t, `{"permissions":{"checks":"write"}}`)
		ana, bob := gh.UserToken(s.app.ID, s.ana), gh.UserToken(s.app.ID, s.bob)
		try := func(name string, repo githubtest.Repo, token string, want bool) {
			t.Helper()
			out, err := git(t, t.TempDir(), token, "clone", "--quiet", repo.CloneURL(), "c")
			if (err == nil) != want {
				t.Errorf("%s: %v %s", name, err, out)
			}
		}
		try("a token to read", s.repo, mine, true)
		try("of another Repo", s.other, mine, false)
		try("without contents", s.repo, checks, false)
		try("nobody", s.repo, "", false)
		try("nonsense", s.repo, "ghs_nonsense", false)
		try("a person with access", s.repo, ana, true)
		try("a person without", s.repo, bob, false)
		try("a person, where the App isn't", s.other, ana, false)
		try("nobody, a public Repo", public, "", true)
		s.inst.Suspend(true)
		try("while suspended", s.repo, mine, false)
		s.inst.Suspend(false)
		try("after it", s.repo, mine, true)
		s.inst.Drop(s.repo)
		try("after it was taken from the installation", s.repo, mine, false)
		s.inst.Add(s.repo)
		s.inst.Remove()
		try("after the App was removed", s.repo, mine, false)
	})
}

func TestPushIsARealPushAndIsTold(t *testing.T) {
	t.Parallel()
	s := begin(t, checked.New(t, githubtest.Options{}))
	in := s.inbox(t)
	read := s.token(t, "")
	grants := map[string]string{"contents": "write", "metadata": "read", "pull_requests": "read", "checks": "write"}
	s.inst.Grant(grants)
	write := s.token(t, `{"permissions":{"contents":"write"}}`)
	dir := t.TempDir()
	if out, err := git(t, dir, read, "clone", "--quiet", s.repo.CloneURL(), "c"); err != nil {
		t.Fatalf("%v %s", err, out)
	}
	work := filepath.Join(dir, "c")
	// More than git sends in one piece: a chunked request.
	if err := os.WriteFile(filepath.Join(work, "big"), []byte(strings.Repeat("0123456789abcdef\n", 1<<17)), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, args := range [][]string{{"checkout", "--quiet", "-b", "feature"}, {"add", "."}, {"commit", "--quiet", "-m", "Big"}} {
		if out, err := git(t, work, "", args...); err != nil {
			t.Fatalf("%v %s", err, out)
		}
	}
	settle(t, s.gh)
	in.take()
	if out, err := git(t, work, read, "push", "--quiet", "origin", "feature"); err == nil {
		t.Errorf("a token to read pushed: %s", out)
	}
	if out, err := git(t, work, write, "-c", "http.postBuffer=4096", "-c", "core.compression=0", "push", "--quiet", "origin", "feature"); err != nil {
		t.Fatalf("%v %s", err, out)
	}
	head, _ := git(t, work, "", "rev-parse", "HEAD")
	if got := s.repo.Head("feature"); got != strings.TrimSpace(head) {
		t.Errorf("the branch is at %q, want %q", got, head)
	}
	settle(t, s.gh)
	if got := in.take(); !slices.Equal(got, []string{"check_suite.requested", "push"}) {
		t.Errorf("told %v", got)
	}
	s.repo.Archive(true)
	if out, err := git(t, work, write, "push", "--quiet", "origin", "feature:other"); err == nil {
		t.Errorf("pushed to an archived Repo: %s", out)
	}
}

func TestGitFollowsARenameAndEndsInTheMiddle(t *testing.T) {
	t.Parallel()
	s := begin(t, checked.New(t, githubtest.Options{}))
	token := s.token(t, "")
	old := s.repo.CloneURL()
	s.repo.Rename("new")
	if out, err := git(t, t.TempDir(), token, "clone", "--quiet", old, "c"); err != nil {
		t.Errorf("%v %s", err, out)
	}
	for name, f := range map[string]githubtest.Fault{
		"cut": {Path: "/git-upload-pack", Cut: 30}, "away": {Path: "/git-upload-pack", Status: http.StatusBadGateway},
		"expired in between": {Path: "/git-upload-pack", Status: http.StatusUnauthorized, Header: http.Header{"WWW-Authenticate": {`Basic realm="GitHub"`}}},
	} {
		mend := s.gh.Break(f)
		if out, err := git(t, t.TempDir(), token, "clone", "--quiet", s.repo.CloneURL(), "c"); err == nil {
			t.Errorf("%s: it cloned: %s", name, out)
		}
		mend()
	}
	s.gh.Advance(2 * time.Hour)
	if _, err := git(t, t.TempDir(), token, "clone", "--quiet", s.repo.CloneURL(), "c"); err == nil {
		t.Error("an expired token cloned")
	}
	if n := s.gh.Asked("POST", "/git-upload-pack"); n < 4 {
		t.Errorf("git's requests are recorded: %d", n)
	}
}

func TestContentIsWhateverACommitCanHave(t *testing.T) {
	t.Parallel()
	s := begin(t, checked.New(t, githubtest.Options{}))
	inst := "Bearer " + s.token(t, "")
	sha := s.repo.Push(s.ana, "main", "Kinds", githubtest.Files{
		"dir/file": githubtest.Text("text"), "to-file": githubtest.Symlink("dir/file"), "to-dir": githubtest.Symlink("dir"),
		"module": githubtest.Submodule(strings.Repeat("b", 40)), "large": githubtest.Text(strings.Repeat("x", 1<<20+1)), "README.md": githubtest.Gone(),
	})
	for path, want := range map[string]string{
		"dir/file": `"encoding":"base64"`, "dir": `"type":"file"`,
		"to-file": `"type":"file"`, // a link to a file is answered as the file, as GitHub does
		"to-dir":  `"type":"symlink"`, "module": `"type":"submodule"`, "large": `"encoding":"none"`, "README.md": "Not Found",
		"to-dir/file": "Not Found",
	} {
		if got := s.ask(t, inst, "GET", "/repos/octo/app/contents/"+path+"?ref="+sha, ""); !strings.Contains(string(got.body), want) {
			t.Errorf("%s: got %d %.300s, want %s", path, got.status, got.body, want)
		}
	}
	if got := s.ask(t, inst, "GET", "/repos/octo/app/contents/dir/file?ref=-x", ""); got.status != 422 {
		t.Errorf("an option in place of a commit: got %d %s", got.status, got.body)
	}
}
