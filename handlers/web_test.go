package handlers_test

import (
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"net/url"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/claude-hub/claude-hub/app/apptest"
	"github.com/claude-hub/claude-hub/app/fleet"
	"github.com/claude-hub/claude-hub/handlers"
	"github.com/claude-hub/claude-hub/runner/wire"
	"github.com/claude-hub/claude-hub/store"
	"github.com/claude-hub/claude-hub/store/storetest"
)

const repoPath = "/repos/42"

func draft(base int64, image, bootstrap, start, cpu, memory string) url.Values {
	return url.Values{"base": {strconv.FormatInt(base, 10)}, "image": {image}, "bootstrap": {bootstrap}, "start": {start}, "cpu": {cpu}, "memory": {memory}}
}

func TestTheWholeStoryWorksByFormsAlone(t *testing.T) {
	t.Parallel()
	storetest.Each(t, func(t *testing.T, db *store.DB) {
		s := newSite(t, db, apptest.Options{})
		b := s.browser()
		p := b.get(repoPath)
		if p.status != http.StatusSeeOther || p.header.Get("Location") != "/sign-in?return_to=%2Frepos%2F42" {
			t.Fatalf("signed out: %d to %s", p.status, p.header.Get("Location"))
		}
		b.see(p.header.Get("Location"), `name="return_to" value="/repos/42"`, "Dev login is on")
		if to := b.posted("/sign-in", url.Values{"login": {"ana"}, "return_to": {"/repos/42"}}); to != "/repos/42" {
			t.Fatalf("back to %s", to)
		}
		b.see("/", "acme/rocket", "acme/other", "none applied", "No Runner is registered yet")
		b.see(repoPath, "This Repo has no Environment yet")
		b.see(repoPath+"/sessions", "A Repo needs one before its first Session")

		p = b.post("/runners/registrations", nil)
		b.want(p, http.StatusOK, " | claude-hub runner register --hub "+s.url, "echo chreg_")
		if strings.Contains(b.get("/runners").body, "chreg_") {
			t.Fatal("a registration token is shown a second time")
		}
		r := s.Runner("r1")
		b.see("/runners", "r1", "online", "at most 4 CPUs and 8 GiB")

		b.see(repoPath+"/environment", `name="base" value="0"`, "buildpack-deps:bookworm")
		to := b.posted(repoPath+"/environment", draft(0, " buildpack-deps:bookworm ", "echo one\r\necho two\r\n", "", "2", "512MiB"))
		b.see(to, "Saved as revision 1.", "echo one\necho two\n", `value="512MiB"`, "This needs a passing Test build", `disabled`, "This draft needs a passing Test build of exactly what it says now")

		to = b.posted(repoPath+"/tests", url.Values{"revision": {"1"}, "runner": {r.ID}})
		b.see(to, "Waiting for Runner r1 to begin.", ">Cancel</button>", `<noscript><meta http-equiv="refresh"`)
		p = b.post(repoPath+"/tests", url.Values{"revision": {"1"}, "runner": {r.ID}})
		b.want(p, http.StatusConflict, "already queued on r1")

		item := r.Item()
		one := 1
		r.MustReport(item, wire.StateRunning, wire.TestBuildDetail{
			Phases:   []wire.Phase{{Name: wire.PhaseImage, State: "done", Started: 1000, Ended: 3500, Note: "already on this Runner"}, {Name: wire.PhaseBootstrap, State: "running", Started: 3500, ExitCode: &one}},
			Progress: &wire.Progress{Text: "412 of 1,240 MB", Done: 412, Total: 1240}, Notes: []string{"asked 8 CPUs, runner r1 gives 4"},
		})
		s.logs(r, item, 0, "hello <b>log</b>\x1b[31m red\x1b[0m\n10%\r20%\rdone\n", false)
		b.see(to, "already on this Runner", "2.5 s", "412 of 1,240 MB", `max="1240"`, "asked 8 CPUs, runner r1 gives 4", "hello &lt;b&gt;log&lt;/b&gt; red\ndone\n")
		r.Pass(item)
		p = b.see(to, "What was tested is what the draft says now.", "Apply it")
		if strings.Contains(p.body, "http-equiv") || strings.Contains(p.body, ">Cancel<") {
			t.Fatal("a page of something final refreshes itself, or offers to cancel it")
		}

		b.see(repoPath+"/environment", "A Test build of exactly this draft passed.")
		to = b.posted(repoPath+"/environment/apply", url.Values{"revision": {"1"}, "message": {"first <i>version</i>"}})
		b.see(to, "Version 1 is applied", "first &lt;i&gt;version&lt;/i&gt;", apptest.Digest)
		b.see(repoPath+"/versions", "first &lt;i&gt;version", "current")
		p = b.post(repoPath+"/environment/apply", url.Values{"revision": {"1"}, "message": {"again"}})
		b.want(p, http.StatusConflict, "there is nothing to apply", `value="again"`)

		p = b.post(repoPath+"/sessions", url.Values{"runner": {""}, "branch": {"--upload-pack=x"}, "work_branch": {"mine"}})
		b.want(p, http.StatusUnprocessableEntity, `aria-describedby="branch-error branch-hint"`, `value="--upload-pack=x"`, `value="mine"`)
		to = b.posted(repoPath+"/sessions", url.Values{"runner": {""}, "branch": {""}, "work_branch": {"mine"}})
		session := strings.TrimPrefix(to, repoPath+"/sessions/")
		b.see(to, "is making its Sandbox", "mine", "version 1")
		p = b.post(to+"/retry", nil)
		b.want(p, http.StatusConflict, "Only a failed Session can be tried again")

		item = r.Item()
		r.MustReport(item, wire.StateRunning, wire.SessionDetail{Workspace: true, Version: 1, Stages: []wire.Stage{{Name: wire.StageSandbox, US: 41_000}, {Name: wire.StageDocker, US: 600_000}}})
		b.see(to, "claude-hub session shell "+session, "up after 641 ms: Sandbox 41 ms, Docker 600 ms", "Put to sleep")
		r.MustReport(item, wire.StateRunning, wire.SessionDetail{Workspace: true, Version: 1, StartFailed: &wire.Failure{Phase: wire.PhaseStart, Message: "The start script ended with <4>.", LastLines: "oops"}})
		b.see(to, "Its Sandbox is up, but the start script failed: use it to find out why.", "The start script failed", "The start script ended with &lt;4&gt;.", "oops", "Open a terminal")
		b.posted(to+"/sleep", nil)
		item = r.Item()
		r.MustReport(item, wire.StateAsleep, wire.SessionDetail{Workspace: true, Unsaved: &wire.Unsaved{Files: 2, Commits: 1, At: 1_700_000_000_000}})
		b.see(to, "It has no Sandbox", ">Wake<", "It held 2 uncommitted files and 1 unpushed commit at 2023-11-14 22:13 UTC; they exist on this Runner&#39;s host only.")
		b.see(repoPath+"/sessions", "asleep", "mine")

		b.want(b.post(to+"/grow", url.Values{"disk": {"more"}}), http.StatusUnprocessableEntity, "is not a size")
		b.want(b.post(to+"/grow", url.Values{"disk": {"1GiB"}}), http.StatusUnprocessableEntity, "A disk only grows")
		b.posted(to+"/grow", url.Values{"disk": {"40GiB"}})
		b.see(to, "up to 40 GiB")
		b.see(to+"/archive", "will be gone. The Workspace stays.", "It held 2 uncommitted files")
		b.posted(to+"/archive", nil)
		b.see(to, "It is being put away", ">Restore<")
		r.MustReport(r.Item(), wire.StateArchived, wire.SessionDetail{Workspace: true})
		b.see(to, "It is put away on Runner", ">Restore and wake<")
		b.see(repoPath+"/sessions", "Archived: 1", "mine")
		if p := b.get(to); strings.Contains(p.body, ">Wake<") || strings.Contains(p.body, "Archive…") {
			t.Errorf("an archived Session can be woken:\n%s", p.body)
		}
		b.posted(to+"/restore", url.Values{"wake": {"on"}})
		b.see(to, "is booting its Sandbox again")
		r.MustReport(r.Item(), wire.StateRunning, wire.SessionDetail{Workspace: true, Version: 1})
		b.posted(to+"/archive", nil)
		b.posted(to+"/restore", nil) // before its Runner got to it
		r.MustReport(r.Item(), wire.StateAsleep, wire.SessionDetail{Workspace: true, Unsaved: &wire.Unsaved{Files: 2, Commits: 1, At: 1_700_000_000_000}})
		b.see(to, "It has no Sandbox")

		ask := b.posted(to+"/count", nil)
		b.see(ask, "It held 2 uncommitted files and 1 unpushed commit at 2023-11-14 22:13 UTC")
		p = b.post(to+"/delete", url.Values{"confirm": {"yes"}})
		b.want(p, http.StatusUnprocessableEntity, "This is not the Session&#39;s id", `aria-invalid="true"`, "2 uncommitted files")
		b.posted(to+"/delete", url.Values{"confirm": {session}})
		b.see(to, "are being deleted")
		r.MustReport(r.Item(), wire.StateRemoved, wire.SessionDetail{})
		if p := b.get(to); p.status != http.StatusNotFound {
			t.Fatalf("a deleted Session: %d", p.status)
		}
		b.see(repoPath+"/sessions", "No Session yet.")
		if to := b.posted("/sign-out", nil); to != "/sign-in" {
			t.Fatal(to)
		}
		if p := b.get("/"); p.status != http.StatusSeeOther {
			t.Fatalf("signed out: %d", p.status)
		}
	})
}

