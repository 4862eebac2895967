package access_test

import (
	"slices"
	"testing"
	"time"

	"github.com/claude-hub/claude-hub/app/access"
	"github.com/claude-hub/claude-hub/app/fault"
	"github.com/claude-hub/claude-hub/store"
	"github.com/claude-hub/claude-hub/store/storetest"
)

func TestAVisitIsForOnePlaceAndBrowserAndEndsWithTheSignIn(t *testing.T) {
	t.Parallel()
	storetest.Each(t, func(t *testing.T, db *store.DB) {
		now := time.Date(2026, 11, 30, 12, 0, 0, 0, time.UTC)
		db.SetClock(func() time.Time { return now })
		g := open(t, db, true)
		ctx := t.Context()
		_, browser, err := g.SignInDev(ctx, "ana")
		if err != nil {
			t.Fatal(err)
		}
		ana, err := g.Browser(ctx, browser)
		if err != nil {
			t.Fatal(err)
		}
		kept := access.NewSecret()
		admit := func() string {
			t.Helper()
			code, err := g.Admit(ctx, ana, "s-80", access.HashSecret(kept))
			if err != nil {
				t.Fatal(err)
			}
			return code
		}
		refused := func(what string, err error) {
			t.Helper()
			if !fault.Is(err, fault.Unauthorized) {
				t.Errorf("%s: %v, want a fault of code unauthorized", what, err)
			}
		}

		code := admit()
		_, err = g.Visit(ctx, "s-81", code, kept)
		refused("a code at another place", err)
		_, err = g.Visit(ctx, "s-80", code, access.NewSecret())
		refused("a code in another browser", err)
		_, err = g.Visitor(ctx, "s-80", code)
		refused("a code in place of a cookie", err)
		cookie, err := g.Visit(ctx, "s-80", code, kept)
		if err != nil {
			t.Fatal(err)
		}
		_, err = g.Visit(ctx, "s-80", code, kept)
		refused("a code that was used", err)
		_, err = g.Visit(ctx, "s-80", cookie, kept)
		refused("a cookie in place of a code", err)
		_, err = g.Visitor(ctx, "s-81", cookie)
		refused("a cookie at another place", err)
		_, err = g.Browser(ctx, cookie)
		refused("a place's cookie at the Hub", err)
		_, err = g.Visitor(ctx, "s-80", browser)
		refused("the Hub's cookie at a place", err)
		if who, err := g.Visitor(ctx, "s-80", cookie); err != nil || who.ID() != ana.ID() {
			t.Errorf("the visit is %s's: %v", who.Login(), err)
		}
		if places, err := g.Visited(ctx, "s-"); err != nil || !slices.Equal(places, []string{"s-80"}) {
			t.Errorf("visited: %q, %v", places, err)
		}
		if places, err := g.Visited(ctx, "S-"); err != nil || len(places) > 0 {
			t.Errorf("visited of another Session: %q, %v", places, err)
		}

		late := admit()
		now = now.Add(61 * time.Second)
		_, err = g.Visit(ctx, "s-80", late, kept)
		refused("a code after a minute", err)

		_, secret, err := g.IssueToken(ctx, "ana", "cli", time.Hour)
		if err != nil {
			t.Fatal(err)
		}
		token, err := g.Token(ctx, secret)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := g.Admit(ctx, token, "s-80", access.HashSecret(kept)); !fault.Is(err, fault.Refused) {
			t.Errorf("who came by a token is let in to a place: %v", err)
		}

		if err := g.SignOut(ctx, browser); err != nil {
			t.Fatal(err)
		}
		_, err = g.Visitor(ctx, "s-80", cookie)
		refused("a cookie after the browser signed out", err)

		if _, browser, err = g.SignInDev(ctx, "ana"); err != nil {
			t.Fatal(err)
		}
		if ana, err = g.Browser(ctx, browser); err != nil {
			t.Fatal(err)
		}
		if cookie, err = g.Visit(ctx, "s-80", admit(), kept); err != nil {
			t.Fatal(err)
		}
		for range 3 { // so that the browser's own session goes on
			now = now.Add(access.VisitLife / 3)
			if _, err := g.Browser(ctx, browser); err != nil {
				t.Fatal(err)
			}
		}
		_, err = g.Visitor(ctx, "s-80", cookie)
		refused("a cookie after a week", err)
	})
}
