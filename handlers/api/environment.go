package api

import (
	"cmp"
	"context"
	"errors"
	"net/http"

	"github.com/gorilla/mux"

	"github.com/claude-hub/claude-hub/app/access"
	"github.com/claude-hub/claude-hub/app/environment"
	"github.com/claude-hub/claude-hub/app/fault"
	"github.com/claude-hub/claude-hub/envspec"
	"github.com/claude-hub/claude-hub/handlers/api/schema"
)

// listLimit bounds lists whose rows are never deleted.
const listLimit = 200

func (a *api) environment(w http.ResponseWriter, r *http.Request, g access.Grant) error {
	return a.answerChanged(w, r, environment.TopicOf(g.Repo()), func(ctx context.Context) (any, error) {
		env, err := a.Environments.Get(ctx, g)
		if err != nil {
			return nil, err
		}
		verdict, err := a.Environments.Check(ctx, g)
		if err != nil {
			return nil, err
		}
		out := schema.Environment{Verdict: schema.Verdict{OK: verdict.OK, Reason: verdict.Reason}, Changes: []schema.Change{}}
		if env.Current != nil {
			v := versionOf(*env.Current)
			out.Current = &v
		}
		if env.Draft != nil {
			d := draftOf(*env.Draft)
			out.Draft = &d
			var before envspec.Spec
			if env.Current != nil {
				before = env.Current.Spec
			}
			for _, c := range envspec.Explain(before, env.Draft.Spec) {
				out.Changes = append(out.Changes, schema.Change{Field: c.Field, Affects: string(c.Affects), Sentence: c.Sentence})
			}
		}
		return out, nil
	})
}

func draftOf(d environment.Draft) schema.Draft {
	return schema.Draft{
		Revision: d.Revision, Spec: d.Spec, YAML: string(envspec.Format(d.Spec)), TestKey: string(d.TestKey),
		UpdatedAt: d.UpdatedAt.UTC(), UpdatedBy: d.UpdatedBy,
	}
}

func versionOf(v environment.Version) schema.Version {
	return schema.Version{
		Number: v.Number, Spec: v.Spec, YAML: string(envspec.Format(v.Spec)), ImageDigest: v.ImageDigest, TestKey: string(v.TestKey),
		BuildKey: string(v.BuildKey), TestBuild: v.TestBuild, Message: v.Message, Source: v.Source, AppliedAt: v.AppliedAt.UTC(), AppliedBy: v.AppliedBy,
	}
}

func (a *api) saveDraft(w http.ResponseWriter, r *http.Request, g access.Grant) error {
	var in schema.SaveDraft
	if err := decode(r, &in); err != nil {
		return err
	}
	var spec envspec.Spec
	switch {
	case (in.Spec == nil) == (in.YAML == nil):
		return fault.New(fault.Invalid, "Give the draft either as “spec” or as “yaml”.")
	case in.Spec != nil:
		spec = *in.Spec
	default:
		name := in.Name
		if name == "" {
			name = "environment.yml"
		}
		var err error
		if spec, err = envspec.Parse(name, []byte(*in.YAML), nil); err != nil {
			return problems(err)
		}
	}
	given, err := valuesOf(in.Values)
	if err != nil {
		return err
	}
	draft, err := a.Environments.Save(r.Context(), g, in.Base, spec, given)
	if err != nil {
		return err
	}
	return answer(w, http.StatusOK, draftOf(draft))
}

// problems turns what Parse found into an Invalid fault with places.
func problems(err error) error {
	var found envspec.Problems
	if !errors.As(err, &found) {
		return err
	}
	out := &problemsError{fault: fault.New(fault.Invalid, "%s", found.Error())}
	out.fault.Fields = map[string]string{}
	for _, p := range found {
		out.problems = append(out.problems, schema.Problem{Field: p.Path, Line: p.Line, Column: p.Column, Message: p.Message, Warning: p.Warning})
		if _, said := out.fault.Fields[p.Path]; !said && !p.Warning && p.Path != "" {
			out.fault.Fields[p.Path] = p.Message
		}
	}
	return out
}

