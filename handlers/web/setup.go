package web

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"

	"github.com/claude-hub/claude-hub/app/fault"
	"github.com/claude-hub/claude-hub/app/github"
	"github.com/claude-hub/claude-hub/app/setup"
	"github.com/claude-hub/claude-hub/handlers/request"
)

// setupCookie is what the browser that brought a token of the console goes on with, installCookie that of one that was sent to
// GitHub to install the App. They are bound to this host as the session's is.
const (
	setupCookie   = "-setup"
	installCookie = "-install"
)

func (w *Web) shortCookie(rw http.ResponseWriter, name, value string, life time.Duration) {
	age := int(life.Seconds())
	if value == "" {
		age = -1
	}
	// Lax: GitHub's pages lead back here.
	http.SetCookie(rw, &http.Cookie{
		Name: w.cookie() + name, Value: value, Path: "/", MaxAge: age, HttpOnly: true, Secure: w.d.SecureCookies, SameSite: http.SameSiteLaxMode,
	})
}

func (w *Web) cookieOf(r *http.Request, name string) string {
	c, err := r.Cookie(w.cookie() + name)
	if err != nil {
		return ""
	}
	return c.Value
}

// setupOpenPage is for who has no cookie of the set-up yet: with the token of their address, or without.
type setupOpenPage struct {
	Page
	Token string
	// App says that the Hub is one already, Config that its config says which.
	App, Config bool
}

type setupPage struct {
	Page
	Form    Form // of both ways to an App
	Refused string
	App     setup.App
	Known   bool // App is what the Hub is, or was
	Rotate  bool
	Retype  bool
	Lacking bool // the App that was entered lacks permissions
	Expires time.Time
}

// setupPage begins the set-up: it never takes a token by itself, since what fetches addresses ahead would use it up.
func (w *Web) setupPage(rw http.ResponseWriter, r *http.Request) error {
	token := r.URL.Query().Get("token")
	if token == "" && w.cookieOf(r, setupCookie) != "" {
		err := w.showSetup(rw, r, http.StatusOK, setupPage{})
		if !fault.Is(err, fault.Unauthorized) {
			return err
		}
	}
	return w.showSetupOpen(rw, r, http.StatusOK, token, "")
}

func (w *Web) showSetupOpen(rw http.ResponseWriter, r *http.Request, status int, token, alert string) error {
	app, known, err := w.d.Setup.App(r.Context())
	if err != nil {
		return err
	}
	p := setupOpenPage{Page: w.page(r, "Set up the GitHub App"), Token: token, App: known && !app.Lost, Config: app.FromConfig}
	p.Alert = alert
	return w.render(rw, r, status, "setup-open", p)
}

func (w *Web) enterSetup(rw http.ResponseWriter, r *http.Request) error {
	if err := parseForm(r); err != nil {
		return err
	}
	visit, expires, err := w.d.Setup.Enter(r.Context(), r.PostForm.Get("token"))
	var f *fault.Error
	if errors.As(err, &f) {
		return w.showSetupOpen(rw, r, request.Status(f.Code), "", f.Message)
	}
	if err != nil {
		return err
	}
	w.shortCookie(rw, setupCookie, visit, expires.Sub(w.d.Now()))
	return seeOther(rw, r, "/setup")
}

func (w *Web) showSetup(rw http.ResponseWriter, r *http.Request, status int, p setupPage) error {
	visit, err := w.d.Setup.Visit(r.Context(), w.cookieOf(r, setupCookie))
	if err != nil {
		return err
	}
	alert := p.Alert
	p.Page = w.page(r, "Set up the GitHub App")
	p.Alert = alert
	if p.App, p.Known, err = w.d.Setup.App(r.Context()); err != nil {
		return err
	}
	p.Rotate, p.Expires = visit.Rotate, visit.Expires
	if visit.Refused != nil {
		p.Refused = visit.Refused.Message
	}
	if p.Form.Values == nil {
		p.Form.Values = map[string]string{"name": w.appName(), "web": w.d.Setup.Suggested()}
		if p.Known && p.App.Lost {
			p.Form.Values["web"], p.Form.Values["app-id"], p.Form.Values["client-id"] = p.App.Web, strconv.FormatInt(p.App.ID, 10), p.App.ClientID
		}
	}
	return w.render(rw, r, status, "setup", p)
}

