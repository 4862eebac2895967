package webhook

import (
	"context"

	"github.com/claude-hub/claude-hub/app/github"
)

// These say that somebody's access changed. Some name nobody, or nobody's Repos: then all of the organization is asked anew.
// Personal accounts send none of them, so that the cache's age is what access depends on (facts/github.md §3).
var (
	member       = event{name: "member", work: forgetPerson}
	membership   = event{name: "membership", work: forgetPerson}
	organization = event{name: "organization", actions: []string{"member_added", "member_removed", "renamed", "deleted"}, work: forgetPerson}
	team         = event{name: "team", work: forgetOrganization}
	teamAdd      = event{name: "team_add", work: forgetOrganization}
)

func forgetPerson(ctx context.Context, s *Service, e github.Event) error {
	if e.Person.ID == 0 {
		return forgetOrganization(ctx, s, e)
	}
	return s.o.Access.ForgetPerson(ctx, e.Person.ID)
}

func forgetOrganization(ctx context.Context, s *Service, e github.Event) error {
	switch {
	case e.Organization.ID != 0:
		return s.o.Access.ForgetAccount(ctx, e.Organization.ID)
	case e.Repo.Owner.ID != 0:
		return s.o.Access.ForgetAccount(ctx, e.Repo.Owner.ID)
	}
	return nil
}
