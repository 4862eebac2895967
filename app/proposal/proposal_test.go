package proposal_test

import (
	"strings"
	"testing"

	"github.com/claude-hub/claude-hub/app/checks"
	"github.com/claude-hub/claude-hub/app/fault"
	"github.com/claude-hub/claude-hub/app/github/githubtest"
	"github.com/claude-hub/claude-hub/app/proposal"
	"github.com/claude-hub/claude-hub/runner/wire"
	"github.com/claude-hub/claude-hub/store/storetest"
)

func TestFromAPullRequestToAVersionByWhoMerged(t *testing.T) {
	each(t, func(t *testing.T, r *rig) {
		p := r.proposeFiles("env", githubtest.Files{
			path:                 githubtest.Text("image: node:22\nbootstrap:\n  file: scripts/setup.sh\ncpu: 2\n"),
			"scripts/setup.sh":   githubtest.Program("npm install -g pnpm\n"),
			"scripts/unnamed.sh": githubtest.Program("exit 1\n"),
		})
		v := r.says(p.SHA(), "action_required", "needs a Test build", "image is node:22", "npm install -g pnpm", "no version is applied yet", public+"/repos/"+r.id().String()+"/proposals/1")
		if len(v.Buttons) != 1 || v.Buttons[0].Label != "Test on r1" || v.DetailsURL != public+"/repos/"+r.id().String()+"/proposals/1" {
			t.Errorf("%+v, %s", v.Buttons, v.DetailsURL)
		}
		d := r.get(p)
		if d.State != proposal.Open || d.File != proposal.Valid || d.Draft == nil || d.Draft.Spec.Bootstrap != "npm install -g pnpm\n" || d.Draft.Commit != p.SHA() {
			t.Fatalf("%+v", d)
		}
		r.press(p.SHA(), r.ana)
		run := r.shown(p.SHA(), proposal.TestName)
		if len(run) != 1 || run[0].Status != checks.Queued {
			t.Fatalf("%+v", run)
		}
		item := r.runner.Item()
		var sent wire.TestBuild
		r.runner.Fetch(item, &sent)
		if sent.Proposal == nil || sent.Proposal.Commit != p.SHA() || sent.Proposal.Branch != r.repo.Head("main") || sent.Repo.CloneURL != r.repo.CloneURL() {
			t.Errorf("the Runner was sent %+v, %+v", sent.Proposal, sent.Repo)
		}
		r.runner.MustReport(item, wire.StateRunning, wire.TestBuildDetail{Phases: []wire.Phase{{Name: wire.PhaseBootstrap, State: wire.PhaseRunning, Started: 1}}})
		if run = r.shown(p.SHA(), proposal.TestName); run[0].Status != checks.InProgress || run[0].Title.String() != "Bootstrap script" {
			t.Fatalf("%+v", run[0])
		}
		r.runner.Pass(item)
		if run = r.shown(p.SHA(), proposal.TestName); len(run) != 1 || run[0].Conclusion != "success" || !strings.Contains(run[0].Summary.String(), "/tests/") {
			t.Fatalf("%+v", run)
		}
		r.settle()
		r.says(p.SHA(), "success", "Valid, and tested")

		sha := p.Merge(r.ana, "squash")
		r.look(p)
		r.says(sha, "success", "Applied")
		now := r.env()
		if now.Current == nil || now.Current.Number != 1 || now.Current.Source != "commit "+sha || now.Current.AppliedBy != "ana" || now.Current.Spec.Image != "node:22" {
			t.Fatalf("%+v", now.Current)
		}
		if now.Draft == nil || now.Draft.Spec.Image != "node:22" {
			t.Errorf("the web draft is %+v", now.Draft)
		}
		// Once is enough.
		r.look(p)
		must(t, r.Pushed(t.Context(), r.id(), "main", sha, account(r.ana)))
		r.settle()
		if n := r.env().Current.Number; n != 1 {
			t.Errorf("looking again made version %d", n)
		}
	})
}

