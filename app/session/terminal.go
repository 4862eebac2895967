package session

import (
	"context"
	"errors"
	"time"

	"github.com/claude-hub/claude-hub/app/access"
	"github.com/claude-hub/claude-hub/app/audit"
	"github.com/claude-hub/claude-hub/app/fault"
	"github.com/claude-hub/claude-hub/app/fleet"
	"github.com/claude-hub/claude-hub/runner/wire"
	"github.com/claude-hub/claude-hub/store"
)

var errNoTerminal = fault.New(fault.NotFound, "This Session has no such terminal.")

// OpenTerminal opens one in a running Session: a login shell, or what spec says. It belongs to the Session, and lives until its
// process ends, the Session's Sandbox does, or somebody closes it.
func (s *Service) OpenTerminal(ctx context.Context, g access.Grant, id string, spec wire.ChannelSpec) (fleet.Terminal, error) {
	sn, err := s.usable(ctx, g, id)
	if err != nil {
		return fleet.Terminal{}, err
	}
	t, err := s.fleet.OpenTerminal(ctx, sn.assignment, g.Actor(), spec)
	if err != nil {
		return t, err
	}
	return t, s.terminalChanged(ctx, g, sn, "session.terminal", t.ID)
}

// Terminals lists those that run, and the newest that have ended, oldest first.
func (s *Service) Terminals(ctx context.Context, g access.Grant, id string) ([]fleet.Terminal, error) {
	sn, err := s.Get(ctx, g, id)
	if err != nil {
		return nil, err
	}
	all, err := s.fleet.Terminals(ctx, sn.assignment)
	if err != nil {
		return nil, err
	}
	for i := range all {
		all[i].OpenedBy = s.login(ctx, all[i].OpenedBy)
	}
	return all, nil
}

// Terminal finds one of the Session's, running or not. One of another Session is as absent as one that never was.
func (s *Service) Terminal(ctx context.Context, g access.Grant, id, terminal string) (fleet.Terminal, error) {
	sn, err := s.Get(ctx, g, id)
	if err != nil {
		return fleet.Terminal{}, err
	}
	assignment, t, err := s.fleet.TerminalOf(ctx, terminal)
	if errors.Is(err, fleet.ErrNoChannel) || err == nil && assignment != sn.assignment {
		return fleet.Terminal{}, errNoTerminal
	}
	t.OpenedBy = s.login(ctx, t.OpenedBy)
	return t, err
}

// CloseTerminal ends one with its process. One that has ended is no error.
func (s *Service) CloseTerminal(ctx context.Context, g access.Grant, id, terminal string) error {
	t, err := s.Terminal(ctx, g, id, terminal)
	if err != nil || !t.Ended.IsZero() {
		return err
	}
	if err := s.fleet.CloseTerminal(ctx, terminal); err != nil {
		return err
	}
	sn, err := s.Get(ctx, g, id)
	if err != nil {
		return err
	}
	return s.terminalChanged(ctx, g, sn, "session.terminal.close", terminal)
}

// LookAt waits for what is new in a terminal that Terminal found, Type gives it input and Resize another size: see fleet.
func (s *Service) LookAt(ctx context.Context, terminal string, q fleet.Look) (fleet.View, error) {
	v, err := s.fleet.LookAt(ctx, terminal, q)
	if errors.Is(err, fleet.ErrNoChannel) { // ended a while ago, or this Hub has not heard of it yet
		_, t, rerr := s.fleet.TerminalOf(ctx, terminal)
		if rerr == nil && !t.Ended.IsZero() {
			return fleet.View{Offset: max(q.From, 0), Picked: true, Ended: true, Exit: t.Exit}, nil
		}
		v, err = s.fleet.LookAt(ctx, terminal, q)
	}
	return v, s.absent(ctx, terminal, err)
}

// Type gives a terminal that Terminal found input.
func (s *Service) Type(ctx context.Context, terminal, viewer string, offset int64, b []byte, wait time.Duration) (next int64, err error) {
	next, err = s.fleet.Type(ctx, terminal, viewer, offset, b, wait)
	return next, s.absent(ctx, terminal, err)
}

// Resize gives a terminal that Terminal found another size.
func (s *Service) Resize(ctx context.Context, terminal, viewer string, rows, cols uint16) error {
	return s.absent(ctx, terminal, s.fleet.ResizeTerminal(terminal, viewer, rows, cols))
}

// absent is err for who asked for a terminal that this Hub doesn't have: one that runs is another Hub's, or will be this one's
// once its Runner has come.
func (s *Service) absent(ctx context.Context, terminal string, err error) error {
	if !errors.Is(err, fleet.ErrNoChannel) {
		return err
	}
	_, t, err := s.fleet.TerminalOf(ctx, terminal)
	switch {
	case err == nil && t.Ended.IsZero():
		return fleet.ErrMoved
	case err == nil || errors.Is(err, fleet.ErrNoChannel):
		return errNoTerminal
	}
	return err
}

func (s *Service) terminalChanged(ctx context.Context, g access.Grant, sn Session, action, terminal string) error {
	return s.db.Write(ctx, func(tx *store.Tx) error {
		tx.Wake(TopicOf(g.Repo()))
		return audit.Record(tx, audit.Entry{Who: g.Actor(), Repo: int64(g.Repo().ID), Action: action, Subject: sn.ID, Detail: map[string]any{"terminal": terminal}})
	})
}

// login is a person's name for others; who is unknown by now is named by the id.
func (s *Service) login(ctx context.Context, person string) string {
	name := person
	_ = s.db.Read(ctx, func(tx *store.Tx) error { return tx.Row(loginSQL, person).Scan(&name) }) //nolint:errcheck // see above
	return name
}
