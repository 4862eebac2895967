package environment

import (
	"context"
	"fmt"
	"slices"

	"github.com/claude-hub/claude-hub/app/access"
	"github.com/claude-hub/claude-hub/app/audit"
	"github.com/claude-hub/claude-hub/app/fault"
	"github.com/claude-hub/claude-hub/app/variable"
	"github.com/claude-hub/claude-hub/envspec"
	"github.com/claude-hub/claude-hub/store"
)

// Proposal is what a pull request says of the Environment, read at one commit.
type Proposal struct {
	Number int
	Commit string
	Fork   bool
	Spec   envspec.Spec
}

// Propose makes p the draft of its pull request, in the caller's transaction, whose state decides that it is the newest. What
// the pull request said before is replaced. When that is something else to test, its Test builds that run are cancelled; those of
// the same test key go on, and count.
//
// A Sensitive Variable has the value that was entered for the pull request, or else that of the current version, or else that of
// the web draft. What is wrong with Variables (a Link to nothing) is a fault.Invalid with the fields "variables.NAME".
func (s *Service) Propose(tx *store.Tx, g access.Grant, p Proposal) (Draft, error) {
	spec, err := checked(p.Spec)
	if err != nil {
		return Draft{}, err
	}
	if _, err := tx.Exec(insertEnvironmentSQL, store.NewID(), int64(g.Repo().ID), tx.Now().UnixMilli(), g.Actor()); err != nil {
		return Draft{}, fmt.Errorf("make Environment: %w", err)
	}
	env, web, err := s.proposed(tx, g, p.Number)
	if err != nil {
		return Draft{}, err
	}
	w, err := s.writeFor(tx, env, web, spec, p.Number)
	if err != nil {
		return Draft{}, err
	}
	w.fork = p.Fork
	draft := env.Draft
	if draft == nil || draft.Fork != p.Fork || !sameSpec(draft.Spec, spec) || w.stale(draft.Spec) {
		written, err := s.writeProposed(tx, g, env, w, nil)
		if err != nil {
			return Draft{}, err
		}
		draft = &written
		if err := audit.Record(tx, audit.Entry{Who: g.Actor(), Repo: int64(g.Repo().ID), Action: "draft.propose", Subject: draft.ID,
			Detail: map[string]any{"revision": draft.Revision, "pull_request": p.Number, "commit": p.Commit}}); err != nil {
			return Draft{}, err
		}
	}
	if _, err := tx.Exec(readAtSQL, draft.ID, p.Commit, p.Fork); err != nil {
		return Draft{}, fmt.Errorf("save where the draft was read: %w", err)
	}
	draft.Commit, draft.Fork = p.Commit, p.Fork
	tx.Wake(TopicOf(g.Repo()))
	return *draft, s.cancelOutdated(tx, g, env, p.Number, draft.TestKey)
}

// Withdraw gives up the draft of a pull request, in the caller's transaction, and cancels what runs of it.
func (s *Service) Withdraw(tx *store.Tx, g access.Grant, number int) error {
	env, _, err := s.proposed(tx, g, number)
	if err != nil || env.ID == "" {
		return err
	}
	if err := s.cancelOutdated(tx, g, env, number, ""); err != nil || env.Draft == nil {
		return err
	}
	if err := s.vault.Release(tx, env.Draft.ID); err != nil {
		return err
	}
	if _, err := tx.Exec(deleteDraftSQL, env.Draft.ID, env.Draft.Revision); err != nil {
		return fmt.Errorf("delete draft: %w", err)
	}
	if err := s.forget(tx, env.ID, env.Draft.Spec.Variables); err != nil {
		return err
	}
	tx.Wake(TopicOf(g.Repo()))
	return audit.Record(tx, audit.Entry{Who: g.Actor(), Repo: int64(g.Repo().ID), Action: "draft.withdraw", Subject: env.Draft.ID,
		Detail: map[string]any{"pull_request": number}})
}

// Proposed reads the Environment with the draft of a pull request in the place of the web draft, in the caller's transaction,
// and beside it the web draft; both are nil where there is none.
func (s *Service) Proposed(tx *store.Tx, g access.Grant, number int) (env Environment, web *Draft, err error) {
	return s.proposed(tx, g, number)
}

