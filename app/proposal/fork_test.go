package proposal_test

import (
	"strings"
	"testing"

	"github.com/claude-hub/claude-hub/app/github/githubtest"
	"github.com/claude-hub/claude-hub/app/proposal"
)

// A Test build without secrets counts for nothing, so it is none of what a press on a check run of the same commit in the Repo
// itself asks for: both are built.
func TestAPressOnACommitOfAForkAndOfTheRepoBuildsBoth(t *testing.T) {
	r := one(t, proposal.Options{})
	const yaml = "image: node:22\nvariables:\n  TOKEN: {sensitive: true, build: true}\n"
	mallory := r.gh.Person("mallory")
	r.repo.Allow(mallory, "read")
	fork := r.repo.Fork(mallory)
	sha := fork.Push(mallory, "env", "env", githubtest.Files{path: githubtest.Text(yaml)})
	a := r.repo.OpenPull(mallory, fork, "env", "from a fork")
	r.look(a)
	r.repo.ForcePush(r.ana, "env", sha)
	b := r.repo.OpenPull(r.ana, r.repo, "env", "the same, from the Repo")
	r.look(b)
	must(t, r.Enter(t.Context(), r.grant, b.Number, r.get(b).Draft.Revision, map[string][]byte{"TOKEN": []byte("token-0123456789")}))
	_, err := r.Adopt(t.Context(), r.grant, b.Number, 0) // the draft of the pages: where the fork's finds the value, too
	must(t, err)
	must(t, r.Again(t.Context(), r.grant, a.Number))
	must(t, r.Again(t.Context(), r.grant, b.Number))
	r.settle()
	if ka, kb := r.get(a).Draft.TestKey, r.get(b).Draft.TestKey; ka != kb {
		t.Fatalf("they differ: %s, %s", ka, kb)
	}
	r.press(sha, r.ana)
	whole, withheld := 0, 0
	for _, x := range r.tests() {
		if x.Withheld {
			withheld++
		} else {
			whole++
		}
	}
	if whole != 1 {
		t.Fatalf("%d Test builds that count, %d that don't", whole, withheld)
	}
}

// What was built without secrets is no success of what was merged.
func TestATestBuildWithoutSecretsIsNotShownOnTheMerge(t *testing.T) {
	r := one(t, proposal.Options{})
	mallory := r.gh.Person("mallory")
	r.repo.Allow(mallory, "read")
	fork := r.repo.Fork(mallory)
	fork.Push(mallory, "env", "env", githubtest.Files{path: githubtest.Text("image: node:22\nvariables:\n  TOKEN: {sensitive: true, build: true}\n")})
	p := r.repo.OpenPull(mallory, fork, "env", "from a fork")
	r.look(p)
	r.press(p.SHA(), r.ana)
	r.runner.Pass(r.runner.Item())
	r.settle()
	sha := p.Merge(r.ana, "squash")
	r.look(p)
	for _, v := range r.shown(sha, proposal.TestName) {
		t.Errorf("the merge has a check run %s %s: %s %s", v.Name, v.Conclusion, v.Title, strings.ReplaceAll(v.Summary.String(), "\n", " "))
	}
}
