package runnerapi

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net/http"
	"sync"

	"connectrpc.com/connect"
	"golang.org/x/sync/semaphore"

	"github.com/claude-hub/claude-hub/app/fleet"
	"github.com/claude-hub/claude-hub/handlers/peer"
	"github.com/claude-hub/claude-hub/runner/wire/wireconnect"
)

const (
	maxRegister = 64 << 10 // bytes of a request by somebody who isn't known yet
	smallBody   = 64 << 10 // requests up to here are taken as they come
	// What one Runner may have in the Hub's memory at a time, in larger requests; a real one sends a few of 1 MiB.
	maxReading = 8
	maxInHand  = 64 << 20
)

// admission tells who calls before anything of a request's body is read, and bounds how much of the Hub's memory the
// requests of one Runner take: connect reads a body whole, and only then asks its interceptors.
type admission struct {
	a    *api
	next http.Handler
	say  *connect.ErrorWriter

	mu      sync.Mutex
	runners map[string]*share
}

// share is one Runner's.
type share struct{ reading, inHand *semaphore.Weighted }

func newAdmission(a *api, next http.Handler) *admission {
	return &admission{a: a, next: next, say: connect.NewErrorWriter(), runners: map[string]*share{}}
}

func (m *admission) of(runner string) *share {
	m.mu.Lock()
	defer m.mu.Unlock()
	s := m.runners[runner]
	if s == nil {
		s = &share{semaphore.NewWeighted(maxReading), semaphore.NewWeighted(maxInHand)}
		m.runners[runner] = s
	}
	return s
}

func (m *admission) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if r.URL.Path == wireconnect.RunnerServiceRegisterProcedure {
		r.Body = http.MaxBytesReader(w, r.Body, maxRegister)
		m.next.ServeHTTP(w, r)
		return
	}
	runner, err := m.caller(r)
	if err != nil {
		m.refuse(w, r, err)
		return
	}
	r.Body = http.MaxBytesReader(w, r.Body, maxBody)
	if passed, err := m.passed(w, r, runner); err != nil {
		m.refuse(w, r, err)
		return
	} else if passed {
		return
	}
	r = r.WithContext(context.WithValue(r.Context(), callerKey{}, runner))
	if r.ContentLength >= 0 && r.ContentLength <= smallBody {
		m.next.ServeHTTP(w, r)
		return
	}
	done, err := m.read(r, m.of(runner))
	defer done()
	if err != nil {
		m.refuse(w, r, err)
		return
	}
	m.next.ServeHTTP(w, r)
}

// passed has what is about channels answered by the Hub that has them. Where that one takes no connections, this Hub has them from
// then on, and the Runner's next try finds it so.
func (m *admission) passed(w http.ResponseWriter, r *http.Request, runner string) (bool, error) {
	if r.URL.Path != wireconnect.RunnerServiceSyncProcedure && r.URL.Path != wireconnect.RunnerServiceExchangeProcedure {
		return false, nil
	}
	home, err := m.a.f.Settle(r.Context(), runner, "")
	if err != nil {
		return false, err
	}
	return peer.Pass(w, r, home, func() {
		if _, err := m.a.f.Settle(r.Context(), runner, home); err != nil {
			m.a.log.Error().Err(err).Str("runner", runner).Msg("this Hub could not take the place of one that does not answer; tried again at the Runner's next call")
		}
	}), nil
}

func (m *admission) caller(r *http.Request) (string, error) {
	token, ok := bearer(r.Header.Get("Authorization"))
	if !ok {
		return "", fleet.ErrRevoked
	}
	ctx, cancel := context.WithTimeout(r.Context(), callTimeout)
	defer cancel()
	runner, err := m.a.f.Authenticate(ctx, token)
	return runner.ID, err
}

// read takes the body into memory, a few at a time, and counts it until done is called.
func (m *admission) read(r *http.Request, s *share) (done func(), err error) {
	done = func() {}
	ctx, cancel := context.WithTimeout(r.Context(), callTimeout)
	defer cancel()
	if err := s.reading.Acquire(ctx, 1); err != nil {
		return done, err
	}
	defer s.reading.Release(1)
	body, err := io.ReadAll(r.Body)
	var large *http.MaxBytesError
	switch {
	case errors.As(err, &large):
		return done, connect.NewError(connect.CodeResourceExhausted, errors.New("the request is larger than the Hub takes"))
	case err != nil:
		return done, connect.NewError(connect.CodeCanceled, errors.New("the request did not arrive whole"))
	}
	if err := s.inHand.Acquire(ctx, int64(len(body))); err != nil {
		return done, err
	}
	r.Body, r.ContentLength = io.NopCloser(bytes.NewReader(body)), int64(len(body))
	return func() { s.inHand.Release(int64(len(body))) }, nil
}

func (m *admission) refuse(w http.ResponseWriter, r *http.Request, err error) {
	err = m.a.coded(r.URL.Path, "", err)
	if !m.say.IsSupported(r) {
		http.Error(w, "only a Runner's calls are answered here", http.StatusUnauthorized)
		return
	}
	_ = m.say.Write(w, r, err) // the caller is gone
}
