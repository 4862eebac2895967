package access

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"strings"
	"time"

	"github.com/claude-hub/claude-hub/app/audit"
	"github.com/claude-hub/claude-hub/app/fault"
	"github.com/claude-hub/claude-hub/app/github"
	"github.com/claude-hub/claude-hub/app/seal"
	"github.com/claude-hub/claude-hub/store"
)

// ErrNoRepos is why somebody whom GitHub knows gets no session here: see [Gate.InstallURL] for what to show beside it.
var ErrNoRepos = fault.New(fault.Refused, "You can't sign in here: GitHub shows no Repo that you have access to and that this Hub's GitHub App is installed on.")

// errSignIn is the same for a state that is missing, another browser's, used already or too old.
var errSignIn = fault.New(fault.Unauthorized, "This sign-in was begun in another browser, was used already, or took longer than ten minutes. Begin it again.")

// App is the GitHub App that people sign in through. Without one the fault is Refused.
func (g *Gate) App() (*github.App, error) {
	app, err := g.github.App()
	if err == nil && g.seal == nil {
		return nil, fault.New(fault.Refused, "People of GitHub can't sign in here: this Hub keeps nothing sealed.")
	}
	if err != nil {
		return nil, fault.New(fault.Refused, "%s", words(err))
	}
	return app, nil
}

// InstallURL is where a person installs the App on a Repo, or asks its owner to; "" without an App, or as long as its name
// isn't known.
func (g *Gate) InstallURL() string {
	app, err := g.github.App()
	if err != nil || app.Slug() == "" {
		return ""
	}
	return app.Endpoints().InstallURL(app.Slug(), "")
}

func (g *Gate) howToInstall() string {
	if to := g.InstallURL(); to != "" {
		return "Install the App at " + to + ", or ask an owner to."
	}
	return "The Hub's operator knows how to install its App."
}

// BeginSignIn starts a sign-in: the browser is sent to address, and keeps the secret browser, in a cookie of its own, until it
// comes back. returnTo is a path of the Hub; anything else becomes "/". What was begun is good once, within SignInLife. Nothing of
// it is stored.
func (g *Gate) BeginSignIn(ctx context.Context, returnTo string) (address, browser string, err error) {
	app, err := g.App()
	if err != nil {
		return "", "", err
	}
	err = g.db.Read(ctx, g.seal.Ready)
	if errors.Is(err, seal.ErrNoKey) {
		return "", "", fault.New(fault.Refused, "People of GitHub can't sign in here yet, since the Hub could not keep their tokens sealed: %s.", err)
	}
	if err != nil {
		return "", "", fmt.Errorf("look whether tokens can be sealed: %w", err)
	}
	b := begun{NewSecret(), g.db.Now().Add(SignInLife), LocalPath(returnTo)}
	if address, err = app.SignInURL(b.state(), b.verifier()); err != nil {
		return "", "", fault.New(fault.Refused, "%s", words(err))
	}
	return address, b.cookie(), nil
}

// LocalPath keeps a path of this Hub; what a browser could take for another host becomes "/".
func LocalPath(path string) string {
	u, err := url.Parse(path)
	if err != nil || u.Scheme != "" || u.Host != "" || u.User != nil || strings.HasPrefix(u.Path, "//") ||
		!strings.HasPrefix(path, "/") || strings.HasPrefix(path, "//") || len(path) > 2048 ||
		strings.ContainsFunc(path, func(r rune) bool { return r == '\\' || r < ' ' || r == 0x7f }) {
		return "/"
	}
	return path
}

// FinishSignIn takes what the browser came back with: browser is the secret that it kept, state and code are in the
// address. It answers who it is, the secret of a new session, and where the browser wanted to go.
//
// Only somebody to whom GitHub shows a Repo of this Hub's App, or whom the config lists, gets a session: else ErrNoRepos.
func (g *Gate) FinishSignIn(ctx context.Context, browser, state, code string) (who Person, session, returnTo string, err error) {
	app, err := g.App()
	if err != nil {
		return Person{}, "", "", err
	}
	began, err := g.takeSignIn(ctx, browser, state)
	if err != nil {
		return Person{}, "", "", err
	}
	tokens, err := app.Exchange(ctx, github.NewSecret(code), began.verifier())
	if err != nil {
		return Person{}, "", "", inWords(err)
	}
	who, session, err = g.admit(ctx, app, tokens)
	if err != nil {
		g.giveBack(context.WithoutCancel(ctx), app, tokens)
		return Person{}, "", "", err
	}
	return who, session, began.returnTo, nil
}

