package store_test

import (
	"bufio"
	"context"
	"errors"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/claude-hub/claude-hub/store"
	"github.com/claude-hub/claude-hub/store/storetest"
)

func eventually(t *testing.T, limit time.Duration, what string, is func() bool) {
	t.Helper()
	for deadline := time.Now().Add(limit); !is(); {
		if time.Now().After(deadline) {
			t.Fatalf("after %s still not: %s", limit, what)
		}
		<-time.After(10 * time.Millisecond)
	}
}

func openNow(url string, opts ...store.Option) (*store.DB, error) {
	return store.Open(context.Background(), url, append(opts, store.WithWait(0))...)
}

func TestHubsShareTheDatabaseAndAnExclusiveUserDoesNot(t *testing.T) {
	t.Parallel()
	storetest.EachURL(t, func(t *testing.T, url string) {
		a, b := storetest.Open(t, url), storetest.Open(t, url)
		if _, err := openNow(url, store.Exclusive()); !errors.Is(err, store.ErrInUse) {
			t.Fatalf("exclusive beside two Hubs: got %v, want ErrInUse", err)
		}
		if err := a.Close(); err != nil {
			t.Fatal(err)
		}
		if _, err := openNow(url, store.Exclusive()); !errors.Is(err, store.ErrInUse) {
			t.Fatalf("exclusive beside one Hub: got %v, want ErrInUse", err)
		}
		if err := b.Close(); err != nil {
			t.Fatal(err)
		}
		alone, err := store.Open(t.Context(), url, store.Exclusive())
		if err != nil {
			t.Fatal(err)
		}
		for _, opts := range [][]store.Option{nil, {store.Exclusive()}} {
			if _, err := openNow(url, opts...); !errors.Is(err, store.ErrInUse) {
				t.Errorf("beside an exclusive user: got %v, want ErrInUse", err)
			}
		}
		write(t, alone, `CREATE TABLE x (id TEXT)`)
		if err := alone.Close(); err != nil {
			t.Fatal(err)
		}
		write(t, storetest.Open(t, url), `INSERT INTO x VALUES ('1')`)
	})
}

// TestTheInstanceLockEndsWithItsProcess: the child of this test opens the database and is killed.
func TestTheInstanceLockEndsWithItsProcess(t *testing.T) {
	if url := os.Getenv("STORE_TEST_HOLD"); url != "" {
		if _, err := store.Open(t.Context(), url); err != nil {
			t.Fatal(err)
		}
		os.Stdout.WriteString("open\n")
		<-t.Context().Done()
		return
	}
	t.Parallel()
	storetest.EachURL(t, func(t *testing.T, url string) {
		cmd := exec.CommandContext(t.Context(), os.Args[0], "-test.run=^TestTheInstanceLockEndsWithItsProcess$")
		cmd.Env = append(os.Environ(), "STORE_TEST_HOLD="+url)
		out, err := cmd.StdoutPipe()
		if err != nil {
			t.Fatal(err)
		}
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		if line, err := bufio.NewReader(out).ReadString('\n'); err != nil || line != "open\n" {
			t.Fatalf("the child said %q: %v", line, err)
		}
		if _, err := openNow(url, store.Exclusive()); !errors.Is(err, store.ErrInUse) {
			t.Errorf("beside the child: got %v, want ErrInUse", err)
		}
		if err := cmd.Process.Kill(); err != nil {
			t.Fatal(err)
		}
		_ = cmd.Wait() // it was killed
		storetest.Open(t, url, store.Exclusive())
	})
}

// dropLocks ends the connections that hold db's instance lock, as a network or a restarted server would.
func dropLocks(t *testing.T, db *store.DB) (dropped int64) {
	t.Helper()
	return number(t, db, `SELECT count(pg_terminate_backend(pid)) FROM pg_locks WHERE locktype = 'advisory' AND granted
		AND (classid::bigint << 32) | objid::bigint = hashtextextended('claude-hub ' || current_schema(), 0)`)
}

