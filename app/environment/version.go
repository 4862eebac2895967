package environment

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/claude-hub/claude-hub/app/access"
	"github.com/claude-hub/claude-hub/app/audit"
	"github.com/claude-hub/claude-hub/app/fault"
	"github.com/claude-hub/claude-hub/envspec"
	"github.com/claude-hub/claude-hub/runner/wire"
	"github.com/claude-hub/claude-hub/store"
)

// messageLimit bounds what a person says of a version, in bytes.
const messageLimit = 2000

// Verdict says whether a draft can be applied, and what it rests on.
type Verdict struct {
	OK     bool
	Reason string // for a person, either way
	// What the version would stand on: the passing Test build, or the one the current version stands on.
	test        string
	buildKey    envspec.Key
	imageDigest string
}

// Check tells whether the Repo's web draft can be applied as it is.
func (s *Service) Check(ctx context.Context, g access.Grant) (Verdict, error) {
	var v Verdict
	err := s.db.Read(ctx, func(tx *store.Tx) error {
		env, err := s.get(tx, g)
		if err != nil {
			return err
		}
		v, err = s.decide(tx, env)
		return err
	})
	return v, err
}

// decide is the rule of Apply: nothing test-relevant changed since the current version, or a Test build of exactly
// this test key passed (ADR 0009, "Test build").
func (s *Service) decide(tx *store.Tx, env Environment) (Verdict, error) {
	if env.Draft == nil {
		return Verdict{Reason: "This Repo has no draft yet. Save one first."}, nil
	}
	switch err := s.Complete(tx, env.ID, env.Draft.Spec, "This draft can't be applied"); {
	case fault.Is(err, fault.Refused):
		return Verdict{Reason: err.Error()}, nil
	case err != nil:
		return Verdict{}, err
	}
	same := env.Current != nil && env.Current.TestKey == env.Draft.TestKey
	passed, err := scanTest(tx.Row(passedSQL, env.ID, string(env.Draft.TestKey)).Scan)
	switch {
	case errors.Is(err, store.ErrNotFound) && !same:
		reason, err := s.untested(tx, env)
		return Verdict{Reason: reason}, err
	case err != nil && !errors.Is(err, store.ErrNotFound):
		return Verdict{}, fmt.Errorf("look for a passed Test build: %w", err)
	case !same:
		return Verdict{OK: true, Reason: "A Test build of exactly this draft passed.", test: passed.ID, buildKey: passed.BuildKey, imageDigest: passed.ImageDigest}, nil
	}
	c := env.Current
	if err == nil && passed.ImageDigest != c.ImageDigest {
		return Verdict{OK: true, Reason: "A Test build of exactly this draft passed on a newer image behind the same reference.",
			test: passed.ID, buildKey: passed.BuildKey, imageDigest: passed.ImageDigest}, nil
	}
	if len(envspec.Explain(c.Spec, env.Draft.Spec)) == 0 {
		return Verdict{Reason: fmt.Sprintf("The draft is what version %d says already: there is nothing to apply.", c.Number)}, nil
	}
	return Verdict{OK: true, Reason: "Nothing that needs a Test build changed.", test: c.TestBuild, buildKey: c.BuildKey, imageDigest: c.ImageDigest}, nil
}

