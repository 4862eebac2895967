package access_test

import (
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/claude-hub/claude-hub/app/access"
	"github.com/claude-hub/claude-hub/app/fault"
	"github.com/claude-hub/claude-hub/app/github"
	"github.com/claude-hub/claude-hub/app/github/githubtest"
	"github.com/claude-hub/claude-hub/app/seal"
	"github.com/claude-hub/claude-hub/store"
	"github.com/claude-hub/claude-hub/store/storetest"
)

func TestSignInThroughGitHub(t *testing.T) {
	each(t, func(t *testing.T, r *rig) {
		to, browser, err := r.BeginSignIn(t.Context(), "/repos/7?tab=tests")
		if err != nil {
			t.Fatal(err)
		}
		if !strings.HasPrefix(to, r.gh.URLs().Web+"/login/oauth/authorize?") || !strings.Contains(to, "code_challenge_method=S256") || strings.Contains(to, browser) {
			t.Errorf("the browser goes to %s", to)
		}
		q := r.back(to, r.ana)
		ana, session, returnTo, err := r.FinishSignIn(t.Context(), browser, q.Get("state"), q.Get("code"))
		if err != nil {
			t.Fatal(err)
		}
		if ana.GitHubID() != r.ana.ID || ana.Login() != "ana" || ana.Dev() || returnTo != "/repos/7?tab=tests" {
			t.Errorf("%+v comes back to %s", ana, returnTo)
		}
		who, err := r.Browser(t.Context(), session)
		if err != nil || who.ID() != ana.ID() || !who.Can(access.ScopeShared) || who.ByToken() {
			t.Fatalf("%+v, %v", who, err)
		}
		g := r.may(who, r.repo)
		if repo := g.Repo(); g.Level() != "write" || g.Stale() || !g.AsOf().Equal(r.clock.Now()) || repo.Name != "octo/app" || !repo.Private || repo.Dev ||
			repo.CloneURL != r.repo.CloneURL() || repo.DefaultBranch != "main" || repo.Installation != r.inst.ID || repo.Account != r.org.ID {
			t.Errorf("%+v", g)
		}
		r.mayNot(who, r.other)
		again, _ := r.in(r.ana)
		if again.ID() != ana.ID() {
			t.Errorf("ana is %s, then %s", ana.ID(), again.ID())
		}
	})
}

func TestACallbackThatWasNotBegunByThisBrowserSignsNobodyIn(t *testing.T) { // facts/reliability.md P33
	each(t, func(t *testing.T, r *rig) {
		begin := func() (browser, state, code string) {
			to, browser, err := r.BeginSignIn(t.Context(), "/")
			if err != nil {
				t.Fatal(err)
			}
			q := r.back(to, r.ana)
			return browser, q.Get("state"), q.Get("code")
		}
		refused := func(what, browser, state, code string) {
			t.Helper()
			if who, session, _, err := r.FinishSignIn(t.Context(), browser, state, code); !fault.Is(err, fault.Unauthorized) || session != "" || who.ID() != "" {
				t.Errorf("%s: %+v, %v", what, who, err)
			}
		}
		_, _, code := begin()
		refused("without a state", "", "", code)
		browser, _, code := begin()
		refused("with an empty state", browser, "", code)
		browser, _, code = begin()
		refused("with a state of its own making", browser, "0123456789abcdef0123456789abcdef", code)
		victim, _, err := r.BeginSignIn(t.Context(), "/")
		if err != nil {
			t.Fatal(err)
		}
		_, state, code := begin()
		refused("in another browser", victim, state, code)
		_, state, code = begin()
		refused("in a browser that began nothing", "", state, code)
		browser, state, code = begin()
		refused("without a code", browser, state, "")
		refused("a second time after a failure", browser, state, code)
		browser, state, code = begin()
		if _, _, _, err := r.FinishSignIn(t.Context(), browser, state, code); err != nil {
			t.Fatal(err)
		}
		refused("a second time", browser, state, code)
		browser, state, code = begin()
		r.clock.Advance(11 * time.Minute)
		refused("eleven minutes later", browser, state, code)
		parts := strings.Split(browser, ".")
		refused("with a cookie without its end", parts[0], state, code)
		refused("with a cookie that says another time", parts[0]+"."+strconv.FormatInt(r.clock.Now().Add(5*time.Minute).UnixMilli(), 36)+"."+parts[2], state, code)
		refused("with a cookie that says another way back", parts[0]+"."+parts[1]+".L2V2aWw", state, code)
		_, _, code = begin()
		browser, state, _ = begin()
		refused("with the code of another sign-in", browser, state, code)
	})
}

