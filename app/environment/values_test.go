package environment_test

import (
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/claude-hub/claude-hub/app/access"
	"github.com/claude-hub/claude-hub/app/apptest"
	"github.com/claude-hub/claude-hub/app/environment"
	"github.com/claude-hub/claude-hub/app/fault"
	"github.com/claude-hub/claude-hub/app/variable"
	"github.com/claude-hub/claude-hub/envspec"
	"github.com/claude-hub/claude-hub/runner/wire"
	"github.com/claude-hub/claude-hub/store"
	"github.com/claude-hub/claude-hub/store/storetest"
)

const (
	npm    = "npm-token-0123456789"
	sentry = "sentry-token-0123456789"
	shared = "shared-token-0123456789"
)

// withVariables is a Spec with one Variable of each sort.
func withVariables() envspec.Spec {
	s := spec()
	s.Variables = []envspec.Variable{
		{Name: "NPM", Sensitive: true, Build: true, Note: "for the registry"},
		{Name: "REGION", Value: "eu-1"},
		{Name: "SENTRY", Sensitive: true},
		{Name: "WIDE", Link: "HUB_WIDE", Build: true},
	}
	return s
}

func given() map[string][]byte {
	return map[string][]byte{"NPM": []byte(npm), "SENTRY": []byte(sentry)}
}

func makeShared(t *testing.T, h *apptest.Hub, g access.Grant) {
	t.Helper()
	if _, err := h.Vault.CreateShared(t.Context(), g.Who(), variable.NewShared{Name: "HUB_WIDE", Sensitive: true, Value: []byte(shared)}); err != nil {
		t.Fatal(err)
	}
}

// find is the Variable called name.
func find(t *testing.T, s envspec.Spec, name string) *envspec.Variable {
	t.Helper()
	for i := range s.Variables {
		if s.Variables[i].Name == name {
			return &s.Variables[i]
		}
	}
	t.Fatalf("there is no Variable %s", name)
	return nil
}

func env(t *testing.T, h *apptest.Hub, g access.Grant) environment.Environment {
	t.Helper()
	e, err := h.Environments.Get(t.Context(), g)
	if err != nil {
		t.Fatal(err)
	}
	return e
}

func save(t *testing.T, h *apptest.Hub, g access.Grant, s envspec.Spec, given map[string][]byte) environment.Draft {
	t.Helper()
	base := int64(0)
	if d := env(t, h, g).Draft; d != nil {
		base = d.Revision
	}
	d, err := h.Environments.Save(t.Context(), g, base, s, given)
	if err != nil {
		t.Fatal(err)
	}
	return d
}

