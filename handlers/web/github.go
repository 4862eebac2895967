package web

import (
	"errors"
	"net/http"
	"net/url"

	"github.com/claude-hub/claude-hub/app/access"
	"github.com/claude-hub/claude-hub/app/fault"
	"github.com/claude-hub/claude-hub/handlers/request"
)

// stateCookie holds the browser's half of a sign-in that is under way.
func (w *Web) stateCookie() string { return w.cookieName("claude-hub-sign-in") }

// gitHubPath is a link and never a form: browsers hold a form's redirects to the policy's form-action, which GitHub is not
// in (facts/reliability.md §6).
func gitHubPath(back string) string {
	if back == "/" {
		return "/auth/github"
	}
	return "/auth/github?" + url.Values{"return_to": {back}}.Encode()
}

// beginGitHub sends the browser to GitHub to say who it is.
func (w *Web) beginGitHub(rw http.ResponseWriter, r *http.Request) error {
	to, secret, err := w.d.Gate.BeginSignIn(r.Context(), local(r.URL.Query().Get("return_to")))
	if err != nil {
		return w.notSignedIn(rw, r, "", err)
	}
	w.setCookie(rw, w.stateCookie(), secret, int(access.SignInLife.Seconds()))
	return seeOther(rw, r, to)
}

// finishGitHub is where GitHub sends the browser back to. Its state, and that it is this browser's, is for the Gate to judge
// (P33); what GitHub says of an error is looked at only to choose a sentence.
func (w *Web) finishGitHub(rw http.ResponseWriter, r *http.Request) error {
	var secret string
	if c, err := r.Cookie(w.stateCookie()); err == nil {
		secret = c.Value
	}
	w.setCookie(rw, w.stateCookie(), "", -1)
	q := r.URL.Query()
	if e := q.Get("error"); e != "" {
		return w.notSignedIn(rw, r, "", fault.New(fault.Refused, "%s", gitHubSaid(e)))
	}
	_, session, back, err := w.d.Gate.FinishSignIn(r.Context(), secret, q.Get("state"), q.Get("code"))
	if err != nil {
		return w.notSignedIn(rw, r, local(back), err)
	}
	return w.signedInAs(rw, r, session, local(back))
}

// gitHubSaid says in words why GitHub sent somebody back without a code (RFC 6749 §4.1.2.1, and GitHub's own).
func gitHubSaid(code string) string {
	switch code {
	case "access_denied":
		return "GitHub was not allowed to tell this Hub who you are, so you are not signed in."
	case "application_suspended":
		return "GitHub has suspended this Hub's App, so nobody can sign in with it. Its owner can ask GitHub why."
	case "redirect_uri_mismatch":
		return "This Hub's GitHub App doesn't list this Hub's address as a callback, so nobody can sign in. An operator adds it in the App's settings."
	}
	return "GitHub did not let you sign in."
}

type notSignedInPage struct {
	Page
	Message, Again string
	InstallURL     string // where the App is installed, if that is what is missing
}

// notSignedIn says why somebody isn't. What is no fault is for fail.
func (w *Web) notSignedIn(rw http.ResponseWriter, r *http.Request, back string, err error) error {
	var f *fault.Error
	if !errors.As(err, &f) {
		return err
	}
	p := notSignedInPage{Page: w.page(r, "You are not signed in"), Message: f.Message, Again: "/sign-in"}
	if errors.Is(err, access.ErrNoRepos) {
		p.InstallURL = w.d.Gate.InstallURL()
	}
	if back != "" && back != "/" {
		p.Again += "?" + url.Values{"return_to": {back}}.Encode()
	}
	return w.render(rw, r, request.Status(f.Code), "not-signed-in", p)
}
