package fleet

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/claude-hub/claude-hub/runner/wire"
	"github.com/claude-hub/claude-hub/store"
)

// Lender is an Owner whose assignments a person works in, with git and with the rights that are theirs.
type Lender interface {
	// Rights are those that the person of a has at this moment. It may ask GitHub, and so is called outside of transactions. An
	// error is for no person.
	Rights(ctx context.Context, a Assignment) (Rights, error)
}

// Rights are what a person may do with the Repo of an assignment.
type Rights struct {
	Repo  int64
	Actor string // for the audit log
	// Refused is why they may do nothing, ReadOnly why they may only read it: sentences for that person, empty where they may.
	Refused, ReadOnly string
}

// pushIsOff is said to who could push.
const pushIsOff = "The Hub's credentials only read. Its operator lets git push with them by github.push in the Hub's config and the " +
	"permission contents: write of the GitHub App. Or push with credentials of your own."

// noHubCredentials is said where there is no App.
const noHubCredentials = "The Hub has no GitHub App, and so no credentials for this Repo."

// askRights bounds how long it may take to find out what a person may do.
const askRights = 10 * time.Second

// SessionToken makes a token for git in the Sandbox of an assignment, with the rights that its person has at that moment, with
// the errors of CloneToken; or says that the one the Runner has, which may do q.Have, is still what they may. It reads, and pushes
// where the person may, the operator lets them and the App can. As with CloneToken it is kept nowhere, audited, masked in
// whatever the Runner sends, and revoked at once if it is no longer the Runner's to have.
func (f *Fleet) SessionToken(ctx context.Context, runner string, q *wire.SessionTokenRequest) (*wire.SessionTokenResponse, error) {
	var lender Lender
	var a Assignment
	err := f.ask(ctx, runner, q, func(_ *store.Tx, o Owner, of Assignment) error {
		var ok bool
		if lender, ok = o.(Lender); !ok || of.Want != Run {
			return ErrStale
		}
		a = of
		return nil
	})
	if err != nil {
		return nil, err
	}
	var may Rights
	asking, cancel := context.WithTimeout(ctx, askRights)
	err = guarded(func() (err error) {
		may, err = lender.Rights(asking, a)
		return err
	})
	late := asking.Err() != nil
	cancel()
	switch {
	case err != nil && late && ctx.Err() == nil:
		may.Refused = fmt.Sprintf("The Hub did not find out within %s what you may do with this Repo. Try again.", askRights)
	case err != nil:
		return nil, err
	}
	if may.Refused != "" {
		return &wire.SessionTokenResponse{Refused: may.Refused}, nil
	}
	if f.o.Tokens == nil {
		return &wire.SessionTokenResponse{Refused: noHubCredentials}, nil
	}
	if may.ReadOnly == "" && f.o.Push == nil {
		may.ReadOnly = pushIsOff
	}
	return f.lend(ctx, runner, q, may)
}

// lend makes the token that may allows, unless the Runner has it.
func (f *Fleet) lend(ctx context.Context, runner string, q *wire.SessionTokenRequest, may Rights) (*wire.SessionTokenResponse, error) {
	res := &wire.SessionTokenResponse{Contents: wire.ContentsWrite, ReadOnly: may.ReadOnly}
	if may.ReadOnly != "" {
		res.Contents = wire.ContentsRead
	}
	if res.Keep = q.GetHave() == res.Contents; res.Keep {
		return res, nil
	}
	if until, ok := f.lent.take(q.GetId(), f.now(), sessionTokens, sessionWindow); !ok {
		return &wire.SessionTokenResponse{Refused: fmt.Sprintf("git in this Session was given %d tokens within %s. It gets more from %s UTC.",
			sessionTokens, sessionWindow, until.UTC().Format("15:04:05"))}, nil
	}
	t, err := f.mint(ctx, may.Repo, q.GetHave(), res)
	if err != nil || res.Refused != "" || res.Keep {
		return res, err
	}
	f.guard.also(runner, q.GetId(), &wire.Value{Name: "git's token", Value: []byte(t.Text)})
	if err := f.handOut(ctx, runner, q, t, may.Repo, may.Actor, map[string]any{"contents": res.Contents, "for": "git"}); err != nil {
		return nil, err
	}
	res.Token, res.ExpiresMs = []byte(t.Text), millis(t.Expires)
	return res, nil
}

// mint makes the token that res announces. Where the App lacks the permission to push, it makes one that reads, or none when
// the Runner has that already, and res says why.
func (f *Fleet) mint(ctx context.Context, repo int64, have string, res *wire.SessionTokenResponse) (t Token, err error) {
	minting, cancel := context.WithTimeout(ctx, mintTime)
	defer cancel()
	refused := ""
	if res.Contents == wire.ContentsWrite {
		var lacks bool
		t, refused, lacks = f.o.Push.MintPush(minting, repo)
		if lacks {
			res.Contents, res.ReadOnly = wire.ContentsRead, refused+" Or push with credentials of your own."
			if res.Keep = have == wire.ContentsRead; res.Keep {
				return t, nil
			}
		}
	}
	if res.Contents == wire.ContentsRead {
		t, refused = f.o.Tokens.Mint(minting, repo)
	}
	if refused == NoApp {
		refused = noHubCredentials
	}
	if refused != "" {
		res.Contents, res.ReadOnly, res.Refused = "", "", refused
	} else if t.Text == "" {
		err = errors.New("a token was made that is empty")
	}
	return t, err
}
