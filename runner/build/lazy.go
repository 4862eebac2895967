package build

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"

	"github.com/claude-hub/claude-hub/runner/redact"
	"github.com/claude-hub/claude-hub/runner/sandbox"
)

// flight is one build under way for Sessions and Test builds that wait for it. It goes on while one of them waits, whether or
// not that is the one that began it, and all of them see its log and its phases.
type flight struct {
	cancel context.CancelCauseFunc
	done   chan struct{}
	base   Base
	err    error
	log    *Log
	track  *Track

	mu      sync.Mutex
	waiters map[*Job]bool
	first   *Job // whose log and state the build is kept in, so that it survives the Runner's process; nil when it left
	backlog []redact.Text
	size    int
}

// backlogMax bounds what one who joins late sees of the build's log.
const backlogMax = 1 << 20

// Ensure returns the build of j's Recipe, and makes it when this Runner has none: Sessions that need the same one at
// the same time share the work and its log. The image must be pinned by the Recipe, as a version's is. A build that failed is
// not made again until its caller forgets Marks.Failed, which is for another try.
func (b *Builder) Ensure(ctx context.Context, j *Job) (Base, error) {
	spec, err := Spec(j.Recipe)
	if err != nil {
		return Base{}, err
	}
	if j.Recipe.ImageDigest == "" {
		return Base{}, errors.New("the Environment's version pins no image")
	}
	key := b.Key(spec, j.Recipe.ImageDigest, j.Values)
	if m := j.Marks; m.Key != "" && m.Key != key {
		// Killed in a build with another image or other values than those of now.
		if err := b.ground(ctx, *m); err != nil {
			return Base{}, err
		}
		*m = Marks{}
	}
	if f := j.Marks.Failed; f != nil {
		// Killed before what it left was given up.
		if err := b.ground(ctx, *j.Marks); err != nil {
			return Base{}, err
		}
		*j.Marks = Marks{Key: key, Failed: f}
		return Base{}, errors.Join(j.Save(), &Failed{*f})
	}
	for {
		base, found, err := b.findBut(ctx, key, j.Lost)
		if err != nil {
			return Base{}, err
		}
		if found {
			b.Use(base.Name, j.Recipe.Environment)
			return base, nil
		}
		base, err = b.fly(ctx, j, key)
		if errors.Is(err, errGrounded) && ctx.Err() == nil {
			continue // it was given up by all others just as this one came
		}
		return base, err
	}
}

var errGrounded = errors.New("nobody waits for this build any more")

func (b *Builder) fly(ctx context.Context, j *Job, key string) (Base, error) {
	b.mu.Lock()
	f, joined := b.flights[key]
	if !joined {
		f = b.takeOff(ctx, j, key)
		b.flights[key] = f
	}
	f.join(j, joined)
	b.mu.Unlock()

	select {
	case <-f.done:
		j.Log.lastLines(f.log)
		if joined && f.err == nil { // who made it has used it already
			b.Use(f.base.Name, j.Recipe.Environment)
		}
		return f.base, f.err
	case <-ctx.Done():
	}
	why := context.Cause(ctx)
	j.Log.lastLines(f.log)
	last := f.leave(j)
	if last || errors.Is(why, ErrShutdown) {
		end := errGrounded
		if errors.Is(why, ErrShutdown) {
			end = ErrShutdown
		}
		f.cancel(end)
		<-f.done
	}
	return Base{}, why
}

// takeOff begins a build, in the log and the state of j. The caller holds the Builder's lock.
func (b *Builder) takeOff(ctx context.Context, j *Job, key string) *flight {
	ctx, cancel := context.WithCancelCause(context.WithoutCancel(ctx))
	f := &flight{cancel: cancel, done: make(chan struct{}), waiters: map[*Job]bool{}, first: j, log: NewLog(j.Log.set, j.Log.stream)}
	f.log.Tee(f.spread)
	f.track = NewTrack(j.Track.Phases(), j.Track.Notes(), f.mirror)
	marks := *j.Marks
	own := &Job{ID: j.ID, Recipe: j.Recipe, Values: j.Values, Lost: j.Lost, Log: f.log, Track: f.track, Marks: &marks, Save: func() error {
		f.mu.Lock()
		defer f.mu.Unlock() // so that nothing is written to the Marks of one who has left
		if f.first == nil {
			return nil
		}
		*f.first.Marks = marks
		return f.first.Save()
	}}
	go b.lead(ctx, f, own, key)
	return f
}

func (f *flight) join(j *Job, late bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.waiters[j] = true
	if late {
		j.Log.Mark("this build is under way already; its log so far:")
		for _, t := range f.backlog {
			j.Log.Append(t)
		}
	}
}

// leave says whether nobody waits any more.
func (f *flight) leave(j *Job) bool {
	f.mu.Lock()
	delete(f.waiters, j)
	first := f.first == j
	if first {
		f.first = nil
	}
	last := len(f.waiters) == 0
	f.mu.Unlock()
	if first && !last {
		f.log.Detach() // never under f.mu: spread comes with the log's lock
	}
	return last
}

// mirror shows the build's phases in all that wait.
func (f *flight) mirror(urgent bool) {
	f.mu.Lock()
	waiters := slices.Collect(maps.Keys(f.waiters))
	f.mu.Unlock()
	for _, j := range waiters {
		j.Track.mirror(f.track, urgent)
	}
}

func (b *Builder) lead(ctx context.Context, f *flight, j *Job, key string) {
	defer func() {
		if p := recover(); p != nil {
			f.err = fmt.Errorf("the build crashed: %v", p)
			b.cfg.Log.Error().Interface("panic", p).Str("key", key).Msg("a build crashed")
		}
		f.log.EndLine()
		b.mu.Lock()
		delete(b.flights, key)
		b.mu.Unlock()
		close(f.done)
	}()
	ctx, cancel := context.WithTimeoutCause(ctx, b.cfg.BuildTimeout, ErrDeadline)
	defer cancel()
	box := boxOf(key)
	name := SnapshotName(key, j.ID)
	if strings.HasPrefix(j.Lost, name) { // its own, which has the name still
		name = j.Lost + "x"
	}
	f.base, f.err = b.make(ctx, j, box, name)
	if f.err == nil || errors.Is(f.err, ErrShutdown) {
		return
	}
	var failed *Failed
	if errors.As(f.err, &failed) {
		j.Marks.Failed = &failed.Failure
		if err := j.Save(); err != nil {
			b.cfg.Log.Warn().Err(err).Msg("how a build failed could not be kept")
		}
	}
	j.Marks.Script, j.Marks.Boot, j.Marks.Rested, j.Marks.ClaudeCode, j.Marks.Login = "", "", "", "", nil
	if err := errors.Join(b.discard(ctx, box), j.Save()); err != nil {
		b.cfg.Log.Warn().Err(err).Str("sandbox", string(box)).Msg("a failed build could not be cleaned up; it is tried again later")
	}
}

// boxOf is the Sandbox in which a build is made: one for each key, so that no two of one key are made at a time.
func boxOf(key string) sandbox.ID { return sandbox.ID("k-" + BoxKey(key)) }

// BoxKey is the part of a key that names the Sandbox of its build.
func BoxKey(key string) string { return key[:min(40, len(key))] }

func (f *flight) spread(t redact.Text) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.backlog = append(f.backlog, t)
	f.size += t.Len()
	for f.size > backlogMax && len(f.backlog) > 1 {
		f.size -= f.backlog[0].Len()
		f.backlog = f.backlog[1:]
	}
	for j := range f.waiters {
		if j != f.first {
			j.Log.Append(t)
		}
	}
}
