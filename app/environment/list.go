package environment

import (
	"context"
	"fmt"

	"github.com/claude-hub/claude-hub/app/access"
	"github.com/claude-hub/claude-hub/app/github"
	"github.com/claude-hub/claude-hub/store"
)

// Having says which of the Repos that somebody may use have an Environment: an applied version, or a draft of one. It takes
// one statement, however many they are.
func (s *Service) Having(ctx context.Context, may access.List) (map[github.RepoID]bool, error) {
	asked := make(map[github.RepoID]bool, len(may.Repos))
	for _, r := range may.Repos {
		asked[r.ID] = true
	}
	having := map[github.RepoID]bool{}
	err := s.db.Read(ctx, func(tx *store.Tx) error {
		clear(having)
		all, err := store.All(tx, store.Scan1[github.RepoID], havingSQL)
		for _, id := range all {
			if asked[id] {
				having[id] = true
			}
		}
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("list Environments: %w", err)
	}
	return having, nil
}
