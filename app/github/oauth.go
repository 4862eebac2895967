package github

import (
	"context"
	"errors"
	"net/http"
	"net/url"
	"time"

	ghapi "github.com/google/go-github/v62/github"
	"golang.org/x/oauth2"
)

// UserTokens are a person's: an access token for hours, and a refresh token for months with which to get the next pair.
// An App can choose tokens that last: then Expires is zero and Refresh empty.
type UserTokens struct {
	Access         Secret
	Expires        time.Time
	Refresh        Secret
	RefreshExpires time.Time
}

// NewVerifier makes what a sign-in keeps beside its state, and shows only when the code is exchanged (PKCE).
func NewVerifier() Secret { return NewSecret(oauth2.GenerateVerifier()) }

func (a *App) oauth() *oauth2.Config {
	return &oauth2.Config{
		ClientID: a.cred.ClientID, ClientSecret: a.cred.ClientSecret.Reveal(), RedirectURL: a.opts.Callback,
		Endpoint: oauth2.Endpoint{
			AuthURL: a.at.Web + "/login/oauth/authorize", TokenURL: a.at.Web + "/login/oauth/access_token",
			AuthStyle: oauth2.AuthStyleInParams,
		},
	}
}

// SignInURL is where to send the browser. state must be random, bound to this browser, good for one use and checked by the
// caller when it comes back: this package can't know it (facts/github.md §1, 19). The App must have a Callback.
func (a *App) SignInURL(state string, verifier Secret) (string, error) {
	switch {
	case a.opts.Callback == "":
		return "", fail(Invalid, "The Hub's public address isn't configured: GitHub couldn't send browsers back.")
	case len(state) < 16 || len(verifier.Reveal()) < 43:
		return "", fail(Invalid, "A sign-in needs a random state and a verifier.")
	}
	return a.oauth().AuthCodeURL(state, oauth2.S256ChallengeOption(verifier.Reveal())), nil
}

// Exchange turns the code that the browser brought into tokens. Unauthorized if GitHub doesn't take the code: it was used, is
// older than ten minutes, or belongs to another verifier.
func (a *App) Exchange(ctx context.Context, code, verifier Secret) (UserTokens, error) {
	if code.Empty() || verifier.Empty() {
		return UserTokens{}, fail(Unauthorized, "This sign-in wasn't begun here. Begin it again.")
	}
	ctx, cancel := a.oauthContext(ctx)
	defer cancel()
	t, err := a.oauth().Exchange(ctx, code.Reveal(), oauth2.VerifierOption(verifier.Reveal()))
	return a.tokens(ctx, t, err)
}

// Refresh gets the next pair: the old refresh token, and the access token that came with it, are dead afterwards. Refresh one
// person's tokens by one caller at a time. Unauthorized means that the person has to sign in again, if nobody else refreshed
// in the meantime.
func (a *App) Refresh(ctx context.Context, refresh Secret) (UserTokens, error) {
	if refresh.Empty() {
		return UserTokens{}, fail(Unauthorized, "GitHub no longer accepts this sign-in. Sign in again.")
	}
	ctx, cancel := a.oauthContext(ctx)
	defer cancel()
	t, err := a.oauth().TokenSource(ctx, &oauth2.Token{RefreshToken: refresh.Reveal()}).Token()
	got, err := a.tokens(ctx, t, err)
	if err == nil && got.Refresh.Empty() {
		return UserTokens{}, away(nil)
	}
	return got, err
}

type jsonAccept struct{ next http.RoundTripper }

func (j jsonAccept) RoundTrip(r *http.Request) (*http.Response, error) {
	r = r.Clone(r.Context())
	r.Header.Set("Accept", "application/json")
	return j.next.RoundTrip(r)
}

func (a *App) oauthContext(ctx context.Context) (context.Context, context.CancelFunc) {
	ctx = context.WithValue(ctx, oauth2.HTTPClient, &http.Client{Transport: jsonAccept{a.fence}})
	return context.WithTimeout(ctx, a.opts.Timeout)
}

// tokens reads the answer. Failures come with status 200 and a name (facts/github.md §1, 21); what else the library says of
// them holds the answer's body and is not passed on.
func (a *App) tokens(ctx context.Context, t *oauth2.Token, err error) (UserTokens, error) {
	const what = "POST /login/oauth/access_token"
	if err == nil {
		out := UserTokens{Access: NewSecret(t.AccessToken), Expires: t.Expiry, Refresh: NewSecret(t.RefreshToken)}
		if s, ok := t.Extra("refresh_token_expires_in").(float64); ok && s > 0 {
			out.RefreshExpires = time.Now().Add(time.Duration(s) * time.Second)
		}
		return out, nil
	}
	var r *oauth2.RetrieveError
	if !errors.As(err, &r) || r.Response == nil {
		return UserTokens{}, a.failure(ctx, caller{key: "sign-in"}, what, nil, err)
	}
	var e *Error
	switch {
	case r.ErrorCode == "bad_refresh_token":
		e = fail(Unauthorized, "GitHub no longer accepts this sign-in. Sign in again.")
	case r.ErrorCode == "bad_verification_code":
		e = fail(Unauthorized, "This sign-in took too long, or was used already. Begin it again.")
	case r.ErrorCode == "incorrect_client_credentials":
		e = fail(Invalid, "GitHub doesn't accept the App's client id and client secret.")
	case r.ErrorCode == "redirect_uri_mismatch":
		e = fail(Invalid, "GitHub doesn't know the Hub's address as a callback of the App. Add %s to the App's callback URLs.", a.opts.Callback)
	case r.ErrorCode != "":
		e = fail(Invalid, "GitHub doesn't take this sign-in.")
	default:
		return UserTokens{}, a.failure(ctx, caller{key: "sign-in"}, what, r.Response, nil)
	}
	e.Detail = what + ": " + sentence(r.ErrorCode)
	return UserTokens{}, e
}

// asClient is for the calls that an App makes with its client id and secret.
func (a *App) asClient(ctx context.Context, method, path string, token Secret) error {
	c := ghapi.NewClient(&http.Client{
		Timeout:   a.opts.Timeout,
		Transport: basicAuth{a.fence, a.cred.ClientID, a.cred.ClientSecret},
	})
	c.BaseURL, c.UserAgent = a.app.BaseURL, agent(a.opts.Version)
	in := map[string]string{"access_token": token.Reveal()}
	_, err := a.call(ctx, c, caller{key: "client"}, method, "applications/"+url.PathEscape(a.cred.ClientID)+path, in, nil)
	if NotFound.Is(err) { // it has ended already
		return nil
	}
	return err
}

type basicAuth struct {
	next   http.RoundTripper
	id     string
	secret Secret
}

func (b basicAuth) RoundTrip(r *http.Request) (*http.Response, error) {
	r = r.Clone(r.Context())
	r.SetBasicAuth(b.id, b.secret.Reveal())
	return b.next.RoundTrip(r)
}

// RevokeUser ends a person's access token and its refresh token: they signed out. One that has ended is no error.
func (a *App) RevokeUser(ctx context.Context, access Secret) error {
	return a.asClient(ctx, http.MethodDelete, "/token", access)
}

// RevokeGrant ends a person's authorization of the App, with all their tokens.
func (a *App) RevokeGrant(ctx context.Context, access Secret) error {
	return a.asClient(ctx, http.MethodDelete, "/grant", access)
}
