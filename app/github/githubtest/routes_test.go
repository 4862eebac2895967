package githubtest_test

import (
	"encoding/base64"
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"net/url"
	"os"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/golang-jwt/jwt/v4"

	"github.com/claude-hub/claude-hub/app/github/githubtest"
	"github.com/claude-hub/claude-hub/app/github/githubtest/checked"
)

// TestEveryOperationIsAnsweredAsGitHubDescribesIt walks all of the description: none may be missing here, and the checker
// holds each answer against it.
func TestEveryOperationIsAnsweredAsGitHubDescribesIt(t *testing.T) {
	t.Parallel()
	checked.Both(t, func(t *testing.T, gh *githubtest.Server) {
		s := begin(t, gh)
		gh.HookURL(s.app.ID, gh.URLs().Web+"/") // answers 405: a failed delivery in the log
		pull := s.repo.Propose(s.ana, "feature", githubtest.Files{"x": githubtest.Text("x"), "l": githubtest.Symlink("/a"), "m": githubtest.Submodule(strings.Repeat("a", 40))})
		settle(t, gh)
		log := gh.Delivered()
		user := "Bearer " + gh.UserToken(s.app.ID, s.ana)
		app, inst := s.asApp(t), "token "+s.token(t, "")
		basic := "Basic " + base64.StdEncoding.EncodeToString([]byte(s.app.ClientID+":"+s.app.ClientSecret))
		given := `{"access_token":"` + strings.TrimPrefix(user, "Bearer ") + `"}`
		back, err := gh.Manifest(`{"name":"Other","url":"http://x.example","redirect_url":"http://x.example/","default_permissions":{"contents":"read"}}`, "", s.ana)
		if err != nil {
			t.Fatal(err)
		}
		code, _ := url.Parse(back)
		sha := pull.SHA()
		main := s.repo.Head("main")
		tree := string(s.ask(t, inst, "GET", "/repos/octo/app/git/trees/"+sha, "").body)
		blob := regexp.MustCompile(`"path":"README.md","sha":"([0-9a-f]{40})"`).FindStringSubmatch(tree)
		if blob == nil {
			t.Fatalf("no blob in %s", tree)
		}
		check := s.ask(t, inst, "POST", "/repos/octo/app/check-runs",
			`{"name":"Environment","head_sha":"`+sha+`","status":"completed","conclusion":"failure","output":{"title":"t","summary":"s","annotations":[`+
				`{"path":"x","start_line":1,"end_line":1,"annotation_level":"failure","message":"m"}]}}`)
		run := fmt.Sprint("/repos/octo/app/check-runs/", int64(check.field("id").(float64)))
		install := fmt.Sprint("/app/installations/", s.inst.ID)
		asked := map[string]bool{}
		for _, c := range []struct {
			auth, method, path, body string
			status                   int
		}{
			{app, "GET", "/app", "", 200}, {app, "GET", "/app/hook/config", "", 200},
			{app, "PATCH", "/app/hook/config", `{"secret":"s","url":"` + gh.URLs().Web + `/"}`, 200},
			{app, "GET", "/app/hook/deliveries?per_page=2", "", 200},
			{app, "GET", fmt.Sprint("/app/hook/deliveries/", log[0].ID), "", 200},
			{app, "POST", fmt.Sprintf("/app/hook/deliveries/%d/attempts", log[0].ID), "", 202},
			{app, "GET", "/app/installations", "", 200}, {app, "GET", install, "", 200}, {app, "POST", install + "/access_tokens", "", 201},
			{app, "POST", install + "/access_tokens", `{"repositories":["app"],"permissions":{"checks":"write"}}`, 201},
			{"", "POST", "/app-manifests/" + code.Query().Get("code") + "/conversions", "", 201},
			{app, "GET", "/orgs/octo/installation", "", 200}, {app, "GET", "/users/octo/installation", "", 200},
			{app, "GET", "/repos/octo/app/installation", "", 200}, {app, "GET", "/users/nobody/installation", "", 404},
			{inst, "GET", "/installation/repositories", "", 200}, {"", "GET", "/meta", "", 200},
			{inst, "GET", "/repos/octo/app", "", 200}, {user, "GET", "/repos/octo/app", "", 200},
			{inst, "GET", "/repos/octo/app/branches/feature", "", 200},
			{inst, "POST", "/repos/octo/app/check-runs", `{"name":"n","head_sha":"` + main + `","actions":[]}`, 201},
			{inst, "PATCH", run, `{"status":"completed","conclusion":"success","actions":[{"label":"l","description":"d","identifier":"i"}]}`, 200},
			{inst, "GET", run, "", 200}, {inst, "GET", run + "/annotations", "", 200},
			{inst, "GET", "/repos/octo/app/collaborators/ana/permission", "", 200},
			{inst, "GET", "/repos/octo/app/commits/" + sha + "/pulls", "", 200}, {inst, "GET", "/repos/octo/app/commits/feature", "", 200},
			{inst, "GET", "/repos/octo/app/commits/" + sha + "/check-runs?filter=all&check_name=Environment", "", 200},
			{inst, "GET", "/repos/octo/app/compare/main...feature", "", 200},
			{inst, "GET", "/repos/octo/app/contents/README.md?ref=" + sha, "", 200}, {inst, "GET", "/repos/octo/app/contents/?ref=feature", "", 200},
			{inst, "GET", "/repos/octo/app/contents/l?ref=feature", "", 200}, {inst, "GET", "/repos/octo/app/contents/m?ref=feature", "", 200},
			{inst, "GET", "/repos/octo/app/contents/none", "", 404},
			{inst, "GET", "/repos/octo/app/git/blobs/" + blob[1], "", 200}, {inst, "GET", "/repos/octo/app/git/commits/" + sha, "", 200},
			{inst, "GET", "/repos/octo/app/git/trees/" + sha, "", 200},
			{inst, "GET", "/repos/octo/app/pulls?state=all", "", 200}, {inst, "GET", "/repos/octo/app/pulls/1", "", 200},
			{user, "GET", "/user", "", 200}, {user, "GET", "/user/installations", "", 200},
			{user, "GET", fmt.Sprintf("/user/installations/%d/repositories", s.inst.ID), "", 200},
			{user, "GET", fmt.Sprint("/user/", s.bob.ID), "", 200}, {user, "GET", "/users/bob", "", 200},
			{basic, "POST", "/applications/" + s.app.ClientID + "/token", given, 200},
			{basic, "DELETE", "/applications/" + s.app.ClientID + "/token", given, 204},
			{basic, "DELETE", "/applications/" + s.app.ClientID + "/grant", `{"access_token":"` + gh.UserToken(s.app.ID, s.ana) + `"}`, 204},
			{inst, "DELETE", "/installation/token", "", 204}, {inst, "GET", "/installation/repositories", "", 401},
		} {
			got := s.ask(t, c.auth, c.method, c.path, c.body)
			if got.status != c.status {
				t.Errorf("%s %s: got %d %s, want %d", c.method, c.path, got.status, got.body, c.status)
			}
			asked[c.method+" "+c.path] = true
		}
		if limit := s.ask(t, app, "GET", "/rate_limit", ""); limit.status != 200 && !gh.GHES() || limit.status != 404 && gh.GHES() {
			t.Errorf("the rate limit: got %d", limit.status)
		}
		asked["GET /rate_limit"] = true
		for _, o := range operations(t) {
			if !matches(asked, o) {
				t.Errorf("%s is described, and wasn't asked", o)
			}
		}
	})
}

