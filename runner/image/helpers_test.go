package image_test

import (
	"context"
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/mutate"

	"github.com/claude-hub/claude-hub/runner/image"
)

// TestMain pulls instead of testing when a test started this binary to be killed.
func TestMain(m *testing.M) {
	if job := os.Getenv("IMAGE_TEST_PULL"); job != "" {
		dir, ref, _ := strings.Cut(job, "=")
		if err := pullInChild(dir, ref); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	if dir := os.Getenv("IMAGE_TEST_DEBOOTSTRAP"); dir != "" {
		if err := debootstrapInChild(dir); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	os.Exit(m.Run())
}

func debootstrapInChild(dir string) error {
	s, err := image.Open(dir, image.Options{})
	if err != nil {
		return err
	}
	_, err = s.Debootstrap(context.Background(), image.DebootstrapOptions{Include: []string{}}, os.Stderr)
	return err
}

func pullInChild(dir, ref string) error {
	s, err := image.Open(dir, image.Options{})
	if err != nil {
		return err
	}
	img, err := s.Pull(context.Background(), ref, nil)
	if err != nil {
		return err
	}
	return json.NewEncoder(os.Stdout).Encode(img)
}

func open(t *testing.T, o image.Options) *image.Store {
	t.Helper()
	return openAt(t, t.TempDir(), o)
}

func openAt(t *testing.T, dir string, o image.Options) *image.Store {
	t.Helper()
	if o.Wait == 0 {
		o.Wait = time.Millisecond
	}
	s, err := image.Open(dir, o)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func pull(t *testing.T, s *image.Store, ref string) image.Image {
	t.Helper()
	img, err := s.Pull(t.Context(), ref, nil)
	if err != nil {
		t.Fatalf("pulling %s: %v (%v)", ref, err, unwrapped(err))
	}
	return img
}

func unwrapped(err error) error {
	if u, ok := err.(interface{ Unwrap() error }); ok {
		return u.Unwrap()
	}
	return nil
}

// refused checks that err has a code and that a user reads the words.
func refused(t *testing.T, err error, code image.Code, words ...string) {
	t.Helper()
	if image.CodeOf(err) != code {
		t.Fatalf("got code %q and error %v, want code %q", image.CodeOf(err), err, code)
	}
	for _, w := range words {
		if !strings.Contains(err.Error(), w) {
			t.Errorf("the error lacks %q: %v", w, err)
		}
	}
}

func read(t *testing.T, parts ...string) string {
	t.Helper()
	b, err := os.ReadFile(filepath.Join(parts...))
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

// names lists a folder of the store.
func names(t *testing.T, dir ...string) []string {
	t.Helper()
	entries, err := os.ReadDir(filepath.Join(dir...))
	if err != nil {
		t.Fatal(err)
	}
	var all []string
	for _, e := range entries {
		all = append(all, e.Name())
	}
	return all
}

// requests counts and may answer the requests of a registry.
type requests struct {
	mu     sync.Mutex
	lines  []string
	ranges []string
	answer func(w http.ResponseWriter, r *http.Request) bool // true: answered
	inner  http.Handler
}

func (q *requests) wrap(h http.Handler) http.Handler {
	q.inner = h
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		q.mu.Lock()
		q.lines = append(q.lines, r.Method+" "+r.URL.Path)
		if v := r.Header.Get("Range"); v != "" {
			q.ranges = append(q.ranges, v)
		}
		answer := q.answer
		q.mu.Unlock()
		if answer == nil || !answer(w, r) {
			h.ServeHTTP(w, r)
		}
	})
}

func (q *requests) set(answer func(w http.ResponseWriter, r *http.Request) bool) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.answer, q.lines, q.ranges = answer, nil, nil
}

func (q *requests) count(method, part string) int {
	q.mu.Lock()
	defer q.mu.Unlock()
	n := 0
	for _, l := range q.lines {
		if strings.HasPrefix(l, method+" ") && strings.Contains(l, part) {
			n++
		}
	}
	return n
}

// asked lists the parts of blobs that were asked for.
func (q *requests) asked() []string {
	q.mu.Lock()
	defer q.mu.Unlock()
	return append([]string(nil), q.ranges...)
}

func multiarch(images map[string]v1.Image) v1.ImageIndex {
	var add []mutate.IndexAddendum
	for platform, img := range images {
		p, err := v1.ParsePlatform(platform)
		if err != nil {
			panic(err)
		}
		add = append(add, mutate.IndexAddendum{Add: img, Descriptor: v1.Descriptor{Platform: p}})
	}
	return mutate.AppendManifests(empty.Index, add...)
}

func digest(t *testing.T, what interface{ Digest() (v1.Hash, error) }) string {
	t.Helper()
	d, err := what.Digest()
	if err != nil {
		t.Fatal(err)
	}
	return d.String()
}

// dialTo connects to one address whatever is asked for.
func dialTo(host string) func(context.Context, string, string) (net.Conn, error) {
	return func(ctx context.Context, network, _ string) (net.Conn, error) {
		var d net.Dialer
		return d.DialContext(ctx, network, host)
	}
}