func TestARunningSessionCountsBeforeItIsDeleted(t *testing.T) {
	t.Parallel()
	s := newSite(t, storetest.New(t), apptest.Options{})
	b, r := s.as("ana"), s.Runner("r1")
	s.Applied(s.Grant("ana"), r, spec())
	to := b.posted(repoPath+"/sessions", url.Values{})
	r.MustReport(r.Item(), wire.StateRunning, wire.SessionDetail{Workspace: true})
	if back := b.posted(to+"/count", url.Values{"back": {"on"}}); back != to {
		t.Errorf("counted again on the Session's page it leads to %s", back)
	}
	ask := b.posted(to+"/count", nil)
	b.see(ask, "is counting", `http-equiv="refresh"`)
	r.MustReport(r.Item(), wire.StateRunning, wire.SessionDetail{Workspace: true, Unsaved: &wire.Unsaved{Files: 1, At: 1_700_000_000_000}})
	if p := b.see(ask, "It held 1 uncommitted file and 0 unpushed commits"); strings.Contains(p.body, "is counting") {
		t.Fatal("counted, and still counting")
	}
}

func TestAConflictKeepsWhatWasTypedAndShowsTheOthers(t *testing.T) {
	t.Parallel()
	s := newSite(t, storetest.New(t), apptest.Options{})
	ana, bob := s.as("ana"), s.as("bob")
	ana.posted(repoPath+"/environment", draft(0, "debian:12", "echo first", "", "", ""))
	bob.see(repoPath+"/environment", `name="base" value="1"`)
	ana.posted(repoPath+"/environment", draft(1, "debian:12", "echo ana's", "", "3", ""))

	p := bob.post(repoPath+"/environment", draft(1, "debian:13", "echo bob's", "", "", ""))
	bob.want(p, http.StatusConflict, "ana saved this draft meanwhile", "echo bob&#39;s", `value="debian:13"`, `name="base" value="2"`,
		"What ana saved as revision 2", "echo ana&#39;s", "Save mine over revision 2")
	theirs := p.body[strings.Index(p.body, `class="theirs"`):strings.Index(p.body, `class="spec"`)]
	for _, field := range []string{"Image", "Bootstrap script", "CPU"} {
		if !strings.Contains(theirs, "<h3>"+field+"</h3>") {
			t.Errorf("theirs doesn't show %s:\n%s", field, theirs)
		}
	}
	for _, field := range []string{"Start script", "Memory"} {
		if strings.Contains(theirs, "<h3>"+field+"</h3>") {
			t.Errorf("theirs shows %s, which is the same", field)
		}
	}
	bob.see(bob.posted(repoPath+"/environment", draft(2, "debian:13", "echo bob's", "", "", "")), "Saved as revision 3.", "echo bob&#39;s")

	ana.posted(repoPath+"/environment", draft(3, "debian:14", "", "", "", ""))
	p = bob.post(repoPath+"/environment", draft(3, "debian 13", "echo kept", "", "", ""))
	bob.want(p, http.StatusUnprocessableEntity, "echo kept", `name="base" value="3"`)
}

