// Package session is a Session's life as the Hub decides it: a person or Claude Code at work on a branch, in a
// Sandbox of one Runner. Only the Hub decides what a Session should be; the Runner makes it so.
package session

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/claude-hub/claude-hub/app/access"
	"github.com/claude-hub/claude-hub/app/audit"
	"github.com/claude-hub/claude-hub/app/environment"
	"github.com/claude-hub/claude-hub/app/fault"
	"github.com/claude-hub/claude-hub/app/fleet"
	"github.com/claude-hub/claude-hub/app/github"
	"github.com/claude-hub/claude-hub/runner/wire"
	"github.com/claude-hub/claude-hub/store"
)

// States of a Session. Starting, Stopping, Waking, Archiving and Deleting have a deadline; Failed waits for Retry or Delete, and
// Archived for Restore or Delete.
const (
	Starting  = "starting"
	Running   = "running"
	Stopping  = "stopping" // going to sleep
	Asleep    = "asleep"
	Waking    = "waking"
	Failed    = "failed"
	Archiving = "archiving" // stopping, in the table
	Archived  = "archived"  // asleep, in the table
	Deleting  = "deleting"
	Deleted   = "deleted"
)

// Service holds the rules of Sessions. Its methods may be called concurrently.
type Service struct {
	db    *store.DB
	env   *environment.Service
	fleet *fleet.Fleet
	o     Options
}

// Options of a Service; zero values are the defaults.
type Options struct {
	IdleAfter     time.Duration // without activity until a Session is put to sleep; default 15 minutes (ADR 0006)
	StartDeadline time.Duration // of a start or a wake, a lazy build included; default one hour
	StopDeadline  time.Duration // of going to sleep and of deleting; default 5 minutes
	DiskSize      int64         // bytes of a new Session's disk; default 20 GiB, sparse
	DiskLimit     int64         // bytes that a Session's disk may be grown to; default 200 GiB
	// ArchiveKeepsDisks has an archived Session keep its dependency folders, package caches and Docker's data beside its Workspace.
	ArchiveKeepsDisks bool
	// Gate is asked what the person of a Session may do at GitHub; nil: git in Sandboxes gets no credentials.
	Gate Gate
	// GitHub says where people's addresses are; nil: git gets made-up ones.
	GitHub *github.Holder
}

// New registers the Service as the Owner of Sessions and of their headless runs.
func New(db *store.DB, env *environment.Service, f *fleet.Fleet, o Options) *Service {
	if o.IdleAfter == 0 {
		o.IdleAfter = 15 * time.Minute
	}
	if o.StartDeadline == 0 {
		o.StartDeadline = time.Hour
	}
	if o.StopDeadline == 0 {
		o.StopDeadline = 5 * time.Minute
	}
	if o.DiskSize == 0 {
		o.DiskSize = 20 << 30
	}
	if o.DiskLimit == 0 {
		o.DiskLimit = 200 << 30
	}
	s := &Service{db: db, env: env, fleet: f, o: o}
	f.Own(wire.KindSession, s)
	f.Own(wire.KindRun, runs{s})
	return s
}

// Session is one as people see it.
type Session struct {
	ID          string
	State       string
	Restarting  bool // Stopping or Waking as the halves of a restart
	Freed       bool // Archiving or Archived: of its disk, all but the Workspace is given up, too
	Unreachable bool // its Runner has been silent for a whole lease; nothing of it is given up for that
	Runner      string
	Version     int    // of the Environment: what it boots from next
	BuildKey    string // of that version
	Branch      string
	WorkBranch  string
	DiskSize    int64
	Detail      wire.SessionDetail
	CreatedAt   time.Time
	CreatedBy   string // login
	ChangedAt   time.Time

	repo                               github.RepoID
	createdBy                          string // its id
	githubID                           int64  // of that person; 0: who came by dev login
	environment, assignment, versionID string
	idle                               time.Duration
	resume                             bool
	archive                            string // what an archived Session gives up: wire.ArchiveSandbox, wire.ArchiveDisks
}

