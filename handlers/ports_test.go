package handlers_test

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/coder/websocket"

	"github.com/claude-hub/claude-hub/app/access"
	"github.com/claude-hub/claude-hub/app/apptest"
	"github.com/claude-hub/claude-hub/app/fleet"
	"github.com/claude-hub/claude-hub/app/github"
	"github.com/claude-hub/claude-hub/app/github/githubtest"
	"github.com/claude-hub/claude-hub/app/github/githubtest/checked"
	"github.com/claude-hub/claude-hub/app/session"
	"github.com/claude-hub/claude-hub/runner/wire"
	"github.com/claude-hub/claude-hub/store/storetest"
)

const portsDomain = "ports.localhost"

// portSite is a Session that runs, whose Runner connects its ports to a web server of the test's.
type portSite struct {
	*site
	t       *testing.T
	g       access.Grant
	r       *apptest.Runner
	item    *wire.Item
	session string
	server  *httptest.Server // what listens in the Sandbox
	port    int
}

func newPortSite(t *testing.T, server http.Handler) *portSite {
	t.Helper()
	s := siteWith(t, httptest.NewUnstartedServer(nil), &site{Hub: apptest.New(t, storetest.New(t), apptest.Options{}), ports: portsDomain})
	return portsOf(t, s, s.Grant("ana"), server)
}

func portsOf(t *testing.T, s *site, g access.Grant, server http.Handler) *portSite {
	t.Helper()
	p := &portSite{site: s, t: t, g: g, r: s.Runner("r1"), server: httptest.NewServer(server)}
	t.Cleanup(p.server.Close)
	_, port, _ := net.SplitHostPort(p.server.Listener.Addr().String())
	p.port, _ = strconv.Atoi(port)
	s.Applied(g, p.r, spec())
	sn, err := s.Sessions.Start(t.Context(), g, session.StartInput{Runner: p.r.ID})
	if err != nil {
		t.Fatal(err)
	}
	p.session, p.item = sn.ID, p.r.Item()
	p.r.MustReport(p.item, wire.StateRunning, wire.SessionDetail{Version: 1, Workspace: true})
	go p.serve(t.Context())
	return p
}

// serve is the Runner: it connects each channel to the port that it names, on this machine.
func (p *portSite) serve(ctx context.Context) {
	served, revision := map[string]bool{}, ""
	for ctx.Err() == nil {
		res, err := p.Fleet.Sync(ctx, p.r.ID, &wire.SyncRequest{Revision: revision, WaitMs: 1000})
		if err != nil {
			return // the test ends
		}
		revision = res.GetRevision()
		for _, ch := range res.GetChannels() {
			if !served[ch.GetId()] {
				served[ch.GetId()] = true
				go p.connect(ctx, ch)
			}
		}
	}
}

func (p *portSite) connect(ctx context.Context, ch *wire.Channel) {
	exchange := func(q *wire.ExchangeRequest) (*wire.ExchangeResponse, error) {
		q.Channel, q.Assignment, q.Fence = ch.GetId(), ch.GetAssignment(), p.item.GetFence()
		return p.Fleet.Exchange(ctx, p.r.ID, q)
	}
	ends := func(at int64, code int, says string) {
		_, _ = exchange(&wire.ExchangeRequest{Out: []*wire.Piece{{Stream: 1, Offset: at}, {Stream: 2, Data: []byte(says)}}, Ended: true, ExitJson: fmt.Sprintf(`{"code":%d}`, code)})
	}
	_, port, _ := strings.Cut(ch.GetSpecJson(), `"port":`)
	conn, err := net.Dial("tcp", "127.0.0.1:"+regexp.MustCompile(`^\d+`).FindString(port))
	if err != nil {
		ends(0, 1, "claude-hub: nothing in the Sandbox takes connections to port "+port)
		return
	}
	go func() {
		defer conn.Close()
		for at := int64(0); ; {
			res, err := exchange(&wire.ExchangeRequest{InOffset: at, InHave: at, WaitMs: 1000})
			if err != nil || res.GetGone() {
				return
			}
			for _, piece := range res.GetIn() {
				if _, err := conn.Write(piece.GetData()); err != nil {
					return
				}
				at = piece.GetOffset() + int64(len(piece.GetData()))
			}
			if res.GetInClosed() {
				return
			}
		}
	}()
	buf := make([]byte, 32<<10)
	for at := int64(0); ; {
		n, err := conn.Read(buf)
		for end := at + int64(n); at < end; {
			res, err := exchange(&wire.ExchangeRequest{Out: []*wire.Piece{{Stream: 1, Offset: at, Data: buf[int64(n)-(end-at) : n]}}, WaitMs: 1000})
			if err != nil || res.GetGone() {
				return
			}
			at = res.GetOut1()
		}
		if err != nil {
			ends(at, 0, "")
			return
		}
	}
}

