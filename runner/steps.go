package runner

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"strings"
	"time"

	"github.com/claude-hub/claude-hub/runner/build"
	"github.com/claude-hub/claude-hub/runner/session"
	"github.com/claude-hub/claude-hub/runner/wire"
)

// acting notes that a generation is being worked on, and says how far that is.
func (w *worker) acting(generation int64, state string) error {
	w.mu.Lock()
	w.rec.Did = generation
	w.mu.Unlock()
	return w.report(state)
}

// stepTest does what is to be done for a Test build now; done: nothing of it is left.
func (w *worker) stepTest(ctx context.Context, rec record, listed bool) (done bool, err error) {
	switch {
	case !listed || rec.Want == wire.WantRemove:
		if err := w.r.builder.CleanTest(ctx, w.id, rec.Marks); err != nil {
			return false, err
		}
		if listed && rec.State != wire.StateRemoved {
			w.endLog()
			if err := w.acting(rec.Generation, wire.StateRemoved); err != nil {
				return false, err
			}
		}
		// What the Hub has not acknowledged stays in the spool; the last of it is dropped when the Hub no longer lists it.
		if listed {
			return false, nil
		}
		return true, w.forget()
	case rec.Fence != w.openFence():
		return false, w.afresh(ctx)
	case rec.Ended && rec.Outcome != "" && rec.State != rec.Outcome:
		return false, w.finishTest(ctx, rec)
	case rec.Ended:
		return false, nil
	case rec.Want == wire.WantStop:
		return false, w.endTest(ctx, rec, build.ErrCancelled)
	}
	return false, w.test(ctx, rec)
}

func (w *worker) test(ctx context.Context, rec record) error {
	err := w.activity(ctx, func(ctx context.Context) error {
		rec, err := w.fetch(ctx, rec)
		if err != nil {
			return err
		}
		var p wire.TestBuild
		if err := json.Unmarshal(rec.Payload, &p); err != nil {
			return &build.Failed{Failure: wire.Failure{Code: build.CodeSpec, Message: "this Runner can't read the Test build it was sent; update the Runner"}}
		}
		if err := w.acting(rec.Generation, wire.StateRunning); err != nil {
			return err
		}
		values, err := w.values(ctx, rec, p.Recipe)
		if err != nil {
			return err
		}
		marks := rec.Marks
		if p.Proposal != nil && marks.Key == "" {
			w.stream.Mark("%s", proposal(p))
		}
		job := &build.Job{ID: w.id, Recipe: p.Recipe, Values: values, Token: w.cloneToken, Log: w.stream, Track: w.track, Marks: &marks}
		job.Save = func() error {
			w.mu.Lock()
			w.rec.Marks = marks
			w.mu.Unlock()
			return w.save()
		}
		err = w.r.builder.Test(ctx, job, p.Repo)
		w.mu.Lock()
		w.rec.Marks = marks
		w.mu.Unlock()
		return err
	})
	if errors.Is(err, build.ErrShutdown) || ctx.Err() != nil || errors.Is(err, errStale) {
		return nil
	}
	w.mu.Lock()
	now := w.rec
	w.mu.Unlock()
	if errors.Is(err, build.ErrCancelled) && (!w.isListed() || now.Want == wire.WantRemove) {
		return nil // the next step cleans up
	}
	if errors.Is(err, build.ErrCancelled) && now.Want == wire.WantRun {
		// A newer fence: this attempt is over, another one begins under it.
		return w.afresh(ctx)
	}
	return w.endTest(ctx, now, err)
}

// proposal is the first line of the log of what a pull request proposes: which commit said what is built, and which one it is
// tried on.
func proposal(p wire.TestBuild) string {
	s := fmt.Sprintf("pull request #%d proposes this Environment at commit %s", p.Proposal.PullRequest, p.Proposal.Commit)
	if p.Proposal.Branch != "" {
		s += "; it is tested on the default branch of " + p.Repo.Name + ", which was at " + p.Proposal.Branch + " when this was asked for"
	}
	if p.Proposal.Withheld {
		s += "; it comes from a fork, so Sensitive values and Links are withheld"
	}
	return s
}

