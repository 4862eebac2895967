package github_test

import (
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/http"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/claude-hub/claude-hub/app/github"
	"github.com/claude-hub/claude-hub/app/github/githubtest"
	"github.com/claude-hub/claude-hub/app/github/githubtest/checked"
)

func TestAppIsToldByIdAndKey(t *testing.T) {
	t.Parallel()
	checked.Both(t, func(t *testing.T, gh *githubtest.Server) {
		r := setScene(t, gh)
		self := must[github.Self](t)(r.app.Self(t.Context()))
		if self.ID != r.cred.ID || self.Slug != "claude-hub" || self.Permissions["checks"] != "write" {
			t.Errorf("got %+v", self)
		}
		all := must[[]github.Installation](t)(r.app.Installations(t.Context()))
		if len(all) != 1 || all[0].ID != r.inst.ID || all[0].Account.Login != "octo" || all[0].All || all[0].Suspended {
			t.Errorf("got %+v", all)
		}
		one := must[github.Installation](t)(r.app.Installation(t.Context(), r.inst.ID))
		if one.Account.ID != r.org.ID || one.Permissions["contents"] != "read" {
			t.Errorf("got %+v", one)
		}
		repos := must[[]github.Repository](t)(r.app.InstalledRepositories(t.Context(), r.inst.ID))
		if len(repos) != 1 || repos[0].ID != r.id() {
			t.Errorf("got %+v", repos)
		}
		_, err := r.app.Installation(t.Context(), 99999)
		wantKind(t, err, github.NotInstalled)
	})
}

func TestNewRefusesCredentialsThatCouldNotWork(t *testing.T) {
	t.Parallel()
	gh := checked.New(t, githubtest.Options{})
	r := setScene(t, gh)
	for name, c := range map[string]struct {
		change func(*github.Options)
		says   string
	}{
		"no id":             {func(o *github.Options) { o.Credentials.AppID = 0 }, "id is missing"},
		"no client secret":  {func(o *github.Options) { o.Credentials.ClientSecret = github.Secret{} }, "client secret is missing"},
		"no webhook secret": {func(o *github.Options) { o.Credentials.WebhookSecrets = nil }, "webhook secret is missing"},
		"an empty webhook secret": {func(o *github.Options) {
			o.Credentials.WebhookSecrets = []github.Secret{github.NewSecret("x"), github.NewSecret("")}
		}, "webhook secret is empty"},
		"no key": {func(o *github.Options) { o.Credentials.PrivateKey = github.NewSecret("x") }, "no PEM"},
		"another key": {func(o *github.Options) {
			o.Credentials.PrivateKey = github.NewSecret(string(pem.EncodeToMemory(&pem.Block{Type: "RSA PRIVATE KEY", Bytes: []byte("no key")})))
		}, "no RSA key"},
		"a strange web":       {func(o *github.Options) { o.Endpoints.Web = "ftp://x" }, "no address of GitHub"},
		"a relative callback": {func(o *github.Options) { o.Callback = "/callback" }, "come back to"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			o := github.Options{Endpoints: endpoints(gh), Credentials: credentials(r.cred), Callback: callback}
			c.change(&o)
			_, err := github.New(o)
			if e := wantKind(t, err, github.Invalid); !strings.Contains(e.Message, c.says) {
				t.Errorf("got %q, want it to say %q", e.Message, c.says)
			}
		})
	}
}

func TestWrongKeyIsToldAsTheAppsFault(t *testing.T) {
	t.Parallel()
	r := setScene(t, checked.New(t, githubtest.Options{}))
	stranger := r.connect(t, func(o *github.Options) { o.Credentials.AppID = 4711 })
	_, err := stranger.Self(t.Context())
	if e := wantKind(t, err, github.Unauthorized); !strings.Contains(e.Message, "private key") {
		t.Errorf("got %q", e.Message)
	}
}

