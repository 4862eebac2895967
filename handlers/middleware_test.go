package handlers

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/rs/zerolog"

	"github.com/claude-hub/claude-hub/handlers/request"
)

func loud(string) bool { return false }

func TestAPanicIsAnAnswerAndOneLineInTheLog(t *testing.T) {
	t.Parallel()
	var log bytes.Buffer
	h := traced(zerolog.New(&log), loud, http.HandlerFunc(func(http.ResponseWriter, *http.Request) { panic("the secret cause") }))
	rw := httptest.NewRecorder()
	h.ServeHTTP(rw, httptest.NewRequest("GET", "/x?token=not-logged", nil))
	id := rw.Header().Get(request.Header)
	if rw.Code != 500 || !strings.Contains(rw.Body.String(), id) || strings.Contains(rw.Body.String(), "secret") {
		t.Fatalf("%d %s", rw.Code, rw.Body)
	}
	if text := log.String(); strings.Count(text, "\n") != 2 || !strings.Contains(text, "the secret cause") || !strings.Contains(text, `"status":500`) || strings.Contains(text, "not-logged") {
		t.Fatalf("log:\n%s", text)
	}
	aborted := traced(zerolog.New(io.Discard), loud, http.HandlerFunc(func(http.ResponseWriter, *http.Request) { panic(http.ErrAbortHandler) }))
	defer func() {
		if p := recover(); p != http.ErrAbortHandler { //nolint:errorlint // the very value
			t.Fatalf("an aborted answer must stay one, got %v", p)
		}
	}()
	aborted.ServeHTTP(httptest.NewRecorder(), httptest.NewRequest("GET", "/", nil))
}

func TestARequestsIDIsItsOwn(t *testing.T) {
	t.Parallel()
	var inside []string
	h := traced(zerolog.New(io.Discard), loud, http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) { inside = append(inside, request.ID(r.Context())) }))
	for range 2 {
		rw := httptest.NewRecorder()
		req := httptest.NewRequest("GET", "/", nil)
		req.Header.Set(request.Header, "chosen-by-somebody-else")
		h.ServeHTTP(rw, req)
		if got := rw.Header().Get(request.Header); got != inside[len(inside)-1] || got == "chosen-by-somebody-else" {
			t.Fatalf("header %q, inside %q", got, inside)
		}
	}
	if inside[0] == inside[1] {
		t.Fatal("two requests share an id")
	}
}

// TestAStreamOutlivesTheTimesOfAnswers: deadlines of body and answer are of the connection, and a stream that extends
// its own must not be ended by either.
func TestAStreamOutlivesTheTimesOfAnswers(t *testing.T) {
	t.Parallel()
	const short = 50 * time.Millisecond
	first := make(chan struct{})
	server := httptest.NewServer(timedBy(short, short, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		rc := http.NewResponseController(w)
		for range 6 {
			_ = rc.SetWriteDeadline(time.Now().Add(time.Second))
			if _, err := io.WriteString(w, "x\n"); err != nil || rc.Flush() != nil {
				return
			}
			select {
			case <-first:
			default:
				close(first)
			}
			select {
			case <-time.After(short / 2):
			case <-r.Context().Done():
				return
			}
		}
	})))
	t.Cleanup(server.Close)
	res, err := http.Get(server.URL)
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	n := 0
	for in := bufio.NewScanner(res.Body); in.Scan(); n++ {
	}
	if n != 6 {
		t.Fatalf("%d lines of 6 arrived", n)
	}
}

func TestReadinessIsTheDatabases(t *testing.T) {
	t.Parallel()
	for err, want := range map[error]int{nil: 200, errors.New("the secret place of the database"): 503} {
		rw := httptest.NewRecorder()
		ready(func(context.Context) error { return err })(rw, httptest.NewRequest("GET", "/readyz", nil))
		if rw.Code != want || strings.Contains(rw.Body.String(), "secret") {
			t.Errorf("%v: %d %s", err, rw.Code, rw.Body)
		}
	}
}

func TestAHubNeedsItsOwnURL(t *testing.T) {
	t.Parallel()
	for _, bad := range []string{"", "hub.example.com", "ftp://hub", "://"} {
		if _, err := New(Deps{PublicURL: bad}); err == nil {
			t.Errorf("%q is no URL of a Hub", bad)
		}
	}
}