func TestADroppedInstanceLockIsTakenAgain(t *testing.T) {
	t.Parallel()
	url := storetest.PostgreSQL(t)
	hub := storetest.Open(t, url, store.WithLockLook(50*time.Millisecond))
	write(t, hub, `CREATE TABLE x (id TEXT)`)
	holder := func() int64 {
		return number(t, hub, `SELECT coalesce(max(pid), 0) FROM pg_locks WHERE locktype = 'advisory' AND granted
			AND (classid::bigint << 32) | objid::bigint = hashtextextended('claude-hub ' || current_schema(), 0)`)
	}
	before := holder()
	if n := dropLocks(t, hub); n != 1 {
		t.Fatalf("dropped %d locks, want 1", n)
	}
	eventually(t, 10*time.Second, "another connection holds the lock", func() bool {
		now := holder()
		return now != 0 && now != before
	})
	write(t, hub, `INSERT INTO x VALUES ('1')`)
	if _, err := openNow(url, store.Exclusive()); !errors.Is(err, store.ErrInUse) {
		t.Errorf("exclusive beside the Hub: got %v, want ErrInUse", err)
	}
}

func TestAHubThatLostItsLockDoesNotWriteBesideOrAfterAnExclusiveUser(t *testing.T) {
	t.Parallel()
	url := storetest.PostgreSQL(t)
	hub := storetest.Open(t, url, store.WithLockLook(time.Hour)) // it doesn't notice
	write(t, hub, `CREATE TABLE x (id TEXT)`)
	if n := dropLocks(t, hub); n != 1 {
		t.Fatalf("dropped %d locks, want 1", n)
	}
	alone := storetest.Open(t, url, store.Exclusive())
	insert := func(tx *store.Tx) error {
		_, err := tx.Exec(`INSERT INTO x VALUES ('1')`)
		return err
	}
	if err := hub.Write(t.Context(), insert); !errors.Is(err, store.ErrInUse) {
		t.Errorf("beside an exclusive user: got %v, want ErrInUse", err)
	}
	if err := alone.Close(); err != nil {
		t.Fatal(err)
	}
	if err := hub.Write(t.Context(), insert); !errors.Is(err, store.ErrFenced) {
		t.Errorf("after an exclusive user: got %v, want ErrFenced", err)
	}
	if n := number(t, hub, `SELECT count(*) FROM x`); n != 0 {
		t.Errorf("%d rows were written", n)
	}
}

// TestTheHubOutlivesItsConnections: a restarted server costs nobody more than the transaction that was under way.
func TestTheHubOutlivesItsConnections(t *testing.T) {
	t.Parallel()
	url := storetest.PostgreSQL(t)
	hub := storetest.Open(t, url, store.WithLockLook(50*time.Millisecond))
	other := storetest.Open(t, url)
	write(t, hub, `CREATE TABLE x (id TEXT)`)
	var pids []int64
	eventually(t, 10*time.Second, "somebody listens for hints", func() bool { // each does so in its background
		if err := hub.Read(t.Context(), func(tx *store.Tx) (err error) {
			// Other tests' connections are theirs: only those that used this schema's tables or wait for its hints count.
			pids, err = store.All(tx, store.Scan1[int64], `SELECT pid FROM pg_stat_activity WHERE pid <> pg_backend_pid()
				AND application_name = 'claude-hub' AND query LIKE '%' || md5(current_schema()) || '%'`)
			return err
		}); err != nil {
			t.Fatal(err)
		}
		return len(pids) > 0
	})
	var writer int64
	if err := hub.Write(t.Context(), func(tx *store.Tx) error {
		return tx.Row(`SELECT pg_backend_pid()`).Scan(&writer)
	}); err != nil {
		t.Fatal(err)
	}
	pids = append(pids, writer)
	for _, pid := range pids {
		if n := number(t, hub, `SELECT count(*) WHERE pg_terminate_backend($1::int)`, pid); n != 1 {
			t.Fatalf("connection %d could not be ended", pid)
		}
	}
	dropLocks(t, hub)
	ch := other.Changed("x")
	wake(t, hub, "x")
	within(t, ch, 10*time.Second, "x, after the listening connections were ended")
}

