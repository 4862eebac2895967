package store

import (
	"context"
	"crypto/sha256"
	"database/sql"
	"embed"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"regexp"
	"sort"
	"strconv"
	"time"
)

//go:embed migrations/*.sql
var embedded embed.FS

func shipped() fs.FS {
	sub, err := fs.Sub(embedded, "migrations")
	if err != nil {
		panic(err) // the folder is embedded above
	}
	return sub
}

// ErrNewer is what Open answers for a database that a newer claude-hub has changed.
var ErrNewer = errors.New("this database has a newer schema than this claude-hub knows; run the newer claude-hub, " +
	"or restore the copy of the database from before the update")

type migration struct {
	number         int64
	name, sql, sum string
}

var migrationName = regexp.MustCompile(`^(\d{4})_([a-z0-9_]+)\.sql$`)

func migrations(from fs.FS) ([]migration, error) {
	entries, err := fs.ReadDir(from, ".")
	if err != nil {
		return nil, err
	}
	var all []migration
	seen := map[int64]string{}
	for _, e := range entries {
		m := migrationName.FindStringSubmatch(e.Name())
		if m == nil {
			return nil, fmt.Errorf("migration %s: the name must be NNNN_name.sql", e.Name())
		}
		n, err := strconv.ParseInt(m[1], 10, 64)
		if err != nil {
			return nil, err
		}
		if seen[n] != "" {
			return nil, fmt.Errorf("migrations %s and %s have the same number", seen[n], e.Name())
		}
		seen[n] = e.Name()
		text, err := fs.ReadFile(from, e.Name())
		if err != nil {
			return nil, err
		}
		sum := sha256.Sum256(text)
		all = append(all, migration{n, m[2], string(text), hex.EncodeToString(sum[:])})
	}
	sort.Slice(all, func(i, j int) bool { return all[i].number < all[j].number })
	return all, nil
}

// pending are the migrations that the database lacks, in order. It fails when the database has one that we don't know,
// or one that was edited after it ran.
func (db *DB) pending(ctx context.Context, from fs.FS) ([]migration, error) {
	all, err := migrations(from)
	if err != nil {
		return nil, err
	}
	var there bool
	if err := db.read.QueryRowContext(ctx, db.d.tableExists(), "migrations").Scan(&there); err != nil {
		return nil, explain(err)
	}
	if !there {
		return all, nil
	}
	rows, err := db.read.QueryContext(ctx, `SELECT number, name, sum FROM migrations`)
	if err != nil {
		return nil, explain(err)
	}
	defer rows.Close()
	ran := map[int64]migration{}
	for rows.Next() {
		var m migration
		if err := rows.Scan(&m.number, &m.name, &m.sum); err != nil {
			return nil, err
		}
		ran[m.number] = m
	}
	if err := rows.Err(); err != nil {
		return nil, err
	}
	var todo []migration
	for _, m := range all {
		r, ok := ran[m.number]
		switch {
		case !ok:
			todo = append(todo, m)
		case r.sum != m.sum:
			return nil, fmt.Errorf("migration %04d_%s was edited after this database ran it (as %04d_%s): "+
				"a migration never changes; a database of an unreleased claude-hub must be made anew", m.number, m.name, r.number, r.name)
		}
		delete(ran, m.number)
	}
	for _, m := range ran {
		return nil, fmt.Errorf("%w (it has migration %04d_%s)", ErrNewer, m.number, m.name)
	}
	return todo, nil
}

// migrate runs what is pending, one transaction each. The caller has the database to itself.
func (db *DB) migrate(ctx context.Context, from fs.FS) error {
	if _, err := db.write.ExecContext(ctx, `CREATE TABLE IF NOT EXISTS migrations (
		number BIGINT PRIMARY KEY, name TEXT NOT NULL, sum TEXT NOT NULL, ran_at BIGINT NOT NULL)`); err != nil {
		return fmt.Errorf("the database doesn't let claude-hub make tables: %w", explain(err))
	}
	todo, err := db.pending(ctx, from)
	if err != nil {
		return err
	}
	for _, m := range todo {
		if err := db.run(ctx, m); err != nil {
			return fmt.Errorf("migration %04d_%s failed and was undone: %w", m.number, m.name, explain(err))
		}
	}
	return nil
}

func (db *DB) run(ctx context.Context, m migration) error {
	tx, err := db.write.BeginTx(ctx, nil)
	if err != nil {
		return err
	}
	defer func() { _ = tx.Rollback() }()
	if _, err := tx.ExecContext(ctx, m.sql); err != nil {
		return err
	}
	if _, err := tx.ExecContext(ctx, `INSERT INTO migrations (number, name, sum, ran_at) VALUES ($1, $2, $3, $4)`,
		m.number, m.name, m.sum, time.Now().UnixMilli()); err != nil {
		return err
	}
	return tx.Commit()
}

func (db *DB) readEpoch(ctx context.Context) (epoch string, err error) {
	err = db.read.QueryRowContext(ctx, `SELECT epoch FROM store_state`).Scan(&epoch)
	return epoch, explain(err)
}

func (db *DB) newEpoch(ctx context.Context) error {
	tx, err := db.write.BeginTx(ctx, &sql.TxOptions{Isolation: db.d.txOptions(true).Isolation})
	if err != nil {
		return err
	}
	defer func() { _ = tx.Rollback() }()
	if _, err := tx.ExecContext(ctx, `UPDATE store_state SET epoch = $1`, NewID()); err != nil {
		return err
	}
	return tx.Commit()
}
