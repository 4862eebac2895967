package agent

import (
	"context"
	"errors"
	"io"
	"os"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

const (
	chunkSize = 16 << 10
	// outputBudget bounds the unread output of all commands together, so that many of them can't fill the agent's
	// headroom of 64 MiB. Beyond it each stream keeps at most outputMin, however many there are.
	outputBudget = 16 << 20
	outputMin    = 16 << 10
	// ttySettle is how long a terminal must be silent after its process ended, while background processes hold it
	// open, to count as drained: the kernel hands output from one end to the other in a work queue.
	ttySettle = 50 * time.Millisecond
)

// output keeps what a process wrote and no reader has acknowledged. Safe for concurrent use.
type output struct {
	keep  int64
	full  Full
	total *atomic.Int64 // bytes held by all outputs of the agent

	mu       sync.Mutex
	changed  chan struct{} // closed and replaced whenever anything below changes
	chunks   [][]byte      // the bytes from start to end; the first chunk may begin before start
	skip     int           // how much of the first chunk is before start
	start    int64
	end      int64
	dropped  int64
	complete bool
	discard  bool
}

func newOutput(keep int64, full Full, total *atomic.Int64) *output {
	return &output{keep: keep, full: full, total: total, changed: make(chan struct{})}
}

func (o *output) wake() {
	close(o.changed)
	o.changed = make(chan struct{})
}

// room waits until some bytes may be taken and says how many, at most limit.
func (o *output) room(limit int) int {
	for {
		o.mu.Lock()
		free := o.free()
		if o.full == DropOldest || o.discard {
			free = int64(limit)
		}
		changed := o.changed
		o.mu.Unlock()
		if free > 0 {
			return int(min(free, int64(limit)))
		}
		select {
		case <-changed:
		case <-time.After(200 * time.Millisecond): // the budget is shared; others free it without waking us
		}
	}
}

func (o *output) free() int64 {
	held := o.end - o.start
	if o.total.Load() >= outputBudget {
		return outputMin - held
	}
	return o.keep - held
}

func (o *output) add(b []byte) {
	if len(b) == 0 {
		return
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	defer o.wake()
	if o.discard {
		o.end += int64(len(b))
		o.start = o.end
		return
	}
	o.end += int64(len(b))
	o.total.Add(int64(len(b)))
	for len(b) > 0 {
		if n := len(o.chunks); n == 0 || len(o.chunks[n-1]) >= chunkSize {
			o.chunks = append(o.chunks, nil)
		}
		last := &o.chunks[len(o.chunks)-1]
		n := min(len(b), chunkSize-len(*last))
		*last = append(*last, b[:n]...)
		b = b[n:]
	}
	if over := -o.free(); o.full == DropOldest && over > 0 {
		over = min(over, o.end-o.start)
		o.dropped += over
		o.forget(o.start + over)
	}
}

// forget drops everything before offset. The caller holds the lock.
func (o *output) forget(offset int64) {
	n := offset - o.start
	if n <= 0 {
		return
	}
	o.total.Add(-n)
	o.start = offset
	for n > 0 {
		left := int64(len(o.chunks[0]) - o.skip)
		if n < left {
			o.skip += int(n)
			return
		}
		n -= left
		o.chunks[0] = nil
		o.chunks, o.skip = o.chunks[1:], 0
	}
	if len(o.chunks) == 0 {
		o.chunks = nil
	}
}

func (o *output) ack(offset int64) error {
	o.mu.Lock()
	defer o.mu.Unlock()
	if offset > o.end || offset < 0 {
		return fail(CodeOffset, "can't acknowledge offset %d: there are %d bytes", offset, o.end)
	}
	o.forget(offset)
	o.wake()
	return nil
}

// drop gives up everything held, and all that will come.
func (o *output) drop() {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.discard = true
	o.forget(o.end)
	o.wake()
}

func (o *output) finish() {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.complete = true
	o.wake()
}

func (o *output) span() Span {
	o.mu.Lock()
	defer o.mu.Unlock()
	return Span{From: o.start, To: o.end, Dropped: o.dropped, Complete: o.complete}
}

// check says whether a reader may start at from.
func (o *output) check(from int64) error {
	s := o.span()
	if from < 0 || from > s.To {
		return fail(CodeOffset, "there is no output at offset %d: there are %d bytes", from, s.To)
	}
	if from < s.From && o.full == Block {
		return fail(CodeGone, "the output before offset %d was acknowledged and is gone; asked for %d", s.From, from)
	}
	return nil
}

// read waits for bytes at from and copies them to buf. at is their offset, larger than from if some were dropped.
// It ends with io.EOF when the output is complete.
func (o *output) read(ctx context.Context, from int64, buf []byte) (at int64, n int, err error) {
	for {
		o.mu.Lock()
		if from < o.start {
			if o.full == Block && !o.discard {
				o.mu.Unlock()
				return from, 0, fail(CodeGone, "the output at offset %d was acknowledged while it was read", from)
			}
			from = o.start
		}
		if from < o.end {
			n = o.copyOut(from, buf)
			o.mu.Unlock()
			return from, n, nil
		}
		done, changed := o.complete || o.discard, o.changed
		o.mu.Unlock()
		if done {
			return from, 0, io.EOF
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return from, 0, ctx.Err()
		}
	}
}

func (o *output) copyOut(from int64, buf []byte) int {
	pos, n := from-o.start+int64(o.skip), 0
	for _, c := range o.chunks {
		if pos >= int64(len(c)) {
			pos -= int64(len(c))
			continue
		}
		n += copy(buf[n:], c[pos:])
		pos = 0
		if n == len(buf) {
			break
		}
	}
	return n
}

// pump moves what a process writes from f into o until the process has ended and its pipe is drained. What background
// children write to the same pipe later is read and thrown away, so that they neither block nor die of SIGPIPE.
// f must be non-blocking and is closed.
func (o *output) pump(f *os.File, tty bool, ended <-chan struct{}) {
	defer f.Close()
	released := make(chan struct{})
	defer close(released)
	go func() {
		select {
		case <-ended:
			f.SetReadDeadline(time.Unix(1, 0)) //nolint:errcheck // pipes and terminals have deadlines
		case <-released:
		}
	}()
	buf := make([]byte, chunkSize)
	for {
		n, err := f.Read(buf[:o.room(len(buf))])
		o.add(buf[:n])
		if err == nil {
			continue
		}
		open := errors.Is(err, os.ErrDeadlineExceeded)
		if !open && tty && alive(ended, ttySettle) {
			continue // nothing has the terminal open just now, but the process lives and may open it again
		}
		<-ended
		if open {
			open = o.drain(f, tty, buf)
		}
		o.finish()
		if open {
			o.throwAway(f, buf)
		}
		return
	}
}

func alive(ended <-chan struct{}, wait time.Duration) bool {
	select {
	case <-ended:
		return false
	case <-time.After(wait):
		return true
	}
}

// drain takes what is in the pipe now that the process has ended: all it wrote itself is there. It reports whether the
// other end is still open. The amount is measured first, else a background child that floods would never let it end.
func (o *output) drain(f *os.File, tty bool, buf []byte) bool {
	if tty {
		for total := 0; total < 1<<20; {
			f.SetReadDeadline(time.Now().Add(ttySettle)) //nolint:errcheck // see pump
			n, err := f.Read(buf[:o.room(len(buf))])
			o.add(buf[:n])
			total += n
			if err != nil {
				return errors.Is(err, os.ErrDeadlineExceeded)
			}
		}
		return true
	}
	sc, err := f.SyscallConn()
	if err != nil {
		return false
	}
	waiting, open := 0, true
	sc.Control(func(fd uintptr) { waiting, err = unix.IoctlGetInt(int(fd), unix.TIOCINQ) }) //nolint:errcheck // f is open
	for err == nil && waiting > 0 {
		room := o.room(min(len(buf), waiting))
		n := 0
		sc.Control(func(fd uintptr) { n, err = syscall.Read(int(fd), buf[:room]) }) //nolint:errcheck // f is open
		if err == syscall.EINTR {
			err = nil
			continue
		}
		if n <= 0 {
			return err == syscall.EAGAIN
		}
		o.add(buf[:n])
		waiting -= n
	}
	return open
}

func (o *output) throwAway(f *os.File, buf []byte) {
	buf = buf[:4096:4096]
	f.SetReadDeadline(time.Time{}) //nolint:errcheck // see pump
	for {
		if _, err := f.Read(buf); err != nil {
			return
		}
	}
}
