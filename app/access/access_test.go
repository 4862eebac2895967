package access_test

import (
	"context"
	"encoding/base64"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/claude-hub/claude-hub/app/access"
	"github.com/claude-hub/claude-hub/app/fault"
	"github.com/claude-hub/claude-hub/store"
	"github.com/claude-hub/claude-hub/store/storetest"
)

func open(t *testing.T, db *store.DB, dev bool) *access.Gate {
	t.Helper()
	g, err := access.Open(t.Context(), db, access.Options{DevLogin: dev, DevRepos: []access.Repo{{ID: 7, Name: "acme/rocket", CloneURL: "file:///srv/rocket.git"}}})
	if err != nil {
		t.Fatal(err)
	}
	return g
}

func TestASecretIsGoodForItsOwnKindUntilItExpires(t *testing.T) {
	t.Parallel()
	storetest.Each(t, func(t *testing.T, db *store.DB) {
		clock := storetest.NewClock(db)
		g := open(t, db, true)
		ana, browser, err := g.SignInDev(t.Context(), "ana")
		if err != nil {
			t.Fatal(err)
		}
		again, token, err := g.IssueToken(t.Context(), "ana", "laptop", 48*time.Hour)
		if err != nil || again.ID() != ana.ID() {
			t.Fatalf("the same person: %v, %v", again, err)
		}
		unauthorized := func(_ access.Person, err error) {
			t.Helper()
			if !fault.Is(err, fault.Unauthorized) {
				t.Fatalf("want unauthorized, got %v", err)
			}
		}
		if who, err := g.Browser(t.Context(), browser); err != nil || who.Login() != "ana" {
			t.Fatalf("%v, %v", who, err)
		}
		if who, err := g.Token(t.Context(), token); err != nil || who.ID() != ana.ID() {
			t.Fatalf("%v, %v", who, err)
		}
		unauthorized(g.Token(t.Context(), browser))
		unauthorized(g.Browser(t.Context(), token))
		unauthorized(g.Browser(t.Context(), ""))
		clock.Advance(49 * time.Hour)
		unauthorized(g.Token(t.Context(), token))
		if _, err := g.Browser(t.Context(), browser); err != nil { // seen again: idle from here
			t.Fatal(err)
		}
		clock.Advance(access.BrowserIdle - time.Minute)
		if _, err := g.Browser(t.Context(), browser); err != nil {
			t.Fatalf("used within %s: %v", access.BrowserIdle, err)
		}
		clock.Advance(access.BrowserIdle)
		unauthorized(g.Browser(t.Context(), browser))
	})
}

func TestASessionEndsWhenSignedOutAndWithDevLogin(t *testing.T) {
	t.Parallel()
	db := storetest.New(t)
	g := open(t, db, true)
	_, one, err := g.SignInDev(t.Context(), "ana")
	if err != nil {
		t.Fatal(err)
	}
	_, two, err := g.SignInDev(t.Context(), "ana")
	if err != nil {
		t.Fatal(err)
	}
	if err := g.SignOut(t.Context(), one); err != nil {
		t.Fatal(err)
	}
	if _, err := g.Browser(t.Context(), one); !fault.Is(err, fault.Unauthorized) {
		t.Fatalf("signed out: %v", err)
	}
	if _, err := g.Browser(t.Context(), two); err != nil {
		t.Fatalf("the other browser stays: %v", err)
	}
	off := open(t, db, false)
	if _, err := off.Browser(t.Context(), two); !fault.Is(err, fault.Unauthorized) {
		t.Fatalf("dev login is off: %v", err)
	}
	if _, _, err := off.SignInDev(t.Context(), "ana"); !fault.Is(err, fault.Refused) {
		t.Fatalf("dev login is off: %v", err)
	}
}

