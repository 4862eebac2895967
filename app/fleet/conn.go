package fleet

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"strings"
	"sync"
	"time"

	"github.com/claude-hub/claude-hub/runner/wire"
)

const (
	// connPick is how long a Runner may take to begin.
	connPick = 20 * time.Second
	connSays = 1 << 10 // bytes kept of what the connection's process says is wrong
)

// RefusedError: nothing in the Sandbox takes connections to the port, or the connection broke.
type RefusedError struct{ Why string }

func (e *RefusedError) Error() string { return e.Why }

// Conn is a connection to a TCP port of a Sandbox's loopback, through a channel of this Hub's. Whether anybody listens there is known
// only once something was read: then the error is a *RefusedError. It has no deadlines: Close ends what waits.
type Conn struct {
	f    *Fleet
	id   string
	port uint16
	life context.Context
	end  context.CancelFunc

	writing sync.Mutex
	sent    int64

	reading sync.Mutex
	rest    []byte
	says    strings.Builder
	over    error

	mu    sync.Mutex
	taken [2]int64
}

// Dial opens a connection to a port of an assignment's Sandbox. Refusals are OpenChannel's. ctx is for the opening only.
func (f *Fleet) Dial(ctx context.Context, assignment string, port uint16) (*Conn, error) {
	id, err := f.OpenChannel(ctx, assignment, wire.ChannelSpec{Port: port, Stdin: true})
	if err != nil {
		return nil, err
	}
	c := &Conn{f: f, id: id, port: port}
	c.life, c.end = context.WithCancel(context.WithoutCancel(ctx))
	return c, nil
}

func (c *Conn) Read(b []byte) (int, error) {
	c.reading.Lock()
	defer c.reading.Unlock()
	began, picked := time.Now(), false
	for len(c.rest) == 0 && c.over == nil {
		c.mu.Lock()
		move := ClientMove{Out1: c.taken[0], Out2: c.taken[1], Wait: maxPoll}
		c.mu.Unlock()
		st, err := c.f.ClientExchange(c.life, c.id, move)
		if err != nil {
			c.over = c.closed(err)
			break
		}
		c.take(st)
		if picked = picked || st.Picked; !picked && time.Since(began) > connPick {
			c.over = &RefusedError{"the Runner did not begin in time"}
		}
	}
	if len(c.rest) == 0 {
		return 0, c.over
	}
	n := copy(b, c.rest)
	c.rest = c.rest[n:]
	return n, nil
}

// take is called with reading held.
func (c *Conn) take(st ClientState) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, p := range st.Out {
		at := &c.taken[p.GetStream()-1]
		fresh := p.GetData()[min(max(*at-p.GetOffset(), 0), int64(len(p.GetData()))):]
		*at += int64(len(fresh))
		if p.GetStream() == 1 {
			c.rest = append(c.rest, fresh...)
		} else {
			c.says.Write(fresh[:min(len(fresh), connSays-c.says.Len())])
		}
	}
	switch exit := st.Exit; {
	case !st.Ended:
	case exit.Failed != "":
		c.over = &RefusedError{exit.Failed}
	case exit.Code != 0 || exit.Signal != "":
		c.over = &RefusedError{strings.TrimSpace(c.says.String())}
	default:
		c.over = io.EOF
	}
}

func (c *Conn) Write(b []byte) (n int, err error) {
	c.writing.Lock()
	defer c.writing.Unlock()
	for n < len(b) {
		c.mu.Lock()
		move := ClientMove{In: b[n:min(len(b), n+channelInput)], InOffset: c.sent, Out1: c.taken[0], Out2: c.taken[1]}
		c.mu.Unlock()
		st, err := c.f.ClientExchange(c.life, c.id, move)
		if err != nil {
			return n, c.closed(err)
		}
		taken := min(max(st.InNext-c.sent, 0), int64(len(move.In)))
		c.sent, n = c.sent+taken, n+int(taken)
		if st.Ended {
			return n, &RefusedError{fmt.Sprintf("the connection to port %d has ended", c.port)}
		}
		if taken == 0 {
			if err := c.f.roomFor(c.life, c.id); err != nil {
				return n, c.closed(err)
			}
		}
	}
	return n, nil
}

// roomFor waits until something changed in a channel whose input is full.
func (f *Fleet) roomFor(ctx context.Context, id string) error {
	c := &f.channels
	c.mu.Lock()
	ch := c.byID[id]
	if ch == nil {
		c.mu.Unlock()
		return ErrNoChannel
	}
	if len(ch.in.data) < channelInput {
		c.mu.Unlock()
		return nil
	}
	change := ch.change
	c.mu.Unlock()
	select {
	case <-change:
		return nil
	case <-time.After(maxPoll): // asked again, so that the channel's client isn't silent
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

func (c *Conn) closed(err error) error {
	if c.life.Err() != nil || errors.Is(err, context.Canceled) {
		return net.ErrClosed
	}
	return err
}

// Close ends the connection, and what waits for it.
func (c *Conn) Close() error {
	c.end()
	c.f.CloseChannel(c.id)
	return nil
}

// LocalAddr and RemoteAddr name the two ends for people.
func (c *Conn) LocalAddr() net.Addr  { return connAddr("hub") }
func (c *Conn) RemoteAddr() net.Addr { return connAddr(fmt.Sprintf("sandbox:%d", c.port)) }

// SetDeadline and its like answer os.ErrNoDeadline.
func (c *Conn) SetDeadline(time.Time) error      { return os.ErrNoDeadline }
func (c *Conn) SetReadDeadline(time.Time) error  { return os.ErrNoDeadline }
func (c *Conn) SetWriteDeadline(time.Time) error { return os.ErrNoDeadline }

type connAddr string

func (connAddr) Network() string  { return "channel" }
func (a connAddr) String() string { return string(a) }
