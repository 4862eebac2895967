package client_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/rs/zerolog"

	"github.com/claude-hub/claude-hub/app/apptest"
	"github.com/claude-hub/claude-hub/app/fault"
	"github.com/claude-hub/claude-hub/app/fleet"
	"github.com/claude-hub/claude-hub/envspec"
	"github.com/claude-hub/claude-hub/handlers"
	"github.com/claude-hub/claude-hub/handlers/api/client"
	"github.com/claude-hub/claude-hub/handlers/api/schema"
	"github.com/claude-hub/claude-hub/runner/wire"
	"github.com/claude-hub/claude-hub/store"
	"github.com/claude-hub/claude-hub/store/storetest"
)

const repo = int64(apptest.RepoID)

// hub is a whole Hub and a Client of it.
type hub struct {
	*client.Client
	Hub    *apptest.Hub
	t      *testing.T
	server *httptest.Server
	faults *faults
	log    *locked // all that the Hub's ways in log
}

// faults loses answers: the Hub has done what was asked, and the client doesn't hear of it.
type faults struct {
	every int64 // every so many answers; 0: none
	n     atomic.Int64
}

func (f *faults) RoundTrip(req *http.Request) (*http.Response, error) {
	res, err := http.DefaultTransport.RoundTrip(req)
	if err == nil && f.every > 0 && f.n.Add(1)%f.every == 0 {
		_, _ = io.Copy(io.Discard, res.Body)
		res.Body.Close()
		return nil, errors.New("the connection broke")
	}
	return res, err
}

func newHub(t *testing.T, db *store.DB, o apptest.Options) *hub {
	t.Helper()
	return serve(t, db, apptest.New(t, db, o))
}

// serve puts a Hub behind HTTP.
func serve(t *testing.T, db *store.DB, domain *apptest.Hub) *hub {
	t.Helper()
	h := &hub{Hub: domain, t: t, faults: &faults{}, log: &locked{}}
	h.server = httptest.NewUnstartedServer(nil)
	url := "http://" + h.server.Listener.Addr().String()
	handler, err := handlers.New(handlers.Deps{
		DB: db, Gate: h.Hub.Gate, Environments: h.Hub.Environments, Sessions: h.Hub.Sessions, Proposals: h.Hub.Proposals, Fleet: h.Hub.Fleet, Vault: h.Hub.Vault, PublicURL: url, Version: "test",
		Log: zerolog.New(h.log).Level(zerolog.TraceLevel),
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if t.Failed() {
			t.Log(h.log)
		}
	})
	h.server.Config.Handler = handler
	h.server.Start()
	t.Cleanup(h.server.Close)
	t.Cleanup(h.Hub.Fleet.Stop)
	_, token, err := h.Hub.Gate.IssueToken(t.Context(), "ana", "test", time.Hour)
	if err != nil {
		t.Fatal(err)
	}
	if h.Client, err = client.New(url, token, h.faults); err != nil {
		t.Fatal(err)
	}
	return h
}

func must[T any](v T, err error) func(*testing.T) T {
	return func(t *testing.T) T {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
		return v
	}
}

func wantCode(t *testing.T, err error, code fault.Code, says string) *client.Error {
	t.Helper()
	var e *client.Error
	if !errors.As(err, &e) || e.Code != code || !strings.Contains(e.Message, says) || e.RequestID == "" {
		t.Fatalf("want a refusal %s that says %q, got %#v", code, says, err)
	}
	return e
}

