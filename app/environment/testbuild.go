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

// States of a Test build. Queued ends when its Runner begins; the last four are final.
const (
	Queued    = "queued"
	Running   = wire.StateRunning
	Passed    = wire.StatePassed
	Failed    = wire.StateFailed
	Cancelled = wire.StateCancelled
	Lost      = "lost"
)

// TestBuild is a run of exactly one revision of a draft on one Runner.
type TestBuild struct {
	ID          string
	Revision    int64
	Spec        envspec.Spec
	TestKey     envspec.Key
	Runner      string // id
	State       string
	CancelledBy string // person id; set as soon as somebody asked
	CreatedAt   time.Time
	CreatedBy   string    // login
	FinishedAt  time.Time // zero while it runs
	Detail      wire.TestBuildDetail
	ImageDigest string
	BuildKey    envspec.Key

	// Of a draft that a pull request proposes: its number and the commit that was read. The Repo itself is cloned at its
	// default branch, whose commit Detail names.
	PullRequest int
	Commit      string
	// Withheld: it comes from a fork, so it ran without Sensitive values and Links, and doesn't count for Apply.
	Withheld bool

	environment, assignment, branch string
}

// Final tells that nothing about it changes any more.
func (t TestBuild) Final() bool { return !t.FinishedAt.IsZero() }

// Test starts a Test build of revision rev of the Repo's web draft on a Runner, named by its id or
// its name. The Shared variables that it links stay until its end, whatever the draft links meanwhile.
func (s *Service) Test(ctx context.Context, g access.Grant, rev int64, runner string) (TestBuild, error) {
	if runner == "" {
		return TestBuild{}, fault.Field("runner", "Choose the Runner that the Test build should run on.")
	}
	var test TestBuild
	err := s.db.Write(ctx, func(tx *store.Tx) error {
		env, err := s.get(tx, g)
		if err != nil {
			return err
		}
		draft, err := draftAt(env, rev)
		if err != nil {
			return err
		}
		test, err = s.start(tx, g, env, draft, start{runner: runner})
		return err
	})
	return test, err
}

// start is how a Test build begins.
type start struct {
	runner string
	branch string // the commit of the default branch at that moment, where it is known
}

func (s *Service) start(tx *store.Tx, g access.Grant, env Environment, draft Draft, o start) (TestBuild, error) {
	withheld := draft.Fork && draft.withholds()
	given := draft.Spec
	if withheld {
		given = withhold(given)
	}
	if err := s.testable(tx, env, given); err != nil {
		return TestBuild{}, err
	}
	on, err := s.fleet.Pick(tx, fleet.Filter{Runner: o.runner, Only: s.Runners(g.Repo(), draft.Spec)})
	if err != nil {
		return TestBuild{}, err
	}
	twin, err := scanTest(tx.Row(runningTestSQL, env.ID, string(draft.TestKey), on.ID, withheld).Scan)
	if err == nil {
		return TestBuild{}, fault.New(fault.Refused, "A Test build of exactly this draft is already %s on %s (%s). Wait for it or cancel it.", twin.State, on.Name, twin.ID)
	} else if !errors.Is(err, store.ErrNotFound) {
		return TestBuild{}, fmt.Errorf("look for a running Test build: %w", err)
	}
	spec, err := encode(draft.Spec)
	if err != nil {
		return TestBuild{}, err
	}
	id := store.NewID()
	a, err := s.fleet.Assign(tx, fleet.Assignment{
		Runner: on.ID, Subject: id, Kind: wire.KindTestBuild, Want: fleet.Run, Deadline: tx.Now().Add(s.o.TestDeadline),
	})
	if err != nil {
		return TestBuild{}, err
	}
	if _, err := tx.Exec(insertTestSQL, id, env.ID, draft.Revision, spec, string(draft.TestKey), on.ID, a.ID, tx.Now().UnixMilli(), g.Actor(),
		draft.PullRequest, draft.Commit, o.branch, withheld); err != nil {
		return TestBuild{}, fmt.Errorf("save Test build: %w", err)
	}
	if err := s.vault.Hold(tx, env.ID, id, given); err != nil {
		return TestBuild{}, err
	}
	test, err := scanTest(tx.Row(testSQL, env.ID, id).Scan)
	if err != nil {
		return TestBuild{}, fmt.Errorf("read Test build: %w", err)
	}
	test.Spec = draft.Spec
	if err := s.changed(tx, g.Repo(), id); err != nil {
		return TestBuild{}, err
	}
	entry := audit.Entry{Who: g.Actor(), Repo: int64(g.Repo().ID), Action: "test-build.start", Subject: id,
		Detail: map[string]any{"revision": draft.Revision, "runner": on.ID}}
	if draft.PullRequest != Web {
		entry.Detail["pull_request"], entry.Detail["commit"] = draft.PullRequest, draft.Commit
	}
	return test, audit.Record(tx, entry)
}

