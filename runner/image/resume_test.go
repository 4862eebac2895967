package image_test

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/claude-hub/claude-hub/runner/image"
	. "github.com/claude-hub/claude-hub/runner/image/imagetest"
)

// cutAfter answers blob requests with their first n bytes and then cuts the connection.
func cutAfter(q *requests, n int, times int32) {
	var done atomic.Int32
	next := q.inner
	q.set(func(w http.ResponseWriter, r *http.Request) bool {
		if r.Method != http.MethodGet || !strings.Contains(r.URL.Path, "/blobs/") || r.Header.Get("Accept") == "*/*" ||
			done.Add(1) > times {
			return false
		}
		next.ServeHTTP(&cutting{ResponseWriter: w, left: n}, r)
		panic(http.ErrAbortHandler)
	})
}

type cutting struct {
	http.ResponseWriter
	left int
}

func (c *cutting) Write(b []byte) (int, error) {
	if len(b) > c.left {
		_, _ = c.ResponseWriter.Write(b[:c.left])
		c.ResponseWriter.(http.Flusher).Flush()
		panic(http.ErrAbortHandler)
	}
	c.left -= len(b)
	return c.ResponseWriter.Write(b)
}

func TestADownloadThatIsCutGoesOnWhereItStopped(t *testing.T) {
	t.Parallel()
	var q requests
	host := Registry(t, q.wrap)
	body := noise(600 << 10)
	l := Layer(t, File("f", 0o644, body))
	ref := Push(t, host, "app", Image(t, nil, l))
	cutAfter(&q, 100<<10, 4)
	img := pull(t, open(t, image.Options{Tries: 2}), ref)
	if read(t, img.Layers[0], "f") != body {
		t.Fatal("the file isn't what was pushed")
	}
	if got := q.asked(); len(got) != 4 || !strings.HasPrefix(got[0], "bytes=102400-") {
		t.Fatalf("parts asked for: %v", got)
	}
	if n := q.count("GET", digest(t, l)); n != 5 {
		t.Errorf("the layer was asked for %d times, not once and for 4 parts", n)
	}
}

func TestADownloadFromARegistryWithoutRangesStartsAfresh(t *testing.T) {
	t.Parallel()
	var q requests
	host := Registry(t, q.wrap)
	body := noise(300 << 10)
	ref := Push(t, host, "app", Image(t, nil, Layer(t, File("f", 0o644, body))))
	next, n := q.inner, atomic.Int32{}
	q.set(func(w http.ResponseWriter, r *http.Request) bool {
		if !strings.Contains(r.URL.Path, "/blobs/") {
			return false
		}
		r.Header.Del("Range")
		if n.Add(1) > 1 {
			return false
		}
		next.ServeHTTP(&cutting{ResponseWriter: w, left: 64 << 10}, r)
		panic(http.ErrAbortHandler)
	})
	if img := pull(t, open(t, image.Options{}), ref); read(t, img.Layers[0], "f") != body {
		t.Fatal("the file isn't what was pushed")
	}
}

func TestAPullThatFailedHalfwayLeavesNothingWholeAndGoesOnLater(t *testing.T) {
	t.Parallel()
	var q requests
	host := Registry(t, q.wrap)
	ref := Push(t, host, "app", Image(t, nil, Layer(t, File("f", 0o644, noise(400<<10)))))
	dir := t.TempDir()
	next := q.inner
	q.set(func(w http.ResponseWriter, r *http.Request) bool {
		if r.Method != http.MethodGet || !strings.Contains(r.URL.Path, "/blobs/") {
			return false
		}
		if r.Header.Get("Range") != "" {
			w.WriteHeader(http.StatusBadGateway)
			return true
		}
		next.ServeHTTP(&cutting{ResponseWriter: w, left: 100 << 10}, r)
		return true
	})
	_, err := openAt(t, dir, image.Options{Tries: 2}).Pull(t.Context(), ref, nil)
	refused(t, err, image.Unreachable, host)
	if left := names(t, dir, "layers"); len(left) != 0 {
		t.Fatalf("layers after a failed pull: %v", left)
	}
	q.set(nil)
	pull(t, openAt(t, dir, image.Options{}), ref)
	if got := q.asked(); len(got) != 1 || !strings.HasPrefix(got[0], "bytes=102400-") {
		t.Fatalf("parts asked for by the second pull: %v", got)
	}
}

