package environment_test

import (
	"testing"

	"github.com/claude-hub/claude-hub/app/access"
	"github.com/claude-hub/claude-hub/app/apptest"
	"github.com/claude-hub/claude-hub/app/environment"
	"github.com/claude-hub/claude-hub/runner/wire"
	"github.com/claude-hub/claude-hub/store"
	"github.com/claude-hub/claude-hub/store/storetest"
)

func TestARepoThatTheAppLeavesHasItsTestBuildsCancelled(t *testing.T) {
	t.Parallel()
	storetest.Each(t, func(t *testing.T, db *store.DB) {
		h := apptest.New(t, db, apptest.Options{})
		ana, one, two := h.Grant("ana"), h.Runner("r1"), h.Runner("r2")
		other, err := h.Gate.Repo(t.Context(), ana.Who(), apptest.RepoID+1)
		if err != nil {
			t.Fatal(err)
		}
		start := func(g access.Grant, r *apptest.Runner) environment.TestBuild {
			t.Helper()
			env, err := h.Environments.Get(t.Context(), g)
			if err == nil && env.Draft == nil {
				_, err = h.Environments.Save(t.Context(), g, 0, spec(), nil)
			}
			if err != nil {
				t.Fatal(err)
			}
			if env, err = h.Environments.Get(t.Context(), g); err != nil {
				t.Fatal(err)
			}
			test, err := h.Environments.Test(t.Context(), g, env.Draft.Revision, r.ID)
			if err != nil {
				t.Fatal(err)
			}
			return test
		}
		ended := start(ana, one)
		one.Pass(one.Item())
		start(ana, one)
		queued := start(ana, two)
		start(other, two)
		changes := map[string]int{}
		h.Environments.Watch(func(_ *store.Tx, _ access.Repo, b environment.TestBuild) error {
			changes[b.ID]++
			return nil
		})

		for range 2 { // a delivery comes twice
			if err := h.Environments.CancelAll(t.Context(), apptest.RepoID, "The App was removed."); err != nil {
				t.Fatal(err)
			}
		}
		if want := one.Item().GetWant(); want != wire.WantStop {
			t.Errorf("the first Runner is told to %s", want)
		}
		stopped := 0
		for _, item := range two.Items() {
			if item.GetWant() == wire.WantStop {
				stopped++
			}
		}
		if stopped != 1 {
			t.Errorf("of a Runner's two Test builds %d are stopped, not only the one of the Repo", stopped)
		}
		if len(changes) != 2 || changes[queued.ID] != 1 {
			t.Errorf("watchers heard %v", changes)
		}
		if got, err := h.Environments.TestBuild(t.Context(), ana, ended.ID); err != nil || got.State != environment.Passed || got.CancelledBy != "" {
			t.Errorf("what had passed is %+v, %v", got, err)
		}
		if got, err := h.Environments.TestBuild(t.Context(), ana, queued.ID); err != nil || got.CancelledBy != "system: The App was removed." {
			t.Errorf("cancelled by %q, %v", got.CancelledBy, err)
		}
		one.MustReport(one.Item(), wire.StateCancelled, wire.TestBuildDetail{})
		tests, err := h.Environments.TestBuilds(t.Context(), ana, 10)
		if err != nil {
			t.Fatal(err)
		}
		said := 0
		for _, b := range tests {
			if b.State == environment.Cancelled && b.Detail.Failure != nil && b.Detail.Failure.Message == "Cancelled by the Hub: The App was removed." {
				said++
			}
		}
		if said != 1 {
			t.Errorf("of a Test build that ended %d say why", said)
		}
		if err := h.Environments.CancelAll(t.Context(), 4711, "Nothing there."); err != nil {
			t.Errorf("a Repo that the Hub doesn't know: %v", err)
		}
	})
}
