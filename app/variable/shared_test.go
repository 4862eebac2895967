package variable_test

import (
	"bytes"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/claude-hub/claude-hub/app/access"
	"github.com/claude-hub/claude-hub/app/fault"
	"github.com/claude-hub/claude-hub/app/seal"
	"github.com/claude-hub/claude-hub/app/variable"
	"github.com/claude-hub/claude-hub/envspec"
	"github.com/claude-hub/claude-hub/store"
)

func (r *rig) shared(name, value string, secret bool) variable.Shared {
	r.t.Helper()
	s, err := r.CreateShared(r.t.Context(), r.ana, variable.NewShared{Name: name, Sensitive: secret, Value: []byte(value)})
	if err != nil {
		r.t.Fatal(err)
	}
	return s
}

func (r *rig) sharedBlob(name string) (b []byte) {
	r.t.Helper()
	r.write(func(tx *store.Tx) error {
		return tx.Row(`SELECT sealed FROM shared_variables WHERE name = $1`, name).Scan(&b)
	})
	return bytes.Clone(b)
}

func TestALinkHasTheSharedValueUnderItsOwnName(t *testing.T) {
	each(t, func(t *testing.T, r *rig) {
		r.shared("NPM_TOKEN", token, true)
		r.shared("REGION", "eu-1", false)
		ticked := link("TOKEN", "NPM_TOKEN")
		ticked.Build, ticked.ValueID = true, "whatever"
		spec := r.keep(nil, of(ticked, link("REGION", "REGION")), nil)
		if spec.Variables[0].ValueID != "" {
			t.Errorf("a Link is stored with a value's id: %+v", spec.Variables[0])
		}
		first := r.wantValue(spec, "TOKEN", token)
		open := r.wantValue(spec, "REGION", "eu-1")
		if !first.GetSensitive() || !first.GetBuild() || open.GetSensitive() || open.GetBuild() {
			t.Errorf("sent: %v %v, %v %v", first.GetSensitive(), first.GetBuild(), open.GetSensitive(), open.GetBuild())
		}
		if _, err := r.SetShared(t.Context(), r.ana, "NPM_TOKEN", 1, true, []byte("another-token")); err != nil {
			t.Fatal(err)
		}
		second := r.wantValue(spec, "TOKEN", "another-token")
		if second.GetId() == first.GetId() {
			t.Error("a new shared value has the id of the old one, so no build key moves")
		}
		// The same Plain text again is no new value.
		if s, err := r.SetShared(t.Context(), r.ana, "REGION", 1, false, []byte("eu-1")); err == nil && s.Revision != 1 {
			t.Errorf("revision %d, %v", s.Revision, err)
		}
		if again := r.wantValue(spec, "REGION", "eu-1"); again.GetId() != open.GetId() {
			t.Error("the same text has another id")
		}
		_, err := r.tryKeep("here", nil, of(link("A", "NPM_TOKE")), nil)
		refused(t, err, "variables.A", "links the Shared variable NPM_TOKE, which doesn't exist. Did you mean NPM_TOKEN?")
		if said := fault.Of(err).Fields["variables.A"]; !strings.HasSuffix(said, "NPM_TOKEN?") {
			t.Errorf("the question ends as a statement: %s", said)
		}
		_, err = r.tryKeep("here", nil, of(link("A", "REGION"), plain("A", "x")), nil)
		refused(t, err, "variables.A", "there twice")
	})
}

