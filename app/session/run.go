package session

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/claude-hub/claude-hub/app/access"
	"github.com/claude-hub/claude-hub/app/audit"
	"github.com/claude-hub/claude-hub/app/fault"
	"github.com/claude-hub/claude-hub/app/fleet"
	"github.com/claude-hub/claude-hub/runner/redact"
	"github.com/claude-hub/claude-hub/runner/wire"
	"github.com/claude-hub/claude-hub/store"
)

const (
	// MaxRuns is how many headless runs of one Session may wait or run at once.
	MaxRuns = 8
	// KeptRuns is how many of a Session's runs that have ended are kept with their logs.
	KeptRuns = 50

	// runLogGrace is as environment's logGrace: a log may come after the report that a run has ended.
	runLogGrace = 15 * time.Second

	maxRunArgs  = 4096
	maxRunBytes = 256 << 10
	maxRunLimit = 7 * 24 * time.Hour
)

// States of a Run.
const (
	RunWaiting = "waiting" // for the Session to be up, its start script included
	RunRunning = "running"
	RunEnded   = "ended"
)

var errNoRun = fault.New(fault.NotFound, "This Session has no such run.")

// Run is a command that runs in a Session without anybody connected. What it prints, both streams in one, is its log.
type Run struct {
	ID        string
	Command   string // in one line, as a shell would take it; Sensitive values are masked
	CreatedAt time.Time
	CreatedBy string // login
	Stopping  bool   // somebody asked for its end
	StartedAt time.Time
	EndedAt   time.Time        // zero: it has not ended
	Exit      wire.ChannelExit // with EndedAt

	session, assignment, spec string
}

// State is what it does now.
func (r Run) State() string {
	switch {
	case !r.EndedAt.IsZero():
		return RunEnded
	case !r.StartedAt.IsZero():
		return RunRunning
	}
	return RunWaiting
}

// RunInput is what to run.
type RunInput struct {
	Argv  []string
	Dir   string        // in the Sandbox, absolute or in the Workspace; empty: the Workspace
	User  string        // empty: the image's
	Limit time.Duration // from the start of its process until that is ended; 0: none, at most 7 days
}

func (in RunInput) check() error {
	size := len(in.Dir) + len(in.User)
	for _, arg := range in.Argv {
		if strings.ContainsRune(arg, 0) {
			return fault.Field("argv", "An argument can't hold a zero byte.")
		}
		size += len(arg) + 1
	}
	switch {
	case len(in.Argv) == 0 || in.Argv[0] == "":
		return fault.Field("argv", "Say what to run.")
	case len(in.Argv) > maxRunArgs || size > maxRunBytes:
		return fault.Field("argv", "A command has at most %d arguments and %d bytes. Put more into a file.", maxRunArgs, maxRunBytes)
	case in.Limit < 0 || in.Limit > maxRunLimit:
		return fault.Field("time_limit_ms", "A time limit is at most %d days; 0 is none.", int(maxRunLimit.Hours()/24))
	case in.Limit > 0 && in.Limit < time.Second:
		return fault.Field("time_limit_ms", "A time limit is a second at least; 0 is none.")
	}
	return nil
}

// StartRun starts a headless run. One that is asked for while the Session sleeps wakes it; it begins when the start script has ended.
// It keeps the Session awake, and ends with its process, its time limit, StopRun, or the Session's Sandbox.
func (s *Service) StartRun(ctx context.Context, g access.Grant, id string, in RunInput) (Run, error) {
	var run Run
	err := s.db.Write(ctx, func(tx *store.Tx) error {
		sn, err := s.one(tx, g, id)
		if err != nil {
			return err
		}
		if err := in.check(); err != nil {
			return err
		}
		if err := s.takesRun(tx, g, &sn); err != nil {
			return err
		}
		command, err := s.masked(tx, sn, in.Argv)
		if err != nil {
			return err
		}
		spec, err := json.Marshal(wire.Run{Session: sn.assignment, Argv: in.Argv, Dir: in.Dir, User: in.User, LimitMS: in.Limit.Milliseconds()})
		if err != nil {
			return fmt.Errorf("encode what to run: %w", err)
		}
		id := store.NewID()
		a, err := s.fleet.Assign(tx, fleet.Assignment{Runner: sn.Runner, Subject: id, Kind: wire.KindRun})
		if err != nil {
			return err
		}
		if _, err := tx.Exec(insertRunSQL, id, sn.ID, a.ID, command, string(spec), tx.Now().UnixMilli(), g.Actor()); err != nil {
			return fmt.Errorf("save a run: %w", err)
		}
		if err := s.forgetRuns(tx, sn.ID, runsEndedSQL, KeptRuns); err != nil {
			return err
		}
		if run, err = scanRun(tx.Row(runByIDSQL, id).Scan); err != nil {
			return fmt.Errorf("read a run: %w", err)
		}
		s.wake(tx, sn)
		return audit.Record(tx, audit.Entry{Who: g.Actor(), Repo: int64(sn.repo), Action: "session.run", Subject: sn.ID, Detail: map[string]any{"run": id}})
	})
	return run, err
}