func (a *api) apply(w http.ResponseWriter, r *http.Request, g access.Grant) error {
	var in schema.Apply
	if err := decode(r, &in); err != nil {
		return err
	}
	v, err := a.Environments.Apply(r.Context(), g, in.Revision, in.Message)
	if err != nil {
		return err
	}
	return answer(w, http.StatusCreated, versionOf(v))
}

func (a *api) versions(w http.ResponseWriter, r *http.Request, g access.Grant) error {
	all, err := a.Environments.Versions(r.Context(), g, listLimit)
	if err != nil {
		return err
	}
	list := make([]schema.Version, 0, len(all))
	for _, v := range all {
		list = append(list, versionOf(v))
	}
	return answer(w, http.StatusOK, list)
}

func (a *api) version(w http.ResponseWriter, r *http.Request, g access.Grant) error {
	number, err := versionNumber(r)
	if err != nil {
		return err
	}
	v, err := a.Environments.Version(r.Context(), g, number)
	if err != nil {
		return err
	}
	return answer(w, http.StatusOK, versionOf(v))
}

func (a *api) tests(w http.ResponseWriter, r *http.Request, g access.Grant) error {
	return a.answerChanged(w, r, environment.TopicOf(g.Repo()), func(ctx context.Context) (any, error) {
		all, err := a.Environments.TestBuilds(ctx, g, listLimit)
		if err != nil {
			return nil, err
		}
		names, err := a.names(ctx)
		if err != nil {
			return nil, err
		}
		list := make([]schema.TestBuild, 0, len(all))
		for _, t := range all {
			list = append(list, testOf(t, names))
		}
		return list, nil
	})
}

func testOf(t environment.TestBuild, names map[string]string) schema.TestBuild {
	return schema.TestBuild{
		ID: t.ID, Revision: t.Revision, Spec: t.Spec, TestKey: string(t.TestKey), Runner: schema.RunnerRef{ID: t.Runner, Name: cmp.Or(names[t.Runner], "(revoked)")},
		State: t.State, Final: t.Final(), Cancelling: t.CancelledBy != "" && !t.Final(), CreatedAt: t.CreatedAt.UTC(), CreatedBy: t.CreatedBy,
		FinishedAt: maybe(t.FinishedAt), Detail: t.Detail, ImageDigest: t.ImageDigest, PullRequest: t.PullRequest, Commit: t.Commit, Withheld: t.Withheld,
	}
}

func (a *api) startTest(w http.ResponseWriter, r *http.Request, g access.Grant) error {
	var in schema.StartTest
	if err := decode(r, &in); err != nil {
		return err
	}
	if in.Runner == "" {
		return fault.Field("runner", "Say which Runner: its name or its id.")
	}
	runner, err := a.findRunner(r.Context(), in.Runner)
	if err != nil {
		return err
	}
	test, err := a.Environments.Test(r.Context(), g, in.Revision, runner.ID)
	if err != nil {
		return err
	}
	return answer(w, http.StatusCreated, testOf(test, map[string]string{runner.ID: runner.Name}))
}

func (a *api) test(w http.ResponseWriter, r *http.Request, g access.Grant) error {
	return a.answerChanged(w, r, environment.TopicOf(g.Repo()), func(ctx context.Context) (any, error) {
		test, err := a.Environments.TestBuild(ctx, g, mux.Vars(r)["test"])
		if err != nil {
			return nil, err
		}
		names, err := a.names(ctx)
		if err != nil {
			return nil, err
		}
		return testOf(test, names), nil
	})
}

func (a *api) cancelTest(w http.ResponseWriter, r *http.Request, g access.Grant) error {
	if err := decode(r, &struct{}{}); err != nil {
		return err
	}
	if err := a.Environments.Cancel(r.Context(), g, mux.Vars(r)["test"]); err != nil {
		return err
	}
	w.WriteHeader(http.StatusNoContent)
	return nil
}
