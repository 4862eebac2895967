package hubclient

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/claude-hub/claude-hub/runner/spool"
	"github.com/claude-hub/claude-hub/runner/wire"
)

const (
	// A request stays below 1 MiB, the most that nginx forwards unless told otherwise.
	maxPiece = 768 << 10
	// A stream that trickles is sent this often at most; its first bytes go at once.
	trickle      = 100 * time.Millisecond
	trickleBytes = 64 << 10
	maxShipping  = 4 // streams sent at the same time
)

// Report spools a state change, which is sent until the Hub has acknowledged or refused it, by this process or the
// next. r.Seq is set by the spool.
func (c *Client) Report(r spool.Report) error {
	_, err := c.o.Spool.PutReport(r)
	return err
}

// Flush waits until the Hub has acknowledged or refused every report and every byte of log that was spooled when it
// was called, or ctx ends.
func (c *Client) Flush(ctx context.Context) error {
	type mark struct {
		st  *spool.Stream
		end int64
	}
	var marks []mark
	for _, st := range c.o.Spool.Streams() {
		marks = append(marks, mark{st, st.End()})
	}
	want := c.o.Spool.Unsent()
	for {
		changed := c.o.Spool.Changed()
		done := true
		for _, r := range want {
			newest, sent, ok := c.o.Spool.Newest(r.ID)
			done = done && (!ok || sent || newest.Fence != r.Fence || newest.Seq != r.Seq)
		}
		for _, m := range marks {
			done = done && m.st.Acked() >= m.end
		}
		if done {
			return nil
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return fmt.Errorf("the Hub has not taken everything yet: %w", context.Cause(ctx))
		}
	}
}

// sendReports sends the newest report of each assignment. One that the Hub can't take now holds up no other.
func (c *Client) sendReports(ctx context.Context) {
	type resting struct {
		until time.Time
		pause *pause
	}
	rest := map[string]*resting{}
	for ctx.Err() == nil {
		changed := c.o.Spool.Changed()
		next := time.Time{}
		for _, r := range c.o.Spool.Unsent() {
			k := rest[r.ID]
			if k != nil && time.Now().Before(k.until) {
				if next.IsZero() || k.until.Before(next) {
					next = k.until
				}
				continue
			}
			if c.sendReport(ctx, r) {
				delete(rest, r.ID)
				continue
			}
			if k == nil {
				k = &resting{pause: c.pause()}
				rest[r.ID] = k
			}
			k.until = time.Now().Add(k.pause.next())
			if next.IsZero() || k.until.Before(next) {
				next = k.until
			}
		}
		waitUntil(ctx, changed, next)
	}
}

// sendReport answers whether r needs no more sending.
func (c *Client) sendReport(ctx context.Context, r spool.Report) bool {
	call, cancel := context.WithTimeout(ctx, 30*time.Second)
	defer cancel()
	_, err := c.rpc.Report(call, &wire.ReportRequest{
		Id: r.ID, Fence: r.Fence, Generation: r.Generation, Seq: r.Seq, State: r.State, Detail: r.Detail,
	})
	if err == nil {
		c.o.Spool.Sent(r)
		c.tidy()
		return true
	}
	if f := final(err); f != nil {
		c.log.Warn().Str("assignment", r.ID).Str("state", r.State).Msg("a report was refused: " + words(err))
		if err := c.o.Spool.Refused(r); err != nil {
			c.log.Error().Err(err).Msg("a refused report could not be deleted")
		}
		return true
	}
	return false
}

func waitUntil(ctx context.Context, changed <-chan struct{}, at time.Time) {
	var timer <-chan time.Time
	if !at.IsZero() {
		t := time.NewTimer(time.Until(at))
		defer t.Stop()
		timer = t.C
	}
	select {
	case <-changed:
	case <-timer:
	case <-ctx.Done():
	}
}

// shipLogs sends every stream of the spool, some at a time.
func (c *Client) shipLogs(ctx context.Context) {
	slots := make(chan struct{}, maxShipping)
	busy := map[*spool.Stream]bool{}
	done := make(chan *spool.Stream)
	for {
		changed := c.o.Spool.Changed()
		for _, st := range c.o.Spool.Streams() {
			if !busy[st] && st.Waiting() {
				busy[st] = true
				go func() {
					c.ship(ctx, st, slots)
					done <- st
				}()
			}
		}
		select {
		case <-changed:
		case st := <-done:
			delete(busy, st)
			c.tidy()
		case <-ctx.Done():
			for len(busy) > 0 {
				delete(busy, <-done)
			}
			return
		}
	}
}

// ship sends a stream until the Hub has all of it.
func (c *Client) ship(ctx context.Context, st *spool.Stream, slots chan struct{}) {
	pause := c.pause()
	for ctx.Err() == nil {
		select {
		case slots <- struct{}{}:
		case <-ctx.Done():
			return
		}
		n, more, err := c.shipOne(ctx, st)
		<-slots
		switch {
		case err != nil:
			sleep(ctx, pause.next())
		case !more:
			return
		default:
			pause.reset()
			if n < trickleBytes {
				sleep(ctx, trickle)
			}
		}
	}
}

// shipOne sends one piece. An error asks to try again later.
func (c *Client) shipOne(ctx context.Context, st *spool.Stream) (n int, more bool, err error) {
	p, ok, err := st.Next(maxPiece)
	if err != nil {
		c.log.Error().Err(err).Msg("the spool can't be read; tried again")
		return 0, true, err
	}
	if !ok {
		return 0, false, nil
	}
	call, cancel := context.WithTimeout(ctx, 60*time.Second)
	defer cancel()
	res, err := c.rpc.AppendLog(call, &wire.AppendLogRequest{
		Id: st.Assignment(), Fence: st.Fence(), Offset: p.Offset, Data: p.Data, Skipped: p.Skipped, End: p.End,
	})
	if err != nil {
		f := final(err)
		if f == nil {
			return 0, true, err
		}
		return 0, false, c.refusedLog(st, f)
	}
	end := p.Offset + int64(len(p.Data))
	if err := st.Ack(res.GetNext(), p.End && res.GetNext() == end); err != nil {
		c.log.Error().Err(err).Msg("the spool can't be trimmed; tried again")
		return 0, true, err
	}
	return len(p.Data), true, nil
}

// refusedLog gives up a stream that the Hub will never take.
func (c *Client) refusedLog(st *spool.Stream, why error) error {
	c.log.Warn().Str("assignment", st.Assignment()).Int64("fence", st.Fence()).Msg("the rest of a log was refused: " + why.Error())
	if errors.Is(why, ErrFenced) || errors.Is(why, ErrUnknown) {
		return st.Refuse()
	}
	return st.Ack(st.End(), true)
}
