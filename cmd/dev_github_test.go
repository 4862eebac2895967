package cmd

import (
	"context"
	"fmt"
	"html"
	"io"
	"net/http"
	"net/http/cookiejar"
	"net/url"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/rs/zerolog"

	"github.com/claude-hub/claude-hub/app/config"
)

// clicker is a browser without scripts: it follows links and redirects, and sends forms as they stand on the page.
type clicker struct {
	t    *testing.T
	http *http.Client
	at   *url.URL
	body string
}

func newClicker(t *testing.T) *clicker {
	t.Helper()
	jar, err := cookiejar.New(nil)
	if err != nil {
		t.Fatal(err)
	}
	return &clicker{t: t, http: &http.Client{Jar: jar, Timeout: time.Minute}}
}

func (c *clicker) do(req *http.Request) {
	c.t.Helper()
	res, err := c.http.Do(req)
	if err != nil {
		c.t.Fatal(err)
	}
	defer res.Body.Close()
	b, err := io.ReadAll(res.Body)
	if err != nil {
		c.t.Fatal(err)
	}
	c.at, c.body = res.Request.URL, string(b)
	if res.StatusCode != http.StatusOK {
		c.t.Fatalf("%s %s: %d\n%s", req.Method, c.at, res.StatusCode, c.body)
	}
}

// open follows a link.
func (c *clicker) open(to string) {
	c.t.Helper()
	if c.at != nil {
		u, err := c.at.Parse(to)
		if err != nil {
			c.t.Fatal(err)
		}
		to = u.String()
	}
	req, err := http.NewRequestWithContext(c.t.Context(), http.MethodGet, to, nil)
	if err != nil {
		c.t.Fatal(err)
	}
	c.do(req)
}

var (
	formTag  = regexp.MustCompile(`(?s)<form[^>]*>.*?</form>`)
	inputTag = regexp.MustCompile(`<input[^>]*>`)
	optional = regexp.MustCompile(`(?s)<select name="([^"]*)">(.*?)</select>`)
)

func attribute(tag, name string) string {
	m := regexp.MustCompile(`\s` + name + `="([^"]*)"`).FindStringSubmatch(tag)
	if m == nil {
		return ""
	}
	return html.UnescapeString(m[1])
}

// send sends the form with the button that says button, its fields changed by fill; a select is filled by an option's text.
func (c *clicker) send(button string, fill map[string]string) {
	c.t.Helper()
	for _, form := range formTag.FindAllString(c.body, -1) {
		if !strings.Contains(form, ">"+button+"</button>") {
			continue
		}
		values := url.Values{}
		for _, in := range inputTag.FindAllString(form, -1) {
			if kind := attribute(in, "type"); kind != "checkbox" && kind != "file" {
				values.Set(attribute(in, "name"), attribute(in, "value"))
			}
		}
		for _, s := range optional.FindAllStringSubmatch(form, -1) {
			option := regexp.MustCompile(`<option value="([^"]*)">` + regexp.QuoteMeta(fill[s[1]]) + `</option>`).FindStringSubmatch(s[2])
			if option == nil {
				c.t.Fatalf("there is no %q to choose for %s:\n%s", fill[s[1]], s[1], form)
			}
			values.Set(s[1], option[1])
			delete(fill, s[1])
		}
		for name, value := range fill {
			values.Set(name, value)
		}
		to := c.at
		if action := attribute(form, "action"); action != "" {
			var err error
			if to, err = c.at.Parse(action); err != nil {
				c.t.Fatal(err)
			}
		}
		req, err := http.NewRequestWithContext(c.t.Context(), http.MethodPost, to.String(), strings.NewReader(values.Encode()))
		if err != nil {
			c.t.Fatal(err)
		}
		req.Header.Set("Content-Type", "application/x-www-form-urlencoded")
		c.do(req)
		return
	}
	c.t.Fatalf("no form has the button %q:\n%s", button, c.body)
}

func (c *clicker) see(all ...string) {
	c.t.Helper()
	for _, s := range all {
		if !strings.Contains(c.body, s) {
			c.t.Fatalf("%s doesn't say %q:\n%s", c.at, s, c.body)
		}
	}
}

// fakeHub is a Hub beside the GitHub of dev --fake-github, without a Runner. It returns the address of the set-up.
func fakeHub(t *testing.T, data string) (gh *fakeGitHub, h *hub, address string, stop func()) {
	t.Helper()
	gh, err := startFakeGitHub(data)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(gh.Close) // after stop, which ends what waits
	cfg := fileConfig{Data: data, Hub: config.DefaultHub()}
	cfg.Hub.Listen = "127.0.0.1:0"
	var out lockedText
	if err := makeKey(t.Context(), cfg, &out); err != nil {
		t.Fatal(err)
	}
	cfg = gh.only(cfg)
	if err := gh.dropApp(t.Context(), cfg); err != nil {
		t.Fatal(err)
	}
	if h, err = openHub(t.Context(), cfg, zerolog.New(zerolog.NewTestWriter(t)).Level(zerolog.ErrorLevel)); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- h.run(ctx) }()
	stopped := false
	stop = func() {
		if stopped {
			return
		}
		stopped = true
		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	}
	t.Cleanup(stop)
	if err := gh.scene("debian:bookworm"); err != nil {
		t.Fatal(err)
	}
	if err := gh.ready(ctx, h, &out); err != nil {
		t.Fatal(err)
	}
	address = regexp.MustCompile(`http://\S+/setup\?token=\S+`).FindString(out.String())
	if address == "" || !strings.Contains(out.String(), gh.URLs().Web) {
		t.Fatalf("it says %s", out.String())
	}
	return gh, h, address, stop
}