// StartInput is what a person may choose; zero values choose for them.
type StartInput struct {
	Runner     string // id or name; empty: the least loaded
	Branch     string // cloned from; empty: the default branch
	WorkBranch string // made in the Workspace; empty: claude-hub/<start of the id>
}

// TopicOf is woken at every change of the Repo's Sessions.
func TopicOf(repo access.Repo) string { return "sessions:" + repo.ID.String() }

// Start makes a Session on the Repo's applied Environment.
func (s *Service) Start(ctx context.Context, g access.Grant, in StartInput) (Session, error) {
	if err := errors.Join(checkBranch("branch", in.Branch), checkBranch("work_branch", in.WorkBranch)); err != nil {
		return Session{}, fault.Of(err)
	}
	id := store.NewID()
	if in.WorkBranch == "" {
		in.WorkBranch = "claude-hub/" + id[len(id)-8:]
	}
	var made Session
	err := s.db.Write(ctx, func(tx *store.Tx) error {
		version, environmentID, err := s.env.Current(tx, g)
		if err != nil {
			return err
		}
		if err := s.env.Complete(tx, environmentID, version.Spec, cantStart); err != nil {
			return err
		}
		platform, err := s.env.Platform(tx, version)
		if err != nil {
			return err
		}
		runner, err := s.fleet.Pick(tx, fleet.Filter{Runner: in.Runner, Platform: platform, Only: s.env.Runners(g.Repo(), version.Spec)})
		if err != nil {
			return err
		}
		a, err := s.fleet.Assign(tx, fleet.Assignment{
			Runner: runner.ID, Subject: id, Kind: wire.KindSession, Want: fleet.Run, Deadline: tx.Now().Add(s.o.StartDeadline),
		})
		if err != nil {
			return err
		}
		if _, err := tx.Exec(insertSQL, id, int64(g.Repo().ID), environmentID, runner.ID, a.ID, version.ID, in.Branch, in.WorkBranch, s.o.DiskSize,
			tx.Now().UnixMilli(), g.Actor()); err != nil {
			return fmt.Errorf("save Session: %w", err)
		}
		if err := given(tx, id, version); err != nil {
			return err
		}
		if made, err = scanSession(tx.Row(byIDSQL, id).Scan); err != nil {
			return fmt.Errorf("read Session: %w", err)
		}
		tx.Wake(TopicOf(g.Repo()))
		return audit.Record(tx, audit.Entry{Who: g.Actor(), Repo: int64(g.Repo().ID), Action: "session.start", Subject: id,
			Detail: map[string]any{"runner": runner.ID, "version": version.Number}})
	})
	return made, err
}

// Sleep stops the Session's Sandbox; its Workspace and disks stay.
func (s *Service) Sleep(ctx context.Context, g access.Grant, id string) error {
	return s.change(ctx, g, id, "session.sleep", func(tx *store.Tx, sn *Session) (bool, error) {
		switch sn.State {
		case Asleep:
			return false, nil
		case Running, Starting, Waking, Stopping:
			if sn.State == Stopping && !sn.Restarting && sn.idle == 0 {
				return false, nil
			}
			sn.Restarting, sn.idle = false, 0 // a person's sleep is not given up for activity, as that of an idle Session is
			return true, s.want(tx, sn, fleet.Stop, Stopping)
		}
		return false, fault.New(fault.Refused, "This Session is %s and can't be put to sleep.", sn.State)
	})
}

// Wake boots a sleeping Session again, from the newest applied version: on the same root filesystem where that is
// unchanged, else in a fresh Sandbox on the same Workspace and disks (ADR 0006). One that was only about to sleep may go on as it
// is instead, on the version that it runs: nothing is taken from under a person's hands.
func (s *Service) Wake(ctx context.Context, g access.Grant, id string) error {
	return s.change(ctx, g, id, "session.wake", func(tx *store.Tx, sn *Session) (bool, error) {
		switch sn.State {
		case Running, Starting, Waking:
			return false, nil
		case Asleep, Stopping:
			if sn.Restarting { // it wakes by itself
				return false, nil
			}
			return true, s.boot(tx, g, sn, Waking)
		case Archived:
			return false, fault.New(fault.Refused, "This Session is archived. Restore it first.")
		}
		return false, fault.New(fault.Refused, "This Session is %s and can't be woken.", sn.State)
	})
}

