package seal_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"github.com/claude-hub/claude-hub/app/access"
	"github.com/claude-hub/claude-hub/app/seal"
	"github.com/claude-hub/claude-hub/app/variable"
	"github.com/claude-hub/claude-hub/envspec"
	"github.com/claude-hub/claude-hub/store"
	"github.com/claude-hub/claude-hub/store/storetest"
)

// The tables of Variables, which every Hub has, rather than those of these tests.
func TestRotatingVariablesGoesOnAfterBeingKilledAtAnyRow(t *testing.T) {
	if url := os.Getenv("SEAL_TEST_VARIABLES"); url != "" {
		left, err := strconv.Atoi(os.Getenv("SEAL_TEST_ROWS"))
		if err != nil {
			t.Fatal(err)
		}
		db, err := store.Open(context.Background(), url)
		if err != nil {
			t.Fatal(err)
		}
		s := seal.New(db, keysOf(t, fixed(2), fixed(1)), seal.Columns())
		s.EachRow(func() {
			if left--; left == 0 {
				_ = syscall.Kill(os.Getpid(), syscall.SIGKILL)
				select {} // until it arrives
			}
		})
		_, err = s.Rotate(context.Background(), nil)
		t.Fatalf("it was not killed: %v", err)
	}
	t.Parallel()
	storetest.EachURL(t, func(t *testing.T, url string) {
		db := storetest.Open(t, url)
		const own, shared = 190, 60
		first := vaultOn(t, db, fixed(1), fixed(2))
		spec := fill(t, db, first, own, shared)
		write(t, db, func(tx *store.Tx) error {
			_, err := tx.Exec(`DELETE FROM encryption_hubs`)
			return err
		})
		both := vaultOn(t, db, fixed(2), fixed(1))
		old := keysOf(t, fixed(1)).Primary()
		left := func() (n int) {
			for _, table := range []string{"variable_values", "shared_variables"} {
				write(t, db, func(tx *store.Tx) error {
					var in int
					err := tx.Row(`SELECT count(*) FROM `+table+` WHERE sealed_key_id = $1`, old).Scan(&in)
					n += in
					return err
				})
			}
			return n
		}
		for _, row := range []int{1, seal.Batch - 1, seal.Batch + 1, 60, seal.Batch + 20} {
			cmd := exec.CommandContext(t.Context(), os.Args[0], "-test.run=^TestRotatingVariablesGoesOnAfterBeingKilledAtAnyRow$")
			cmd.Env = append(os.Environ(), "SEAL_TEST_VARIABLES="+url, "SEAL_TEST_ROWS="+strconv.Itoa(row))
			out, err := cmd.CombinedOutput()
			var exit *exec.ExitError
			if !errors.As(err, &exit) || !exit.Sys().(syscall.WaitStatus).Signaled() {
				t.Fatalf("row %d: the child was not killed: %v\n%s", row, err, out)
			}
			opens(t, db, both, spec)
		}
		if n := left(); n == own+shared || n == 0 {
			t.Fatalf("%d of %d are under the old key after all kills: they tried nothing", n, own+shared)
		}
		done, err := seal.New(db, keysOf(t, fixed(2), fixed(1)), seal.Columns()).Rotate(t.Context(), nil)
		if err != nil || len(done.Retired) != 1 || left() != 0 {
			t.Fatalf("the last run: %+v, %v, %d left", done, err, left())
		}
		opens(t, db, vaultOn(t, db, fixed(2)), spec)
	})
}

func vaultOn(t *testing.T, db *store.DB, keys ...string) *variable.Vault {
	t.Helper()
	s := seal.New(db, keysOf(t, keys...), seal.Columns())
	if err := s.Start(t.Context(), "a Hub"); err != nil {
		t.Fatal(err)
	}
	gate, err := access.Open(t.Context(), db, access.Options{DevLogin: true, DevRepos: []access.Repo{{ID: 1, Name: "acme/rocket", CloneURL: "file:///rocket"}}})
	if err != nil {
		t.Fatal(err)
	}
	return variable.New(db, s, gate)
}

// fill keeps Sensitive Variables and Shared ones. The value of each is its name, twice.
func fill(t *testing.T, db *store.DB, v *variable.Vault, own, shared int) (spec envspec.Spec) {
	t.Helper()
	gate, err := access.Open(t.Context(), db, access.Options{DevLogin: true})
	if err != nil {
		t.Fatal(err)
	}
	ana, _, err := gate.SignInDev(t.Context(), "ana")
	if err != nil {
		t.Fatal(err)
	}
	spec, given := envspec.Default(), map[string][]byte{}
	for i := range own {
		name := fmt.Sprintf("OWN_%03d", i)
		spec.Variables = append(spec.Variables, envspec.Variable{Name: name, Sensitive: true})
		given[name] = []byte(name + name)
	}
	for i := range shared {
		name := fmt.Sprintf("SHARED_%03d", i)
		if _, err := v.CreateShared(t.Context(), ana, variable.NewShared{Name: name, Sensitive: true, Value: []byte(name + name)}); err != nil {
			t.Fatal(err)
		}
		spec.Variables = append(spec.Variables, envspec.Variable{Name: name, Link: name})
	}
	write(t, db, func(tx *store.Tx) error {
		if _, err := tx.Exec(`INSERT INTO environments (id, repo_id, created_at, created_by) VALUES ('e', 1, 1, 'test')`); err != nil {
			return err
		}
		spec, err = v.Keep(tx, "e", nil, spec, given, ana.ID())
		return err
	})
	return spec
}

// opens fails unless every Variable of spec has the value it was given.
func opens(t *testing.T, db *store.DB, v *variable.Vault, spec envspec.Spec) {
	t.Helper()
	if err := db.Read(t.Context(), func(tx *store.Tx) error {
		values, err := v.Resolve(tx, "e", spec, "No")
		if err != nil {
			return err
		}
		if len(values) != len(spec.Variables) {
			return fmt.Errorf("%d values of %d", len(values), len(spec.Variables))
		}
		for _, got := range values {
			if string(got.GetValue()) != got.GetName()+got.GetName() {
				return fmt.Errorf("%s has another value", got.GetName())
			}
		}
		return nil
	}); err != nil {
		t.Fatal(err)
	}
}

// A Hub with 100,000 values must start in a moment: it looks at their keys, and opens none of them.
func TestStartOpensNoValue(t *testing.T) {
	t.Parallel()
	storetest.Each(t, func(t *testing.T, db *store.DB) {
		spec := fill(t, db, vaultOn(t, db, fixed(1)), 3, 2)
		write(t, db, func(tx *store.Tx) error {
			_, err := tx.Exec(`UPDATE variable_values SET sealed = $1`, []byte("damaged"))
			return err
		})
		v := vaultOn(t, db, fixed(1))
		if err := db.Read(t.Context(), func(tx *store.Tx) error {
			_, err := v.Resolve(tx, "e", spec, "No")
			return err
		}); err == nil || !strings.Contains(err.Error(), "can't decrypt the value of OWN_000, OWN_001 and OWN_002") {
			t.Errorf("damaged values resolve: %v", err)
		}
	})
}
