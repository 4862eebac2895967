package handlers_test

import (
	"context"
	"encoding/base64"
	"encoding/binary"
	"encoding/json"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/coder/websocket"

	"github.com/claude-hub/claude-hub/app/apptest"
	"github.com/claude-hub/claude-hub/app/session"
	"github.com/claude-hub/claude-hub/runner/wire"
	"github.com/claude-hub/claude-hub/store/storetest"
)

// terminalSite is a Session that runs with one terminal, served by a Runner whose every word the test says.
type terminalSite struct {
	*site
	r      *apptest.Runner
	item   *wire.Item
	id     string // of the terminal
	path   string // of its page
	output int64
}

func newTerminalSite(t *testing.T) *terminalSite {
	t.Helper()
	return terminalOn(newSite(t, storetest.New(t), apptest.Options{}))
}

func terminalOn(on *site) *terminalSite {
	s, t := &terminalSite{site: on}, on.t
	t.Helper()
	g := s.Grant("ana")
	s.r = s.Runner("r1")
	s.Applied(g, s.r, spec())
	sn, err := s.Sessions.Start(t.Context(), g, session.StartInput{Runner: s.r.ID})
	if err != nil {
		t.Fatal(err)
	}
	s.item = s.r.Item()
	s.r.MustReport(s.item, wire.StateRunning, wire.SessionDetail{Version: 1, Workspace: true})
	b := s.as("ana")
	page := "/repos/" + g.Repo().ID.String() + "/sessions/" + sn.ID
	b.see(page, "Open a terminal")
	s.path = b.posted(page+"/terminals", nil)
	s.id = s.path[strings.LastIndex(s.path, "/")+1:]
	b.see(page, s.path, "Terminal 1")
	return s
}

// exchange is one call of the Runner.
func (s *terminalSite) exchange(q *wire.ExchangeRequest) *wire.ExchangeResponse {
	s.t.Helper()
	q.Channel, q.Assignment, q.Fence = s.id, s.item.GetId(), s.item.GetFence()
	res, err := s.Fleet.Exchange(s.t.Context(), s.r.ID, q)
	if err != nil {
		s.t.Fatal(err)
	}
	return res
}

func (s *terminalSite) prints(text string) {
	s.t.Helper()
	if res := s.exchange(&wire.ExchangeRequest{Out: []*wire.Piece{{Stream: 1, Offset: s.output, Data: []byte(text)}}}); res.GetOut1() != s.output+int64(len(text)) {
		s.t.Fatalf("%d bytes were taken", res.GetOut1()-s.output)
	}
	s.output += int64(len(text))
}

// typed waits until so much input has come.
func (s *terminalSite) typed(n int) string {
	s.t.Helper()
	for end := time.Now().Add(30 * time.Second); time.Now().Before(end); {
		var all []byte
		for _, p := range s.exchange(&wire.ExchangeRequest{WaitMs: 200}).GetIn() {
			all = append(all, p.GetData()...)
		}
		if len(all) >= n {
			return string(all)
		}
	}
	s.t.Fatalf("%d bytes of input never came", n)
	return ""
}

// dial opens a tab's WebSocket.
func (s *terminalSite) dial(b *browser, query string, header http.Header) (*websocket.Conn, *http.Response, error) {
	ctx, cancel := context.WithTimeout(s.t.Context(), 30*time.Second)
	defer cancel()
	return websocket.Dial(ctx, "ws"+strings.TrimPrefix(s.url, "http")+s.path+"/socket?"+query, &websocket.DialOptions{HTTPClient: &http.Client{Jar: b.http.Jar}, HTTPHeader: header})
}

type wsTab struct {
	t     *testing.T
	conn  *websocket.Conn
	out   strings.Builder
	at    int64
	state struct {
		In, End int64
		Up      bool
		Ended   string
	}
}

