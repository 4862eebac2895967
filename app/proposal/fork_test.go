package proposal_test

import (
	"strings"
	"testing"

	"github.com/claude-hub/claude-hub/app/github/githubtest"
	"github.com/claude-hub/claude-hub/app/proposal"
	"github.com/claude-hub/claude-hub/envspec"
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

// Whoever opens a pull request from a fork chooses the names in it, and reads its check run: it says of no name whether it has a value here.
func TestACheckRunOfAForkDoesNotTellWhichVariablesHaveAValue(t *testing.T) {
	r := one(t, proposal.Options{})
	mallory := r.gh.Person("mallory")
	r.repo.Allow(mallory, "read")
	fork := r.repo.Fork(mallory)
	fork.Push(mallory, "env", "env", githubtest.Files{path: githubtest.Text("image: node:24\nvariables:\n  TOKEN: {sensitive: true, build: true}\n  OTHER: {sensitive: true}\n")})
	p := r.repo.OpenPull(mallory, fork, "env", "from a fork")
	spec := envspec.Default()
	spec.Image, spec.Variables = "node:22", []envspec.Variable{{Name: "TOKEN", Sensitive: true, Build: true}, {Name: "OTHER", Sensitive: true}}
	said := func() string {
		t.Helper()
		must(t, r.Again(t.Context(), r.grant, p.Number))
		r.settle()
		v := r.says(p.SHA(), "neutral", "from a fork")
		return v.Title.String() + "\n" + v.Summary.String() + "\n" + v.Text.String()
	}
	r.look(p)
	nothing := said()
	r.hub.AppliedWith(r.grant, r.runner, spec, map[string][]byte{"TOKEN": []byte("token-0123456789"), "OTHER": []byte("other-0123456789")})
	applied := said()
	env := r.env()
	_, err := r.hub.Environments.Save(t.Context(), r.grant, env.Draft.Revision, env.Draft.Spec, map[string][]byte{"TOKEN": []byte("another-0123456789")})
	must(t, err)
	changed := said()
	if applied != changed {
		t.Errorf("another value here changes what is said of a fork from\n%s\nto\n%s", applied, changed)
	}
	for _, text := range []string{nothing, applied} {
		if strings.Contains(text, "Without a value") {
			t.Errorf("a fork is told which of its names have a value:\n%s", text)
		}
	}
	if d := r.get(p); len(d.Missing) != 0 {
		t.Errorf("missing: %v", d.Missing)
	}
}

// Who works on the Hub's pages is known to those with access to the Repo; of a public one everybody reads the check runs.
func TestACheckRunNamesWhoWroteTheDraftOfThePagesInAPrivateRepoOnly(t *testing.T) {
	r := one(t, proposal.Options{})
	_, err := r.hub.Environments.Save(t.Context(), r.grant, 0, envspec.Default(), nil)
	must(t, err)
	p := r.propose("env", "image: node:22\n")
	r.says(p.SHA(), "action_required", "", "**Drift:**", ", by ana)")
	r.repo.Publish(true)
	must(t, r.Again(t.Context(), r.grant, p.Number))
	v := r.says(p.SHA(), "action_required", "", "**Drift:**")
	if strings.Contains(v.Summary.String(), "ana") {
		t.Errorf("who wrote the draft of the pages is named in a public Repo:\n%s", v.Summary)
	}
	if d := r.get(p); len(d.Drift) != 1 || !strings.Contains(d.Drift[0], "by ana") {
		t.Errorf("on the Hub's page: %q", d.Drift)
	}
}
