package environment_test

import (
	"errors"
	"slices"
	"strings"
	"testing"

	"github.com/claude-hub/claude-hub/app/apptest"
	"github.com/claude-hub/claude-hub/app/environment"
	"github.com/claude-hub/claude-hub/app/fault"
	"github.com/claude-hub/claude-hub/envspec"
	"github.com/claude-hub/claude-hub/store"
	"github.com/claude-hub/claude-hub/store/storetest"
)

func TestAConflictCarriesTheOthersDraft(t *testing.T) {
	t.Parallel()
	h := apptest.New(t, storetest.New(t), apptest.Options{})
	ana, bob := h.Grant("ana"), h.Grant("bob")
	first := save(t, h, ana, spec(), nil)
	theirs := spec()
	theirs.Bootstrap = "echo theirs"
	theirs.Variables = []envspec.Variable{{Name: "A", Value: "x"}}
	second := save(t, h, ana, theirs, nil)
	for what, try := range map[string]func() error{
		"save": func() error {
			_, err := h.Environments.Save(t.Context(), bob, first.Revision, spec(), map[string][]byte{"A": []byte("never-stored")})
			return err
		},
		"discard": func() error { _, err := h.Environments.Discard(t.Context(), bob, first.Revision); return err },
		"restore": func() error { _, err := h.Environments.Restore(t.Context(), bob, first.Revision, 1); return err },
		"test":    func() error { _, err := h.Environments.Test(t.Context(), bob, first.Revision, "r1"); return err },
		"apply":   func() error { _, err := h.Environments.Apply(t.Context(), bob, first.Revision, ""); return err },
	} {
		err := try()
		var c *environment.ConflictError
		if !errors.As(err, &c) || !fault.Is(err, fault.Conflict) || c.Theirs == nil {
			t.Fatalf("%s: %v", what, err)
		}
		if c.Theirs.Revision != second.Revision || c.Theirs.UpdatedBy != "ana" || c.Theirs.UpdatedAt.IsZero() ||
			c.Theirs.Spec.Bootstrap != "echo theirs" || c.Theirs.Spec.Variables[0].Value != "x" {
			t.Errorf("%s: %+v", what, c.Theirs)
		}
	}
	// Saving on top of theirs is the choice that takes one's own.
	if _, err := h.Environments.Save(t.Context(), bob, second.Revision, spec(), nil); err != nil {
		t.Error(err)
	}
}

func TestDiscardGoesBackToTheCurrentVersion(t *testing.T) {
	t.Parallel()
	storetest.Each(t, func(t *testing.T, db *store.DB) {
		h := apptest.New(t, db, apptest.Options{})
		ana, r := h.Grant("ana"), h.Runner("r1")
		makeShared(t, h, ana)
		applied := h.AppliedWith(ana, r, withVariables(), given())
		changed := spec()
		changed.Bootstrap = "echo other"
		changed.Variables = []envspec.Variable{{Name: "NPM", Sensitive: true}}
		d := save(t, h, ana, changed, map[string][]byte{"NPM": []byte("another-token")})
		back, err := h.Environments.Discard(t.Context(), ana, d.Revision)
		if err != nil || back == nil {
			t.Fatal(back, err)
		}
		if back.Revision != d.Revision+1 || back.TestKey != applied.TestKey || !slices.Equal(back.Spec.Variables, applied.Spec.Variables) || back.Spec.Bootstrap != "echo one" {
			t.Errorf("%+v", back)
		}
		verdict, err := h.Environments.Check(t.Context(), ana)
		if err != nil || verdict.OK || !strings.Contains(verdict.Reason, "what version 1 says already") {
			t.Errorf("%+v, %v", verdict, err)
		}
	})
}

