package proposal_test

import (
	"strings"
	"testing"
	"time"

	"github.com/claude-hub/claude-hub/app/checks"
	"github.com/claude-hub/claude-hub/app/fault"
	"github.com/claude-hub/claude-hub/app/github"
	"github.com/claude-hub/claude-hub/app/github/githubtest"
	"github.com/claude-hub/claude-hub/app/proposal"
	"github.com/claude-hub/claude-hub/runner/wire"
	"github.com/claude-hub/claude-hub/store/storetest"
)

func TestAPressCountsOnlyForWhoPassesTheGate(t *testing.T) {
	each(t, func(t *testing.T, r *rig) {
		p := r.propose("env", "image: node:22\n")
		for _, who := range []githubtest.Account{r.eve, r.bob, r.gh.Bot("helper[bot]")} {
			r.press(p.SHA(), who)
			v := r.says(p.SHA(), "action_required", "needs a Test build", "nothing is built in the name of")
			if strings.Contains(v.Summary.String(), "helper[bot]") {
				t.Error("a name is not escaped")
			}
			if len(r.tests()) != 0 {
				t.Fatalf("%s started a Test build", who.Login())
			}
		}
		old, v := p.SHA(), r.check(p.SHA())
		r.press(p.SHA(), r.ana)
		if all := r.tests(); len(all) != 1 || all[0].CreatedBy != "ana" || all[0].Commit != p.SHA() {
			t.Fatalf("%+v", all)
		}
		if v := r.check(p.SHA()); strings.Contains(v.Summary.String(), "in the name of") {
			t.Error("the refusal stays after somebody did it")
		}
		// Of a commit that is no longer the head nothing is built.
		r.runner.Pass(r.runner.Item())
		r.repo.Push(r.ana, "env", "more", githubtest.Files{path: githubtest.Text("image: node:24\n")})
		r.look(p)
		must(t, r.Pressed(t.Context(), r.id(), github.CheckEvent{SHA: old, ExternalID: v.ExternalID, Button: v.Buttons[0].Identifier}, account(r.ana)))
		if len(r.tests()) != 1 {
			t.Error("an outdated button started a Test build")
		}
		// Nor of a button on a check run that isn't there.
		must(t, r.Pressed(t.Context(), r.id(), github.CheckEvent{SHA: p.SHA(), ExternalID: "environment/1/x/1", Button: v.Buttons[0].Identifier}, account(r.ana)))
		if len(r.tests()) != 1 {
			t.Error("a made-up button started a Test build")
		}
	})
}

func TestARerunIsAnotherCheckRun(t *testing.T) {
	each(t, func(t *testing.T, r *rig) {
		p := r.propose("env", "image: node:22\n")
		r.press(p.SHA(), r.ana)
		item, exit := r.runner.Item(), 3
		r.runner.MustReport(item, wire.StateFailed, wire.TestBuildDetail{Failure: &wire.Failure{Phase: wire.PhaseBootstrap, Code: "exit", Message: "the bootstrap script ended with exit code 3", ExitCode: &exit, LastLines: "```\nE: no such package\x1b[31m `x`\n"}})
		r.settle()
		first := r.shown(p.SHA(), proposal.TestName)
		if len(first) != 1 || first[0].Conclusion != "failure" || first[0].Title.String() != "Failed in the phase Bootstrap script, exit code 3" ||
			!strings.Contains(first[0].Text.String(), "````\n```\nE: no such package `x`\n````") {
			t.Fatalf("%+v", first)
		}
		r.says(p.SHA(), "action_required", "Test build failed")
		for _, left := range r.runner.Items() {
			r.runner.MustReport(left, wire.StateRemoved, wire.TestBuildDetail{})
		}
		ev := github.CheckEvent{SHA: p.SHA(), Name: proposal.TestName, ExternalID: first[0].ExternalID}
		must(t, r.Rerun(t.Context(), r.id(), ev, account(r.eve)))
		if len(r.tests()) != 1 {
			t.Fatal("somebody who never signed in re-ran a Test build")
		}
		r.says(p.SHA(), "action_required", "", "nothing is built in the name of")
		must(t, r.Rerun(t.Context(), r.id(), ev, account(r.ana)))
		if all := r.shown(p.SHA(), proposal.TestName); len(all) != 2 || all[0].Conclusion != "failure" || all[1].Status != checks.Queued {
			t.Fatalf("%+v", all)
		}
		r.runner.Pass(r.runner.Item())
		r.settle()
		r.says(p.SHA(), "success", "tested")
		// Of the Environment it is another look, for anybody.
		before := r.shown(p.SHA(), proposal.CheckName)
		must(t, r.Rerun(t.Context(), r.id(), github.CheckEvent{SHA: p.SHA(), ExternalID: before[len(before)-1].ExternalID}, account(r.eve)))
		if after := r.shown(p.SHA(), proposal.CheckName); len(after) != len(before)+1 || after[len(after)-1].Conclusion != "success" {
			t.Errorf("%d check runs, then %d", len(before), len(after))
		}
		must(t, r.RerunAll(t.Context(), r.id(), github.CheckEvent{SHA: p.SHA()}, account(r.ana)))
		if all := r.shown(p.SHA(), proposal.TestName); len(all) != 3 || len(r.shown(p.SHA(), proposal.CheckName)) != len(before)+2 {
			t.Errorf("re-run all: %d and %d check runs", len(all), len(r.shown(p.SHA(), proposal.CheckName)))
		}
	})
}

