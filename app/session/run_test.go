package session_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/claude-hub/claude-hub/app/apptest"
	"github.com/claude-hub/claude-hub/app/fault"
	"github.com/claude-hub/claude-hub/app/session"
	"github.com/claude-hub/claude-hub/envspec"
	"github.com/claude-hub/claude-hub/runner/wire"
	"github.com/claude-hub/claude-hub/store"
	"github.com/claude-hub/claude-hub/store/storetest"
)

func (r *rig) start(argv ...string) (session.Run, error) {
	return r.Sessions.StartRun(r.Context(), r.ana, r.sn.ID, session.RunInput{Argv: argv})
}

func (r *rig) started(argv ...string) (session.Run, *wire.Item) {
	r.Helper()
	before := r.runner.Items()
	run, err := r.start(argv...)
	r.must(err)
	for _, item := range r.runner.Items() {
		if item.GetKind() == wire.KindRun && !slices.ContainsFunc(before, func(old *wire.Item) bool { return old.GetId() == item.GetId() }) {
			return run, item
		}
	}
	r.Fatal("the Runner is not told of the run")
	return run, nil
}

func (r *rig) run(id string) session.Run {
	r.Helper()
	run, err := r.Sessions.Run(r.Context(), r.ana, r.sn.ID, id)
	r.must(err)
	return run
}

// finish has the Runner report a run's end, and give it up when it is told to.
func (r *rig) finish(item *wire.Item, exit wire.ChannelExit) {
	r.Helper()
	r.runner.MustReport(item, wire.StateEnded, wire.RunDetail{Started: 1000, Exit: &exit})
	for _, left := range r.runner.Items() {
		if left.GetId() == item.GetId() {
			if left.GetWant() != wire.WantRemove {
				r.Fatalf("of a run that has ended the Runner is told %v", left)
			}
			r.runner.MustReport(left, wire.StateRemoved, wire.RunDetail{})
		}
	}
}

func TestARunIsWhatItsRunnerSaysAndItsEndIsFinal(t *testing.T) {
	t.Parallel()
	storetest.Each(t, func(t *testing.T, db *store.DB) {
		r := setup(t, db)
		run, item := r.started("claude", "-p", "What's wrong?")
		var p wire.Run
		r.runner.Fetch(item, &p)
		if run.State() != session.RunWaiting || run.Command != `claude -p 'What'\''s wrong?'` || run.CreatedBy != "ana" ||
			fmt.Sprint(p.Argv) != "[claude -p What's wrong?]" || p.Session == "" || p.LimitMS != 0 {
			t.Fatalf("%+v, payload %+v", run, p)
		}
		r.runner.MustReport(item, wire.StateRunning, wire.RunDetail{Started: 1000})
		if run = r.run(run.ID); run.State() != session.RunRunning || run.StartedAt.UnixMilli() != 1000 {
			t.Fatalf("%+v", run)
		}
		r.finish(item, wire.ChannelExit{Code: 3})
		if err := r.runner.Report(item, wire.StateEnded, wire.RunDetail{Exit: &wire.ChannelExit{Code: 4}}); err != nil {
			t.Fatal(err)
		}
		if run = r.run(run.ID); run.State() != session.RunEnded || run.Exit.Code != 3 {
			t.Fatalf("%+v", run)
		}
		r.must(r.Sessions.StopRun(t.Context(), r.ana, r.sn.ID, run.ID)) // of one that has ended: nothing
		other, err := r.Sessions.Start(t.Context(), r.ana, session.StartInput{})
		r.must(err)
		_, err = r.Sessions.Run(t.Context(), r.ana, other.ID, run.ID)
		wantFault(t, err, fault.NotFound, "no such run")
	})
}

