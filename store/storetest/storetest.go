// Package storetest gives tests a database of their own: SQLite in a temporary folder, and PostgreSQL in a schema of its
// own on a server that the test process starts for itself (see postgres.go) and that ends with it.
package storetest

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/claude-hub/claude-hub/store"
)

// New opens a fresh SQLite database with the shipped schema, closed when the test ends.
func New(t testing.TB) *store.DB {
	t.Helper()
	return Open(t, SQLite(t))
}

// Each runs test on SQLite and on PostgreSQL, as parallel subtests: they run after the calling test's function returned.
func Each(t *testing.T, test func(t *testing.T, db *store.DB)) {
	t.Helper()
	EachURL(t, func(t *testing.T, url string) { test(t, Open(t, url)) })
}

// EachURL is Each for a test that opens the database itself, perhaps several times.
func EachURL(t *testing.T, test func(t *testing.T, url string)) {
	t.Helper()
	t.Run("sqlite", func(t *testing.T) {
		t.Parallel()
		test(t, SQLite(t))
	})
	t.Run("postgres", func(t *testing.T) {
		t.Parallel()
		test(t, PostgreSQL(t))
	})
}

// Open opens the database at url, closed when the test ends.
func Open(t testing.TB, url string, opts ...store.Option) *store.DB {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	db, err := store.Open(ctx, url, opts...)
	if err != nil {
		t.Fatalf("open the test database: %v", err)
	}
	t.Cleanup(func() {
		if err := db.Close(); err != nil {
			t.Errorf("close the test database: %v", err)
		}
	})
	return db
}

// SQLite is the URL of a fresh SQLite file with the shipped schema.
func SQLite(t testing.TB) string {
	t.Helper()
	file, err := migrated()
	if err != nil {
		t.Fatalf("make the test database: %v", err)
	}
	path := filepath.Join(t.TempDir(), "hub.db")
	if err := os.WriteFile(path, file, 0o600); err != nil {
		t.Fatal(err)
	}
	return "sqlite://" + (&url.URL{Path: path}).EscapedPath()
}

// EmptySQLite is the URL of a SQLite file that doesn't exist yet.
func EmptySQLite(t testing.TB) string {
	t.Helper()
	return "sqlite://" + (&url.URL{Path: filepath.Join(t.TempDir(), "hub.db")}).EscapedPath()
}

// migrated is the bytes of a database with the shipped schema. It is made once: every migration waits for the disk.
var migrated = sync.OnceValues(func() ([]byte, error) {
	dir, err := os.MkdirTemp("", "claude-hub-storetest-")
	if err != nil {
		return nil, err
	}
	defer os.RemoveAll(dir)
	path := filepath.Join(dir, "hub.db")
	db, err := store.Open(context.Background(), path)
	if err != nil {
		return nil, err
	}
	if err := db.Close(); err != nil {
		return nil, err
	}
	return os.ReadFile(path)
})

// PostgreSQL is the URL of a fresh schema on the test server, without tables. CLAUDE_HUB_TEST_POSTGRES names another server's
// database to use instead; there the schema is dropped when the test ends.
func PostgreSQL(t testing.TB) string {
	t.Helper()
	base, foreign := os.Getenv("CLAUDE_HUB_TEST_POSTGRES"), true
	if base == "" {
		var err error
		if base, err = server(); err != nil {
			t.Fatalf("%v", err)
		}
		foreign = false
	}
	u, err := url.Parse(base)
	if err != nil {
		t.Fatalf("CLAUDE_HUB_TEST_POSTGRES is not a URL: %v", err)
	}
	var b [6]byte
	_, _ = rand.Read(b[:]) // never fails
	schema := "t_" + hex.EncodeToString(b[:])
	q := u.Query()
	q.Set("search_path", schema)
	u.RawQuery = q.Encode()
	if foreign {
		t.Cleanup(func() { drop(t, u.String(), schema) })
	}
	return u.String()
}

func drop(t testing.TB, url, schema string) {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	db, err := store.Open(ctx, url)
	if err != nil {
		t.Logf("schema %s stays behind: %v", schema, err)
		return
	}
	defer db.Close()
	if err := db.Write(ctx, func(tx *store.Tx) error {
		_, err := tx.Exec("DROP SCHEMA " + schema + " CASCADE")
		return err
	}); err != nil {
		t.Logf("schema %s stays behind: %v", schema, err)
	}
}

// Statements are what was asked of the database under a context.
type Statements struct {
	mu  sync.Mutex
	all []string
}

// Watch is ctx under which all statements are kept.
func Watch(ctx context.Context) (context.Context, *Statements) {
	s := &Statements{}
	return store.Told(ctx, func(statement string) {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.all = append(s.all, statement)
	}), s
}

// All of them so far, in order, each as its text.
func (s *Statements) All() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.all)
}

// Clock is a DB's clock that moves only when told to.
type Clock struct {
	mu  sync.Mutex
	now time.Time
}

// NewClock gives db a clock that stands at noon of 2 January 2026, UTC.
func NewClock(db *store.DB) *Clock {
	c := &Clock{now: time.Date(2026, 1, 2, 12, 0, 0, 0, time.UTC)}
	db.SetClock(c.Now)
	return c
}

// Now is where the clock stands.
func (c *Clock) Now() time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.now
}

// Advance moves the clock.
func (c *Clock) Advance(d time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.now = c.now.Add(d)
}
