package access

import (
	"context"
	"crypto/rand"
	"crypto/sha256"
	"database/sql"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"regexp"
	"strings"
	"time"

	"github.com/claude-hub/claude-hub/app/audit"
	"github.com/claude-hub/claude-hub/app/fault"
	"github.com/claude-hub/claude-hub/app/github"
	"github.com/claude-hub/claude-hub/store"
)

// Limits of a browser's session: ended after so long without a request, and in any case (facts/reliability.md §6).
const (
	BrowserIdle = 7 * 24 * time.Hour
	BrowserLife = 30 * 24 * time.Hour
)

// Person is somebody who is signed in, in a browser or by a token. The zero Person is nobody.
type Person struct {
	id, source, login string
	github            int64
	credential        string  // its hash; "" of somebody who isn't here, but pressed something at GitHub
	limits            *limits // nil: everything the person may do
}

// limits are what a token may do of all that its person may.
type limits struct {
	scopes  []Scope
	repos   []github.RepoID // nil: all
	expires time.Time
}

// ID is stable for a person's whole life; Login may change and be given to others.
func (p Person) ID() string    { return p.id }
func (p Person) Login() string { return p.login }

// GitHubID is GitHub's numeric id of the person, 0 of somebody who came by dev login.
func (p Person) GitHubID() int64 { return p.github }

// Dev tells that the person came by dev login and so reaches every Repo while it is on (ADR 0009).
func (p Person) Dev() bool { return p.source == sourceDev }

const (
	sourceDev    = "dev"
	sourceGitHub = "github"
)

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
	return g.issueDev(ctx, login, credential{kind: kindBrowser, name: "browser", life: BrowserLife})
}

// IssueToken makes a token for the CLI and the API under a dev person's name, that may do everything they may. Only its
// hash is kept.
func (g *Gate) IssueToken(ctx context.Context, login, name string, life time.Duration) (Person, string, error) {
	if !g.dev {
		return Person{}, "", fault.New(fault.Refused, "Dev login is off, so there is nobody to issue a token to.")
	}
	if err := checkLife(life); err != nil {
		return Person{}, "", err
	}
	return g.issueDev(ctx, login, credential{kind: kindToken, name: name, life: life})
}

type credential struct {
	kind, name string
	life       time.Duration
	scopes     []Scope // nil: all
	repos      []github.RepoID
}

const (
	kindBrowser = "browser"
	kindToken   = "token"
)

func (g *Gate) issueDev(ctx context.Context, login string, c credential) (who Person, secret string, err error) {
	err = g.db.Write(ctx, func(tx *store.Tx) error {
		who = Person{}
		if _, err := tx.Exec(upsertPersonSQL, store.NewID(), sourceDev, login, tx.Now().UnixMilli()); err != nil {
			return fmt.Errorf("save person: %w", err)
		}
		if err := tx.Row(personByLoginSQL, sourceDev, login).Scan(&who.id, &who.source, &who.login); err != nil {
			return fmt.Errorf("read person: %w", err)
		}
		if secret, err = issue(tx, &who, c); err != nil {
			return err
		}
		return audit.Record(tx, audit.Entry{Who: who.id, Action: "sign-in." + c.kind, Subject: who.id, Detail: map[string]any{"name": c.name}})
	})
	return who, secret, err
}

// issue makes a credential for who, who is then signed in by it.
func issue(tx *store.Tx, who *Person, c credential) (secret string, err error) {
	now := tx.Now()
	if _, err := tx.Exec(deleteExpiredSQL, now.UnixMilli(), now.Add(-BrowserIdle).UnixMilli()); err != nil {
		return "", fmt.Errorf("delete expired credentials: %w", err)
	}
	if c.scopes == nil {
		c.scopes = Scopes()
	}
	var repos any
	if c.repos != nil {
		b, err := json.Marshal(c.repos)
		if err != nil {
			return "", err
		}
		repos = string(b)
	}
	secret = NewSecret()
	h := HashSecret(secret)
	if _, err := tx.Exec(insertCredentialSQL, h, who.id, c.kind, store.Text(c.name), now.UnixMilli(), now.Add(c.life).UnixMilli(), join(c.scopes), repos); err != nil {
		return "", fmt.Errorf("save credential: %w", err)
	}
	who.credential = string(h)
	return secret, nil
}

// Browser returns who a browser session's secret belongs to; Token the same for an API token. Both answer an
// Unauthorized fault for a secret that is unknown, expired or of the other kind.
//
// A person of GitHub is signed in as long as GitHub shows them a Repo of this Hub's App, or the config lists them: that is
// asked again when it is older than [Options].Age. While GitHub can't be reached what it said last is good up to
// [Options].Outage, then the fault is Unavailable.
func (g *Gate) Browser(ctx context.Context, secret string) (Person, error) {
	return g.whose(ctx, HashSecret(secret), kindBrowser)
}

// Token is described with Browser. What the token may do of all that its person may, the Person carries: see
// [Person.Can]; that it is for some Repos only, every method of the Gate enforces.
func (g *Gate) Token(ctx context.Context, secret string) (Person, error) {
	return g.whose(ctx, HashSecret(secret), kindToken)
}

// errNobody is the same for every secret that signs nobody in; errNoToken for one that should be a token's.
var (
	errNobody  = fault.New(fault.Unauthorized, "You are not signed in.")
	errNoToken = fault.New(fault.Unauthorized, "This token is unknown or has expired.")
)