// setUp clicks from the address on the console to the first page of somebody who is signed in.
func setUp(t *testing.T, gh *fakeGitHub, address string) *clicker {
	t.Helper()
	c := newClicker(t)
	c.open(address)
	c.send("Begin", nil)
	c.see("Create a new App", `value="`+gh.URLs().Web+`"`)
	c.send("Go on", map[string]string{"name": "Our Hub", "org": "octo", "web": gh.URLs().Web})
	c.see("Create it on GitHub", "Why")
	c.send("Create it on GitHub", nil)
	c.see("GitHub for development", "Create the GitHub App Our Hub")
	c.send("Create GitHub App", map[string]string{"as": "ana"})
	c.see("The Hub is a GitHub App now", "/setup/install")
	c.open("/setup/install")
	c.see("Install Our Hub")
	c.send("Install", map[string]string{"as": "ana", "on": "octo"})
	// Nobody is signed in, so the way from the installation leads there first.
	if c.at.Path != "/sign-in" {
		t.Fatalf("it leads to %s\n%s", c.at, c.body)
	}
	link := regexp.MustCompile(`href="(/auth/github[^"]*)"`).FindStringSubmatch(c.body)
	if link == nil {
		t.Fatalf("the sign-in page has no link to GitHub:\n%s", c.body)
	}
	c.open(html.UnescapeString(link[1]))
	c.see("Authorize Our Hub")
	c.send("Authorize", map[string]string{"as": "ana"})
	c.see("The App is installed", "On octo.", "Sign out")
	return c
}

func TestTheFlowsOfDevFakeGitHubCanBeClickedThrough(t *testing.T) {
	t.Parallel()
	data := t.TempDir()
	gh, h, address, stop := fakeHub(t, data)
	c := setUp(t, gh, address)
	c.open("/")
	c.see(fakeRepo)

	// A pull request comes, and its check run with it.
	page := newClicker(t)
	for deadline := time.Now().Add(30 * time.Second); ; {
		page.open(gh.URLs().Web + "/" + fakeRepo)
		if strings.Contains(page.body, "<strong>Environment</strong>") {
			break
		}
		if time.Now().After(deadline) {
			t.Fatalf("there is no check run:\n%s", page.body)
		}
		select {
		case <-time.After(100 * time.Millisecond):
		case <-t.Context().Done():
		}
	}

	// Who has no access is told so, and gets no session.
	bob := newClicker(t)
	bob.open(h.url + "/sign-in")
	link := regexp.MustCompile(`href="(/auth/github[^"]*)"`).FindStringSubmatch(bob.body)
	bob.open(html.UnescapeString(link[1]))
	status := 0
	bob.http.CheckRedirect = func(req *http.Request, _ []*http.Request) error {
		if strings.HasPrefix(req.URL.String(), h.url) {
			return http.ErrUseLastResponse
		}
		return nil
	}
	form := url.Values{"as": {fmt.Sprint(gh.bob.ID)}}
	res, err := bob.http.PostForm(bob.at.String(), form)
	if err != nil {
		t.Fatal(err)
	}
	back := res.Header.Get("Location")
	res.Body.Close()
	if res, err = bob.http.Get(back); err != nil {
		t.Fatal(err)
	}
	b, err := io.ReadAll(res.Body)
	res.Body.Close()
	if status = res.StatusCode; err != nil || status == http.StatusOK || !strings.Contains(string(b), "no Repo that you have access to") {
		t.Errorf("bob: %d %v\n%s", status, err, b)
	}

	// The next start has a new GitHub, knows the old App of no more, and the same Repo under the same id.
	before := gh.URLs().Web
	id := regexp.MustCompile(`/repos/([0-9]+)"`).FindStringSubmatch(c.body)
	stop()
	gh.Close()
	gh, _, address, _ = fakeHub(t, data)
	again := setUp(t, gh, address)
	again.open("/")
	again.see(fakeRepo)
	if now := regexp.MustCompile(`/repos/([0-9]+)"`).FindStringSubmatch(again.body); id == nil || now == nil || id[1] != now[1] {
		t.Errorf("the Repo was %v and is %v (GitHub was at %s and is at %s)", id, now, before, gh.URLs().Web)
	}
}
