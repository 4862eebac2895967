package fleet

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/claude-hub/claude-hub/app/fault"
	"github.com/claude-hub/claude-hub/runner/wire"
	"github.com/claude-hub/claude-hub/store"
	"github.com/claude-hub/claude-hub/store/storetest"
)

// mint makes tokens of its own; asked is called while it does.
type mint struct {
	mu      sync.Mutex
	repos   []int64
	live    map[string]bool
	refused string
	broken  error // of Revoke
	asked   func()
	lacks   bool     // the App has no permission to push
	pushing []string // of those made, which push
}

func (m *mint) Mint(_ context.Context, repo int64) (Token, string) {
	if m.asked != nil {
		m.asked()
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.refused != "" {
		return Token{}, m.refused
	}
	m.repos = append(m.repos, repo)
	t := fmt.Sprintf("ghs_canary%026d", len(m.repos))
	m.live[t] = true
	return Token{Text: t, Expires: time.UnixMilli(1_800_000_000_000)}, ""
}

func (m *mint) Revoke(_ context.Context, token string) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.broken != nil {
		return m.broken
	}
	delete(m.live, token)
	return nil
}

func (m *mint) alive() int {
	m.mu.Lock()
	defer m.mu.Unlock()
	return len(m.live)
}

func (o *owner) CloneRepo(_ context.Context, _ *store.Tx, a Assignment) (int64, string, error) {
	if a.Subject == "dev" {
		return 0, "one of dev.repos", nil
	}
	return 4711, "", nil
}

func tokenOf(r *rig, runner string, a Assignment) (*wire.CloneTokenResponse, error) {
	return r.CloneToken(r.t.Context(), runner, &wire.CloneTokenRequest{Id: a.ID, Generation: a.Generation, Fence: a.Fence})
}

func audits(r *rig) (all []string) {
	r.t.Helper()
	err := r.db.Read(r.t.Context(), func(tx *store.Tx) (err error) {
		all, err = store.All(tx, func(scan func(...any) error) (string, error) {
			var who, subject, detail string
			var repo int64
			err := scan(&who, &repo, &subject, &detail)
			return fmt.Sprintf("%s %d %s %s", who, repo, subject, detail), err
		}, `SELECT who, repo_id, subject, detail FROM audit_log WHERE action = 'token.mint' ORDER BY at, id`)
		return err
	})
	if err != nil {
		r.t.Fatal(err)
	}
	return all
}

func TestATokenIsMadeForTheRepoOfAnAssignmentAndAudited(t *testing.T) {
	t.Parallel()
	storetest.Each(t, func(t *testing.T, db *store.DB) {
		m := &mint{live: map[string]bool{}}
		r := newRig(t, db, Options{Tokens: m})
		runner := r.runner("r1")
		a := r.assign(runner, "s1", 0)
		res, err := tokenOf(r, runner, a)
		if err != nil || res.GetRefused() != "" || res.GetExpiresMs() != 1_800_000_000_000 || !m.live[string(res.GetToken())] {
			t.Fatalf("%v %v", res.GetRefused(), err)
		}
		again, err := tokenOf(r, runner, a)
		if err != nil || string(again.GetToken()) == string(res.GetToken()) || len(m.repos) != 2 || m.repos[0] != 4711 {
			t.Errorf("another call: %v, minted for %v", err, m.repos)
		}
		all := audits(r)
		if len(all) != 2 || !strings.Contains(all[0], a.ID) || !strings.Contains(all[0], " 4711 ") || !strings.Contains(all[0], `"runner":"`+runner+`"`) {
			t.Errorf("audit: %q", all)
		}
		if strings.Contains(fmt.Sprint(all), "canary") {
			t.Errorf("a token is in the audit log: %q", all)
		}
		for _, token := range []string{string(res.GetToken()), string(again.GetToken())} {
			if err := r.EndToken(t.Context(), runner, &wire.EndTokenRequest{Id: a.ID, Token: []byte(token)}); err != nil {
				t.Error(err)
			}
		}
		if m.alive() != 0 {
			t.Errorf("%d tokens live on", m.alive())
		}
	})
}

