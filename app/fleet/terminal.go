package fleet

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/claude-hub/claude-hub/app/fault"
	"github.com/claude-hub/claude-hub/runner/redact"
	"github.com/claude-hub/claude-hub/runner/wire"
	"github.com/claude-hub/claude-hub/store"
)

const (
	// terminalKept is how much of a terminal's output the Hub holds for who comes to look; terminalAhead, how far it may be
	// ahead of the fastest of those who look: beyond it the Runner is held back, and drops the oldest.
	terminalKept  = 768 << 10
	terminalAhead = 384 << 10
	maxTerminals  = 16 // of one assignment that run
	// viewerRest is how long somebody who looked counts after their last call.
	viewerRest = 30 * time.Second
	maxViewers = 64
	// unwatched is how long the Runner waits for an answer that took output which nobody looks at.
	unwatched = 200 * time.Millisecond
)

// Terminal is one that somebody opened in an assignment, as the database has it.
type Terminal struct {
	ID       string
	OpenedBy string
	Opened   time.Time
	Ended    time.Time // zero: it runs, or is about to
	Exit     wire.ChannelExit
}

// terminal is what a channel has beyond others that outlives who looks at it. Guarded by channels.mu.
type terminal struct {
	restored bool // its Runner has not said yet how much input the process has taken
	began    bool // and the database knows
	viewers  map[string]*viewer
	rows     uint16
	cols     uint16
	sizes    int64 // rises with each new size
}

// viewer is one of those who look at a terminal: a tab of a browser.
type viewer struct {
	in    int64 // bytes of its input that were taken
	taken int64 // what it has shown of the output
	seen  time.Time
}

// OpenTerminal asks an assignment's Runner for a terminal, on behalf of who. It lives in the database: until its process ends,
// somebody closes it, or the assignment has a newer fence or is removed. Refusals are OpenChannel's.
func (f *Fleet) OpenTerminal(ctx context.Context, assignment, who string, spec wire.ChannelSpec) (Terminal, error) {
	spec.TTY, spec.Keep, spec.Again, spec.Stdin = true, true, false, false
	encoded, err := json.Marshal(spec)
	if err != nil {
		return Terminal{}, fmt.Errorf("encode what to run: %w", err)
	}
	t := Terminal{ID: store.NewID(), OpenedBy: who}
	var row terminalRow
	err = f.db.Write(ctx, func(tx *store.Tx) error {
		a, err := f.reachable(tx, assignment)
		if err != nil {
			return err
		}
		var open int
		if err := tx.Row(terminalsRunningSQL, a.ID).Scan(&open); err != nil {
			return fmt.Errorf("count terminals: %w", err)
		}
		if open >= maxTerminals {
			return fault.New(fault.Refused, "%d terminals are open here already. Close one first.", open)
		}
		t.Opened = time.UnixMilli(tx.Now().UnixMilli())
		row = terminalRow{id: t.ID, assignment: a.ID, runner: a.Runner, fence: a.Fence, spec: string(encoded)}
		if _, err := tx.Exec(openTerminalSQL, t.ID, a.ID, a.Runner, a.Fence, row.spec, who, t.Opened.UnixMilli()); err != nil {
			return fmt.Errorf("save a terminal: %w", err)
		}
		tx.Wake(runnerTopic(a.Runner))
		return nil
	})
	if err != nil {
		return Terminal{}, err
	}
	f.channels.opened(row, true)
	return t, nil
}

// reachable is an assignment that can be worked in now.
func (f *Fleet) reachable(tx *store.Tx, assignment string) (Assignment, error) {
	a, err := f.Get(tx, assignment)
	if err != nil {
		return a, err
	}
	r, err := scanRunner(tx.Row(runnerByID, a.Runner).Scan)
	if err != nil {
		return a, fmt.Errorf("read Runner %s: %w", a.Runner, err)
	}
	f.judge(&r, f.now())
	switch {
	case a.Want != Run:
		return a, fault.New(fault.Refused, "This is not running and not about to. Wake it first.")
	case !a.LostSince.IsZero() || !r.Online:
		return a, fault.New(fault.Unavailable, "Runner %s does not answer since %s. Try again when it is back.", r.Name, r.LastContact.Format("15:04:05 MST"))
	}
	return a, nil
}

