package proposal

import (
	"context"
	"errors"
	"fmt"

	"github.com/claude-hub/claude-hub/app/access"
	"github.com/claude-hub/claude-hub/app/checks"
	"github.com/claude-hub/claude-hub/app/environment"
	"github.com/claude-hub/claude-hub/app/github"
	"github.com/claude-hub/claude-hub/store"
)

// branchRow is what the default branch was last seen to have.
type branchRow struct {
	branch, sha string
	file        File // None, Invalid or Valid
	blobs       string
	digest      string // of what a Valid one says
}

func readBranch(tx *store.Tx, repo github.RepoID) (b branchRow, err error) {
	err = tx.Row(branchSQL, int64(repo)).Scan(&b.branch, &b.sha, &b.file, &b.blobs, &b.digest)
	if err != nil && !errors.Is(err, store.ErrNotFound) {
		return b, fmt.Errorf("read the default branch: %w", err)
	}
	return b, nil
}

// Pushed is a branch that moved. When it is the default one, the pull requests that were merged with it are looked at, and what
// was pushed to it without one is shown for what it is: nothing is applied by a push alone. after is only a hint: what counts is
// read. Who pushed it can't be read later, and is kept for Test builds that the Hub starts by itself.
func (s *Service) Pushed(ctx context.Context, repo github.RepoID, branch, after string, sender github.Account) error {
	if err := s.keepPusher(ctx, repo, after, sender); err != nil {
		return err
	}
	app, err := s.github.App()
	if err != nil {
		return away(err)
	}
	r, err := app.Repository(ctx, repo)
	if gone(err) {
		return nil
	}
	if err != nil {
		return away(err)
	}
	if r.DefaultBranch != branch || after == "" {
		return nil
	}
	if err := s.gate.RepoIs(ctx, r); err != nil {
		return err
	}
	with, err := app.PullRequestsWith(ctx, repo, after)
	if err != nil && !gone(err) {
		return away(err)
	}
	for _, p := range with {
		if p.Merged && p.Base.Ref == branch {
			if err := s.Look(ctx, repo, p.Number); err != nil {
				return err
			}
		}
	}
	return s.trunk(ctx, app, r, look{})
}

// trunk looks at the default branch as it is now.
func (s *Service) trunk(ctx context.Context, app *github.App, r github.Repository, how look) error {
	tip, err := app.Branch(ctx, r.ID, r.DefaultBranch)
	if gone(err) {
		return nil // an empty Repo
	}
	if err != nil {
		return away(err)
	}
	var was branchRow
	if err := s.db.Read(ctx, func(tx *store.Tx) (err error) {
		was, err = readBranch(tx, r.ID)
		return err
	}); err != nil {
		return err
	}
	if was.sha == tip && was.branch == r.DefaultBranch && !how.afresh {
		return nil
	}
	d, err := readDocument(ctx, app, r.ID, tip)
	if gone(err) {
		return nil
	}
	if err != nil {
		return away(err)
	}
	now := branchRow{branch: r.DefaultBranch, sha: tip, file: None, blobs: d.blobs}
	switch {
	case d.absent:
		now.blobs = ""
	case d.valid():
		now.file, now.digest = Valid, digest(d.spec)
	default:
		now.file = Invalid
	}
	return s.db.Write(ctx, func(tx *store.Tx) error {
		repo, err := access.ReadRepo(tx, r.ID)
		if err != nil {
			return err
		}
		g := access.System(repo, "push to "+r.DefaultBranch)
		if _, err := tx.Exec(keepBranchSQL, int64(r.ID), now.branch, now.sha, string(now.file), now.blobs, now.digest); err != nil {
			return fmt.Errorf("save the default branch: %w", err)
		}
		if now.blobs == was.blobs && !how.afresh {
			return nil
		}
		// Who was merged before, and is asked to do something about it, may be asked in vain from now on; what is drift has changed.
		if err := s.changed(tx, r.ID, false); err != nil {
			return err
		}
		return s.pushed(tx, g, r, tip, d, how)
	})
}

