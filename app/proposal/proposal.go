// Package proposal is Environments that pull requests propose (ADR 0009; facts/github.md §3 "Config from a PR").
//
// .claude-hub/environment.yml, and the scripts it names, at the head of an open pull request become a draft of that pull
// request. It is validated for everybody; it is built only when somebody with access asks, and of a fork without secrets; it is
// applied after the merge, by who merged, or by hand. Nothing is done in the name of who doesn't pass the gate.
//
// Events say what to look at again and are never the state: each look reads GitHub, decides without side effects, and writes
// rows, draft and check runs in one transaction, so that looking twice, late or in any order comes to the same.
package proposal

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"time"

	"github.com/rs/zerolog"

	"github.com/claude-hub/claude-hub/app/access"
	"github.com/claude-hub/claude-hub/app/environment"
	"github.com/claude-hub/claude-hub/app/fault"
	"github.com/claude-hub/claude-hub/app/fleet"
	"github.com/claude-hub/claude-hub/app/github"
	"github.com/claude-hub/claude-hub/store"
)

// The check runs that this package shows.
const (
	CheckName = "Environment"
	TestName  = "Environment / Test build"
)

// Options of a Service.
type Options struct {
	// PublicURL is where people reach this Hub, for the links of check runs.
	PublicURL string
	// AutoTest starts a Test build by itself for what somebody with access proposes from the same repository, of commits that somebody
	// with access pushed.
	AutoTest bool
	// SweepEvery is how often open pull requests are compared with what is known. Default 5 minutes.
	SweepEvery time.Duration
	Log        zerolog.Logger
}

// Service is described with the package. Its methods may be called concurrently, on any Hub of the database.
type Service struct {
	db     *store.DB
	github *github.Holder
	gate   *access.Gate
	env    *environment.Service
	fleet  *fleet.Fleet
	o      Options

	mu   sync.Mutex
	stop context.CancelFunc
	done sync.WaitGroup
}

// New makes a Service and has it told of every Test build and every version. Call it before the fleet is started.
func New(db *store.DB, holder *github.Holder, gate *access.Gate, env *environment.Service, f *fleet.Fleet, o Options) *Service {
	if o.SweepEvery == 0 {
		o.SweepEvery = 5 * time.Minute
	}
	o.PublicURL = strings.TrimSuffix(o.PublicURL, "/")
	s := &Service{db: db, github: holder, gate: gate, env: env, fleet: f, o: o}
	env.Watch(s.watch)
	env.WatchVersions(s.applied)
	return s
}

// State of a pull request.
type State string

const (
	Open   State = "open"
	Merged State = "merged"
	Closed State = "closed" // without being merged
)

// File is what the head of a pull request has of an Environment.
type File string

const (
	None      File = "none"
	Deleted   File = "deleted"   // the base has it, the head no longer
	Unchanged File = "unchanged" // as where the pull request began
	Invalid   File = "invalid"
	Valid     File = "valid"
)

// Outcome is what became of a merged pull request.
type Outcome string

const (
	Applied    Outcome = "applied"
	Nothing    Outcome = "nothing"    // the current version said the same already
	Needs      Outcome = "needs"      // somebody must do something: Detail says what
	Superseded Outcome = "superseded" // a later change of the default branch is what counts
	Kept       Outcome = "kept"       // the file was deleted: the Environment stays, and is the web's
	Wrong      Outcome = "wrong"      // what was merged is invalid
	Elsewhere  Outcome = "elsewhere"  // it was merged into another branch than the default one
)

// Proposal is one pull request as it was last looked at.
type Proposal struct {
	Number    int
	Title     string
	URL       string
	Author    github.Account
	SHA       string // of its head
	Base      string // the branch it is for
	ToDefault bool   // that is the default branch: what is merged there is applied
	Fork      bool
	State     State
	File      File
	Problems  []Problem
	MergedSHA string // on the base branch
	MergedBy  string // login
	Outcome   Outcome
	Detail    string // of Needs: why it was not applied although it could be; a sentence
	UpdatedAt time.Time

	version int64
}

// Problem is one thing wrong with a file, or worth knowing.
type Problem struct {
	File    string `json:"file"`
	Line    int    `json:"line"`
	Column  int    `json:"column"`
	Message string `json:"message"` // a sentence without its end
	Warning bool   `json:"warning,omitempty"`
	// Hub: it isn't the file alone that is wrong, but what the Hub has beside it: looked at again, it may be mended.
	Hub bool `json:"hub,omitempty"`
}

// commit is the one whose check run "Environment" speaks of it.
func (p Proposal) commit() string {
	if p.State == Merged {
		return p.MergedSHA
	}
	return p.SHA
}

// system is the Hub for itself, on behalf of a pull request.
func system(tx *store.Tx, repo github.RepoID, number int) (access.Grant, error) {
	r, err := access.ReadRepo(tx, repo)
	if err != nil {
		return access.Grant{}, err
	}
	return access.System(r, fmt.Sprintf("pull request #%d", number)), nil
}

// gone says that a Repo is none of the App's any more, or can't be worked with: then there is nothing to do, and trying again
// would be the same until an event says otherwise.
func gone(err error) bool {
	return github.NotInstalled.Is(err) || github.Suspended.Is(err) || github.NotFound.Is(err) || github.Empty.Is(err)
}

// away puts GitHub's trouble in the words of a fault.
func away(err error) error {
	var e *github.Error
	if !errors.As(err, &e) {
		return err
	}
	code := fault.Unavailable
	switch e.Kind {
	case github.Forbidden, github.NotInstalled, github.Suspended, github.Refused, github.Invalid:
		code = fault.Refused
	case github.NotFound, github.Empty:
		code = fault.NotFound
	}
	return errors.Join(fault.New(code, "%s", e.Message), err)
}
