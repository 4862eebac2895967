package githubtest

import (
	_ "embed"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"time"
)

type object = map[string]any

// skeletons has for each of GitHub's schemas the least that it accepts; checked/cut.go makes it.
//
//go:embed skeletons.json
var skeletons []byte

var leasts = func() map[string]json.RawMessage {
	var m map[string]json.RawMessage
	if err := json.Unmarshal(skeletons, &m); err != nil {
		panic("githubtest: skeletons.json: " + err.Error())
	}
	return m
}()

// shape is a new object of GitHub's schema name, with over laid over it.
func shape(name string, over object) object {
	var o object
	if err := json.Unmarshal(leasts[name], &o); err != nil || o == nil {
		wrong("no skeleton of %s: %v", name, err)
	}
	maps.Copy(o, over)
	return o
}

func stamp(t time.Time) any {
	if t.IsZero() {
		return nil
	}
	return t.UTC().Format(time.RFC3339)
}

func node(kind string, id int64) string { return fmt.Sprintf("%s_%d", kind, id) }

func (s *Server) userFields(a *account) object {
	return object{
		"id": a.ID, "login": a.Login, "type": a.Type, "node_id": node("U", a.ID), "url": s.urls.API + "/users/" + a.Login,
		"html_url": s.urls.Web + "/" + a.Login, "avatar_url": s.urls.Web + "/avatars/u/" + fmt.Sprint(a.ID), "gravatar_id": "",
	}
}

func (s *Server) simpleUser(a *account) object { return shape("simple-user", s.userFields(a)) }

func permissions(level string) object {
	return object{
		"admin": atLeast(level, "admin"), "maintain": atLeast(level, "maintain"), "push": atLeast(level, "write"),
		"triage": atLeast(level, "triage"), "pull": atLeast(level, "read"),
	}
}

// repoJSON is a repository as schema name says ("repository", "full-repository"), for someone with access level.
func (s *Server) repoJSON(name string, r *repository, level string) object {
	visibility := "public"
	if r.private {
		visibility = "private"
	}
	o := shape(name, object{
		"id": r.ID, "node_id": node("R", r.ID), "name": r.name, "full_name": r.full(), "private": r.private,
		"owner": s.simpleUser(r.owner), "html_url": s.urls.Web + "/" + r.full(), "url": s.urls.API + "/repos/" + r.full(),
		"clone_url": s.urls.Web + "/" + r.full() + ".git", "git_url": "git:" + s.urls.Web[len("http:"):] + "/" + r.full() + ".git",
		"ssh_url": "git@github.example:" + r.full() + ".git", "default_branch": r.branch, "archived": r.archived,
		"fork": r.parent != nil, "visibility": visibility, "disabled": false, "topics": []any{},
		"created_at": "2026-01-01T00:00:00Z", "updated_at": "2026-01-01T00:00:00Z", "pushed_at": "2026-01-01T00:00:00Z",
		"permissions": permissions(level),
	})
	if name == "full-repository" && r.parent != nil {
		o["parent"] = s.repoJSON("repository", r.parent, "")
		o["source"] = o["parent"]
	}
	return o
}

// partial are repositories as events of installations have them.
func (s *Server) partial(repos []*repository) []any {
	out := []any{}
	for _, r := range repos {
		out = append(out, object{
			"id": r.ID, "node_id": node("R", r.ID), "name": r.name, "full_name": r.full(), "private": r.private,
		})
	}
	return out
}

func (s *Server) installJSON(i *installation) object {
	selection := "selected"
	if i.all {
		selection = "all"
	}
	o := shape("installation", object{
		"id": i.ID, "account": s.simpleUser(i.account), "app_id": i.app.ID, "app_slug": i.app.Slug, "client_id": i.app.ClientID,
		"target_id": i.account.ID, "target_type": i.account.Type, "repository_selection": selection, "permissions": i.grants,
		"events": i.app.events, "html_url": fmt.Sprintf("%s/settings/installations/%d", s.urls.Web, i.ID),
		"access_tokens_url": fmt.Sprintf("%s/app/installations/%d/access_tokens", s.urls.API, i.ID),
		"repositories_url":  s.urls.API + "/installation/repositories",
	})
	if i.suspended {
		o["suspended_at"], o["suspended_by"] = "2026-01-01T00:00:00Z", s.simpleUser(i.account)
	}
	return o
}

