package build

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"sync"
	"time"

	"github.com/claude-hub/claude-hub/runner/agent"
	"github.com/claude-hub/claude-hub/runner/redact"
	"github.com/claude-hub/claude-hub/runner/spool"
)

// Log is the log of one assignment: lines of the Runner, and the output of one script at a time. Every byte passes the
// redactor, then the spool; nothing of it is written elsewhere. A Log may be used from many goroutines.
type Log struct {
	set *redact.Set

	mu      sync.Mutex
	stream  *spool.Stream // nil once it is detached
	source  string        // the script whose output comes now; its offsets are its own
	tee     func(redact.Text)
	w       *redact.Writer
	got     []redact.Text // what w gave since it was asked last
	fed     int64         // raw bytes of the script given to w
	tail    *redact.Tail
	midLine bool
	last    time.Time // when the script said something last
	idle    *time.Timer
	failed  error
}

const (
	tailLines = 20
	tailBytes = 8 << 10
	// releaseAfter is how long the beginning of what may become a value is held back on a stream that pauses.
	releaseAfter = 300 * time.Millisecond
	// ackEvery is well below what an agent keeps for a reader that is away (agent.DefaultKeep).
	ackEvery = 256 << 10
)

// NewLog makes a Log that hides what set knows and writes to stream.
func NewLog(set *redact.Set, stream *spool.Stream) *Log {
	l := &Log{set: set, stream: stream, last: time.Now()}
	l.fresh()
	return l
}

// Set is what the Log hides. Values are added before a process gets them.
func (l *Log) Set() *redact.Set { return l.set }

// Text redacts a text of the Runner, for reports.
func (l *Log) Text(s string) string {
	if s == "" {
		return ""
	}
	return l.set.Text(s).String()
}

func (l *Log) fresh() {
	l.got = nil
	l.w = l.set.Writer(func(t redact.Text) error {
		l.got = append(l.got, t)
		return nil
	})
	l.tail = redact.NewTail(tailLines, tailBytes)
}

// Mark writes a line of the Runner's own, beginning on a line of its own.
func (l *Log) Mark(format string, a ...any) {
	l.mu.Lock()
	defer l.mu.Unlock()
	begin := redact.Static("")
	if l.midLine {
		begin = redact.Static("\n")
	}
	text := strings.ReplaceAll(strings.TrimSpace(fmt.Sprintf(format, a...)), "\n", "\n    ")
	l.put("", redact.Concat(begin, redact.Static("==> "), l.set.Text(text), redact.Static("\n")))
}

// Line writes a line of a program that the Runner ran itself, such as git.
func (l *Log) Line(s string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	begin := redact.Static("")
	if l.midLine {
		begin = redact.Static("\n")
	}
	t := l.set.Text(s)
	l.tail.Add(redact.Concat(t, redact.Static("\n"))) //nolint:errcheck // never fails
	l.put("", redact.Concat(begin, t, redact.Static("\n")))
}

// Begin starts the output of a script or program, named so that no other of this log has that name. What is kept of
// it already, from before the Runner's process was killed, is not asked for again.
func (l *Log) Begin(source string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.flush()
	l.source, l.last, l.fed = source, time.Now(), 0
	if l.stream != nil {
		l.fed = l.stream.Writer(source).RawEnd()
	}
	l.fresh()
	if l.fed > 0 {
		// The last lines of before; the spool's are redacted already, which doing it again doesn't change.
		if lines, err := l.stream.Tail(tailLines, 0); err == nil && lines != "" {
			l.tail.Add(l.set.Text(lines + "\n")) //nolint:errcheck // never fails
		}
	}
}

// Append adds text that was redacted already, from another Log.
func (l *Log) Append(t redact.Text) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.put("", t)
}

// Tee gives f all that is written from now on. One at a time; nil ends it.
func (l *Log) Tee(f func(redact.Text)) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.tee = f
}

// EndLine ends a line that a program left open.
func (l *Log) EndLine() {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.midLine {
		l.put("", redact.Static("\n"))
	}
}

// Detach stops writing to the spool, for a log whose assignment is gone while others still follow it.
func (l *Log) Detach() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.stream = nil
}

// Failed is why the Log can't be kept any more, or nil.
func (l *Log) Failed() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.failed
}

// Tail is the last lines of the running or last script.
func (l *Log) Tail() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.tail.Text().String()
}