// origin is that of a port of the Session.
func (p *portSite) origin(port int) string {
	u, err := url.Parse(p.url)
	if err != nil {
		p.t.Fatal(err)
	}
	return fmt.Sprintf("http://%s-%d.%s:%s", p.session, port, portsDomain, u.Port())
}

// portBrowser finds every host at the Hub, as the operator's DNS does.
func (p *portSite) portBrowser(b *browser) *browser {
	hub := strings.TrimPrefix(p.url, "http://")
	b.http.Transport = &http.Transport{DialContext: func(ctx context.Context, network, _ string) (net.Conn, error) {
		return new(net.Dialer).DialContext(ctx, network, hub)
	}}
	p.t.Cleanup(b.http.CloseIdleConnections)
	return b
}

// goes opens an address of any origin as a person does.
func (b *browser) goes(to string) page {
	b.t.Helper()
	req, err := http.NewRequestWithContext(b.t.Context(), http.MethodGet, to, nil)
	if err != nil {
		b.t.Fatal(err)
	}
	req.Header.Set("Accept", "text/html")
	req.Header.Set("X-Forwarded-For", "192.0.2.1")
	return b.do(req)
}

// onward is where a page sends the browser by itself.
func (p page) onward() string {
	if to := p.header.Get("Location"); to != "" {
		return to
	}
	_, to, _ := strings.Cut(p.header.Get("Refresh"), "url=")
	return to
}

// visits opens a port for the first time, and answers what its server says.
func (p *portSite) visits(b *browser, to string) page {
	b.t.Helper()
	asks := b.goes(p.origin(p.port) + to)
	if !strings.HasPrefix(asks.onward(), p.url+"/ports/admit?") {
		b.t.Fatalf("a port sends who is unknown to %q: %d %s", asks.onward(), asks.status, asks.body)
	}
	enters := b.goes(b.goes(asks.onward()).onward())
	if enters.status != http.StatusSeeOther || enters.onward() != to {
		b.t.Fatalf("with its code the browser is sent to %q: %d %s", enters.onward(), enters.status, enters.body)
	}
	return b.goes(p.origin(p.port) + to)
}

