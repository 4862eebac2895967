package agent

import (
	"context"
	"os"
	"sync"
	"time"
)

// inputQueue is how many bytes of standard input wait for a process that doesn't read yet.
const inputQueue = 64 << 10

// input hands bytes to a process in the order of their offsets, each once. Safe for concurrent use.
type input struct {
	tty bool

	mu      sync.Mutex
	changed chan struct{}
	queue   []byte
	at      int64 // offset of the next byte to take
	closed  bool  // CloseInput came
	broken  bool  // the process closed its end, or ended
}

func newInput(tty bool) *input { return &input{tty: tty, changed: make(chan struct{})} }

func (in *input) wake() {
	close(in.changed)
	in.changed = make(chan struct{})
}

// take queues b as the bytes from at on, waiting for room. Bytes taken before are skipped.
func (in *input) take(ctx context.Context, at int64, b []byte) error {
	for {
		in.mu.Lock()
		if at > in.at || at < 0 {
			defer in.mu.Unlock()
			return fail(CodeOffset, "input at offset %d would leave a gap: the next offset is %d", at, in.at)
		}
		if old := min(in.at-at, int64(len(b))); old > 0 {
			at, b = at+old, b[old:]
		}
		if len(b) == 0 {
			in.mu.Unlock()
			return nil
		}
		if in.closed || in.broken {
			defer in.mu.Unlock()
			return fail(CodeEnded, "the command's standard input is closed")
		}
		if n := min(inputQueue-len(in.queue), len(b)); n > 0 {
			in.queue = append(in.queue, b[:n]...)
			in.at += int64(n)
			in.wake()
		}
		changed := in.changed
		in.mu.Unlock()
		if at+int64(len(b)) <= in.offset() {
			return nil
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

func (in *input) offset() int64 {
	in.mu.Lock()
	defer in.mu.Unlock()
	return in.at
}

func (in *input) close() error {
	if in.tty {
		return fail(CodeBad, `a terminal's input can't be closed; send the end-of-file character \x04 instead`)
	}
	in.mu.Lock()
	defer in.mu.Unlock()
	in.closed = true
	in.wake()
	return nil
}

func (in *input) stop() {
	in.mu.Lock()
	defer in.mu.Unlock()
	in.broken, in.queue = true, nil
	in.wake()
}

// pump writes the queue to f until input is closed, the process closes its end or ended. It closes f unless that is a
// terminal, whose file belongs to the output's pump.
func (in *input) pump(f *os.File, ended <-chan struct{}) {
	released := make(chan struct{})
	defer close(released)
	if !in.tty {
		defer f.Close()
	}
	go func() {
		select {
		case <-ended:
			in.stop()
			f.SetWriteDeadline(time.Unix(1, 0)) //nolint:errcheck // pipes and terminals have deadlines
		case <-released:
		}
	}()
	for {
		in.mu.Lock()
		part, changed := in.queue, in.changed
		in.queue = nil
		finished := in.broken || in.closed && len(part) == 0
		if len(part) > 0 {
			in.wake()
		}
		in.mu.Unlock()
		if finished {
			return
		}
		if len(part) == 0 {
			<-changed
			continue
		}
		if _, err := f.Write(part); err != nil {
			in.stop()
			return
		}
	}
}