// untested says why a draft that no Test build passed for can't be applied, and what to do about it.
func (s *Service) untested(tx *store.Tx, env Environment) (string, error) {
	if env.Draft.Fork && env.Draft.withholds() {
		return "This draft comes from a fork, so its Test builds run without Sensitive values and Links, and don't count. " +
			"Once it is merged, it needs a passing Test build with them.", nil
	}
	const needs = "This draft needs a passing Test build of exactly what it says now"
	newest, err := scanTest(tx.Row(newestTestSQL, env.ID, string(env.Draft.TestKey)).Scan)
	if errors.Is(err, store.ErrNotFound) {
		return needs + ". Start one first.", nil
	}
	if err != nil {
		return "", fmt.Errorf("look for the newest Test build: %w", err)
	}
	switch newest.State {
	case Queued, Running:
		return fmt.Sprintf("%s, and one is %s (%s). Wait until it has passed.", needs, newest.State, newest.ID), nil
	case Cancelled:
		return fmt.Sprintf("%s, and the newest one was cancelled (%s). Start another.", needs, newest.ID), nil
	case Lost:
		return fmt.Sprintf("%s, and the newest one was lost with its Runner (%s). Start another.", needs, newest.ID), nil
	}
	where := ""
	if f := newest.Detail.Failure; f != nil && slices.Contains(phases, f.Phase) {
		where = " in the phase " + f.Phase
	}
	return fmt.Sprintf("%s, and the newest one failed%s (%s). Look at its log, then change the draft or start another.", needs, where, newest.ID), nil
}

// phases are those that a Test build can fail in. What else a Runner calls one stays out of sentences.
var phases = []string{wire.PhaseImage, wire.PhaseDocker, wire.PhaseBootstrap, wire.PhaseSnapshot, wire.PhaseClone, wire.PhaseBoot, wire.PhaseStart}

// Apply makes a version of revision rev of the web draft. Check and version are one transaction.
func (s *Service) Apply(ctx context.Context, g access.Grant, rev int64, message string) (Version, error) {
	if len(message) > messageLimit {
		return Version{}, fault.Field("message", "The message is longer than %d bytes.", messageLimit)
	}
	var version Version
	err := s.db.Write(ctx, func(tx *store.Tx) error {
		env, err := s.get(tx, g)
		if err != nil {
			return err
		}
		draft, err := draftAt(env, rev)
		if err != nil {
			return err
		}
		version, err = s.make(tx, g, env, draft, "web", message)
		return err
	})
	return version, err
}

// make makes a version of a draft, in the transaction that found that it can be one.
func (s *Service) make(tx *store.Tx, g access.Grant, env Environment, draft Draft, source, message string) (Version, error) {
	verdict, err := s.decide(tx, env)
	if err != nil {
		return Version{}, err
	}
	if !verdict.OK {
		return Version{}, fault.New(fault.Refused, "%s", verdict.Reason)
	}
	before := 0
	if env.Current != nil {
		before = env.Current.Number
	}
	spec, err := encode(draft.Spec)
	if err != nil {
		return Version{}, err
	}
	id := store.NewID()
	if _, err := tx.Exec(insertVersionSQL, id, env.ID, before+1, spec, string(draft.TestKey), string(verdict.buildKey), verdict.imageDigest,
		verdict.test, store.Text(message), source, tx.Now().UnixMilli(), g.Actor()); err != nil {
		if store.IsUnique(err) {
			return Version{}, fault.New(fault.Conflict, "Somebody else applied a version at the same moment. Look at it and apply again.")
		}
		return Version{}, fmt.Errorf("save version: %w", err)
	}
	n, err := tx.Exec(setCurrentSQL, env.ID, before, before+1)
	if err != nil {
		return Version{}, fmt.Errorf("make version %d current: %w", before+1, err)
	}
	if n != 1 {
		return Version{}, fault.New(fault.Conflict, "Somebody else applied a version at the same moment. Look at it and apply again.")
	}
	if err := s.vault.Hold(tx, env.ID, id, draft.Spec); err != nil {
		return Version{}, err
	}
	if env.Current != nil {
		if err := s.vault.Release(tx, env.Current.ID); err != nil {
			return Version{}, err
		}
	}
	version, err := scanVersion(tx.Row(versionByIDSQL, id).Scan)
	if err != nil {
		return Version{}, fmt.Errorf("read version: %w", err)
	}
	version.Spec = draft.Spec
	tx.Wake(TopicOf(g.Repo()))
	for _, f := range s.versionWatchers {
		if err := f(tx, g.Repo(), version); err != nil {
			return Version{}, fmt.Errorf("tell of version %d: %w", version.Number, err)
		}
	}
	return version, audit.Record(tx, audit.Entry{Who: g.Actor(), Repo: int64(g.Repo().ID), Action: "version.apply", Subject: id,
		Detail: map[string]any{"number": before + 1, "test_build": verdict.test, "source": source}})
}