func TestPersonSeesExplicitAccessOnly(t *testing.T) {
	t.Parallel()
	checked.Both(t, func(t *testing.T, gh *githubtest.Server) {
		r := setScene(t, gh)
		public := gh.Repo("octo/public", false, githubtest.Files{"a": githubtest.Text("a")})
		r.inst.Add(public)
		ana, bob := r.user(r.ana), r.user(r.bob)
		if me := must[github.Account](t)(ana.Me(t.Context())); me.ID != r.ana.ID || me.Login != "ana" {
			t.Errorf("got %+v", me)
		}
		installs := must[[]github.Installation](t)(ana.Installations(t.Context()))
		if len(installs) != 1 || installs[0].ID != r.inst.ID {
			t.Fatalf("got %+v", installs)
		}
		repos := must[[]github.Repository](t)(ana.Repositories(t.Context(), r.inst.ID))
		if len(repos) != 1 || repos[0].ID != r.id() || repos[0].Level != "write" || !repos[0].Level.CanWrite() {
			t.Errorf("got %+v: the public Repo doesn't count", repos)
		}
		if got := must[[]github.Installation](t)(bob.Installations(t.Context())); len(got) != 0 {
			t.Errorf("bob sees %+v", got)
		}
		// What bob's own token can see is another question: the public one, not the private one.
		if got := must[github.Repository](t)(bob.Repository(t.Context(), github.RepoID(public.ID))); got.Level != "read" {
			t.Errorf("got %+v", got)
		}
		_, err := bob.Repository(t.Context(), r.id())
		wantKind(t, err, github.NotFound)
		_, err = ana.Repository(t.Context(), github.RepoID(r.other.ID))
		wantKind(t, err, github.NotFound)
		_, err = r.app.User(github.NewSecret("ghu_gone")).Me(t.Context())
		if e := wantKind(t, err, github.Unauthorized); !strings.Contains(e.Message, "Sign in again") {
			t.Errorf("got %q", e.Message)
		}
	})
}

func TestListsAreReadToTheEnd(t *testing.T) {
	t.Parallel()
	r := setScene(t, checked.New(t, githubtest.Options{}))
	const more = 104
	for i := range more {
		repo := r.gh.Repo(fmt.Sprintf("octo/r%03d", i), true, nil)
		repo.Allow(r.ana, "read")
		r.inst.Add(repo)
	}
	got := must[[]github.Repository](t)(r.user(r.ana).Repositories(t.Context(), r.inst.ID))
	if len(got) != more+1 {
		t.Errorf("got %d Repos, want %d", len(got), more+1)
	}
	if n := r.gh.Asked("GET", "/repositories"); n != 2 {
		t.Errorf("asked %d times, want 2 pages", n)
	}
}

func TestRepoIsTheSameAfterRenameAndTransferAndNotWhenItsNameIsTaken(t *testing.T) {
	t.Parallel()
	checked.Both(t, func(t *testing.T, gh *githubtest.Server) {
		r := setScene(t, gh)
		ana := r.user(r.ana)
		r.repo.Rename("renamed")
		got := must[github.Repository](t)(ana.RepositoryNamed(t.Context(), "octo/app"))
		if got.ID != r.id() || got.FullName != "octo/renamed" {
			t.Errorf("by its old name: got %+v", got)
		}
		if got := must[github.Repository](t)(r.app.Repository(t.Context(), r.id())); got.FullName != "octo/renamed" || got.Level != "" {
			t.Errorf("by id: got %+v", got)
		}
		imposter := gh.Repo("octo/app", true, githubtest.Files{"x": githubtest.Text("x")})
		imposter.Allow(r.ana, "read")
		r.inst.Add(imposter)
		if got := must[github.Repository](t)(ana.RepositoryNamed(t.Context(), "octo/app")); got.ID != github.RepoID(imposter.ID) {
			t.Errorf("the old name is another Repo's now: got %+v", got)
		}
		r.repo.Transfer(r.bob)
		_, err := r.app.Mint(t.Context(), r.id())
		wantKind(t, err, github.NotInstalled)
		gh.Install(r.cred.ID, r.bob, r.bob)
		if tok := must[github.Token](t)(r.app.Mint(t.Context(), r.id())); tok.Installation == r.inst.ID {
			t.Error("the token is of the old owner's installation")
		}
	})
}

func TestNamesThatAreNoneAreNotAsked(t *testing.T) {
	t.Parallel()
	r := setScene(t, checked.New(t, githubtest.Options{}))
	r.gh.Forget()
	for _, name := range []string{"", "octo", "octo/", "/app", "octo/..", "octo/a/b", "octo/a?b", "octo/a b", "öcto/app"} {
		_, err := r.user(r.ana).RepositoryNamed(t.Context(), name)
		wantKind(t, err, github.Invalid)
	}
	if got := r.gh.Requests(); len(got) != 0 {
		t.Errorf("GitHub was asked %d times", len(got))
	}
}