func TestTheLogOfARunEndsWhenItsRunnerHasBroughtItOrLongAfterTheRun(t *testing.T) {
	t.Parallel()
	r := setup(t, storetest.New(t))
	ended := func(run session.Run) (string, bool) {
		t.Helper()
		part, err := r.Sessions.RunLog(t.Context(), r.ana, r.sn.ID, run.ID, 0, 100)
		r.must(err)
		var text []byte
		for _, c := range part.Chunks {
			text = append(text, c.Data...)
		}
		return string(text), part.Ended
	}
	run, item := r.started("true")
	r.finish(item, wire.ChannelExit{}) // the report came before the log
	if text, over := ended(run); text != "" || over {
		t.Fatalf("before its log has come, that is %q, ended %v", text, over)
	}
	_, err := r.Fleet.AppendLog(t.Context(), r.runner.ID, &wire.AppendLogRequest{Id: item.GetId(), Fence: item.GetFence(), Data: []byte("out\n"), End: true})
	r.must(err)
	if text, over := ended(run); text != "out\n" || !over {
		t.Fatalf("the log is %q, ended %v", text, over)
	}
	run, item = r.started("true")
	r.finish(item, wire.ChannelExit{})
	r.clock.Advance(20 * time.Second)
	if _, over := ended(run); !over {
		t.Fatal("a log that never comes is waited for")
	}
}

func TestARunWakesItsSession(t *testing.T) {
	t.Parallel()
	r := setup(t, storetest.New(t))
	r.must(r.Sessions.Sleep(t.Context(), r.ana, r.sn.ID))
	r.started("true")
	r.want(session.Waking) // it was only about to
	r.runner.MustReport(r.item(), wire.StateRunning, wire.SessionDetail{Workspace: true, Version: 1})
	r.must(r.Sessions.Sleep(t.Context(), r.ana, r.sn.ID))
	r.runner.MustReport(r.item(), wire.StateAsleep, wire.SessionDetail{Workspace: true, Version: 1})
	r.want(session.Asleep)
	_, item := r.started("true")
	r.want(session.Waking)
	if got := r.item().GetWant(); got != wire.WantRun || item.GetWant() != wire.WantRun {
		t.Fatalf("the Runner is told %s", got)
	}
}

// runItem is what the Hub wants of the newest run.
func (r *rig) runItem() *wire.Item {
	r.Helper()
	var found *wire.Item
	for _, item := range r.runner.Items() {
		if item.GetKind() == wire.KindRun {
			found = item
		}
	}
	return found
}

func TestARunIsRefusedWhereItCouldNotBegin(t *testing.T) {
	t.Parallel()
	r := setup(t, storetest.New(t))
	for _, c := range []struct {
		in   session.RunInput
		says string
	}{
		{session.RunInput{}, "Say what to run"}, {session.RunInput{Argv: []string{""}}, "Say what to run"},
		{session.RunInput{Argv: []string{"a\x00b"}}, "zero byte"}, {session.RunInput{Argv: []string{strings.Repeat("a", 256<<10)}}, "at most"},
		{session.RunInput{Argv: []string{"a"}, Limit: time.Millisecond}, "a second at least"}, {session.RunInput{Argv: []string{"a"}, Limit: 8 * 24 * time.Hour}, "at most 7 days"},
	} {
		_, err := r.Sessions.StartRun(t.Context(), r.ana, r.sn.ID, c.in)
		if f := fault.Of(err); f.Code != fault.Invalid || !strings.Contains(fmt.Sprint(f.Message, f.Fields), c.says) {
			t.Errorf("%v: want %q, got %v", c.in.Argv, c.says, err)
		}
	}
	var items []*wire.Item
	for range session.MaxRuns {
		_, item := r.started("true")
		items = append(items, item)
	}
	_, err := r.start("true")
	wantFault(t, err, fault.Refused, "8 runs wait or run")
	r.finish(items[0], wire.ChannelExit{})
	r.started("true")
	r.finish(items[1], wire.ChannelExit{})

	r.must(r.restart())
	_, err = r.start("true")
	wantFault(t, err, fault.Refused, "restarts just now")
	r.pass(6*time.Minute, true)
	r.want(session.Failed)
	_, err = r.start("true")
	wantFault(t, err, fault.Refused, "try it again")
	r.must(r.Sessions.Delete(t.Context(), r.ana, r.sn.ID, r.sn.ID))
	_, err = r.start("true")
	wantFault(t, err, fault.Refused, "deleting")
}

func TestARunNeedsARunnerThatKnowsRuns(t *testing.T) {
	t.Parallel()
	h := apptest.New(t, storetest.New(t), apptest.Options{})
	r := &rig{T: t, Hub: h, ana: h.Grant("ana"), runner: h.OldRunner("old", wire.Protocol-1)}
	r.Applied(r.ana, r.runner, spec())
	sn, err := r.Sessions.Start(t.Context(), r.ana, session.StartInput{})
	r.must(err)
	r.sn = sn
	_, err = r.start("true")
	wantFault(t, err, fault.Refused, "too old to take headless runs")
}

