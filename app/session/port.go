package session

import (
	"context"
	"errors"
	"fmt"
	"net"

	"github.com/claude-hub/claude-hub/app/access"
	"github.com/claude-hub/claude-hub/app/audit"
	"github.com/claude-hub/claude-hub/app/github"
	"github.com/claude-hub/claude-hub/store"
)

// RepoOf is the Repo of a Session that is known by its id alone, 0 where there is none: the Gate answers both alike to who may not
// know of it.
func (s *Service) RepoOf(ctx context.Context, id string) (repo github.RepoID, err error) {
	err = s.db.Read(ctx, func(tx *store.Tx) error {
		sn, err := scanSession(tx.Row(byIDSQL, store.Text(id)).Scan)
		if errors.Is(err, store.ErrNotFound) || err == nil && sn.State == Deleted {
			return nil
		}
		repo = sn.repo
		return err
	})
	if err != nil {
		return 0, fmt.Errorf("read which Repo a Session is of: %w", err)
	}
	return repo, nil
}

// PortOpened records that a person's browser was let in to a port of a Session.
func (s *Service) PortOpened(ctx context.Context, g access.Grant, id string, port uint16) error {
	return s.db.Write(ctx, func(tx *store.Tx) error {
		return audit.Record(tx, audit.Entry{Who: g.Actor(), Repo: int64(g.Repo().ID), Action: "session.port", Subject: id, Detail: map[string]any{"port": port}})
	})
}

// DialPort opens a connection to a TCP port of a running Session: see fleet.Conn.
func (s *Service) DialPort(ctx context.Context, g access.Grant, id string, port uint16) (net.Conn, error) {
	sn, err := s.usable(ctx, g, id)
	if err != nil {
		return nil, err
	}
	return s.fleet.Dial(ctx, sn.assignment, port)
}
