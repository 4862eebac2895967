package setup

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/claude-hub/claude-hub/app/access"
	"github.com/claude-hub/claude-hub/app/audit"
	"github.com/claude-hub/claude-hub/app/fault"
	"github.com/claude-hub/claude-hub/store"
)

var (
	errGiven = fault.New(fault.Refused, "This Hub's GitHub App is the one of its config (section github): change it there, and restart the Hub.")
	// errToken is the one answer to a token that is wrong, used or too old.
	errToken = fault.New(fault.Refused, "This address was used already, or is too old. A new one is printed when a Hub without a GitHub App starts, "+
		"and by claude-hub setup-token on the Hub's host.")
	errVisit = fault.New(fault.Unauthorized, "This page is for who has the address that the Hub printed on its console. "+
		"A new one is printed when a Hub without a GitHub App starts, and by claude-hub setup-token on the Hub's host.")
	errSet = fault.New(fault.Conflict, "This Hub has a GitHub App. To change it, run claude-hub setup-token on the Hub's host and open the address that it prints.")
)

// NewToken makes a token that opens the set-up page once, within TokenLife. With changes it may also replace an App that is set
// up; without, it is good for as long as there is none. by says in the audit log who made it. Only its hash is kept.
func (s *Service) NewToken(ctx context.Context, by string, changes bool) (token string, expires time.Time, err error) {
	if s.o.Given != nil {
		return "", time.Time{}, errGiven
	}
	token = access.NewSecret()
	err = s.db.Write(ctx, func(tx *store.Tx) error {
		expires = tx.Now().Add(TokenLife)
		if _, err := tx.Exec(pruneTokensSQL, tx.Now()); err != nil {
			return fmt.Errorf("drop old tokens: %w", err)
		}
		if _, err := tx.Exec(addTokenSQL, access.HashSecret(token), changes, tx.Now(), expires); err != nil {
			return fmt.Errorf("save the token: %w", err)
		}
		return audit.Record(tx, audit.Entry{Who: by, Action: "setup.token", Detail: map[string]any{"changes": changes, "expires": expires.Format(time.RFC3339)}})
	})
	return token, expires, err
}

// URL is where a token is brought.
func (s *Service) URL(token string) string { return s.o.PublicURL + "/setup?token=" + token }

// Enter exchanges a token, once, for what the browser keeps in its cookie until expires. One fault for a token that is
// unknown, used or too old.
func (s *Service) Enter(ctx context.Context, token string) (visit string, expires time.Time, err error) {
	if s.o.Given != nil {
		return "", time.Time{}, errGiven
	}
	visit = access.NewSecret()
	err = s.db.Write(ctx, func(tx *store.Tx) error {
		var changes bool
		switch err := tx.Row(tokenSQL, access.HashSecret(token), tx.Now()).Scan(&changes); {
		case errors.Is(err, store.ErrNotFound):
			return errToken
		case err != nil:
			return fmt.Errorf("look up the token: %w", err)
		}
		for _, q := range []string{pruneVisitsSQL, pruneStatesSQL} {
			if _, err := tx.Exec(q, tx.Now()); err != nil {
				return fmt.Errorf("drop what is old: %w", err)
			}
		}
		if _, err := tx.Exec(dropTokenSQL, access.HashSecret(token)); err != nil {
			return fmt.Errorf("end the token: %w", err)
		}
		expires = tx.Now().Add(VisitLife)
		if _, err := tx.Exec(addVisitSQL, access.HashSecret(visit), changes, tx.Now(), expires); err != nil {
			return fmt.Errorf("save the browser: %w", err)
		}
		return audit.Record(tx, audit.Entry{Who: console, Action: "setup.enter", Detail: map[string]any{"changes": changes}})
	})
	return visit, expires, err
}

// Visit is what a browser that brought a token may do.
type Visit struct {
	Expires time.Time
	// Refused is why it may not set up an App now; nil: it may.
	Refused *fault.Error
	// Rotate says that it may change the webhook's secret.
	Rotate bool
}

// Visit says what the browser with this cookie may do. Unauthorized for a cookie that is none, or too old.
func (s *Service) Visit(ctx context.Context, visit string) (v Visit, err error) {
	err = s.db.Read(ctx, func(tx *store.Tx) error {
		changes, expires, err := visitIn(tx, visit)
		if err != nil {
			return err
		}
		v.Expires = expires
		st, err := s.read(tx)
		if err != nil {
			return err
		}
		v.Rotate = changes && st.whole() && s.o.Given == nil
		if err := keyless(s.seal.Ready(tx)); err != nil && !errors.As(err, &v.Refused) {
			return err
		}
		if _, err := s.mayIn(tx, visit); err != nil && !errors.As(err, &v.Refused) {
			return err
		}
		return nil
	})
	return v, err
}

func visitIn(tx *store.Tx, visit string) (changes bool, expires time.Time, err error) {
	err = tx.Row(visitSQL, access.HashSecret(visit), tx.Now()).Scan(&changes, store.At(&expires))
	if errors.Is(err, store.ErrNotFound) {
		return false, time.Time{}, errVisit
	}
	return changes, expires, err
}

// mayIn fails unless the browser may set up an App now: with a token for changes, or while there is none. It returns the one
// that is there.
func (s *Service) mayIn(tx *store.Tx, visit string) (stored, error) {
	changes, _, err := visitIn(tx, visit)
	if err != nil {
		return stored{}, err
	}
	if s.o.Given != nil {
		return stored{}, errGiven
	}
	st, err := s.read(tx)
	if err == nil && st.whole() && !changes {
		err = errSet
	}
	return st, err
}

const (
	stateManifest = "manifest"
	stateInstall  = "install"
)

// newState keeps what the browser is sent to GitHub with, for that browser and one return.
func newState(tx *store.Tx, browser, kind, detail string, life time.Duration) (state string, err error) {
	state = access.NewSecret()
	if _, err := tx.Exec(addStateSQL, access.HashSecret(state), access.HashSecret(browser), kind, detail, tx.Now().Add(life)); err != nil {
		return "", fmt.Errorf("save the state: %w", err)
	}
	return state, nil
}

// takeState ends a state and returns what was kept with it. ok is false for one that is unknown, used, too old, of another
// browser or of another kind; another browser's attempt doesn't end it.
func takeState(tx *store.Tx, browser, state, kind string) (detail string, ok bool, err error) {
	if browser == "" || state == "" {
		return "", false, nil
	}
	err = tx.Row(stateSQL, access.HashSecret(state), access.HashSecret(browser), kind, tx.Now()).Scan(&detail)
	if errors.Is(err, store.ErrNotFound) {
		return "", false, nil
	}
	if err != nil {
		return "", false, fmt.Errorf("look up the state: %w", err)
	}
	if _, err := tx.Exec(dropStateSQL, access.HashSecret(state)); err != nil {
		return "", false, fmt.Errorf("end the state: %w", err)
	}
	return detail, true, nil
}
