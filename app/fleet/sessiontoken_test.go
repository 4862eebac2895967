package fleet

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/claude-hub/claude-hub/runner/wire"
	"github.com/claude-hub/claude-hub/store"
	"github.com/claude-hub/claude-hub/store/storetest"
)

// lender is an owner of Sessions whose person has rights that a test sets.
type lender struct {
	*owner
	may Rights
	err error
}

func (l *lender) Rights(context.Context, Assignment) (Rights, error) { return l.may, l.err }

// MintPush makes one that pushes, unless the App lacks the permission.
func (m *mint) MintPush(ctx context.Context, repo int64) (Token, string, bool) {
	m.mu.Lock()
	lacks := m.lacks
	m.mu.Unlock()
	if lacks {
		return Token{}, "The GitHub App lacks the permission contents: write on this Repo.", true
	}
	t, refused := m.Mint(ctx, repo)
	m.mu.Lock()
	defer m.mu.Unlock()
	m.pushing = append(m.pushing, t.Text)
	return t, refused, false
}

// lending is a rig with a Session whose person may push.
type lending struct {
	*rig
	*mint
	lender *lender
	runner string
	a      Assignment
}

func newLending(t *testing.T, db *store.DB, push bool) *lending {
	t.Helper()
	m := &mint{live: map[string]bool{}}
	o := Options{Tokens: m}
	if push {
		o.Push = m
	}
	l := &lending{rig: newRig(t, db, o), mint: m, lender: &lender{owner: &owner{}, may: Rights{Repo: 4711, Actor: "ana"}}}
	l.lender.f = l.Fleet
	l.Own("lending", l.lender)
	l.runner = l.rig.runner("r1")
	l.write(func(tx *store.Tx) (err error) {
		l.a, err = l.Assign(tx, Assignment{Runner: l.runner, Kind: "lending", Subject: "s1"})
		return err
	})
	return l
}

func (l *lending) ask(have string) *wire.SessionTokenResponse {
	l.t.Helper()
	res, err := l.SessionToken(l.t.Context(), l.runner, &wire.SessionTokenRequest{Id: l.a.ID, Generation: l.a.Generation, Fence: l.a.Fence, Have: have})
	if err != nil {
		l.t.Fatal(err)
	}
	return res
}

func TestATokenForGitHasTheRightsThatThePersonHasNow(t *testing.T) {
	t.Parallel()
	storetest.Each(t, func(t *testing.T, db *store.DB) {
		l := newLending(t, db, true)
		first := l.ask("")
		if len(first.GetToken()) == 0 || first.GetContents() != "write" || first.GetReadOnly() != "" || first.GetExpiresMs() != 1_800_000_000_000 || len(l.pushing) != 1 {
			t.Fatalf("who may push: %s %q", first.GetContents(), first.GetRefused())
		}
		if res := l.ask("write"); !res.GetKeep() || len(res.GetToken()) != 0 || len(l.repos) != 1 {
			t.Errorf("who has it already: %+v", res)
		}
		l.lender.may.ReadOnly = "You may only read it."
		if res := l.ask("write"); res.GetKeep() || res.GetContents() != "read" || len(res.GetToken()) == 0 || res.GetReadOnly() != "You may only read it." || len(l.pushing) != 1 {
			t.Errorf("who may push no more: %+v", res)
		}
		if res := l.ask("read"); !res.GetKeep() || res.GetReadOnly() != "You may only read it." {
			t.Errorf("who has one that reads: %+v", res)
		}
		l.lender.may = Rights{Refused: "You have no access to it any more."}
		if res := l.ask("read"); res.GetRefused() != "You have no access to it any more." || res.GetKeep() || len(res.GetToken()) != 0 || len(l.repos) != 2 {
			t.Errorf("who may nothing: %+v", res)
		}
		all := audits(l.rig)
		if len(all) != 2 || !strings.HasPrefix(all[0], "ana 4711 "+l.a.ID) || !strings.Contains(all[0], `"contents":"write"`) || !strings.Contains(all[1], `"contents":"read"`) ||
			!strings.Contains(all[0], `"for":"git"`) || strings.Contains(fmt.Sprint(all), "canary") {
			t.Errorf("audit: %q", all)
		}
	})
}

func TestWhereTheOperatorOrTheAppDoesNotPushATokenReadsAndSaysHow(t *testing.T) {
	t.Parallel()
	off := newLending(t, storetest.New(t), false)
	if res := off.ask(""); res.GetContents() != "read" || !strings.Contains(res.GetReadOnly(), "github.push") || len(res.GetToken()) == 0 {
		t.Errorf("off: %+v", res)
	}
	lacks := newLending(t, storetest.New(t), true)
	lacks.lacks = true
	if res := lacks.ask(""); res.GetContents() != "read" || !strings.Contains(res.GetReadOnly(), "contents: write") || len(res.GetToken()) == 0 || len(lacks.pushing) != 0 {
		t.Errorf("the App lacks it: %+v", res)
	}
	if res := lacks.ask("read"); !res.GetKeep() || !strings.Contains(res.GetReadOnly(), "contents: write") || len(lacks.repos) != 1 {
		t.Errorf("and the Runner has one: %+v", res)
	}
	lacks.lacks = false
	if res := lacks.ask("read"); res.GetContents() != "write" || res.GetReadOnly() != "" || len(lacks.pushing) != 1 {
		t.Errorf("once it has: %+v", res)
	}
}

