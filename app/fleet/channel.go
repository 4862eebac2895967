package fleet

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/claude-hub/claude-hub/app/fault"
	"github.com/claude-hub/claude-hub/runner/redact"
	"github.com/claude-hub/claude-hub/runner/wire"
	"github.com/claude-hub/claude-hub/store"
)

const (
	channelOutput = 1 << 20   // bytes of each output stream that wait for the client; beyond it the process is held back
	channelInput  = 256 << 10 // bytes of input that wait for the Runner
	maxChannels   = 64        // of one assignment
	maxControls   = 256       // that wait for the Runner
	maxRested     = 16        // of one assignment that have ended
	// channelRest is for how long the end of a channel can be asked for after it ended.
	channelRest = 5 * time.Minute
)

// ErrNoChannel: the channel was closed, or this Hub never had it.
var ErrNoChannel = errors.New("this terminal or command is no longer open")

// channels are the execs and terminals that people have open through this Hub, in its memory only.
type channels struct {
	f    *Fleet
	mu   sync.Mutex
	byID map[string]*channel
	wake map[string]chan struct{} // of each Runner's waiting Sync
	// elsewhere are the Runners that another Hub is the home of.
	elsewhere map[string]bool
	settled   int // how often this Hub became the home of one
}

// channel carries bytes by offset, so that both sides may repeat and reconnect.
type channel struct {
	id, assignment, runner string
	fence                  int64
	spec                   string

	// Guarded by channels.mu.
	in          buffer
	inClosed    bool
	out         [2]buffer
	tails       [2][]byte   // the newest output as the Runner sent it, for what stands across two pieces
	set         *redact.Set // with which tails were looked at
	controls    []*wire.Control
	lastControl int64
	picked      bool
	ended       bool
	masked      bool // the Hub found something that its Runner had not
	exit        wire.ChannelExit
	endedAt     time.Time
	gone        string // set when closed by the Hub: why
	moved       bool   // another Hub has it by now
	client      time.Time
	change      chan struct{} // closed and replaced at each change
	term        *terminal     // nil: it belongs to the one client that opened it
}

// buffer holds the bytes [base, base+len(data)) of a stream.
type buffer struct {
	base int64
	data []byte
}

func (b *buffer) end() int64 { return b.base + int64(len(b.data)) }

// put adds what of data at offset is new and fits into room bytes; a gap adds nothing. It answers whether all of it is in.
func (b *buffer) put(offset int64, data []byte, room int) (changed, whole bool) {
	if offset > b.end() || offset+int64(len(data)) <= b.end() {
		return false, offset <= b.end()
	}
	fresh := data[b.end()-offset:]
	fits := min(len(fresh), room-len(b.data))
	if fits <= 0 {
		return false, false
	}
	b.data = append(b.data, fresh[:fits]...)
	return true, fits == len(fresh)
}

// forget drops what is before offset.
func (b *buffer) forget(offset int64) bool {
	if offset <= b.base || len(b.data) == 0 {
		return false
	}
	n := min(offset-b.base, int64(len(b.data)))
	b.data = append([]byte(nil), b.data[n:]...)
	b.base += n
	return true
}

// from is a copy of what there is at offset and behind it, up to limit bytes.
func (b *buffer) from(offset int64, limit int) (at int64, data []byte) {
	at = max(offset, b.base)
	if at >= b.end() {
		return at, nil
	}
	data = b.data[at-b.base:]
	return at, append([]byte(nil), data[:min(len(data), limit)]...)
}

func (c *channels) init(f *Fleet) {
	c.f, c.byID, c.wake, c.elsewhere = f, map[string]*channel{}, map[string]chan struct{}{}, map[string]bool{}
}

func (c *channel) changed() {
	close(c.change)
	c.change = make(chan struct{})
}

// changed is closed when the list of a Runner's channels changes.
func (c *channels) changed(runner string) <-chan struct{} {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.wake[runner] == nil {
		c.wake[runner] = make(chan struct{})
	}
	return c.wake[runner]
}

// wakeRunner is called with mu held.
func (c *channels) wakeRunner(runner string) {
	if w := c.wake[runner]; w != nil {
		close(w)
		delete(c.wake, runner)
	}
}

