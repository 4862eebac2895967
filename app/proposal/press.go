package proposal

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/claude-hub/claude-hub/app/access"
	"github.com/claude-hub/claude-hub/app/checks"
	"github.com/claude-hub/claude-hub/app/environment"
	"github.com/claude-hub/claude-hub/app/fault"
	"github.com/claude-hub/claude-hub/app/fleet"
	"github.com/claude-hub/claude-hub/app/github"
	"github.com/claude-hub/claude-hub/store"
)

// Pressed is somebody pressing a button of a check run: a Test build on a Runner, of exactly the commit that has the button. It
// counts only for a sender who, by numeric id, passes the gate; whom it doesn't, the check run asks to do it on the Hub's page.
func (s *Service) Pressed(ctx context.Context, repo github.RepoID, ev github.CheckEvent, sender github.Account) error {
	ours, err := s.ours(ctx, repo, ev, CheckName)
	if err != nil || !ours {
		return err
	}
	runners, err := s.fleet.Runners(ctx)
	if err != nil {
		return err
	}
	i := slices.IndexFunc(runners, func(r fleet.Runner) bool { return buttonOf(r) == ev.Button })
	if i < 0 {
		return s.say(ctx, repo, ev.SHA, look{}, "The Runner of that button is gone. Nothing was started: choose another one.")
	}
	return s.ask(ctx, repo, ev.SHA, sender, look{press: ev.Body}, func(Proposal, []environment.TestBuild) (string, bool) { return runners[i].ID, true })
}

// Rerun is somebody pressing “Re-run” of a check run. Of the Environment that is another look, for anybody; of a Test build another
// one on the same Runner, as Pressed.
func (s *Service) Rerun(ctx context.Context, repo github.RepoID, ev github.CheckEvent, sender github.Account) error {
	if ours, err := s.ours(ctx, repo, ev, CheckName); err != nil || ours {
		if err != nil {
			return err
		}
		return s.again(ctx, repo, ev.SHA, ev.Body)
	}
	var id, sha string
	var number int
	err := s.db.Read(ctx, func(tx *store.Tx) error {
		return tx.Row(runSQL, store.Text(ev.ExternalID), int64(repo)).Scan(&id, &number, &sha)
	})
	if errors.Is(err, store.ErrNotFound) {
		return nil // none of ours
	}
	if err != nil {
		return fmt.Errorf("read the check run %s: %w", ev.ExternalID, err)
	}
	return s.ask(ctx, repo, sha, sender, look{bump: true, press: ev.Body}, func(p Proposal, tests []environment.TestBuild) (string, bool) {
		for _, t := range tests {
			if p.Number == number && t.ID == id {
				return t.Runner, true
			}
		}
		return "", false
	})
}

// RerunAll is somebody pressing “Re-run all checks” of a commit, of a fork too: whatever there was of it is done again.
func (s *Service) RerunAll(ctx context.Context, repo github.RepoID, ev github.CheckEvent, sender github.Account) error {
	sha := ev.SHA
	if err := s.again(ctx, repo, sha, ev.Body); err != nil {
		return err
	}
	return s.ask(ctx, repo, sha, sender, look{bump: true, press: ev.Body}, func(_ Proposal, tests []environment.TestBuild) (string, bool) {
		i := slices.IndexFunc(tests, func(t environment.TestBuild) bool { return t.Commit == sha })
		if i < 0 {
			return "", false
		}
		return tests[i].Runner, true
	})
}

// ours says that an event is about a check run that this package showed under a name, on the commit that the event names.
func (s *Service) ours(ctx context.Context, repo github.RepoID, ev github.CheckEvent, name string) (ours bool, err error) {
	err = s.db.Read(ctx, func(tx *store.Tx) error {
		v, found, err := checks.ByRun(tx, ev.Run)
		if err == nil && !found { // pressed before the reconciler knew its id
			v, found, err = checks.Read(tx, ev.ExternalID)
		}
		ours = found && v.Repo == repo && v.SHA == ev.SHA && v.Name == name
		return err
	})
	return ours, err
}

// again looks again at all that a commit speaks for, and shows another check run of it, once for each press.
func (s *Service) again(ctx context.Context, repo github.RepoID, sha, press string) error {
	var all []Proposal
	done := false
	err := s.db.Read(ctx, func(tx *store.Tx) (err error) {
		if done, err = did(tx, repo, press, reshown); err != nil || done {
			return err
		}
		all, err = at(tx, repo, sha)
		return err
	})
	if err != nil || done {
		return err
	}
	if len(all) == 0 {
		return s.againBranch(ctx, repo, sha, press)
	}
	for i, p := range all {
		if err := s.look(ctx, repo, p.Number, look{afresh: true, bump: i == len(all)-1, press: press}); err != nil {
			return err
		}
	}
	return nil
}

