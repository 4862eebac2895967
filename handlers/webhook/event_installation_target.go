package webhook

import (
	"context"

	"github.com/claude-hub/claude-hub/app/github"
)

// installationTarget is an account that has another login now: its id, and those of its Repos, stay.
var installationTarget = event{
	name: "installation_target",
	work: func(ctx context.Context, s *Service, e github.Event) error {
		if err := s.forgetInstallation(ctx, e.Installation); err != nil {
			return err
		}
		if err := s.o.Setup.Installation(ctx, e); err != nil {
			return err
		}
		return s.o.Access.ForgetAccount(ctx, e.Account.ID)
	},
}
