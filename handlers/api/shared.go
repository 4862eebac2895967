package api

import (
	"context"
	"net/http"

	"github.com/gorilla/mux"

	"github.com/claude-hub/claude-hub/app/access"
	"github.com/claude-hub/claude-hub/app/variable"
	"github.com/claude-hub/claude-hub/handlers/api/schema"
)

func sharedOf(s variable.Shared) schema.Shared {
	out := schema.Shared{
		Name: s.Name, Note: s.Note, Sensitive: s.Sensitive, Revision: s.Revision, Status: string(s.Status), Digest: s.Digest,
		SetAt: maybe(s.SetAt), SetBy: s.SetBy, CreatedAt: s.CreatedAt.UTC(), CreatedBy: s.CreatedBy,
	}
	if !s.Sensitive {
		out.Value = &s.Value
	}
	return out
}

// withUsers adds who links it, as the caller may see them.
func withUsers(s schema.Shared, u variable.Users) schema.Shared {
	s.Users = &schema.Users{Repos: reposOf(u.Repos), Hidden: u.Hidden, AtBuild: reposOf(u.AtBuild), HiddenAtBuild: u.HiddenAtBuild}
	s.Consequence = u.Consequence()
	return s
}

func reposOf(repos []access.Repo) []schema.Repo {
	list := make([]schema.Repo, 0, len(repos))
	for _, r := range repos {
		list = append(list, repoOf(r))
	}
	return list
}

func (a *api) allShared(w http.ResponseWriter, r *http.Request, who access.Person) error {
	return a.answerChanged(w, r, variable.TopicShared, func(ctx context.Context) (any, error) {
		all, users, err := a.Vault.Shared(ctx, who)
		if err != nil {
			return nil, err
		}
		list := make([]schema.Shared, 0, len(all))
		for _, s := range all {
			list = append(list, withUsers(sharedOf(s), users[s.ID]))
		}
		return list, nil
	})
}

func (a *api) shared(w http.ResponseWriter, r *http.Request, who access.Person) error {
	return a.answerChanged(w, r, variable.TopicShared, func(ctx context.Context) (any, error) {
		s, users, err := a.Vault.SharedNamed(ctx, who, mux.Vars(r)["shared"])
		if err != nil {
			return nil, err
		}
		return withUsers(sharedOf(s), users), nil
	})
}

func (a *api) createShared(w http.ResponseWriter, r *http.Request, who access.Person) error {
	var in schema.CreateShared
	if err := decode(r, &in); err != nil {
		return err
	}
	value, err := valueOf(in.Value)
	if err != nil {
		return err
	}
	s, err := a.Vault.CreateShared(r.Context(), who, variable.NewShared{Name: in.Name, Note: in.Note, Sensitive: in.Sensitive, Value: value})
	if err != nil {
		return err
	}
	return answer(w, http.StatusCreated, sharedOf(s))
}

func (a *api) setShared(w http.ResponseWriter, r *http.Request, who access.Person) error {
	var in schema.SetShared
	if err := decode(r, &in); err != nil {
		return err
	}
	value, err := valueOf(in.Value)
	if err != nil {
		return err
	}
	s, err := a.Vault.SetShared(r.Context(), who, mux.Vars(r)["shared"], in.Revision, in.Sensitive, value)
	if err != nil {
		return err
	}
	return answer(w, http.StatusOK, sharedOf(s))
}

func (a *api) noteShared(w http.ResponseWriter, r *http.Request, who access.Person) error {
	var in schema.NoteShared
	if err := decode(r, &in); err != nil {
		return err
	}
	s, err := a.Vault.NoteShared(r.Context(), who, mux.Vars(r)["shared"], in.Revision, in.Note)
	if err != nil {
		return err
	}
	return answer(w, http.StatusOK, sharedOf(s))
}

func (a *api) renameShared(w http.ResponseWriter, r *http.Request, who access.Person) error {
	var in schema.RenameShared
	if err := decode(r, &in); err != nil {
		return err
	}
	s, err := a.Vault.RenameShared(r.Context(), who, mux.Vars(r)["shared"], in.Revision, in.Name)
	if err != nil {
		return err
	}
	return answer(w, http.StatusOK, sharedOf(s))
}

func (a *api) deleteShared(w http.ResponseWriter, r *http.Request, who access.Person) error {
	var in schema.DeleteShared
	if err := decode(r, &in); err != nil {
		return err
	}
	if err := a.Vault.DeleteShared(r.Context(), who, mux.Vars(r)["shared"], in.Revision); err != nil {
		return err
	}
	w.WriteHeader(http.StatusNoContent)
	return nil
}
