package githubtest

import (
	"crypto/rsa"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
)

// account is a person, a bot or an organization.
type account struct {
	ID      int64
	Login   string
	Type    string           // User, Bot, Organization
	members map[int64]string // of an organization: member or admin
}

// repository is one Repo. Its content is a bare git repository named by the id.
type repository struct {
	ID       int64
	owner    *account
	name     string
	private  bool
	archived bool
	branch   string // the default branch
	parent   *repository
	people   map[int64]string // explicit permissions: read, triage, write, maintain, admin
	pulls    []*pull
	writing  sync.Mutex // git writes
}

func (r *repository) full() string { return r.owner.Login + "/" + r.name }

type app struct {
	ID                                 int64
	Slug, Name, ClientID               string
	ClientSecret, WebhookSecret        string
	owner                              *account
	key                                *rsa.PrivateKey
	pem                                string
	hookURL, setupURL                  string
	hookActive, setupOnUpdate, lasting bool
	callbacks                          []string
	grants                             map[string]string
	events                             []string
	url, description                   string
}

type installation struct {
	ID        int64
	app       *app
	account   *account
	all       bool
	repos     map[int64]bool
	suspended bool
	grants    map[string]string
}

func (i *installation) has(r *repository) bool {
	return r.owner == i.account && (i.all || i.repos[r.ID])
}

// Account is a person or an organization of this GitHub.
type Account struct {
	s  *Server
	ID int64
}

// Repo is a repository of this GitHub. It stays the same through renames and transfers.
type Repo struct {
	s  *Server
	ID int64
}

// Installation is an App's installation on an account.
type Installation struct {
	s  *Server
	ID int64
}

func wrong(format string, args ...any) {
	panic("githubtest: " + fmt.Sprintf(format, args...))
}

// Person makes a person, or returns the one with that login.
func (s *Server) Person(login string) Account { return s.account(login, "User") }

// Bot makes a bot, as merge queues and other Apps are: its login ends in "[bot]".
func (s *Server) Bot(login string) Account {
	return s.account(strings.TrimSuffix(login, "[bot]")+"[bot]", "Bot")
}

// Org makes an organization, or returns the one with that login.
func (s *Server) Org(login string) Account { return s.account(login, "Organization") }

func (s *Server) account(login, kind string) Account {
	s.mu.Lock()
	defer s.mu.Unlock()
	a := s.accountNamed(login)
	if a == nil {
		a = &account{ID: s.id(), Login: login, Type: kind, members: map[int64]string{}}
		s.accounts[a.ID] = a
	}
	if a.Type != kind {
		wrong("%s is a %s, not a %s", login, a.Type, kind)
	}
	return Account{s, a.ID}
}

// accountNamed finds an account by login. Called with the lock.
func (s *Server) accountNamed(login string) *account {
	for _, a := range s.accounts {
		if strings.EqualFold(a.Login, login) {
			return a
		}
	}
	return nil
}

func (a Account) get() *account {
	if got := a.s.accounts[a.ID]; got != nil {
		return got
	}
	wrong("there is no account %d", a.ID)
	return nil
}

// Login is the account's present name.
func (a Account) Login() string {
	a.s.mu.Lock()
	defer a.s.mu.Unlock()
	return a.get().Login
}

// Rename gives the account another login: its id stays. An installation there is told (installation_target).
func (a Account) Rename(login string) {
	a.s.mu.Lock()
	defer a.s.mu.Unlock()
	if a.s.accountNamed(login) != nil {
		wrong("%s is taken", login)
	}
	acc := a.get()
	for _, r := range a.s.repos {
		if r.owner == acc {
			a.s.oldNames[strings.ToLower(r.full())] = r.ID
		}
	}
	old := acc.Login
	acc.Login = login
	for _, i := range a.s.installs {
		if i.account == acc {
			a.s.emit(i, nil, acc, "installation_target", "renamed", object{
				"account": a.s.simpleUser(acc), "target_type": acc.Type,
				"changes": object{"login": object{"from": old}},
			})
		}
	}
}

