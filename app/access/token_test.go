package access_test

import (
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/claude-hub/claude-hub/app/access"
	"github.com/claude-hub/claude-hub/app/fault"
	"github.com/claude-hub/claude-hub/app/github"
	"github.com/claude-hub/claude-hub/app/seal"
	"github.com/claude-hub/claude-hub/store"
)

func TestATokenDoesWhatItsScopesAndReposSay(t *testing.T) {
	each(t, func(t *testing.T, r *rig) {
		r.other.Allow(r.ana, "read")
		r.inst.Add(r.other)
		ana, _ := r.in(r.ana)
		secret, made, err := r.CreateToken(t.Context(), ana, access.TokenOptions{
			Name: "  ci ", Scopes: []access.Scope{access.ScopeSessions, access.ScopeRead, access.ScopeRead}, Repos: []github.RepoID{r.id(), r.id()}, Life: 24 * time.Hour,
		})
		if err != nil {
			t.Fatal(err)
		}
		if made.Name != "ci" || !slices.Equal(made.Scopes, []access.Scope{access.ScopeRead, access.ScopeSessions}) || !slices.Equal(made.Repos, []github.RepoID{r.id()}) ||
			!made.Expires.Equal(r.clock.Now().Add(24*time.Hour)) || strings.Contains(secret, made.ID) {
			t.Errorf("%+v", made)
		}
		who, err := r.Token(t.Context(), secret)
		if err != nil || who.ID() != ana.ID() || !who.ByToken() || who.GitHubID() != r.ana.ID {
			t.Fatalf("%+v, %v", who, err)
		}
		for s, can := range map[access.Scope]bool{
			access.ScopeRead: true, access.ScopeSessions: true, access.ScopeEnvironments: false, access.ScopeShared: false, access.ScopeRunners: false, "": false,
		} {
			if who.Can(s) != can {
				t.Errorf("%q: %v", s, !can)
			}
		}
		r.may(who, r.repo)
		r.may(ana, r.other)
		r.mayNot(who, r.other)
		if _, err := r.Named(t.Context(), who, "octo/other"); err != access.ErrNotFound { //nolint:errorlint // the very same answer
			t.Errorf("by name: %v", err)
		}
		if repos, err := r.Repos(t.Context(), who); err != nil || len(repos) != 1 || repos[0].ID != r.id() {
			t.Errorf("%+v, %v", repos, err)
		}
		// Only as good as the person's access now.
		r.repo.Allow(r.ana, "")
		r.advance(6 * time.Minute)
		if _, err := r.Token(t.Context(), secret); err != nil {
			t.Fatal(err)
		}
		r.mayNot(who, r.repo)
	})
}

func TestTokensAreListedAndRevoked(t *testing.T) {
	each(t, func(t *testing.T, r *rig) {
		r.repo.Allow(r.bob, "read")
		ana, _ := r.in(r.ana)
		bob, _ := r.in(r.bob)
		make := func(name string, life time.Duration) (string, access.Token) {
			t.Helper()
			secret, made, err := r.CreateToken(t.Context(), ana, access.TokenOptions{Name: name, Scopes: access.Scopes(), Life: life})
			if err != nil {
				t.Fatal(err)
			}
			return secret, made
		}
		short, _ := make("short", time.Hour)
		r.advance(time.Minute)
		long, kept := make("long", access.MaxTokenLife)
		r.advance(30 * time.Minute)
		if _, err := r.Token(t.Context(), long); err != nil {
			t.Fatal(err)
		}
		all, err := r.Tokens(t.Context(), ana)
		if err != nil || len(all) != 2 || all[0].Name != "long" || all[0].ID != kept.ID || all[0].Repos != nil || !slices.Equal(all[0].Scopes, kept.Scopes) {
			t.Fatalf("%+v, %v", all, err)
		}
		if !all[0].Used.Equal(r.clock.Now()) || !all[0].Created.Equal(kept.Created) || !all[1].Used.Equal(all[1].Created) {
			t.Errorf("last used: %+v", all)
		}
		if others, err := r.Tokens(t.Context(), bob); err != nil || len(others) != 0 {
			t.Errorf("bob has %+v, %v", others, err)
		}
		r.wants(fault.NotFound, r.RevokeToken(t.Context(), bob, kept.ID))
		r.wants(fault.NotFound, r.RevokeToken(t.Context(), ana, ""))
		r.advance(time.Hour)
		_, err = r.Token(t.Context(), short)
		r.wants(fault.Unauthorized, err)
		if all, err := r.Tokens(t.Context(), ana); err != nil || len(all) != 1 {
			t.Errorf("an expired one is listed: %+v, %v", all, err)
		}
		if err := r.SignOutEverywhere(t.Context(), ana); err != nil {
			t.Fatal(err)
		}
		if _, err := r.Token(t.Context(), long); err != nil {
			t.Errorf("tokens stay when browsers are signed out: %v", err)
		}
		if err := r.RevokeToken(t.Context(), ana, kept.ID); err != nil {
			t.Fatal(err)
		}
		_, err = r.Token(t.Context(), long)
		r.wants(fault.Unauthorized, err)
		r.write(func(tx *store.Tx) error {
			actions, err := store.All(tx, store.Scan1[string], `SELECT action FROM audit_log WHERE who = $1 ORDER BY id`, ana.ID())
			if want := []string{"sign-in.browser", "token.create", "token.create", "sign-out.everywhere", "token.revoke"}; !slices.Equal(actions, want) {
				t.Errorf("the audit log has %q", actions)
			}
			return err
		})
	})
}

