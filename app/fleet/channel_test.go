package fleet

import (
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/claude-hub/claude-hub/app/fault"
	"github.com/claude-hub/claude-hub/runner/wire"
	"github.com/claude-hub/claude-hub/store"
	"github.com/claude-hub/claude-hub/store/storetest"
)

// line is a channel with its two sides.
type line struct {
	*rig
	a  Assignment
	id string
}

func newLine(t *testing.T, o Options) *line {
	t.Helper()
	r := newRig(t, storetest.New(t), o)
	a := r.assign(r.runner("r1"), "s1", 0)
	id, err := r.OpenChannel(t.Context(), a.ID, wire.ChannelSpec{Argv: []string{"cat"}, TTY: true})
	if err != nil {
		t.Fatal(err)
	}
	return &line{r, a, id}
}

func (l *line) client(m ClientMove) ClientState {
	l.t.Helper()
	st, err := l.ClientExchange(l.t.Context(), l.id, m)
	if err != nil {
		l.t.Fatal(err)
	}
	return st
}

func (l *line) serve(q *wire.ExchangeRequest) *wire.ExchangeResponse {
	l.t.Helper()
	q.Channel, q.Assignment, q.Fence = l.id, l.a.ID, l.a.Fence
	res, err := l.Exchange(l.t.Context(), l.a.Runner, q)
	if err != nil {
		l.t.Fatal(err)
	}
	return res
}

func out(stream int32, offset int64, data string) *wire.Piece {
	return &wire.Piece{Stream: stream, Offset: offset, Data: []byte(data)}
}

func TestOutputSentTwiceOverlappingOrWithAGapComesOnce(t *testing.T) {
	t.Parallel()
	l := newLine(t, Options{})
	for _, c := range []struct {
		p    *wire.Piece
		want int64
	}{
		{out(1, 0, "abc"), 3}, {out(1, 0, "abc"), 3}, {out(1, 1, "bcdef"), 6}, {out(1, 9, "zzz"), 6}, {out(1, 6, ""), 6}, {out(3, 0, "x"), 6}, {out(1, 6, "g"), 7},
	} {
		if res := l.serve(&wire.ExchangeRequest{Out: []*wire.Piece{c.p}}); res.GetOut1() != c.want {
			t.Fatalf("%v answered %d, want %d", c.p, res.GetOut1(), c.want)
		}
	}
	for range 2 { // the client's answer is lost, it asks again
		if st := l.client(ClientMove{}); len(st.Out) != 1 || string(st.Out[0].GetData()) != "abcdefg" || !st.Picked {
			t.Fatalf("%+v", st)
		}
	}
	if st := l.client(ClientMove{Out1: 5}); st.Out[0].GetOffset() != 5 || string(st.Out[0].GetData()) != "fg" {
		t.Fatalf("%+v", st)
	}
	if st := l.client(ClientMove{Out1: 2}); st.Out[0].GetOffset() != 5 {
		t.Fatalf("what the client has is forgotten: %+v", st)
	}
}

func TestInputSentTwiceComesOnceAndItsEndAfterIt(t *testing.T) {
	t.Parallel()
	l := newLine(t, Options{})
	for range 2 {
		if st := l.client(ClientMove{In: []byte("hello")}); st.InNext != 5 {
			t.Fatalf("%+v", st)
		}
	}
	if st := l.client(ClientMove{In: []byte("lo world"), InOffset: 3, InClosed: true}); st.InNext != 11 {
		t.Fatalf("%+v", st)
	}
	if st := l.client(ClientMove{In: []byte("more"), InOffset: 11}); st.InNext != 11 {
		t.Fatalf("input after its end: %+v", st)
	}
	for range 2 {
		res := l.serve(&wire.ExchangeRequest{})
		if len(res.GetIn()) != 1 || string(res.GetIn()[0].GetData()) != "hello world" || !res.GetInClosed() {
			t.Fatalf("%v", res)
		}
	}
	if res := l.serve(&wire.ExchangeRequest{InOffset: 6}); string(res.GetIn()[0].GetData()) != "world" || res.GetIn()[0].GetOffset() != 6 {
		t.Fatalf("%v", res)
	}
}