func TestADamagedLayerIsRefusedAndNotKept(t *testing.T) {
	t.Parallel()
	var q requests
	host := Registry(t, q.wrap)
	l := Layer(t, File("f", 0o644, noise(50<<10)))
	ref := Push(t, host, "app", Image(t, nil, l))
	size, err := l.Size()
	if err != nil {
		t.Fatal(err)
	}
	q.set(func(w http.ResponseWriter, r *http.Request) bool {
		if !strings.HasSuffix(r.URL.Path, digest(t, l)) {
			return false
		}
		w.Header().Set("Content-Length", strconv.FormatInt(size, 10))
		_, _ = w.Write([]byte(noise(int(size))))
		return true
	})
	dir := t.TempDir()
	s := openAt(t, dir, image.Options{})
	_, err = s.Pull(t.Context(), ref, nil)
	refused(t, err, image.Corrupt, "damaged", digest(t, l))
	if left := append(names(t, dir, "blobs"), names(t, dir, "layers")...); len(left) != 0 {
		t.Fatalf("kept: %v", left)
	}
	q.set(nil)
	pull(t, s, ref)
}

func TestARegistryThatStopsSendingIsTriedAgain(t *testing.T) {
	t.Parallel()
	var q requests
	host := Registry(t, q.wrap)
	ref := Push(t, host, "app", Image(t, nil, Layer(t, File("f", 0o644, noise(300<<10)))))
	next, n := q.inner, atomic.Int32{}
	q.set(func(w http.ResponseWriter, r *http.Request) bool {
		if !strings.Contains(r.URL.Path, "/blobs/") || n.Add(1) != 2 {
			return false
		}
		next.ServeHTTP(&hanging{w, 100 << 10, r.Context()}, r)
		return true
	})
	pull(t, open(t, image.Options{Stall: 200 * time.Millisecond}), ref)
	if got := q.asked(); len(got) != 1 {
		t.Fatalf("parts asked for: %v", got)
	}
}

type hanging struct {
	http.ResponseWriter
	left int
	ctx  context.Context
}

func (h *hanging) Write(b []byte) (int, error) {
	if len(b) <= h.left {
		h.left -= len(b)
		return h.ResponseWriter.Write(b)
	}
	_, _ = h.ResponseWriter.Write(b[:h.left])
	h.ResponseWriter.(http.Flusher).Flush()
	<-h.ctx.Done()
	return 0, h.ctx.Err()
}

func TestACancelledPullEndsAtOnceWithTheContextsError(t *testing.T) {
	t.Parallel()
	var q requests
	host := Registry(t, q.wrap)
	ref := Push(t, host, "app", Image(t, nil, Layer(t, File("f", 0o644, noise(300<<10)))))
	ctx, cancel := context.WithCancel(t.Context())
	next := q.inner
	q.set(func(w http.ResponseWriter, r *http.Request) bool {
		if !strings.Contains(r.URL.Path, "/blobs/") || r.Header.Get("Accept") == "*/*" {
			return false
		}
		cancel()
		next.ServeHTTP(&hanging{w, 1000, r.Context()}, r)
		return true
	})
	if _, err := open(t, image.Options{}).Pull(ctx, ref, nil); !errors.Is(err, context.Canceled) || image.CodeOf(err) != "" {
		t.Fatalf("got %v", err)
	}
}

// manyFiles is a layer that takes a while to unpack.
func manyFiles(n int) []Entry {
	all := []Entry{Dir("d", 0o755)}
	for i := range n {
		all = append(all, File(fmt.Sprintf("d/%05d", i), 0o644, strconv.Itoa(i)))
	}
	return all
}

func TestKillingAPullNeverLeavesHalfALayerAsWhole(t *testing.T) {
	t.Parallel()
	host := Registry(t)
	const files = 20_000
	ref := Push(t, host, "many", Image(t, nil, Layer(t, File("first", 0o644, "1")), Layer(t, manyFiles(files)...)))
	dir := t.TempDir()
	for round := range 3 {
		child := startPull(t, dir, ref)
		// Killed when some of the files are there, a few more each round.
		until(t, "the child to unpack", func() bool {
			half, _ := filepath.Glob(filepath.Join(dir, "layers", "tmp-*", "fs", "d"))
			return len(half) == 1 && len(names(t, half[0])) > 500*(round+1)
		})
		child.kill(t)
		if _, err := openAt(t, dir, image.Options{}).Get(ref); image.CodeOf(err) != image.NotFound {
			t.Fatalf("after a kill the image is there: %v", err)
		}
		for _, l := range names(t, dir, "layers") {
			if st := stat(t, dir, "layers", l, "fs"); st.Mode&unix.S_IFDIR == 0 {
				t.Fatalf("layer %s has no folder", l)
			}
			if _, err := os.Stat(filepath.Join(dir, "layers", l, "fs", "d")); err == nil {
				t.Fatalf("the killed layer %s has its final name", l)
			}
		}
	}
	img := pull(t, openAt(t, dir, image.Options{}), ref)
	if n := len(names(t, img.Layers[1], "d")); n != files {
		t.Fatalf("the layer has %d files of %d", n, files)
	}
	for _, l := range names(t, dir, "layers") {
		if strings.HasPrefix(l, "tmp-") {
			t.Errorf("%s is left", l)
		}
	}
}

