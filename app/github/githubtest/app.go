package githubtest

import (
	"fmt"
	"maps"
	"slices"
	"strings"
)

// App is a GitHub App as its owner sees it: the values that one puts into a configuration.
type App struct {
	ID                        int64
	Slug, Name                string
	ClientID, ClientSecret    string
	WebhookSecret, PrivateKey string // the key in PEM
}

// AppOptions are an App's settings. Zero values are those the Hub wants.
type AppOptions struct {
	Name, Owner       string // default: claude-hub, of an account of that name
	HookURL, SetupURL string // HookURL "": the webhook is inactive
	Callbacks         []string
	Permissions       map[string]string
	Events            []string
	// Lasting makes people's tokens last for ever and come without refresh token, as an App can choose.
	Lasting bool
}

var (
	wantedPermissions = map[string]string{
		"checks": "write", "contents": "read", "metadata": "read", "pull_requests": "read", "members": "read",
	}
	wantedEvents = strings.Fields(`check_run check_suite pull_request push repository public member membership organization
		team team_add merge_group`)
)

// App makes a GitHub App by hand. [Server.Manifest] and the pages make one from a manifest.
func (s *Server) App(o AppOptions) App {
	if o.Name == "" {
		o.Name = "claude-hub"
	}
	if o.Owner == "" {
		o.Owner = "claude-hub-owner"
	}
	if o.Permissions == nil {
		o.Permissions = wantedPermissions
	}
	if o.Events == nil {
		o.Events = wantedEvents
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	owner := s.accountNamed(o.Owner)
	if owner == nil {
		owner = &account{ID: s.id(), Login: o.Owner, Type: "User", members: map[int64]string{}}
		s.accounts[owner.ID] = owner
	}
	a := s.newApp(o, owner)
	return a.handle()
}

// newApp is called with the lock.
func (s *Server) newApp(o AppOptions, owner *account) *app {
	key, pem := testKey()
	a := &app{
		ID: s.id(), Name: o.Name, Slug: s.slug(o.Name), ClientID: "Iv23li" + random(7), ClientSecret: random(20),
		WebhookSecret: random(20), owner: owner, key: key, pem: pem, hookURL: o.HookURL, setupURL: o.SetupURL,
		hookActive: o.HookURL != "", callbacks: slices.Clone(o.Callbacks), grants: maps.Clone(o.Permissions),
		events: append([]string{}, o.Events...), lasting: o.Lasting, url: s.urls.Web,
	}
	s.apps[a.ID] = a
	if a.hookActive {
		s.post(a, nil, "ping", "", object{
			"zen": "Design for failure.", "hook_id": a.ID,
			"hook": object{"type": "App", "id": a.ID, "active": true, "app_id": a.ID, "events": a.events},
		})
	}
	return a
}

func (s *Server) slug(name string) string {
	slug := strings.Map(func(r rune) rune {
		if r >= 'a' && r <= 'z' || r >= '0' && r <= '9' {
			return r
		}
		return '-'
	}, strings.ToLower(name))
	for n, taken := 1, slug; ; n++ {
		if !slices.ContainsFunc(slices.Collect(maps.Values(s.apps)), func(a *app) bool { return a.Slug == slug }) {
			return slug
		}
		slug = fmt.Sprintf("%s-%d", taken, n)
	}
}

func (a *app) handle() App {
	return App{a.ID, a.Slug, a.Name, a.ClientID, a.ClientSecret, a.WebhookSecret, a.pem}
}

// HookURL says where the App's webhooks go from now on; "" makes them inactive.
func (s *Server) HookURL(appID int64, url string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	a := s.apps[appID]
	if a == nil {
		wrong("there is no App %d", appID)
	}
	a.hookURL, a.hookActive = url, url != ""
}

// RotateHookSecret gives the App a new webhook secret and returns it. Deliveries are signed with it from now on.
func (s *Server) RotateHookSecret(appID int64) string {
	s.mu.Lock()
	defer s.mu.Unlock()
	a := s.apps[appID]
	a.WebhookSecret = random(20)
	return a.WebhookSecret
}

// Install installs the App on the account of by's choice: for the given repositories, or for all if there are none.
func (s *Server) Install(appID int64, on, by Account, repos ...Repo) Installation {
	s.mu.Lock()
	defer s.mu.Unlock()
	a := s.apps[appID]
	if a == nil {
		wrong("there is no App %d", appID)
	}
	var chosen []*repository
	for _, r := range repos {
		chosen = append(chosen, r.locked())
	}
	return Installation{s, s.install(a, on.get(), by.get(), chosen).ID}
}

// install is called with the lock.
func (s *Server) install(a *app, on, by *account, repos []*repository) *installation {
	for _, i := range s.installs {
		if i.app == a && i.account == on {
			wrong("%s is already installed on %s", a.Slug, on.Login)
		}
	}
	i := &installation{
		ID: s.id(), app: a, account: on, all: len(repos) == 0, repos: map[int64]bool{}, grants: maps.Clone(a.grants),
	}
	for _, r := range repos {
		if r.owner != on {
			wrong("%s doesn't belong to %s", r.full(), on.Login)
		}
		i.repos[r.ID] = true
	}
	s.installs[i.ID] = i
	s.emit(i, nil, by, "installation", "created", object{"repositories": s.partial(s.reposOf(i)), "requester": nil})
	return i
}

// reposOf lists what an installation has, by id. Called with the lock.
func (s *Server) reposOf(i *installation) []*repository {
	var out []*repository
	for _, r := range s.repos {
		if i.has(r) {
			out = append(out, r)
		}
	}
	slices.SortFunc(out, func(a, b *repository) int { return int(a.ID - b.ID) })
	return out
}

func (i Installation) locked() *installation {
	got := i.s.installs[i.ID]
	if got == nil {
		wrong("there is no installation %d", i.ID)
	}
	return got
}

// Suspend suspends the installation, or ends that. Its tokens are refused while it is suspended.
func (i Installation) Suspend(yes bool) {
	i.s.mu.Lock()
	defer i.s.mu.Unlock()
	inst := i.locked()
	action := "unsuspend"
	if yes {
		action = "suspend"
	}
	inst.suspended = yes
	i.s.emit(inst, nil, inst.account, "installation", action, object{"repositories": i.s.partial(i.s.reposOf(inst))})
}

// Remove uninstalls the App. Its tokens are refused from now on.
func (i Installation) Remove() {
	i.s.mu.Lock()
	defer i.s.mu.Unlock()
	inst := i.locked()
	i.s.emit(inst, nil, inst.account, "installation", "deleted", object{"repositories": i.s.partial(i.s.reposOf(inst))})
	delete(i.s.installs, inst.ID)
}

// Add gives the installation more repositories of its account.
func (i Installation) Add(repos ...Repo) { i.choose("added", repos) }

// Drop takes repositories from an installation that has chosen ones.
func (i Installation) Drop(repos ...Repo) { i.choose("removed", repos) }

func (i Installation) choose(action string, repos []Repo) {
	i.s.mu.Lock()
	defer i.s.mu.Unlock()
	inst := i.locked()
	if inst.all {
		wrong("installation %d has all repositories of %s", inst.ID, inst.account.Login)
	}
	var changed []*repository
	for _, r := range repos {
		repo := r.locked()
		if repo.owner != inst.account {
			wrong("%s doesn't belong to %s", repo.full(), inst.account.Login)
		}
		changed = append(changed, repo)
		if action == "added" {
			inst.repos[repo.ID] = true
		} else {
			delete(inst.repos, repo.ID)
		}
	}
	i.s.emitInstalled(inst, inst.account, action, changed)
}

// Grant is the owner's answer to a request for other permissions: tokens made before keep theirs.
func (i Installation) Grant(permissions map[string]string) {
	i.s.mu.Lock()
	defer i.s.mu.Unlock()
	inst := i.locked()
	inst.grants = maps.Clone(permissions)
	i.s.emit(inst, nil, inst.account, "installation", "new_permissions_accepted", object{})
}
