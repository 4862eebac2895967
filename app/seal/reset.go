package seal

import (
	"context"
	"fmt"

	"github.com/claude-hub/claude-hub/store"
)

// Cleared is what Reset cleared, or with a dry run would clear.
type Cleared struct {
	Columns []ClearedColumn // columns with none left out
	Keys    []string        // ids of the keys that are lost; they are retired
	Mended  []string        // ids of configured keys whose check value was damaged, and was made anew
}

// ClearedColumn counts the values of one column.
type ClearedColumn struct {
	Table   string `json:"table"`
	Column  string `json:"column"`
	Lost    int64  `json:"lost"`    // their key is not configured
	Damaged int64  `json:"damaged"` // their key is configured, and does not open them
}

func (c ClearedColumn) String() string {
	return fmt.Sprintf("%s.%s: %d whose key is missing, %d damaged", c.Table, c.Column, c.Lost, c.Damaged)
}

// Values is how many values there are in all.
func (c Cleared) Values() (n int64) {
	for _, col := range c.Columns {
		n += col.Lost + col.Damaged
	}
	return n
}

// Nothing says that there was nothing to do.
func (c Cleared) Nothing() bool { return c.Values() == 0 && len(c.Keys)+len(c.Mended) == 0 }

// Reset clears the values that the configured keys don't open, and only those: the sealed column and its key column
// become NULL, LostAt the time; the row stays (ADR 0009 "A lost key"). Afterwards Check succeeds. It is one transaction;
// again, it finds nothing to do.
//
// The database must have been opened with store.Exclusive, so that no Hub runs on it. record is called in that same
// transaction when something is changed, for the audit entry. With dryRun nothing is changed and record not called.
func (s *Service) Reset(ctx context.Context, dryRun bool, record func(*store.Tx, Cleared) error) (Cleared, error) {
	var done Cleared
	var err error
	if dryRun {
		err = s.db.Read(ctx, func(tx *store.Tx) (err error) {
			done, err = s.reset(tx, false)
			return err
		})
		return done, err
	}
	err = s.db.Write(ctx, func(tx *store.Tx) (err error) {
		if done, err = s.reset(tx, true); err != nil {
			return err
		}
		if done.Nothing() {
			return nil
		}
		return record(tx, done)
	})
	if err != nil {
		return Cleared{}, err
	}
	return done, nil
}

func (s *Service) reset(tx *store.Tx, write bool) (Cleared, error) {
	all, err := allRegistered(tx)
	if err != nil {
		return Cleared{}, err
	}
	var done Cleared
	var have []string
	for _, r := range all {
		switch {
		case s.keys.key(r.id) != nil:
			have = append(have, r.id)
			if s.opens(r) {
				continue
			}
			done.Mended = append(done.Mended, r.id)
			if write {
				err = s.mend(tx, r.id)
			}
		case r.retired.IsZero():
			done.Keys = append(done.Keys, r.id)
			if write {
				_, err = tx.Exec(retireSQL, tx.Now(), r.id)
			}
		}
		if err != nil {
			return Cleared{}, err
		}
	}
	for _, c := range s.columns {
		n := ClearedColumn{Table: c.Table, Column: c.Column}
		for _, r := range all {
			if s.keys.key(r.id) != nil {
				continue
			}
			lost, err := c.clearKey(tx, r.id, write)
			if err != nil {
				return Cleared{}, err
			}
			n.Lost += lost
		}
		for _, id := range have {
			damaged, err := s.clearDamaged(tx, c, id, write)
			if err != nil {
				return Cleared{}, err
			}
			n.Damaged += damaged
		}
		if n.Lost+n.Damaged > 0 {
			done.Columns = append(done.Columns, n)
		}
	}
	if write {
		_, err = tx.Exec(forgetAllSQL) // no Hub runs
	}
	return done, err
}

func (s *Service) mend(tx *store.Tx, id string) error {
	blob, err := s.checkBlob(id)
	if err != nil {
		return err
	}
	_, err = tx.Exec(mendSQL, blob, id)
	return err
}

// clearKey clears what is sealed under a key that is not configured, and counts it.
func (c Column) clearKey(tx *store.Tx, id string, write bool) (n int64, err error) {
	switch {
	case !write:
		err = tx.Row(c.sql(countSQL), id).Scan(&n)
	case c.LostAt != "":
		n, err = tx.Exec(c.sql(clearKeyLostSQL), id, tx.Now())
	default:
		n, err = tx.Exec(c.sql(clearKeySQL), id)
	}
	return n, err
}

// clearDamaged opens everything that is sealed under a configured key, clears what does not open, and counts that.
func (s *Service) clearDamaged(tx *store.Tx, c Column, id string, write bool) (n int64, err error) {
	for last := ""; ; {
		rows, err := store.All(tx, func(scan func(...any) error) (v sealedRow, err error) {
			return v, scan(&v.id, &v.sealed)
		}, c.sql(batchSQL), id, last, batch)
		if err != nil {
			return n, err
		}
		for _, v := range rows {
			last = v.id
			if _, err := s.keys.Open(c.place(v.id), v.sealed); err == nil {
				continue
			}
			n++
			switch {
			case !write:
			case c.LostAt != "":
				_, err = tx.Exec(c.sql(clearRowLostSQL), v.id, tx.Now())
			default:
				_, err = tx.Exec(c.sql(clearRowSQL), v.id)
			}
			if err != nil {
				return n, err
			}
		}
		if len(rows) < batch {
			return n, nil
		}
	}
}