// Admit makes p a member of the organization: role is "member" or "admin" (an owner). "" takes the membership away.
func (a Account) Admit(p Account, role string) {
	a.s.mu.Lock()
	defer a.s.mu.Unlock()
	org, who := a.get(), p.get()
	if org.Type != "Organization" {
		wrong("%s is no organization", org.Login)
	}
	action := "member_added"
	if role == "" {
		action = "member_removed"
		delete(org.members, who.ID)
		for _, r := range a.s.repos {
			if r.owner == org {
				delete(r.people, who.ID)
			}
		}
	} else {
		org.members[who.ID] = role
	}
	for _, i := range a.s.installs {
		if i.account == org {
			a.s.emit(i, nil, who, "organization", action, object{
				"membership": object{"role": role, "state": "active", "user": a.s.simpleUser(who)},
			})
		}
	}
}

// Repo makes a repository with one commit of files on its default branch "main"; with no files it is empty. Its owner
// must exist.
func (s *Server) Repo(fullName string, private bool, files Files) Repo {
	owner, name, ok := strings.Cut(fullName, "/")
	s.mu.Lock()
	a := s.accountNamed(owner)
	if !ok || a == nil {
		s.mu.Unlock()
		wrong("%q: make its owner with Person or Org first", fullName)
	}
	if s.repoNamed(owner, name) != nil {
		s.mu.Unlock()
		wrong("%s is taken", fullName)
	}
	r := &repository{ID: s.id(), owner: a, name: name, private: private, branch: "main", people: map[int64]string{}}
	s.mu.Unlock()
	s.must("", nil, "init", "--quiet", "--bare", "--template=", "--initial-branch=main", s.folder(r))
	s.must(s.folder(r), nil, "config", "uploadpack.allowAnySHA1InWant", "true")
	if len(files) > 0 {
		s.commit(r, a, "main", "", "Begin", files)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.repos[r.ID] = r
	delete(s.oldNames, strings.ToLower(fullName)) // a new one takes the name: nothing is redirected any more
	for _, i := range s.installs {
		if i.account == a && i.all {
			s.emitInstalled(i, a, "added", []*repository{r})
		}
	}
	return Repo{s, r.ID}
}

func (s *Server) folder(r *repository) string {
	return filepath.Join(s.opts.Folder, fmt.Sprintf("%d.git", r.ID))
}

// repoNamed finds a repository by its present name. Called with the lock.
func (s *Server) repoNamed(owner, name string) *repository {
	for _, r := range s.repos {
		if strings.EqualFold(r.owner.Login, owner) && strings.EqualFold(r.name, name) {
			return r
		}
	}
	return nil
}

func (r Repo) get() *repository {
	r.s.mu.Lock()
	defer r.s.mu.Unlock()
	return r.locked()
}

func (r Repo) locked() *repository {
	got := r.s.repos[r.ID]
	if got == nil {
		wrong("there is no repository %d", r.ID)
	}
	return got
}

// FullName is the present owner/name.
func (r Repo) FullName() string {
	r.s.mu.Lock()
	defer r.s.mu.Unlock()
	return r.locked().full()
}

// CloneURL is where git finds it.
func (r Repo) CloneURL() string { return r.s.urls.Web + "/" + r.FullName() + ".git" }

// Folder is its bare repository.
func (r Repo) Folder() string { return r.s.folder(r.get()) }

// Allow gives a person explicit access: read, triage, write, maintain or admin; "" takes it away. Apps are told as far
// as GitHub tells them: only of organizations, with the permission members.
func (r Repo) Allow(p Account, level string) {
	if level != "" && !slices.Contains(levels, level) {
		wrong("no such access: %q", level)
	}
	r.s.mu.Lock()
	defer r.s.mu.Unlock()
	repo, who := r.locked(), p.get()
	action := "added"
	switch had := repo.people[who.ID]; {
	case level == "":
		action = "removed"
		delete(repo.people, who.ID)
	default:
		if had != "" {
			action = "edited"
		}
		repo.people[who.ID] = level
	}
	if repo.owner.Type == "Organization" {
		r.s.emitTo(repo, repo.owner, "member", action, object{"member": r.s.simpleUser(who), "changes": object{}})
	}
}

var levels = []string{"read", "triage", "write", "maintain", "admin"}

func atLeast(has, need string) bool {
	return has != "" && slices.Index(levels, has) >= slices.Index(levels, need)
}

// permission is a person's explicit access: what a public repository lets everyone do doesn't count. Called with the lock.
func (s *Server) permission(who *account, r *repository) string {
	if r.owner == who || r.owner.members[who.ID] == "admin" {
		return "admin"
	}
	return r.people[who.ID]
}

// Rename gives the repository another name; the old one is redirected until somebody takes it.
func (r Repo) Rename(name string) {
	r.s.mu.Lock()
	defer r.s.mu.Unlock()
	repo := r.locked()
	if r.s.repoNamed(repo.owner.Login, name) != nil {
		wrong("%s/%s is taken", repo.owner.Login, name)
	}
	old := repo.name
	r.s.oldNames[strings.ToLower(repo.full())] = repo.ID
	repo.name = name
	r.s.emitTo(repo, repo.owner, "repository", "renamed", object{
		"changes": object{"repository": object{"name": object{"from": old}}},
	})
}

// Transfer gives the repository to another account. The event goes to the new owner's installation only, and the old one
// loses the repository (facts/github.md §3).
func (r Repo) Transfer(to Account) {
	r.s.mu.Lock()
	defer r.s.mu.Unlock()
	repo := r.locked()
	from := repo.owner
	r.s.oldNames[strings.ToLower(repo.full())] = repo.ID
	for _, i := range r.s.installs {
		if i.has(repo) {
			delete(i.repos, repo.ID)
			r.s.emitInstalled(i, from, "removed", []*repository{repo})
		}
	}
	repo.owner, repo.people = to.get(), map[int64]string{}
	for _, i := range r.s.installs {
		if i.has(repo) {
			r.s.emitInstalled(i, repo.owner, "added", []*repository{repo})
		}
	}
	r.s.emitTo(repo, from, "repository", "transferred", object{
		"changes": object{"owner": object{"from": object{strings.ToLower(from.Type): r.s.simpleUser(from)}}},
	})
}

// Publish makes the repository public or private.
func (r Repo) Publish(public bool) {
	r.s.mu.Lock()
	defer r.s.mu.Unlock()
	repo := r.locked()
	repo.private = !public
	action := "privatized"
	if public {
		action = "publicized"
		r.s.emitTo(repo, repo.owner, "public", "", object{})
	}
	r.s.emitTo(repo, repo.owner, "repository", action, object{})
}

// Archive makes the repository read-only, or writable again.
func (r Repo) Archive(yes bool) {
	r.s.mu.Lock()
	defer r.s.mu.Unlock()
	repo := r.locked()
	repo.archived = yes
	action := "unarchived"
	if yes {
		action = "archived"
	}
	r.s.emitTo(repo, repo.owner, "repository", action, object{})
}

// DefaultBranch makes another branch the default.
func (r Repo) DefaultBranch(branch string) {
	repo := r.get()
	r.s.must(r.s.folder(repo), nil, "symbolic-ref", "HEAD", "refs/heads/"+branch)
	r.s.mu.Lock()
	defer r.s.mu.Unlock()
	old := repo.branch
	repo.branch = branch
	r.s.emitTo(repo, repo.owner, "repository", "edited", object{
		"changes": object{"default_branch": object{"from": old}},
	})
}

// Delete removes the repository. GitHub doesn't tell Apps of it as such; the installations that had it chosen are told
// that it is gone from them.
func (r Repo) Delete() {
	r.s.mu.Lock()
	repo := r.locked()
	for _, i := range r.s.installs {
		if i.has(repo) {
			delete(i.repos, repo.ID)
			r.s.emitInstalled(i, repo.owner, "removed", []*repository{repo})
		}
	}
	delete(r.s.repos, r.ID)
	r.s.mu.Unlock()
	repo.writing.Lock()
	defer repo.writing.Unlock()
	if err := os.RemoveAll(r.s.folder(repo)); err != nil {
		wrong("%v", err)
	}
}