// withFile is a Repo whose default branch has the file, applied as version 1.
func withFile(t *testing.T, r *rig, yaml string) {
	t.Helper()
	p := r.propose("first", yaml)
	r.test(p)
	p.Merge(r.ana, "merge")
	r.look(p)
	must(t, r.Pushed(t.Context(), r.id(), "main", r.repo.Head("main"), account(r.ana)))
	r.settle()
	if c := r.env().Current; c == nil || c.Number != 1 {
		t.Fatalf("there is no version: %+v", c)
	}
}

func TestAPullRequestThatLeavesTheFileAloneChangesNothing(t *testing.T) {
	r := one(t, proposal.Options{})
	withFile(t, r, "image: node:22\n")
	old := r.repo.Propose(r.ana, "old", githubtest.Files{"x": githubtest.Text("x")})
	// The default branch moves on: the other branch, which has the old file, doesn't propose to go back.
	next := r.propose("next", "image: node:24\n")
	r.test(next)
	next.Merge(r.ana, "merge")
	r.look(next)
	r.look(old)
	r.says(old.SHA(), "success", "Unchanged")
	sha := old.Merge(r.ana, "merge")
	r.look(old)
	if all := r.shown(sha, proposal.CheckName); len(all) != 0 {
		t.Errorf("%+v", all)
	}
	if c := r.env().Current; c.Number != 2 || c.Spec.Image != "node:24" {
		t.Errorf("%+v", c)
	}
}

func TestValuesThatAreMissingAreEnteredOnTheHub(t *testing.T) {
	each(t, func(t *testing.T, r *rig) {
		p := r.propose("env", "image: node:22\nvariables:\n  TOKEN: {sensitive: true, build: true}\n")
		v := r.says(p.SHA(), "action_required", "values are missing", "TOKEN", "enter them on the Hub's page")
		if len(v.Buttons) != 0 {
			t.Error("it can be tested without values")
		}
		d := r.get(p)
		if len(d.Missing) != 1 || d.Missing[0] != "TOKEN" {
			t.Fatalf("%+v", d.Missing)
		}
		must(t, r.Enter(t.Context(), r.grant, p.Number, d.Draft.Revision, map[string][]byte{"TOKEN": []byte("token-0123456789")}))
		r.says(p.SHA(), "action_required", "needs a Test build")
		r.test(p)
		sha := p.Merge(r.ana, "merge")
		r.look(p)
		r.says(sha, "success", "Applied")
		for _, c := range append(r.shown(p.SHA(), proposal.CheckName), r.shown(sha, proposal.CheckName)...) {
			if strings.Contains(c.Summary.String()+c.Text.String(), "token-0123") {
				t.Error("a value is shown")
			}
		}
	})
}

func TestAnOlderHeadNeverReplacesANewerOne(t *testing.T) {
	each(t, func(t *testing.T, r *rig) {
		p := r.propose("env", "image: node:22\n")
		r.repo.Push(r.ana, "env", "next", githubtest.Files{path: githubtest.Text("image: node:24\n")})
		// One look has read the old head, and is slow; others see the new one and are done.
		slow := make(chan error)
		mend := r.gh.Break(githubtest.Fault{Method: "GET", Path: "/git/trees/", Times: 1, Delay: 300e6})
		defer mend()
		go func() { slow <- r.Look(t.Context(), r.id(), p.Number) }()
		r.repo.Push(r.ana, "env", "last", githubtest.Files{path: githubtest.Text("image: node:26\n")})
		must(t, r.Look(t.Context(), r.id(), p.Number))
		must(t, <-slow)
		if d := r.get(p); d.SHA != p.SHA() || d.Draft.Spec.Image != "node:26" {
			t.Errorf("%s, %+v", d.SHA, d.Draft)
		}
	})
}

