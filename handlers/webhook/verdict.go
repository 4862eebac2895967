package webhook

import (
	"errors"
	"math/rand/v2"
	"time"

	"github.com/rs/zerolog"

	"github.com/claude-hub/claude-hub/app/fault"
	"github.com/claude-hub/claude-hub/app/github"
	"github.com/claude-hub/claude-hub/store"
)

const (
	// maxFaults tries are enough: what fails so often fails always.
	maxFaults = 12
	// maxAge ends the patience with a GitHub or a database that is away.
	maxAge = 24 * time.Hour
	// goneAfter tries it is believed that what a delivery is about is no more: GitHub's API may be behind its own webhooks.
	goneAfter    = 3
	firstBackoff = time.Second
	maxBackoff   = 5 * time.Minute
)

// Why a delivery was set aside, for everyone who is signed in: without the name of a Repo, which not everyone may know.
// What went wrong exactly is in the log, under the delivery's id.
const (
	whyFaults  = "It failed 12 times. The Hub's log has the details under its id."
	whyInvalid = "It can't be worked: the same would go wrong each time. The Hub's log has the details under its id."
	whyAge     = "GitHub or the database was away for a day, so nothing more was tried."
	whyDeadly  = "The Hub ended 12 times while it worked on it."
)

// verdict is what follows from an error of work.
type verdict int

const (
	done   verdict = iota
	failed         // tried again, up to maxFaults
	away           // tried again, up to maxAge: nothing is wrong with the delivery
	hopeless
)

// judge says what follows from err after so many tries, and for away from when on it makes sense to try again.
func judge(err error, tries int64) (v verdict, from time.Time) {
	var gh *github.Error
	var f *fault.Error
	switch {
	case err == nil:
		return done, from
	case errors.As(err, &gh):
		switch gh.Kind {
		case github.Invalid:
			return hopeless, from
		case github.Unavailable:
			return away, from
		case github.RateLimited:
			return away, gh.Until
		case github.NoApp:
			return done, from // the App it was sent to is no longer this Hub's
		case github.NotFound, github.NotInstalled, github.Suspended, github.Empty:
			if tries >= goneAfter {
				return done, from
			}
		}
	case errors.As(err, &f):
		switch f.Code {
		case fault.Invalid:
			return hopeless, from
		case fault.Unavailable:
			return away, from
		case fault.NotFound:
			if tries >= goneAfter {
				return done, from
			}
		}
	case store.Trouble(err) != "":
		return away, from
	}
	return failed, from
}

// backoff is how long a delivery rests after its nth try: twice as long each time, up to maxBackoff, and never the same for
// all that failed together.
func backoff(tries int64) time.Duration {
	d := maxBackoff
	if tries < 10 {
		d = min(firstBackoff<<max(tries-1, 0), maxBackoff)
	}
	return d/2 + rand.N(d/2+1)
}

// settle stores how the work on a claim ended, unless another Hub has claimed it since.
func (s *Service) settle(tx *store.Tx, r result) error {
	now := tx.Now()
	if r.given {
		tx.Wake(topic)
		_, err := tx.Exec(releaseSQL, r.id, now.UnixMilli())
		return err
	}
	v, from := judge(r.err, r.tries)
	switch v {
	case done:
		n, err := tx.Exec(doneSQL, r.id, now.UnixMilli())
		if err == nil && r.subject != "" {
			err = s.wakeAbout(tx, r.subject)
		}
		s.say(tx, r, zerolog.DebugLevel, "a delivery was worked off", Worked, n)
		return err
	case hopeless:
		n, err := tx.Exec(asideSQL, r.id, now.UnixMilli(), whyInvalid)
		s.say(tx, r, zerolog.ErrorLevel, "a delivery was set aside: it can't be worked", SetAside, n)
		return err
	}
	query, limit, why, uncounted := tooManySQL, int64(maxFaults), whyFaults, int64(0)
	if v == away {
		query, limit, why, uncounted = tooOldSQL, now.Add(-maxAge).UnixMilli(), whyAge, 1
	}
	n, err := tx.Exec(query, r.id, now.UnixMilli(), why, limit)
	if err != nil {
		return err
	}
	if n > 0 {
		s.say(tx, r, zerolog.ErrorLevel, "a delivery was set aside: "+why, SetAside, n)
	}
	rest := now.Add(backoff(r.tries))
	if from.After(rest) {
		rest = from
	}
	n, err = tx.Exec(restSQL, r.id, rest.UnixMilli(), uncounted)
	if n > 0 {
		s.say(tx, r, zerolog.WarnLevel, "a delivery failed and is tried again", Failed, n)
	}
	return err
}

// wakeAbout wakes whoever passed over deliveries about something because it was being worked on.
func (s *Service) wakeAbout(tx *store.Tx, subject string) error {
	var n int
	if err := tx.Row(aboutSQL, subject).Scan(&n); err != nil {
		return err
	}
	if n > 0 {
		tx.Wake(topic)
	}
	return nil
}

// say logs and counts, once it is stored, what became of n deliveries.
func (s *Service) say(tx *store.Tx, r result, level zerolog.Level, text string, o Outcome, n int64) {
	tx.After(func() {
		s.log.WithLevel(level).AnErr("error", r.err).Str("guid", r.delivery.ID).Str("event", r.delivery.Event).Str("action", r.action).
			Int64("try", r.tries).Int64("deliveries", n).Msg(text)
		for range n {
			s.o.Observe(o)
		}
	})
}

func (s *Service) setDeadlyAside(tx *store.Tx) error {
	n, err := tx.Exec(deadlySQL, tx.Now().UnixMilli(), whyDeadly, maxFaults)
	if n > 0 {
		tx.After(func() {
			s.log.Error().Int64("deliveries", n).Msg("deliveries were set aside: Hubs ended while they worked on them")
			for range n {
				s.o.Observe(SetAside)
			}
		})
	}
	return err
}