func (s *Service) proposed(tx *store.Tx, g access.Grant, number int) (Environment, *Draft, error) {
	env, err := s.get(tx, g)
	if err != nil || env.ID == "" {
		return env, nil, err
	}
	web := env.Draft
	env.Draft, err = s.readDraft(tx, env.ID, number)
	env.discarded = 0 // of the web draft
	return env, web, err
}

// CheckProposed tells whether the draft of a pull request could be applied as it is: what Apply asks, merged or not.
func (s *Service) CheckProposed(tx *store.Tx, g access.Grant, number int) (Verdict, error) {
	env, _, err := s.proposed(tx, g, number)
	if err != nil {
		return Verdict{}, err
	}
	return s.decide(tx, env)
}

// StatesProposed says what may be shown of the values of the draft of a pull request, in the order of its Spec.
func (s *Service) StatesProposed(tx *store.Tx, g access.Grant, number int) ([]variable.State, error) {
	env, _, err := s.proposed(tx, g, number)
	if err != nil || env.Draft == nil {
		return nil, err
	}
	return s.vault.States(tx, env.ID, env.Draft.Spec)
}

// EnterProposed gives Sensitive Variables of the draft of a pull request their values, by name: it has none in its YAML, and
// is at revision rev.
func (s *Service) EnterProposed(ctx context.Context, g access.Grant, number int, rev int64, given variable.Given) (Draft, error) {
	var draft Draft
	err := s.db.Write(ctx, func(tx *store.Tx) error {
		env, web, err := s.proposed(tx, g, number)
		if err != nil {
			return err
		}
		old, err := proposedAt(env, number)
		if err != nil {
			return err
		}
		if old, err = draftAt(env, rev); err != nil {
			return err
		}
		w, err := s.writeFor(tx, env, web, unnamed(old.Spec), number)
		if err != nil {
			return err
		}
		w.fork = old.Fork
		if draft, err = s.writeProposed(tx, g, env, w, given); err != nil {
			return err
		}
		tx.Wake(TopicOf(g.Repo()))
		if err := audit.Record(tx, audit.Entry{Who: g.Actor(), Repo: int64(g.Repo().ID), Action: "draft.enter", Subject: draft.ID,
			Detail: map[string]any{"revision": draft.Revision, "pull_request": number, "values": names(given)}}); err != nil {
			return err
		}
		return s.cancelOutdated(tx, g, env, number, draft.TestKey)
	})
	return draft, err
}

// writeFor is spec as the draft of a pull request. A document names no values: what was entered for the pull request comes first,
// then what the current version has now, whatever the pull request found there when it was opened.
func (s *Service) writeFor(tx *store.Tx, env Environment, web *Draft, spec envspec.Spec, number int) (write, error) {
	w := write{spec: spec, number: number}
	if env.Draft != nil {
		for _, v := range env.Draft.Spec.Variables {
			if !v.Sensitive || v.ValueID == "" {
				continue
			}
			var versions int
			if err := tx.Row(appliedSQL, env.ID, "%"+v.ValueID+"%").Scan(&versions); err != nil {
				return write{}, fmt.Errorf("look for where a value comes from: %w", err)
			}
			if versions == 0 {
				w.before = append(w.before, v)
			}
		}
	}
	if env.Current != nil {
		w.before = append(w.before, env.Current.Spec.Variables...)
	}
	if web != nil {
		w.after = web.Spec.Variables
	}
	return w, nil
}

// stale says that a Sensitive Variable of a stored Spec has another value than it would get now.
func (w write) stale(stored envspec.Spec) bool {
	for _, v := range stored.Variables {
		if !v.Sensitive {
			continue
		}
		for _, b := range slices.Concat(w.before, w.after) {
			if b.Name == v.Name && b.Sensitive && b.ValueID != "" {
				if b.ValueID != v.ValueID {
					return true
				}
				break
			}
		}
	}
	return false
}

func (s *Service) writeProposed(tx *store.Tx, g access.Grant, env Environment, w write, given variable.Given) (Draft, error) {
	draft, err := s.writeDraft(tx, env, w, given, g.Actor())
	if err != nil || env.Draft == nil {
		return draft, err
	}
	return draft, s.forget(tx, env.ID, replaced(env.Draft.Spec.Variables, draft.Spec.Variables))
}