func TestErrorsStandBesideTheirFieldAndNothingTypedIsLost(t *testing.T) {
	t.Parallel()
	s := newSite(t, storetest.New(t), apptest.Options{})
	b := s.as("ana")
	p := b.post(repoPath+"/environment", draft(0, "not an image", "\nfirst line empty", "", "lots", "4"))
	b.want(p, http.StatusUnprocessableEntity, `<a href="#image">`, `<a href="#cpu">`, `<a href="#memory">`, `id="image-error"`, `id="cpu-error"`, `id="memory-error"`,
		`value="not an image"`, `value="lots"`, `value="4"`, ">\n\nfirst line empty</textarea>")
	for _, field := range []string{"image", "cpu", "memory"} {
		if !regexp.MustCompile(`<input id="` + field + `"[^>]*aria-describedby="` + field + `-error ` + field + `-hint"[^>]*aria-invalid="true"`).MatchString(p.body) {
			t.Errorf("%s doesn't point to what is wrong with it:\n%s", field, p.body)
		}
	}
	if env, err := s.Environments.Get(t.Context(), s.Grant("ana")); err != nil || env.Draft != nil {
		t.Fatalf("something was saved: %+v, %v", env, err)
	}
	p = s.browser().post("/sign-in", url.Values{"login": {"Not A Name"}, "return_to": {"/runners"}})
	b.want(p, http.StatusUnprocessableEntity, `id="login-error"`, `value="Not A Name"`, `name="return_to" value="/runners"`)
	p = b.post(repoPath+"/environment", url.Values{"base": {"x"}})
	b.want(p, http.StatusUnprocessableEntity, "did not arrive whole")
	p = b.post(repoPath+"/environment", draft(0, "debian:12", strings.Repeat("x", 3<<20), "", "", ""))
	b.want(p, http.StatusUnprocessableEntity, "larger than the 2 MiB that are possible")
}

