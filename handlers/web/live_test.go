package web

import (
	"bufio"
	"context"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/claude-hub/claude-hub/app/access"
	"github.com/claude-hub/claude-hub/app/fault"
	"github.com/claude-hub/claude-hub/app/fleet"
)

// never is Changes of what doesn't change.
type never struct{}

func (never) Changed(string) <-chan struct{} { return nil }

// streamed serves l behind a plain HTTP/1.1 proxy and answers the lines that come.
func streamed(t *testing.T, l live) <-chan string {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { _ = l.serve(w, r) }))
	to, err := url.Parse(server.URL)
	if err != nil {
		t.Fatal(err)
	}
	proxy := httptest.NewServer(httputil.NewSingleHostReverseProxy(to))
	t.Cleanup(server.Close)
	t.Cleanup(proxy.Close)
	t.Cleanup(cancel)
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, proxy.URL, nil)
	if err != nil {
		t.Fatal(err)
	}
	res, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	out := make(chan string, 100)
	go func() {
		defer res.Body.Close()
		defer close(out)
		for in := bufio.NewScanner(res.Body); in.Scan(); {
			select {
			case out <- in.Text():
			case <-ctx.Done():
				return
			}
		}
	}()
	return out
}

func wantLine(t *testing.T, lines <-chan string, want string) {
	t.Helper()
	timeout := time.After(time.Minute)
	for {
		select {
		case line, more := <-lines:
			if line == want {
				return
			}
			if !more {
				t.Fatalf("the stream ended before %q", want)
			}
		case <-timeout:
			t.Fatalf("%q never came", want)
		}
	}
}

func wantEnd(t *testing.T, lines <-chan string) {
	t.Helper()
	timeout := time.After(time.Minute)
	for {
		select {
		case _, more := <-lines:
			if !more {
				return
			}
		case <-timeout:
			t.Fatal("the stream goes on")
		}
	}
}

// quietLog is a stream of which nothing comes.
func quietLog() (l live, revoke func()) {
	held, cancel := context.WithCancel(context.Background())
	return live{
		changes: never{}, heartbeatEvery: 5 * time.Millisecond,
		read: func(context.Context, int64, int) (fleet.LogPart, error) { return fleet.LogPart{}, nil },
		over: func(context.Context) (bool, error) { return false, nil },
		hold: func(ctx context.Context, _ access.Grant) (context.Context, context.CancelFunc) {
			both, end := context.WithCancel(ctx)
			context.AfterFunc(held, end)
			return both, end
		},
	}, cancel
}

func TestASilentStreamBeats(t *testing.T) {
	t.Parallel()
	l, revoke := quietLog()
	lines := streamed(t, l)
	wantLine(t, lines, ": still here")
	wantLine(t, lines, ": still here")
	revoke()
	wantEnd(t, lines)
}

func TestAStreamEndsWhenTheHubStops(t *testing.T) {
	t.Parallel()
	l, _ := quietLog()
	stop := make(chan struct{})
	l.stopping = stop
	lines := streamed(t, l)
	wantLine(t, lines, "event: log")
	close(stop)
	wantEnd(t, lines)
}

func TestAStreamOfSomethingDeletedSaysSo(t *testing.T) {
	t.Parallel()
	l, _ := quietLog()
	var mu sync.Mutex
	n := 0
	l.over = func(context.Context) (bool, error) {
		mu.Lock()
		defer mu.Unlock()
		if n++; n > 3 {
			return false, fault.New(fault.NotFound, "gone")
		}
		return false, nil
	}
	lines := streamed(t, l)
	wantLine(t, lines, "event: end")
	wantEnd(t, lines)
}

func TestADownloadThatIsCutDoesNotLookWhole(t *testing.T) {
	t.Parallel()
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_ = download(w, r, "x", func(_ context.Context, from int64, _ int) (fleet.LogPart, error) {
			if from > 0 {
				return fleet.LogPart{}, fault.New(fault.Unavailable, "away")
			}
			return fleet.LogPart{Chunks: []fleet.LogChunk{{Data: []byte(strings.Repeat("x", 9000))}}, Next: 9000, End: 20_000}, nil
		})
	}))
	t.Cleanup(server.Close)
	res, err := http.Get(server.URL)
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	if _, err := bufio.NewReader(res.Body).ReadString('\n'); err == nil || err.Error() != "unexpected EOF" {
		t.Fatalf("a download that was cut ends with %v", err)
	}
}