func TestAPortOpensAtAnOriginOfItsOwn(t *testing.T) {
	t.Parallel()
	seen := make(chan *http.Request, 9)
	p := newPortSite(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		seen <- r.Clone(context.Background())
		w.Header().Add("Set-Cookie", "app=1; Path=/; Domain="+portsDomain+"; HttpOnly")
		w.Header().Add("Set-Cookie", "claude-hub=stolen; Path=/")
		w.Header().Add("Set-Cookie", "__Host-claude-hub-port=stolen; Path=/; Secure")
		w.Header().Set("Clear-Site-Data", `"cookies"`)
		w.Header().Set("X-App", "yes")
		w.WriteHeader(http.StatusTeapot)
		fmt.Fprintf(w, "hello from %s", r.URL.RequestURI())
	}))
	ana := p.portBrowser(p.as("ana"))
	// By the form on the Session's page.
	ana.see(p.sessionPath(), `action="`+p.sessionPath()+`/ports"`, "Open it")
	own := ana.get(p.sessionPath() + "/ports?port=" + strconv.Itoa(p.port))
	if leave := ana.get(own.onward()); leave.onward() != p.origin(p.port)+"/" || !strings.Contains(leave.body, `href="`+p.origin(p.port)+`/"`) {
		t.Errorf("the Session's page leads to %q: %s", leave.onward(), leave.body)
	}
	ana.want(ana.get(p.sessionPath()+"/ports?port=0"), http.StatusUnprocessableEntity, "A port is a number from 1 to 65535.")

	got := p.visits(ana, "/a/b?c=d")
	if got.status != http.StatusTeapot || got.body != "hello from /a/b?c=d" || got.header.Get("X-App") != "yes" {
		t.Fatalf("the server's answer came as %d %q", got.status, got.body)
	}
	ana.see(p.sessionPath(), fmt.Sprintf(`<a href="%s/ports/%d">port %d</a>`, p.sessionPath(), p.port, p.port))
	if cookies := got.header["Set-Cookie"]; len(cookies) != 1 || cookies[0] != "app=1; Path=/; HttpOnly" {
		t.Errorf("its cookies came as %q", cookies)
	}
	for _, name := range []string{"Clear-Site-Data", "Content-Security-Policy", "Cross-Origin-Opener-Policy"} {
		if got.header.Get(name) != "" {
			t.Errorf("the answer has %s: %s", name, got.header.Get(name))
		}
	}
	<-seen
	ana.goes(p.origin(p.port) + "/")
	r := <-seen
	host := strings.TrimPrefix(p.origin(p.port), "http://")
	if r.Host != host || r.Header.Get("X-Forwarded-Host") != host || r.Header.Get("X-Forwarded-Proto") != "http" || r.Header.Get("X-Forwarded-For") != "127.0.0.1" {
		t.Errorf("the server is told %s and %v", r.Host, r.Header)
	}
	if got := r.Header.Get("Cookie"); got != "app=1" {
		t.Errorf("the server gets the cookies %q", got)
	}
}

func (p *portSite) sessionPath() string {
	return "/repos/" + p.g.Repo().ID.String() + "/sessions/" + p.session
}

func TestAPortsCookieIsForOneBrowserOnePortAndOneUse(t *testing.T) {
	t.Parallel()
	p := newPortSite(t, http.NotFoundHandler())
	ana, other := p.portBrowser(p.as("ana")), p.portBrowser(p.as("ana"))
	at := p.origin(p.port)
	code := func(b *browser) string { return b.goes(b.goes(at + "/").onward()).onward() }

	stolen := code(ana)
	code(other) // it has asked, too
	other.want(other.goes(stolen), http.StatusUnauthorized, "opened in another browser")
	elsewhere := strings.Replace(stolen, at, p.origin(p.port+1), 1)
	ana.goes(p.origin(p.port+1) + "/")
	ana.want(ana.goes(elsewhere), http.StatusUnauthorized, "opened in another browser")
	bare := p.portBrowser(p.browser())
	bare.want(bare.goes(stolen), http.StatusUnauthorized, "kept no cookie")

	away := strings.Replace(stolen, "to=%2F", "to=%2F%2Fevil.example", 1)
	entered := ana.goes(away)
	if entered.status != http.StatusSeeOther || entered.onward() != "/" {
		t.Errorf("a code for elsewhere leads to %q: %d", entered.onward(), entered.status)
	}
	for _, c := range (&http.Response{Header: entered.header}).Cookies() {
		if !c.HttpOnly || c.SameSite != http.SameSiteLaxMode || c.Domain != "" || c.Path != "/" {
			t.Errorf("the cookie is %s", c)
		}
	}
	ana.want(ana.goes(stolen), http.StatusUnauthorized, "cookie")
	ana.want(ana.goes(at+"/"), http.StatusNotFound, "404 page not found")

	// The Hub leads nowhere but to a port's own origin.
	for _, place := range []string{"x", "x-0", "x-70000", "-80", p.session + "-080", p.session + ".evil-80", ""} {
		q := url.Values{"place": {place}, "asked": {strings.Repeat("ab", 32)}, "to": {"/"}}
		if got := ana.get("/ports/admit?" + q.Encode()); got.status != http.StatusNotFound || got.onward() != "" {
			t.Errorf("the Hub sends a browser of %q to %q: %d", place, got.onward(), got.status)
		}
	}
}

