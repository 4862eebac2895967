package runnerapi_test

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/rs/zerolog"

	"github.com/claude-hub/claude-hub/app/fleet"
	"github.com/claude-hub/claude-hub/handlers/runnerapi"
	"github.com/claude-hub/claude-hub/runner/hubclient"
	"github.com/claude-hub/claude-hub/runner/redact"
	"github.com/claude-hub/claude-hub/runner/spool"
	"github.com/claude-hub/claude-hub/runner/wire"
	"github.com/claude-hub/claude-hub/store"
)

const kind fleet.Kind = "test-kind"

// hub is a Hub that can be stopped and started again at the same address.
type hub struct {
	t     *testing.T
	db    *store.DB
	o     fleet.Options
	log   *lockedBuffer
	owner *owner
	addr  string

	mu     sync.Mutex
	f      *fleet.Fleet
	server *http.Server
}

func newHub(t *testing.T, db *store.DB, o fleet.Options) *hub {
	t.Helper()
	err := db.Write(t.Context(), func(tx *store.Tx) error {
		_, err := tx.Exec(`CREATE TABLE told (n BIGINT NOT NULL, what TEXT NOT NULL)`)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	h := &hub{t: t, db: db, o: o, log: &lockedBuffer{}, owner: &owner{}}
	h.start()
	t.Cleanup(h.stop)
	return h
}

func (h *hub) start() {
	h.t.Helper()
	addr := h.addr
	if addr == "" {
		addr = "127.0.0.1:0"
	}
	var l net.Listener
	until(h.t, func() (ok bool) {
		var err error
		l, err = net.Listen("tcp", addr)
		return err == nil
	})
	f := fleet.New(h.db, h.o)
	f.Own(kind, h.owner)
	if err := f.Start(context.Background()); err != nil {
		h.t.Fatal(err)
	}
	mux := http.NewServeMux()
	mux.Handle(runnerapi.New(f, zerolog.New(h.log)))
	server := &http.Server{Handler: mux, ReadHeaderTimeout: 10 * time.Second}
	go func() { _ = server.Serve(l) }() // ends with stop
	h.mu.Lock()
	defer h.mu.Unlock()
	h.addr, h.f, h.server = l.Addr().String(), f, server
}

// stop cuts every connection, as a crash does.
func (h *hub) stop() {
	h.mu.Lock()
	defer h.mu.Unlock()
	_ = h.server.Close()
	h.f.Stop()
}

func (h *hub) fleet() *fleet.Fleet {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.f
}

func (h *hub) url() string { return "http://" + h.addr }

func (h *hub) write(f func(tx *store.Tx) error) {
	h.t.Helper()
	if err := h.db.Write(h.t.Context(), f); err != nil {
		h.t.Fatal(err)
	}
}

func (h *hub) assign(runner, subject string) (a fleet.Assignment) {
	h.t.Helper()
	h.write(func(tx *store.Tx) (err error) {
		a, err = h.fleet().Assign(tx, fleet.Assignment{Runner: runner, Kind: kind, Subject: subject})
		return err
	})
	return a
}

func (h *hub) get(id string) (a fleet.Assignment) {
	h.t.Helper()
	err := h.db.Read(h.t.Context(), func(tx *store.Tx) (err error) {
		a, err = h.fleet().Get(tx, id)
		return err
	})
	if err != nil {
		h.t.Fatal(err)
	}
	return a
}

func (h *hub) told() (all []string) {
	h.t.Helper()
	err := h.db.Read(h.t.Context(), func(tx *store.Tx) (err error) {
		all, err = store.All(tx, store.Scan1[string], `SELECT what FROM told ORDER BY n`)
		return err
	})
	if err != nil {
		h.t.Fatal(err)
	}
	return all
}

func (h *hub) logOf(id string) (text string, ended bool) {
	h.t.Helper()
	var b strings.Builder
	for from := int64(0); ; {
		part, err := h.fleet().ReadLog(h.t.Context(), id, from, 1<<20)
		if err != nil {
			h.t.Fatal(err)
		}
		for _, c := range part.Chunks {
			b.WriteString(strings.Repeat("_", int(c.Offset)-b.Len()))
			b.Write(c.Data)
		}
		if from = part.Next; from == part.End {
			return b.String(), part.Ended
		}
	}
}

func (h *hub) register(name string) (id, token string) {
	h.t.Helper()
	invite, _, err := h.fleet().NewRegistration(h.t.Context(), "ada")
	if err != nil {
		h.t.Fatal(err)
	}
	id, token, err = hubclient.Register(h.t.Context(), nil, h.url(), invite, name)
	if err != nil {
		h.t.Fatal(err)
	}
	return id, token
}

type owner struct {
	mu      sync.Mutex
	n       int
	observe error
}

func (o *owner) Values(_ context.Context, _ *store.Tx, a fleet.Assignment) ([]*wire.Value, string, error) {
	return []*wire.Value{{Name: "NAME", Value: []byte("of " + a.Subject), Id: "v1"}}, "", nil
}

func (o *owner) Payload(_ context.Context, _ *store.Tx, a fleet.Assignment) ([]byte, error) {
	return fmt.Appendf(nil, "%s/%d", a.Subject, a.Generation), nil
}

func (o *owner) Observe(_ context.Context, tx *store.Tx, _ fleet.Assignment, r fleet.Report) error {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.n++
	if _, err := tx.Exec(`INSERT INTO told (n, what) VALUES ($1, $2)`, o.n, r.State); err != nil {
		return err
	}
	return o.observe
}

func (o *owner) fail(err error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.observe = err
}

func (o *owner) Lost(context.Context, *store.Tx, fleet.Assignment) error { return nil }

type lockedBuffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (b *lockedBuffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.b.Write(p)
}

func (b *lockedBuffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.b.String()
}

// runner is a Runner's side: a spool and a client that runs until stop.
type runner struct {
	t     *testing.T
	spool *spool.Spool
	*hubclient.Client
	cancel context.CancelFunc
	done   chan error

	mu       sync.Mutex
	items    []*wire.Item
	channels []*wire.Channel
}

func startRunner(t *testing.T, dir, url, token string, change func(*hubclient.Options)) *runner {
	t.Helper()
	s, err := spool.Open(dir, spool.Options{Segment: 256 << 10})
	if err != nil {
		t.Fatal(err)
	}
	o := hubclient.Options{
		URL: url, Token: token, Spool: s, MinPause: 5 * time.Millisecond, MaxPause: 100 * time.Millisecond, RefusedWait: 50 * time.Millisecond,
		Hello: func() *wire.HelloRequest { return &wire.HelloRequest{Version: "1.0.0", Platform: "linux/amd64"} },
	}
	if change != nil {
		change(&o)
	}
	r := &runner{t: t, spool: s, Client: hubclient.New(o), done: make(chan error, 1)}
	ctx, cancel := context.WithCancel(context.Background())
	r.cancel = cancel
	go func() { r.done <- r.Run(ctx, r, r.take) }()
	t.Cleanup(r.stop)
	return r
}

func (r *runner) stop() {
	r.cancel()
	if err, ok := <-r.done; ok {
		if !errors.Is(err, context.Canceled) {
			r.t.Errorf("Run ended with %v", err)
		}
		close(r.done)
		if err := r.spool.Close(); err != nil {
			r.t.Error(err)
		}
	}
}

func (r *runner) Held() []*wire.Held { return nil }
func (r *runner) Disk() *wire.Disk {
	return &wire.Disk{Builds: 2, BuildBytes: 3 << 20, FreeBytes: 5 << 30}
}

func (r *runner) take(items []*wire.Item, channels []*wire.Channel) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.items, r.channels = items, channels
}

func (r *runner) item(id string) *wire.Item {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, i := range r.items {
		if i.GetId() == id {
			return i
		}
	}
	return nil
}

func (r *runner) channel(id string) *wire.Channel {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, c := range r.channels {
		if c.GetId() == id {
			return c
		}
	}
	return nil
}

func redacted(s string) redact.Text { return new(redact.Set).Text(s) }

func (r *runner) log(a fleet.Assignment, s string) {
	r.t.Helper()
	st, err := r.spool.Stream(a.ID, a.Fence)
	if err == nil {
		err = st.Writer("p").Append(redacted(s), st.Writer("p").RawEnd()+int64(len(s)))
	}
	if err != nil {
		r.t.Fatal(err)
	}
}

func (r *runner) report(a fleet.Assignment, state string) {
	r.t.Helper()
	if err := r.Report(spool.Report{ID: a.ID, Fence: a.Fence, Generation: a.Generation, State: state}); err != nil {
		r.t.Fatal(err)
	}
}

func (r *runner) flush() {
	r.t.Helper()
	ctx, cancel := context.WithTimeout(r.t.Context(), 60*time.Second)
	defer cancel()
	if err := r.Flush(ctx); err != nil {
		r.t.Fatal(err, r.Status())
	}
}

// until waits for a condition that other goroutines bring about.
func until(t *testing.T, ok func() bool) {
	t.Helper()
	deadline := time.NewTimer(30 * time.Second)
	defer deadline.Stop()
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for !ok() {
		select {
		case <-deadline.C:
			t.Fatal("not so within 30 s")
		case <-tick.C:
		}
	}
}

// flaky loses requests before, and answers after, the Hub has worked on them.
type flaky struct {
	next http.RoundTripper
	mu   sync.Mutex
	rng  *rand.Rand
	lost int
	off  bool
}

var errCut = errors.New("the connection was cut")

func (f *flaky) dice() int {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.off {
		return 9
	}
	return f.rng.IntN(7)
}

func (f *flaky) count() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.lost++
}

