package proposal_test

import (
	"strings"
	"testing"

	"github.com/claude-hub/claude-hub/app/github"
	"github.com/claude-hub/claude-hub/app/github/githubtest"
	"github.com/claude-hub/claude-hub/app/proposal"
)

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

func TestWhatIsThereWhenTheAppIsInstalledIsFound(t *testing.T) {
	each(t, func(t *testing.T, r *rig) {
		// Before the Hub is told of anything: a file on the default branch, and a pull request.
		sha := r.repo.Push(r.ana, "main", "env", githubtest.Files{path: githubtest.Text("image: node:22\n")})
		p := r.repo.Propose(r.ana, "next", githubtest.Files{path: githubtest.Text("image: node:24\n")})
		must(t, r.Sweep(t.Context()))
		r.settle()
		r.says(sha, "action_required", "Not applied yet", "It is the draft on the Hub's pages now")
		r.says(p.SHA(), "action_required", "needs a Test build")
		if d := r.env().Draft; d == nil || d.Spec.Image != "node:22" {
			t.Errorf("%+v", d)
		}
	})
}

func TestACommitThatSpeaksForNothingIsNotRerun(t *testing.T) {
	r := one(t, proposal.Options{})
	withFile(t, r, "image: node:22\n")
	sha := r.repo.Push(r.ana, "side", "x", githubtest.Files{"x": githubtest.Text("x")})
	must(t, r.RerunAll(t.Context(), r.id(), github.CheckEvent{SHA: sha}, account(r.ana)))
	if all := r.shown(sha, proposal.CheckName); len(all) != 0 {
		t.Errorf("%+v", all)
	}
}

func TestALargeDifferenceIsCutInsideItsBlock(t *testing.T) {
	r := one(t, proposal.Options{})
	p := r.proposeFiles("env", githubtest.Files{path: githubtest.Text("bootstrap: {file: s}\n"), "s": githubtest.Text(strings.Repeat("echo [x](http://evil.example)\n", 8000))})
	text := r.says(p.SHA(), "action_required", "needs a Test build").Text.String()
	if len(text) > 50<<10 || !strings.HasPrefix(text, "```diff\n") || !strings.HasSuffix(text, "(the rest is on the Hub's page)\n```") {
		t.Errorf("%d bytes: %.60s … %s", len(text), text, text[len(text)-80:])
	}
	r.repo.Push(r.ana, "env", "wrong", githubtest.Files{path: githubtest.Text(strings.Repeat("x: 1\n", 5000))})
	r.look(p)
	v := r.says(p.SHA(), "failure", "Invalid")
	if len(v.Summary.String()) > 40<<10 {
		t.Errorf("%d bytes of summary", len(v.Summary.String()))
	}
}
