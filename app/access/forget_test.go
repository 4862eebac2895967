package access_test

import (
	"context"
	"net/http"
	"sync"
	"testing"
	"time"

	"github.com/claude-hub/claude-hub/app/access"
	"github.com/claude-hub/claude-hub/app/fault"
	"github.com/claude-hub/claude-hub/app/github"
	"github.com/claude-hub/claude-hub/app/github/githubtest"
	"github.com/claude-hub/claude-hub/store"
)

// ended waits for a context that should end without anybody's clock moving.
func ended(t *testing.T, what string, ctx context.Context) {
	t.Helper()
	eventually(t, what, func() bool { return ctx.Err() != nil })
}

func TestWhatAWebhookTellsToForgetIsAskedForAtTheNextCheck(t *testing.T) {
	for name, c := range map[string]struct {
		lose func(r *rig)
		told func(ctx context.Context, r *rig) error
	}{
		"person":       {func(r *rig) { r.repo.Allow(r.ana, "") }, func(ctx context.Context, r *rig) error { return r.ForgetPerson(ctx, r.ana.ID) }},
		"repo":         {func(r *rig) { r.inst.Drop(r.repo) }, func(ctx context.Context, r *rig) error { return r.ForgetRepo(ctx, r.id()) }},
		"installation": {func(r *rig) { r.inst.Suspend(true) }, func(ctx context.Context, r *rig) error { return r.ForgetInstallation(ctx, r.inst.ID) }},
		"removed":      {func(r *rig) { r.inst.Remove() }, func(ctx context.Context, r *rig) error { return r.ForgetInstallation(ctx, r.inst.ID) }},
		"account":      {func(r *rig) { r.repo.Allow(r.ana, "") }, func(ctx context.Context, r *rig) error { return r.ForgetAccount(ctx, r.org.ID) }},
	} {
		t.Run(name, func(t *testing.T) {
			each(t, func(t *testing.T, r *rig) {
				mine := r.gh.Repo("ana/own", true, nil)
				r.gh.Install(r.cred.ID, r.ana, r.ana)
				ana, _ := r.in(r.ana)
				held, release := r.Hold(t.Context(), r.may(ana, r.repo))
				defer release()
				kept, release := r.Hold(t.Context(), r.may(ana, mine))
				defer release()

				// Told for nothing, nothing changes.
				if err := c.told(t.Context(), r); err != nil {
					t.Fatal(err)
				}
				r.may(ana, r.repo)
				if held.Err() != nil {
					t.Fatal("access that was confirmed was taken for lost")
				}
				c.lose(r)
				asked := r.asked()
				if err := c.told(t.Context(), r); err != nil {
					t.Fatal(err)
				}
				ended(t, "the stream ends", held)
				if n := r.asked() - asked; n != 1 {
					t.Errorf("GitHub was asked %d times", n)
				}
				r.mayNot(ana, r.repo)
				r.may(ana, mine)
				if kept.Err() != nil {
					t.Error("the stream of another Repo ended too")
				}
			})
		})
	}
}

func TestWhatIsForgottenIsNoAccessWhileGitHubIsDown(t *testing.T) {
	each(t, func(t *testing.T, r *rig) {
		r.other.Allow(r.ana, "read")
		r.inst.Add(r.other)
		ana, _ := r.in(r.ana)
		mend := r.gh.Break(githubtest.Fault{Status: http.StatusServiceUnavailable})
		if err := r.ForgetRepo(t.Context(), r.id()); err != nil {
			t.Fatal(err)
		}
		_, err := r.Repo(access.Reading(t.Context()), ana, r.id())
		r.wants(fault.Unavailable, err)
		if g, err := r.Repo(access.Reading(t.Context()), ana, github.RepoID(r.other.ID)); err != nil || !g.Stale() {
			t.Fatalf("of the other Repo nothing was told: %+v, %v", g, err)
		}
		mend()
		r.advance(11 * time.Second)
		r.may(ana, r.repo)
	})
}

