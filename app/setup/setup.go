// Package setup makes the Hub a GitHub App (issue 4, item 2): it guards the set-up page with one-time tokens of the console, has
// an App created from a manifest or takes one's values by hand, keeps them sealed, and puts the App into the Holder that
// everybody asks. It knows where the App is installed, and what is still missing until a Session can start.
//
// An App that the config names wins over a stored one and is not changed here.
package setup

import (
	"cmp"
	"context"
	"errors"
	"math/rand/v2"
	"net/http"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/rs/zerolog"

	"github.com/claude-hub/claude-hub/app/access"
	"github.com/claude-hub/claude-hub/app/fault"
	"github.com/claude-hub/claude-hub/app/github"
	"github.com/claude-hub/claude-hub/app/seal"
	"github.com/claude-hub/claude-hub/store"
)

const (
	// topic is woken when the App, its secrets or its installations changed.
	topic = "github-app"
	// syncEvery is how often GitHub is asked where the App is installed: events may be lost.
	syncEvery = 10 * time.Minute
	// retryAfter is how soon what failed is tried again.
	retryAfter = 15 * time.Second
	// TokenLife is how long a token of the console may be used, and VisitLife how long its browser may then go on.
	TokenLife = time.Hour
	VisitLife = time.Hour
	// HookOverlap is how long an old webhook secret is accepted beside the new one: what GitHub sends again is signed anew.
	HookOverlap = time.Hour
)

// Where GitHub comes back to, below the Hub's own address.
const (
	HookPath      = "/webhook/github"
	CallbackPath  = "/auth/github/callback"
	CreatedPath   = "/setup/created"
	InstalledPath = "/setup/installed"
)

// Options of a Service.
type Options struct {
	// Given are the credentials of the App that the config names, which the Holder has already; nil: it names none.
	Given *github.Credentials
	// PublicURL is the Hub's own address, as people and GitHub reach it.
	PublicURL string
	// Suggest is the address of the GitHub that the set-up page suggests; "" is github.com.
	Suggest string
	// At says where the GitHub at an address is, "" being github.com. Default: github.At.
	At func(web string) github.Endpoints
	// Formerly is the address under which the same GitHub was known before it moved: see access.Site.
	Formerly string
	// Connect makes the App. Default: github.New with nothing but these and the callback.
	Connect func(github.Endpoints, github.Credentials) (*github.App, error)
	// Transport carries what is asked before there is an App. Default: the network.
	Transport http.RoundTripper
	// Push: git in Sessions pushes with the App's tokens, so that it needs contents: write.
	Push bool
	// Gate says which installations a person can reach, and forgets access when one changes. nil: nobody reaches any.
	Gate *access.Gate
	// Changed is called in the transaction that finds an installation new, changed, suspended or removed.
	Changed func(tx *store.Tx, in Installation) error
	// Found is called in the transaction in which the Hub finds such a thing itself, and no event said it.
	Found func(tx *store.Tx, in Installation) error
	Log   zerolog.Logger
}

// Service sets the App up. Its methods may be called from many goroutines.
type Service struct {
	db     *store.DB
	seal   *seal.Service
	holder *github.Holder
	o      Options
	log    zerolog.Logger

	current atomic.Pointer[loaded]
	loading sync.Mutex
	asked   asked // what GitHub last said of the App, for the checklist
	heard   atomic.Int64

	cancel  context.CancelFunc
	stopped sync.WaitGroup
}

// loaded is what this process goes by.
type loaded struct {
	revision string
	hooks    []hookSecret
}

type hookSecret struct {
	secret github.Secret
	until  time.Time // zero: no end
}

// New makes a Service. It reads nothing yet.
func New(db *store.DB, sealer *seal.Service, holder *github.Holder, o Options) *Service {
	o.PublicURL = strings.TrimRight(o.PublicURL, "/")
	if o.At == nil {
		o.At = github.At
	}
	if o.Connect == nil {
		o.Connect = func(at github.Endpoints, c github.Credentials) (*github.App, error) {
			return github.New(github.Options{Endpoints: at, Credentials: c, Callback: o.PublicURL + CallbackPath, Transport: o.Transport})
		}
	}
	s := &Service{db: db, seal: sealer, holder: holder, o: o, log: o.Log.With().Str("part", "setup").Logger()}
	s.current.Store(&loaded{})
	if o.Given != nil {
		l := &loaded{}
		for _, h := range o.Given.WebhookSecrets {
			l.hooks = append(l.hooks, hookSecret{secret: h})
		}
		s.current.Store(l)
	}
	return s
}

// Start puts the stored App into the Holder, and then follows: what is changed through another Hub, the end of old webhook
// secrets, and where the App is installed.
func (s *Service) Start(ctx context.Context) error {
	if s.cancel != nil {
		return errors.New("the set-up runs already")
	}
	if err := s.load(context.WithoutCancel(ctx)); err != nil {
		return err
	}
	ctx, s.cancel = context.WithCancel(ctx)
	s.stopped.Add(1)
	go func() {
		defer s.stopped.Done()
		s.follow(ctx)
	}()
	return nil
}

// Stop ends what Start began and waits for it.
func (s *Service) Stop() {
	if s.cancel != nil {
		s.cancel()
		s.stopped.Wait()
	}
}

