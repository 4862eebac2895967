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

// What a process dropped can be more than the Hub lets it be ahead of those who look: they can't take what doesn't come.
func TestATerminalGoesOnAfterMoreWasDroppedThanItMayBeAhead(t *testing.T) {
	t.Parallel()
	r := newRig(t, storetest.New(t), Options{})
	a := r.assign(r.runner("r1"), "s1", 0)
	term, err := r.OpenTerminal(t.Context(), a.ID, "ana", wire.ChannelSpec{})
	if err != nil {
		t.Fatal(err)
	}
	l := &line{r, a, term.ID}
	look := Look{Viewer: "tab", Most: 1 << 10}
	if _, err := r.LookAt(t.Context(), term.ID, look); err != nil {
		t.Fatal(err)
	}
	l.serve(&wire.ExchangeRequest{Out: []*wire.Piece{out(1, 0, "before")}})
	const after = 6 + 2*terminalAhead
	l.serve(&wire.ExchangeRequest{Out: []*wire.Piece{out(1, after, "")}})
	res := l.serve(&wire.ExchangeRequest{Out: []*wire.Piece{out(1, after, "after")}})
	if got, want := res.GetOut1(), int64(after+len("after")); got != want {
		t.Fatalf("the Hub takes output up to %d, want %d", got, want)
	}
	look.From, look.Taken = 6, 6
	if v, err := r.LookAt(t.Context(), term.ID, look); err != nil || string(v.Data) != "after" || v.Offset != after {
		t.Errorf("who looks gets %+v, %v", v, err)
	}
}