// seenEvery is how often the use of a credential is written down: reading pages should not write each time.
func seenEvery(kind string) time.Duration {
	if kind == kindToken {
		return 5 * time.Minute // people look at the last use of their tokens
	}
	return time.Hour
}

func (g *Gate) whose(ctx context.Context, hash []byte, kind string) (Person, error) {
	var who Person
	var unseen bool
	_, err := g.current(Reading(ctx), func() (v view, err error) {
		err = g.db.Read(ctx, func(tx *store.Tx) error {
			v, who, unseen = view{now: tx.Now()}, Person{}, false
			var k, scopes string
			var repos sql.NullString
			var seen, expires int64
			if err := tx.Row(credentialSQL, hash).Scan(append([]any{
				&who.id, &who.source, &who.login, &who.github, &k, &seen, &expires, &scopes, &repos}, v.standing.dest()...)...); err != nil {
				return err
			}
			now := tx.Now().UnixMilli()
			if k != kind || now >= expires || (k == kindBrowser && now-seen >= BrowserIdle.Milliseconds()) || (who.Dev() && !g.dev) {
				return store.ErrNotFound
			}
			unseen = now-seen > seenEvery(kind).Milliseconds()
			who.credential = string(hash)
			if kind == kindToken {
				who.limits = &limits{scopes: split(scopes), expires: time.UnixMilli(expires)}
				if repos.Valid {
					who.limits.repos = []github.RepoID{} // null would be all
					if err := json.Unmarshal([]byte(repos.String), &who.limits.repos); err != nil {
						return fmt.Errorf("the Repos of a token of %s can't be read: %w", who.id, err)
					}
				}
			}
			v.who, v.yes = who, who.github == 0 || v.standing.any || g.invited(who.github)
			return nil
		})
		return v, err
	})
	var signedOut *signedOutError
	switch {
	case errors.Is(err, store.ErrNotFound) && kind == kindToken:
		return Person{}, errNoToken
	case errors.Is(err, store.ErrNotFound):
		return Person{}, errNobody
	case errors.Is(err, errDenied):
		return Person{}, fault.New(fault.Unauthorized, "GitHub no longer shows %s a Repo that this Hub's App is installed on. %s", who.login, g.howToInstall())
	case errors.As(err, &signedOut) && kind == kindToken:
		return Person{}, fault.New(fault.Unauthorized, "The sign-in at GitHub behind this token has ended. It works again once %s has signed in to the Hub in a browser.", who.login)
	case errors.As(err, &signedOut):
		return Person{}, signedOut.fault()
	case err != nil:
		return Person{}, fmt.Errorf("look up credential: %w", explain(err))
	}
	if unseen {
		err = g.db.Write(ctx, func(tx *store.Tx) error {
			_, err := tx.Exec(seenSQL, hash, tx.Now().UnixMilli())
			return err
		})
	}
	return who, err
}

// SignOut ends the session or token with this secret.
func (g *Gate) SignOut(ctx context.Context, secret string) error {
	return g.db.Write(ctx, func(tx *store.Tx) error {
		var person, kind string
		err := tx.Row(credentialOfSQL, HashSecret(secret)).Scan(&person, &kind)
		if errors.Is(err, store.ErrNotFound) {
			return nil
		}
		if err == nil {
			_, err = tx.Exec(deleteCredentialSQL, HashSecret(secret))
		}
		if err != nil {
			return fmt.Errorf("sign out: %w", err)
		}
		tx.Wake(topic(person))
		return audit.Record(tx, audit.Entry{Who: person, Action: "sign-out." + kind, Subject: person})
	})
}

// SignOutEverywhere ends all sessions of the person in browsers, this one included. Their tokens stay: those are revoked
// one by one.
func (g *Gate) SignOutEverywhere(ctx context.Context, who Person) error {
	return g.db.Write(ctx, func(tx *store.Tx) error {
		n, err := tx.Exec(deleteBrowsersSQL, who.id)
		if err != nil {
			return fmt.Errorf("end the sessions: %w", err)
		}
		tx.Wake(topic(who.id))
		return audit.Record(tx, audit.Entry{Who: who.id, Action: "sign-out.everywhere", Subject: who.id, Detail: map[string]any{"sessions": n}})
	})
}

// Browsers is how many sessions the person has in browsers.
func (g *Gate) Browsers(ctx context.Context, who Person) (n int, err error) {
	err = g.db.Read(ctx, func(tx *store.Tx) error {
		return tx.Row(countBrowsersSQL, who.id, tx.Now().UnixMilli(), tx.Now().Add(-BrowserIdle).UnixMilli()).Scan(&n)
	})
	return n, err
}

// NewSecret is 256 random bits as text that goes into addresses and cookies.
func NewSecret() string {
	b := make([]byte, 32)
	rand.Read(b)
	return base64.RawURLEncoding.EncodeToString(b)
}

// HashSecret is what is stored of a NewSecret.
func HashSecret(secret string) []byte {
	h := sha256.Sum256([]byte(secret))
	return h[:]
}

func join(scopes []Scope) string {
	words := make([]string, len(scopes))
	for i, s := range scopes {
		words[i] = string(s)
	}
	return strings.Join(words, " ")
}

func split(s string) []Scope {
	var scopes []Scope
	for _, word := range strings.Fields(s) {
		scopes = append(scopes, Scope(word))
	}
	return scopes
}