func TestOnlyWhoHasARepoOfTheAppGetsASession(t *testing.T) {
	each(t, func(t *testing.T, r *rig) {
		_, _, err := r.tryIn(r.bob)
		if err != access.ErrNoRepos { //nolint:errorlint // the very same answer
			t.Fatalf("bob has no Repo here, but: %v", err)
		}
		if to := r.InstallURL(); !strings.Contains(to, r.cred.Slug) {
			t.Errorf("it is installed at %q", to)
		}
		// A public Repo's public is no access.
		r.repo.Publish(true)
		if _, _, err := r.tryIn(r.bob); err != access.ErrNoRepos { //nolint:errorlint // as above
			t.Fatalf("bob can see octo/app as everybody can, but: %v", err)
		}
		left := 0
		r.write(func(tx *store.Tx) error { return tx.Row(`SELECT count(*) FROM people`).Scan(&left) })
		if left != 0 {
			t.Errorf("%d people were made of who may not come in", left)
		}
		if n := r.gh.Asked("DELETE", "/token"); n != 2 {
			t.Errorf("the tokens of %d refused sign-ins were given back, of 2", n)
		}
		r.repo.Allow(r.bob, "read")
		r.in(r.bob)
	})
}

func TestTheConfiguredListComesInWithoutARepo(t *testing.T) {
	t.Parallel()
	s := newRig(t, storetest.New(t), githubtest.Options{}, githubtest.AppOptions{}, access.Options{})
	s.options.People = []int64{s.bob.ID}
	s.Gate = s.another()
	bob, session := s.in(s.bob)
	s.mayNot(bob, s.repo)
	s.advance(time.Hour)
	if _, err := s.Browser(t.Context(), session); err != nil {
		t.Fatal(err)
	}
	s.options.People = nil
	_, err := s.another().Browser(t.Context(), session)
	s.wants(fault.Unauthorized, err)
}

func TestReturnToStaysOnTheHub(t *testing.T) {
	r := one(t, access.Options{})
	for from, want := range map[string]string{
		"": "/", "/": "/", "/a/b?c=d#e": "/a/b?c=d#e", "//evil.example": "/", "https://evil.example/": "/", `/\evil.example`: "/",
		"/a\nb": "/", "javascript:alert(1)": "/", "/" + strings.Repeat("a", 3000): "/",
	} {
		to, browser, err := r.BeginSignIn(t.Context(), from)
		if err != nil {
			t.Fatal(err)
		}
		q := r.back(to, r.ana)
		if _, _, got, err := r.FinishSignIn(t.Context(), browser, q.Get("state"), q.Get("code")); err != nil || got != want {
			t.Errorf("%q: back to %q, want %q (%v)", from, got, want, err)
		}
	}
}

// Anybody can begin sign-ins, and come back from them: neither takes that of somebody else away, nor fills the database.
func TestAFloodOfSignInsTakesNobodysAwayAndKeepsNoMoreThanItsBound(t *testing.T) {
	t.Parallel()
	storetest.Each(t, func(t *testing.T, db *store.DB) {
		r := newRig(t, db, githubtest.Options{}, githubtest.AppOptions{}, access.Options{})
		r.Finished(5)
		to, browser, err := r.BeginSignIn(t.Context(), "/")
		if err != nil {
			t.Fatal(err)
		}
		back := r.back(to, r.ana)
		for range 20 {
			r.advance(time.Second)
			flood, cookie, err := r.BeginSignIn(t.Context(), "/")
			if err != nil {
				t.Fatal(err)
			}
			u, err := url.Parse(flood)
			if err != nil {
				t.Fatal(err)
			}
			_, _, _, err = r.FinishSignIn(t.Context(), cookie, u.Query().Get("state"), "made-up")
			r.wants(fault.Unauthorized, err)
		}
		var kept int
		err = db.Read(t.Context(), func(tx *store.Tx) error { return tx.Row(`SELECT count(*) FROM sign_ins_finished`).Scan(&kept) })
		if err != nil || kept != 5 {
			t.Errorf("want 5 kept of sign-ins that came back, got %d, %v", kept, err)
		}
		if who, _, _, err := r.FinishSignIn(t.Context(), browser, back.Get("state"), back.Get("code")); err != nil || who.Login() != "ana" {
			t.Errorf("want the one that was begun first to be good, got %+v, %v", who, err)
		}
	})
}

