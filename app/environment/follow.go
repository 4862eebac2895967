package environment

import (
	"context"
	"time"

	"github.com/claude-hub/claude-hub/app/access"
	"github.com/claude-hub/claude-hub/app/fleet"
)

// logGrace is how long after a Test build's end its Runner may still deliver log, for one who waits for the log's end:
// a Runner that never began, or never came back, doesn't say that it ended.
const logGrace = 15 * time.Second

// Follow is Log for one who waits until the log has ended: that comes at the latest logGrace after the Test build's end.
func (s *Service) Follow(ctx context.Context, g access.Grant, id string, from int64, max int) (fleet.LogPart, error) {
	part, err := s.Log(ctx, g, id, from, max)
	if err != nil || part.Ended {
		return part, err
	}
	test, err := s.TestBuild(ctx, g, id)
	if err != nil {
		return fleet.LogPart{}, err
	}
	part.Ended = test.Final() && s.db.Now().Sub(test.FinishedAt) >= logGrace
	return part, nil
}
