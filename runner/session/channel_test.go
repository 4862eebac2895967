package session

import (
	"context"
	"sync/atomic"
	"testing"

	"github.com/claude-hub/claude-hub/runner/build"
	"github.com/claude-hub/claude-hub/runner/redact"
	"github.com/claude-hub/claude-hub/runner/wire"
)

// pipe is a Pipe whose Hub takes everything.
type pipe struct{ finished atomic.Int32 }

func (p *pipe) Run(ctx context.Context) error                              { <-ctx.Done(); return context.Cause(ctx) }
func (p *pipe) Write(context.Context, int, redact.Text) error              { return nil }
func (p *pipe) Finish(context.Context, wire.ChannelExit) error             { p.finished.Add(1); return nil }
func (p *pipe) Taken(context.Context, int) (int64, <-chan struct{}, error) { return 0, nil, nil }

func TestAChannelThatEndedIsNotServedAgainByAListOlderThanItsEnd(t *testing.T) {
	t.Parallel()
	m := New(Options{ID: "a", Log: build.NewLog(new(redact.Set), nil), Life: t.Context()})
	first := &wire.Channel{Id: "c1", SpecJson: `{"argv":["deploy"]}`}
	second := &wire.Channel{Id: "c2", SpecJson: `{"argv":["ls"]}`}
	p := &pipe{}
	served := map[string]int{}
	dial := func(c *wire.Channel, _ int64, _ Endpoint) Pipe {
		served[c.Id]++
		return p
	}
	m.Channels(t.Context(), []*wire.Channel{first}, 1, dial)
	m.Settle()
	if p.finished.Load() != 1 || served["c1"] != 1 {
		t.Fatalf("the channel came to %d ends and was served %d times, once each was meant", p.finished.Load(), served["c1"])
	}
	m.Channels(t.Context(), []*wire.Channel{first, second}, 1, dial)
	m.Settle()
	if served["c1"] != 1 || served["c2"] != 1 {
		t.Errorf("served: %v, each once was meant: a command was run again", served)
	}
	m.Channels(t.Context(), nil, 1, dial)
	if len(m.served) != 0 {
		t.Errorf("what the Hub no longer lists is remembered: %v", m.served)
	}
}

func (p *pipe) Resume(int64)                      {}
func (p *pipe) Skip(context.Context, int64) error { return nil }
func (p *pipe) Forgot() bool                      { return false }
