package store_test

import (
	"context"
	"errors"
	"io/fs"
	"maps"
	"strings"
	"sync"
	"testing"
	"testing/fstest"

	"github.com/claude-hub/claude-hub/store"
	"github.com/claude-hub/claude-hub/store/storetest"
)

// files are the shipped migrations and more.
func files(t *testing.T, more map[string]string) fstest.MapFS {
	t.Helper()
	all := fstest.MapFS{}
	names, err := fs.Glob(store.Shipped(), "*.sql")
	if err != nil || len(names) == 0 {
		t.Fatalf("no shipped migrations: %v", err)
	}
	for _, n := range names {
		text, err := fs.ReadFile(store.Shipped(), n)
		if err != nil {
			t.Fatal(err)
		}
		all[n] = &fstest.MapFile{Data: text}
	}
	for n, text := range more {
		all[n] = &fstest.MapFile{Data: []byte(text)}
	}
	return all
}

// eachEmpty runs test on databases without any table.
func eachEmpty(t *testing.T, test func(t *testing.T, url string)) {
	t.Run("sqlite", func(t *testing.T) { t.Parallel(); test(t, storetest.EmptySQLite(t)) })
	t.Run("postgres", func(t *testing.T) { t.Parallel(); test(t, storetest.PostgreSQL(t)) })
}

// opened opens and closes at once.
func opened(url string, from fs.FS) error {
	db, err := store.Open(context.Background(), url, store.WithMigrations(from))
	if err != nil {
		return err
	}
	return db.Close()
}

func TestMigrationsRunOnceInOrderOfTheirNumbers(t *testing.T) {
	t.Parallel()
	eachEmpty(t, func(t *testing.T, url string) {
		first := map[string]string{
			"9010_b.sql": "-- several statements\nALTER TABLE a ADD COLUMN n BIGINT;\nINSERT INTO a (id, n) VALUES ('one', 1);",
			"9002_a.sql": `CREATE TABLE a (id TEXT)`,
		}
		for range 2 {
			if err := opened(url, files(t, first)); err != nil {
				t.Fatal(err)
			}
		}
		later := maps.Clone(first)
		later["9011_d.sql"] = `INSERT INTO a (id, n) VALUES ('three', 3)`
		later["9005_c.sql"] = `INSERT INTO a (id) VALUES ('two')` // merged after 9010 was released
		if err := opened(url, files(t, later)); err != nil {
			t.Fatal(err)
		}
		db := storetest.Open(t, url, store.WithMigrations(files(t, later)))
		if n := number(t, db, `SELECT count(*) FROM a`); n != 3 {
			t.Errorf("the table has %d rows, want one from each of three migrations", n)
		}
	})
}

func TestADatabaseOfANewerVersionIsRefused(t *testing.T) {
	t.Parallel()
	eachEmpty(t, func(t *testing.T, url string) {
		if err := opened(url, files(t, map[string]string{"9001_new.sql": `CREATE TABLE a (id TEXT)`})); err != nil {
			t.Fatal(err)
		}
		err := opened(url, files(t, nil))
		if !errors.Is(err, store.ErrNewer) || !strings.Contains(err.Error(), "9001_new") {
			t.Errorf("got %v, want ErrNewer and the migration's name", err)
		}
	})
}

func TestAnEditedMigrationIsRefused(t *testing.T) {
	t.Parallel()
	eachEmpty(t, func(t *testing.T, url string) {
		if err := opened(url, files(t, map[string]string{"9001_a.sql": `CREATE TABLE a (id TEXT)`})); err != nil {
			t.Fatal(err)
		}
		err := opened(url, files(t, map[string]string{"9001_a.sql": `CREATE TABLE a (id TEXT, n BIGINT)`}))
		if err == nil || !strings.Contains(err.Error(), "9001_a was edited") {
			t.Errorf("got %v, want an error that names the edited migration", err)
		}
	})
}

func TestAFailingMigrationIsUndoneWhole(t *testing.T) {
	t.Parallel()
	eachEmpty(t, func(t *testing.T, url string) {
		more := map[string]string{"9001_a.sql": `CREATE TABLE a (id TEXT)`, "9002_b.sql": `CREATE TABLE b (id TEXT); INSERT INTO missing VALUES (1)`}
		err := opened(url, files(t, more))
		if err == nil || !strings.Contains(err.Error(), "9002_b failed and was undone") {
			t.Fatalf("got %v, want an error that names the migration", err)
		}
		more["9002_b.sql"] = `CREATE TABLE b (id TEXT)` // fails if the first try left its table
		if err := opened(url, files(t, more)); err != nil {
			t.Error(err)
		}
	})
}

func TestMigrationFilesWithoutAClearOrderAreRefused(t *testing.T) {
	t.Parallel()
	for want, more := range map[string]map[string]string{
		"NNNN_name.sql":   {"12_short.sql": ``},
		"the same number": {"9001_a.sql": ``, "9001_b.sql": ``},
	} {
		if err := opened(storetest.EmptySQLite(t), files(t, more)); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("got %v, want an error with %q", err, want)
		}
	}
}

func TestHubsThatStartTogetherMigrateOnce(t *testing.T) {
	t.Parallel()
	eachEmpty(t, func(t *testing.T, url string) {
		more := files(t, map[string]string{"9001_a.sql": `CREATE TABLE a (id TEXT); INSERT INTO a VALUES ('once')`})
		var wg sync.WaitGroup
		hubs := make([]*store.DB, 5)
		for i := range hubs {
			wg.Go(func() {
				var err error
				if hubs[i], err = store.Open(context.Background(), url, store.WithMigrations(more)); err != nil {
					t.Error(err)
				}
			})
		}
		wg.Wait()
		for _, db := range hubs {
			if db == nil {
				continue
			}
			if n := number(t, db, `SELECT count(*) FROM a`); n != 1 {
				t.Errorf("the migration ran %d times", n)
			}
			if err := db.Close(); err != nil {
				t.Error(err)
			}
		}
	})
}

func TestAnUpdateBesideARunningHubIsRefusedInWords(t *testing.T) {
	t.Parallel()
	eachEmpty(t, func(t *testing.T, url string) {
		storetest.Open(t, url)
		_, err := openNow(url, store.WithMigrations(files(t, map[string]string{"9001_a.sql": `CREATE TABLE a (id TEXT)`})))
		if !errors.Is(err, store.ErrInUse) || !strings.Contains(err.Error(), "all other Hubs stopped") {
			t.Errorf("got %v, want ErrInUse that tells to stop the other Hubs", err)
		}
	})
}
