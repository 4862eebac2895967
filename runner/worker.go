package runner

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"runtime/debug"
	"slices"
	"sync"
	"time"

	"github.com/rs/zerolog"

	"github.com/claude-hub/claude-hub/runner/build"
	"github.com/claude-hub/claude-hub/runner/hubclient"
	"github.com/claude-hub/claude-hub/runner/redact"
	"github.com/claude-hub/claude-hub/runner/session"
	"github.com/claude-hub/claude-hub/runner/spool"
	"github.com/claude-hub/claude-hub/runner/wire"
)

// worker moves one assignment towards what the Hub wants of it. One goroutine does the work; want and the reports may
// come from any.
type worker struct {
	r   *Runner
	id  string
	log zerolog.Logger

	poke chan struct{} // something changed; holds one

	mu       sync.Mutex
	rec      record
	durable  mark // of the newest record that a power cut can't undo
	listed   bool // the Hub's list has it, or no list came yet in this process
	channels []*wire.Channel
	cancel   context.CancelCauseFunc // of what runs now
	deadline *time.Timer
	machine  *session.Machine
	stream   *build.Log
	set      *redact.Set // every Sensitive value that a process of the assignment may have, until it is forgotten
	opened   int64       // the fence that stream is under
	withheld string      // why a running Session's output isn't followed, as the log says already
	track    *build.Track
	late     *time.Timer // a report of progress that waits for its turn
	gone     bool        // nothing is left, or the Runner has stopped: no more reports

	guests guests  // of a Session: its headless runs
	host   *worker // of a headless run: its Session; of the worker's goroutine alone
}

// progressEvery keeps reports of progress at two a second.
const progressEvery = 500 * time.Millisecond

func newWorker(r *Runner, rec record) (*worker, error) {
	w := &worker{r: r, id: rec.ID, rec: rec, durable: rec.mark(), listed: true, poke: make(chan struct{}, 1), set: &redact.Set{},
		log: r.log.With().Str("assignment", rec.ID).Str("kind", rec.Kind).Logger()}
	if err := w.open(); err != nil {
		return nil, err
	}
	return w, nil
}

// open makes the log of the assignment's fence, and the Track and Machine that write to it.
func (w *worker) open() error {
	if err := w.openLog(); err != nil {
		return err
	}
	w.track = build.NewTrack(w.rec.Phases, w.rec.Notes, w.changed)
	if w.rec.Kind != wire.KindSession {
		return nil
	}
	var p wire.Session
	if len(w.rec.Payload) > 0 {
		if err := json.Unmarshal(w.rec.Payload, &p); err != nil {
			return fmt.Errorf("the payload of Session %s can't be read: %w", w.id, err)
		}
	}
	w.machine = session.New(session.Options{ID: w.id, Dir: w.r.sessions, Builder: w.r.builder, Log: w.stream, Track: w.track,
		State: w.rec.Session, Payload: p, Save: w.save, Token: w.cloneToken, Lender: lender{w}, CountEvery: w.r.countEvery, Life: w.r.ctx})
	return nil
}

func (w *worker) openLog() error {
	st, err := w.r.spool.Stream(w.id, w.rec.Fence)
	if err != nil {
		return err
	}
	w.stream, w.opened = build.NewLog(w.set, st), w.rec.Fence
	return nil
}

func (w *worker) openFence() int64 {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.opened
}

// want is what the Hub's newest list says; nil: it is no longer in it.
func (w *worker) want(item *wire.Item, channels []*wire.Channel) {
	w.mu.Lock()
	before := w.rec
	w.listed = item != nil
	if item != nil {
		w.rec.Want, w.rec.Generation, w.rec.Deadline = item.Want, item.Generation, item.DeadlineMs
		if item.Fence > w.rec.Fence {
			w.rec.Fence = item.Fence
		}
	}
	w.channels = channels
	interrupt := w.interrupts(before)
	cancel := w.cancel
	w.arm()
	w.mu.Unlock()
	if interrupt && cancel != nil {
		cancel(build.ErrCancelled)
	}
	w.wake()
}

// interrupts says whether what runs now is not wanted any more. The caller holds the lock.
func (w *worker) interrupts(before record) bool {
	return !w.listed || w.rec.Want != wire.WantRun || w.rec.Fence != before.Fence && w.rec.Kind == wire.KindTestBuild
}

func (w *worker) wake() {
	select {
	case w.poke <- struct{}{}:
	default:
	}
}