func TestTheWholeStoryWorksThroughTheAPI(t *testing.T) {
	t.Parallel()
	storetest.Each(t, func(t *testing.T, db *store.DB) {
		ctx := t.Context()
		h := newHub(t, db, apptest.Options{})
		if me := must(h.Me(ctx))(t); me.Login != "ana" || !me.DevLogin {
			t.Fatalf("me: %+v", me)
		}
		if all := must(h.Repos(ctx))(t); len(all) != 2 {
			t.Fatalf("Repos: %+v", all)
		}
		if r := must(h.Repo(ctx, "acme/rocket"))(t); r.ID != repo {
			t.Fatalf("by name: %+v", r)
		}
		if r := must(h.Repo(ctx, "42"))(t); r.Name != "acme/rocket" {
			t.Fatalf("by id: %+v", r)
		}
		_, err := h.Repo(ctx, "acme/secret")
		wantCode(t, err, fault.NotFound, "There is no such Repo, or you have no access to it.")
		if reg := must(h.NewRegistration(ctx))(t); !strings.HasPrefix(reg.Token, "chreg_") || !strings.Contains(reg.Command, reg.Token) || time.Until(reg.Expires) < 50*time.Minute {
			t.Fatalf("registration: %+v", reg)
		}
		r := h.Hub.Runner("r1")
		if all := must(h.Runners(ctx))(t); len(all) != 1 || all[0].Name != "r1" || !all[0].Online || all[0].CPU != 4 {
			t.Fatalf("Runners: %+v", all)
		}

		if env := must(h.Environment(ctx, repo))(t); env.Draft != nil || env.Current != nil || env.Verdict.OK {
			t.Fatalf("no Environment yet: %+v", env)
		}
		_, err = h.SaveDraftYAML(ctx, repo, 0, "env.yml", "image: debian:12\nboostrap: x\ncpu: lots\n")
		e := wantCode(t, err, fault.Invalid, "")
		if e.Status != 422 || len(e.Problems) < 2 || e.Problems[0].Line != 2 || e.Problems[0].Column != 1 || e.Problems[1].Line != 3 {
			t.Fatalf("problems with their places: %+v", e)
		}
		d := must(h.SaveDraftYAML(ctx, repo, 0, "env.yml", "image: debian:12\nbootstrap: |\n  echo one\n"))(t)
		if d.Revision != 1 || d.Spec.Bootstrap != "echo one\n" || !strings.Contains(d.YAML, "image: debian:12") || d.UpdatedBy != "ana" {
			t.Fatalf("draft: %+v", d)
		}
		_, err = h.SaveDraft(ctx, repo, 0, envspec.Default())
		if e := wantCode(t, err, fault.Conflict, "meanwhile"); e.Status != 409 {
			t.Fatalf("status %d", e.Status)
		}
		_, err = h.SaveDraft(ctx, repo, 1, envspec.Spec{Image: "no image", CPU: -1})
		if e := wantCode(t, err, fault.Invalid, ""); e.Fields["image"] == "" || e.Fields["cpu"] == "" {
			t.Fatalf("fields: %+v", e.Fields)
		}
		_, err = h.Apply(ctx, repo, 1, "")
		if e := wantCode(t, err, fault.Refused, "needs a passing Test build"); e.Status != 409 {
			t.Fatalf("status %d", e.Status)
		}

		_, err = h.StartTest(ctx, repo, 1, "nobody")
		wantCode(t, err, fault.NotFound, "There is no Runner “nobody”")
		test := must(h.StartTest(ctx, repo, 1, "r1"))(t)
		if test.State != "queued" || test.Runner.Name != "r1" || test.Final {
			t.Fatalf("Test build: %+v", test)
		}
		var states []string
		waited := make(chan schema.TestBuild)
		seen := make(chan string, 10)
		go func() {
			defer close(waited)
			got, err := h.WaitTest(ctx, repo, test.ID, func(t schema.TestBuild) { seen <- t.State })
			if err != nil {
				t.Error(err)
				return
			}
			waited <- got
		}()
		states = append(states, <-seen)
		item := r.Item()
		r.MustReport(item, wire.StateRunning, wire.TestBuildDetail{Phases: []wire.Phase{{Name: wire.PhaseImage, State: "running"}}})
		states = append(states, <-seen)
		r.Pass(item)
		if got, ok := <-waited; !ok || !got.Final || got.ImageDigest != apptest.Digest {
			t.Fatalf("waited for: %+v after %v", got, states)
		}
		if strings.Join(states, " ") != "queued running" {
			t.Fatalf("states on the way: %v", states)
		}
		_, etag, _, err := h.Test(ctx, repo, test.ID, client.Wait{})
		if err != nil || etag == "" {
			t.Fatalf("tag %q, %v", etag, err)
		}
		if _, again, changed, err := h.Test(ctx, repo, test.ID, client.Wait{Seen: etag, For: 50 * time.Millisecond}); err != nil || changed || again != etag {
			t.Fatalf("nothing changed: %v, %q, %v", changed, again, err)
		}
		if err := h.CancelTest(ctx, repo, test.ID); err != nil {
			t.Fatalf("cancelling what is final changes nothing: %v", err)
		}
		if all := must(h.Tests(ctx, repo))(t); len(all) != 1 {
			t.Fatalf("Test builds: %+v", all)
		}
		v := must(h.Apply(ctx, repo, 1, "first"))(t)
		if v.Number != 1 || v.TestBuild != test.ID || v.Message != "first" {
			t.Fatalf("version: %+v", v)
		}
		if all := must(h.Versions(ctx, repo))(t); len(all) != 1 {
			t.Fatalf("versions: %+v", all)
		}
		if v := must(h.Version(ctx, repo, 1))(t); v.ImageDigest != apptest.Digest {
			t.Fatalf("version: %+v", v)
		}
		_, err = h.Version(ctx, repo, 2)
		wantCode(t, err, fault.NotFound, "no version 2")

		_, err = h.StartSession(ctx, repo, schema.StartSession{Branch: "--x"})
		if e := wantCode(t, err, fault.Invalid, "not a branch name"); e.Fields["branch"] == "" {
			t.Fatalf("fields: %+v", e.Fields)
		}
		sn := must(h.StartSession(ctx, repo, schema.StartSession{Runner: "r1"}))(t)
		if sn.State != "starting" || sn.Repo.Name != "acme/rocket" {
			t.Fatalf("Session: %+v", sn)
		}
		r.MustReport(r.Item(), wire.StateRunning, wire.SessionDetail{Workspace: true})
		sn = must(h.WaitSession(ctx, repo, sn.ID, func(s schema.Session) bool { return s.State == "running" }, nil))(t)
		for _, part := range []string{sn.ID, sn.ID[:20], sn.ID[len(sn.ID)-8:]} {
			if got := must(h.FindSession(ctx, part))(t); got.ID != sn.ID {
				t.Fatalf("found %s by %s", got.ID, part)
			}
		}
		_, err = h.FindSession(ctx, "no-such")
		if !client.Is(err, fault.NotFound) {
			t.Fatal(err)
		}
		if sn = must(h.Count(ctx, repo, sn.ID))(t); sn.State != "running" {
			t.Fatalf("counting: %+v", sn)
		}
		if sn = must(h.Sleep(ctx, repo, sn.ID))(t); sn.State != "stopping" {
			t.Fatalf("put to sleep: %+v", sn)
		}
		r.MustReport(r.Item(), wire.StateAsleep, wire.SessionDetail{Workspace: true, Unsaved: &wire.Unsaved{Files: 1, At: 1}})
		if sn = must(h.Wake(ctx, repo, sn.ID))(t); sn.State != "waking" || !strings.Contains(sn.Unsaved, "1 uncommitted file") {
			t.Fatalf("woken: %+v", sn)
		}
		r.MustReport(r.Item(), wire.StateFailed, wire.SessionDetail{Workspace: true, Failure: &wire.Failure{Code: "exit", Message: "x"}})
		if sn = must(h.Retry(ctx, repo, sn.ID))(t); sn.State != "starting" {
			t.Fatalf("tried again: %+v", sn)
		}
		err = h.DeleteSession(ctx, repo, sn.ID, "")
		if e := wantCode(t, err, fault.Invalid, "1 uncommitted file"); e.Fields["confirm"] == "" {
			t.Fatalf("fields: %+v", e.Fields)
		}
		if err := h.DeleteSession(ctx, repo, sn.ID, sn.ID); err != nil {
			t.Fatal(err)
		}
		r.MustReport(r.Item(), wire.StateRemoved, wire.SessionDetail{})
		if all := must(h.Sessions(ctx, repo))(t); len(all) != 0 {
			t.Fatalf("Sessions: %+v", all)
		}
		if err := h.RevokeRunner(ctx, "r1"); err != nil {
			t.Fatal(err)
		}
		wantCode(t, h.RevokeRunner(ctx, "r1"), fault.NotFound, "There is no Runner")
	})
}