// Retry starts a failed Session again; a build that failed is built again.
func (s *Service) Retry(ctx context.Context, g access.Grant, id string) error {
	return s.change(ctx, g, id, "session.retry", func(tx *store.Tx, sn *Session) (bool, error) {
		if sn.State != Failed {
			return false, fault.New(fault.Refused, "Only a failed Session can be tried again; this one is %s.", sn.State)
		}
		return true, s.boot(tx, g, sn, Starting)
	})
}

// How the sentences begin that say why a Session doesn't start or wake.
const (
	cantStart = "This Session can't start"
	cantWake  = "This Session can't wake"
)

func (s *Service) boot(tx *store.Tx, g access.Grant, sn *Session, state string) error {
	version, environmentID, err := s.env.Current(tx, g)
	if err != nil {
		return err
	}
	what := cantStart
	if state == Waking {
		what = cantWake
	}
	if err := s.takes(tx, g, sn.Runner, environmentID, version, what); err != nil {
		return err
	}
	if err := given(tx, sn.ID, version); err != nil {
		return err
	}
	sn.versionID = version.ID
	return s.want(tx, sn, fleet.Run, state)
}

func given(tx *store.Tx, id string, version environment.Version) error {
	if _, err := tx.Exec(givenSQL, id, version.ID); err != nil {
		return fmt.Errorf("save the version of Session %s: %w", id, err)
	}
	return nil
}

// bootable refuses to boot version on a Runner while a Variable's value is missing, or when the Runner can't be given any.
// Sessions that run go on (ADR 0009, "A lost key").
func (s *Service) bootable(tx *store.Tx, runner, environmentID string, version environment.Version, what string) error {
	if len(version.Spec.Variables) == 0 {
		return nil
	}
	if err := s.env.Complete(tx, environmentID, version.Spec, what); err != nil {
		return err
	}
	return s.fleet.TakesValues(tx, runner)
}

// takes refuses what bootable does, and a Runner that can't be given tokens where the Repo is cloned with them.
func (s *Service) takes(tx *store.Tx, g access.Grant, runner, environmentID string, version environment.Version, what string) error {
	if err := s.bootable(tx, runner, environmentID, version, what); err != nil {
		return err
	}
	if !s.env.WireRepo(g.Repo()).Token {
		return nil
	}
	return s.fleet.TakesTokens(tx, runner)
}

// CountUnsaved asks the Runner of a running Session to count anew what exists in its Workspace only. The answer
// comes as Detail.Unsaved with its time.
func (s *Service) CountUnsaved(ctx context.Context, g access.Grant, id string) error {
	return s.change(ctx, g, id, "session.count", func(tx *store.Tx, sn *Session) (bool, error) {
		if sn.State != Running {
			return false, nil
		}
		_, err := s.fleet.Change(tx, sn.assignment, fleet.Run, time.Time{})
		return true, err
	})
}

// Delete gives up the Session with its Workspace and disks. confirm must be the Session's id: what would be lost is
// for the caller to show first (Unsaved). Where its Runner was revoked, which nobody will ever hear of again, the
// Session ends here at once; what its host still holds goes with claude-hub runner purge there.
func (s *Service) Delete(ctx context.Context, g access.Grant, id, confirm string) error {
	return s.change(ctx, g, id, "session.delete", func(tx *store.Tx, sn *Session) (bool, error) {
		if confirm != sn.ID {
			return false, fault.Field("confirm", "Deleting a Session deletes its Workspace. %s Confirm with its id, %s.", sn.UnsavedSentence(), sn.ID)
		}
		asked := sn.State == Deleting
		if !asked {
			if err := s.want(tx, sn, fleet.Remove, Deleting); err != nil {
				return false, err
			}
		}
		_, err := s.endRevoked(tx, *sn)
		return !asked, err
	})
}

