package fleet

import (
	"testing"

	"github.com/claude-hub/claude-hub/runner/wire"
	"github.com/claude-hub/claude-hub/store"
	"github.com/claude-hub/claude-hub/store/storetest"
)

// Which of the Runner's calls reaches a Hub first that was restarted is chance: none may tell it to end a terminal.
func TestATerminalLivesOnWhicheverCallReachesARestartedHubFirst(t *testing.T) {
	t.Parallel()
	storetest.Each(t, func(t *testing.T, db *store.DB) {
		r := newRig(t, db, Options{})
		a := r.assign(r.runner("r1"), "s1", 0)
		term, err := r.OpenTerminal(t.Context(), a.ID, "ana", wire.ChannelSpec{})
		if err != nil {
			t.Fatal(err)
		}
		for name, q := range map[string]*wire.ExchangeRequest{
			"asks for input": {}, "brings output": {Out: []*wire.Piece{out(1, 0, "abc")}},
		} {
			restarted := New(db, Options{})
			restarted.Own(kind, r.owner)
			q.Channel, q.Assignment, q.Fence = term.ID, a.ID, a.Fence
			if res, err := restarted.Exchange(t.Context(), a.Runner, q); err != nil || res.GetGone() {
				t.Errorf("a call that %s is answered %v, %v", name, res, err)
			}
		}
		if err := r.CloseTerminal(t.Context(), term.ID); err != nil {
			t.Fatal(err)
		}
		restarted := New(db, Options{})
		restarted.Own(kind, r.owner)
		res, err := restarted.Exchange(t.Context(), a.Runner, &wire.ExchangeRequest{Channel: term.ID, Assignment: a.ID, Fence: a.Fence})
		if err != nil || !res.GetGone() {
			t.Errorf("of one that was closed it is told %v, %v", res, err)
		}
	})
}
