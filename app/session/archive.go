package session

import (
	"context"
	"fmt"
	"time"

	"github.com/claude-hub/claude-hub/app/access"
	"github.com/claude-hub/claude-hub/app/fault"
	"github.com/claude-hub/claude-hub/app/fleet"
	"github.com/claude-hub/claude-hub/runner/wire"
	"github.com/claude-hub/claude-hub/store"
)

// shown is the state that people see for what the table has.
func shown(state, archive string) string {
	switch {
	case archive == "":
	case state == Stopping:
		return Archiving
	case state == Asleep:
		return Archived
	}
	return state
}

// stored is the opposite of shown.
func stored(state string) string {
	switch state {
	case Archiving:
		return Stopping
	case Archived:
		return Asleep
	}
	return state
}

// Archive puts a Session away that nobody works in for now: its Workspace is kept on its Runner's host, its Sandbox is given up,
// and with it, unless Options.ArchiveKeepsDisks, all else that is on its disk (ADR 0006). Nothing but Restore and Delete takes an
// archived Session any more. What would be lost is for the caller to say first.
func (s *Service) Archive(ctx context.Context, g access.Grant, id string) error {
	return s.change(ctx, g, id, "session.archive", func(tx *store.Tx, sn *Session) (bool, error) {
		switch sn.State {
		case Archiving, Archived:
			return false, nil
		case Running, Stopping, Asleep, Failed:
			if sn.Restarting {
				return false, fault.New(fault.Refused, "This Session is about to restart. Wait until it runs, or put it to sleep, then archive it.")
			}
		case Starting, Waking:
			return false, fault.New(fault.Refused, "This Session is %s. Wait until it runs, or put it to sleep, then archive it.", sn.State)
		default:
			return false, fault.New(fault.Refused, "This Session is %s and can't be archived.", sn.State)
		}
		if !sn.Detail.Workspace {
			return false, fault.New(fault.Refused, "This Session has no Workspace that could be kept. Delete it instead.")
		}
		if err := s.fleet.Able(tx, sn.Runner, wire.CanArchive, "archive Sessions"); err != nil {
			return false, err
		}
		sn.idle, sn.resume, sn.archive = 0, false, wire.ArchiveDisks
		if s.o.ArchiveKeepsDisks {
			sn.archive = wire.ArchiveSandbox
		}
		return true, s.want(tx, sn, fleet.Stop, Archiving)
	})
}

// ArchiveLoses says what Archive gives up on this Hub, and what it keeps.
func (s *Service) ArchiveLoses() string {
	if s.o.ArchiveKeepsDisks {
		return "Its Sandbox is given up: programs that were installed outside the Workspace and the disks will be gone. The Workspace and the disks stay."
	}
	return "Its Sandbox and its disks are given up: programs that were installed outside the Workspace, dependency folders, package caches, " +
		"and Docker's images, containers and volumes will be gone. The Workspace stays."
}

// Restore brings an archived Session back: asleep, or with wake at once on its way up from the newest version. Its Workspace is as it was;
// the Sandbox is a fresh one. One that is only about to be archived may keep what its Runner hasn't given up yet.
func (s *Service) Restore(ctx context.Context, g access.Grant, id string, wake bool) error {
	return s.change(ctx, g, id, "session.restore", func(tx *store.Tx, sn *Session) (bool, error) {
		if sn.State != Archived && sn.State != Archiving {
			return false, fault.New(fault.Refused, "Only an archived Session can be restored; this one is %s.", sn.State)
		}
		if wake {
			return true, s.boot(tx, g, sn, Waking)
		}
		was := sn.State
		sn.archive = ""
		if was == Archiving {
			return true, s.want(tx, sn, fleet.Stop, Stopping)
		}
		if err := s.want(tx, sn, fleet.Stop, Asleep); err != nil {
			return false, err
		}
		return true, s.fleet.Deadline(tx, sn.assignment, time.Time{}) // there is nothing to wait for
	})
}

// archived takes a Runner's word for it that a Session is archived.
func (s *Service) archived(tx *store.Tx, sn *Session, a fleet.Assignment) error {
	if a.Want != fleet.Stop || sn.archive == "" {
		return fleet.Permanent(fmt.Errorf("session %s was archived by its Runner without being asked to", sn.ID))
	}
	if err := s.fleet.Deadline(tx, a.ID, time.Time{}); err != nil {
		return err
	}
	return s.save(tx, *sn, Archived)
}

// unarchive forgets that sn was to be archived: its Runner says that it came to something else.
func (s *Service) unarchive(tx *store.Tx, sn *Session) error {
	if sn.archive == "" {
		return nil
	}
	sn.archive = ""
	if _, err := tx.Exec(archiveSQL, sn.ID, ""); err != nil {
		return fmt.Errorf("save Session %s: %w", sn.ID, err)
	}
	return nil
}
