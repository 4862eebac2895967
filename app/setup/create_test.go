package setup_test

import (
	"fmt"
	"net/http"
	"slices"
	"strings"
	"testing"

	"github.com/claude-hub/claude-hub/app/access"
	"github.com/claude-hub/claude-hub/app/fault"
	"github.com/claude-hub/claude-hub/app/github"
	"github.com/claude-hub/claude-hub/app/github/githubtest"
	"github.com/claude-hub/claude-hub/app/setup"
	"github.com/claude-hub/claude-hub/store"
)

func TestAnAppFromAManifestIsWhatTheHubIsFromThenOn(t *testing.T) {
	t.Parallel()
	each(t, func(r *rig) {
		if is, err := r.Configured(r.ctx()); is || err != nil {
			t.Fatal(is, err)
		}
		r.create("Our Hub", false)
		self, err := r.app().Self(r.ctx())
		if err != nil || self.Name != "Our Hub" || self.Owner.Login != "octo" || len(github.Lacking(self.Permissions)) > 0 {
			t.Errorf("%+v %v", self, err)
		}
		a, ok, err := r.App(r.ctx())
		if err != nil || !ok || a.Lost || a.FromConfig || a.ID != self.ID || a.Slug != "our-hub" || a.Name != "Our Hub" || a.Owner.Login != "octo" || a.SetAt.IsZero() {
			t.Errorf("%+v %v %v", a, ok, err)
		}
		if hook, err := r.app().HookURL(r.ctx()); err != nil || hook != hubURL+setup.HookPath {
			t.Errorf("%s %v", hook, err)
		}

		// What it was given opens on another Hub, and a webhook signed by GitHub is this App's.
		other, holder := r.hub()
		if err := other.Start(r.ctx()); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(other.Stop)
		if app, err := holder.App(); err != nil || app.ID() != self.ID {
			t.Errorf("on another Hub: %v %v", app, err)
		}
		for _, s := range []*setup.Service{r.Service, other} {
			if secrets, err := s.WebhookSecrets(r.ctx()); err != nil || len(secrets) != 1 || secrets[0].Empty() {
				t.Errorf("%v %v", secrets, err)
			}
		}
	})
}

func TestAStateIsGoodOnceInTheBrowserThatBegan(t *testing.T) {
	t.Parallel()
	each(t, func(r *rig) {
		mine, other := r.enter(false), r.enter(false)
		f, err := r.Begin(r.ctx(), mine, setup.Plan{Name: "Our Hub"})
		if err != nil {
			t.Fatal(err)
		}
		state, code := r.created(f, r.ana)
		for name, c := range map[string]struct{ visit, state string }{
			"another browser": {other, state}, "no state": {mine, ""}, "another state": {mine, "x"}, "the visit as state": {mine, mine},
		} {
			err := r.Finish(r.ctx(), c.visit, c.state, code)
			if !fault.Is(err, fault.Refused) || !strings.Contains(err.Error(), "not where the creation of an App was begun") {
				t.Errorf("%s: %v", name, err)
			}
		}
		if n := r.gh.Asked(http.MethodPost, "/conversions"); n != 0 {
			t.Errorf("GitHub was asked %d times", n)
		}
		if err := r.Finish(r.ctx(), mine, state, code); err != nil {
			t.Fatal(err)
		}
		if err := r.Finish(r.ctx(), mine, state, code); err == nil {
			t.Error("the state was good twice")
		}
	})
}

func TestTwoBrowsersThatSetUpAnAppAtOnceEndWithOne(t *testing.T) {
	t.Parallel()
	each(t, func(r *rig) {
		var done []func() error
		for i := range 2 {
			visit := r.enter(false)
			f, err := r.Begin(r.ctx(), visit, setup.Plan{Name: fmt.Sprintf("Hub %d", i)})
			if err != nil {
				t.Fatal(err)
			}
			state, code := r.created(f, r.ana)
			done = append(done, func() error { return r.Finish(r.ctx(), visit, state, code) })
		}
		errs := make(chan error, len(done))
		for _, f := range done {
			go func() { errs <- f() }()
		}
		failed := 0
		for range done {
			if err := <-errs; err != nil {
				failed++
				r.want(err, fault.Conflict)
			}
		}
		if failed != 1 || r.count("github_app") != 1 || r.count("github_secrets") != 3 {
			t.Errorf("%d failed, %d secrets", failed, r.count("github_secrets"))
		}
	})
}

func TestALostAnswerToTheManifestIsSaidWithWhatMayHaveHappened(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		fault githubtest.Fault
		works bool
	}{
		"GitHub never got it":     {githubtest.Fault{Path: "/conversions", Status: http.StatusBadGateway, Times: 1}, true},
		"the answer was lost":     {githubtest.Fault{Path: "/conversions", After: true, Cut: -1, Times: 1}, false},
		"the answer is cut":       {githubtest.Fault{Path: "/conversions", After: true, Cut: 100, Times: 1}, false},
		"GitHub is down for long": {githubtest.Fault{Path: "/conversions", Status: http.StatusServiceUnavailable}, false},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			each(t, func(r *rig) {
				visit := r.enter(false)
				f, err := r.Begin(r.ctx(), visit, setup.Plan{Org: "octo", Name: "Our Hub"})
				if err != nil {
					t.Fatal(err)
				}
				state, code := r.created(f, r.org)
				r.gh.Break(c.fault)
				err = r.Finish(r.ctx(), visit, state, code)
				if c.works {
					if err != nil {
						t.Fatal(err)
					}
					r.app()
					return
				}
				r.want(err, fault.Unavailable, `The App "Our Hub" may exist`, r.at("").Web+"/organizations/octo/settings/apps", "begin again")
				if is, err := r.Configured(r.ctx()); is || err != nil {
					t.Error(is, err)
				}
				if v, err := r.Visit(r.ctx(), visit); err != nil || v.Refused != nil {
					t.Errorf("the browser can't begin again: %+v %v", v, err)
				}
			})
		})
	}
}