func TestWhyGitGetsNoTokenIsSaid(t *testing.T) {
	t.Parallel()
	l := newLending(t, storetest.New(t), true)
	for _, refused := range []string{"The GitHub App isn't installed on this Repo.", NoApp} {
		l.refused = refused
		want := refused
		if refused == NoApp {
			want = noHubCredentials
		}
		if res := l.ask("write"); !res.GetKeep() {
			t.Errorf("what the Runner has is good: %+v", res)
		}
		if res := l.ask(""); res.GetRefused() != want || res.GetContents() != "" || len(res.GetToken()) != 0 {
			t.Errorf("%+v", res)
		}
	}
	bare := newRig(t, storetest.New(t), Options{})
	bare.Own("lending", &lender{owner: &owner{f: bare.Fleet}})
	runner := bare.runner("r1")
	var a Assignment
	bare.write(func(tx *store.Tx) (err error) {
		a, err = bare.Assign(tx, Assignment{Runner: runner, Kind: "lending", Subject: "s1"})
		return err
	})
	res, err := bare.SessionToken(t.Context(), runner, &wire.SessionTokenRequest{Id: a.ID, Generation: a.Generation, Fence: a.Fence})
	if err != nil || res.GetRefused() != noHubCredentials {
		t.Errorf("without an App: %v %v", res, err)
	}
	l.lender.err = errors.New("the database is gone")
	if _, err := l.SessionToken(t.Context(), l.runner, &wire.SessionTokenRequest{Id: l.a.ID, Generation: l.a.Generation, Fence: l.a.Fence}); err == nil {
		t.Error("a failure is no refusal")
	}
}

func TestNobodyButTheRunnerOfWhatShouldRunGetsATokenForGit(t *testing.T) {
	t.Parallel()
	l := newLending(t, storetest.New(t), true)
	other, plain := l.rig.runner("r2"), l.assign(l.runner, "t1", 0)
	l.write(func(tx *store.Tx) error { return l.Refence(tx, l.a.ID) })
	old := l.a
	l.a = l.get(l.a.ID)
	for _, c := range []struct {
		name, runner string
		a            Assignment
		want         error
	}{
		{"another Runner", other, l.a, ErrUnknown},
		{"an older fence", l.runner, old, ErrFenced},
		{"another generation", l.runner, Assignment{ID: l.a.ID, Generation: l.a.Generation + 1, Fence: l.a.Fence}, ErrStale},
		{"what no person works in", l.runner, plain, ErrStale},
	} {
		if _, err := l.SessionToken(t.Context(), c.runner, &wire.SessionTokenRequest{Id: c.a.ID, Generation: c.a.Generation, Fence: c.a.Fence}); !errors.Is(err, c.want) {
			t.Errorf("%s: %v, want %v", c.name, err, c.want)
		}
	}
	l.asked = func() {
		l.write(func(tx *store.Tx) error {
			_, err := l.Change(tx, l.a.ID, Stop, time.Time{})
			return err
		})
	}
	if _, err := l.SessionToken(t.Context(), l.runner, &wire.SessionTokenRequest{Id: l.a.ID, Generation: l.a.Generation, Fence: l.a.Fence}); !errors.Is(err, ErrStale) {
		t.Errorf("asleep while GitHub answered: %v", err)
	}
	if len(l.repos) != 1 || l.alive() != 0 || len(audits(l.rig)) != 0 {
		t.Errorf("minted %d, %d live on", len(l.repos), l.alive())
	}
}

func TestGitThatGoesOnAskingForTokensIsRefusedForAWhile(t *testing.T) {
	t.Parallel()
	l := newLending(t, storetest.New(t), true)
	for range sessionTokens {
		if res := l.ask(""); res.GetRefused() != "" {
			t.Fatal(res.GetRefused())
		}
	}
	if res := l.ask(""); !strings.Contains(res.GetRefused(), "was given 20 tokens within 1h0m0s. It gets more from 13:00:00 UTC.") || len(l.repos) != sessionTokens {
		t.Errorf("%q, %d minted", res.GetRefused(), len(l.repos))
	}
	if res := l.ask("write"); !res.GetKeep() {
		t.Errorf("the one it has: %+v", res)
	}
	l.clock.add(sessionWindow)
	if res := l.ask(""); res.GetRefused() != "" {
		t.Errorf("after a while: %q", res.GetRefused())
	}
}
