package store_test

import (
	"context"
	"path/filepath"
	"testing"

	"github.com/claude-hub/claude-hub/store"
)

func TestSmoke(t *testing.T) {
	ctx := context.Background()
	db, err := store.Open(ctx, filepath.Join(t.TempDir(), "a.db"))
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close()
	ch := db.Changed("x")
	if err := db.Write(ctx, func(tx *store.Tx) error {
		tx.Wake("x")
		_, err := tx.Exec(`CREATE TABLE a (id TEXT PRIMARY KEY, ok BIGINT, b BYTEA)`)
		return err
	}); err != nil {
		t.Fatal(err)
	}
	<-ch
}