func (f *flaky) RoundTrip(req *http.Request) (*http.Response, error) {
	switch f.dice() {
	case 0: // never arrives
		if req.Body != nil {
			_ = req.Body.Close()
		}
		f.count()
		return nil, errCut
	case 1, 2: // arrives, and the answer is lost
		res, err := f.next.RoundTrip(req)
		if err != nil {
			return nil, err
		}
		_, _ = io.Copy(io.Discard, res.Body)
		_ = res.Body.Close()
		f.count()
		return nil, errCut
	case 3: // the answer is cut short
		res, err := f.next.RoundTrip(req)
		if err != nil {
			return nil, err
		}
		body, _ := io.ReadAll(res.Body)
		_ = res.Body.Close()
		f.count()
		res.Body = io.NopCloser(io.MultiReader(bytes.NewReader(body[:len(body)/2]), cutReader{}))
		return res, nil
	}
	return f.next.RoundTrip(req)
}

type cutReader struct{}

func (cutReader) Read([]byte) (int, error) { return 0, io.ErrUnexpectedEOF }

// reverseProxy is Go's own, in front of target.
func reverseProxy(t *testing.T, target string) string {
	u, err := url.Parse(target)
	if err != nil {
		t.Fatal(err)
	}
	s := httptest.NewServer(httputil.NewSingleHostReverseProxy(u))
	t.Cleanup(s.Close)
	return s.URL
}

