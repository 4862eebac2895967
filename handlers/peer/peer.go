// Package peer passes calls on to the Hub that has what they are about in its memory (app/fleet, Home): once, as they came, with the
// credentials they came with. That Hub decides on them as if they had come to it first, so that no Hub has to be believed
// what it says of somebody, and there is no key that could be stolen to say it.
package peer

import (
	"net"
	"net/http"
	"net/http/httptrace"
	"net/http/httputil"
	"net/url"
	"time"

	"github.com/claude-hub/claude-hub/handlers/request"
)

// header marks what was passed on. Who forges it has no more than a call that isn't passed on.
const header = "Claude-Hub-Passed"

const (
	dialTime = 3 * time.Second
	// answerTime is how long the other Hub may take to begin an answer: above the longest poll.
	answerTime = 40 * time.Second
	// silence is how long an answer's receiver may take for each piece, and how long one piece may be waited for: streams say
	// something every request.MaxWait.
	silence = 60 * time.Second
)

// transport goes straight to other Hubs, whatever proxy the environment names.
var transport = &http.Transport{
	DialContext:           (&net.Dialer{Timeout: dialTime}).DialContext,
	TLSHandshakeTimeout:   dialTime,
	ResponseHeaderTimeout: answerTime,
	MaxIdleConnsPerHost:   64,
	IdleConnTimeout:       30 * time.Second,
	DisableCompression:    true,
}

// Pass answers a call at the Hub under the peer_url home and tells whether it has answered: not with "", which is this Hub. away is
// called, if not nil, when nothing takes connections there.
func Pass(w http.ResponseWriter, r *http.Request, home string, away func()) bool {
	if home == "" {
		return false
	}
	if r.Header.Get(header) != "" {
		refuse(w, "Another Hub serves this by now. Try again.")
		return true
	}
	to, err := url.Parse(home)
	if err != nil {
		refuse(w, "The Hub that serves this can't be reached from here. Its operator finds why in the log.")
		request.Log(r.Context()).Error().Err(err).Str("peer", home).Msg("the peer_url of another Hub is malformed")
		return true
	}
	connected := false
	r = r.WithContext(httptrace.WithClientTrace(r.Context(), &httptrace.ClientTrace{GotConn: func(httptrace.GotConnInfo) { connected = true }}))
	proxy := httputil.ReverseProxy{
		Transport:     transport,
		FlushInterval: -1,
		Rewrite: func(p *httputil.ProxyRequest) {
			p.SetURL(to)
			p.Out.Host = p.In.Host // cookies and origins are the public address's
			p.Out.Header.Set(header, "1")
		},
		ModifyResponse: func(res *http.Response) error {
			for name := range res.Header { // in place of what this Hub would have said
				w.Header().Del(name)
			}
			return nil
		},
		ErrorHandler: func(w http.ResponseWriter, r *http.Request, err error) {
			if !connected && r.Context().Err() == nil && away != nil {
				away()
			}
			request.Log(r.Context()).Warn().Err(err).Str("peer", home).Msg("another Hub did not answer a call that was passed on to it")
			refuse(w, "The Hub that serves this does not answer. Another takes its place within seconds: try again.")
		},
	}
	proxy.ServeHTTP(&flowing{w, http.NewResponseController(w)}, r)
	return true
}

// refuse is no answer of the API's: its clients try again.
func refuse(w http.ResponseWriter, why string) {
	w.Header().Set("Cache-Control", "no-store")
	http.Error(w, why, http.StatusBadGateway)
}

// flowing has an answer last as long as something comes.
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
