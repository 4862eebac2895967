package runner

import (
	"context"
	"errors"
	"time"

	"github.com/claude-hub/claude-hub/runner/hubclient"
	"github.com/claude-hub/claude-hub/runner/session"
	"github.com/claude-hub/claude-hub/runner/wire"
)

// lender is a Session's way to what the Hub lends git in its Sandbox.
type lender struct{ w *worker }

var _ session.Lender = lender{}

const (
	// A question that comes while a new list of the Hub is on its way is asked again, so often.
	lendTries = 5
	lendPause = 500 * time.Millisecond
)

// Lend is session.Lender's. The assignment's redactor knows the token before git does.
func (l lender) Lend(ctx context.Context, have string) (session.Loan, error) {
	res, err := l.ask(ctx, have)
	switch {
	case err != nil:
		return session.Loan{}, err
	case res.GetRefused() != "":
		return session.Loan{Refused: res.GetRefused()}, nil
	case res.GetKeep() && have == res.GetContents() && have != "":
		return session.Loan{Keep: true, ReadOnly: res.GetReadOnly()}, nil
	case len(res.GetToken()) == 0:
		return session.Loan{}, errors.New("it answered neither a token nor why there is none; its operator should update it")
	}
	if err := l.w.set.Add("git's token", res.GetToken()); err != nil {
		l.Return(ctx, string(res.GetToken()))
		return session.Loan{}, errors.New("it sent a token that is too short to be kept out of logs")
	}
	return session.Loan{Token: string(res.GetToken()), Expires: time.UnixMilli(res.GetExpiresMs()), Contents: res.GetContents(), ReadOnly: res.GetReadOnly()}, nil
}

func (l lender) ask(ctx context.Context, have string) (*wire.SessionTokenResponse, error) {
	for try := 1; ; try++ {
		l.w.mu.Lock()
		rec := l.w.rec
		l.w.mu.Unlock()
		res, err := l.w.r.client.SessionToken(ctx, rec.ID, rec.Generation, rec.Fence, have)
		if err == nil || try == lendTries || !errors.Is(err, hubclient.ErrStale) && !errors.Is(err, hubclient.ErrFenced) {
			return res, err
		}
		select {
		case <-time.After(lendPause):
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		}
	}
}

// Return is session.Lender's.
func (l lender) Return(ctx context.Context, token string) {
	if err := l.w.r.client.EndToken(ctx, l.w.id, []byte(token)); err != nil {
		l.w.log.Warn().Err(err).Msg("a token that git in a Sandbox was lent could not be given back; it ends by itself within the hour")
	}
}
