package access

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/rs/zerolog"

	"github.com/claude-hub/claude-hub/app/audit"
	"github.com/claude-hub/claude-hub/app/github"
	"github.com/claude-hub/claude-hub/app/seal"
	"github.com/claude-hub/claude-hub/store"
)

const (
	// claimFor is how long a Hub that asks about a person is believed to live without another word. It is more than one
	// call to GitHub takes, and says that word each third of it.
	claimFor = 45 * time.Second
	// flightLimit ends a question to GitHub, all pages of all installations together.
	flightLimit = 2 * time.Minute
	// renewBefore is how long before its end an access token is exchanged for the next.
	renewBefore = 5 * time.Minute
	// nameAge is how old a login may be.
	nameAge = time.Hour
	// retryAfter is how long GitHub is left alone about a person after it didn't answer.
	retryAfter = 10 * time.Second
	// What failed within soonFailed is tried once more after soonAgain.
	soonFailed = 2 * time.Second
	soonAgain  = 300 * time.Millisecond
	// pollEvery is how often a claim of another Hub is looked at, beside its wakeup.
	pollEvery = time.Second
)

// topic is woken when what is known of a person changed.
func topic(person string) string { return "access/" + person }

// flight is one question to GitHub about a person. All who want to know in this Hub wait for the same.
type flight struct {
	began time.Time
	done  chan struct{}
	err   error
}

// refresh returns once the person's list is as GitHub had it at since or later. It waits for a question for as long as
// patience after that was asked, while the question goes on for others. The error is an *awayError, a *signedOutError or the
// store's.
func (g *Gate) refresh(ctx context.Context, person string, since time.Time, patience time.Duration) error {
	for {
		f, mine := g.fly(person, since)
		enough := time.NewTimer(patience - time.Since(f.began))
		select {
		case <-f.done:
			enough.Stop()
			if mine || f.err != nil {
				return f.err
			}
			// It was for somebody who may have been content with less; one's own sees at once whether it did.
		case <-ctx.Done():
			enough.Stop()
			return ctx.Err()
		case <-enough.C:
			return &awayError{"GitHub takes too long to answer."}
		}
	}
}

// fly joins the flight that is under way, or starts one.
func (g *Gate) fly(person string, since time.Time) (f *flight, mine bool) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if f := g.flights[person]; f != nil {
		return f, false
	}
	f = &flight{began: time.Now(), done: make(chan struct{})}
	if g.life.Err() != nil {
		f.err = &awayError{"The Hub stops."}
		close(f.done)
		return f, true
	}
	g.flights[person] = f
	g.running.Add(1)
	go func() {
		defer g.running.Done()
		ctx, cancel := context.WithTimeout(g.life, flightLimit)
		defer cancel()
		f.err = g.update(ctx, person, since)
		g.mu.Lock()
		delete(g.flights, person)
		g.mu.Unlock()
		close(f.done)
	}()
	return f, true
}

// question is what a Hub that claimed a person asks GitHub with.
type question struct {
	person, claim  string
	github, pair   int64
	tokens         github.UserTokens // its times are of no use: expires is, by the Hub's clock
	expires, named time.Time
	asked          time.Time // when it was claimed
	forgets        int64
	ever           int64 // how often anything was forgotten, when it was claimed
	again          bool  // the last question went unanswered too
}

var (
	// errBusy: another Hub asks about this person.
	errBusy = errors.New("another Hub asks")
	// errSuperseded: while GitHub answered, somebody else brought something newer.
	errSuperseded = errors.New("superseded")
	// errThere: what is there is new enough.
	errThere = errors.New("there already")
)

// update has GitHub asked about a person, by this Hub or by another one that is at it.
func (g *Gate) update(ctx context.Context, person string, since time.Time) error {
	for {
		changed := g.db.Changed(topic(person))
		q, err := g.claim(ctx, person, since)
		if err == nil {
			err = g.follow(ctx, q)
		}
		switch {
		case errors.Is(err, errThere):
			return nil
		case errors.Is(err, errSuperseded):
			continue
		case !errors.Is(err, errBusy):
			return err
		}
		poll := time.NewTimer(pollEvery)
		select {
		case <-changed:
		case <-poll.C:
		case <-ctx.Done():
			poll.Stop()
			return &awayError{"GitHub takes too long to answer."}
		}
		poll.Stop()
	}
}

