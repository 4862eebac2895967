package handlers_test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"net/url"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/reflect/protoreflect"

	"github.com/claude-hub/claude-hub/app/access"
	"github.com/claude-hub/claude-hub/app/apptest"
	"github.com/claude-hub/claude-hub/app/github"
	"github.com/claude-hub/claude-hub/app/github/githubtest"
	"github.com/claude-hub/claude-hub/app/github/githubtest/checked"
	"github.com/claude-hub/claude-hub/app/session"
	"github.com/claude-hub/claude-hub/handlers"
	"github.com/claude-hub/claude-hub/runner/wire"
	"github.com/claude-hub/claude-hub/store"
	"github.com/claude-hub/claude-hub/store/storetest"
)

// seen is all that a caller can see of an answer, and what the Hub asked of its database for it.
type seen struct {
	page
	statements []string
}

// from tells in words how two answers differ, or "".
func (a seen) from(b seen) string {
	switch {
	case a.status != b.status:
		return fmt.Sprintf("status %d and %d", a.status, b.status)
	case !sameHeader(a.header, b.header):
		return fmt.Sprintf("headers %v and %v", a.header, b.header)
	case a.body != b.body:
		return fmt.Sprintf("body\n%s\nand\n%s", a.body, b.body)
	case !slices.Equal(a.statements, b.statements):
		return fmt.Sprintf("%d statements and %d:\n%s\nand\n%s", len(a.statements), len(b.statements), strings.Join(a.statements, "\n"), strings.Join(b.statements, "\n"))
	}
	return ""
}

// look makes a request under which statements are watched, and takes out what differs from request to request.
func look(t *testing.T, h http.Handler, method, target string, body io.Reader, set func(*http.Request)) seen {
	t.Helper()
	ctx, statements := storetest.Watch(t.Context())
	r := httptest.NewRequestWithContext(ctx, method, target, body)
	if set != nil {
		set(r)
	}
	rw := httptest.NewRecorder()
	h.ServeHTTP(rw, r)
	id := rw.Header().Get("X-Request-Id")
	rw.Header().Del("X-Request-Id")
	return seen{page{rw.Code, rw.Header(), strings.ReplaceAll(rw.Body.String(), id, "ID")}, statements.All()}
}