func TestNothingThatIsStoredOfASpecOrSentAsARecipeHasAValue(t *testing.T) {
	t.Parallel()
	storetest.Each(t, func(t *testing.T, db *store.DB) {
		h := apptest.New(t, db, apptest.Options{})
		ana, r := h.Grant("ana"), h.Runner("r1")
		makeShared(t, h, ana)
		draft := save(t, h, ana, withVariables(), given())
		if find(t, draft.Spec, "REGION").Value != "eu-1" || find(t, draft.Spec, "NPM").Value != "" || find(t, draft.Spec, "NPM").ValueID == "" {
			t.Errorf("draft: %+v", draft.Spec.Variables)
		}
		test, err := h.Environments.Test(t.Context(), ana, draft.Revision, "r1")
		if err != nil {
			t.Fatal(err)
		}
		item := r.Item()
		var payload wire.TestBuild
		r.Fetch(item, &payload)
		values, refused := r.Values(item)
		if refused != "" || len(values) != 4 {
			t.Fatalf("%d values, refused: %q", len(values), refused)
		}
		for name, want := range map[string]string{"NPM": npm, "REGION": "eu-1", "SENTRY": sentry, "WIDE": shared} {
			v := values[name]
			if string(v.GetValue()) != want || v.GetId() == "" || v.GetSensitive() != (name != "REGION") || v.GetBuild() != (name != "SENTRY") {
				t.Errorf("%s: sensitive %v, build %v, id %q", name, v.GetSensitive(), v.GetBuild(), v.GetId())
			}
		}
		r.Pass(item)
		v, err := h.Environments.Apply(t.Context(), ana, draft.Revision, "")
		if err != nil {
			t.Fatal(err)
		}
		if find(t, v.Spec, "REGION").Value != "eu-1" {
			t.Error("the version that Apply answers lacks a Plain value")
		}
		stored := []string{string(payload.Recipe.Spec)}
		if err := db.Read(t.Context(), func(tx *store.Tx) error {
			for _, q := range []string{`SELECT spec FROM drafts`, `SELECT spec FROM test_builds`, `SELECT spec FROM versions`, `SELECT detail FROM audit_log`} {
				texts, err := store.All(tx, store.Scan1[string], q)
				if err != nil || len(texts) == 0 {
					return errors.Join(err, errors.New("nothing in "+q))
				}
				stored = append(stored, texts...)
			}
			return nil
		}); err != nil {
			t.Fatal(err)
		}
		for _, text := range stored {
			for _, value := range []string{npm, sentry, shared, "eu-1"} {
				if strings.Contains(text, value) {
					t.Errorf("has a value: %s", text)
				}
			}
		}
		// What people are shown has the Plain values.
		one, err := h.Environments.Version(t.Context(), ana, 1)
		if err != nil || find(t, one.Spec, "REGION").Value != "eu-1" {
			t.Errorf("version: %+v, %v", one.Spec.Variables, err)
		}
		all, err := h.Environments.Versions(t.Context(), ana, 10)
		if err != nil || len(all) != 1 || find(t, all[0].Spec, "REGION").Value != "eu-1" {
			t.Errorf("versions: %v", err)
		}
		test, err = h.Environments.TestBuild(t.Context(), ana, test.ID)
		if err != nil || find(t, test.Spec, "REGION").Value != "eu-1" {
			t.Errorf("Test build: %v", err)
		}
		tests, err := h.Environments.TestBuilds(t.Context(), ana, 10)
		if err != nil || len(tests) != 1 || find(t, tests[0].Spec, "REGION").Value != "eu-1" {
			t.Errorf("Test builds: %v", err)
		}
		if _, err := h.Environments.Apply(t.Context(), ana, draft.Revision, ""); !fault.Is(err, fault.Refused) || !strings.Contains(err.Error(), "nothing to apply") {
			t.Errorf("applied twice: %v", err)
		}
	})
}

func TestWhichChangesOfVariablesNeedATestBuild(t *testing.T) {
	t.Parallel()
	h := apptest.New(t, storetest.New(t), apptest.Options{})
	ana, r := h.Grant("ana"), h.Runner("r1")
	makeShared(t, h, ana)
	applied := h.AppliedWith(ana, r, withVariables(), given())
	for _, c := range []struct {
		what   string
		change func(*envspec.Spec)
		given  map[string][]byte
		tested bool
	}{
		{what: "a Plain value", change: func(s *envspec.Spec) { find(t, *s, "REGION").Value = "eu-2" }, tested: true},
		{what: "a Plain value and back", change: func(s *envspec.Spec) {}, tested: false},
		{what: "a value not at build", given: map[string][]byte{"SENTRY": []byte(sentry + "2")}, tested: false},
		{what: "a value at build", given: map[string][]byte{"NPM": []byte(npm + "2")}, tested: true},
		{what: "a note", change: func(s *envspec.Spec) { find(t, *s, "NPM").Note = "another" }, tested: false},
		{what: "the tick", change: func(s *envspec.Spec) { find(t, *s, "SENTRY").Build = true }, tested: true},
		{what: "a Link not at build", change: func(s *envspec.Spec) {
			s.Variables = append(s.Variables, envspec.Variable{Name: "Z", Link: "HUB_WIDE"})
		}, tested: false},
		{what: "one less that isn't at build", change: func(s *envspec.Spec) {
			s.Variables = slices.DeleteFunc(s.Variables, func(v envspec.Variable) bool { return v.Name == "SENTRY" })
		}, tested: false},
	} {
		s := withVariables()
		if c.change != nil {
			c.change(&s)
		}
		// Each from the applied version on.
		if _, err := h.Environments.Discard(t.Context(), ana, env(t, h, ana).Draft.Revision); err != nil {
			t.Fatal(err)
		}
		d := save(t, h, ana, s, c.given)
		if needs := d.TestKey != applied.TestKey; needs != c.tested {
			t.Errorf("%s needs a Test build: %v", c.what, needs)
		}
		verdict, err := h.Environments.Check(t.Context(), ana)
		if err != nil || c.tested && (verdict.OK || !strings.Contains(verdict.Reason, "needs a passing Test build")) {
			t.Errorf("%s: %+v, %v", c.what, verdict, err)
		}
	}
}

