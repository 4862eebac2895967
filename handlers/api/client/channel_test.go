package client_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/claude-hub/claude-hub/app/apptest"
	"github.com/claude-hub/claude-hub/app/fault"
	"github.com/claude-hub/claude-hub/app/fleet"
	"github.com/claude-hub/claude-hub/envspec"
	"github.com/claude-hub/claude-hub/handlers/api/client"
	"github.com/claude-hub/claude-hub/handlers/api/schema"
	"github.com/claude-hub/claude-hub/runner/wire"
	"github.com/claude-hub/claude-hub/store/storetest"
)

// running starts a Session that runs.
func (h *hub) running() (*apptest.Runner, *wire.Item, schema.Session) {
	h.t.Helper()
	r := h.Hub.Runner("r1")
	h.Hub.Applied(h.Hub.Grant("ana"), r, envspec.Default())
	sn := must(h.StartSession(h.t.Context(), repo, schema.StartSession{}))(h.t)
	item := r.Item()
	r.MustReport(item, wire.StateRunning, wire.SessionDetail{Workspace: true})
	return r, item, sn
}

// process is what the test's Runner runs in a channel: it echoes its input to stdout in capitals, says "err" on stderr and
// each window size on stdout, and ends when its input is closed or a signal came.
func (h *hub) process(ctx context.Context, r *apptest.Runner, item *wire.Item, channel string, flood int) {
	var inAt, control, out1, out2 int64
	signal := int32(0)
	out := []byte(strings.Repeat("f", flood))
	errs := []byte("err")
	closed := false
	for ctx.Err() == nil {
		q := &wire.ExchangeRequest{Channel: channel, Assignment: item.GetId(), Fence: item.GetFence(), InOffset: inAt, ControlSeen: control, WaitMs: 5000}
		if out1 < int64(len(out)) {
			q.Out = append(q.Out, &wire.Piece{Stream: 1, Offset: out1, Data: out[out1:]})
		}
		if out2 < int64(len(errs)) {
			q.Out = append(q.Out, &wire.Piece{Stream: 2, Offset: out2, Data: errs[out2:]})
		}
		if closed || signal != 0 {
			q.Ended, q.ExitJson = true, fmt.Sprintf(`{"code":%d}`, signal)
		}
		a, err := h.Hub.Fleet.Exchange(ctx, r.ID, q)
		if err != nil || a.GetGone() {
			return
		}
		if q.GetEnded() && a.GetOut1() == int64(len(out)) && a.GetOut2() == int64(len(errs)) {
			return
		}
		if a.GetOut1() == out1 && len(q.GetOut()) > 0 { // the Hub has no room: it says so at once only while we offer
			select {
			case <-time.After(time.Millisecond):
			case <-ctx.Done():
			}
		}
		out1, out2 = a.GetOut1(), a.GetOut2()
		for _, p := range a.GetIn() {
			fresh := p.GetOffset() + int64(len(p.GetData())) - inAt
			if fresh > 0 {
				add := p.GetData()[int64(len(p.GetData()))-fresh:]
				out = append(out, bytes.ToUpper(add)...)
				inAt += fresh
			}
		}
		for _, c := range a.GetControls() {
			if c.GetSeq() > control {
				control = c.GetSeq()
				if c.GetSignal() != 0 {
					signal = 128 + c.GetSignal()
				} else {
					out = fmt.Appendf(out, "%d rows", c.GetRows())
				}
			}
		}
		closed = a.GetInClosed() && len(a.GetIn()) == 0
	}
}

// serve has the Runner serve the next channel that is opened.
func (h *hub) serve(r *apptest.Runner, item *wire.Item, flood int) {
	ctx := context.WithoutCancel(h.t.Context())
	ctx, cancel := context.WithCancel(ctx)
	done := make(chan struct{})
	h.t.Cleanup(func() { cancel(); <-done })
	go func() {
		defer close(done)
		revision := ""
		for ctx.Err() == nil {
			a, err := h.Hub.Fleet.Sync(ctx, r.ID, &wire.SyncRequest{Revision: revision, WaitMs: 10_000})
			if err != nil {
				return
			}
			revision = a.GetRevision()
			if len(a.GetChannels()) > 0 {
				h.process(ctx, r, item, a.GetChannels()[0].GetId(), flood)
				return
			}
		}
	}()
}

// locked is a writer for two goroutines.
type locked struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (l *locked) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(p)
}

func (l *locked) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.String()
}

