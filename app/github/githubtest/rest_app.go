package githubtest

import (
	"encoding/json"
	"maps"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"
)

// app answers 401 itself unless an App asks. Called with the lock.
func (c *call) app() *app {
	if c.who.app == nil {
		c.fail(http.StatusUnauthorized, "A JSON web token could not be decoded")
		return nil
	}
	return c.who.app
}

func (c *call) getApp() {
	c.s.mu.Lock()
	defer c.s.mu.Unlock()
	if a := c.app(); a != nil {
		c.reply(http.StatusOK, c.s.appJSON(a))
	}
}

func (c *call) listInstallations() {
	c.s.mu.Lock()
	defer c.s.mu.Unlock()
	a := c.app()
	if a == nil {
		return
	}
	all := []any{}
	for _, i := range sortedByID(c.s.installs) {
		if i.app == a {
			o := c.s.installJSON(i)
			// GitHub's description of this one list wants of an account all that an enterprise has too.
			maps.Copy(o["account"].(object), object{"name": i.account.Login, "slug": i.account.Login, "created_at": nil, "updated_at": nil})
			all = append(all, o)
		}
	}
	c.replyPage(all, "")
}

// installation is the App's own one that the path names. Called with the lock.
func (c *call) installation() *installation {
	a := c.app()
	if a == nil {
		return nil
	}
	id, _ := strconv.ParseInt(c.vars["installation"], 10, 64)
	i := c.s.installs[id]
	if i == nil || i.app != a {
		c.fail(http.StatusNotFound, "Not Found")
		return nil
	}
	return i
}

func (c *call) getInstallation() {
	c.s.mu.Lock()
	defer c.s.mu.Unlock()
	if i := c.installation(); i != nil {
		c.reply(http.StatusOK, c.s.installJSON(i))
	}
}

func (c *call) installationOn() {
	c.s.mu.Lock()
	defer c.s.mu.Unlock()
	a := c.app()
	if a == nil {
		return
	}
	for _, i := range c.s.installs {
		if i.app == a && strings.EqualFold(i.account.Login, c.vars["account"]) {
			c.reply(http.StatusOK, c.s.installJSON(i))
			return
		}
	}
	c.fail(http.StatusNotFound, "Not Found")
}

func (c *call) repoInstallation(r *repository) {
	c.s.mu.Lock()
	defer c.s.mu.Unlock()
	a := c.app()
	if a == nil {
		return
	}
	if i := c.s.installationOf(a, r); i != nil {
		c.reply(http.StatusOK, c.s.installJSON(i))
		return
	}
	c.fail(http.StatusNotFound, "Not Found")
}

// mint makes an installation's token. Without repositories it is for all of them, without permissions for all of those,
// as GitHub does it (facts/github.md §1, 18).
func (c *call) mint() {
	c.s.mu.Lock()
	defer c.s.mu.Unlock()
	i := c.installation()
	if i == nil {
		return
	}
	if i.suspended {
		c.fail(suspended.status, suspended.message)
		return
	}
	var in struct {
		Repositories  []string          `json:"repositories"`
		RepositoryIDs []int64           `json:"repository_ids"`
		Permissions   map[string]string `json:"permissions"`
	}
	if len(c.body) > 0 {
		if err := json.Unmarshal(c.body, &in); err != nil {
			c.fail(http.StatusBadRequest, "Problems parsing JSON")
			return
		}
	}
	t := &token{app: i.app, inst: i, grants: maps.Clone(i.grants), expires: c.s.now().Add(time.Hour).Truncate(time.Second)}
	const foreign = "There is at least one repository that does not exist or is not accessible to the parent installation."
	for _, id := range in.RepositoryIDs {
		r := c.s.repos[id]
		if r == nil || !i.has(r) {
			c.fail(http.StatusUnprocessableEntity, foreign)
			return
		}
		t.repos = append(t.repos, id)
	}
	for _, name := range in.Repositories {
		r := c.s.repoNamed(i.account.Login, name)
		if r == nil || !i.has(r) {
			c.fail(http.StatusUnprocessableEntity, foreign)
			return
		}
		t.repos = append(t.repos, r.ID)
	}
	if len(t.repos) > 500 {
		c.fail(http.StatusUnprocessableEntity, "A token is for 500 repositories at most.")
		return
	}
	if in.Permissions != nil {
		t.grants = map[string]string{"metadata": "read"}
		for name, level := range in.Permissions {
			if !enough(i.grants[name], level) {
				c.fail(http.StatusUnprocessableEntity, "The permissions requested are not granted to this installation.")
				return
			}
			t.grants[name] = level
		}
	}
	value := newInstallationToken(i.app)
	c.s.tokens[value] = t
	selection := "selected"
	if t.repos == nil && i.all {
		selection = "all"
	}
	over := object{"token": value, "expires_at": stamp(t.expires), "permissions": t.grants, "repository_selection": selection}
	if t.repos != nil {
		list := []any{}
		for _, id := range t.repos {
			list = append(list, c.s.repoJSON("repository", c.s.repos[id], ""))
		}
		over["repositories"] = list
	}
	c.reply(http.StatusCreated, shape("installation-token", over))
}