// TestARefusalTellsNothingOnAnyRoute is P31 of facts/reliability.md: whatever keeps somebody from a Repo, status, headers,
// body and the statements that are run are the same on every route of pages and API.
func TestARefusalTellsNothingOnAnyRoute(t *testing.T) {
	t.Parallel()
	storetest.Each(t, func(t *testing.T, db *store.DB) {
		clock := storetest.NewClock(db)
		w := newTown(t, db, checked.New(t, githubtest.Options{}), apptest.Options{})
		// carol's is of her own account; removed was the Hub's once.
		carol := w.gh.Person("carol")
		diary := w.gh.Repo("carol/diary", true, githubtest.Files{"a": githubtest.Text("a\n")})
		w.gh.Install(w.app.ID, carol, carol, diary)
		removed := w.gh.Repo("acme/removed", true, githubtest.Files{"a": githubtest.Text("a\n")})
		removed.Allow(w.ana, "write")
		w.inst.Add(removed)
		ana := w.in(w.ana)
		w.Applied(ana.grant(removed), w.Runner("r0"), spec())
		w.Applied(w.in(carol).grant(diary), w.Runner("r2"), spec())
		all := w.furnish(t, ana.grant(w.rocket))
		w.inst.Drop(removed)

		cases := map[string]string{
			"forbidden": github.RepoID(w.rocket.ID).String(), "another person's": github.RepoID(diary.ID).String(),
			"uninstalled": github.RepoID(w.other.ID).String(), "removed": github.RepoID(removed.ID).String(),
		}
		h, err := handlers.New(w.deps())
		if err != nil {
			t.Fatal(err)
		}
		bob := w.in(w.bob)
		cookie, token := bob.cookie("claude-hub"), bob.tokenOf()
		send := func(r route, repo string) seen {
			return look(t, h, r.method, w.url+r.in(repo), nil, func(q *http.Request) {
				if r.api {
					q.Header.Set("Authorization", "Bearer "+token)
				} else {
					q.AddCookie(&http.Cookie{Name: "claude-hub", Value: cookie})
				}
			})
		}
		routes := slices.DeleteFunc(all, func(r route) bool { return !r.hasRepo() })
		if len(routes) < 60 {
			t.Fatalf("only %d routes are about a Repo", len(routes))
		}
		compare := func(how string, before func()) {
			t.Helper()
			for _, r := range routes {
				before()
				absent := send(r, "999999999")
				if absent.status != http.StatusNotFound || len(absent.statements) < 2 || absent.header.Get("Cache-Control") != "no-store" {
					t.Fatalf("%s %s, absent: %d after %d statements\n%s", r.method, r.template, absent.status, len(absent.statements), absent.body)
				}
				for what, repo := range cases {
					before()
					if diff := send(r, repo).from(absent); diff != "" {
						t.Errorf("%s %s, %s: a Repo that is %s differs from an absent one in %s", r.method, r.template, how, what, diff)
					}
				}
				for _, repo := range []string{"x", "-1", "99999999999999999999999"} {
					odd := send(r, repo)
					odd.statements = absent.statements // that it is no id is no secret
					if diff := odd.from(absent); diff != "" {
						t.Errorf("%s %s: Repo %s differs from an absent one in %s", r.method, r.template, repo, diff)
					}
				}
			}
		}
		send(routes[0], "999999999")
		compare("just asked", func() {})
		compare("asking GitHub each time", func() {
			clock.Advance(31 * time.Second)
			// That a session and a token were used is written down now and then: here, not in what is compared.
			bob.see("/account")
			w.api(http.MethodGet, "/me", token, nil, nil)
		})

		// By name too, where only GitHub's own answer to bob may differ.
		byName := map[string]string{"forbidden": "acme/rocket", "another person's": "carol/diary", "uninstalled": "acme/other", "removed": "acme/removed"}
		for _, way := range []struct {
			what, method, path string
			body               func(name string) (kind, body string)
		}{
			{"find", http.MethodGet, "/api/v1/repos?name=", nil},
			{"open by the API", http.MethodPost, "/api/v1/repos/open", func(name string) (string, string) { return "application/json", `{"repo":"` + name + `"}` }},
			{"make a token for it by the API", http.MethodPost, "/api/v1/tokens", func(name string) (string, string) {
				return "application/json", `{"name":"x","scopes":["read"],"days":1,"repos":["` + name + `"]}`
			}},
			{"open", http.MethodPost, "/open", func(name string) (string, string) {
				return "application/x-www-form-urlencoded", url.Values{"repo": {name}}.Encode()
			}},
			{"make a token for it", http.MethodPost, "/account/tokens", func(name string) (string, string) {
				return "application/x-www-form-urlencoded", url.Values{"name": {"x"}, "scope": {"read"}, "life": {"7"}, "repos": {name}}.Encode()
			}},
		} {
			try := func(name string) seen {
				target, body, kind := w.url+way.path, "", ""
				if way.body == nil {
					target += url.QueryEscape(name)
				} else {
					kind, body = way.body(name)
				}
				got := look(t, h, way.method, target, strings.NewReader(body), func(q *http.Request) {
					q.Header.Set("Content-Type", kind)
					q.Header.Set("Authorization", "Bearer "+token)
					q.AddCookie(&http.Cookie{Name: "claude-hub", Value: cookie})
				})
				got.body = strings.ReplaceAll(got.body, name, "NAME")
				got.header.Del("Content-Length")
				return got
			}
			try("acme/absent") // what a session or a token was last used for is written down now and then
			absent := try("acme/absent")
			if absent.status < 400 || len(absent.statements) == 0 {
				t.Errorf("%s what is absent: %d after %d statements\n%s", way.what, absent.status, len(absent.statements), absent.body)
			}
			for what, name := range byName {
				if diff := try(name).from(absent); diff != "" {
					t.Errorf("%s: a Repo that is %s differs from an absent one in %s", way.what, what, diff)
				}
			}
		}
		if p := bob.see("/", "tools/saw"); regexp.MustCompile(`rocket|diary|removed|acme/other`).MatchString(p.body) {
			t.Error("the list names what bob has no access to")
		}
	})
}

// TestATokenForSomeReposKnowsNoOthers: what a token isn't for is as absent to it as what its person has no access to.
func TestATokenForSomeReposKnowsNoOthers(t *testing.T) {
	t.Parallel()
	db := storetest.New(t)
	storetest.NewClock(db)
	w := newTown(t, db, checked.New(t, githubtest.Options{}), apptest.Options{})
	second := w.gh.Repo("acme/second", true, githubtest.Files{"a": githubtest.Text("a\n")})
	second.Allow(w.ana, "admin")
	w.inst.Add(second)
	ana := w.in(w.ana)
	all := w.furnish(t, ana.grant(w.rocket))
	limited, _, err := w.Gate.CreateToken(t.Context(), ana.person(), access.TokenOptions{Name: "second", Scopes: access.Scopes(), Repos: []github.RepoID{github.RepoID(second.ID)}, Life: time.Hour})
	if err != nil {
		t.Fatal(err)
	}
	h, err := handlers.New(w.deps())
	if err != nil {
		t.Fatal(err)
	}
	bear := func(q *http.Request) { q.Header.Set("Authorization", "Bearer "+limited) }
	look(t, h, http.MethodGet, w.url+"/api/v1/repos/999", nil, bear)
	tried := 0
	for _, r := range all {
		if !r.api || !r.hasRepo() {
			continue
		}
		tried++
		absent := look(t, h, r.method, w.url+r.in("999"), nil, bear)
		if diff := look(t, h, r.method, w.url+r.path, nil, bear).from(absent); diff != "" || absent.status != http.StatusNotFound {
			t.Errorf("%s %s (%d) differs from an absent one in %s", r.method, r.template, absent.status, diff)
		}
	}
	if tried < 20 {
		t.Fatalf("only %d routes", tried)
	}
	if p := w.api(http.MethodGet, "/repos", limited, nil, nil); p.status != http.StatusOK || !strings.Contains(p.body, "acme/second") || strings.Contains(p.body, "rocket") {
		t.Errorf("its list: %d %s", p.status, p.body)
	}
	if p := w.api(http.MethodGet, pathOf(second), limited, nil, nil); p.status != http.StatusOK {
		t.Errorf("its own: %d %s", p.status, p.body)
	}
}

