package runnerapi_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/claude-hub/claude-hub/app/fleet"
	"github.com/claude-hub/claude-hub/runner/hubclient"
	"github.com/claude-hub/claude-hub/runner/wire"
	"github.com/claude-hub/claude-hub/runner/wire/wireconnect"
	"github.com/claude-hub/claude-hub/store"
	"github.com/claude-hub/claude-hub/store/storetest"
)

// paths are the ways between a Runner and its Hub (facts/reliability.md P22).
var paths = map[string]func(*testing.T, string) string{
	"direct":        func(_ *testing.T, u string) string { return u },
	"reverse proxy": reverseProxy,
	"plain proxy":   plainProxy,
}

func TestWholeStoryThroughEveryProxy(t *testing.T) {
	t.Parallel()
	for name, through := range paths {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			story(t, newHub(t, storetest.New(t), fleet.Options{}), through, nil)
		})
	}
}

func TestWholeStoryWithLostRequestsAndAnswers(t *testing.T) {
	t.Parallel()
	storetest.Each(t, func(t *testing.T, db *store.DB) {
		f := &flaky{next: hubclient.NewHTTP().Transport, rng: rand.New(rand.NewPCG(uint64(time.Now().UnixNano()), 1))}
		story(t, newHub(t, db, fleet.Options{}), paths["direct"], f)
		if f.lost < 10 {
			t.Fatalf("only %d were lost: this shows nothing", f.lost)
		}
	})
}

// story is one assignment from its list to its end, with its log and a terminal.
func story(t *testing.T, h *hub, through func(*testing.T, string) string, f *flaky) {
	id, token := h.register("r1")
	r := startRunner(t, t.TempDir(), through(t, h.url()), token, func(o *hubclient.Options) {
		if f != nil {
			o.HTTP = &http.Client{Transport: f}
		}
	})
	until(t, func() bool { return r.Status().Connected })
	if st := r.Status(); st.RunnerID != id || st.Name != "r1" {
		t.Fatalf("%+v", st)
	}
	a := h.assign(id, "s1")
	until(t, func() bool { return r.item(a.ID) != nil && r.item(a.ID).GetWant() == wire.WantRun })
	payload, err := r.Fetch(t.Context(), a.ID, 1, 1)
	if err != nil || string(payload) != "s1/1" {
		t.Fatalf("%q %v", payload, err)
	}
	r.report(a, "running")
	r.flush()
	var want strings.Builder
	for i := range 600 {
		line := strings.Repeat(fmt.Sprintf("%d|", i), 1+i*2)
		r.log(a, line)
		want.WriteString(line)
	}
	terminal(t, h, r, a)
	st, err := r.spool.Stream(a.ID, 1)
	if err != nil {
		t.Fatal(err)
	}
	if err := st.Finish(); err != nil {
		t.Fatal(err)
	}
	r.report(a, "passed")
	r.flush()
	until(t, func() bool { _, ended := h.logOf(a.ID); return ended })
	if got, _ := h.logOf(a.ID); got != want.String() {
		t.Fatalf("the Hub has %d of %d bytes of log", len(got), want.Len())
	}
	h.write(func(tx *store.Tx) error {
		_, err := h.fleet().Change(tx, a.ID, fleet.Remove, time.Time{})
		return err
	})
	until(t, func() bool { return r.item(a.ID).GetWant() == wire.WantRemove })
	r.report(h.get(a.ID), wire.StateRemoved)
	r.flush()
	until(t, func() bool { return r.item(a.ID) == nil })
	if got := h.told(); !slices.Equal(got, []string{"running", "passed", "removed"}) {
		t.Fatalf("the Owner was told %q", got)
	}
	until(t, func() bool { return len(r.spool.Streams()) == 0 }) // the Hub has all of it
}

// echo is a process that prints its input in capitals, and what is done to it on stderr.
type echo struct {
	ch   *hubclient.Channel
	mu   sync.Mutex
	in   []byte
	gone bool
	done chan struct{}
}

func (e *echo) Input(ctx context.Context, offset int64, b []byte) error {
	e.mu.Lock()
	if offset != int64(len(e.in)) {
		e.mu.Unlock()
		return fmt.Errorf("input at %d after %d", offset, len(e.in))
	}
	e.in = append(e.in, b...)
	e.mu.Unlock()
	return e.ch.Write(ctx, 1, redacted(strings.ToUpper(string(b))))
}

func (e *echo) CloseInput(context.Context) error { close(e.done); return nil }

