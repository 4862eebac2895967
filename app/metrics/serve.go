package metrics

import (
	"crypto/sha256"
	"crypto/subtle"
	"net/http"
	"strings"
)

// Path is where Prometheus looks.
const Path = "/metrics"

// Handler shows m to who sends token as "Authorization: Bearer …", or with an empty token to everybody: then only on an
// address of its own.
func (m *Metrics) Handler(token string) http.Handler {
	want := sha256.Sum256([]byte(token))
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Cache-Control", "no-store")
		sent, _ := strings.CutPrefix(r.Header.Get("Authorization"), "Bearer ")
		got := sha256.Sum256([]byte(sent))
		switch {
		case r.Method != http.MethodGet && r.Method != http.MethodHead:
			w.Header().Set("Allow", "GET, HEAD")
			http.Error(w, "Metrics are only read.", http.StatusMethodNotAllowed)
		case token != "" && subtle.ConstantTimeCompare(got[:], want[:]) != 1:
			w.Header().Set("WWW-Authenticate", `Bearer realm="metrics"`)
			http.Error(w, "Send the token of the key metrics.token of the Hub's config as a Bearer token.", http.StatusUnauthorized)
		default:
			w.Header().Set("Content-Type", "text/plain; version=0.0.4; charset=utf-8")
			_, _ = w.Write([]byte(m.Text(r.Context())))
		}
	})
}
