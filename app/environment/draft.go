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

// ConflictError is the fault of code conflict for somebody who had an older revision of the draft before them. Nothing of
// theirs was stored, and nothing is lost: Theirs is the draft as it is, with who saved it and when, to be shown beside their
// own. What they choose is saved on top of its revision.
type ConflictError struct {
	Theirs *Draft // nil: the draft was discarded
	fault  *fault.Error
}

func (e *ConflictError) Error() string { return e.fault.Error() }
func (e *ConflictError) Unwrap() error { return e.fault }

func conflict(theirs *Draft, format string, args ...any) *ConflictError {
	return &ConflictError{Theirs: theirs, fault: fault.New(fault.Conflict, format, args...)}
}

// Save stores spec as the Repo's web draft, making the Environment if it is the first. base is the revision the
// writer had read, 0 for none: a draft that moved on since is a *ConflictError and nothing is written.
//
// given are new values of Sensitive Variables, by name. Without a new one, a Sensitive Variable keeps the value that it has
// in the draft or else in the current version: see variable.Vault.Keep, whose faults these are.
func (s *Service) Save(ctx context.Context, g access.Grant, base int64, spec envspec.Spec, given variable.Given) (Draft, error) {
	spec, err := checked(spec)
	if err != nil {
		return Draft{}, err
	}
	return s.save(ctx, g, base, given, func(*store.Tx, Environment) (write, error) { return write{spec: spec, action: "draft.save"}, nil })
}

// Restore makes the Spec of a version the draft, in place of what the draft says. Its Variables have the values that they
// had in the version; one whose value was lost needs a new one.
func (s *Service) Restore(ctx context.Context, g access.Grant, base int64, number int) (Draft, error) {
	return s.save(ctx, g, base, nil, func(tx *store.Tx, env Environment) (write, error) {
		v, err := s.numbered(tx, env, number)
		if err != nil {
			return write{}, err
		}
		spec, err := checked(v.Spec)
		return write{spec: spec, before: v.Spec.Variables, action: "draft.restore", detail: map[string]any{"version": number}}, err
	})
}

// Discard gives up what the draft has beyond the current version: it says what that says again. Without a version the
// draft is gone, and the answer is nil.
func (s *Service) Discard(ctx context.Context, g access.Grant, base int64) (*Draft, error) {
	gone := false
	draft, err := s.save(ctx, g, base, nil, func(tx *store.Tx, env Environment) (write, error) {
		if env.Draft == nil {
			return write{}, fault.New(fault.Refused, "This Repo has no draft to discard.")
		}
		if gone = env.Current == nil; gone {
			return write{action: "draft.discard"}, nil
		}
		return write{spec: env.Current.Spec, before: env.Current.Spec.Variables, action: "draft.discard"}, nil
	})
	if err != nil || gone {
		return nil, err
	}
	return &draft, nil
}

// checked is spec as it is stored, if it is right.
func checked(spec envspec.Spec) (envspec.Spec, error) {
	spec = envspec.Normalize(spec)
	if p := envspec.Validate(spec); p.Failed() {
		return envspec.Spec{}, invalid(p)
	}
	return spec, nil
}

// write is what becomes of a draft. A zero Spec deletes it.
type write struct {
	spec   envspec.Spec
	before []envspec.Variable // whose values come before those of the draft and the current version
	after  []envspec.Variable // and after them
	action string
	number int // of the pull request whose draft it is; Web
	// fork: its author may not learn which Shared variables there are, nor keep one from being deleted, so Links are as the document
	// has them, right or not, until it is merged.
	fork   bool
	detail map[string]any
}