// An end that came between two calls of the Runner is news for the next one: told only while a call waited, it held every
// second “echo | session exec -i” up for a whole poll.
func TestTheEndOfInputIsNewsUntilTheRunnerHasHeardOfIt(t *testing.T) {
	t.Parallel()
	l := newLine(t, Options{})
	l.client(ClientMove{In: []byte("abc")})
	l.serve(&wire.ExchangeRequest{})
	l.client(ClientMove{InOffset: 3, InClosed: true})
	began := time.Now()
	for range 2 { // the first answer is lost
		if res := l.serve(&wire.ExchangeRequest{InOffset: 3, WaitMs: 15_000}); !res.GetInClosed() {
			t.Fatalf("%v doesn't say that the input ended", res)
		}
	}
	if took := time.Since(began); took > 14*time.Second {
		t.Fatalf("the end of the input came after %s, not at once", took)
	}
	if res := l.serve(&wire.ExchangeRequest{InOffset: 3, InClosed: true, WaitMs: 1}); !res.GetInClosed() {
		t.Fatalf("%v", res)
	}
}

func TestInputWaitsForRoom(t *testing.T) {
	t.Parallel()
	l := newLine(t, Options{})
	big := []byte(strings.Repeat("x", channelInput+1000))
	st := l.client(ClientMove{In: big, InClosed: true})
	if st.InNext != channelInput {
		t.Fatalf("%d bytes were taken", st.InNext)
	}
	if res := l.serve(&wire.ExchangeRequest{}); res.GetInClosed() {
		t.Fatal("closed before all of it is here")
	}
	l.serve(&wire.ExchangeRequest{InOffset: channelInput})
	if st = l.client(ClientMove{In: big[st.InNext:], InOffset: st.InNext, InClosed: true}); st.InNext != int64(len(big)) {
		t.Fatalf("%+v", st)
	}
	if res := l.serve(&wire.ExchangeRequest{InOffset: channelInput}); !res.GetInClosed() || len(res.GetIn()[0].GetData()) != 1000 {
		t.Fatalf("%v", res)
	}
}

func TestControlsComeOnceInOrderAndOnlyTheNewestSize(t *testing.T) {
	t.Parallel()
	l := newLine(t, Options{})
	size := func(seq int64, rows uint32) *wire.Control { return &wire.Control{Seq: seq, Rows: rows, Cols: 80} }
	controls := []*wire.Control{size(1, 10), size(2, 20), {Seq: 3, Signal: 2}, size(4, 40), size(5, 50)}
	l.client(ClientMove{Controls: controls})
	l.client(ClientMove{Controls: controls})
	seqs := func(res *wire.ExchangeResponse) (all []int64) {
		for _, c := range res.GetControls() {
			all = append(all, c.GetSeq())
		}
		return all
	}
	if got := seqs(l.serve(&wire.ExchangeRequest{})); !slices.Equal(got, []int64{2, 3, 5}) {
		t.Fatalf("%v", got)
	}
	if got := seqs(l.serve(&wire.ExchangeRequest{ControlSeen: 3})); !slices.Equal(got, []int64{5}) {
		t.Fatalf("%v", got)
	}
}

func TestEndComesBehindAllOutput(t *testing.T) {
	t.Parallel()
	l := newLine(t, Options{})
	big := strings.Repeat("x", channelOutput+100)
	res := l.serve(&wire.ExchangeRequest{Out: []*wire.Piece{out(1, 0, big)}, Ended: true, ExitJson: `{"code":7}`})
	if res.GetOut1() != channelOutput {
		t.Fatalf("%d bytes were taken", res.GetOut1())
	}
	st := l.client(ClientMove{})
	if st.Ended {
		t.Fatal("ended before all output is here")
	}
	l.client(ClientMove{Out1: channelOutput})
	l.serve(&wire.ExchangeRequest{Out: []*wire.Piece{out(1, channelOutput, big[channelOutput:])}, Ended: true, ExitJson: `{"code":7}`})
	if st = l.client(ClientMove{Out1: channelOutput}); !st.Ended || st.Exit.Code != 7 || len(st.Out[0].GetData()) != 100 {
		t.Fatalf("%+v", st)
	}
	if st = l.client(ClientMove{Out1: channelOutput}); !st.Ended { // the answer was lost
		t.Fatalf("%+v", st)
	}
	if n := len(l.sync(l.a.Runner).GetChannels()); n != 0 {
		t.Fatalf("%d channels are still listed", n)
	}
}

