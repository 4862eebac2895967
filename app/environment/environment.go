// Package environment is each Repo's one Environment (ADR 0009): drafts, their Test builds, and the versions that
// Apply makes of them.
package environment

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/claude-hub/claude-hub/app/access"
	"github.com/claude-hub/claude-hub/app/audit"
	"github.com/claude-hub/claude-hub/app/fault"
	"github.com/claude-hub/claude-hub/app/fleet"
	"github.com/claude-hub/claude-hub/envspec"
	"github.com/claude-hub/claude-hub/runner/wire"
	"github.com/claude-hub/claude-hub/store"
)

// Service holds the rules of Environments. Its methods may be called concurrently.
type Service struct {
	db    *store.DB
	fleet *fleet.Fleet
	o     Options
}

// Options of a Service; zero values are the defaults.
type Options struct {
	// TestDeadline is how long a Test build may take from being asked for until its end. Default one hour.
	TestDeadline time.Duration
}

// cancelGrace is how long a Runner has to stop a Test build before it is called cancelled without it: pressing
// Cancel again never prolongs it (facts/reliability.md P20).
const cancelGrace = 90 * time.Second

// New registers the Service as the Owner of Test builds.
func New(db *store.DB, f *fleet.Fleet, o Options) *Service {
	if o.TestDeadline == 0 {
		o.TestDeadline = time.Hour
	}
	s := &Service{db: db, fleet: f, o: o}
	f.Own(wire.KindTestBuild, s)
	return s
}

// Environment is a Repo's Environment as it stands. A Repo that has none yet has an empty ID, no Draft and no
// Current version.
type Environment struct {
	ID      string
	Draft   *Draft
	Current *Version
}

// Draft is a Spec that is being worked on, shared by everyone with access.
type Draft struct {
	ID        string
	Revision  int64
	Spec      envspec.Spec
	TestKey   envspec.Key
	UpdatedAt time.Time
	UpdatedBy string // login
}

// Version is an applied Spec. It never changes.
type Version struct {
	ID          string
	Number      int
	Spec        envspec.Spec
	TestKey     envspec.Key
	BuildKey    envspec.Key
	ImageDigest string // what was tested: the image stays pinned to it
	TestBuild   string // id of the Test build that passed
	Message     string
	Source      string // "web"
	AppliedAt   time.Time
	AppliedBy   string // login
	environment string
}

// TopicOf is woken at every change of the Repo's Environment and its Test builds.
func TopicOf(r access.Repo) string { return "environment:" + r.ID.String() }

// Get reads the Repo's Environment.
func (s *Service) Get(ctx context.Context, g access.Grant) (Environment, error) {
	var env Environment
	err := s.db.Read(ctx, func(tx *store.Tx) (err error) {
		env, err = s.get(tx, g)
		return err
	})
	return env, err
}

func (s *Service) get(tx *store.Tx, g access.Grant) (Environment, error) {
	var env Environment
	var current int
	err := tx.Row(environmentSQL, int64(g.Repo().ID)).Scan(&env.ID, &current)
	if errors.Is(err, store.ErrNotFound) {
		return Environment{}, nil
	}
	if err != nil {
		return Environment{}, fmt.Errorf("read Environment: %w", err)
	}
	if env.Draft, err = readDraft(tx, env.ID); err != nil {
		return Environment{}, err
	}
	if current > 0 {
		v, err := scanVersion(tx.Row(versionSQL, env.ID, current).Scan)
		if err != nil {
			return Environment{}, fmt.Errorf("read version %d: %w", current, err)
		}
		env.Current = &v
	}
	return env, nil
}

// Save stores spec as the Repo's web draft, making the Environment if it is the first. base is the revision the
// writer had read, 0 for none: a draft that moved on since is a Conflict and nothing is written.
func (s *Service) Save(ctx context.Context, g access.Grant, base int64, spec envspec.Spec) (Draft, error) {
	spec = envspec.Normalize(spec)
	if p := envspec.Validate(spec); p.Failed() {
		return Draft{}, invalid(p)
	}
	encoded, err := json.Marshal(spec)
	if err != nil {
		return Draft{}, fmt.Errorf("encode draft: %w", err)
	}
	var draft Draft
	err = s.db.Write(ctx, func(tx *store.Tx) error {
		now := tx.Now().UnixMilli()
		if _, err := tx.Exec(insertEnvironmentSQL, store.NewID(), int64(g.Repo().ID), now, g.Actor()); err != nil {
			return fmt.Errorf("make Environment: %w", err)
		}
		env, err := s.get(tx, g)
		if err != nil {
			return err
		}
		if err := writeDraft(tx, env, base, string(encoded), envspec.TestKey(spec), g.Actor()); err != nil {
			return err
		}
		d, err := readDraft(tx, env.ID)
		if err != nil {
			return err
		}
		draft = *d
		tx.Wake(TopicOf(g.Repo()))
		return audit.Record(tx, audit.Entry{Who: g.Actor(), Repo: int64(g.Repo().ID), Action: "draft.save", Subject: draft.ID, Detail: map[string]any{"revision": draft.Revision}})
	})
	return draft, err
}

func writeDraft(tx *store.Tx, env Environment, base int64, spec string, key envspec.Key, who string) error {
	now := tx.Now().UnixMilli()
	if env.Draft == nil {
		if base != 0 {
			return fault.New(fault.Conflict, "The draft you edited is gone. Open the Environment again and redo your change.")
		}
		if _, err := tx.Exec(insertDraftSQL, store.NewID(), env.ID, spec, string(key), now, who); err != nil {
			return fmt.Errorf("save draft: %w", err)
		}
		return nil
	}
	if base != env.Draft.Revision {
		return fault.New(fault.Conflict, "%s saved this draft meanwhile: you edited revision %d, it is at %d now. Nothing of yours was saved over it; compare and save again.",
			env.Draft.UpdatedBy, base, env.Draft.Revision)
	}
	n, err := tx.Exec(updateDraftSQL, env.Draft.ID, base, spec, string(key), now, who)
	if err != nil {
		return fmt.Errorf("save draft: %w", err)
	}
	if n != 1 {
		return fault.New(fault.Conflict, "This draft was saved by somebody else meanwhile. Open it again.")
	}
	return nil
}

func readDraft(tx *store.Tx, env string) (*Draft, error) {
	var d Draft
	var spec string
	var updated int64
	err := tx.Row(draftSQL, env).Scan(&d.ID, &d.Revision, &spec, &d.TestKey, &updated, &d.UpdatedBy)
	if errors.Is(err, store.ErrNotFound) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("read draft: %w", err)
	}
	d.UpdatedAt = time.UnixMilli(updated)
	return &d, decode(spec, &d.Spec)
}

func decode(spec string, into *envspec.Spec) error {
	if err := json.Unmarshal([]byte(spec), into); err != nil {
		return fmt.Errorf("decode stored Spec: %w", err)
	}
	return nil
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