// TestProposed starts a Test build of the draft of a pull request, in the caller's transaction, if that is still what commit
// says. branch is the commit of the default branch, for its log. Of a fork it runs without Sensitive values and Links, and then
// doesn't count for Apply.
func (s *Service) TestProposed(tx *store.Tx, g access.Grant, number int, commit, branch, runner string) (TestBuild, error) {
	env, _, err := s.proposed(tx, g, number)
	if err != nil {
		return TestBuild{}, err
	}
	draft, err := proposedAt(env, number)
	if err != nil {
		return TestBuild{}, err
	}
	if draft.Commit != commit {
		return TestBuild{}, fault.New(fault.Conflict, "Pull request #%d has moved on from %.12s to %.12s. Look at what it says now and ask again.", number, commit, draft.Commit)
	}
	return s.start(tx, g, env, draft, start{runner: runner, branch: branch})
}

// ProposedTests lists the newest n Test builds of a pull request, in the caller's transaction.
func (s *Service) ProposedTests(tx *store.Tx, g access.Grant, number, n int) ([]TestBuild, error) {
	env, err := s.get(tx, g)
	if err != nil || env.ID == "" {
		return nil, err
	}
	tests, err := store.All(tx, scanTest, testsOfSQL, env.ID, number, n)
	if err != nil {
		return nil, fmt.Errorf("list Test builds of pull request #%d: %w", number, err)
	}
	return tests, nil
}

// ApplyProposed makes a version of the draft of a merged pull request, in the caller's transaction: that it was merged, as
// commit, is for the caller to know. The web draft follows where it said what the version before said; what it says else stays.
func (s *Service) ApplyProposed(tx *store.Tx, g access.Grant, number int, commit, message string) (Version, error) {
	env, web, err := s.proposed(tx, g, number)
	if err != nil {
		return Version{}, err
	}
	draft, err := proposedAt(env, number)
	if err != nil {
		return Version{}, err
	}
	if draft.Commit != commit {
		return Version{}, fault.New(fault.Conflict, "The draft of pull request #%d is no longer what %.12s says. Look at it again.", number, commit)
	}
	if len(message) > messageLimit {
		return Version{}, fault.Field("message", "The message is longer than %d bytes.", messageLimit)
	}
	version, err := s.make(tx, g, env, draft, "commit "+commit, message)
	if err != nil {
		return Version{}, err
	}
	if unchanged(env.Current, web) {
		if _, err := s.adopt(tx, g, env, web, draft); err != nil {
			return Version{}, err
		}
	}
	return version, nil
}

// Adopt makes what the draft of a pull request says the web draft, in the caller's transaction. base is the web draft's
// revision, 0 for none: a web draft that moved on since is a *ConflictError.
func (s *Service) Adopt(tx *store.Tx, g access.Grant, number int, base int64) (Draft, error) {
	env, web, err := s.proposed(tx, g, number)
	if err != nil {
		return Draft{}, err
	}
	draft, err := proposedAt(env, number)
	if err != nil {
		return Draft{}, err
	}
	if err := atBase(Environment{Draft: web}, base); err != nil {
		return Draft{}, err
	}
	return s.adopt(tx, g, env, web, draft)
}

// AdoptUnlessChanged is Adopt where the web draft has nothing of its own beyond the current version; adopted says whether.
func (s *Service) AdoptUnlessChanged(tx *store.Tx, g access.Grant, number int) (adopted bool, err error) {
	env, web, err := s.proposed(tx, g, number)
	if err != nil {
		return false, err
	}
	draft, err := proposedAt(env, number)
	if err != nil {
		return false, err
	}
	if web != nil && sameSpec(web.Spec, draft.Spec) {
		return true, nil
	}
	if !unchanged(env.Current, web) {
		return false, nil
	}
	_, err = s.adopt(tx, g, env, web, draft)
	return err == nil, err
}