type terminalRow struct {
	id, assignment, runner, spec string
	fence                        int64
	began                        bool
}

func scanTerminalRow(scan func(...any) error) (t terminalRow, err error) {
	var began int64
	err = scan(&t.id, &t.assignment, &t.runner, &t.fence, &t.spec, &began)
	t.began = began > 0
	return t, err
}

// Terminals lists those of an assignment that run, and the newest that have ended, oldest first.
func (f *Fleet) Terminals(ctx context.Context, assignment string) ([]Terminal, error) {
	var all []Terminal
	err := f.db.Read(ctx, func(tx *store.Tx) (err error) {
		all, err = store.All(tx, func(scan func(...any) error) (t Terminal, err error) {
			var opened, ended int64
			var how string
			if err = scan(&t.ID, &t.OpenedBy, &opened, &ended, &how); err != nil {
				return t, err
			}
			t.Opened, t.Ended = at(opened), at(ended)
			if how != "" {
				err = json.Unmarshal([]byte(how), &t.Exit)
			}
			return t, err
		}, terminalsSQL, assignment)
		if err != nil {
			return fmt.Errorf("list terminals: %w", err)
		}
		return nil
	})
	return all, err
}

// CloseTerminal ends one with its process. One that has ended is no error.
func (f *Fleet) CloseTerminal(ctx context.Context, id string) error {
	if err := f.endTerminal(ctx, id, wire.ChannelExit{Code: 129, Failed: "it was closed"}); err != nil {
		return err
	}
	f.CloseChannel(id)
	return nil
}

func (f *Fleet) endTerminal(ctx context.Context, id string, exit wire.ChannelExit) error {
	how, err := json.Marshal(exit)
	if err != nil {
		return fmt.Errorf("encode how a terminal ended: %w", err)
	}
	return f.db.Write(ctx, func(tx *store.Tx) error {
		if _, err := tx.Exec(endTerminalSQL, id, tx.Now().UnixMilli(), string(how)); err != nil {
			return fmt.Errorf("save the end of a terminal: %w", err)
		}
		return nil
	})
}

// endTerminals ends those of an assignment that stand under fences below fence.
func endTerminals(tx *store.Tx, assignment string, fence int64) error {
	if _, err := tx.Exec(endTerminalsSQL, assignment, fence, tx.Now().UnixMilli(), `{"code":129,"failed":"the Session was removed, or taken from its Runner"}`); err != nil {
		return fmt.Errorf("end the terminals of assignment %s: %w", assignment, err)
	}
	return nil
}

// opened has the channel of a terminal that runs, unless another Hub is the home of its Runner.
func (c *channels) opened(row terminalRow, fresh bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.elsewhere[row.runner] {
		c.adopt([]terminalRow{row}, fresh)
	}
}

// adopt has the channels of terminals that run, also of those that an earlier process of the Hub, or another Hub, opened. Called
// with mu held.
func (c *channels) adopt(rows []terminalRow, fresh bool) {
	for _, r := range rows {
		if c.byID[r.id] != nil {
			continue
		}
		c.byID[r.id] = &channel{
			id: r.id, assignment: r.assignment, runner: r.runner, fence: r.fence, spec: r.spec, client: c.f.now(), change: make(chan struct{}),
			term: &terminal{restored: !fresh, began: r.began, viewers: map[string]*viewer{}},
		}
		c.wakeRunner(r.runner)
	}
}

// specOf is the spec as the Runner gets it now. Called with mu held.
func (ch *channel) specOf() string {
	if ch.term == nil || !ch.term.began {
		return ch.spec
	}
	var spec wire.ChannelSpec
	if json.Unmarshal([]byte(ch.spec), &spec) != nil {
		return ch.spec
	}
	spec.Again = true
	b, err := json.Marshal(spec)
	if err != nil {
		return ch.spec
	}
	return string(b)
}

// watched tells whether somebody looks. Called with mu held.
func (ch *channel) watched(now time.Time) bool {
	for _, v := range ch.term.viewers {
		if now.Sub(v.seen) < viewerRest {
			return true
		}
	}
	return false
}