func TestAFormOfWhoWasSignedOutIsSentAgainByReloading(t *testing.T) {
	t.Parallel()
	s := newSite(t, storetest.New(t), apptest.Options{})
	b := s.as("ana")
	form := b.fill(b.see(environmentPath), environmentPath, url.Values{"bootstrap": {"echo a long script " + strings.Repeat("x", 200<<10)}})
	b.posted("/sign-out", nil)
	p := b.upload(environmentPath, form, nil)
	b.want(p, http.StatusUnauthorized, "the form did not go through: nothing of it was saved or done", `<a href="/sign-in" target="_blank"`, "reload it")
	if strings.Contains(p.body, "a long script") || p.header.Get("Set-Cookie") != "" || p.header.Get("Cache-Control") != "no-store" {
		t.Errorf("the answer keeps something of what was sent: %v\n%.2000s", p.header, p.body)
	}
	if env := s.environment(); env.Draft != nil {
		t.Fatalf("who is signed out saved a draft: %+v", env.Draft)
	}
	b.posted("/sign-in", url.Values{"login": {"ana"}})
	if p := b.upload(environmentPath, form, nil); p.status != http.StatusSeeOther || !strings.Contains(s.environment().Draft.Spec.Bootstrap, "a long script") {
		t.Errorf("the same form, sent again: %d\n%.2000s", p.status, p.body)
	}
}

func TestSignInLeadsNowhereElse(t *testing.T) {
	t.Parallel()
	s := newSite(t, storetest.New(t), apptest.Options{})
	for _, to := range []string{"https://evil.example/", "//evil.example/", "/\\evil.example", "\\/evil.example", "/\t/evil.example", "javascript:alert(1)", "/sign-out", "", "evil", "/%2f/..//evil"} {
		b := s.browser()
		got := b.posted("/sign-in", url.Values{"login": {"ana"}, "return_to": {to}})
		if got != "/" && got != to || strings.HasPrefix(got, "//") || strings.Contains(got, "evil.example") {
			t.Errorf("return_to %q leads to %q", to, got)
		}
	}
	b := s.browser()
	p := b.post("/sign-in", url.Values{"login": {"ana"}, "return_to": {"/repos/42/tests?x=1"}})
	cookie := p.header.Get("Set-Cookie")
	if p.header.Get("Location") != "/repos/42/tests?x=1" || !strings.Contains(cookie, "HttpOnly") || !strings.Contains(cookie, "SameSite=Lax") || !strings.Contains(cookie, "Path=/") {
		t.Errorf("%s, %s", p.header.Get("Location"), cookie)
	}
}

