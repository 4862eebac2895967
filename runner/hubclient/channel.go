package hubclient

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/claude-hub/claude-hub/runner/redact"
	"github.com/claude-hub/claude-hub/runner/wire"
)

const (
	// channelAhead is how many bytes of a stream may wait for the Hub before its process is held back.
	channelAhead = 512 << 10
	channelPiece = 256 << 10
	// blockedPoll is how often controls are asked for while the process doesn't take its input.
	blockedPoll = 300 * time.Millisecond
)

// ErrGone: nobody wants this channel any more.
var ErrGone = errors.New("nobody wants this terminal or command any more")

// ErrForgot: the Hub has less of the output than it had. It was restarted; a terminal begins anew with what its agent keeps.
var ErrForgot = errors.New("the Hub no longer has what it had of this terminal's output")

// Endpoint is the process at the Runner's end of a channel. Its methods are called from Channel.Run's goroutines: Input
// and CloseInput from one, Control from another. They may block; their context ends with the channel.
type Endpoint interface {
	// Input takes all of b, which is at offset of the process's input; of a process that reads no more, as if it had. After
	// an error nothing more is given, not even the end: an input that lacks bytes must not look whole.
	Input(ctx context.Context, offset int64, b []byte) error
	CloseInput(ctx context.Context) error
	// Control is a signal or a new window size.
	Control(ctx context.Context, c *wire.Control) error
	// Gone is called once when nobody wants the channel any more, or its assignment has a newer fence: end the process.
	Gone()
}

// Channel carries the bytes of one exec or terminal that Sync named. Both directions go by offset, so that a lost
// answer or a Hub that was away repeats and loses nothing. Write and Finish may be called from many goroutines.
type Channel struct {
	c          *Client
	id         string
	assignment string
	fence      int64
	e          Endpoint

	mu       sync.Mutex
	ready    bool // out's offsets are known
	out      [2]outgoing
	input    []byte // arrived, not taken by the process
	inAt     int64  // offset of input
	inClosed bool
	inDone   bool // closed at the process, too
	controls []*wire.Control
	seen     int64
	exit     []byte // set by Finish
	arrived  bool   // the Hub has the exit and all output
	gone     bool
	forgot   bool
	change   chan struct{}
	fed      chan struct{} // the process took input
}

type outgoing struct {
	base int64
	data []byte
	gap  bool // nothing before base will be sent, and the Hub is to know
}

// Channel prepares to serve ch, which is into an assignment under fence. Nothing moves before Run.
func (c *Client) Channel(ch *wire.Channel, fence int64, e Endpoint) *Channel {
	return &Channel{c: c, id: ch.GetId(), assignment: ch.GetAssignment(), fence: fence, e: e, change: make(chan struct{}), fed: make(chan struct{}, 1)}
}

// changed is called with mu held.
func (k *Channel) changed() {
	close(k.change)
	k.change = make(chan struct{})
}

