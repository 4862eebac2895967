package proposal

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/claude-hub/claude-hub/app/access"
	"github.com/claude-hub/claude-hub/app/environment"
	"github.com/claude-hub/claude-hub/app/fault"
	"github.com/claude-hub/claude-hub/app/fleet"
	"github.com/claude-hub/claude-hub/app/github"
	"github.com/claude-hub/claude-hub/envspec"
	"github.com/claude-hub/claude-hub/store"
)

// lookTries bounds how often a look begins afresh because others looked at the same time.
const lookTries = 5

// Look reads a pull request again and has draft and check runs be what it says now. It may be called at any time, any number of
// times, from any Hub. A Repo that the App has no access to, and a pull request that is gone, are no errors: nothing is left to
// do. A fault of code unavailable says that GitHub is, or the gate's answer about who merged: then nothing was changed.
func (s *Service) Look(ctx context.Context, repo github.RepoID, number int) error {
	return s.look(ctx, repo, number, look{})
}

// lateMerge is until when a merge is acted upon by itself: so long GitHub can be asked for an event that was missed. An event of a
// pull request that was merged long ago, such as another title, is no merge.
const lateMerge = 3 * 24 * time.Hour

// look is how to look.
type look struct {
	afresh bool   // read files that were read at this commit before: what was wrong with them may be no longer
	bump   bool   // show another check run, whatever it says
	press  string // the body of the event that asks for it, if one does
}

// showing shows what is seen; another check run begins without the sentence that the one before was given.
func (l look) showing(runners []fleet.Runner) showing {
	how := showing{runners: runners, bump: l.bump, press: l.press}
	if l.bump {
		how.note = new(string)
	}
	return how
}

func (s *Service) look(ctx context.Context, repo github.RepoID, number int, how look) error {
	err := s.lookNow(ctx, repo, number, how)
	if errors.Is(err, errNoRunner) {
		return s.db.Write(ctx, func(tx *store.Tx) error { return due(tx, repo, number, tx.Now().Add(s.o.SweepEvery), false) })
	}
	return err
}

// lookNow is look that answers errNoRunner where it is to be looked again for a Runner.
func (s *Service) lookNow(ctx context.Context, repo github.RepoID, number int, how look) error {
	app, err := s.github.App()
	if err != nil {
		return away(err)
	}
	for range lookTries {
		err = s.lookOnce(ctx, app, repo, number, how)
		if !errors.Is(err, errMoved) {
			return err
		}
	}
	return errors.Join(fault.New(fault.Unavailable, "Pull request #%d changes faster than it can be looked at.", number), err)
}

func (s *Service) lookOnce(ctx context.Context, app *github.App, repo github.RepoID, number int, how look) error {
	var was Proposal
	err := s.db.Read(ctx, func(tx *store.Tx) (err error) {
		was, _, err = read(tx, repo, number)
		return err
	})
	if err != nil {
		return err
	}
	f := facts{}
	if f.repo, err = app.Repository(ctx, repo); err == nil {
		f.pull, err = app.PullRequest(ctx, repo, number)
	}
	switch {
	case github.NotFound.Is(err) && f.repo.ID != 0:
		return s.vanished(ctx, repo, was)
	case gone(err):
		s.o.Log.Debug().Err(err).Int64("repo", int64(repo)).Int("pull_request", number).Msg("not looked at")
		return nil
	case err != nil:
		return away(err)
	}
	if err := s.gate.RepoIs(ctx, f.repo); err != nil {
		return err
	}
	if f.repo.Archived {
		return nil // nothing in it changes, and GitHub takes no check runs; the sweep looks again once that has ended
	}
	now := proposalOf(f, was)
	if !how.afresh && same(was, now) {
		if err := s.reshow(ctx, repo, now.commit(), how); err != nil {
			return err
		}
		now.File = was.File
		return s.autoTest(ctx, repo, now, f.repo.DefaultBranch)
	}
	if err := readFacts(ctx, app, &f); err != nil {
		if gone(err) {
			return nil // a commit that is gone again: the push that took it away has an event of its own
		}
		return away(err)
	}
	d := decide(f)
	now.File, now.Outcome, now.Detail, now.Problems = d.file, d.outcome, "", problemsOf(f.says().problems)
	if d.file == None || d.file == Deleted || d.state == Closed || d.outcome == Superseded {
		now.Problems = nil
	}
	if was.Outcome != "" && was.MergedSHA == now.MergedSHA && !moves(was.Outcome, d.outcome) { // what a merge leads to is decided once
		now.Outcome, now.Detail = was.Outcome, was.Detail
	}
	by, err := s.merger(ctx, repo, f, was, now)
	if err != nil {
		return err
	}
	runners, err := s.fleet.Runners(ctx)
	if err != nil {
		return err
	}
	var next Proposal
	err = s.db.Write(ctx, func(tx *store.Tx) error {
		next = now
		g, err := system(tx, repo, number)
		if err != nil {
			return err
		}
		if err := s.draft(tx, g, f, d, &next); err != nil {
			return err
		}
		if next.Outcome == Needs {
			if err := s.settle(tx, g, by, was, f, &next); err != nil {
				return err
			}
		}
		if err := write(tx, repo, next); err != nil {
			return err
		}
		if err := s.show(tx, g, next.commit(), how.showing(runners)); err != nil {
			return err
		}
		tx.Wake(environment.TopicOf(g.Repo()))
		return nil
	})
	if err != nil {
		return err
	}
	s.o.Log.Debug().Int64("repo", int64(repo)).Int("pull_request", number).Str("commit", now.commit()).Msg(d.reason)
	return s.autoTest(ctx, repo, next, f.repo.DefaultBranch)
}