// plainProxy does what nginx does with nothing but proxy_pass: HTTP/1.0 and one connection a request to the Hub, a body
// of at most 1 MiB, everything buffered whole in both directions, headers in its own case.
func plainProxy(t *testing.T, target string) string {
	host := strings.TrimPrefix(target, "http://")
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		body, err := io.ReadAll(http.MaxBytesReader(w, req.Body, 1<<20))
		if err != nil {
			http.Error(w, "413 Request Entity Too Large", http.StatusRequestEntityTooLarge)
			return
		}
		conn, err := net.Dial("tcp", host)
		if err != nil {
			http.Error(w, "502 Bad Gateway", http.StatusBadGateway)
			return
		}
		defer conn.Close()
		defer context.AfterFunc(req.Context(), func() { _ = conn.Close() })()
		var head bytes.Buffer
		fmt.Fprintf(&head, "%s %s HTTP/1.0\r\nHost: %s\r\nConnection: close\r\nContent-Length: %d\r\n", req.Method, req.URL.RequestURI(), host, len(body))
		for k, values := range req.Header {
			if k == "Connection" || k == "Te" || k == "Upgrade" || k == "Content-Length" {
				continue
			}
			for _, v := range values {
				fmt.Fprintf(&head, "%s: %s\r\n", strings.ToLower(k), v)
			}
		}
		head.WriteString("\r\n")
		if _, err := conn.Write(append(head.Bytes(), body...)); err != nil {
			http.Error(w, "502 Bad Gateway", http.StatusBadGateway)
			return
		}
		res, err := http.ReadResponse(bufio.NewReader(conn), req)
		if err != nil {
			http.Error(w, "502 Bad Gateway", http.StatusBadGateway)
			return
		}
		defer res.Body.Close()
		answer, err := io.ReadAll(res.Body)
		if err != nil {
			http.Error(w, "502 Bad Gateway", http.StatusBadGateway)
			return
		}
		for k, v := range res.Header {
			w.Header()[k] = v
		}
		w.WriteHeader(res.StatusCode)
		_, _ = w.Write(answer)
	}))
	t.Cleanup(s.Close)
	return s.URL
}
