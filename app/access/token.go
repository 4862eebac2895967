package access

import (
	"context"
	"database/sql"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/claude-hub/claude-hub/app/audit"
	"github.com/claude-hub/claude-hub/app/fault"
	"github.com/claude-hub/claude-hub/app/github"
	"github.com/claude-hub/claude-hub/store"
)

// Scope is a part of what a person may do, for tokens that may not do everything. None of them gives access to a Repo
// that the person has none to: that is asked each time.
type Scope string

const (
	ScopeRead         Scope = "read"         // look at everything but a Session's inside
	ScopeEnvironments Scope = "environments" // change drafts, run Test builds, apply
	ScopeSessions     Scope = "sessions"     // start Sessions, run commands in them, end them
	ScopeShared       Scope = "shared"       // change Shared variables
	ScopeRunners      Scope = "runners"      // register and remove Runners
	ScopeTokens       Scope = "tokens"       // make and revoke the person's tokens
)

// Scopes are all there are.
func Scopes() []Scope {
	return []Scope{ScopeRead, ScopeEnvironments, ScopeSessions, ScopeShared, ScopeRunners, ScopeTokens}
}

// MaxTokenLife is how long a token may live.
const MaxTokenLife = 365 * 24 * time.Hour

const (
	maxTokens     = 100 // of one person, at any one time
	maxTokenName  = 100
	maxTokenRepos = 100
)

// Can tells whether what the person came with may do s. A browser's session may do everything.
func (p Person) Can(s Scope) bool {
	return p.id != "" && (p.limits == nil || slices.Contains(p.limits.scopes, s))
}

// ByToken tells that the person came with a token and not with a browser.
func (p Person) ByToken() bool { return p.limits != nil }

// TokenOptions are of a new token.
type TokenOptions struct {
	Name   string
	Scopes []Scope
	Repos  []github.RepoID // none: all that the person may use, then and later
	Life   time.Duration   // at most MaxTokenLife
}

// Token is one of a person's tokens, without its secret.
type Token struct {
	ID      string // says nothing of the secret
	Name    string
	Scopes  []Scope
	Repos   []github.RepoID // none: all
	Created time.Time
	Used    time.Time // within five minutes; Created where it was never used
	Expires time.Time
}

// CreateToken makes a token for the CLI and the API and returns its secret, of which only a hash is kept. It may do what
// its scopes say, for as long as its person may: it passes the same Gate. Who comes with a token themselves can make only
// tokens that can do no more and live no longer.
func (g *Gate) CreateToken(ctx context.Context, who Person, o TokenOptions) (secret string, t Token, err error) {
	if err := g.checkToken(ctx, who, &o); err != nil {
		return "", Token{}, err
	}
	err = g.db.Write(ctx, func(tx *store.Tx) error {
		mine, err := store.All(tx, scanToken, tokensSQL, who.id, tx.Now().UnixMilli())
		if err != nil {
			return fmt.Errorf("list the tokens: %w", err)
		}
		if len(mine) >= maxTokens {
			return fault.New(fault.Refused, "You have %d tokens, which is as many as there may be. Revoke one that you no longer need.", len(mine))
		}
		owner := Person{id: who.id}
		if secret, err = issue(tx, &owner, credential{kind: kindToken, name: o.Name, life: o.Life, scopes: o.Scopes, repos: o.Repos}); err != nil {
			return err
		}
		t = Token{
			ID: tokenID([]byte(owner.credential)), Name: o.Name, Scopes: o.Scopes, Repos: o.Repos,
			Created: tx.Now(), Used: tx.Now(), Expires: tx.Now().Add(o.Life),
		}
		return audit.Record(tx, audit.Entry{Who: who.id, Action: "token.create", Subject: t.ID, Detail: map[string]any{
			"name": o.Name, "scopes": o.Scopes, "repos": o.Repos, "expires": t.Expires,
		}})
	})
	return secret, t, err
}