func TestErrorsAreProblemJSON(t *testing.T) {
	t.Parallel()
	h := newHub(t, storetest.New(t), apptest.Options{})
	_, token, err := h.Hub.Gate.IssueToken(t.Context(), "ana", "test", time.Hour)
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		method, path, body string
		status             int
		code               fault.Code
		says               string
	}{
		{"GET", "/nothing", "", 404, fault.NotFound, "no such path"},
		{"POST", "/me", "", 405, fault.Invalid, "POST"},
		{"PUT", "/repos/42/environment/draft", "{", 400, fault.Invalid, "not the JSON"},
		{"PUT", "/repos/42/environment/draft", `{"base":0,"sepc":{}}`, 400, fault.Invalid, "sepc"},
		{"PUT", "/repos/42/environment/draft", `{} {}`, 400, fault.Invalid, "more than one"},
		{"PUT", "/repos/42/environment/draft", `{"base":0}`, 422, fault.Invalid, "either"},
		{"PUT", "/repos/42/environment/draft", `{"yaml":"` + strings.Repeat("x", 3<<20) + `"}`, 413, fault.Invalid, "larger than"},
		{"POST", "/repos/42/environment/tests", `{"revision":1}`, 422, fault.Invalid, "which Runner"},
		{"GET", "/repos/42/environment/tests/nope", "", 404, fault.NotFound, "no such Test build"},
		{"GET", "/repos/42/environment/tests/nope/log", "", 404, fault.NotFound, "no such Test build"},
		{"GET", "/repos/42/sessions/nope", "", 404, fault.NotFound, "no such Session"},
		{"POST", "/repos/42/sessions/nope/channels", "{}", 404, fault.NotFound, "no such Session"},
		{"POST", "/repos/42/sessions", "{}", 409, fault.Refused, "no applied Environment"},
	} {
		req, err := http.NewRequestWithContext(t.Context(), c.method, h.server.URL+"/api/v1"+c.path, strings.NewReader(c.body))
		if err != nil {
			t.Fatal(err)
		}
		req.Header.Set("Authorization", "Bearer "+token)
		res, err := http.DefaultClient.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		var p schema.Error
		err = json.NewDecoder(res.Body).Decode(&p)
		res.Body.Close()
		if err != nil || res.StatusCode != c.status || p.Status != c.status || p.Code != c.code || !strings.Contains(p.Detail, c.says) || p.RequestID != res.Header.Get("X-Request-Id") ||
			p.Title == "" || res.Header.Get("Content-Type") != "application/problem+json" || res.Header.Get("Cache-Control") != "no-store" {
			t.Errorf("%s %s: %d %+v (%v)", c.method, c.path, res.StatusCode, p, err)
		}
	}
}

