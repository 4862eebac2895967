package access_test

import (
	"context"
	"fmt"
	"net/http"
	"slices"
	"sync"
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

func TestAccessIsAskedForAgainOnceTheAnswerIsOld(t *testing.T) {
	each(t, func(t *testing.T, r *rig) {
		ana, _ := r.in(r.ana)
		before := r.asked()
		r.repo.Allow(r.ana, "") // nobody tells the Hub
		r.advance(5 * time.Minute)
		r.may(ana, r.repo)
		if n := r.asked(); n != before {
			t.Fatalf("GitHub was asked %d times about what was known", n-before)
		}
		r.advance(time.Second)
		r.mayNot(ana, r.repo)
		if n := r.asked(); n != before+1 {
			t.Fatalf("GitHub was asked %d times, want once", n-before)
		}
		r.repo.Allow(r.ana, "read")
		r.advance(5*time.Minute + time.Second)
		if g := r.may(ana, r.repo); g.Level() != "read" || !g.AsOf().Equal(r.clock.Now()) {
			t.Errorf("%+v", g)
		}
	})
}

func TestARefusalIsAskedAgainAtMostEachHalfMinute(t *testing.T) {
	each(t, func(t *testing.T, r *rig) {
		forbidden := r.gh.Repo("octo/forbidden", true, nil)
		r.inst.Add(forbidden)
		ana, _ := r.in(r.ana)
		absent := github.RepoID(1 << 50)
		for _, id := range []github.RepoID{absent, github.RepoID(r.other.ID), github.RepoID(forbidden.ID)} { // not there, not installed, not theirs
			before := r.asked()
			for range 10 {
				for range 3 {
					if _, err := r.Repo(t.Context(), ana, id); err != access.ErrNotFound { //nolint:errorlint // the very same answer
						t.Fatal(err)
					}
				}
				r.advance(11 * time.Second)
			}
			if n := r.asked() - before; n != 3 && n != 4 {
				t.Errorf("Repo %d: GitHub was asked %d times in 110 s", id, n)
			}
		}
		r.inst.Add(r.other)
		r.advance(31 * time.Second)
		r.may(ana, r.other)
	})
}

func TestTheSameStatementsRunForAbsentForbiddenAndUninstalled(t *testing.T) { // facts/reliability.md P31
	each(t, func(t *testing.T, r *rig) {
		forbidden := r.gh.Repo("octo/forbidden", true, nil)
		r.inst.Add(forbidden)
		r.other.Allow(r.bob, "read")
		r.inst.Add(r.other)
		forbidden.Allow(r.bob, "read")
		r.in(r.bob) // so that the Hub knows both
		r.inst.Drop(r.other)
		ana, _ := r.in(r.ana)
		limited, _, err := r.CreateToken(t.Context(), ana, access.TokenOptions{Name: "t", Scopes: access.Scopes(), Repos: []github.RepoID{r.id()}, Life: time.Hour})
		if err != nil {
			t.Fatal(err)
		}
		byToken, err := r.Token(t.Context(), limited)
		if err != nil {
			t.Fatal(err)
		}
		for _, age := range []time.Duration{0, 31 * time.Second, 6 * time.Minute} {
			for name, who := range map[string]access.Person{"browser": ana, "token": byToken} {
				ask := map[string]func(context.Context) error{}
				for kind, repo := range map[string]struct {
					id   github.RepoID
					name string
				}{
					"absent": {1 << 50, "octo/absent"}, "forbidden": {github.RepoID(forbidden.ID), "octo/forbidden"}, "uninstalled": {github.RepoID(r.other.ID), "octo/other"},
				} {
					ask["id "+kind] = func(ctx context.Context) error { _, err := r.Repo(ctx, who, repo.id); return err }
					ask["name "+kind] = func(ctx context.Context) error { _, err := r.Named(ctx, who, repo.name); return err }
				}
				var want = map[string][]string{}
				for kind, f := range ask {
					r.advance(time.Hour)
					r.may(ana, r.repo)
					r.advance(age)
					ctx, seen := storetest.Watch(t.Context())
					if err := f(ctx); err != access.ErrNotFound { //nolint:errorlint // the very same answer
						t.Fatalf("%s, %s: %v", name, kind, err)
					}
					by := kind[:2]
					if want[by] == nil {
						want[by] = seen.All()
					}
					if got := seen.All(); len(got) == 0 || !slices.Equal(got, want[by]) {
						t.Errorf("%s, %s, a list of %s: %d statements, where another refusal ran %d", name, kind, age, len(got), len(want[by]))
					}
				}
			}
		}
	})
}

func TestListsOfManyRepos(t *testing.T) {
	each(t, func(t *testing.T, r *rig) {
		const n = 130
		var more []githubtest.Repo
		for i := range n {
			more = append(more, r.gh.Repo(fmt.Sprintf("octo/r%03d", i), true, nil))
			more[i].Allow(r.ana, "read")
		}
		r.inst.Add(more...)
		mine := r.gh.Repo("ana/own", true, nil)
		r.gh.Install(r.cred.ID, r.ana, r.ana)
		ana, _ := r.in(r.ana)
		list, err := r.List(t.Context(), ana)
		if err != nil || len(list.Repos) != n+2 || list.Stale || !list.AsOf.Equal(r.clock.Now()) {
			t.Fatalf("%d Repos, %v", len(list.Repos), err)
		}
		if !slices.IsSortedFunc(list.Repos, func(a, b access.Repo) int { return compare(a.Name, b.Name) }) {
			t.Error("they are not in order")
		}
		r.may(ana, more[n-1])
		if g := r.may(ana, mine); g.Level() != "admin" {
			t.Errorf("of her own Repo ana has %q", g.Level())
		}
		more[0].Allow(r.ana, "")
		more[1].Allow(r.ana, "admin")
		r.advance(6 * time.Minute)
		r.mayNot(ana, more[0])
		if g := r.may(ana, more[1]); g.Level() != "admin" {
			t.Errorf("got %q", g.Level())
		}
		if all, err := r.Repos(t.Context(), ana); err != nil || len(all) != n+1 {
			t.Errorf("%d Repos, %v", len(all), err)
		}
	})
}

func compare(a, b string) int {
	switch {
	case a < b:
		return -1
	case a > b:
		return 1
	}
	return 0
}

// A refresh token is good once: of all that need the next pair at the same time, in two Hubs, one gets it and all go on.
func TestOneRefreshAtATimeForEachPerson(t *testing.T) {
	each(t, func(t *testing.T, r *rig) {
		ana, session := r.in(r.ana)
		other := r.another()
		for round := range 3 {
			r.advance(8 * time.Hour)
			exchanged, asked := r.gh.Asked("POST", "/login/oauth/access_token"), r.asked()
			var wg sync.WaitGroup
			errs := make([]error, 20)
			for i := range errs {
				wg.Add(1)
				go func() {
					defer wg.Done()
					g := []*access.Gate{r.Gate, other}[i%2]
					_, errs[i] = g.Repo(t.Context(), ana, r.id())
				}()
			}
			wg.Wait()
			for _, err := range errs {
				if err != nil {
					t.Fatalf("round %d: %v", round, err)
				}
			}
			if n := r.gh.Asked("POST", "/login/oauth/access_token") - exchanged; n != 1 {
				t.Errorf("round %d: tokens were exchanged %d times", round, n)
			}
			if n := r.asked() - asked; n != 1 {
				t.Errorf("round %d: the list was asked for %d times", round, n)
			}
		}
		if _, err := r.Browser(t.Context(), session); err != nil {
			t.Fatal(err)
		}
	})
}

// Two Hubs, each with a connection of its own: they know of each other by the database alone.
func TestTwoHubsAskOnceAndTellEachOther(t *testing.T) {
	t.Parallel()
	storetest.EachURL(t, func(t *testing.T, url string) {
		one := newRig(t, storetest.Open(t, url), githubtest.Options{}, githubtest.AppOptions{}, access.Options{})
		two := *one
		two.db = storetest.Open(t, url)
		two.clock = storetest.NewClock(two.db)
		two.options.Seal = seal.New(two.db, keys(t, 1), seal.Columns())
		two.Gate = two.another()
		ana, _ := one.in(one.ana)
		held, release := two.Hold(t.Context(), two.may(ana, one.repo))
		defer release()
		for range 3 {
			one.advance(8 * time.Hour)
			two.clock.Advance(8 * time.Hour)
			exchanged, asked := one.gh.Asked("POST", "/login/oauth/access_token"), one.asked()
			one.gh.Break(githubtest.Fault{Path: "/user/installations", Times: 1, Delay: 200 * time.Millisecond}) // so that they meet
			errs := make(chan error, 10)
			for i := range cap(errs) {
				go func() {
					_, err := []*access.Gate{one.Gate, two.Gate}[i%2].Repo(t.Context(), ana, one.id())
					errs <- err
				}()
			}
			for range cap(errs) {
				if err := <-errs; err != nil {
					t.Fatal(err)
				}
			}
			if e, a := one.gh.Asked("POST", "/login/oauth/access_token")-exchanged, one.asked()-asked; e != 1 || a != 1 {
				t.Errorf("tokens were exchanged %d times and the list was asked for %d times", e, a)
			}
		}
		one.repo.Allow(one.ana, "")
		if err := one.ForgetRepo(t.Context(), one.id()); err != nil {
			t.Fatal(err)
		}
		ended(t, "the other Hub's stream ends", held)
		two.mayNot(ana, one.repo)
	})
}

func TestOnlyTheNewestPairBeingRefusedSignsOut(t *testing.T) {
	each(t, func(t *testing.T, r *rig) {
		ana, session := r.in(r.ana)
		old, err := r.TokensOf(t.Context(), ana.ID())
		if err != nil {
			t.Fatal(err)
		}
		if err := r.app().RevokeUser(t.Context(), old.Access); err != nil {
			t.Fatal(err)
		}
		r.advance(8 * time.Hour)
		exchanged := r.gh.Asked("POST", "/login/oauth/access_token")
		r.gh.Break(githubtest.Fault{Path: "/login/oauth/access_token", Times: 1, Delay: time.Second})
		answer := make(chan error, 1)
		go func() {
			_, err := r.Repo(t.Context(), ana, r.id())
			answer <- err
		}()
		eventually(t, "the old pair is on its way", func() bool { return r.gh.Asked("POST", "/login/oauth/access_token") > exchanged })
		r.in(r.ana) // meanwhile, in another browser
		if err := <-answer; err != nil {
			t.Fatalf("the old pair was refused, and there is a newer one: %v", err)
		}
		if _, err := r.Browser(t.Context(), session); err != nil {
			t.Fatal(err)
		}
	})
}

func TestWhoTakesTheAuthorizationBackIsSignedOut(t *testing.T) {
	each(t, func(t *testing.T, r *rig) {
		ana, session := r.in(r.ana)
		secret, _, err := r.CreateToken(t.Context(), ana, access.TokenOptions{Name: "ci", Scopes: access.Scopes(), Life: 48 * time.Hour})
		if err != nil {
			t.Fatal(err)
		}
		r.gh.Unauthorize(r.cred.ID, r.ana)
		r.advance(6 * time.Minute)
		_, err = r.Repo(t.Context(), ana, r.id())
		r.wants(fault.Unauthorized, err)
		_, err = r.Repo(t.Context(), ana, 1<<50) // the same for what there isn't
		r.wants(fault.Unauthorized, err)
		_, err = r.Repos(t.Context(), ana)
		r.wants(fault.Unauthorized, err)
		_, err = r.Browser(t.Context(), session)
		r.wants(fault.Unauthorized, err)
		_, err = r.Token(t.Context(), secret)
		r.wants(fault.Unauthorized, err)
		if got := err.Error(); got != "The sign-in at GitHub behind this token has ended. It works again once ana has signed in to the Hub in a browser." {
			t.Errorf("the token says %q", got)
		}
		_, err = r.Sender(t.Context(), r.ana.ID, r.id())
		r.wants(fault.NotFound, err)
		again, _ := r.in(r.ana)
		r.may(again, r.repo)
		if _, err := r.Token(t.Context(), secret); err != nil {
			t.Errorf("signed in again: %v", err)
		}
		_, err = r.Browser(t.Context(), session)
		r.wants(fault.Unauthorized, err)
	})
}

// GitHub made the next pair and its answer was lost: the old one is dead, so there is no way but to sign in again.
func TestALostExchangeIsSaidToThePerson(t *testing.T) {
	r := one(t, access.Options{})
	ana, session := r.in(r.ana)
	r.advance(8 * time.Hour)
	r.gh.Break(githubtest.Fault{Path: "/login/oauth/access_token", Times: 1, After: true, Cut: -1})
	_, err := r.Repo(t.Context(), ana, r.id())
	r.wants(fault.Unauthorized, err)
	_, err = r.Browser(t.Context(), session)
	r.wants(fault.Unauthorized, err)
	again, _ := r.in(r.ana)
	r.may(again, r.repo)
}

func TestTokensThatLastNeedNoRefresh(t *testing.T) {
	t.Parallel()
	r := newRig(t, storetest.New(t), githubtest.Options{GHES: true}, githubtest.AppOptions{Lasting: true}, access.Options{})
	ana, _ := r.in(r.ana)
	for range 3 {
		r.advance(100 * 24 * time.Hour)
		r.may(ana, r.repo)
	}
	if n := r.gh.Asked("POST", "/login/oauth/access_token"); n != 1 {
		t.Errorf("tokens were asked for %d times", n)
	}
	r.gh.Unauthorize(r.cred.ID, r.ana)
	r.advance(6 * time.Minute)
	_, err := r.Repo(t.Context(), ana, r.id())
	r.wants(fault.Unauthorized, err)
}

func TestGitHubIsDownForTenMinutes(t *testing.T) {
	each(t, func(t *testing.T, r *rig) {
		ana, session := r.in(r.ana)
		reading := access.Reading(t.Context())
		signedIn := r.clock.Now()
		mend := r.gh.Break(githubtest.Fault{Status: http.StatusBadGateway})
		r.advance(4 * time.Minute)
		r.may(ana, r.repo) // known well enough for anything
		r.mayNot(ana, r.other)
		r.advance(2 * time.Minute)
		for range 4 { // to the tenth minute and a bit
			asked := r.asked()
			for range 5 {
				if _, err := r.Browser(t.Context(), session); err != nil {
					t.Fatalf("signed in all the same: %v", err)
				}
				g, err := r.Repo(reading, ana, r.id())
				if err != nil || !g.Stale() || !g.AsOf().Equal(signedIn) {
					t.Fatalf("looking: %+v, %v", g, err)
				}
				list, err := r.List(reading, ana)
				if err != nil || len(list.Repos) != 1 || !list.Stale || !list.AsOf.Equal(signedIn) {
					t.Fatalf("looking: %+v, %v", list, err)
				}
				_, err = r.Repo(t.Context(), ana, r.id())
				r.wants(fault.Unavailable, err)
				for _, id := range []github.RepoID{github.RepoID(r.other.ID), 1 << 50} {
					_, err = r.Repo(reading, ana, id)
					r.wants(fault.Unavailable, err)
				}
			}
			if n := r.asked() - asked; n != 2 { // once more, in case it was one bad answer
				t.Errorf("GitHub, which is down, was asked %d times at once", n)
			}
			r.advance(70 * time.Second)
		}
		r.advance(50 * time.Minute)
		_, err := r.Repo(reading, ana, r.id())
		r.wants(fault.Unavailable, err)
		_, err = r.Browser(t.Context(), session)
		r.wants(fault.Unavailable, err)
		mend()
		r.advance(11 * time.Second)
		if g := r.may(ana, r.repo); g.Stale() || !g.AsOf().Equal(r.clock.Now()) {
			t.Errorf("GitHub is back: %+v", g)
		}
	})
}

func TestOneBadAnswerIsNoOutage(t *testing.T) {
	r := one(t, access.Options{})
	ana, _ := r.in(r.ana)
	for _, f := range []githubtest.Fault{{Status: http.StatusBadGateway}, {Cut: -1}, {Cut: 20}} {
		f.Path, f.Times = "/user/installations", 1
		r.gh.Break(f)
		r.advance(6 * time.Minute)
		if g := r.may(ana, r.repo); g.Stale() {
			t.Errorf("%+v", g)
		}
	}
}

func TestWhatGitHubRefusesToShowIsAnAnswerAndNoOutage(t *testing.T) {
	each(t, func(t *testing.T, r *rig) {
		mine := r.gh.Repo("ana/own", true, nil)
		own := r.gh.Install(r.cred.ID, r.ana, r.ana)
		ana, session := r.in(r.ana)
		// An organization's single sign-on.
		mend := r.gh.Break(githubtest.Fault{
			Path: fmt.Sprintf("/user/installations/%d/", r.inst.ID), Status: http.StatusForbidden, Body: `{"message":"Resource protected by organization SAML enforcement."}`,
		})
		r.advance(6 * time.Minute)
		r.mayNot(ana, r.repo)
		r.may(ana, mine)
		mend()
		own.Remove()
		// A suspended account.
		mend = r.gh.Break(githubtest.Fault{Path: "/user/installations", Status: http.StatusForbidden, Body: `{"message":"Sorry. Your account was suspended."}`})
		r.advance(6 * time.Minute)
		r.mayNot(ana, r.repo)
		_, err := r.Browser(t.Context(), session)
		r.wants(fault.Unauthorized, err)
		mend()
	})
}

func TestAnEmptyListIsAskedForAgainSoon(t *testing.T) {
	t.Parallel()
	r := newRig(t, storetest.New(t), githubtest.Options{}, githubtest.AppOptions{}, access.Options{})
	r.options.People = []int64{r.bob.ID}
	r.Gate = r.another()
	bob, _ := r.in(r.bob)
	r.repo.Allow(r.bob, "read")
	if all, err := r.Repos(t.Context(), bob); err != nil || len(all) != 0 {
		t.Fatalf("%+v, %v", all, err)
	}
	r.advance(31 * time.Second)
	if all, err := r.Repos(t.Context(), bob); err != nil || len(all) != 1 {
		t.Fatalf("%+v, %v", all, err)
	}
}

func TestRateLimitsAreOutagesUntilTheTimeTheySay(t *testing.T) {
	r := one(t, access.Options{})
	ana, _ := r.in(r.ana)
	r.gh.Limit("user ana", 0, 30*time.Minute)
	r.advance(6 * time.Minute)
	_, err := r.Repo(t.Context(), ana, r.id())
	r.wants(fault.Unavailable, err)
	asked := r.asked()
	for range 4 {
		r.advance(5 * time.Minute)
		if g, err := r.Repo(access.Reading(t.Context()), ana, r.id()); err != nil || !g.Stale() {
			t.Fatalf("%+v, %v", g, err)
		}
	}
	if n := r.asked(); n != asked {
		t.Errorf("GitHub, which wants to be left alone, was asked %d times", n-asked)
	}
	r.advance(5 * time.Minute)
	again, _ := r.in(r.ana)
	r.may(again, r.repo)
}

func TestASlowGitHubIsNotWaitedForWhereAnAnswerIsThere(t *testing.T) {
	r := one(t, access.Options{})
	ana, _ := r.in(r.ana)
	r.Patience(50*time.Millisecond, 100*time.Millisecond)
	mend := r.gh.Break(githubtest.Fault{Path: "/user/installations", Delay: time.Hour})
	r.advance(6 * time.Minute)
	for range 2 {
		if g, err := r.Repo(access.Reading(t.Context()), ana, r.id()); err != nil || !g.Stale() {
			t.Fatalf("%+v, %v", g, err)
		}
	}
	_, err := r.Repo(t.Context(), ana, r.id())
	r.wants(fault.Unavailable, err)
	// Only the first one waits for a question that is under way for long.
	r.Patience(time.Second, time.Second)
	eventually(t, "the question is older than a second", func() bool {
		before := time.Now()
		if _, err := r.Repo(access.Reading(t.Context()), ana, r.id()); err != nil {
			t.Fatal(err)
		}
		return time.Since(before) < 500*time.Millisecond
	})
	mend()
	r.Stop()
	r.Stop()
	_, err = r.Repo(t.Context(), ana, r.id()) // a Gate that was stopped asks nothing
	r.wants(fault.Unavailable, err)
	r.may(ana0(t, r), r.repo)
}

// ana0 signs ana in through another Hub, whose Gate the rig then has.
func ana0(t *testing.T, r *rig) access.Person {
	t.Helper()
	r.Gate = r.another()
	ana, _ := r.in(r.ana)
	return ana
}

func TestAClaimOfAHubThatDiedEndsByItself(t *testing.T) {
	each(t, func(t *testing.T, r *rig) {
		ana, _ := r.in(r.ana)
		r.Patience(50*time.Millisecond, 100*time.Millisecond)
		r.advance(6 * time.Minute)
		r.write(func(tx *store.Tx) error {
			_, err := tx.Exec(`UPDATE github_people SET claim = 'dead', claim_until = $1`, tx.Now().Add(30*time.Second).UnixMilli())
			return err
		})
		_, err := r.Repo(t.Context(), ana, r.id())
		r.wants(fault.Unavailable, err)
		r.Patience(10*time.Second, 10*time.Second)
		r.advance(31 * time.Second)
		r.may(ana, r.repo)
	})
}

func TestWhoLosesTheLastRepoIsNoLongerSignedIn(t *testing.T) {
	each(t, func(t *testing.T, r *rig) {
		ana, session := r.in(r.ana)
		secret, _, err := r.CreateToken(t.Context(), ana, access.TokenOptions{Name: "ci", Scopes: access.Scopes(), Life: 48 * time.Hour})
		if err != nil {
			t.Fatal(err)
		}
		r.inst.Suspend(true)
		r.advance(6 * time.Minute)
		_, err = r.Browser(t.Context(), session) // Shared variables are for who is signed in
		r.wants(fault.Unauthorized, err)
		_, err = r.Token(t.Context(), secret)
		r.wants(fault.Unauthorized, err)
		r.mayNot(ana, r.repo)
		r.inst.Suspend(false)
		r.advance(31 * time.Second)
		if _, err := r.Browser(t.Context(), session); err != nil {
			t.Fatalf("it was suspended for some minutes: %v", err)
		}
		r.may(ana, r.repo)
		r.inst.Remove()
		r.advance(6 * time.Minute)
		_, err = r.Browser(t.Context(), session)
		r.wants(fault.Unauthorized, err)
		r.mayNot(ana, r.repo)
	})
}

func TestPeopleWhoAreActiveAreAskedAboutBeforeItIsTooLate(t *testing.T) {
	each(t, func(t *testing.T, r *rig) {
		r.repo.Allow(r.bob, "read")
		ana, _ := r.in(r.ana)
		r.in(r.bob) // and does nothing
		r.may(ana, r.repo)
		before := r.asked()
		r.Sweep(t.Context())
		if n := r.asked(); n != before {
			t.Fatalf("GitHub was asked %d times about a fresh list", n-before)
		}
		for range 3 {
			r.advance(4 * time.Minute)
			r.Sweep(t.Context())
		}
		if n := r.asked(); n != before+3 {
			t.Fatalf("GitHub was asked %d times, want once each four minutes", n-before)
		}
		r.advance(time.Minute)
		r.may(ana, r.repo) // without waiting for anything
		if n := r.asked(); n != before+3 {
			t.Errorf("GitHub was asked once more")
		}
		r.advance(61 * time.Minute)
		r.Sweep(t.Context())
		if n := r.asked(); n != before+3 {
			t.Errorf("GitHub was asked about somebody who left")
		}
	})
}

func TestAnotherAppsTokensAreNoneOfOurs(t *testing.T) {
	r := one(t, access.Options{})
	ana, session := r.in(r.ana)
	r.cred = r.gh.App(githubtest.AppOptions{Name: "second", Owner: "octo", Callbacks: []string{callback}})
	r.gh.Install(r.cred.ID, r.org, r.ana, r.repo)
	r.holder.Set(r.app())
	r.advance(6 * time.Minute)
	_, err := r.Repo(t.Context(), ana, r.id())
	r.wants(fault.Unauthorized, err)
	_, err = r.Browser(t.Context(), session)
	r.wants(fault.Unauthorized, err)
	again, _ := r.in(r.ana)
	r.may(again, r.repo)
}