func TestASharedVariableIsWriteOnlyWhenSensitive(t *testing.T) {
	each(t, func(t *testing.T, r *rig) {
		r.shared("SECRET", token, true)
		r.shared("OPEN", "readable", false)
		blob := r.sharedBlob("SECRET")
		s, err := r.NoteShared(t.Context(), r.ana, "SECRET", 1, "from the vault")
		if err != nil || s.Note != "from the vault" || s.Revision != 2 {
			t.Fatalf("%+v, %v", s, err)
		}
		if s, err = r.RenameShared(t.Context(), r.ana, "SECRET", 2, "RENAMED"); err != nil || s.Name != "RENAMED" {
			t.Fatalf("%+v, %v", s, err)
		}
		if !bytes.Equal(r.sharedBlob("RENAMED"), blob) {
			t.Error("the value was written anew")
		}
		all, users, err := r.Shared(t.Context(), r.ana)
		if err != nil || len(all) != 2 || len(users) != 2 {
			t.Fatalf("%v, %v", all, err)
		}
		if all[0].Name != "OPEN" || all[0].Value != "readable" || all[0].Digest != "" || all[1].Value != "" || len(all[1].Digest) != 8 || all[1].SetBy != "ana" {
			t.Errorf("%+v", all)
		}
		if _, err := r.SetShared(t.Context(), r.ana, "RENAMED", 3, false, []byte("plain now")); err != nil {
			t.Fatal(err)
		}
		s, _, err = r.SharedNamed(t.Context(), r.ana, "RENAMED")
		if err != nil || s.Value != "plain now" || s.Sensitive {
			t.Errorf("%+v, %v", s, err)
		}
		if n := r.count(`SELECT count(*) FROM shared_variables WHERE sealed IS NOT NULL`); n != 0 {
			t.Error("the sealed value stayed")
		}
	})
}

func TestASharedVariableThatIsLinkedStays(t *testing.T) {
	each(t, func(t *testing.T, r *rig) {
		r.shared("S", token, true)
		hold := func(environment, holder string, spec envspec.Spec) {
			t.Helper()
			r.write(func(tx *store.Tx) error { return r.Hold(tx, environment, holder, spec) })
		}
		ticked := link("B", "S")
		ticked.Build = true
		hold("here", "draft 1", of(link("A", "S"), ticked, link("C", "S"), plain("P", "x")))
		hold("there", "version 1", of(link("A", "S")))
		woken := r.db.Changed(variable.TopicOf(1))
		if _, err := r.NoteShared(t.Context(), r.ana, "S", 1, "note"); err != nil {
			t.Fatal(err)
		}
		select {
		case <-woken:
		case <-time.After(time.Minute):
			t.Error("who looks at an Environment that links it is not woken")
		}
		says := "that of acme/other and acme/rocket."
		if err := r.DeleteShared(t.Context(), r.ana, "S", 2); !fault.Is(err, fault.Refused) || !strings.Contains(err.Error(), says) {
			t.Errorf("delete: %v", err)
		}
		if _, err := r.RenameShared(t.Context(), r.ana, "S", 2, "T"); !fault.Is(err, fault.Refused) || !strings.Contains(err.Error(), says) {
			t.Errorf("rename: %v", err)
		}
		_, users, err := r.SharedNamed(t.Context(), r.ana, "S")
		if err != nil || users.Sentence() != "acme/other and acme/rocket" || users.HiddenAtBuild != 0 ||
			!strings.Contains(users.Consequence(), "available at build in the Environment of acme/rocket: there each Runner makes a new build") {
			t.Errorf("%+v, %v", users, err)
		}
		// Somebody who may use neither Repo is told how many they are, and no name.
		gate, err := access.Open(t.Context(), r.db, access.Options{})
		if err != nil {
			t.Fatal(err)
		}
		blind := variable.New(r.db, r.seal, gate)
		_, users, err = blind.SharedNamed(t.Context(), r.ana, "S")
		if err != nil || len(users.Repos)+len(users.AtBuild) != 0 || users.Hidden != 2 || users.HiddenAtBuild != 1 {
			t.Errorf("%+v, %v", users, err)
		}
		if err := blind.DeleteShared(t.Context(), r.ana, "S", 2); !fault.Is(err, fault.Refused) || !strings.Contains(err.Error(), "that of 2 Repos that you have no access to.") {
			t.Errorf("delete: %v", err)
		}
		hold("here", "draft 1", of(plain("P", "x")))
		_, all, err := r.Shared(t.Context(), r.ana)
		if err != nil {
			t.Fatal(err)
		}
		for _, u := range all {
			if u.Sentence() != "acme/other" || u.Consequence() != "Sessions get a new value at their next start or wake." {
				t.Errorf("%+v", u)
			}
		}
		r.write(func(tx *store.Tx) error { return r.Release(tx, "version 1") })
		if err := r.DeleteShared(t.Context(), r.ana, "S", 2); err != nil {
			t.Fatal(err)
		}
		if _, _, err := r.SharedNamed(t.Context(), r.ana, "S"); !fault.Is(err, fault.NotFound) {
			t.Errorf("got %v", err)
		}
		err = r.db.Write(t.Context(), func(tx *store.Tx) error { return r.Hold(tx, "here", "draft 1", of(link("A", "S"))) })
		refused(t, err, "variables.A", "doesn't exist any more")
	})
}

