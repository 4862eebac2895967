package api

import (
	"context"
	"net/http"
	"time"

	"github.com/gorilla/mux"

	"github.com/claude-hub/claude-hub/app/access"
	"github.com/claude-hub/claude-hub/app/fault"
	"github.com/claude-hub/claude-hub/app/fleet"
	"github.com/claude-hub/claude-hub/handlers/api/schema"
	"github.com/claude-hub/claude-hub/handlers/request"
)

func (a *api) me(w http.ResponseWriter, _ *http.Request, who access.Person) error {
	return answer(w, http.StatusOK, schema.Me{ID: who.ID(), Login: who.Login(), DevLogin: a.Gate.DevLogin()})
}

// repos lists what the caller may use; ?name=owner/name answers that one or not-found.
func (a *api) repos(w http.ResponseWriter, r *http.Request, who access.Person) error {
	if name := r.URL.Query().Get("name"); name != "" {
		g, err := a.Gate.Named(r.Context(), who, name)
		if err != nil {
			return err
		}
		return answer(w, http.StatusOK, []schema.Repo{repoOf(g.Repo())})
	}
	repos, err := a.Gate.Repos(r.Context(), who)
	if err != nil {
		return err
	}
	list := make([]schema.Repo, 0, len(repos))
	for _, repo := range repos {
		list = append(list, repoOf(repo))
	}
	return answer(w, http.StatusOK, list)
}

func (a *api) repo(w http.ResponseWriter, _ *http.Request, g access.Grant) error {
	return answer(w, http.StatusOK, repoOf(g.Repo()))
}

func repoOf(r access.Repo) schema.Repo { return schema.Repo{ID: int64(r.ID), Name: r.Name} }

func (a *api) runners(w http.ResponseWriter, r *http.Request, _ access.Person) error {
	return a.answerChanged(w, r, fleet.TopicRunners, func(ctx context.Context) (any, error) {
		all, err := a.Fleet.Runners(ctx)
		if err != nil {
			return nil, err
		}
		list := make([]schema.Runner, 0, len(all))
		for _, runner := range all {
			list = append(list, runnerOf(runner))
		}
		return list, nil
	})
}

func runnerOf(r fleet.Runner) schema.Runner {
	load := map[string]int{}
	for kind, n := range r.Load {
		load[string(kind)] = n
	}
	var disk *schema.RunnerDisk
	if d := r.Disk; d != nil {
		disk = &schema.RunnerDisk{Builds: d.Builds, BuildBytes: d.BuildBytes, Free: d.Free}
	}
	return schema.Runner{
		Disk: disk,
		ID:   r.ID, Name: r.Name, Online: r.Online, LastContact: maybe(r.LastContact), Platform: r.Platform, Version: r.Version, Engine: r.Engine,
		Capabilities: r.Capabilities, CPU: r.Limits.CPU, Memory: r.Limits.Memory, Load: load, Missing: r.Missing, Update: r.Update,
	}
}

// maybe is nil for the zero time.
func maybe(t time.Time) *time.Time {
	if t.IsZero() {
		return nil
	}
	t = t.UTC()
	return &t
}

func (a *api) newRegistration(w http.ResponseWriter, r *http.Request, who access.Person) error {
	if err := decode(r, &struct{}{}); err != nil {
		return err
	}
	token, expires, err := a.Fleet.NewRegistration(r.Context(), who.ID())
	if err != nil {
		return err
	}
	return answer(w, http.StatusCreated, schema.Registration{
		Token: token, Expires: expires.UTC(), Command: request.RegisterCommand(a.PublicURL, token),
	})
}

func (a *api) revokeRunner(w http.ResponseWriter, r *http.Request, who access.Person) error {
	if err := decode(r, &struct{}{}); err != nil {
		return err
	}
	runner, err := a.findRunner(r.Context(), mux.Vars(r)["runner"])
	if err != nil {
		return err
	}
	if err := a.Fleet.Revoke(r.Context(), runner.ID, who.ID()); err != nil {
		return err
	}
	w.WriteHeader(http.StatusNoContent)
	return nil
}

// findRunner finds a Runner by its id or its name.
func (a *api) findRunner(ctx context.Context, idOrName string) (schema.RunnerRef, error) {
	all, err := a.Fleet.Runners(ctx)
	if err != nil {
		return schema.RunnerRef{}, err
	}
	for _, r := range all {
		if r.ID == idOrName || r.Name == idOrName {
			return schema.RunnerRef{ID: r.ID, Name: r.Name}, nil
		}
	}
	return schema.RunnerRef{}, fault.New(fault.NotFound, "There is no Runner “%s”.", idOrName)
}

// names of all Runners by their ids.
func (a *api) names(ctx context.Context) (map[string]string, error) {
	all, err := a.Fleet.Runners(ctx)
	if err != nil {
		return nil, err
	}
	names := make(map[string]string, len(all))
	for _, r := range all {
		names[r.ID] = r.Name
	}
	return names, nil
}