func TestATestBuildIsRefusedWithItsReason(t *testing.T) {
	t.Parallel()
	h := apptest.New(t, storetest.New(t), apptest.Options{})
	ana := h.Grant("ana")
	h.Runner("new")
	h.OldRunner("old", 1)
	makeShared(t, h, ana)
	folders := []envspec.Folder{{Pattern: "**/vendor"}}
	none := []envspec.Folder{}
	for _, c := range []struct {
		change func(*envspec.Spec)
		given  map[string][]byte
		runner string
		says   string // "": it isn't
	}{
		{func(s *envspec.Spec) {}, nil, "new", "This draft can't be tested: the Variables NPM and SENTRY have no value. Enter one for each first."},
		{func(s *envspec.Spec) {}, map[string][]byte{"NPM": []byte(npm)}, "new", "This draft can't be tested: the Variable SENTRY has no value. Enter one for it first."},
		{func(s *envspec.Spec) { s.Docker = true }, given(), "old", "old has no Docker in its Sandboxes"},
		{func(s *envspec.Spec) { s.Docker = true }, given(), "new", ""},
		{func(s *envspec.Spec) { s.Folders = &folders }, given(), "new", ""},
		{func(s *envspec.Spec) { s.Folders = &none }, given(), "old", "old runs claude-hub test, which is too old for an Environment with Variables: install claude-hub of this Hub's version on its host"},
		{func(s *envspec.Spec) { s.Folders = &none }, given(), "new", ""},
		{func(s *envspec.Spec) { s.Variables = nil }, nil, "old", ""},
	} {
		if d := env(t, h, ana).Draft; d != nil {
			if _, err := h.Environments.Discard(t.Context(), ana, d.Revision); err != nil {
				t.Fatal(err)
			}
		}
		s := withVariables()
		c.change(&s)
		d := save(t, h, ana, s, c.given)
		_, err := h.Environments.Test(t.Context(), ana, d.Revision, c.runner)
		if c.says == "" && err != nil || c.says != "" && (err == nil || !strings.Contains(err.Error(), c.says)) {
			t.Errorf("want %q, got %v", c.says, err)
		}
		if strings.Contains(c.says, "no value") {
			_, err := h.Environments.Apply(t.Context(), ana, d.Revision, "")
			wantFault(t, err, fault.Refused, strings.Replace(c.says, "tested", "applied", 1))
		}
	}
}

