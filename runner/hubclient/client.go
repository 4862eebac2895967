// Package hubclient is the Runner's side of the protocol (design.md §5, facts/reliability.md §3): it keeps the Hub told
// of what the Runner holds, hands over what it should hold, and sends what the spool keeps until the Hub has it.
//
// Nothing here gives up because the Hub is away: answers that a repetition may mend (transport, 5xx) are waited out
// with growing, jittered pauses. Refusals are final for the one thing they refuse.
package hubclient

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"net/http"
	"strings"
	"sync"
	"time"

	"connectrpc.com/connect"
	"github.com/rs/zerolog"

	"github.com/claude-hub/claude-hub/runner/spool"
	"github.com/claude-hub/claude-hub/runner/wire"
	"github.com/claude-hub/claude-hub/runner/wire/wireconnect"
)

// What a call about one assignment or channel is refused with, for good.
var (
	ErrFenced  = errors.New("the Hub has given this assignment a newer fence: what was done under the older one no longer counts")
	ErrStale   = errors.New("the assignment has changed since: the next Sync brings its newest generation")
	ErrUnknown = errors.New("the Hub doesn't know this assignment")
)

// ErrRevoked: the token is unknown or was revoked.
var ErrRevoked = errors.New("the Hub doesn't accept this Runner's token: it was revoked, or is another Hub's. Register the Runner again with “claude-hub runner register”")

// Options of a Client. URL, Token, Hello and Spool are needed.
type Options struct {
	URL   string                    // of the Hub: "https://hub.example.org"
	Token string                    // from Register
	Hello func() *wire.HelloRequest // what this Runner is; asked anew before each Hello
	Spool *spool.Spool
	HTTP  connect.HTTPClient // nil: a client of its own, with the proxy of the environment
	Log   zerolog.Logger

	// Pauses between repetitions; zero values mean the defaults.
	MinPause    time.Duration // 500 ms, growing to
	MaxPause    time.Duration // 30 s
	RefusedWait time.Duration // after a refused token or a wanted update; 60 s (facts/reliability.md P23)
}

// Source is what the Runner holds now. Called before each Sync.
type Source interface {
	Held() []*wire.Held
	Disk() *wire.Disk
}

// Sink takes each list the Hub answers, whole. It is called from one goroutine and must return soon.
type Sink func(items []*wire.Item, channels []*wire.Channel)

// Status is how the connection is, for people.
type Status struct {
	Connected bool
	Since     time.Time // of Connected or not
	Problem   string    // why not, in words; empty while connected
	Update    string    // set while the Hub wants this Runner updated: what to do
	RunnerID  string    // as the Hub knows it
	Name      string
	Lease     time.Duration // of the newest Sync
}

// Client talks to one Hub. Its methods may be called from many goroutines.
type Client struct {
	o    Options
	rpc  wireconnect.RunnerServiceClient
	log  zerolog.Logger
	mu   sync.Mutex
	stat Status
	list map[string]bool // assignments in the newest list; nil before the first
	skew time.Duration   // by how much this host's clock is ahead of the Hub's
}

// New makes a Client. It dials nothing before Run or a call.
func New(o Options) *Client {
	if o.HTTP == nil {
		o.HTTP = NewHTTP()
	}
	if o.MinPause <= 0 {
		o.MinPause = 500 * time.Millisecond
	}
	if o.MaxPause <= 0 {
		o.MaxPause = 30 * time.Second
	}
	if o.RefusedWait <= 0 {
		o.RefusedWait = 60 * time.Second
	}
	c := &Client{o: o, log: o.Log.With().Str("part", "hubclient").Logger(), stat: Status{Since: time.Now(), Problem: "not connected yet"}}
	c.rpc = wireconnect.NewRunnerServiceClient(o.HTTP, strings.TrimSuffix(o.URL, "/"), clientOptions(o.Token, c.dated)...)
	return c
}

// clientOptions has every call carry the token, and dated told of every answer.
func clientOptions(token string, dated func(began time.Time, date string)) []connect.ClientOption {
	auth := connect.UnaryInterceptorFunc(func(next connect.UnaryFunc) connect.UnaryFunc {
		return func(ctx context.Context, req connect.AnyRequest) (connect.AnyResponse, error) {
			if token != "" {
				req.Header().Set("Authorization", "Bearer "+token)
			}
			began := time.Now()
			res, err := next(ctx, req)
			if err == nil && dated != nil {
				dated(began, res.Header().Get("Date"))
			}
			return res, err
		}
	})
	return []connect.ClientOption{connect.WithInterceptors(auth), connect.WithReadMaxBytes(16 << 20)}
}

