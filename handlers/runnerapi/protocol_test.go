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
	"sync/atomic"
	"testing"
	"time"

	"connectrpc.com/connect"

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

func TestRunnerWithoutAValidTokenGetsNothing(t *testing.T) {
	t.Parallel()
	h := newHub(t, storetest.New(t), fleet.Options{})
	id, token := h.register("r1")
	for name, header := range map[string]string{
		"none": "", "empty": "Bearer ", "wrong": "Bearer chrun_x", "no scheme": token, "basic": "Basic " + token, "id": "Bearer " + id,
	} {
		c := wireconnect.NewRunnerServiceClient(http.DefaultClient, h.url(), connect.WithInterceptors(connect.UnaryInterceptorFunc(func(next connect.UnaryFunc) connect.UnaryFunc {
			return func(ctx context.Context, req connect.AnyRequest) (connect.AnyResponse, error) {
				if header != "" {
					req.Header().Set("Authorization", header)
				}
				return next(ctx, req)
			}
		})))
		calls := map[string]func() error{
			"Hello":     func() error { _, err := c.Hello(t.Context(), &wire.HelloRequest{}); return err },
			"Sync":      func() error { _, err := c.Sync(t.Context(), &wire.SyncRequest{}); return err },
			"Fetch":     func() error { _, err := c.Fetch(t.Context(), &wire.FetchRequest{}); return err },
			"Report":    func() error { _, err := c.Report(t.Context(), &wire.ReportRequest{}); return err },
			"AppendLog": func() error { _, err := c.AppendLog(t.Context(), &wire.AppendLogRequest{}); return err },
			"Exchange":  func() error { _, err := c.Exchange(t.Context(), &wire.ExchangeRequest{}); return err },
		}
		for call, do := range calls {
			if err := do(); connect.CodeOf(err) != connect.CodeUnauthenticated {
				t.Errorf("%s with token %s: %v", call, name, err)
			}
		}
	}
}

func TestRevokedRunnerSaysSoAndComesBackSlowly(t *testing.T) {
	t.Parallel()
	h := newHub(t, storetest.New(t), fleet.Options{})
	id, token := h.register("r1")
	var mu sync.Mutex
	calls := 0
	r := startRunner(t, t.TempDir(), h.url(), token, func(o *hubclient.Options) {
		o.RefusedWait = time.Hour
		o.HTTP = &http.Client{Transport: roundTrip(func(req *http.Request) (*http.Response, error) {
			mu.Lock()
			calls++
			mu.Unlock()
			return http.DefaultTransport.RoundTrip(req)
		})}
	})
	until(t, func() bool { return r.Status().Connected })
	if err := h.fleet().Revoke(t.Context(), id, "ada"); err != nil {
		t.Fatal(err)
	}
	until(t, func() bool { return strings.Contains(r.Status().Problem, "revoked") })
	mu.Lock()
	before := calls
	mu.Unlock()
	ctx, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
	defer cancel()
	<-ctx.Done()
	mu.Lock()
	defer mu.Unlock()
	if calls != before {
		t.Fatalf("%d calls with a revoked token", calls-before)
	}
}

type roundTrip func(*http.Request) (*http.Response, error)

func (f roundTrip) RoundTrip(req *http.Request) (*http.Response, error) { return f(req) }

func TestOldRunnerWaitsForItsUpdateAndShowsIt(t *testing.T) {
	t.Parallel()
	h := newHub(t, storetest.New(t), fleet.Options{MinProtocol: 2, MaxProtocol: 3, Version: "9.0.0"})
	id, token := h.register("r1")
	var mu sync.Mutex
	protocol := int32(1)
	r := startRunner(t, t.TempDir(), h.url(), token, func(o *hubclient.Options) {
		o.Hello = func() *wire.HelloRequest {
			mu.Lock()
			defer mu.Unlock()
			return &wire.HelloRequest{Protocol: protocol, Version: "0.9.0"}
		}
	})
	until(t, func() bool { return strings.Contains(r.Status().Update, "9.0.0") })
	all, err := h.fleet().Runners(t.Context())
	if err != nil || len(all) != 1 || all[0].Update == "" {
		t.Fatalf("%+v %v", all, err)
	}
	a := h.assign(id, "s1")
	if r.Status().Connected || r.item(a.ID) != nil {
		t.Fatal("an old Runner got work")
	}
	mu.Lock()
	protocol = 2
	mu.Unlock()
	until(t, func() bool { return r.item(a.ID) != nil && r.Status().Update == "" })
}