func TestOpenChannelWakesSyncAndExchangeWakesBothSides(t *testing.T) {
	t.Parallel()
	l := newLine(t, Options{})
	list := l.sync(l.a.Runner)
	if len(list.GetChannels()) != 1 || list.GetChannels()[0].GetId() != l.id || !strings.Contains(list.GetChannels()[0].GetSpecJson(), "cat") {
		t.Fatalf("%v", list.GetChannels())
	}
	woken := make(chan int, 1)
	go func() {
		res, _ := l.Sync(l.t.Context(), l.a.Runner, &wire.SyncRequest{Revision: list.GetRevision(), WaitMs: 15_000})
		woken <- len(res.GetChannels())
	}()
	if _, err := l.OpenChannel(t.Context(), l.a.ID, wire.ChannelSpec{}); err != nil {
		t.Fatal(err)
	}
	if n := <-woken; n != 2 {
		t.Fatalf("%d channels", n)
	}
	began := time.Now()
	served := make(chan *wire.ExchangeResponse, 1)
	l.serve(&wire.ExchangeRequest{})
	go func() {
		res, _ := l.Exchange(l.t.Context(), l.a.Runner, &wire.ExchangeRequest{Channel: l.id, Assignment: l.a.ID, Fence: 1, WaitMs: 15_000})
		served <- res
	}()
	l.client(ClientMove{In: []byte("x")})
	if res := <-served; len(res.GetIn()) != 1 {
		t.Fatalf("%v", res)
	}
	got := make(chan ClientState, 1)
	go func() {
		st, _ := l.ClientExchange(l.t.Context(), l.id, ClientMove{Wait: 15 * time.Second})
		got <- st
	}()
	l.serve(&wire.ExchangeRequest{InOffset: 1, Out: []*wire.Piece{out(2, 0, "y")}})
	if st := <-got; len(st.Out) != 1 || st.Out[0].GetStream() != 2 {
		t.Fatalf("%+v", st)
	}
	if took := time.Since(began); took > 10*time.Second {
		t.Fatalf("it took %s", took)
	}
}

func TestChannelEndsWithItsClientItsFenceAndItsAssignment(t *testing.T) {
	t.Parallel()
	for name, end := range map[string]func(l *line){
		"client silent": func(l *line) { l.clock.add(61 * time.Second); l.reap() },
		"client closes": func(l *line) { l.CloseChannel(l.id); l.CloseChannel(l.id) },
		"remove": func(l *line) {
			l.write(func(tx *store.Tx) error { _, err := l.Change(tx, l.a.ID, Remove, time.Time{}); return err })
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			l := newLine(t, Options{})
			l.serve(&wire.ExchangeRequest{Out: []*wire.Piece{out(1, 0, "last words")}})
			end(l)
			if !l.serve(&wire.ExchangeRequest{}).GetGone() || len(l.sync(l.a.Runner).GetChannels()) != 0 {
				t.Fatal("the Runner isn't told")
			}
			if st := l.client(ClientMove{}); string(st.Out[0].GetData()) != "last words" {
				t.Fatalf("%+v", st)
			}
			if _, err := l.ClientExchange(t.Context(), l.id, ClientMove{Out1: 10}); !fault.Is(err, fault.Refused) {
				t.Fatalf("%v", err)
			}
			l.clock.add(6 * time.Minute)
			l.reap()
			if _, err := l.ClientExchange(t.Context(), l.id, ClientMove{}); !errors.Is(err, ErrNoChannel) {
				t.Fatalf("%v", err)
			}
		})
	}
	l := newLine(t, Options{})
	l.write(func(tx *store.Tx) error { return l.Refence(tx, l.a.ID) })
	if !l.serve(&wire.ExchangeRequest{}).GetGone() {
		t.Fatal("a raised fence must close channels")
	}
	q := &wire.ExchangeRequest{Channel: l.id, Assignment: l.a.ID, Fence: 2}
	if _, err := l.Exchange(t.Context(), l.a.Runner, q); !errors.Is(err, ErrFenced) {
		t.Fatalf("%v", err)
	}
	if res, err := l.Exchange(t.Context(), l.runner("r2"), q); err != nil || !res.GetGone() {
		t.Fatalf("another Runner's channel: %v %v", res, err)
	}
}

