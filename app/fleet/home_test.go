package fleet

import (
	"context"
	"errors"
	"runtime"
	"testing"
	"time"

	"github.com/claude-hub/claude-hub/app/fault"
	"github.com/claude-hub/claude-hub/runner/wire"
	"github.com/claude-hub/claude-hub/store"
	"github.com/claude-hub/claude-hub/store/storetest"
)

const (
	peerA = "http://a.example:7780"
	peerB = "http://b.example:7780"
)

// twoHomes are two Hubs on one database, with a Runner that reached A first.
func twoHomes(t *testing.T, db *store.DB) (a *rig, b *Fleet, held Assignment) {
	t.Helper()
	a = newRig(t, db, Options{PeerURL: peerA})
	b = New(db, Options{PeerURL: peerB})
	b.Own(kind, a.owner)
	t.Cleanup(b.Stop)
	for _, f := range []*Fleet{a.Fleet, b} {
		if err := f.RunOnce(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	held = a.assign(a.runner("r1"), "s1", 0)
	settles(t, a.Fleet, held.Runner, "", "")
	return a, b, held
}

// settles has a Runner's call come to a Hub, and says where it should be answered: "" here.
func settles(t *testing.T, f *Fleet, runner, away, want string) {
	t.Helper()
	if peer, err := f.Settle(t.Context(), runner, away); err != nil || peer != want {
		t.Fatalf("a Runner's call is answered at %q, %v; want %q", peer, err, want)
	}
}

func asks(t *testing.T, f *Fleet, runner, want string) {
	t.Helper()
	if peer, err := f.Home(t.Context(), runner); err != nil || peer != want {
		t.Fatalf("what is about the Runner is answered at %q, %v; want %q", peer, err, want)
	}
}

func TestTheHubThatARunnerReachedFirstHasItsChannelsUntilItIsGone(t *testing.T) {
	t.Parallel()
	storetest.Each(t, func(t *testing.T, db *store.DB) {
		a, b, held := twoHomes(t, db)
		asks(t, a.Fleet, held.Runner, "")
		asks(t, b, held.Runner, peerA)
		settles(t, b, held.Runner, "", peerA)
		settles(t, b, held.Runner, "http://c.example", peerA) // another one is away

		// It stops saying that it is there: asking changes nothing, the Runner's own call does.
		a.clock.add(homeLive + time.Second)
		asks(t, b, held.Runner, "")
		if err := b.RunOnce(t.Context()); err != nil {
			t.Fatal(err)
		}
		asks(t, a.Fleet, held.Runner, "")
		settles(t, b, held.Runner, "", "")
		asks(t, a.Fleet, held.Runner, peerB)
		settles(t, a.Fleet, held.Runner, "", peerB)

		// It is there, but takes no connections.
		a.reap()
		settles(t, a.Fleet, held.Runner, peerB, "")
		asks(t, b, held.Runner, peerA)

		// It ends in good order.
		a.Stop()
		asks(t, b, held.Runner, "")
		settles(t, b, held.Runner, "", "")
	})
}

func TestAHubWithoutAPeerURLHasEverythingItself(t *testing.T) {
	t.Parallel()
	a, _, held := twoHomes(t, storetest.New(t))
	alone := New(a.db, Options{})
	settles(t, alone, held.Runner, "", "")
	asks(t, alone, held.Runner, "")
	asks(t, a.Fleet, held.Runner, "")
}

func TestAHubThatWasKilledIsItsOwnSuccessorUnderItsAddress(t *testing.T) {
	t.Parallel()
	a, b, held := twoHomes(t, storetest.New(t))
	again := New(a.db, Options{PeerURL: peerA})
	t.Cleanup(again.Stop)
	if err := again.RunOnce(t.Context()); err != nil {
		t.Fatal(err)
	}
	settles(t, b, held.Runner, "", peerA) // passed on to there, where
	settles(t, again, held.Runner, "", "")
	asks(t, b, held.Runner, peerA)
}

// What waits at the Hub that lost a Runner ends with an error that has everybody try again: nobody is told that it is gone.
func TestWhatWaitsAtAHubThatLostARunnerTriesAgainElsewhere(t *testing.T) {
	t.Parallel()
	a, b, held := twoHomes(t, storetest.New(t))
	term, err := a.OpenTerminal(t.Context(), held.ID, "ana", wire.ChannelSpec{})
	if err != nil {
		t.Fatal(err)
	}
	command, err := a.OpenChannel(t.Context(), held.ID, wire.ChannelSpec{Argv: []string{"cat"}})
	if err != nil {
		t.Fatal(err)
	}
	serve := func(ctx context.Context, f *Fleet, id string, wait time.Duration, text string) (*wire.ExchangeResponse, error) {
		q := &wire.ExchangeRequest{Channel: id, Assignment: held.ID, Fence: held.Fence, WaitMs: wait.Milliseconds()}
		if text != "" {
			q.Out = []*wire.Piece{out(1, 0, text)}
		}
		return f.Exchange(ctx, held.Runner, q)
	}
	if _, err := serve(t.Context(), a.Fleet, term.ID, 0, "before"); err != nil {
		t.Fatal(err)
	}
	waiting := map[string]func() error{
		"who looks": func() error {
			_, err := a.LookAt(t.Context(), term.ID, Look{Viewer: "v", From: 6, Most: 9, Wait: maxPoll})
			return err
		},
		"the Runner, for a command": func() error { _, err := serve(t.Context(), a.Fleet, command, maxPoll, ""); return err },
		"who runs a command":        func() error { _, err := a.ClientExchange(t.Context(), command, ClientMove{Wait: maxPoll}); return err },
	}
	type end struct {
		who string
		err error
	}
	ended := make(chan end, len(waiting))
	a.clock.add(time.Millisecond)
	for who, wait := range waiting {
		go func() { ended <- end{who, wait()} }()
	}
	for waits := false; !waits; {
		a.channels.mu.Lock()
		c := a.channels.byID[command]
		waits = c.picked && c.client.Equal(a.clock.Now()) && a.channels.byID[term.ID].term.viewers["v"] != nil
		a.channels.mu.Unlock()
		runtime.Gosched()
	}
	settles(t, b, held.Runner, peerA, "")
	a.reap()
	for range waiting {
		if e := <-ended; !fault.Is(e.err, fault.Unavailable) {
			t.Errorf("%s is told %v, want to try again", e.who, e.err)
		}
	}

	// The old Hub has nothing of it any more, whoever asks it; the new one has the terminal, and no command.
	if _, _, err := a.TerminalOf(t.Context(), term.ID); err != nil {
		t.Fatal(err)
	}
	if _, err := a.LookAt(t.Context(), term.ID, Look{Viewer: "v", From: -1}); !errors.Is(err, ErrNoChannel) {
		t.Errorf("the old Hub shows the terminal: %v", err)
	}
	if res, err := serve(t.Context(), b, term.ID, 0, "before and after"); err != nil || res.GetGone() {
		t.Fatalf("the new Hub refuses the terminal: %v %v", res, err)
	}
	if v, err := b.LookAt(t.Context(), term.ID, Look{Viewer: "v", From: -1, Most: 99}); err != nil || string(v.Data) != "before and after" {
		t.Errorf("the new Hub shows %q, %v", v.Data, err)
	}
	if res, err := serve(t.Context(), b, command, 0, ""); err != nil || !res.GetGone() {
		t.Errorf("the command's process is not ended: %v %v", res, err)
	}

	// Back at the first, which shows nothing of what it had.
	settles(t, a.Fleet, held.Runner, peerB, "")
	if res, err := serve(t.Context(), a.Fleet, term.ID, 0, "newest"); err != nil || res.GetOut1() != 6 {
		t.Fatalf("the first Hub takes %v, %v", res, err)
	}
	if v, err := a.LookAt(t.Context(), term.ID, Look{Viewer: "v", From: -1, Most: 99}); err != nil || string(v.Data) != "newest" {
		t.Errorf("the first Hub shows %q, %v", v.Data, err)
	}
}

// The list of a Hub that isn't a Runner's home yet, or no longer, would end every shell that the Runner serves.
func TestAHubThatIsNotARunnersHomeEndsNothingOfIt(t *testing.T) {
	t.Parallel()
	storetest.Each(t, func(t *testing.T, db *store.DB) {
		a, b, held := twoHomes(t, db)
		term, err := a.OpenTerminal(t.Context(), held.ID, "ana", wire.ChannelSpec{})
		if err != nil {
			t.Fatal(err)
		}
		q := &wire.ExchangeRequest{Channel: term.ID, Assignment: held.ID, Fence: held.Fence}
		if err := b.RunOnce(t.Context()); err != nil { // learns that another is its home
			t.Fatal(err)
		}
		a.Stop()
		asks(t, b, held.Runner, "")
		if res, err := b.Sync(t.Context(), held.Runner, &wire.SyncRequest{}); !fault.Is(err, fault.Unavailable) {
			t.Errorf("the Runner's list is %v, %v; want it to try again", res, err)
		}
		if res, err := b.Exchange(t.Context(), held.Runner, q); !fault.Is(err, fault.Unavailable) {
			t.Errorf("the Runner is told of its terminal %v, %v; want it to try again", res, err)
		}
		command, err := b.OpenChannel(t.Context(), held.ID, wire.ChannelSpec{Argv: []string{"true"}})
		if err != nil {
			t.Fatal(err)
		}

		settles(t, b, held.Runner, "", "")
		res, err := b.Sync(t.Context(), held.Runner, &wire.SyncRequest{})
		if err != nil || len(res.GetChannels()) != 2 || res.GetChannels()[0].GetId() != term.ID || res.GetChannels()[1].GetId() != command {
			t.Errorf("its home lists %v, %v; want the terminal, and the command that was begun meanwhile", res.GetChannels(), err)
		}
		if res, err := b.Exchange(t.Context(), held.Runner, q); err != nil || res.GetGone() {
			t.Errorf("its home says of the terminal: %v, %v", res, err)
		}
	})
}

func TestAHubThatBecameARunnersHomeWhileItReadOtherwiseIsIt(t *testing.T) {
	t.Parallel()
	_, b, held := twoHomes(t, storetest.New(t))
	asOf := b.channels.settles()
	settles(t, b, held.Runner, peerA, "")
	b.channels.yield([]string{held.Runner}, asOf)
	if _, err := b.Sync(t.Context(), held.Runner, &wire.SyncRequest{}); err != nil {
		t.Errorf("the Runner is told %v", err)
	}
	b.channels.yield([]string{held.Runner}, b.channels.settles())
	if _, err := b.Sync(t.Context(), held.Runner, &wire.SyncRequest{}); !fault.Is(err, fault.Unavailable) {
		t.Errorf("a Hub that is no longer its home answers %v", err)
	}
}