func TestStoppingARunAsksItsRunnerOnce(t *testing.T) {
	t.Parallel()
	r := setup(t, storetest.New(t))
	run, item := r.started("sleep", "9")
	for range 2 {
		r.must(r.Sessions.StopRun(t.Context(), r.ana, r.sn.ID, run.ID))
	}
	now := r.runItem()
	if now.GetWant() != wire.WantStop || now.GetGeneration() != item.GetGeneration()+1 || !r.run(run.ID).Stopping {
		t.Fatalf("the Runner is told %v, the run is %+v", now, r.run(run.ID))
	}
	r.finish(now, wire.ChannelExit{Code: 143, Signal: "SIGTERM"})
	if run = r.run(run.ID); run.State() != session.RunEnded || run.Exit.Signal != "SIGTERM" {
		t.Fatalf("%+v", run)
	}
}

func TestOnlyTheNewestRunsAreKeptAndNoneOfADeletedSession(t *testing.T) {
	t.Parallel()
	r := setup(t, storetest.New(t))
	var first session.Run
	for i := range session.KeptRuns + 2 {
		run, item := r.started("echo", fmt.Sprint(i))
		if i == 0 {
			first = run
		}
		r.finish(item, wire.ChannelExit{})
	}
	_, item := r.started("true")
	all, err := r.Sessions.Runs(t.Context(), r.ana, r.sn.ID)
	if err != nil || len(all) != session.KeptRuns+1 || all[0].Command != "true" || all[1].Command != fmt.Sprintf("echo %d", session.KeptRuns+1) {
		t.Fatalf("%d runs, %v", len(all), err)
	}
	_, err = r.Sessions.Run(t.Context(), r.ana, r.sn.ID, first.ID)
	wantFault(t, err, fault.NotFound, "no such run")
	r.must(r.Sessions.Delete(t.Context(), r.ana, r.sn.ID, r.sn.ID))
	r.runner.MustReport(r.item(), wire.StateRemoved, wire.SessionDetail{})
	var left int
	r.must(r.DB.Read(t.Context(), func(tx *store.Tx) error {
		return tx.Row(`SELECT (SELECT COUNT(*) FROM runs) + (SELECT COUNT(*) FROM assignments WHERE kind = 'run')`).Scan(&left)
	}))
	if left != 0 || slices.ContainsFunc(r.runner.Items(), func(i *wire.Item) bool { return i.GetId() == item.GetId() }) {
		t.Fatalf("%d rows of runs are left of a deleted Session", left)
	}
}

func TestNoSensitiveValueIsShownOrKeptOfACommand(t *testing.T) {
	t.Parallel()
	r := setup(t, storetest.New(t))
	const value = "it's correct horse battery"
	s := spec()
	s.Variables = []envspec.Variable{{Name: "SECRET", Sensitive: true}}
	r.AppliedWith(r.ana, r.runner, s, map[string][]byte{"SECRET": []byte(value)})
	r.must(r.restart())
	r.runner.MustReport(r.item(), wire.StateAsleep, wire.SessionDetail{Workspace: true, Version: 1})
	r.runner.MustReport(r.item(), wire.StateRunning, wire.SessionDetail{Workspace: true, Version: 2})
	run, item := r.started("login", "--with="+value)
	if strings.Contains(run.Command, "horse") || !strings.HasPrefix(run.Command, "login ") {
		t.Errorf("people see %q", run.Command)
	}
	var p wire.Run
	r.runner.Fetch(item, &p)
	if len(p.Argv) != 2 || p.Argv[1] != "--with="+value {
		t.Errorf("the Runner gets %q", p.Argv)
	}
	r.finish(item, wire.ChannelExit{})
	var kept int
	r.must(r.DB.Read(t.Context(), func(tx *store.Tx) error {
		return tx.Row(`SELECT COUNT(*) FROM runs WHERE spec LIKE '%horse%' OR command LIKE '%horse%'`).Scan(&kept)
	}))
	if kept != 0 {
		t.Error("the value is still in the database after the run")
	}
}