func operations(t *testing.T) []string {
	t.Helper()
	b, err := os.ReadFile("checked/openapi.json")
	if err != nil {
		t.Fatal(err)
	}
	var doc struct {
		Paths map[string]map[string]any `json:"paths"`
	}
	if err := json.Unmarshal(b, &doc); err != nil {
		t.Fatal(err)
	}
	var all []string
	for path, methods := range doc.Paths {
		for m := range methods {
			if m != "parameters" {
				all = append(all, strings.ToUpper(m)+" "+path)
			}
		}
	}
	return all
}

func matches(asked map[string]bool, operation string) bool {
	parts := regexp.MustCompile(`\{[^}]+\}`).Split(operation, -1)
	for i := range parts {
		parts[i] = regexp.QuoteMeta(parts[i])
	}
	re := regexp.MustCompile("^" + strings.Join(parts, `[^/?]*`) + `(\?.*)?$`)
	for a := range asked {
		if re.MatchString(a) {
			return true
		}
	}
	return false
}

func TestWhatGitHubDoesNotDescribeIsAViolation(t *testing.T) {
	t.Parallel()
	var told []string
	s := begin(t, checked.Lenient(t, githubtest.Options{}, func(err error) { told = append(told, err.Error()) }))
	app := s.asApp(t)
	install := fmt.Sprintf("/app/installations/%d/access_tokens", s.inst.ID)
	for _, c := range []struct{ method, path, body string }{
		{"GET", "/nowhere", ""}, {"DELETE", "/repos/octo/app", ""}, {"PUT", "/repos/octo/app/contents/x", `{}`},
		{"POST", install, `{"repository_ids":["1"]}`}, {"POST", install, `{"permissions":{"contents":"admin"}}`},
		{"POST", "/repos/octo/app/check-runs", `{"name":"x"}`},
		{"POST", "/repos/octo/app/check-runs", `{"name":"x","head_sha":"y","status":"completed"}`},
		{"POST", "/repos/octo/app/check-runs", `{"name":"x","head_sha":"y","actions":[{"label":"` + strings.Repeat("x", 21) + `","description":"d","identifier":"i"}]}`},
	} {
		before := len(told)
		got := s.ask(t, app, c.method, c.path, c.body)
		if got.status != http.StatusInternalServerError || len(told) != before+1 || !strings.Contains(string(got.body), "no request that GitHub describes") {
			t.Errorf("%s %s %s: got %d %s", c.method, c.path, c.body, got.status, got.body)
		}
	}
}

