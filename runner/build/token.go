package build

import (
	"context"
	"errors"

	"github.com/claude-hub/claude-hub/runner/clone"
	"github.com/claude-hub/claude-hub/runner/wire"
)

// TokenUser is who a token of a GitHub App signs in as to git over HTTP.
const TokenUser = "x-access-token"

// TokenFunc gets a token that reads the Repo to clone, just before it is used; the Log's Set knows it by then. end gives it back,
// and is called once, when no git has it any more. Why there is none is a *Failed.
type TokenFunc func(ctx context.Context) (token string, end func(), err error)

// clone clones with a token. When the other side refuses it in the middle (it expired, or the App was removed) another one is
// asked for, once: either the clone is whole then, or whoever gives tokens says why there is none.
func (t TokenFunc) clone(ctx context.Context, o clone.Options) (clone.Result, error) {
	if t == nil {
		return clone.Result{}, &Failed{wire.Failure{Phase: wire.PhaseClone, Code: CodeToken, Message: "this Runner has nobody to ask for a token to clone with"}}
	}
	for again := false; ; again = true {
		token, end, err := t(ctx)
		if err != nil {
			return clone.Result{}, err
		}
		o.Credentials = &clone.Credentials{Username: TokenUser, Password: token}
		res, err := clone.Clone(ctx, o)
		end()
		var refused *clone.Error
		if again || ctx.Err() != nil || !errors.As(err, &refused) || refused.Code != clone.CodeRefused && refused.Code != clone.CodeNotFound {
			return res, err
		}
		if o.Log != nil {
			o.Log("clone: " + refused.Message + "; trying once more with another token")
		}
	}
}
