// Package request is what every way in knows of the request it answers: its id, its log, and how long it may wait.
package request

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"net/http"
	"net/url"
	"strconv"
	"time"

	"github.com/gorilla/mux"
	"github.com/rs/zerolog"

	"github.com/claude-hub/claude-hub/app/fault"
)

// Header carries the request's id in every answer.
const Header = "X-Request-Id"

// MaxWait bounds every long poll (design.md §5): proxies in front of a Hub cut what is silent for longer.
const MaxWait = 15 * time.Second

type key struct{}

// With gives the request a new id, and its log with it. An id that came from outside is not trusted: two requests never
// share one.
func With(r *http.Request, log zerolog.Logger) (*http.Request, string) {
	b := make([]byte, 8)
	_, _ = rand.Read(b) // never fails since Go 1.24
	id := hex.EncodeToString(b)
	ctx := context.WithValue(r.Context(), key{}, id)
	return r.WithContext(log.With().Str("request", id).Logger().WithContext(ctx)), id
}

// ID is the request's id, empty outside of one.
func ID(ctx context.Context) string {
	id, _ := ctx.Value(key{}).(string)
	return id
}

// Log is the request's log.
func Log(ctx context.Context) *zerolog.Logger { return zerolog.Ctx(ctx) }

// Wait reads how long a caller wants to wait for something new, such as "15s", cut to MaxWait. Empty and malformed
// values are no wait.
func Wait(r *http.Request) time.Duration {
	d, err := time.ParseDuration(r.URL.Query().Get("wait"))
	if err != nil || d < 0 {
		return 0
	}
	return min(d, MaxWait)
}

// Looks tells that a request only looks: it changes nothing, whatever it is about.
func Looks(r *http.Request) bool { return r.Method == http.MethodGet || r.Method == http.MethodHead }

// RegisterCommand is what is typed on a Linux host to make it a Runner of the Hub at public. The token goes in by standard
// input: a command line can be read by every process of the host.
func RegisterCommand(public *url.URL, token string) string {
	return "echo " + token + " | claude-hub runner register --hub " + public.Scheme + "://" + public.Host
}

// Status is the HTTP status of a fault's code; schema.Error documents the table.
func Status(code fault.Code) int {
	switch code {
	case fault.NotFound:
		return http.StatusNotFound
	case fault.Invalid:
		return http.StatusUnprocessableEntity
	case fault.Conflict, fault.Refused:
		return http.StatusConflict
	case fault.Unauthorized:
		return http.StatusUnauthorized
	case fault.Forbidden:
		return http.StatusForbidden
	case fault.Unavailable:
		return http.StatusServiceUnavailable
	}
	return http.StatusInternalServerError
}

// ProposalNumber is the pull request of the path: one answer for what is malformed and what there can't be.
func ProposalNumber(r *http.Request) (int, error) {
	n, err := strconv.Atoi(mux.Vars(r)["proposal"])
	if err != nil || n < 1 {
		return 0, fault.New(fault.NotFound, "This Repo has no such pull request.")
	}
	return n, nil
}