// of lists the channels a Runner should serve, oldest first, its terminals among them. ErrMoved: this Hub is not its home, or not
// yet, and a list of what it has would end all that the Runner serves.
func (c *channels) of(runner string, terminals []terminalRow) ([]*wire.Channel, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.elsewhere[runner] {
		return nil, ErrMoved
	}
	c.adopt(terminals, false)
	var list []*wire.Channel
	for _, ch := range c.byID {
		if ch.runner == runner && !ch.ended && ch.gone == "" {
			list = append(list, &wire.Channel{Id: ch.id, Assignment: ch.assignment, SpecJson: ch.specOf()})
		}
	}
	slices.SortFunc(list, func(a, b *wire.Channel) int { return strings.Compare(a.GetId(), b.GetId()) })
	return list, nil
}

// closeOf closes the channels into an assignment, those under fences below fence only unless that is 0.
func (c *channels) closeOf(assignment string, fence int64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, ch := range c.byID {
		if ch.assignment == assignment && (fence == 0 || ch.fence < fence) {
			c.close(ch, "It was ended on the Hub's side: the Session was removed, or taken from its Runner.")
		}
	}
}

// close is called with mu held.
func (c *channels) close(ch *channel, why string) {
	if ch.ended || ch.gone != "" {
		return
	}
	ch.gone, ch.endedAt = why, c.f.now()
	ch.changed()
	c.wakeRunner(ch.runner)
}

// thin forgets those of an assignment's ended channels that ended first, so that what commands leave unread is bounded
// however many are run. It is called with mu held.
func (c *channels) thin(assignment string) {
	var rested []*channel
	for _, ch := range c.byID {
		if ch.assignment == assignment && (ch.ended || ch.gone != "") {
			rested = append(rested, ch)
		}
	}
	slices.SortFunc(rested, func(a, b *channel) int { return a.endedAt.Compare(b.endedAt) })
	for _, ch := range rested[:max(0, len(rested)-maxRested)] {
		delete(c.byID, ch.id)
	}
}

// expire closes channels whose client is silent, and forgets those that ended a while ago.
func (c *channels) expire(now time.Time) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for id, ch := range c.byID {
		switch over := ch.ended || ch.gone != ""; {
		case over && now.Sub(ch.endedAt) > channelRest:
			delete(c.byID, id)
		case !over && ch.term == nil && now.Sub(ch.client) > c.f.o.ChannelIdle:
			c.close(ch, "Its client was silent for too long.")
		}
	}
}

// OpenChannel asks an assignment's Runner to run spec and answers the channel's id. The Runner hears of it in its
// waiting Sync. Only in an assignment that wants Run and whose Runner answers; else a fault of code refused or unavailable.
// The channel lives in this Hub's memory: its client must come back to the same Hub, within Options.ChannelIdle.
func (f *Fleet) OpenChannel(ctx context.Context, assignment string, spec wire.ChannelSpec) (id string, err error) {
	encoded, err := json.Marshal(spec)
	if err != nil {
		return "", fmt.Errorf("encode what to run: %w", err)
	}
	var a Assignment
	err = f.db.Read(ctx, func(tx *store.Tx) (err error) {
		a, err = f.reachable(tx, assignment)
		return err
	})
	if err != nil {
		return "", err
	}
	ch := &channel{
		id: store.NewID(), assignment: a.ID, runner: a.Runner, fence: a.Fence, spec: string(encoded),
		client: f.now(), change: make(chan struct{}),
	}
	c := &f.channels
	c.mu.Lock()
	defer c.mu.Unlock()
	n := 0
	for _, other := range c.byID {
		if other.assignment == a.ID && other.term == nil && !other.ended && other.gone == "" {
			n++
		}
	}
	if n >= maxChannels {
		return "", fault.New(fault.Refused, "%d terminals and commands are open here already. Close one first.", n)
	}
	c.thin(a.ID)
	c.byID[ch.id] = ch
	c.wakeRunner(ch.runner)
	return ch.id, nil
}

// ClientMove is one exchange from the client's side. It may be repeated as it is.
type ClientMove struct {
	// In is input at InOffset. What the Hub has no room for yet is not taken: Client.InNext says where to go on.
	In       []byte
	InOffset int64
	InClosed bool // nothing follows In
	// Controls have rising Seq, beginning at 1; ones taken before are passed over.
	Controls []*wire.Control
	// Out1 and Out2 are how much of stdout (or the terminal) and stderr the client has; what is before is forgotten.
	Out1, Out2 int64
	Wait       time.Duration // for something new; at most 15 s
}

