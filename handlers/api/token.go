package api

import (
	"context"
	"errors"
	"net/http"
	"time"

	"github.com/gorilla/mux"

	"github.com/claude-hub/claude-hub/app/access"
	"github.com/claude-hub/claude-hub/app/fault"
	"github.com/claude-hub/claude-hub/handlers/api/schema"
)

func (a *api) tokens(w http.ResponseWriter, r *http.Request, who access.Person) error {
	all, err := a.Gate.Tokens(r.Context(), who)
	if err != nil {
		return err
	}
	list := make([]schema.Token, 0, len(all))
	for _, t := range all {
		one, err := a.tokenOf(r.Context(), who, t)
		if err != nil {
			return err
		}
		list = append(list, one)
	}
	return answer(w, http.StatusOK, list)
}

// tokenOf names the Repos that a token is limited to, as far as its owner may still know of them.
func (a *api) tokenOf(ctx context.Context, who access.Person, t access.Token) (schema.Token, error) {
	out := schema.Token{ID: t.ID, Name: t.Name, Scopes: make([]string, 0, len(t.Scopes)), Created: t.Created.UTC(), Expires: t.Expires.UTC(), Used: used(t)}
	for _, s := range t.Scopes {
		out.Scopes = append(out.Scopes, string(s))
	}
	for _, id := range t.Repos {
		g, err := a.Gate.Repo(ctx, who, id)
		switch {
		case errors.Is(err, access.ErrNotFound):
			out.Hidden++
		case err != nil:
			return out, err
		default:
			out.Repos = append(out.Repos, repoOf(g.Repo()))
		}
	}
	return out, nil
}

// used is when a token was last used; nil: never.
func used(t access.Token) *time.Time {
	if t.Used.Equal(t.Created) {
		return nil
	}
	return maybe(t.Used)
}

func (a *api) createToken(w http.ResponseWriter, r *http.Request, who access.Person) error {
	var in schema.NewToken
	if err := decode(r, &in); err != nil {
		return err
	}
	o := access.TokenOptions{Name: in.Name, Life: time.Duration(min(in.Days, 10_000)) * 24 * time.Hour}
	for _, s := range in.Scopes {
		o.Scopes = append(o.Scopes, access.Scope(s))
	}
	for _, name := range in.Repos {
		g, err := a.Gate.Called(r.Context(), who, name)
		if errors.Is(err, access.ErrNotFound) {
			return fault.Field("repos", "There is no Repo %s, or you have no access to it.", name)
		}
		if err != nil {
			return err
		}
		o.Repos = append(o.Repos, g.Repo().ID)
	}
	secret, t, err := a.Gate.CreateToken(r.Context(), who, o)
	var f *fault.Error
	if errors.As(err, &f) && f.Fields["life"] != "" {
		return fault.Field("days", "%s", f.Message)
	}
	if err != nil {
		return err
	}
	made, err := a.tokenOf(r.Context(), who, t)
	if err != nil {
		return err
	}
	return answer(w, http.StatusCreated, schema.MadeToken{Token: made, Secret: secret})
}

func (a *api) revokeToken(w http.ResponseWriter, r *http.Request, who access.Person) error {
	if err := decode(r, &struct{}{}); err != nil {
		return err
	}
	if err := a.Gate.RevokeToken(r.Context(), who, mux.Vars(r)["token"]); err != nil {
		return err
	}
	w.WriteHeader(http.StatusNoContent)
	return nil
}

// entryError is that a Repo can't be entered, with where the App is installed.
type entryError struct {
	fault      *fault.Error
	installURL string
}

func (e *entryError) Error() string { return e.fault.Message }
func (e *entryError) Unwrap() error { return e.fault }

// openRepo checks a Repo as it is entered for a new Session or Environment (ADR 0009, "Checking up front").
func (a *api) openRepo(w http.ResponseWriter, r *http.Request, who access.Person) error {
	var in schema.OpenRepo
	if err := decode(r, &in); err != nil {
		return err
	}
	e, err := a.Gate.Enter(r.Context(), who, in.Repo)
	switch {
	case err != nil:
		return err
	case e.OK:
		return answer(w, http.StatusOK, repoOf(e.Grant.Repo()))
	case e.NotInstalled:
		return &entryError{fault.New(fault.Refused, "%s", e.Message), e.InstallURL}
	}
	return &entryError{fault.New(fault.NotFound, "%s", e.Message), e.InstallURL}
}