func TestAnExclusiveUserThatLostItsLockStops(t *testing.T) {
	t.Parallel()
	url := storetest.PostgreSQL(t)
	alone := storetest.Open(t, url, store.Exclusive(), store.WithLockLook(50*time.Millisecond))
	if n := dropLocks(t, alone); n != 1 {
		t.Fatalf("dropped %d locks, want 1", n)
	}
	eventually(t, 10*time.Second, "Write answers ErrFenced", func() bool {
		return errors.Is(alone.Write(t.Context(), func(*store.Tx) error { return nil }), store.ErrFenced)
	})
}

// TestNoAcknowledgedRowIsLostToAKill: a child writes numbers and says each one after its Write returned; it is killed
// at a moment of its own in each cycle.
func TestNoAcknowledgedRowIsLostToAKill(t *testing.T) {
	if url := os.Getenv("STORE_TEST_WRITE"); url != "" {
		from, err := strconv.Atoi(os.Getenv("STORE_TEST_FROM"))
		if err != nil {
			t.Fatal(err)
		}
		db, err := store.Open(t.Context(), url)
		if err != nil {
			t.Fatal(err)
		}
		for n := from; ; n++ {
			if err := db.Write(t.Context(), func(tx *store.Tx) error {
				tx.Wake("n")
				_, err := tx.Exec(`INSERT INTO n VALUES ($1, $2)`, n, make([]byte, 10_000))
				return err
			}); err != nil {
				t.Fatal(err)
			}
			os.Stdout.WriteString(strconv.Itoa(n) + "\n")
		}
	}
	t.Parallel()
	cycles := 30
	if testing.Short() {
		cycles = 3
	}
	storetest.EachURL(t, func(t *testing.T, url string) {
		setup := storetest.Open(t, url)
		write(t, setup, `CREATE TABLE n (v BIGINT PRIMARY KEY, data BYTEA)`)
		if err := setup.Close(); err != nil {
			t.Fatal(err)
		}
		acknowledged, next := map[int]bool{}, 0
		for cycle := range cycles {
			cmd := exec.CommandContext(t.Context(), os.Args[0], "-test.run=^TestNoAcknowledgedRowIsLostToAKill$")
			cmd.Env = append(os.Environ(), "STORE_TEST_WRITE="+url, "STORE_TEST_FROM="+strconv.Itoa(next))
			out, err := cmd.StdoutPipe()
			if err != nil {
				t.Fatal(err)
			}
			if err := cmd.Start(); err != nil {
				t.Fatal(err)
			}
			var killed <-chan time.Time
			lines := make(chan string)
			go func() {
				defer close(lines)
				for s := bufio.NewScanner(out); s.Scan(); {
					lines <- s.Text()
				}
			}()
		reading:
			for {
				select {
				case line, ok := <-lines:
					if !ok {
						break reading
					}
					n, err := strconv.Atoi(strings.TrimSpace(line))
					if err != nil {
						t.Fatalf("the child said %q", line)
					}
					acknowledged[n] = true
					next = max(next, n+1)
					if killed == nil {
						killed = time.After(time.Duration(cycle*7%40) * time.Millisecond)
					}
				case <-killed:
					if err := cmd.Process.Kill(); err != nil {
						t.Fatal(err)
					}
					killed = make(chan time.Time)
				}
			}
			_ = cmd.Wait() // it was killed
			next += 10     // what was committed but not yet said keeps its number
		}
		db := storetest.Open(t, url)
		var stored []int
		if err := db.Read(t.Context(), func(tx *store.Tx) (err error) {
			stored, err = store.All(tx, store.Scan1[int], `SELECT v FROM n WHERE length(data) = 10000`)
			return err
		}); err != nil {
			t.Fatal(err)
		}
		have := map[int]bool{}
		for _, n := range stored {
			have[n] = true
		}
		lost := 0
		for n := range acknowledged {
			if !have[n] {
				lost++
			}
		}
		if lost > 0 || len(acknowledged) < cycles {
			t.Errorf("%d of %d acknowledged rows lost in %d kills", lost, len(acknowledged), cycles)
		}
		t.Logf("%d rows acknowledged, %d lost, %d kills", len(acknowledged), lost, cycles)
	})
}
