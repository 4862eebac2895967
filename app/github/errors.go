package github

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/bradleyfalzon/ghinstallation/v2"
	ghapi "github.com/google/go-github/v62/github"
)

// Kind is why a call failed. Not found, refused, wrong and unavailable are different answers and never stand for each
// other (facts/github.md §4, 18).
type Kind string

const (
	NotFound     Kind = "not-found"     // GitHub shows no such thing to the one who asks
	NotInstalled Kind = "not-installed" // the App isn't installed on the Repo, or no longer
	Suspended    Kind = "suspended"     // the App's installation is suspended
	Forbidden    Kind = "forbidden"     // a permission is missing
	Unauthorized Kind = "unauthorized"  // GitHub doesn't accept the credentials: of a person (sign in again) or of the App
	RateLimited  Kind = "rate-limited"  // not before Until
	Unavailable  Kind = "unavailable"   // GitHub is away, slow or answers nonsense: the same call may work later
	Invalid      Kind = "invalid"       // GitHub doesn't take what was sent; again would be the same
	Empty        Kind = "empty"         // the Repo has no commit yet
	Moved        Kind = "moved"         // a write was redirected; it was not done
	Refused      Kind = "refused"       // GitHub's answer is not what was asked for, and was given back
)

// Error is how every call of this package fails. Message is a sentence for a person; Detail is for the log. Neither
// holds a token, a code or a key.
type Error struct {
	Kind    Kind
	Message string
	Detail  string
	Until   time.Time // of RateLimited: when to ask again
	cause   error     // only the caller's own context
}

func (e *Error) Error() string { return e.Message }

// Unwrap gives the context's error when the caller gave up.
func (e *Error) Unwrap() error { return e.cause }

// Is says whether err is an Error of this kind.
func (k Kind) Is(err error) bool {
	var e *Error
	return errors.As(err, &e) && e.Kind == k
}

func fail(kind Kind, format string, args ...any) *Error {
	return &Error{Kind: kind, Message: fmt.Sprintf(format, args...)}
}

// caller is who a call is made as: it decides what a refusal means.
type caller struct {
	key  string // of the rate state
	user bool
	inst int64
}

// failure says what went wrong with a call. what is the method and path, without anything secret.
func (a *App) failure(ctx context.Context, who caller, what string, resp *http.Response, err error) *Error {
	e := a.classify(ctx, who, resp, err)
	if e.Detail == "" {
		e.Detail = what
	} else {
		e.Detail = what + ": " + e.Detail
	}
	return e
}

func (a *App) classify(ctx context.Context, who caller, resp *http.Response, err error) *Error {
	var (
		mine     *Error
		limited  *ghapi.RateLimitError
		abuse    *ghapi.AbuseRateLimitError
		mint     *ghinstallation.HTTPError
		answered *ghapi.ErrorResponse
	)
	switch {
	case ctx.Err() != nil:
		return &Error{Kind: Unavailable, Message: "GitHub didn't answer in time.", Detail: ctx.Err().Error(), cause: ctx.Err()}
	case errors.As(err, &mine):
		return &Error{Kind: mine.Kind, Message: mine.Message, Detail: mine.Detail, Until: mine.Until}
	case errors.As(err, &limited):
		return a.rates.limited(who.key, limited.Rate.Reset.Time)
	case errors.As(err, &abuse):
		if abuse.RetryAfter != nil {
			return a.rates.limited(who.key, time.Now().Add(*abuse.RetryAfter))
		}
		return a.rates.strike(who.key)
	case errors.As(err, &mint): // the installation's token; its body was left open (facts/github.md §1, 13)
		if mint.Response == nil {
			return away(mint.RootCause)
		}
		body, _ := io.ReadAll(io.LimitReader(mint.Response.Body, 64<<10))
		_ = mint.Response.Body.Close()
		return a.refusal(caller{key: "app", inst: who.inst}, true, mint.Response, messageOf(body))
	case errors.As(err, &answered):
		return a.refusal(who, false, answered.Response, answered.Message+errorsOf(answered))
	}
	if resp != nil && resp.StatusCode >= 300 {
		return a.refusal(who, false, resp, "")
	}
	return away(err)
}

func messageOf(body []byte) string {
	var m struct{ Message string }
	_ = json.Unmarshal(body, &m)
	return m.Message
}