func TestATokenIsRefusedForWhatIsNotTheRunnersToDo(t *testing.T) {
	t.Parallel()
	m := &mint{live: map[string]bool{}}
	r := newRig(t, storetest.New(t), Options{Tokens: m})
	mine, other := r.runner("r1"), r.runner("r2")
	a := r.assign(mine, "s1", 0)
	old := a
	r.write(func(tx *store.Tx) error { return r.Refence(tx, a.ID) })
	a = r.get(a.ID)
	stale := a
	stale.Generation--
	for _, c := range []struct {
		name, runner string
		a            Assignment
		want         error
	}{
		{"another Runner's", other, a, ErrUnknown},
		{"an older fence", mine, old, ErrFenced},
		{"a newer fence", mine, Assignment{ID: a.ID, Generation: a.Generation, Fence: a.Fence + 1}, ErrFenced},
		{"an older generation", mine, stale, ErrStale},
		{"none", mine, Assignment{ID: "x"}, ErrUnknown},
	} {
		if _, err := tokenOf(r, c.runner, c.a); !errors.Is(err, c.want) {
			t.Errorf("%s: %v, want %v", c.name, err, c.want)
		}
	}
	r.write(func(tx *store.Tx) error {
		_, err := r.Change(tx, a.ID, Stop, time.Time{})
		return err
	})
	if _, err := tokenOf(r, mine, r.get(a.ID)); !errors.Is(err, ErrStale) {
		t.Errorf("of what should stop: %v", err)
	}
	if len(m.repos) != 0 || len(audits(r)) != 0 {
		t.Errorf("minted for %v", m.repos)
	}
	if err := r.EndToken(t.Context(), other, &wire.EndTokenRequest{Id: a.ID, Token: []byte("ghs_x")}); !errors.Is(err, ErrUnknown) {
		t.Errorf("another Runner gave one back: %v", err)
	}
}

func TestATokenForWhatChangedWhileGitHubAnsweredIsRevoked(t *testing.T) {
	t.Parallel()
	for name, change := range map[string]func(*rig, *store.Tx, string) error{
		"fence": func(r *rig, tx *store.Tx, id string) error { return r.Refence(tx, id) },
		"want": func(r *rig, tx *store.Tx, id string) error {
			_, err := r.Change(tx, id, Stop, time.Time{})
			return err
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			m := &mint{live: map[string]bool{}}
			r := newRig(t, storetest.New(t), Options{Tokens: m})
			runner := r.runner("r1")
			a := r.assign(runner, "s1", 0)
			m.asked = func() { r.write(func(tx *store.Tx) error { return change(r, tx, a.ID) }) }
			if res, err := tokenOf(r, runner, a); !errors.Is(err, ErrFenced) && !errors.Is(err, ErrStale) {
				t.Fatalf("%v %v", res.GetRefused(), err)
			}
			if len(m.repos) != 1 || m.alive() != 0 || len(audits(r)) != 0 {
				t.Errorf("minted %d, %d live on, audited %q", len(m.repos), m.alive(), audits(r))
			}
		})
	}
}

func TestWhyThereIsNoTokenIsSaid(t *testing.T) {
	t.Parallel()
	m := &mint{live: map[string]bool{}, refused: "The GitHub App isn't installed on this Repo."}
	r := newRig(t, storetest.New(t), Options{Tokens: m})
	runner := r.runner("r1")
	res, err := tokenOf(r, runner, r.assign(runner, "s1", 0))
	if err != nil || res.GetRefused() != "There is no token to clone with. "+m.refused || len(res.GetToken()) != 0 {
		t.Errorf("%v %v", res, err)
	}
	m.refused = ""
	res, err = tokenOf(r, runner, r.assign(runner, "dev", 0))
	if err != nil || res.GetRefused() != "one of dev.repos" || len(m.repos) != 0 {
		t.Errorf("%v %v, minted for %v", res, err, m.repos)
	}
	bare := newRig(t, storetest.New(t), Options{})
	runner = bare.runner("r1")
	res, err = tokenOf(bare, runner, bare.assign(runner, "s1", 0))
	if err != nil || !strings.Contains(res.GetRefused(), "the Hub has no GitHub App") {
		t.Errorf("without an App: %v %v", res, err)
	}
}