// appName is a name for the App that nobody is likely to have: they are unique on a GitHub.
func (w *Web) appName() string {
	host := w.d.PublicURL.Hostname()
	if net.ParseIP(host) != nil || !strings.Contains(host, ".") {
		return ""
	}
	name := "claude-hub " + host
	return name[:min(len(name), 34)]
}

// setupFailed shows what is wrong beside its field, with what was typed but for secrets.
func (w *Web) setupFailed(rw http.ResponseWriter, r *http.Request, err error, values map[string]string, order ...string) error {
	var f *fault.Error
	if !errors.As(err, &f) {
		return err
	}
	if f.Code == fault.Unauthorized {
		return w.showSetupOpen(rw, r, request.Status(f.Code), "", f.Message)
	}
	p := setupPage{Form: Form{Values: values}, Retype: values["app-id"] != "" || values["client-id"] != "", Lacking: f.Fields["permissions"] != ""}
	p.Form.take(f, order...)
	return w.showSetup(rw, r, request.Status(f.Code), p)
}

type setupCreatePage struct {
	Page
	setup.Form
	Permissions []Permission
}

// Permission is one that the App asks for, and why.
type Permission struct{ Name, Level, Why string }

// permissions are in the order in which GitHub's own page would say them.
func permissions(of map[string]string) []Permission {
	all := []Permission{
		{"checks", "", "to show on a pull request whether its Environment is right, and how its Test build goes"},
		{"contents", "", "to read .claude-hub/environment.yml, and to lend each Runner a token that clones one Repo"},
		{"metadata", "", "to know the Repos by their ids, also after they were renamed"},
		{"pull_requests", "", "to see which pull requests propose an Environment"},
		{"members", "", "to hear at once when somebody lost access through a team or the organization"},
	}
	known := all[:0]
	for _, p := range all {
		if p.Level = of[p.Name]; p.Name == "contents" && p.Level == "write" {
			p.Why += "; and to lend git in a Session the right to push that its person has (github.push of the Hub's config)"
		}
		if p.Level != "" {
			known = append(known, p)
		}
	}
	return known
}

// createApp shows what GitHub will be asked for. Its form goes to GitHub, which the page's policy has to let it.
func (w *Web) createApp(rw http.ResponseWriter, r *http.Request) error {
	if err := parseForm(r); err != nil {
		return err
	}
	plan := setup.Plan{Web: r.PostForm.Get("web"), Org: r.PostForm.Get("org"), Name: r.PostForm.Get("name")}
	form, err := w.d.Setup.Begin(r.Context(), w.cookieOf(r, setupCookie), plan)
	if err != nil {
		return w.setupFailed(rw, r, err, map[string]string{"web": plan.Web, "org": plan.Org, "name": plan.Name}, "web", "org", "name")
	}
	policy := rw.Header().Get("Content-Security-Policy")
	rw.Header().Set("Content-Security-Policy", strings.Replace(policy, "form-action 'self'", "form-action 'self' "+form.Origin, 1))
	return w.render(rw, r, http.StatusOK, "setup-create", setupCreatePage{
		Page: w.page(r, "Create the App on GitHub"), Form: form, Permissions: permissions(form.Described.DefaultPermissions),
	})
}

// appCreated is where GitHub sends the browser back to with the new App's code.
func (w *Web) appCreated(rw http.ResponseWriter, r *http.Request) error {
	q := r.URL.Query()
	if err := w.d.Setup.Finish(r.Context(), w.cookieOf(r, setupCookie), q.Get("state"), q.Get("code")); err != nil {
		return w.setupFailed(rw, r, err, nil)
	}
	return seeOther(rw, r, "/setup/checklist?done=app")
}

