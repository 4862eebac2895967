package build

import (
	"context"
	"errors"
	"fmt"
	"sync"

	"github.com/claude-hub/claude-hub/runner/redact"
	"github.com/claude-hub/claude-hub/runner/sandbox"
)

// flight is one build under way for Sessions that wait for it. It goes on while one of them waits, and all of them see
// its log.
type flight struct {
	cancel context.CancelCauseFunc
	done   chan struct{}
	base   Base
	err    error

	mu      sync.Mutex
	waiters int
	logs    map[*Log]bool // of those that joined later
	backlog []redact.Text
	size    int
}

// backlogMax bounds what one who joins late sees of the build's log.
const backlogMax = 1 << 20

// Ensure returns the build of j's Recipe, and makes it when this Runner has none: Sessions that need the same one at
// the same time share the work and its log. The image must be pinned by the Recipe, as a version's is.
func (b *Builder) Ensure(ctx context.Context, j *Job) (Base, error) {
	spec, err := Spec(j.Recipe)
	if err != nil {
		return Base{}, err
	}
	if j.Recipe.ImageDigest == "" {
		return Base{}, errors.New("the Environment's version pins no image")
	}
	key := Key(spec, j.Recipe.ImageDigest)
	for {
		base, found, err := b.Find(ctx, key)
		if err != nil {
			return Base{}, err
		}
		if found {
			b.Use(base.Name)
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
		fctx, cancel := context.WithCancelCause(context.WithoutCancel(ctx))
		f = &flight{cancel: cancel, done: make(chan struct{}), logs: map[*Log]bool{}}
		b.flights[key] = f
		go b.lead(fctx, f, j, key)
	}
	f.mu.Lock()
	f.waiters++
	if joined {
		j.Log.Mark("this build is under way for another Session; its log so far:")
		for _, t := range f.backlog {
			j.Log.Append(t)
		}
		f.logs[j.Log] = true
	}
	f.mu.Unlock()
	b.mu.Unlock()

	select {
	case <-f.done:
	case <-ctx.Done():
		f.mu.Lock()
		f.waiters--
		last := f.waiters == 0
		delete(f.logs, j.Log)
		f.mu.Unlock()
		if last || errors.Is(context.Cause(ctx), ErrShutdown) {
			why := errGrounded
			if errors.Is(context.Cause(ctx), ErrShutdown) {
				why = ErrShutdown
			}
			f.cancel(why)
			<-f.done
		} else if !joined {
			// Others still wait: the build goes on without this Session's log and state.
			j.Log.Detach()
		}
		return Base{}, context.Cause(ctx)
	}
	return f.base, f.err
}

func (b *Builder) lead(ctx context.Context, f *flight, j *Job, key string) {
	defer func() {
		if p := recover(); p != nil {
			f.err = fmt.Errorf("the build crashed: %v", p)
			b.cfg.Log.Error().Interface("panic", p).Str("key", key).Msg("a build crashed")
		}
		j.Log.Tee(nil)
		b.mu.Lock()
		delete(b.flights, key)
		b.mu.Unlock()
		close(f.done)
	}()
	ctx, cancel := context.WithTimeoutCause(ctx, b.cfg.BuildTimeout, ErrDeadline)
	defer cancel()
	j.Log.Tee(f.spread)
	box := boxOf(key)
	f.base, f.err = b.make(ctx, j, box, SnapshotName(key, j.ID))
	if f.err == nil || errors.Is(f.err, ErrShutdown) {
		return
	}
	j.Marks.Script, j.Marks.Boot, j.Marks.Rested = "", "", ""
	if err := errors.Join(b.discard(ctx, box), j.Save()); err != nil {
		b.cfg.Log.Warn().Err(err).Str("sandbox", string(box)).Msg("a failed build could not be cleaned up; it is tried again later")
	}
}

// boxOf is the Sandbox in which a build for Sessions is made.
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
	for l := range f.logs {
		l.Append(t)
	}
}