func TestADiscardedDraftWithoutAVersionIsGoneAndNobodySavesItBack(t *testing.T) {
	t.Parallel()
	storetest.Each(t, func(t *testing.T, db *store.DB) {
		h := apptest.New(t, db, apptest.Options{})
		ana, bob := h.Grant("ana"), h.Grant("bob")
		makeShared(t, h, ana)
		old := save(t, h, ana, withVariables(), given())
		if back, err := h.Environments.Discard(t.Context(), ana, old.Revision); err != nil || back != nil {
			t.Fatal(back, err)
		}
		if e := env(t, h, ana); e.Draft != nil {
			t.Fatalf("%+v", e.Draft)
		}
		_, err := h.Environments.Discard(t.Context(), ana, 0)
		wantFault(t, err, fault.Refused, "no draft to discard")
		var c *environment.ConflictError
		if _, err := h.Environments.Save(t.Context(), bob, old.Revision, spec(), nil); !errors.As(err, &c) || c.Theirs != nil {
			t.Errorf("saved on a draft that is gone: %v", err)
		}
		next := save(t, h, ana, spec(), nil)
		if next.Revision <= old.Revision {
			t.Errorf("the new draft begins at revision %d, the old one was at %d", next.Revision, old.Revision)
		}
		if _, err := h.Environments.Save(t.Context(), bob, old.Revision, spec(), nil); !errors.As(err, &c) || c.Theirs == nil {
			t.Errorf("the discarded draft was saved over the new one: %v", err)
		}
		// Its Links are gone with it.
		if err := h.Vault.DeleteShared(t.Context(), ana.Who(), "HUB_WIDE", 1); err != nil {
			t.Error(err)
		}
		if n := len(audits(t, db, "draft.discard")); n != 1 {
			t.Errorf("%d audit rows", n)
		}
	})
}

func TestAVersionIsRestoredAsADraftWithItsValues(t *testing.T) {
	t.Parallel()
	storetest.Each(t, func(t *testing.T, db *store.DB) {
		h := apptest.New(t, db, apptest.Options{})
		ana, r := h.Grant("ana"), h.Runner("r1")
		makeShared(t, h, ana)
		first := h.AppliedWith(ana, r, withVariables(), given())
		second := spec()
		second.Bootstrap = "echo second"
		h.Applied(ana, r, second)
		third := spec()
		third.Variables = []envspec.Variable{{Name: "NPM", Value: "Plain by now"}, {Name: "WIDE", Value: "x"}}
		d := save(t, h, ana, third, nil)

		_, err := h.Environments.Restore(t.Context(), ana, d.Revision, 9)
		wantFault(t, err, fault.NotFound, "no version 9")
		restored, err := h.Environments.Restore(t.Context(), ana, d.Revision, 1)
		if err != nil {
			t.Fatal(err)
		}
		if restored.TestKey != first.TestKey || !slices.Equal(restored.Spec.Variables, first.Spec.Variables) {
			t.Errorf("restored %+v, want %+v", restored.Spec.Variables, first.Spec.Variables)
		}
		// It was tested once, so it can be applied.
		v, err := h.Environments.Apply(t.Context(), ana, restored.Revision, "back to the first")
		if err != nil || v.Number != 3 || v.TestKey != first.TestKey || v.TestBuild != first.TestBuild {
			t.Fatalf("%+v, %v", v, err)
		}
		all, err := h.Environments.Versions(t.Context(), ana, 10)
		if err != nil || len(all) != 3 || all[0].Message != "back to the first" || all[0].Source != "web" || all[0].AppliedBy != "ana" || all[0].AppliedAt.IsZero() {
			t.Errorf("history: %+v, %v", all, err)
		}
		if a := audits(t, db, "draft.restore"); len(a) != 1 || !strings.Contains(a[0], `"version":1`) {
			t.Errorf("audit: %q", a)
		}
	})
}

func TestAnyTwoOfDraftAndVersionsCanBeCompared(t *testing.T) {
	t.Parallel()
	h := apptest.New(t, storetest.New(t), apptest.Options{})
	ana, r := h.Grant("ana"), h.Runner("r1")
	if _, err := h.Environments.Sides(t.Context(), ana, environment.Web, 1); !fault.Is(err, fault.NotFound) {
		t.Errorf("without any: %v", err)
	}
	s := spec()
	s.Variables = []envspec.Variable{{Name: "A", Value: "one"}}
	h.Applied(ana, r, s)
	s.Variables = []envspec.Variable{{Name: "A", Value: "two"}}
	h.Applied(ana, r, s)
	s.Variables = []envspec.Variable{{Name: "A", Value: "three"}}
	save(t, h, ana, s, nil)
	sides, err := h.Environments.Sides(t.Context(), ana, 1, 2, environment.Web)
	if err != nil || len(sides) != 3 {
		t.Fatal(err)
	}
	for i, want := range []string{"one", "two", "three"} {
		if got := sides[i].Variables[0].Value; got != want {
			t.Errorf("side %d has %q", i, got)
		}
	}
	if changes := envspec.Explain(sides[0], sides[2]); len(changes) != 1 || strings.Contains(changes[0].Sentence, "three") {
		t.Errorf("%+v", changes)
	}
	_, err = h.Environments.Sides(t.Context(), ana, 3)
	wantFault(t, err, fault.NotFound, "no version 3")
}
