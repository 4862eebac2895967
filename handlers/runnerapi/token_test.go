package runnerapi_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/claude-hub/claude-hub/app/fleet"
	"github.com/claude-hub/claude-hub/runner/hubclient"
	"github.com/claude-hub/claude-hub/runner/wire"
	"github.com/claude-hub/claude-hub/store"
	"github.com/claude-hub/claude-hub/store/storetest"
)

func (o *owner) CloneRepo(context.Context, *store.Tx, fleet.Assignment) (int64, string, error) {
	return 4711, "", nil
}

func (o *owner) Rights(context.Context, fleet.Assignment) (fleet.Rights, error) {
	return fleet.Rights{Repo: 4711, Actor: "ana", ReadOnly: "ana may only read it."}, nil
}

// tokens are those that live.
type tokens struct {
	mu   sync.Mutex
	made int
	live map[string]bool
	away bool // GitHub, for Revoke
}

func (m *tokens) Mint(context.Context, int64) (fleet.Token, string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.made++
	t := fmt.Sprintf("ghs_canary%026d", m.made)
	m.live[t] = true
	return fleet.Token{Text: t, Expires: time.UnixMilli(1_800_000_000_000)}, ""
}

func (m *tokens) Revoke(_ context.Context, token string) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.away {
		return errors.New("GitHub has trouble")
	}
	delete(m.live, token)
	return nil
}

func (m *tokens) lives(token string) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.live[token]
}

func TestATokenIsHandedOutAndGivenBackThroughEveryProxyAndLostAnswers(t *testing.T) {
	t.Parallel()
	for name, through := range paths {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			m := &tokens{live: map[string]bool{}}
			h := newHub(t, storetest.New(t), fleet.Options{Tokens: m})
			id, token := h.register("r1")
			f := &flaky{next: hubclient.NewHTTP().Transport, rng: rand.New(rand.NewPCG(uint64(time.Now().UnixNano()), 1))}
			r := startRunner(t, t.TempDir(), through(t, h.url()), token, func(o *hubclient.Options) { o.HTTP = &http.Client{Transport: f} })
			a := h.assign(id, "s1")
			for range 5 {
				tok, expires, refused, err := r.CloneToken(t.Context(), a.ID, a.Generation, a.Fence)
				if err != nil || refused != "" || expires.UnixMilli() != 1_800_000_000_000 || !m.lives(string(tok)) {
					t.Fatalf("%v %q %v", expires, refused, err)
				}
				if err := r.EndToken(t.Context(), a.ID, tok); err != nil || m.lives(string(tok)) {
					t.Fatalf("given back: %v, lives %t", err, m.lives(string(tok)))
				}
			}
			if strings.Contains(h.log.String(), "canary") {
				t.Errorf("a token is in the Hub's log:\n%s", h.log.String())
			}
		})
	}
}

func TestARunnerIsToldForGoodThatAnAssignmentIsNotItsOwnOrNotOfNow(t *testing.T) {
	t.Parallel()
	m := &tokens{live: map[string]bool{}}
	h := newHub(t, storetest.New(t), fleet.Options{Tokens: m})
	mine, mineToken := h.register("r1")
	_, otherToken := h.register("r2")
	r1, r2 := startRunner(t, t.TempDir(), h.url(), mineToken, nil), startRunner(t, t.TempDir(), h.url(), otherToken, nil)
	a := h.assign(mine, "s1")
	h.write(func(tx *store.Tx) error { return h.fleet().Refence(tx, a.ID) })
	now := h.get(a.ID)
	for _, c := range []struct {
		name  string
		r     *runner
		g, f  int64
		want  error
		given string
	}{
		{"another Runner's", r2, now.Generation, now.Fence, hubclient.ErrUnknown, a.ID},
		{"an older fence", r1, now.Generation, a.Fence, hubclient.ErrFenced, a.ID},
		{"another generation", r1, now.Generation + 1, now.Fence, hubclient.ErrStale, a.ID},
		{"none", r1, 1, 1, hubclient.ErrUnknown, "none"},
	} {
		if _, _, _, err := c.r.CloneToken(t.Context(), c.given, c.g, c.f); !errors.Is(err, c.want) {
			t.Errorf("%s: %v, want %v", c.name, err, c.want)
		}
	}
	if m.made != 0 {
		t.Errorf("%d were made", m.made)
	}
	if err := r2.EndToken(t.Context(), a.ID, []byte("ghs_x")); !errors.Is(err, hubclient.ErrUnknown) {
		t.Errorf("given back by another: %v", err)
	}
}

