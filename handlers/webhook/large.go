package webhook

import (
	"context"
	"io"
	"net/http"
	"time"
)

const (
	// largeBody is what is read of a body before anything more: everybody can send one, and a signature can be judged only when all
	// is there. Of those that are larger, largeBodies are read on at once.
	largeBody   = 1 << 20
	largeBodies = 4
	// slowest is how many bytes a second a large body has to come at, and patience how far it may be behind that: who is slower takes
	// the place of others, whether or not GitHub has signed it.
	slowest  = 1 << 20
	patience = time.Second
)

// body is a delivery's body, of which more than largeBody is read only in one of the places for that, and only at some speed. leave
// gives it up.
type body struct {
	io.ReadCloser
	ctx    context.Context
	places chan struct{}
	conn   *http.ResponseController
	end    time.Time // until then it has to be there
	read   int64
	since  time.Time // when it got its place; zero: it has none
	crowd  bool      // it got none in time
}

func (b *body) Read(p []byte) (int, error) {
	if b.since.IsZero() {
		if room := largeBody - b.read; room > 0 {
			return b.take(p[:min(int64(len(p)), room)])
		}
		select {
		case b.places <- struct{}{}:
			b.since = time.Now()
		case <-b.ctx.Done():
			b.crowd = true
			return 0, context.Cause(b.ctx)
		}
	}
	due := b.since.Add(patience + time.Duration(b.read-largeBody)*time.Second/slowest)
	if due.After(b.end) {
		due = b.end
	}
	_ = b.conn.SetReadDeadline(due)
	return b.take(p)
}

func (b *body) take(p []byte) (int, error) {
	n, err := b.ReadCloser.Read(p)
	b.read += int64(n)
	return n, err
}

func (b *body) leave() {
	if !b.since.IsZero() {
		<-b.places
		b.since = time.Time{}
	}
}