// takesRun refuses a run in a Session that can't take one, and wakes one that sleeps.
func (s *Service) takesRun(tx *store.Tx, g access.Grant, sn *Session) error {
	if sn.Unreachable {
		return errUnreachable
	}
	if err := s.fleet.Able(tx, sn.Runner, wire.CanRun, "take headless runs"); err != nil {
		return err
	}
	var open int
	if err := tx.Row(runsOpenSQL, sn.ID).Scan(&open); err != nil {
		return fmt.Errorf("count runs: %w", err)
	}
	if open >= MaxRuns {
		return fault.New(fault.Refused, "%d runs wait or run in this Session already. Wait for one, or stop one first.", open)
	}
	switch {
	case sn.State == Running, sn.State == Starting, sn.State == Waking:
		return nil
	case sn.State == Asleep, sn.State == Stopping && !sn.Restarting:
		if err := s.boot(tx, g, sn, Waking); err != nil {
			return err
		}
		return audit.Record(tx, audit.Entry{Who: g.Actor(), Repo: int64(sn.repo), Action: "session.wake", Subject: sn.ID})
	case sn.State == Stopping:
		return fault.New(fault.Refused, "This Session restarts just now. Try again when it wakes.")
	}
	return fault.New(fault.Refused, "This Session is %s. %s", sn.State, wakeHint(sn.State))
}

// masked is a command as people see it.
func (s *Service) masked(tx *store.Tx, sn Session, argv []string) (string, error) {
	values, _, err := s.Values(tx.Context(), tx, fleet.Assignment{Subject: sn.ID})
	if err != nil {
		return "", err
	}
	set := new(redact.Set)
	for _, v := range values {
		if v.GetSensitive() && redact.Check(v.GetValue()) == nil {
			if err := set.Add(v.GetName(), v.GetValue()); err != nil {
				return "", fmt.Errorf("mask a command: %w", err)
			}
		}
	}
	// Each argument by itself first: quoted, a value in it may look like another.
	words := make([]string, len(argv))
	for i, arg := range argv {
		words[i] = quote(set.Text(arg).String())
	}
	return clip(set.Text(strings.Join(words, " ")).String()), nil
}

// clip bounds what is shown of a command.
func clip(command string) string {
	const most = 1000
	r := []rune(strings.ToValidUTF8(command, "�"))
	if len(r) <= most {
		return string(r)
	}
	return string(r[:most]) + "…"
}

// quote is a word as a shell takes it, plain where that is the same.
func quote(word string) string {
	if word != "" && strings.Trim(word, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-./=:,@%+") == "" {
		return word
	}
	return "'" + strings.ReplaceAll(word, "'", `'\''`) + "'"
}

// forgetRuns forgets those of a Session's runs that query lists, with their logs, all but the first.
func (s *Service) forgetRuns(tx *store.Tx, session, query string, keep int) error {
	all, err := store.All(tx, scanRun, query, session)
	if err != nil {
		return fmt.Errorf("list the runs of Session %s: %w", session, err)
	}
	for _, r := range all[min(keep, len(all)):] {
		if _, err := tx.Exec(forgetRunSQL, r.ID); err != nil {
			return fmt.Errorf("forget run %s: %w", r.ID, err)
		}
		if err := s.fleet.Forget(tx, r.assignment); err != nil {
			return err
		}
	}
	return nil
}