// moves says that what was decided of a merge is another thing by now: what somebody is asked for was overtaken, or what was wrong with it
// on the Hub is right.
func moves(was, now Outcome) bool {
	return was == Needs && now != Needs || was == Wrong && now == Needs
}

// proposalOf is what GitHub says of a pull request, without its files.
func proposalOf(f facts, was Proposal) Proposal {
	p := Proposal{
		Number: f.pull.Number, Title: f.pull.Title, URL: f.pull.URL, Author: f.pull.Author, SHA: f.pull.Head.SHA, Base: f.pull.Base.Ref,
		ToDefault: f.pull.Base.Ref == f.repo.DefaultBranch, Fork: f.pull.Fork, State: Open, File: None, version: was.version,
	}
	switch {
	case f.pull.Merged:
		p.State, p.MergedSHA, p.MergedBy = Merged, f.pull.MergeCommit, f.pull.MergedBy.Login
	case !f.pull.Open:
		p.State = Closed
	}
	return p
}

// same says that GitHub says what it said when its files were read.
func same(was, now Proposal) bool {
	return was.version != 0 && was.State == now.State && was.SHA == now.SHA && was.Base == now.Base && was.ToDefault == now.ToDefault &&
		was.Fork == now.Fork && was.MergedSHA == now.MergedSHA && was.Title == now.Title
}

// readFacts reads the files that the decision rests on.
func readFacts(ctx context.Context, app *github.App, f *facts) error {
	repo, pull := f.repo.ID, f.pull
	f.head.absent, f.base.absent, f.merged.absent, f.branch.absent = true, true, true, true
	if pull.Merged && pull.Base.Ref != f.repo.DefaultBranch || !pull.Merged && !pull.Open {
		return nil
	}
	read := func(sha string) (document, error) { return readDocument(ctx, app, repo, sha) }
	began, err := beginning(ctx, app, repo, pull)
	if err != nil {
		return err
	}
	if f.head, err = read(pull.Head.SHA); err != nil {
		return err
	}
	if began != "" {
		if f.base, err = read(began); err != nil {
			return err
		}
	}
	if !pull.Merged || fileOf(f.head, f.base) == None || fileOf(f.head, f.base) == Unchanged {
		return nil
	}
	if f.merged, err = read(pull.MergeCommit); err != nil {
		return err
	}
	tip, err := app.Branch(ctx, repo, f.repo.DefaultBranch)
	if err != nil {
		return err
	}
	f.branch = f.merged
	if tip != pull.MergeCommit {
		f.branch, err = read(tip)
	}
	return err
}

// beginning is the commit where the pull request began: what it leaves as it was there, it doesn't propose, however far its base
// has moved on. "" if there is none.
func beginning(ctx context.Context, app *github.App, repo github.RepoID, pull github.PullRequest) (string, error) {
	base := pull.Base.Ref
	if pull.Merged { // the branch has it by now: what counts is the one before
		m, err := app.Commit(ctx, repo, pull.MergeCommit)
		if err != nil || len(m.Parents) == 0 {
			return "", err
		}
		base = m.Parents[0]
	}
	c, err := app.Compare(ctx, repo, base, pull.Head.SHA)
	if github.NotFound.Is(err) { // no common history
		return "", nil
	}
	return c.MergeBase, err
}

