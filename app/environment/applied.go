package environment

import (
	"context"
	"fmt"

	"github.com/claude-hub/claude-hub/store"
)

// AnyApplied says whether any Repo's Environment was ever applied. It says nothing of whose.
func (s *Service) AnyApplied(ctx context.Context) (bool, error) {
	var n int
	err := s.db.Read(ctx, func(tx *store.Tx) error { return tx.Row(anyAppliedSQL).Scan(&n) })
	if err != nil {
		return false, fmt.Errorf("look for an applied Environment: %w", err)
	}
	return n > 0, nil
}
