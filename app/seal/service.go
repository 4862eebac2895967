// Package seal keeps Sensitive values encrypted at rest (ADR 0009 "Variables", facts/reliability.md §2): AES-256-GCM under
// a key of the Hub's config, each value bound to its table, column and row. It owns no values: those are in the tables of
// the packages that have them, named in one list (Columns), which the check at start, Rotate and Reset walk.
//
// A key is known by an id that is derived from it. A list of keys is ordered: the first one seals, all open. To change
// the key, every Hub first gets the new one in its list, then gets it first in its list, then Rotate seals everything
// anew; the old key may go once Rotate has retired it.
package seal

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/claude-hub/claude-hub/store"
)

const (
	// beat is how often a Hub says which keys it has; a Hub that has not for as long as live counts as gone.
	beat = 10 * time.Second
	live = 45 * time.Second
	// forgotten is after how long the row of a Hub that is gone is deleted.
	forgotten = time.Hour

	checkText = "claude-hub"
)

// Service is the keys of this process together with the database whose values they seal. Its methods may be called from
// many goroutines.
type Service struct {
	db      *store.DB
	keys    Keys
	columns []Column
	hub     string
	name    string
	row     func() // for tests: after each row that Rotate has sealed anew, inside its transaction
}

// New makes a Service over columns, which outside of tests are Columns(). It reads and writes nothing yet. It panics
// when a name in columns is not a plain SQL name.
func New(db *store.DB, keys Keys, columns []Column) *Service {
	for _, c := range columns {
		if err := c.valid(); err != nil {
			panic(err)
		}
	}
	return &Service{db: db, keys: keys, columns: columns, hub: store.NewID(), row: func() {}}
}

// Check fails with *LostError when a value is sealed under a key that this process doesn't have, or when a key's check
// value doesn't open. It writes nothing.
func (s *Service) Check(ctx context.Context) error {
	return s.db.Read(ctx, s.check)
}

// Start is Check for a Hub that is about to serve: nothing may have been written before it, and when it fails, nothing
// was. It then registers the keys and makes known that a Hub with these keys runs; Keep keeps that known. name is the
// Hub's for people, such as host and process. Without a key it succeeds as long as nothing is sealed.
func (s *Service) Start(ctx context.Context, name string) error {
	if err := s.Check(ctx); err != nil {
		return err
	}
	s.name = store.Text(name)
	// Checked again together with the write: another Hub may have sealed, or Rotate retired, in between.
	return s.db.Write(ctx, func(tx *store.Tx) error {
		if err := s.check(tx); err != nil {
			return err
		}
		if err := s.register(tx); err != nil {
			return err
		}
		if _, err := tx.Exec(forgetSQL, tx.Now().Add(-forgotten)); err != nil {
			return err
		}
		return s.announce(tx)
	})
}

// Keep says every few seconds that this Hub runs, until ctx ends; then it takes that back. It follows Start. A database
// that is away is tried again at the next beat.
func (s *Service) Keep(ctx context.Context) {
	tick := time.NewTicker(beat)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			last, cancel := context.WithTimeout(context.WithoutCancel(ctx), 3*time.Second)
			defer cancel()
			// What can't be taken back is ignored once it is old.
			_ = s.db.Write(last, func(tx *store.Tx) error {
				_, err := tx.Exec(withdrawSQL, s.hub)
				return err
			})
			return
		case <-tick.C:
			_ = s.db.Write(ctx, s.announce) // made up for by the next
		}
	}
}

func (s *Service) announce(tx *store.Tx) error {
	_, err := tx.Exec(announceSQL, s.hub, s.name, strings.Join(s.keys.IDs(), ","), tx.Now())
	return err
}

// Hub is a Hub that runs on the database, other than this one.
type Hub struct {
	Name   string
	KeyIDs []string // in its order: the first one seals
	Seen   time.Time
}