func TestAppProvesItselfWithAShortTokenOfItsOwnKey(t *testing.T) {
	t.Parallel()
	s := begin(t, checked.New(t, githubtest.Options{}))
	for name, c := range map[string]struct {
		auth   string
		status int
	}{
		"a good one":     {s.asApp(t), 200},
		"nobody":         {"", 401},
		"too long":       {"Bearer " + s.jwt(t, 11*time.Minute, nil), 401},
		"expired":        {"Bearer " + s.jwt(t, -time.Second, nil), 401},
		"without an end": {"Bearer " + s.jwt(t, 0, func(tok *jwt.Token) { tok.Claims = jwt.RegisteredClaims{Issuer: fmt.Sprint(s.app.ID)} }), 401},
		"another App":    {"Bearer " + s.jwt(t, time.Minute, func(tok *jwt.Token) { tok.Claims = jwt.RegisteredClaims{Issuer: "1"} }), 401},
		"by client id": {"Bearer " + s.jwt(t, 0, func(tok *jwt.Token) {
			tok.Claims = jwt.RegisteredClaims{Issuer: s.app.ClientID, IssuedAt: jwt.NewNumericDate(time.Now()), ExpiresAt: jwt.NewNumericDate(time.Now().Add(time.Minute))}
		}), 200},
		"cut":             {strings.TrimSuffix(s.asApp(t), "A") + "x", 401},
		"an installation": {"Bearer " + s.token(t, ""), 401},
	} {
		if got := s.ask(t, c.auth, "GET", "/app", ""); got.status != c.status {
			t.Errorf("%s: got %d %s, want %d", name, got.status, got.body, c.status)
		}
	}
}

func TestTokenReachesOnlyWhatItWasMadeFor(t *testing.T) {
	t.Parallel()
	s := begin(t, checked.New(t, githubtest.Options{}))
	sha := s.repo.Head("main")
	s.inst.Add(s.other)
	narrow := "Bearer " + s.token(t, fmt.Sprintf(`{"repository_ids":[%d],"permissions":{"contents":"read"}}`, s.repo.ID))
	wide := "Bearer " + s.token(t, "")
	create := `{"name":"x","head_sha":"` + sha + `"}`
	for _, c := range []struct {
		auth, method, path, body string
		status                   int
	}{
		{narrow, "GET", "/repos/octo/app/commits/main", "", 200}, {narrow, "GET", "/repos/octo/app", "", 200},
		{narrow, "GET", "/repos/octo/other", "", 404}, {narrow, "GET", "/repos/octo/app/pulls", "", 403},
		{narrow, "POST", "/repos/octo/app/check-runs", create, 403}, {wide, "POST", "/repos/octo/app/check-runs", create, 201},
		{wide, "GET", "/repos/octo/other", "", 200}, {wide, "GET", "/user", "", 403},
		{"Bearer " + s.gh.UserToken(s.app.ID, s.ana), "POST", "/repos/octo/app/check-runs", create, 403},
		{"", "GET", "/repos/octo/app", "", 404}, {"Bearer nonsense", "GET", "/repos/octo/app", "", 401},
	} {
		if got := s.ask(t, c.auth, c.method, c.path, c.body); got.status != c.status {
			t.Errorf("%.20s %s %s: got %d %s, want %d", c.auth, c.method, c.path, got.status, got.body, c.status)
		}
	}
	for body, want := range map[string]int{
		`{"repository_ids":[424242]}`:            422,
		`{"repositories":["none"]}`:              422,
		`{"permissions":{"contents":"write"}}`:   422,
		`{"permissions":{"deployments":"read"}}`: 422,
	} {
		if got := s.ask(t, s.asApp(t), "POST", fmt.Sprintf("/app/installations/%d/access_tokens", s.inst.ID), body); got.status != want {
			t.Errorf("%s: got %d %s", body, got.status, got.body)
		}
	}
	if len(strings.TrimPrefix(wide, "Bearer ")) < 100 || strings.Count(wide, ".") != 2 {
		t.Errorf("the token has the old form: %d characters", len(wide))
	}
	s.gh.Advance(time.Hour)
	if got := s.ask(t, wide, "GET", "/repos/octo/app", ""); got.status != 401 {
		t.Errorf("an expired token: got %d", got.status)
	}
}

