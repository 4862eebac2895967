// Package webhook takes what GitHub sends: a delivery is verified, stored and answered, and worked off afterwards, by any
// Hub, in any order, as often as it takes (facts/github.md §4, facts/reliability.md §5). Nothing on the way to the answer
// asks GitHub or anybody else.
//
// What each event leads to stands in a file of its own. An event says what to look at again; it is never itself the state.
package webhook

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/klauspost/compress/zstd"
	"github.com/rs/zerolog"

	"github.com/claude-hub/claude-hub/app/github"
	"github.com/claude-hub/claude-hub/store"
)

// Access is told whose or which cached access to drop, so that the next check asks GitHub.
type Access interface {
	ForgetPerson(ctx context.Context, githubID int64) error
	ForgetRepo(ctx context.Context, repo github.RepoID) error
	ForgetInstallation(ctx context.Context, installation int64) error
	ForgetAccount(ctx context.Context, accountID int64) error
	// Installed are the Repos that were last seen in an installation.
	Installed(ctx context.Context, installation int64) ([]github.RepoID, error)
	// InstallationHas are the Repos that GitHub said, when it was asked, an installation has.
	InstallationHas(ctx context.Context, installation int64, repos []github.Repository, asked time.Time) error
	// Revoked: the person took the App's authorization back.
	Revoked(ctx context.Context, githubID int64) error
	// RepoIs is what a Repo is called and where it is now, as read from GitHub for it.
	RepoIs(ctx context.Context, r github.Repository) error
}

// Setup knows the App's secrets and keeps its installations.
type Setup interface {
	// WebhookSecrets are what deliveries may be signed with now. Asked for each delivery: it answers from memory.
	WebhookSecrets(ctx context.Context) ([]github.Secret, error)
	// Heard is told of each signed delivery. It costs next to nothing most of the time.
	Heard(ctx context.Context, event string) error
	// Installation reads again what GitHub says of it.
	Installation(ctx context.Context, ev github.Event) error
}

// Proposals are pull requests that propose an Environment. Each method reads again what it needs.
type Proposals interface {
	Look(ctx context.Context, repo github.RepoID, number int) error
	Pushed(ctx context.Context, repo github.RepoID, branch, after string, sender github.Account) error
	Pressed(ctx context.Context, repo github.RepoID, ev github.CheckEvent, sender github.Account) error
	Rerun(ctx context.Context, repo github.RepoID, ev github.CheckEvent, sender github.Account) error
	RerunAll(ctx context.Context, repo github.RepoID, ev github.CheckEvent, sender github.Account) error
	Queued(ctx context.Context, repo github.RepoID, sha string) error
	// LookAll has all open pull requests looked at of Repos that the App was installed on.
	LookAll(ctx context.Context, repos []github.RepoID) error
}

// Builds are Test builds that run.
type Builds interface {
	// CancelAll cancels those of a Repo. reason is a sentence for their logs' readers.
	CancelAll(ctx context.Context, repo github.RepoID, reason string) error
}

// Outcome is what became of a delivery, for metrics.
type Outcome string

// The outcomes. Each delivery that arrives is one of the first four, each piece of work one of the last three.
const (
	Received  Outcome = "received"
	Duplicate Outcome = "duplicate" // known already
	Ignored   Outcome = "ignored"   // nothing follows from it, so it isn't stored
	Refused   Outcome = "refused"   // unsigned, malformed, too large, or the database was away
	Worked    Outcome = "worked"
	Failed    Outcome = "failed" // tried again later
	SetAside  Outcome = "set-aside"
)

// Options of a Service. Zero values mean the defaults.
type Options struct {
	// GitHub is the App: what it caches is dropped, and missed deliveries are asked of it.
	GitHub    *github.Holder
	Access    Access
	Setup     Setup
	Proposals Proposals
	Builds    Builds
	// Observe is told what became of each delivery; nil: nobody asks. It must be quick.
	Observe func(Outcome)
	Log     zerolog.Logger

	Workers int           // deliveries worked on at once; 8
	Lease   time.Duration // a Hub that is silent for so long has lost what it was working on; 30 s
	Limit   time.Duration // for the work of one delivery; 2 min
	Sweep   time.Duration // how often missed deliveries are looked for; 5 min
}

// Service takes and works off deliveries. Several Hubs may run on one database.
type Service struct {
	db     *store.DB
	o      Options
	log    zerolog.Logger
	table  table
	intake intake
	zip    *zstd.Encoder
	unzip  *zstd.Decoder

	stop context.CancelFunc
	done sync.WaitGroup
}

// New wires what each event leads to.
func New(db *store.DB, o Options) (*Service, error) {
	if o.GitHub == nil || o.Access == nil || o.Setup == nil || o.Proposals == nil || o.Builds == nil {
		return nil, errors.New("webhooks need all that their events lead to")
	}
	if o.Observe == nil {
		o.Observe = func(Outcome) {}
	}
	if o.Workers <= 0 {
		o.Workers = 8
	}
	if o.Lease <= 0 {
		o.Lease = 30 * time.Second
	}
	if o.Limit <= 0 {
		o.Limit = 2 * time.Minute
	}
	if o.Sweep <= 0 {
		o.Sweep = 5 * time.Minute
	}
	s := &Service{db: db, o: o, log: o.Log.With().Str("part", "webhook").Logger()}
	s.intake.init(s)
	var err error
	if s.table, err = newTable(); err != nil {
		return nil, err
	}
	if s.zip, err = zstd.NewWriter(nil, zstd.WithEncoderLevel(zstd.SpeedFastest), zstd.WithEncoderConcurrency(2), zstd.WithLowerEncoderMem(true)); err != nil {
		return nil, fmt.Errorf("make the compressor of deliveries: %w", err)
	}
	// A body that unpacks to more than GitHub sends wasn't stored by us.
	if s.unzip, err = zstd.NewReader(nil, zstd.WithDecoderConcurrency(2), zstd.WithDecoderLowmem(true), zstd.WithDecoderMaxMemory(2*github.MaxPayload)); err != nil {
		return nil, fmt.Errorf("make the decompressor of deliveries: %w", err)
	}
	return s, nil
}

// Start begins to work off deliveries and to look for missed ones, until Stop or until ctx ends. It is an error to call it twice.
func (s *Service) Start(ctx context.Context) error {
	if s.stop != nil {
		return errors.New("webhooks are worked off already")
	}
	ctx, s.stop = context.WithCancel(ctx)
	s.done.Go(func() { s.work(ctx) })
	s.done.Go(func() { s.sweep(ctx) })
	return nil
}

// Stop ends what Start began and returns when it has ended; what was being worked on is left for others at once. Deliveries
// are still taken afterwards, as long as the HTTP server runs.
func (s *Service) Stop() {
	if s.stop != nil {
		s.stop()
	}
	s.done.Wait()
}

// topic is woken when a delivery waits that did not before.
const topic = "deliveries"
