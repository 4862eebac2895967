package githubtest_test

import (
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strings"
	"testing"

	"github.com/claude-hub/claude-hub/app/github/githubtest"
	"github.com/claude-hub/claude-hub/app/github/githubtest/checked"
)

// browser clicks: it follows nothing by itself.
func browse(t *testing.T, method, to string, form url.Values) (status int, location, body string) {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), method, to, strings.NewReader(form.Encode()))
	if err != nil {
		t.Fatal(err)
	}
	if method == "POST" {
		req.Header.Set("Content-Type", "application/x-www-form-urlencoded")
	}
	resp, err := (&http.Client{CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}).Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	return resp.StatusCode, resp.Header.Get("Location"), string(b)
}

func id(a githubtest.Account) string { return fmt.Sprint(a.ID) }

// TestFlowsCanBeClickedThrough goes from no App to a merged pull request as somebody with a browser would.
func TestFlowsCanBeClickedThrough(t *testing.T) {
	t.Parallel()
	checked.Both(t, func(t *testing.T, gh *githubtest.Server) {
		web := gh.URLs().Web
		ana, org := gh.Person("ana"), gh.Org("octo")
		org.Admit(ana, "admin")
		repo := gh.Repo("octo/app", true, githubtest.Files{"README.md": githubtest.Text("<script>alert(1)</script>")})

		manifest := `{"name":"My <Hub>","url":"http://hub.example","redirect_url":"http://hub.example/created","callback_urls":["http://hub.example/cb"],` +
			`"setup_url":"http://hub.example/setup","default_permissions":{"checks":"write","contents":"read","metadata":"read","pull_requests":"read"},"default_events":["push"]}`
		form := url.Values{"manifest": {manifest}}
		status, _, page := browse(t, "POST", web+"/organizations/octo/settings/apps/new?state=s1", form)
		if status != 200 || !strings.Contains(page, "Create the GitHub App My &lt;Hub&gt;") || !strings.Contains(page, `value="`+id(ana)+`"`) {
			t.Fatalf("got %d %s", status, page)
		}
		form.Set("as", id(gh.Person("mallory")))
		if status, _, _ := browse(t, "POST", web+"/organizations/octo/settings/apps/new?state=s1", form); status != 404 {
			t.Errorf("not an owner: got %d", status)
		}
		form.Set("as", id(ana))
		status, to, page := browse(t, "POST", web+"/organizations/octo/settings/apps/new?state=s1", form)
		if status != 302 || !strings.HasPrefix(to, "http://hub.example/created?code=") || !strings.HasSuffix(to, "&state=s1") {
			t.Fatalf("got %d %s %s", status, to, page)
		}
		if status, _, page := browse(t, "POST", web+"/settings/apps/new", url.Values{"manifest": {`{"name":"x","surprise":1}`}}); status != 422 || !strings.Contains(page, "surprise") {
			t.Errorf("a wrong manifest: got %d %s", status, page)
		}

		apps := "/apps/"
		if gh.GHES() {
			apps = "/github-apps/"
		}
		install := web + apps + "my--hub-/installations/new?state=s2"
		if status, _, page := browse(t, "GET", install, nil); status != 200 || !strings.Contains(page, "octo/app") {
			t.Fatalf("got %d %s", status, page)
		}
		status, to, _ = browse(t, "POST", install, url.Values{"as": {id(ana)}, "on": {id(org)}, "repo": {fmt.Sprint(repo.ID)}})
		if status != 302 || !strings.HasPrefix(to, "http://hub.example/setup?installation_id=") || !strings.HasSuffix(to, "&setup_action=install&state=s2") {
			t.Fatalf("got %d %s", status, to)
		}

		_, _, home := browse(t, "GET", web+"/", nil)
		for _, want := range []string{`href="/octo/app"`, "Install My &lt;Hub&gt;", "My &lt;Hub&gt; on octo"} {
			if !strings.Contains(home, want) {
				t.Errorf("the first page doesn't show %q: %s", want, home)
			}
		}

		do := web + "/octo/app/do"
		if status, _, page := browse(t, "POST", do, url.Values{"as": {id(ana)}, "do": {"propose"}, "path": {".claude-hub/environment.yml"}, "content": {"image: debian\r\n"}}); status != 303 {
			t.Fatalf("got %d %s", status, page)
		}
		_, _, page = browse(t, "GET", web+"/octo/app", nil)
		if !strings.Contains(page, "#1 Change proposal-") || !strings.Contains(page, "(open)") {
			t.Fatalf("the proposal isn't shown: %s", page)
		}
		if status, _, page := browse(t, "POST", do, url.Values{"as": {id(ana)}, "do": {"press:test"}, "id": {"1"}}); status != 422 || !strings.Contains(page, "no check run") {
			t.Errorf("got %d %s", status, page)
		}
		before := repo.Head("main")
		if status, _, _ := browse(t, "POST", do, url.Values{"as": {id(ana)}, "do": {"merge"}, "id": {"1"}}); status != 303 || repo.Head("main") == before {
			t.Errorf("it isn't merged: %d", status)
		}
		repo.Push(ana, "clash", "Clash", githubtest.Files{"README.md": githubtest.Text("one")})
		repo.OpenPull(ana, repo, "clash", "Clash")
		repo.Push(ana, "main", "Meanwhile", githubtest.Files{"README.md": githubtest.Text("two")})
		for range 2 {
			if status, _, page := browse(t, "POST", do, url.Values{"as": {id(ana)}, "do": {"merge"}, "id": {"2"}}); status != 422 || !strings.Contains(page, "merge-tree") {
				t.Errorf("a merge with conflicts: got %d %s", status, page)
			}
		}
		if _, _, page := browse(t, "GET", web+"/octo/app/pull/1", nil); !strings.Contains(page, "(merged)") {
			t.Errorf("it isn't shown as merged: %s", page)
		}
	})
}

