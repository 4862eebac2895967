package webhook

import (
	"context"
	"fmt"
	"time"

	"github.com/claude-hub/claude-hub/app/audit"
	"github.com/claude-hub/claude-hub/app/fault"
	"github.com/claude-hub/claude-hub/store"
)

// Aside is a delivery that was set aside. It names no Repo: everyone who is signed in may see it.
type Aside struct {
	ID, Event, Action string
	Received, Set     time.Time
	Tries             int
	Why               string // a sentence
}

// asidePage is how many are listed.
const asidePage = 200

// Asides lists what was set aside, newest first.
func (s *Service) Asides(ctx context.Context) ([]Aside, error) {
	var all []Aside
	err := s.db.Read(ctx, func(tx *store.Tx) (err error) {
		all, err = store.All(tx, func(scan func(...any) error) (a Aside, err error) {
			return a, scan(&a.ID, &a.Event, &a.Action, store.At(&a.Received), store.At(&a.Set), &a.Tries, &a.Why)
		}, asidesSQL, asidePage)
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("list deliveries that were set aside: %w", err)
	}
	return all, nil
}

// Again has a delivery that was set aside worked like a new one. who is for the audit log.
func (s *Service) Again(ctx context.Context, who, id string) error {
	return s.db.Write(ctx, func(tx *store.Tx) error {
		n, err := tx.Exec(againSQL, store.Text(id), tx.Now().UnixMilli())
		if err != nil {
			return fmt.Errorf("try delivery again: %w", err)
		}
		if n == 0 {
			return fault.New(fault.NotFound, "This delivery isn't set aside any more.")
		}
		tx.Wake(topic)
		return audit.Record(tx, audit.Entry{Who: who, Action: "delivery.again", Subject: id})
	})
}

// Backlog is how much waits to be worked, and since when at the longest.
type Backlog struct {
	Waiting, Aside int
	Oldest         time.Duration
}

// Backlog counts.
func (s *Service) Backlog(ctx context.Context) (Backlog, error) {
	var b Backlog
	err := s.db.Read(ctx, func(tx *store.Tx) error {
		var oldest time.Time
		if err := tx.Row(waitingSQL).Scan(&b.Waiting, store.At(&oldest)); err != nil {
			return err
		}
		if b.Waiting > 0 {
			b.Oldest = max(tx.Now().Sub(oldest), 0)
		}
		return tx.Row(asideCountSQL).Scan(&b.Aside)
	})
	if err != nil {
		return b, fmt.Errorf("count deliveries: %w", err)
	}
	return b, nil
}
