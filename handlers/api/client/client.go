// Package client is the CLI's side of the HTTP API.
package client

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"github.com/claude-hub/claude-hub/app/fault"
	"github.com/claude-hub/claude-hub/handlers/api/schema"
)

const (
	// callTime bounds one call: above the longest poll.
	callTime = 45 * time.Second
	// patience is how long a call that can be repeated is tried again while the Hub can't be reached.
	patience = 60 * time.Second
	// answerLimit bounds an answer's body.
	answerLimit = 32 << 20
)

// Error is what the Hub refused, in its own words.
type Error struct {
	Status    int
	Code      fault.Code
	Message   string
	Fields    map[string]string // field → sentence
	Problems  []schema.Problem  // with places in the document
	Conflict  *schema.Conflict  // of code conflict about a draft: what somebody else saved
	RequestID string
	// InstallURL is where the GitHub App is installed, when a Repo can't be entered.
	InstallURL string
}

func (e *Error) Error() string {
	if e.InstallURL != "" {
		return e.Message + "\nInstall the App: " + e.InstallURL
	}
	return e.Message
}

// Is tells whether err is the Hub's refusal with code.
func Is(err error, code fault.Code) bool {
	var e *Error
	return errors.As(err, &e) && e.Code == code
}

// Unreachable is that no Hub answered: nothing listens, the network is away, or what answered is no Hub.
type Unreachable struct {
	Hub string
	Err error
}

func (u *Unreachable) Error() string {
	return fmt.Sprintf("can't reach the Hub at %s: %v", u.Hub, u.Err)
}
func (u *Unreachable) Unwrap() error { return u.Err }

// Client calls one Hub as one person. It may be used from many goroutines.
type Client struct {
	hub   *url.URL
	token string
	http  *http.Client
	// patience is shortened by tests.
	patience time.Duration
	// answered: this Hub is there, so what fails now is worth waiting for. One that never answered is told at once.
	answered atomic.Bool
}

// New makes a Client for the Hub at hub, such as "http://127.0.0.1:7780". transport nil is the default one.
func New(hub, token string, transport http.RoundTripper) (*Client, error) {
	u, err := url.Parse(strings.TrimSuffix(hub, "/"))
	if err != nil || u.Host == "" || (u.Scheme != "http" && u.Scheme != "https") {
		return nil, fmt.Errorf("the Hub's URL must look like https://hub.example.com, not %q", hub)
	}
	if transport == nil {
		transport = http.DefaultTransport
	}
	return &Client{hub: u, token: token, patience: patience, http: &http.Client{
		Transport: transport,
		// A redirect would turn a POST into a GET, and carry the token elsewhere.
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}}, nil
}

// Hub is the URL it was made with.
func (c *Client) Hub() string { return c.hub.String() }

// call is one request. A call that may be repeated is tried again for a while when the Hub can't be reached or is unwell.
type call struct {
	method, path string
	query        url.Values
	body         any
	etag         string
	repeatable   bool
}

type reply struct {
	status int
	header http.Header
	body   []byte
}

func (c *Client) do(ctx context.Context, q call, into any) (reply, error) {
	var body []byte
	if q.body != nil {
		var err error
		if body, err = encode(q.body); err != nil {
			return reply{}, fmt.Errorf("encode the request: %w", err)
		}
	}
	var a reply
	err := c.retry(ctx, q.repeatable, func() (err error) {
		a, err = c.once(ctx, q, body)
		return err
	})
	if err != nil {
		return a, err
	}
	if into != nil && a.status != http.StatusNotModified {
		if err := json.Unmarshal(a.body, into); err != nil {
			return a, &Unreachable{c.Hub(), fmt.Errorf("its answer to %s %s is not the JSON of a Hub", q.method, q.path)}
		}
	}
	return a, nil
}

// encode is v as JSON without the escapes for HTML, which would make a script or a document up to six times as long.
func encode(v any) ([]byte, error) {
	var b bytes.Buffer
	enc := json.NewEncoder(&b)
	enc.SetEscapeHTML(false)
	err := enc.Encode(v)
	return b.Bytes(), err
}