// UnsavedSentence says what exists in the Workspace only, as far as it is known.
func (sn Session) UnsavedSentence() string {
	u := sn.Detail.Unsaved
	if u == nil {
		return "What it holds that was never pushed is unknown."
	}
	if u.Unknown != "" {
		return fmt.Sprintf("What it holds that was never pushed is unknown: %s.", u.Unknown)
	}
	at := time.UnixMilli(u.At).UTC().Format("2006-01-02 15:04 UTC")
	if u.Files == 0 && u.Commits == 0 {
		return fmt.Sprintf("Nothing in it was uncommitted or unpushed at %s.", at)
	}
	return fmt.Sprintf("It held %s and %s at %s; they exist on this Runner's host only.", count(u.Files, "uncommitted file"), count(u.Commits, "unpushed commit"), at)
}

func count(n int, what string) string {
	if n == 1 {
		return "1 " + what
	}
	return fmt.Sprintf("%d %ss", n, what)
}

// change runs f on the Session under a Grant; f says whether anything changed.
func (s *Service) change(ctx context.Context, g access.Grant, id, action string, f func(*store.Tx, *Session) (bool, error)) error {
	return s.db.Write(ctx, func(tx *store.Tx) error {
		sn, err := s.one(tx, g, id)
		if err != nil {
			return err
		}
		changed, err := f(tx, &sn)
		if err != nil || !changed {
			return err
		}
		tx.Wake(TopicOf(g.Repo()))
		return audit.Record(tx, audit.Entry{Who: g.Actor(), Repo: int64(g.Repo().ID), Action: action, Subject: sn.ID})
	})
}

// want moves the assignment and the row together: a new generation, with a deadline that fits.
func (s *Service) want(tx *store.Tx, sn *Session, want fleet.Want, state string) error {
	life := s.o.StopDeadline
	if want == fleet.Run {
		life = s.o.StartDeadline
	}
	if want != fleet.Stop {
		sn.idle, sn.archive = 0, ""
	}
	if _, err := s.fleet.Change(tx, sn.assignment, want, tx.Now().Add(life)); err != nil {
		return err
	}
	sn.State = state
	if _, err := tx.Exec(wantSQL, sn.ID, stored(state), sn.versionID, sn.idle.Milliseconds(), flag(sn.resume), tx.Now().UnixMilli(), flag(sn.Restarting), sn.archive); err != nil {
		return fmt.Errorf("save Session %s: %w", sn.ID, err)
	}
	return nil
}

func flag(b bool) int64 {
	if b {
		return 1
	}
	return 0
}

// Get reads one.
func (s *Service) Get(ctx context.Context, g access.Grant, id string) (Session, error) {
	var sn Session
	err := s.db.Read(ctx, func(tx *store.Tx) (err error) {
		sn, err = s.one(tx, g, id)
		return err
	})
	return sn, err
}

func (s *Service) one(tx *store.Tx, g access.Grant, id string) (Session, error) {
	sn, err := scanSession(tx.Row(oneSQL, int64(g.Repo().ID), store.Text(id)).Scan)
	if errors.Is(err, store.ErrNotFound) {
		return Session{}, fault.New(fault.NotFound, "This Repo has no such Session.")
	}
	if err != nil {
		return Session{}, fmt.Errorf("read Session: %w", err)
	}
	return sn, nil
}

// OnVersion counts the Repo's Sessions that stand on a version of its Environment.
type OnVersion struct {
	Version int
	Awake   int // starting, running or waking: they go on on it until their next wake
	Asleep  int // all others; they wake on the newest version
}

// OnVersions counts the Repo's Sessions by the version they stand on, newest version first.
func (s *Service) OnVersions(ctx context.Context, g access.Grant) ([]OnVersion, error) {
	var all []OnVersion
	err := s.db.Read(ctx, func(tx *store.Tx) (err error) {
		all, err = store.All(tx, func(scan func(...any) error) (v OnVersion, err error) {
			return v, scan(&v.Version, &v.Awake, &v.Asleep)
		}, onVersionsSQL, int64(g.Repo().ID))
		if err != nil {
			return fmt.Errorf("count Sessions by version: %w", err)
		}
		return nil
	})
	return all, err
}

