package image_test

import (
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"fmt"
	"io"
	"log"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/google/go-containerregistry/pkg/authn"

	"github.com/claude-hub/claude-hub/runner/image"
	. "github.com/claude-hub/claude-hub/runner/image/imagetest"
)

// bearer lets in only with a token of a token service, as Docker Hub and ghcr.io do. The service gives one for reading
// to who has the password, and nothing to others.
func bearer(t *testing.T, password string) func(http.Handler) http.Handler {
	t.Helper()
	tokens := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if _, p, _ := r.BasicAuth(); p != password {
			http.Error(w, `{"errors":[{"code":"DENIED","message":"requested access to the resource is denied"}]}`, http.StatusForbidden)
			return
		}
		if scope := r.URL.Query().Get("scope"); scope != "repository:app:pull" && scope != "repository:app:push,pull" {
			http.Error(w, "scope "+scope, http.StatusBadRequest)
			return
		}
		_ = json.NewEncoder(w).Encode(map[string]any{"token": "let-me-in", "expires_in": 300})
	}))
	t.Cleanup(tokens.Close)
	return func(h http.Handler) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if r.Header.Get("Authorization") != "Bearer let-me-in" {
				w.Header().Set("WWW-Authenticate", fmt.Sprintf(`Bearer realm="%s/token",service="test"`, tokens.URL))
				http.Error(w, `{"errors":[{"code":"UNAUTHORIZED"}]}`, http.StatusUnauthorized)
				return
			}
			h.ServeHTTP(w, r)
		})
	}
}

func TestPullWithATokenService(t *testing.T) {
	t.Parallel()
	host := Registry(t, bearer(t, "pass"))
	auth := &authn.Basic{Username: "robot", Password: "pass"}
	ref := Push(t, host, "app", Image(t, nil, Layer(t, File("a", 0o644, ""))), auth)
	pull(t, open(t, image.Options{Keychain: keychain{host: {Username: "robot", Password: "pass"}}}), ref)
	_, err := open(t, image.Options{Keychain: keychain{}}).Pull(t.Context(), ref, nil)
	refused(t, err, image.NoAccess, host, "docker login "+host)
}

func TestPullOverTLSNeedsATrustedCertificate(t *testing.T) {
	t.Parallel()
	plain := Registry(t)
	Push(t, plain, "app", Image(t, nil, Layer(t, File("a", 0o644, ""))))
	proxy := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		req, err := http.NewRequestWithContext(r.Context(), r.Method, "http://"+plain+r.URL.Path, nil)
		if err != nil {
			t.Error(err)
			return
		}
		req.Header = r.Header
		resp, err := http.DefaultTransport.RoundTrip(req)
		if err != nil {
			t.Error(err)
			return
		}
		defer resp.Body.Close()
		for k, v := range resp.Header {
			w.Header()[k] = v
		}
		w.WriteHeader(resp.StatusCode)
		_, _ = io.Copy(w, resp.Body)
	}))
	proxy.Config.ErrorLog = log.New(io.Discard, "", 0)
	proxy.StartTLS()
	t.Cleanup(proxy.Close)
	host := strings.TrimPrefix(proxy.URL, "https://")
	// A name that isn't loopback's, so that plain HTTP is no way out.
	dial := dialTo(host)
	roots := x509.NewCertPool()
	roots.AddCert(proxy.Certificate())
	for _, trusted := range []bool{false, true} {
		transport := &http.Transport{DialContext: dial, TLSClientConfig: &tls.Config{ServerName: "example.com"}}
		if trusted {
			transport.TLSClientConfig.RootCAs = roots
		}
		_, err := open(t, image.Options{Transport: transport, Tries: 1}).Pull(t.Context(), "registry.example/app", nil)
		if trusted {
			if err != nil {
				t.Errorf("%v (%v)", err, unwrapped(err))
			}
			continue
		}
		refused(t, err, image.Unreachable, "registry.example", "certificate isn't trusted")
	}
}