func (e *echo) Control(ctx context.Context, c *wire.Control) error {
	return e.ch.Write(ctx, 2, redacted(fmt.Sprintf("signal %d size %dx%d;", c.GetSignal(), c.GetRows(), c.GetCols())))
}

func (e *echo) Gone() {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.gone = true
}

func (e *echo) wasTold() bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.gone
}

// terminal sends 600 kB through a channel and back, with pieces sent twice, and reads all of it.
func terminal(t *testing.T, h *hub, r *runner, a fleet.Assignment) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 100*time.Second)
	defer cancel()
	f := h.fleet()
	id, err := f.OpenChannel(ctx, a.ID, wire.ChannelSpec{Argv: []string{"cat"}, Stdin: true})
	if err != nil {
		t.Fatal(err)
	}
	until(t, func() bool { return r.channel(id) != nil })
	e := &echo{done: make(chan struct{})}
	e.ch = r.Channel(r.channel(id), a.Fence, e)
	served := make(chan error, 2)
	go func() { served <- e.ch.Run(ctx) }()
	go func() {
		<-e.done
		served <- e.ch.Finish(ctx, wire.ChannelExit{Code: 3})
	}()

	input := bytes.Repeat([]byte("all work and no play\n"), 30_000)
	var out [2][]byte
	sent := int64(0)
	for round := 0; ; round++ {
		end := min(sent+50_000, int64(len(input)))
		move := fleet.ClientMove{
			In: input[sent:end], InOffset: sent, InClosed: end == int64(len(input)),
			Out1: int64(len(out[0])), Out2: int64(len(out[1])), Wait: time.Second,
		}
		if round == 0 {
			move.Controls = []*wire.Control{{Seq: 1, Signal: 2}, {Seq: 2, Rows: 10, Cols: 20}}
		}
		st, err := f.ClientExchange(ctx, id, move)
		if err != nil {
			t.Fatal(err)
		}
		if round%3 == 2 {
			continue // the browser lost this answer and says the same again
		}
		for _, p := range st.Out {
			o := &out[p.GetStream()-1]
			if p.GetOffset() != int64(len(*o)) {
				t.Fatalf("stream %d goes on at %d, %d were read", p.GetStream(), p.GetOffset(), len(*o))
			}
			*o = append(*o, p.GetData()...)
		}
		sent = st.InNext
		if st.Ended {
			if st.Exit.Code != 3 {
				t.Fatalf("%+v", st.Exit)
			}
			break
		}
	}
	for range 2 {
		if err := <-served; err != nil {
			t.Fatal(err)
		}
	}
	if string(out[0]) != strings.ToUpper(string(input)) {
		t.Fatalf("%d of %d bytes came back", len(out[0]), len(input))
	}
	if string(out[1]) != "signal 2 size 0x0;signal 0 size 10x20;" {
		t.Fatalf("controls: %q", out[1])
	}
	until(t, func() bool { return r.channel(id) == nil })
}

func TestChannelClosedByItsClientEndsTheProcess(t *testing.T) {
	t.Parallel()
	h := newHub(t, storetest.New(t), fleet.Options{})
	id, token := h.register("r1")
	r := startRunner(t, t.TempDir(), h.url(), token, nil)
	a := h.assign(id, "s1")
	until(t, func() bool { return r.item(a.ID) != nil })
	for name, end := range map[string]func(channel string){
		"closed": func(channel string) { h.fleet().CloseChannel(channel) },
		"stopped": func(string) {
			h.write(func(tx *store.Tx) error { _, err := h.fleet().Change(tx, a.ID, fleet.Stop, time.Time{}); return err })
		},
	} {
		h.write(func(tx *store.Tx) error { _, err := h.fleet().Change(tx, a.ID, fleet.Run, time.Time{}); return err })
		channel, err := h.fleet().OpenChannel(t.Context(), a.ID, wire.ChannelSpec{})
		if err != nil {
			t.Fatal(err)
		}
		until(t, func() bool { return r.channel(channel) != nil })
		e := &echo{done: make(chan struct{})}
		e.ch = r.Channel(r.channel(channel), a.Fence, e)
		served := make(chan error, 1)
		go func() { served <- e.ch.Run(context.Background()) }()
		until(t, func() bool {
			st, err := h.fleet().ClientExchange(t.Context(), channel, fleet.ClientMove{})
			return err == nil && st.Picked
		})
		end(channel)
		if err := <-served; !errors.Is(err, hubclient.ErrGone) || !e.wasTold() {
			t.Fatalf("%s: served until %v, process told %v", name, err, e.wasTold())
		}
		if err := e.ch.Write(t.Context(), 1, redacted("more")); !errors.Is(err, hubclient.ErrGone) {
			t.Fatalf("%s: %v", name, err)
		}
		if _, err := h.fleet().ClientExchange(t.Context(), channel, fleet.ClientMove{}); err == nil {
			t.Fatalf("%s: the client isn't told", name)
		}
	}
	if _, err := h.fleet().ClientExchange(t.Context(), "nothing", fleet.ClientMove{}); !errors.Is(err, fleet.ErrNoChannel) {
		t.Fatalf("%v", err)
	}
}

