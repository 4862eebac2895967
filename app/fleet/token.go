package fleet

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/claude-hub/claude-hub/app/audit"
	"github.com/claude-hub/claude-hub/app/fault"
	"github.com/claude-hub/claude-hub/runner/wire"
	"github.com/claude-hub/claude-hub/store"
)

// Token lets git read one Repo until Expires. It prints as [hidden].
type Token struct {
	Text    string
	Expires time.Time
}

// Format keeps the text out of everything that fmt makes.
func (Token) Format(f fmt.State, _ rune) { _, _ = f.Write([]byte("[hidden]")) }

// MarshalText keeps the text out of JSON.
func (Token) MarshalText() ([]byte, error) { return []byte("[hidden]"), nil }

// Tokens makes the tokens that Runners clone with. It stores and logs none. May be called from many goroutines.
//
// Whether the Hub has a GitHub App is a matter of the moment: one is set up, changed or lost while the Hub runs. While there
// is none, Mint answers with the sentence NoApp and Revoke fails.
type Tokens interface {
	// Mint makes a token that reads the contents of exactly one Repo, or says in a sentence for a person why there is none.
	Mint(ctx context.Context, repo int64) (t Token, refused string)
	// Revoke ends a token; that one has ended already is no error.
	Revoke(ctx context.Context, token string) error
}

// PushTokens are Tokens that push, where the operator lets git in Sandboxes do so.
type PushTokens interface {
	// MintPush makes a token that reads and writes the contents of exactly one Repo, or says as Mint does why there is none. lacks: it
	// is for want of the App's permission, so that one which reads can be had.
	MintPush(ctx context.Context, repo int64) (t Token, refused string, lacks bool)
}

// Cloner is an Owner whose assignments clone a Repo with a token. refused is why this one doesn't, in a sentence for a
// person. tx is read-only.
type Cloner interface {
	CloneRepo(ctx context.Context, tx *store.Tx, a Assignment) (repo int64, refused string, err error)
}

const (
	// mintTime bounds how long GitHub may take, so that a Runner hears why there is no token before its own patience ends.
	mintTime = 15 * time.Second
	// revokeTime is for giving back what nobody waits for.
	revokeTime = 10 * time.Second
	// One assignment gets manyTokens within tokenWindow: a clone asks for two at most, and a Runner that goes on asking would use
	// up what GitHub answers the App for everybody.
	manyTokens  = 30
	tokenWindow = 10 * time.Minute
	// git in one Sandbox gets sessionTokens within sessionWindow. A Runner hands out again what it has, so a Session needs one an
	// hour, and another whenever its person's rights change.
	sessionTokens = 20
	sessionWindow = time.Hour
	// maxToken is far above what GitHub's tokens have, in bytes.
	maxToken = 1 << 10
)

// NoApp is why nothing is cloned with a token while the Hub has no GitHub App.
const NoApp = "This Repo isn't cloned: the Hub has no GitHub App. Its operator sets one up on the Hub's set-up page, or in the section github " +
	"of its config. Without one, only Repos of dev.repos are cloned, in dev mode (keys dev.login and dev.repos)."

// CloneToken makes a token for the Repo of an assignment, for a Runner that is about to clone it, with the errors of
// Values. Each call makes another one. It is in no table and no log; that one was made, for which Repo and which assignment,
// is audited. From here on it is masked in whatever the Runner sends of the assignment.
//
// What changes while GitHub answers is seen: a token for what is no longer the Runner's to do is revoked and not handed out.
// One whose answer is lost, or whose Runner dies, ends by itself within the hour.
func (f *Fleet) CloneToken(ctx context.Context, runner string, q *wire.CloneTokenRequest) (*wire.CloneTokenResponse, error) {
	var repo int64
	var refused string
	err := f.ask(ctx, runner, q, func(tx *store.Tx, o Owner, a Assignment) (err error) {
		c, ok := o.(Cloner)
		if a.Want != Run || !ok {
			return ErrStale
		}
		repo, refused, err = c.CloneRepo(tx.Context(), tx, a)
		return err
	})
	switch {
	case err != nil:
		return nil, err
	case f.o.Tokens == nil && refused == "":
		refused = NoApp
	}
	if until, ok := f.minted.take(q.GetId(), f.now(), manyTokens, tokenWindow); refused == "" && !ok {
		refused = fmt.Sprintf("This Runner has asked for %d tokens to clone one Repo within %s. It gets more from %s UTC.", manyTokens, tokenWindow, until.UTC().Format("15:04:05"))
	}
	if refused != "" {
		return &wire.CloneTokenResponse{Refused: refused}, nil
	}
	minting, cancel := context.WithTimeout(ctx, mintTime)
	t, refused := f.o.Tokens.Mint(minting, repo)
	cancel()
	if refused != "" && refused != NoApp {
		refused = "There is no token to clone with. " + refused
	}
	if refused != "" {
		return &wire.CloneTokenResponse{Refused: refused}, nil
	}
	f.guard.also(runner, q.GetId(), &wire.Value{Name: "the clone's token", Value: []byte(t.Text)})
	if err := f.handOut(ctx, runner, q, t, repo, "system: Runner's request", map[string]any{"contents": wire.ContentsRead}); err != nil {
		return nil, err
	}
	return &wire.CloneTokenResponse{Token: []byte(t.Text), ExpiresMs: millis(t.Expires)}, nil
}