// Strangers are the other running Hubs that lack this one's first key, so can't open what this one seals. Hubs on one
// database should be given a new key in any place before one of them gets it in the first.
func (s *Service) Strangers(ctx context.Context) (lacking []Hub, err error) {
	err = s.db.Read(ctx, func(tx *store.Tx) error {
		lacking, err = s.strangers(tx)
		return err
	})
	return lacking, err
}

func (s *Service) strangers(tx *store.Tx) ([]Hub, error) {
	if s.keys.Primary() == "" {
		return nil, nil
	}
	hubs, err := s.hubs(tx)
	return slices.DeleteFunc(hubs, func(h Hub) bool { return slices.Contains(h.KeyIDs, s.keys.Primary()) }), err
}

func (s *Service) hubs(tx *store.Tx) ([]Hub, error) {
	return store.All(tx, func(scan func(...any) error) (h Hub, err error) {
		var ids string
		err = scan(&h.Name, &ids, store.At(&h.Seen))
		h.KeyIDs = strings.FieldsFunc(ids, func(r rune) bool { return r == ',' })
		return h, err
	}, hubsSQL, s.hub, tx.Now().Add(-live))
}

// Seal seals plain for a row of one of the columns, in the transaction that stores it: sealed goes into the column,
// keyID into its key column. It fails with ErrNoKey, and with *RetiredError when Rotate has retired the key meanwhile.
func (s *Service) Seal(tx *store.Tx, place Place, plain []byte) (sealed []byte, keyID string, err error) {
	if !slices.ContainsFunc(s.columns, func(c Column) bool { return c.Table == place.Table && c.Column == place.Column }) {
		return nil, "", fmt.Errorf("%s.%s is not listed as a column of sealed values (app/seal/columns.go)", place.Table, place.Column)
	}
	if err := s.usable(tx); err != nil {
		return nil, "", err
	}
	return s.keys.Seal(place, plain)
}

// Ready fails as Seal would at this moment, with ErrNoKey or *RetiredError: for who should know it before they begin.
func (s *Service) Ready(tx *store.Tx) error { return s.usable(tx) }

// usable reads the key's row, so that a transaction that seals and the one that retires the key can't both commit.
func (s *Service) usable(tx *store.Tx) error {
	id := s.keys.Primary()
	if id == "" {
		return ErrNoKey
	}
	var retired time.Time
	switch err := tx.Row(retiredSQL, id).Scan(store.At(&retired)); {
	case errors.Is(err, store.ErrNotFound):
		return fmt.Errorf("encryption key %s is not registered in the database: nothing is sealed before Start", id)
	case err != nil:
		return err
	case !retired.IsZero():
		return &RetiredError{ID: id}
	}
	return nil
}

// Open is Keys.Open with this process's keys.
func (s *Service) Open(place Place, sealed []byte) ([]byte, error) { return s.keys.Open(place, sealed) }

// Digest is Keys.Digest with this process's keys.
func (s *Service) Digest(plain []byte) string { return s.keys.Digest(plain) }

// RetiredError: the key that should seal was retired by Rotate while this process, unheard, still had it first.
type RetiredError struct{ ID string }

func (e *RetiredError) Error() string {
	return fmt.Sprintf("encryption key %s was retired by secrets-rotate, so nothing new is sealed under it: "+
		"put the new key first in hub.encryption_keys and restart this Hub", e.ID)
}

type registered struct {
	id      string
	blob    []byte
	retired time.Time
}

func allRegistered(tx *store.Tx) ([]registered, error) {
	return store.All(tx, func(scan func(...any) error) (r registered, err error) {
		return r, scan(&r.id, &r.blob, store.At(&r.retired))
	}, keysSQL)
}

func checkPlace(id string) Place { return Place{"encryption_keys", "check_blob", id} }

func (s *Service) opens(r registered) bool {
	plain, err := s.keys.Open(checkPlace(r.id), r.blob)
	return err == nil && string(plain) == checkText
}