// room is how many bytes of output a terminal takes. Called with mu held.
func (ch *channel) room(now time.Time) int {
	if !ch.watched(now) {
		return terminalKept
	}
	fastest := ch.out[0].base // what is before is nowhere: nobody will ever take it
	for _, v := range ch.term.viewers {
		if now.Sub(v.seen) < viewerRest {
			fastest = max(fastest, v.taken)
		}
	}
	return int(min(max(fastest+terminalAhead-ch.out[0].end(), 0), terminalKept))
}

// takeTerminal is take for a terminal: an empty piece says that nothing before its offset comes any more. Called with mu held.
func (ch *channel) takeTerminal(set *redact.Set, p outPiece, told *hits, now time.Time) (changed, whole bool) {
	out := &ch.out[0]
	if p.offset < 0 || p.offset > maxOffset {
		return false, false
	}
	if len(p.raw) == 0 {
		if p.offset > out.end() {
			out.base, out.data, ch.tails[0] = p.offset, nil, nil
			return true, true
		}
		return false, true
	}
	changed, whole = ch.takeRoom(set, p, told, len(out.data)+ch.room(now))
	out.forget(out.end() - terminalKept)
	return changed, whole
}

// View is what somebody who looks at a terminal gets.
type View struct {
	Offset     int64 // of Data; later than what was asked for where something is missing
	Data       []byte
	End        int64 // of all there is
	InNext     int64 // how much of this viewer's input was taken
	Rows, Cols uint16
	Sizes      int64 // rises with each new size
	Picked     bool  // the Runner serves it
	Ended      bool  // and all output is in Data or before
	Exit       wire.ChannelExit
	Gone       string // why nothing more comes
}

// Look is one question of somebody who looks at a terminal.
type Look struct {
	Viewer string // made up by the viewer, the same for all its calls
	From   int64  // the output that it wants next; below 0: the oldest there is
	Taken  int64  // how much of the output it has shown: what holds the Runner back
	Most   int    // bytes of Data
	Sizes  int64  // the newest it knows
	InNext int64  // the newest it knows
	Wait   time.Duration
}

// LookAt waits for what is new in a terminal. ErrNoChannel: this Hub doesn't have it any more.
func (f *Fleet) LookAt(ctx context.Context, id string, q Look) (View, error) {
	c := &f.channels
	timer := time.NewTimer(min(max(q.Wait, 0), maxPoll))
	defer timer.Stop()
	var err error
	var had *channel
	for over := q.Wait <= 0; ; {
		c.mu.Lock()
		ch, v := c.viewer(id, q.Viewer)
		if ch == nil {
			err := c.absent(had)
			c.mu.Unlock()
			return View{}, err
		}
		had = ch
		if q.Taken > v.taken {
			v.taken = min(q.Taken, ch.out[0].end())
			ch.changed() // there is room for more
		}
		from := q.From
		if from < 0 {
			from = ch.out[0].base
			v.taken = max(v.taken, from)
		}
		view := View{
			End: ch.out[0].end(), InNext: v.in, Rows: ch.term.rows, Cols: ch.term.cols, Sizes: ch.term.sizes, Picked: ch.picked, Exit: ch.exit, Gone: ch.gone,
		}
		view.Offset, view.Data = ch.out[0].from(from, q.Most)
		view.Ended = ch.ended && view.Offset+int64(len(view.Data)) >= view.End
		change := ch.change
		c.mu.Unlock()
		if over || len(view.Data) > 0 || view.Ended || view.Gone != "" || view.Sizes != q.Sizes || view.InNext != q.InNext {
			return view, nil
		}
		if over, err = f.waits(ctx, change, timer); err != nil {
			return View{}, err
		}
	}
}

// viewer finds one of those who look, or lets it in. Called with mu held.
func (c *channels) viewer(id, name string) (*channel, *viewer) {
	ch := c.byID[id]
	if ch == nil || ch.term == nil {
		return nil, nil
	}
	now := c.f.now()
	v := ch.term.viewers[name]
	if v == nil {
		for other, old := range ch.term.viewers {
			if len(ch.term.viewers) >= maxViewers || now.Sub(old.seen) > 10*viewerRest {
				delete(ch.term.viewers, other)
			}
		}
		v = &viewer{taken: ch.out[0].base}
		ch.term.viewers[name] = v
		ch.changed() // the Runner's call may wait because nobody looked
	}
	v.seen = now
	return ch, v
}

