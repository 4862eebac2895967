package runner

import (
	"context"
	"encoding/json"
	"errors"
	"sync"
	"time"

	"github.com/claude-hub/claude-hub/runner/build"
	"github.com/claude-hub/claude-hub/runner/session"
	"github.com/claude-hub/claude-hub/runner/wire"
)

// exitOwnFault is the code of a run that claude-hub itself could not bring to its end.
const exitOwnFault = 125

// runState is what a headless run remembers between two processes of the Runner.
type runState struct {
	Boot    string            `json:"boot,omitempty"`    // of the Sandbox that it began in; it is never begun twice
	Started int64             `json:"started,omitempty"` // Unix ms
	Exit    *wire.ChannelExit `json:"exit,omitempty"`    // once it has ended
}

// maskedExit is how a run ended, redacted.
func maskedExit(e *wire.ChannelExit, text func(string) string) *wire.ChannelExit {
	if e == nil {
		return nil
	}
	c := *e
	c.Failed, c.Signal = text(c.Failed), text(c.Signal)
	return &c
}

// guests are the headless runs of a Session: they look again whenever it has moved.
type guests struct {
	mu sync.Mutex
	of map[*worker]bool
}

func (g *guests) wake() {
	g.mu.Lock()
	defer g.mu.Unlock()
	for w := range g.of {
		w.wake()
	}
}

func (g *guests) enter(w *worker) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.of == nil {
		g.of = map[*worker]bool{}
	}
	g.of[w] = true
}

func (g *guests) leave(w *worker) {
	g.mu.Lock()
	defer g.mu.Unlock()
	delete(g.of, w)
}

// sessionWorker finds the Session that a run is in. The Hub's list has been taken whole when it answers.
func (r *Runner) sessionWorker(id string) *worker {
	r.mu.Lock()
	defer r.mu.Unlock()
	if w := r.workers[id]; w != nil && w.machine != nil {
		return w
	}
	return nil
}

// stepRun does what is to be done for a headless run now; done: nothing of it is left.
func (w *worker) stepRun(ctx context.Context, rec record, listed bool) (done bool, err error) {
	switch {
	case !listed || rec.Want == wire.WantRemove:
		if !rec.Ended && w.enter(rec) {
			w.host.machine.EndRun(ctx, w.id)
		}
		w.leave()
		if listed && rec.State != wire.StateRemoved {
			w.endLog()
			if err := w.acting(rec.Generation, wire.StateRemoved); err != nil {
				return false, err
			}
		}
		if listed {
			return false, nil
		}
		return true, w.forget()
	case rec.Ended && rec.State != wire.StateEnded:
		return false, w.finishRun(ctx, rec)
	case rec.Ended:
		return false, nil
	}
	return false, w.headless(ctx, rec)
}

// enter makes the run a guest of its Session, which then doesn't fall asleep for idleness and whose values its log hides.
func (w *worker) enter(rec record) bool {
	if w.host != nil {
		return true
	}
	var p wire.Run
	if json.Unmarshal(rec.Payload, &p) != nil {
		return false
	}
	host := w.r.sessionWorker(p.Session)
	if host == nil {
		return false
	}
	st, err := w.r.spool.Stream(w.id, rec.Fence)
	if err != nil {
		w.log.Warn().Err(err).Msg("the log of a run could not be opened")
		return false
	}
	w.mu.Lock()
	w.stream = build.NewLog(host.set, st)
	w.mu.Unlock()
	w.host = host
	host.guests.enter(w)
	host.machine.Hold()
	return true
}

func (w *worker) leave() {
	if w.host == nil {
		return
	}
	w.host.guests.leave(w)
	w.host.machine.Release()
	w.host = nil
}