func (s *Service) checkBlob(id string) ([]byte, error) {
	blob, _, err := Keys{&ring{[]string{id}, s.keys.r.byID}}.Seal(checkPlace(id), []byte(checkText))
	return blob, err
}

// check looks for values only under keys that are not configured: that a value's key is registered is for the schema's
// foreign keys to see to, and a configured key needs no look at its values. So it costs nothing at an ordinary start.
func (s *Service) check(tx *store.Tx) error {
	all, err := allRegistered(tx)
	if err != nil {
		return err
	}
	lost := LostError{Configured: s.keys.IDs()}
	for _, r := range all {
		if s.keys.key(r.id) != nil {
			if !s.opens(r) {
				lost.Damaged = append(lost.Damaged, r.id)
			}
			continue
		}
		counts, err := s.counts(tx, r.id)
		if err != nil {
			return err
		}
		if len(counts) > 0 {
			lost.Missing = append(lost.Missing, InUse{r.id, counts})
		}
	}
	if len(lost.Missing)+len(lost.Damaged) > 0 {
		return &lost
	}
	return nil
}

func (s *Service) counts(tx *store.Tx, id string) ([]Count, error) {
	var counts []Count
	for _, c := range s.columns {
		n := Count{Table: c.Table, Column: c.Column}
		if err := tx.Row(c.sql(countSQL), id).Scan(&n.Values); err != nil {
			return nil, err
		}
		if n.Values > 0 {
			counts = append(counts, n)
		}
	}
	return counts, nil
}

// register makes this process's keys known to the database, and the first one usable.
func (s *Service) register(tx *store.Tx) error {
	all, err := allRegistered(tx)
	if err != nil {
		return err
	}
	for _, id := range s.keys.IDs() {
		if slices.ContainsFunc(all, func(r registered) bool { return r.id == id }) {
			continue
		}
		blob, err := s.checkBlob(id)
		if err != nil {
			return err
		}
		if _, err := tx.Exec(addKeySQL, id, blob, tx.Now()); err != nil {
			return err
		}
	}
	_, err = tx.Exec(unretireSQL, s.keys.Primary())
	return err
}

// Count is how many values of a column something holds for.
type Count struct {
	Table, Column string
	Values        int64
}

func (c Count) String() string { return fmt.Sprintf("%s.%s: %d", c.Table, c.Column, c.Values) }

// InUse is a key and what is sealed under it, columns with nothing left out.
type InUse struct {
	ID     string
	Counts []Count
}

func (u InUse) String() string {
	counts := make([]string, len(u.Counts))
	for i, c := range u.Counts {
		counts[i] = c.String()
	}
	return fmt.Sprintf("%s (values in %s)", u.ID, strings.Join(counts, ", "))
}

// LostError: values are in the database that the configured keys don't open.
type LostError struct {
	Missing    []InUse  // keys that are in use and not configured
	Damaged    []string // ids of configured keys whose check value in the database doesn't open
	Configured []string
}

func (e *LostError) Error() string {
	var b strings.Builder
	b.WriteString("the database has Sensitive values that the configured encryption keys don't open; nothing was written.")
	for _, m := range e.Missing {
		fmt.Fprintf(&b, "\n  not configured, and in use: key %s", m)
	}
	for _, id := range e.Damaged {
		fmt.Fprintf(&b, "\n  configured, but its check value in the database is damaged: key %s", id)
	}
	fmt.Fprintf(&b, "\n  configured: %s\n", orNone(strings.Join(e.Configured, ", ")))
	if len(e.Damaged) > 0 {
		b.WriteString("Either restore the database from a backup, ")
	} else {
		b.WriteString("Either add each missing key to hub.encryption_keys (or the file of hub.encryption_key_file), in any place of the list, ")
	}
	b.WriteString("or give up what can't be opened with: claude-hub secrets-reset --dry-run, then claude-hub secrets-reset. " +
		"It clears only those values; they then must be entered again.")
	return b.String()
}
