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

// batch is how many rows Rotate seals anew in one transaction. Where Hubs write at the same time and the database refuses
// the transaction for it, it is tried with ever fewer, so that it gets through beside any number of small ones.
const batch = 100

// passes is how often Rotate looks for values that a Hub sealed under the old key behind its back.
const passes = 3

// Progress is how far Rotate is.
type Progress struct {
	Table, Column string // where it is now
	Done, Total   int64  // values of all columns; Total is what it found when it began
}

// Rotation is what Rotate did.
type Rotation struct {
	To       string  // the id of the key that everything is under now
	Values   []Count // sealed anew, columns with none left out
	Retired  []string
	KeptBack []Kept
}

// Kept is a key that was not retired, and why.
type Kept struct{ ID, Why string }

// KeptError: everything Rotate could open is under the first key, but an older key must stay in the config.
type KeptError struct {
	To       string
	KeptBack []Kept
}

func (e *KeptError) Error() string {
	var b strings.Builder
	fmt.Fprintf(&b, "not every key but %s could be retired. Leave in the config, and run secrets-rotate again once it is mended:", e.To)
	for _, k := range e.KeptBack {
		fmt.Fprintf(&b, "\n  key %s: %s", k.ID, k.Why)
	}
	return b.String()
}

// Rotate seals under the first key everything that is under another, while Hubs run, and retires each key that nothing
// is left under. Killed at any moment, it goes on where it was when run again. No value changes, and every value can be
// opened at every moment by each Hub that has both keys.
//
// It changes nothing when Check fails, and stops when another running Hub lacks the first key: that Hub could not open
// what Rotate seals. A key that a running Hub still seals with is not retired, nor is one under which a damaged value is
// left, which stays as it is; then Rotate answers what it did together with *KeptError. progress is called after each
// transaction, and may be nil.
func (s *Service) Rotate(ctx context.Context, progress func(Progress)) (Rotation, error) {
	to := s.keys.Primary()
	if to == "" {
		return Rotation{}, ErrNoKey
	}
	r := rotation{s: s, done: Rotation{To: to}, progress: progress}
	var old []string
	err := s.db.Write(ctx, func(tx *store.Tx) error {
		old, r.total = nil, 0
		if err := s.check(tx); err != nil {
			return err
		}
		if err := s.known(tx); err != nil {
			return err
		}
		if err := s.register(tx); err != nil {
			return err
		}
		all, err := allRegistered(tx)
		if err != nil {
			return err
		}
		for _, k := range all {
			if k.id == to || s.keys.key(k.id) == nil {
				continue
			}
			old = append(old, k.id)
			counts, err := s.counts(tx, k.id)
			if err != nil {
				return err
			}
			for _, c := range counts {
				r.total += c.Values
			}
		}
		return nil
	})
	if err != nil {
		return Rotation{}, err
	}
	for _, id := range old {
		if err := r.key(ctx, id); err != nil {
			return r.done, err
		}
	}
	if len(r.done.KeptBack) > 0 {
		return r.done, &KeptError{To: to, KeptBack: r.done.KeptBack}
	}
	return r.done, nil
}

// known refuses to go on while a running Hub lacks the first key.
func (s *Service) known(tx *store.Tx) error {
	lacking, err := s.strangers(tx)
	if err != nil || len(lacking) == 0 {
		return err
	}
	h := lacking[0]
	return fmt.Errorf("the Hub %s (last seen %s) doesn't have encryption key %s, so it could not open what is sealed under it: "+
		"add the key to its config and restart it; if it is gone, try again in %s", h.Name, h.Seen.Format(time.RFC3339), s.keys.Primary(), live)
}

type rotation struct {
	s           *Service
	done        Rotation
	rows, total int64
	progress    func(Progress)
	damaged     []string // rows under the key at hand
}

func (r *rotation) key(ctx context.Context, id string) error {
	var kept string
	for range passes {
		r.damaged = nil
		for _, c := range r.s.columns {
			if err := r.column(ctx, c, id); err != nil {
				return err
			}
		}
		var again bool
		var err error
		if kept, again, err = r.retire(ctx, id); err != nil {
			return err
		}
		if !again {
			break
		}
	}
	if kept != "" {
		r.done.KeptBack = append(r.done.KeptBack, Kept{id, kept})
	}
	return nil
}

