package kill

import (
	"context"
	"errors"
	"time"

	"github.com/claude-hub/claude-hub/app/fault"
	"github.com/claude-hub/claude-hub/handlers/api/client"
)

// undisturbed answers whether nothing was down or killed since turn, which is what turns said before.
func (k *kills) undisturbed(turn int64) bool { return turn%2 == 0 && k.turns.Load() == turn }

// insist calls f until it says that it is done. f looks first whether an earlier call of its own did get through, since
// a killed Hub leaves that open. Errors that a kill explains are no reason to give up; all others are.
func (k *kills) insist(ctx context.Context, f func() (bool, error)) error {
	for {
		turn := k.turns.Load()
		done, err := f()
		switch {
		case err == nil && done:
			return nil
		case ctx.Err() != nil:
			return context.Cause(ctx)
		case err != nil && !client.Is(err, fault.Unavailable) && (k.undisturbed(turn) || !broke(err)):
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
