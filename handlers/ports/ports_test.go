package ports

import (
	"context"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"slices"
	"strings"
	"testing"
	"time"
)

func parsed(t *testing.T, address string) *url.URL {
	t.Helper()
	u, err := url.Parse(address)
	if err != nil {
		t.Fatal(err)
	}
	return u
}

func TestADomainThatCouldReachTheHubsCookiesIsRefused(t *testing.T) {
	t.Parallel()
	for _, c := range []struct{ name, hub, refused string }{
		{"", "http://hub.example", ""},
		{"ports.example", "https://hub.example", ""},
		{"ports.hub.example", "https://hub.example:8443", ""},
		{"ports.localhost", "http://127.0.0.1:7780", ""},
		{"ports.localhost", "http://localhost:7780", ""},
		{"ports.example", "http://hub.example", "needs a Hub with https"},
		{"hub.example", "https://hub.example", "has the Hub's own address"},
		{"example", "https://Hub.Example", "has the Hub's own address"},
		{"https://ports.example", "https://hub.example", "is a domain in lower case"},
		{"ports.example:8443", "https://hub.example", "is a domain in lower case"},
		{"*.ports.example", "https://hub.example", "is a domain in lower case"},
		{"10.0.0.1", "https://hub.example", "is a domain in lower case"},
	} {
		_, err := DomainOf(c.name, parsed(t, c.hub))
		if (err == nil) != (c.refused == "") || err != nil && !strings.Contains(err.Error(), c.refused) {
			t.Errorf("%q for the Hub %s: %v, want %q", c.name, c.hub, err, c.refused)
		}
	}
}

func TestAHostIsAPlaceOrNobodys(t *testing.T) {
	t.Parallel()
	d, err := DomainOf("ports.example", parsed(t, "https://hub.example:8443"))
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		host      string
		has, ok   bool
		session   string
		port      uint16
		canonical string
	}{
		{"0193-ab-8080.ports.example:8443", true, true, "0193-ab", 8080, "https://0193-ab-8080.ports.example:8443"},
		{"0193-AB-80.Ports.Example", true, true, "0193-ab", 80, "https://0193-ab-80.ports.example:8443"},
		{"ports.example", true, false, "", 0, ""}, {"x.ports.example", true, false, "", 0, ""}, {"a.b-80.ports.example", true, false, "", 0, ""},
		{"a-080.ports.example", true, false, "", 0, ""}, {"a-0.ports.example", true, false, "", 0, ""}, {"a-65536.ports.example", true, false, "", 0, ""},
		{"hub.example:8443", false, false, "", 0, ""}, {"evilports.example", false, false, "", 0, ""}, {"a-80.ports.example.evil", false, false, "", 0, ""},
	} {
		if d.Has(c.host) != c.has {
			t.Errorf("%s is in the domain: %v", c.host, !c.has)
		}
		place, ok := d.Place(c.host)
		if !c.has {
			continue
		}
		if ok != c.ok || ok && (place != Place{c.session, c.port} || d.Origin(place) != c.canonical) {
			t.Errorf("%s is %+v, %v", c.host, place, ok)
		}
	}
	if (Domain{}).Has("") {
		t.Error("no domain has a host")
	}
}

func TestOverHTTPSCookiesAreBoundToTheirHost(t *testing.T) {
	t.Parallel()
	hub := parsed(t, "https://hub.example")
	d, err := DomainOf("ports.example", hub)
	if err != nil {
		t.Fatal(err)
	}
	r := httptest.NewRequest(http.MethodGet, "http://a-80.ports.example/x", nil)
	r.Header.Set("Sec-Fetch-Mode", "navigate")
	w := httptest.NewRecorder()
	New(Deps{Domain: d, Hub: hub}).ServeHTTP(w, r)
	cookies := w.Result().Cookies()
	if len(cookies) != 1 || cookies[0].Name != "__Host-claude-hub-port-ask" || !cookies[0].Secure || !cookies[0].HttpOnly || cookies[0].SameSite != http.SameSiteLaxMode || cookies[0].Domain != "" || cookies[0].Path != "/" {
		t.Errorf("the cookies are %q", w.Header()["Set-Cookie"])
	}
	if to := w.Header().Get("Location"); !strings.HasPrefix(to, "https://hub.example/ports/admit?") {
		t.Errorf("the browser is sent to %q", to)
	}
	// What no person opens is not sent anywhere.
	for _, mode := range []string{"cors", "no-cors", "websocket"} {
		r.Header.Set("Sec-Fetch-Mode", mode)
		w := httptest.NewRecorder()
		New(Deps{Domain: d, Hub: hub}).ServeHTTP(w, r)
		if w.Code != http.StatusUnauthorized || w.Header().Get("Location") != "" {
			t.Errorf("%s: %d to %q", mode, w.Code, w.Header().Get("Location"))
		}
	}
}