// Write sends output of the process: stream 1 is stdout or the terminal, 2 is stderr. It blocks while the Hub's side is
// far behind, which holds the process back, and answers ErrGone when nobody wants it any more.
func (k *Channel) Write(ctx context.Context, stream int, t redact.Text) error {
	if stream != 1 && stream != 2 {
		return fmt.Errorf("a channel has no output stream %d", stream)
	}
	o := &k.out[stream-1]
	for rest := t.String(); rest != ""; {
		k.mu.Lock()
		if err := k.over(); err != nil {
			k.mu.Unlock()
			return err
		}
		n := min(len(rest), channelAhead-len(o.data))
		if n > 0 {
			o.data = append(o.data, rest[:n]...)
			rest = rest[n:]
			k.changed()
		}
		change := k.change
		k.mu.Unlock()
		if rest == "" {
			return nil
		}
		select {
		case <-change:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
	return nil
}

// Finish says how the process ended. Everything was written before. It returns when the Hub has it all, or with
// ErrGone.
func (k *Channel) Finish(ctx context.Context, exit wire.ChannelExit) error {
	b, err := json.Marshal(exit)
	if err != nil {
		return fmt.Errorf("encode how a command ended: %w", err)
	}
	k.mu.Lock()
	k.exit = b
	k.changed()
	k.mu.Unlock()
	for {
		k.mu.Lock()
		done, over, change := k.arrived, k.over(), k.change
		k.mu.Unlock()
		if done || over != nil {
			return over
		}
		select {
		case <-change:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

// Run moves bytes until the process's end has arrived at the Hub, nobody wants the channel any more, or ctx ends. A Hub
// that is away is waited for.
func (k *Channel) Run(ctx context.Context) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	if err := k.begin(ctx); err != nil {
		return err
	}
	var all sync.WaitGroup
	all.Go(func() { k.receive(ctx) })
	all.Go(func() { k.feed(ctx) })
	all.Go(func() { k.steer(ctx) })
	err := k.send(ctx)
	cancel()
	all.Wait()
	return err
}

// begin learns how far the Hub's side is: after a restart of the Runner output goes on there.
func (k *Channel) begin(ctx context.Context) error {
	return k.exchange(ctx, func() *wire.ExchangeRequest { return &wire.ExchangeRequest{} }, func(res *wire.ExchangeResponse) {
		k.out[0].base, k.out[1].base, k.ready = res.GetOut1(), res.GetOut2(), true
		k.changed()
	})
}

// exchange calls until it is answered. ask and took run with mu held; what is common to all calls is done here.
func (k *Channel) exchange(ctx context.Context, ask func() *wire.ExchangeRequest, took func(*wire.ExchangeResponse)) error {
	pause := k.c.pause()
	pause.max = min(pause.max, 5*time.Second)
	for {
		k.mu.Lock()
		q := ask()
		had := k.has()
		q.Channel, q.Assignment, q.Fence = k.id, k.assignment, k.fence
		q.InOffset, q.InHave, q.ControlSeen, q.InClosed = k.inAt, k.inAt+int64(len(k.input)), k.seen, k.inClosed
		k.mu.Unlock()
		call, cancel := context.WithTimeout(ctx, pollWait+20*time.Second)
		res, err := k.c.rpc.Exchange(call, q)
		cancel()
		switch {
		case err == nil && !res.GetGone():
			k.mu.Lock()
			defer k.mu.Unlock()
			if k.forgets(had, res) {
				return ErrForgot
			}
			k.accept(res)
			took(res)
			return nil
		case err == nil, final(err) != nil, refusedToken(err):
			k.end()
			return ErrGone
		}
		if sleep(ctx, pause.next()); ctx.Err() != nil {
			return context.Cause(ctx)
		}
	}
}

// accept takes in what is new of input and controls, and what the Hub has of the output. Called with mu held.
func (k *Channel) accept(res *wire.ExchangeResponse) {
	touched := false
	whole := true
	for _, p := range res.GetIn() {
		end := k.inAt + int64(len(k.input))
		if len(k.input) == 0 && p.GetOffset() > end { // an earlier process of this Runner gave the process what is before it
			k.inAt, end = p.GetOffset(), p.GetOffset()
		}
		switch fresh := p.GetOffset() + int64(len(p.GetData())) - end; {
		case fresh <= 0:
		case p.GetOffset() > end, len(k.input) >= channelAhead:
			whole = false // the Hub keeps it until it is asked for again
		default:
			k.input = append(k.input, p.GetData()[int64(len(p.GetData()))-fresh:]...)
			touched = true
		}
	}
	if res.GetInClosed() && whole && !k.inClosed {
		k.inClosed, touched = true, true
	}
	for _, control := range res.GetControls() {
		if control.GetSeq() > k.seen {
			k.controls, k.seen, touched = append(k.controls, control), control.GetSeq(), true
		}
	}
	for i, has := range []int64{res.GetOut1(), res.GetOut2()} {
		o := &k.out[i]
		if o.gap && has >= o.base {
			o.gap, touched = false, true
		}
		if n := min(has-o.base, int64(len(o.data))); n > 0 {
			o.data = append([]byte(nil), o.data[n:]...)
			o.base += n
			touched = true
		}
	}
	if touched {
		k.changed()
	}
}

// end tells the process once that nobody wants it.
func (k *Channel) end() {
	k.mu.Lock()
	first := !k.gone
	k.gone = true
	k.changed()
	k.mu.Unlock()
	if first {
		k.e.Gone()
	}
}

// send brings output, and at last the exit, to the Hub.
func (k *Channel) send(ctx context.Context) error {
	for {
		k.mu.Lock()
		work := len(k.out[0].data)+len(k.out[1].data) > 0 || k.out[0].gap || k.exit != nil
		arrived, over, change := k.arrived, k.over(), k.change
		k.mu.Unlock()
		switch {
		case arrived:
			return nil
		case over != nil:
			return over
		case work:
			var asked *wire.ExchangeRequest
			err := k.exchange(ctx, func() *wire.ExchangeRequest {
				asked = k.pieces()
				return asked
			}, func(*wire.ExchangeResponse) {
				if asked.GetEnded() && len(k.out[0].data)+len(k.out[1].data) == 0 {
					k.arrived = true
					k.changed()
				}
			})
			if err != nil {
				return err
			}
			continue
		}
		select {
		case <-change:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

// pieces is a request with what the Hub lacks. Called with mu held.
func (k *Channel) pieces() *wire.ExchangeRequest {
	q := &wire.ExchangeRequest{WaitMs: 5000}
	whole := true
	for i := range k.out {
		o := &k.out[i]
		if o.gap {
			q.Out = append(q.Out, &wire.Piece{Stream: int32(i + 1), Offset: o.base})
		}
		if len(o.data) == 0 {
			continue
		}
		n := min(len(o.data), channelPiece)
		whole = whole && n == len(o.data)
		q.Out = append(q.Out, &wire.Piece{Stream: int32(i + 1), Offset: o.base, Data: append([]byte(nil), o.data[:n]...)})
	}
	if k.exit != nil && whole {
		q.Ended, q.ExitJson = true, string(k.exit)
	}
	return q
}

// receive waits at the Hub for input and controls; while the process doesn't take its input, it asks for controls only
// now and then.
func (k *Channel) receive(ctx context.Context) {
	for ctx.Err() == nil {
		err := k.exchange(ctx, func() *wire.ExchangeRequest {
			if len(k.input) > 0 {
				return &wire.ExchangeRequest{}
			}
			return &wire.ExchangeRequest{WaitMs: pollWait.Milliseconds()}
		}, func(*wire.ExchangeResponse) {})
		if err != nil {
			return
		}
		k.mu.Lock()
		pending := len(k.input) > 0
		k.mu.Unlock()
		if pending {
			waitUntil(ctx, k.fed, time.Now().Add(blockedPoll))
		}
	}
}

// feed gives input to the process, in order.
func (k *Channel) feed(ctx context.Context) {
	for ctx.Err() == nil {
		k.mu.Lock()
		input, at, change := k.input, k.inAt, k.change
		closing := k.inClosed && !k.inDone && len(input) == 0
		k.inDone = k.inDone || closing
		k.mu.Unlock()
		switch {
		case len(input) > 0:
			if err := k.e.Input(ctx, at, input); err != nil || ctx.Err() != nil { // perhaps it took none of it
				return
			}
			k.mu.Lock()
			k.input, k.inAt = k.input[len(input):], at+int64(len(input))
			k.mu.Unlock()
			select {
			case k.fed <- struct{}{}:
			default:
			}
		case closing:
			_ = k.e.CloseInput(ctx)
		default:
			waitUntil(ctx, change, time.Time{})
		}
	}
}

// steer gives controls to the process, in order.
func (k *Channel) steer(ctx context.Context) {
	for ctx.Err() == nil {
		k.mu.Lock()
		controls, change := k.controls, k.change
		k.controls = nil
		k.mu.Unlock()
		for _, control := range controls {
			_ = k.e.Control(ctx, control)
		}
		if len(controls) == 0 {
			waitUntil(ctx, change, time.Time{})
		}
	}
}
