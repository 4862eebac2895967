package github

import (
	"bytes"
	"context"
	"crypto/sha256"
	"crypto/x509"
	"encoding/hex"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"strings"
	"sync"
	"time"

	ghapi "github.com/google/go-github/v62/github"
	"github.com/palantir/go-githubapp/githubapp"
	gometrics "github.com/rcrowley/go-metrics"
)

// Credentials are what GitHub gives for an App.
type Credentials struct {
	AppID          int64
	Slug           string
	ClientID       string
	ClientSecret   Secret
	PrivateKey     Secret   // PEM
	WebhookSecrets []Secret // the present one; while rotating, the old one too
}

// Options make an App.
type Options struct {
	Endpoints   Endpoints // default: github.com
	Credentials Credentials
	// Callback is where the sign-in comes back to, from the configured public URL, never from a request's Host.
	Callback string
	// Version is named to GitHub.
	Version string
	// Timeout is for one call, answer included. Default: 20 s.
	Timeout time.Duration
	// Transport carries the requests; the default goes over the network.
	Transport http.RoundTripper
	// Observe is told of every request once its answer begins, by the goroutine that made it.
	Observe func(Observed)
	// Metrics is where go-githubapp counts; nil: nowhere.
	Metrics gometrics.Registry
}

// App is the GitHub App: every call to GitHub goes through it. Its methods may be called from many goroutines, they return
// an *Error, and they neither cache what authorizes nor retry what GitHub refused. Every call has a time limit.
type App struct {
	opts    Options
	at      Endpoints
	cred    Credentials
	fence   *fence
	creator githubapp.ClientCreator
	app     *ghapi.Client
	rates   rates

	mu      sync.Mutex
	clients map[int64]*ghapi.Client // by installation; each keeps its token for its hour
	where   map[RepoID]place
	slug    string // as GitHub said it
}

// place is where a Repo is installed, as of at.
type place struct {
	installation int64
	at           time.Time
}

// placeAge is how long a Repo's installation is taken as known. A wrong one is found out by GitHub's refusal and looked up
// again at once; this only bounds the map.
const placeAge = 10 * time.Minute

// New checks the credentials' form; it asks GitHub nothing.
func New(o Options) (*App, error) {
	if o.Endpoints == (Endpoints{}) {
		o.Endpoints = Com()
	}
	if o.Timeout == 0 {
		o.Timeout = 20 * time.Second
	}
	c := o.Credentials
	switch {
	case c.AppID <= 0:
		return nil, fail(Invalid, "The GitHub App's id is missing: it is the number under About on the App's page.")
	case c.ClientID == "" || c.ClientSecret.Empty():
		return nil, fail(Invalid, "The GitHub App's client id or client secret is missing.")
	case len(c.WebhookSecrets) == 0:
		return nil, fail(Invalid, "The GitHub App's webhook secret is missing. Without one, anybody could send events.")
	}
	for _, s := range c.WebhookSecrets {
		if s.Empty() {
			return nil, fail(Invalid, "The GitHub App's webhook secret is empty. Without one, anybody could send events.")
		}
	}
	if err := checkKey(c.PrivateKey); err != nil {
		return nil, err
	}
	if o.Callback != "" {
		if u, err := url.Parse(o.Callback); err != nil || u.Host == "" {
			return nil, fail(Invalid, "%q is no address that a sign-in can come back to.", o.Callback)
		}
	}
	f, err := newFence(o.Transport, o.Endpoints)
	if err != nil {
		return nil, err
	}
	f.observe = o.Observe
	a := &App{
		opts: o, at: o.Endpoints, cred: c, fence: f, rates: rates{m: map[string]*limit{}},
		clients: map[int64]*ghapi.Client{}, where: map[RepoID]place{},
	}
	with := []githubapp.ClientOption{githubapp.WithTransport(f), githubapp.WithClientTimeout(o.Timeout), githubapp.WithClientUserAgent(agent(o.Version))}
	if o.Metrics != nil {
		with = append(with, githubapp.WithClientMiddleware(githubapp.ClientMetrics(o.Metrics)))
	}
	a.creator = githubapp.NewClientCreator(a.at.API+"/", a.at.GraphQL, c.AppID, []byte(c.PrivateKey.Reveal()), with...)
	if a.app, err = a.creator.NewAppClient(); err != nil {
		return nil, fail(Invalid, "The GitHub App's private key can't be used.")
	}
	return a, nil
}