// ADR 0009, "A lost key".
func TestAfterALostKeyValuesAreEnteredWithoutATestBuild(t *testing.T) {
	t.Parallel()
	storetest.Each(t, func(t *testing.T, db *store.DB) {
		h := apptest.New(t, db, apptest.Options{})
		ana, r := h.Grant("ana"), h.Runner("r1")
		makeShared(t, h, ana)
		applied := h.AppliedWith(ana, r, withVariables(), given())
		// A draft that renamed one and gave another a new value.
		s := env(t, h, ana).Draft.Spec
		s.Variables = slices.Clone(s.Variables)
		find(t, s, "SENTRY").Name = "SENTRY_AUTH"
		draft := save(t, h, ana, s, map[string][]byte{"NPM": []byte(npm + "2")})

		h = h.LoseKey(2)
		r = r.Of(h)
		ana = h.Grant("ana")
		e := env(t, h, ana)
		if v := find(t, e.Current.Spec, "NPM"); !v.Sensitive || !v.Build || v.Note != "for the registry" || find(t, e.Current.Spec, "WIDE").Link != "HUB_WIDE" {
			t.Errorf("the version lost more than values: %+v", e.Current.Spec.Variables)
		}
		states, err := h.Environments.Variables(t.Context(), ana, 1)
		if err != nil || len(states) != 4 || states[0].Status != variable.Lost || states[1].Status != variable.Set || states[3].Status != variable.Lost {
			t.Fatalf("%+v, %v", states, err)
		}
		_, err = h.Environments.Test(t.Context(), ana, draft.Revision, "r1")
		wantFault(t, err, fault.Refused, "This draft can't be tested: the Variables NPM, SENTRY_AUTH and WIDE (linked from the Shared variable HUB_WIDE) have no value.")

		for _, c := range []struct {
			name, value string
			code        fault.Code
			says        string
		}{
			{"NPM", "short", fault.Invalid, "at least 8"},
			{"NONE", "long-enough", fault.NotFound, "no Variable of that name"},
			{"WIDE", "long-enough", fault.Refused, "is a Link: its value is that of the Shared variable HUB_WIDE"},
			{"REGION", "long-enough", fault.Refused, "is not lost"},
		} {
			wantFault(t, h.Environments.Enter(t.Context(), ana, c.name, []byte(c.value)), c.code, c.says)
		}
		for name, value := range map[string]string{"NPM": npm + "3", "SENTRY": sentry + "3"} { // SENTRY is the version's name
			if err := h.Environments.Enter(t.Context(), ana, name, []byte(value)); err != nil {
				t.Fatal(err)
			}
		}
		wantFault(t, h.Environments.Enter(t.Context(), ana, "NPM", []byte("again-and-again")), fault.Refused, "a new one is a change")
		if _, err := h.Vault.SetShared(t.Context(), ana.Who(), "HUB_WIDE", 1, true, []byte(shared+"3")); err != nil {
			t.Fatal(err)
		}
		after := env(t, h, ana)
		if after.Current.Number != applied.Number || after.Current.TestKey != applied.TestKey || after.Current.BuildKey != applied.BuildKey ||
			after.Draft.TestKey != draft.TestKey || after.Draft.Revision != draft.Revision {
			t.Errorf("something moved: %+v, %+v", after.Current, after.Draft)
		}
		for i, v := range after.Current.Spec.Variables {
			if v.ValueID != applied.Spec.Variables[i].ValueID {
				t.Errorf("the id of %s moved", v.Name)
			}
		}
		if moved, err := h.Environments.SharedChanged(t.Context(), ana, 1); err != nil || len(moved) != 0 {
			t.Errorf("the version is said to be outdated: %+v, %v", moved, err)
		}
		// Both the version's and the draft's NPM were lost, and have the value that was entered.
		if _, err := h.Environments.Test(t.Context(), ana, draft.Revision, "r1"); err != nil {
			t.Fatal(err)
		}
		values, refused := r.Values(r.Item())
		if refused != "" || string(values["NPM"].GetValue()) != npm+"3" || string(values["SENTRY_AUTH"].GetValue()) != sentry+"3" || string(values["WIDE"].GetValue()) != shared+"3" {
			t.Errorf("refused %q, %d values", refused, len(values))
		}
		if n := len(audits(t, db, "variable.enter")); n != 2 {
			t.Errorf("%d audit rows", n)
		}
	})
}

func audits(t *testing.T, db *store.DB, action string) (details []string) {
	t.Helper()
	if err := db.Read(t.Context(), func(tx *store.Tx) (err error) {
		details, err = store.All(tx, store.Scan1[string], `SELECT detail FROM audit_log WHERE action = $1 ORDER BY at, id`, action)
		return err
	}); err != nil {
		t.Fatal(err)
	}
	return details
}

func TestATestBuildWhoseValueIsLostMeanwhileIsRefusedItsValues(t *testing.T) {
	t.Parallel()
	h := apptest.New(t, storetest.New(t), apptest.Options{})
	ana, r := h.Grant("ana"), h.Runner("r1")
	makeShared(t, h, ana)
	d := save(t, h, ana, withVariables(), given())
	if _, err := h.Environments.Test(t.Context(), ana, d.Revision, "r1"); err != nil {
		t.Fatal(err)
	}
	r = r.Of(h.LoseKey(2))
	values, refused := r.Values(r.Item())
	if len(values) != 0 || refused != "This Test build can't run: the Variables NPM, SENTRY and WIDE (linked from the Shared variable HUB_WIDE) have no value. Enter one for each first." {
		t.Errorf("%d values, refused %q", len(values), refused)
	}
}

// What is tested is the draft as it was when it was asked for, with its values.
func TestATestBuildGetsTheValuesOfItsOwnRevision(t *testing.T) {
	t.Parallel()
	h := apptest.New(t, storetest.New(t), apptest.Options{})
	ana, r := h.Grant("ana"), h.Runner("r1")
	makeShared(t, h, ana)
	d := save(t, h, ana, withVariables(), given())
	if _, err := h.Environments.Test(t.Context(), ana, d.Revision, "r1"); err != nil {
		t.Fatal(err)
	}
	s := withVariables()
	find(t, s, "REGION").Value = "us-1"
	save(t, h, ana, s, map[string][]byte{"NPM": []byte("a-newer-token")})
	values, _ := r.Values(r.Item())
	if string(values["NPM"].GetValue()) != npm || string(values["REGION"].GetValue()) != "eu-1" {
		t.Error("it got the newer draft's values")
	}
}