func TestRegisterSaysWhatIsWrong(t *testing.T) {
	t.Parallel()
	h := newHub(t, storetest.New(t), fleet.Options{})
	invite, _, err := h.fleet().NewRegistration(t.Context(), "ada")
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct{ token, name, says string }{
		{invite, "bad name", "letters, digits"}, {"chreg_x", "r1", "unknown"}, {invite, "r1", ""}, {invite, "r2", "used already"},
	} {
		_, _, err := hubclient.Register(t.Context(), nil, h.url(), c.token, c.name)
		if (err == nil) != (c.says == "") || err != nil && !strings.Contains(err.Error(), c.says) {
			t.Errorf("Register(%q): %v", c.name, err)
		}
	}
	if _, _, err := hubclient.Register(t.Context(), nil, "http://127.0.0.1:1", invite, "r1"); err == nil || !strings.Contains(err.Error(), "refused") {
		t.Errorf("nobody there: %v", err)
	}
}

func TestInternalErrorsAndPanicsAreToldToNoRunner(t *testing.T) {
	t.Parallel()
	h := newHub(t, storetest.New(t), fleet.Options{})
	id, token := h.register("r1")
	r := startRunner(t, t.TempDir(), h.url(), token, nil)
	until(t, func() bool { return r.Status().Connected })
	a := h.assign(id, "s1")
	h.owner.fail(errors.New("secret detail"))
	c := wireconnect.NewRunnerServiceClient(http.DefaultClient, h.url(), bearer(token))
	_, err := c.Report(t.Context(), &wire.ReportRequest{Id: a.ID, Fence: 1, Seq: 1, State: "x"})
	if connect.CodeOf(err) != connect.CodeInternal || strings.Contains(err.Error(), "secret") {
		t.Fatalf("%v", err)
	}
	if !strings.Contains(h.log.String(), "secret detail") {
		t.Fatal("the Hub's log must have the detail")
	}
	big := &wire.AppendLogRequest{Id: a.ID, Fence: 1, Data: make([]byte, 9<<20)}
	if _, err := c.AppendLog(t.Context(), big); connect.CodeOf(err) != connect.CodeResourceExhausted && connect.CodeOf(err) != connect.CodeUnknown && connect.CodeOf(err) != connect.CodeInvalidArgument {
		t.Fatalf("9 MiB: %v", err)
	}
	big.Data = big.Data[:5<<20]
	if _, err := c.AppendLog(t.Context(), big); connect.CodeOf(err) != connect.CodeInvalidArgument {
		t.Fatalf("5 MiB: %v", err)
	}
}

func bearer(token string) connect.ClientOption {
	return connect.WithInterceptors(connect.UnaryInterceptorFunc(func(next connect.UnaryFunc) connect.UnaryFunc {
		return func(ctx context.Context, req connect.AnyRequest) (connect.AnyResponse, error) {
			req.Header().Set("Authorization", "Bearer "+token)
			return next(ctx, req)
		}
	}))
}

