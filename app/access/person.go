package access

import (
	"context"
	"crypto/rand"
	"crypto/sha256"
	"database/sql"
	"encoding/base64"
	"errors"
	"fmt"
	"regexp"
	"time"

	"github.com/claude-hub/claude-hub/app/audit"
	"github.com/claude-hub/claude-hub/app/fault"
	"github.com/claude-hub/claude-hub/store"
)

// Limits of a browser's session: ended after so long without a request, and in any case (facts/reliability.md §6).
const (
	BrowserIdle = 7 * 24 * time.Hour
	BrowserLife = 30 * 24 * time.Hour
)

// Person is somebody who is signed in. The zero Person is nobody.
type Person struct {
	id, source, login string
}

// ID is stable for a person's whole life; Login may change and be given to others.
func (p Person) ID() string    { return p.id }
func (p Person) Login() string { return p.login }

// Dev tells that the person came by dev login and so reaches every Repo while it is on (ADR 0009).
func (p Person) Dev() bool { return p.source == sourceDev }

const sourceDev = "dev"

var devName = regexp.MustCompile(`^[a-z0-9](?:[a-z0-9-]{0,37}[a-z0-9])?$`)

// SignInDev signs somebody in under a name of their choice and returns the secret of a browser session. It is
// refused unless dev login is on.
func (g *Gate) SignInDev(ctx context.Context, login string) (Person, string, error) {
	if !g.dev {
		return Person{}, "", fault.New(fault.Refused, "Dev login is off. The key dev.login of the Hub's config turns it on.")
	}
	if !devName.MatchString(login) {
		return Person{}, "", fault.Field("login", "A name has 1 to 39 lower-case letters, digits and inner hyphens.")
	}
	return g.issue(ctx, login, credential{kind: kindBrowser, name: "browser", life: BrowserLife})
}

// IssueToken makes a token for the CLI and the API under a dev person's name. Only its hash is kept.
func (g *Gate) IssueToken(ctx context.Context, login, name string, life time.Duration) (Person, string, error) {
	if !g.dev {
		return Person{}, "", fault.New(fault.Refused, "Dev login is off, so there is nobody to issue a token to.")
	}
	return g.issue(ctx, login, credential{kind: kindToken, name: name, life: life})
}

type credential struct {
	kind, name string
	life       time.Duration
}

const (
	kindBrowser = "browser"
	kindToken   = "token"
)

func (g *Gate) issue(ctx context.Context, login string, c credential) (who Person, secret string, err error) {
	secret = newSecret()
	err = g.db.Write(ctx, func(tx *store.Tx) error {
		now := tx.Now()
		if _, err := tx.Exec(upsertPersonSQL, store.NewID(), sourceDev, login, now.UnixMilli()); err != nil {
			return fmt.Errorf("save person: %w", err)
		}
		if err := tx.Row(personByLoginSQL, sourceDev, login).Scan(&who.id, &who.source, &who.login); err != nil {
			return fmt.Errorf("read person: %w", err)
		}
		if _, err := tx.Exec(deleteExpiredSQL, now.UnixMilli(), now.Add(-BrowserIdle).UnixMilli()); err != nil {
			return fmt.Errorf("delete expired credentials: %w", err)
		}
		if _, err := tx.Exec(insertCredentialSQL, hash(secret), who.id, c.kind, c.name, now.UnixMilli(), now.Add(c.life).UnixMilli()); err != nil {
			return fmt.Errorf("save credential: %w", err)
		}
		return audit.Record(tx, audit.Entry{Who: who.id, Action: "sign-in." + c.kind, Subject: who.id, Detail: map[string]any{"name": c.name}})
	})
	return who, secret, err
}

// Browser returns who a browser session's secret belongs to; Token the same for an API token. Both answer an
// Unauthorized fault for a secret that is unknown, expired or of the other kind.
func (g *Gate) Browser(ctx context.Context, secret string) (Person, error) {
	return g.whose(ctx, secret, kindBrowser)
}

// Token is described with Browser.
func (g *Gate) Token(ctx context.Context, secret string) (Person, error) {
	return g.whose(ctx, secret, kindToken)
}

func (g *Gate) whose(ctx context.Context, secret, kind string) (Person, error) {
	var who Person
	var stale bool
	err := g.db.Read(ctx, func(tx *store.Tx) error {
		var k string
		var seen, expires int64
		if err := tx.Row(credentialSQL, hash(secret)).Scan(&who.id, &who.source, &who.login, &k, &seen, &expires); err != nil {
			return err
		}
		now := tx.Now().UnixMilli()
		if k != kind || now >= expires || (k == kindBrowser && now-seen >= BrowserIdle.Milliseconds()) || (who.source == sourceDev && !g.dev) {
			return sql.ErrNoRows
		}
		stale = now-seen > time.Hour.Milliseconds()
		return nil
	})
	if errors.Is(err, sql.ErrNoRows) {
		return Person{}, fault.New(fault.Unauthorized, "You are not signed in.")
	}
	if err != nil {
		return Person{}, fmt.Errorf("look up credential: %w", err)
	}
	if stale { // at most one write an hour, so that reading pages doesn't write
		err = g.db.Write(ctx, func(tx *store.Tx) error {
			_, err := tx.Exec(seenSQL, hash(secret), tx.Now().UnixMilli())
			return err
		})
	}
	return who, err
}

// SignOut ends the session or token with this secret.
func (g *Gate) SignOut(ctx context.Context, secret string) error {
	return g.db.Write(ctx, func(tx *store.Tx) error {
		_, err := tx.Exec(deleteCredentialSQL, hash(secret))
		return err
	})
}

func newSecret() string {
	b := make([]byte, 32)
	rand.Read(b)
	return base64.RawURLEncoding.EncodeToString(b)
}

func hash(secret string) []byte {
	h := sha256.Sum256([]byte(secret))
	return h[:]
}