func TestAnUnfitRunnerCantBeChosenAndSaysWhy(t *testing.T) {
	t.Parallel()
	s := newSite(t, storetest.New(t), apptest.Options{})
	b := s.as("ana")
	b.posted(repoPath+"/environment", draft(0, "debian:12", "", "", "", ""))
	b.see(repoPath+"/tests", "No Runner is registered yet")
	r := s.Runner("old")
	real := s.DB.Now()
	s.DB.SetClock(func() time.Time { return real.Add(time.Hour) })
	s.Runner("new")
	p := b.see(repoPath+"/tests", "old (linux/amd64): offline since "+real.Format("2006-01-02 15:04 UTC"))
	if !regexp.MustCompile(`<option value="`+r.ID+`" disabled>`).MatchString(p.body) || regexp.MustCompile(`disabled>new`).MatchString(p.body) {
		t.Fatalf("the one that is offline is disabled, the other isn't:\n%s", p.body)
	}
	p = b.post(repoPath+"/tests", url.Values{"revision": {"1"}, "runner": {r.ID}})
	b.want(p, http.StatusServiceUnavailable, "is offline since")
	p = b.post(repoPath+"/tests", url.Values{"revision": {"1"}})
	b.want(p, http.StatusUnprocessableEntity, "Choose the Runner it should run on.", `id="runner-error"`)
	b.posted("/runners/"+r.ID+"/revoke", nil)
	if strings.Contains(b.see("/runners").body, "Revoke old") {
		t.Fatal("a revoked Runner is still listed")
	}
	p = b.post("/runners/"+r.ID+"/revoke", nil)
	b.want(p, http.StatusNotFound, "There is no such Runner")
}

// logEvent is what the page's script reads.
type logEvent struct{ Lines, Rest string }

func TestALogStreamIsTakenUpAgainWhereItWas(t *testing.T) {
	t.Parallel()
	s := newSite(t, storetest.New(t), apptest.Options{})
	b, r := s.as("ana"), s.Runner("r1")
	b.posted(repoPath+"/environment", draft(0, "debian:12", "", "", "", ""))
	to := b.posted(repoPath+"/tests", url.Values{"revision": {"1"}, "runner": {r.ID}})
	item := r.Item()
	first := "one\ntwo\nthr"
	s.logs(r, item, 0, first, false)

	decode := func(e event) (got logEvent) {
		if err := json.Unmarshal([]byte(e.data), &got); err != nil {
			t.Fatal(err)
		}
		return got
	}
	all := b.events(to+"/events", "", func(e event) bool { return e.name == "log" })
	last := all[len(all)-1]
	if got := decode(last); got.Lines != "one\ntwo\n" || got.Rest != "thr" || last.id != "8" {
		t.Fatalf("first: %+v", last)
	}
	second := "ee \xff\x00\x1b]0;title\x07\nfour"
	s.logs(r, item, int64(len(first)), second, true)
	var text string
	r.MustReport(item, wire.StateFailed, wire.TestBuildDetail{Failure: &wire.Failure{Phase: wire.PhaseStart, Code: "exit", Message: "The start script failed."}})
	all = b.events(to+"/events", last.id, func(e event) bool {
		if e.name == "log" {
			got := decode(e)
			text += got.Lines
			if e.id == strconv.Itoa(len(first)+len(second)-len("four")) {
				text += got.Rest
			}
		}
		return e.name == "end"
	})
	if text != "three \ufffd\nfour" {
		t.Fatalf("after coming back: %q of %v", text, all)
	}
	if got := b.events(to+"/events?from=8", "", func(e event) bool { return e.name == "log" }); decode(got[len(got)-1]).Lines != "three \ufffd\n" {
		t.Fatalf("from the page's own offset: %v", got)
	}
	b.see(to, "The start script failed.", "Start script failed", "one\ntwo\nthree \ufffd\n</span>")
}

func TestAStreamTellsOfNewStatesAndEndsWithTheHub(t *testing.T) {
	t.Parallel()
	s := newSite(t, storetest.New(t), apptest.Options{})
	b, r := s.as("ana"), s.Runner("r1")
	b.posted(repoPath+"/environment", draft(0, "debian:12", "", "", "", ""))
	to := b.posted(repoPath+"/tests", url.Values{"revision": {"1"}, "runner": {r.ID}})
	item := r.Item()
	reported := false
	b.events(to+"/events", "", func(e event) bool {
		if !reported {
			reported = true
			r.MustReport(item, wire.StateRunning, wire.TestBuildDetail{})
		}
		return e.name == "state"
	})
}