func TestAPushVoidsWhatWasTestedUnlessItIsTheSame(t *testing.T) {
	each(t, func(t *testing.T, r *rig) {
		p := r.propose("env", "image: node:22\n")
		r.press(p.SHA(), r.ana)
		first := p.SHA()
		r.repo.Push(r.ana, "env", "cpu", githubtest.Files{path: githubtest.Text("image: node:22\ncpu: 2\n")})
		r.look(p)
		// The Test build goes on, and is shown on the new head, too.
		if run := r.shown(p.SHA(), proposal.TestName); len(run) != 1 || run[0].Status != checks.Queued || r.tests()[0].CancelledBy != "" {
			t.Fatalf("%+v", run)
		}
		second := p.SHA()
		r.repo.Push(r.ana, "env", "image", githubtest.Files{path: githubtest.Text("image: node:24\n")})
		r.look(p)
		if b := r.tests()[0]; b.CancelledBy == "" {
			t.Fatal("a Test build of what nobody proposes any more goes on")
		}
		item := r.runner.Item()
		r.runner.MustReport(item, wire.StateCancelled, wire.TestBuildDetail{})
		r.settle()
		for _, sha := range []string{first, second} {
			if run := r.shown(sha, proposal.TestName); len(run) != 1 || run[0].Conclusion != "cancelled" {
				t.Errorf("%s: %+v", sha, run)
			}
		}
		if run := r.shown(p.SHA(), proposal.TestName); len(run) != 0 {
			t.Errorf("%+v", run)
		}
		r.says(p.SHA(), "action_required", "needs a Test build")
	})
}

