package session

import (
	"bytes"
	"context"
	"errors"
	"sync"
	"time"

	"github.com/claude-hub/claude-hub/runner/agent"
	"github.com/claude-hub/claude-hub/runner/build"
	"github.com/claude-hub/claude-hub/runner/redact"
	"github.com/claude-hub/claude-hub/runner/wire"
)

const (
	// scrollback is how many bytes of a terminal its agent keeps, whether or not anybody has read them: what somebody sees who
	// looks at it after a restart of the Hub.
	scrollback = 512 << 10
	// lineMax is how much is left out to find the beginning of a line where output was dropped.
	lineMax = 64 << 10
	// forgotWait is between two Pipes of one terminal, should a Hub forget again and again.
	forgotWait = 200 * time.Millisecond
	// An echo is a little output soon after input. What is held back of it as the possible beginning of a value is let go after
	// echoAfter instead of releaseAfter: three characters at most either way, and nobody types a letter and waits for it.
	echoMost  = 64
	echoSoon  = 100 * time.Millisecond
	echoAfter = 2 * time.Millisecond
)

// goneWithSandbox is how a terminal ended whose Sandbox is another now.
const goneWithSandbox = "the Sandbox that it ran in has ended: the Session was asleep, was restarted, or its Sandbox crashed"

// terminal brings a terminal to its end. Its process belongs to nobody who looks at it: it is taken up again by each process of
// the Runner and for each process of the Hub, from what the agent keeps of its output. Nothing of that is acknowledged, so the
// agent has the newest, and offsets are its own: what is masked keeps its length.
func (ch *channel) terminal(ctx context.Context) {
	release := sync.OnceFunc(func() { close(ch.started) })
	defer release()
	ch.c = ch.m.client()
	if ch.c == nil || !ch.m.act.begin(false) {
		ch.tell(ctx, func() { ch.fail(ctx, "the Session is not awake") })
		return
	}
	defer ch.m.act.end(false)
	input, err := ch.takeUp(ctx)
	if err != nil {
		ch.tell(ctx, func() { ch.refuse(ctx, err) })
		return
	}
	release()
	ended := false
	for again := false; ; again = true {
		if again {
			ch.pipe = ch.dial()
			if input, err = ch.inputOf(ctx); err != nil {
				break
			}
		}
		ch.pipe.Resume(input)
		ch.tell(ctx, func() {
			var exit wire.ChannelExit
			if exit, ended = ch.show(ctx); ctx.Err() == nil {
				ch.pipe.Finish(ctx, exit) //nolint:errcheck // told again by the next Pipe, or nobody wants it
			}
		})
		if ctx.Err() != nil || !ch.pipe.Forgot() {
			break
		}
		select {
		case <-time.After(forgotWait):
		case <-ctx.Done():
		}
	}
	if errors.Is(context.Cause(ctx), build.ErrShutdown) {
		return
	}
	ch.end(context.WithoutCancel(ctx), ended)
}

// tell runs the Pipe for as long as f does.
func (ch *channel) tell(ctx context.Context, f func()) {
	pctx, stop := context.WithCancel(ctx)
	var wg sync.WaitGroup
	wg.Go(func() {
		ch.pipe.Run(pctx) //nolint:errcheck // Finish and Forgot say it
	})
	f()
	stop()
	wg.Wait()
}

// takeUp starts the terminal, or finds it, and says how much input it has taken. One that was begun with before and isn't there
// any more is not started again.
func (ch *channel) takeUp(ctx context.Context) (input int64, err error) {
	if !ch.spec.Again {
		if _, err := ch.start(ctx); err != nil {
			return 0, err
		}
	}
	return ch.inputOf(ctx)
}

func (ch *channel) inputOf(ctx context.Context) (int64, error) {
	list, err := ch.c.List(ctx)
	if err != nil {
		return 0, err
	}
	for _, s := range list {
		if s.ID == ch.id {
			return s.Input, nil
		}
	}
	return 0, errors.New(goneWithSandbox)
}