func TestChangesOfASharedVariableAreCheckedAndAudited(t *testing.T) {
	each(t, func(t *testing.T, r *rig) {
		ctx := t.Context()
		for _, c := range []struct {
			n     variable.NewShared
			field string
		}{
			{variable.NewShared{Name: "1A", Value: []byte("x")}, "name"},
			{variable.NewShared{Name: "A", Value: []byte("\x00")}, "value"},
			{variable.NewShared{Name: "A", Sensitive: true, Value: []byte("short")}, "value"},
			{variable.NewShared{Name: "A", Value: []byte("x"), Note: strings.Repeat("x", 1025)}, "note"},
		} {
			_, err := r.CreateShared(ctx, r.ana, c.n)
			refused(t, err, c.field, "")
			if fault.Of(err).Fields[c.field] == "" {
				t.Errorf("%s: %v", c.field, err)
			}
		}
		r.shared("A", "x", false)
		r.shared("B", "y", false)
		_, err := r.CreateShared(ctx, r.ana, variable.NewShared{Name: "A", Value: []byte("x")})
		refused(t, err, "name", "already")
		_, err = r.RenameShared(ctx, r.ana, "A", 1, "B")
		refused(t, err, "name", "already")
		if _, err := r.SetShared(ctx, r.ana, "A", 1, false, []byte("z")); err != nil {
			t.Fatal(err)
		}
		if _, err := r.SetShared(ctx, r.ana, "A", 1, false, []byte("mine")); !fault.Is(err, fault.Conflict) || !strings.Contains(err.Error(), "at revision 2, you had read 1") {
			t.Errorf("second writer: %v", err)
		}
		if _, err := r.NoteShared(ctx, r.ana, "NONE", 1, ""); !fault.Is(err, fault.NotFound) {
			t.Errorf("got %v", err)
		}
		if err := r.DeleteShared(ctx, r.ana, "A", 2); err != nil {
			t.Fatal(err)
		}
		var actions []string
		r.write(func(tx *store.Tx) (err error) {
			actions, err = store.All(tx, store.Scan1[string], `SELECT action FROM audit_log WHERE action LIKE 'shared-variable.%' ORDER BY at, id`)
			return err
		})
		if !slices.Equal(actions, []string{"shared-variable.create", "shared-variable.create", "shared-variable.value", "shared-variable.delete"}) {
			t.Errorf("audit: %q", actions)
		}
		var nobody access.Person
		if _, _, err := r.Shared(ctx, nobody); !fault.Is(err, fault.Unauthorized) {
			t.Errorf("nobody lists: %v", err)
		}
		if _, err := r.CreateShared(ctx, nobody, variable.NewShared{Name: "C", Value: []byte("x")}); !fault.Is(err, fault.Unauthorized) {
			t.Errorf("nobody creates: %v", err)
		}
	})
}

