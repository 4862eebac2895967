package hubclient

import (
	"context"

	"github.com/claude-hub/claude-hub/runner/wire"
)

// Resume says, before Run, how much input the process has taken already: its offsets go on there.
func (k *Channel) Resume(input int64) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.inAt = input
}

// Skip has stream 1 go on at a later offset: what is before it was dropped, and the Hub is told so by an empty piece. It waits
// until the Hub has what was written before. An offset that was passed already changes nothing. Errors are Write's.
func (k *Channel) Skip(ctx context.Context, to int64) error {
	o := &k.out[0]
	for {
		k.mu.Lock()
		over, change := k.over(), k.change
		end := o.base + int64(len(o.data))
		if over == nil && to > end && len(o.data) == 0 {
			o.base, o.gap = to, true
			k.changed()
		}
		k.mu.Unlock()
		if over != nil || to <= end {
			return over
		}
		if end == o.base {
			return nil
		}
		select {
		case <-change:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

// Forgot tells whether Run ended with ErrForgot: the terminal is served by a fresh Channel from what its agent keeps.
func (k *Channel) Forgot() bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.forgot
}

// over is why nothing more is sent. Called with mu held.
func (k *Channel) over() error {
	switch {
	case k.gone:
		return ErrGone
	case k.forgot:
		return ErrForgot
	}
	return nil
}

// has is what the Hub said it has, so that no answer to what is asked from now on may say less; 0 while it is unknown.
// Called with mu held.
func (k *Channel) has() int64 {
	if !k.ready || k.out[0].gap {
		return 0
	}
	return k.out[0].base
}

// forgets notices a Hub that lost what it had. Called with mu held.
func (k *Channel) forgets(had int64, res *wire.ExchangeResponse) bool {
	if !k.forgot && res.GetOut1() < had {
		k.forgot = true
		k.changed()
	}
	return k.forgot
}
