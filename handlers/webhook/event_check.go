package webhook

import (
	"context"

	"github.com/claude-hub/claude-hub/app/github"
)

// checkRun and checkSuite leave out the echo of our own writing: created and completed.
var (
	checkRun = event{
		name: "check_run", actions: []string{"requested_action", "rerequested"},
		work: func(ctx context.Context, s *Service, e github.Event) error {
			if ours, err := s.ours(e); !ours {
				return err
			}
			if e.Action == "rerequested" {
				return s.o.Proposals.Rerun(ctx, e.Repo.ID, e.Check, e.Sender)
			}
			return s.o.Proposals.Pressed(ctx, e.Repo.ID, e.Check, e.Sender)
		},
	}
	checkSuite = event{
		name: "check_suite", actions: []string{"rerequested"},
		work: func(ctx context.Context, s *Service, e github.Event) error {
			if ours, err := s.ours(e); !ours {
				return err
			}
			return s.o.Proposals.RerunAll(ctx, e.Repo.ID, e.Check, e.Sender)
		},
	}
)

// ours says whether a check is this App's: others' are nobody's here to run again.
func (s *Service) ours(e github.Event) (bool, error) {
	app, err := s.o.GitHub.App()
	if err != nil {
		return false, err
	}
	return e.Check.App == app.ID(), nil
}