// retry runs try until it succeeds, fails for good, or has failed for patience.
func (c *Client) retry(ctx context.Context, again bool, try func() error) error {
	began, pause := time.Now(), 100*time.Millisecond
	for {
		err := try()
		if err == nil || !again || !passing(err) || !c.answered.Load() || time.Since(began) > c.patience {
			return err
		}
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-time.After(time.Duration(float64(pause) * (0.5 + rand.Float64()))):
		}
		pause = min(2*pause, 2*time.Second)
	}
}

// passing tells whether the same call may work in a moment.
func passing(err error) bool {
	var u *Unreachable
	var e *Error
	return errors.As(err, &u) || (errors.As(err, &e) && e.Status >= 500 && e.Code == fault.Internal)
}

func (c *Client) once(ctx context.Context, q call, body []byte) (reply, error) {
	within, cancel := context.WithTimeout(ctx, callTime)
	defer cancel()
	u := *c.hub
	u.Path, u.RawPath = u.Path+"/api/v1"+q.path, ""
	u.RawQuery = q.query.Encode()
	req, err := http.NewRequestWithContext(within, q.method, u.String(), bytes.NewReader(body))
	if err != nil {
		return reply{}, fmt.Errorf("make the request: %w", err)
	}
	req.Header.Set("Authorization", "Bearer "+c.token)
	req.Header.Set("Accept", "application/json")
	if body != nil {
		req.Header.Set("Content-Type", "application/json")
	}
	if q.etag != "" {
		req.Header.Set("If-None-Match", q.etag)
	}
	res, err := c.http.Do(req)
	if err != nil {
		return reply{}, c.unreachable(ctx, err)
	}
	defer res.Body.Close()
	b, err := io.ReadAll(io.LimitReader(res.Body, answerLimit))
	if err != nil {
		return reply{}, c.unreachable(ctx, err)
	}
	a := reply{res.StatusCode, res.Header, b}
	if res.StatusCode >= 300 && res.StatusCode != http.StatusNotModified {
		err = c.refusal(a)
	}
	if e := (*Error)(nil); err == nil || errors.As(err, &e) { // what some other server says is no answer of a Hub
		c.answered.Store(true)
	}
	return a, err
}

func (c *Client) unreachable(ctx context.Context, err error) error {
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	var u *url.Error
	if errors.As(err, &u) {
		err = u.Err
	}
	return &Unreachable{c.Hub(), err}
}

// refusal reads problem+json; anything else did not come from a Hub.
func (c *Client) refusal(a reply) error {
	var p schema.Error
	if !strings.HasPrefix(a.header.Get("Content-Type"), "application/problem+json") || json.Unmarshal(a.body, &p) != nil || p.Code == "" {
		return &Unreachable{c.Hub(), fmt.Errorf("something there answers %d %s, and not as a Hub does", a.status, http.StatusText(a.status))}
	}
	return &Error{Status: p.Status, Code: p.Code, Message: p.Detail, Fields: p.Fields, Problems: p.Problems, Conflict: p.Conflict, RequestID: p.RequestID, InstallURL: p.InstallURL}
}

func get(path string) call { return call{method: http.MethodGet, path: path, repeatable: true} }
func post(path string, body any) call {
	if body == nil {
		body = struct{}{}
	}
	return call{method: http.MethodPost, path: path, body: body}
}

// Wait says for how long to wait until a resource is another than the one Seen.
type Wait struct {
	Seen string // the ETag that came with the last read; empty: answer at once
	For  time.Duration
}

func (w Wait) on(q call) call {
	q.etag = w.Seen
	if w.For > 0 {
		q.query = url.Values{"wait": {w.For.String()}}
	}
	return q
}

func seg(parts ...string) string {
	var b strings.Builder
	for _, p := range parts {
		b.WriteString("/")
		b.WriteString(p)
	}
	return b.String()
}

func repoPath(repo int64, parts ...string) string {
	return seg(append([]string{"repos", strconv.FormatInt(repo, 10)}, parts...)...)
}