// ClientState is what the client gets.
type ClientState struct {
	Out    []*wire.Piece
	InNext int64            // the input offset expected next
	Picked bool             // the Runner has begun to serve it
	Ended  bool             // and all output is in Out or was taken before
	Exit   wire.ChannelExit // with Ended
}

// ClientExchange moves bytes between a client and its channel. ErrNoChannel: this Hub doesn't have it (any more).
// When the Hub closed it, that is a fault of code refused that says why.
func (f *Fleet) ClientExchange(ctx context.Context, id string, m ClientMove) (ClientState, error) {
	c := &f.channels
	timer := time.NewTimer(min(max(m.Wait, 0), maxPoll))
	defer timer.Stop()
	var err error
	var had *channel
	for over := m.Wait <= 0; ; {
		c.mu.Lock()
		ch := c.byID[id]
		if ch == nil || ch.term != nil {
			err := c.absent(had)
			c.mu.Unlock()
			return ClientState{}, err
		}
		had = ch
		ch.client = f.now()
		st, news := ch.move(m)
		change, gone := ch.change, ch.gone
		c.mu.Unlock()
		switch {
		case gone != "" && !st.Ended && len(st.Out) == 0:
			return st, fault.New(fault.Refused, "%s", gone)
		case news || over || gone != "":
			return st, nil
		}
		if over, err = f.waits(ctx, change, timer); err != nil {
			return ClientState{}, err
		}
	}
}

func (ch *channel) move(m ClientMove) (st ClientState, news bool) {
	touched := false
	if !ch.inClosed {
		put, whole := ch.in.put(m.InOffset, m.In, channelInput)
		touched = put
		if m.InClosed && whole && m.InOffset+int64(len(m.In)) == ch.in.end() {
			ch.inClosed, touched = true, true
		}
		news = len(m.In) > 0 && ch.in.end() > m.InOffset
	}
	for _, control := range m.Controls {
		if control.GetSeq() <= ch.lastControl || len(ch.controls) >= maxControls {
			continue
		}
		if n := len(ch.controls); n > 0 && control.GetSignal() == 0 && ch.controls[n-1].GetSignal() == 0 {
			ch.controls = ch.controls[:n-1] // only the newest window size counts
		}
		ch.controls = append(ch.controls, control)
		ch.lastControl, touched, news = control.GetSeq(), true, true
	}
	for i, taken := range []int64{m.Out1, m.Out2} {
		touched = ch.out[i].forget(taken) || touched
	}
	drained := true
	for i, taken := range []int64{m.Out1, m.Out2} {
		at, data := ch.out[i].from(taken, channelOutput)
		if len(data) > 0 {
			st.Out, news = append(st.Out, &wire.Piece{Stream: int32(i + 1), Offset: at, Data: data}), true
		}
		drained = drained && at+int64(len(data)) >= ch.out[i].end()
	}
	st.InNext, st.Picked = ch.in.end(), ch.picked
	if ch.ended && drained {
		st.Ended, st.Exit, news = true, ch.exit, true
	}
	if touched {
		ch.changed()
	}
	return st, news
}

// CloseChannel ends a channel from the client's side; its process is ended by the Runner. Closing what is closed is no error.
func (f *Fleet) CloseChannel(id string) {
	c := &f.channels
	c.mu.Lock()
	defer c.mu.Unlock()
	if ch := c.byID[id]; ch != nil {
		c.close(ch, "It was closed by its client.")
	}
}