// until reads until what came fits.
func (w *wsTab) until(what string, fits func() bool) {
	w.t.Helper()
	ctx, cancel := context.WithTimeout(w.t.Context(), 30*time.Second)
	defer cancel()
	for !fits() {
		kind, b, err := w.conn.Read(ctx)
		if err != nil {
			w.t.Fatalf("%s: %v, after %q", what, err, w.out.String())
		}
		if kind == websocket.MessageText {
			if err := json.Unmarshal(b, &w.state); err != nil {
				w.t.Fatal(err)
			}
			continue
		}
		at := int64(binary.BigEndian.Uint64(b))
		if w.out.Len() == 0 {
			w.at = at
		}
		if at != w.at {
			w.t.Fatalf("output at %d where %d was due", at, w.at)
		}
		w.out.Write(b[8:])
		w.at += int64(len(b) - 8)
	}
}

func (w *wsTab) send(kind websocket.MessageType, b []byte) {
	w.t.Helper()
	if err := w.conn.Write(w.t.Context(), kind, b); err != nil {
		w.t.Fatal(err)
	}
}

func (w *wsTab) types(at int64, text string) {
	w.t.Helper()
	w.send(websocket.MessageBinary, append(binary.BigEndian.AppendUint64(nil, uint64(at)), text...))
}

func TestATerminalIsWatchedAndTypedInByWebSocket(t *testing.T) {
	t.Parallel()
	s := newTerminalSite(t)
	ana, ben := s.as("ana"), s.as("ben")
	page := ana.see(s.path, "Terminal", "opened by ana")
	if policy := page.header.Get("Content-Security-Policy"); strings.Contains(policy, "unsafe") || !strings.Contains(policy, "'nonce-") {
		t.Errorf("the page's policy is %s", policy)
	}
	s.prints("one é")
	open := func(b *browser, query string) *wsTab {
		conn, _, err := s.dial(b, query, nil)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = conn.CloseNow() })
		return &wsTab{t: t, conn: conn}
	}
	a, b := open(ana, "viewer=aaaaaaaa&from=-1"), open(ben, "viewer=bbbbbbbb&from=-1")
	for _, tab := range []*wsTab{a, b} {
		tab.until("the scrollback", func() bool { return tab.out.String() == "one é" && tab.state.Up })
	}
	a.types(0, "ls\r")
	a.types(0, "ls\r") // repeated after a lost connection
	if got := s.typed(3); got != "ls\r" {
		t.Errorf("typed: %q", got)
	}
	b.types(0, "B")
	if got := s.typed(4); got != "ls\rB" {
		t.Errorf("typed by both: %q", got)
	}
	a.until("that its input was taken", func() bool { return a.state.In == 3 })
	a.send(websocket.MessageText, []byte(`{"rows":30,"cols":100}`))
	for end := time.Now().Add(30 * time.Second); ; {
		if c := s.exchange(&wire.ExchangeRequest{WaitMs: 100}).GetControls(); len(c) == 1 && c[0].GetRows() == 30 && c[0].GetCols() == 100 {
			break
		}
		if time.Now().After(end) {
			t.Fatal("the size never came")
		}
	}
	s.prints(" two")
	a.until("new output", func() bool { return a.out.String() == "one é two" })
	again := open(ana, "viewer=aaaaaaaa&from=5")
	again.until("what comes after an offset", func() bool { return again.out.String() == "\xa9 two" && again.state.In == 3 })

	s.exchange(&wire.ExchangeRequest{Ended: true, ExitJson: `{"code":7}`})
	b.until("its end", func() bool { return b.state.Ended == "ended with code 7" && strings.HasSuffix(b.out.String(), "two") })
	ana.see(s.path, "ended with code 7")
}