func TestSuspendedInstallationIsToldAndResumes(t *testing.T) {
	t.Parallel()
	checked.Both(t, func(t *testing.T, gh *githubtest.Server) {
		r := setScene(t, gh)
		ok(t, errOf(r.app.Repository(t.Context(), r.id())))
		r.inst.Suspend(true)
		_, err := r.app.Repository(t.Context(), r.id())
		wantKind(t, err, github.Suspended)
		_, err = r.app.Mint(t.Context(), r.id())
		if e := wantKind(t, err, github.Suspended); !strings.Contains(e.Message, "suspended") {
			t.Errorf("got %q", e.Message)
		}
		_, err = r.user(r.ana).Repositories(t.Context(), r.inst.ID)
		wantKind(t, err, github.Suspended)
		r.inst.Suspend(false)
		ok(t, errOf(r.app.Repository(t.Context(), r.id())))
	})
}

func errOf[T any](_ T, err error) error { return err }

func TestReinstalledAppIsFoundWithoutARestart(t *testing.T) {
	t.Parallel()
	r := setScene(t, checked.New(t, githubtest.Options{}))
	ok(t, errOf(r.app.Repository(t.Context(), r.id())))
	r.inst.Remove()
	_, err := r.app.Repository(t.Context(), r.id())
	wantKind(t, err, github.NotInstalled)
	again := r.gh.Install(r.cred.ID, r.org, r.ana, r.repo)
	ok(t, errOf(r.app.Repository(t.Context(), r.id())))
	// The installation that was known is gone while another is there: one look-up, no failure.
	again.Remove()
	newest := r.gh.Install(r.cred.ID, r.org, r.ana, r.repo)
	tok := must[github.Token](t)(r.app.Mint(t.Context(), r.id()))
	if tok.Installation != newest.ID {
		t.Errorf("the token is of installation %d, want %d", tok.Installation, newest.ID)
	}
	newest.Remove()
	r.gh.Install(r.cred.ID, r.org, r.ana, r.repo)
	ok(t, errOf(r.app.Repository(t.Context(), r.id())))
}

func TestTokenThatGitHubNoLongerTakesIsMadeAnewOnce(t *testing.T) {
	t.Parallel()
	r := setScene(t, checked.New(t, githubtest.Options{}))
	ok(t, errOf(r.app.Repository(t.Context(), r.id())))
	r.gh.Advance(2 * time.Hour) // the client still believes in its token
	ok(t, errOf(r.app.Repository(t.Context(), r.id())))
	if n := r.gh.Asked("POST", "/access_tokens"); n != 2 {
		t.Errorf("made %d tokens, want 2", n)
	}
}

func TestRateLimitsAreKeptWithoutAskingAgain(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		fault githubtest.Fault
		least time.Duration
	}{
		"403 with Retry-After":    {githubtest.Secondary(http.StatusForbidden, 90*time.Second), 80 * time.Second},
		"429 with Retry-After":    {githubtest.Secondary(http.StatusTooManyRequests, 90*time.Second), 80 * time.Second},
		"403 without Retry-After": {githubtest.Secondary(http.StatusForbidden, 0), 50 * time.Second},
		"429 without Retry-After": {githubtest.Secondary(http.StatusTooManyRequests, 0), 50 * time.Second},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := setScene(t, checked.New(t, githubtest.Options{}))
			ok(t, errOf(r.app.Repository(t.Context(), r.id())))
			c.fault.Path = "/repositories/"
			mend := r.gh.Break(c.fault)
			_, err := r.app.Repository(t.Context(), r.id())
			e := wantKind(t, err, github.RateLimited)
			if left := time.Until(e.Until); left < c.least || left > 5*time.Minute {
				t.Errorf("until %s from now, want at least %s", left, c.least)
			}
			mend()
			before := len(r.gh.Requests())
			_, err = r.app.Repository(t.Context(), r.id())
			wantKind(t, err, github.RateLimited)
			if n := len(r.gh.Requests()) - before; n != 0 {
				t.Errorf("asked %d times while limited", n)
			}
			// Others are not disturbed.
			ok(t, errOf(r.user(r.ana).Me(t.Context())))
			ok(t, errOf(r.app.Mint(t.Context(), r.id())))
		})
	}
	t.Run("the hour's limit", func(t *testing.T) {
		t.Parallel()
		r := setScene(t, checked.New(t, githubtest.Options{}))
		r.gh.Limit(fmt.Sprintf("installation %d", r.inst.ID), 1, 20*time.Minute)
		ok(t, errOf(r.app.Repository(t.Context(), r.id())))
		_, err := r.app.Repository(t.Context(), r.id())
		e := wantKind(t, err, github.RateLimited)
		if left := time.Until(e.Until); left < 15*time.Minute || left > 25*time.Minute {
			t.Errorf("until %s from now", left)
		}
	})
	t.Run("while minting", func(t *testing.T) {
		t.Parallel()
		r := setScene(t, checked.New(t, githubtest.Options{}))
		f := githubtest.Secondary(http.StatusForbidden, time.Minute)
		f.Path = "/access_tokens"
		r.gh.Break(f)
		_, err := r.app.Repository(t.Context(), r.id())
		wantKind(t, err, github.RateLimited)
	})
}