// Whatever becomes of the draft, a Test build that is under way has what it links until its end, however it ends.
func TestASharedVariableStaysWhileATestBuildLinksIt(t *testing.T) {
	t.Parallel()
	for how, end := range map[string]func(*testing.T, *apptest.Hub, *apptest.Runner, access.Grant, string, *storetest.Clock){
		"passed": func(_ *testing.T, _ *apptest.Hub, r *apptest.Runner, _ access.Grant, _ string, _ *storetest.Clock) {
			r.Pass(r.Item())
		},
		"failed": func(_ *testing.T, _ *apptest.Hub, r *apptest.Runner, _ access.Grant, _ string, _ *storetest.Clock) {
			r.MustReport(r.Item(), wire.StateFailed, wire.TestBuildDetail{})
		},
		"cancelled": func(t *testing.T, h *apptest.Hub, r *apptest.Runner, ana access.Grant, test string, _ *storetest.Clock) {
			if err := h.Environments.Cancel(t.Context(), ana, test); err != nil {
				t.Fatal(err)
			}
			if err := h.Vault.DeleteShared(t.Context(), ana.Who(), "HUB_WIDE", 1); !fault.Is(err, fault.Refused) {
				t.Errorf("cancelling, deleted before its Runner stopped: %v", err)
			}
			r.MustReport(r.Item(), wire.StateCancelled, wire.TestBuildDetail{})
		},
		"lost": func(t *testing.T, h *apptest.Hub, r *apptest.Runner, _ access.Grant, _ string, clock *storetest.Clock) {
			if err := h.Fleet.Revoke(t.Context(), r.ID, "ana"); err != nil {
				t.Fatal(err)
			}
			for range 24 {
				clock.Advance(5 * time.Second)
				if err := h.Fleet.RunOnce(t.Context()); err != nil {
					t.Fatal(err)
				}
			}
		},
	} {
		t.Run(how, func(t *testing.T) {
			t.Parallel()
			db := storetest.New(t)
			clock := storetest.NewClock(db)
			h := apptest.New(t, db, apptest.Options{})
			ana, r := h.Grant("ana"), h.Runner("r1")
			makeShared(t, h, ana)
			d := save(t, h, ana, withVariables(), given())
			test, err := h.Environments.Test(t.Context(), ana, d.Revision, "r1")
			if err != nil {
				t.Fatal(err)
			}
			if _, err := h.Environments.Discard(t.Context(), ana, d.Revision); err != nil {
				t.Fatal(err)
			}
			err = h.Vault.DeleteShared(t.Context(), ana.Who(), "HUB_WIDE", 1)
			wantFault(t, err, fault.Refused, "that of acme/rocket. Take the Link out there first, and let Test builds that still use it end.")
			_, err = h.Vault.RenameShared(t.Context(), ana.Who(), "HUB_WIDE", 1, "OTHER")
			wantFault(t, err, fault.Refused, "can't be renamed")
			if values, refused := r.Values(r.Item()); string(values["WIDE"].GetValue()) != shared {
				t.Errorf("the Test build lost its value: %s", refused)
			}
			end(t, h, r, ana, test.ID, clock)
			if test, err = h.Environments.TestBuild(t.Context(), ana, test.ID); err != nil || test.State != how {
				t.Fatalf("%s, %v", test.State, err)
			}
			if err := h.Vault.DeleteShared(t.Context(), ana.Who(), "HUB_WIDE", 1); err != nil {
				t.Errorf("after its end: %v", err)
			}
		})
	}
}