func (w *worker) isListed() bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.listed
}

// afresh forgets all that an attempt under an older fence did.
func (w *worker) afresh(ctx context.Context) error {
	w.mu.Lock()
	marks := w.rec.Marks
	w.mu.Unlock()
	if err := w.r.builder.CleanTest(ctx, w.id, marks); err != nil {
		return err
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.rec.Marks, w.rec.Phases, w.rec.Notes, w.rec.Failure, w.rec.Ended, w.rec.Outcome, w.rec.State = build.Marks{}, nil, nil, nil, false, "", ""
	if err := w.open(); err != nil {
		return err
	}
	w.wake()
	return w.storeLocked(w.rec)
}

// endTest makes the outcome final. It is decided before its Sandbox is given up, so that a process that is killed in
// between runs no script a second time.
func (w *worker) endTest(ctx context.Context, rec record, err error) error {
	state := wire.StatePassed
	var failure *wire.Failure
	switch {
	case err == nil:
	case errors.Is(err, build.ErrCancelled):
		state = wire.StateCancelled
		w.track.CancelRunning()
	default:
		state = wire.StateFailed
		f := w.explain(err)
		failure = &f
		w.log.Info().Str("code", f.Code).Str("phase", f.Phase).Msg("a Test build failed")
	}
	w.mu.Lock()
	w.rec.Ended, w.rec.Outcome, w.rec.Failure = true, state, failure
	rec.Outcome, rec.Failure = state, failure
	w.mu.Unlock()
	if err := w.save(); err != nil {
		return err
	}
	return w.finishTest(ctx, rec)
}

// finishTest cleans up after a Test build and reports its outcome. It may be repeated.
func (w *worker) finishTest(ctx context.Context, rec record) error {
	if err := w.r.builder.CleanTest(ctx, w.id, rec.Marks); err != nil {
		w.log.Warn().Err(err).Msg("a Test build could not be cleaned up; it is tried again when it is removed")
	}
	said := rec.Outcome
	if rec.Failure != nil {
		said += ": " + rec.Failure.Message
	}
	w.lastMark(rec.Outcome, said)
	w.endLog()
	if err := w.acting(rec.Generation, rec.Outcome); err != nil {
		return err
	}
	if rec.Marks.Base != "" {
		w.r.pruneSoon()
	}
	return nil
}

// lastMark writes the log's last Mark, unless a process that was killed since did.
func (w *worker) lastMark(outcome, said string) {
	if st, err := w.r.spool.Stream(w.id, w.fence()); err == nil {
		if last, err := st.Tail(10, 0); err == nil && strings.Contains("\n"+last, "\n==> "+outcome) {
			return
		}
	}
	w.stream.Mark("%s", said)
}

// explain puts an error in words, with the last lines of what was running.
func (w *worker) explain(err error) wire.Failure {
	f := build.Explain(w.failedPhase(), err)
	if f.LastLines == "" && f.Phase != wire.PhaseImage {
		f.LastLines = w.stream.Tail()
	}
	return f
}

// failedPhase is the phase that was running, now marked as failed, or the one that failed already.
func (w *worker) failedPhase() string {
	if name := w.track.FailRunning(); name != "" {
		return name
	}
	phases := w.track.Phases()
	for i := len(phases) - 1; i >= 0; i-- {
		if phases[i].State == wire.PhaseFailed {
			return phases[i].Name
		}
	}
	if len(phases) == 0 {
		return wire.PhaseImage
	}
	return phases[len(phases)-1].Name
}

func (w *worker) endLog() {
	st, err := w.r.spool.Stream(w.id, w.fence())
	if err == nil {
		err = st.Finish()
	}
	if err != nil {
		w.log.Warn().Err(err).Msg("the end of a log could not be stored")
	}
}

func (w *worker) fence() int64 {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.rec.Fence
}

// stepSession does what is to be done for a Session now; done: nothing of it is left.
func (w *worker) stepSession(ctx context.Context, rec record, listed bool) (done bool, err error) {
	m := w.machine
	if rec.Fence != w.openFence() {
		if err := w.refence(); err != nil {
			return false, err
		}
	}
	switch {
	case !listed:
		// Never destroyed for want of a row on the Hub: asleep, and kept (design.md §5).
		if m.State().Awake {
			return false, m.Sleep(ctx, 0)
		}
		if rec.State == wire.StateRemoved {
			return true, w.forget()
		}
		return false, nil
	case rec.Want == wire.WantRemove:
		if rec.State == wire.StateRemoved {
			return false, nil
		}
		if err := w.acting(rec.Generation, wire.StateStopping); err != nil {
			return false, err
		}
		if err := m.Remove(ctx); err != nil {
			return false, err
		}
		w.endLog()
		w.r.pruneSoon() // its build may stand for nobody now
		return false, w.acting(rec.Generation, wire.StateRemoved)
	case rec.Want == wire.WantStop:
		return false, w.sleep(ctx, rec)
	}
	return false, w.awake(ctx, rec)
}

func (w *worker) sleep(ctx context.Context, rec record) error {
	m := w.machine
	if rec.Did == rec.Generation && (rec.State == wire.StateAsleep || rec.State == wire.StateBusy || rec.State == wire.StateArchived) {
		w.serve(ctx) // opened while the Hub asked for sleep: it runs, or hears that nothing is awake
		return nil
	}
	rec, err := w.fetch(ctx, rec)
	if err != nil {
		return ignoreStale(err)
	}
	var p wire.Session
	if err := json.Unmarshal(rec.Payload, &p); err != nil {
		return err
	}
	if p.Archive != "" && rec.Did == rec.Generation && rec.State == wire.StateFailed {
		return nil // until somebody asks again
	}
	least := time.Duration(p.IdleMS) * time.Millisecond
	if !m.State().Awake {
		least = 0
	}
	if least > 0 && m.Idle() < least {
		return w.acting(rec.Generation, wire.StateBusy)
	}
	before := rec.State
	if m.State().Awake {
		w.stream.Mark("going to sleep")
		if err := w.acting(rec.Generation, wire.StateStopping); err != nil {
			return err
		}
	}
	switch err := m.Sleep(ctx, least); {
	case errors.Is(err, session.ErrBusy):
		w.log.Info().Str("before", before).Msg("a Session became active just before its sleep")
		return w.acting(rec.Generation, wire.StateBusy)
	case err != nil:
		return err
	}
	w.setFailure(nil)
	if p.Archive != "" {
		return w.archive(ctx, rec, p)
	}
	w.stream.Mark("asleep")
	w.serve(ctx)
	return w.acting(rec.Generation, wire.StateAsleep)
}

// archive goes on from sleep.
func (w *worker) archive(ctx context.Context, rec record, p wire.Session) error {
	err := w.machine.Archive(ctx, p)
	var failed *build.Failed
	switch {
	case errors.As(err, &failed):
		w.stream.Mark("can't be archived: %s", failed.Message)
		w.setFailure(&failed.Failure)
		return w.acting(rec.Generation, wire.StateFailed)
	case err != nil:
		return err
	}
	if p.Archive == wire.ArchiveDisks {
		w.stream.Mark("archived: its Sandbox and all of its disk but the Workspace were given up")
	} else {
		w.stream.Mark("archived: its Sandbox was given up, its disk is kept")
	}
	w.serve(ctx)
	w.r.pruneSoon() // its build may stand for nobody now
	return w.acting(rec.Generation, wire.StateArchived)
}

// refence has the Session's log go on under a newer fence; its data is the same.
func (w *worker) refence() error {
	w.mu.Lock()
	defer w.mu.Unlock()
	if err := w.openLog(); err != nil {
		return err
	}
	w.machine.SetLog(w.stream)
	return nil
}

func ignoreStale(err error) error {
	if errors.Is(err, errStale) || errors.Is(err, build.ErrShutdown) {
		return nil
	}
	return err
}

func (w *worker) setFailure(f *wire.Failure) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.rec.Failure = f
}

