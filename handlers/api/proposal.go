package api

import (
	"context"
	"net/http"

	"github.com/gorilla/mux"

	"github.com/claude-hub/claude-hub/app/access"
	"github.com/claude-hub/claude-hub/app/environment"
	"github.com/claude-hub/claude-hub/app/fault"
	"github.com/claude-hub/claude-hub/app/proposal"
	"github.com/claude-hub/claude-hub/app/variable"
	"github.com/claude-hub/claude-hub/handlers/api/schema"
	"github.com/claude-hub/claude-hub/handlers/request"
)

func (a *api) proposals(w http.ResponseWriter, r *http.Request, g access.Grant) error {
	return a.answerChanged(w, r, environment.TopicOf(g.Repo()), func(ctx context.Context) (any, error) {
		all, err := a.Proposals.List(ctx, g)
		if err != nil {
			return nil, err
		}
		list := make([]schema.Proposal, 0, len(all))
		for _, p := range all {
			list = append(list, proposalOf(p))
		}
		return list, nil
	})
}

func proposalOf(p proposal.Proposal) schema.Proposal {
	out := schema.Proposal{
		Number: p.Number, Title: p.Title, URL: p.URL, Author: p.Author.Login, Commit: p.SHA, Base: p.Base, Fork: p.Fork, State: string(p.State), File: string(p.File),
		Problems: []schema.FileProblem{}, Merged: p.MergedSHA, MergedBy: p.MergedBy, Outcome: string(p.Outcome), UpdatedAt: p.UpdatedAt.UTC(),
	}
	for _, x := range p.Problems {
		out.Problems = append(out.Problems, schema.FileProblem{File: x.File, Line: x.Line, Column: x.Column, Message: x.Message, Warning: x.Warning})
	}
	return out
}

func (a *api) proposal(w http.ResponseWriter, r *http.Request, g access.Grant) error {
	number, err := request.ProposalNumber(r)
	if err != nil {
		return err
	}
	return a.answerChanged(w, r, environment.TopicOf(g.Repo()), func(ctx context.Context) (any, error) {
		d, err := a.Proposals.Get(ctx, g, number)
		if err != nil {
			return nil, err
		}
		names, err := a.names(ctx)
		if err != nil {
			return nil, err
		}
		out := schema.ProposalDetail{
			Proposal: proposalOf(d.Proposal), Heading: d.Heading, Sentence: d.Says, Verdict: schema.Verdict{OK: d.Verdict.OK, Reason: d.Verdict.Reason},
			Changes: []schema.Change{}, Missing: append([]string{}, d.Missing...), Drift: append([]string{}, d.Drift...), Withheld: d.Withheld, Tests: []schema.TestBuild{},
		}
		if d.Draft != nil {
			draft := draftOf(*d.Draft)
			out.Draft, out.At = &draft, d.Draft.Commit
		}
		for _, c := range d.Changes {
			out.Changes = append(out.Changes, schema.Change{Field: c.Field, Affects: string(c.Affects), Sentence: c.Sentence})
		}
		for _, t := range d.Tests {
			out.Tests = append(out.Tests, testOf(t, names))
		}
		return out, nil
	})
}

func (a *api) testProposal(w http.ResponseWriter, r *http.Request, g access.Grant) error {
	number, err := request.ProposalNumber(r)
	if err != nil {
		return err
	}
	var in schema.TestProposal
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
	test, err := a.Proposals.Test(r.Context(), g, number, in.Commit, runner.ID)
	if err != nil {
		return err
	}
	return answer(w, http.StatusCreated, testOf(test, map[string]string{runner.ID: runner.Name}))
}

func (a *api) enterProposed(w http.ResponseWriter, r *http.Request, g access.Grant) error {
	number, err := request.ProposalNumber(r)
	if err != nil {
		return err
	}
	var in schema.EnterProposed
	if err := decode(r, &in); err != nil {
		return err
	}
	value, err := valueOf(in.Value)
	if err != nil {
		return err
	}
	if err := a.Proposals.Enter(r.Context(), g, number, in.Revision, variable.Given{mux.Vars(r)["variable"]: value}); err != nil {
		return err
	}
	w.WriteHeader(http.StatusNoContent)
	return nil
}

func (a *api) applyProposal(w http.ResponseWriter, r *http.Request, g access.Grant) error {
	number, err := request.ProposalNumber(r)
	if err != nil {
		return err
	}
	var in schema.ApplyProposal
	if err := decode(r, &in); err != nil {
		return err
	}
	v, err := a.Proposals.Apply(r.Context(), g, number, in.Commit, in.Message)
	if err != nil {
		return err
	}
	return answer(w, http.StatusCreated, versionOf(v))
}

func (a *api) adoptProposal(w http.ResponseWriter, r *http.Request, g access.Grant) error {
	number, err := request.ProposalNumber(r)
	if err != nil {
		return err
	}
	var in schema.AdoptProposal
	if err := decode(r, &in); err != nil {
		return err
	}
	d, err := a.Proposals.Adopt(r.Context(), g, number, in.Base)
	if err != nil {
		return err
	}
	return answer(w, http.StatusOK, draftOf(d))
}

func (a *api) lookAtProposal(w http.ResponseWriter, r *http.Request, g access.Grant) error {
	number, err := request.ProposalNumber(r)
	if err != nil {
		return err
	}
	if err := decode(r, &struct{}{}); err != nil {
		return err
	}
	if err := a.Proposals.Again(r.Context(), g, number); err != nil {
		return err
	}
	w.WriteHeader(http.StatusNoContent)
	return nil
}
