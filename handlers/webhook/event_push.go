package webhook

import (
	"context"

	"github.com/claude-hub/claude-hub/app/github"
)

// push is worked each by itself: who pushed matters.
var push = event{
	name:    "push",
	matters: func(e github.Event) bool { return e.Repo.ID != 0 && e.Branch != "" && e.After != "" },
	work: func(ctx context.Context, s *Service, e github.Event) error {
		return s.o.Proposals.Pushed(ctx, e.Repo.ID, e.Branch, e.After, e.Sender)
	},
}
