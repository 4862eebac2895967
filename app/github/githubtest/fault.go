package githubtest

import (
	"context"
	"fmt"
	"net/http"
	"strconv"
	"strings"
	"time"
)

// Fault is something that goes wrong at GitHub, or on the way. It applies to REST, to the token endpoint of the
// sign-in, and to git over HTTP.
type Fault struct {
	// Method and Path choose requests: "" is any; Path is a part of the path without the API's base path.
	Method, Path string
	// Times is how often it happens; 0 is until it is mended.
	Times int

	// Status, Header and Body are answered in place of GitHub's own answer. Status 0 leaves the answer as it is.
	Status int
	Header http.Header
	Body   string
	// After does what is asked before it goes wrong: the answer is lost, the deed is done.
	After bool
	// Delay is how long the answer takes.
	Delay time.Duration
	// Cut ends the connection after so many bytes of the body; -1 before anything is answered.
	Cut int

	left int
}

// Break makes requests fail. The returned function mends it.
func (s *Server) Break(f Fault) (mend func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	f.left = f.Times
	p := &f
	s.faults = append(s.faults, p)
	return func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		for i := range s.faults {
			if s.faults[i] == p {
				s.faults = append(s.faults[:i:i], s.faults[i+1:]...)
				return
			}
		}
	}
}

// Secondary is a secondary rate limit with status 403 or 429. after 0 sends no Retry-After, which GitHub does too.
func Secondary(status int, after time.Duration) Fault {
	h := http.Header{}
	if after > 0 {
		h.Set("Retry-After", strconv.Itoa(int(after.Seconds())))
	}
	return Fault{Status: status, Header: h, Body: `{"message":"You have exceeded a secondary rate limit. Please wait a few minutes before you try again.",` +
		`"documentation_url":"https://docs.github.com/rest/overview/rate-limits-for-the-rest-api#about-secondary-rate-limits"}`}
}

// fault takes the first fault that applies, counted as used.
func (s *Server) fault(method, path string) *Fault {
	s.mu.Lock()
	defer s.mu.Unlock()
	for i, f := range s.faults {
		if f.Method != "" && f.Method != method || !strings.Contains(path, f.Path) {
			continue
		}
		if f.Times > 0 {
			if f.left--; f.left == 0 {
				s.faults = append(s.faults[:i:i], s.faults[i+1:]...)
			}
		}
		used := *f
		return &used
	}
	return nil
}

// instead says whether it goes wrong before anything is done.
func (f *Fault) instead() bool { return f != nil && !f.After && (f.Status != 0 || f.Cut < 0) }

func (f *Fault) answer(a *answer) {
	if f == nil || f.Status == 0 {
		return
	}
	a.status = f.Status
	a.body.Reset()
	a.body.WriteString(f.Body)
	for k, v := range f.Header {
		a.header[k] = v
	}
}

// send gives the answer to the client, in the way f says.
func (f *Fault) send(ctx context.Context, w http.ResponseWriter, r *http.Request, a *answer) {
	if f != nil && f.Delay > 0 {
		wait := time.NewTimer(f.Delay)
		defer wait.Stop()
		select {
		case <-wait.C:
		case <-r.Context().Done():
		case <-ctx.Done():
		}
	}
	if f != nil && f.Cut < 0 {
		panic(http.ErrAbortHandler)
	}
	for k, v := range a.header {
		w.Header()[k] = v
	}
	body := a.body.Bytes()
	if a.status != http.StatusNoContent {
		w.Header().Set("Content-Length", strconv.Itoa(len(body)))
	}
	w.WriteHeader(max(a.status, 100))
	if f != nil && f.Cut > 0 && f.Cut < len(body) {
		_, _ = w.Write(body[:f.Cut])
		_ = http.NewResponseController(w).Flush()
		panic(http.ErrAbortHandler)
	}
	_, _ = w.Write(body)
}

// rate is what one caller may still ask.
type rate struct {
	limit, remaining int
	reset            time.Time
}

// Limit sets how many requests someone may still make, and for how long. who is as in Request.As: "installation 12",
// "user ana", "app 3". An Enterprise Server has no limits unless this sets one (facts/github.md §3).
func (s *Server) Limit(who string, remaining int, reset time.Duration) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.rates[who] = &rate{limit: 5000, remaining: remaining, reset: s.now().Add(reset)}
}

// spend counts the request, and answers it when nothing is left.
func (s *Server) spend(c *call) bool {
	if strings.HasSuffix(c.r.URL.Path, "/rate_limit") {
		return false
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	name := c.who.name()
	rt := s.rates[name]
	if rt == nil && s.opts.GHES {
		return false
	}
	if rt == nil || !rt.reset.After(s.now()) {
		rt = &rate{limit: 5000, remaining: 5000, reset: s.now().Add(time.Hour)}
		s.rates[name] = rt
	}
	if rt.remaining == 0 {
		rt.headers(c.w.header)
		c.fail(http.StatusForbidden, fmt.Sprintf("API rate limit exceeded for %s.", name))
		return true
	}
	rt.remaining--
	rt.headers(c.w.header)
	return false
}

func (rt *rate) headers(h http.Header) {
	h.Set("X-RateLimit-Limit", strconv.Itoa(rt.limit))
	h.Set("X-RateLimit-Remaining", strconv.Itoa(rt.remaining))
	h.Set("X-RateLimit-Used", strconv.Itoa(rt.limit-rt.remaining))
	h.Set("X-RateLimit-Reset", strconv.FormatInt(rt.reset.Unix(), 10))
	h.Set("X-RateLimit-Resource", "core")
}