// pushed shows what was pushed to the default branch without a pull request, on the commit: it is applied by hand.
func (s *Service) pushed(tx *store.Tx, g access.Grant, r github.Repository, sha string, d document, how look) error {
	if all, err := at(tx, r.ID, sha); err != nil || len(all) > 0 {
		return err // it is a merge, which speaks for itself
	}
	env, err := s.env.Read(tx, g)
	if err != nil {
		return err
	}
	p := part{Proposal: Proposal{State: Merged, MergedSHA: sha, ToDefault: true, Problems: problemsOf(d.problems)}}
	p.env.Current = env.Current
	switch {
	case d.absent && env.ID == "":
		return nil
	case d.absent:
		p.File, p.Outcome = Deleted, Kept
	case !d.valid():
		p.File, p.Outcome = Invalid, Wrong
	case env.Current != nil && digest(env.Current.Spec) == digest(d.spec):
		p.File, p.Outcome = Valid, Nothing
	default:
		p.File, p.Outcome = Valid, Needs
		adopted, err := s.env.OfferWeb(tx, g, d.spec)
		if problems, ok := d.faults(err); ok {
			p.File, p.Outcome, p.Problems = Invalid, Wrong, problemsOf(problems)
			break
		}
		if err != nil {
			return err
		}
		p.Detail = "What " + r.DefaultBranch + " says here is not applied: without a pull request a push applies nothing. "
		if adopted {
			p.Detail += "It is the draft on the Hub's pages now: test it there and apply it."
		} else {
			p.Detail += "The draft on the Hub's pages has changes of its own, so it was left alone: apply or discard those, then save this file there, or propose it in a pull request."
		}
	}
	return s.showParts(tx, g.Repo(), sha, []part{p}, showing{bump: how.bump, press: how.press})
}

// Queued is a merge queue's own commit: it is validated, and nothing else. The check run lets the queue go on.
func (s *Service) Queued(ctx context.Context, repo github.RepoID, sha string) error {
	return s.queued(ctx, repo, sha, look{})
}

func (s *Service) queued(ctx context.Context, repo github.RepoID, sha string, how look) error {
	app, err := s.github.App()
	if err != nil {
		return away(err)
	}
	r, err := app.Repository(ctx, repo)
	if err == nil {
		err = s.gate.RepoIs(ctx, r)
	}
	var d document
	if err == nil {
		d, err = readDocument(ctx, app, repo, sha)
	}
	if gone(err) {
		return nil
	}
	if err != nil {
		return away(err)
	}
	return s.db.Write(ctx, func(tx *store.Tx) error {
		branch, err := readBranch(tx, r.ID)
		if err != nil {
			return err
		}
		v := checks.View{
			Repo: r.ID, SHA: sha, Name: CheckName, Status: checks.Completed, Conclusion: "success", DetailsURL: s.page(r.ID, 0),
			Title: masked("Valid"), Summary: masked("This is the merge queue's own commit: what it has of the Environment is validated, and nothing else. What was merged is applied, or not, once it is on the default branch."),
		}
		switch {
		case d.absent && (branch.file == None || branch.file == ""):
			return nil
		case d.absent:
			v.Title = masked("Deletes the file: the Environment stays")
		case !d.valid():
			p := part{Proposal: Proposal{File: Invalid, Problems: problemsOf(d.problems)}}
			o := p.judge()
			v.Conclusion, v.Title, v.Annotations = o.conclusion, masked(o.title), addAnnotations(nil, p)
		}
		return s.complete(tx, v, showing{bump: how.bump, press: how.press})
	})
}

// againBranch is another look at a commit that speaks for no pull request.
func (s *Service) againBranch(ctx context.Context, repo github.RepoID, sha, press string) error {
	var was branchRow
	shown := false
	if err := s.db.Read(ctx, func(tx *store.Tx) error {
		var attempt int
		var conclusion, note string
		err := tx.Row(commitSQL, int64(repo), sha).Scan(&attempt, &conclusion, &note)
		if shown = err == nil; err != nil && !errors.Is(err, store.ErrNotFound) {
			return fmt.Errorf("read the check run of %s: %w", sha, err)
		}
		if was, err = readBranch(tx, repo); err != nil || !shown || was.sha == sha {
			return err
		}
		var heads int
		if err := tx.Row(headsSQL, int64(repo), sha).Scan(&heads); err != nil {
			return fmt.Errorf("look for pull requests that had %s as head: %w", sha, err)
		}
		shown = heads == 0 // else it is of one that was closed or merged, and no merge queue's
		return nil
	}); err != nil {
		return err
	}
	if !shown {
		return nil
	}
	if was.sha != sha {
		return s.queued(ctx, repo, sha, look{bump: true, press: press})
	}
	app, err := s.github.App()
	if err != nil {
		return away(err)
	}
	r, err := app.Repository(ctx, repo)
	if gone(err) {
		return nil
	}
	if err != nil {
		return away(err)
	}
	return s.trunk(ctx, app, r, look{afresh: true, bump: true, press: press})
}

// applied has what is proposed shown against what is applied from now on.
func (s *Service) applied(tx *store.Tx, repo access.Repo, _ environment.Version) error {
	return s.changed(tx, repo.ID, true)
}

// changed has all pull requests looked at again that propose something.
func (s *Service) changed(tx *store.Tx, repo github.RepoID, afresh bool) error {
	all, err := store.All(tx, scan, changedSQL, int64(repo))
	if err != nil {
		return fmt.Errorf("list the pull requests that propose something: %w", err)
	}
	for _, p := range all {
		if err := due(tx, repo, p.Number, tx.Now(), afresh); err != nil {
			return err
		}
	}
	return nil
}