func TestCookiesOfHubAndSandboxStayApart(t *testing.T) {
	t.Parallel()
	up := http.Header{"Cookie": {"a=1; __Host-claude-hub-port=secret; b=2", "claude-hub=secret;c=3;__host-Claude-Hub=x"}}
	withoutOurs(up)
	if got := up["Cookie"]; len(got) != 1 || got[0] != "a=1; b=2; c=3" {
		t.Errorf("the server gets %q", got)
	}
	only := http.Header{"Cookie": {"claude-hub-port=secret"}}
	withoutOurs(only)
	if _, any := only["Cookie"]; any {
		t.Errorf("the server gets %q", only["Cookie"])
	}
	down := http.Header{"Set-Cookie": {
		"a=1; domain=example; Path=/", "b=2;DOMAIN =.ports.example ; Secure", " claude-hub-port=x", "__Host-claude-hub-port-ask=x; Secure; Path=/", "=__Host-claude-hub-port=x", "c=domain; Max-Age=1",
	}, "Clear-Site-Data": {`"*"`}}
	contain(down)
	if got := down["Set-Cookie"]; !slices.Equal(got, []string{"a=1; Path=/", "b=2; Secure", "c=domain; Max-Age=1"}) || down.Get("Clear-Site-Data") != "" {
		t.Errorf("the browser gets %q, %q", got, down["Clear-Site-Data"])
	}
}

// silentPort has a server at its other end that takes whatever comes and never answers.
func silentPort(t *testing.T) *Ports {
	t.Helper()
	ended := make(chan struct{})
	server := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body) // it may break off
		<-ended
	}))
	t.Cleanup(server.Close)
	t.Cleanup(func() { close(ended) })
	p := New(Deps{Hub: parsed(t, "http://hub.example")})
	p.transport.DialContext = func(ctx context.Context, _, _ string) (net.Conn, error) {
		return new(net.Dialer).DialContext(ctx, "tcp", server.Listener.Addr().String())
	}
	return p
}

func TestAServerThatNeverAnswersIsGivenUp(t *testing.T) {
	t.Parallel()
	p := silentPort(t)
	if p.transport.ResponseHeaderTimeout != 5*time.Minute {
		t.Errorf("it has %s", p.transport.ResponseHeaderTimeout)
	}
	p.transport.ResponseHeaderTimeout = 50 * time.Millisecond
	w := httptest.NewRecorder()
	p.pass(w, httptest.NewRequestWithContext(t.Context(), http.MethodGet, "http://s-8000.ports.example/", nil), Place{Session: "s", Port: 8000})
	if w.Code != http.StatusGatewayTimeout || !strings.Contains(w.Body.String(), "The server at port 8000 of this Session took longer than 5 minutes to begin its answer.") {
		t.Errorf("got %d %s", w.Code, w.Body)
	}
}

func TestABodyThatTurnsOutTooLargeIsRefused(t *testing.T) {
	t.Parallel()
	w := httptest.NewRecorder()
	r := httptest.NewRequestWithContext(t.Context(), http.MethodPost, "http://s-8000.ports.example/", nil)
	r.Body, r.ContentLength = http.MaxBytesReader(w, io.NopCloser(strings.NewReader(strings.Repeat("x", 100))), 99), -1
	silentPort(t).pass(w, r, Place{Session: "s", Port: 8000})
	if w.Code != http.StatusRequestEntityTooLarge || !strings.Contains(w.Body.String(), tooLarge) {
		t.Errorf("got %d %s", w.Code, w.Body)
	}
}
