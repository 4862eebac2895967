package world

import (
	"context"
	"errors"
	"sync/atomic"
	"time"

	"github.com/claude-hub/claude-hub/app/fault"
	"github.com/claude-hub/claude-hub/handlers/api/client"
)

// Turns counts the moments at which something was killed or was up again: odd while something is down. Its methods may be called from
// many goroutines.
type Turns struct{ n atomic.Int64 }

// Turn is the next such moment.
func (t *Turns) Turn() { t.n.Add(1) }

// Now is how many there were.
func (t *Turns) Now() int64 { return t.n.Load() }

// Undisturbed answers whether nothing was down or killed since turn, which is what Now said before.
func (t *Turns) Undisturbed(turn int64) bool { return turn%2 == 0 && t.Now() == turn }

// Insist calls f until it says that it is done. f looks first whether an earlier call of its own did get through, since
// a killed Hub leaves that open. Errors that a kill explains are no reason to give up; all others are.
func (t *Turns) Insist(ctx context.Context, f func() (bool, error)) error {
	for {
		turn := t.Now()
		done, err := f()
		switch {
		case err == nil && done:
			return nil
		case ctx.Err() != nil:
			return context.Cause(ctx)
		case err != nil && !client.Is(err, fault.Unavailable) && (t.Undisturbed(turn) || !broke(err)):
			return err
		}
		select {
		case <-time.After(50 * time.Millisecond):
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

// broke tells that a call came to no proper answer.
func broke(err error) bool {
	var u *client.Unreachable
	return errors.As(err, &u) || client.Is(err, fault.Internal)
}
