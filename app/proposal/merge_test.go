package proposal_test

import (
	"strings"
	"testing"
	"time"

	"github.com/claude-hub/claude-hub/app/github"
	"github.com/claude-hub/claude-hub/app/github/githubtest"
	"github.com/claude-hub/claude-hub/app/proposal"
	"github.com/claude-hub/claude-hub/app/variable"
)

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

func TestAFileThatIsPushedWithoutAPullRequestIsADraft(t *testing.T) {
	each(t, func(t *testing.T, r *rig) {
		sha := r.repo.Push(r.ana, "main", "env", githubtest.Files{path: githubtest.Text("image: node:22\n")})
		must(t, r.Pushed(t.Context(), r.id(), "main", sha, account(r.ana)))
		r.says(sha, "action_required", "Not applied yet", "without a pull request a push applies nothing")
		if e := r.env(); e.Current != nil || e.Draft == nil || e.Draft.Spec.Image != "node:22" {
			t.Fatalf("%+v", e)
		}
		if says, err := r.Drift(t.Context(), r.grant); err != nil || !strings.Contains(says, "is not applied yet") {
			t.Errorf("%q, %v", says, err)
		}
		r.hub.Applied(r.grant, r.runner, r.env().Draft.Spec)
		if says, err := r.Drift(t.Context(), r.grant); err != nil || says != "" {
			t.Errorf("%q, %v", says, err)
		}
		must(t, r.Rerun(t.Context(), r.id(), github.CheckEvent{SHA: sha, ExternalID: r.check(sha).ExternalID}, account(r.ana)))
		r.says(sha, "success", "Nothing to apply")
		must(t, r.Pushed(t.Context(), r.id(), "side", sha, account(r.ana)))
	})
}

func TestWhatIsMendedOnTheHubAfterTheMergeIsAppliedByHand(t *testing.T) {
	each(t, func(t *testing.T, r *rig) {
		p := r.propose("env", "image: node:22\nvariables:\n  A: {link: LATER}\n")
		r.says(p.SHA(), "failure", "Invalid", "LATER")
		sha := p.Merge(r.ana, "merge")
		r.look(p)
		r.says(sha, "failure", "Invalid, not applied")
		_, err := r.hub.Vault.CreateShared(t.Context(), r.grant.Who(), variable.NewShared{Name: "LATER", Value: []byte("x")})
		must(t, err)
		must(t, r.Again(t.Context(), r.grant, p.Number))
		r.says(sha, "action_required", "Not applied yet", "needs a passing Test build")
		if d := r.env().Draft; d == nil || d.Spec.Image != "node:22" || r.env().Current != nil {
			t.Errorf("%+v", d)
		}
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

func TestALateMergeUndoesNothingThatWasAppliedSince(t *testing.T) {
	each(t, func(t *testing.T, r *rig) {
		p := r.propose("env", "image: node:22\n")
		r.test(p)
		tested := r.get(p).Draft.Spec
		sha := p.Merge(r.ana, "merge")
		later := tested
		later.Image = "node:24"
		r.hub.DB.SetClock(func() time.Time { return time.Now().Add(2 * time.Second) })
		r.hub.Applied(r.grant, r.runner, later)
		r.look(p)
		r.says(sha, "action_required", "Not applied yet", "Version 1 was applied after this was merged")
		if c := r.env().Current; c.Number != 1 || c.Spec.Image != "node:24" {
			t.Errorf("%+v", c)
		}
	})
}

func TestAMergeThatTheHubSeesMuchLaterIsNotActedUpon(t *testing.T) {
	r := one(t, proposal.Options{})
	p := r.propose("env", "image: node:22\n")
	r.test(p)
	sha := p.Merge(r.ana, "merge")
	at := r.hub.DB.Now().Add(4 * 24 * time.Hour)
	r.hub.DB.SetClock(func() time.Time { return at })
	r.look(p)
	r.says(sha, "action_required", "Not applied yet", "too long ago")
	if r.env().Current != nil {
		t.Error("it was applied")
	}
}
