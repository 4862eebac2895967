package fleet

import (
	"context"
	"fmt"
	"time"

	"github.com/claude-hub/claude-hub/app/fault"
	"github.com/claude-hub/claude-hub/store"
)

// Several Hubs on one database keep the channels of a Runner in the memory of one of them, its home: the first that the Runner
// reached. Calls about them that reach another Hub are passed on to it, the Runner's own as well, so that a balancer may
// send any call anywhere. Whose call it is, and what they may, the home finds out anew from the same credentials.

const (
	// homeLive is for how long a Hub counts as there after it last said so; it does every Options.Flush.
	homeLive = 15 * time.Second
	// hubForgotten is after how long the row of a Hub that is gone is deleted.
	hubForgotten = time.Hour
)

// ErrMoved is for calls about a channel that another Hub has, or is about to have: whoever tries again finds it.
var ErrMoved = fault.New(fault.Unavailable, "Another Hub serves this Session now. Try again.")

// Home is the peer_url of the Hub that has a Runner's channels; "": this Hub, or any.
func (f *Fleet) Home(ctx context.Context, runner string) (peer string, err error) {
	if f.o.PeerURL == "" {
		return "", nil
	}
	err = f.db.Read(ctx, func(tx *store.Tx) error {
		_, peer, err = f.home(tx, runner)
		return err
	})
	return peer, err
}

// home reads which Hub is a Runner's home, and its peer_url if it is another one that is there.
func (f *Fleet) home(tx *store.Tx, runner string) (hub, peer string, err error) {
	var seen int64
	if err := tx.Row(homeSQL, store.Text(runner)).Scan(&hub, &peer, &seen); err != nil {
		return "", "", fmt.Errorf("read which Hub serves Runner %s: %w", runner, err)
	}
	// One under this Hub's own address is an earlier process of it.
	if hub == f.id || peer == f.o.PeerURL || tx.Now().Sub(at(seen)) > homeLive {
		peer = ""
	}
	return hub, peer, nil
}

// Settle is Home for a Runner's own call: where no other Hub that is there is its home, this one becomes it. away is the
// peer_url of one that was found not to answer, and so isn't there.
func (f *Fleet) Settle(ctx context.Context, runner, away string) (peer string, err error) {
	if peer, err = f.Home(ctx, runner); err != nil || peer != away && peer != "" || f.o.PeerURL == "" {
		return peer, err
	}
	taken := false
	err = f.db.Write(ctx, func(tx *store.Tx) error {
		var hub string
		if hub, peer, err = f.home(tx, runner); err != nil {
			return err
		}
		if taken = hub != f.id && (peer == "" || peer == away); !taken {
			return nil
		}
		peer = ""
		if _, err := tx.Exec(settleSQL, runner, f.id); err != nil {
			return fmt.Errorf("have Runner %s served by this Hub: %w", runner, err)
		}
		return nil
	})
	if err == nil && taken {
		f.channels.settle(runner)
	}
	return peer, err
}

// beat says that this Hub is there, and learns which Runners it isn't the home of.
func (f *Fleet) beat(ctx context.Context) error {
	if f.o.PeerURL == "" {
		return nil
	}
	err := f.db.Write(ctx, func(tx *store.Tx) error {
		if _, err := tx.Exec(forgetHubsSQL, tx.Now().Add(-hubForgotten).UnixMilli()); err != nil {
			return fmt.Errorf("forget Hubs that are gone: %w", err)
		}
		if _, err := tx.Exec(beatSQL, f.id, f.o.PeerURL, tx.Now().UnixMilli()); err != nil {
			return fmt.Errorf("say that this Hub runs: %w", err)
		}
		return nil
	})
	if err != nil {
		return err
	}
	var others []string
	asOf := f.channels.settles()
	err = f.db.Read(ctx, func(tx *store.Tx) (err error) {
		others, err = store.All(tx, store.Scan1[string], servedElsewhereSQL, f.id)
		return err
	})
	if err != nil {
		return fmt.Errorf("read which Runners other Hubs serve: %w", err)
	}
	f.channels.yield(others, asOf)
	return nil
}

// withdraw takes back that this Hub is there, so that others serve its Runners at once.
func (f *Fleet) withdraw(ctx context.Context) error {
	if f.o.PeerURL == "" {
		return nil
	}
	return f.db.Write(ctx, func(tx *store.Tx) error {
		_, err := tx.Exec(withdrawHubSQL, f.id)
		return err
	})
}

// settles counts the times that this Hub became the home of a Runner.
func (c *channels) settles() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.settled
}

// yield gives up the channels of Runners that other Hubs serve: what this one has of them is old. Nothing is given up if this Hub
// has become the home of one since asOf: runners may have been read before that.
func (c *channels) yield(runners []string, asOf int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.settled != asOf {
		return
	}
	clear(c.elsewhere)
	for _, r := range runners {
		c.elsewhere[r] = true
	}
	for id, ch := range c.byID {
		if c.elsewhere[ch.runner] {
			c.drop(id, ch)
		}
	}
}

// settle has this Hub serve a Runner, with nothing of what it had of it at an earlier time: what it has since it gave that up is what
// was opened here while the Runner had no home.
func (c *channels) settle(runner string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.settled++
	if c.elsewhere[runner] {
		delete(c.elsewhere, runner)
		return
	}
	for id, ch := range c.byID {
		if ch.runner == runner {
			c.drop(id, ch)
		}
	}
}

// drop is called with mu held.
func (c *channels) drop(id string, ch *channel) {
	delete(c.byID, id)
	ch.moved = true
	ch.changed()
	c.wakeRunner(ch.runner)
}

// absent is why a channel isn't here. had is what the caller found under its id before, if anything. Called with mu held.
func (c *channels) absent(had *channel) error {
	if had != nil && had.moved {
		return ErrMoved
	}
	return ErrNoChannel
}
