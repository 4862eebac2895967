package github_test

import (
	"net/http"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/claude-hub/claude-hub/app/github"
	"github.com/claude-hub/claude-hub/app/github/githubtest"
	"github.com/claude-hub/claude-hub/app/github/githubtest/checked"
)

const state = "a-state-of-the-browser"

// signIn goes through the browser's part and returns what it comes back with.
func (r *rig) signIn(t *testing.T, who githubtest.Account, verifier github.Secret) url.Values {
	t.Helper()
	to := must[string](t)(r.app.SignInURL(state, verifier))
	back := must[*url.URL](t)(url.Parse(must[string](t)(r.gh.Authorize(to, who))))
	if got := back.Scheme + "://" + back.Host + back.Path; got != callback {
		t.Fatalf("GitHub sends the browser to %s, want %s", got, callback)
	}
	return back.Query()
}

func (r *rig) code(t *testing.T, who githubtest.Account, verifier github.Secret) github.Secret {
	t.Helper()
	return github.NewSecret(r.signIn(t, who, verifier).Get("code"))
}

func TestSignInWithStateAndVerifier(t *testing.T) {
	t.Parallel()
	checked.Both(t, func(t *testing.T, gh *githubtest.Server) {
		r := setScene(t, gh)
		verifier := github.NewVerifier()
		to := must[*url.URL](t)(url.Parse(must[string](t)(r.app.SignInURL(state, verifier))))
		q := to.Query()
		if q.Get("code_challenge_method") != "S256" || q.Get("code_challenge") == "" || q.Get("redirect_uri") != callback || q.Get("state") != state ||
			strings.Contains(to.String(), verifier.Reveal()) {
			t.Errorf("got %s", to)
		}
		back := r.signIn(t, r.ana, verifier)
		if back.Get("state") != state {
			t.Errorf("the state comes back as %q", back.Get("state"))
		}
		pair := must[github.UserTokens](t)(r.app.Exchange(t.Context(), github.NewSecret(back.Get("code")), verifier))
		if left := time.Until(pair.Expires); left < 7*time.Hour || left > 9*time.Hour {
			t.Errorf("the access token ends in %s", left)
		}
		if left := time.Until(pair.RefreshExpires); left < 180*24*time.Hour || pair.Refresh.Empty() {
			t.Errorf("the refresh token ends in %s", left)
		}
		if me := must[github.Account](t)(r.app.User(pair.Access).Me(t.Context())); me.ID != r.ana.ID {
			t.Errorf("signed in as %+v", me)
		}
		_, err := r.app.Exchange(t.Context(), github.NewSecret(back.Get("code")), verifier)
		wantKind(t, err, github.Unauthorized) // a code is good once
	})
}

func TestCodeIsOfNoUseWithoutItsVerifierOrLate(t *testing.T) {
	t.Parallel()
	r := setScene(t, checked.New(t, githubtest.Options{}))
	_, err := r.app.Exchange(t.Context(), r.code(t, r.ana, github.NewVerifier()), github.NewVerifier())
	wantKind(t, err, github.Unauthorized)
	verifier := github.NewVerifier()
	late := r.code(t, r.ana, verifier)
	r.gh.Advance(11 * time.Minute)
	_, err = r.app.Exchange(t.Context(), late, verifier)
	wantKind(t, err, github.Unauthorized)
	_, err = r.app.Exchange(t.Context(), github.Secret{}, verifier)
	wantKind(t, err, github.Unauthorized)
	for _, c := range []struct{ state, verifier string }{{"", verifier.Reveal()}, {state, ""}, {"short", verifier.Reveal()}} {
		_, err := r.app.SignInURL(c.state, github.NewSecret(c.verifier))
		wantKind(t, err, github.Invalid)
	}
	nowhere := r.connect(t, func(o *github.Options) { o.Callback = "" })
	_, err = nowhere.SignInURL(state, verifier)
	wantKind(t, err, github.Invalid)
}

func TestRefreshGivesTheNextPairAndEndsTheOld(t *testing.T) {
	t.Parallel()
	checked.Both(t, func(t *testing.T, gh *githubtest.Server) {
		r := setScene(t, gh)
		verifier := github.NewVerifier()
		old := must[github.UserTokens](t)(r.app.Exchange(t.Context(), r.code(t, r.ana, verifier), verifier))
		next := must[github.UserTokens](t)(r.app.Refresh(t.Context(), old.Refresh))
		ok(t, errOf(r.app.User(next.Access).Me(t.Context())))
		_, err := r.app.User(old.Access).Me(t.Context())
		wantKind(t, err, github.Unauthorized)
		_, err = r.app.Refresh(t.Context(), old.Refresh) // answered 200 with error=bad_refresh_token
		wantKind(t, err, github.Unauthorized)
		_, err = r.app.Refresh(t.Context(), github.Secret{})
		wantKind(t, err, github.Unauthorized)
		gh.Advance(9 * time.Hour)
		_, err = r.app.User(next.Access).Me(t.Context())
		wantKind(t, err, github.Unauthorized)
		ok(t, errOf(r.app.Refresh(t.Context(), next.Refresh)))
	})
}

