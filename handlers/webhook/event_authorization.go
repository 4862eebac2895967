package webhook

import (
	"context"

	"github.com/claude-hub/claude-hub/app/github"
)

// authorization is a person who took the App's authorization back at GitHub. No App can unsubscribe from it.
var authorization = event{
	name:    "github_app_authorization",
	actions: []string{"revoked"},
	work: func(ctx context.Context, s *Service, e github.Event) error {
		return s.o.Access.Revoked(ctx, e.Sender.ID)
	},
}