func (s *Server) appJSON(a *app) object {
	n := 0
	for _, i := range s.installs {
		if i.app == a {
			n++
		}
	}
	return object{
		"id": a.ID, "slug": a.Slug, "client_id": a.ClientID, "node_id": node("A", a.ID), "owner": s.simpleUser(a.owner),
		"name": a.Name, "description": a.description, "external_url": a.url, "html_url": s.appPage(a),
		"created_at": "2026-01-01T00:00:00Z", "updated_at": "2026-01-01T00:00:00Z", "permissions": a.grants, "events": a.events,
		"installations_count": n,
	}
}

// appPage differs on an Enterprise Server (facts/github.md §1, 25).
func (s *Server) appPage(a *app) string {
	if s.opts.GHES {
		return s.urls.Web + "/github-apps/" + a.Slug
	}
	return s.urls.Web + "/apps/" + a.Slug
}

// pullJSON is a pull request; whole adds what GitHub leaves out in lists.
func (s *Server) pullJSON(p *pull, list bool) object {
	name := "pull-request"
	if list {
		name = "pull-request-simple"
	}
	side := func(r *repository, ref, sha string) object {
		o := object{"label": ref, "ref": ref, "sha": sha, "user": nil, "repo": nil}
		if r != nil && s.repos[r.ID] == r {
			o["label"], o["user"] = r.owner.Login+":"+ref, s.simpleUser(r.owner)
			o["repo"] = s.repoJSON("repository", r, "")
		} else {
			o["label"], o["user"] = "unknown repository", s.simpleUser(p.author)
		}
		return o
	}
	o := shape(name, object{
		"id": p.id, "node_id": node("PR", p.id), "number": p.number, "state": p.state, "title": p.title, "body": p.body,
		"user": s.simpleUser(p.author), "draft": p.draft, "locked": false, "labels": []any{}, "assignees": []any{},
		"url":      fmt.Sprintf("%s/repos/%s/pulls/%d", s.urls.API, p.base.full(), p.number),
		"html_url": fmt.Sprintf("%s/%s/pull/%d", s.urls.Web, p.base.full(), p.number),
		"base":     side(p.base, p.baseRef, p.baseSHA), "head": side(p.head, p.headRef, p.sha),
		"created_at": stamp(p.created), "updated_at": stamp(p.created), "closed_at": nil, "merged_at": stamp(p.mergedAt),
		"merge_commit_sha": nil,
	})
	if p.state == "closed" {
		o["closed_at"] = stamp(s.now())
	}
	if p.mergeSHA != "" {
		o["merge_commit_sha"] = p.mergeSHA
	}
	if !list {
		o["merged"], o["mergeable"], o["mergeable_state"], o["merged_by"] = p.merged, !p.merged, "clean", nil
		if p.mergedBy != nil {
			o["merged_by"] = s.simpleUser(p.mergedBy)
		}
	}
	return o
}

func (s *Server) commitJSON(r *repository, c commitInfo) object {
	url := s.urls.API + "/repos/" + r.full()
	who := object{"name": c.Name, "email": c.Email, "date": c.Date}
	parents := []any{}
	for _, p := range c.Parents {
		parents = append(parents, object{"sha": p, "url": url + "/commits/" + p})
	}
	return shape("commit", object{
		"sha": c.SHA, "node_id": "C_" + c.SHA, "url": url + "/commits/" + c.SHA, "html_url": s.urls.Web + "/" + r.full() + "/commit/" + c.SHA,
		"parents": parents, "author": nil, "committer": nil,
		"commit": object{
			"author": who, "committer": who, "message": c.Message, "comment_count": 0, "url": url + "/git/commits/" + c.SHA,
			"tree": object{"sha": c.Tree, "url": url + "/git/trees/" + c.Tree},
		},
	})
}

func sortedByID[T any](m map[int64]T) []T {
	var out []T
	for _, id := range slices.Sorted(maps.Keys(m)) {
		out = append(out, m[id])
	}
	return out
}
