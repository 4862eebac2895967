package storetest_test

import (
	"bufio"
	"context"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/claude-hub/claude-hub/store"
	"github.com/claude-hub/claude-hub/store/storetest"
)

func TestEachDatabaseIsFreshAndMigrated(t *testing.T) {
	t.Parallel()
	for range 2 {
		storetest.Each(t, func(t *testing.T, db *store.DB) {
			if err := db.Write(t.Context(), func(tx *store.Tx) error {
				var n int
				if err := tx.Row(`SELECT count(*) FROM store_state`).Scan(&n); err != nil {
					return err
				}
				if n != 1 {
					t.Errorf("store_state has %d rows, want the one the migration makes", n)
				}
				_, err := tx.Exec(`CREATE TABLE mine (a BIGINT)`) // fails where another test's database is reused
				return err
			}); err != nil {
				t.Fatal(err)
			}
		})
	}
}

func TestClockMovesOnlyWhenTold(t *testing.T) {
	t.Parallel()
	db := storetest.New(t)
	clock := storetest.NewClock(db)
	before := db.Now()
	clock.Advance(90 * time.Second)
	if got := db.Now().Sub(before); got != 90*time.Second {
		t.Errorf("the clock moved by %s, want 90s", got)
	}
}

func TestStatementsAreWatchedUnderTheirContextOnly(t *testing.T) {
	t.Parallel()
	storetest.Each(t, func(t *testing.T, db *store.DB) {
		const read, write = `SELECT count(*) FROM store_state`, `UPDATE store_state SET epoch = epoch`
		ctx, seen := storetest.Watch(t.Context())
		one := func(ctx context.Context) {
			t.Helper()
			var n int
			if err := db.Read(ctx, func(tx *store.Tx) error { return tx.Row(read).Scan(&n) }); err != nil {
				t.Fatal(err)
			}
		}
		one(t.Context())
		one(ctx)
		if err := db.Write(context.WithoutCancel(ctx), func(tx *store.Tx) error {
			if _, err := tx.Exec(write); err != nil {
				return err
			}
			_, err := store.All(tx, store.Scan1[int], read)
			return err
		}); err != nil {
			t.Fatal(err)
		}
		// A Write may ask something of its own first; what was given to it comes last.
		if got := seen.All(); len(got) < 3 || got[0] != read || !slices.Equal(got[len(got)-2:], []string{write, read}) {
			t.Errorf("seen %q", got)
		}
	})
}

// TestServerEndsWithItsTestProcess kills a test process that has a server, and looks for what it leaves behind.
func TestServerEndsWithItsTestProcess(t *testing.T) {
	if os.Getenv("STORETEST_CHILD") != "" {
		os.Stdout.WriteString(storetest.PostgreSQL(t) + "\n")
		<-t.Context().Done()
		return
	}
	t.Parallel()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, os.Args[0], "-test.run=^TestServerEndsWithItsTestProcess$")
	cmd.Env = append(os.Environ(), "STORETEST_CHILD=1", "CLAUDE_HUB_TEST_POSTGRES=")
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	line, err := bufio.NewReader(out).ReadString('\n')
	if err != nil {
		t.Fatalf("the child gave no URL: %v", err)
	}
	u, err := url.Parse(line[:len(line)-1])
	if err != nil {
		t.Fatal(err)
	}
	run := u.Query().Get("host")
	pid, err := os.ReadFile(filepath.Join(run, "data", "postmaster.pid"))
	if err != nil {
		t.Fatal(err)
	}
	for i, c := range pid {
		if c == '\n' {
			pid = pid[:i]
			break
		}
	}
	if err := cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = cmd.Wait() // it was killed
	deadline := time.Now().Add(20 * time.Second)
	for {
		_, folder := os.Stat(run)
		_, process := os.Stat("/proc/" + string(pid))
		if os.IsNotExist(folder) && os.IsNotExist(process) {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("20 s after the test process died: folder %v, server %v; want both gone", folder, process)
		}
		select {
		case <-time.After(20 * time.Millisecond):
		case <-ctx.Done():
			t.Fatal(ctx.Err())
		}
	}
}