// show brings the output to the Pipe, and says how the process ended.
func (ch *channel) show(ctx context.Context) (exit wire.ChannelExit, ended bool) {
	sctx, stop := context.WithCancel(ctx)
	defer stop()
	taken, _, err := ch.pipe.Taken(sctx, 1)
	if err != nil {
		return exit, false
	}
	r, err := ch.c.Output(sctx, ch.id, agent.Out, 0)
	if err != nil {
		return wire.ChannelExit{Code: 125, Failed: ch.m.log().Text(err.Error())}, false
	}
	defer r.Close()
	s := &shown{ch: ch, ctx: sctx, hub: taken, cut: false}
	s.restart(0)
	// The Hub may forget while nothing is printed: then reading has to end, too.
	go func() {
		for {
			_, changed, err := ch.pipe.Taken(sctx, 1)
			if err != nil || ch.pipe.Forgot() {
				r.Close() //nolint:errcheck // it only hangs up
				return
			}
			select {
			case <-changed:
			case <-sctx.Done():
				return
			}
		}
	}()
	if err := s.copy(r); err != nil {
		return wire.ChannelExit{Code: 125}, false
	}
	e, err := ch.c.Wait(ctx, ch.id)
	if err != nil {
		return wire.ChannelExit{Code: 125, Failed: "the Sandbox ended: the Session was put to sleep, or its Sandbox crashed"}, false
	}
	return wire.ChannelExit{Code: e.Code, Signal: e.Signal, OOM: e.OOM}, true
}

// shown is one terminal's output on its way to one Pipe.
type shown struct {
	ch  *channel
	ctx context.Context
	w   *redact.Writer
	at  int64 // offset of what the Writer's sink gets next
	hub int64 // the Hub has what is before
	cut bool  // something before was dropped: what comes may be the rest of a value, until a line begins
	out int   // bytes left out for that
}

// restart begins a stream through the redactor at an offset.
func (s *shown) restart(at int64) {
	s.at = at
	s.w = s.ch.m.log().Set().Writer(s.sink).KeepLength()
}

func (s *shown) sink(t redact.Text) error {
	from := s.at
	s.at += int64(t.Len())
	if s.at <= s.hub {
		return nil
	}
	if from < s.hub {
		t = t.After(int(s.hub - from))
		from = s.hub
	}
	if err := s.ch.pipe.Skip(s.ctx, from); err != nil {
		return err
	}
	return s.ch.pipe.Write(s.ctx, 1, t)
}

func (s *shown) copy(r *agent.Reader) error {
	idle := time.AfterFunc(time.Hour, func() { s.release() })
	defer idle.Stop()
	buf := make([]byte, 64<<10)
	next := int64(0)
	for {
		n, err := r.Read(buf)
		b := buf[:n]
		at := r.Offset() - int64(n)
		if at != next { // dropped
			if err := s.w.Flush(); err != nil {
				return err
			}
			s.cut, s.out = true, 0
			s.restart(at)
		}
		next = at + int64(n)
		if s.cut {
			b = s.line(b)
		}
		if len(b) > 0 {
			if next > s.hub {
				s.ch.m.act.touch()
			}
			if _, err := s.w.Write(b); err != nil {
				return err
			}
			if s.w.Held() > 0 {
				idle.Reset(s.patience(len(b)))
			} else {
				idle.Stop()
			}
		}
		switch {
		case err == nil:
		case s.ctx.Err() != nil, s.ch.pipe.Forgot():
			return err
		default: // the process has ended, or the Sandbox has
			return s.w.Flush()
		}
	}
}

// patience is for how long what may begin a value is held back after n bytes came.
func (s *shown) patience(n int) time.Duration {
	s.ch.mu.Lock()
	defer s.ch.mu.Unlock()
	if n <= echoMost && time.Since(s.ch.typed) < echoSoon {
		return echoAfter
	}
	return releaseAfter
}

func (s *shown) release() { s.w.Release() } //nolint:errcheck // the next Write says it

// line leaves out what may be the end of a value whose beginning was dropped: one line of a value is masked on its own.
func (s *shown) line(b []byte) []byte {
	n := len(b)
	if i := bytes.IndexByte(b, '\n'); i >= 0 {
		n, s.cut = i+1, false
	} else if s.out += n; s.out >= lineMax {
		s.cut = false
	}
	s.restart(s.at + int64(n))
	return b[n:]
}