// arm sets the timer of the deadline for what runs now. The caller holds the lock.
func (w *worker) arm() {
	if w.deadline != nil {
		w.deadline.Stop()
		w.deadline = nil
	}
	if w.cancel != nil && w.rec.Deadline > 0 && w.rec.Kind == wire.KindTestBuild {
		cancel := w.cancel
		w.deadline = time.AfterFunc(time.Until(time.UnixMilli(w.rec.Deadline)), func() { cancel(build.ErrDeadline) })
	}
}

// run works until the Runner stops or nothing of the assignment is left.
func (w *worker) run(ctx context.Context) {
	defer w.mute()
	if w.machine != nil {
		defer w.machine.Settle()
	}
	for {
		done, err := w.guard(ctx)
		if done || ctx.Err() != nil {
			return
		}
		var retry <-chan time.Time
		if err != nil {
			w.log.Warn().Err(err).Msg("working on an assignment failed; it is tried again")
			retry = time.After(w.r.retry)
		}
		select {
		case <-w.poke:
		case <-w.sandboxEnded():
			w.machineEnded(ctx)
		case <-retry:
		case <-ctx.Done():
			return
		}
	}
}

// reportAgain spools the state that the record has, when the spool's newest report says another: a process that was killed
// between the two would leave the Hub waiting for what is done, until a deadline or for ever.
func (w *worker) reportAgain() error {
	w.mu.Lock()
	rec := w.rec
	w.mu.Unlock()
	newest, _, ok := w.r.spool.Newest(w.id)
	if rec.State == "" || ok && newest.Fence == rec.Fence && newest.Generation == rec.Did && newest.State == rec.State {
		return nil
	}
	return w.report(rec.State)
}

func (w *worker) sandboxEnded() <-chan struct{} {
	if w.machine == nil {
		return nil
	}
	return w.machine.Done()
}

// guard turns a panic of one assignment into its failure: the Runner and the others go on.
func (w *worker) guard(ctx context.Context) (done bool, err error) {
	defer w.guests.wake()
	defer func() {
		p := recover()
		if p == nil {
			return
		}
		w.log.Error().Interface("panic", p).Str("stack", string(debug.Stack())).Msg("an assignment crashed")
		w.mu.Lock()
		w.cancel = nil
		w.rec.Did = w.rec.Generation
		w.rec.Ended = w.rec.Kind != wire.KindSession
		state, message := wire.StateFailed, "claude-hub itself failed here; the Runner's log says more"
		if w.rec.Kind == wire.KindRun {
			state, w.rec.Run.Exit = wire.StateEnded, &wire.ChannelExit{Code: exitOwnFault, Failed: message}
		}
		w.rec.Failure = &wire.Failure{Phase: w.track.FailRunning(), Code: build.CodeInternal, Message: message}
		w.mu.Unlock()
		defer func() {
			if p := recover(); p != nil {
				err = fmt.Errorf("reporting the crash crashed as well: %v", p)
			}
		}()
		err = w.report(state)
	}()
	w.mu.Lock()
	rec, listed := w.rec, w.listed
	w.mu.Unlock()
	switch rec.Kind {
	case wire.KindSession:
		return w.stepSession(ctx, rec, listed)
	case wire.KindRun:
		return w.stepRun(ctx, rec, listed)
	}
	return w.stepTest(ctx, rec, listed)
}

// activity brackets work that want can interrupt.
func (w *worker) activity(ctx context.Context, f func(context.Context) error) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	w.mu.Lock()
	if w.interrupts(w.rec) {
		w.mu.Unlock()
		return build.ErrCancelled
	}
	w.cancel = cancel
	w.arm()
	w.mu.Unlock()
	err := f(ctx)
	w.mu.Lock()
	w.cancel = nil
	w.arm()
	w.mu.Unlock()
	return err
}

// fetch brings the payload of the wanted generation, once.
func (w *worker) fetch(ctx context.Context, rec record) (record, error) {
	if rec.Of == rec.Generation && len(rec.Payload) > 0 {
		return rec, nil
	}
	for {
		b, err := w.r.client.Fetch(ctx, rec.ID, rec.Generation, rec.Fence)
		if err == nil {
			w.mu.Lock()
			defer w.mu.Unlock()
			w.rec.Payload, w.rec.Of = b, rec.Generation
			rec.Payload, rec.Of = b, rec.Generation
			return rec, w.storeLocked(w.rec)
		}
		if ctx.Err() != nil {
			return rec, context.Cause(ctx)
		}
		if errors.Is(err, hubclient.ErrFenced) || errors.Is(err, hubclient.ErrStale) || errors.Is(err, hubclient.ErrUnknown) {
			return rec, errStale
		}
		select {
		case <-time.After(w.r.retry):
		case <-ctx.Done():
			return rec, context.Cause(ctx)
		}
	}
}

