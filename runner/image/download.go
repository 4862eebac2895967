package image

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"hash"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/google/go-containerregistry/pkg/v1/remote/transport"
)

var errStalled = errors.New("the registry stopped sending")

func isReset(err error) bool {
	return errors.Is(err, syscall.ECONNRESET) || errors.Is(err, syscall.EPIPE)
}

// partKept is how long an unfinished download waits to be gone on with.
const partKept = 7 * 24 * time.Hour

// download fetches a blob into the store and returns the open file, verified, at its beginning. What an earlier try,
// or an earlier process, has fetched is kept and gone on with. The caller holds the blob's lock and removes the file.
func (e *endpoint) download(ctx context.Context, digest string, size int64, got *atomic.Int64) (*os.File, error) {
	f, err := os.OpenFile(e.s.blobPath(digest), os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return nil, e.s.local(e.ref, err, "downloading image "+e.ref)
	}
	before := got.Load()
	d := &partial{f: f, sum: sha256.New(), got: got}
	err = d.resume(size)
	if err == nil {
		err = e.retryWhileProgress(ctx, d, func() error { return e.rest(ctx, d, digest, size) })
	}
	if err == nil && (d.at != size || "sha256:"+hex.EncodeToString(d.sum.Sum(nil)) != digest) {
		// Bytes that are wrong once are never gone on with.
		err = fail(Corrupt, e.ref, nil, "a layer of image %s came damaged from registry %s: its content doesn't have the digest %s",
			e.ref, e.host(), digest)
	}
	if CodeOf(err) == Corrupt {
		_ = os.Remove(f.Name())
	}
	if err == nil {
		_, err = f.Seek(0, io.SeekStart)
	}
	if err != nil {
		got.Store(before)
		_ = f.Close()
		return nil, err
	}
	return f, nil
}

func (s *Store) blobPath(digest string) string {
	return filepath.Join(s.dir, "blobs", strings.TrimPrefix(digest, "sha256:"))
}

func blobLock(digest string) string { return "blob-" + strings.TrimPrefix(digest, "sha256:") }

// partial is a download so far.
type partial struct {
	f   *os.File
	sum hash.Hash
	at  int64
	got *atomic.Int64
}

func (d *partial) resume(size int64) error {
	n, err := io.Copy(d.sum, io.LimitReader(d.f, size+1))
	if err != nil {
		return err
	}
	if n > size {
		return d.restart()
	}
	d.at = n
	d.got.Add(n)
	return nil
}

func (d *partial) restart() error {
	d.got.Add(-d.at)
	d.sum.Reset()
	d.at = 0
	if err := d.f.Truncate(0); err != nil {
		return err
	}
	_, err := d.f.Seek(0, io.SeekStart)
	return err
}

func (d *partial) Write(b []byte) (int, error) {
	n, err := d.f.Write(b)
	d.sum.Write(b[:n])
	d.at += int64(n)
	d.got.Add(int64(n))
	return n, err
}

// retryWhileProgress is retry, but a try that brought bytes doesn't count: slow lines that break often still finish.
func (e *endpoint) retryWhileProgress(ctx context.Context, d *partial, f func() error) error {
	for {
		before := d.at
		err := e.retry(ctx, f)
		if err == nil || ctx.Err() != nil || !mayPass(err) || d.at <= before {
			return err
		}
	}
}

// rest asks for what is missing.
func (e *endpoint) rest(ctx context.Context, d *partial, digest string, size int64) error {
	if d.at >= size {
		return nil
	}
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	stall := time.AfterFunc(e.s.o.Stall, func() { cancel(errStalled) })
	defer stall.Stop()
	stalled := func(err error) error {
		if errors.Is(context.Cause(ctx), errStalled) {
			return errStalled
		}
		return err
	}

	header := http.Header{}
	want := []int{http.StatusOK}
	if d.at > 0 {
		header.Set("Range", fmt.Sprintf("bytes=%d-%d", d.at, size-1))
		want = append(want, http.StatusPartialContent)
	}
	resp, err := e.get(ctx, "blobs", digest, header, want...)
	var status *transport.Error
	if errors.As(err, &status) && status.StatusCode == http.StatusRequestedRangeNotSatisfiable {
		if err := d.restart(); err != nil {
			return err
		}
		resp, err = e.get(ctx, "blobs", digest, nil, http.StatusOK)
	}
	if err != nil {
		return stalled(err)
	}
	defer resp.Body.Close()
	if d.at > 0 && (resp.StatusCode != http.StatusPartialContent ||
		!strings.HasPrefix(resp.Header.Get("Content-Range"), fmt.Sprintf("bytes %d-", d.at))) {
		if resp.StatusCode == http.StatusPartialContent {
			return fail(Corrupt, e.ref, nil, "registry %s answered another part of a layer of image %s than it was asked for", e.host(), e.ref)
		}
		if err := d.restart(); err != nil {
			return err
		}
	}
	body := io.LimitReader(resp.Body, size-d.at+1)
	_, err = io.Copy(d, readerFunc(func(b []byte) (int, error) {
		n, err := body.Read(b)
		if n > 0 {
			stall.Reset(e.s.o.Stall)
		}
		return n, err
	}))
	if err == nil && d.at < size {
		err = io.ErrUnexpectedEOF
	}
	return stalled(err)
}

type readerFunc func([]byte) (int, error)

func (f readerFunc) Read(b []byte) (int, error) { return f(b) }