func (w *Web) takeApp(rw http.ResponseWriter, r *http.Request) error {
	in, err := readForm(r)
	if err != nil {
		return err
	}
	id, _ := strconv.ParseInt(strings.TrimSpace(in.Get("app-id")), 10, 64) // 0 is refused with its field
	key, _, both := in.input("private-key")
	secret := func(field string) github.Secret { return github.NewSecret(strings.TrimSpace(in.Get(field))) }
	values := setup.Values{
		Web: in.Get("web"), AppID: id, ClientID: in.Get("client-id"), ClientSecret: secret("client-secret"),
		PrivateKey: github.NewSecret(key), WebhookSecret: secret("webhook-secret"), Lacking: in.Get("lacking") != "",
	}
	if both {
		err = fault.Field("private-key", "The key was given twice, as a text and as a file: give one.")
	} else {
		err = w.d.Setup.Take(r.Context(), w.cookieOf(r, setupCookie), values)
	}
	if err != nil {
		return w.setupFailed(rw, r, err, map[string]string{"web": in.Get("web"), "app-id": in.Get("app-id"), "client-id": in.Get("client-id"), "name": w.appName()},
			"web", "app-id", "client-id", "client-secret", "private-key", "webhook-secret", "permissions")
	}
	return seeOther(rw, r, "/setup/checklist?done=app")
}

func (w *Web) rotateHook(rw http.ResponseWriter, r *http.Request) error {
	if err := w.d.Setup.RotateHook(r.Context(), w.cookieOf(r, setupCookie)); err != nil {
		return w.setupFailed(rw, r, err, nil)
	}
	return seeOther(rw, r, "/setup/checklist?done=webhook-secret")
}

// mayInstall tells whether this browser has anything to do with the set-up: somebody is signed in, or brought a token.
func (w *Web) mayInstall(ctx context.Context, r *http.Request) (bool, error) {
	if _, err := w.who(r); !fault.Is(err, fault.Unauthorized) {
		return err == nil, err
	}
	_, err := w.d.Setup.Visit(ctx, w.cookieOf(r, setupCookie))
	if fault.Is(err, fault.Unauthorized) {
		return false, nil
	}
	return err == nil, err
}

// install leads to GitHub's page. It is a link and no form, since the policy ends a form's redirects at this host.
func (w *Web) install(rw http.ResponseWriter, r *http.Request) error {
	may, err := w.mayInstall(r.Context(), r)
	if err != nil {
		return err
	}
	if !may {
		return w.sendToSignIn(rw, r)
	}
	to, browser, err := w.d.Setup.BeginInstall(r.Context())
	if err != nil {
		return err
	}
	w.shortCookie(rw, installCookie, browser, time.Hour)
	return seeOther(rw, r, to)
}

type installAskedPage struct{ Page }

// installed is the App's setup_url. Nothing in its query is believed (facts/github.md §4, 21).
func (w *Web) installed(rw http.ResponseWriter, r *http.Request) error {
	q := r.URL.Query()
	if q.Get("setup_action") == "request" { // nothing is installed yet, so this person may not be able to sign in
		return w.render(rw, r, http.StatusOK, "install-asked", installAskedPage{w.page(r, "Asked for the App")})
	}
	who, err := w.who(r)
	if fault.Is(err, fault.Unauthorized) {
		return w.sendToSignIn(rw, r)
	}
	if err != nil {
		return err
	}
	id, _ := strconv.ParseInt(q.Get("installation_id"), 10, 64) // 0 is nobody's
	_, _, err = w.d.Setup.Installed(r.Context(), who, w.cookieOf(r, installCookie), q.Get("state"), id)
	if err != nil {
		return err
	}
	w.shortCookie(rw, installCookie, "", 0)
	return seeOther(rw, r, "/setup/checklist?done=installed")
}

type checklistPage struct {
	Page
	Steps    []setup.Step
	Complete bool
	// Operator is set for who came with a token of the console, and MaySetUp where they can still set up an App.
	Operator, MaySetUp bool
}

