package cmd

import (
	"bytes"
	"context"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/spf13/cobra"

	"github.com/claude-hub/claude-hub/handlers/api/client"
	"github.com/claude-hub/claude-hub/handlers/api/schema"
	"github.com/claude-hub/claude-hub/runner/wire"
)

func TestASessionIsWaitedForUntilItsStartScriptEnded(t *testing.T) {
	t.Parallel()
	in := func(state, phase, phaseState string) schema.Session {
		s := schema.Session{State: state}
		s.Detail.Phases = []wire.Phase{{Name: wire.PhaseBoot, State: "done"}, {Name: phase, State: phaseState}}
		return s
	}
	for _, c := range []struct {
		s    schema.Session
		want string
		done bool
	}{
		{in("waking", wire.PhaseStart, "done"), running, false}, // of the boot before
		{in(running, wire.PhaseStart, "running"), running, false},
		{in(running, wire.PhaseStart, "done"), running, true},
		{in(running, wire.PhaseStart, "failed"), running, true},
		{in(running, wire.PhaseStart, "skipped"), running, true},
		{in("failed", wire.PhaseBoot, "failed"), running, true},
		{in("stopping", wire.PhaseStart, "running"), asleep, false},
		{in(asleep, wire.PhaseStart, "running"), asleep, true}, // its script was stopped with its Sandbox
		{schema.Session{State: "starting", Unreachable: true}, running, true},
	} {
		if got := settled(c.want)(c.s); got != c.done {
			t.Errorf("%s, its start script %s: settled %v, want %v", c.s.State, newestPhase(c.s).State, got, c.done)
		}
	}
}

func TestCtrlCEndsTheWaitingAndKeepsTheSessionsID(t *testing.T) {
	t.Parallel()
	ctx, interrupt := context.WithCancel(t.Context())
	hub := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		interrupt()
		<-r.Context().Done() // the long poll ends with its client
	}))
	defer hub.Close()
	c, err := client.New(hub.URL, "token", nil)
	if err != nil {
		t.Fatal(err)
	}
	var said bytes.Buffer
	command := &cobra.Command{}
	command.SetContext(ctx)
	command.SetErr(&said)
	s, err := waitFor(command, c, schema.Session{ID: "5e55", State: "starting"}, running)
	if s.ID != "5e55" || err == nil || !strings.Contains(err.Error(), "the Session goes on") || said.Len() > 0 {
		t.Errorf("got %q, %v, and said %q", s.ID, err, said.String())
	}
}

func TestAMistypedCommandIsAUsageErrorAtEveryDepth(t *testing.T) {
	t.Parallel()
	for _, args := range [][]string{{"sesion"}, {"session", "strat"}, {"env", "set"}, {"image", "get"}, {"runner", "list-all"}} {
		root := rootCommand()
		root.SetArgs(args)
		if err := root.Execute(); err == nil || exitCode(err) != exitUsage {
			t.Errorf("%q: got %v, want a usage error", args, err)
		}
	}
}
