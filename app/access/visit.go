package access

import (
	"context"
	"crypto/subtle"
	"errors"
	"fmt"
	"time"

	"github.com/claude-hub/claude-hub/app/fault"
	"github.com/claude-hub/claude-hub/store"
)

// A browser that is signed in visits places with an origin of their own, where the Hub's cookie must never come: the place sends it to
// the Hub with the hash of a secret that it keeps there, and the Hub sends it back with a code. Only the place, for that browser, makes
// a cookie of the code. Whose visit it is, and what they may, is asked anew each time.

const (
	// VisitLife is how long a visit lasts, unless the browser's session ends before.
	VisitLife = 7 * 24 * time.Hour
	codeLife  = time.Minute
)

// errVisit is the same for a code that is another place's, another browser's, used already or too old.
var errVisit = fault.New(fault.Unauthorized, "This link was opened in another browser, was used already, or is more than a minute old.")

// Admit makes a code for who's browser to visit place with, good once within a minute. asked is HashSecret of what the browser keeps there.
// Who came by a token has no browser: that fault is Refused.
func (g *Gate) Admit(ctx context.Context, who Person, place string, asked []byte) (code string, err error) {
	if who.credential == "" || who.limits != nil {
		return "", fault.New(fault.Refused, "Only a browser that is signed in can go there.")
	}
	code = NewSecret()
	return code, g.db.Write(ctx, func(tx *store.Tx) error {
		if _, err := tx.Exec(oldVisitsSQL, tx.Now().UnixMilli()); err != nil {
			return fmt.Errorf("delete old visits: %w", err)
		}
		_, err := tx.Exec(insertVisitSQL, HashSecret(code), []byte(who.credential), store.Text(place), asked, tx.Now().Add(codeLife).UnixMilli())
		return err
	})
}

// Visit takes a code that was made for this place and browser, which keeps the secret kept, and answers that of its visit.
func (g *Gate) Visit(ctx context.Context, place, code, kept string) (secret string, err error) {
	secret = NewSecret()
	err = g.db.Write(ctx, func(tx *store.Tx) error {
		var browser, asked []byte
		var of string
		var expires int64
		err := tx.Row(visitSQL, HashSecret(code)).Scan(&browser, &of, &asked, &expires)
		if errors.Is(err, store.ErrNotFound) || err == nil && (asked == nil || of != place || tx.Now().UnixMilli() >= expires || subtle.ConstantTimeCompare(asked, HashSecret(kept)) != 1) {
			return errVisit
		}
		if err != nil {
			return fmt.Errorf("read a code: %w", err)
		}
		if _, err := tx.Exec(deleteVisitSQL, HashSecret(code)); err != nil {
			return fmt.Errorf("use up a code: %w", err)
		}
		_, err = tx.Exec(insertVisitSQL, HashSecret(secret), browser, store.Text(place), nil, tx.Now().Add(VisitLife).UnixMilli())
		return err
	})
	return secret, err
}

// Visitor is who a visit to place belongs to, with the errors of Browser.
func (g *Gate) Visitor(ctx context.Context, place, secret string) (Person, error) {
	var browser []byte
	err := g.db.Read(ctx, func(tx *store.Tx) error {
		var asked []byte
		var of string
		var expires int64
		if err := tx.Row(visitSQL, HashSecret(secret)).Scan(&browser, &of, &asked, &expires); err != nil {
			return err
		}
		if asked != nil || of != place || tx.Now().UnixMilli() >= expires {
			return store.ErrNotFound
		}
		return nil
	})
	if errors.Is(err, store.ErrNotFound) {
		return Person{}, errNobody
	}
	if err != nil {
		return Person{}, fmt.Errorf("look up a visit: %w", err)
	}
	return g.whose(ctx, browser, kindBrowser)
}

// Visited lists the places whose names begin so and that somebody's browser was let in to, for as long as it still is.
func (g *Gate) Visited(ctx context.Context, begin string) (places []string, err error) {
	err = g.db.Read(ctx, func(tx *store.Tx) (err error) {
		places, err = store.All(tx, store.Scan1[string], visitedSQL, tx.Now().UnixMilli(), len(begin), begin)
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("list visits: %w", err)
	}
	return places, nil
}
