package proposal_test

import (
	"strings"
	"testing"

	"github.com/claude-hub/claude-hub/app/checks"
	"github.com/claude-hub/claude-hub/app/fault"
	"github.com/claude-hub/claude-hub/app/github"
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

func TestAnInvalidFileIsAnnotatedAtItsLines(t *testing.T) {
	each(t, func(t *testing.T, r *rig) {
		p := r.proposeFiles("env", githubtest.Files{
			path:           githubtest.Text("image: node:22\nbotstrap: x\nstart:\n  file: start.sh\nvariables:\n  A:\n    link: NOWHERE\n"),
			"start.sh":     githubtest.Symlink("README.md"),
			"unrelated.sh": githubtest.Text("\n"),
		})
		v := r.says(p.SHA(), "failure", "Invalid: 2 problems")
		if len(v.Annotations) != 2 || v.Annotations[0].Path != path || v.Annotations[0].Start != 2 || v.Annotations[0].StartColumn != 1 ||
			!strings.Contains(v.Annotations[0].Message, "botstrap") || v.Annotations[1].Start != 4 || !strings.Contains(v.Annotations[1].Message, "symbolic link") {
			t.Errorf("%+v", v.Annotations)
		}
		if len(v.Buttons) != 0 || r.get(p).Draft != nil {
			t.Error("what is invalid has a draft, or can be tested")
		}
		// What only the Hub can know is said at its line, too.
		r.repo.Push(r.ana, "env", "mend", githubtest.Files{path: githubtest.Text("image: node:22\nvariables:\n  A:\n    link: NOWHERE\n")})
		r.look(p)
		v = r.says(p.SHA(), "failure", "Invalid: 1 problem", "NOWHERE")
		if len(v.Annotations) != 1 || v.Annotations[0].Start != 3 || v.Annotations[0].StartColumn != 3 {
			t.Errorf("%+v", v.Annotations)
		}
	})
}

func TestWhatIsNoPlainFileIsInvalidWithItsReason(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		files githubtest.Files
		says  string
	}{
		"directory":             {githubtest.Files{path + "/x": githubtest.Text("image: a\n")}, "is a folder"},
		"symlink":               {githubtest.Files{path: githubtest.Symlink("../README.md")}, "is a symbolic link"},
		"submodule":             {githubtest.Files{path: githubtest.Submodule("0123456789012345678901234567890123456789")}, "is a submodule"},
		"folder is a symlink":   {githubtest.Files{".claude-hub": githubtest.Symlink("elsewhere")}, "leads through .claude-hub, which is a symbolic link"},
		"folder is a file":      {githubtest.Files{".claude-hub": githubtest.Text("x")}, "leads through .claude-hub, which is a file"},
		"binary":                {githubtest.Files{path: githubtest.Text("image: a\x00\x01\x02")}, "is a binary file"},
		"not UTF-8":             {githubtest.Files{path: githubtest.Text("image: a\n# \xff\xfe\n")}, "not UTF-8"},
		"10 MB":                 {githubtest.Files{path: githubtest.Text("# " + strings.Repeat("x", 10<<20))}, "at most 1048576 are possible"},
		"script is a folder":    {githubtest.Files{path: githubtest.Text("start: {file: d}\n"), "d/x": githubtest.Text("")}, "is a folder"},
		"script is missing":     {githubtest.Files{path: githubtest.Text("start: {file: d}\n")}, "not in the repository"},
		"script is too big":     {githubtest.Files{path: githubtest.Text("start: {file: d}\n"), "d": githubtest.Text(strings.Repeat("x", 300<<10))}, "at most"},
		"script is outside":     {githubtest.Files{path: githubtest.Text("start: {file: ../d}\n")}, "no .. in it"},
		"script is a binary":    {githubtest.Files{path: githubtest.Text("start: {file: d}\n"), "d": githubtest.Text("\x7fELF\x00")}, "binary"},
		"an alias bomb":         {githubtest.Files{path: githubtest.Text("a: &a [x,x]\nb: &b [*a,*a]\nimage: *b\n")}, ""},
		"an empty document":     {githubtest.Files{path: githubtest.Text("- 1\n")}, ""},
		"script by a submodule": {githubtest.Files{path: githubtest.Text("start: {file: sub/x}\n"), "sub": githubtest.Submodule("0123456789012345678901234567890123456789")}, "leads through sub"},
	} {
		t.Run(name, func(t *testing.T) {
			r := one(t, proposal.Options{})
			p := r.proposeFiles("env", c.files)
			r.says(p.SHA(), "failure", "Invalid", strings.ReplaceAll(c.says, "_", `\_`))
			if r.get(p).Draft != nil || r.env().Draft != nil {
				t.Error("it has a draft")
			}
		})
	}
}

