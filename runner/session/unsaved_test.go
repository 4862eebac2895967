package session

import (
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
)

// By the host's git, in a repository that no Sandbox has seen: what the questions are, not who asks them.
func TestEachWayToHaveUnsavedWorkIsCounted(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		script         string
		files, commits int
	}{
		"nothing":                            {"", 0, 0},
		"a changed and a new file":           {"echo y >>a; echo x >b", 2, 0},
		"a folder of new files":              {"mkdir d; touch d/1 d/2 'd/a b'", 3, 0},
		"new files where status hides them":  {"git config status.showUntrackedFiles no; touch b", 1, 0},
		"a commit":                           {"git commit -qam x --allow-empty", 0, 1},
		"one on another branch":              {"git checkout -qb other; git commit -qm x --allow-empty; git checkout -q trunk", 0, 1},
		"two on no branch":                   {"git checkout -q --detach; git commit -qm x --allow-empty; git commit -qm y --allow-empty", 0, 2},
		"one on no branch of a worktree":     {"git worktree add -q --detach ../w; git -C ../w commit -qm x --allow-empty", 0, 1},
		"two stashes":                        {"echo y >>a; git stash -q; touch b; git stash -qu", 0, 2},
		"a branch without commits":           {"git checkout -q --orphan new; git rm -qrf .", 0, 0},
		"what was pushed":                    {"git commit -qm x --allow-empty; git push -q origin HEAD:refs/heads/x", 0, 0},
		"a fetched tag that no branch holds": {"git -C ../far tag v0 $(git -C ../far commit-tree -m t 'HEAD^{tree}'); git fetch -q --tags", 0, 0},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			top := t.TempDir()
			dir := filepath.Join(top, "work")
			run := func(argv ...string) []byte {
				t.Helper()
				cmd := exec.Command(argv[0], argv[1:]...)
				cmd.Dir, cmd.Env = top, append(os.Environ(), "HOME="+top, "GIT_CONFIG_NOSYSTEM=1", "GIT_AUTHOR_NAME=a", "GIT_AUTHOR_EMAIL=a@localhost",
					"GIT_COMMITTER_NAME=a", "GIT_COMMITTER_EMAIL=a@localhost", "LC_ALL=C")
				var stderr bytes.Buffer
				cmd.Stderr = &stderr
				out, err := cmd.Output()
				if err != nil {
					t.Fatalf("%q: %v: %s", argv, err, stderr.Bytes())
				}
				return out
			}
			git := func(args []string) []byte { return run(append([]string{"git", "-C", dir}, args...)...) }
			run("sh", "-ec", "git init -q -b trunk seed; cd seed; echo x >a; git add a; git commit -qm first; cd ..; git clone -q --bare seed far; git clone -q far work; cd work; "+c.script)
			commits, err := strconv.Atoi(strings.TrimSpace(string(git(unpushed))))
			if err != nil {
				t.Fatal(err)
			}
			commits += bytes.Count(git(stashed), []byte("\n"))
			if files := entries(git(changed)); files != c.files || commits != c.commits {
				t.Errorf("%d files and %d commits, want %d and %d", files, commits, c.files, c.commits)
			}
		})
	}
}