func TestASharedValueInPlaceOfALostOneKeepsItsID(t *testing.T) {
	each(t, func(t *testing.T, r *rig) {
		r.shared("S", token, true)
		ticked := link("L", "S")
		ticked.Build = true
		spec := r.keep(nil, of(ticked), nil)
		made := r.db.Now()
		id := r.wantValue(spec, "L", token).GetId()
		r = r.lose(2)
		if s, _, err := r.SharedNamed(t.Context(), r.ana, "S"); err != nil || s.Status != variable.Lost || s.Digest != "" || !s.Sensitive {
			t.Fatalf("%+v, %v", s, err)
		}
		moved := func() (m []variable.Moved) {
			t.Helper()
			r.write(func(tx *store.Tx) (err error) { m, err = r.MovedSince(tx, spec, made); return err })
			return m
		}
		if _, err := r.SetShared(t.Context(), r.ana, "S", 1, true, []byte("entered-anew")); err != nil {
			t.Fatal(err)
		}
		if got := r.wantValue(spec, "L", "entered-anew").GetId(); got != id {
			t.Errorf("the id moved from %s to %s", id, got)
		}
		if m := moved(); len(m) != 0 {
			t.Errorf("a build made before is said to be old: %+v", m)
		}
		r.db.SetClock(func() time.Time { return made.Add(5 * time.Second) })
		if _, err := r.SetShared(t.Context(), r.ana, "S", 2, true, []byte("really-a-new-one")); err != nil {
			t.Fatal(err)
		}
		if got := r.wantValue(spec, "L", "really-a-new-one").GetId(); got == id {
			t.Error("a new value has the old id")
		}
		if m := moved(); len(m) != 1 || m[0].Name != "L" || m[0].Shared != "S" || m[0].By != "ana" {
			t.Errorf("got %+v", m)
		}
	})
}

// Rotate changes no value and no id; it walks the tables of Variables too.
func TestRotatingTheKeyChangesNoValue(t *testing.T) {
	each(t, func(t *testing.T, r *rig) {
		r.shared("S", token, true)
		spec := r.keep(nil, of(sensitive("A"), link("L", "S")), map[string][]byte{"A": []byte(token + "A")})
		id := r.wantValue(spec, "A", token+"A").GetId()
		both := keys(t, 2, 1)
		r.write(func(tx *store.Tx) error { _, err := tx.Exec(`DELETE FROM encryption_hubs`); return err })
		done, err := seal.New(r.db, both, seal.Columns()).Rotate(t.Context(), nil)
		if err != nil || len(done.Retired) != 1 || len(done.Values) != 2 {
			t.Fatalf("%+v, %v", done, err)
		}
		after := newRig(t, r.db, keys(t, 2))
		if got := after.wantValue(spec, "A", token+"A").GetId(); got != id {
			t.Error("the id moved")
		}
		after.wantValue(spec, "L", token)
	})
}

func TestOfSeveralWhoDoTheSameAtOnceOneWinsAndTheOthersAreTold(t *testing.T) {
	each(t, func(t *testing.T, r *rig) {
		const n = 4
		errs, kept := make([]error, n), make([]error, n)
		var all sync.WaitGroup
		for i := range n {
			all.Go(func() {
				_, errs[i] = r.CreateShared(t.Context(), r.ana, variable.NewShared{Name: "S", Sensitive: true, Value: []byte(token)})
			})
			all.Go(func() { _, kept[i] = r.tryKeep("here", nil, of(plain("A", "the same text")), nil) })
		}
		all.Wait()
		won := 0
		for i := range n {
			switch {
			case errs[i] == nil:
				won++
			case !fault.Is(errs[i], fault.Invalid):
				t.Errorf("create: %v", errs[i])
			}
			if kept[i] != nil {
				t.Errorf("keep: %v", kept[i])
			}
		}
		if rows := r.count(`SELECT count(*) FROM variable_values`); won != 1 || rows != 1 {
			t.Errorf("%d made the Shared variable, %d rows have the text", won, rows)
		}
		// Of two who set a value at the same revision, one is told that the other did.
		for i := range n {
			all.Go(func() { _, errs[i] = r.SetShared(t.Context(), r.ana, "S", 1, true, fmt.Appendf(nil, "value-of-%d", i)) })
		}
		all.Wait()
		won = 0
		for _, err := range errs {
			if err == nil {
				won++
			} else if !fault.Is(err, fault.Conflict) {
				t.Errorf("set: %v", err)
			}
		}
		if won != 1 {
			t.Errorf("%d set the value", won)
		}
	})
}
