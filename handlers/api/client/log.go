package client

import (
	"context"
	"fmt"
	"io"
	"net/url"
	"strconv"
	"time"

	"github.com/claude-hub/claude-hub/handlers/api/schema"
)

// pollTime is how long one call waits for news.
const pollTime = 15 * time.Second

// Log names the log of a Test build or of a Session.
type Log struct{ path string }

// TestLog is a Test build's.
func TestLog(repo int64, id string) Log {
	return Log{repoPath(repo, "environment", "tests", id, "log")}
}

// SessionLog is a Session's: clone, lazy builds and start scripts, through all its wakes. It has no end.
func SessionLog(repo int64, id string) Log { return Log{repoPath(repo, "sessions", id, "log")} }

// LogPart is a stretch of a log.
type LogPart struct {
	Data    []byte
	Next    int64 // where to read on
	Size    int64 // of the whole log so far
	Dropped int64 // bytes right before Data that were not kept
	Ended   bool  // nothing follows Next
}

// ReadLog reads what is at from and behind it, waiting for something up to wait.
func (c *Client) ReadLog(ctx context.Context, l Log, from int64, wait time.Duration) (LogPart, error) {
	q := get(l.path)
	q.query = url.Values{"from": {strconv.FormatInt(from, 10)}}
	if wait > 0 {
		q.query.Set("wait", wait.String())
	}
	a, err := c.do(ctx, q, nil)
	if err != nil {
		return LogPart{}, err
	}
	part := LogPart{Data: a.body, Ended: a.header.Get(schema.LogEnded) == "true"}
	for header, into := range map[string]*int64{schema.LogNext: &part.Next, schema.LogSize: &part.Size, schema.LogDropped: &part.Dropped} {
		if *into, err = strconv.ParseInt(a.header.Get(header), 10, 64); err != nil {
			return LogPart{}, &Unreachable{c.Hub(), fmt.Errorf("its answer lacks the header %s", header)}
		}
	}
	return part, nil
}

// Follow says how long CopyLog reads.
type Follow struct {
	From int64
	// Live waits for more at the end of what there is, until the log ends or ctx does.
	Live bool
	// Dropped, if set, is told of bytes that were not kept, before what follows them is written.
	Dropped func(bytes int64)
}

// CopyLog writes a log to w, and returns the offset it came to. A lost connection is made up for by offset: nothing is
// written twice.
func (c *Client) CopyLog(ctx context.Context, l Log, f Follow, w io.Writer) (int64, error) {
	at := f.From
	for {
		wait := time.Duration(0)
		if f.Live {
			wait = pollTime
		}
		part, err := c.ReadLog(ctx, l, at, wait)
		if err != nil {
			return at, err
		}
		if part.Dropped > 0 && f.Dropped != nil {
			f.Dropped(part.Dropped)
		}
		if _, err := w.Write(part.Data); err != nil {
			return at, fmt.Errorf("write the log: %w", err)
		}
		at = part.Next
		if part.Ended || (!f.Live && at >= part.Size) {
			return at, nil
		}
	}
}
