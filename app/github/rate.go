package github

import (
	"sync"
	"time"
)

// rates remembers for each caller (the App, an installation, a person) until when GitHub wants to be left alone. To keep
// asking while limited gets an App banned (facts/github.md §3).
type rates struct {
	mu sync.Mutex
	m  map[string]*limit
}

type limit struct {
	until   time.Time
	strikes int // secondary limits in a row for which GitHub named no time
}

const (
	firstStrike = time.Minute
	longStrike  = 15 * time.Minute
	manyLimits  = 10_000 // forget those that are over beyond this
)

// wait is the refusal of a call that would come too early, or nil.
func (r *rates) wait(key string) *Error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if l := r.m[key]; l != nil && time.Now().Before(l.until) {
		return tooEarly(l.until)
	}
	return nil
}

func tooEarly(until time.Time) *Error {
	return &Error{
		Kind: RateLimited, Until: until,
		Message: "GitHub has had enough requests for now. It takes more from " + until.UTC().Format("15:04:05") + " UTC.",
	}
}

func (r *rates) limited(key string, until time.Time) *Error {
	if least := time.Now().Add(time.Second); until.Before(least) {
		until = least
	}
	return r.set(key, func(l *limit) { l.until = until })
}

// strike is for limits without a time: a minute at least, and twice as long each time it happens again.
func (r *rates) strike(key string) *Error {
	return r.set(key, func(l *limit) {
		l.until = time.Now().Add(min(firstStrike<<min(l.strikes, 10), longStrike))
		l.strikes++
	})
}

func (r *rates) set(key string, f func(*limit)) *Error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if len(r.m) > manyLimits {
		for k, l := range r.m {
			if time.Now().After(l.until) {
				delete(r.m, k)
			}
		}
	}
	l := r.m[key]
	if l == nil {
		l = &limit{}
		r.m[key] = l
	}
	f(l)
	return tooEarly(l.until)
}

// fine ends the strikes of a caller.
func (r *rates) fine(key string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if l := r.m[key]; l != nil && time.Now().After(l.until) {
		delete(r.m, key)
	}
}
