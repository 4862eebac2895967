package access

import (
	"context"
	"errors"
	"time"

	"github.com/claude-hub/claude-hub/app/fault"
	"github.com/claude-hub/claude-hub/app/github"
	"github.com/claude-hub/claude-hub/store"
)

// standing is what the store has of a person at GitHub, beside their Repos.
type standing struct {
	app            int64
	signed         bool // their tokens are there
	listed         time.Time
	forgets, heard int64
	any            bool // at least one Repo is in their list
}

// dest takes standingColumns.
func (s *standing) dest() []any {
	return []any{&s.app, &s.signed, store.At(&s.listed), &s.forgets, &s.heard, &s.any}
}

// since tells whether the list is as GitHub had it at t or later, as far as anything is known.
func (s standing) since(t time.Time) bool { return s.forgets == s.heard && !s.listed.Before(t) }

// view is one look into the store: who it is about, and whether what it decides on is a yes.
type view struct {
	standing standing
	who      Person
	now      time.Time
	yes      bool
	eager    bool // to be asked again as soon as a no
}

// denyAge is how old a refusal may be: somebody who just got access shouldn't wait for as long as Age. It is the same for
// what is absent and what is forbidden, so that it tells nothing.
const denyAge = 30 * time.Second

// errDenied is the answer no.
var errDenied = errors.New("denied")

// signedOutError: GitHub doesn't know the person's tokens any more, or there are none.
type signedOutError struct{}

func (*signedOutError) Error() string { return "signed out at GitHub" }
func (*signedOutError) fault() error {
	return fault.New(fault.Unauthorized, "Your sign-in at GitHub has ended. Sign in again.")
}

// awayError: GitHub could not be asked.
type awayError struct{ trouble string }

func (e *awayError) Error() string { return e.trouble }
func (e *awayError) fault() error {
	return fault.New(fault.Unavailable, "%s What GitHub said of your access before is too old for this.", e.trouble)
}

// explain puts into words what this package alone knows.
func explain(err error) error {
	var told interface{ fault() error }
	if errors.As(err, &told) {
		return told.fault()
	}
	return err
}

// current looks, asks GitHub where what it saw is too old to decide by, and looks once more. stale says that it decided
// by an old answer all the same, since GitHub could not be asked and ctx is Reading. The error is errDenied for a no,
// *signedOutError, *awayError, or look's own.
func (g *Gate) current(ctx context.Context, look func() (view, error)) (stale bool, err error) {
	v, err := look()
	if err != nil {
		return false, err
	}
	if v.who.github != 0 {
		if stale, err = g.freshen(ctx, &v, look); err != nil {
			return false, err
		}
	}
	if !v.yes {
		return false, errDenied
	}
	return stale, nil
}

// freshen makes v, a look at somebody of GitHub, one to decide by.
func (g *Gate) freshen(ctx context.Context, v *view, look func() (view, error)) (stale bool, err error) {
	for giveUp := time.Now().Add(g.wait); ; {
		if !v.standing.signed {
			return false, &signedOutError{}
		}
		g.saw(*v)
		need := v.now.Add(-g.age)
		if !v.yes || v.eager {
			need = v.now.Add(-min(denyAge, g.age))
		}
		if v.standing.since(need) {
			return false, nil
		}
		asked := g.refresh(ctx, v.who.id, need, g.patienceFor(ctx, *v))
		var away *awayError
		if asked != nil && !errors.As(asked, &away) {
			return false, asked
		}
		if *v, err = look(); err != nil {
			return false, err
		}
		switch {
		case v.standing.since(v.now.Add(-g.age)): // also where GitHub didn't say anything newer
			return false, nil
		case away != nil && g.usable(ctx, *v):
			return true, nil
		case away != nil:
			return false, away
		case time.Now().After(giveUp):
			return false, &awayError{"Access to this changes faster than GitHub answers."}
		}
		// While GitHub answered, it was told that this may have changed again: nothing follows from what is left of the list.
	}
}

// usable tells whether a look is good for this call though it is old and GitHub can't be asked.
func (g *Gate) usable(ctx context.Context, v view) bool {
	return isReading(ctx) && v.yes && v.standing.listed.After(v.now.Add(-g.outage))
}

// patienceFor is how long a call waits for GitHub: not long where it has an answer already.
func (g *Gate) patienceFor(ctx context.Context, v view) time.Duration {
	if g.usable(ctx, v) || v.standing.since(v.now.Add(-g.age)) {
		return g.patience
	}
	return g.wait
}

// words is what a failed call to GitHub is for a person: its own sentence.
func words(err error) string {
	var e *github.Error
	if errors.As(err, &e) {
		return e.Message
	}
	return "GitHub can't be reached."
}