// TestOneRunnersWorkIsAbsentForOthers is P31 for the Runners' calls: what another Runner holds is answered as what doesn't
// exist.
func TestOneRunnersWorkIsAbsentForOthers(t *testing.T) {
	t.Parallel()
	storetest.Each(t, func(t *testing.T, db *store.DB) {
		s := newSite(t, db, apptest.Options{})
		g, r := s.Grant("ana"), s.Runner("r1")
		s.Applied(g, r, spec())
		sn, err := s.Sessions.Start(t.Context(), g, session.StartInput{Runner: r.ID})
		if err != nil {
			t.Fatal(err)
		}
		held := r.Item()
		r.MustReport(held, wire.StateRunning, wire.SessionDetail{Workspace: true})
		held = r.Item()
		channel, err := s.Sessions.Open(t.Context(), g, sn.ID, wire.ChannelSpec{Argv: []string{"true"}})
		if err != nil {
			t.Fatal(err)
		}
		invite, _, err := s.Fleet.NewRegistration(t.Context(), "test")
		if err != nil {
			t.Fatal(err)
		}
		other, token, err := s.Fleet.Register(t.Context(), invite, "r2")
		if err != nil {
			t.Fatal(err)
		}
		if _, err := s.Fleet.Hello(t.Context(), other, &wire.HelloRequest{Protocol: wire.Protocol, Version: "test", Platform: "linux/amd64", Engine: "oci", Instance: "1"}); err != nil {
			t.Fatal(err)
		}
		h, err := handlers.New(s.deps())
		if err != nil {
			t.Fatal(err)
		}
		nothing := store.NewID()
		call := func(m protoreflect.MethodDescriptor, fields map[string]any) seen {
			body, err := json.Marshal(fields)
			if err != nil {
				t.Fatal(err)
			}
			got := look(t, h, http.MethodPost, s.url+"/"+string(m.Parent().FullName())+"/"+string(m.Name()), bytes.NewReader(body), func(q *http.Request) {
				q.Header.Set("Content-Type", "application/json")
				q.Header.Set("Connect-Protocol-Version", "1")
				q.Header.Set("Authorization", "Bearer "+token)
			})
			got.header.Del("Date")
			return got
		}
		about := map[protoreflect.Name]any{"generation": held.GetGeneration(), "fence": held.GetFence(), "seq": 1_000, "state": wire.StateRunning, "token": "eA=="}
		named := 0
		methods := wire.File_runner_wire_runner_proto.Services().Get(0).Methods()
		for i := range methods.Len() {
			m := methods.Get(i)
			request := func(assignment, channel string) map[string]any {
				fields, names := map[string]any{}, false
				for j := range m.Input().Fields().Len() {
					f := m.Input().Fields().Get(j)
					switch f.Name() {
					case "id", "assignment":
						fields[f.JSONName()], names = assignment, true
					case "channel":
						fields[f.JSONName()] = channel
					case "held":
						fields[f.JSONName()], names = []any{map[string]any{"id": assignment, "generation": held.GetGeneration(), "fence": held.GetFence(), "state": wire.StateRunning}}, true
					default:
						if v, ok := about[f.Name()]; ok {
							fields[f.JSONName()] = v
						}
					}
				}
				if !names {
					return nil
				}
				return fields
			}
			if request("", "") == nil {
				if n := m.Name(); n != "Register" && n != "Hello" {
					t.Errorf("%s names nothing that this test knows", n)
				}
				continue
			}
			named++
			call(m, request(nothing, nothing)) // the Hub remembers for a moment whose token it is
			absent := call(m, request(nothing, nothing))
			switch m.Name() {
			case "Sync", "EndToken", "Exchange": // which say that there is nothing, and no error
			default:
				if absent.status < 400 || len(absent.statements) == 0 {
					t.Errorf("%s of what doesn't exist: %d after %d statements\n%s", m.Name(), absent.status, len(absent.statements), absent.body)
				}
			}
			if diff := call(m, request(held.GetId(), channel)).from(absent); diff != "" {
				t.Errorf("%s of what another Runner holds differs from what doesn't exist in %s", m.Name(), diff)
			}
		}
		if named < 8 {
			t.Errorf("only %d calls name an assignment", named)
		}
	})
}