func TestSecretsAreStoredAsHashesOnly(t *testing.T) {
	t.Parallel()
	db := storetest.New(t)
	g := open(t, db, true)
	_, secret, err := g.SignInDev(t.Context(), "ana")
	if err != nil {
		t.Fatal(err)
	}
	raw, err := base64.RawURLEncoding.DecodeString(secret)
	if err != nil || len(raw) != 32 {
		t.Fatalf("a secret of 256 bits: %q, %v", secret, err)
	}
	err = db.Read(t.Context(), func(tx *store.Tx) error {
		stored, err := store.All(tx, store.Scan1[[]byte], `SELECT hash FROM credentials`)
		if err != nil {
			return err
		}
		if len(stored) != 1 || len(stored[0]) != 32 || string(stored[0]) == string(raw) || strings.Contains(string(stored[0]), secret) {
			t.Errorf("stored %x", stored)
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
}

func TestNamesOfDevLoginAreChecked(t *testing.T) {
	t.Parallel()
	g := open(t, storetest.New(t), true)
	for _, name := range []string{"", "Ana", "-ana", "ana-", "a b", strings.Repeat("a", 40), "ana\x00"} {
		_, _, err := g.SignInDev(t.Context(), name)
		var f *fault.Error
		if !errors.As(err, &f) || f.Fields["login"] == "" {
			t.Errorf("%q: want a fault about login, got %v", name, err)
		}
	}
}

func TestAbsentAndForbiddenReposGetOneAnswer(t *testing.T) {
	t.Parallel()
	g := open(t, storetest.New(t), true)
	ana, _, err := g.SignInDev(t.Context(), "ana")
	if err != nil {
		t.Fatal(err)
	}
	if grant, err := g.Repo(t.Context(), ana, 7); err != nil || grant.Repo().Name != "acme/rocket" || grant.Who().ID() != ana.ID() || !grant.Repo().Dev {
		t.Fatalf("%+v, %v", grant, err)
	}
	if grant, err := g.Named(t.Context(), ana, "acme/rocket"); err != nil || grant.Repo().ID != 7 {
		t.Fatalf("%+v, %v", grant, err)
	}
	_, absent := g.Repo(t.Context(), ana, 8)
	_, forbidden := g.Repo(t.Context(), access.Person{}, 7)
	_, unnamed := g.Named(t.Context(), ana, "acme/none")
	for _, err := range []error{absent, forbidden, unnamed} {
		if err != access.ErrNotFound { //nolint:errorlint // the very same answer
			t.Errorf("want the one answer, got %v", err)
		}
	}
	if repos, err := g.Repos(t.Context(), access.Person{}); err != nil || len(repos) != 0 {
		t.Errorf("nobody sees %v, %v", repos, err)
	}
}

func TestARenamedRepoKeepsItsID(t *testing.T) {
	t.Parallel()
	db := storetest.New(t)
	open(t, db, true)
	g, err := access.Open(t.Context(), db, access.Options{DevLogin: true, DevRepos: []access.Repo{{ID: 7, Name: "acme/starship", CloneURL: "file:///srv/s.git"}}})
	if err != nil {
		t.Fatal(err)
	}
	ana, _, err := g.SignInDev(t.Context(), "ana")
	if err != nil {
		t.Fatal(err)
	}
	repos, err := g.Repos(t.Context(), ana)
	if err != nil || len(repos) != 1 || repos[0].Name != "acme/starship" {
		t.Fatalf("%+v, %v", repos, err)
	}
	if _, err := g.Named(t.Context(), ana, "acme/rocket"); err != access.ErrNotFound { //nolint:errorlint // as above
		t.Fatalf("the old name inherits nothing: %v", err)
	}
}

func TestAHeldGrantEndsWithItsContext(t *testing.T) {
	t.Parallel()
	g := open(t, storetest.New(t), true)
	ana, _, err := g.SignInDev(t.Context(), "ana")
	if err != nil {
		t.Fatal(err)
	}
	grant, err := g.Repo(t.Context(), ana, 7)
	if err != nil {
		t.Fatal(err)
	}
	outer, end := context.WithCancel(t.Context())
	held, release := g.Hold(outer, grant)
	defer release()
	if held.Err() != nil {
		t.Fatal("held from the beginning")
	}
	end()
	<-held.Done()
}