// NewHTTP makes a client fit for long polls: connections are kept, dead ones are noticed, and no redirect carries the
// token to another host.
func NewHTTP() *http.Client {
	return &http.Client{
		Transport: &http.Transport{
			Proxy:               http.ProxyFromEnvironment,
			DialContext:         (&net.Dialer{Timeout: 10 * time.Second, KeepAlive: 15 * time.Second}).DialContext,
			ForceAttemptHTTP2:   true,
			TLSHandshakeTimeout: 10 * time.Second,
			MaxIdleConnsPerHost: 16,
			IdleConnTimeout:     90 * time.Second,
			// Without pings a connection that died silently would be used again and again until TCP gives it up.
			HTTP2: &http.HTTP2Config{SendPingTimeout: 20 * time.Second, PingTimeout: 10 * time.Second},
		},
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}
}

// Register trades a one-time registration token for a Runner's identity. It is not repeated: a token works once. The
// error says in the Hub's words why it was refused, or that the Hub could not be reached.
func Register(ctx context.Context, hc connect.HTTPClient, url, token, name string) (runnerID, runnerToken string, err error) {
	if hc == nil {
		hc = NewHTTP()
	}
	ctx, cancel := context.WithTimeout(ctx, 30*time.Second)
	defer cancel()
	res, err := wireconnect.NewRunnerServiceClient(hc, strings.TrimSuffix(url, "/"), clientOptions("", nil)...).
		Register(ctx, &wire.RegisterRequest{Token: token, Name: name})
	if err != nil {
		if code := connect.CodeOf(err); code == connect.CodeUnavailable || code == connect.CodeDeadlineExceeded {
			return "", "", &Unreachable{Hub: url, Err: err}
		}
		return "", "", fmt.Errorf("register at %s: %s", url, words(err))
	}
	return res.GetRunnerId(), res.GetRunnerToken(), nil
}

// Unreachable is that no Hub answered.
type Unreachable struct {
	Hub string
	Err error
}

func (u *Unreachable) Error() string {
	return fmt.Sprintf("can't reach the Hub at %s: %s", u.Hub, words(u.Err))
}
func (u *Unreachable) Unwrap() error { return u.Err }

// words is err for a person: the Hub's own message without the code's name.
func words(err error) string {
	var c *connect.Error
	if errors.As(err, &c) {
		return c.Message()
	}
	return err.Error()
}

// Status answers how the connection is now.
func (c *Client) Status() Status {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.stat
}

// connected notes a good answer, and logs the change.
func (c *Client) connected() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.stat.Connected {
		return
	}
	c.stat.Connected, c.stat.Since, c.stat.Problem, c.stat.Update = true, time.Now(), "", ""
	c.log.Info().Str("hub", c.o.URL).Msg("in contact with the Hub")
}

// broken notes why there is none, and logs it when it is a new reason.
func (c *Client) broken(problem, update string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.stat.Connected {
		c.stat.Connected, c.stat.Since = false, time.Now()
	}
	if c.stat.Problem != problem {
		c.log.Warn().Str("hub", c.o.URL).Msg(problem)
	}
	c.stat.Problem, c.stat.Update = problem, update
}

// Run keeps the Runner in step with the Hub until ctx ends: Hello, then Sync after Sync, and beside them what the
// spool has to send. It returns only with ctx's error.
func (c *Client) Run(ctx context.Context, src Source, sink Sink) error {
	var all sync.WaitGroup
	all.Go(func() { c.sendReports(ctx) })
	all.Go(func() { c.shipLogs(ctx) })
	c.stayInStep(ctx, src, sink)
	all.Wait()
	return context.Cause(ctx)
}

func (c *Client) stayInStep(ctx context.Context, src Source, sink Sink) {
	pause := c.pause()
	for ctx.Err() == nil {
		if !c.hello(ctx, pause) {
			continue
		}
		c.syncUntilHello(ctx, src, sink, pause)
	}
}

// hello says once what this Runner is, and whether the Hub will work with it; if not, it has paused.
func (c *Client) hello(ctx context.Context, pause *pause) bool {
	call, cancel := context.WithTimeout(ctx, 30*time.Second)
	defer cancel()
	q := c.o.Hello()
	if q.GetProtocol() == 0 {
		q.Protocol = wire.Protocol
	}
	res, err := c.rpc.Hello(call, q)
	switch {
	case err != nil:
		c.wait(ctx, err, pause)
		return false
	case res.GetUpdate() != "":
		c.broken(res.GetUpdate(), res.GetUpdate())
		sleep(ctx, jitter(c.o.RefusedWait))
		return false
	}
	c.o.Spool.KeepAtLeast(res.GetLogLimit())
	c.mu.Lock()
	c.stat.RunnerID, c.stat.Name = res.GetRunnerId(), res.GetName()
	c.mu.Unlock()
	return true
}

