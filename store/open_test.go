package store_test

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/claude-hub/claude-hub/store"
	"github.com/claude-hub/claude-hub/store/storetest"
)

func TestSQLiteIsOpenedByURLOrPath(t *testing.T) {
	t.Parallel()
	dir := filepath.Join(t.TempDir(), "a folder, 100% #1?")
	path := filepath.Join(dir, "hub.db")
	escaped := "sqlite://" + strings.NewReplacer(" ", "%20", "%", "%25", "#", "%23", "?", "%3F").Replace(path)
	write(t, storetest.Open(t, path), `CREATE TABLE x (id TEXT)`)
	write(t, storetest.Open(t, escaped), `INSERT INTO x VALUES ('1')`)
	names, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range names {
		st, err := e.Info()
		if err != nil {
			t.Fatal(err)
		}
		if st.Mode().Perm() != 0o600 {
			t.Errorf("%s has mode %v, want 0600: it holds sealed values and token hashes", e.Name(), st.Mode())
		}
	}
}

func TestOtherAddressesAreRefusedInWords(t *testing.T) {
	t.Parallel()
	for url, want := range map[string]string{
		"":                            "sqlite:///path/file.db",
		":memory:":                    "sqlite:///path/file.db",
		"mysql://root:hunter2@db/hub": "postgres://user@host/database",
		"sqlite://hub.db":             "an absolute path",
		"sqlite:///tmp/x.db?mode=ro":  "an absolute path",
		"postgres://u:hunter2@h:x/db": "database URL is not right",
		"postgres://u:hunter2@127.0.0.1:1/db?sslmode=disable": "can't be reached",
		t.TempDir(): "can't be opened",
	} {
		_, err := store.Open(t.Context(), url)
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: got %v, want an error with %q", url, err, want)
		} else if strings.Contains(err.Error(), "hunter2") {
			t.Errorf("the error shows the password: %v", err)
		}
	}
}

func TestADatabaseThatIsAwayIsSaidInWords(t *testing.T) {
	t.Parallel()
	_, err := store.Open(t.Context(), "postgres://u@127.0.0.1:1/db?sslmode=disable")
	if got := store.Trouble(fmt.Errorf("look up credential: %w", err)); !strings.Contains(got, "can't reach its database") {
		t.Errorf("%v: got %q", err, got)
	}
	if got := store.Trouble(errors.New("something else")); got != "" {
		t.Errorf("another error is told as %q", got)
	}
}

func TestNetworkFileSystemsAreRefused(t *testing.T) {
	t.Parallel()
	for _, magic := range []int64{unix.NFS_SUPER_MAGIC, unix.CIFS_SUPER_MAGIC, unix.SMB2_SUPER_MAGIC, unix.V9FS_MAGIC, unix.CEPH_SUPER_MAGIC} {
		if err := store.RefusePlace("/data", magic); err == nil || !strings.Contains(err.Error(), "network file system") {
			t.Errorf("file system %#x: got %v", magic, err)
		}
	}
	for _, magic := range []int64{unix.EXT4_SUPER_MAGIC, unix.XFS_SUPER_MAGIC, unix.BTRFS_SUPER_MAGIC, unix.TMPFS_MAGIC, unix.OVERLAYFS_SUPER_MAGIC} {
		if err := store.RefusePlace("/data", magic); err != nil {
			t.Errorf("file system %#x: %v", magic, err)
		}
	}
}

// TestOnlyTheDialectKnowsADriver keeps the places where the databases differ in one small file.
func TestOnlyTheDialectKnowsADriver(t *testing.T) {
	t.Parallel()
	known, looked := 0, 0
	if err := filepath.WalkDir("..", func(path string, e fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if e.IsDir() && path != ".." && (strings.HasPrefix(e.Name(), ".") || e.Name() == "node_modules") {
			return filepath.SkipDir
		}
		if !strings.HasSuffix(path, ".go") || path == filepath.Join("..", "deps_pin.go") {
			return nil
		}
		b, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		looked++
		for _, driver := range []string{"modernc.org/" + "sqlite", "jackc/" + "pgx", "lib/" + "pq", "mattn/go-" + "sqlite3"} {
			if !strings.Contains(string(b), driver) {
				continue
			}
			if path == filepath.Join("..", "store", "dialect.go") {
				known++
			} else {
				t.Errorf("%s mentions %s; only store/dialect.go may", path, driver)
			}
		}
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	if known != 2 || looked < 5 {
		t.Errorf("the dialect mentions %d drivers in %d files, want 2: this test looks in the wrong place", known, looked)
	}
	b, err := os.ReadFile("dialect.go")
	if err != nil {
		t.Fatal(err)
	}
	if n := strings.Count(string(b), "\n"); n > 200 {
		t.Errorf("dialect.go has %d lines, more than the 200 it is worth: SQL that runs on both needs no dialect", n)
	}
}