// What can't be carried out now is either tried again, by who worked the event off, or told in the check run: no press is lost.
func TestNoPressIsLost(t *testing.T) {
	t.Parallel()
	db := storetest.New(t)
	clock := storetest.NewClock(db)
	r := newRig(t, db, githubtest.Options{}, proposal.Options{})
	p := r.propose("env", "image: node:22\n")
	v := r.check(p.SHA())
	press := github.CheckEvent{SHA: p.SHA(), ExternalID: v.ExternalID, Button: v.Buttons[0].Identifier, Body: "press-1"}
	for name, at := range map[string]githubtest.Fault{
		"GitHub is away where the default branch is asked for": {Method: "GET", Path: "/branches/main", Status: 502, Body: "{}"},
		"GitHub is away where access is asked for":             {Method: "GET", Path: "/user/installations", Status: 502, Body: "{}"},
	} {
		clock.Advance(time.Hour) // so that what is known of access is too old
		r.runner.Items()
		mend := r.gh.Break(at)
		err := r.Pressed(t.Context(), r.id(), press, account(r.ana))
		mend()
		if !fault.Is(err, fault.Unavailable) || len(r.tests()) != 0 {
			t.Errorf("%s: want it tried again, got %v and %d Test builds", name, err, len(r.tests()))
		}
	}
	clock.Advance(time.Hour)
	must(t, r.Pressed(t.Context(), r.id(), press, account(r.ana)))
	r.says(p.SHA(), "action_required", "needs a Test build", "r1 is offline since")
	if len(r.tests()) != 0 {
		t.Fatal("a Test build was started on a Runner that is offline")
	}
	r.runner.Items()
	must(t, r.Pressed(t.Context(), r.id(), press, account(r.ana))) // its body may be the same
	if len(r.tests()) != 1 {
		t.Fatal("the Runner is back: want a Test build")
	}

	// The push that brings a commit back comes later than the press on it.
	r.runner.Pass(r.runner.Item())
	r.settle()
	old := p.SHA()
	r.repo.ForcePush(r.ana, "env", r.repo.Push(r.ana, "more", "more", githubtest.Files{path: githubtest.Text("image: node:24\n")}))
	r.look(p)
	head := p.SHA()
	if head == old {
		t.Fatal("the head is the same")
	}
	v = r.check(head)
	r.repo.ForcePush(r.ana, "env", old)
	r.look(p)
	r.repo.ForcePush(r.ana, "env", head)
	must(t, r.Pressed(t.Context(), r.id(), github.CheckEvent{SHA: head, ExternalID: v.ExternalID, Button: v.Buttons[0].Identifier, Body: "press-2"}, account(r.ana)))
	if all := r.tests(); len(all) != 2 || all[0].Commit != head {
		t.Errorf("want a Test build of %s, got %+v", head, all)
	}
}

// The head of what was merged or closed speaks for nothing any more, and is no merge queue's commit.
func TestARerunOnTheHeadOfAPullRequestThatIsOverShowsNothingElse(t *testing.T) {
	r := one(t, proposal.Options{})
	for name, end := range map[string]func(githubtest.Pull){
		"merged": func(p githubtest.Pull) { p.Merge(r.ana, "squash") },
		"closed": func(p githubtest.Pull) { p.Close(r.ana, true) },
	} {
		p := r.propose(name, "image: node:22 # "+name+"\n")
		end(p)
		r.look(p)
		before := r.shown(p.SHA(), proposal.CheckName)
		must(t, r.Rerun(t.Context(), r.id(), github.CheckEvent{SHA: p.SHA(), ExternalID: before[len(before)-1].ExternalID, Body: name}, account(r.eve)))
		must(t, r.RerunAll(t.Context(), r.id(), github.CheckEvent{SHA: p.SHA(), Body: name + " all"}, account(r.ana)))
		r.settle()
		after := r.shown(p.SHA(), proposal.CheckName)
		if len(after) != len(before) || after[len(after)-1].Summary != before[len(before)-1].Summary {
			t.Errorf("%s: it says now\n%s", name, after[len(after)-1].Summary)
		}
	}
}

func TestAPullRequestThatIsClosedEndsItsTestBuild(t *testing.T) {
	each(t, func(t *testing.T, r *rig) {
		p := r.propose("env", "image: node:22\n")
		r.press(p.SHA(), r.ana)
		p.Close(r.ana, true)
		r.look(p)
		if b := r.tests()[0]; b.CancelledBy == "" || r.get(p).Draft != nil {
			t.Errorf("%+v", b)
		}
		r.runner.MustReport(r.runner.Item(), wire.StateCancelled, wire.TestBuildDetail{})
		r.settle()
		if run := r.shown(p.SHA(), proposal.TestName); len(run) != 1 || run[0].Conclusion != "cancelled" {
			t.Errorf("%+v", run)
		}
		p.Close(r.ana, false)
		r.look(p)
		if r.get(p).Draft == nil {
			t.Error("it was opened again, and has no draft")
		}
	})
}