func TestWhatIsToldWhileGitHubAnswersIsNotLost(t *testing.T) {
	each(t, func(t *testing.T, r *rig) {
		ana, _ := r.in(r.ana)
		r.advance(6 * time.Minute)
		asked := r.asked()
		r.gh.Break(githubtest.Fault{Path: "/user/installations", Times: 1, Delay: 500 * time.Millisecond}) // the answer is made before the delay
		first := make(chan error, 1)
		go func() {
			_, err := r.Repo(t.Context(), ana, r.id())
			first <- err
		}()
		eventually(t, "GitHub is asked", func() bool { return r.asked() > asked })
		r.repo.Allow(r.ana, "")
		if err := r.ForgetPerson(t.Context(), r.ana.ID); err != nil {
			t.Fatal(err)
		}
		<-first
		r.mayNot(ana, r.repo)
	})
}

func TestForgettingNeverRefusesWhoHasAccess(t *testing.T) {
	each(t, func(t *testing.T, r *rig) {
		ana, session := r.in(r.ana)
		held, release := r.Hold(t.Context(), r.may(ana, r.repo))
		defer release()
		var wg sync.WaitGroup
		for range 4 {
			wg.Add(1)
			go func() {
				defer wg.Done()
				for range 15 {
					if _, err := r.Repo(t.Context(), ana, r.id()); err != nil {
						t.Errorf("refused: %v", err)
					}
					if _, err := r.Browser(t.Context(), session); err != nil {
						t.Errorf("signed out: %v", err)
					}
				}
			}()
		}
		for i := range 30 {
			forget := func() error { return r.ForgetPerson(t.Context(), r.ana.ID) }
			if i%2 == 0 {
				forget = func() error { return r.ForgetRepo(t.Context(), r.id()) }
			}
			if err := forget(); err != nil {
				t.Error(err)
			}
		}
		wg.Wait()
		if held.Err() != nil {
			t.Error("the stream ended")
		}
	})
}

func TestAHeldGrantEndsWithWhatThePersonCameWith(t *testing.T) {
	each(t, func(t *testing.T, r *rig) {
		ana, session := r.in(r.ana)
		secret, made, err := r.CreateToken(t.Context(), ana, access.TokenOptions{Name: "t", Scopes: access.Scopes(), Life: time.Hour})
		if err != nil {
			t.Fatal(err)
		}
		byToken, err := r.Token(t.Context(), secret)
		if err != nil {
			t.Fatal(err)
		}
		second, _ := r.in(r.ana)
		hold := func(who access.Person) context.Context {
			ctx, release := r.Hold(t.Context(), r.may(who, r.repo))
			t.Cleanup(release)
			return ctx
		}
		browser, token, other := hold(ana), hold(byToken), hold(second)
		if err := r.SignOut(t.Context(), session); err != nil {
			t.Fatal(err)
		}
		ended(t, "the stream of the browser that signed out ends", browser)
		if err := r.RevokeToken(t.Context(), second, made.ID); err != nil {
			t.Fatal(err)
		}
		ended(t, "the stream of the token ends", token)
		if other.Err() != nil {
			t.Fatal("another browser's stream ended")
		}
		if n, err := r.Browsers(t.Context(), second); err != nil || n != 1 {
			t.Fatalf("%d sessions, %v", n, err)
		}
		if err := r.SignOutEverywhere(t.Context(), second); err != nil {
			t.Fatal(err)
		}
		ended(t, "the last stream ends", other)
		if n, err := r.Browsers(t.Context(), second); err != nil || n != 0 {
			t.Fatalf("%d sessions, %v", n, err)
		}
	})
}

func TestRevokedAsGitHubSeesItNow(t *testing.T) {
	each(t, func(t *testing.T, r *rig) {
		if err := r.Revoked(t.Context(), 12345); err != nil { // who never was here
			t.Fatal(err)
		}
		ana, session := r.in(r.ana)
		held, release := r.Hold(t.Context(), r.may(ana, r.repo))
		defer release()
		if err := r.Revoked(t.Context(), r.ana.ID); err != nil { // an event from before this sign-in
			t.Fatal(err)
		}
		if _, err := r.Browser(t.Context(), session); err != nil || held.Err() != nil {
			t.Fatalf("GitHub knows the tokens: %v", err)
		}
		r.gh.Unauthorize(r.cred.ID, r.ana)
		mend := r.gh.Break(githubtest.Fault{Status: http.StatusBadGateway})
		r.wants(fault.Unavailable, r.Revoked(t.Context(), r.ana.ID))
		_, err := r.Browser(t.Context(), session)
		r.wants(fault.Unavailable, err)
		mend()
		r.advance(11 * time.Second)
		if err := r.Revoked(t.Context(), r.ana.ID); err != nil {
			t.Fatal(err)
		}
		_, err = r.Browser(t.Context(), session)
		r.wants(fault.Unauthorized, err)
		ended(t, "the stream ends", held)
		n := 0
		r.write(func(tx *store.Tx) error {
			return tx.Row(`SELECT count(*) FROM github_people WHERE tokens IS NOT NULL`).Scan(&n)
		})
		if n != 0 {
			t.Error("the tokens are still there")
		}
	})
}