func (r *rotation) column(ctx context.Context, c Column, id string) error {
	size := batch
	for last := ""; ; {
		var found, changed int64
		var damaged []string
		var upTo string
		size *= 4 // the first try halves it: twice what got through last time
		// Read and written in one transaction: a value that somebody enters meanwhile is never put back to the old one.
		err := r.s.db.Write(ctx, func(tx *store.Tx) error {
			found, changed, damaged = 0, 0, nil
			size = min(max(size/2, 1), batch)
			if err := r.s.usable(tx); err != nil {
				return err
			}
			if err := r.s.known(tx); err != nil {
				return err
			}
			rows, err := store.All(tx, func(scan func(...any) error) (v sealedRow, err error) {
				return v, scan(&v.id, &v.sealed)
			}, tx.Locked(c.sql(batchSQL)), id, last, size)
			if err != nil {
				return err
			}
			for _, v := range rows {
				found, upTo = found+1, v.id
				plain, err := r.s.keys.Open(c.place(v.id), v.sealed)
				if err != nil {
					damaged = append(damaged, c.place(v.id).String())
					continue
				}
				sealed, to, err := r.s.keys.Seal(c.place(v.id), plain)
				if err != nil {
					return err
				}
				n, err := tx.Exec(c.sql(rewriteSQL), sealed, to, v.id, id)
				if err != nil {
					return err
				}
				changed += n
				r.s.row()
			}
			return nil
		})
		if err != nil {
			return err
		}
		last = upTo
		r.damaged = append(r.damaged, damaged...)
		r.count(c, changed)
		if found < int64(size) {
			return nil
		}
	}
}

type sealedRow struct {
	id     string
	sealed []byte
}

func (r *rotation) count(c Column, changed int64) {
	if changed == 0 {
		return
	}
	i := slices.IndexFunc(r.done.Values, func(n Count) bool { return n.Table == c.Table && n.Column == c.Column })
	if i < 0 {
		i = len(r.done.Values)
		r.done.Values = append(r.done.Values, Count{Table: c.Table, Column: c.Column})
	}
	r.done.Values[i].Values += changed
	r.rows += changed
	r.total = max(r.total, r.rows)
	if r.progress != nil {
		r.progress(Progress{Table: c.Table, Column: c.Column, Done: r.rows, Total: r.total})
	}
}

var errKept = errors.New("kept")

// retire marks the key as no longer used, if that is so. kept says why not; again, that another pass may help.
func (r *rotation) retire(ctx context.Context, id string) (kept string, again bool, err error) {
	var retired int64
	err = r.s.db.Write(ctx, func(tx *store.Tx) error {
		kept, again = "", false
		counts, err := r.s.counts(tx, id)
		if err != nil {
			return err
		}
		hubs, err := r.s.hubs(tx)
		if err != nil {
			return err
		}
		sealing := slices.IndexFunc(hubs, func(h Hub) bool { return len(h.KeyIDs) > 0 && h.KeyIDs[0] == id })
		switch {
		case len(r.damaged) > 0:
			kept = fmt.Sprintf("%d values under it are damaged and were left as they are; enter them again (%s)", len(r.damaged), some(r.damaged))
		case sealing >= 0:
			kept = fmt.Sprintf("the Hub %s (last seen %s) seals with it; put %s first in its config and restart it", hubs[sealing].Name,
				hubs[sealing].Seen.Format(time.RFC3339), r.done.To)
		case len(counts) > 0:
			kept, again = "values are still being sealed under "+InUse{id, counts}.String(), true
		}
		if kept != "" {
			return errKept
		}
		retired, err = tx.Exec(retireSQL, tx.Now(), id)
		return err
	})
	if errors.Is(err, errKept) {
		return kept, again, nil
	}
	if err == nil && retired > 0 {
		r.done.Retired = append(r.done.Retired, id)
	}
	return "", false, err
}

// some names a few of many.
func some(names []string) string {
	if len(names) > 5 {
		return strings.Join(names[:5], ", ") + " …"
	}
	return strings.Join(names, ", ")
}
