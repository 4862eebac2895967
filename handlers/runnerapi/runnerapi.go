// Package runnerapi is the calls a Runner makes (design.md §5): Connect RPC, unary only, over plain HTTP. It tells who
// calls, bounds what they send and how long they wait, and gives each of the fleet's errors its code. What goes wrong
// inside the Hub is logged here and told to no Runner in detail.
package runnerapi

import (
	"context"
	"errors"
	"net/http"
	"strings"
	"time"

	"connectrpc.com/connect"
	"github.com/rs/zerolog"

	"github.com/claude-hub/claude-hub/app/fault"
	"github.com/claude-hub/claude-hub/app/fleet"
	"github.com/claude-hub/claude-hub/runner/wire"
	"github.com/claude-hub/claude-hub/runner/wire/wireconnect"
	"github.com/claude-hub/claude-hub/store"
)

const (
	maxBody = 8 << 20 // bytes of one request, before and after decompression
	// Waiting calls wait for at most 15 s of their own; the rest is for a busy database.
	waitingTimeout = 30 * time.Second
	callTimeout    = 20 * time.Second
)

// New answers the path prefix to mount and the handler below it. It needs no cookies and belongs on a mux of its own,
// apart from the browser's.
func New(f *fleet.Fleet, log zerolog.Logger) (path string, handler http.Handler) {
	a := &api{f: f, log: log.With().Str("part", "runnerapi").Logger()}
	path, handler = wireconnect.NewRunnerServiceHandler(a,
		connect.WithReadMaxBytes(maxBody),
		connect.WithInterceptors(a),
		connect.WithRecover(func(_ context.Context, spec connect.Spec, _ http.Header, p any) error {
			return a.internal(spec.Procedure, "", errors.New("panic"), p)
		}),
	)
	return path, newAdmission(a, handler)
}

type api struct {
	f   *fleet.Fleet
	log zerolog.Logger
}

type callerKey struct{}

func caller(ctx context.Context) string {
	id, _ := ctx.Value(callerKey{}).(string)
	return id
}

// WrapUnary lets in who was admitted, limits the time, and maps errors.
func (a *api) WrapUnary(next connect.UnaryFunc) connect.UnaryFunc {
	return func(ctx context.Context, req connect.AnyRequest) (connect.AnyResponse, error) {
		timeout := callTimeout
		procedure := req.Spec().Procedure
		switch procedure {
		case wireconnect.RunnerServiceSyncProcedure, wireconnect.RunnerServiceExchangeProcedure, wireconnect.RunnerServiceCloneTokenProcedure,
			wireconnect.RunnerServiceSessionTokenProcedure:
			timeout = waitingTimeout
		}
		ctx, cancel := context.WithTimeout(ctx, timeout)
		defer cancel()
		runner := caller(ctx)
		if runner == "" && procedure != wireconnect.RunnerServiceRegisterProcedure {
			return nil, a.coded(procedure, "", fleet.ErrRevoked)
		}
		res, err := next(ctx, req)
		if err != nil {
			return nil, a.coded(procedure, runner, err)
		}
		return res, nil
	}
}

// WrapStreamingClient is part of connect.Interceptor; this side is no client.
func (a *api) WrapStreamingClient(next connect.StreamingClientFunc) connect.StreamingClientFunc {
	return next
}

// WrapStreamingHandler refuses streams, which would come in past WrapUnary. The protocol has none.
func (a *api) WrapStreamingHandler(connect.StreamingHandlerFunc) connect.StreamingHandlerFunc {
	return func(context.Context, connect.StreamingHandlerConn) error {
		return connect.NewError(connect.CodeUnimplemented, errors.New("this Hub answers unary calls only"))
	}
}

func bearer(header string) (string, bool) {
	scheme, token, ok := strings.Cut(header, " ")
	token = strings.TrimSpace(token)
	return token, ok && strings.EqualFold(scheme, "Bearer") && token != ""
}

var codes = []struct {
	err  error
	code connect.Code
}{
	{fleet.ErrFenced, connect.CodeAborted},
	{fleet.ErrStale, connect.CodeOutOfRange},
	{fleet.ErrUnknown, connect.CodeNotFound},
	{fleet.ErrHello, connect.CodeFailedPrecondition},
	{fleet.ErrRevoked, connect.CodeUnauthenticated},
	{fleet.ErrInvalid, connect.CodeInvalidArgument},
}