func TestWhatIsWrongWithATokenIsSaid(t *testing.T) {
	r := one(t, access.Options{})
	ana, _ := r.in(r.ana)
	good := access.TokenOptions{Name: "t", Scopes: []access.Scope{access.ScopeRead}, Life: time.Hour}
	for field, change := range map[string]func(*access.TokenOptions){
		"name":   func(o *access.TokenOptions) { o.Name = "  " },
		"scopes": func(o *access.TokenOptions) { o.Scopes = nil },
		"life":   func(o *access.TokenOptions) { o.Life = access.MaxTokenLife + time.Second },
		"repos":  func(o *access.TokenOptions) { o.Repos = []github.RepoID{github.RepoID(r.other.ID)} },
	} {
		o := good
		change(&o)
		_, _, err := r.CreateToken(t.Context(), ana, o)
		r.wants(fault.Invalid, err)
		if fault.Of(err).Fields[field] == "" {
			t.Errorf("%s: %v", field, err)
		}
	}
	o := good
	o.Scopes = []access.Scope{"admin"}
	_, _, err := r.CreateToken(t.Context(), ana, o)
	r.wants(fault.Invalid, err)
	_, _, err = r.CreateToken(t.Context(), access.Person{}, good)
	r.wants(fault.Unauthorized, err)
	for range 100 {
		if _, _, err := r.CreateToken(t.Context(), ana, good); err != nil {
			t.Fatal(err)
		}
	}
	_, _, err = r.CreateToken(t.Context(), ana, good)
	r.wants(fault.Refused, err)
}

func TestATokenMakesNoneThatCanDoMore(t *testing.T) {
	r := one(t, access.Options{})
	r.other.Allow(r.ana, "read")
	r.inst.Add(r.other)
	ana, _ := r.in(r.ana)
	secret, _, err := r.CreateToken(t.Context(), ana, access.TokenOptions{
		Name: "t", Scopes: []access.Scope{access.ScopeRead, access.ScopeSessions}, Repos: []github.RepoID{r.id()}, Life: time.Hour,
	})
	if err != nil {
		t.Fatal(err)
	}
	who, err := r.Token(t.Context(), secret)
	if err != nil {
		t.Fatal(err)
	}
	within := access.TokenOptions{Name: "child", Scopes: []access.Scope{access.ScopeRead}, Repos: []github.RepoID{r.id()}, Life: time.Hour}
	for field, change := range map[string]func(*access.TokenOptions){
		"scopes": func(o *access.TokenOptions) { o.Scopes = []access.Scope{access.ScopeShared} },
		"life":   func(o *access.TokenOptions) { o.Life = 2 * time.Hour },
		"repos":  func(o *access.TokenOptions) { o.Repos = nil },
	} {
		o := within
		change(&o)
		_, _, err := r.CreateToken(t.Context(), who, o)
		r.wants(fault.Invalid, err)
		if fault.Of(err).Fields[field] == "" {
			t.Errorf("%s: %v", field, err)
		}
	}
	o := within
	o.Repos = []github.RepoID{github.RepoID(r.other.ID)}
	_, _, err = r.CreateToken(t.Context(), who, o)
	r.wants(fault.Invalid, err)
	if _, _, err := r.CreateToken(t.Context(), who, within); err != nil {
		t.Fatal(err)
	}
}