func TestATerminalIsWatchedAndTypedInWithoutAWebSocket(t *testing.T) {
	t.Parallel()
	s := newTerminalSite(t)
	b := s.as("ana")
	s.prints("hello")
	query := "?viewer=cccccccc"
	var out string
	all := b.events(s.path+"/events"+query+"&from=-1", "", func(e event) bool {
		if e.name == "output" {
			var o struct {
				At   int64
				Data string
			}
			if err := json.Unmarshal([]byte(e.data), &o); err != nil {
				t.Fatal(err)
			}
			data, err := base64.StdEncoding.DecodeString(o.Data)
			if err != nil {
				t.Fatal(err)
			}
			out += string(data)
		}
		return out == "hello"
	})
	last := all[len(all)-1].id
	p := b.post(s.path+"/input"+query+"&offset=0", nil)
	b.want(p, http.StatusOK, `{"in":0}`)
	req := b.request(http.MethodPost, s.path+"/input"+query+"&offset=0", strings.NewReader("pwd\r"))
	b.want(b.do(req), http.StatusOK, `{"in":4}`)
	if got := s.typed(4); got != "pwd\r" {
		t.Errorf("typed: %q", got)
	}
	req = b.request(http.MethodPost, s.path+"/steer"+query, strings.NewReader(`{"taken":5,"rows":10,"cols":20}`))
	b.want(b.do(req), http.StatusNoContent)
	s.prints("!")
	b.events(s.path+"/events"+query, last, func(e event) bool { return e.name == "output" && e.id == "6" })
}

func TestATerminalIsForWhoHasAccessAndThisHubsOwnPages(t *testing.T) {
	t.Parallel()
	s := newTerminalSite(t)
	ana := s.as("ana")
	if _, res, err := s.dial(ana, "viewer=aaaaaaaa", http.Header{"Origin": {"https://evil.example"}}); err == nil || res.StatusCode != http.StatusForbidden {
		t.Errorf("another site's page: %v", err)
	}
	if _, res, err := s.dial(s.browser(), "viewer=aaaaaaaa", nil); err == nil || res.StatusCode == http.StatusSwitchingProtocols {
		t.Errorf("nobody signed in: %v", err)
	}
	if _, res, err := s.dial(ana, "viewer=..", nil); err == nil || res.StatusCode != http.StatusUnprocessableEntity {
		t.Errorf("a viewer's name: %v %v", err, res.StatusCode)
	}
	for _, path := range []string{"/events", "/input", "/steer"} {
		req := ana.request(http.MethodPost, s.path+path+"?viewer=aaaaaaaa&offset=0", strings.NewReader("x"))
		if path == "/events" {
			continue
		}
		req.Header.Set("Origin", "https://evil.example")
		req.Header.Set("Sec-Fetch-Site", "cross-site")
		if p := ana.do(req); p.status != http.StatusForbidden {
			t.Errorf("%s from another site: %d", path, p.status)
		}
	}

	// Who signs out loses what is open.
	conn, _, err := s.dial(ana, "viewer=aaaaaaaa", nil)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.CloseNow()
	if p := ana.post("/sign-out", nil); p.status != http.StatusSeeOther {
		t.Fatalf("sign out: %d", p.status)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 45*time.Second)
	defer cancel()
	for {
		_, _, err := conn.Read(ctx)
		if err == nil {
			continue
		}
		if websocket.CloseStatus(err) != websocket.StatusPolicyViolation {
			t.Errorf("the socket ended with %v", err)
		}
		break
	}
}

func TestClosingATerminalEndsItAndIsForEverybodyInTheRepo(t *testing.T) {
	t.Parallel()
	s := newTerminalSite(t)
	s.as("ben").posted(s.path+"/close", nil)
	if !s.exchange(&wire.ExchangeRequest{}).GetGone() {
		t.Error("the Runner is not told")
	}
	s.as("ana").see(s.path, "ended: it was closed")
	for range 16 {
		if _, err := s.Fleet.OpenTerminal(t.Context(), s.item.GetId(), "ana", wire.ChannelSpec{}); err != nil {
			t.Fatal(err)
		}
	}
	page := s.path[:strings.Index(s.path, "/terminals/")]
	ana := s.as("ana")
	ana.want(ana.post(page+"/terminals", nil), http.StatusConflict, "16 terminals are open here already")
	if _, err := s.Sessions.Terminal(t.Context(), s.Grant("ana"), "no-such", s.id); err == nil {
		t.Error("a terminal of another Session is found")
	}
	list, err := s.Sessions.Terminals(t.Context(), s.Grant("ana"), page[strings.LastIndex(page, "/")+1:])
	if err != nil || len(list) != 17 || list[0].Ended.IsZero() {
		t.Errorf("%d terminals, %v", len(list), err)
	}
}
