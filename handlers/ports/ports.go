package ports

import (
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"net/http/httputil"
	"net/url"
	"strings"
	"time"

	"github.com/claude-hub/claude-hub/app/access"
	"github.com/claude-hub/claude-hub/app/fault"
	"github.com/claude-hub/claude-hub/app/fleet"
	"github.com/claude-hub/claude-hub/app/session"
	"github.com/claude-hub/claude-hub/handlers/peer"
	"github.com/claude-hub/claude-hub/handlers/request"
)

const (
	// bodyLimit is how much one request may bring, headLimit how much of an answer's header the Sandbox's server.
	bodyLimit = 256 << 20
	headLimit = 64 << 10
	// answerTime is how long that server may take to begin an answer; silence, how long either side may take over a piece.
	answerTime = 5 * time.Minute
	silence    = time.Minute
	// conns are open to one port at a time, and for so long when nothing comes: an open one keeps the Session awake.
	conns    = 24
	connIdle = 4 * time.Second
)

const tooLarge = "At most 256 MiB can be sent to a port at once. Use “claude-hub session cp” or “session port-forward” for more."

// Deps is what ports lead to.
type Deps struct {
	Gate     *access.Gate
	Sessions *session.Service
	Domain   Domain
	// Hub is the Hub's own address.
	Hub *url.URL
}

// Ports answers under the hosts of a Domain.
type Ports struct {
	d         Deps
	transport *http.Transport
}

// New makes the handler. It belongs outside of everything that is the Hub's own pages'.
func New(d Deps) *Ports {
	p := &Ports{d: d}
	p.transport = &http.Transport{
		DialContext: p.dial, MaxConnsPerHost: conns, MaxIdleConnsPerHost: conns, IdleConnTimeout: connIdle,
		ResponseHeaderTimeout: answerTime, MaxResponseHeaderBytes: headLimit, DisableCompression: true,
	}
	return p
}

func (p *Ports) secure() bool { return p.d.Hub.Scheme == "https" }

// visited is a request's way to a port.
type visited struct {
	place Place
	grant access.Grant
}

type visitedKey struct{}

func (p *Ports) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	r = r.WithContext(access.Reading(r.Context()))
	place, ok := p.d.Domain.Place(r.Host)
	if !ok {
		p.refuse(w, r, http.StatusNotFound, access.ErrNotFound.Message)
		return
	}
	if strings.HasPrefix(r.URL.Path, ownPath) {
		p.own(w, r, place)
		return
	}
	if p.d.Domain.foreign(r, place) {
		p.refuse(w, r, http.StatusForbidden, "A page of another origin asked for this, so it was not passed on: only pages of this Session may.")
		return
	}
	who, err := p.visitor(r, place)
	if fault.Is(err, fault.Unauthorized) {
		p.ask(w, r, place)
		return
	}
	if err != nil {
		p.fail(w, r, err)
		return
	}
	g, sn, err := Find(r.Context(), p.d.Gate, p.d.Sessions, who, place.Session)
	switch {
	case err != nil:
		p.fail(w, r, err)
		return
	case sn.State != session.Running && navigates(r):
		w.Header().Set("Cache-Control", "no-store")
		http.Redirect(w, r, hub(p.d.Hub)+Path(g, place)+"?"+url.Values{"to": {r.URL.RequestURI()}}.Encode(), http.StatusSeeOther)
		return
	case sn.State != session.Running:
		p.refuse(w, r, http.StatusServiceUnavailable, "This Session is "+sn.State+". Load its page again.")
		return
	}
	if r.ContentLength > bodyLimit {
		w.Header().Set("Connection", "close") // nobody waits for the rest
		p.refuse(w, r, http.StatusRequestEntityTooLarge, tooLarge)
		return
	}
	if r.Body != nil && r.Body != http.NoBody {
		r.Body = &arriving{http.MaxBytesReader(w, r.Body, bodyLimit), http.NewResponseController(w)}
	}
	home, err := p.d.Sessions.Home(r.Context(), g, sn.ID)
	if err != nil {
		p.fail(w, r, err)
		return
	}
	if peer.Pass(w, r, home, nil) {
		return
	}
	held, release := p.d.Gate.Hold(r.Context(), g)
	defer release()
	p.pass(w, r.WithContext(context.WithValue(held, visitedKey{}, visited{place, g})), place)
}