// retest is how often the checklist looks again while something is left to do, in seconds.
const retest = 10

func (w *Web) checklist(rw http.ResponseWriter, r *http.Request) error {
	p := checklistPage{}
	visit, err := w.d.Setup.Visit(r.Context(), w.cookieOf(r, setupCookie))
	if err != nil && !fault.Is(err, fault.Unauthorized) {
		return err
	}
	p.Operator, p.MaySetUp = err == nil, err == nil && visit.Refused == nil
	who, err := w.who(r)
	switch {
	case err == nil:
		r = r.WithContext(context.WithValue(r.Context(), personKey{}, who))
		p.Steps, err = w.d.Setup.Checklist(r.Context(), who)
	case fault.Is(err, fault.Unauthorized) && p.Operator:
		p.Steps, err = w.d.Setup.VisitChecklist(r.Context(), w.cookieOf(r, setupCookie))
	case fault.Is(err, fault.Unauthorized):
		return w.sendToSignIn(rw, r)
	}
	if err != nil {
		return err
	}
	for i, step := range p.Steps {
		if p.MaySetUp && step.ID == "app" && step.State != setup.Done {
			p.Steps[i].Link, p.Steps[i].Label = "/setup", "Set it up"
		}
	}
	ready, err := w.readySteps(r)
	if err != nil {
		return err
	}
	p.Steps = append(p.Steps, ready...)
	p.Complete = setup.Complete(p.Steps)
	p.Page = w.page(r, "Is everything in place?")
	p.Section = "setup"
	p.Notice = map[string]string{
		"app":            "The Hub is a GitHub App now. The next thing is to install it.",
		"webhook-secret": "GitHub signs with the new webhook secret from now on. The old one is accepted for another hour.",
		"installed":      "The App is installed.",
	}[r.URL.Query().Get("done")]
	if !p.Complete {
		p.Refresh = retest
	}
	return w.render(rw, r, http.StatusOK, "checklist", p)
}

// readySteps are what a Session needs beside the App.
func (w *Web) readySteps(r *http.Request) ([]setup.Step, error) {
	who := person(r.Context())
	runner := setup.Step{ID: "runner", Title: "A Runner is connected", State: setup.ToDo, Says: "None is registered yet. A Runner is a Linux host that builds and runs."}
	all, err := w.d.Fleet.Runners(r.Context())
	if err != nil {
		return nil, err
	}
	online := 0
	for _, one := range all {
		if one.Online {
			online++
		}
	}
	switch {
	case online > 0:
		runner.State, runner.Says = setup.Done, fmt.Sprintf("%d of %d that are registered.", online, len(all))
	case len(all) > 0:
		runner.State, runner.Says = setup.Wrong, "None that is registered answers now."
	}
	first := setup.Step{ID: "environment", Title: "A Repo has an Environment", State: setup.ToDo, Says: "None has one that is applied."}
	applied, err := w.d.Environments.AnyApplied(r.Context())
	if err != nil {
		return nil, err
	}
	if applied {
		first.State, first.Says = setup.Done, "At least one has."
	}
	if who.ID() == "" { // these pages are for people who are signed in
		return []setup.Step{runner, first}, nil
	}
	runner.Link, runner.Label = "/runners", "Runners"
	repos, err := w.d.Gate.Repos(r.Context(), who)
	switch {
	case err != nil:
		return nil, err
	case len(repos) == 0 && !applied:
		first.Says += " There is no Repo that you can use here: install the App on one that you can read."
	case len(repos) == 1:
		first.Link, first.Label = "/repos/"+repos[0].ID.String()+"/environment", "The Environment of "+repos[0].Name
	default:
		first.Link, first.Label = "/", "Repos"
	}
	return []setup.Step{runner, first}, nil
}

// foreign says that a link leads away from the Hub.
func foreign(link string) bool {
	u, err := url.Parse(link)
	return err == nil && u.Host != ""
}