// claim makes this Hub the one that asks, unless there is nothing to ask or another one is at it.
func (g *Gate) claim(ctx context.Context, person string, since time.Time) (question, error) {
	var q question
	app, err := g.github.App()
	if err != nil {
		return q, &awayError{words(err)}
	}
	var (
		s       standing
		tokens  []byte
		appID   int64
		claimed *string
	)
	err = g.db.Write(ctx, func(tx *store.Tx) error {
		q, tokens, claimed = question{person: person, claim: store.NewID(), asked: tx.Now()}, nil, nil
		var until, retry time.Time
		var trouble string
		err := tx.Row(tx.Locked(askSQL), person).Scan(&appID, &tokens, &q.pair, store.At(&q.expires), store.At(&q.named), store.At(&s.listed),
			&s.forgets, &s.heard, &claimed, store.At(&until), store.At(&retry), &trouble, &q.github)
		q.forgets, q.again = s.forgets, trouble != ""
		if err == nil {
			err = tx.Row(forgottenSQL).Scan(&q.ever)
		}
		switch {
		case errors.Is(err, store.ErrNotFound) || err == nil && tokens == nil:
			return &signedOutError{}
		case err != nil:
			return fmt.Errorf("read what is known of %s: %w", person, err)
		case s.since(since):
			return errThere
		case claimed != nil && tx.Now().Before(until):
			return errBusy
		case tx.Now().Before(retry):
			return &awayError{trouble}
		}
		_, err = tx.Exec(claimSQL, person, q.claim, tx.Now().Add(claimFor).UnixMilli())
		return err
	})
	if errors.Is(err, errThere) {
		g.knows(person, s.listed)
	}
	if err != nil {
		return q, err
	}
	if appID != app.ID() {
		return q, g.signOutAtGitHub(ctx, q, "the Hub is another GitHub App now")
	}
	q.tokens, err = g.openTokens(person, tokens)
	if err != nil {
		g.release(ctx, q)
	}
	return q, err
}

// follow asks GitHub and keeps what it says.
func (g *Gate) follow(ctx context.Context, q question) error {
	ctx, cancel := context.WithCancelCause(ctx)
	kept := make(chan struct{})
	go func(person, claim string) {
		defer close(kept)
		g.keepClaim(ctx, func() { cancel(errSuperseded) }, person, claim)
	}(q.person, q.claim)
	defer func() { cancel(nil); <-kept }()

	app, err := g.github.App()
	if err != nil {
		return g.trouble(ctx, q, err)
	}
	began := time.Now()
	said, err := g.ask(ctx, app, &q)
	if github.Unavailable.Is(err) && time.Since(began) < soonFailed && pause(ctx, soonAgain) { // one bad answer is no outage
		said, err = g.ask(ctx, app, &q)
	}
	if github.Unauthorized.Is(err) {
		return g.signOutAtGitHub(ctx, q, "GitHub ended the sign-in")
	}
	if errors.Is(err, errSuperseded) || err != nil && errors.Is(context.Cause(ctx), errSuperseded) {
		g.release(ctx, q)
		return errSuperseded
	}
	if err != nil {
		return g.trouble(ctx, q, err)
	}
	err = g.db.Write(ctx, func(tx *store.Tx) error {
		heard := q.forgets
		if old, err := forgottenSince(tx, q.ever, q.github, said.list); err != nil {
			return err
		} else if old {
			heard--
		}
		n, err := tx.Exec(keptSQL, q.person, q.claim, q.asked.UnixMilli(), heard, said.named.UnixMilli())
		if err != nil {
			return fmt.Errorf("save when GitHub was asked: %w", err)
		}
		if n == 0 {
			return errSuperseded
		}
		if said.login != "" {
			if err := rename(tx, q.github, said.login); err != nil {
				return err
			}
		}
		tx.Wake(topic(q.person))
		tx.After(func() { g.knows(q.person, q.asked) })
		return g.keepList(tx, q.person, q.asked, said.list)
	})
	if err != nil {
		g.release(ctx, q)
	}
	return err
}

