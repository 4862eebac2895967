package githubtest

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"
)

// pendingApp is an App from a manifest whose code was not exchanged yet.
type pendingApp struct {
	app     *app
	expires time.Time
}

type manifest struct {
	Name           string `json:"name"`
	URL            string `json:"url"`
	HookAttributes *struct {
		URL    string `json:"url"`
		Active *bool  `json:"active"`
	} `json:"hook_attributes"`
	RedirectURL        string            `json:"redirect_url"`
	CallbackURLs       []string          `json:"callback_urls"`
	SetupURL           string            `json:"setup_url"`
	Description        string            `json:"description"`
	Public             bool              `json:"public"`
	DefaultEvents      []string          `json:"default_events"`
	DefaultPermissions map[string]string `json:"default_permissions"`
	RequestOAuth       bool              `json:"request_oauth_on_install"`
	SetupOnUpdate      bool              `json:"setup_on_update"`
}

func readManifest(text string) (manifest, error) {
	var m manifest
	d := json.NewDecoder(strings.NewReader(text))
	d.DisallowUnknownFields()
	if err := d.Decode(&m); err != nil {
		return m, fmt.Errorf("the manifest can't be read: %w", err)
	}
	absolute := func(s string) bool {
		u, err := url.Parse(s)
		return err == nil && (u.Scheme == "http" || u.Scheme == "https") && u.Host != ""
	}
	switch {
	case m.Name == "" || len(m.Name) > 34:
		return m, errors.New("name is missing or longer than 34 characters")
	case !absolute(m.URL):
		return m, errors.New("url is missing or wrong")
	case m.HookAttributes != nil && !absolute(m.HookAttributes.URL):
		return m, errors.New("hook_attributes.url is missing or wrong")
	case !absolute(m.RedirectURL):
		return m, errors.New("redirect_url is missing or wrong")
	case len(m.CallbackURLs) > 10 || slices.ContainsFunc(m.CallbackURLs, func(u string) bool { return !absolute(u) }):
		return m, errors.New("callback_urls are ten at most, each a whole URL")
	case m.SetupURL != "" && !absolute(m.SetupURL):
		return m, errors.New("setup_url is wrong")
	case m.RequestOAuth && m.SetupURL != "":
		return m, errors.New("setup_url is not available with request_oauth_on_install")
	}
	for name, level := range m.DefaultPermissions {
		if !slices.Contains([]string{"read", "write", "admin"}, level) {
			return m, fmt.Errorf("default_permissions: %s can't be %q", name, level)
		}
	}
	for _, e := range m.DefaultEvents {
		need := needs[e]
		if slices.Contains(always, e) || need != "" && need != "metadata" && m.DefaultPermissions[need] == "" {
			return m, fmt.Errorf("default_events: %s is not supported by the permissions", e)
		}
	}
	return m, nil
}

// Manifest is a person creating an App for owner from the form that the browser posted: text is its field "manifest".
// It returns where GitHub sends the browser back to. An error is what GitHub would show as a page.
func (s *Server) Manifest(text, state string, owner Account) (back string, err error) {
	m, err := readManifest(text)
	if err != nil {
		return "", err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.fromManifest(m, state, owner.get())
}

func (s *Server) fromManifest(m manifest, state string, owner *account) (string, error) {
	for _, a := range s.apps {
		if strings.EqualFold(a.Name, m.Name) {
			return "", fmt.Errorf("the name %q is already taken", m.Name)
		}
	}
	o := AppOptions{
		Name: m.Name, SetupURL: m.SetupURL, Callbacks: m.CallbackURLs, Permissions: m.DefaultPermissions, Events: m.DefaultEvents,
	}
	if h := m.HookAttributes; h != nil && (h.Active == nil || *h.Active) {
		o.HookURL = h.URL
	}
	a := s.newApp(o, owner)
	a.url, a.description, a.setupOnUpdate = m.URL, m.Description, m.SetupOnUpdate
	value := random(20)
	s.pending[value] = &pendingApp{a, s.now().Add(time.Hour)}
	back, err := url.Parse(m.RedirectURL)
	if err != nil {
		return "", err
	}
	q := back.Query()
	q.Set("code", value)
	if state != "" {
		q.Set("state", state)
	}
	back.RawQuery = q.Encode()
	return back.String(), nil
}

// convert exchanges the code for the new App's values, within an hour and once.
func (c *call) convert() {
	c.s.mu.Lock()
	defer c.s.mu.Unlock()
	p := c.s.pending[c.vars["code"]]
	delete(c.s.pending, c.vars["code"])
	if p == nil || !c.s.now().Before(p.expires) {
		c.fail(http.StatusNotFound, "Not Found")
		return
	}
	o := c.s.appJSON(p.app)
	o["client_secret"], o["webhook_secret"], o["pem"] = p.app.ClientSecret, p.app.WebhookSecret, p.app.pem
	c.reply(http.StatusCreated, o)
}

// InstallFrom is a person installing the App from the page the browser was sent to (App.InstallURL): repos is what they
// choose, none for all. It returns where GitHub sends the browser back to: the App's setup_url, or "" without one.
func (s *Server) InstallFrom(installURL string, on, by Account, repos ...Repo) (inst Installation, back string, err error) {
	u, err := url.Parse(installURL)
	if err != nil {
		return Installation{}, "", err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, a := range sortedByID(s.apps) {
		if s.appPage(a)+"/installations/new" == u.Scheme+"://"+u.Host+u.Path {
			var chosen []*repository
			for _, r := range repos {
				chosen = append(chosen, r.locked())
			}
			i := s.install(a, on.get(), by.get(), chosen)
			return Installation{s, i.ID}, s.setup(i, "install", u.Query()), nil
		}
	}
	return Installation{}, "", fmt.Errorf("no App is installed from %s", installURL)
}

// RequestFrom is a member of an organization asking its owners to install the App: there is no installation yet.
func (s *Server) RequestFrom(installURL string) (back string, err error) {
	u, err := url.Parse(installURL)
	if err != nil {
		return "", err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, a := range s.apps {
		if s.appPage(a)+"/installations/new" == u.Scheme+"://"+u.Host+u.Path {
			return s.setup(&installation{app: a}, "request", u.Query()), nil
		}
	}
	return "", fmt.Errorf("no App is installed from %s", installURL)
}

// setup is the App's setup_url as GitHub calls it.
func (s *Server) setup(i *installation, action string, asked url.Values) string {
	back, err := url.Parse(i.app.setupURL)
	if err != nil || i.app.setupURL == "" {
		return ""
	}
	q := back.Query()
	if i.ID != 0 {
		q.Set("installation_id", strconv.FormatInt(i.ID, 10))
	}
	q.Set("setup_action", action)
	if asked.Get("state") != "" {
		q.Set("state", asked.Get("state"))
	}
	back.RawQuery = q.Encode()
	return back.String()
}
