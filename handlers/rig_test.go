package handlers_test

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"io"
	"net/http"
	"net/http/cookiejar"
	"net/http/httptest"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/rs/zerolog"

	"github.com/claude-hub/claude-hub/app/apptest"
	"github.com/claude-hub/claude-hub/envspec"
	"github.com/claude-hub/claude-hub/handlers"
	"github.com/claude-hub/claude-hub/handlers/webhook"
	"github.com/claude-hub/claude-hub/runner/wire"
	"github.com/claude-hub/claude-hub/store"
)

// site is a whole Hub behind HTTP.
type site struct {
	*apptest.Hub
	hook *webhook.Service
	t    *testing.T
	url  string
	stop chan struct{}
	// ports is the domain that ports of Sandboxes have their origins below.
	ports string
}

func newSite(t *testing.T, db *store.DB, o apptest.Options) *site {
	t.Helper()
	return siteOf(t, apptest.New(t, db, o))
}

// siteOf is a Hub of the test's own behind HTTP.
func siteOf(t *testing.T, hub *apptest.Hub) *site {
	t.Helper()
	return siteOn(t, httptest.NewUnstartedServer(nil), hub)
}

// siteOn is siteOf where the Hub has to know its address before.
func siteOn(t *testing.T, server *httptest.Server, hub *apptest.Hub) *site {
	t.Helper()
	return siteWith(t, server, &site{Hub: hub})
}

// siteWith is siteOn for a site with settings of its own.
func siteWith(t *testing.T, server *httptest.Server, s *site) *site {
	t.Helper()
	s.t, s.stop = t, make(chan struct{})
	hub := s.Hub
	var err error
	if s.hook, err = webhook.New(hub.DB, webhook.Options{
		GitHub: hub.App, Access: hub.Gate, Setup: hub.Setup, Builds: hub.Environments, Proposals: hub.Proposals, Log: zerolog.New(zerolog.NewTestWriter(t)),
	}); err != nil {
		t.Fatal(err)
	}
	s.url = "http://" + server.Listener.Addr().String()
	h, err := handlers.New(s.deps())
	if err != nil {
		t.Fatal(err)
	}
	server.Config = handlers.NewServer(h, zerolog.New(zerolog.NewTestWriter(t)))
	server.Start()
	t.Cleanup(server.Close)
	t.Cleanup(func() { close(s.stop) })
	return s
}

func (s *site) deps() handlers.Deps {
	return handlers.Deps{
		DB: s.DB, Gate: s.Gate, Environments: s.Environments, Sessions: s.Sessions, Proposals: s.Proposals, Setup: s.Setup, Fleet: s.Fleet, Vault: s.Vault, Webhook: s.hook, PublicURL: s.url, PortsDomain: s.ports, Version: "test",
		Stopping: s.stop, Log: zerolog.New(zerolog.NewTestWriter(s.t)).Level(zerolog.WarnLevel),
	}
}

// token is one for the API.
func (s *site) token(login string) string {
	s.t.Helper()
	_, token, err := s.Gate.IssueToken(s.t.Context(), login, "test", time.Hour)
	if err != nil {
		s.t.Fatal(err)
	}
	return token
}

// browser is a person's, which follows no redirect by itself.
type browser struct {
	s    *site
	t    *testing.T
	http *http.Client
}

// page is an answer.
type page struct {
	status int
	header http.Header
	body   string
}

func (s *site) browser() *browser {
	jar, err := cookiejar.New(nil)
	if err != nil {
		s.t.Fatal(err)
	}
	return &browser{s, s.t, &http.Client{
		Jar: jar, Timeout: time.Minute, CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}}
}

// as signs somebody in through the form.
func (s *site) as(login string) *browser {
	b := s.browser()
	p := b.post("/sign-in", url.Values{"login": {login}, "return_to": {"/"}})
	if p.status != http.StatusSeeOther || p.header.Get("Location") != "/" {
		s.t.Fatalf("sign in: %d to %q\n%s", p.status, p.header.Get("Location"), p.body)
	}
	return b
}

func (b *browser) do(req *http.Request) page {
	b.t.Helper()
	res, err := b.http.Do(req)
	if err != nil {
		b.t.Fatal(err)
	}
	defer res.Body.Close()
	body, err := io.ReadAll(res.Body)
	if err != nil {
		b.t.Fatal(err)
	}
	return page{res.StatusCode, res.Header, string(body)}
}