func (s *Service) save(ctx context.Context, g access.Grant, base int64, given variable.Given, choose func(*store.Tx, Environment) (write, error)) (Draft, error) {
	var draft Draft
	err := s.db.Write(ctx, func(tx *store.Tx) error {
		draft = Draft{}
		if _, err := tx.Exec(insertEnvironmentSQL, store.NewID(), int64(g.Repo().ID), tx.Now().UnixMilli(), g.Actor()); err != nil {
			return fmt.Errorf("make Environment: %w", err)
		}
		env, err := s.get(tx, g)
		if err != nil {
			return err
		}
		if err := atBase(env, base); err != nil {
			return err
		}
		w, err := choose(tx, env)
		if err != nil {
			return err
		}
		tx.Wake(TopicOf(g.Repo()))
		entry := audit.Entry{Who: g.Actor(), Repo: int64(g.Repo().ID), Action: w.action, Detail: map[string]any{"revision": base}}
		for k, v := range w.detail {
			entry.Detail[k] = v
		}
		if w.spec.Image == "" {
			entry.Subject = env.Draft.ID
			if err := s.deleteDraft(tx, env); err != nil {
				return err
			}
			return audit.Record(tx, entry)
		}
		if draft, err = s.writeDraft(tx, env, w, given, g.Actor()); err != nil {
			return err
		}
		if env.Draft != nil {
			if err := s.forget(tx, env.ID, replaced(env.Draft.Spec.Variables, draft.Spec.Variables)); err != nil {
				return err
			}
		}
		entry.Subject, entry.Detail["revision"] = draft.ID, draft.Revision
		if names := names(given); len(names) > 0 {
			entry.Detail["values"] = names // whose
		}
		return audit.Record(tx, entry)
	})
	return draft, err
}

func names(given variable.Given) (all []string) {
	for name := range given {
		all = append(all, name)
	}
	slices.Sort(all)
	return all
}

// atBase refuses whoever had another revision before them.
func atBase(env Environment, base int64) error {
	switch {
	case env.Draft == nil && base != 0:
		return conflict(nil, "The draft you edited is gone. Open the Environment again and redo your change.")
	case env.Draft != nil && base != env.Draft.Revision:
		return conflict(env.Draft, "%s saved this draft meanwhile: you edited revision %d, it is at %d now. Nothing of yours was saved over it; compare and save again.",
			env.Draft.UpdatedBy, base, env.Draft.Revision)
	}
	return nil
}

// anyRevision is for who names what they mean by a commit.
const anyRevision = -1

// draftAt is the draft at revision rev.
func draftAt(env Environment, rev int64) (Draft, error) {
	if env.Draft == nil {
		return Draft{}, fault.New(fault.Refused, "This Repo has no draft yet. Save one first.")
	}
	if rev != anyRevision && env.Draft.Revision != rev {
		return Draft{}, conflict(env.Draft, "%s saved this draft meanwhile: it is at revision %d, you asked for %d. Look at it and ask again.",
			env.Draft.UpdatedBy, env.Draft.Revision, rev)
	}
	return *env.Draft, nil
}

func (s *Service) writeDraft(tx *store.Tx, env Environment, w write, given variable.Given, who string) (Draft, error) {
	before := slices.Clone(w.before)
	if env.Draft != nil {
		before = append(before, env.Draft.Spec.Variables...)
	}
	if env.Current != nil {
		before = append(before, env.Current.Spec.Variables...)
	}
	before = append(before, w.after...)
	kept, err := s.keep(tx, env.ID, before, w, given, who)
	if err != nil {
		return Draft{}, err
	}
	encoded, err := encode(kept)
	if err != nil {
		return Draft{}, err
	}
	for i := range kept.Variables {
		kept.Variables[i].Value = w.spec.Variables[i].Value
	}
	key, now := string(envspec.TestKey(kept)), tx.Now().UnixMilli()
	id := ""
	if env.Draft == nil {
		id = store.NewID()
		source, ref := place(w.number)
		if _, err := tx.Exec(insertDraftSQL, id, env.ID, source, ref, env.discarded+1, encoded, key, now, who); err != nil {
			return Draft{}, fmt.Errorf("save draft: %w", err)
		}
	} else {
		id = env.Draft.ID
		n, err := tx.Exec(updateDraftSQL, id, env.Draft.Revision, encoded, key, now, who)
		if err != nil {
			return Draft{}, fmt.Errorf("save draft: %w", err)
		}
		if n != 1 {
			return Draft{}, conflict(env.Draft, "This draft was saved by somebody else meanwhile. Open it again.")
		}
	}
	held := kept
	if w.fork {
		held = withhold(held)
	}
	if err := s.vault.Hold(tx, env.ID, id, held); err != nil {
		return Draft{}, err
	}
	d, err := s.readDraft(tx, env.ID, w.number)
	if err != nil {
		return Draft{}, err
	}
	return *d, nil
}