// testable refuses what no Test build can prove: a Spec that lacks values.
func (s *Service) testable(tx *store.Tx, env Environment, spec envspec.Spec) error {
	return s.Complete(tx, env.ID, spec, "This draft can't be tested")
}

// Cancel asks for the end of a Test build. It is final at the latest after cancelGrace, whatever the Runner does;
// asking again changes nothing.
func (s *Service) Cancel(ctx context.Context, g access.Grant, id string) error {
	return s.db.Write(ctx, func(tx *store.Tx) error {
		test, err := s.test(tx, g, id)
		if err != nil {
			return err
		}
		return s.cancel(tx, g, test)
	})
}

func (s *Service) cancel(tx *store.Tx, g access.Grant, test TestBuild) error {
	n, err := tx.Exec(cancelSQL, test.ID, g.Actor())
	if err != nil {
		return fmt.Errorf("cancel Test build: %w", err)
	}
	if n == 0 {
		return nil
	}
	if _, err := s.fleet.Change(tx, test.assignment, fleet.Stop, tx.Now().Add(cancelGrace)); err != nil {
		return err
	}
	if err := s.changed(tx, g.Repo(), test.ID); err != nil {
		return err
	}
	return audit.Record(tx, audit.Entry{Who: g.Actor(), Repo: int64(g.Repo().ID), Action: "test-build.cancel", Subject: test.ID})
}

// TestBuild reads one.
func (s *Service) TestBuild(ctx context.Context, g access.Grant, id string) (TestBuild, error) {
	var test TestBuild
	err := s.db.Read(ctx, func(tx *store.Tx) (err error) {
		test, err = s.test(tx, g, id)
		return err
	})
	return test, err
}

func (s *Service) test(tx *store.Tx, g access.Grant, id string) (TestBuild, error) {
	env, err := s.get(tx, g)
	if err != nil {
		return TestBuild{}, err
	}
	test, err := scanTest(tx.Row(testSQL, env.ID, store.Text(id)).Scan)
	if errors.Is(err, store.ErrNotFound) {
		return TestBuild{}, fault.New(fault.NotFound, "This Repo has no such Test build.")
	}
	if err != nil {
		return TestBuild{}, fmt.Errorf("read Test build: %w", err)
	}
	return test, s.vault.Fill(tx, env.ID, &test.Spec)
}

// TestBuilds lists the newest n.
func (s *Service) TestBuilds(ctx context.Context, g access.Grant, n int) ([]TestBuild, error) {
	var tests []TestBuild
	err := s.db.Read(ctx, func(tx *store.Tx) error {
		env, err := s.get(tx, g)
		if err != nil {
			return err
		}
		if tests, err = store.All(tx, scanTest, testsSQL, env.ID, n); err != nil {
			return fmt.Errorf("list Test builds: %w", err)
		}
		specs := make([]*envspec.Spec, len(tests))
		for i := range tests {
			specs[i] = &tests[i].Spec
		}
		return s.vault.Fill(tx, env.ID, specs...)
	})
	return tests, err
}

// Log reads a Test build's log from a byte offset. More may follow unless the part says that it has ended.
func (s *Service) Log(ctx context.Context, g access.Grant, id string, from int64, max int) (fleet.LogPart, error) {
	test, err := s.TestBuild(ctx, g, id)
	if err != nil {
		return fleet.LogPart{}, err
	}
	part, err := s.fleet.ReadLog(ctx, test.assignment, from, max)
	part.Ended = part.Ended || (test.Final() && test.State == Lost)
	return part, err
}

// LogTopic is woken when the Test build's log grows.
func (s *Service) LogTopic(t TestBuild) string { return fleet.LogTopic(t.assignment) }

func scanTest(scan func(...any) error) (TestBuild, error) {
	var t TestBuild
	var spec, detail string
	var created, finished int64
	err := scan(&t.ID, &t.environment, &t.Revision, &spec, &t.TestKey, &t.Runner, &t.assignment, &t.State, &t.CancelledBy,
		&created, &t.CreatedBy, &finished, &detail, &t.ImageDigest, &t.BuildKey, &t.PullRequest, &t.Commit, &t.branch, &t.Withheld)
	if err != nil {
		return TestBuild{}, err
	}
	t.CreatedAt = time.UnixMilli(created)
	if finished != 0 {
		t.FinishedAt = time.UnixMilli(finished)
	}
	if err := json.Unmarshal([]byte(detail), &t.Detail); err != nil {
		return TestBuild{}, fmt.Errorf("decode Test build %s: %w", t.ID, err)
	}
	return t, decode(spec, &t.Spec)
}
