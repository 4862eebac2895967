package web

import (
	"context"
	"errors"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/gorilla/mux"

	"github.com/claude-hub/claude-hub/app/access"
	"github.com/claude-hub/claude-hub/app/fault"
)

type accountPage struct {
	Page
	Dev      bool
	GitHubID int64
	GitHub   string // the GitHub that the person is of
	Browsers int    // that are signed in, this one too
	Tokens   int
}

func (w *Web) account(rw http.ResponseWriter, r *http.Request, who access.Person) error {
	p := accountPage{Page: w.page(r, "Your account"), Dev: who.Dev(), GitHubID: who.GitHubID()}
	p.Section = "account"
	if app, err := w.d.Gate.App(); err == nil && !p.Dev {
		_, p.GitHub, _ = strings.Cut(app.Endpoints().Web, "://")
	}
	var err error
	if p.Browsers, err = w.d.Gate.Browsers(r.Context(), who); err != nil {
		return err
	}
	tokens, err := w.d.Gate.Tokens(r.Context(), who)
	if err != nil {
		return err
	}
	p.Tokens = len(tokens)
	return w.render(rw, r, http.StatusOK, "account", p)
}

func (w *Web) signOutEverywhere(rw http.ResponseWriter, r *http.Request, who access.Person) error {
	if err := w.d.Gate.SignOutEverywhere(r.Context(), who); err != nil {
		return err
	}
	w.setCookie(rw, w.cookie(), "", -1)
	return seeOther(rw, r, "/sign-in")
}

type tokensPage struct {
	Page
	Tokens []TokenRow
	Form   Form
	Scopes []ScopeOption
	Lives  []LifeOption
	Made   *access.Token // just now, with the only sight of its Secret
	Secret string
	Hub    string
}

// TokenRow is one token, without its secret.
type TokenRow struct {
	access.Token
	Repos  []string // by name: what it is limited to, as far as its owner has access now
	Hidden int      // how many more of those there are
}

// Unused tells that it was never used.
func (t TokenRow) Unused() bool { return t.Used.Equal(t.Created) }

// Limited tells that it isn't good for every Repo of its owner's.
func (t TokenRow) Limited() bool { return len(t.Token.Repos) > 0 }

// ScopeOption is a scope to tick.
type ScopeOption struct {
	access.Scope
	Says    string
	Checked bool
}

// ID is its field's.
func (o ScopeOption) ID() string { return "scope-" + string(o.Scope) }

// LifeOption is how long a token can be good for.
type LifeOption struct {
	Days   int
	Chosen bool
}

// scopeWords say what a token with a scope may do; every scope has a line.
var scopeWords = map[access.Scope]string{
	access.ScopeRead:         "see Repos, Environments, Test builds, Sessions, logs, Shared variables and Runners",
	access.ScopeEnvironments: "change drafts, start and cancel Test builds, apply versions",
	access.ScopeSessions:     "start, change and delete Sessions, and run commands in them",
	access.ScopeShared:       "change Shared variables",
	access.ScopeRunners:      "register and revoke Runners",
	access.ScopeTokens:       "make tokens that can do no more than this one, and revoke any",
}

// lives are the days that the page offers; the API takes any up to a year.
var lives = []int{7, 30, 90, 365}

const usualLife = 90

func (w *Web) tokens(rw http.ResponseWriter, r *http.Request, who access.Person) error {
	form := Form{Values: map[string]string{"life": strconv.Itoa(usualLife)}}
	p, err := w.tokensPage(r, who, form, []access.Scope{access.ScopeRead, access.ScopeEnvironments, access.ScopeSessions})
	if err != nil {
		return err
	}
	return w.render(rw, r, http.StatusOK, "tokens", p)
}

func (w *Web) tokensPage(r *http.Request, who access.Person, form Form, scopes []access.Scope) (tokensPage, error) {
	p := tokensPage{Page: w.page(r, "Your tokens"), Form: form, Hub: w.d.PublicURL.Scheme + "://" + w.d.PublicURL.Host}
	p.Section, p.Typing = "account", true
	for _, s := range access.Scopes() {
		p.Scopes = append(p.Scopes, ScopeOption{s, scopeWords[s], slices.Contains(scopes, s)})
	}
	for _, days := range lives {
		p.Lives = append(p.Lives, LifeOption{days, form.Value("life") == strconv.Itoa(days)})
	}
	all, err := w.d.Gate.Tokens(r.Context(), who)
	if err != nil {
		return p, err
	}
	for _, t := range all {
		row := TokenRow{Token: t}
		for _, id := range t.Repos {
			g, err := w.d.Gate.Repo(r.Context(), who, id)
			switch {
			case errors.Is(err, access.ErrNotFound):
				row.Hidden++
			case err != nil:
				return p, err
			default:
				row.Repos = append(row.Repos, g.Repo().Name)
			}
		}
		p.Tokens = append(p.Tokens, row)
	}
	return p, nil
}

func (w *Web) createToken(rw http.ResponseWriter, r *http.Request, who access.Person) error {
	if err := parseForm(r); err != nil {
		return err
	}
	form := Form{Values: map[string]string{"name": r.PostForm.Get("name"), "repos": unix(r.PostForm.Get("repos")), "life": r.PostForm.Get("life")}}
	var o access.TokenOptions
	for _, s := range r.PostForm["scope"] {
		o.Scopes = append(o.Scopes, access.Scope(s))
	}
	secret, t, err := w.makeToken(r.Context(), who, &o, form)
	var f *fault.Error
	status := http.StatusCreated
	switch {
	case errors.As(err, &f):
		form.take(f, "name", "scopes", "repos", "life")
		status = statusOf(f)
	case err != nil:
		return err
	default:
		form = Form{Values: map[string]string{"life": strconv.Itoa(usualLife)}}
	}
	p, err := w.tokensPage(r, who, form, o.Scopes)
	if err != nil {
		return err
	}
	if secret != "" {
		p.Made, p.Secret = &t, secret
	}
	return w.render(rw, r, status, "tokens", p)
}

func (w *Web) makeToken(ctx context.Context, who access.Person, o *access.TokenOptions, form Form) (string, access.Token, error) {
	days, err := strconv.Atoi(form.Value("life"))
	if err != nil || !slices.Contains(lives, days) {
		return "", access.Token{}, fault.Field("life", "Choose one of these.")
	}
	o.Name, o.Life = strings.TrimSpace(form.Value("name")), time.Duration(days)*24*time.Hour
	for _, name := range strings.Fields(strings.ReplaceAll(form.Value("repos"), ",", " ")) {
		g, err := w.d.Gate.Called(ctx, who, name)
		if errors.Is(err, access.ErrNotFound) {
			return "", access.Token{}, fault.Field("repos", "There is no Repo %s, or you have no access to it.", name)
		}
		if err != nil {
			return "", access.Token{}, err
		}
		o.Repos = append(o.Repos, g.Repo().ID)
	}
	return w.d.Gate.CreateToken(ctx, who, *o)
}

func (w *Web) revokeToken(rw http.ResponseWriter, r *http.Request, who access.Person) error {
	if err := w.d.Gate.RevokeToken(r.Context(), who, mux.Vars(r)["token"]); err != nil {
		return err
	}
	return seeOther(rw, r, "/account/tokens")
}