func TestAPortIsShutToWhoLosesAccessOrSignsOut(t *testing.T) {
	t.Parallel()
	gh := checked.New(t, githubtest.Options{})
	w := townWith(t, storetest.New(t), gh, apptest.Options{}, portsDomain)
	ana, bob := w.in(w.ana), w.in(w.bob)
	g, err := w.Gate.Repo(t.Context(), ana.person(), github.RepoID(w.rocket.ID))
	if err != nil {
		t.Fatal(err)
	}
	p := portsOf(t, w.site, g, http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
		conn, err := websocket.Accept(rw, r, &websocket.AcceptOptions{InsecureSkipVerify: true})
		if err != nil {
			return
		}
		for {
			kind, b, err := conn.Read(context.Background())
			if err != nil {
				return
			}
			_ = conn.Write(context.Background(), kind, append([]byte("echo "), b...))
		}
	}))
	p.portBrowser(ana)
	p.portBrowser(bob)
	at := p.origin(p.port)

	// Who has no access learns no more of a Session than of none.
	none := strings.Replace(at, p.session[:8], "00000000", 1)
	answers := func(origin string) page { return bob.goes(bob.goes(origin + "/").onward()) }
	is, isNot := answers(at), answers(none)
	id := regexp.MustCompile(`Request <code>[0-9a-f]+</code>`)
	if is.status != http.StatusNotFound || isNot.status != is.status || id.ReplaceAllString(is.body, "") != id.ReplaceAllString(isNot.body, "") {
		t.Errorf("forbidden is %d, absent %d:\n%s\n%s", is.status, isNot.status, is.body, isNot.body)
	}

	p.visits(ana, "/")
	dial := func() (*websocket.Conn, error) {
		ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
		defer cancel()
		conn, _, err := websocket.Dial(ctx, "ws"+strings.TrimPrefix(at, "http"), &websocket.DialOptions{HTTPClient: ana.http})
		return conn, err
	}
	conn, err := dial()
	if err != nil {
		t.Fatal(err)
	}
	defer conn.CloseNow()
	if err := conn.Write(t.Context(), websocket.MessageText, []byte("one")); err != nil {
		t.Fatal(err)
	}
	if _, b, err := conn.Read(t.Context()); err != nil || string(b) != "echo one" {
		t.Fatalf("through the WebSocket came %q, %v", b, err)
	}

	w.rocket.Allow(w.ana, "")
	if err := w.Gate.ForgetPerson(t.Context(), w.ana.ID); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 60*time.Second)
	defer cancel()
	if _, _, err := conn.Read(ctx); err == nil || errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("what is open when access ends: %v", err)
	}
	shut := ana.goes(at + "/")
	if shut.status == http.StatusOK || shut.status == http.StatusUpgradeRequired || strings.Contains(shut.onward(), portsDomain) {
		t.Errorf("who lost access gets %d %q", shut.status, shut.body)
	}
}

func TestAPortEndsWithTheBrowsersSignIn(t *testing.T) {
	t.Parallel()
	p := newPortSite(t, http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "in") }))
	ana := p.portBrowser(p.as("ana"))
	p.visits(ana, "/")
	script := func() page {
		req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, p.origin(p.port)+"/api", strings.NewReader("x"))
		if err != nil {
			t.Fatal(err)
		}
		return ana.do(req)
	}
	ana.want(script(), http.StatusOK, "in")
	ana.posted("/sign-out", nil)
	ana.want(script(), http.StatusUnauthorized, "not let in")
	asks := ana.goes(p.origin(p.port) + "/")
	if to := ana.goes(asks.onward()).onward(); !strings.HasPrefix(to, "/sign-in?") {
		t.Errorf("who is signed out is sent to %q", to)
	}
}

