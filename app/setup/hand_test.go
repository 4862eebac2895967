package setup_test

import (
	"crypto/rand"
	"crypto/rsa"
	"crypto/x509"
	"encoding/pem"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/claude-hub/claude-hub/app/apptest"
	"github.com/claude-hub/claude-hub/app/fault"
	"github.com/claude-hub/claude-hub/app/github"
	"github.com/claude-hub/claude-hub/app/github/githubtest"
	"github.com/claude-hub/claude-hub/app/github/githubtest/checked"
	"github.com/claude-hub/claude-hub/app/seal"
	"github.com/claude-hub/claude-hub/app/setup"
	"github.com/claude-hub/claude-hub/store"
	"github.com/claude-hub/claude-hub/store/storetest"
)

var noKeys seal.Keys

// made is an App that somebody made at GitHub by hand, with its values.
func (r *rig) made(o githubtest.AppOptions) setup.Values {
	if o.Name == "" {
		o.Name = "By hand"
	}
	o.Owner, o.HookURL, o.Callbacks = "octo", hubURL+setup.HookPath, []string{hubURL + setup.CallbackPath}
	a := r.gh.App(o)
	return setup.Values{
		AppID: a.ID, ClientID: " " + a.ClientID + " ", ClientSecret: github.NewSecret(a.ClientSecret), PrivateKey: github.NewSecret(a.PrivateKey), WebhookSecret: github.NewSecret(a.WebhookSecret),
	}
}

func anotherKey(t *testing.T) github.Secret {
	t.Helper()
	key, err := rsa.GenerateKey(rand.Reader, 2048)
	if err != nil {
		t.Fatal(err)
	}
	return github.NewSecret(string(pem.EncodeToMemory(&pem.Block{Type: "RSA PRIVATE KEY", Bytes: x509.MarshalPKCS1PrivateKey(key)})))
}

func TestValuesByHandAreCheckedWithGitHubBeforeTheyAreKept(t *testing.T) {
	t.Parallel()
	each(t, func(r *rig) {
		visit := r.enter(false)
		good, other := r.made(githubtest.AppOptions{}), r.made(githubtest.AppOptions{Name: "Other"})
		for name, c := range map[string]struct {
			change func(*setup.Values)
			fields []string
		}{
			"nothing":                 {func(v *setup.Values) { *v = setup.Values{} }, []string{"app-id", "client-id", "client-secret", "private-key"}},
			"an address that is none": {func(v *setup.Values) { v.Web = "http://x.example" }, []string{"web"}},
			"a key that is none":      {func(v *setup.Values) { v.PrivateKey = github.NewSecret("canary") }, []string{"private-key"}},
			"another key":             {func(v *setup.Values) { v.PrivateKey = anotherKey(t) }, []string{"private-key"}},
			"an App that isn't":       {func(v *setup.Values) { v.AppID = 999_999 }, []string{"private-key"}},
			"another App's client id": {func(v *setup.Values) { v.ClientID = other.ClientID }, []string{"client-id"}},
			"another client secret":   {func(v *setup.Values) { v.ClientSecret = github.NewSecret("canary") }, []string{"client-secret"}},
		} {
			v := good
			c.change(&v)
			err := r.Take(r.ctx(), visit, v)
			if !fault.Is(err, fault.Invalid) || strings.Contains(err.Error(), "canary") {
				t.Errorf("%s: %v", name, err)
				continue
			}
			for _, f := range c.fields {
				if fault.Of(err).Fields[f] == "" {
					t.Errorf("%s: nothing is said at %s, but %v", name, f, fault.Of(err).Fields)
				}
			}
		}
		mend := r.gh.Break(githubtest.Fault{Status: http.StatusBadGateway})
		r.want(r.Take(r.ctx(), visit, good), fault.Unavailable, "GitHub has trouble")
		mend()
		if r.count("github_app") != 0 || strings.Contains(r.log.String(), "canary") {
			t.Errorf("something was kept, or logged:\n%s", r.log.String())
		}
		if err := r.Take(r.ctx(), visit, good); err != nil {
			t.Fatal(err)
		}
		if r.app().ID() != good.AppID || r.app().Slug() != "by-hand" {
			t.Errorf("it is %d %s", r.app().ID(), r.app().Slug())
		}
		secrets, err := r.WebhookSecrets(r.ctx())
		if err != nil || len(secrets) != 1 || secrets[0].Reveal() != good.WebhookSecret.Reveal() {
			t.Errorf("%v %v", secrets, err)
		}
	})
}