func agent(version string) string {
	if version == "" {
		version = "dev"
	}
	return "claude-hub/" + version
}

func checkKey(key Secret) error {
	block, _ := pem.Decode([]byte(key.Reveal()))
	if block == nil {
		return fail(Invalid, "The GitHub App's private key is missing or no PEM text: it begins with -----BEGIN RSA PRIVATE KEY-----.")
	}
	if _, err := x509.ParsePKCS1PrivateKey(block.Bytes); err == nil {
		return nil
	}
	if _, err := x509.ParsePKCS8PrivateKey(block.Bytes); err == nil {
		return nil
	}
	return fail(Invalid, "The GitHub App's private key is no RSA key that can be read.")
}

// Endpoints say where this App's GitHub is.
func (a *App) Endpoints() Endpoints { return a.at }

// ID is the App's id.
func (a *App) ID() int64 { return a.cred.AppID }

// Slug is the App's name in addresses: of its Credentials, else as Self found it; "" before that.
func (a *App) Slug() string {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.cred.Slug != "" {
		return a.cred.Slug
	}
	return a.slug
}

// Forget drops what is kept of an installation: its token, and where its Repos are. Call it for every event of an
// installation: a token made before other permissions were granted keeps the old ones for its hour.
func (a *App) Forget(installation int64) {
	a.mu.Lock()
	defer a.mu.Unlock()
	delete(a.clients, installation)
	for repo, p := range a.where {
		if p.installation == installation {
			delete(a.where, repo)
		}
	}
}

func (a *App) client(installation int64) (*ghapi.Client, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if c := a.clients[installation]; c != nil {
		return c, nil
	}
	c, err := a.creator.NewInstallationClient(installation)
	if err != nil {
		return nil, fail(Invalid, "The GitHub App's private key can't be used.")
	}
	if len(a.clients) > 10_000 {
		clear(a.clients)
	}
	a.clients[installation] = c
	return c, nil
}

// withToken is a client for a token that somebody else holds. go-githubapp's own would ignore transport and timeout
// (facts/github.md §1, 9).
func (a *App) withToken(token Secret) *ghapi.Client {
	c := ghapi.NewClient(&http.Client{
		Timeout: a.opts.Timeout, Transport: bearer{a.fence, token},
	})
	c.BaseURL, c.UserAgent = a.app.BaseURL, agent(a.opts.Version)
	return c
}

// fingerprint keys what is remembered of a token without keeping the token.
func fingerprint(s Secret) string {
	sum := sha256.Sum256([]byte(s.Reveal()))
	return hex.EncodeToString(sum[:12])
}

// call is every request on the API. path is without slash at its begin; in is sent as JSON if it isn't nil; out gets the
// answer as JSON if it isn't nil, or as it is if it is a *bytes.Buffer.
func (a *App) call(ctx context.Context, c *ghapi.Client, who caller, method, path string, in, out any) (*ghapi.Response, error) {
	what, _, _ := strings.Cut(method+" /"+path, "?")
	if strings.HasPrefix(path, "app-manifests/") {
		what = "POST /app-manifests/{code}/conversions"
	}
	if e := a.rates.wait(who.key); e != nil {
		e.Detail = what + ": not asked"
		return nil, e
	}
	req, err := c.NewRequest(method, path, in)
	if err != nil {
		return nil, fail(Invalid, "This can't be asked of GitHub.")
	}
	raw, isRaw := out.(*bytes.Buffer)
	if isRaw {
		req.Header.Set("Accept", "application/vnd.github.raw+json")
	} else {
		raw = &bytes.Buffer{}
	}
	resp, err := c.Do(ctx, req, raw)
	var accepted *ghapi.AcceptedError
	if err != nil && !errors.As(err, &accepted) {
		var hr *http.Response
		if resp != nil {
			hr = resp.Response
		}
		return nil, a.failure(ctx, who, what, hr, err)
	}
	if resp.StatusCode >= 300 {
		return nil, a.failure(ctx, who, what, resp.Response, nil)
	}
	a.rates.fine(who.key)
	if out != nil && !isRaw {
		if err := json.Unmarshal(raw.Bytes(), out); err != nil {
			e := away(err)
			e.Detail = fmt.Sprintf("%s: the answer (%d bytes) is no JSON of the expected form", what, raw.Len())
			return nil, e
		}
	}
	return resp, nil
}