func TestANewSharedValueIsSaidOfTheVersionsThatUseItAtBuild(t *testing.T) {
	t.Parallel()
	db := storetest.New(t)
	clock := storetest.NewClock(db)
	h := apptest.New(t, db, apptest.Options{})
	ana, r := h.Grant("ana"), h.Runner("r1")
	makeShared(t, h, ana)
	clock.Advance(time.Second)
	applied := h.AppliedWith(ana, r, withVariables(), given())
	moved, err := h.Environments.SharedChanged(t.Context(), ana, 1)
	if err != nil || len(moved) != 0 {
		t.Fatalf("%+v, %v", moved, err)
	}
	clock.Advance(time.Second)
	if _, err := h.Vault.SetShared(t.Context(), ana.Who(), "HUB_WIDE", 1, true, []byte(shared+"2")); err != nil {
		t.Fatal(err)
	}
	moved, err = h.Environments.SharedChanged(t.Context(), ana, 1)
	if err != nil || len(moved) != 1 || moved[0].Name != "WIDE" || moved[0].Shared != "HUB_WIDE" || moved[0].By != "ana" {
		t.Fatalf("%+v, %v", moved, err)
	}
	if e := env(t, h, ana); e.Current.TestKey != applied.TestKey || e.Current.Number != 1 {
		t.Error("a new shared value made a version, or moved the test key")
	}
	if err := h.Vault.DeleteShared(t.Context(), ana.Who(), "HUB_WIDE", 2); !fault.Is(err, fault.Refused) || !strings.Contains(err.Error(), "acme/rocket") {
		t.Errorf("deleted although it is linked: %v", err)
	}
}

func TestOfAValueThatWasNeverAppliedNothingStays(t *testing.T) {
	t.Parallel()
	storetest.Each(t, func(t *testing.T, db *store.DB) {
		h := apptest.New(t, db, apptest.Options{})
		ana, r := h.Grant("ana"), h.Runner("r1")
		count := func() (n int) {
			t.Helper()
			if err := db.Read(t.Context(), func(tx *store.Tx) error {
				return tx.Row(`SELECT COUNT(*) FROM variable_values WHERE sensitive = 1`).Scan(&n)
			}); err != nil {
				t.Fatal(err)
			}
			return n
		}
		want := func(n int, when string) {
			t.Helper()
			if got := count(); got != n {
				t.Errorf("%s: %d Sensitive values are kept, want %d", when, got, n)
			}
		}
		s := spec()
		s.Variables = []envspec.Variable{{Name: "A", Sensitive: true}, {Name: "B", Sensitive: true}}
		both := map[string][]byte{"A": []byte("first-of-a"), "B": []byte("first-of-b")}
		d := save(t, h, ana, s, both)
		save(t, h, ana, s, nil)
		want(2, "saved")
		d = save(t, h, ana, s, map[string][]byte{"A": []byte("second-of-a")})
		want(2, "a value replaced")
		if _, err := h.Environments.Discard(t.Context(), ana, d.Revision); err != nil {
			t.Fatal(err)
		}
		want(0, "discarded")

		h.AppliedWith(ana, r, s, both)
		d = save(t, h, ana, s, map[string][]byte{"A": []byte("second-of-a")})
		want(3, "applied, and one replaced in the draft")
		if _, err := h.Environments.Test(t.Context(), ana, d.Revision, "r1"); err != nil {
			t.Fatal(err)
		}
		save(t, h, ana, s, map[string][]byte{"A": []byte("third-of-a")})
		want(4, "one is being tested")
		item := r.Item()
		values, refused := r.Values(item)
		if string(values["A"].GetValue()) != "second-of-a" {
			t.Errorf("the Test build doesn't get what it tests: %s", refused)
		}
		r.Pass(item)
		want(3, "tested")
		e := env(t, h, ana)
		if _, err := h.Environments.Discard(t.Context(), ana, e.Draft.Revision); err != nil {
			t.Fatal(err)
		}
		want(2, "discarded")
		states, err := h.Environments.Variables(t.Context(), ana, 1)
		if err != nil || states[0].Status != variable.Set || states[1].Status != variable.Set {
			t.Errorf("the version's: %+v, %v", states, err)
		}
		// A version's value stays for those who go back to it.
		h.AppliedWith(ana, r, s, map[string][]byte{"A": []byte("fourth-of-a")})
		want(3, "a second version")
		e = env(t, h, ana)
		if _, err := h.Environments.Restore(t.Context(), ana, e.Draft.Revision, 1); err != nil {
			t.Fatal(err)
		}
		if states, err = h.Environments.Variables(t.Context(), ana, environment.Web); err != nil || states[0].Status != variable.Set {
			t.Errorf("restored: %+v, %v", states, err)
		}
		if a := audits(t, db, "draft.save"); len(a) < 3 || !strings.Contains(a[0], `"values":["A","B"]`) || strings.Contains(a[1], "values") {
			t.Errorf("audit: %q", a)
		}
	})
}