// A Session that is asked to sleep for idleness may turn out busy with the very exec that this would end.
func TestAskingToStopLeavesOpenChannelsToTheRunner(t *testing.T) {
	t.Parallel()
	l := newLine(t, Options{})
	l.serve(&wire.ExchangeRequest{})
	l.write(func(tx *store.Tx) error { _, err := l.Change(tx, l.a.ID, Stop, time.Time{}); return err })
	if res := l.serve(&wire.ExchangeRequest{Out: []*wire.Piece{out(1, 0, "still here")}}); res.GetGone() || res.GetOut1() != 10 {
		t.Fatalf("%v", res)
	}
	if st := l.client(ClientMove{}); len(st.Out) != 1 || string(st.Out[0].GetData()) != "still here" {
		t.Fatalf("%+v", st)
	}
}

func TestChannelIsRefusedWhereNothingRuns(t *testing.T) {
	t.Parallel()
	r := newRig(t, storetest.New(t), Options{})
	a := r.assign(r.runner("r1"), "s1", 0)
	if _, err := r.OpenChannel(t.Context(), "nothing", wire.ChannelSpec{}); !errors.Is(err, ErrUnknown) {
		t.Fatalf("%v", err)
	}
	for range maxChannels {
		if _, err := r.OpenChannel(t.Context(), a.ID, wire.ChannelSpec{}); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := r.OpenChannel(t.Context(), a.ID, wire.ChannelSpec{}); !fault.Is(err, fault.Refused) || !strings.Contains(err.Error(), "64") {
		t.Fatalf("%v", err)
	}
	r.clock.add(2 * time.Minute)
	if _, err := r.OpenChannel(t.Context(), a.ID, wire.ChannelSpec{}); !fault.Is(err, fault.Unavailable) || !strings.Contains(err.Error(), "r1") {
		t.Fatalf("%v", err)
	}
	r.sync(a.Runner)
	r.write(func(tx *store.Tx) error { _, err := r.Change(tx, a.ID, Stop, time.Time{}); return err })
	if _, err := r.OpenChannel(t.Context(), a.ID, wire.ChannelSpec{}); !fault.Is(err, fault.Refused) {
		t.Fatalf("%v", err)
	}
}

func TestWhatEndedUnreadTakesBoundedMemory(t *testing.T) {
	t.Parallel()
	l := newLine(t, Options{})
	first := l.id
	for range 3 * maxRested {
		l.serve(&wire.ExchangeRequest{Out: []*wire.Piece{out(1, 0, "unread")}, Ended: true})
		id, err := l.OpenChannel(t.Context(), l.a.ID, wire.ChannelSpec{Argv: []string{"true"}})
		if err != nil {
			t.Fatal(err)
		}
		l.id = id
	}
	if n := len(l.channels.byID); n > maxRested+1 {
		t.Errorf("%d channels are kept that have ended", n)
	}
	if _, err := l.ClientExchange(t.Context(), first, ClientMove{}); !errors.Is(err, ErrNoChannel) {
		t.Errorf("the oldest is still there: %v", err)
	}
}
