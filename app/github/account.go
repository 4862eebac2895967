package github

import (
	"context"
	"fmt"
	"net/http"
	"net/url"
	"strings"

	ghapi "github.com/google/go-github/v62/github"
)

// Account is a person, a bot or an organization. ID is what it is known by: a login may be somebody else's tomorrow.
type Account struct {
	ID    int64
	Login string
	Type  string // User, Bot, Organization
}

// Level is what someone may do with a Repo, from "" (nothing) over read, triage, write and maintain to admin.
type Level string

// CanWrite says whether it suffices to push.
func (l Level) CanWrite() bool { return l == "write" || l == "maintain" || l == "admin" }

// Repository is a Repo as GitHub shows it.
type Repository struct {
	ID                      RepoID
	Owner                   Account
	Name, FullName          string
	Private, Archived, Fork bool
	DefaultBranch           string
	CloneURL, URL           string
	// Level is the asking person's access; "" where an App asked. A public Repo gives everyone read: only
	// [User.Repositories] lists explicit access.
	Level Level
}

// Installation is the App on an account.
type Installation struct {
	ID          int64
	Account     Account
	AppID       int64
	All         bool // all Repos of the account, those to come too
	Suspended   bool
	Permissions map[string]string
	Events      []string
	URL         string // its settings
}

type accountJSON struct {
	ID    int64  `json:"id"`
	Login string `json:"login"`
	Slug  string `json:"slug"` // of an enterprise
	Type  string `json:"type"`
}

func (j *accountJSON) account() Account {
	if j == nil {
		return Account{}
	}
	return Account{j.ID, j.Login, j.Type}
}

type repositoryJSON struct {
	ID          RepoID          `json:"id"`
	Owner       *accountJSON    `json:"owner"`
	Name        string          `json:"name"`
	FullName    string          `json:"full_name"`
	Private     bool            `json:"private"`
	Archived    bool            `json:"archived"`
	Fork        bool            `json:"fork"`
	Branch      string          `json:"default_branch"`
	CloneURL    string          `json:"clone_url"`
	HTMLURL     string          `json:"html_url"`
	Permissions map[string]bool `json:"permissions"`
}

func (j repositoryJSON) repository() Repository {
	r := Repository{
		ID: j.ID, Owner: j.Owner.account(), Name: j.Name, FullName: j.FullName, Private: j.Private, Archived: j.Archived,
		Fork: j.Fork, DefaultBranch: j.Branch, CloneURL: j.CloneURL, URL: j.HTMLURL,
	}
	for _, l := range []struct{ name, level string }{
		{"pull", "read"}, {"triage", "triage"}, {"push", "write"}, {"maintain", "maintain"}, {"admin", "admin"},
	} {
		if j.Permissions[l.name] {
			r.Level = Level(l.level)
		}
	}
	return r
}

type installationJSON struct {
	ID          int64             `json:"id"`
	Account     *accountJSON      `json:"account"`
	AppID       int64             `json:"app_id"`
	Selection   string            `json:"repository_selection"`
	SuspendedAt *string           `json:"suspended_at"`
	Permissions map[string]string `json:"permissions"`
	Events      []string          `json:"events"`
	HTMLURL     string            `json:"html_url"`
}

func (j installationJSON) installation() Installation {
	return Installation{
		ID: j.ID, Account: j.Account.account(), AppID: j.AppID, All: j.Selection == "all", Suspended: j.SuspendedAt != nil,
		Permissions: j.Permissions, Events: j.Events, URL: j.HTMLURL,
	}
}

// User is GitHub as one person sees it.
type User struct {
	a   *App
	c   *ghapi.Client
	who caller
}

// User makes calls with a person's token. Make one for each use: it keeps nothing but the token.
func (a *App) User(token Secret) *User {
	return &User{a, a.withToken(token), caller{key: "user:" + fingerprint(token), user: true}}
}

func (u *User) get(ctx context.Context, path string, out any) (*ghapi.Response, error) {
	return u.a.call(ctx, u.c, u.who, http.MethodGet, path, nil, out)
}

// Me is the person whose token it is.
func (u *User) Me(ctx context.Context) (Account, error) {
	var j accountJSON
	if _, err := u.get(ctx, "user", &j); err != nil {
		return Account{}, err
	}
	if j.ID <= 0 || j.Login == "" {
		return Account{}, away(nil)
	}
	return j.account(), nil
}

// Installations are those of this App that the person can reach: on their own account, or with a Repo of theirs. That
// respects an organization's single sign-on.
func (u *User) Installations(ctx context.Context) ([]Installation, error) {
	var all []Installation
	seen := map[int64]bool{}
	err := list(ctx, "user/installations", func(path string) (*ghapi.Response, error) {
		var page struct {
			Installations []installationJSON `json:"installations"`
		}
		resp, err := u.get(ctx, path, &page)
		for _, j := range page.Installations {
			if !seen[j.ID] && j.AppID == u.a.cred.AppID {
				seen[j.ID] = true
				all = append(all, j.installation())
			}
		}
		return resp, err
	})
	return all, err
}