func TestOldNameIsRedirectedToTheIdUntilItIsTaken(t *testing.T) {
	t.Parallel()
	checked.Both(t, func(t *testing.T, gh *githubtest.Server) {
		s := begin(t, gh)
		inst := "Bearer " + s.token(t, "")
		sha := s.repo.Head("main")
		s.repo.Rename("new")
		want := fmt.Sprintf("%s/repositories/%d/commits/%s/check-runs?filter=all", gh.URLs().API, s.repo.ID, sha)
		got := s.ask(t, inst, "GET", "/repos/octo/app/commits/"+sha+"/check-runs?filter=all", "")
		if got.status != 301 || got.header.Get("Location") != want {
			t.Errorf("got %d to %s, want %s", got.status, got.header.Get("Location"), want)
		}
		if got := s.ask(t, inst, "POST", "/repos/octo/app/check-runs", `{"name":"x","head_sha":"`+sha+`"}`); got.status != 307 {
			t.Errorf("a write: got %d", got.status)
		}
		if got := s.ask(t, "Bearer "+gh.UserToken(s.app.ID, s.bob), "GET", "/repos/octo/app", ""); got.status != 404 {
			t.Errorf("who may not see it isn't told where it went: got %d", got.status)
		}
		gh.Repo("octo/app", true, nil)
		if got := s.ask(t, inst, "GET", "/repos/octo/app", ""); got.status != 404 {
			t.Errorf("the name is another's: got %d", got.status)
		}
	})
}

func TestRateLimitIsCountedAndSaid(t *testing.T) {
	t.Parallel()
	s := begin(t, checked.New(t, githubtest.Options{}))
	user := "Bearer " + s.gh.UserToken(s.app.ID, s.ana)
	if got := s.ask(t, user, "GET", "/user", ""); got.header.Get("X-RateLimit-Remaining") != "4999" || got.header.Get("X-RateLimit-Limit") != "5000" {
		t.Errorf("got %v", got.header)
	}
	s.gh.Limit("user ana", 1, time.Minute)
	s.ask(t, user, "GET", "/user", "")
	if got := s.ask(t, user, "GET", "/user", ""); got.status != 403 || got.header.Get("X-RateLimit-Remaining") != "0" {
		t.Errorf("got %d %v", got.status, got.header)
	}
	s.gh.Advance(2 * time.Minute)
	if got := s.ask(t, user, "GET", "/user", ""); got.status != 200 {
		t.Errorf("after the reset: got %d", got.status)
	}
	ghes := begin(t, checked.New(t, githubtest.Options{GHES: true}))
	if got := ghes.ask(t, ghes.asApp(t), "GET", "/app", ""); got.header.Get("X-RateLimit-Limit") != "" {
		t.Error("an Enterprise Server has no limits by itself")
	}
}

func TestCloseDoesNotWaitForWhatIsSlow(t *testing.T) {
	t.Parallel()
	s := begin(t, checked.New(t, githubtest.Options{}))
	s.gh.Break(githubtest.Fault{Path: "/app", Delay: time.Hour})
	silent, err := net.Listen("tcp", "127.0.0.1:0") // takes connections and never answers
	if err != nil {
		t.Fatal(err)
	}
	defer silent.Close()
	s.gh.HookURL(s.app.ID, "http://"+silent.Addr().String())
	s.gh.Send(s.app.ID, "push", []byte("{}"))
	done := make(chan struct{})
	go func() {
		defer close(done)
		req, _ := http.NewRequest("GET", s.gh.URLs().API+"/app", nil)
		if resp, err := http.DefaultClient.Do(req); err == nil {
			_ = resp.Body.Close()
		}
	}()
	for deadline := time.Now().Add(time.Minute); s.gh.Asked("GET", "/app") == 0; {
		if time.Now().After(deadline) {
			t.Fatal("the slow request never came")
		}
		<-time.After(5 * time.Millisecond)
	}
	begun := time.Now()
	s.gh.Close()
	<-done
	if took := time.Since(begun); took > 8*time.Second {
		t.Errorf("closing took %s", took)
	}
}