// errStale: the Hub wants something else by now, which the next list says.
var errStale = errors.New("the Hub wants something else by now")

// snapshotLocked takes what the Track and the Machine know into the record.
func (w *worker) snapshotLocked() record {
	w.rec.Phases, w.rec.Notes = w.track.Phases(), w.track.Notes()
	if w.machine != nil {
		w.rec.Session = w.machine.State()
	}
	rec := w.rec
	rec.Phases, rec.Notes = slices.Clone(rec.Phases), slices.Clone(rec.Notes)
	return rec
}

// storeLocked writes the record, waiting for the disk only where a power cut would do harm: a wake has ten of these.
func (w *worker) storeLocked(rec record) error {
	m := rec.mark()
	if err := w.r.writeRecord(rec.redacted(w.stream.Text), m != w.durable); err != nil {
		return err
	}
	w.durable = m
	return nil
}

func (w *worker) save() error {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.gone {
		return nil
	}
	return w.storeLocked(w.snapshotLocked())
}

// changed is the Track's: what a restarted Runner must know is stored and reported at once, progress at its pace.
func (w *worker) changed(urgent bool) {
	if urgent {
		w.mu.Lock()
		state := w.rec.State
		w.mu.Unlock()
		if state == "" {
			return
		}
		if err := w.report(state); err != nil {
			w.log.Warn().Err(err).Msg("a report could not be stored")
		}
		return
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.late == nil && w.rec.State != "" && !w.gone {
		w.late = time.AfterFunc(progressEvery, func() {
			w.mu.Lock()
			w.late = nil
			state := w.rec.State
			w.mu.Unlock()
			w.report(state) //nolint:errcheck // only progress; the next report says it again
		})
	}
}

// report stores the state and hands it to the spool, from where it reaches the Hub.
func (w *worker) report(state string) error {
	defer w.guests.wake()
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.gone {
		return nil
	}
	w.rec.State = state
	rec := w.snapshotLocked()
	if err := w.storeLocked(rec); err != nil {
		return err
	}
	detail, err := json.Marshal(w.detail(rec))
	if err != nil {
		return err
	}
	_, err = w.r.spool.PutReport(spool.Report{ID: rec.ID, Fence: rec.Fence, Generation: rec.Did, State: state, Detail: detail})
	return err
}

// detail is what is reported beside the state, every text redacted. The caller holds the lock.
func (w *worker) detail(rec record) any {
	text := w.stream.Text
	failure := func(f *wire.Failure) *wire.Failure {
		if f == nil {
			return nil
		}
		c := *f
		c.Message, c.LastLines = text(c.Message), text(c.LastLines)
		return &c
	}
	if rec.Kind == wire.KindRun {
		return wire.RunDetail{Started: rec.Run.Started, Exit: maskedExit(rec.Run.Exit, text)}
	}
	if rec.Kind == wire.KindSession {
		d := w.machine.Detail()
		d.Failure, d.StartFailed = failure(rec.Failure), failure(d.StartFailed)
		for i := range d.Phases {
			d.Phases[i].Note = text(d.Phases[i].Note)
		}
		for i := range d.Notes {
			d.Notes[i] = text(d.Notes[i])
		}
		return d
	}
	d := wire.TestBuildDetail{Phases: rec.Phases, Progress: w.track.Progress(), Notes: rec.Notes, ImageDigest: rec.Marks.ImageDigest,
		BuildKey: rec.Marks.Key, Commit: rec.Marks.Commit, Failure: failure(rec.Failure)}
	for i := range d.Phases {
		d.Phases[i].Note = text(d.Phases[i].Note)
	}
	for i := range d.Notes {
		d.Notes[i] = text(d.Notes[i])
	}
	return d
}

// held is this assignment's line in the next Sync.
func (w *worker) held() *wire.Held {
	w.mu.Lock()
	defer w.mu.Unlock()
	h := &wire.Held{Id: w.id, Generation: w.rec.Did, Fence: w.rec.Fence, State: w.rec.State}
	if w.machine != nil && w.rec.State == wire.StateRunning {
		h.IdleMs = w.machine.Idle().Milliseconds()
	}
	return h
}

// forget ends the worker: nothing of the assignment is left on the host.
func (w *worker) forget() error {
	w.mute()
	return w.r.forget(w)
}

// mute has nothing stored or reported any more: another process, or none, goes on.
func (w *worker) mute() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.gone = true
	if w.late != nil {
		w.late.Stop()
		w.late = nil
	}
}