func (w *worker) awake(ctx context.Context, rec record) error {
	m := w.machine
	if m.State().Awake && m.Done() != nil {
		known, err := w.resume(ctx, rec)
		if err != nil {
			return err
		}
		w.serve(ctx)
		if !known {
			return nil
		}
		if rec.State == wire.StateRunning && rec.Did == rec.Generation {
			return nil
		}
		// A newer version is taken up at the next wake, not under a person's hands (ADR 0009).
		if _, err := w.fetch(ctx, rec); err != nil {
			return ignoreStale(err)
		}
		w.setFailure(nil)
		m.Count(ctx) // what a new wish for what runs already asks for: somebody wants to know before deleting it
		return w.acting(rec.Generation, wire.StateRunning)
	}
	if rec.State == wire.StateFailed && rec.Did == rec.Generation {
		w.serve(ctx)
		return nil // until somebody asks again
	}
	err := w.activity(ctx, func(ctx context.Context) error {
		rec, err := w.fetch(ctx, rec)
		if err != nil {
			return err
		}
		var p wire.Session
		if err := json.Unmarshal(rec.Payload, &p); err != nil {
			return &build.Failed{Failure: wire.Failure{Code: build.CodeSpec, Message: "this Runner can't read the Session it was sent; update the Runner"}}
		}
		w.setFailure(nil)
		again := rec.State == wire.StateStarting && rec.Did == rec.Generation
		if err := w.acting(rec.Generation, wire.StateStarting); err != nil {
			return err
		}
		w.track.Reset()
		values, err := w.values(ctx, rec, p.Recipe)
		if err != nil {
			return err
		}
		return m.Wake(ctx, p, values, again)
	})
	switch {
	case err == nil:
		err = w.report(wire.StateRunning)
		w.serve(ctx)
		w.r.pruneSoon()
		w.wake()
		return err
	case errors.Is(err, build.ErrShutdown), ctx.Err() != nil, errors.Is(err, errStale):
		return nil
	case errors.Is(err, build.ErrCancelled):
		w.track.CancelRunning()
		w.stream.Mark("the start was cancelled")
		w.wake()
		return nil
	}
	f := w.explain(err)
	w.stream.Mark("failed: %s", f.Message)
	w.setFailure(&f)
	return w.report(wire.StateFailed)
}

