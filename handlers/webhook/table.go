package webhook

import (
	"context"
	"fmt"
	"slices"

	"github.com/claude-hub/claude-hub/app/github"
)

// event is what the deliveries of one name lead to.
type event struct {
	name string
	// actions are those that something follows from; none: all of them.
	actions []string
	// matters, if set, says so of a single event that has one of the actions.
	matters func(e github.Event) bool
	// subject is what a delivery is about: of those about the same that wait, only the newest is worked. nil: each is worked.
	subject func(e github.Event) string
	// work does it. It may be done again, and at the same time elsewhere.
	work func(ctx context.Context, s *Service, e github.Event) error
}

// ping is answered and nothing else.
const ping = "ping"

type table map[string]event

// newTable lists every event. Two of one name would hide each other.
func newTable() (table, error) {
	return tableOf(
		installation, installationRepositories, installationTarget, authorization,
		repository, public, branchCreated, branchDeleted,
		member, membership, team, teamAdd, organization,
		pullRequest, push, checkRun, checkSuite, mergeGroup,
	)
}

func tableOf(events ...event) (table, error) {
	t := table{}
	for _, e := range events {
		if _, taken := t[e.name]; taken || e.name == ping || e.work == nil {
			return nil, fmt.Errorf("webhooks: the event %q is in the table twice, or leads nowhere", e.name)
		}
		t[e.name] = e
	}
	return t, nil
}

// find is what e leads to, if it leads anywhere.
func (t table) find(e github.Event) (event, bool) {
	k, ok := t[e.Name]
	return k, ok && k.wants(e.Action) && (k.matters == nil || k.matters(e))
}

func (k event) wants(action string) bool {
	return len(k.actions) == 0 || slices.Contains(k.actions, action)
}