func TestAPullRequestWithoutTheFileHasNoCheckRun(t *testing.T) {
	r := one(t, proposal.Options{})
	p := r.proposeFiles("other", githubtest.Files{"x": githubtest.Text("x")})
	if all := r.shown(p.SHA(), proposal.CheckName); len(all) != 0 || r.get(p).File != proposal.None {
		t.Errorf("%+v, %s", all, r.get(p).File)
	}
	if all, err := r.List(t.Context(), r.grant); err != nil || len(all) != 0 {
		t.Errorf("%+v, %v", all, err)
	}
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

func TestADeletedFileLeavesTheEnvironmentToTheWeb(t *testing.T) {
	each(t, func(t *testing.T, r *rig) {
		withFile(t, r, "image: node:22\n")
		p := r.proposeFiles("delete", githubtest.Files{path: githubtest.Gone()})
		r.says(p.SHA(), "neutral", "the Environment stays", "kept on the Hub's pages")
		sha := p.Merge(r.ana, "merge")
		r.look(p)
		must(t, r.Pushed(t.Context(), r.id(), "main", sha, account(r.ana)))
		r.settle()
		r.says(sha, "neutral", "The Environment stays")
		if c := r.env().Current; c == nil || c.Number != 1 || c.Spec.Image != "node:22" {
			t.Errorf("%+v", c)
		}
	})
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

func TestTwoPullRequestsOnOneHeadHaveOneCheckRunAndADraftEach(t *testing.T) {
	each(t, func(t *testing.T, r *rig) {
		a := r.propose("env", "image: node:22\n")
		r.repo.Push(r.ana, "other", "base", githubtest.Files{"x": githubtest.Text("x")})
		b := r.repo.OpenPull(r.ana, r.repo, "env", "the same again")
		r.look(b)
		if a.SHA() != b.SHA() || len(r.shown(a.SHA(), proposal.CheckName)) != 1 {
			t.Fatalf("%s, %s: %d check runs", a.SHA(), b.SHA(), len(r.shown(a.SHA(), proposal.CheckName)))
		}
		v := r.check(a.SHA())
		if !strings.Contains(v.Summary.String(), "Pull request #1") || !strings.Contains(v.Summary.String(), "Pull request #2") {
			t.Errorf("%s", v.Summary)
		}
		if r.get(a).Draft == nil || r.get(b).Draft == nil || r.get(a).Draft.ID == r.get(b).Draft.ID {
			t.Error("they have no draft each")
		}
		r.press(a.SHA(), r.ana)
		r.runner.Pass(r.runner.Item())
		r.settle()
		if got := len(r.tests()); got != 1 {
			t.Errorf("%d Test builds of one thing", got)
		}
		r.says(a.SHA(), "success", "tested")
	})
}

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
		must(t, r.RerunAll(t.Context(), r.id(), p.SHA(), account(r.ana)))
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

func TestAMergeByWhoDoesNotPassTheGateAppliesNothing(t *testing.T) {
	each(t, func(t *testing.T, r *rig) {
		p := r.propose("env", "image: node:22\n")
		r.test(p)
		sha := p.Merge(r.eve, "merge")
		r.look(p)
		r.says(sha, "action_required", "Not applied yet", "eve merged this", "applies it on the Hub's page")
		now := r.env()
		if now.Current != nil || now.Draft == nil || now.Draft.Spec.Image != "node:22" {
			t.Fatalf("%+v, %+v", now.Current, now.Draft)
		}
		// Signing in later does nothing in her name by itself.
		r.signIn(r.eve)
		r.look(p)
		if r.env().Current != nil {
			t.Fatal("it was applied by itself, later")
		}
		if _, err := r.Apply(t.Context(), r.grant, p.Number, "0123456789012345678901234567890123456789", ""); err == nil {
			t.Error("another commit was applied")
		}
		v, err := r.Apply(t.Context(), r.grant, p.Number, sha, "by hand")
		must(t, err)
		if v.Number != 1 || v.AppliedBy != "ana" || v.Source != "commit "+sha {
			t.Errorf("%+v", v)
		}
		r.settle()
		r.says(sha, "success", "Applied")
		_, err = r.Apply(t.Context(), r.grant, p.Number, sha, "")
		wantFault(t, err, "refused", "nothing to apply")
	})
}

func TestAMergeOfWhatWasNotTestedAsksForIt(t *testing.T) {
	each(t, func(t *testing.T, r *rig) {
		p := r.propose("env", "image: node:22\n")
		_, err := r.Apply(t.Context(), r.grant, p.Number, p.SHA(), "")
		wantFault(t, err, "refused", "not merged")
		sha := p.Merge(r.ana, "squash")
		r.look(p)
		r.says(sha, "action_required", "Not applied yet", "needs a passing Test build")
		if _, err := r.Apply(t.Context(), r.grant, p.Number, sha, ""); err == nil {
			t.Fatal("what was never tested was applied")
		}
		d := r.get(p)
		if !d.Appliable() || d.Draft.Commit != sha {
			t.Fatalf("%+v", d)
		}
		r.press(sha, r.ana)
		r.runner.Pass(r.runner.Item())
		r.settle()
		r.says(sha, "action_required", "Not applied yet", "It can be applied now")
		v, err := r.Apply(t.Context(), r.grant, p.Number, sha, "")
		must(t, err)
		if v.Number != 1 {
			t.Errorf("%+v", v)
		}
	})
}

func TestAWebDraftWithChangesOfItsOwnIsNeverOverwritten(t *testing.T) {
	each(t, func(t *testing.T, r *rig) {
		withFile(t, r, "image: node:22\n")
		mine := r.env().Draft.Spec
		mine.Bootstrap = "echo mine"
		_, err := r.hub.Environments.Save(t.Context(), r.grant, r.env().Draft.Revision, mine, nil)
		must(t, err)
		p := r.propose("next", "image: node:24\n")
		r.says(p.SHA(), "action_required", "", "**Drift:**", "has changes that are neither applied nor in this file")
		sha := p.Merge(r.ana, "merge")
		r.look(p)
		r.says(sha, "action_required", "Not applied yet", "**Drift:**")
		if d := r.env().Draft; d.Spec.Bootstrap != "echo mine" {
			t.Fatal("the web draft is gone")
		}
		_, err = r.Adopt(t.Context(), r.grant, p.Number, 1)
		wantFault(t, err, "conflict", "")
		if _, err := r.Adopt(t.Context(), r.grant, p.Number, r.env().Draft.Revision); err != nil || r.env().Draft.Spec.Image != "node:24" {
			t.Errorf("%v, %+v", err, r.env().Draft)
		}
	})
}

func TestAMergeQueuesCommitIsOnlyValidated(t *testing.T) {
	each(t, func(t *testing.T, r *rig) {
		p := r.propose("env", "image: node:22\n")
		sha := p.Queue()
		must(t, r.Queued(t.Context(), r.id(), sha))
		r.settle()
		v := r.says(sha, "success", "Valid", "validated, and nothing else")
		if len(v.Buttons) != 0 || len(r.tests()) != 0 || r.env().Current != nil {
			t.Error("more was done")
		}
		bot := r.gh.Bot("github-merge-queue[bot]")
		r.test(p)
		merged := p.Merge(bot, "merge")
		r.look(p)
		r.says(merged, "action_required", "Not applied yet", "in the name of a bot")
		if r.env().Current != nil {
			t.Error("the queue's merge was applied")
		}
		q := r.propose("wrong", "imag: x\n")
		wrong := q.Queue()
		must(t, r.Queued(t.Context(), r.id(), wrong))
		if v := r.says(wrong, "failure", "Invalid"); len(v.Annotations) != 1 {
			t.Errorf("%+v", v.Annotations)
		}
	})
}

func TestAForkIsBuiltOnlyWhenAskedForAndWithoutSecrets(t *testing.T) {
	each(t, func(t *testing.T, r *rig) {
		mallory := r.gh.Person("mallory")
		r.repo.Allow(mallory, "read")
		fork := r.repo.Fork(mallory)
		fork.Push(mallory, "evil", "env", githubtest.Files{path: githubtest.Text("image: node:22\nbootstrap: env\nvariables:\n  OWN: x\n  TOKEN: {sensitive: true, build: true}\n")})
		p := r.repo.OpenPull(mallory, fork, "evil", "[click](http://evil.example) @ana <b>")
		r.look(p)
		v := r.says(p.SHA(), "neutral", "from a fork", "without Sensitive values and Links", "never counts for Apply")
		if len(r.tests()) != 0 || len(v.Buttons) != 1 {
			t.Fatalf("%d Test builds, %+v", len(r.tests()), v.Buttons)
		}
		if _, err := r.Adopt(t.Context(), r.grant, p.Number, 0); err == nil {
			t.Error("a fork's draft came into the pages, where it would be tested with secrets")
		}
		r.press(p.SHA(), mallory)
		if len(r.tests()) != 0 {
			t.Fatal("its author started a Test build")
		}
		r.press(p.SHA(), r.ana)
		values, refused := r.runner.Values(r.runner.Item())
		if refused != "" || len(values) != 1 || string(values["OWN"].GetValue()) != "x" {
			t.Fatalf("%v, %q", values, refused)
		}
		r.runner.Pass(r.runner.Item())
		r.settle()
		run := r.shown(p.SHA(), proposal.TestName)
		if len(run) != 1 || run[0].Conclusion != "success" || !strings.Contains(run[0].Summary.String(), "withheld") {
			t.Fatalf("%+v", run)
		}
		r.says(p.SHA(), "neutral", "from a fork")
		must(t, r.RerunAll(t.Context(), r.id(), p.SHA(), account(r.ana)))
		if all := r.shown(p.SHA(), proposal.TestName); len(all) != 2 || all[1].Status != checks.Queued {
			t.Fatalf("%+v", all)
		}
		r.runner.Pass(r.runner.Item())
		sha := p.Merge(r.ana, "squash")
		r.look(p)
		r.says(sha, "action_required", "Not applied yet", "TOKEN")
		if r.env().Current != nil {
			t.Error("a Test build without secrets counted")
		}
	})
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

func TestAFileThatIsPushedWithoutAPullRequestIsADraft(t *testing.T) {
	each(t, func(t *testing.T, r *rig) {
		sha := r.repo.Push(r.ana, "main", "env", githubtest.Files{path: githubtest.Text("image: node:22\n")})
		must(t, r.Pushed(t.Context(), r.id(), "main", sha, account(r.ana)))
		r.says(sha, "action_required", "Not applied yet", "without a pull request")
		if e := r.env(); e.Current != nil || e.Draft == nil || e.Draft.Spec.Image != "node:22" {
			t.Fatalf("%+v", e)
		}
		r.hub.Applied(r.grant, r.runner, r.env().Draft.Spec)
		must(t, r.Rerun(t.Context(), r.id(), github.CheckEvent{SHA: sha, ExternalID: r.check(sha).ExternalID}, account(r.ana)))
		r.says(sha, "success", "Nothing to apply")
		must(t, r.Pushed(t.Context(), r.id(), "side", sha, account(r.ana)))
	})
}

func TestAMergeThatWasChangedSinceAppliesNothing(t *testing.T) {
	each(t, func(t *testing.T, r *rig) {
		withFile(t, r, "image: node:20\n")
		a := r.propose("a", "image: node:22\n")
		r.test(a)
		first := a.Merge(r.ana, "squash")
		r.repo.Push(r.ana, "main", "by hand", githubtest.Files{path: githubtest.Text("image: node:24\n")})
		r.look(a) // its event comes late
		r.says(first, "neutral", "Superseded")
		if c := r.env().Current; c.Spec.Image != "node:20" {
			t.Errorf("%+v", c)
		}
	})
}

func TestAnArchivedRepoAndOneThatIsGoneAreLeftAlone(t *testing.T) {
	each(t, func(t *testing.T, r *rig) {
		p := r.repo.Propose(r.ana, "env", githubtest.Files{path: githubtest.Text("image: node:22\n")})
		r.repo.Archive(true)
		must(t, r.Look(t.Context(), r.id(), p.Number))
		if all := r.shown(p.SHA(), proposal.CheckName); len(all) != 0 {
			t.Errorf("%+v", all)
		}
		must(t, r.Sweep(t.Context()))
		r.repo.Archive(false)
		must(t, r.Look(t.Context(), r.id(), p.Number))
		r.says(p.SHA(), "action_required", "")
		r.inst.Suspend(true)
		must(t, r.Look(t.Context(), r.id(), p.Number))
		r.inst.Suspend(false)
		r.inst.Drop(r.repo)
		must(t, r.Look(t.Context(), r.id(), p.Number))
		must(t, r.Pushed(t.Context(), r.id(), "main", r.repo.Head("main"), account(r.ana)))
		must(t, r.Queued(t.Context(), r.id(), p.SHA()))
		must(t, r.Look(t.Context(), 4711, 1))
	})
}

func TestAnEmptyRepoHasNothingToLookAt(t *testing.T) {
	r := one(t, proposal.Options{})
	empty := r.gh.Repo("octo/empty", true, nil)
	r.inst.Add(empty)
	id := github.RepoID(empty.ID)
	must(t, r.Pushed(t.Context(), id, "main", "0123456789012345678901234567890123456789", account(r.ana)))
	must(t, r.Look(t.Context(), id, 1))
	must(t, r.Queued(t.Context(), id, "0123456789012345678901234567890123456789"))
}

func TestAHubCanTestByItself(t *testing.T) {
	r := one(t, proposal.Options{AutoTest: true})
	p := r.propose("env", "image: node:22\n")
	if all := r.tests(); len(all) != 1 || all[0].CreatedBy != "ana" || all[0].Commit != p.SHA() {
		t.Fatalf("%+v", all)
	}
	r.look(p)
	r.repo.Push(r.ana, "env", "comment", githubtest.Files{path: githubtest.Text("image: node:22 # the same\n")})
	r.look(p)
	if len(r.tests()) != 1 {
		t.Error("the same was tested twice")
	}
	// Not for who never signed in, nor for forks.
	q := r.repo.Propose(r.eve, "eve", githubtest.Files{path: githubtest.Text("image: node:24\n")})
	r.look(q)
	fork := r.repo.Fork(r.ana)
	fork.Push(r.ana, "f", "f", githubtest.Files{path: githubtest.Text("image: node:26\n")})
	r.look(r.repo.OpenPull(r.ana, fork, "f", "f"))
	if len(r.tests()) != 1 {
		t.Errorf("%+v", r.tests())
	}
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
		r.runner.Of(r.hub)
		r.hub.Applied(r.grant, r.runner, spec) // has it looked at
		wait, err := r.Due(t.Context())
		must(t, err)
		if wait, err = r.Due(t.Context()); err != nil || wait <= 0 {
			t.Fatalf("%s, %v", wait, err)
		}
		mend()
		clock.Advance(wait)
		r.settle()
		r.says(p.SHA(), "success", "nothing to apply")
	})
}

func TestTextOfOthersMeansNothingInACheckRun(t *testing.T) {
	r := one(t, proposal.Options{})
	p := r.propose("env", "image: node:22\n\"[x](http://evil.example) @ana <b>`www.evil.example`\": 1\nbootstrap: |\n  ```\n  echo '````' @ana\n")
	v := r.says(p.SHA(), "failure", "Invalid")
	for _, bad := range []string{"](http://", "@ana", "<b>", "www.evil", "http://"} {
		if strings.Contains(v.Summary.String(), bad) {
			t.Errorf("%q in %s", bad, v.Summary)
		}
	}
	r.repo.Push(r.ana, "env", "right", githubtest.Files{path: githubtest.Text("image: node:22\nbootstrap: |\n  ```\n  echo '````' @ana\n")})
	r.look(p)
	text := r.check(p.SHA()).Text.String()
	if !strings.HasPrefix(text, "`````diff\n") || !strings.HasSuffix(text, "\n`````") {
		t.Errorf("the fence is shorter than what it holds: %s", text)
	}
}

func TestWhoMergesSomethingElseAppliesNothingOfOthers(t *testing.T) {
	each(t, func(t *testing.T, r *rig) {
		withFile(t, r, "image: node:20\n")
		other := r.repo.Propose(r.ana, "other", githubtest.Files{"x": githubtest.Text("x")})
		env := r.propose("env", "image: node:22\n")
		r.test(env)
		env.Merge(r.eve, "merge") // who doesn't pass the gate
		r.look(env)
		other.Merge(r.ana, "merge")
		r.look(other)
		must(t, r.Pushed(t.Context(), r.id(), "main", r.repo.Head("main"), account(r.ana)))
		r.settle()
		if c := r.env().Current; c.Number != 1 {
			t.Errorf("version %d was applied by %s", c.Number, c.AppliedBy)
		}
	})
}
