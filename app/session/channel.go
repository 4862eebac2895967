package session

import (
	"context"
	"errors"

	"github.com/claude-hub/claude-hub/app/access"
	"github.com/claude-hub/claude-hub/app/fault"
	"github.com/claude-hub/claude-hub/app/fleet"
)

var errNoChannel = fault.New(fault.NotFound, "This terminal or command is no longer open here.")

// Exchange moves bytes between a person and a channel that Open opened in this Session. A channel of another Session
// is as absent as one that was never opened.
func (s *Service) Exchange(ctx context.Context, g access.Grant, id, channel string, m fleet.ClientMove) (fleet.ClientState, error) {
	if err := s.holds(ctx, g, id, channel); err != nil {
		return fleet.ClientState{}, err
	}
	state, err := s.fleet.ClientExchange(ctx, channel, m)
	if errors.Is(err, fleet.ErrNoChannel) {
		return fleet.ClientState{}, errNoChannel
	}
	return state, err
}

// Close ends a channel and its process. Closing what has ended is no error.
func (s *Service) Close(ctx context.Context, g access.Grant, id, channel string) error {
	if err := s.holds(ctx, g, id, channel); err != nil {
		return err
	}
	s.fleet.CloseChannel(channel)
	return nil
}

func (s *Service) holds(ctx context.Context, g access.Grant, id, channel string) error {
	sn, err := s.Get(ctx, g, id)
	if err != nil {
		return err
	}
	if assignment, err := s.fleet.ChannelOf(channel); err != nil || assignment != sn.assignment {
		return errNoChannel
	}
	return nil
}