func (c *call) revoke() {
	c.s.mu.Lock()
	defer c.s.mu.Unlock()
	if c.who.inst() == nil {
		c.fail(http.StatusUnauthorized, "Bad credentials")
		return
	}
	c.who.token.revoked = true
	c.w.WriteHeader(http.StatusNoContent)
}

func (c *call) listInstalled() {
	c.s.mu.Lock()
	defer c.s.mu.Unlock()
	i := c.who.inst()
	if i == nil {
		c.fail(http.StatusForbidden, "Resource not accessible by integration")
		return
	}
	if i.suspended {
		c.fail(suspended.status, suspended.message)
		return
	}
	all := []any{}
	for _, r := range c.s.reposOf(i) {
		if c.who.token.covers(r) {
			all = append(all, c.s.repoJSON("repository", r, ""))
		}
	}
	c.replyPage(all, "repositories")
}

// person answers 401 itself unless a person asks. Called with the lock.
func (c *call) person() *account {
	if u := c.who.user(); u != nil {
		return u
	}
	if c.who.token != nil {
		c.fail(integral.status, integral.message)
		return nil
	}
	c.fail(http.StatusUnauthorized, "Requires authentication")
	return nil
}

func (c *call) me() {
	c.s.mu.Lock()
	defer c.s.mu.Unlock()
	if u := c.person(); u != nil {
		c.reply(http.StatusOK, c.s.publicUser(u))
	}
}

func (s *Server) publicUser(a *account) object {
	o := shape("public-user", s.userFields(a))
	o["name"], o["user_view_type"] = a.Login, "public"
	return o
}

func (c *call) userByID() {
	c.s.mu.Lock()
	defer c.s.mu.Unlock()
	id, _ := strconv.ParseInt(c.vars["account"], 10, 64)
	c.userOrNot(c.s.accounts[id])
}

func (c *call) userByLogin() {
	c.s.mu.Lock()
	defer c.s.mu.Unlock()
	c.userOrNot(c.s.accountNamed(c.vars["account"]))
}

func (c *call) userOrNot(a *account) {
	if a == nil {
		c.fail(http.StatusNotFound, "Not Found")
		return
	}
	c.reply(http.StatusOK, c.s.publicUser(a))
}

// mine are the repositories of an installation that a person has explicit access to. Called with the lock.
func (s *Server) mine(who *account, i *installation) []*repository {
	return slices.DeleteFunc(s.reposOf(i), func(r *repository) bool { return s.permission(who, r) == "" })
}

func (c *call) myInstallations() {
	c.s.mu.Lock()
	defer c.s.mu.Unlock()
	who := c.person()
	if who == nil {
		return
	}
	all := []any{}
	for _, i := range sortedByID(c.s.installs) {
		if i.app == c.who.token.app && (i.account == who || i.account.members[who.ID] == "admin" || len(c.s.mine(who, i)) > 0) {
			all = append(all, c.s.installJSON(i))
		}
	}
	c.replyPage(all, "installations")
}