// Exchange moves bytes between a Runner and a channel, by offset in both directions. Gone tells the Runner to end the
// process: the channel is closed, or this Hub has never heard of it. ErrFenced: it was opened under another fence.
// After q.Ended the Runner repeats the call until Out1 and Out2 are at the ends of its output. Sensitive values of the assignment
// that stand in the output are masked in place; of one that comes in two pieces the first part may have reached the client.
func (f *Fleet) Exchange(ctx context.Context, runner string, q *wire.ExchangeRequest) (*wire.ExchangeResponse, error) {
	f.contacts.touch(runner, f.now())
	var exit wire.ChannelExit
	if q.GetEnded() && q.GetExitJson() != "" {
		if err := json.Unmarshal([]byte(q.GetExitJson()), &exit); err != nil {
			return nil, fmt.Errorf("%w: exit_json is not a wire.ChannelExit: %v", ErrInvalid, err)
		}
	}
	told := hits{where: "exec or terminal"}
	defer func() { f.guard.tell(ctx, runner, q.GetAssignment(), told.where, told.n, told.names) }()
	if err := f.holds(ctx, runner, q); errors.Is(err, ErrNoChannel) {
		return &wire.ExchangeResponse{Gone: true}, nil
	} else if err != nil {
		return nil, err
	}
	var err error
	var set *redact.Set
	var pieces []outPiece
	if len(q.GetOut()) > 0 || exit.Failed != "" || exit.Signal != "" {
		if set, err = f.guard.setOf(ctx, runner, q.GetAssignment()); err != nil {
			return nil, err
		}
		pieces = told.hide(set, q.GetOut())
		exit.Failed, exit.Signal = set.Text(exit.Failed).String(), set.Text(exit.Signal).String()
	}
	c := &f.channels
	wait := min(max(time.Duration(q.GetWaitMs())*time.Millisecond, 0), maxPoll)
	timer := time.NewTimer(wait)
	defer timer.Stop()
	var had *channel
	for over := wait == 0; ; {
		c.mu.Lock()
		ch := c.byID[q.GetChannel()]
		if ch == nil || ch.runner != runner || ch.assignment != q.GetAssignment() {
			err := c.absent(had)
			c.mu.Unlock()
			if errors.Is(err, ErrNoChannel) {
				return &wire.ExchangeResponse{Gone: true}, nil
			}
			return nil, err
		}
		had = ch
		if ch.fence != q.GetFence() {
			c.mu.Unlock()
			return nil, ErrFenced
		}
		res, news, endedNow := ch.serve(q, set, pieces, &told, f.now())
		ch.masked = ch.masked || told.n > 0
		exit.Masked = exit.Masked || ch.masked
		if endedNow && ch.term != nil {
			c.mu.Unlock()
			if err := f.endTerminal(ctx, ch.id, exit); err != nil {
				return nil, err
			}
			c.mu.Lock()
		}
		if endedNow {
			ch.ended, ch.exit, ch.endedAt = true, exit, f.now()
			ch.changed()
			c.wakeRunner(ch.runner)
		}
		change, ended := ch.change, ch.ended
		slow := ch.term != nil && news && len(pieces) > 0 && !ended && !ch.watched(f.now())
		begins := ch.term != nil && !ch.term.began && len(pieces) > 0
		if begins {
			ch.term.began = true
		}
		c.mu.Unlock()
		if begins {
			if err := f.began(ctx, ch.id); err != nil {
				return nil, err
			}
		}
		if slow { // nobody waits for it, so that it may cost next to nothing
			select {
			case <-time.After(unwatched):
			case <-change:
			case <-f.stopping:
			case <-ctx.Done():
			}
		}
		if news || over || ended {
			return res, nil
		}
		if over, err = f.waits(ctx, change, timer); err != nil {
			return nil, err
		}
	}
}

// holds refuses with ErrNoChannel what this Runner doesn't serve, always after the same statements. A Hub that was restarted hears
// of a terminal here, or from the Runner's next Sync: whichever comes first.
func (f *Fleet) holds(ctx context.Context, runner string, q *wire.ExchangeRequest) error {
	known := func() (known, elsewhere bool) {
		f.channels.mu.Lock()
		defer f.channels.mu.Unlock()
		ch := f.channels.byID[q.GetChannel()]
		return ch != nil && ch.runner == runner && ch.assignment == q.GetAssignment(), f.channels.elsewhere[runner]
	}
	if known, _ := known(); known {
		return nil
	}
	assignment, t, err := f.TerminalOf(ctx, q.GetChannel())
	if err != nil {
		return err
	}
	switch known, elsewhere := known(); {
	case known:
		return nil
	case elsewhere && assignment == q.GetAssignment() && t.Ended.IsZero():
		return ErrMoved
	}
	return ErrNoChannel
}

// outPiece is output as it came and as it is relayed.
type outPiece struct {
	stream      int32
	offset      int64
	raw, masked []byte
}

