package access

import (
	"context"
	"net/url"
	"regexp"
	"strings"

	"github.com/claude-hub/claude-hub/app/fault"
	"github.com/claude-hub/claude-hub/app/github"
)

// Entry is the answer to a Repo that somebody entered: a Grant, or a sentence that says why not and where to go.
type Entry struct {
	Grant        Grant
	OK           bool // there is a Grant
	NotInstalled bool // the person can see the Repo at GitHub, and the App isn't installed on it
	Message      string
	InstallURL   string // "" without an App
}

// Enter checks a Repo as it is entered for a new Session or Environment, before any set-up (ADR 0009, "Checking up front").
// text is owner/name, or an address of the Repo at this Hub's GitHub; anything else is Invalid (field "repo").
//
// Of what the person has no access to here, the answer tells only what GitHub itself shows to their own token: everything
// else, whether it exists or not, gets one text.
func (g *Gate) Enter(ctx context.Context, who Person, text string) (Entry, error) {
	name, err := g.nameIn(text)
	if err != nil {
		return Entry{}, err
	}
	grant, err := g.Named(ctx, who, name)
	switch {
	case err == nil:
		return Entry{Grant: grant, OK: true}, nil
	case !fault.Is(err, fault.NotFound):
		return Entry{}, err
	}
	no := Entry{Message: "You have no access to it, or the App isn't installed on it.", InstallURL: g.InstallURL()}
	if _, err := g.github.App(); err != nil { // there is nothing that could be installed
		no.Message = ErrNotFound.Message
	}
	if who.github == 0 || who.limits != nil && who.limits.repos != nil {
		return no, nil
	}
	var app *github.App
	var seen github.Repository
	err = g.asPerson(ctx, who, func(a *github.App, user *github.User) (err error) {
		app = a
		seen, err = user.RepositoryNamed(ctx, name)
		return err
	})
	if github.NotFound.Is(err) || github.Forbidden.Is(err) || github.Invalid.Is(err) || github.Moved.Is(err) {
		return no, nil
	}
	if err != nil {
		return Entry{}, inWords(err)
	}
	// It may have another name by now, under which it is theirs.
	if grant, err = g.Repo(ctx, who, seen.ID); err == nil {
		return Entry{Grant: grant, OK: true}, nil
	}
	if !fault.Is(err, fault.NotFound) {
		return Entry{}, err
	}
	app.ForgetRepo(seen.ID) // it may have been installed this minute
	_, err = app.InstallationOf(ctx, seen.ID)
	switch {
	case err == nil, github.Suspended.Is(err):
		return no, nil
	case !github.NotInstalled.Is(err):
		return Entry{}, inWords(err)
	}
	no.NotInstalled, no.Message = true, "The App isn't installed on it."
	return no, nil
}

var (
	fullName = regexp.MustCompile(`^[A-Za-z0-9_][A-Za-z0-9_.-]{0,99}/[A-Za-z0-9_.-]{1,100}$`)
	scpLike  = regexp.MustCompile(`^(?:[A-Za-z0-9_.-]+@)?([A-Za-z0-9.-]+):([^/].*)$`)
)

// nameIn finds owner/name in what somebody typed or pasted.
func (g *Gate) nameIn(text string) (string, error) {
	text = strings.TrimSpace(text)
	wrong := fault.Field("repo", "Write the Repo as owner/name, or paste its address at GitHub.")
	host, path := "", text
	if u, err := url.Parse(text); err == nil && u.Scheme != "" && u.Host != "" {
		if u.Scheme != "https" && u.Scheme != "http" && u.Scheme != "ssh" && u.Scheme != "git" {
			return "", wrong
		}
		host, path = u.Hostname(), strings.Trim(u.Path, "/")
		if owner, rest, ok := strings.Cut(path, "/"); ok && u.Scheme != "ssh" { // pages of the Repo: /tree/main and the like
			name, _, _ := strings.Cut(rest, "/")
			path = owner + "/" + name
		}
	} else if m := scpLike.FindStringSubmatch(text); m != nil {
		host, path = m[1], strings.Trim(m[2], "/")
	}
	path = strings.TrimSuffix(path, ".git")
	if !fullName.MatchString(path) || strings.HasSuffix(path, "/.") || strings.HasSuffix(path, "/..") {
		return "", wrong
	}
	if host != "" {
		if at := g.host(); !strings.EqualFold(host, at) {
			return "", fault.Field("repo", "That is an address at %s; this Hub knows the Repos of %s.", host, at)
		}
	}
	return path, nil
}

// host is this Hub's GitHub.
func (g *Gate) host() string {
	web := github.Com().Web
	if app, err := g.github.App(); err == nil {
		web = app.Endpoints().Web
	}
	if u, err := url.Parse(web); err == nil {
		return u.Hostname()
	}
	return web
}