// Whoever had come by the tokens of an earlier sign-in would have had them until they end.
func TestANewSignInEndsTheTokensOfTheOneBefore(t *testing.T) {
	each(t, func(t *testing.T, r *rig) {
		ana, session := r.in(r.ana)
		before := r.kept(ana)
		r.in(r.ana)
		eventually(t, "GitHub knows the tokens of the first sign-in no more", func() bool {
			_, err := r.app().User(before.Access).Me(t.Context())
			return github.Unauthorized.Is(err)
		})
		if _, err := r.app().Refresh(t.Context(), before.Refresh); !github.Unauthorized.Is(err) {
			t.Errorf("the refresh token of the first sign-in: want it refused, got %v", err)
		}
		if _, err := r.app().User(r.kept(ana).Access).Me(t.Context()); err != nil {
			t.Errorf("the tokens of the second sign-in: %v", err)
		}
		r.advance(time.Hour)
		who, err := r.Browser(t.Context(), session)
		if err != nil {
			t.Fatalf("the browser of the first sign-in: %v", err)
		}
		r.may(who, r.repo)
	})
}

func TestASignInDoesNotWaitForTheTokensOfTheOneBeforeToEnd(t *testing.T) {
	r := one(t, access.Options{})
	ana, _ := r.in(r.ana)
	r.gh.Break(githubtest.Fault{Method: "DELETE", Path: "/token", Delay: time.Hour})
	began := time.Now()
	again, _ := r.in(r.ana)
	if took := time.Since(began); took > 9*time.Second { // that is how long GitHub is waited for
		t.Errorf("the second sign-in took %s", took)
	}
	eventually(t, "GitHub is asked to end the tokens", func() bool { return r.gh.Asked("DELETE", "/token") == 1 })
	if again.ID() != ana.ID() {
		t.Errorf("ana is %s, then %s", ana.ID(), again.ID())
	}
	r.may(again, r.repo)
}

// kept are the tokens that are kept of a person.
func (r *rig) kept(who access.Person) github.UserTokens {
	r.t.Helper()
	tokens, err := r.TokensOf(r.t.Context(), who.ID())
	if err != nil {
		r.t.Fatal(err)
	}
	return tokens
}

func TestALoginIsOnePersonsAtATime(t *testing.T) {
	each(t, func(t *testing.T, r *rig) {
		r.repo.Allow(r.bob, "read")
		ana, session := r.in(r.ana)
		r.ana.Rename("anna")
		r.bob.Rename("Ana") // GitHub's logins don't tell upper from lower case
		bob, _ := r.in(r.bob)
		if bob.Login() != "Ana" || bob.ID() == ana.ID() {
			t.Fatalf("%+v", bob)
		}
		who, err := r.Browser(t.Context(), session)
		if err != nil || who.ID() != ana.ID() || !strings.HasPrefix(who.Login(), "ana (id ") {
			t.Fatalf("who lost the login: %+v, %v", who, err)
		}
		r.may(who, r.repo)
		r.advance(2 * time.Hour) // GitHub is asked for the login now and then
		r.may(who, r.repo)
		if who, err = r.Browser(t.Context(), session); err != nil || who.Login() != "anna" {
			t.Fatalf("%+v, %v", who, err)
		}
	})
}

func TestSignInSaysWhatIsMissing(t *testing.T) {
	r := one(t, access.Options{})
	r.holder.Set(nil)
	_, _, err := r.BeginSignIn(t.Context(), "/")
	r.wants(fault.Refused, err)
	r.holder.Set(r.app())
	r.options.Seal = seal.New(r.db, seal.Keys{}, seal.Columns())
	_, _, err = r.another().BeginSignIn(t.Context(), "/")
	r.wants(fault.Refused, err)
	if !strings.Contains(err.Error(), "encryption key") {
		t.Errorf("got %q", err)
	}
}

func TestTroubleAtGitHubIsNoRefusal(t *testing.T) {
	r := one(t, access.Options{})
	for _, path := range []string{"/login/oauth/access_token", "/user/installations", "/repositories"} {
		mend := r.gh.Break(githubtest.Fault{Path: path, Status: http.StatusBadGateway})
		_, _, err := r.tryIn(r.ana)
		r.wants(fault.Unavailable, err)
		mend()
	}
	r.in(r.ana)
}