// maxProblems bounds what is kept of what is wrong: who has that many begins with the first.
const maxProblems = 200

func problemsOf(all envspec.Problems) []Problem {
	all = all[:min(len(all), maxProblems)]
	out := make([]Problem, 0, len(all))
	for _, p := range all {
		out = append(out, Problem{File: p.File, Line: max(1, p.Line), Column: p.Column, Message: p.Message, Warning: p.Warning})
	}
	return out
}

// draft has the pull request's draft be what was decided. What is wrong with Variables is known only now.
func (s *Service) draft(tx *store.Tx, g access.Grant, f facts, d decision, p *Proposal) error {
	if !d.drafts() || p.Outcome != "" && p.Outcome != Needs {
		return s.env.Withdraw(tx, g, p.Number)
	}
	draft, err := s.env.Propose(tx, g, environment.Proposal{Number: p.Number, Commit: p.commit(), Fork: p.Fork && p.State == Open, Spec: f.says().spec})
	if problems, ok := f.says().faults(err); ok {
		p.File = Invalid
		if p.State == Merged {
			p.Outcome = Wrong
		}
		for _, wrong := range problemsOf(problems) {
			wrong.Hub = true
			p.Problems = append(p.Problems, wrong)
		}
		return s.env.Withdraw(tx, g, p.Number)
	}
	if err != nil {
		return err
	}
	return s.carry(tx, g, *p, draft)
}

// carry shows a Test build that counts for a new head, since it is of the same test key, on that one too.
func (s *Service) carry(tx *store.Tx, g access.Grant, p Proposal, draft environment.Draft) error {
	tests, err := s.env.ProposedTests(tx, g, p.Number, 20)
	if err != nil {
		return err
	}
	i := slices.IndexFunc(tests, func(t environment.TestBuild) bool { return t.TestKey == draft.TestKey && (draft.Fork || !t.Withheld) })
	if i < 0 || tests[i].CancelledBy != "" || tests[i].Final() && tests[i].State != environment.Passed {
		return nil
	}
	return s.showTest(tx, g.Repo(), tests[i], p.commit())
}

// merger is the Grant of who merged, if the merge is to be acted upon; nil where nothing is to be done in anybody's name.
func (s *Service) merger(ctx context.Context, repo github.RepoID, f facts, was, now Proposal) (*access.Grant, error) {
	if now.Outcome != Needs || was.Outcome != "" {
		return nil, nil
	}
	g, err := s.sender(ctx, repo, f.pull.MergedBy)
	if fault.Is(err, fault.NotFound) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	return &g, nil
}

// sender is the Grant of somebody who did something at GitHub, by their numeric id: access.ErrNotFound for a bot, for who never
// signed in here, and for who has no access.
func (s *Service) sender(ctx context.Context, repo github.RepoID, who github.Account) (access.Grant, error) {
	if who.ID == 0 || who.Type == "Bot" {
		return access.Grant{}, access.ErrNotFound
	}
	return s.gate.Sender(ctx, who.ID, repo)
}

// settle does what a merge leads to, once: a version by who merged, or else a sentence about what is needed, and a draft in the
// web where nothing else would be lost for it.
func (s *Service) settle(tx *store.Tx, g access.Grant, by *access.Grant, was Proposal, f facts, p *Proposal) error {
	env, _, err := s.env.Proposed(tx, g, p.Number)
	if err != nil {
		return err
	}
	if saysAlready(env) {
		p.Outcome, p.Detail = Nothing, ""
		return s.env.Withdraw(tx, g, p.Number)
	}
	if was.Outcome == Needs {
		return nil
	}
	if was.Outcome != "" { // it was mended on the Hub: for that nobody merged it
		_, err = s.env.AdoptUnlessChanged(tx, g, p.Number)
		return err
	}
	verdict, err := s.env.CheckProposed(tx, g, p.Number)
	switch {
	case err != nil:
		return err
	case !verdict.OK:
		p.Detail = "" // what is needed changes with each Test build
	case env.Current != nil && env.Current.AppliedAt.Truncate(time.Second).After(f.pull.MergedAt): // GitHub's times are whole seconds
		p.Detail = fmt.Sprintf("Version %d was applied after this was merged, and nobody's later decision is undone by itself. Somebody with access applies this on the Hub's page, if it is still wanted.", env.Current.Number)
	case tx.Now().Sub(f.pull.MergedAt) > lateMerge:
		p.Detail = "This was merged before the Hub saw it, too long ago to act upon by itself. Somebody with access applies it on the Hub's page, if it is still wanted."
	case by == nil:
		p.Detail = fmt.Sprintf("%s merged this, and nothing is applied in the name of a bot, or of somebody who never signed in to this Hub or has no access to this Repo. "+
			"Somebody who has applies it on the Hub's page.", orSomebody(f.pull.MergedBy.Login))
	default:
		message := fmt.Sprintf("Pull request #%d: %s", p.Number, f.pull.Title)
		if _, err := s.env.ApplyProposed(tx, *by, p.Number, p.MergedSHA, clip(message, 500)); err != nil {
			return err
		}
		p.Outcome, p.Detail = Applied, ""
		return s.env.Withdraw(tx, g, p.Number)
	}
	_, err = s.env.AdoptUnlessChanged(tx, g, p.Number)
	return err
}