// asApp calls as the App itself.
func (a *App) asApp(ctx context.Context, method, path string, in, out any) (*ghapi.Response, error) {
	return a.call(ctx, a.app, caller{key: "app"}, method, path, in, out)
}

// asInstallation calls with an installation's token. One that GitHub no longer takes is made anew, once.
func (a *App) asInstallation(ctx context.Context, inst int64, method, path string, in, out any) (*ghapi.Response, error) {
	who := caller{key: fmt.Sprintf("installation:%d", inst), inst: inst}
	for again := false; ; again = true {
		c, err := a.client(inst)
		if err != nil {
			return nil, err
		}
		resp, err := a.call(ctx, c, who, method, path, in, out)
		if Unauthorized.Is(err) || NotInstalled.Is(err) || Suspended.Is(err) {
			a.Forget(inst)
		}
		if !Unauthorized.Is(err) || again {
			return resp, err
		}
	}
}

// onRepo calls with the token of the installation that has repo; path is what follows the repository's own. Everything is
// asked by id: a name could be somebody else's by now (facts/github.md §4, 17). GitHub's redirects from old names, and its
// links to the next page of a list, have the same form: /repositories/ID/….
func (a *App) onRepo(ctx context.Context, repo RepoID, method, path string, in, out any) (*ghapi.Response, error) {
	for again := false; ; again = true {
		inst, err := a.InstallationOf(ctx, repo)
		if err != nil {
			return nil, err
		}
		resp, err := a.asInstallation(ctx, inst, method, repoPath(repo)+path, in, out)
		// A reinstalled App has another installation: look once more (facts/github.md §4, 12).
		if again || !NotInstalled.Is(err) && !Suspended.Is(err) {
			return resp, err
		}
		a.ForgetRepo(repo)
	}
}

func repoPath(repo RepoID) string { return fmt.Sprintf("repositories/%d", repo) }

// ForgetRepo drops where a Repo is installed.
func (a *App) ForgetRepo(repo RepoID) {
	a.mu.Lock()
	defer a.mu.Unlock()
	delete(a.where, repo)
}

// InstallationOf is the installation that has repo: NotInstalled if there is none, and for a Repo that doesn't exist.
// The answer is remembered for minutes; it is never used to decide what a person may do.
func (a *App) InstallationOf(ctx context.Context, repo RepoID) (int64, error) {
	if repo <= 0 {
		return 0, fail(Invalid, "There is no Repo with the id %d.", repo)
	}
	a.mu.Lock()
	p, ok := a.where[repo]
	a.mu.Unlock()
	if ok && time.Since(p.at) < placeAge {
		return p.installation, nil
	}
	var got installationJSON
	if _, err := a.asApp(ctx, http.MethodGet, repoPath(repo)+"/installation", nil, &got); err != nil {
		a.ForgetRepo(repo)
		if NotFound.Is(err) {
			return 0, fail(NotInstalled, "The GitHub App isn't installed on this Repo.")
		}
		return 0, err
	}
	if got.ID <= 0 || got.AppID != a.cred.AppID {
		return 0, away(nil)
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	if len(a.where) > 100_000 {
		clear(a.where)
	}
	a.where[repo] = place{got.ID, time.Now()}
	return got.ID, nil
}

// pages is how far a list is read: 100 pages of 100.
const pages = 100

// list reads all pages of a list. page decodes one and says how many it had.
func list(ctx context.Context, path string, get func(path string) (*ghapi.Response, error)) error {
	sep := "?"
	if strings.Contains(path, "?") {
		sep = "&"
	}
	for n := 1; n <= pages; n++ {
		resp, err := get(fmt.Sprintf("%s%sper_page=100&page=%d", path, sep, n))
		if err != nil {
			return err
		}
		if resp.NextPage == 0 {
			return nil
		}
		if err := ctx.Err(); err != nil {
			return &Error{Kind: Unavailable, Message: "GitHub didn't answer in time.", Detail: err.Error(), cause: err}
		}
	}
	return fail(Invalid, "GitHub's list is longer than %d entries.", pages*100)
}