func (s *Service) adopt(tx *store.Tx, g access.Grant, env Environment, web *Draft, draft Draft) (Draft, error) {
	into, err := s.get(tx, g)
	if err != nil {
		return Draft{}, err
	}
	into.Current, into.Draft = env.Current, web
	adopted, err := s.writeDraft(tx, into, write{spec: draft.Spec, before: draft.Spec.Variables}, nil, g.Actor())
	if err != nil {
		return Draft{}, err
	}
	if web != nil {
		if err := s.forget(tx, env.ID, replaced(web.Spec.Variables, adopted.Spec.Variables)); err != nil {
			return Draft{}, err
		}
	}
	tx.Wake(TopicOf(g.Repo()))
	return adopted, audit.Record(tx, audit.Entry{Who: g.Actor(), Repo: int64(g.Repo().ID), Action: "draft.adopt", Subject: adopted.ID,
		Detail: map[string]any{"revision": adopted.Revision, "pull_request": draft.PullRequest, "commit": draft.Commit}})
}

// OfferWeb makes spec, which was read in the Repo, the web draft, in the caller's transaction, where that has nothing of its own
// beyond the current version; offered says whether. Its faults are those of Propose.
func (s *Service) OfferWeb(tx *store.Tx, g access.Grant, spec envspec.Spec) (offered bool, err error) {
	if spec, err = checked(spec); err != nil {
		return false, err
	}
	if _, err := tx.Exec(insertEnvironmentSQL, store.NewID(), int64(g.Repo().ID), tx.Now().UnixMilli(), g.Actor()); err != nil {
		return false, fmt.Errorf("make Environment: %w", err)
	}
	env, err := s.get(tx, g)
	if err != nil {
		return false, err
	}
	switch web := env.Draft; {
	case web != nil && sameSpec(web.Spec, spec):
		return true, nil
	case !unchanged(env.Current, web):
		return false, nil
	}
	_, err = s.adopt(tx, g, env, env.Draft, Draft{Spec: spec})
	return err == nil, err
}

// Read is Get in the caller's transaction.
func (s *Service) Read(tx *store.Tx, g access.Grant) (Environment, error) { return s.get(tx, g) }

// cancelOutdated cancels the Test builds that run for a pull request, but for those of key.
func (s *Service) cancelOutdated(tx *store.Tx, g access.Grant, env Environment, number int, key envspec.Key) error {
	tests, err := store.All(tx, scanTest, outdatedSQL, env.ID, number, string(key))
	if err != nil {
		return fmt.Errorf("look for outdated Test builds: %w", err)
	}
	for _, t := range tests {
		if err := s.cancel(tx, g, t); err != nil {
			return err
		}
	}
	return nil
}

func proposedAt(env Environment, number int) (Draft, error) {
	if env.Draft == nil {
		return Draft{}, fault.New(fault.Refused, "Pull request #%d proposes no Environment that could be used.", number)
	}
	return *env.Draft, nil
}

// sameSpec says that two Specs are one for everybody: their Variables have the same names, kinds and values, those being
// looked up anew for a Spec from a document, which has none.
func sameSpec(a, b envspec.Spec) bool { return len(envspec.Explain(unnamed(a), unnamed(b))) == 0 }

// unnamed leaves out which Sensitive values it has: a document doesn't say.
func unnamed(s envspec.Spec) envspec.Spec {
	s.Variables = slices.Clone(s.Variables)
	for i := range s.Variables {
		s.Variables[i].ValueID = ""
	}
	return s
}

// unchanged says that a web draft has nothing beyond the current version.
func unchanged(current *Version, web *Draft) bool {
	if web == nil {
		return true
	}
	return current != nil && len(envspec.Explain(current.Spec, web.Spec)) == 0
}

// withholds says that somebody who may not see its values could get at them by what its scripts do.
func (d Draft) withholds() bool {
	return slices.ContainsFunc(d.Spec.Variables, func(v envspec.Variable) bool { return !v.Plain() })
}

// withhold leaves out what a Test build of a fork doesn't get: Sensitive values, and Links, which are values of others too. What
// is Plain in the document is its author's own.
func withhold(spec envspec.Spec) envspec.Spec {
	spec.Variables = slices.DeleteFunc(slices.Clone(spec.Variables), func(v envspec.Variable) bool { return !v.Plain() })
	return spec
}

// given is what the Runner of a Test build gets.
func (t TestBuild) given() envspec.Spec {
	if t.Withheld {
		return withhold(t.Spec)
	}
	return t.Spec
}