func TestATokenOfDevLoginCanDoEverything(t *testing.T) {
	r := one(t, access.Options{DevLogin: true})
	_, secret, err := r.IssueToken(t.Context(), "ana", "laptop", time.Hour)
	if err != nil {
		t.Fatal(err)
	}
	who, err := r.Token(t.Context(), secret)
	if err != nil {
		t.Fatal(err)
	}
	for _, s := range access.Scopes() {
		if !who.Can(s) {
			t.Errorf("it lacks %s", s)
		}
	}
	all, err := r.Tokens(t.Context(), who)
	if err != nil || len(all) != 1 || all[0].Name != "laptop" {
		t.Errorf("%+v, %v", all, err)
	}
}

func TestPeoplesTokensAtGitHubAreRotatedAndLostWithTheirKey(t *testing.T) {
	each(t, func(t *testing.T, r *rig) {
		ana, session := r.in(r.ana)
		two := seal.New(r.db, keys(t, 2), seal.Columns())
		both, err := seal.ParseKeys(seal.Given{Text: keyText(2)}, seal.Given{Text: keyText(1)})
		if err != nil {
			t.Fatal(err)
		}
		r.write(func(tx *store.Tx) error { // the Hub with the first key alone has ended
			_, err := tx.Exec(`DELETE FROM encryption_hubs`)
			return err
		})
		rotating := seal.New(r.db, both, seal.Columns())
		if err := rotating.Start(t.Context(), "rotating"); err != nil {
			t.Fatal(err)
		}
		if done, err := rotating.Rotate(t.Context(), nil); err != nil || len(done.Retired) != 1 {
			t.Fatalf("%+v, %v", done, err)
		}
		r.options.Seal = two
		r.Gate = r.another()
		r.advance(6 * time.Minute)
		r.may(ana, r.repo)

		three := seal.New(r.db, keys(t, 3), seal.Columns())
		var lost *seal.LostError
		if err := three.Check(t.Context()); !errors.As(err, &lost) {
			t.Fatalf("the key is lost: %v", err)
		}
		if _, err := three.Reset(t.Context(), false, func(*store.Tx, seal.Cleared) error { return nil }); err != nil {
			t.Fatal(err)
		}
		if err := three.Start(t.Context(), "after the reset"); err != nil {
			t.Fatal(err)
		}
		r.options.Seal = three
		r.Gate = r.another()
		_, err = r.Browser(t.Context(), session)
		r.wants(fault.Unauthorized, err)
		_, err = r.Repo(t.Context(), ana, r.id())
		r.wants(fault.Unauthorized, err)
		again, _ := r.in(r.ana)
		r.may(again, r.repo)
	})
}

func TestEnteringARepo(t *testing.T) {
	each(t, func(t *testing.T, r *rig) {
		public := r.gh.Repo("octo/public", false, nil)
		installed := r.gh.Repo("octo/installed", false, nil)
		r.gh.Repo("octo/private", true, nil)
		hidden := r.gh.Repo("octo/hidden", true, nil)
		r.inst.Add(installed, hidden)
		ana, _ := r.in(r.ana)
		web := r.gh.URLs().Web
		host, _, _ := strings.Cut(strings.TrimPrefix(web, "http://"), ":")
		for _, text := range []string{
			"octo/app", " Octo/App ", "octo/app.git", web + "/octo/app", web + "/octo/app.git", web + "/octo/app/tree/main/docs", web + "/octo/app/",
			"git@" + host + ":octo/app.git", "ssh://git@" + host + "/octo/app.git",
		} {
			if e, err := r.Enter(t.Context(), ana, text); err != nil || !e.OK || e.Grant.Repo().ID != r.id() || e.Message != "" {
				t.Errorf("%q: %+v, %v", text, e, err)
			}
		}
		const no = "You have no access to it, or the App isn't installed on it."
		for text, want := range map[string]struct {
			message      string
			notInstalled bool
		}{
			"octo/public":    {"The App isn't installed on it.", true},
			"octo/installed": {no, false}, // everybody can see it, and that is no access
			"octo/private":   {no, false},
			"octo/hidden":    {no, false},
			"octo/absent":    {no, false},
			"nobody/absent":  {no, false},
		} {
			e, err := r.Enter(t.Context(), ana, text)
			if err != nil || e.OK || e.NotInstalled != want.notInstalled || e.Message != want.message || !strings.Contains(e.InstallURL, r.cred.Slug) {
				t.Errorf("%q: %+v, %v", text, e, err)
			}
		}
		for _, text := range []string{
			"", "octo", "octo/", "/octo/app", "octo/app/x", "../app", "octo/..", "octo/.", "--upload-pack=x/y", "octo/a b", "file:///octo/app", "https://evil.example/octo/app",
			"git@evil.example:octo/app", "octo/" + strings.Repeat("a", 200), "javascript:alert(1)", "octo/app\x00", "https://" + host + "/octo", "$(x)/y",
		} {
			_, err := r.Enter(t.Context(), ana, text)
			r.wants(fault.Invalid, err)
			if fault.Of(err).Fields["repo"] == "" {
				t.Errorf("%q: %v", text, err)
			}
		}
		// Installed a moment ago, and renamed: what was typed is still what somebody knows it by.
		r.inst.Add(public)
		public.Allow(r.ana, "read")
		public.Rename("open")
		r.advance(31 * time.Second)
		if e, err := r.Enter(t.Context(), ana, "octo/public"); err != nil || !e.OK || e.Grant.Repo().Name != "octo/open" {
			t.Errorf("%+v, %v", e, err)
		}
	})
}