func TestOutputNobodyReadsHoldsTheProcessBack(t *testing.T) {
	t.Parallel()
	h := newHub(t, storetest.New(t), fleet.Options{})
	id, token := h.register("r1")
	r := startRunner(t, t.TempDir(), h.url(), token, nil)
	a := h.assign(id, "s1")
	until(t, func() bool { return r.item(a.ID) != nil })
	channel, err := h.fleet().OpenChannel(t.Context(), a.ID, wire.ChannelSpec{})
	if err != nil {
		t.Fatal(err)
	}
	until(t, func() bool { return r.channel(channel) != nil })
	e := &echo{done: make(chan struct{})}
	e.ch = r.Channel(r.channel(channel), a.Fence, e)
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	served := make(chan error, 1)
	go func() { served <- e.ch.Run(ctx) }()
	const total = 4 << 20
	var mu sync.Mutex
	written := 0
	ended := make(chan error, 1)
	go func() {
		line := redacted(strings.Repeat("y", 32<<10))
		for range total / line.Len() {
			if err := e.ch.Write(ctx, 1, line); err != nil {
				ended <- err
				return
			}
			mu.Lock()
			written += line.Len()
			mu.Unlock()
		}
		ended <- e.ch.Finish(ctx, wire.ChannelExit{})
	}()
	// With nobody reading, it comes to a rest, well before the end.
	rest, same := -1, 0
	until(t, func() bool {
		mu.Lock()
		defer mu.Unlock()
		if same++; written != rest || written < 1<<20 {
			rest, same = written, 0
		}
		return same > 100
	})
	if rest > 2<<20 {
		t.Fatalf("%d bytes were taken with nobody reading", rest)
	}
	got := int64(0)
	for {
		st, err := h.fleet().ClientExchange(t.Context(), channel, fleet.ClientMove{Out1: got, Wait: time.Second})
		if err != nil {
			t.Fatal(err)
		}
		for _, p := range st.Out {
			if p.GetOffset() != got {
				t.Fatalf("at %d, want %d", p.GetOffset(), got)
			}
			got += int64(len(p.GetData()))
		}
		if st.Ended {
			break
		}
	}
	if err := errors.Join(<-ended, <-served); err != nil || got != total {
		t.Fatalf("%d of %d bytes, %v", got, total, err)
	}
}

func TestTheHubKnowsWhatARunnersDiskHolds(t *testing.T) {
	t.Parallel()
	h := newHub(t, storetest.New(t), fleet.Options{})
	_, token := h.register("r1")
	startRunner(t, t.TempDir(), h.url(), token, nil)
	want := fleet.Disk{Builds: 2, BuildBytes: 3 << 20, Free: 5 << 30}
	until(t, func() bool {
		all, err := h.fleet().Runners(t.Context())
		return err == nil && len(all) == 1 && all[0].Disk != nil && *all[0].Disk == want
	})
}

func TestHubThatWasAwayMissesNothing(t *testing.T) {
	t.Parallel()
	storetest.Each(t, func(t *testing.T, db *store.DB) {
		h := newHub(t, db, fleet.Options{})
		id, token := h.register("r1")
		dir := t.TempDir()
		r := startRunner(t, dir, h.url(), token, nil)
		a := h.assign(id, "s1")
		until(t, func() bool { return r.item(a.ID) != nil })
		var want strings.Builder
		say := func(n int) {
			for i := range n {
				line := fmt.Sprintf("line %d of %d\n", i, n)
				r.log(a, line)
				want.WriteString(line)
			}
		}
		say(1000)
		h.stop()
		say(2000)
		r.report(a, "passed")
		until(t, func() bool {
			st := r.Status()
			return !st.Connected && strings.Contains(st.Problem, "can't be reached")
		})
		// The Runner, too, is killed meanwhile.
		r.stop()
		r = startRunner(t, dir, h.url(), token, nil)
		say(300)
		h.start()
		r.flush()
		if got, _ := h.logOf(a.ID); got != want.String() {
			t.Fatalf("the Hub has %d of %d bytes of log", len(got), want.Len())
		}
		if got := h.told(); !slices.Equal(got, []string{"passed"}) {
			t.Fatalf("the Owner was told %q", got)
		}
	})
}

