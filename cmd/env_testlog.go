package cmd

import (
	"context"
	"fmt"
	"io"
	"sync"
	"time"

	"github.com/claude-hub/claude-hub/handlers/api/client"
)

// logWait is how long one call waits for more of a log.
const logWait = 15 * time.Second

// testLog copies a log to out for two who ask for it at once: follow, which waits for more, and catchUp, which wants what there
// is. Each byte is written once.
type testLog struct {
	hub     *client.Client
	log     client.Log
	out     io.Writer
	dropped func(int64)

	mu sync.Mutex
	at int64
}

// follow writes what comes until the log ends.
func (l *testLog) follow(ctx context.Context) error {
	for {
		if part, err := l.read(ctx, logWait); err != nil || part.Ended {
			return err
		}
	}
}

// catchUp writes what the Hub has of the log by now.
func (l *testLog) catchUp(ctx context.Context) error {
	size := int64(-1)
	for {
		part, err := l.read(ctx, 0)
		if size < 0 {
			size = part.Size
		}
		if err != nil || part.Ended || part.Next >= size {
			return err
		}
	}
}

// read writes the next part, unless the other one wrote it meanwhile.
func (l *testLog) read(ctx context.Context, wait time.Duration) (client.LogPart, error) {
	l.mu.Lock()
	from := l.at
	l.mu.Unlock()
	part, err := l.hub.ReadLog(ctx, l.log, from, wait)
	if err != nil {
		return part, err
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.at != from {
		return client.LogPart{Next: l.at, Size: part.Size}, nil
	}
	if part.Dropped > 0 {
		l.dropped(part.Dropped)
	}
	if _, err := l.out.Write(part.Data); err != nil {
		return part, fmt.Errorf("write the log: %w", err)
	}
	l.at = part.Next
	return part, nil
}