var faultCodes = map[fault.Code]connect.Code{
	fault.NotFound:     connect.CodeNotFound,
	fault.Invalid:      connect.CodeInvalidArgument,
	fault.Conflict:     connect.CodeAlreadyExists,
	fault.Refused:      connect.CodePermissionDenied,
	fault.Unauthorized: connect.CodeUnauthenticated,
	fault.Unavailable:  connect.CodeUnavailable,
}

func (a *api) coded(procedure, runner string, err error) error {
	for _, c := range codes {
		if errors.Is(err, c.err) {
			if c.code == connect.CodeInvalidArgument {
				return connect.NewError(c.code, err) // says what is malformed; made by the fleet of the request alone
			}
			return connect.NewError(c.code, c.err)
		}
	}
	var f *fault.Error
	if errors.As(err, &f) {
		if code, ok := faultCodes[f.Code]; ok {
			return connect.NewError(code, errors.New(f.Message))
		}
	}
	var already *connect.Error
	if errors.As(err, &already) {
		return err
	}
	switch {
	case errors.Is(err, context.Canceled):
		return connect.NewError(connect.CodeCanceled, errors.New("the call was cancelled"))
	case errors.Is(err, context.DeadlineExceeded):
		return connect.NewError(connect.CodeUnavailable, errors.New("the Hub is too busy to answer in time; try again"))
	}
	return a.internal(procedure, runner, err, nil)
}

func (a *api) internal(procedure, runner string, err error, panicked any) error {
	id := store.NewID()
	entry := a.log.Error().Err(err).Str("call", procedure).Str("runner", runner).Str("request", id)
	if panicked != nil {
		entry = entry.Interface("panic", panicked)
	}
	entry.Msg("a Runner's call failed inside the Hub")
	return connect.NewError(connect.CodeInternal, errors.New("something went wrong inside the Hub, whose log has the details under request "+id))
}

func (a *api) Register(ctx context.Context, q *wire.RegisterRequest) (*wire.RegisterResponse, error) {
	id, token, err := a.f.Register(ctx, q.GetToken(), q.GetName())
	if err != nil {
		return nil, err
	}
	return &wire.RegisterResponse{RunnerId: id, RunnerToken: token}, nil
}

func (a *api) Hello(ctx context.Context, q *wire.HelloRequest) (*wire.HelloResponse, error) {
	return a.f.Hello(ctx, caller(ctx), q)
}

func (a *api) Sync(ctx context.Context, q *wire.SyncRequest) (*wire.SyncResponse, error) {
	return a.f.Sync(ctx, caller(ctx), q)
}

func (a *api) Fetch(ctx context.Context, q *wire.FetchRequest) (*wire.FetchResponse, error) {
	return a.f.Fetch(ctx, caller(ctx), q)
}

func (a *api) Values(ctx context.Context, q *wire.ValuesRequest) (*wire.ValuesResponse, error) {
	return a.f.Values(ctx, caller(ctx), q)
}

func (a *api) CloneToken(ctx context.Context, q *wire.CloneTokenRequest) (*wire.CloneTokenResponse, error) {
	return a.f.CloneToken(ctx, caller(ctx), q)
}

func (a *api) SessionToken(ctx context.Context, q *wire.SessionTokenRequest) (*wire.SessionTokenResponse, error) {
	return a.f.SessionToken(ctx, caller(ctx), q)
}

func (a *api) EndToken(ctx context.Context, q *wire.EndTokenRequest) (*wire.EndTokenResponse, error) {
	if err := a.f.EndToken(ctx, caller(ctx), q); err != nil {
		return nil, err
	}
	return &wire.EndTokenResponse{}, nil
}

func (a *api) Report(ctx context.Context, q *wire.ReportRequest) (*wire.ReportResponse, error) {
	if err := a.f.Report(ctx, caller(ctx), q); err != nil {
		return nil, err
	}
	return &wire.ReportResponse{}, nil
}

func (a *api) AppendLog(ctx context.Context, q *wire.AppendLogRequest) (*wire.AppendLogResponse, error) {
	return a.f.AppendLog(ctx, caller(ctx), q)
}

func (a *api) Exchange(ctx context.Context, q *wire.ExchangeRequest) (*wire.ExchangeResponse, error) {
	return a.f.Exchange(ctx, caller(ctx), q)
}
