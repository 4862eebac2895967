package session

import (
	"os/exec"
	"strings"
	"testing"
)

// What git itself says is the oracle.
func TestABranchNameIsTakenJustWhereGitTakesIt(t *testing.T) {
	t.Parallel()
	for _, name := range []string{
		"main", "feature/#12", "renovate/@types/node-20.x", "user+fix", "fix=1", "grün", "日本", "a.b", "a-", "_x", "a@b", "x{1}", "it's", "$(x)", "a%b", "a&b", "a,b", "@a", "#1", "head",
		"-x", "--upload-pack=x", "a..b", "a b", "x.lock", "x.lock/y", "/a", "a/", "a//b", "a.", ".a", "a/.b", "a@{1", "HEAD", "a~1", "a^", "a:b", "a?", "a*", "a[b", `a\b`, "a\tb", "a\x7fb",
	} {
		want := exec.Command("git", "check-ref-format", "--branch", name).Run() == nil
		if got := isBranch(name); got != want {
			t.Errorf("%q: taken is %v, and git says %v", name, got, want)
		}
	}
	for _, name := range []string{"@", "a\u202eb", "a\x00b", "a\xffb"} { // to git another word for HEAD, and what nobody could read
		if isBranch(name) {
			t.Errorf("%q is taken", name)
		}
	}
	if checkBranch("branch", strings.Repeat("a", branchMax)) != nil || checkBranch("branch", strings.Repeat("a", branchMax+1)) == nil {
		t.Errorf("the longest name is not of %d bytes", branchMax)
	}
}
