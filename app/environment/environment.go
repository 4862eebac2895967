// Package environment is each Repo's one Environment (ADR 0009): drafts, their Test builds, and the versions that
// Apply makes of them.
package environment

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"time"

	"github.com/claude-hub/claude-hub/app/access"
	"github.com/claude-hub/claude-hub/app/fleet"
	"github.com/claude-hub/claude-hub/app/variable"
	"github.com/claude-hub/claude-hub/envspec"
	"github.com/claude-hub/claude-hub/runner/wire"
	"github.com/claude-hub/claude-hub/store"
)

// Service holds the rules of Environments. Its methods may be called concurrently.
type Service struct {
	db    *store.DB
	fleet *fleet.Fleet
	vault *variable.Vault
	o     Options

	watchers        []Watcher
	versionWatchers []VersionWatcher
}

// Options of a Service; zero values are the defaults.
type Options struct {
	// TestDeadline is how long a Test build may take from being asked for until its end. Default one hour.
	TestDeadline time.Duration
	// NoHostCredentials: the Hub isn't in dev mode, so no Runner clones with its host's own credentials, not even what was
	// one of dev.repos once.
	NoHostCredentials bool
}

// cancelGrace is how long a Runner has to stop a Test build before it is called cancelled without it: pressing
// Cancel again never prolongs it (facts/reliability.md P20).
const cancelGrace = 90 * time.Second

// New registers the Service as the Owner of Test builds.
func New(db *store.DB, f *fleet.Fleet, vault *variable.Vault, o Options) *Service {
	if o.TestDeadline == 0 {
		o.TestDeadline = time.Hour
	}
	s := &Service{db: db, fleet: f, vault: vault, o: o}
	f.Own(wire.KindTestBuild, s)
	return s
}

// Environment is a Repo's Environment as it stands. A Repo that has none yet has an empty ID, no Draft and no
// Current version.
type Environment struct {
	ID      string
	Draft   *Draft
	Current *Version

	discarded int64 // the revision of the last draft that was discarded
}

// Draft is a Spec that is being worked on, shared by everyone with access. The Spec has the values of its Plain Variables.
type Draft struct {
	ID        string
	Revision  int64
	Spec      envspec.Spec
	TestKey   envspec.Key
	UpdatedAt time.Time
	UpdatedBy string // login

	// Of the draft of a pull request: its number, the commit that it was read at, and whether that comes from a fork.
	PullRequest int
	Commit      string
	Fork        bool
}

// Version is an applied Spec. It never changes. The Spec has the values of its Plain Variables, unless it came from ByID.
type Version struct {
	ID          string
	Number      int
	Spec        envspec.Spec
	TestKey     envspec.Key
	BuildKey    envspec.Key
	ImageDigest string // what was tested: the image stays pinned to it
	TestBuild   string // id of the Test build that passed
	Message     string
	Source      string // "web", or "commit" and the commit that its file was read at
	AppliedAt   time.Time
	AppliedBy   string // login
	environment string
}

// TopicOf is woken at every change of the Repo's Environment, its Test builds, and the Shared variables that it links.
func TopicOf(r access.Repo) string { return variable.TopicOf(r.ID) }

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
	err := tx.Row(environmentSQL, int64(g.Repo().ID)).Scan(&env.ID, &current, &env.discarded)
	if errors.Is(err, store.ErrNotFound) {
		return Environment{}, nil
	}
	if err != nil {
		return Environment{}, fmt.Errorf("read Environment: %w", err)
	}
	if env.Draft, err = s.readDraft(tx, env.ID, Web); err != nil {
		return Environment{}, err
	}
	if current > 0 {
		v, err := scanVersion(tx.Row(versionSQL, env.ID, current).Scan)
		if err == nil {
			err = s.vault.Fill(tx, env.ID, &v.Spec)
		}
		if err != nil {
			return Environment{}, fmt.Errorf("read version %d: %w", current, err)
		}
		env.Current = &v
	}
	return env, nil
}

// readDraft reads the web draft, or that of a pull request.
func (s *Service) readDraft(tx *store.Tx, env string, number int) (*Draft, error) {
	d := Draft{PullRequest: number}
	var spec string
	var updated int64
	source, ref := place(number)
	err := tx.Row(draftSQL, env, source, ref).Scan(&d.ID, &d.Revision, &spec, &d.TestKey, &updated, &d.Commit, &d.Fork, &d.UpdatedBy)
	if errors.Is(err, store.ErrNotFound) {
		return nil, nil
	}
	if err == nil {
		err = decode(spec, &d.Spec)
	}
	if err == nil {
		err = s.vault.Fill(tx, env, &d.Spec)
	}
	if err != nil {
		return nil, fmt.Errorf("read draft: %w", err)
	}
	d.UpdatedAt = time.UnixMilli(updated)
	return &d, nil
}

// place is where a draft is stored: number is Web, or a pull request's.
func place(number int) (source, ref string) {
	if number == Web {
		return "web", ""
	}
	return "pull-request", strconv.Itoa(number)
}

// encode is a Spec as it is stored and sent to Runners: without a value.
func encode(s envspec.Spec) (string, error) {
	b, err := json.Marshal(envspec.Detach(s))
	if err != nil {
		return "", fmt.Errorf("encode Spec: %w", err)
	}
	return string(b), nil
}

func decode(spec string, into *envspec.Spec) error {
	if err := json.Unmarshal([]byte(spec), into); err != nil {
		return fmt.Errorf("decode stored Spec: %w", err)
	}
	return nil
}