func TestGitHubsTroubleIsNeitherAbsenceNorFailure(t *testing.T) {
	each(t, func(t *testing.T, r *rig) {
		p := r.propose("env", "image: node:22\n")
		r.repo.Push(r.ana, "env", "next", githubtest.Files{path: githubtest.Text("image: node:24\n")})
		for _, at := range []string{"/pulls/", "/git/trees/", "/git/blobs/", "/compare/"} {
			mend := r.gh.Break(githubtest.Fault{Method: "GET", Path: at, Status: 502, Body: "{}"})
			err := r.Look(t.Context(), r.id(), p.Number)
			mend()
			wantFault(t, err, "unavailable", "")
			if d := r.get(p); d.Draft == nil || d.Draft.Spec.Image != "node:22" {
				t.Fatalf("%s: %+v", at, d.Draft)
			}
		}
		r.look(p)
		if d := r.get(p); d.Draft.Spec.Image != "node:24" {
			t.Error("it was not looked at again")
		}
	})
}

func TestWhatEventsDidNotSayIsFoundByComparing(t *testing.T) {
	each(t, func(t *testing.T, r *rig) {
		open := r.propose("env", "image: node:22\n")
		closed := r.propose("closed", "image: node:20\n")
		r.repo.Push(r.ana, "env", "next", githubtest.Files{path: githubtest.Text("image: node:24\n")})
		closed.Close(r.ana, true)
		missed := r.repo.Propose(r.ana, "missed", githubtest.Files{path: githubtest.Text("image: node:18\n")})
		must(t, r.Sweep(t.Context()))
		r.settle()
		if d := r.get(open); d.Draft.Spec.Image != "node:24" {
			t.Errorf("%+v", d.Draft)
		}
		if d := r.get(closed); d.State != proposal.Closed || d.Draft != nil {
			t.Errorf("%+v", d)
		}
		if d := r.get(missed); d.Draft == nil {
			t.Errorf("%+v", d)
		}
		// Another Hub doesn't do it again at once.
		before := r.gh.Asked("GET", "/pulls")
		must(t, r.Sweep(t.Context()))
		if r.gh.Asked("GET", "/pulls") != before {
			t.Error("it was compared twice")
		}
	})
}

func TestAnAppliedVersionIsWhatProposalsAreComparedWith(t *testing.T) {
	each(t, func(t *testing.T, r *rig) {
		p := r.propose("env", "image: node:22\n")
		r.says(p.SHA(), "action_required", "", "no version is applied yet")
		spec := r.get(p).Draft.Spec
		r.hub.Applied(r.grant, r.runner, spec)
		r.settle()
		r.says(p.SHA(), "success", "nothing to apply", "what version 1 says")
		if v := r.env().Current; v.Source != "web" {
			t.Errorf("%+v", v)
		}
	})
}

func TestManyLooksAtOnceComeToOne(t *testing.T) {
	each(t, func(t *testing.T, r *rig) {
		p := r.repo.Propose(r.ana, "env", githubtest.Files{path: githubtest.Text("image: node:22\n")})
		done := make(chan error)
		const looks = 8
		for range looks {
			go func() { done <- r.Look(t.Context(), r.id(), p.Number) }()
		}
		for range looks {
			if err := <-done; err != nil && !fault.Is(err, fault.Unavailable) { // which is to be tried again
				t.Error(err)
			}
		}
		r.look(p)
		if d := r.get(p); d.Draft.Revision != 1 || len(r.shown(p.SHA(), proposal.CheckName)) != 1 {
			t.Errorf("revision %d, %d check runs", d.Draft.Revision, len(r.shown(p.SHA(), proposal.CheckName)))
		}
	})
}

func TestALookThatGitHubIsAwayForIsTriedAgain(t *testing.T) {
	each(t, func(t *testing.T, r *rig) {
		clock := storetest.NewClock(r.hub.DB)
		p := r.propose("env", "image: node:22\n")
		mend := r.gh.Break(githubtest.Fault{Method: "GET", Path: "/pulls/", Status: 503, Body: "{}"})
		spec := r.get(p).Draft.Spec
		r.hub.Applied(r.grant, r.runner, spec)                        // has it looked at
		if wait, err := r.Due(t.Context()); err != nil || wait != 0 { // there was something, and there may be more
			t.Fatalf("%s, %v", wait, err)
		}
		wait, err := r.Due(t.Context())
		if err != nil || wait <= 0 {
			t.Fatalf("%s, %v", wait, err)
		}
		mend()
		clock.Advance(wait)
		r.settle()
		r.says(p.SHA(), "success", "nothing to apply")
	})
}
