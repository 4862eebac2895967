package session

import (
	"context"
	"fmt"
	"strconv"
	"time"

	"github.com/claude-hub/claude-hub/app/access"
	"github.com/claude-hub/claude-hub/app/fault"
	"github.com/claude-hub/claude-hub/app/fleet"
	"github.com/claude-hub/claude-hub/store"
)

// Grow gives a Session that has no Sandbox a larger disk, of size bytes, from its next boot on. A disk never shrinks, and has at most
// Options.DiskLimit.
func (s *Service) Grow(ctx context.Context, g access.Grant, id string, size int64) error {
	return s.change(ctx, g, id, "session.grow", func(tx *store.Tx, sn *Session) (bool, error) {
		switch {
		case sn.State != Asleep && sn.State != Failed:
			return false, fault.New(fault.Refused, "This Session is %s. Its disk can grow while it is asleep.", sn.State)
		case size <= sn.DiskSize:
			return false, fault.Field("disk", "The disk has room for %s already. A disk only grows: say more.", gib(sn.DiskSize))
		case size > s.o.DiskLimit:
			return false, fault.Field("disk", "A Session's disk has at most %s on this Hub.", gib(s.o.DiskLimit))
		}
		sn.DiskSize = size
		if _, err := tx.Exec(growSQL, sn.ID, size); err != nil {
			return false, fmt.Errorf("save Session %s: %w", sn.ID, err)
		}
		if err := s.want(tx, sn, fleet.Stop, sn.State); err != nil { // a new wish, since the payload of one never changes
			return false, err
		}
		return true, s.fleet.Deadline(tx, sn.assignment, time.Time{})
	})
}

func gib(n int64) string {
	return strconv.FormatFloat(float64(n)/(1<<30), 'f', -1, 64) + " GiB"
}