// pause waits, and says whether ctx still goes on.
func pause(ctx context.Context, d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return true
	case <-ctx.Done():
		return false
	}
}

// keepClaim says that this Hub still asks, until ctx ends. It ends ctx when the claim is another's.
func (g *Gate) keepClaim(ctx context.Context, lost func(), person, claim string) {
	tick := time.NewTicker(claimFor / 3)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		var n int64
		err := g.db.Write(ctx, func(tx *store.Tx) (err error) {
			n, err = tx.Exec(extendSQL, person, claim, tx.Now().Add(claimFor).UnixMilli())
			return err
		})
		if err == nil && n == 0 {
			lost()
			return
		}
	}
}

// answer is what GitHub says of a person.
type answer struct {
	login string // "": it wasn't asked
	named time.Time
	list  []listed
}

type listed struct {
	github.Repository
	installation int64
	clone        string
}

// ask asks GitHub with the person's tokens, and exchanges these for the next where they end.
func (g *Gate) ask(ctx context.Context, app *github.App, q *question) (answer, error) {
	renewed := false
	if !q.expires.IsZero() && !g.db.Now().Before(q.expires.Add(-renewBefore)) {
		if err := g.renew(ctx, app, q); err != nil {
			return answer{}, err
		}
		renewed = true
	}
	said, err := g.askOnce(ctx, app, q)
	if github.Unauthorized.Is(err) && !renewed && !q.tokens.Refresh.Empty() {
		if err := g.renew(ctx, app, q); err != nil {
			return answer{}, err
		}
		said, err = g.askOnce(ctx, app, q)
	}
	return said, err
}

func (g *Gate) askOnce(ctx context.Context, app *github.App, q *question) (answer, error) {
	said := answer{named: q.named}
	user := app.User(q.tokens.Access)
	if q.asked.Sub(q.named) >= nameAge {
		me, err := user.Me(ctx)
		if err != nil {
			return answer{}, err
		}
		if me.ID != q.github {
			return answer{}, fmt.Errorf("the tokens of GitHub's person %d are those of %d", q.github, me.ID)
		}
		said.login, said.named = me.Login, q.asked
	}
	list, err := repositories(ctx, app, user)
	said.list = list
	return said, err
}

// repositories are those of all installations that are the person's. What GitHub refuses to show them (an installation was
// suspended, or removed this moment, an organization wants a single sign-on, their account was suspended) is nothing: that is
// an answer and no outage.
func repositories(ctx context.Context, app *github.App, user *github.User) ([]listed, error) {
	installations, err := user.Installations(ctx)
	if err != nil && !github.Forbidden.Is(err) && !github.Suspended.Is(err) {
		return nil, err
	}
	var all []listed
	for _, i := range installations {
		if i.Suspended {
			continue
		}
		repos, err := user.Repositories(ctx, i.ID)
		switch {
		case github.NotFound.Is(err), github.Suspended.Is(err), github.Forbidden.Is(err):
			continue
		case err != nil:
			return nil, err
		}
		for _, r := range repos {
			all = append(all, listed{r, i.ID, app.Endpoints().CloneURL(r.FullName)})
		}
	}
	return all, nil
}

// renew exchanges the tokens for the next pair and stores that at once, whatever becomes of ctx: the old pair is dead.
// A pair that GitHub doesn't take is only the person's end if it is still the newest.
func (g *Gate) renew(ctx context.Context, app *github.App, q *question) error {
	next, err := app.Refresh(ctx, q.tokens.Refresh)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), 10*time.Second)
	defer cancel()
	q.tokens, q.expires = next, g.byOurClock(next.Expires)
	err = g.db.Write(ctx, func(tx *store.Tx) error {
		sealed, key, err := g.sealTokens(tx, q.person, next)
		if err != nil {
			return err
		}
		n, err := tx.Exec(newPairSQL, q.person, q.pair, sealed, key, q.expires)
		if err != nil {
			return fmt.Errorf("save the next tokens of %s: %w", q.person, err)
		}
		if n == 0 {
			return errSuperseded
		}
		tx.After(func() { q.pair++ })
		return nil
	})
	if errors.Is(err, errSuperseded) {
		g.giveBack(ctx, app, next)
	}
	return err
}