func TestErrorPagesOfAProxyAreNoRefusals(t *testing.T) {
	t.Parallel()
	h := newHub(t, storetest.New(t), fleet.Options{})
	id, token := h.register("r1")
	var mu sync.Mutex
	status, pages := 0, map[string]int{}
	set := func(s int) {
		mu.Lock()
		defer mu.Unlock()
		status, pages = s, map[string]int{}
	}
	answered := func(procedure string) bool {
		mu.Lock()
		defer mu.Unlock()
		return pages[procedure] > 1
	}
	r := startRunner(t, t.TempDir(), h.url(), token, func(o *hubclient.Options) {
		o.HTTP = &http.Client{Transport: roundTrip(func(req *http.Request) (*http.Response, error) {
			mu.Lock()
			s := status
			pages[req.URL.Path]++
			mu.Unlock()
			if s == 0 {
				return http.DefaultTransport.RoundTrip(req)
			}
			body := "<html>a page of the proxy's</html>"
			return &http.Response{StatusCode: s, Header: http.Header{"Content-Type": {"text/html"}}, Body: io.NopCloser(strings.NewReader(body)), Request: req}, nil
		})}
	})
	a := h.assign(id, "s1")
	until(t, func() bool { return r.item(a.ID) != nil })
	var want strings.Builder
	var states []string
	for _, s := range []int{301, 400, 401, 403, 404, 409, 413, 429, 500, 502, 503, 504} {
		set(s)
		line := fmt.Sprintf("said during %d\n", s)
		r.log(a, line)
		want.WriteString(line)
		states = append(states, fmt.Sprint(s))
		r.report(a, fmt.Sprint(s))
		until(t, func() bool {
			return answered(wireconnect.RunnerServiceReportProcedure) && answered(wireconnect.RunnerServiceAppendLogProcedure)
		})
		if len(r.spool.Unsent()) != 1 {
			t.Fatalf("a page with status %d was taken for the Hub's answer", s)
		}
		set(0)
		r.flush()
	}
	if got, _ := h.logOf(a.ID); got != want.String() || !slices.Equal(h.told(), states) {
		t.Fatalf("the Hub has %q and was told %q", got, h.told())
	}
}

func TestFencedRunnerKeepsNothingToSendAndLearnsIt(t *testing.T) {
	t.Parallel()
	h := newHub(t, storetest.New(t), fleet.Options{})
	id, token := h.register("r1")
	r := startRunner(t, t.TempDir(), h.url(), token, nil)
	a := h.assign(id, "s1")
	until(t, func() bool { return r.item(a.ID) != nil })
	h.write(func(tx *store.Tx) error { return h.fleet().Refence(tx, a.ID) })
	r.log(a, "too late\n")
	r.report(a, "passed")
	r.flush()
	r.log(a, "appending still works\n")
	until(t, func() bool { return r.item(a.ID).GetFence() == 2 })
	if _, err := r.Fetch(t.Context(), a.ID, 1, 1); !errors.Is(err, hubclient.ErrFenced) {
		t.Fatalf("%v", err)
	}
	if _, err := r.Fetch(t.Context(), "nothing", 1, 1); !errors.Is(err, hubclient.ErrUnknown) {
		t.Fatalf("%v", err)
	}
	if _, err := r.Fetch(t.Context(), a.ID, 7, 2); !errors.Is(err, hubclient.ErrStale) {
		t.Fatalf("%v", err)
	}
	if got, _ := h.logOf(a.ID); got != "" || len(h.told()) != 0 {
		t.Fatalf("the Hub took %q, told %q", got, h.told())
	}
	if len(r.spool.Unsent()) != 0 {
		t.Fatal("a refused report is still to be sent")
	}
}

func TestOwnersErrorIsRetriedAndHoldsUpNoOtherReport(t *testing.T) {
	t.Parallel()
	h := newHub(t, storetest.New(t), fleet.Options{})
	id, token := h.register("r1")
	r := startRunner(t, t.TempDir(), h.url(), token, nil)
	a, b := h.assign(id, "s1"), h.assign(id, "s2")
	h.owner.fail(errors.New("the database of dreams is full of password=hunter2"))
	r.report(a, "one")
	until(t, func() bool { return strings.Contains(h.log.String(), "hunter2") })
	h.owner.fail(nil)
	r.report(b, "two")
	r.flush()
	got := h.told()
	slices.Sort(got)
	if !slices.Equal(got, []string{"one", "two"}) {
		t.Fatalf("told %q", got)
	}
}
