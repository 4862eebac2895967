package runnerapi_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
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
