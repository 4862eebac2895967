package access

import (
	"context"
	"crypto/sha256"
	"crypto/subtle"
	"encoding/base64"
	"encoding/hex"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/claude-hub/claude-hub/app/github"
	"github.com/claude-hub/claude-hub/store"
)

// SignInLife is how long a sign-in may take, from leaving for GitHub to coming back.
const SignInLife = 10 * time.Minute

const (
	// maxFinished bounds what is kept of sign-ins that came back. Nobody needs to be known to come back, so beyond it the oldest are
	// given up: then one and the same browser could come back twice with one state.
	maxFinished = 100_000
	// skew is how far the clocks of two Hubs may be apart.
	skew = time.Minute
)

// begun is a sign-in that is under way. All of it is in a cookie of the browser that began it, and nothing in the database: however many
// others are begun, by whomever, none is given up for them.
type begun struct {
	secret   string
	expires  time.Time
	returnTo string
}

// cookie is what the browser keeps. State and verifier follow from it, and nothing of it from the state, which stands in addresses.
func (b begun) cookie() string {
	return b.secret + "." + strconv.FormatInt(b.expires.UnixMilli(), 36) + "." + base64.RawURLEncoding.EncodeToString([]byte(b.returnTo))
}

func (b begun) state() string { return b.derive("state") }

func (b begun) verifier() github.Secret { return github.NewSecret(b.derive("verifier")) }

func (b begun) derive(what string) string {
	h := sha256.Sum256([]byte("claude-hub sign-in " + what + "\n" + b.cookie()))
	return base64.RawURLEncoding.EncodeToString(h[:])
}

// readBegun reads a cookie; false for what is none.
func readBegun(cookie string) (b begun, ok bool) {
	parts := strings.Split(cookie, ".")
	if len(parts) != 3 || len(parts[0]) != len(NewSecret()) {
		return b, false
	}
	expires, err := strconv.ParseInt(parts[1], 36, 64)
	if err != nil {
		return b, false
	}
	back, err := base64.RawURLEncoding.DecodeString(parts[2])
	if err != nil {
		return b, false
	}
	b = begun{parts[0], time.UnixMilli(expires), LocalPath(string(back))}
	return b, b.cookie() == cookie
}

// takeSignIn ends what the browser began, if state is that of it: the same is good once.
func (g *Gate) takeSignIn(ctx context.Context, cookie, state string) (b begun, err error) {
	b, ok := readBegun(cookie)
	if now := g.db.Now(); !ok || subtle.ConstantTimeCompare([]byte(b.state()), []byte(state)) != 1 || !now.Before(b.expires) || b.expires.Sub(now) > SignInLife+skew {
		return begun{}, errSignIn
	}
	first := false
	err = g.db.Write(ctx, func(tx *store.Tx) error {
		if _, err := tx.Exec(oldSignInsSQL, tx.Now().UnixMilli()); err != nil {
			return fmt.Errorf("forget old sign-ins: %w", err)
		}
		if _, err := tx.Exec(spareSignInsSQL, g.finished-1); err != nil {
			return fmt.Errorf("forget sign-ins beyond what is kept: %w", err)
		}
		n, err := tx.Exec(finishSignInSQL, hex.EncodeToString(HashSecret(state)), b.expires.UnixMilli())
		first = n == 1
		return err
	})
	if err != nil {
		return begun{}, fmt.Errorf("end the sign-in: %w", err)
	}
	if !first {
		return begun{}, errSignIn
	}
	return b, nil
}
