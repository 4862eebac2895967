package access

import (
	"context"
	"time"

	"github.com/claude-hub/claude-hub/app/github"
)

// Sweep is one round of what Start does again and again.
func (g *Gate) Sweep(ctx context.Context) { g.sweep(ctx) }

// Patience sets how long calls wait for GitHub: reading where an old answer is good, and any other.
func (g *Gate) Patience(reading, other time.Duration) { g.patience, g.wait = reading, other }

// TokensOf are a person's tokens as they are stored.
func (g *Gate) TokensOf(ctx context.Context, person string) (github.UserTokens, error) {
	return g.tokensNow(ctx, person)
}

// Finished sets how many sign-ins that came back are kept.
func (g *Gate) Finished(n int) { g.finished = n }
