package image

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"path"
	"strings"
	"time"

	"github.com/google/go-containerregistry/pkg/authn"
	"github.com/google/go-containerregistry/pkg/name"
	"github.com/google/go-containerregistry/pkg/v1/remote/transport"
)

// manifestLimit bounds manifests and configs; registries refuse manifests over 4 MiB.
const manifestLimit = 16 << 20

// endpoint is one place to ask for one image: its registry, or a mirror of it.
type endpoint struct {
	s          *Store
	ref        string // what the user asked for
	identifier string // tag or digest
	repo       string // repository at this host
	reg        name.Registry
	client     *http.Client
	anonymous  bool
	retryAfter string
	tries      int
}

func (e *endpoint) host() string {
	if h := e.reg.RegistryStr(); h != name.DefaultRegistry {
		return h
	}
	return "docker.io"
}

// endpoints lists the mirrors of a reference's registry, then the registry itself.
func (s *Store) endpoints(ref string, r name.Reference) ([]*endpoint, error) {
	repo := r.Context()
	var all []*endpoint
	add := func(host, prefix string, tries int) error {
		reg, err := s.registry(host)
		if err != nil {
			return fail(BadReference, ref, err, "%q is not a valid registry host", host)
		}
		all = append(all, &endpoint{s: s, ref: ref, identifier: r.Identifier(), reg: reg, tries: tries,
			repo: path.Join(prefix, repo.RepositoryStr())})
		return nil
	}
	for of, mirrors := range s.o.Mirrors {
		if !sameRegistry(of, repo.RegistryStr()) {
			continue
		}
		for _, m := range mirrors {
			m = strings.TrimSuffix(m, "/")
			for _, scheme := range []string{"https://", "http://"} {
				m = strings.TrimPrefix(m, scheme)
			}
			host, prefix, _ := strings.Cut(m, "/")
			// One that is down is passed over at once: there is another to ask.
			if err := add(host, prefix, 1); err != nil {
				return nil, err
			}
		}
	}
	return all, add(repo.RegistryStr(), "", s.o.Tries)
}

func sameRegistry(a, b string) bool {
	full := func(h string) string {
		if h == "docker.io" || h == "registry-1.docker.io" {
			return name.DefaultRegistry
		}
		return strings.ToLower(h)
	}
	return full(a) == full(b)
}

func (s *Store) registry(host string) (name.Registry, error) {
	if s.plainAllowed(host) {
		return name.NewRegistry(host, name.Insecure)
	}
	return name.NewRegistry(host)
}

func (s *Store) plainAllowed(host string) bool {
	if s.plain[strings.ToLower(host)] {
		return true
	}
	h, _, err := net.SplitHostPort(host)
	if err != nil {
		h = host
	}
	ip := net.ParseIP(strings.Trim(h, "[]"))
	return h == "localhost" || ip != nil && ip.IsLoopback()
}

// guarded refuses plain HTTP where it isn't allowed: go-containerregistry falls back to it for private addresses.
type guarded struct{ s *Store }

func (g guarded) RoundTrip(r *http.Request) (*http.Response, error) {
	if r.URL.Scheme != "https" && !g.s.plainAllowed(r.URL.Host) {
		return nil, errPlainHTTP
	}
	return g.s.o.Transport.RoundTrip(r)
}

// connect asks the registry how it wants to be asked, and logs in.
func (e *endpoint) connect(ctx context.Context) error {
	if e.client != nil {
		return nil
	}
	repo := e.reg.Repo(e.repo)
	auth, err := authn.Resolve(ctx, e.s.o.Keychain, repo)
	if err != nil {
		return fail(NoAccess, e.ref, err, "the credentials for registry %s can't be read from this user's Docker config: %v", e.host(), err)
	}
	e.anonymous = auth == authn.Anonymous
	t, err := transport.NewWithContext(ctx, e.reg, auth, guarded{e.s}, []string{repo.Scope(transport.PullScope)})
	if err != nil {
		return err
	}
	e.client = &http.Client{Transport: t}
	return nil
}

// get makes one request; the answer has one of the wanted statuses.
func (e *endpoint) get(ctx context.Context, kind, id string, header http.Header, want ...int) (*http.Response, error) {
	if err := e.connect(ctx); err != nil {
		return nil, err
	}
	url := fmt.Sprintf("%s://%s/v2/%s/%s/%s", e.reg.Scheme(), e.reg.RegistryStr(), e.repo, kind, id)
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return nil, err
	}
	for k, v := range header {
		req.Header[k] = v
	}
	resp, err := e.client.Do(req)
	if err != nil {
		return nil, err
	}
	if resp.StatusCode == http.StatusTooManyRequests {
		e.retryAfter = resp.Header.Get("Retry-After")
	}
	if err := transport.CheckError(resp, want...); err != nil {
		_ = resp.Body.Close()
		return nil, err
	}
	return resp, nil
}

// retry runs f again after failures that may pass.
func (e *endpoint) retry(ctx context.Context, f func() error) error {
	wait := e.s.o.Wait
	for try := 1; ; try++ {
		err := f()
		if err == nil || ctx.Err() != nil || try >= e.tries || !mayPass(err) {
			return err
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(wait):
		}
		wait *= 2
	}
}

func mayPass(err error) bool {
	var own *Error
	var status *transport.Error
	var dns *net.DNSError
	switch {
	case errors.As(err, &own):
		return false
	case errors.As(err, &status):
		return status.StatusCode >= 500 || status.StatusCode == http.StatusRequestTimeout
	case errors.As(err, &dns):
		return dns.IsTemporary
	}
	var netErr net.Error
	return errors.Is(err, errStalled) || errors.Is(err, io.ErrUnexpectedEOF) || errors.Is(err, io.EOF) || isReset(err) ||
		errors.As(err, &netErr) && netErr.Timeout()
}

// fetch returns the bytes of a manifest or a small blob, verified when id is a digest.
func (e *endpoint) fetch(ctx context.Context, kind, id, accept string) (body []byte, mediaType string, err error) {
	err = e.retry(ctx, func() error {
		ctx, cancel := context.WithTimeout(ctx, time.Minute)
		defer cancel()
		resp, err := e.get(ctx, kind, id, http.Header{"Accept": {accept}}, http.StatusOK)
		if err != nil {
			return err
		}
		defer resp.Body.Close()
		mediaType = resp.Header.Get("Content-Type")
		body, err = io.ReadAll(io.LimitReader(resp.Body, manifestLimit+1))
		return err
	})
	if err != nil {
		return nil, "", err
	}
	if len(body) > manifestLimit {
		return nil, "", fail(TooLarge, e.ref, nil, "the manifest or configuration of image %s is larger than 16 MiB", e.ref)
	}
	if strings.HasPrefix(id, "sha256:") && digestOf(body) != id {
		return nil, "", fail(Corrupt, e.ref, nil, "registry %s sent a manifest or configuration for image %s that doesn't have its digest %s",
			e.host(), e.ref, id)
	}
	return bytes.Clone(body), mediaType, nil
}

func digestOf(b []byte) string {
	sum := sha256.Sum256(b)
	return "sha256:" + hex.EncodeToString(sum[:])
}