// ask starts Test builds at one commit in the name of a sender. on says on which Runner, of a pull request with its Test builds.
func (s *Service) ask(ctx context.Context, repo github.RepoID, sha string, sender github.Account, how look, on func(Proposal, []environment.TestBuild) (runner string, ok bool)) error {
	type wish struct {
		number int
		runner string
		key    string
		secret bool // a Test build of it doesn't count: another one of the same key is no twin of it
	}
	if err := s.seek(ctx, repo, sha); err != nil {
		return err
	}
	var wishes []wish
	err := s.db.Read(ctx, func(tx *store.Tx) error {
		wishes = nil
		all, err := at(tx, repo, sha)
		if err != nil || len(all) == 0 {
			return err
		}
		r, err := access.ReadRepo(tx, repo)
		if err != nil {
			return err
		}
		g := access.System(r, "pull requests")
		for _, p := range all {
			env, _, err := s.env.Proposed(tx, g, p.Number)
			if err != nil {
				return err
			}
			if env.Draft == nil || env.Draft.Commit != sha {
				continue
			}
			tests, err := s.env.ProposedTests(tx, g, p.Number, 50)
			if err != nil {
				return err
			}
			runner, ok := on(p, tests)
			if done, err := did(tx, repo, how.press, testOf(p.Number)); err != nil || done {
				if err != nil {
					return err
				}
				continue
			}
			w := wish{p.Number, runner, string(env.Draft.TestKey), part{env: env}.secret()}
			if ok && !slices.ContainsFunc(wishes, func(x wish) bool { return x.key == w.key && x.runner == w.runner && x.secret == w.secret }) {
				wishes = append(wishes, w)
			}
		}
		return nil
	})
	if err != nil || len(wishes) == 0 {
		return err
	}
	g, err := s.sender(ctx, repo, sender)
	if fault.Is(err, fault.NotFound) {
		return s.say(ctx, repo, sha, how, fmt.Sprintf("%s asked for a Test build, but nothing is built in the name of a bot, or of somebody who never signed in to this Hub or has no access to this Repo. "+
			"Somebody who has starts it on the Hub's page.", orSomebody(sender.Login)))
	}
	if err != nil {
		return err
	}
	note := ""
	for _, w := range wishes {
		_, err := s.start(ctx, g, w.number, sha, w.runner, "", how.press)
		var f *fault.Error
		switch {
		case errors.As(err, &f) && (f.Code == fault.Refused || f.Code == fault.Conflict || f.Code == fault.NotFound):
			note = f.Message
		case err != nil && isRunnerAway(err):
			note = f.Message
		case err != nil:
			return err
		}
	}
	return s.say(ctx, repo, sha, look{bump: how.bump && note != "", press: how.press}, note)
}

// seek looks at the pull requests with a commit as head, if the Hub knows none: a press may overtake the push that brought the commit
// back. One that stays without is of a commit that nobody proposes any more.
func (s *Service) seek(ctx context.Context, repo github.RepoID, sha string) error {
	var known []Proposal
	err := s.db.Read(ctx, func(tx *store.Tx) (err error) {
		known, err = at(tx, repo, sha)
		return err
	})
	if err != nil || len(known) > 0 {
		return err
	}
	app, err := s.github.App()
	if err != nil {
		return away(err)
	}
	all, err := app.PullRequestsWith(ctx, repo, sha)
	if gone(err) {
		return nil
	}
	if err != nil {
		return away(err)
	}
	for _, p := range all {
		if p.Open && p.Head.SHA == sha {
			if err := s.Look(ctx, repo, p.Number); err != nil {
				return err
			}
		}
	}
	return nil
}

// Anybody who came by a signed delivery could send it again under an id of their own, which isn't signed. Presses are all that
// leads to something each time it is looked at, so what a press led to is kept by its body, and the same body leads there once. Which
// press it was can't be told otherwise: somebody may press one button twice, and did so honestly if the first press came to nothing.

// reshown is what a press of “Re-run” leads to, testOf what a press leads to for one pull request.
const reshown = "check run"

func testOf(number int) string { return fmt.Sprintf("Test build of #%d", number) }

// once notes in the caller's transaction that a press leads to something, and says false if it did before. "" is no press.
func once(tx *store.Tx, repo github.RepoID, press, what string) (bool, error) {
	if press == "" {
		return true, nil
	}
	n, err := tx.Exec(pressSQL, int64(repo), press, what, tx.Now())
	if err != nil {
		return false, fmt.Errorf("note what a press led to: %w", err)
	}
	return n == 1, nil
}

// did says that once noted it.
func did(tx *store.Tx, repo github.RepoID, press, what string) (bool, error) {
	var n int
	if err := tx.Row(pressedSQL, int64(repo), press, what).Scan(&n); err != nil {
		return false, fmt.Errorf("read what a press led to: %w", err)
	}
	return n > 0, nil
}

// isRunnerAway tells the fault of a Runner that can't take work from that of a GitHub that can't be reached, which is worth
// another try.
func isRunnerAway(err error) bool {
	var gh *github.Error
	return fault.Is(err, fault.Unavailable) && !errors.As(err, &gh)
}

// say puts a sentence on top of a commit's check run, in place of the one before; "" takes it away.
func (s *Service) say(ctx context.Context, repo github.RepoID, sha string, how look, note string) error {
	runners, err := s.fleet.Runners(ctx)
	if err != nil {
		return err
	}
	return s.db.Write(ctx, func(tx *store.Tx) error {
		r, err := access.ReadRepo(tx, repo)
		if err != nil {
			return err
		}
		return s.show(tx, access.System(r, "pull requests"), sha, showing{runners: runners, bump: how.bump, press: how.press, note: &note})
	})
}