func (b *browser) request(method, path string, body io.Reader) *http.Request {
	b.t.Helper()
	req, err := http.NewRequestWithContext(b.t.Context(), method, b.s.url+path, body)
	if err != nil {
		b.t.Fatal(err)
	}
	return req
}

func (b *browser) get(path string) page {
	b.t.Helper()
	return b.do(b.request(http.MethodGet, path, nil))
}

// see is get of a page that has to be there and say something.
func (b *browser) see(path string, says ...string) page {
	b.t.Helper()
	p := b.get(path)
	b.want(p, http.StatusOK, says...)
	return p
}

func (b *browser) want(p page, status int, says ...string) {
	b.t.Helper()
	if p.status != status {
		b.t.Fatalf("want status %d, got %d\n%s", status, p.status, p.body)
	}
	for _, s := range says {
		if !strings.Contains(p.body, s) {
			b.t.Fatalf("want a page that says %q:\n%s", s, p.body)
		}
	}
}

func (b *browser) post(path string, form url.Values) page {
	b.t.Helper()
	req := b.request(http.MethodPost, path, strings.NewReader(form.Encode()))
	req.Header.Set("Content-Type", "application/x-www-form-urlencoded")
	return b.do(req)
}

// posted is a post that has to succeed; it answers where it leads.
func (b *browser) posted(path string, form url.Values) string {
	b.t.Helper()
	p := b.post(path, form)
	if p.status != http.StatusSeeOther {
		b.t.Fatalf("post %s: %d\n%s", path, p.status, p.body)
	}
	return p.header.Get("Location")
}

// api calls the JSON API.
func (s *site) api(method, path, token string, body any, into any) page {
	s.t.Helper()
	var b []byte
	if body != nil {
		var err error
		if b, err = json.Marshal(body); err != nil {
			s.t.Fatal(err)
		}
	}
	req, err := http.NewRequestWithContext(s.t.Context(), method, s.url+"/api/v1"+path, bytes.NewReader(b))
	if err != nil {
		s.t.Fatal(err)
	}
	if token != "" {
		req.Header.Set("Authorization", "Bearer "+token)
	}
	p := s.browser().do(req)
	if into != nil {
		if err := json.Unmarshal([]byte(p.body), into); err != nil {
			s.t.Fatalf("%s %s answered %d: %v\n%s", method, path, p.status, err, p.body)
		}
	}
	return p
}

func spec() envspec.Spec {
	s := envspec.Default()
	s.Bootstrap = "echo one"
	return s
}

// logs appends to the log of what a Runner holds.
func (s *site) logs(r *apptest.Runner, item *wire.Item, offset int64, text string, end bool) {
	s.t.Helper()
	_, err := s.Fleet.AppendLog(s.t.Context(), r.ID, &wire.AppendLogRequest{Id: item.GetId(), Fence: item.GetFence(), Offset: offset, Data: []byte(text), End: end})
	if err != nil {
		s.t.Fatal(err)
	}
}

// event is one of a stream.
type event struct{ name, id, data string }

// events reads a stream until stop says so, or fails after a while.
func (b *browser) events(path, last string, stop func(event) bool) []event {
	b.t.Helper()
	ctx, cancel := context.WithTimeout(b.t.Context(), 30*time.Second)
	defer cancel()
	req := b.request(http.MethodGet, path, nil).WithContext(ctx)
	req.Header.Set("Accept", "text/event-stream")
	if last != "" {
		req.Header.Set("Last-Event-ID", last)
	}
	res, err := b.http.Do(req)
	if err != nil {
		b.t.Fatal(err)
	}
	defer res.Body.Close()
	if res.StatusCode != http.StatusOK || res.Header.Get("Content-Type") != "text/event-stream" || res.Header.Get("X-Accel-Buffering") != "no" {
		b.t.Fatalf("a stream that proxies let through: %d %v", res.StatusCode, res.Header)
	}
	var all []event
	var e event
	in := bufio.NewScanner(res.Body)
	in.Buffer(nil, 4<<20)
	for in.Scan() {
		field, value, _ := strings.Cut(in.Text(), ": ")
		switch field {
		case "event":
			e.name = value
		case "id":
			e.id = value
		case "data":
			e.data = value
		case "":
			if in.Text() == "" && e != (event{}) {
				all = append(all, e)
				if stop(e) {
					return all
				}
				e = event{}
			}
		}
	}
	b.t.Fatalf("the stream ended early (%v) after %v", in.Err(), all)
	return nil
}
