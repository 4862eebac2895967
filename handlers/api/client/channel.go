package client

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"sync"
	"time"

	"github.com/claude-hub/claude-hub/handlers/api/schema"
	"github.com/claude-hub/claude-hub/runner/wire"
)

const (
	inputPiece = 64 << 10
	// startLimit is how long a Runner may take to begin.
	startLimit = 60 * time.Second
)

// Stdio is what a command or a terminal is connected to.
type Stdio struct {
	// In is read until its end, which closes the command's input; nil: it has none. A Read that blocks outlives Run.
	In       io.Reader
	Out, Err io.Writer
	Resize   <-chan schema.Size // each is the new window
	Signals  <-chan int         // each is a signal's number, sent to the process
}

// Run runs spec in a Session, connected to stdio, and returns how it ended, after all its output was written. A lost
// connection is made up for by offset, in both directions. When ctx ends, the process is ended too.
func (c *Client) Run(ctx context.Context, repo int64, session string, spec wire.ChannelSpec, stdio Stdio) (wire.ChannelExit, error) {
	spec.Stdin = stdio.In != nil
	var opened schema.Opened
	if _, err := c.do(ctx, post(repoPath(repo, "sessions", session, "channels"), spec), &opened); err != nil {
		return wire.ChannelExit{}, err
	}
	path := repoPath(repo, "sessions", session, "channels", opened.Channel)
	life, end := context.WithCancelCause(ctx)
	p := &pump{c: c, path: path, stdio: stdio, life: life, end: end, input: make(chan []byte)}
	if p.stdio.Out == nil {
		p.stdio.Out = io.Discard
	}
	if p.stdio.Err == nil {
		p.stdio.Err = io.Discard
	}
	if stdio.In != nil {
		go p.read()
	}
	var all sync.WaitGroup
	all.Go(p.receive)
	all.Go(p.send)
	all.Go(p.steer)
	all.Wait()
	if exit := p.exit; exit != nil {
		return *exit, nil
	}
	// Not ended by itself: whatever the reason, nobody is connected to it any more.
	away, cancel := context.WithTimeout(context.WithoutCancel(ctx), 5*time.Second)
	defer cancel()
	_, _ = c.once(away, call{method: http.MethodDelete, path: path}, nil)
	return wire.ChannelExit{}, context.Cause(life)
}

// errDone ends both directions after the exit came.
var errDone = errors.New("the command has ended")

// pump carries one channel. receive waits for output in a long poll, send and steer pass
// input and controls on at once; each takes what output its answer brings.
type pump struct {
	c     *Client
	path  string
	stdio Stdio
	life  context.Context
	end   context.CancelCauseFunc
	input chan []byte

	mu   sync.Mutex
	out  [2]int64 // written so far
	exit *wire.ChannelExit
}

func (p *pump) read() {
	for {
		b := make([]byte, inputPiece)
		n, err := p.stdio.In.Read(b)
		if n > 0 {
			select {
			case p.input <- b[:n]:
			case <-p.life.Done():
				return
			}
		}
		if err != nil { // a broken input is an ended one
			close(p.input)
			return
		}
	}
}

func (p *pump) receive() {
	began, picked := time.Now(), false
	for p.life.Err() == nil {
		p.mu.Lock()
		move := schema.Exchange{Out1: p.out[0], Out2: p.out[1], WaitMS: pollTime.Milliseconds()}
		p.mu.Unlock()
		var got schema.Exchanged
		if err := p.exchange(move, &got); err != nil {
			p.end(err)
			return
		}
		p.mu.Lock()
		p.take(got)
		p.mu.Unlock()
		picked = picked || got.Picked
		if !picked && time.Since(began) > startLimit {
			p.end(&Error{Status: http.StatusServiceUnavailable, Code: "unavailable", Message: "The Runner did not begin within a minute. Try again."})
			return
		}
	}
}

func (p *pump) exchange(move schema.Exchange, got *schema.Exchanged) error {
	q := post(p.path+"/exchange", move)
	q.repeatable = true
	_, err := p.c.do(p.life, q, got)
	return err
}

// take writes what is new of the output. Called with mu held.
func (p *pump) take(got schema.Exchanged) {
	for _, piece := range got.Out {
		if piece.Stream != 1 && piece.Stream != 2 {
			continue
		}
		at := &p.out[piece.Stream-1]
		if piece.Offset > *at { // the Hub forgets only what was taken; a terminal's oldest output may be dropped on the Runner
			*at = piece.Offset
		}
		fresh := piece.Offset + int64(len(piece.Data)) - *at
		if fresh <= 0 {
			continue
		}
		w := p.stdio.Out
		if piece.Stream == 2 {
			w = p.stdio.Err
		}
		if _, err := w.Write(piece.Data[int64(len(piece.Data))-fresh:]); err != nil {
			p.end(fmt.Errorf("write the command's output: %w", err))
			return
		}
		*at += fresh
	}
	if got.Exit != nil && p.exit == nil {
		p.exit = got.Exit
		p.end(errDone)
	}
}

// send passes input on as it comes.
func (p *pump) send() {
	if p.stdio.In == nil {
		return
	}
	var at int64
	for {
		var b []byte
		more := true
		select {
		case b, more = <-p.input:
		case <-p.life.Done():
			return
		}
		for first, wait := true, int64(0); first || len(b) > 0; first = false {
			got, ok := p.push(schema.Exchange{In: []schema.Piece{{Offset: at, Data: b}}, InClosed: !more, WaitMS: wait})
			if !ok {
				return
			}
			taken := min(max(got.InOffset-at, 0), int64(len(b)))
			at, b = at+taken, b[taken:]
			wait = 0
			if taken == 0 { // the Hub holds as much as it can: wait until the process has read some
				wait = pollTime.Milliseconds()
			}
		}
		if !more {
			return
		}
	}
}

// steer passes signals and window sizes on.
func (p *pump) steer() {
	for seq := int64(1); ; seq++ {
		control := schema.Control{Seq: seq}
		select {
		case size, more := <-p.stdio.Resize:
			if !more {
				p.stdio.Resize = nil
				continue
			}
			control.Size = &size
		case signal, more := <-p.stdio.Signals:
			if !more {
				p.stdio.Signals = nil
				continue
			}
			control.Signal = signal
		case <-p.life.Done():
			return
		}
		if _, ok := p.push(schema.Exchange{Controls: []schema.Control{control}}); !ok {
			return
		}
	}
}

// push sends something, and takes what output the answer brings.
func (p *pump) push(move schema.Exchange) (schema.Exchanged, bool) {
	// What receive is about to write is asked for once more here, rather than waited for: its writer may be blocked.
	if p.mu.TryLock() {
		move.Out1, move.Out2 = p.out[0], p.out[1]
		p.mu.Unlock()
	}
	var got schema.Exchanged
	if err := p.exchange(move, &got); err != nil {
		p.end(err)
		return got, false
	}
	if p.mu.TryLock() { // else it comes again
		p.take(got)
		p.mu.Unlock()
	}
	return got, true
}