// Versions lists the newest n.
func (s *Service) Versions(ctx context.Context, g access.Grant, n int) ([]Version, error) {
	var versions []Version
	err := s.db.Read(ctx, func(tx *store.Tx) error {
		env, err := s.get(tx, g)
		if err != nil {
			return err
		}
		if versions, err = store.All(tx, scanVersion, versionsSQL, env.ID, n); err != nil {
			return fmt.Errorf("list versions: %w", err)
		}
		specs := make([]*envspec.Spec, len(versions))
		for i := range versions {
			specs[i] = &versions[i].Spec
		}
		return s.vault.Fill(tx, env.ID, specs...)
	})
	return versions, err
}

// Version reads one by its number.
func (s *Service) Version(ctx context.Context, g access.Grant, number int) (Version, error) {
	var v Version
	err := s.db.Read(ctx, func(tx *store.Tx) error {
		env, err := s.get(tx, g)
		if err != nil {
			return err
		}
		v, err = s.numbered(tx, env, number)
		return err
	})
	return v, err
}

func (s *Service) numbered(tx *store.Tx, env Environment, number int) (Version, error) {
	v, err := scanVersion(tx.Row(versionSQL, env.ID, number).Scan)
	if errors.Is(err, store.ErrNotFound) {
		return Version{}, fault.New(fault.NotFound, "This Repo's Environment has no version %d.", number)
	}
	if err != nil {
		return Version{}, fmt.Errorf("read version %d: %w", number, err)
	}
	return v, s.vault.Fill(tx, env.ID, &v.Spec)
}

// Current reads the applied version in the caller's transaction: what a Session boots from next. The Environment's
// id comes with it. A Repo without one is refused (ADR 0009: a Repo needs an Environment before its first Session).
func (s *Service) Current(tx *store.Tx, g access.Grant) (Version, string, error) {
	env, err := s.get(tx, g)
	if err != nil {
		return Version{}, "", err
	}
	if env.Current == nil {
		return Version{}, "", fault.New(fault.Refused, "%s has no applied Environment yet. A Repo needs one before its first Session: test-build its draft and apply it.", g.Repo().Name)
	}
	return *env.Current, env.ID, nil
}

// ByID reads a version in the caller's transaction, with its Environment's id, for a Runner: its Spec holds no value.
func (s *Service) ByID(tx *store.Tx, id string) (Version, string, error) {
	v, err := scanVersion(tx.Row(versionByIDSQL, id).Scan)
	return v, v.environment, err
}

// Platform is the one that a version was tested on, and the only one it can be built on: the digest that pins its image
// is of that platform's manifest.
func (s *Service) Platform(tx *store.Tx, v Version) (string, error) {
	var runner string
	if err := tx.Row(testedOnSQL, v.TestBuild).Scan(&runner); err != nil {
		return "", fmt.Errorf("read the Test build of version %d: %w", v.Number, err)
	}
	return s.fleet.Platform(tx, runner)
}

func scanVersion(scan func(...any) error) (Version, error) {
	var v Version
	var spec string
	var applied int64
	err := scan(&v.ID, &v.environment, &v.Number, &spec, &v.TestKey, &v.BuildKey, &v.ImageDigest, &v.TestBuild, &v.Message, &v.Source, &applied, &v.AppliedBy)
	if err != nil {
		return Version{}, err
	}
	v.AppliedAt = time.UnixMilli(applied)
	return v, decode(spec, &v.Spec)
}