// keep stores what a draft's Variables say, see variable.Vault.Keep.
func (s *Service) keep(tx *store.Tx, environment string, before []envspec.Variable, w write, given variable.Given, who string) (envspec.Spec, error) {
	if !w.fork {
		return s.vault.Keep(tx, environment, before, w.spec, given, who)
	}
	isLink := func(v envspec.Variable) bool { return v.Link != "" }
	links := slices.DeleteFunc(slices.Clone(w.spec.Variables), func(v envspec.Variable) bool { return !isLink(v) })
	own := w.spec
	own.Variables = slices.DeleteFunc(slices.Clone(w.spec.Variables), isLink)
	kept, err := s.vault.Keep(tx, environment, before, own, given, who)
	if err != nil {
		return envspec.Spec{}, err
	}
	kept.Variables = append(slices.Clone(kept.Variables), links...)
	return envspec.Normalize(kept), nil
}

func (s *Service) deleteDraft(tx *store.Tx, env Environment) error {
	if err := s.vault.Release(tx, env.Draft.ID); err != nil {
		return err
	}
	if _, err := tx.Exec(deleteDraftSQL, env.Draft.ID, env.Draft.Revision); err != nil {
		return fmt.Errorf("delete draft: %w", err)
	}
	if _, err := tx.Exec(discardedSQL, env.ID, env.Draft.Revision); err != nil {
		return fmt.Errorf("discard draft: %w", err)
	}
	return s.forget(tx, env.ID, env.Draft.Spec.Variables)
}

// replaced are the Variables of before whose values after doesn't have.
func replaced(before, after []envspec.Variable) []envspec.Variable {
	return slices.DeleteFunc(slices.Clone(before), func(b envspec.Variable) bool {
		return slices.ContainsFunc(after, func(a envspec.Variable) bool { return a.ValueID == b.ValueID })
	})
}

// Web names the web draft where a number of a version, or of a pull request, names another one.
const Web = 0

// Sides reads the Specs of versions, by their numbers, and of the draft, which Web names, in one snapshot: what a diff
// between any two of them is made of.
func (s *Service) Sides(ctx context.Context, g access.Grant, numbers ...int) ([]envspec.Spec, error) {
	var specs []envspec.Spec
	err := s.db.Read(ctx, func(tx *store.Tx) error {
		specs = nil
		env, err := s.get(tx, g)
		if err != nil {
			return err
		}
		for _, n := range numbers {
			if n == Web {
				if env.Draft == nil {
					return fault.New(fault.NotFound, "This Repo has no draft.")
				}
				specs = append(specs, env.Draft.Spec)
				continue
			}
			v, err := s.numbered(tx, env, n)
			if err != nil {
				return err
			}
			specs = append(specs, v.Spec)
		}
		return nil
	})
	return specs, err
}

// invalid turns the problems of a Spec into a fault that says them field by field.
func invalid(p envspec.Problems) error {
	f := fault.New(fault.Invalid, "%s", p.Error())
	f.Fields = map[string]string{}
	for _, problem := range p {
		if _, said := f.Fields[problem.Path]; !said && !problem.Warning {
			f.Fields[problem.Path] = problem.Message
		}
	}
	return f
}
