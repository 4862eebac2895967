// Package fleet is Runners and what they hold: registration, assignments, leases, fences, logs and channels
// (design.md §5, facts/reliability.md §3). It knows no Environment and no Session: those register as Owners of a Kind.
//
// Scheduling is level-triggered. Assign and Change write what should be; a Runner's Sync reads it. A lost answer is
// healed by the next call, and every method a Runner calls may be repeated.
package fleet

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"runtime/debug"
	"sync"
	"time"

	"github.com/rs/zerolog"

	"github.com/claude-hub/claude-hub/runner/wire"
	"github.com/claude-hub/claude-hub/store"
)

// Kind names a sort of assignment. Its Owner gives it a meaning.
type Kind string

// Want is what the Hub wants of an assignment.
type Want string

// The wants, as the protocol names them. Remove is final.
const (
	Run    Want = wire.WantRun
	Stop   Want = wire.WantStop
	Remove Want = wire.WantRemove
)

// Loss is why an assignment is lost.
type Loss string

const (
	// DeadlinePassed: the assignment's own deadline passed.
	DeadlinePassed Loss = "deadline passed"
	// RunnerSilent: the Runner was silent for a whole lease while a Hub was up.
	RunnerSilent Loss = "runner silent"
)

// Assignment is one thing one Runner should hold. Every report about it carries its Fence; an older fence is refused.
type Assignment struct {
	ID, Runner string
	Kind       Kind
	Subject    string // the row in the Owner's table; at most one assignment of a Kind and Subject is not removed
	Want       Want
	Generation int64     // rises with each Change
	Fence      int64     // rises with each Refence
	Deadline   time.Time // zero: none

	State      string          // of the newest report; empty before the first
	Detail     json.RawMessage // of the newest report
	Reported   time.Time       // when it came
	ReportedOf int64           // the Generation it was about
	IdleSince  time.Time       // nothing counted as activity since then; zero while busy or unknown
	LostSince  time.Time       // its Owner was told that the Runner is silent; zero while the Runner answers
	Removed    time.Time       // the Runner holds nothing of it any more
	Created    time.Time
	Loss       Loss // set only in the call of Owner.Lost
}

// Report is a state change as a Runner tells it.
type Report struct {
	ID                     string
	Fence, Seq, Generation int64
	State                  string
	Detail                 json.RawMessage
}

// Owner gives a Kind its meaning. Its methods run inside the fleet's transactions, which may be repeated: they change
// nothing but tx. A panic counts as an error.
type Owner interface {
	// Payload is what the Runner needs to do a, for this generation: repeatable, the same bytes each time. tx is read-only.
	Payload(ctx context.Context, tx *store.Tx, a Assignment) ([]byte, error)
	// Values are those of a's Variables as they are now: they may change while a stays the same, so they are asked for at
	// each start and wake. refused is why the Runner gets none, in a sentence for a person; values are then those that can be had
	// nevertheless, which a Sandbox that runs already may still print. tx is read-only.
	Values(ctx context.Context, tx *store.Tx, a Assignment) (values []*wire.Value, refused string, err error)
	// Observe takes a report in the transaction that stores it. a is as it was before the report. Called again with the
	// same report it changes nothing. An error has the Runner send the report again; one made by Permanent does not.
	Observe(ctx context.Context, tx *store.Tx, a Assignment, r Report) error
	// Lost is called once for each loss; a.Loss says which. After RunnerSilent a Runner may come back: see Finder.
	Lost(ctx context.Context, tx *store.Tx, a Assignment) error
}

// Finder is an Owner that wants to know when a Runner it lost is back. Called once for each return.
type Finder interface {
	Found(ctx context.Context, tx *store.Tx, a Assignment) error
}

// Idler is an Owner that does something about idle assignments. Idle is called for an assignment that wants Run, whose
// Runner answers, and which is idle for at least IdleAfter; about every five seconds until that no longer holds.
type Idler interface {
	// IdleAfter of 0 or less: never.
	IdleAfter(a Assignment) time.Duration
	Idle(ctx context.Context, tx *store.Tx, a Assignment, idle time.Duration) error
}

// Errors a Runner's call ends with. handlers/runnerapi gives each its code.
var (
	ErrFenced  = errors.New("this assignment has a newer fence: what was done under the older one no longer counts")
	ErrUnknown = errors.New("this Runner has no such assignment")
	ErrStale   = errors.New("the assignment has changed since: Sync and fetch its newest generation")
	ErrHello   = errors.New("the Hub must know this Runner's version first: call Hello")
	ErrRevoked = errors.New("this Runner's token is unknown or was revoked: register the Runner again")
	ErrInvalid = errors.New("the request is malformed")
)

type permanentError struct{ error }

func (p permanentError) Unwrap() error { return p.error }

// Permanent marks an Observe error that no repetition mends: the report is stored with the error and not sent again.
func Permanent(err error) error { return permanentError{err} }

// Options of a Fleet. Zero values mean the defaults.
type Options struct {
	Lease       time.Duration // silence after which a Runner's assignments are lost; 60 s
	Flush       time.Duration // how often contacts are written and deadlines looked at; 5 s
	LogLimit    int64         // bytes kept of one log, half of them its head and half its tail; 64 MiB
	ChannelIdle time.Duration // a channel whose client is silent for so long is closed; 60 s
	Version     string        // of claude-hub, for the sentences of Hello
	MinProtocol int32         // of Runners; the version before wire.Protocol
	MaxProtocol int32         // wire.Protocol
	Tokens      Tokens        // for clones and for git in Sandboxes; nil: this Hub never has a GitHub App
	Push        PushTokens    // for git in Sandboxes; nil: the operator lets it push with people's own credentials only
	PeerURL     string        // how other Hubs on the database reach this one; "": none does, and this one asks none
	Log         zerolog.Logger
}