// headless brings a run to its end, or as far as it gets now: its Session pokes it.
func (w *worker) headless(ctx context.Context, rec record) error {
	rec, err := w.fetch(ctx, rec)
	if err != nil {
		return ignoreStale(err)
	}
	var p wire.Run
	if err := json.Unmarshal(rec.Payload, &p); err != nil {
		return w.endRun(ctx, rec, wire.ChannelExit{Code: exitOwnFault, Failed: "this Runner can't read the run it was sent; update the Runner"})
	}
	if !w.enter(rec) {
		return w.endRun(ctx, rec, wire.ChannelExit{Code: exitOwnFault, Failed: "the Session is not on this Runner any more"})
	}
	stop, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	w.mu.Lock()
	stopped := w.interrupts(w.rec)
	if stopped {
		cancel(build.ErrCancelled)
	} else {
		w.cancel = cancel
	}
	w.mu.Unlock()
	if stopped && rec.Run.Boot == "" {
		return w.endRun(ctx, rec, wire.ChannelExit{Code: exitOwnFault, Failed: "it was stopped before it began"})
	}
	run := session.Run{ID: w.id, Argv: p.Argv, Dir: p.Dir, User: p.User, Limit: time.Duration(p.LimitMS) * time.Millisecond,
		Boot: rec.Run.Boot, Started: time.UnixMilli(rec.Run.Started)}
	exit, err := w.host.machine.Headless(ctx, run, w.stream, stop.Done(), func(boot string, at time.Time) error {
		w.mu.Lock()
		w.rec.Run.Boot, w.rec.Run.Started = boot, at.UnixMilli()
		w.mu.Unlock()
		return w.acting(rec.Generation, wire.StateRunning)
	})
	w.mu.Lock()
	w.cancel = nil
	rec = w.rec
	w.mu.Unlock()
	switch {
	case ctx.Err() != nil:
		return nil
	case errors.Is(err, session.ErrNotUp):
		over := w.host.over()
		switch {
		case over != "" && rec.Run.Boot != "":
			exit = wire.ChannelExit{Code: exitOwnFault, Failed: session.RunLost}
		case over != "":
			exit = wire.ChannelExit{Code: exitOwnFault, Failed: over + " before it began"}
		case stop.Err() != nil: // its Session's values are not known, so nobody may see what it prints
			w.host.machine.EndRun(ctx, w.id)
			exit = wire.ChannelExit{Code: exitOwnFault, Failed: "it was stopped; the end of what it printed is not shown"}
		default:
			return nil
		}
	case err != nil:
		return err
	}
	return w.endRun(ctx, rec, exit)
}

// over is why no run begins any more in a Session, or empty: it may be up, or on its way there.
func (w *worker) over() string {
	w.mu.Lock()
	defer w.mu.Unlock()
	settled := w.rec.Did == w.rec.Generation
	switch {
	case !w.listed || w.rec.Want == wire.WantRemove:
		return "the Session was deleted"
	case w.rec.Want == wire.WantStop && settled && w.rec.State != wire.StateBusy && w.rec.State != wire.StateStopping:
		return "the Session was put to sleep"
	case w.rec.Want == wire.WantRun && settled && w.rec.State == wire.StateFailed:
		return "the Session could not start"
	}
	return ""
}

// endRun makes the end final, before anything is given up: a process that is killed in between begins nothing a second time.
func (w *worker) endRun(ctx context.Context, rec record, exit wire.ChannelExit) error {
	w.mu.Lock()
	w.rec.Ended, w.rec.Run.Exit = true, &exit
	w.mu.Unlock()
	if err := w.save(); err != nil {
		return err
	}
	return w.finishRun(ctx, rec)
}

// finishRun reports the end, after the Hub knows of its Session what was so when the run began: that it is up, if it was woken for it. It may be
// repeated.
func (w *worker) finishRun(ctx context.Context, rec record) error {
	w.endLog()
	for w.host != nil {
		changed := w.r.spool.Changed()
		if _, sent, ok := w.r.spool.Newest(w.host.id); sent || !ok {
			break
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return nil
		}
	}
	if err := w.acting(rec.Generation, wire.StateEnded); err != nil {
		return err
	}
	if w.host != nil {
		w.host.machine.ForgetRun(ctx, w.id)
	}
	w.leave()
	return nil
}
