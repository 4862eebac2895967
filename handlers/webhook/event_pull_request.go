package webhook

import (
	"context"
	"fmt"

	"github.com/claude-hub/claude-hub/app/github"
)

// pullRequest leaves out what changes neither files, nor where they go, nor the pull request's state: labels and the like.
var pullRequest = event{
	name:    "pull_request",
	actions: []string{"opened", "reopened", "synchronize", "edited", "closed", "ready_for_review", "converted_to_draft"},
	matters: func(e github.Event) bool { return e.Repo.ID != 0 && e.PullRequest.Number > 0 },
	subject: func(e github.Event) string { return fmt.Sprintf("pull request %d %d", e.Repo.ID, e.PullRequest.Number) },
	work: func(ctx context.Context, s *Service, e github.Event) error {
		return s.o.Proposals.Look(ctx, e.Repo.ID, e.PullRequest.Number)
	},
}