// Repositories are those of an installation to which the person has explicit access: what a public Repo lets everyone do
// doesn't count. NotFound if the installation isn't theirs to see.
func (u *User) Repositories(ctx context.Context, installation int64) ([]Repository, error) {
	var all []Repository
	seen := map[RepoID]bool{}
	err := list(ctx, fmt.Sprintf("user/installations/%d/repositories", installation), func(path string) (*ghapi.Response, error) {
		var page struct {
			Repositories []repositoryJSON `json:"repositories"`
		}
		resp, err := u.get(ctx, path, &page)
		for _, j := range page.Repositories {
			if !seen[j.ID] {
				seen[j.ID] = true
				all = append(all, j.repository())
			}
		}
		return resp, err
	})
	return all, err
}

// Repository is a Repo that the person can see, public ones too. A private one in none of the App's installations is
// NotFound even for its owner: a person's token reaches no further than the App.
func (u *User) Repository(ctx context.Context, id RepoID) (Repository, error) {
	r, err := u.repository(ctx, repoPath(id))
	if err == nil && r.ID != id {
		return Repository{}, away(nil)
	}
	return r, err
}

// RepositoryNamed is the one that has this owner/name now, or had it before it was renamed.
func (u *User) RepositoryNamed(ctx context.Context, fullName string) (Repository, error) {
	owner, name, ok := strings.Cut(fullName, "/")
	if !ok || !plainName(owner) || !plainName(name) {
		return Repository{}, fail(Invalid, "Write the Repo as owner/name.")
	}
	return u.repository(ctx, "repos/"+url.PathEscape(owner)+"/"+url.PathEscape(name))
}

func plainName(s string) bool {
	if s == "" || s == "." || s == ".." || len(s) > 100 {
		return false
	}
	return strings.IndexFunc(s, func(r rune) bool {
		return r != '-' && r != '_' && r != '.' && (r < '0' || r > '9') && (r < 'a' || r > 'z') && (r < 'A' || r > 'Z')
	}) < 0
}

func (u *User) repository(ctx context.Context, path string) (Repository, error) {
	var j repositoryJSON
	if _, err := u.get(ctx, path, &j); err != nil {
		return Repository{}, err
	}
	if j.ID <= 0 {
		return Repository{}, away(nil)
	}
	return j.repository(), nil
}

// Self is the App as GitHub knows it.
type Self struct {
	ID          int64
	Slug, Name  string
	ClientID    string
	Owner       Account
	Permissions map[string]string
	Events      []string
}

// Self asks GitHub about the App: whether id and key are right, and what it may do.
func (a *App) Self(ctx context.Context) (Self, error) {
	var j struct {
		ID          int64             `json:"id"`
		Slug        string            `json:"slug"`
		Name        string            `json:"name"`
		ClientID    string            `json:"client_id"`
		Owner       *accountJSON      `json:"owner"`
		Permissions map[string]string `json:"permissions"`
		Events      []string          `json:"events"`
	}
	if _, err := a.asApp(ctx, http.MethodGet, "app", nil, &j); err != nil {
		return Self{}, err
	}
	if j.ID != a.cred.AppID {
		return Self{}, away(nil)
	}
	a.mu.Lock()
	a.slug = j.Slug
	a.mu.Unlock()
	return Self{j.ID, j.Slug, j.Name, j.ClientID, j.Owner.account(), j.Permissions, j.Events}, nil
}

// Installations are all of the App's.
func (a *App) Installations(ctx context.Context) ([]Installation, error) {
	var all []Installation
	seen := map[int64]bool{}
	err := list(ctx, "app/installations", func(path string) (*ghapi.Response, error) {
		var page []installationJSON
		resp, err := a.asApp(ctx, http.MethodGet, path, nil, &page)
		for _, j := range page {
			if !seen[j.ID] {
				seen[j.ID] = true
				all = append(all, j.installation())
			}
		}
		return resp, err
	})
	return all, err
}

// Installation is one of the App's; NotInstalled if it is gone.
func (a *App) Installation(ctx context.Context, id int64) (Installation, error) {
	var j installationJSON
	if _, err := a.asApp(ctx, http.MethodGet, fmt.Sprintf("app/installations/%d", id), nil, &j); err != nil {
		if NotFound.Is(err) {
			return Installation{}, fail(NotInstalled, "The GitHub App isn't installed there any more.")
		}
		return Installation{}, err
	}
	if j.ID != id {
		return Installation{}, away(nil)
	}
	return j.installation(), nil
}

// InstalledRepositories are the Repos that an installation has.
func (a *App) InstalledRepositories(ctx context.Context, installation int64) ([]Repository, error) {
	var all []Repository
	seen := map[RepoID]bool{}
	err := list(ctx, "installation/repositories", func(path string) (*ghapi.Response, error) {
		var page struct {
			Repositories []repositoryJSON `json:"repositories"`
		}
		resp, err := a.asInstallation(ctx, installation, http.MethodGet, path, nil, &page)
		for _, j := range page.Repositories {
			if !seen[j.ID] {
				seen[j.ID] = true
				all = append(all, j.repository())
			}
		}
		return resp, err
	})
	return all, err
}