// Runs lists a Session's, newest first: those that have not ended, and the newest KeptRuns that have.
func (s *Service) Runs(ctx context.Context, g access.Grant, id string) ([]Run, error) {
	var all []Run
	err := s.db.Read(ctx, func(tx *store.Tx) error {
		sn, err := s.one(tx, g, id)
		if err != nil {
			return err
		}
		if all, err = store.All(tx, scanRun, runsSQL, sn.ID); err != nil {
			return fmt.Errorf("list runs: %w", err)
		}
		return nil
	})
	return all, err
}

// Run finds one of a Session's. One of another Session is as absent as one that never was.
func (s *Service) Run(ctx context.Context, g access.Grant, id, run string) (Run, error) {
	var r Run
	err := s.db.Read(ctx, func(tx *store.Tx) (err error) {
		r, err = s.run(tx, g, id, run)
		return err
	})
	return r, err
}

func (s *Service) run(tx *store.Tx, g access.Grant, id, run string) (Run, error) {
	sn, err := s.one(tx, g, id)
	if err != nil {
		return Run{}, err
	}
	r, err := scanRun(tx.Row(runSQL, sn.ID, store.Text(run)).Scan)
	if errors.Is(err, store.ErrNotFound) {
		return Run{}, errNoRun
	}
	if err != nil {
		return Run{}, fmt.Errorf("read a run: %w", err)
	}
	return r, nil
}

// StopRun has a run's process ended: SIGTERM, and after ten seconds SIGKILL. One that has ended is no error.
func (s *Service) StopRun(ctx context.Context, g access.Grant, id, run string) error {
	return s.db.Write(ctx, func(tx *store.Tx) error {
		r, err := s.run(tx, g, id, run)
		if err != nil {
			return err
		}
		n, err := tx.Exec(stopRunSQL, r.ID, g.Actor())
		if err != nil {
			return fmt.Errorf("stop run %s: %w", r.ID, err)
		}
		if n == 0 {
			return nil
		}
		if _, err := s.fleet.Change(tx, r.assignment, fleet.Stop, time.Time{}); err != nil {
			return err
		}
		tx.Wake(TopicOf(g.Repo()))
		return audit.Record(tx, audit.Entry{Who: g.Actor(), Repo: int64(g.Repo().ID), Action: "session.run.stop", Subject: id, Detail: map[string]any{"run": r.ID}})
	})
}

// RunLog reads what a run printed, from a byte offset on. Its end is told when the Runner has brought it, which may be a little after the
// run's; of a run that has ended for runLogGrace nothing more is waited for.
func (s *Service) RunLog(ctx context.Context, g access.Grant, id, run string, from int64, max int) (fleet.LogPart, error) {
	r, err := s.Run(ctx, g, id, run)
	if err != nil {
		return fleet.LogPart{}, err
	}
	part, err := s.fleet.ReadLog(ctx, r.assignment, from, max)
	part.Ended = part.Ended || r.State() == RunEnded && s.db.Now().Sub(r.EndedAt) >= runLogGrace
	return part, err
}

// RunTopic is woken when a run's log grows.
func (s *Service) RunTopic(r Run) string { return fleet.LogTopic(r.assignment) }

func scanRun(scan func(...any) error) (r Run, err error) {
	var created, started, ended int64
	var stopped, how string
	if err := scan(&r.ID, &r.session, &r.assignment, &r.Command, &r.spec, &created, &r.CreatedBy, &stopped, &started, &ended, &how); err != nil {
		return Run{}, err
	}
	r.CreatedAt, r.Stopping = time.UnixMilli(created), stopped != ""
	if started != 0 {
		r.StartedAt = time.UnixMilli(started)
	}
	if ended != 0 {
		r.EndedAt = time.UnixMilli(ended)
		if err := json.Unmarshal([]byte(how), &r.Exit); err != nil {
			return Run{}, fmt.Errorf("decode how run %s ended: %w", r.ID, err)
		}
	}
	return r, nil
}