// Find is a Session by its id alone, for who: absent and forbidden are one answer.
func Find(ctx context.Context, gate *access.Gate, sessions *session.Service, who access.Person, id string) (access.Grant, session.Session, error) {
	repo, err := sessions.RepoOf(ctx, id)
	if err != nil {
		return access.Grant{}, session.Session{}, err
	}
	g, err := gate.Repo(ctx, who, repo)
	if err != nil {
		return g, session.Session{}, err
	}
	sn, err := sessions.Get(ctx, g, id)
	if fault.Is(err, fault.NotFound) {
		err = access.ErrNotFound
	}
	return g, sn, err
}

// Path is a port's page at the Hub.
func Path(g access.Grant, p Place) string {
	return "/repos/" + g.Repo().ID.String() + "/sessions/" + p.Session + "/ports/" + url.PathEscape(p.String()[len(p.Session)+1:])
}

func hub(u *url.URL) string { return u.Scheme + "://" + u.Host }

// dial opens a connection for the request that needs one first. Others may come to use it: each was let in by itself.
func (p *Ports) dial(ctx context.Context, _, _ string) (net.Conn, error) {
	v, ok := ctx.Value(visitedKey{}).(visited)
	if !ok {
		return nil, errors.New("a connection to a port is for somebody's request only")
	}
	return p.d.Sessions.DialPort(ctx, v.grant, v.place.Session, v.place.Port)
}

// pass has the Sandbox's server answer.
func (p *Ports) pass(w http.ResponseWriter, r *http.Request, place Place) {
	proxy := httputil.ReverseProxy{
		Transport:     p.transport,
		FlushInterval: -1,
		Rewrite: func(q *httputil.ProxyRequest) {
			q.Out.URL.Scheme, q.Out.URL.Host = "http", place.String()
			q.SetXForwarded()
			q.Out.Header.Set("X-Forwarded-Proto", p.d.Hub.Scheme)
			q.Out.Host = q.In.Host
			withoutOurs(q.Out.Header)
		},
		ModifyResponse: func(res *http.Response) error {
			contain(res.Header)
			return nil
		},
		ErrorHandler: func(w http.ResponseWriter, r *http.Request, err error) { p.broke(w, r, place, err) },
	}
	proxy.ServeHTTP(&flowing{w, http.NewResponseController(w)}, r)
}

// broke says why there is no answer.
func (p *Ports) broke(w http.ResponseWriter, r *http.Request, place Place, err error) {
	var refused *fleet.RefusedError
	var large *http.MaxBytesError
	var slow net.Error
	var f *fault.Error
	at := "port " + place.String()[len(place.Session)+1:] + " of this Session"
	switch {
	case errors.As(err, &large):
		p.refuse(w, r, http.StatusRequestEntityTooLarge, tooLarge)
	case errors.As(err, &f):
		p.refuse(w, r, request.Status(f.Code), f.Message)
	case errors.As(err, &refused), errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF):
		p.refuse(w, r, http.StatusBadGateway, "Nothing answers at "+at+". Start the server there, at 127.0.0.1 or all addresses of the Sandbox, and load this page again.")
	case errors.As(err, &slow) && slow.Timeout():
		p.refuse(w, r, http.StatusGatewayTimeout, "The server at "+at+" took longer than 5 minutes to begin its answer.")
	case r.Context().Err() != nil:
	default:
		request.Log(r.Context()).Warn().Err(err).Str("place", place.String()).Msg("a port's answer could not be passed on")
		p.refuse(w, r, http.StatusBadGateway, "The answer of the server at "+at+" is not HTTP, or broke off.")
	}
}

// arriving gives each piece of a body its time, flowing each of an answer.
type arriving struct {
	io.ReadCloser
	rc *http.ResponseController
}

func (a *arriving) Read(b []byte) (int, error) {
	_ = a.rc.SetReadDeadline(time.Now().Add(silence))
	n, err := a.ReadCloser.Read(b)
	if err != nil { // what follows on the connection has its own
		_ = a.rc.SetReadDeadline(time.Time{})
	}
	return n, err
}

type flowing struct {
	http.ResponseWriter
	rc *http.ResponseController
}

func (f *flowing) Write(b []byte) (int, error) {
	_ = f.rc.SetWriteDeadline(time.Now().Add(silence))
	return f.ResponseWriter.Write(b)
}

// Unwrap lets http.ResponseController reach the connection.
func (f *flowing) Unwrap() http.ResponseWriter { return f.ResponseWriter }
