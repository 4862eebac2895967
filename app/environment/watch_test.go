package environment_test

import (
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/claude-hub/claude-hub/app/access"
	"github.com/claude-hub/claude-hub/app/apptest"
	"github.com/claude-hub/claude-hub/app/environment"
	"github.com/claude-hub/claude-hub/runner/wire"
	"github.com/claude-hub/claude-hub/store"
	"github.com/claude-hub/claude-hub/store/storetest"
)

// watch keeps what a Watcher is told, once for each commit.
func watch(h *apptest.Hub) (told func() []string) {
	var all []string
	h.Environments.Watch(func(tx *store.Tx, repo access.Repo, b environment.TestBuild) error {
		if repo.ID != apptest.RepoID {
			return fmt.Errorf("told of Repo %d", repo.ID)
		}
		says := b.State
		if n := len(b.Detail.Phases); n > 0 {
			says += " " + b.Detail.Phases[n-1].Name
		}
		if b.CancelledBy != "" {
			says += " cancelled"
		}
		tx.After(func() { all = append(all, says) })
		return nil
	})
	return func() []string {
		now := all
		all = nil
		return now
	}
}

func TestAWatcherIsToldOfEachChangeOfATestBuildInItsTransaction(t *testing.T) {
	t.Parallel()
	storetest.Each(t, func(t *testing.T, db *store.DB) {
		clock := storetest.NewClock(db)
		h := apptest.New(t, db, apptest.Options{})
		ana, r := h.Grant("ana"), h.Runner("r1")
		told := watch(h)
		wantTold := func(want ...string) {
			t.Helper()
			if got := told(); !slices.Equal(got, want) {
				t.Fatalf("told of %q, want %q", got, want)
			}
		}
		draft, err := h.Environments.Save(t.Context(), ana, 0, spec(), nil)
		if err != nil {
			t.Fatal(err)
		}
		start := func() environment.TestBuild {
			t.Helper()
			test, err := h.Environments.Test(t.Context(), ana, draft.Revision, "r1")
			if err != nil {
				t.Fatal(err)
			}
			return test
		}

		start()
		wantTold("queued")
		item := r.Item()
		r.MustReport(item, wire.StateRunning, wire.TestBuildDetail{Phases: []wire.Phase{{Name: wire.PhaseImage, State: wire.PhaseRunning}}})
		wantTold("running image")
		r.MustReport(item, wire.StateRunning, wire.TestBuildDetail{Phases: []wire.Phase{{Name: wire.PhaseImage}, {Name: wire.PhaseBootstrap}}})
		wantTold("running bootstrap")
		r.MustReport(item, wire.StateFailed, wire.TestBuildDetail{Failure: &wire.Failure{Phase: wire.PhaseBootstrap}})
		wantTold("failed")
		r.MustReport(item, wire.StateRunning, wire.TestBuildDetail{}) // too late
		wantTold()
		r.MustReport(r.Item(), wire.StateRemoved, wire.TestBuildDetail{})

		test := start()
		for range 2 { // asking again changes nothing
			if err := h.Environments.Cancel(t.Context(), ana, test.ID); err != nil {
				t.Fatal(err)
			}
		}
		wantTold("queued", "queued cancelled")
		r.MustReport(r.Item(), wire.StateCancelled, wire.TestBuildDetail{})
		wantTold("cancelled cancelled")
		r.MustReport(r.Item(), wire.StateRemoved, wire.TestBuildDetail{})

		start()
		wantTold("queued")
		for range 16 { // a lease and more of silence, while the Hub is up
			clock.Advance(5 * time.Second)
			if err := h.Fleet.RunOnce(t.Context()); err != nil {
				t.Fatal(err)
			}
		}
		wantTold("lost")
	})
}

func TestAChangeThatAWatcherCannotTakeIsNotMade(t *testing.T) {
	t.Parallel()
	h := apptest.New(t, storetest.New(t), apptest.Options{})
	ana, r := h.Grant("ana"), h.Runner("r1")
	var refuse error
	h.Environments.Watch(func(*store.Tx, access.Repo, environment.TestBuild) error { return refuse })
	draft, err := h.Environments.Save(t.Context(), ana, 0, spec(), nil)
	if err != nil {
		t.Fatal(err)
	}
	refuse = errors.New("not now")
	if _, err := h.Environments.Test(t.Context(), ana, draft.Revision, "r1"); !errors.Is(err, refuse) {
		t.Fatalf("got %v", err)
	}
	if tests, err := h.Environments.TestBuilds(t.Context(), ana, 9); err != nil || len(tests) != 0 || len(r.Items()) != 0 {
		t.Fatalf("there is one nevertheless: %v, %v", tests, err)
	}
	refuse = nil
	test, err := h.Environments.Test(t.Context(), ana, draft.Revision, "r1")
	if err != nil {
		t.Fatal(err)
	}
	refuse = errors.New("not now")
	item := r.Item()
	passed := wire.TestBuildDetail{ImageDigest: apptest.Digest, BuildKey: apptest.BuildKey}
	if err := r.Report(item, wire.StatePassed, passed); err == nil {
		t.Fatal("the Runner was told that its report is stored")
	}
	refuse = nil
	r.MustReport(item, wire.StatePassed, passed) // it reports again
	if got, err := h.Environments.TestBuild(t.Context(), ana, test.ID); err != nil || got.State != environment.Passed {
		t.Fatalf("%+v, %v", got, err)
	}
}