func TestTroubleAtGitHubIsUnavailableAndNeverAnAnswer(t *testing.T) {
	t.Parallel()
	for name, f := range map[string]githubtest.Fault{
		"502":               {Status: http.StatusBadGateway, Body: "<html>Unicorn"},
		"503 with JSON":     {Status: http.StatusServiceUnavailable, Body: `{"message":"Service unavailable"}`},
		"a cut answer":      {Cut: 40},
		"no answer":         {Cut: -1},
		"an empty answer":   {Status: http.StatusOK},
		"a page":            {Status: http.StatusOK, Body: "<html>Sign in to continue</html>"},
		"another thing":     {Status: http.StatusOK, Body: `{"id":1,"login":"mallory"}`},
		"an answer of null": {Status: http.StatusOK, Body: `null`},
		"a slow answer":     {Delay: 5 * time.Minute},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := setScene(t, checked.New(t, githubtest.Options{}))
			app := r.connect(t, func(o *github.Options) { o.Timeout = 2 * time.Second })
			for i, path := range []string{"/repositories/", "/access_tokens"} {
				if i == 1 && (name == "another thing" || name == "a slow answer") {
					continue
				}
				f := f
				f.Path = path
				mend := r.gh.Break(f)
				var err error
				if i == 0 {
					_, err = app.Repository(t.Context(), r.id())
				} else {
					_, err = app.Mint(t.Context(), r.id())
				}
				wantKind(t, err, github.Unavailable)
				mend()
			}
			ok(t, errOf(app.Repository(t.Context(), r.id()))) // nothing of it was kept
		})
	}
}

func TestCallerWhoGivesUpIsTold(t *testing.T) {
	t.Parallel()
	r := setScene(t, checked.New(t, githubtest.Options{}))
	r.gh.Break(githubtest.Fault{Path: "/app", Delay: time.Hour})
	ctx := within(t, 200*time.Millisecond)
	_, err := r.app.Self(ctx)
	wantKind(t, err, github.Unavailable)
	if !errors.Is(err, ctx.Err()) {
		t.Errorf("%v doesn't say that the caller gave up", err)
	}
}

func TestAuthorizingReadsAreNeverFromACache(t *testing.T) {
	t.Parallel()
	r := setScene(t, checked.New(t, githubtest.Options{}))
	ana := r.user(r.ana)
	ok(t, errOf(ana.Repositories(t.Context(), r.inst.ID)))
	r.repo.Allow(r.ana, "")
	if got := must[[]github.Repository](t)(ana.Repositories(t.Context(), r.inst.ID)); len(got) != 0 {
		t.Errorf("still sees %+v", got)
	}
}