// admit lets the person in to whom the tokens belong, if they may.
func (g *Gate) admit(ctx context.Context, app *github.App, tokens github.UserTokens) (who Person, session string, err error) {
	user := app.User(tokens.Access)
	me, err := user.Me(ctx)
	if err != nil {
		return Person{}, "", inWords(err)
	}
	asked := g.db.Now()
	var forgets, ever int64
	err = g.db.Read(ctx, func(tx *store.Tx) error { return tx.Row(forgetsSQL, me.ID).Scan(&forgets, &ever) })
	if err != nil {
		return Person{}, "", fmt.Errorf("look up who signs in: %w", err)
	}
	list, err := repositories(ctx, app, user)
	if err != nil {
		return Person{}, "", inWords(err)
	}
	if len(list) == 0 && !g.invited(me.ID) {
		g.log.Info().Int64("github_id", me.ID).Str("login", me.Login).Msg("refused a sign-in: GitHub shows this person no Repo of the App")
		return Person{}, "", ErrNoRepos
	}
	var before []byte
	err = g.db.Write(ctx, func(tx *store.Tx) error {
		if err := rename(tx, me.ID, me.Login); err != nil {
			return err
		}
		who, before = Person{}, nil
		if err := tx.Row(personByGitHubIDSQL, me.ID).Scan(&who.id, &who.source, &who.login, &who.github); err != nil {
			return fmt.Errorf("read who signs in: %w", err)
		}
		if err := tx.Row(tx.Locked(tokensOfAppSQL), who.id, app.ID()).Scan(&before); err != nil && !errors.Is(err, store.ErrNotFound) {
			return fmt.Errorf("read the tokens so far: %w", err)
		}
		sealed, key, err := g.sealTokens(tx, who.id, tokens)
		if err != nil {
			return fmt.Errorf("seal the tokens: %w", err)
		}
		heard := forgets
		if old, err := forgottenSince(tx, ever, me.ID, list); err != nil {
			return err
		} else if old {
			heard--
		}
		if _, err := tx.Exec(signInPersonSQL, who.id, app.ID(), sealed, key, g.byOurClock(tokens.Expires), asked.UnixMilli(), heard, forgets); err != nil {
			return fmt.Errorf("save the tokens: %w", err)
		}
		if err := g.keepList(tx, who.id, asked, list); err != nil {
			return err
		}
		if session, err = issue(tx, &who, credential{kind: kindBrowser, name: "browser", life: BrowserLife}); err != nil {
			return err
		}
		tx.Wake(topic(who.id))
		return audit.Record(tx, audit.Entry{Who: who.id, Action: "sign-in." + kindBrowser, Subject: who.id, Detail: map[string]any{"github_id": me.ID, "login": me.Login}})
	})
	if err == nil && before != nil {
		g.replaced(app, who.id, before, tokens)
	}
	return who, session, err
}

// replaced gives the tokens back that a sign-in took the place of: nobody knows them any more, and GitHub would go on taking them. Nobody
// waits for it; who just asks with them finds the next ones.
func (g *Gate) replaced(app *github.App, person string, sealed []byte, by github.UserTokens) {
	tokens, err := g.openTokens(person, sealed)
	if err != nil || tokens.Access.Reveal() == by.Access.Reveal() {
		return // the key is lost, or GitHub gave the same again
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.life.Err() != nil {
		return
	}
	g.running.Go(func() { g.giveBack(g.life, app, tokens) })
}

// giveBack ends tokens that nobody will use.
func (g *Gate) giveBack(ctx context.Context, app *github.App, tokens github.UserTokens) {
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	if err := app.RevokeUser(ctx, tokens.Access); err != nil {
		g.log.Warn().Err(err).Msg("tokens that nobody uses could not be given back to GitHub; they end within hours")
	}
}

// inWords makes a fault of what GitHub answered to somebody who waits for it.
func inWords(err error) error {
	var e *github.Error
	if !errors.As(err, &e) {
		return err
	}
	switch e.Kind {
	case github.Unauthorized:
		return fault.New(fault.Unauthorized, "%s", e.Message)
	case github.Unavailable, github.RateLimited, github.NoApp:
		return fault.New(fault.Unavailable, "%s", e.Message)
	}
	return fault.New(fault.Refused, "%s", e.Message)
}

// Installations are those of this Hub's App that the person can reach, as GitHub says it now: for who comes back from
// installing it, since what the browser brings along proves nothing (facts/github.md §4, 21). What is kept of them is asked
// again at their next request.
func (g *Gate) Installations(ctx context.Context, who Person) ([]github.Installation, error) {
	if who.github == 0 {
		return nil, fault.New(fault.Refused, "Only who signed in through GitHub has installations there.")
	}
	if err := g.askAgain(ctx, who); err != nil {
		return nil, err
	}
	var all []github.Installation
	err := g.asPerson(ctx, who, func(_ *github.App, user *github.User) (err error) {
		all, err = user.Installations(ctx)
		return err
	})
	return all, inWords(err)
}

// asPerson asks GitHub something with the person's own tokens. f may be called twice. Its error comes back as it is,
// beside faults about the sign-in.
func (g *Gate) asPerson(ctx context.Context, who Person, f func(*github.App, *github.User) error) error {
	app, err := g.App()
	if err != nil {
		return err
	}
	try := func() error {
		tokens, err := g.tokensNow(ctx, who.id)
		if err != nil {
			return err
		}
		return f(app, app.User(tokens.Access))
	}
	err = try()
	if !github.Unauthorized.Is(err) {
		return err
	}
	// They have ended, or were exchanged for the next a moment ago. Asking for the list does what is to be done.
	if err := g.refresh(ctx, who.id, g.db.Now().Add(time.Millisecond), g.wait); err != nil {
		return explain(err)
	}
	return try()
}

// tokensNow are the person's as they are stored.
func (g *Gate) tokensNow(ctx context.Context, person string) (github.UserTokens, error) {
	var sealed []byte
	err := g.db.Read(ctx, func(tx *store.Tx) error { return tx.Row(sealedTokensSQL, person).Scan(&sealed) })
	if errors.Is(err, store.ErrNotFound) || err == nil && sealed == nil {
		return github.UserTokens{}, (&signedOutError{}).fault()
	}
	if err != nil {
		return github.UserTokens{}, fmt.Errorf("read the tokens of %s: %w", person, err)
	}
	return g.openTokens(person, sealed)
}