func (c *call) myRepositories() {
	c.s.mu.Lock()
	defer c.s.mu.Unlock()
	who := c.person()
	if who == nil {
		return
	}
	id, _ := strconv.ParseInt(c.vars["installation"], 10, 64)
	i := c.s.installs[id]
	if i == nil || i.app != c.who.token.app {
		c.fail(http.StatusNotFound, "Not Found")
		return
	}
	if i.suspended {
		c.fail(suspended.status, suspended.message)
		return
	}
	all := []any{}
	for _, r := range c.s.mine(who, i) {
		all = append(all, c.s.repoJSON("repository", r, c.s.permission(who, r)))
	}
	c.replyPage(all, "repositories")
}

// client checks that an App asks with its own id and secret. Called with the lock.
func (c *call) client() *app {
	if c.who.client == nil || c.who.client.ClientID != c.vars["client"] {
		c.fail(http.StatusNotFound, "Not Found")
		return nil
	}
	return c.who.client
}

func (c *call) ownToken() (*token, string) {
	a := c.client()
	if a == nil {
		return nil, ""
	}
	var in struct {
		Token string `json:"access_token"`
	}
	_ = json.Unmarshal(c.body, &in)
	t := c.s.tokens[in.Token]
	if t == nil || t.app != a || t.user == nil || t.revoked || !t.expires.IsZero() && !c.s.now().Before(t.expires) {
		c.fail(http.StatusNotFound, "Not Found")
		return nil, ""
	}
	return t, in.Token
}

func (c *call) checkToken() {
	c.s.mu.Lock()
	defer c.s.mu.Unlock()
	t, value := c.ownToken()
	if t == nil {
		return
	}
	c.reply(http.StatusOK, shape("authorization", object{
		"id": t.user.ID, "token": value, "user": c.s.simpleUser(t.user), "expires_at": stamp(t.expires), "scopes": []any{},
		"app": object{"name": t.app.Name, "client_id": t.app.ClientID, "url": c.s.appPage(t.app)},
	}))
}

func (c *call) deleteToken() {
	c.s.mu.Lock()
	defer c.s.mu.Unlock()
	if t, _ := c.ownToken(); t != nil {
		t.revoked = true
		delete(c.s.refresh, t.twin)
		c.w.WriteHeader(http.StatusNoContent)
	}
}

func (c *call) deleteGrant() {
	c.s.mu.Lock()
	defer c.s.mu.Unlock()
	if t, _ := c.ownToken(); t != nil {
		c.s.unauthorize(t.app, t.user)
		c.w.WriteHeader(http.StatusNoContent)
	}
}

// Unauthorize is a person taking an App's authorization back, in their settings.
func (s *Server) Unauthorize(appID int64, who Account) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.unauthorize(s.apps[appID], who.get())
}

func (s *Server) unauthorize(a *app, who *account) {
	for _, t := range s.tokens {
		if t.app == a && t.user == who {
			t.revoked = true
			delete(s.refresh, t.twin)
		}
	}
	s.post(a, nil, "github_app_authorization", "revoked", object{"sender": s.simpleUser(who)})
}

func (c *call) getHookConfig() {
	c.s.mu.Lock()
	defer c.s.mu.Unlock()
	if a := c.app(); a != nil {
		c.reply(http.StatusOK, hookConfig(a))
	}
}

func hookConfig(a *app) object {
	return object{"content_type": "json", "insecure_ssl": "0", "secret": "********", "url": a.hookURL}
}

func (c *call) setHookConfig() {
	c.s.mu.Lock()
	defer c.s.mu.Unlock()
	a := c.app()
	if a == nil {
		return
	}
	var in struct{ URL, Secret *string }
	if err := json.Unmarshal(c.body, &in); err != nil {
		c.fail(http.StatusBadRequest, "Problems parsing JSON")
		return
	}
	if in.URL != nil {
		a.hookURL, a.hookActive = *in.URL, *in.URL != ""
	}
	if in.Secret != nil {
		a.WebhookSecret = *in.Secret
	}
	c.reply(http.StatusOK, hookConfig(a))
}