// serve hands the open channels to the Session.
func (w *worker) serve(ctx context.Context) {
	w.mu.Lock()
	list, fence := w.channels, w.rec.Fence
	w.mu.Unlock()
	w.machine.Channels(ctx, list, fence, w.r.pipe)
}

// machineEnded is a Sandbox that ended by itself: its own root ended it, or the host did. Awake is what the Hub wants,
// so it is booted again, unless it ends right after each boot.
func (w *worker) machineEnded(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	m := w.machine
	lived := m.Lived()
	why := m.WhyEnded(ctx)
	w.stream.Mark("the Sandbox ended by itself after %s%s", lived.Round(time.Second), why)
	if err := m.Halt(ctx); err != nil {
		w.log.Warn().Err(err).Msg("cleaning up after a Sandbox that ended failed")
	}
	if lived < crashLoop {
		w.setFailure(&wire.Failure{Phase: wire.PhaseBoot, Code: build.CodeEnded,
			Message: "the Sandbox ended by itself right after its boot" + why + "; the Workspace is untouched"})
		if err := w.report(wire.StateFailed); err != nil {
			w.log.Warn().Err(err).Msg("a report could not be stored")
		}
	}
	w.wake()
}

// crashLoop is how long a Sandbox must live to be booted again when it ends by itself.
const crashLoop = 30 * time.Second

// adopt goes on with what an earlier process of the Runner left of a Session.
func (w *worker) adopt(ctx context.Context) error {
	if w.machine == nil {
		return nil
	}
	ok, err := w.machine.Adopt(ctx)
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	if ok {
		w.log.Info().Msg("adopted a running Session")
	}
	return nil
}
