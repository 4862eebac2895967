package web

import (
	"errors"
	"io"
	"net/http"
	"net/url"
	"strings"

	"github.com/claude-hub/claude-hub/app/access"
	"github.com/claude-hub/claude-hub/app/fault"
	"github.com/claude-hub/claude-hub/handlers/request"
)

// cookie is the browser session's name. Over https the prefix has browsers bind it to this very host.
func (w *Web) cookie() string { return w.cookieName("claude-hub") }

func (w *Web) cookieName(name string) string {
	if w.d.SecureCookies {
		return "__Host-" + name
	}
	return name
}

// setCookie sets a cookie for this very host; an age below 0 deletes it. Lax, since people come here from GitHub.
func (w *Web) setCookie(rw http.ResponseWriter, name, value string, age int) {
	http.SetCookie(rw, &http.Cookie{
		Name: name, Value: value, Path: "/", MaxAge: age, HttpOnly: true, Secure: w.d.SecureCookies, SameSite: http.SameSiteLaxMode,
	})
}

func (w *Web) who(r *http.Request) (access.Person, error) {
	c, err := r.Cookie(w.cookie())
	if err != nil || c.Value == "" {
		return access.Person{}, fault.New(fault.Unauthorized, "You are not signed in.")
	}
	return w.d.Gate.Browser(r.Context(), c.Value)
}

func (w *Web) sendToSignIn(rw http.ResponseWriter, r *http.Request) error {
	if r.Header.Get("Accept") == "text/event-stream" {
		return fault.New(fault.Unauthorized, "You are not signed in.")
	}
	if r.Method != http.MethodGet && r.Method != http.MethodHead {
		return w.notSent(rw, r)
	}
	to := "/sign-in"
	if r.URL.Path != "/" {
		to += "?" + url.Values{"return_to": {r.URL.RequestURI()}}.Encode()
	}
	return seeOther(rw, r, to)
}

type notSentPage struct{ Page }

// notSent answers a form of who was signed out meanwhile. The Hub keeps nothing of it, but the browser does as long as its page
// is this answer: reloading it sends the form again. Going back would not bring it, since browsers don't restore what was typed
// where autocomplete is off.
func (w *Web) notSent(rw http.ResponseWriter, r *http.Request) error {
	_, _ = io.Copy(io.Discard, r.Body) // a browser that is cut off while it sends shows no page
	return w.render(rw, r, http.StatusUnauthorized, "not-sent", notSentPage{w.page(r, "You are signed out")})
}

// local is a path on this Hub, or "/" for anything else: a link to the sign-in page must not lead away afterwards.
func local(to string) string {
	to = access.LocalPath(to)
	if u, err := url.Parse(to); err != nil || strings.HasPrefix(u.Path, "/sign-") || strings.HasPrefix(u.Path, "/auth/") {
		return "/"
	}
	return to
}

type signInPage struct {
	Page
	Form     Form
	ReturnTo string
	GitHub   string // where people sign in with GitHub; empty: this Hub has no App
}

// Nobody tells that there is no way to sign in.
func (p signInPage) Nobody() bool { return p.GitHub == "" && !p.DevLogin }

func (w *Web) signInPage(rw http.ResponseWriter, r *http.Request) error {
	if _, err := w.who(r); err == nil {
		return seeOther(rw, r, local(r.URL.Query().Get("return_to")))
	}
	return w.showSignIn(rw, r, http.StatusOK, local(r.URL.Query().Get("return_to")), Form{})
}

func (w *Web) showSignIn(rw http.ResponseWriter, r *http.Request, status int, back string, form Form) error {
	p := signInPage{Page: w.page(r, "Sign in"), Form: form, ReturnTo: back}
	if w.hasApp() {
		p.GitHub = gitHubPath(back)
	}
	return w.render(rw, r, status, "sign-in", p)
}

func (w *Web) signIn(rw http.ResponseWriter, r *http.Request) error {
	if err := parseForm(r); err != nil {
		return err
	}
	login, back := strings.TrimSpace(r.PostForm.Get("login")), local(r.PostForm.Get("return_to"))
	_, secret, err := w.d.Gate.SignInDev(r.Context(), login)
	var f *fault.Error
	if errors.As(err, &f) {
		form := Form{Values: map[string]string{"login": login}}
		form.take(f)
		return w.showSignIn(rw, r, request.Status(f.Code), back, form)
	}
	if err != nil {
		return err
	}
	return w.signedInAs(rw, r, secret, back)
}

// signedInAs gives the browser its new session, in place of one that it may have had: never two of one browser.
func (w *Web) signedInAs(rw http.ResponseWriter, r *http.Request, secret, back string) error {
	if old, err := r.Cookie(w.cookie()); err == nil {
		if err := w.d.Gate.SignOut(r.Context(), old.Value); err != nil {
			return err
		}
	}
	w.setCookie(rw, w.cookie(), secret, int(access.BrowserLife.Seconds()))
	return seeOther(rw, r, back)
}

func (w *Web) signOut(rw http.ResponseWriter, r *http.Request) error {
	if c, err := r.Cookie(w.cookie()); err == nil {
		if err := w.d.Gate.SignOut(r.Context(), c.Value); err != nil {
			return err
		}
	}
	w.setCookie(rw, w.cookie(), "", -1)
	return seeOther(rw, r, "/sign-in")
}