func TestARenamedRepoIsTheSameAndItsOldNameInheritsNothing(t *testing.T) { // facts/github.md §4, 17
	each(t, func(t *testing.T, r *rig) {
		ana, _ := r.in(r.ana)
		event := github.Repository{ID: r.id(), FullName: "octo/moon", Owner: github.Account{ID: r.org.ID}, DefaultBranch: "main", Private: true}
		r.repo.Rename("moon")
		if err := r.RepoIs(t.Context(), event); err != nil {
			t.Fatal(err)
		}
		if g, err := r.Named(t.Context(), ana, "Octo/MOON"); err != nil || g.Repo().ID != r.id() || g.Repo().CloneURL != r.repo.CloneURL() {
			t.Fatalf("%+v, %v", g, err)
		}
		if _, err := r.Named(t.Context(), ana, "octo/app"); err != access.ErrNotFound { //nolint:errorlint // the very same answer
			t.Fatalf("the old name: %v", err)
		}
		// Another one takes the old name, and ana has nothing to do with it.
		taker := r.gh.Repo("octo/app", true, nil)
		r.inst.Add(taker)
		taker.Allow(r.bob, "admin")
		bob, _ := r.in(r.bob)
		r.mayNot(ana, taker)
		if _, err := r.Named(t.Context(), ana, "octo/app"); err != access.ErrNotFound { //nolint:errorlint // as above
			t.Fatalf("the old name: %v", err)
		}
		if g, err := r.Named(t.Context(), bob, "octo/app"); err != nil || g.Repo().ID != github.RepoID(taker.ID) {
			t.Fatalf("%+v, %v", g, err)
		}
		// An event that comes late brings no old name back.
		late := event
		late.FullName = "octo/app"
		if err := r.RepoIs(t.Context(), late); err != nil {
			t.Fatal(err)
		}
		if g := r.may(ana, r.repo); g.Repo().Name != "octo/moon" {
			t.Fatalf("it is called %s", g.Repo().Name)
		}
		// What is known already costs no question.
		before := len(r.gh.Requests())
		if err := r.RepoIs(t.Context(), event); err != nil {
			t.Fatal(err)
		}
		if n := len(r.gh.Requests()); n != before {
			t.Errorf("GitHub was asked %d times", n-before)
		}
	})
}

func TestOfTwoReposWithOneNameTheOneSeenLastHasIt(t *testing.T) {
	each(t, func(t *testing.T, r *rig) {
		ana, _ := r.in(r.ana)
		r.advance(time.Minute)
		r.repo.Rename("moon") // nobody tells
		taker := r.gh.Repo("octo/app", true, nil)
		r.inst.Add(taker)
		taker.Allow(r.bob, "read")
		r.in(r.bob)
		if _, err := r.Named(t.Context(), ana, "octo/app"); err != access.ErrNotFound { //nolint:errorlint // the very same answer
			t.Fatalf("the name is another's: %v", err)
		}
		r.may(ana, r.repo)
		// And the name comes back.
		r.advance(time.Minute)
		taker.Delete()
		r.repo.Rename("app")
		r.advance(6 * time.Minute)
		if g, err := r.Named(t.Context(), ana, "octo/app"); err != nil || g.Repo().ID != r.id() {
			t.Fatalf("%+v, %v", g, err)
		}
	})
}

func TestATransferredRepoIsNobodysUntilGitHubListsItAgain(t *testing.T) {
	each(t, func(t *testing.T, r *rig) {
		ana, _ := r.in(r.ana)
		to := r.gh.Org("lunar")
		r.gh.Install(r.cred.ID, to, r.bob)
		r.repo.Transfer(to)
		if err := r.RepoIs(t.Context(), github.Repository{ID: r.id(), FullName: "lunar/app", Owner: github.Account{ID: to.ID}}); err != nil {
			t.Fatal(err)
		}
		r.mayNot(ana, r.repo)
		r.repo.Allow(r.ana, "read")
		r.advance(31 * time.Second)
		if g := r.may(ana, r.repo); g.Repo().Account != to.ID || g.Repo().Name != "lunar/app" {
			t.Errorf("%+v", g.Repo())
		}
	})
}