func errorsOf(r *ghapi.ErrorResponse) string {
	var b strings.Builder
	for _, e := range r.Errors {
		fmt.Fprintf(&b, "; %s %s", e.Field, e.Message)
	}
	return b.String()
}

// refusal reads a status. minting says that it was the App that asked for an installation's token.
func (a *App) refusal(who caller, minting bool, resp *http.Response, message string) *Error {
	status := resp.StatusCode
	e := &Error{Detail: fmt.Sprintf("GitHub answered %d: %.300s", status, message)}
	set := func(k Kind, format string, args ...any) *Error {
		e.Kind, e.Message = k, fmt.Sprintf(format, args...)
		return e
	}
	if l := a.limit(who, resp, message); l != nil {
		l.Detail = e.Detail
		return l
	}
	switch {
	case status >= 300 && status < 400:
		return set(Moved, "GitHub redirected this call to another place. It was not done.")
	case status == http.StatusUnauthorized && who.user:
		return set(Unauthorized, "GitHub no longer accepts this sign-in. Sign in again.")
	case status == http.StatusUnauthorized:
		return set(Unauthorized, "GitHub doesn't accept the App's credentials: check the App's id and private key, and this machine's clock.")
	case status == http.StatusForbidden && strings.Contains(message, "suspended"):
		return set(Suspended, "The GitHub App's installation is suspended. An owner of the account can end that in its settings.")
	case status == http.StatusForbidden && who.user, status == http.StatusUnavailableForLegalReasons:
		return set(Forbidden, "GitHub refuses this to you: %s.", sentence(message))
	case status == http.StatusForbidden:
		return set(Forbidden, "The GitHub App lacks a permission for this, or the Repo is archived. An owner of the account can look at "+
			"the App's installation in its settings. GitHub says: %s.", sentence(message))
	case (status == http.StatusNotFound || status == http.StatusGone) && minting:
		return set(NotInstalled, "The GitHub App isn't installed there any more.")
	case status == http.StatusNotFound, status == http.StatusGone:
		return set(NotFound, "GitHub has no such thing, or doesn't show it.")
	case status == http.StatusConflict && strings.Contains(message, "empty"):
		return set(Empty, "The Repo has no commit yet.")
	case status >= 500:
		return set(Unavailable, "GitHub has trouble (status %d). This works again when GitHub does.", status)
	}
	return set(Invalid, "GitHub doesn't take this: %s.", sentence(message))
}

func sentence(s string) string {
	s = strings.Join(strings.Fields(s), " ")
	if len(s) > 300 {
		s = strings.ToValidUTF8(s[:300], "") + "…"
	}
	if s = strings.TrimRight(s, "."); s == "" {
		return "(no reason)"
	}
	return s
}

// away is a failure without an answer, or with one that can't be read.
func away(err error) *Error {
	detail := "no answer"
	var named interface{ Timeout() bool }
	switch {
	case errors.As(err, &named) && named.Timeout():
		detail = "timeout"
	case errors.Is(err, io.ErrUnexpectedEOF), errors.Is(err, io.EOF):
		detail = "the connection ended in the middle of the answer"
	}
	return &Error{Kind: Unavailable, Detail: detail, Message: "GitHub can't be reached, or its answer didn't arrive whole. This works again when GitHub does."}
}

// limit says whether the answer is a rate limit, primary or secondary, with status 403 or 429 (facts/github.md §3).
func (a *App) limit(who caller, resp *http.Response, message string) *Error {
	if resp.StatusCode != http.StatusForbidden && resp.StatusCode != http.StatusTooManyRequests {
		return nil
	}
	if s, err := strconv.Atoi(resp.Header.Get("Retry-After")); err == nil {
		return a.rates.limited(who.key, time.Now().Add(time.Duration(s)*time.Second))
	}
	if resp.Header.Get("X-RateLimit-Remaining") == "0" {
		if at, err := strconv.ParseInt(resp.Header.Get("X-RateLimit-Reset"), 10, 64); err == nil {
			return a.rates.limited(who.key, time.Unix(at, 0))
		}
	}
	if resp.StatusCode == http.StatusTooManyRequests || strings.Contains(strings.ToLower(message), "rate limit") {
		return a.rates.strike(who.key)
	}
	return nil
}