func TestATokenThatGitHubCantEndNowIsGivenBackUntilTheRunnersPatienceEnds(t *testing.T) {
	t.Parallel()
	m := &tokens{live: map[string]bool{}, away: true}
	h := newHub(t, storetest.New(t), fleet.Options{Tokens: m})
	id, token := h.register("r1")
	r := startRunner(t, t.TempDir(), h.url(), token, nil)
	a := h.assign(id, "s1")
	tok, _, _, err := r.CloneToken(t.Context(), a.ID, a.Generation, a.Fence)
	if err != nil {
		t.Fatal(err)
	}
	short, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
	defer cancel()
	if err := r.EndToken(short, a.ID, tok); err == nil || strings.Contains(err.Error(), "canary") {
		t.Errorf("while GitHub is away: %v", err)
	}
	m.mu.Lock()
	m.away = false
	m.mu.Unlock()
	h.write(func(tx *store.Tx) error { // however the assignment is by then
		_, err := h.fleet().Change(tx, a.ID, fleet.Remove, time.Time{})
		return err
	})
	r.report(h.get(a.ID), wire.StateRemoved)
	r.flush()
	if err := r.EndToken(t.Context(), a.ID, tok); err != nil || m.lives(string(tok)) {
		t.Errorf("given back: %v", err)
	}
}

func TestATokenForGitIsLentThroughEveryProxyAndRefusalsAreForGood(t *testing.T) {
	t.Parallel()
	for name, through := range paths {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			m := &tokens{live: map[string]bool{}}
			h := newHub(t, storetest.New(t), fleet.Options{Tokens: m})
			id, token := h.register("r1")
			_, otherToken := h.register("r2")
			r, other := startRunner(t, t.TempDir(), through(t, h.url()), token, nil), startRunner(t, t.TempDir(), h.url(), otherToken, nil)
			a := h.assign(id, "s1")
			res, err := r.SessionToken(t.Context(), a.ID, a.Generation, a.Fence, "")
			if err != nil || !m.lives(string(res.GetToken())) || res.GetContents() != wire.ContentsRead || res.GetReadOnly() != "ana may only read it." {
				t.Fatalf("%+v %v", res, err)
			}
			if again, err := r.SessionToken(t.Context(), a.ID, a.Generation, a.Fence, wire.ContentsRead); err != nil || !again.GetKeep() || len(again.GetToken()) != 0 {
				t.Errorf("again: %+v %v", again, err)
			}
			for _, c := range []struct {
				r     *runner
				fence int64
				want  error
			}{{other, a.Fence, hubclient.ErrUnknown}, {r, a.Fence + 1, hubclient.ErrFenced}} {
				if _, err := c.r.SessionToken(t.Context(), a.ID, a.Generation, c.fence, ""); !errors.Is(err, c.want) {
					t.Errorf("%v, want %v", err, c.want)
				}
			}
			if err := r.EndToken(t.Context(), a.ID, res.GetToken()); err != nil || m.lives(string(res.GetToken())) {
				t.Errorf("given back: %v", err)
			}
			if strings.Contains(h.log.String(), "canary") {
				t.Errorf("a token is in the Hub's log:\n%s", h.log.String())
			}
		})
	}
}
