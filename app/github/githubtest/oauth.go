package githubtest

import (
	"crypto/sha256"
	"crypto/subtle"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"time"
)

// code is what the browser brings back from the sign-in, once.
type code struct {
	app                 *app
	user                *account
	redirect, challenge string
	expires             time.Time
}

const (
	codeLife    = 10 * time.Minute
	userLife    = 8 * time.Hour
	refreshLife = 15897600 * time.Second // six months, as GitHub says it
)

// Authorize is a person agreeing to the sign-in that the browser was sent to. It returns where GitHub sends the browser
// back to. An error is what GitHub would show as a page.
func (s *Server) Authorize(authorizeURL string, who Account) (back string, err error) {
	u, err := url.Parse(authorizeURL)
	if err != nil {
		return "", err
	}
	if u.Scheme+"://"+u.Host != s.urls.Web || u.Path != "/login/oauth/authorize" {
		return "", fmt.Errorf("%s is not where one signs in: that is %s/login/oauth/authorize", authorizeURL, s.urls.Web)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.authorize(u.Query(), who.get())
}

// request checks a sign-in before anybody is asked. Called with the lock.
func (s *Server) signIn(q url.Values) (*app, *url.URL, error) {
	i := slices.IndexFunc(sortedByID(s.apps), func(a *app) bool { return a.ClientID == q.Get("client_id") })
	if i < 0 {
		return nil, nil, errors.New("there is no App with this client_id")
	}
	a := sortedByID(s.apps)[i]
	redirect := q.Get("redirect_uri")
	if redirect == "" && len(a.callbacks) > 0 {
		redirect = a.callbacks[0]
	}
	if !slices.Contains(a.callbacks, redirect) {
		return nil, nil, fmt.Errorf("the redirect_uri %q is not associated with this application", redirect)
	}
	back, err := url.Parse(redirect)
	if err != nil {
		return nil, nil, err
	}
	if q.Get("code_challenge") != "" && q.Get("code_challenge_method") != "S256" {
		return nil, nil, errors.New("code_challenge_method must be S256")
	}
	return a, back, nil
}

func (s *Server) authorize(q url.Values, who *account) (string, error) {
	a, back, err := s.signIn(q)
	if err != nil {
		return "", err
	}
	value := random(10)
	s.codes[value] = &code{
		app: a, user: who, redirect: q.Get("redirect_uri"), challenge: q.Get("code_challenge"), expires: s.now().Add(codeLife),
	}
	answer := back.Query()
	answer.Set("code", value)
	if q.Has("state") {
		answer.Set("state", q.Get("state"))
	}
	back.RawQuery = answer.Encode()
	return back.String(), nil
}

// UserToken gives a person's token without the sign-in, for tests of what comes after it.
func (s *Server) UserToken(appID int64, who Account) string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.issue(s.apps[appID], who.get())["access_token"].(string)
}

// issue makes a new pair. Called with the lock.
func (s *Server) issue(a *app, who *account) object {
	access := "ghu_" + random(18)
	t := &token{app: a, user: who}
	s.tokens[access] = t
	o := object{"access_token": access, "token_type": "bearer", "scope": ""}
	if !a.lasting {
		t.twin = "ghr_" + random(38)
		t.expires = s.now().Add(userLife)
		s.refresh[t.twin] = &token{app: a, user: who, expires: s.now().Add(refreshLife), twin: access}
		o["expires_in"], o["refresh_token"] = int(userLife.Seconds()), t.twin
		o["refresh_token_expires_in"] = int(refreshLife.Seconds())
	}
	return o
}

// accessToken exchanges a code, or a refresh token. Failures are answered with status 200 (facts/github.md §1, 21).
func (s *Server) accessToken(w http.ResponseWriter, r *http.Request) {
	body, err := io.ReadAll(io.LimitReader(r.Body, 1<<20))
	if err != nil {
		return
	}
	a := &answer{header: http.Header{}}
	f := s.fault(r.Method, r.URL.Path)
	if !f.instead() {
		in, err := url.ParseQuery(string(body))
		if strings.Contains(r.Header.Get("Content-Type"), "json") {
			var m map[string]string
			err = json.Unmarshal(body, &m)
			for k, v := range m {
				in.Set(k, v)
			}
		}
		if id, secret, ok := r.BasicAuth(); ok && in != nil {
			in.Set("client_id", id)
			in.Set("client_secret", secret)
		}
		var out object
		if err != nil {
			out = oauthError("bad_request", "The body can't be read.")
		} else {
			s.mu.Lock()
			out = s.exchange(in)
			s.mu.Unlock()
		}
		if strings.Contains(r.Header.Get("Accept"), "json") {
			a.header.Set("Content-Type", "application/json; charset=utf-8")
			_ = json.NewEncoder(a).Encode(out)
		} else {
			a.header.Set("Content-Type", "application/x-www-form-urlencoded; charset=utf-8")
			v := url.Values{}
			for k, e := range out {
				v.Set(k, fmt.Sprint(e))
			}
			_, _ = a.Write([]byte(v.Encode()))
		}
	}
	f.answer(a)
	s.record(r, body, principal{}, a.status)
	f.send(s.ctx, w, r, a)
}

func oauthError(name, text string) object {
	return object{"error": name, "error_description": text, "error_uri": "https://docs.github.com"}
}

func (s *Server) exchange(in url.Values) object {
	i := slices.IndexFunc(sortedByID(s.apps), func(a *app) bool { return a.ClientID == in.Get("client_id") })
	if i < 0 || subtle.ConstantTimeCompare([]byte(sortedByID(s.apps)[i].ClientSecret), []byte(in.Get("client_secret"))) != 1 {
		return oauthError("incorrect_client_credentials", "The client_id and/or client_secret passed are incorrect.")
	}
	a := sortedByID(s.apps)[i]
	if in.Get("grant_type") == "refresh_token" {
		old := s.refresh[in.Get("refresh_token")]
		if old == nil || old.app != a || !s.now().Before(old.expires) {
			return oauthError("bad_refresh_token", "The refresh token passed is incorrect or expired.")
		}
		delete(s.refresh, in.Get("refresh_token")) // using it ends it, and the access token with it
		if t := s.tokens[old.twin]; t != nil {
			t.revoked = true
		}
		return s.issue(a, old.user)
	}
	c := s.codes[in.Get("code")]
	delete(s.codes, in.Get("code"))
	switch {
	case c == nil || c.app != a || !s.now().Before(c.expires):
		return oauthError("bad_verification_code", "The code passed is incorrect or expired.")
	case in.Get("redirect_uri") != "" && in.Get("redirect_uri") != c.redirect:
		return oauthError("redirect_uri_mismatch", "The redirect_uri MUST match the registered callback URL for this application.")
	case c.challenge != "":
		sum := sha256.Sum256([]byte(in.Get("code_verifier")))
		if base64.RawURLEncoding.EncodeToString(sum[:]) != c.challenge {
			return oauthError("bad_verification_code", "The code_verifier doesn't match the code_challenge.")
		}
	}
	return s.issue(a, c.user)
}