func TestACommandsBytesArriveWholeThroughLostAnswers(t *testing.T) {
	t.Parallel()
	for every, flood := range map[int64]int{0: 3 << 20, 3: 100_000} {
		t.Run(fmt.Sprintf("every %d lost", every), func(t *testing.T) {
			t.Parallel()
			h := newHub(t, storetest.New(t), apptest.Options{})
			r, item, sn := h.running()
			h.faults.every = every
			h.faults.n.Store(0)
			h.serve(r, item, flood)
			input := strings.Repeat("0123456789abcdef", 40_000) // more than the Hub holds for the Runner
			var out, errs locked
			exit, err := h.Run(t.Context(), repo, sn.ID, wire.ChannelSpec{Argv: []string{"cat"}}, client.Stdio{In: strings.NewReader(input), Out: &out, Err: &errs})
			if err != nil || exit.Code != 0 {
				t.Fatalf("%+v, %v", exit, err)
			}
			if got, want := out.String(), strings.Repeat("f", flood)+strings.ToUpper(input); got != want {
				t.Fatalf("%d bytes of output, want %d", len(got), len(want))
			}
			if errs.String() != "err" {
				t.Fatalf("stderr: %q", errs.String())
			}
		})
	}
}

func TestSignalsAndWindowSizesReachTheProcess(t *testing.T) {
	t.Parallel()
	h := newHub(t, storetest.New(t), apptest.Options{})
	r, item, sn := h.running()
	h.serve(r, item, 0)
	resize, signals := make(chan schema.Size, 1), make(chan int, 1)
	resize <- schema.Size{Rows: 7, Cols: 80}
	never, w := io.Pipe() // input that is open and silent
	t.Cleanup(func() { w.Close() })
	out := &interrupter{at: "7 rows", signals: signals}
	exit, err := h.Run(t.Context(), repo, sn.ID, wire.ChannelSpec{TTY: true}, client.Stdio{In: never, Out: out, Resize: resize, Signals: signals})
	if err != nil || exit.Code != 128+2 {
		t.Fatalf("%+v, %v after %q", exit, err, out.seen)
	}
}

// interrupter sends SIGINT as soon as the process has said something.
type interrupter struct {
	at      string
	seen    string
	signals chan<- int
}

func (s *interrupter) Write(p []byte) (int, error) {
	before := strings.Contains(s.seen, s.at)
	s.seen += string(p)
	if !before && strings.Contains(s.seen, s.at) {
		s.signals <- 2
	}
	return len(p), nil
}

func TestAnEndedCommandIsGivenUpOnTheHub(t *testing.T) {
	t.Parallel()
	h := newHub(t, storetest.New(t), apptest.Options{})
	r, item, sn := h.running()
	h.serve(r, item, 10)
	ctx, cancel := context.WithCancel(t.Context())
	out := &cancelOnOutput{cancel: cancel}
	_, err := h.Run(ctx, repo, sn.ID, wire.ChannelSpec{}, client.Stdio{Out: out})
	if !errors.Is(err, context.Canceled) {
		t.Fatal(err)
	}
	a, err := h.Hub.Fleet.Sync(t.Context(), r.ID, &wire.SyncRequest{})
	if err != nil || len(a.GetChannels()) != 0 {
		t.Fatalf("channels left: %v, %v", a.GetChannels(), err)
	}
}

type cancelOnOutput struct{ cancel func() }

func (c *cancelOnOutput) Write(p []byte) (int, error) { c.cancel(); return len(p), nil }

func TestAChannelOfAnotherSessionIsAbsent(t *testing.T) {
	t.Parallel()
	h := newHub(t, storetest.New(t), apptest.Options{})
	_, _, sn := h.running()
	g := h.Hub.Grant("ana")
	other := must(h.StartSession(t.Context(), repo, schema.StartSession{}))(t)
	channel, err := h.Hub.Sessions.Open(t.Context(), g, sn.ID, wire.ChannelSpec{})
	if err != nil {
		t.Fatal(err)
	}
	if err := h.Hub.Sessions.Close(t.Context(), g, other.ID, channel); !fault.Is(err, fault.NotFound) {
		t.Fatalf("closed through another Session: %v", err)
	}
	if _, err := h.Hub.Sessions.Exchange(t.Context(), g, other.ID, channel, fleet.ClientMove{}); !fault.Is(err, fault.NotFound) {
		t.Fatalf("exchanged through another Session: %v", err)
	}
	if err := h.Hub.Sessions.Close(t.Context(), g, sn.ID, channel); err != nil {
		t.Fatal(err)
	}
	_, err = h.Run(t.Context(), repo, other.ID, wire.ChannelSpec{}, client.Stdio{})
	wantCode(t, err, fault.Refused, "Wait until it runs")
}