// byOurClock is when something ends by the Hub's clock, which may not be the machine's.
func (g *Gate) byOurClock(t time.Time) time.Time {
	if t.IsZero() {
		return t
	}
	return g.db.Now().Add(time.Until(t))
}

// trouble remembers that GitHub could not be asked, and until when it is left alone.
func (g *Gate) trouble(ctx context.Context, q question, why error) error {
	away := &awayError{words(why)}
	if g.life.Err() != nil || errors.Is(why, context.Canceled) {
		g.release(ctx, q)
		return away
	}
	retry := g.db.Now().Add(retryAfter)
	var e *github.Error
	if errors.As(why, &e) {
		level := zerolog.WarnLevel
		if q.again { // it was said
			level = zerolog.DebugLevel
		}
		g.log.WithLevel(level).Str("kind", string(e.Kind)).Str("detail", e.Detail).Str("person", q.person).Msg("GitHub could not be asked what a person may use")
		if e.Kind == github.RateLimited {
			retry = g.byOurClock(e.Until)
		}
	} else {
		g.log.Error().Err(why).Str("person", q.person).Msg("asking GitHub what a person may use failed")
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), 10*time.Second)
	defer cancel()
	err := g.db.Write(ctx, func(tx *store.Tx) error {
		_, err := tx.Exec(troubleSQL, q.person, q.claim, retry, store.Text(away.trouble))
		tx.Wake(topic(q.person))
		return err
	})
	return errors.Join(away, err)
}

// release gives a claim up.
func (g *Gate) release(ctx context.Context, q question) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), 10*time.Second)
	defer cancel()
	err := g.db.Write(ctx, func(tx *store.Tx) error {
		_, err := tx.Exec(troubleSQL, q.person, q.claim, nil, "")
		tx.Wake(topic(q.person))
		return err
	})
	if err != nil { // it ends by itself
		g.log.Warn().Err(err).Str("person", q.person).Msg("a claim could not be given up")
	}
}

// signOutAtGitHub ends what hangs on a person's tokens: the tokens, the sessions in browsers, and all access. It answers
// *signedOutError, or errSuperseded if the person signed in anew meanwhile.
func (g *Gate) signOutAtGitHub(ctx context.Context, q question, why string) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), 10*time.Second)
	defer cancel()
	err := g.db.Write(ctx, func(tx *store.Tx) error {
		n, err := tx.Exec(endPairSQL, q.person, q.pair)
		if err != nil {
			return fmt.Errorf("end the tokens of %s: %w", q.person, err)
		}
		if n == 0 {
			return errSuperseded
		}
		for _, statement := range []string{deleteBrowsersSQL, nothingSQL} {
			if _, err := tx.Exec(statement, q.person); err != nil {
				return fmt.Errorf("end the sessions of %s: %w", q.person, err)
			}
		}
		tx.Wake(topic(q.person))
		return audit.Record(tx, audit.Entry{Who: "system: " + why, Action: "sign-out.github", Subject: q.person})
	})
	if err != nil {
		return err
	}
	return &signedOutError{}
}

func tokensOf(person string) seal.Place {
	return seal.Place{Table: "github_people", Column: "tokens", Row: person}
}

type tokensJSON struct {
	Access  string `json:"access"`
	Refresh string `json:"refresh,omitempty"`
}

func (g *Gate) sealTokens(tx *store.Tx, person string, t github.UserTokens) (sealed []byte, key string, err error) {
	plain, err := json.Marshal(tokensJSON{t.Access.Reveal(), t.Refresh.Reveal()})
	if err != nil {
		return nil, "", err
	}
	return g.seal.Seal(tx, tokensOf(person), plain)
}

func (g *Gate) openTokens(person string, sealed []byte) (github.UserTokens, error) {
	plain, err := g.seal.Open(tokensOf(person), sealed)
	if err != nil {
		return github.UserTokens{}, fmt.Errorf("open the tokens of %s: %w", person, err)
	}
	var j tokensJSON
	if json.Unmarshal(plain, &j) != nil || j.Access == "" { // its error could quote the token
		return github.UserTokens{}, fmt.Errorf("the tokens of %s can't be read", person)
	}
	return github.UserTokens{Access: github.NewSecret(j.Access), Refresh: github.NewSecret(j.Refresh)}, nil
}
