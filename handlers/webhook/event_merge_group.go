package webhook

import (
	"context"

	"github.com/claude-hub/claude-hub/app/github"
)

var mergeGroup = event{
	name: "merge_group", actions: []string{"checks_requested"},
	work: func(ctx context.Context, s *Service, e github.Event) error {
		return s.o.Proposals.Queued(ctx, e.Repo.ID, e.MergeGroup.SHA)
	},
}