func TestAnAppThatLacksPermissionsIsTakenOnlyKnowingly(t *testing.T) {
	t.Parallel()
	each(t, func(r *rig) {
		visit := r.enter(false)
		v := r.made(githubtest.AppOptions{Permissions: map[string]string{"metadata": "read", "contents": "read"}, Events: []string{"push"}})
		err := r.Take(r.ctx(), visit, v)
		r.want(err, fault.Invalid, "checks: write", "pull_requests: read")
		if fault.Of(err).Fields["permissions"] == "" {
			t.Error(fault.Of(err).Fields)
		}
		v.Lacking = true
		if err := r.Take(r.ctx(), visit, v); err != nil {
			t.Fatal(err)
		}
		if s := r.step("permissions"); s.State != setup.Wrong || !strings.Contains(s.Says, "checks: write") || !strings.Contains(s.Says, "pull_request") {
			t.Errorf("%+v", s)
		}
	})
}

// signed sends a webhook to a handler that knows the Hub's secrets, and says whether it was taken.
func (r *rig) signed(secret string) bool {
	r.t.Helper()
	all, err := r.WebhookSecrets(r.ctx())
	if err != nil {
		r.t.Fatal(err)
	}
	for _, s := range all {
		if s.Reveal() == secret {
			return true
		}
	}
	return false
}

func TestWithoutAWebhookSecretTheHubMakesOneAndSetsIt(t *testing.T) {
	t.Parallel()
	each(t, func(r *rig) {
		v := r.made(githubtest.AppOptions{})
		old := v.WebhookSecret.Reveal()
		v.WebhookSecret = github.Secret{}
		if err := r.Take(r.ctx(), r.enter(false), v); err != nil {
			t.Fatal(err)
		}
		if r.signed(old) || r.gh.Asked(http.MethodPatch, "/app/hook/config") != 1 {
			t.Error("GitHub was not given a new one")
		}
	})
}

func TestTheWebhookSecretChangesWithoutAGap(t *testing.T) {
	t.Parallel()
	storetest.Each(t, func(t *testing.T, db *store.DB) {
		clock := storetest.NewClock(db)
		r := newRig(t, db, checked.New(t, githubtest.Options{GHES: true}))
		v := r.made(githubtest.AppOptions{})
		if err := r.Take(r.ctx(), r.enter(false), v); err != nil {
			t.Fatal(err)
		}
		old := v.WebhookSecret.Reveal()
		clock.Advance(time.Minute)
		visit := r.enter(true)
		if view, err := r.Visit(r.ctx(), visit); err != nil || !view.Rotate {
			t.Fatalf("%+v %v", view, err)
		}
		count := func() int {
			all, err := r.WebhookSecrets(r.ctx())
			if err != nil {
				t.Fatal(err)
			}
			return len(all)
		}

		// GitHub refuses it: nothing changes.
		mend := r.gh.Break(githubtest.Fault{Method: http.MethodPatch, Path: "/app/hook/config", Status: http.StatusUnprocessableEntity, Body: `{"message":"Validation Failed"}`})
		r.want(r.RotateHook(r.ctx(), visit), fault.Refused)
		mend()
		if count() != 1 || !r.signed(old) {
			t.Fatalf("%d secrets after a refusal", count())
		}

		// Whether GitHub has it isn't known: both are good, for as long as that is so.
		mend = r.gh.Break(githubtest.Fault{Method: http.MethodPatch, Path: "/app/hook/config", After: true, Cut: -1, Times: 1})
		r.want(r.RotateHook(r.ctx(), visit), fault.Unavailable, "both accepted")
		mend()
		clock.Advance(2 * setup.HookOverlap)
		if count() != 2 || !r.signed(old) {
			t.Fatalf("%d secrets after a lost answer", count())
		}

		visit = r.enter(true)
		if err := r.RotateHook(r.ctx(), visit); err != nil {
			t.Fatal(err)
		}
		if count() != 3 || !r.signed(old) {
			t.Fatalf("%d secrets right after", count())
		}
		clock.Advance(setup.HookOverlap)
		if count() != 1 || r.signed(old) {
			t.Fatalf("%d secrets an hour after", count())
		}
		// Another Hub sees the same.
		other, _ := r.hub()
		if err := other.Start(r.ctx()); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(other.Stop)
		if all, err := other.WebhookSecrets(r.ctx()); err != nil || len(all) != 1 {
			t.Errorf("%v %v", all, err)
		}
	})
}

