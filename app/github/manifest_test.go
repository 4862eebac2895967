package github_test

import (
	"encoding/json"
	"net/url"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/claude-hub/claude-hub/app/github"
	"github.com/claude-hub/claude-hub/app/github/githubtest"
	"github.com/claude-hub/claude-hub/app/github/githubtest/checked"
)

func hubManifest() github.Manifest {
	return github.NewManifest("Hub of octo", "http://hub.example", "http://127.0.0.1:1/webhook", "http://hub.example/setup/created", callback, "http://hub.example/setup")
}

func TestManifestBecomesAnAppThatWorks(t *testing.T) {
	t.Parallel()
	checked.Both(t, func(t *testing.T, gh *githubtest.Server) {
		ana, org := gh.Person("ana"), gh.Org("octo")
		org.Admit(ana, "admin")
		text := string(must[[]byte](t)(json.Marshal(hubManifest())))
		back := must[*url.URL](t)(url.Parse(must[string](t)(gh.Manifest(text, state, org))))
		if !strings.HasPrefix(back.String(), "http://hub.example/setup/created?") || back.Query().Get("state") != state {
			t.Fatalf("GitHub sends the browser to %s", back)
		}
		code := github.NewSecret(back.Query().Get("code"))
		made := must[github.Created](t)(github.Convert(t.Context(), endpoints(gh), nil, code))
		if made.Owner.ID != org.ID || made.Name != "Hub of octo" || made.Page != endpoints(gh).AppPage(made.Credentials.Slug) {
			t.Errorf("got %+v", made)
		}
		app := must[*github.App](t)(github.New(github.Options{Endpoints: endpoints(gh), Credentials: made.Credentials, Callback: callback}))
		self := must[github.Self](t)(app.Self(t.Context()))
		for name, level := range github.Permissions() {
			if self.Permissions[name] != level {
				t.Errorf("%s: granted %q, wanted %q", name, self.Permissions[name], level)
			}
		}
		if want := github.Events(); !slices.Equal(slices.Sorted(slices.Values(self.Events)), want) {
			t.Errorf("subscribed to %v, want %v", self.Events, want)
		}
		_, err := github.Convert(t.Context(), endpoints(gh), nil, code)
		wantKind(t, err, github.NotFound) // good once

		// Installed from its page, it comes back with an id that proves nothing, and the state.
		repo := gh.Repo("octo/app", true, githubtest.Files{"a": githubtest.Text("a")})
		inst, setup, err := gh.InstallFrom(endpoints(gh).InstallURL(made.Credentials.Slug, "s-1"), org, ana, repo)
		ok(t, err)
		q := must[*url.URL](t)(url.Parse(setup)).Query()
		if q.Get("setup_action") != "install" || q.Get("state") != "s-1" || q.Get("installation_id") == "" {
			t.Errorf("got %s", setup)
		}
		ok(t, errOf(app.Mint(t.Context(), github.RepoID(repo.ID))))
		if got := must[github.Installation](t)(app.Installation(t.Context(), inst.ID)); got.Account.ID != org.ID {
			t.Errorf("got %+v", got)
		}
		if got := must[string](t)(gh.RequestFrom(endpoints(gh).InstallURL(made.Credentials.Slug, "s-2"))); strings.Contains(got, "installation_id") {
			t.Errorf("a request has no installation yet: %s", got)
		}
	})
}

func TestCodeOfAManifestIsOfNoUseAfterAnHour(t *testing.T) {
	t.Parallel()
	gh := checked.New(t, githubtest.Options{})
	text := string(must[[]byte](t)(json.Marshal(hubManifest())))
	back := must[*url.URL](t)(url.Parse(must[string](t)(gh.Manifest(text, state, gh.Person("ana")))))
	gh.Advance(61 * time.Minute)
	_, err := github.Convert(t.Context(), endpoints(gh), nil, github.NewSecret(back.Query().Get("code")))
	if e := wantKind(t, err, github.NotFound); !strings.Contains(e.Message, "Begin again") {
		t.Errorf("got %q", e.Message)
	}
	for _, code := range []string{"", "a/b"} {
		_, err := github.Convert(t.Context(), endpoints(gh), nil, github.NewSecret(code))
		wantKind(t, err, github.Invalid)
	}
}

func TestManifestWhereGitHubCannotReachTheHubHasNoWebhook(t *testing.T) {
	t.Parallel()
	m := github.NewManifest("Hub", "http://hub.example", "", "http://hub.example/created", callback, "http://hub.example/setup")
	gh := checked.New(t, githubtest.Options{})
	ok(t, errOf(gh.Manifest(string(must[[]byte](t)(json.Marshal(m))), state, gh.Person("ana"))))
	ok(t, gh.Settle(within(t, 10*time.Second)))
	if got := gh.Delivered(); len(got) != 0 {
		t.Errorf("GitHub sent %+v", got)
	}
}

func TestEndpointsOfBothKinds(t *testing.T) {
	t.Parallel()
	for _, c := range []struct{ got, want string }{
		{github.At("").API, "https://api.github.com"}, {github.At("https://github.com/").API, "https://api.github.com"},
		{github.At("https://ghe.example.com/").API, "https://ghe.example.com/api/v3"},
		{github.At("https://ghe.example.com").GraphQL, "https://ghe.example.com/api/graphql"},
		{github.Com().InstallURL("hub", "a b"), "https://github.com/apps/hub/installations/new?state=a+b"},
		{github.Enterprise("https://ghe.example.com").InstallURL("hub", ""), "https://ghe.example.com/github-apps/hub/installations/new"},
		{github.Com().NewAppURL("", "s"), "https://github.com/settings/apps/new?state=s"},
		{github.Com().NewAppURL("octo", "s"), "https://github.com/organizations/octo/settings/apps/new?state=s"},
		{github.Com().CloneURL("octo/app"), "https://github.com/octo/app.git"},
	} {
		if c.got != c.want {
			t.Errorf("got %s, want %s", c.got, c.want)
		}
	}
}

func TestLackingPermissionsAreNamed(t *testing.T) {
	t.Parallel()
	for want, granted := range map[string]map[string]string{
		"":              github.Permissions(),
		"checks: write": {"checks": "read", "contents": "write", "metadata": "read", "pull_requests": "read", "members": "read"},
		"checks: write contents: read members: read metadata: read pull_requests: read": nil,
	} {
		got := github.Lacking(granted)
		if text := strings.Join(got, " "); text != want {
			t.Errorf("of %v lacks %q, want %q", granted, text, want)
		}
	}
}