func TestSignInPageRefusesWhatGitHubRefuses(t *testing.T) {
	t.Parallel()
	s := begin(t, checked.New(t, githubtest.Options{}))
	page := func(change func(url.Values)) string {
		q := url.Values{"client_id": {s.app.ClientID}, "redirect_uri": {"http://hub.example/callback"}, "state": {"s"}, "code_challenge": {"c"}, "code_challenge_method": {"S256"}}
		change(q)
		return s.gh.URLs().Web + "/login/oauth/authorize?" + q.Encode()
	}
	good := page(func(url.Values) {})
	if status, _, body := browse(t, "GET", good, nil); status != 200 || !strings.Contains(body, "Authorize claude-hub") {
		t.Errorf("got %d %s", status, body)
	}
	status, to, _ := browse(t, "POST", good, url.Values{"as": {id(s.ana)}})
	if status != 302 || !strings.HasPrefix(to, "http://hub.example/callback?code=") || !strings.HasSuffix(to, "&state=s") {
		t.Errorf("got %d %s", status, to)
	}
	for name, change := range map[string]func(url.Values){
		"another callback": func(q url.Values) { q.Set("redirect_uri", "http://evil.example/callback") },
		"another App":      func(q url.Values) { q.Set("client_id", "x") },
		"a plain verifier": func(q url.Values) { q.Set("code_challenge_method", "plain") },
	} {
		for _, method := range []string{"GET", "POST"} {
			if status, to, _ := browse(t, method, page(change), url.Values{"as": {id(s.ana)}}); status != 422 || to != "" {
				t.Errorf("%s, %s: got %d %s", name, method, status, to)
			}
		}
	}
	if status, _, _ := browse(t, "GET", s.gh.URLs().Web+"/octo/none", nil); status != 404 {
		t.Errorf("no such page: got %d", status)
	}
}