func (o Options) withDefaults() Options {
	if o.Lease <= 0 {
		o.Lease = 60 * time.Second
	}
	if o.Flush <= 0 {
		o.Flush = 5 * time.Second
	}
	if o.LogLimit <= 0 {
		o.LogLimit = 64 << 20
	}
	if o.ChannelIdle <= 0 {
		o.ChannelIdle = 60 * time.Second
	}
	if o.MaxProtocol <= 0 {
		o.MaxProtocol = wire.Protocol
	}
	if o.MinProtocol <= 0 {
		o.MinProtocol = max(1, o.MaxProtocol-1)
	}
	if o.Version == "" {
		o.Version = "of this Hub's version"
	}
	return o
}

// maxPoll bounds a Sync's and an Exchange's wait (design.md §5).
const maxPoll = 15 * time.Second

// Fleet is the Hub's side of all Runners. Its methods may be called from many goroutines, and several Hubs may run on
// one database.
type Fleet struct {
	db      *store.DB
	id      string // of this process, for other Hubs
	o       Options
	log     zerolog.Logger
	ownerMu sync.RWMutex
	owners  map[Kind]Owner

	auth     authCache
	contacts contacts
	appends  appender
	guard    guard
	channels channels
	reaper   reaper
	minted   minted // of CloneToken
	lent     minted // of SessionToken

	stopping  chan struct{} // closed by Stop: long polls answer at once
	stopOnce  sync.Once
	stopped   sync.WaitGroup
	cancelRun context.CancelFunc
}

// New makes a Fleet on db. Owners are added by Own before Start.
func New(db *store.DB, o Options) *Fleet {
	o = o.withDefaults()
	f := &Fleet{db: db, id: store.NewID(), o: o, log: o.Log.With().Str("part", "fleet").Logger(), owners: map[Kind]Owner{}, stopping: make(chan struct{})}
	f.auth.init()
	f.contacts.init()
	f.appends.init(f)
	f.guard.init(f)
	f.channels.init(f)
	f.reaper.init(f.now())
	return f
}

// Own makes o the Owner of kind k. A second Owner of one kind is a programming error and panics.
func (f *Fleet) Own(k Kind, o Owner) {
	f.ownerMu.Lock()
	defer f.ownerMu.Unlock()
	if _, taken := f.owners[k]; taken {
		panic(fmt.Sprintf("fleet: kind %q has an owner already", k))
	}
	f.owners[k] = o
}

func (f *Fleet) owner(k Kind) (Owner, error) {
	f.ownerMu.RLock()
	defer f.ownerMu.RUnlock()
	o, ok := f.owners[k]
	if !ok {
		return nil, fmt.Errorf("nobody in this Hub owns assignments of kind %q", k)
	}
	return o, nil
}

func (f *Fleet) now() time.Time { return f.db.Now().UTC() }

// Start begins to look after deadlines, leases and idle assignments until Stop is called or ctx ends, and tells other Hubs of this
// one. It returns an error when called twice.
func (f *Fleet) Start(ctx context.Context) error {
	if f.cancelRun != nil {
		return errors.New("the fleet runs already")
	}
	if err := f.beat(ctx); err != nil {
		return err
	}
	ctx, f.cancelRun = context.WithCancel(ctx)
	f.reaper.restart(f.now())
	f.stopped.Add(1)
	go func() {
		defer f.stopped.Done()
		f.reapUntil(ctx)
	}()
	return nil
}

// Stop answers every waiting long poll, writes what is in memory only, and returns when all of it has ended.
// The Fleet still answers calls afterwards, without waiting.
func (f *Fleet) Stop() {
	f.stopOnce.Do(func() {
		close(f.stopping)
		if f.cancelRun != nil {
			f.cancelRun()
		}
		f.stopped.Wait()
		f.appends.wait()
		f.guard.close()
		ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
		defer cancel()
		if err := f.withdraw(ctx); err != nil {
			f.log.Warn().Err(err).Msg("other Hubs could not be told that this one ends; they notice within seconds")
		}
		if err := f.flush(ctx); err != nil {
			f.log.Warn().Err(err).Msg("the last contacts of Runners could not be written; leases start afresh anyway")
		}
	})
}

// guarded runs a call that one bad row could break, and turns a panic into an error, so that it takes nothing else down.
func guarded(call func() error) (err error) {
	defer func() {
		if p := recover(); p != nil {
			err = fmt.Errorf("panic: %v\n%s", p, debug.Stack())
		}
	}()
	return call()
}

func runnerTopic(runner string) string { return "runner/" + runner }

// LogTopic is the topic of store.DB.Changed that is woken when the log of an assignment grows or ends.
func LogTopic(assignment string) string { return "log/" + assignment }

func millis(t time.Time) int64 {
	if t.IsZero() {
		return 0
	}
	return t.UnixMilli()
}

func at(ms int64) time.Time {
	if ms == 0 {
		return time.Time{}
	}
	return time.UnixMilli(ms).UTC()
}