// TestTokensGoToGitHubOnly redirects to another host: the layers that add credentials add them to whatever they are sent to.
func TestTokensGoToGitHubOnly(t *testing.T) {
	t.Parallel()
	r := setScene(t, checked.New(t, githubtest.Options{}))
	elsewhere := checked.New(t, githubtest.Options{})
	for name, get := range map[string]func() error{
		"of the App":         func() error { return errOf(r.app.Self(t.Context())) },
		"of an installation": func() error { return errOf(r.app.Repository(t.Context(), r.id())) },
		"of a person":        func() error { return errOf(r.user(r.ana).Me(t.Context())) },
	} {
		r.gh.Break(githubtest.Fault{
			Times: 1, Method: "GET", Status: http.StatusFound, Header: http.Header{"Location": {elsewhere.URLs().API + "/user"}},
		})
		err := get()
		if err == nil {
			t.Errorf("the call %s was answered by another host", name)
		}
	}
	if got := elsewhere.Requests(); len(got) != 0 {
		t.Errorf("the other host was asked: %+v", got)
	}
}

func TestNothingSecretIsPrinted(t *testing.T) {
	t.Parallel()
	r := setScene(t, checked.New(t, githubtest.Options{}))
	tok := must[github.Token](t)(r.app.Mint(t.Context(), r.id()))
	user := r.gh.UserToken(r.cred.ID, r.ana)
	pair := github.UserTokens{Access: github.NewSecret(user), Refresh: github.NewSecret(user)}
	b, _ := jsonOf(tok, pair, credentials(r.cred))
	printed := fmt.Sprintf("%v %+v %#v %s %q %x %d", tok, tok, tok, tok, tok, tok, tok) + fmt.Sprintf("%v %+v %#v", pair, pair, pair) +
		fmt.Sprintf("%+v %#v", credentials(r.cred), credentials(r.cred)) + b
	r.gh.Break(githubtest.Fault{Status: http.StatusBadGateway})
	for _, err := range []error{
		errOf(r.app.User(github.NewSecret(user)).Me(t.Context())), r.app.Revoke(t.Context(), tok), r.app.RevokeUser(t.Context(), pair.Access),
		errOf(r.app.Exchange(t.Context(), github.NewSecret("the-code"), github.NewSecret(strings.Repeat("v", 43)))),
		errOf(r.app.Refresh(t.Context(), pair.Refresh)),
		errOf(github.Convert(t.Context(), endpoints(r.gh), nil, github.NewSecret("the-code"))),
	} {
		e := wantKind(t, err, github.Unavailable)
		printed += fmt.Sprintf("%v %+v %#v", e, e, e)
	}
	for _, secret := range []string{tok.Reveal(), user, r.cred.ClientSecret, r.cred.WebhookSecret, "the-code", strings.Repeat("v", 43), r.cred.PrivateKey[40:90]} {
		if strings.Contains(printed, secret) {
			t.Errorf("%.12s… is printed", secret)
		}
	}
	if !strings.Contains(printed, "[hidden]") {
		t.Error("nothing was printed at all")
	}
	if !slices.ContainsFunc(r.gh.Requests(), func(q githubtest.Request) bool { return strings.Contains(string(q.Body), "the-code") }) {
		t.Error("the code was never sent: the test shows nothing")
	}
}

// TestPersonsCallsHaveTimeLimitAndTransport: go-githubapp's own clients for tokens ignore both.
func TestPersonsCallsHaveTimeLimitAndTransport(t *testing.T) {
	t.Parallel()
	r := setScene(t, checked.New(t, githubtest.Options{}))
	var open bodies
	app := r.connect(t, func(o *github.Options) { o.Timeout, o.Transport = 300*time.Millisecond, &open })
	ana := app.User(github.NewSecret(r.gh.UserToken(r.cred.ID, r.ana)))
	ok(t, errOf(ana.Me(t.Context())))
	if open.opened.Load() != 1 {
		t.Errorf("the transport carried %d requests, want 1", open.opened.Load())
	}
	r.gh.Break(githubtest.Fault{Path: "/user", Delay: time.Hour})
	begun := time.Now()
	_, err := ana.Me(t.Context())
	wantKind(t, err, github.Unavailable)
	if took := time.Since(begun); took > 10*time.Second {
		t.Errorf("it took %s", took)
	}
}

