package githubtest

import (
	"crypto/rand"
	"crypto/rsa"
	"crypto/subtle"
	"crypto/x509"
	"encoding/base64"
	"encoding/hex"
	"encoding/pem"
	"fmt"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/golang-jwt/jwt/v4"
)

// token is an installation's (inst set) or a person's (user set).
type token struct {
	app     *app
	inst    *installation
	user    *account
	repos   []int64 // of an installation's token; nil is all that the installation has
	grants  map[string]string
	expires time.Time // zero: never
	revoked bool
	twin    string // a person's refresh token
}

// principal is who asks.
type principal struct {
	app    *app
	token  *token
	client *app // basic authentication with client id and secret
	value  string
}

func (p principal) name() string {
	switch {
	case p.token != nil && p.token.inst != nil:
		return fmt.Sprintf("installation %d", p.token.inst.ID)
	case p.token != nil:
		return "user " + p.token.user.Login
	case p.app != nil:
		return fmt.Sprintf("app %d", p.app.ID)
	case p.client != nil:
		return "client " + p.client.ClientID
	}
	return ""
}

func (p principal) inst() *installation {
	if p.token == nil {
		return nil
	}
	return p.token.inst
}

func (p principal) user() *account {
	if p.token == nil {
		return nil
	}
	return p.token.user
}

// authenticate says who asks, or what is wrong with what they showed. Called with the lock.
func (s *Server) authenticate(r *http.Request) (principal, string) {
	const bad = "Bad credentials"
	if id, secret, ok := r.BasicAuth(); ok {
		for _, a := range s.apps {
			if a.ClientID == id && subtle.ConstantTimeCompare([]byte(a.ClientSecret), []byte(secret)) == 1 {
				return principal{client: a}, ""
			}
		}
		return s.bearer(secret)
	}
	header := r.Header.Get("Authorization")
	if header == "" {
		return principal{}, ""
	}
	kind, value, _ := strings.Cut(header, " ")
	if !strings.EqualFold(kind, "bearer") && !strings.EqualFold(kind, "token") {
		return principal{}, bad
	}
	return s.bearer(value)
}

func (s *Server) bearer(value string) (principal, string) {
	const bad = "Bad credentials"
	if t := s.tokens[value]; t != nil {
		if t.revoked || !t.expires.IsZero() && !s.now().Before(t.expires) {
			return principal{}, bad
		}
		if t.inst != nil && s.installs[t.inst.ID] == nil {
			return principal{}, bad
		}
		return principal{token: t, value: value}, ""
	}
	if strings.Count(value, ".") != 2 || strings.HasPrefix(value, "gh") {
		return principal{}, bad
	}
	return s.jwt(value)
}

// jwt checks an App's own token: RS256, issued by a known App, no longer than ten minutes.
func (s *Server) jwt(value string) (principal, string) {
	claims := jwt.RegisteredClaims{}
	var found *app
	_, err := jwt.ParseWithClaims(value, &claims, func(t *jwt.Token) (any, error) {
		for _, a := range s.apps {
			if claims.Issuer == strconv.FormatInt(a.ID, 10) || claims.Issuer == a.ClientID {
				found = a
				return &a.key.PublicKey, nil
			}
		}
		return nil, fmt.Errorf("no App %q", claims.Issuer)
	}, jwt.WithValidMethods([]string{"RS256"}))
	switch {
	case err != nil && found == nil:
		return principal{}, "Integration not found"
	case err != nil:
		return principal{}, "A JSON web token could not be decoded"
	case claims.ExpiresAt == nil || claims.IssuedAt == nil:
		return principal{}, "Missing 'exp' or 'iat' claim in assertion"
	case time.Until(claims.ExpiresAt.Time) > 10*time.Minute:
		return principal{}, "'Expiration time' claim ('exp') is too far in the future"
	}
	return principal{app: found}, ""
}

// refusal is an answer in place of the one that was asked for.
type refusal struct {
	status  int
	message string
}

var (
	notFound  = &refusal{http.StatusNotFound, "Not Found"}
	suspended = &refusal{http.StatusForbidden, "This installation has been suspended"}
	integral  = &refusal{http.StatusForbidden, "Resource not accessible by integration"}
)

// may says whether p may do something with r that needs an App's permission name at level ("read" or "write").
// Called with the lock.
func (s *Server) may(p principal, r *repository, name, level string) *refusal {
	writing := level == "write"
	switch {
	case p.inst() != nil:
		if p.inst().suspended {
			return suspended
		}
		if !p.token.covers(r) {
			if r.private || writing {
				return notFound
			}
			return nil
		}
		if !enough(p.token.grants[name], level) {
			return integral
		}
	case p.user() != nil:
		has := s.permission(p.user(), r)
		inst := s.installationOf(p.token.app, r)
		switch {
		case r.private && (has == "" || inst == nil || inst.suspended):
			return notFound
		case writing && (inst == nil || inst.suspended || !enough(inst.grants[name], level)):
			return integral
		case writing && !atLeast(has, "write"):
			return &refusal{http.StatusForbidden, "Must have write access to Repository."}
		case inst != nil && r.private && !enough(inst.grants[name], level):
			return integral
		}
	case r.private || writing:
		return notFound
	}
	return nil
}

func (t *token) covers(r *repository) bool {
	return t.inst.has(r) && (t.repos == nil || slices.Contains(t.repos, r.ID))
}

func enough(has, need string) bool {
	return has == need || has == "write" && need == "read" || has == "admin"
}

// installationOf finds the installation of a that has r. Called with the lock.
func (s *Server) installationOf(a *app, r *repository) *installation {
	for _, i := range s.installs {
		if i.app == a && i.has(r) {
			return i
		}
	}
	return nil
}

func random(n int) string {
	b := make([]byte, n)
	_, _ = rand.Read(b)
	return hex.EncodeToString(b)
}

// newInstallationToken has the form that GitHub rolls out since 2026: far longer than 40 characters, with dots.
func newInstallationToken(a *app) string {
	b := make([]byte, 180)
	_, _ = rand.Read(b)
	v := base64.RawURLEncoding.EncodeToString(b)
	return fmt.Sprintf("ghs_%d_%s.%s.%s", a.ID, v[:36], v[36:150], v[150:])
}

// testKey is one for all Apps of a process: making an RSA key takes up to a second.
var testKey = sync.OnceValues(func() (*rsa.PrivateKey, string) {
	key, err := rsa.GenerateKey(rand.Reader, 2048)
	if err != nil {
		panic("githubtest: " + err.Error())
	}
	return key, string(pem.EncodeToMemory(&pem.Block{Type: "RSA PRIVATE KEY", Bytes: x509.MarshalPKCS1PrivateKey(key)}))
})