// handOut audits that t was made, if what it is for is still the Runner's to do; else t is revoked and the error says why.
func (f *Fleet) handOut(ctx context.Context, runner string, q question, t Token, repo int64, who string, detail map[string]any) error {
	err := f.db.Write(ctx, func(tx *store.Tx) error {
		a, _, err := f.current(tx, runner, q)
		if err == nil && a.Want != Run {
			err = ErrStale
		}
		if err != nil {
			return err
		}
		detail["runner"], detail["kind"], detail["fence"], detail["expires"] = runner, string(a.Kind), a.Fence, t.Expires.UTC().Format(time.RFC3339)
		return audit.Record(tx, audit.Entry{Who: who, Repo: repo, Action: "token.mint", Subject: a.ID, Detail: detail})
	})
	if err == nil {
		return nil
	}
	back, cancel := context.WithTimeout(context.WithoutCancel(ctx), revokeTime)
	defer cancel()
	if err := f.o.Tokens.Revoke(back, t.Text); err != nil {
		f.log.Warn().Err(err).Str("assignment", q.GetId()).Msg("a token that was not handed out could not be revoked; it ends by itself within the hour")
	}
	return err
}

// EndToken revokes a token that CloneToken or SessionToken made for an assignment of runner, whatever its fence is by now and whichever Hub
// made it. A fault of code unavailable: it could not be, and ends by itself within the hour.
func (f *Fleet) EndToken(ctx context.Context, runner string, q *wire.EndTokenRequest) error {
	f.contacts.touch(runner, f.now())
	token := q.GetToken()
	if len(token) == 0 || len(token) > maxToken {
		return fmt.Errorf("%w: this is no token", ErrInvalid)
	}
	for _, c := range token {
		if c <= ' ' || c > '~' {
			return fmt.Errorf("%w: this is no token", ErrInvalid)
		}
	}
	err := f.db.Read(ctx, func(tx *store.Tx) error {
		_, err := f.of(tx, runner, q.GetId())
		return err
	})
	if err != nil {
		return err
	}
	if f.o.Tokens == nil {
		return fault.New(fault.Unavailable, "this Hub has no GitHub App any more; the token ends by itself within the hour")
	}
	if err := f.o.Tokens.Revoke(ctx, string(token)); err != nil {
		return fault.New(fault.Unavailable, "the token could not be revoked (%v); it ends by itself within the hour", err)
	}
	return nil
}

// also adds one to what is known of an assignment, beside what its Owner names.
func (g *guard) also(runner, id string, v *wire.Value) {
	g.mu.Lock()
	defer g.mu.Unlock()
	w := g.watch(runner, id)
	w.used = g.f.now()
	w.values[sumOf(v)] = v
	g.release(w)
}

// minted counts the tokens of each assignment within a window that begins with the first one.
type minted struct {
	mu sync.Mutex
	of map[string]*count
}

type count struct {
	since time.Time
	n     int
}

// take counts one more, or says from when on there is another one.
func (m *minted) take(assignment string, now time.Time, most int, window time.Duration) (until time.Time, ok bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for id, c := range m.of { // as many as clones begin within a window
		if now.Sub(c.since) >= window {
			delete(m.of, id)
		}
	}
	c := m.of[assignment]
	if c == nil {
		if m.of == nil {
			m.of = map[string]*count{}
		}
		c = &count{since: now}
		m.of[assignment] = c
	}
	if c.n >= most {
		return c.since.Add(window), false
	}
	c.n++
	return time.Time{}, true
}