// TestEveryAnswerIsClosed: ghinstallation leaves the answers that refuse a token open.
func TestEveryAnswerIsClosed(t *testing.T) {
	t.Parallel()
	r := setScene(t, checked.New(t, githubtest.Options{}))
	var open bodies
	app := r.connect(t, func(o *github.Options) { o.Transport = &open })
	calls := []func() error{
		func() error { return errOf(app.Repository(t.Context(), r.id())) },
		func() error { return errOf(app.Mint(t.Context(), r.id())) },
		func() error { return errOf(app.Self(t.Context())) },
		func() error { return errOf(app.Exchange(t.Context(), github.NewSecret("c"), github.NewVerifier())) },
	}
	for _, suspended := range []bool{false, true} {
		r.inst.Suspend(suspended)
		for _, f := range []githubtest.Fault{{}, {Status: http.StatusBadGateway}, {Status: http.StatusFound}, {Cut: 10}, {Status: http.StatusNotFound, Path: "/access_tokens"}} {
			mend := r.gh.Break(f)
			for _, call := range calls {
				_ = call() // what it says is other tests' business
			}
			mend()
		}
	}
	if open.opened.Load() < 20 || open.opened.Load() != open.closed.Load() {
		t.Errorf("%d answers were opened, %d closed", open.opened.Load(), open.closed.Load())
	}
}

func TestEveryRequestIsObservedWithoutNames(t *testing.T) {
	t.Parallel()
	checked.Both(t, func(t *testing.T, gh *githubtest.Server) {
		r := setScene(t, gh)
		var mu sync.Mutex
		seen := map[string]int{}
		app := r.connect(t, func(o *github.Options) {
			o.Observe = func(o github.Observed) {
				mu.Lock()
				defer mu.Unlock()
				seen[fmt.Sprint(o.Operation, " ", o.Status)]++
				if o.Limit != map[bool]int{false: 5000, true: 0}[gh.GHES()] || o.Remaining > o.Limit {
					t.Errorf("%s: limit %d, remaining %d", o.Operation, o.Limit, o.Remaining)
				}
			}
		})
		gh.Limit("app 1", 1, time.Hour) // somebody else's limit changes nothing here
		tok := must[github.Token](t)(app.Mint(t.Context(), r.id()))
		ok(t, errOf(app.Branch(t.Context(), r.id(), "main")))
		ok(t, errOf(app.Files(t.Context(), r.id(), r.repo.Head("main"), 100, "README.md")))
		_, _, _ = app.Permission(t.Context(), r.id(), "nobody")
		ok(t, app.Revoke(t.Context(), tok))
		want := map[string]int{
			"GET /repositories/{}/installation 200": 1, "POST /app/installations/{}/access_tokens 201": 2, "GET /repositories/{}/branches/{} 200": 1,
			"GET /repositories/{}/git/trees/{} 200": 1, "GET /repositories/{}/git/blobs/{} 200": 1,
			"GET /repositories/{}/collaborators/{}/permission 404": 1, "DELETE /installation/token 204": 1,
		}
		mu.Lock()
		defer mu.Unlock()
		if !maps.Equal(seen, want) {
			t.Errorf("got %v, want %v", seen, want)
		}
	})
}

// bodies counts the answers that are read and closed.
type bodies struct{ opened, closed atomic.Int64 }

func (b *bodies) RoundTrip(r *http.Request) (*http.Response, error) {
	resp, err := http.DefaultTransport.RoundTrip(r)
	if err == nil {
		b.opened.Add(1)
		resp.Body = &body{resp.Body, sync.OnceFunc(func() { b.closed.Add(1) })}
	}
	return resp, err
}

type body struct {
	io.ReadCloser
	done func()
}

func (b *body) Close() error {
	b.done()
	return b.ReadCloser.Close()
}

// TestAnswerThatNeverEndsIsCut has GitHub, or something in its place, answer without end.
func TestAnswerThatNeverEndsIsCut(t *testing.T) {
	t.Parallel()
	r := setScene(t, checked.New(t, githubtest.Options{}))
	endless := &counter{Reader: zeros{}}
	app := r.connect(t, func(o *github.Options) { o.Transport = answering{endless} })
	_, err := app.Self(t.Context())
	wantKind(t, err, github.Unavailable)
	if endless.n > 33<<20 {
		t.Errorf("read %d bytes", endless.n)
	}
}

type answering struct{ body io.Reader }

func (a answering) RoundTrip(r *http.Request) (*http.Response, error) {
	return &http.Response{StatusCode: http.StatusOK, Header: http.Header{}, Body: io.NopCloser(a.body), Request: r}, nil
}