func TestAnUnreachableHubIsAKindOfItsOwn(t *testing.T) {
	t.Parallel()
	other := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { http.Error(w, "<html>", http.StatusBadGateway) }))
	t.Cleanup(other.Close)
	closed := httptest.NewServer(nil)
	closed.Close()
	for url, says := range map[string]string{closed.URL: "refused", other.URL: "not as a Hub does"} {
		c, err := client.New(url, "x", nil)
		if err != nil {
			t.Fatal(err)
		}
		client.SetPatience(c, 0)
		_, err = c.Me(t.Context())
		var u *client.Unreachable
		if !errors.As(err, &u) || !strings.Contains(err.Error(), says) || !strings.Contains(err.Error(), url) {
			t.Errorf("%s: %v", url, err)
		}
	}
	for _, bad := range []string{"", "hub.example.com", "ftp://hub"} {
		if _, err := client.New(bad, "x", nil); err == nil {
			t.Errorf("%q is no URL of a Hub", bad)
		}
	}
	h := newHub(t, storetest.New(t), apptest.Options{})
	c, err := client.New(h.server.URL, "wrong", nil)
	if err != nil {
		t.Fatal(err)
	}
	_, err = c.Me(t.Context())
	wantCode(t, err, fault.Unauthorized, "unknown or has expired")
}

func (h *hub) startTest() (*apptest.Runner, *wire.Item, schema.TestBuild) {
	h.t.Helper()
	r := h.Hub.Runner("r1")
	must(h.SaveDraft(h.t.Context(), repo, 0, envspec.Default()))(h.t)
	test := must(h.StartTest(h.t.Context(), repo, 1, "r1"))(h.t)
	return r, r.Item(), test
}

