package webhook

import (
	"context"
	"slices"

	"github.com/claude-hub/claude-hub/app/github"
)

// installationRepositories is Repos coming to an installation and leaving it. They are all that GitHub says of a Repo that
// was deleted, or transferred to an account without the App (facts/github.md §3).
var installationRepositories = event{
	name: "installation_repositories",
	work: func(ctx context.Context, s *Service, e github.Event) error {
		if err := s.forgetInstallation(ctx, e.Installation); err != nil {
			return err
		}
		for _, r := range slices.Concat(e.Added, e.Removed) {
			if err := s.forgetRepo(ctx, r.ID); err != nil {
				return err
			}
		}
		for _, r := range e.Removed {
			if err := s.stopUninstalled(ctx, r.ID); err != nil {
				return err
			}
		}
		if len(e.Added) == 0 {
			return nil
		}
		_, err := s.lookInstalled(ctx, e.Installation, e.Added)
		return err
	},
}
