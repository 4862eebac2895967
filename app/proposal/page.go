package proposal

import (
	"context"
	"fmt"

	"github.com/claude-hub/claude-hub/app/access"
	"github.com/claude-hub/claude-hub/app/environment"
	"github.com/claude-hub/claude-hub/app/fault"
	"github.com/claude-hub/claude-hub/app/variable"
	"github.com/claude-hub/claude-hub/envspec"
	"github.com/claude-hub/claude-hub/store"
)

// listMost bounds List.
const listMost = 200

// List are the pull requests that propose something that is not applied, and those that were merged and need somebody; newest
// first, 200 at most.
func (s *Service) List(ctx context.Context, g access.Grant) ([]Proposal, error) {
	var all []Proposal
	err := s.db.Read(ctx, func(tx *store.Tx) (err error) {
		if all, err = store.All(tx, scan, draftsSQL, int64(g.Repo().ID), listMost); err != nil {
			return fmt.Errorf("list the pull requests: %w", err)
		}
		return nil
	})
	return all, err
}

// Detail is all there is to know of a pull request.
type Detail struct {
	Proposal
	Draft   *environment.Draft   // nil: it proposes nothing that could be used
	Web     *environment.Draft   // the draft of the Hub's pages
	Current *environment.Version // what is applied
	Changes []envspec.Change     // from that to the draft
	States  []variable.State     // of the draft's Variables, in their order
	Missing []string             // those without a value
	Verdict environment.Verdict  // of the draft
	Tests   []environment.TestBuild
	// Heading and Says are what the check run says of it: its title and a sentence.
	Heading, Says string
	Drift         []string
	// Withheld: a Test build of it runs without Sensitive values and Links, and doesn't count.
	Withheld bool
}

// Tested is the newest Test build of exactly the draft, or nil.
func (d Detail) Tested() *environment.TestBuild {
	return part{env: environment.Environment{Draft: d.Draft}, tests: d.Tests}.tested()
}

// Appliable says that it was merged and is to be applied by hand.
func (d Detail) Appliable() bool { return d.State == Merged && d.Outcome == Needs && d.Draft != nil }

// Get reads one; a fault of code not-found if the Hub knows no such pull request.
func (s *Service) Get(ctx context.Context, g access.Grant, number int) (Detail, error) {
	var d Detail
	err := s.db.Read(ctx, func(tx *store.Tx) error {
		p, err := known(tx, g, number)
		if err != nil {
			return err
		}
		one, err := s.part(tx, g, p, nil)
		if err != nil {
			return err
		}
		d = Detail{
			Proposal: p, Draft: one.env.Draft, Web: one.web, Current: one.env.Current, States: one.states, Missing: one.missing(),
			Verdict: one.verdict, Tests: one.tests, Withheld: one.secret(),
		}
		if p.State == Closed || p.File == None && p.Outcome == "" {
			d.Heading, d.Says = "Proposes nothing", "This pull request proposes no Environment, or was closed."
			return nil
		}
		o := one.judge()
		d.Heading, d.Says = o.title, o.sentence
		if d.Draft != nil {
			d.Changes, d.Drift = envspec.Explain(one.before(), d.Draft.Spec), one.drift(true)
		}
		return nil
	})
	return d, err
}

func known(tx *store.Tx, g access.Grant, number int) (Proposal, error) {
	p, found, err := read(tx, g.Repo().ID, number)
	if err == nil && !found {
		err = fault.New(fault.NotFound, "This Repo has no pull request #%d that the Hub has seen.", number)
	}
	return p, err
}

// Drift says in a sentence what the file on the default branch, as it was last seen, says otherwise than what is applied; "" if
// nothing, or if there is no file.
func (s *Service) Drift(ctx context.Context, g access.Grant) (string, error) {
	says := ""
	err := s.db.Read(ctx, func(tx *store.Tx) error {
		b, err := readBranch(tx, g.Repo().ID)
		if err != nil || b.file == None || b.file == "" {
			return err
		}
		env, err := s.env.Read(tx, g)
		if err != nil {
			return err
		}
		what := "The file " + Path + " on " + b.branch
		switch c := env.Current; {
		case b.file == Invalid:
			says = what + " is invalid, so it is not what is applied."
		case c == nil:
			says = what + " is not applied yet."
		case digest(c.Spec) != b.digest:
			says = fmt.Sprintf("%s is not what version %d says, which is applied from %s.", what, c.Number, sourceWords(c.Source))
		}
		return nil
	})
	return says, err
}