func TestTroubleDuringTheSignInSignsNobodyOut(t *testing.T) {
	t.Parallel()
	r := setScene(t, checked.New(t, githubtest.Options{}))
	verifier := github.NewVerifier()
	pair := must[github.UserTokens](t)(r.app.Exchange(t.Context(), r.code(t, r.ana, verifier), verifier))
	app := r.connect(t, func(o *github.Options) { o.Timeout = time.Second })
	for name, f := range map[string]githubtest.Fault{
		"502": {Status: http.StatusBadGateway, Body: "<html>"}, "a page": {Status: http.StatusOK, Body: "<html>", Header: http.Header{"Content-Type": {"text/html"}}},
		"empty": {Status: http.StatusOK, Body: "{}"}, "half an answer": {Cut: 20, Status: http.StatusOK, Body: `{"access_token":"ghu_x","expires_in":1}`},
		"no answer": {Cut: -1}, "slow": {Delay: time.Hour, Status: http.StatusOK}, "redirected": {Status: http.StatusFound, Header: http.Header{"Location": {"/"}}},
	} {
		f.Path = "/login/oauth/access_token"
		mend := r.gh.Break(f)
		_, err := app.Refresh(t.Context(), pair.Refresh)
		if !github.Unavailable.Is(err) && (name != "redirected" || !github.Moved.Is(err)) {
			t.Errorf("%s: got %v", name, err)
		}
		mend()
	}
	ok(t, errOf(app.Refresh(t.Context(), pair.Refresh)))
}

func TestWrongClientSecretAndUnknownCallbackAreToldAsTheAppsFault(t *testing.T) {
	t.Parallel()
	r := setScene(t, checked.New(t, githubtest.Options{}))
	verifier := github.NewVerifier()
	code := r.code(t, r.ana, verifier)
	wrong := r.connect(t, func(o *github.Options) { o.Credentials.ClientSecret = github.NewSecret("wrong") })
	_, err := wrong.Exchange(t.Context(), code, verifier)
	if e := wantKind(t, err, github.Invalid); !strings.Contains(e.Message, "client secret") {
		t.Errorf("got %q", e.Message)
	}
	moved := r.connect(t, func(o *github.Options) { o.Callback = "http://hub.example/elsewhere" })
	if _, err := r.gh.Authorize(must[string](t)(moved.SignInURL(state, verifier)), r.ana); err == nil {
		t.Error("GitHub sent the browser to an address that is no callback of the App")
	}
	_, err = moved.Exchange(t.Context(), r.code(t, r.ana, verifier), verifier)
	if e := wantKind(t, err, github.Invalid); !strings.Contains(e.Message, "elsewhere") {
		t.Errorf("got %q", e.Message)
	}
}

func TestSigningOutEndsTheTokens(t *testing.T) {
	t.Parallel()
	checked.Both(t, func(t *testing.T, gh *githubtest.Server) {
		r := setScene(t, gh)
		verifier := github.NewVerifier()
		one := must[github.UserTokens](t)(r.app.Exchange(t.Context(), r.code(t, r.ana, verifier), verifier))
		two := must[github.UserTokens](t)(r.app.Exchange(t.Context(), r.code(t, r.ana, verifier), verifier))
		ok(t, r.app.RevokeUser(t.Context(), one.Access))
		_, err := r.app.User(one.Access).Me(t.Context())
		wantKind(t, err, github.Unauthorized)
		_, err = r.app.Refresh(t.Context(), one.Refresh)
		wantKind(t, err, github.Unauthorized)
		ok(t, r.app.RevokeUser(t.Context(), one.Access)) // once more is no error
		ok(t, errOf(r.app.User(two.Access).Me(t.Context())))
		ok(t, r.app.RevokeGrant(t.Context(), two.Access))
		_, err = r.app.User(two.Access).Me(t.Context())
		wantKind(t, err, github.Unauthorized)
	})
}

func TestTokensThatLastHaveNoEnd(t *testing.T) {
	t.Parallel()
	gh := checked.New(t, githubtest.Options{GHES: true})
	r := &rig{gh: gh, ana: gh.Person("ana")}
	r.cred = gh.App(githubtest.AppOptions{Callbacks: []string{callback}, Lasting: true})
	r.app = r.connect(t, nil)
	verifier := github.NewVerifier()
	pair := must[github.UserTokens](t)(r.app.Exchange(t.Context(), r.code(t, r.ana, verifier), verifier))
	if !pair.Expires.IsZero() || !pair.Refresh.Empty() || !pair.RefreshExpires.IsZero() {
		t.Errorf("got an end: %s", pair.Expires)
	}
}