func (h *hub) logs(r *apptest.Runner, item *wire.Item, offset int, text string, end bool) error {
	_, err := h.Hub.Fleet.AppendLog(context.WithoutCancel(h.t.Context()), r.ID, &wire.AppendLogRequest{Id: item.GetId(), Fence: item.GetFence(), Offset: int64(offset), Data: []byte(text), End: end})
	return err
}

func TestALogIsFollowedToItsEndThroughLostAnswers(t *testing.T) {
	t.Parallel()
	h := newHub(t, storetest.New(t), apptest.Options{})
	r, item, test := h.startTest()
	h.faults.every = 3
	var want strings.Builder
	done := make(chan error, 1)
	go func() {
		at := 0
		for i := range 40 {
			line := fmt.Sprintf("line %d \x00\xff\n", i)
			want.WriteString(line)
			if err := h.logs(r, item, at, line, i == 39); err != nil {
				done <- err
				return
			}
			at += len(line)
		}
		done <- r.Report(item, wire.StateFailed, wire.TestBuildDetail{})
	}()
	var got bytes.Buffer
	end, err := h.CopyLog(t.Context(), client.TestLog(repo, test.ID), client.Follow{Live: true}, &got)
	if err != nil {
		t.Fatal(err)
	}
	if err := <-done; err != nil {
		t.Fatal(err)
	}
	if got.String() != want.String() || end != int64(want.Len()) {
		t.Fatalf("%d bytes of %d, to %d:\n%q", got.Len(), want.Len(), end, got.String())
	}
	got.Reset()
	if _, err := h.CopyLog(t.Context(), client.TestLog(repo, test.ID), client.Follow{From: 7}, &got); err != nil || got.String() != want.String()[7:] {
		t.Fatalf("from 7: %q, %v", got.String(), err)
	}
}

func TestALogSaysWhatWasNotKept(t *testing.T) {
	t.Parallel()
	h := newHub(t, storetest.New(t), apptest.Options{Fleet: fleet.Options{LogLimit: 8000}})
	r, item, test := h.startTest()
	at := 0
	for range 20 {
		if err := h.logs(r, item, at, strings.Repeat("x", 1000), false); err != nil {
			t.Fatal(err)
		}
		at += 1000
	}
	var got bytes.Buffer
	var dropped int64
	end, err := h.CopyLog(t.Context(), client.TestLog(repo, test.ID), client.Follow{Dropped: func(n int64) { dropped += n }}, &got)
	if err != nil || dropped == 0 || int64(got.Len())+dropped != 20_000 || end != 20_000 {
		t.Fatalf("%d bytes, %d dropped, to %d, %v", got.Len(), dropped, end, err)
	}
}

func TestTheLogOfATestBuildThatNeverBeganEnds(t *testing.T) {
	t.Parallel()
	h := newHub(t, storetest.New(t), apptest.Options{})
	_, item, test := h.startTest()
	if err := h.CancelTest(t.Context(), repo, test.ID); err != nil {
		t.Fatal(err)
	}
	_ = item
	now := h.Hub.DB.Now()
	h.Hub.DB.SetClock(func() time.Time { return now.Add(2 * time.Minute) })
	if err := h.Hub.Fleet.RunOnce(t.Context()); err != nil {
		t.Fatal(err)
	}
	h.Hub.DB.SetClock(func() time.Time { return now.Add(3 * time.Minute) })
	if end, err := h.CopyLog(t.Context(), client.TestLog(repo, test.ID), client.Follow{Live: true}, io.Discard); err != nil || end != 0 {
		t.Fatalf("to %d, %v", end, err)
	}
}

// A person who mistyped the URL, or whose Hub is down, is not kept waiting for it.
func TestAHubThatNeverAnsweredIsUnreachableAtOnce(t *testing.T) {
	t.Parallel()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	nobody := "http://" + l.Addr().String()
	l.Close()
	c, err := client.New(nobody, "token", nil)
	if err != nil {
		t.Fatal(err)
	}
	began := time.Now()
	var away *client.Unreachable
	if _, err := c.Repos(t.Context()); !errors.As(err, &away) {
		t.Fatalf("want Unreachable, got %v", err)
	}
	if took := time.Since(began); took > 10*time.Second {
		t.Fatalf("it took %s to say so", took)
	}
}
