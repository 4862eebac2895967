package web

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"math"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/claude-hub/claude-hub/app/access"
	"github.com/claude-hub/claude-hub/app/fault"
	"github.com/claude-hub/claude-hub/app/fleet"
)

const (
	// tailSize is how much of a log a page holds; more is one click away.
	tailSize = 256 << 10
	// eventSize is how much of a log one event carries.
	eventSize = 128 << 10
	// heartbeat keeps proxies from cutting a silent stream.
	heartbeat = 15 * time.Second
)

// readLog reads a log from an offset on.
type readLog func(ctx context.Context, from int64, max int) (fleet.LogPart, error)

// Tail is the newest of a log as a page shows it.
type Tail struct {
	Text string // whole lines
	Rest string // the line that is being written
	// Next is where Rest begins: the stream goes on there.
	Next    int64
	Size    int64  // of the whole log
	Earlier int64  // bytes before Text
	Dropped int64  // bytes of the whole log that were not kept
	Ended   bool   // nothing follows
	Events  string // where the stream is
	Raw     string // where the whole log is
}

// Empty tells that nothing was written yet.
func (t Tail) Empty() bool { return t.Size == 0 }

// tail reads the newest lines.
func tail(ctx context.Context, read readLog, limit int64) (Tail, error) {
	end, err := read(ctx, math.MaxInt64, 1)
	if err != nil {
		return Tail{}, err
	}
	t := Tail{Size: end.End, Dropped: end.Dropped, Ended: end.Ended, Next: max(0, end.End-limit)}
	t.Earlier = t.Next
	cut := t.Next > 0
	s := stream{at: t.Next}
	var text strings.Builder
	for {
		part, err := read(ctx, s.read(), int(limit))
		if err != nil {
			return Tail{}, err
		}
		text.WriteString(s.take(part))
		if s.read() >= part.End || text.Len() > 2*int(limit) {
			t.Size, t.Ended = part.End, part.Ended
			break
		}
	}
	t.Text, t.Rest, t.Next = text.String(), clean(s.rest), s.at
	if cut { // the first line is a piece of one
		if i := strings.IndexByte(t.Text, '\n'); i >= 0 {
			t.Text = t.Text[i+1:]
		}
	}
	return t, nil
}

// stream makes lines of the parts of a log.
type stream struct {
	at   int64  // where rest begins
	rest []byte // of a line that has not ended
}

// read is the offset of what comes next.
func (s *stream) read() int64 { return s.at + int64(len(s.rest)) }

// take adds a part that was read at s.read and returns its whole lines, cleaned. Gaps are said in a line.
func (s *stream) take(part fleet.LogPart) string {
	var out strings.Builder
	for _, c := range part.Chunks {
		s.gap(&out, c.Offset)
		s.rest = append(s.rest, c.Data...)
		text, n := lines(s.rest)
		out.WriteString(text)
		s.rest = append([]byte(nil), s.rest[n:]...)
		s.at += int64(n)
	}
	s.gap(&out, part.Next)
	return out.String()
}

// gap says what is missing before offset, after ending the line before it.
func (s *stream) gap(out *strings.Builder, offset int64) {
	missing := offset - s.read()
	if missing <= 0 {
		return
	}
	if len(s.rest) > 0 {
		out.WriteString(clean(s.rest) + "\n")
	}
	fmt.Fprintf(out, "[claude-hub: %s of this log were not kept]\n", size(missing))
	s.at, s.rest = offset, nil
}

// event is what a page's script adds to the log it shows.
type event struct {
	Lines string `json:"lines"`
	Rest  string `json:"rest"` // in place of the Rest before
}

// live is a page's stream: what its log gets, and that its state changed. It ends when over says so and the log has
// ended, when access ends, or when the Hub stops; the browser comes back by itself, with the offset it has.
type live struct {
	grant          access.Grant
	log, state     string // topics
	read           readLog
	over           func(context.Context) (bool, error)
	changes        Changes
	stopping       <-chan struct{}
	hold           func(context.Context, access.Grant) (context.Context, context.CancelFunc)
	heartbeatEvery time.Duration
}

func (w *Web) live(g access.Grant) live {
	return live{grant: g, changes: w.d.Changes, stopping: w.d.Stopping, hold: w.d.Gate.Hold, heartbeatEvery: heartbeat}
}