func TestAPullGoesOnWithTheDownloadOfAKilledProcess(t *testing.T) {
	t.Parallel()
	var q requests
	host := Registry(t, q.wrap)
	body := noise(500 << 10)
	ref := Push(t, host, "app", Image(t, nil, Layer(t, File("f", 0o644, body))))
	dir := t.TempDir()
	next := q.inner
	q.set(func(w http.ResponseWriter, r *http.Request) bool {
		if !strings.Contains(r.URL.Path, "/blobs/") || r.Header.Get("Accept") == "*/*" {
			return false
		}
		next.ServeHTTP(&hanging{w, 200 << 10, r.Context()}, r)
		return true
	})
	child := startPull(t, dir, ref)
	until(t, "the child to download", func() bool {
		for _, b := range names(t, dir, "blobs") {
			if info, err := os.Stat(filepath.Join(dir, "blobs", b)); err == nil && info.Size() > 100<<10 {
				return true
			}
		}
		return false
	}, filepath.Join(dir, "blobs"))
	child.kill(t)
	q.set(nil)
	if img := pull(t, openAt(t, dir, image.Options{}), ref); read(t, img.Layers[0], "f") != body {
		t.Fatal("the file isn't what was pushed")
	}
	if got := q.asked(); len(got) != 1 {
		t.Fatalf("parts asked for: %v", got)
	}
}

func TestTwoProcessesPullingTheSameImageDoTheWorkOnce(t *testing.T) {
	t.Parallel()
	var q requests
	host := Registry(t, q.wrap)
	l := Layer(t, manyFiles(3000)...)
	ref := Push(t, host, "many", Image(t, nil, l))
	q.set(nil)
	dir := t.TempDir()
	a, b := startPull(t, dir, ref), startPull(t, dir, ref)
	one, two := a.image(t), b.image(t)
	if one.Digest != two.Digest || !slices.Equal(one.Layers, two.Layers) {
		t.Fatalf("got %+v and %+v", one, two)
	}
	if n := q.count("GET", digest(t, l)); n != 1 {
		t.Errorf("the layer was fetched %d times", n)
	}
}

// child is this test's binary, pulling.
type child struct {
	cmd *exec.Cmd
	out *bufio.Reader
}

func startPull(t *testing.T, dir, ref string) *child {
	t.Helper()
	return startChild(t, "IMAGE_TEST_PULL="+dir+"="+ref)
}

func startChild(t *testing.T, job string) *child {
	t.Helper()
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(exe)
	cmd.Env = append(os.Environ(), job)
	cmd.Stderr = t.Output()
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = cmd.Process.Kill() })
	return &child{cmd, bufio.NewReader(out)}
}

func (c *child) kill(t *testing.T) {
	t.Helper()
	if err := c.cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = c.cmd.Wait()
	if c.cmd.ProcessState.Exited() {
		t.Fatal("the child had ended before it was killed")
	}
}

func (c *child) image(t *testing.T) (img image.Image) {
	t.Helper()
	if err := json.NewDecoder(c.out).Decode(&img); err != nil {
		t.Fatal(err)
	}
	if err := c.cmd.Wait(); err != nil {
		t.Fatal(err)
	}
	return img
}

// until polls a condition; the folders needn't exist yet.
func until(t *testing.T, what string, cond func() bool, folders ...string) {
	t.Helper()
	deadline := time.Now().Add(60 * time.Second)
	tick := time.NewTicker(time.Millisecond)
	defer tick.Stop()
	for {
		ready := !slices.ContainsFunc(folders, func(f string) bool { _, err := os.Stat(f); return err != nil })
		if ready && cond() {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("waited a minute for %s", what)
		}
		<-tick.C
	}
}
