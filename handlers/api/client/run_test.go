package client_test

import (
	"bytes"
	"testing"

	"github.com/claude-hub/claude-hub/app/apptest"
	"github.com/claude-hub/claude-hub/handlers/api/client"
	"github.com/claude-hub/claude-hub/handlers/api/schema"
	"github.com/claude-hub/claude-hub/runner/wire"
	"github.com/claude-hub/claude-hub/store/storetest"
)

func TestARunIsStartedFollowedAndStoppedThroughTheAPI(t *testing.T) {
	t.Parallel()
	h := newHub(t, storetest.New(t), apptest.Options{})
	r, _, sn := h.running()
	asked := schema.StartRun{Argv: []string{"make", "all"}, Dir: "src", User: "root", TimeLimitMS: 60_000}
	run, err := h.StartRun(t.Context(), repo, sn.ID, asked)
	if err != nil || run.State != "waiting" || run.Command != "make all" || run.CreatedBy != "ana" {
		t.Fatalf("%+v, %v", run, err)
	}
	var item *wire.Item
	for _, it := range r.Items() {
		if it.GetKind() == wire.KindRun {
			item = it
		}
	}
	var p wire.Run
	if r.Fetch(item, &p); p.Dir != "src" || p.User != "root" || p.LimitMS != 60_000 || len(p.Argv) != 2 {
		t.Errorf("the Runner gets %+v", p)
	}
	r.MustReport(item, wire.StateRunning, wire.RunDetail{Started: 1000})
	if all := must(h.Runs(t.Context(), repo, sn.ID))(t); len(all) != 1 || all[0].State != "running" || all[0].StartedAt == nil || all[0].Exit != nil {
		t.Errorf("%+v", all)
	}
	if run = must(h.StopRun(t.Context(), repo, sn.ID, run.ID))(t); !run.Stopping {
		t.Errorf("%+v", run)
	}
	h.faults.every = 3
	done := make(chan error, 1)
	go func() {
		if err := h.logs(r, item, 0, "one\n", false); err != nil {
			done <- err
			return
		}
		if err := h.logs(r, item, 4, "two\n", true); err != nil {
			done <- err
			return
		}
		done <- r.Report(item, wire.StateEnded, wire.RunDetail{Started: 1000, Exit: &wire.ChannelExit{Code: 143, Signal: "SIGTERM"}})
	}()
	var got bytes.Buffer
	if _, err := h.CopyLog(t.Context(), client.RunLog(repo, sn.ID, run.ID), client.Follow{Live: true}, &got); err != nil || got.String() != "one\ntwo\n" {
		t.Errorf("%q, %v", got.String(), err)
	}
	run, err = h.WaitRun(t.Context(), repo, sn.ID, run.ID)
	if err != nil || run.State != "ended" || run.Exit == nil || run.Exit.Code != 143 || run.Stopping {
		t.Errorf("%+v, %v", run, err)
	}
	if err := <-done; err != nil {
		t.Fatal(err)
	}
}
