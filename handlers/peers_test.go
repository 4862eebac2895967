package handlers_test

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"connectrpc.com/connect"

	"github.com/claude-hub/claude-hub/app/apptest"
	"github.com/claude-hub/claude-hub/app/fleet"
	"github.com/claude-hub/claude-hub/runner/wire"
	"github.com/claude-hub/claude-hub/runner/wire/wireconnect"
	"github.com/claude-hub/claude-hub/store/storetest"
)

// peers are two Hubs on one database. The first is the home of the Runner, which has a terminal.
type peers struct {
	home  *terminalSite
	other *site
	stop  func() // has the home take no connections any more
}

func newPeers(t *testing.T) *peers {
	t.Helper()
	db := storetest.New(t)
	one := func(server *httptest.Server) *site {
		s := siteOn(t, server, apptest.New(t, db, apptest.Options{Fleet: fleet.Options{PeerURL: "http://" + server.Listener.Addr().String()}}))
		s.beats()
		return s
	}
	server := httptest.NewUnstartedServer(nil)
	p := &peers{home: terminalOn(one(server)), other: one(httptest.NewUnstartedServer(nil)), stop: server.Close}
	if peer, err := p.home.Fleet.Settle(t.Context(), p.home.r.ID, ""); err != nil || peer != "" {
		t.Fatalf("%q, %v", peer, err)
	}
	return p
}

// beats has a Hub say that it is there.
func (s *site) beats() {
	s.t.Helper()
	if err := s.Fleet.RunOnce(s.t.Context()); err != nil {
		s.t.Fatal(err)
	}
}

func TestATerminalIsWatchedAndTypedInAtAnotherHubThanItsRunners(t *testing.T) {
	t.Parallel()
	p := newPeers(t)
	s, elsewhere := p.home, *p.home
	elsewhere.site = p.other
	ana := p.other.as("ana")
	s.prints("hello")

	conn, _, err := elsewhere.dial(ana, "viewer=aaaaaaaa&from=-1", nil)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.CloseNow()
	tab := &wsTab{t: t, conn: conn}
	tab.until("the scrollback", func() bool { return tab.out.String() == "hello" && tab.state.Up })
	tab.types(0, "ls\r")
	if got := s.typed(3); got != "ls\r" {
		t.Errorf("typed: %q", got)
	}

	var out string
	ana.events(s.path+"/events?viewer=cccccccc&from=-1", "", func(e event) bool {
		if e.name == "output" {
			var o struct{ Data string }
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
	ana.want(ana.do(ana.request(http.MethodPost, s.path+"/input?viewer=cccccccc&offset=0", strings.NewReader("pwd\r"))), http.StatusOK, `{"in":4}`)
	if got := s.typed(7); got != "ls\rpwd\r" {
		t.Errorf("typed: %q", got)
	}

	// Who may not, may not there either, and each answer has the headers of one Hub.
	if _, res, err := elsewhere.dial(p.other.browser(), "viewer=aaaaaaaa", nil); err == nil || res.StatusCode == http.StatusSwitchingProtocols {
		t.Errorf("nobody signed in: %v", err)
	}
	answer := ana.do(ana.request(http.MethodPost, s.path+"/input?viewer=..&offset=0", strings.NewReader("x")))
	if answer.status != http.StatusUnprocessableEntity || len(answer.header["X-Request-Id"]) != 1 || len(answer.header["Content-Security-Policy"]) != 1 {
		t.Errorf("a refusal through another Hub: %d, %v", answer.status, answer.header)
	}

	ana.posted(s.path+"/close", nil)
	tab.until("its end", func() bool { return tab.state.Ended != "" })
	if !s.exchange(&wire.ExchangeRequest{}).GetGone() {
		t.Error("the Runner is not told")
	}
}

func TestACallIsPassedOnOnce(t *testing.T) {
	t.Parallel()
	p := newPeers(t)
	ana := p.other.as("ana")
	input := func() page {
		req := ana.request(http.MethodPost, p.home.path+"/input?viewer=cccccccc&offset=0", strings.NewReader("x"))
		req.Header.Set("Claude-Hub-Passed", "1")
		return ana.do(req)
	}
	ana.want(input(), http.StatusBadGateway, "Another Hub serves this by now")
	// The home is gone: what comes is answered here, also when it was passed on.
	p.home.Fleet.Stop()
	ana.want(input(), http.StatusOK, `{"in":1}`)
}

func TestATerminalWhoseRunnerHasNoHomeYetIsTriedAgainAndNotSaidToBeGone(t *testing.T) {
	t.Parallel()
	p := newPeers(t)
	p.other.beats() // another is the Runner's home
	p.home.Fleet.Stop()
	ana := p.other.as("ana")
	input := func() page {
		return ana.do(ana.request(http.MethodPost, p.home.path+"/input?viewer=cccccccc&offset=0", strings.NewReader("x")))
	}
	ana.want(input(), http.StatusServiceUnavailable, "Another Hub serves this Session now. Try again.")
	if peer, err := p.other.Fleet.Settle(t.Context(), p.home.r.ID, ""); err != nil || peer != "" {
		t.Fatalf("%q, %v", peer, err)
	}
	ana.want(input(), http.StatusOK, `{"in":1}`)
}

func TestARunnersCallsAreAnsweredByItsHomeAndByAnotherOnceThatIsGone(t *testing.T) {
	t.Parallel()
	p := newPeers(t)
	s := p.home
	s.prints("hello")
	client := wireconnect.NewRunnerServiceClient(http.DefaultClient, p.other.url)
	exchange := func(text string) (*wire.ExchangeResponse, error) {
		ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
		defer cancel()
		ctx, call := connect.NewClientContext(ctx)
		call.RequestHeader().Set("Authorization", "Bearer "+s.r.Token)
		return client.Exchange(ctx, &wire.ExchangeRequest{
			Channel: s.id, Assignment: s.item.GetId(), Fence: s.item.GetFence(), InHave: 3, Out: []*wire.Piece{{Stream: 1, Data: []byte(text)}},
		})
	}
	if res, err := exchange("hello"); err != nil || res.GetOut1() != 5 || res.GetGone() {
		t.Fatalf("through another Hub: %v, %v", res, err)
	}
	p.stop()
	if _, err := exchange("hello"); connect.CodeOf(err) != connect.CodeUnavailable {
		t.Fatalf("while its home takes no connections: %v", err)
	}
	res, err := exchange("hello again")
	if err != nil || res.GetOut1() != 11 || res.GetGone() {
		t.Fatalf("after that: %v, %v", res, err)
	}
	ana := p.other.as("ana")
	ana.want(ana.do(ana.request(http.MethodPost, s.path+"/input?viewer=cccccccc&offset=0", strings.NewReader("x"))), http.StatusOK, `{"in":1}`)
}