func TestWhatCantBecomeAnAppIsRefusedBeforeGitHubMakesOne(t *testing.T) {
	t.Parallel()
	each(t, func(r *rig) {
		visit := r.enter(false)
		for field, plans := range map[string][]setup.Plan{
			"name": {{}, {Name: strings.Repeat("x", 35)}, {Name: "a\nb"}},
			"org":  {{Name: "a", Org: "a/b"}, {Name: "a", Org: "-a"}, {Name: "a", Org: "a b"}},
			"web": {{Name: "a", Web: "http://github.example.com"}, {Name: "a", Web: "https://u:p@x.example"}, {Name: "a", Web: "https://x.example/path"},
				{Name: "a", Web: "ftp://x"}, {Name: "a", Web: "https://x.example?a"}, {Name: "a", Web: "https://"}, {Name: "a", Web: "https://x.example;script-src *"}, {Name: "a", Web: "https://x.example;script-src"}, {Name: "a", Web: "https://*"}, {Name: "a", Web: "https://x,y"}},
		} {
			for _, p := range plans {
				_, err := r.Begin(r.ctx(), visit, p)
				var f *fault.Error
				if !fault.Is(err, fault.Invalid) || fault.Of(err).Fields[field] == "" {
					t.Errorf("%+v: %v %v", p, err, f)
				}
			}
		}
		f, err := r.Begin(r.ctx(), visit, setup.Plan{Name: " Our Hub ", Org: "@octo", Web: "github.example.com/"})
		if err != nil || f.Described.Name != "Our Hub" || !strings.Contains(f.Action, "/organizations/octo/") || f.Deaf != "" {
			t.Errorf("%+v %v", f, err)
		}
		if !slices.Equal(f.Described.CallbackURLs, []string{hubURL + setup.CallbackPath}) || f.Described.Public || f.Described.RequestOAuth {
			t.Errorf("%+v", f.Described)
		}
	})
}

func TestAHubWithoutAnEncryptionKeySaysSoBeforeAnAppIsMade(t *testing.T) {
	t.Parallel()
	each(t, func(r *rig) {
		visit := r.enter(false)
		if v, err := r.Visit(r.ctx(), visit); err != nil || v.Refused == nil || !strings.Contains(v.Refused.Message, "claude-hub keygen") {
			t.Errorf("%+v %v", v, err)
		}
		_, err := r.Begin(r.ctx(), visit, setup.Plan{Name: "Our Hub"})
		r.want(err, fault.Refused, "claude-hub keygen")
		r.want(r.Take(r.ctx(), visit, setup.Values{}), fault.Refused, "claude-hub keygen")
	}, func(r *rig) { r.keys = noKeys })
}

func TestAHubThatGitHubCantReachGetsNoWebhooksAndSaysSo(t *testing.T) {
	t.Parallel()
	each(t, func(r *rig) {
		// GitHub stands elsewhere, as far as this can be told from its address.
		r.o.At = github.At
		s, _ := r.hub()
		visit := r.enter(false)
		f, err := s.Begin(r.ctx(), visit, setup.Plan{Name: "Our Hub"})
		if err != nil || f.Described.HookAttributes.Active || !strings.Contains(f.Deaf, "hub.url") {
			t.Errorf("%+v %v", f, err)
		}
	}, func(r *rig) { r.o.PublicURL = "http://127.0.0.1:7780" })
}

func TestAHubThatPushesAsksForTheRightTo(t *testing.T) {
	t.Parallel()
	each(t, func(r *rig) {
		r.create("Our Hub", false)
		if self, err := r.app().Self(r.ctx()); err != nil || self.Permissions["contents"] != "write" {
			t.Errorf("%+v %v", self, err)
		}
		inst := r.gh.Install(r.app().ID(), r.org, r.ana, r.repo)
		r.told(inst.ID, "created")
		if s := r.step("permissions"); s.State != setup.Done || !strings.Contains(s.Says, "contents: write") {
			t.Errorf("%+v", s)
		}
		inst.Grant(github.Permissions()) // with contents: read
		r.told(inst.ID, "new_permissions_accepted")
		if s := r.step(fmt.Sprintf("installation-%d", inst.ID)); s.State != setup.Wrong || !strings.Contains(s.Says, "contents: write is missing") {
			t.Errorf("%+v", s)
		}
	}, func(r *rig) { r.o.Push = true })
}

func TestAnotherGitHubThanTheDatabasesIsRefusedBeforeAnAppIsMadeThere(t *testing.T) {
	t.Parallel()
	each(t, func(r *rig) {
		visit := r.enter(false)
		err := r.db.Write(r.ctx(), func(tx *store.Tx) error {
			if err := access.Site(tx, "https://old.example.com", ""); err != nil {
				return err
			}
			_, err := tx.Exec(`INSERT INTO repos (id, source, name, clone_url, seen_at) VALUES (7, 'github', 'a/b', 'https://old.example.com/a/b.git', 1)`)
			return err
		})
		if err != nil {
			r.t.Fatal(err)
		}
		_, err = r.Begin(r.ctx(), visit, setup.Plan{Name: "Hub of octo", Org: "octo"})
		r.want(err, fault.Invalid, "belongs to the GitHub at https://old.example.com")
		r.want(r.Take(r.ctx(), visit, setup.Values{}), fault.Invalid, "belongs to the GitHub at https://old.example.com")
		if n := len(r.gh.Requests()); n != 0 {
			r.t.Errorf("the other GitHub was asked %d times", n)
		}
	})
}
