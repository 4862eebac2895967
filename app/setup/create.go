package setup

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/url"
	"regexp"
	"strings"

	"github.com/claude-hub/claude-hub/app/access"
	"github.com/claude-hub/claude-hub/app/fault"
	"github.com/claude-hub/claude-hub/app/github"
	"github.com/claude-hub/claude-hub/store"
)

// Plan is what App to create.
type Plan struct {
	Web  string `json:"web"`  // the address of an Enterprise Server; "" is github.com
	Org  string `json:"org"`  // whose App it is to be; "": of the person who creates it
	Name string `json:"name"` // 34 characters at most, unique on that GitHub
}

// maxName is GitHub's.
const maxName = 34

var login = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9_-]{0,99}$`)

// host is strict, since the address becomes part of a page's policy.
var host = regexp.MustCompile(`^(\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9][A-Za-z0-9.-]*)(:[0-9]{1,5})?$`)

// Form is the form that the browser posts to GitHub.
type Form struct {
	Action   string // its address
	Manifest string // its one field, "manifest"
	Origin   string // of Action, for the page's policy
	// Described is what Manifest holds, to be shown before.
	Described github.Manifest
	// Deaf says why the webhook stays off; "": it is on.
	Deaf string
}

// Begin prepares the creation of an App: the browser posts the Form to GitHub, which sends it back to CreatedPath.
func (s *Service) Begin(ctx context.Context, visit string, p Plan) (Form, error) {
	var err error
	if p.Web, err = s.web(p.Web); err != nil {
		return Form{}, err
	}
	p.Org, p.Name = strings.TrimPrefix(strings.TrimSpace(p.Org), "@"), strings.TrimSpace(p.Name)
	switch n := len([]rune(p.Name)); {
	case n == 0 || n > maxName || strings.ContainsFunc(p.Name, func(r rune) bool { return r < ' ' }):
		return Form{}, fault.Field("name", "The App's name has 1 to %d characters.", maxName)
	case p.Org != "" && !login.MatchString(p.Org):
		return Form{}, fault.Field("org", "The organization's name is the one in its address at GitHub: letters, digits and hyphens.")
	}
	f := Form{Deaf: s.deaf(p.Web)}
	hook := s.o.PublicURL + HookPath
	if f.Deaf != "" {
		hook = ""
	}
	f.Described = github.NewManifest(p.Name, s.o.PublicURL, hook, s.o.PublicURL+CreatedPath, s.o.PublicURL+CallbackPath, s.o.PublicURL+InstalledPath)
	f.Described.DefaultPermissions = s.wanted()
	text, err := json.Marshal(f.Described)
	if err != nil {
		return Form{}, fmt.Errorf("encode the manifest: %w", err)
	}
	detail, err := json.Marshal(p)
	if err != nil {
		return Form{}, fmt.Errorf("encode the plan: %w", err)
	}
	var state string
	err = s.db.Write(ctx, func(tx *store.Tx) (err error) {
		if _, err := s.mayIn(tx, visit); err != nil {
			return err
		}
		if err := access.Site(tx, s.o.At(p.Web).Web, s.o.Formerly); err != nil {
			return siteField(err)
		}
		if err := s.seal.Ready(tx); err != nil { // before GitHub makes what could not be kept
			return keyless(err)
		}
		state, err = newState(tx, visit, stateManifest, string(detail), VisitLife)
		return err
	})
	at := s.o.At(p.Web)
	f.Manifest, f.Action, f.Origin = string(text), at.NewAppURL(p.Org, state), at.Web
	return f, err
}

// Finish takes what GitHub sent the browser back with after Begin, and makes the Hub the new App. The state is good once, in
// the browser that began.
func (s *Service) Finish(ctx context.Context, visit, state, code string) error {
	var p Plan
	err := s.db.Write(ctx, func(tx *store.Tx) error {
		if _, err := s.mayIn(tx, visit); err != nil {
			return err
		}
		detail, ok, err := takeState(tx, visit, state, stateManifest)
		switch {
		case err != nil:
			return err
		case !ok:
			return fault.New(fault.Refused, "This is not where the creation of an App was begun, or it took more than an hour, or it came twice. Nothing was set up. Begin again; "+
				"if GitHub made an App before, delete it there.")
		}
		return json.Unmarshal([]byte(detail), &p)
	})
	if err != nil {
		return err
	}
	// What GitHub answers is told once. A browser that goes away must not lose it.
	ctx = context.WithoutCancel(ctx)
	at := s.o.At(p.Web)
	made, err := github.Convert(ctx, at, s.o.Transport, github.NewSecret(code))
	unclear := github.Unavailable.Is(err)
	if unclear { // the code is still good where GitHub never got it
		s.tell(err, "GitHub's answer with the new App's values did not arrive; trying once more")
		made, err = github.Convert(ctx, at, s.o.Transport, github.NewSecret(code))
	}
	if err != nil {
		s.tell(err, "the new App's values could not be had")
		if unclear || github.Unavailable.Is(err) {
			return fault.New(fault.Unavailable, "GitHub did not answer as it should, and gives an App's key only once. The App %q may exist without anybody having its key: "+
				"look at %s, delete it there, and begin again.", p.Name, appsOf(at, p.Org))
		}
		return said(err)
	}
	err = s.save(ctx, visit, accepted{web: p.Web, cred: made.Credentials, name: made.Name, owner: made.Owner, how: "manifest"})
	if err != nil {
		s.log.Warn().Err(err).Int64("app", made.Credentials.AppID).Str("page", made.Page).Msg("an App was created and could not be saved")
		return fault.New(fault.Of(err).Code, "GitHub made the App %q, and its values could not be kept here: %s The App is of no use to this Hub: delete it at %s.",
			made.Name, fault.Of(err).Message, made.Page)
	}
	return nil
}

// appsOf is the page with a person's or an organization's Apps.
func appsOf(at github.Endpoints, org string) string {
	if org != "" {
		return at.Web + "/organizations/" + url.PathEscape(org) + "/settings/apps"
	}
	return at.Web + "/settings/apps"
}

// web is the address of a GitHub as it was typed; "" is github.com.
func (s *Service) web(typed string) (string, error) {
	typed = strings.TrimRight(strings.TrimSpace(typed), "/")
	if typed != "" && !strings.Contains(typed, "://") {
		typed = "https://" + typed
	}
	u, err := url.Parse(typed)
	switch {
	case typed == "" || strings.EqualFold(typed, github.Com().Web):
		return "", nil
	case err != nil || !host.MatchString(u.Host) || u.Scheme != "https" && u.Scheme != "http" || u.Path != "" || u.RawQuery != "" || u.Fragment != "" || u.User != nil:
		return "", fault.Field("web", "Write the address of your GitHub Enterprise Server and nothing more, such as https://github.example.com.")
	case u.Scheme == "http" && !loopback(u.Hostname()):
		return "", fault.Field("web", "The address must begin with https://: over http:// everybody on the way could read the App's key.")
	}
	return typed, nil
}

// siteField shows a refusal of the GitHub's address beside its field.
func siteField(err error) error {
	var f *fault.Error
	if errors.As(err, &f) && f.Code == fault.Refused {
		return fault.Field("web", "%s", f.Message)
	}
	return err
}

// deaf is why a GitHub can't reach the Hub; "" when it may.
func (s *Service) deaf(web string) string {
	u, err := url.Parse(s.o.PublicURL)
	if err != nil || !loopback(u.Hostname()) {
		return ""
	}
	if g, err := url.Parse(s.o.At(web).Web); err == nil && loopback(g.Hostname()) {
		return ""
	}
	return fmt.Sprintf("GitHub can't reach this Hub at %s, so the App's webhook is made inactive: pull requests and lost access are noticed late. "+
		"Set hub.url to an address that GitHub reaches, through a tunnel for example, before you go on.", s.o.PublicURL)
}

func loopback(host string) bool {
	ip := net.ParseIP(host)
	return host == "localhost" || ip != nil && ip.IsLoopback()
}
