package runnerapi_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"

	"github.com/claude-hub/claude-hub/app/fleet"
	"github.com/claude-hub/claude-hub/runner/hubclient"
	"github.com/claude-hub/claude-hub/runner/wire"
	"github.com/claude-hub/claude-hub/store/storetest"
)

// process is a command whose agent outlives the Runner: it takes input by offset, each byte once.
type process struct {
	mu     sync.Mutex
	in     string
	closed bool
}

func (p *process) got() (string, bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.in, p.closed
}

// end is one Runner process's end of a channel to a process.
type end struct {
	*process
	deaf    bool // input arrives at the Runner, and is never given to the process
	broken  bool // it can't be given to the process
	arrived chan struct{}
}

func (e *end) Input(ctx context.Context, offset int64, b []byte) error {
	close(e.arrived)
	if e.deaf {
		<-ctx.Done()
		return context.Cause(ctx)
	}
	if e.broken {
		return errors.New("the agent refuses it")
	}
	e.arrived = make(chan struct{})
	e.mu.Lock()
	defer e.mu.Unlock()
	switch n := int64(len(e.in)); {
	case offset > n:
		return fmt.Errorf("input at %d would leave a gap after %d", offset, n)
	case offset+int64(len(b)) > n:
		e.in += string(b[n-offset:])
	}
	return nil
}

func (e *end) CloseInput(context.Context) error {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.closed = true
	return nil
}

func (e *end) Control(context.Context, *wire.Control) error { return nil }
func (e *end) Gone()                                        {}

// conversation is a channel whose Runner is killed in the middle.
type conversation struct {
	t  *testing.T
	h  *hub
	r  *runner
	a  fleet.Assignment
	id string
}

func converse(t *testing.T) *conversation {
	h := newHub(t, storetest.New(t), fleet.Options{})
	runner, token := h.register("r1")
	c := &conversation{t: t, h: h, r: startRunner(t, t.TempDir(), h.url(), token, nil), a: h.assign(runner, "s1")}
	until(t, func() bool { return c.r.item(c.a.ID) != nil })
	var err error
	if c.id, err = h.fleet().OpenChannel(t.Context(), c.a.ID, wire.ChannelSpec{Argv: []string{"cat"}, Stdin: true}); err != nil {
		t.Fatal(err)
	}
	until(t, func() bool { return c.r.channel(c.id) != nil })
	return c
}

// serve is a Runner's process serving the channel, until it is killed.
func (c *conversation) serve(e *end) (ch *hubclient.Channel, kill func()) {
	ctx, cancel := context.WithCancel(context.Background())
	ch = c.r.Channel(c.r.channel(c.id), c.a.Fence, e)
	over := make(chan struct{})
	go func() {
		defer close(over)
		_ = ch.Run(ctx)
	}()
	kill = func() { cancel(); <-over }
	c.t.Cleanup(kill)
	return ch, kill
}

// heard returns once the Hub has had another call of the Runner's, with output that its client sees.
func (c *conversation) heard(ch *hubclient.Channel, output string) {
	c.t.Helper()
	if _, _, err := ch.Taken(c.t.Context(), 1); err != nil { // as for a process that was there before
		c.t.Fatal(err)
	}
	if err := ch.Write(c.t.Context(), 1, redacted(output)); err != nil {
		c.t.Fatal(err)
	}
	until(c.t, func() bool {
		st, err := c.h.fleet().ClientExchange(c.t.Context(), c.id, fleet.ClientMove{})
		return err == nil && len(st.Out) == 1 && strings.HasSuffix(string(st.Out[0].GetData()), output)
	})
}

func (c *conversation) say(offset int64, text string, closed bool) {
	c.t.Helper()
	if _, err := c.h.fleet().ClientExchange(c.t.Context(), c.id, fleet.ClientMove{In: []byte(text), InOffset: offset, InClosed: closed}); err != nil {
		c.t.Fatal(err)
	}
}

// Else a command reads an early end of its input and ends well (found by the kill test: an empty file, exit code 0).
func TestInputThatAKilledRunnerHadNotPassedOnIsSentAgain(t *testing.T) {
	t.Parallel()
	c := converse(t)
	p := &process{}
	first := &end{process: p, deaf: true, arrived: make(chan struct{})}
	ch, kill := c.serve(first)
	c.say(0, "all of it", true)
	<-first.arrived
	c.heard(ch, "a")
	c.heard(ch, "b")
	kill()
	c.serve(&end{process: p, arrived: make(chan struct{})})
	until(t, func() bool { _, closed := p.got(); return closed })
	if in, _ := p.got(); in != "all of it" {
		t.Fatalf("the process read %q and then the end of its input", in)
	}
}

func TestInputGoesOnAfterTheRunnerThatPassedTheFirstOfItOnWasKilled(t *testing.T) {
	t.Parallel()
	c := converse(t)
	p := &process{}
	ch, kill := c.serve(&end{process: p, arrived: make(chan struct{})})
	c.say(0, "hello ", false)
	until(t, func() bool { in, _ := p.got(); return in == "hello " })
	c.heard(ch, "a")
	c.heard(ch, "b")
	kill()
	ch, _ = c.serve(&end{process: p, arrived: make(chan struct{})})
	c.heard(ch, "c")
	c.say(6, "world", true)
	until(t, func() bool { in, closed := p.got(); return in == "hello world" && closed })
}

func TestAnInputThatLacksBytesNeverComesToItsEnd(t *testing.T) {
	t.Parallel()
	c := converse(t)
	p := &process{}
	broken := &end{process: p, broken: true, arrived: make(chan struct{})}
	ch, kill := c.serve(broken)
	c.say(0, "all of it", true)
	<-broken.arrived
	c.heard(ch, "a")
	kill()
	if in, closed := p.got(); in != "" || closed {
		t.Fatalf("the process read %q and then the end of its input (%t), as if that were all", in, closed)
	}
}