func TestAPortSaysWhyItDoesNotAnswer(t *testing.T) {
	t.Parallel()
	p := newPortSite(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path != "/garbage" {
			return
		}
		conn, rw, err := w.(http.Hijacker).Hijack()
		if err != nil {
			return
		}
		defer conn.Close()
		_, _ = rw.WriteString("220 mail ready\r\n\r\n")
		_ = rw.Flush()
		_, _ = bufio.NewReader(conn).ReadByte()
	}))
	ana := p.portBrowser(p.as("ana"))
	p.visits(ana, "/")
	ana.want(ana.goes(p.origin(p.port)+"/garbage"), http.StatusBadGateway, "is not HTTP, or broke off")
	ana.want(ana.goes(p.origin(p.port)+"/.claude-hub/other"), http.StatusNotFound, "There is no such page.")
	ana.want(ana.goes("http://"+portsDomain+"/"), http.StatusNotFound, access.ErrNotFound.Message)
	body, never := io.Pipe()
	defer never.Close()
	large, err := http.NewRequestWithContext(t.Context(), http.MethodPost, p.origin(p.port)+"/", body)
	if err != nil {
		t.Fatal(err)
	}
	large.ContentLength = 256<<20 + 1
	ana.want(ana.do(large), http.StatusRequestEntityTooLarge, "At most 256 MiB can be sent to a port at once.")
	p.server.Close()
	ana.want(ana.goes(p.origin(p.port)+"/"), http.StatusBadGateway, fmt.Sprintf("Nothing answers at port %d of this Session.", p.port))

	if err := p.Sessions.Sleep(t.Context(), p.g, p.session); err != nil {
		t.Fatal(err)
	}
	p.item = p.r.Item()
	p.r.MustReport(p.item, wire.StateAsleep, wire.SessionDetail{Version: 1, Workspace: true})
	req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, p.origin(p.port)+"/style.css", nil)
	if err != nil {
		t.Fatal(err)
	}
	ana.want(ana.do(req), http.StatusServiceUnavailable, "This Session is asleep.")
	asleep := ana.goes(p.origin(p.port) + "/deep?x=1")
	path, ok := strings.CutPrefix(asleep.onward(), p.url)
	if !ok {
		t.Fatalf("while asleep a port sends people to %q", asleep.onward())
	}
	ana.see(path, "The Session is asleep.", "Wake it and open the port", `value="/deep?x=1"`)
	woken := ana.posted(path[:strings.Index(path, "?")]+"/wake", url.Values{"to": {"/deep?x=1"}})
	ana.see(woken, "The Session is waking.", `data-refresh="`)
	p.item = p.r.Item()
	p.r.MustReport(p.item, wire.StateRunning, wire.SessionDetail{Version: 1, Workspace: true})
	if to := ana.get(woken).onward(); to != p.origin(p.port)+"/deep?x=1" {
		t.Errorf("once it is up, people go on to %q", to)
	}
}

func TestWithoutADomainThereAreNoPorts(t *testing.T) {
	t.Parallel()
	s := newTerminalSite(t)
	ana := s.as("ana")
	path := s.path[:strings.Index(s.path, "/terminals/")]
	if p := ana.see(path, "Open a terminal"); strings.Contains(p.body, "/ports") {
		t.Error("the Session's page offers ports")
	}
	for _, to := range []string{path + "/ports/80", "/ports/admit?place=x-80&asked=" + strings.Repeat("ab", 32)} {
		ana.want(ana.get(to), http.StatusNotFound)
	}
	req := ana.request(http.MethodGet, "/healthz", nil)
	req.Host = "x-80." + portsDomain
	ana.want(ana.do(req), http.StatusOK, "ok")
}

func TestBytesPassAPortWholeAndAtOnce(t *testing.T) {
	t.Parallel()
	on := make(chan struct{})
	p := newPortSite(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/events" {
			w.Header().Set("Content-Type", "text/event-stream")
			_, _ = io.WriteString(w, "data: one\n\n")
			_ = http.NewResponseController(w).Flush()
			select {
			case <-on:
			case <-r.Context().Done():
			}
			_, _ = io.WriteString(w, "data: two\n\n")
			return
		}
		b, err := io.ReadAll(r.Body)
		if err != nil {
			w.WriteHeader(http.StatusBadRequest)
		}
		_, _ = w.Write(b)
	}))
	ana := p.portBrowser(p.as("ana"))
	p.visits(ana, "/")
	var body strings.Builder
	for i := range 300_000 {
		fmt.Fprintf(&body, "line %d\n", i)
	}
	req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, p.origin(p.port)+"/echo", strings.NewReader(body.String()))
	if err != nil {
		t.Fatal(err)
	}
	if got := ana.do(req); got.status != http.StatusOK || got.body != body.String() {
		t.Errorf("%d bytes came back as %d, %d", body.Len(), len(got.body), got.status)
	}
	req, err = http.NewRequestWithContext(t.Context(), http.MethodGet, p.origin(p.port)+"/events", nil)
	if err != nil {
		t.Fatal(err)
	}
	res, err := ana.http.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	lines := bufio.NewReader(res.Body)
	if line, err := lines.ReadString('\n'); line != "data: one\n" {
		t.Fatalf("the first event came as %q, %v", line, err)
	}
	close(on)
	if rest, err := io.ReadAll(lines); string(rest) != "\ndata: two\n\n" {
		t.Errorf("the rest came as %q, %v", rest, err)
	}
}