func (l live) serve(rw http.ResponseWriter, r *http.Request) error {
	s := stream{}
	from := r.Header.Get("Last-Event-ID")
	if from == "" {
		from = r.URL.Query().Get("from")
	}
	if n, err := strconv.ParseInt(from, 10, 64); err == nil && n > 0 {
		s.at = n
	}
	h := rw.Header()
	h.Set("Content-Type", "text/event-stream")
	h.Set("Cache-Control", "no-cache, no-store")
	h.Set("X-Accel-Buffering", "no")
	ctx, cancel := l.hold(r.Context(), l.grant)
	defer cancel()
	out := sender{rw, http.NewResponseController(rw)}
	if err := out.send("retry: 2000\n\n"); err != nil {
		return nil
	}
	beat := time.NewTicker(l.heartbeatEvery)
	defer beat.Stop()
	shown, first := "", true
	stateChanged := l.changes.Changed(l.state)
	for {
		logChanged := l.changes.Changed(l.log)
		over, err := l.over(ctx)
		if err != nil {
			return l.end(out, err)
		}
		part, err := l.read(ctx, s.read(), eventSize)
		if err != nil {
			return l.end(out, err)
		}
		e := event{Lines: s.take(part), Rest: clean(s.rest)}
		atEnd := s.read() >= part.End
		if e.Lines != "" || e.Rest != shown || first {
			b, err := json.Marshal(e)
			if err != nil {
				return err
			}
			if out.send(fmt.Sprintf("event: log\nid: %d\ndata: %s\n\n", s.at, b)) != nil {
				return nil
			}
			shown, first = e.Rest, false
		}
		switch {
		case !atEnd:
			continue
		case over && part.Ended:
			_ = out.send("event: end\ndata: {}\n\n")
			return nil
		}
		select {
		case <-logChanged:
		case <-stateChanged:
			stateChanged = l.changes.Changed(l.state)
			err = out.send("event: state\ndata: {}\n\n")
		case <-beat.C:
			err = out.send(": still here\n\n")
		case <-l.stopping:
			return nil
		case <-ctx.Done():
			return nil
		}
		if err != nil {
			return nil // the browser went away
		}
	}
}

// end tells the page that what it follows is gone.
func (l live) end(out sender, err error) error {
	if fault.Is(err, fault.NotFound) {
		_ = out.send("event: end\ndata: {}\n\n")
		return nil
	}
	return nil // cancelled, or broken for now: the browser comes back
}

type sender struct {
	w  io.Writer
	rc *http.ResponseController
}

// sendTime is how long a browser may take to accept what is sent.
const sendTime = 30 * time.Second

func (s sender) send(text string) error {
	_ = s.rc.SetWriteDeadline(time.Now().Add(sendTime))
	if _, err := io.WriteString(s.w, text); err != nil {
		return err
	}
	return s.rc.Flush()
}

// rawPart is how much of a log a download reads at once.
const rawPart = 1 << 20

// download answers the whole log as it was written, as a file: nothing in it is shown by this origin's pages.
func download(rw http.ResponseWriter, r *http.Request, name string, read readLog) error {
	part, err := read(r.Context(), 0, rawPart)
	if err != nil {
		return err
	}
	h := rw.Header()
	h.Set("Content-Type", "text/plain; charset=utf-8")
	h.Set("Content-Disposition", `attachment; filename="`+name+`.log"`)
	h.Set("Content-Security-Policy", "default-src 'none'; sandbox")
	if r.Method == http.MethodHead {
		return nil
	}
	rc := http.NewResponseController(rw)
	for at, stop := int64(0), part.End; ; {
		_ = rc.SetWriteDeadline(time.Now().Add(sendTime))
		for _, c := range part.Chunks {
			if c.Offset > at {
				fmt.Fprintf(rw, "\n[claude-hub: %d bytes of this log were not kept]\n", c.Offset-at)
			}
			if _, err := rw.Write(c.Data); err != nil {
				return nil
			}
			at = c.Offset + int64(len(c.Data))
		}
		at = max(at, part.Next)
		if at >= stop {
			return nil
		}
		if part, err = read(r.Context(), at, rawPart); err != nil {
			panic(http.ErrAbortHandler) // a cut download must not look whole
		}
	}
}
