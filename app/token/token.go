// Package token is the GitHub App as the fleet asks it: for tokens that one clone, or git in one Sandbox, uses one Repo with
// (ADR 0009, issue 4).
package token

import (
	"context"
	"errors"

	"github.com/rs/zerolog"

	"github.com/claude-hub/claude-hub/app/fleet"
	"github.com/claude-hub/claude-hub/app/github"
)

// Source makes tokens with the App that the Hub is at that moment. It keeps none.
type Source struct {
	holder *github.Holder
	log    zerolog.Logger
}

var (
	_ fleet.Tokens     = (*Source)(nil)
	_ fleet.PushTokens = (*Source)(nil)
)

// Of makes tokens with the App of holder. log gets why there is none, and never a token.
func Of(holder *github.Holder, log zerolog.Logger) *Source {
	return &Source{holder: holder, log: log.With().Str("part", "token").Logger()}
}

// Mint makes a token for exactly one Repo that may read its contents and nothing else.
func (s *Source) Mint(ctx context.Context, repo int64) (fleet.Token, string) {
	app, err := s.holder.App()
	if err != nil {
		return fleet.Token{}, fleet.NoApp
	}
	t, err := app.Mint(ctx, github.RepoID(repo))
	if err != nil {
		return fleet.Token{}, s.why(app, repo, err)
	}
	return fleet.Token{Text: t.Reveal(), Expires: t.Expires}, ""
}

// MintPush makes a token for exactly one Repo that may read and write its contents and nothing else.
func (s *Source) MintPush(ctx context.Context, repo int64) (t fleet.Token, refused string, lacks bool) {
	app, err := s.holder.App()
	if err != nil {
		return t, fleet.NoApp, false
	}
	made, err := app.MintWrite(ctx, github.RepoID(repo))
	if err != nil {
		return t, s.why(app, repo, err), github.Forbidden.Is(err)
	}
	return fleet.Token{Text: made.Reveal(), Expires: made.Expires}, "", false
}

// why says, and logs, why GitHub made no token.
func (s *Source) why(app *github.App, repo int64, err error) string {
	var e *github.Error
	if !errors.As(err, &e) {
		e = &github.Error{Kind: github.Unavailable, Message: "GitHub can't be asked at the moment."}
	}
	s.log.Warn().Int64("repo", repo).Str("kind", string(e.Kind)).Str("detail", e.Detail).Msg("no token of the App")
	says := e.Message
	if slug := app.Slug(); e.Kind == github.NotInstalled && slug != "" {
		says += " Install it: " + app.Endpoints().InstallURL(slug, "")
	}
	return says
}

// Revoke ends a token.
func (s *Source) Revoke(ctx context.Context, token string) error {
	app, err := s.holder.App()
	if err != nil {
		return err
	}
	return app.Revoke(ctx, github.Token{Secret: github.NewSecret(token)})
}
