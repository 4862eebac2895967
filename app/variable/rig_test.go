package variable_test

import (
	"bytes"
	"encoding/base64"
	"strings"
	"testing"

	"github.com/claude-hub/claude-hub/app/access"
	"github.com/claude-hub/claude-hub/app/fault"
	"github.com/claude-hub/claude-hub/app/seal"
	"github.com/claude-hub/claude-hub/app/variable"
	"github.com/claude-hub/claude-hub/envspec"
	"github.com/claude-hub/claude-hub/runner/wire"
	"github.com/claude-hub/claude-hub/store"
	"github.com/claude-hub/claude-hub/store/storetest"
)

// rig is a Vault on a database with two Environments, "here" of acme/rocket and "there" of acme/other.
type rig struct {
	*variable.Vault
	t    *testing.T
	db   *store.DB
	seal *seal.Service
	gate *access.Gate
	ana  access.Person
}

func keys(t *testing.T, ns ...byte) seal.Keys {
	t.Helper()
	var given []seal.Given
	for _, n := range ns {
		b := make([]byte, 32)
		for i := range b {
			b[i] = n ^ byte(i*7)
		}
		given = append(given, seal.Given{Text: base64.StdEncoding.EncodeToString(b)})
	}
	k, err := seal.ParseKeys(given...)
	if err != nil {
		t.Fatal(err)
	}
	return k
}

func newRig(t *testing.T, db *store.DB, k seal.Keys) *rig {
	t.Helper()
	s := seal.New(db, k, seal.Columns())
	if err := s.Start(t.Context(), "test"); err != nil {
		t.Fatal(err)
	}
	gate, err := access.Open(t.Context(), db, access.Options{DevLogin: true, DevRepos: []access.Repo{
		{ID: 1, Name: "acme/rocket", CloneURL: "file:///rocket"}, {ID: 2, Name: "acme/other", CloneURL: "file:///other"},
	}})
	if err != nil {
		t.Fatal(err)
	}
	r := &rig{Vault: variable.New(db, s, gate), t: t, db: db, seal: s, gate: gate}
	if r.ana, _, err = gate.SignInDev(t.Context(), "ana"); err != nil {
		t.Fatal(err)
	}
	r.write(func(tx *store.Tx) error {
		for repo, id := range map[int]string{1: "here", 2: "there"} {
			if _, err := tx.Exec(`INSERT INTO environments (id, repo_id, created_at, created_by) VALUES ($1, $2, 1, 'test') ON CONFLICT (id) DO NOTHING`, id, repo); err != nil {
				return err
			}
		}
		return nil
	})
	return r
}

func each(t *testing.T, f func(t *testing.T, r *rig)) {
	t.Parallel()
	storetest.Each(t, func(t *testing.T, db *store.DB) { f(t, newRig(t, db, keys(t, 1))) })
}

func one(t *testing.T) *rig {
	t.Helper()
	t.Parallel()
	return newRig(t, storetest.New(t), keys(t, 1))
}

func (r *rig) write(f func(*store.Tx) error) {
	r.t.Helper()
	if err := r.db.Write(r.t.Context(), f); err != nil {
		r.t.Fatal(err)
	}
}

func of(vars ...envspec.Variable) envspec.Spec {
	s := envspec.Default()
	s.Variables = vars
	return s
}

func plain(name, value string) envspec.Variable { return envspec.Variable{Name: name, Value: value} }
func sensitive(name string) envspec.Variable    { return envspec.Variable{Name: name, Sensitive: true} }
func link(name, to string) envspec.Variable     { return envspec.Variable{Name: name, Link: to} }

// tryKeep is Keep in a transaction of its own.
func (r *rig) tryKeep(environment string, before []envspec.Variable, spec envspec.Spec, given map[string][]byte) (out envspec.Spec, err error) {
	err = r.db.Write(r.t.Context(), func(tx *store.Tx) (err error) {
		out, err = r.Keep(tx, environment, before, spec, given, r.ana.ID())
		return err
	})
	return out, err
}

func (r *rig) keep(before []envspec.Variable, spec envspec.Spec, given map[string][]byte) envspec.Spec {
	r.t.Helper()
	out, err := r.tryKeep("here", before, spec, given)
	if err != nil {
		r.t.Fatal(err)
	}
	return out
}

// refused wants a fault about a field.
func refused(t *testing.T, err error, field, says string) {
	t.Helper()
	if !fault.Is(err, fault.Invalid) || !strings.Contains(fault.Of(err).Fields[field], says) {
		t.Errorf("want %s: …%s…, got %v (%v)", field, says, err, fault.Of(err).Fields)
	}
}

// resolve is what a Runner would get.
func (r *rig) resolve(spec envspec.Spec) (values []*wire.Value, err error) {
	r.t.Helper()
	err = r.db.Read(r.t.Context(), func(tx *store.Tx) (err error) {
		values, err = r.Resolve(tx, "here", spec, "This can't go on")
		return err
	})
	return values, err
}

func (r *rig) wantValue(spec envspec.Spec, name, value string) *wire.Value {
	r.t.Helper()
	all, err := r.resolve(spec)
	if err != nil {
		r.t.Fatal(err)
	}
	for _, v := range all {
		if v.GetName() == name {
			if string(v.GetValue()) != value {
				r.t.Fatalf("%s has %d bytes, not the %d it was given", name, len(v.GetValue()), len(value))
			}
			return v
		}
	}
	r.t.Fatalf("%s has no value", name)
	return nil
}

// blob is what stands in the database for a Sensitive value.
func (r *rig) blob(id string) (b []byte) {
	r.t.Helper()
	r.write(func(tx *store.Tx) error {
		return tx.Row(`SELECT sealed FROM variable_values WHERE id = $1`, id).Scan(&b)
	})
	return bytes.Clone(b)
}

func (r *rig) count(q string, a ...any) (n int) {
	r.t.Helper()
	r.write(func(tx *store.Tx) error { return tx.Row(q, a...).Scan(&n) })
	return n
}

// lose has the key that everything is sealed under be lost: what a Hub with another key is after secrets-reset.
func (r *rig) lose(key byte) *rig {
	r.t.Helper()
	k := keys(r.t, key)
	if _, err := seal.New(r.db, k, seal.Columns()).Reset(r.t.Context(), false, func(*store.Tx, seal.Cleared) error { return nil }); err != nil {
		r.t.Fatal(err)
	}
	return newRig(r.t, r.db, k)
}

func (r *rig) missing(spec envspec.Spec) (names []string) {
	r.t.Helper()
	if err := r.db.Read(r.t.Context(), func(tx *store.Tx) (err error) {
		names, err = r.Missing(tx, "here", spec)
		return err
	}); err != nil {
		r.t.Fatal(err)
	}
	return names
}

func (r *rig) states(spec envspec.Spec) (s []variable.State) {
	r.t.Helper()
	if err := r.db.Read(r.t.Context(), func(tx *store.Tx) (err error) {
		s, err = r.States(tx, "here", spec)
		return err
	}); err != nil {
		r.t.Fatal(err)
	}
	return s
}