func (s *Service) follow(ctx context.Context) {
	var due time.Time // of the next look at GitHub
	revision := "none yet"
	for ctx.Err() == nil {
		changed := s.db.Changed(topic)
		wait := syncEvery
		if err := s.load(ctx); err != nil && ctx.Err() == nil {
			s.log.Warn().Err(err).Msg("the GitHub App could not be read from the database")
			wait = retryAfter
		}
		if now := s.current.Load().revision; now != revision {
			revision, due = now, time.Time{}
		}
		if time.Until(due) <= 0 {
			due = time.Now().Add(syncEvery - time.Duration(rand.Int64N(int64(syncEvery/10))))
			if err := s.Sync(ctx); err != nil && !github.NoApp.Is(err) && ctx.Err() == nil {
				s.log.Warn().Err(err).Msg("GitHub could not be asked where the App is installed")
				due = time.Now().Add(retryAfter)
			}
		}
		timer := time.NewTimer(min(wait, max(time.Until(due), 0), s.untilEnd()))
		select {
		case <-ctx.Done():
		case <-changed:
		case <-timer.C:
		}
		timer.Stop()
	}
}

// untilEnd is how long until the next old webhook secret ends.
func (s *Service) untilEnd() time.Duration {
	next := syncEvery
	for _, h := range s.current.Load().hooks {
		if !h.until.IsZero() {
			next = min(next, max(h.until.Sub(s.db.Now()), 0)+time.Millisecond)
		}
	}
	return next
}

// load puts what is stored into the Holder, unless the config names an App or it is there already.
func (s *Service) load(ctx context.Context) error {
	if s.o.Given != nil {
		app, err := s.holder.App()
		if err != nil {
			return err
		}
		return s.site(ctx, app.Endpoints().Web)
	}
	s.loading.Lock()
	defer s.loading.Unlock()
	var st stored
	err := s.db.Read(ctx, func(tx *store.Tx) (err error) {
		st, err = s.read(tx)
		return err
	})
	if err != nil {
		return err
	}
	if !st.whole() {
		st.hooks = nil
	}
	old := s.current.Load()
	if st.revision == old.revision && len(st.hooks) == len(old.hooks) {
		return nil
	}
	next := &loaded{revision: st.revision, hooks: st.hooks}
	if st.damaged != nil {
		s.log.Error().Err(st.damaged).Msg("a secret of the GitHub App can't be read: set the App up again, with claude-hub setup-token")
	}
	if !st.whole() {
		s.holder.Set(nil)
	} else {
		app, err := s.o.Connect(s.o.At(st.Web), st.credentials())
		if err != nil {
			return err
		}
		s.holder.Set(app)
		s.log.Info().Int64("app", app.ID()).Str("slug", st.Slug).Str("github", app.Endpoints().Web).Msg("the Hub is this GitHub App")
	}
	s.current.Store(next)
	s.asked.forget()
	s.heard.Store(0)
	return nil
}

// site refuses a GitHub that isn't the one whose people and Repos the database knows.
func (s *Service) site(ctx context.Context, web string) error {
	return s.db.Write(ctx, func(tx *store.Tx) error { return access.Site(tx, web, s.o.Formerly) })
}

// Suggested is the address of the GitHub that a new App is most likely on; "" is github.com.
func (s *Service) Suggested() string { return s.o.Suggest }

// wanted are the permissions that this Hub's App needs.
func (s *Service) wanted() map[string]string {
	p := github.Permissions()
	if s.o.Push {
		p["contents"] = "write"
	}
	return p
}

// Lacking lists which permissions this Hub needs and those granted miss.
func (s *Service) Lacking(granted map[string]string) []string {
	all := github.Lacking(granted)
	if has := granted["contents"]; s.o.Push && has != "write" && has != "admin" {
		all = slices.DeleteFunc(all, func(p string) bool { return strings.HasPrefix(p, "contents:") })
		all = append(all, "contents: write")
	}
	return all
}

// WebhookSecrets are what a webhook may be signed with now: of the present App, two while one replaces the other. An error of
// Kind NoApp: there is none. It asks neither GitHub nor the database.
func (s *Service) WebhookSecrets(context.Context) ([]github.Secret, error) {
	if _, err := s.holder.App(); err != nil {
		return nil, err
	}
	var all []github.Secret
	now := s.db.Now()
	for _, h := range s.current.Load().hooks {
		if h.until.IsZero() || now.Before(h.until) {
			all = append(all, h.secret)
		}
	}
	return all, nil
}

// said is GitHub's refusal in words for a person.
func said(err error) error {
	var e *github.Error
	if !errors.As(err, &e) {
		return err
	}
	code := fault.Refused
	if e.Kind == github.Unavailable || e.Kind == github.RateLimited {
		code = fault.Unavailable
	}
	return fault.New(code, "%s", e.Message)
}

// tell logs why GitHub refused something, which its sentence for people doesn't hold.
func (s *Service) tell(err error, what string) {
	var e *github.Error
	if errors.As(err, &e) {
		s.log.Warn().Str("kind", string(e.Kind)).Str("detail", cmp.Or(e.Detail, e.Message)).Msg(what)
	}
}