func TestAnotherHubFollowsWithinSeconds(t *testing.T) {
	t.Parallel()
	each(t, func(r *rig) {
		other, holder := r.hub()
		if err := other.Start(r.ctx()); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(other.Stop)
		if _, err := holder.App(); !github.NoApp.Is(err) {
			t.Fatal(err)
		}
		r.create("First", false)
		until(t, "the other Hub is the App", func() bool { a, err := holder.App(); return err == nil && a.ID() == r.app().ID() })
		r.create("Second", true)
		until(t, "the other Hub is the second App", func() bool { a, err := holder.App(); return err == nil && a.ID() == r.app().ID() })
		if err := r.Drop(r.ctx(), "test"); err != nil {
			t.Fatal(err)
		}
		until(t, "the other Hub is none", func() bool { _, err := holder.App(); return github.NoApp.Is(err) })
	})
}

func TestAnAppWhoseSecretsWereLostIsSetUpAgain(t *testing.T) {
	t.Parallel()
	each(t, func(r *rig) {
		r.create("Our Hub", false)
		id := r.app().ID()
		r.keys = apptest.Keys(t, 2)
		err := seal.New(r.db, r.keys, seal.Columns()).Check(r.ctx())
		if err == nil || !strings.Contains(err.Error(), "github_secrets.sealed: 3") {
			t.Fatalf("a lost key isn't noticed: %v", err)
		}
		if _, err := seal.New(r.db, r.keys, seal.Columns()).Reset(r.ctx(), false, func(*store.Tx, seal.Cleared) error { return nil }); err != nil {
			t.Fatal(err)
		}
		r.Service, r.holder = r.hub()
		if err := r.Start(r.ctx()); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(r.Stop)
		a, ok, err := r.App(r.ctx())
		if err != nil || !ok || !a.Lost || a.ID != id || a.Name != "Our Hub" {
			t.Errorf("%+v %v %v", a, ok, err)
		}
		if is, err := r.Configured(r.ctx()); is || err != nil {
			t.Error(is, err)
		}
		if s := r.step("app"); s.State != setup.Wrong || !strings.Contains(s.Says, `"Our Hub" were lost`) {
			t.Errorf("%+v", s)
		}
		r.create("Again", false) // an ordinary token is good for it
		if r.app().ID() == id {
			t.Error("it is the old App")
		}
	})
}

func TestADamagedSecretKeepsNobodyFromSettingTheAppUpAgain(t *testing.T) {
	t.Parallel()
	each(t, func(r *rig) {
		r.create("Our Hub", false)
		if err := r.db.Write(r.ctx(), func(tx *store.Tx) error {
			_, err := tx.Exec(`UPDATE github_secrets SET sealed = $1 WHERE kind = 'private-key'`, []byte("damaged"))
			return err
		}); err != nil {
			t.Fatal(err)
		}
		r.again()
		if a, ok, err := r.App(r.ctx()); err != nil || !ok || !a.Lost {
			t.Errorf("%+v %v %v", a, ok, err)
		}
		if !strings.Contains(r.log.String(), "set the App up again") {
			t.Errorf("the log says %s", r.log.String())
		}
		r.create("Again", false)
		r.app()
	})
}

func TestRotatingTheEncryptionKeyKeepsTheApp(t *testing.T) {
	t.Parallel()
	each(t, func(r *rig) {
		r.create("Our Hub", false)
		both := apptest.Keys(t, 2, 1)
		s := seal.New(r.db, both, seal.Columns())
		if err := s.Start(r.ctx(), "test"); err != nil {
			t.Fatal(err)
		}
		if _, err := s.Rotate(r.ctx(), nil); err != nil && !strings.Contains(err.Error(), "Hub") {
			t.Fatal(err)
		}
		r.keys = both
		other, holder := r.hub()
		if err := other.Start(r.ctx()); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(other.Stop)
		if a, err := holder.App(); err != nil || a.ID() != r.app().ID() {
			t.Error(a, err)
		}
	})
}

func until(t *testing.T, what string, is func() bool) {
	t.Helper()
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	for deadline := time.After(time.Minute); !is(); {
		select {
		case <-deadline:
			t.Fatalf("it never became true that %s", what)
		case <-tick.C:
		}
	}
}

// step is one of the operator's checklist.
func (r *rig) step(id string) setup.Step {
	r.t.Helper()
	steps, err := r.VisitChecklist(r.ctx(), r.enter(true))
	if err != nil {
		r.t.Fatal(err)
	}
	for _, s := range steps {
		if s.ID == id {
			return s
		}
	}
	r.t.Fatalf("there is no step %s: %+v", id, steps)
	return setup.Step{}
}