func TestATokenThatCantBeRevokedOrIsNoneIsSaid(t *testing.T) {
	t.Parallel()
	m := &mint{live: map[string]bool{}, broken: errors.New("GitHub has trouble")}
	r := newRig(t, storetest.New(t), Options{Tokens: m})
	runner := r.runner("r1")
	a := r.assign(runner, "s1", 0)
	end := func(token string) error {
		return r.EndToken(t.Context(), runner, &wire.EndTokenRequest{Id: a.ID, Token: []byte(token)})
	}
	if err := end("ghs_x"); !fault.Is(err, fault.Unavailable) || !strings.Contains(err.Error(), "ends by itself within the hour") {
		t.Errorf("%v", err)
	}
	for _, none := range []string{"", "a b", "a\nAuthorization: x", strings.Repeat("x", maxToken+1)} {
		if err := end(none); !errors.Is(err, ErrInvalid) {
			t.Errorf("%.20q: %v", none, err)
		}
	}
}

func TestWhatARunnerSendsOfItsTokenIsMasked(t *testing.T) {
	t.Parallel()
	m := &mint{live: map[string]bool{}}
	r := newRig(t, storetest.New(t), Options{Tokens: m})
	runner := r.runner("r1")
	a := r.assign(runner, "s1", 0)
	res, err := tokenOf(r, runner, a)
	if err != nil {
		t.Fatal(err)
	}
	token := string(res.GetToken())
	spread := strings.Join(strings.Split(token, ""), "\n") // no shape would find this
	if _, err := r.AppendLog(t.Context(), runner, &wire.AppendLogRequest{Id: a.ID, Fence: a.Fence, Data: []byte(spread + "\n"), End: true}); err != nil {
		t.Fatal(err)
	}
	part, err := r.ReadLog(t.Context(), a.ID, 0, 1<<20)
	if err != nil || len(part.Chunks) == 0 {
		t.Fatal(part, err)
	}
	if text := string(part.Chunks[0].Data); strings.Contains(strings.ReplaceAll(text, "\n", ""), "canary") {
		t.Errorf("the log holds the token: %q", text)
	}
}

func TestATokenPrintsHidden(t *testing.T) {
	t.Parallel()
	tok := Token{Text: "ghs_canary"}
	if s := fmt.Sprintf("%v %+v %#v %s %q %v", tok, tok, tok, tok, tok, &tok); strings.Contains(s, "canary") {
		t.Error(s)
	}
}

func TestARunnerTooOldForTokensIsNamed(t *testing.T) {
	t.Parallel()
	r := newRig(t, storetest.New(t), Options{MinProtocol: 1})
	runner := r.runner("old")
	if err := r.db.Read(t.Context(), func(tx *store.Tx) error { return r.TakesTokens(tx, runner) }); err != nil {
		t.Error(err)
	}
	if _, err := r.Hello(t.Context(), runner, hello(2)); err != nil {
		t.Fatal(err)
	}
	err := r.db.Read(t.Context(), func(tx *store.Tx) error { return r.TakesTokens(tx, runner) })
	if !fault.Is(err, fault.Refused) || !strings.Contains(err.Error(), "Runner old runs claude-hub 1.2.3, which is too old to clone with tokens") {
		t.Errorf("%v", err)
	}
}

func TestARunnerThatGoesOnAskingForTokensIsRefusedForAWhile(t *testing.T) {
	t.Parallel()
	m := &mint{live: map[string]bool{}}
	r := newRig(t, storetest.New(t), Options{Tokens: m})
	runner := r.runner("r1")
	a, b := r.assign(runner, "s1", 0), r.assign(runner, "s2", 0)
	for range manyTokens {
		if res, err := tokenOf(r, runner, a); err != nil || res.GetRefused() != "" {
			t.Fatalf("%v %v", res.GetRefused(), err)
		}
	}
	res, err := tokenOf(r, runner, a)
	if err != nil || !strings.Contains(res.GetRefused(), "asked for 30 tokens to clone one Repo within 10m0s. It gets more from 12:10:00 UTC.") || len(m.repos) != manyTokens {
		t.Errorf("%q %v, %d minted", res.GetRefused(), err, len(m.repos))
	}
	if res, err := tokenOf(r, runner, b); err != nil || res.GetRefused() != "" {
		t.Errorf("for another assignment: %q %v", res.GetRefused(), err)
	}
	r.clock.add(tokenWindow)
	if res, err := tokenOf(r, runner, a); err != nil || res.GetRefused() != "" {
		t.Errorf("after a while: %q %v", res.GetRefused(), err)
	}
}
