package proposal_test

import (
	"testing"
	"time"

	"github.com/claude-hub/claude-hub/app/github/githubtest"
	"github.com/claude-hub/claude-hub/app/proposal"
	"github.com/claude-hub/claude-hub/store/storetest"
)

// pushed tells the Hub of a push of by's that made a pull request's head.
func (r *rig) pushed(p githubtest.Pull, branch string, by githubtest.Account) {
	r.t.Helper()
	must(r.t, r.Pushed(r.t.Context(), r.id(), branch, p.SHA(), account(by)))
	r.settle()
}

func TestAHubCanTestByItself(t *testing.T) {
	r := one(t, proposal.Options{AutoTest: true})
	p := r.propose("env", "image: node:22\n")
	if all := r.tests(); len(all) != 0 {
		t.Fatalf("it was tested before it was known who pushed it: %+v", all)
	}
	r.pushed(p, "env", r.ana)
	if all := r.tests(); len(all) != 1 || all[0].CreatedBy != "ana" || all[0].Commit != p.SHA() {
		t.Fatalf("want one Test build of ana's, got %+v", all)
	}
	r.look(p)
	r.repo.Push(r.ana, "env", "comment", githubtest.Files{path: githubtest.Text("image: node:22 # the same\n")})
	r.pushed(p, "env", r.ana)
	r.look(p)
	if len(r.tests()) != 1 {
		t.Error("the same was tested twice")
	}
	r.repo.Push(r.ana, "env", "next", githubtest.Files{path: githubtest.Text("image: node:24\n")})
	r.pushed(p, "env", r.ana) // and then its pull request: in any order
	r.look(p)
	if len(r.tests()) != 2 {
		t.Errorf("want another Test build of another draft, got %+v", r.tests())
	}
}

func TestAHubTestsByItselfOnlyWhatPeopleWithAccessOpenedAndPushed(t *testing.T) {
	r := one(t, proposal.Options{AutoTest: true})
	untested := func(what string) {
		t.Helper()
		if all := r.tests(); len(all) != 0 {
			t.Fatalf("%s was tested: %+v", what, all)
		}
	}
	push := func(p githubtest.Pull, branch, image string, by githubtest.Account) {
		r.repo.Push(by, branch, image, githubtest.Files{path: githubtest.Text("image: " + image + "\n")})
		r.look(p)
		r.pushed(p, branch, by)
	}
	q := r.repo.Propose(r.eve, "eve", githubtest.Files{path: githubtest.Text("image: node:24\n")})
	r.look(q)
	r.pushed(q, "eve", r.eve)
	untested("what somebody opened who never signed in")
	push(q, "eve", "node:25", r.ana)
	untested("ana's push to what somebody opened who never signed in")
	p := r.repo.Propose(r.ana, "env", githubtest.Files{path: githubtest.Text("image: node:20\n")})
	for image, by := range map[string]githubtest.Account{"node:21": r.eve, "node:22": r.bob, "node:23": r.gh.Bot("helper[bot]")} {
		push(p, "env", image, by)
		untested(by.Login() + "'s push to what ana opened")
	}
	fork := r.repo.Fork(r.ana)
	fork.Push(r.ana, "f", "f", githubtest.Files{path: githubtest.Text("image: node:26\n")})
	f := r.repo.OpenPull(r.ana, fork, "f", "f")
	r.look(f)
	r.pushed(f, "f", r.ana)
	untested("a fork")
	push(p, "env", "node:27", r.ana)
	if all := r.tests(); len(all) != 1 {
		t.Errorf("want what ana opened and pushed tested, got %+v", all)
	}
}

func TestATestBuildThatTheHubStartsByItselfIsTriedAgainAfterAnOutage(t *testing.T) {
	t.Parallel()
	db := storetest.New(t)
	clock := storetest.NewClock(db)
	r := newRig(t, db, githubtest.Options{}, proposal.Options{AutoTest: true})
	p := r.propose("env", "image: node:22\n")
	mend := r.gh.Break(githubtest.Fault{Method: "GET", Path: "/branches/main", Status: 502, Body: "{}"})
	must(t, r.Pushed(t.Context(), r.id(), "env", p.SHA(), account(r.ana)))
	r.settle()
	if len(r.tests()) != 0 {
		t.Fatal("it was tested although the default branch is not known")
	}
	mend()
	clock.Advance(time.Minute)
	r.runner.Items() // it is there
	r.settle()
	if len(r.tests()) != 1 {
		t.Fatalf("GitHub is back: want a Test build, got %+v", r.tests())
	}

	clock.Advance(time.Hour) // nothing is heard of the Runner
	q := r.propose("other", "image: node:24\n")
	r.pushed(q, "other", r.ana)
	if len(r.tests()) != 1 {
		t.Fatal("it was tested without a Runner")
	}
	clock.Advance(10 * time.Minute)
	r.runner.Items()
	r.settle()
	if len(r.tests()) != 2 {
		t.Fatalf("the Runner is back: want a Test build, got %+v", r.tests())
	}
}