// Type gives a terminal input of one viewer, at an offset of that viewer's own input, so that it may be repeated. It answers
// how much of it was taken in all, after waiting for room for at most wait; the rest is sent again. Input of several viewers
// is in the order it came.
func (f *Fleet) Type(ctx context.Context, id, name string, offset int64, b []byte, wait time.Duration) (next int64, err error) {
	c := &f.channels
	timer := time.NewTimer(max(wait, 0))
	defer timer.Stop()
	var had *channel
	for over := wait <= 0; ; {
		var change <-chan struct{}
		next, had, change, err = c.give(id, name, offset, b, had)
		if err != nil || over || next >= offset+int64(len(b)) || next < offset {
			return next, err
		}
		if over, err = f.waits(ctx, change, timer); err != nil {
			return next, err
		}
	}
}

// give answers the channel as well, which the next call takes as had.
func (c *channels) give(id, name string, offset int64, b []byte, had *channel) (next int64, ch *channel, change <-chan struct{}, err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	ch, v := c.viewer(id, name)
	if ch == nil || ch.ended || ch.gone != "" {
		return 0, ch, nil, c.absent(had)
	}
	if offset > v.in || offset < 0 || offset+int64(len(b)) <= v.in {
		return v.in, ch, ch.change, nil
	}
	b = b[v.in-offset:]
	before := ch.in.end()
	if put, _ := ch.in.put(before, b, channelInput); put {
		v.in += ch.in.end() - before
		ch.changed()
	}
	return v.in, ch, ch.change, nil
}

// ResizeTerminal has a terminal the size of who asked last; all who look are told.
func (f *Fleet) ResizeTerminal(id, name string, rows, cols uint16) error {
	c := &f.channels
	c.mu.Lock()
	defer c.mu.Unlock()
	ch, _ := c.viewer(id, name)
	if ch == nil {
		return ErrNoChannel
	}
	t := ch.term
	if rows == 0 || cols == 0 || rows == t.rows && cols == t.cols {
		return nil
	}
	t.rows, t.cols, t.sizes = rows, cols, t.sizes+1
	// Numbers go on where an earlier process of the Hub, whose the Runner may have seen, can't have come.
	ch.lastControl = max(ch.lastControl+1, f.now().UnixMilli())
	ch.controls = []*wire.Control{{Seq: ch.lastControl, Rows: uint32(rows), Cols: uint32(cols)}}
	ch.changed()
	return nil
}

// began notes in the database that a terminal's process runs.
func (f *Fleet) began(ctx context.Context, id string) error {
	return f.db.Write(ctx, func(tx *store.Tx) error {
		if _, err := tx.Exec(beganTerminalSQL, id, tx.Now().UnixMilli()); err != nil {
			return fmt.Errorf("save that a terminal runs: %w", err)
		}
		return nil
	})
}

// TerminalOf tells which assignment a terminal is in, running or not. ErrNoChannel: there is none.
func (f *Fleet) TerminalOf(ctx context.Context, id string) (assignment string, t Terminal, err error) {
	err = f.db.Read(ctx, func(tx *store.Tx) error {
		var opened, ended int64
		var how string
		if err := tx.Row(terminalSQL, store.Text(id)).Scan(&assignment, &t.ID, &t.OpenedBy, &opened, &ended, &how); err != nil {
			return err
		}
		t.Opened, t.Ended = at(opened), at(ended)
		if how != "" {
			return json.Unmarshal([]byte(how), &t.Exit) // nobody serves it any more
		}
		row, err := scanTerminalRow(tx.Row(terminalRowSQL, t.ID).Scan)
		if err == nil {
			f.channels.opened(row, false)
		}
		return err
	})
	if errors.Is(err, store.ErrNotFound) {
		return "", t, ErrNoChannel
	}
	if err != nil {
		return "", t, fmt.Errorf("read terminal: %w", err)
	}
	return assignment, t, nil
}
