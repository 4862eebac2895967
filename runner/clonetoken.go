package runner

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/claude-hub/claude-hub/runner/build"
	"github.com/claude-hub/claude-hub/runner/hubclient"
	"github.com/claude-hub/claude-hub/runner/wire"
)

// giveBack is how long the end of a clone waits for the Hub to take its token back.
const giveBack = 10 * time.Second

// cloneToken asks the Hub for a token that reads the assignment's Repo, for the clone that begins, and has the assignment's
// redactor know it before git does. The Runner's own log needs no more than the shape of such tokens, by which it masks them. It is
// a build.TokenFunc.
func (w *worker) cloneToken(ctx context.Context) (string, func(), error) {
	w.mu.Lock()
	rec := w.rec
	w.mu.Unlock()
	refuse := func(why string) (string, func(), error) {
		return "", nil, &build.Failed{Failure: wire.Failure{Phase: wire.PhaseClone, Code: build.CodeToken, Message: why}}
	}
	token, expires, refused, err := w.r.client.CloneToken(ctx, rec.ID, rec.Generation, rec.Fence)
	switch {
	case err == nil && refused != "":
		return refuse(refused)
	case err == nil && len(token) == 0:
		return refuse("the Hub answered neither a token to clone with nor why there is none; update the Hub")
	case err == nil:
	case ctx.Err() != nil:
		return "", nil, context.Cause(ctx)
	case errors.Is(err, hubclient.ErrFenced), errors.Is(err, hubclient.ErrStale), errors.Is(err, hubclient.ErrUnknown):
		return "", nil, errStale
	default:
		return refuse(fmt.Sprintf("the Hub gave no token to clone with: %v", err))
	}
	end := func() {
		// Also when the clone was cut short: nobody else will.
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), giveBack)
		defer cancel()
		if err := w.r.client.EndToken(ctx, rec.ID, token); err != nil {
			w.log.Warn().Err(err).Time("ends", expires).Msg("the token of a clone could not be given back; it ends by itself")
		}
	}
	if err := w.set.Add("the clone's token", token); err != nil {
		end()
		return refuse("the Hub sent a token that is too short to be kept out of logs")
	}
	return string(token), end, nil
}