// List reads the Repo's Sessions, newest first.
func (s *Service) List(ctx context.Context, g access.Grant) ([]Session, error) {
	var all []Session
	err := s.db.Read(ctx, func(tx *store.Tx) (err error) {
		all, err = list(tx, listSQL, int64(g.Repo().ID))
		return err
	})
	return all, err
}

func list(tx *store.Tx, query string, args ...any) ([]Session, error) {
	all, err := store.All(tx, scanSession, query, args...)
	if err != nil {
		return nil, fmt.Errorf("list Sessions: %w", err)
	}
	return all, nil
}

// Log reads the Session's log from a byte offset: clone, lazy builds and start scripts.
func (s *Service) Log(ctx context.Context, g access.Grant, id string, from int64, max int) (fleet.LogPart, error) {
	sn, err := s.Get(ctx, g, id)
	if err != nil {
		return fleet.LogPart{}, err
	}
	return s.fleet.ReadLog(ctx, sn.assignment, from, max)
}

// LogTopic is woken when the Session's log grows.
func (s *Service) LogTopic(sn Session) string { return fleet.LogTopic(sn.assignment) }

// Open opens an exec or a terminal in a running Session and returns its channel's id.
func (s *Service) Open(ctx context.Context, g access.Grant, id string, spec wire.ChannelSpec) (string, error) {
	sn, err := s.usable(ctx, g, id)
	if err != nil {
		return "", err
	}
	return s.fleet.OpenChannel(ctx, sn.assignment, spec)
}

// Home is the peer_url of the Hub that has a Session's terminals and commands in its memory; "": this one, or any.
func (s *Service) Home(ctx context.Context, g access.Grant, id string) (peer string, err error) {
	sn, err := s.Get(ctx, g, id)
	if err != nil {
		return "", err
	}
	return s.fleet.Home(ctx, sn.Runner)
}

var errUnreachable = fault.New(fault.Unavailable, "The Runner of this Session does not answer. Nothing in it is lost; try again when the Runner is back.")

// usable is a Session that something can be run in now.
func (s *Service) usable(ctx context.Context, g access.Grant, id string) (Session, error) {
	sn, err := s.Get(ctx, g, id)
	switch {
	case err != nil:
		return sn, err
	case sn.State != Running:
		return sn, fault.New(fault.Refused, "This Session is %s. %s", sn.State, wakeHint(sn.State))
	case sn.Unreachable:
		return sn, errUnreachable
	}
	return sn, nil
}

func wakeHint(state string) string {
	switch state {
	case Asleep, Stopping:
		return "Wake it first."
	case Starting, Waking:
		return "Wait until it runs."
	case Failed:
		return "Look at its log, then try it again."
	case Archiving, Archived:
		return "Restore it first."
	}
	return "It can't be used any more."
}

func scanSession(scan func(...any) error) (Session, error) {
	var sn Session
	var detail string
	var unreachable, resume, restart, idle, created, changed int64
	err := scan(&sn.ID, &sn.repo, &sn.environment, &sn.Runner, &sn.assignment, &sn.State, &unreachable, &sn.versionID, &sn.Version, &sn.BuildKey, &sn.Branch,
		&sn.WorkBranch, &sn.DiskSize, &idle, &resume, &restart, &sn.archive, &detail, &created, &sn.CreatedBy, &changed, &sn.createdBy, &sn.githubID)
	if err != nil {
		return Session{}, err
	}
	sn.Unreachable, sn.resume, sn.Restarting = unreachable != 0, resume != 0, restart != 0
	sn.idle = time.Duration(idle) * time.Millisecond
	sn.State, sn.Freed = shown(sn.State, sn.archive), sn.archive == wire.ArchiveDisks
	sn.CreatedAt, sn.ChangedAt = time.UnixMilli(created), time.UnixMilli(changed)
	if err := json.Unmarshal([]byte(detail), &sn.Detail); err != nil {
		return Session{}, fmt.Errorf("decode Session %s: %w", sn.ID, err)
	}
	return sn, nil
}