func (g *Gate) checkToken(ctx context.Context, who Person, o *TokenOptions) error {
	o.Name = strings.TrimSpace(o.Name)
	switch n := utf8.RuneCountInString(o.Name); {
	case who.id == "":
		return errNobody
	case n == 0 || n > maxTokenName || store.Text(o.Name) != o.Name:
		return fault.Field("name", "Say in 1 to %d characters what the token is for.", maxTokenName)
	case len(o.Scopes) == 0:
		return fault.Field("scopes", "Choose at least one thing that the token may do: %s.", join(Scopes()))
	case len(o.Repos) > maxTokenRepos:
		return fault.Field("repos", "A token is for at most %d named Repos. Name none for all that you may use.", maxTokenRepos)
	}
	if err := checkLife(o.Life); err != nil {
		return err
	}
	slices.Sort(o.Scopes)
	o.Scopes = slices.Compact(o.Scopes)
	for _, s := range o.Scopes {
		if !slices.Contains(Scopes(), s) {
			return fault.Field("scopes", "There is no scope %q. There are: %s.", s, join(Scopes()))
		}
		if !who.Can(s) {
			return fault.Field("scopes", "The token you came with lacks the scope %q, so it can't give it to another one.", s)
		}
	}
	if who.limits != nil {
		if who.limits.repos != nil && len(o.Repos) == 0 {
			return fault.Field("repos", "The token you came with is for some Repos only, so it can make no token for all.")
		}
		if g.db.Now().Add(o.Life).After(who.limits.expires) {
			return fault.Field("life", "A token can make no token that outlives it. Sign in with a browser for that.")
		}
	}
	slices.Sort(o.Repos)
	o.Repos = slices.Compact(o.Repos)
	for _, id := range o.Repos {
		if _, err := g.Repo(ctx, who, id); err != nil {
			if fault.Is(err, fault.NotFound) {
				return fault.Field("repos", "%s", ErrNotFound.Message)
			}
			return err
		}
	}
	if len(o.Repos) == 0 {
		o.Repos = nil
	}
	return nil
}

func checkLife(life time.Duration) error {
	if life < time.Minute || life > MaxTokenLife {
		return fault.Field("life", "A token lives for at least a minute and at most %d days.", MaxTokenLife/(24*time.Hour))
	}
	return nil
}

// Tokens lists the person's tokens that are still good, newest first.
func (g *Gate) Tokens(ctx context.Context, who Person) (all []Token, err error) {
	err = g.db.Read(ctx, func(tx *store.Tx) error {
		all, err = store.All(tx, scanToken, tokensSQL, who.id, tx.Now().UnixMilli())
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("list the tokens: %w", err)
	}
	return all, nil
}

// RevokeToken ends one of the person's tokens, by its ID. NotFound if they have no such token.
func (g *Gate) RevokeToken(ctx context.Context, who Person, id string) error {
	return g.db.Write(ctx, func(tx *store.Tx) error {
		mine, err := store.All(tx, store.Scan1[[]byte], tokenHashesSQL, who.id)
		if err != nil {
			return fmt.Errorf("list the tokens: %w", err)
		}
		i := slices.IndexFunc(mine, func(hash []byte) bool { return tokenID(hash) == id })
		if i < 0 {
			return fault.New(fault.NotFound, "You have no such token.")
		}
		if _, err := tx.Exec(deleteCredentialSQL, mine[i]); err != nil {
			return fmt.Errorf("revoke the token: %w", err)
		}
		tx.Wake(topic(who.id))
		return audit.Record(tx, audit.Entry{Who: who.id, Action: "token.revoke", Subject: id})
	})
}

// tokenID is what a token is called: the beginning of its secret's hash, from which no secret can be found.
func tokenID(hash []byte) string { return hex.EncodeToString(hash[:8]) }

func scanToken(scan func(...any) error) (t Token, err error) {
	var hash []byte
	var scopes string
	var repos sql.NullString
	if err := scan(&hash, &t.Name, &scopes, &repos, store.At(&t.Created), store.At(&t.Used), store.At(&t.Expires)); err != nil {
		return t, err
	}
	t.ID, t.Scopes = tokenID(hash), split(scopes)
	if repos.Valid {
		if err := json.Unmarshal([]byte(repos.String), &t.Repos); err != nil {
			return t, fmt.Errorf("the Repos of token %s can't be read: %w", t.ID, err)
		}
	}
	return t, nil
}
