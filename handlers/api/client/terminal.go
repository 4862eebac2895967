package client

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"net/http"
	"sync"
	"time"

	"github.com/claude-hub/claude-hub/app/fault"
	"github.com/claude-hub/claude-hub/handlers/api/schema"
	"github.com/claude-hub/claude-hub/runner/wire"
)

// Terminals lists a Session's: those that run, and the newest that have ended.
func (c *Client) Terminals(ctx context.Context, repo int64, session string) (list []schema.Terminal, err error) {
	_, err = c.do(ctx, get(repoPath(repo, "sessions", session, "terminals")), &list)
	return list, err
}

// OpenTerminal opens one, which lives until its process ends, the Session sleeps, or somebody closes it.
func (c *Client) OpenTerminal(ctx context.Context, repo int64, session string, in schema.OpenTerminal) (t schema.Terminal, err error) {
	_, err = c.do(ctx, post(repoPath(repo, "sessions", session, "terminals"), in), &t)
	return t, err
}

// CloseTerminal ends one with its process. One that has ended is no error.
func (c *Client) CloseTerminal(ctx context.Context, repo int64, session, terminal string) error {
	_, err := c.do(ctx, call{method: http.MethodDelete, path: repoPath(repo, "sessions", session, "terminals", terminal), repeatable: true}, nil)
	return err
}

// Attach looks at a terminal, from the oldest of its output that there is, and types in it what comes from stdio.In, until its
// process has ended, or ctx does: it then runs on. A Hub that is away is waited for, and one that was restarted, and a restart of the
// Runner, are made up for. What was on its way in the moment that a Hub was killed is sent again, and may come twice.
func (c *Client) Attach(ctx context.Context, repo int64, session, terminal string, stdio Stdio) (wire.ChannelExit, error) {
	life, end := context.WithCancelCause(ctx)
	defer end(nil)
	a := &attached{
		c: c, path: repoPath(repo, "sessions", session, "terminals", terminal) + "/exchange", viewer: rand.Text(), stdio: stdio, life: life, end: end,
		input: make(chan []byte), next: -1,
	}
	if stdio.In != nil {
		go a.read()
	}
	var all sync.WaitGroup
	all.Go(a.receive)
	all.Go(a.send)
	all.Wait()
	if a.exit != nil {
		return *a.exit, nil
	}
	return wire.ChannelExit{}, context.Cause(life)
}

type attached struct {
	c      *Client
	path   string
	viewer string
	stdio  Stdio
	life   context.Context
	end    context.CancelCauseFunc
	input  chan []byte

	next int64             // output that comes next; of receive alone
	exit *wire.ChannelExit // set by receive before the life ends
}

func (a *attached) read() {
	for {
		b := make([]byte, inputPiece)
		n, err := a.stdio.In.Read(b)
		if n > 0 {
			select {
			case a.input <- b[:n]:
			case <-a.life.Done():
				return
			}
		}
		if err != nil { // a terminal has no end but ^D
			return
		}
	}
}

// reset makes a terminal what it is when it is switched on: for output that doesn't follow what stands there.
const reset = "\x1bc"

func (a *attached) receive() {
	for a.life.Err() == nil {
		var got schema.Looked
		if err := a.exchange(schema.Look{From: a.next, Taken: max(a.next, 0), WaitMS: pollTime.Milliseconds()}, &got); err != nil {
			a.end(err)
			return
		}
		if len(got.Data) > 0 {
			data := got.Data
			if a.next >= 0 && got.Offset > a.next {
				data = append([]byte(reset), data...)
			}
			if _, err := a.stdio.Out.Write(data); err != nil {
				a.end(fmt.Errorf("write the terminal's output: %w", err))
				return
			}
			a.next = got.Offset + int64(len(got.Data))
		}
		if got.Exit != nil {
			a.exit = got.Exit
			a.end(errDone)
			return
		}
	}
}

// exchange repeats a call until it is answered or refused for good.
func (a *attached) exchange(look schema.Look, got *schema.Looked) error {
	look.Viewer = a.viewer
	q := post(a.path, look)
	q.repeatable = true
	for {
		_, err := a.c.do(a.life, q, got)
		var away *Unreachable
		if err == nil || !errors.As(err, &away) && !Is(err, fault.Unavailable) {
			return err
		}
		select {
		case <-time.After(time.Second):
		case <-a.life.Done():
			return context.Cause(a.life)
		}
	}
}

// send passes input and sizes on.
func (a *attached) send() {
	at := int64(0)
	resize := a.stdio.Resize
	for {
		select {
		case b := <-a.input:
			for len(b) > 0 {
				var got schema.Looked
				if err := a.exchange(schema.Look{In: b, InOffset: at, From: endless, WaitMS: pollTime.Milliseconds()}, &got); err != nil {
					a.refused(err)
					return
				}
				if got.InOffset < at { // the Hub was restarted: nothing of this piece was taken
					at = got.InOffset
					continue
				}
				n := min(got.InOffset-at, int64(len(b)))
				at, b = at+n, b[n:]
			}
		case size, more := <-resize:
			if !more {
				resize = nil
				continue
			}
			var got schema.Looked
			if err := a.exchange(schema.Look{Size: &size, From: endless}, &got); err != nil {
				a.refused(err)
				return
			}
		case <-a.life.Done():
			return
		}
	}
}

// refused ends it, unless the terminal may just have ended: how, receive is told.
func (a *attached) refused(err error) {
	if !Is(err, fault.NotFound) {
		a.end(err)
	}
}

// endless asks for no output.
const endless = int64(1) << 53