// Test starts a Test build of what the pull request says at exactly commit, on a Runner by id or name.
func (s *Service) Test(ctx context.Context, g access.Grant, number int, commit, runner string) (environment.TestBuild, error) {
	if runner == "" {
		return environment.TestBuild{}, fault.Field("runner", "Choose the Runner that the Test build should run on.")
	}
	return s.start(ctx, g, number, commit, runner, "", "")
}

// Enter gives Sensitive Variables of the draft at revision rev their values, by name.
func (s *Service) Enter(ctx context.Context, g access.Grant, number int, rev int64, given variable.Given) error {
	if _, err := s.env.EnterProposed(ctx, g, number, rev, given); err != nil {
		return err
	}
	return s.reshowOf(ctx, g, number)
}

// Again looks at the pull request again, and shows another check run of it.
func (s *Service) Again(ctx context.Context, g access.Grant, number int) error {
	if err := s.db.Read(ctx, func(tx *store.Tx) error { _, err := known(tx, g, number); return err }); err != nil {
		return err
	}
	return s.look(ctx, g.Repo().ID, number, look{afresh: true, bump: true})
}

// Apply makes a version of what was merged as commit, in the name of who has g. Of a pull request that isn't merged it is refused.
func (s *Service) Apply(ctx context.Context, g access.Grant, number int, commit, message string) (environment.Version, error) {
	runners, err := s.fleet.Runners(ctx)
	if err != nil {
		return environment.Version{}, err
	}
	var v environment.Version
	err = s.db.Write(ctx, func(tx *store.Tx) error {
		p, err := known(tx, g, number)
		switch {
		case err != nil:
			return err
		case p.State != Merged:
			return fault.New(fault.Refused, "Pull request #%d is not merged. Merge it to the default branch first: what is applied is what was merged.", number)
		case p.Outcome != Needs || p.MergedSHA != commit:
			return fault.New(fault.Refused, "There is nothing to apply of pull request #%d any more. Look at it again.", number)
		}
		if v, err = s.env.ApplyProposed(tx, g, number, commit, message); err != nil {
			return err
		}
		p.Outcome, p.Detail = Applied, ""
		if err := s.env.Withdraw(tx, g, number); err != nil {
			return err
		}
		if err := write(tx, g.Repo().ID, p); err != nil {
			return err
		}
		return s.show(tx, g, commit, showing{runners: runners})
	})
	return v, err
}

// Adopt makes what the pull request proposes the draft of the Hub's pages, which is at revision base (0: there is none): a later
// one is an *environment.ConflictError. Of a fork it is refused until the merge: on those pages it would be tested with secrets.
func (s *Service) Adopt(ctx context.Context, g access.Grant, number int, base int64) (environment.Draft, error) {
	var d environment.Draft
	err := s.db.Write(ctx, func(tx *store.Tx) error {
		p, err := known(tx, g, number)
		if err != nil {
			return err
		}
		if p.Fork && p.State == Open {
			return fault.New(fault.Refused, "Pull request #%d comes from a fork. Its Environment becomes a draft of these pages only once it is merged, since a Test build would get Sensitive values here.", number)
		}
		d, err = s.env.Adopt(tx, g, number, base)
		return err
	})
	return d, err
}

func (s *Service) reshowOf(ctx context.Context, g access.Grant, number int) error {
	var p Proposal
	if err := s.db.Read(ctx, func(tx *store.Tx) (err error) { p, err = known(tx, g, number); return err }); err != nil {
		return err
	}
	return s.reshow(ctx, g.Repo().ID, p.commit(), look{})
}