// hits is what of Sensitive values was found.
type hits struct {
	where string
	n     int
	names []string
}

func (h *hits) add(n int, names []string) {
	h.n += n
	h.names = append(h.names, names...)
}

// hide masks each piece on its own; what stands across two of them is left to serve, which knows where they belong.
func (h *hits) hide(set *redact.Set, pieces []*wire.Piece) []outPiece {
	all := make([]outPiece, len(pieces))
	for i, p := range pieces {
		masked, n, names := hide(set, p.GetData())
		h.add(n, names)
		all[i] = outPiece{p.GetStream(), p.GetOffset(), p.GetData(), masked}
	}
	return all
}

// take adds what of a piece is new to the output of one stream, and masks what stands across it and what came before.
func (ch *channel) take(set *redact.Set, p outPiece, told *hits, now time.Time) (changed, whole bool) {
	if ch.term != nil {
		return ch.takeTerminal(set, p, told, now)
	}
	return ch.takeRoom(set, p, told, channelOutput)
}

func (ch *channel) takeRoom(set *redact.Set, p outPiece, told *hits, room int) (changed, whole bool) {
	out, tail := &ch.out[p.stream-1], &ch.tails[p.stream-1]
	before := out.end()
	changed, whole = out.put(p.offset, p.masked, room)
	if !changed {
		return changed, whole
	}
	fresh := p.raw[before-p.offset:][:out.end()-before]
	spans, names := border(set, *tail, fresh, set != ch.set)
	for _, s := range spans {
		from, to := max(before+int64(s.From), out.base), before+int64(s.To)
		if from < to {
			fill(out.data[from-out.base : to-out.base])
		}
	}
	told.add(len(spans), names)
	*tail = after(*tail, fresh)
	return changed, whole
}

func (ch *channel) serve(q *wire.ExchangeRequest, set *redact.Set, pieces []outPiece, told *hits, now time.Time) (res *wire.ExchangeResponse, news, ended bool) {
	touched := !ch.picked
	ch.picked = true
	if ch.term != nil && ch.term.restored {
		ch.in.base, ch.term.restored = min(max(q.GetInHave(), 0), maxOffset), false // what was typed since follows what the process has
	}
	whole := true
	for _, p := range pieces {
		if p.stream != 1 && p.stream != 2 || ch.ended || ch.term != nil && p.stream == 2 {
			continue
		}
		put, all := ch.take(set, p, told, now)
		touched, whole = touched || put, whole && all
		// What was taken by an earlier call whose answer was lost is news too: the Runner waits to hear of it.
		news = news || len(p.raw) > 0 && ch.out[p.stream-1].end() > p.offset
		// And that this Hub lacks what is before it.
		news = news || ch.term != nil && (len(p.raw) == 0 || p.offset > ch.out[0].end())
	}
	if set != nil {
		ch.set = set
	}
	touched = ch.in.forget(q.GetInOffset()) || touched
	for len(ch.controls) > 0 && ch.controls[0].GetSeq() <= q.GetControlSeen() {
		ch.controls = ch.controls[1:]
	}
	ended = q.GetEnded() && whole && !ch.ended && ch.gone == ""
	res = &wire.ExchangeResponse{
		InClosed: ch.inClosed, Controls: append([]*wire.Control(nil), ch.controls...),
		Out1: ch.out[0].end(), Out2: ch.out[1].end(), Gone: ch.gone != "",
	}
	at, data := ch.in.from(max(q.GetInOffset(), q.GetInHave()), channelInput)
	if len(data) > 0 {
		res.In = []*wire.Piece{{Offset: at, Data: data}}
	}
	news = news || len(data) > 0 || len(ch.controls) > 0 || res.Gone || ended || ch.inClosed && !q.GetInClosed()
	if touched {
		ch.changed()
	}
	return res, news, ended
}

// waits until change, or over: the caller's time is up, or this Hub stops, and what is there is the answer.
func (f *Fleet) waits(ctx context.Context, change <-chan struct{}, timer *time.Timer) (over bool, err error) {
	select {
	case <-change:
		return false, nil
	case <-timer.C:
		return true, nil
	case <-f.stopping:
		return true, nil
	case <-ctx.Done():
		return false, context.Cause(ctx)
	}
}