func TestNothingSecretOfASignInIsStoredInTheOpen(t *testing.T) { // facts/reliability.md P15
	each(t, func(t *testing.T, r *rig) {
		to, browser, err := r.BeginSignIn(t.Context(), "/")
		if err != nil {
			t.Fatal(err)
		}
		q := r.back(to, r.ana)
		_, session, _, err := r.FinishSignIn(t.Context(), browser, q.Get("state"), q.Get("code"))
		if err != nil {
			t.Fatal(err)
		}
		secrets := []string{browser, session, q.Get("state"), q.Get("code"), "ghu_", "ghr_"}
		r.write(func(tx *store.Tx) error {
			for _, table := range []string{"people", "credentials", "github_people", "sign_ins_finished", "audit_log"} {
				n := 0
				rows, err := tx.Rows(`SELECT * FROM ` + table)
				if err != nil {
					return err
				}
				defer rows.Close()
				columns, err := rows.Columns()
				if err != nil {
					return err
				}
				for rows.Next() {
					n++
					cells, into := make([]any, len(columns)), make([]any, len(columns))
					for i := range cells {
						into[i] = &cells[i]
					}
					if err := rows.Scan(into...); err != nil {
						return err
					}
					for i, c := range cells {
						text, _ := c.(string)
						if b, ok := c.([]byte); ok {
							text = string(b)
						}
						for _, s := range secrets {
							if strings.Contains(text, s) {
								t.Errorf("%s.%s holds a secret", table, columns[i])
							}
						}
					}
				}
				if err := rows.Close(); err != nil {
					return err
				}
				if n == 0 {
					t.Errorf("%s is empty: this test sees nothing", table)
				}
			}
			return nil
		})
	})
}

func TestDevLoginAndGitHubSideBySide(t *testing.T) {
	each(t, func(t *testing.T, r *rig) {
		r.options.DevLogin, r.options.DevRepos = true, []access.Repo{{ID: 1 << 40, Name: "octo/app", CloneURL: "file:///srv/app.git"}}
		r.Gate = r.another()
		ana, _ := r.in(r.ana)
		dev, _, err := r.SignInDev(t.Context(), "ana")
		if err != nil || dev.ID() == ana.ID() || dev.GitHubID() != 0 {
			t.Fatalf("%+v, %v", dev, err)
		}
		r.may(ana, r.repo)
		if g := r.may(dev, r.repo); g.Level() != "read" { // nobody knows them at GitHub
			t.Errorf("dev login has %q", g.Level())
		}
		if g, err := r.Repo(t.Context(), dev, 1<<40); err != nil || g.Level() != "admin" {
			t.Errorf("%+v, %v", g, err)
		}
		if _, err := r.Repo(t.Context(), ana, 1<<40); err != access.ErrNotFound { //nolint:errorlint // the very same answer
			t.Errorf("a Repo of the config is not GitHub's to give: %v", err)
		}
		repos, err := r.Repos(t.Context(), ana)
		if err != nil || len(repos) != 1 || repos[0].ID != r.id() {
			t.Errorf("%+v, %v", repos, err)
		}
		if all, err := r.Repos(t.Context(), dev); err != nil || len(all) != 2 {
			t.Errorf("%+v, %v", all, err)
		}
	})
}

func TestTheConfigsRepoIsNeverGitHubsOfTheSameID(t *testing.T) {
	t.Parallel()
	r := newRig(t, storetest.New(t), githubtest.Options{}, githubtest.AppOptions{}, access.Options{})
	r.options.DevRepos = []access.Repo{{ID: r.id(), Name: "acme/rocket", CloneURL: "file:///srv/rocket.git"}}
	r.Gate = r.another()
	ana, _ := r.in(r.ana)
	r.mayNot(ana, r.repo)
	if err := r.RepoIs(t.Context(), github.Repository{ID: r.id(), FullName: "octo/app"}); err != nil {
		t.Fatal(err)
	}
	if err := r.db.Read(t.Context(), func(tx *store.Tx) error {
		repo, err := access.ReadRepo(tx, r.id())
		if err == nil && (!repo.Dev || repo.Name != "acme/rocket") {
			t.Errorf("the config's Repo became %+v", repo)
		}
		return err
	}); err != nil {
		t.Fatal(err)
	}
}