const pollWait = 15 * time.Second

func (c *Client) syncUntilHello(ctx context.Context, src Source, sink Sink, pause *pause) {
	revision := ""
	for ctx.Err() == nil {
		began := time.Now()
		call, cancel := context.WithTimeout(ctx, pollWait+20*time.Second)
		res, err := c.rpc.Sync(call, &wire.SyncRequest{Held: src.Held(), Disk: src.Disk(), Revision: revision, WaitMs: pollWait.Milliseconds()})
		cancel()
		if err != nil {
			c.wait(ctx, err, pause)
			if connect.CodeOf(err) == connect.CodeFailedPrecondition {
				return
			}
			revision = "" // answered at once, which shows that the Hub is back
			continue
		}
		c.connected()
		pause.reset()
		c.mu.Lock()
		c.stat.Lease = time.Duration(res.GetLeaseMs()) * time.Millisecond
		c.mu.Unlock()
		same := revision != "" && res.GetRevision() == revision
		revision = res.GetRevision()
		c.ownTime(res.GetItems())
		c.listed(res.GetItems()) // before the sink: what it begins must not be taken for something left over
		sink(res.GetItems(), res.GetChannels())
		if same && time.Since(began) < time.Second {
			sleep(ctx, jitter(time.Second)) // a Hub that is stopping, or a proxy, doesn't wait
		}
	}
}

// skewStep is by how much two clocks may differ before it counts.
const skewStep = 5 * time.Second

// dated takes the Date of an answer, in whole seconds, that the Hub wrote between began and now: it bounds how far this
// host's clock is from the Hub's.
func (c *Client) dated(began time.Time, date string) {
	at, err := http.ParseTime(date)
	if err != nil {
		return
	}
	least, most := began.Sub(at)-time.Second, time.Since(at)
	c.mu.Lock()
	defer c.mu.Unlock()
	skew := min(max(c.skew, least), most)
	if skew.Abs() < skewStep {
		skew = 0
	}
	if (skew-c.skew).Abs() >= skewStep && skew != 0 {
		c.log.Warn().Str("ahead", skew.Round(time.Second).String()).Msg("this host's clock is not the Hub's: deadlines are met by the Hub's")
	}
	c.skew = skew
}

// ownTime turns deadlines, which are by the Hub's clock, into this host's.
func (c *Client) ownTime(items []*wire.Item) {
	c.mu.Lock()
	skew := c.skew
	c.mu.Unlock()
	for _, i := range items {
		if i.GetDeadlineMs() > 0 && skew != 0 {
			i.DeadlineMs += skew.Milliseconds()
		}
	}
}

// listed notes what the newest list names.
func (c *Client) listed(items []*wire.Item) {
	list := make(map[string]bool, len(items))
	for _, i := range items {
		list[i.GetId()] = true
	}
	c.mu.Lock()
	c.list = list
	c.mu.Unlock()
	c.tidy()
}

// tidy deletes from the spool what belongs to no assignment the Hub lists, once the Hub has all of it.
func (c *Client) tidy() {
	c.mu.Lock()
	list := c.list
	c.mu.Unlock()
	if list == nil {
		return
	}
	if err := c.o.Spool.Tidy(func(assignment string) bool { return list[assignment] }); err != nil {
		c.log.Warn().Err(err).Msg("what the Hub has could not be deleted from the spool")
	}
}

// wait pauses after a failed Hello or Sync for as long as its error asks for, and notes it.
func (c *Client) wait(ctx context.Context, err error, pause *pause) {
	if ctx.Err() != nil {
		return
	}
	if refusedToken(err) {
		c.broken(ErrRevoked.Error(), "")
		sleep(ctx, jitter(c.o.RefusedWait))
		return
	}
	switch connect.CodeOf(err) {
	case connect.CodeFailedPrecondition: // Hello again; the pause keeps a Hub that always asks from being hammered
		sleep(ctx, pause.next())
	case connect.CodeUnimplemented, connect.CodePermissionDenied, connect.CodeUnauthenticated, connect.CodeInvalidArgument, connect.CodeNotFound:
		c.broken(fmt.Sprintf("what answers at %s is not a Hub this Runner can talk to: %s", c.o.URL, words(err)), "")
		sleep(ctx, jitter(c.o.RefusedWait))
	default:
		c.broken(fmt.Sprintf("the Hub at %s can't be reached: %s. What runs goes on; what it has to tell is kept", c.o.URL, words(err)), "")
		sleep(ctx, pause.next())
	}
}