func TestRepoIsOfWhatNobodyOpenedAndOfWhatIsGone(t *testing.T) {
	each(t, func(t *testing.T, r *rig) {
		if err := r.RepoIs(t.Context(), github.Repository{ID: r.id()}); err != nil {
			t.Fatal(err)
		}
		read := func() (repo access.Repo, err error) {
			err = r.db.Read(t.Context(), func(tx *store.Tx) (err error) {
				repo, err = access.ReadRepo(tx, r.id())
				return err
			})
			return repo, err
		}
		if repo, err := read(); err != nil || repo.Name != "octo/app" || repo.Installation != r.inst.ID || repo.Account != r.org.ID || !repo.Private {
			t.Fatalf("%+v, %v", repo, err)
		}
		ana, _ := r.in(r.ana)
		r.repo.Archive(true)
		if err := r.RepoIs(t.Context(), github.Repository{ID: r.id(), FullName: "octo/app", Archived: true}); err != nil {
			t.Fatal(err)
		}
		if g := r.may(ana, r.repo); !g.Repo().Archived {
			t.Error("it is archived")
		}
		mend := r.gh.Break(githubtest.Fault{Status: http.StatusBadGateway})
		r.wants(fault.Unavailable, r.RepoIs(t.Context(), github.Repository{ID: r.id(), FullName: "octo/x"}))
		mend()
		r.inst.Drop(r.repo)
		if err := r.RepoIs(t.Context(), github.Repository{ID: r.id(), FullName: "octo/x"}); err != nil {
			t.Fatal(err)
		}
		r.mayNot(ana, r.repo)
		if _, err := read(); err != nil {
			t.Errorf("the Hub keeps its Environment, so it stays known: %v", err)
		}
	})
}

func TestSystemActsForNobody(t *testing.T) {
	r := one(t, access.Options{})
	g := access.System(access.Repo{ID: r.id()}, "merged by a bot")
	if g.Actor() != "system: merged by a bot" || g.Who().ID() != "" || g.Level() != "" || g.Repo().ID != r.id() {
		t.Errorf("%+v", g)
	}
	held, release := r.Hold(t.Context(), g)
	if held.Err() != nil {
		t.Error("it is held until its end")
	}
	release()
	<-held.Done()
}

func TestSenderPassesTheSameGate(t *testing.T) {
	each(t, func(t *testing.T, r *rig) {
		for what, id := range map[string]int64{"who never signed in": r.ana.ID, "a bot": r.gh.Bot("merge").ID, "nobody": 0} {
			if _, err := r.Sender(t.Context(), id, r.id()); err != access.ErrNotFound { //nolint:errorlint // the very same answer
				t.Errorf("%s: %v", what, err)
			}
		}
		ana, session := r.in(r.ana)
		if err := r.SignOut(t.Context(), session); err != nil { // of the browser, not of what the Hub may ask in her name
			t.Fatal(err)
		}
		g, err := r.Sender(t.Context(), r.ana.ID, r.id())
		if err != nil || g.Who().ID() != ana.ID() || g.Actor() != ana.ID() || g.Level() != "write" {
			t.Fatalf("%+v, %v", g, err)
		}
		if _, err := r.Sender(t.Context(), r.ana.ID, github.RepoID(r.other.ID)); err != access.ErrNotFound { //nolint:errorlint // as above
			t.Errorf("of another Repo: %v", err)
		}
		r.repo.Allow(r.ana, "")
		r.advance(6 * time.Minute)
		if _, err := r.Sender(t.Context(), r.ana.ID, r.id()); err != access.ErrNotFound { //nolint:errorlint // as above
			t.Errorf("without access: %v", err)
		}
		r.advance(6 * time.Minute)
		defer r.gh.Break(githubtest.Fault{Status: http.StatusBadGateway})()
		_, err = r.Sender(t.Context(), r.ana.ID, r.id())
		r.wants(fault.Unavailable, err)
	})
}