func TestNothingOfAStrangersBodyIsRead(t *testing.T) {
	t.Parallel()
	h := newHub(t, storetest.New(t), fleet.Options{})
	_, token := h.register("r1")
	for name, c := range map[string]struct {
		path, token string
		size        int
		status      int
	}{
		"stranger":      {wireconnect.RunnerServiceAppendLogProcedure, "chrun_x", 4 << 20, http.StatusUnauthorized},
		"no such call":  {"/" + wireconnect.RunnerServiceName + "/Nothing", "chrun_x", 4 << 20, http.StatusUnauthorized},
		"registration":  {wireconnect.RunnerServiceRegisterProcedure, "", 128 << 10, http.StatusTooManyRequests},
		"far too large": {wireconnect.RunnerServiceAppendLogProcedure, token, 9 << 20, http.StatusTooManyRequests},
	} {
		body := &countedBody{left: c.size}
		req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, h.url()+c.path, body)
		if err != nil {
			t.Fatal(err)
		}
		req.Header.Set("Content-Type", "application/proto")
		req.Header.Set("Connect-Protocol-Version", "1")
		req.Header.Set("Authorization", "Bearer "+c.token)
		req.Header.Set("Expect", "100-continue") // nothing is sent before the Hub reads
		res, err := (&http.Transport{ExpectContinueTimeout: time.Minute}).RoundTrip(req)
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		_ = res.Body.Close()
		if res.StatusCode != c.status {
			t.Errorf("%s: %s, want %d", name, res.Status, c.status)
		}
		if c.status == http.StatusUnauthorized && body.read.Load() > 0 {
			t.Errorf("%s: %d bytes were asked for", name, body.read.Load())
		}
	}
}

// countedBody is so many zeros.
type countedBody struct {
	left int
	read atomic.Int64
}

func (b *countedBody) Read(p []byte) (int, error) {
	if b.left == 0 {
		return 0, io.EOF
	}
	n := min(len(p), b.left)
	clear(p[:n])
	b.left -= n
	b.read.Add(int64(n))
	return n, nil
}

func TestOneRunnersLargeRequestsAllArrive(t *testing.T) {
	t.Parallel()
	h := newHub(t, storetest.New(t), fleet.Options{})
	id, token := h.register("r1")
	c := wireconnect.NewRunnerServiceClient(http.DefaultClient, h.url(), connect.WithInterceptors(connect.UnaryInterceptorFunc(func(next connect.UnaryFunc) connect.UnaryFunc {
		return func(ctx context.Context, req connect.AnyRequest) (connect.AnyResponse, error) {
			req.Header().Set("Authorization", "Bearer "+token)
			return next(ctx, req)
		}
	})))
	errs := make(chan error)
	const n = 40 // more than may be read at a time, and more bytes than may be in hand
	for i := range n {
		a := h.assign(id, fmt.Sprint(i))
		go func() {
			_, err := c.AppendLog(t.Context(), &wire.AppendLogRequest{Id: a.ID, Fence: 1, Data: bytes.Repeat([]byte{'x'}, 2<<20)})
			errs <- err
		}()
	}
	for range n {
		if err := <-errs; err != nil {
			t.Error(err)
		}
	}
}

func TestDeadlinesAreMetByTheHubsClock(t *testing.T) {
	t.Parallel()
	h := newHub(t, storetest.New(t), fleet.Options{})
	id, token := h.register("r1")
	for name, ahead := range map[string]time.Duration{"same": 0, "ahead": 2 * time.Hour, "behind": -2 * time.Hour} {
		r := startRunner(t, t.TempDir(), h.url(), token, func(o *hubclient.Options) {
			o.HTTP = &http.Client{Transport: roundTrip(func(req *http.Request) (*http.Response, error) {
				res, err := http.DefaultTransport.RoundTrip(req)
				if err == nil { // as if this host's clock were ahead of the Hub's
					res.Header.Set("Date", time.Now().Add(-ahead).UTC().Format(http.TimeFormat))
				}
				return res, err
			})}
		})
		a := h.assign(id, name)
		deadline := time.Now().Add(time.Hour).Truncate(time.Millisecond)
		h.write(func(tx *store.Tx) error { return h.fleet().Deadline(tx, a.ID, deadline) })
		until(t, func() bool { i := r.item(a.ID); return i != nil && i.GetDeadlineMs() != 0 })
		off := time.UnixMilli(r.item(a.ID).GetDeadlineMs()).Sub(deadline) - ahead
		if ahead == 0 && off != 0 || off.Abs() > 20*time.Second {
			t.Errorf("%s: the deadline is off by %s", name, off)
		}
		r.stop()
	}
}