// final is the error a refused call about one assignment ends with; nil: a repetition may mend it. Only a Hub says such
// things: an error page of some proxy on the way is no refusal.
func final(err error) error {
	if !connect.IsWireError(err) {
		return nil
	}
	switch connect.CodeOf(err) {
	case connect.CodeAborted:
		return ErrFenced
	case connect.CodeOutOfRange:
		return ErrStale
	case connect.CodeNotFound:
		return ErrUnknown
	case connect.CodeInvalidArgument:
		return err
	}
	return nil
}

func refusedToken(err error) bool {
	return connect.IsWireError(err) && connect.CodeOf(err) == connect.CodeUnauthenticated
}

// Fetch brings an assignment's payload. It waits out a Hub that is away until ctx ends; ErrFenced, ErrStale and
// ErrUnknown are final: the next Sync says what to do instead.
func (c *Client) Fetch(ctx context.Context, id string, generation, fence int64) ([]byte, error) {
	res, err := insist(ctx, c, id, func(ctx context.Context) (*wire.FetchResponse, error) {
		return c.rpc.Fetch(ctx, &wire.FetchRequest{Id: id, Generation: generation, Fence: fence})
	})
	return res.GetPayload(), err
}

// Values brings the values of an assignment's Variables as they are now, or why there are none. It waits and fails as Fetch.
func (c *Client) Values(ctx context.Context, id string, generation, fence int64) (values []*wire.Value, refused string, err error) {
	res, err := insist(ctx, c, id, func(ctx context.Context) (*wire.ValuesResponse, error) {
		return c.rpc.Values(ctx, &wire.ValuesRequest{Id: id, Generation: generation, Fence: fence})
	})
	return res.GetValues(), res.GetRefused(), err
}

// CloneToken asks for a token that reads the assignment's Repo, made for this call, or why there is none. It waits and fails as
// Fetch. Whoever has it gives it back by EndToken.
func (c *Client) CloneToken(ctx context.Context, id string, generation, fence int64) (token []byte, expires time.Time, refused string, err error) {
	res, err := insist(ctx, c, id, func(ctx context.Context) (*wire.CloneTokenResponse, error) {
		return c.rpc.CloneToken(ctx, &wire.CloneTokenRequest{Id: id, Generation: generation, Fence: fence})
	})
	return res.GetToken(), time.UnixMilli(res.GetExpiresMs()), res.GetRefused(), err
}

// SessionToken asks for a token for git in a Session's Sandbox, which has one that may do have, or none. It fails as Fetch, but
// waits for nothing: somebody waits for git.
func (c *Client) SessionToken(ctx context.Context, id string, generation, fence int64, have string) (*wire.SessionTokenResponse, error) {
	call, cancel := context.WithTimeout(ctx, 35*time.Second)
	defer cancel()
	res, err := c.rpc.SessionToken(call, &wire.SessionTokenRequest{Id: id, Generation: generation, Fence: fence, Have: have})
	if err == nil {
		return res, nil
	}
	if f := final(err); f != nil {
		return nil, f
	}
	return nil, errors.New(words(err))
}

// EndToken gives a token back. It waits out a Hub that is away until ctx ends; ErrUnknown is final.
func (c *Client) EndToken(ctx context.Context, id string, token []byte) error {
	_, err := insist(ctx, c, id, func(ctx context.Context) (*wire.EndTokenResponse, error) {
		return c.rpc.EndToken(ctx, &wire.EndTokenRequest{Id: id, Token: token})
	})
	return err
}

// insist asks for something of an assignment until the Hub answers.
func insist[T any](ctx context.Context, c *Client, id string, ask func(context.Context) (*T, error)) (*T, error) {
	for pause := c.pause(); ; {
		call, cancel := context.WithTimeout(ctx, 30*time.Second)
		res, err := ask(call)
		cancel()
		if err == nil {
			return res, nil
		}
		if f := final(err); f != nil {
			return nil, f
		}
		if sleep(ctx, pause.next()); ctx.Err() != nil {
			return nil, fmt.Errorf("fetch assignment %s: %s: %w", id, words(err), context.Cause(ctx))
		}
	}
}

// pause grows from MinPause to MaxPause.
type pause struct {
	min, max, at time.Duration
}

func (c *Client) pause() *pause { return &pause{min: c.o.MinPause, max: c.o.MaxPause} }
func (p *pause) reset()         { p.at = 0 }

func (p *pause) next() time.Duration {
	p.at = min(max(2*p.at, p.min), p.max)
	return jitter(p.at)
}

// jitter keeps Runners from coming back all at once.
func jitter(d time.Duration) time.Duration {
	return d/2 + time.Duration(rand.Int64N(int64(d)+1))
}

func sleep(ctx context.Context, d time.Duration) {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
	case <-ctx.Done():
	}
}