func TestEnteringWithoutGitHubAsksNothing(t *testing.T) {
	r := one(t, access.Options{DevLogin: true, DevRepos: []access.Repo{{ID: 1 << 40, Name: "acme/rocket", CloneURL: "file:///srv/rocket.git"}}})
	dev, _, err := r.SignInDev(t.Context(), "ana")
	if err != nil {
		t.Fatal(err)
	}
	if e, err := r.Enter(t.Context(), dev, "acme/rocket"); err != nil || !e.OK {
		t.Fatalf("%+v, %v", e, err)
	}
	if e, err := r.Enter(t.Context(), dev, "octo/app"); err != nil || e.OK || e.Message == "" {
		t.Fatalf("%+v, %v", e, err)
	}
	ana, _ := r.in(r.ana)
	secret, _, err := r.CreateToken(t.Context(), ana, access.TokenOptions{Name: "t", Scopes: access.Scopes(), Repos: []github.RepoID{r.id()}, Life: time.Hour})
	if err != nil {
		t.Fatal(err)
	}
	limited, err := r.Token(t.Context(), secret)
	if err != nil {
		t.Fatal(err)
	}
	before := len(r.gh.Requests())
	if e, err := r.Enter(t.Context(), limited, "octo/other"); err != nil || e.OK || e.NotInstalled {
		t.Fatalf("%+v, %v", e, err)
	}
	if n := len(r.gh.Requests()); n != before {
		t.Errorf("a token for some Repos asked GitHub %d times about another", n-before)
	}
}

func TestEnteringWhileTheTokensAreExchanged(t *testing.T) {
	r := one(t, access.Options{})
	ana, _ := r.in(r.ana)
	old, err := r.TokensOf(t.Context(), ana.ID())
	if err != nil {
		t.Fatal(err)
	}
	if _, err := r.app().Refresh(t.Context(), old.Refresh); err != nil { // what is stored is dead, and so is its successor
		t.Fatal(err)
	}
	_, err = r.Enter(t.Context(), ana, "octo/other")
	r.wants(fault.Unauthorized, err)
	ana, _ = r.in(r.ana)
	r.gh.Advance(9 * time.Hour) // the access token ends before the Hub's clock says so
	if e, err := r.Enter(t.Context(), ana, "octo/other"); err != nil || e.OK {
		t.Fatalf("%+v, %v", e, err)
	}
}

func TestInstallationsAreTheOnesGitHubShowsThePerson(t *testing.T) {
	each(t, func(t *testing.T, r *rig) {
		r.gh.Install(r.cred.ID, r.bob, r.bob)
		ana, _ := r.in(r.ana)
		all, err := r.Installations(t.Context(), ana)
		if err != nil || len(all) != 1 || all[0].ID != r.inst.ID || all[0].Account.ID != r.org.ID {
			t.Fatalf("%+v, %v", all, err)
		}
		fresh := r.gh.Repo("octo/fresh", true, nil)
		fresh.Allow(r.ana, "read")
		r.inst.Add(fresh)
		if _, err := r.Installations(t.Context(), ana); err != nil {
			t.Fatal(err)
		}
		r.may(ana, fresh) // who comes back from installing it needn't wait
	})
}