func TestALongLogNeverLoadsWholeIntoAPage(t *testing.T) {
	t.Parallel()
	s := newSite(t, storetest.New(t), apptest.Options{Fleet: fleet.Options{LogLimit: 2 << 20}})
	b, r := s.as("ana"), s.Runner("r1")
	b.posted(repoPath+"/environment", draft(0, "debian:12", "", "", "", ""))
	to := b.posted(repoPath+"/tests", url.Values{"revision": {"1"}, "runner": {r.ID}})
	item := r.Item()
	line := strings.Repeat("x", 99) + "\n"
	piece := strings.Repeat(line, 10_000)
	offset := int64(0)
	for range 5 {
		s.logs(r, item, offset, piece, false)
		offset += int64(len(piece))
	}
	s.logs(r, item, offset, "the newest line\n", false)
	p := b.see(to, "the newest line", "Earlier output is not shown here", "were not kept")
	if len(p.body) > 400<<10 {
		t.Fatalf("the page has %d bytes", len(p.body))
	}
	if p.body[strings.Index(p.body, "<pre id=\"log\""):][:400] == "" || strings.Contains(p.body, "\nx\n") {
		t.Fatal("the log on the page begins in the middle of a line")
	}
	raw := b.see(to+"/log", "the newest line\n", "bytes of this log were not kept]")
	if raw.header.Get("Content-Type") != "text/plain; charset=utf-8" || !strings.HasPrefix(raw.header.Get("Content-Disposition"), "attachment;") ||
		raw.header.Get("Content-Security-Policy") != "default-src 'none'; sandbox" || len(raw.body) > 3<<20 || len(raw.body) < 1<<20 {
		t.Fatalf("the download: %d bytes, %v", len(raw.body), raw.header)
	}
}

func TestWithDevLoginAForeignNameIsRefused(t *testing.T) {
	t.Parallel()
	s := newSite(t, storetest.New(t), apptest.Options{})
	b := s.browser()
	req := b.request(http.MethodGet, "/sign-in", nil)
	req.Host = "rebound.evil.example"
	b.want(b.do(req), http.StatusMisdirectedRequest, "answers only under its own address")
	req = b.request(http.MethodGet, "/sign-in", nil)
	req.Host = "localhost:1234"
	b.want(b.do(req), http.StatusOK)
}

func TestAssetsMayBeKeptForEver(t *testing.T) {
	t.Parallel()
	s := newSite(t, storetest.New(t), apptest.Options{})
	b := s.browser()
	for _, m := range regexp.MustCompile(`"(/assets/[^"]+)"`).FindAllStringSubmatch(b.see("/sign-in").body, -1) {
		p := b.see(m[1])
		if p.header.Get("Cache-Control") != "public, max-age=31536000, immutable" || p.header.Get("Content-Type") == "" {
			t.Errorf("%s: %v", m[1], p.header)
		}
	}
	if p := b.get("/assets/nothing.js"); p.status != http.StatusNotFound {
		t.Errorf("no such asset: %d", p.status)
	}
}

func TestOverHTTPSCookiesAreBoundToTheHost(t *testing.T) {
	t.Parallel()
	s := newSite(t, storetest.New(t), apptest.Options{})
	d := s.deps()
	d.PublicURL = "https://hub.example.com"
	h, err := handlers.New(d)
	if err != nil {
		t.Fatal(err)
	}
	send := func(host, origin string) *httptest.ResponseRecorder {
		req := httptest.NewRequest(http.MethodPost, "/sign-in", strings.NewReader("login=ana"))
		req.Host = host
		req.Header.Set("Content-Type", "application/x-www-form-urlencoded")
		req.Header.Set("Origin", origin)
		rw := httptest.NewRecorder()
		h.ServeHTTP(rw, req)
		return rw
	}
	rw := send("hub.example.com", "https://hub.example.com")
	cookie := rw.Header().Get("Set-Cookie")
	for _, want := range []string{"__Host-claude-hub=", "Secure", "HttpOnly", "SameSite=Lax", "Path=/"} {
		if !strings.Contains(cookie, want) || strings.Contains(cookie, "Domain") {
			t.Errorf("cookie %q lacks %s, or names a domain", cookie, want)
		}
	}
	if rw.Code != http.StatusSeeOther || rw.Header().Get("Strict-Transport-Security") == "" {
		t.Errorf("%d %v", rw.Code, rw.Header())
	}
	// A proxy that passes its own idea of Host on: the Hub's own origin is still its own, and no other is.
	if rw := send("127.0.0.1:7780", "https://hub.example.com"); rw.Code != http.StatusSeeOther {
		t.Errorf("behind a plain proxy: %d", rw.Code)
	}
	if rw := send("127.0.0.1:7780", "https://evil.example.com"); rw.Code != http.StatusForbidden {
		t.Errorf("another site behind a plain proxy: %d", rw.Code)
	}
}