// saysAlready tells that there is nothing to apply.
func saysAlready(env environment.Environment) bool {
	return env.Current != nil && env.Draft != nil && len(envspec.Explain(env.Current.Spec, env.Draft.Spec)) == 0
}

func orSomebody(login string) string {
	if login == "" {
		return "Somebody"
	}
	return login
}

// vanished is a pull request that GitHub has no longer.
func (s *Service) vanished(ctx context.Context, repo github.RepoID, was Proposal) error {
	if was.version == 0 || was.State != Open {
		return nil
	}
	return s.db.Write(ctx, func(tx *store.Tx) error {
		g, err := system(tx, repo, was.Number)
		if err != nil {
			return err
		}
		was.State, was.Problems = Closed, nil
		if err := write(tx, repo, was); err != nil {
			return err
		}
		tx.Wake(environment.TopicOf(g.Repo()))
		return s.env.Withdraw(tx, g, was.Number)
	})
}

// reshow shows a commit's check run as what is stored makes it, without asking GitHub.
func (s *Service) reshow(ctx context.Context, repo github.RepoID, sha string, how look) error {
	runners, err := s.fleet.Runners(ctx)
	if err != nil {
		return err
	}
	return s.db.Write(ctx, func(tx *store.Tx) error {
		r, err := access.ReadRepo(tx, repo)
		if err != nil {
			return err
		}
		return s.show(tx, access.System(r, "pull requests"), sha, how.showing(runners))
	})
}

// start starts a Test build of a pull request's draft at exactly one commit, for who has g. branch "" is asked of GitHub. press is
// the body of the event that asks for it, if one does: where that led to one before, none is started, and there is no error.
func (s *Service) start(ctx context.Context, g access.Grant, number int, commit, runner, branch, press string) (environment.TestBuild, error) {
	tip, err := s.tip(ctx, g.Repo().ID, branch)
	if err != nil {
		return environment.TestBuild{}, err
	}
	var test environment.TestBuild
	err = s.db.Write(ctx, func(tx *store.Tx) error {
		fresh, err := once(tx, g.Repo().ID, press, testOf(number))
		if err != nil || !fresh {
			return err
		}
		test, err = s.env.TestProposed(tx, g, number, commit, tip, runner)
		return err
	})
	return test, err
}

// tip is the commit of the default branch, for the first line of the log.
func (s *Service) tip(ctx context.Context, repo github.RepoID, branch string) (string, error) {
	app, err := s.github.App()
	if err != nil {
		return "", away(err)
	}
	if branch == "" {
		r, err := app.Repository(ctx, repo)
		if err != nil {
			return "", away(err)
		}
		branch = r.DefaultBranch
	}
	tip, err := app.Branch(ctx, repo, branch)
	if err != nil {
		return "", away(err)
	}
	return tip, nil
}

// fitting are the Runners that a Test build of spec could run on now, those that do least first.
func (s *Service) fitting(runners []fleet.Runner, repo access.Repo, spec envspec.Spec) []fleet.Runner {
	only := s.env.Runners(repo, spec)
	var fit []fleet.Runner
	for _, r := range runners {
		if s.fleet.Unfit(r, fleet.Filter{Only: only}) == "" {
			fit = append(fit, r)
		}
	}
	slices.SortStableFunc(fit, func(a, b fleet.Runner) int { return a.Busy() - b.Busy() })
	return fit
}
