package github

import (
	"context"
	"fmt"
	"net/http"
	"strings"
	"time"
)

// Token lets git read one Repo until Expires. It prints as [hidden].
type Token struct {
	Secret
	Repo         RepoID
	Installation int64
	Expires      time.Time
}

const (
	// leastLife is how long a minted token must hold: a clone begins with it at once, and goes on.
	leastLife = 10 * time.Minute
	// longestLife is an hour at GitHub, with room for clocks that differ.
	longestLife = 90 * time.Minute
)

// Mint makes a token for exactly one Repo that may read its contents and nothing else. What GitHub answers is verified; a
// token for anything more is given back and Refused (facts/github.md §1, 18: an empty list of Repos means all of them).
//
// A fresh token is made each time: nothing is cached. Revoke it when it is no longer needed.
func (a *App) Mint(ctx context.Context, repo RepoID) (Token, error) {
	return a.mint(ctx, repo, "read")
}

// MintWrite is Mint for a token that may push too. The App needs the permission contents: write for it, which it hasn't
// by default.
func (a *App) MintWrite(ctx context.Context, repo RepoID) (Token, error) {
	return a.mint(ctx, repo, "write")
}

func (a *App) mint(ctx context.Context, repo RepoID, contents string) (Token, error) {
	for again := false; ; again = true {
		inst, err := a.InstallationOf(ctx, repo)
		if err != nil {
			return Token{}, err
		}
		t, err := a.mintOf(ctx, inst, repo, contents)
		// The Repo may have left this installation, or the App was installed anew: look once more.
		if again || !NotFound.Is(err) && !Invalid.Is(err) {
			if NotFound.Is(err) {
				a.Forget(inst)
				err = fail(NotInstalled, "The GitHub App isn't installed on this Repo.")
			}
			return t, err
		}
		a.ForgetRepo(repo)
	}
}

func (a *App) mintOf(ctx context.Context, inst int64, repo RepoID, contents string) (Token, error) {
	in := struct {
		RepositoryIDs []int64           `json:"repository_ids"`
		Permissions   map[string]string `json:"permissions"`
	}{[]int64{int64(repo)}, map[string]string{"contents": contents}}
	var out struct {
		Token        string            `json:"token"`
		Expires      time.Time         `json:"expires_at"`
		Permissions  map[string]string `json:"permissions"`
		Selection    string            `json:"repository_selection"`
		Repositories []struct {
			ID RepoID `json:"id"`
		} `json:"repositories"`
	}
	_, err := a.asApp(ctx, http.MethodPost, fmt.Sprintf("app/installations/%d/access_tokens", inst), in, &out)
	if Invalid.Is(err) && strings.Contains(err.(*Error).Detail, "permissions") {
		return Token{}, fail(Forbidden, "The GitHub App lacks the permission contents: %s on this Repo. Its owner can grant it in the "+
			"App's settings, and an owner of the account accepts it.", contents)
	}
	if err != nil {
		return Token{}, err
	}
	t := Token{NewSecret(out.Token), repo, inst, out.Expires}
	wrong := ""
	switch left := time.Until(out.Expires); {
	case out.Token == "":
		return Token{}, away(nil)
	case len(out.Repositories) != 1 || out.Repositories[0].ID != repo || out.Selection != "selected":
		wrong = "it is not for this one Repo"
	case out.Permissions["contents"] != contents:
		wrong = "it can't do what it is for"
	case left < leastLife || left > longestLife:
		wrong = "it doesn't expire within the hour, or at once"
	}
	for name, level := range out.Permissions {
		if name != "contents" && (name != "metadata" || level != "read") {
			wrong = "it may do more than was asked"
		}
	}
	if wrong == "" {
		return t, nil
	}
	back, cancel := context.WithTimeout(context.WithoutCancel(ctx), a.opts.Timeout)
	defer cancel()
	e := fail(Refused, "GitHub's answer to the request for a token is not what was asked for: %s. The token was given back.", wrong)
	if err := a.Revoke(back, t); err != nil {
		e.Message = fmt.Sprintf("GitHub's answer to the request for a token is not what was asked for: %s. Giving the token back "+
			"failed; it ends by itself within the hour.", wrong)
	}
	return Token{}, e
}

// Revoke ends a token. One that has ended already is no error.
func (a *App) Revoke(ctx context.Context, t Token) error {
	who := caller{key: "token:" + fingerprint(t.Secret), inst: t.Installation}
	_, err := a.call(ctx, a.withToken(t.Secret), who, http.MethodDelete, "installation/token", nil, nil)
	if Unauthorized.Is(err) || NotFound.Is(err) {
		return nil
	}
	return err
}
