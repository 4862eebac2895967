package hubclient

import (
	"context"
	"time"
)

// Taken is how much of an output stream the Hub has, counted over all processes of the Runner that ever served this
// channel, and a channel that is closed when something changes. It waits until the Hub has said so for the first time.
// ErrGone: nobody wants the channel any more.
func (k *Channel) Taken(ctx context.Context, stream int) (int64, <-chan struct{}, error) {
	for {
		k.mu.Lock()
		offset, ready, gone, change := k.out[stream-1].base, k.ready, k.gone, k.change
		k.mu.Unlock()
		switch {
		case gone:
			return 0, nil, ErrGone
		case ready:
			return offset, change, nil
		}
		select {
		case <-change:
		case <-time.After(20 * time.Millisecond): // the first answer alone changes nothing else
		case <-ctx.Done():
			return 0, nil, context.Cause(ctx)
		}
	}
}
