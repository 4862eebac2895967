package github

import (
	"errors"
	"io"
	"net"
	"net/http"
	"net/url"
	"time"
)

// maxAnswer is more than any answer of GitHub that the Hub reads: a list of 100 large pull requests is below 10 MiB.
const maxAnswer = 32 << 20

// fence is below every client: it lets requests go only to GitHub's own hosts, since the layers above add credentials to
// whatever they are redirected to; it turns a redirected write into a failure, since net/http would make a GET of it and
// call that success (facts/github.md §1, 16); and it bounds answers. Nothing is cached (10).
type fence struct {
	base  http.RoundTripper
	hosts map[string]bool // scheme://host
	// observe is told of every request, also of those that the layers above make by themselves.
	observe func(Observed)
}

func newFence(base http.RoundTripper, e Endpoints) (*fence, error) {
	if base == nil {
		base = &http.Transport{
			Proxy:                 http.ProxyFromEnvironment,
			DialContext:           (&net.Dialer{Timeout: 5 * time.Second, KeepAlive: 30 * time.Second}).DialContext,
			ForceAttemptHTTP2:     true,
			MaxIdleConnsPerHost:   16,
			IdleConnTimeout:       90 * time.Second,
			TLSHandshakeTimeout:   5 * time.Second,
			ResponseHeaderTimeout: 20 * time.Second,
		}
	}
	f := &fence{base: base, hosts: map[string]bool{}}
	for _, s := range []string{e.Web, e.API} {
		u, err := url.Parse(s)
		if err != nil || u.Host == "" || u.Scheme != "https" && u.Scheme != "http" || u.User != nil {
			return nil, fail(Invalid, "%q is no address of GitHub: write it as https://host.", s)
		}
		f.hosts[u.Scheme+"://"+u.Host] = true
	}
	return f, nil
}

func (f *fence) RoundTrip(r *http.Request) (*http.Response, error) {
	if !f.hosts[r.URL.Scheme+"://"+r.URL.Host] {
		if r.Body != nil {
			_ = r.Body.Close()
		}
		return nil, fail(Moved, "GitHub redirected this call to another host. It was not followed.")
	}
	begun := time.Now()
	resp, err := f.base.RoundTrip(r)
	f.watch(r, resp, begun)
	if err != nil {
		return nil, err
	}
	if resp.StatusCode >= 300 && resp.StatusCode < 400 && r.Method != http.MethodGet && r.Method != http.MethodHead {
		_ = resp.Body.Close()
		return nil, fail(Moved, "GitHub redirected this call to another place. It was not done.")
	}
	resp.Body = &bounded{ReadCloser: resp.Body, left: maxAnswer}
	return resp, nil
}

// bounded ends an answer that is too big, and closes it once it is read: go-github puts another body in place of that of a
// refusal, and closes only that one.
type bounded struct {
	io.ReadCloser
	left int64
}

var errTooBig = errors.New("the answer is too big")

func (b *bounded) Read(p []byte) (int, error) {
	if int64(len(p)) > b.left+1 {
		p = p[:b.left+1]
	}
	n, err := b.ReadCloser.Read(p)
	if b.left -= int64(n); b.left < 0 {
		b.left, n, err = 0, 0, errTooBig
	}
	if err != nil {
		_ = b.Close()
	}
	return n, err
}

// bearer adds a token to each request.
type bearer struct {
	next  http.RoundTripper
	token Secret
}

func (b bearer) RoundTrip(r *http.Request) (*http.Response, error) {
	r = r.Clone(r.Context())
	r.Header.Set("Authorization", "Bearer "+b.token.Reveal())
	return b.next.RoundTrip(r)
}