// lastLines takes over the last lines of what another Log wrote for this one's assignment.
func (l *Log) lastLines(of *Log) {
	of.mu.Lock()
	t := of.tail.Text()
	of.mu.Unlock()
	if t.Len() == 0 {
		return
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.tail = redact.NewTail(tailLines, tailBytes)
	l.tail.Add(t) //nolint:errcheck // never fails
}

func (l *Log) quiet() time.Duration {
	l.mu.Lock()
	defer l.mu.Unlock()
	return time.Since(l.last)
}

// put writes t; the caller holds the lock.
func (l *Log) put(source string, t redact.Text) {
	if t.Len() == 0 {
		return
	}
	l.midLine = !strings.HasSuffix(t.String(), "\n")
	if l.tee != nil {
		l.tee(t)
	}
	if l.stream == nil {
		return
	}
	raw := int64(0)
	if source != "" {
		raw = l.covered()
	}
	if err := l.stream.Writer(source).Append(t, raw); err != nil && l.failed == nil {
		l.failed = fmt.Errorf("the Runner can't keep the log: %w", err)
	}
}

// covered is how much of the script's output the spool has after what is in got.
func (l *Log) covered() int64 { return l.fed - int64(l.w.Held()) }

// write takes output of the script and returns up to where it is kept.
func (l *Log) write(p []byte) (int64, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.last = time.Now()
	if _, err := l.w.Write(p); err != nil {
		return 0, err
	}
	l.fed += int64(len(p))
	l.emit()
	if l.w.Held() > 0 {
		if l.idle == nil {
			l.idle = time.AfterFunc(releaseAfter, l.release)
		} else {
			l.idle.Reset(releaseAfter)
		}
	}
	return l.covered(), l.failed
}

func (l *Log) emit() {
	t := redact.Concat(l.got...)
	l.got = l.got[:0]
	l.tail.Add(t) //nolint:errcheck // never fails
	l.put(l.source, t)
}

func (l *Log) release() {
	l.mu.Lock()
	defer l.mu.Unlock()
	if err := l.w.Release(); err != nil && l.failed == nil {
		l.failed = err
	}
	l.emit()
}

func (l *Log) flush() {
	if l.idle != nil {
		l.idle.Stop()
	}
	if err := l.w.Flush(); err != nil && l.failed == nil {
		l.failed = err
	}
	l.emit()
}

// Follow copies the output of a script to the Log, from where the Log has it, and acknowledges what is kept. It returns
// when the script has ended and its output is drained.
func (l *Log) Follow(ctx context.Context, c *agent.Client, id string) error {
	l.mu.Lock()
	from := l.covered()
	l.fed = from
	l.w = nil
	tail := l.tail
	l.fresh()
	l.tail = tail
	l.mu.Unlock()
	r, err := c.Output(ctx, id, agent.Out, from)
	if errors.Is(err, agent.ErrGone) {
		// Only a hostile agent, or one another Runner read from.
		l.Mark("some of the output is gone")
		var at int64
		if at, err = oldest(ctx, c, id); err == nil {
			l.mu.Lock()
			l.fed = at
			l.mu.Unlock()
			r, err = c.Output(ctx, id, agent.Out, at)
		}
	}
	if err != nil {
		return err
	}
	defer r.Close()
	buf := make([]byte, 64<<10)
	acked := from
	for {
		n, err := r.Read(buf)
		if n > 0 {
			kept, werr := l.write(buf[:n])
			if werr != nil {
				return werr
			}
			// In a flood an answer for each read would cost more than the reading.
			if kept-acked >= ackEvery || n < len(buf)/4 {
				if err := c.Ack(ctx, id, agent.Out, kept); err != nil {
					return err
				}
				acked = kept
			}
		}
		if err == io.EOF {
			l.mu.Lock()
			l.flush()
			kept, failed := l.covered(), l.failed
			l.mu.Unlock()
			if failed != nil {
				return failed
			}
			return c.Ack(ctx, id, agent.Out, kept)
		}
		if err != nil {
			return err
		}
	}
}

func oldest(ctx context.Context, c *agent.Client, id string) (int64, error) {
	list, err := c.List(ctx)
	if err != nil {
		return 0, err
	}
	for _, s := range list {
		if s.ID == id {
			return s.Out.From, nil
		}
	}
	return 0, agent.ErrUnknown
}