// To a browser all ports of all Sessions are one site: it sends a visitor's cookie with whatever a page of another Sandbox asks for.
func TestAPageOfAnotherSessionReachesNoPortWithItsVisitorsCookie(t *testing.T) {
	t.Parallel()
	p := newPortSite(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Access-Control-Allow-Origin", r.Header.Get("Origin"))
		if r.Header.Get("Upgrade") != "" {
			if c, err := websocket.Accept(w, r, &websocket.AcceptOptions{InsecureSkipVerify: true}); err == nil {
				_ = c.Close(websocket.StatusNormalClosure, "")
			}
			return
		}
		_, _ = io.WriteString(w, "reached")
	}))
	ana := p.portBrowser(p.as("ana"))
	p.visits(ana, "/")
	own := p.origin(p.port)
	for origin, want := range map[string]int{
		"": http.StatusOK, own: http.StatusOK, p.origin(p.port + 1): http.StatusOK,
		strings.Replace(own, p.session, "01a00000-0000-7000-8000-000000000000", 1): http.StatusForbidden,
		p.url: http.StatusForbidden, "https://example.com": http.StatusForbidden, "null": http.StatusForbidden, own + ".example.com": http.StatusForbidden,
		strings.Replace(own, "http:", "https:", 1): http.StatusForbidden,
	} {
		for _, method := range []string{http.MethodGet, http.MethodPost} {
			req, err := http.NewRequestWithContext(t.Context(), method, own+"/", nil)
			if err != nil {
				t.Fatal(err)
			}
			if origin != "" {
				req.Header.Set("Origin", origin)
				req.Header.Set("Sec-Fetch-Site", "same-site")
			}
			if got := ana.do(req); got.status != want {
				t.Errorf("a %s by a page of %q is answered %d %s, want %d", method, origin, got.status, got.body, want)
			}
		}
		c, res, err := websocket.Dial(t.Context(), own+"/", &websocket.DialOptions{HTTPClient: ana.http, HTTPHeader: http.Header{"Origin": {origin}}})
		if opened := err == nil; opened != (want == http.StatusOK) {
			t.Errorf("a WebSocket of a page of %q: %v, %v", origin, res, err)
		}
		if err == nil {
			_ = c.CloseNow()
		}
	}
}

func TestAPortOpensAtAnotherHubThanItsRunners(t *testing.T) {
	t.Parallel()
	db := storetest.New(t)
	one := func() *site {
		server := httptest.NewUnstartedServer(nil)
		hub := apptest.New(t, db, apptest.Options{Fleet: fleet.Options{PeerURL: "http://" + server.Listener.Addr().String()}})
		s := siteWith(t, server, &site{Hub: hub, ports: portsDomain})
		s.beats()
		return s
	}
	home, other := one(), one()
	p := portsOf(t, home, home.Grant("ana"), http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		b, _ := io.ReadAll(r.Body)
		fmt.Fprintf(w, "%s %s %s", r.Host, r.Header.Get("Cookie"), b)
	}))
	if peer, err := home.Fleet.Settle(t.Context(), p.r.ID, ""); err != nil || peer != "" {
		t.Fatalf("%q, %v", peer, err)
	}
	elsewhere := *p
	elsewhere.site = other
	ana := elsewhere.portBrowser(other.as("ana"))
	elsewhere.visits(ana, "/")
	req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, elsewhere.origin(p.port)+"/", strings.NewReader("body"))
	if err != nil {
		t.Fatal(err)
	}
	req.AddCookie(&http.Cookie{Name: "app", Value: "1"})
	if got := ana.do(req); got.status != http.StatusOK || got.body != strings.TrimPrefix(elsewhere.origin(p.port), "http://")+" app=1 body" {
		t.Errorf("through another Hub came %d %q", got.status, got.body)
	}
}
