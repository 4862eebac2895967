package githubtest

import (
	"encoding/base64"
	"encoding/json"
	"fmt"
	"maps"
	"net/http"
	"path"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/gorilla/mux"
)

func (s *Server) routes(m *mux.Router) {
	on := func(method, path string, h func(*call)) { m.Methods(method).Path(path).Handler(endpoint(h)) }
	// A repository is found by owner/name and, as redirects lead there, by id.
	repo := func(method, rest, permission, level string, h func(*call, *repository)) {
		e := func(c *call) {
			if r := c.repo(permission, level, rest); r != nil {
				h(c, r)
			}
		}
		on(method, "/repos/{owner}/{repo}"+rest, e)
		on(method, "/repositories/{id:[0-9]+}"+rest, e)
	}

	on("GET", "/app", (*call).getApp)
	on("GET", "/app/hook/config", (*call).getHookConfig)
	on("PATCH", "/app/hook/config", (*call).setHookConfig)
	on("GET", "/app/hook/deliveries", (*call).listDeliveries)
	on("GET", "/app/hook/deliveries/{delivery:[0-9]+}", (*call).getDelivery)
	on("POST", "/app/hook/deliveries/{delivery:[0-9]+}/attempts", (*call).redeliver)
	on("GET", "/app/installations", (*call).listInstallations)
	on("GET", "/app/installations/{installation:[0-9]+}", (*call).getInstallation)
	on("POST", "/app/installations/{installation:[0-9]+}/access_tokens", (*call).mint)
	on("POST", "/app-manifests/{code}/conversions", (*call).convert)
	on("POST", "/applications/{client}/token", (*call).checkToken)
	on("DELETE", "/applications/{client}/token", (*call).deleteToken)
	on("DELETE", "/applications/{client}/grant", (*call).deleteGrant)
	on("GET", "/installation/repositories", (*call).listInstalled)
	on("DELETE", "/installation/token", (*call).revoke)
	on("GET", "/meta", func(c *call) { c.reply(http.StatusOK, object{"verifiable_password_authentication": false}) })
	on("GET", "/orgs/{account}/installation", (*call).installationOn)
	on("GET", "/users/{account}/installation", (*call).installationOn)
	on("GET", "/rate_limit", (*call).rateLimit)
	on("GET", "/user", (*call).me)
	on("GET", "/user/installations", (*call).myInstallations)
	on("GET", "/user/installations/{installation:[0-9]+}/repositories", (*call).myRepositories)
	on("GET", "/user/{account:[0-9]+}", (*call).userByID)
	on("GET", "/users/{account}", (*call).userByLogin)

	repo("GET", "/installation", "", "", (*call).repoInstallation)
	repo("GET", "/branches/{branch:.+}", "contents", "read", (*call).getBranch)
	repo("POST", "/check-runs", "checks", "write", (*call).createCheck)
	repo("GET", "/check-runs/{check:[0-9]+}", "checks", "read", (*call).getCheck)
	repo("PATCH", "/check-runs/{check:[0-9]+}", "checks", "write", (*call).updateCheck)
	repo("GET", "/check-runs/{check:[0-9]+}/annotations", "checks", "read", (*call).listAnnotations)
	repo("GET", "/collaborators/{account}/permission", "metadata", "read", (*call).getPermission)
	repo("GET", "/commits/{ref:.+}/check-runs", "checks", "read", (*call).listChecks)
	repo("GET", "/commits/{sha:[0-9a-f]+}/pulls", "pull_requests", "read", (*call).pullsWith)
	repo("GET", "/commits/{ref:.+}", "contents", "read", (*call).getCommit)
	repo("GET", "/compare/{range:.+}", "contents", "read", (*call).compare)
	repo("GET", "/contents/{path:.*}", "contents", "read", (*call).contents)
	repo("GET", "/git/blobs/{sha:[0-9a-f]+}", "contents", "read", (*call).getBlob)
	repo("GET", "/git/commits/{sha:[0-9a-f]+}", "contents", "read", (*call).getGitCommit)
	repo("GET", "/git/trees/{tree:.+}", "contents", "read", (*call).getTree)
	repo("GET", "/pulls", "pull_requests", "read", (*call).listPulls)
	repo("GET", "/pulls/{number:[0-9]+}", "pull_requests", "read", (*call).getPull)
	repo("GET", "", "metadata", "read", (*call).getRepo)
}

func (c *call) reply(status int, v any) {
	b, err := json.Marshal(v)
	if err != nil {
		wrong("%v", err)
	}
	c.w.WriteHeader(status)
	_, _ = c.w.Write(b)
}

func (c *call) fail(status int, message string) {
	c.reply(status, object{"message": message, "documentation_url": "https://docs.github.com/rest", "status": strconv.Itoa(status)})
}

func (c *call) invalid(resource, field, message string) {
	c.reply(http.StatusUnprocessableEntity, object{
		"message": "Validation Failed", "documentation_url": "https://docs.github.com/rest", "status": "422",
		"errors": []any{object{"resource": resource, "code": "custom", "field": field, "message": message}},
	})
}

// replyPage answers one page of all, bare or under a name beside the count, with the links to the others.
func (c *call) replyPage(all []any, name string) {
	q := c.r.URL.Query()
	page, _ := strconv.Atoi(q.Get("page"))
	per, _ := strconv.Atoi(q.Get("per_page"))
	page, per = max(page, 1), min(max(per, 0), 100)
	if per == 0 {
		per = 30
	}
	from, to := min((page-1)*per, len(all)), min(page*per, len(all))
	var links []string
	link := func(n int, rel string) {
		q.Set("page", strconv.Itoa(n))
		links = append(links, fmt.Sprintf("<%s%s?%s>; rel=%q", c.s.urls.API, c.r.URL.Path, q.Encode(), rel))
	}
	if to < len(all) {
		link(page+1, "next")
		link((len(all)+per-1)/per, "last")
	}
	if page > 1 {
		link(page-1, "prev")
		link(1, "first")
	}
	if links != nil {
		c.w.header.Set("Link", strings.Join(links, ", "))
	}
	if name == "" {
		c.reply(http.StatusOK, all[from:to])
		return
	}
	c.reply(http.StatusOK, object{"total_count": len(all), name: all[from:to]})
}

// repo finds the repository of the path and checks that c may use it. It answers itself otherwise: a redirect where the
// name has changed.
func (c *call) repo(permission, level, rest string) *repository {
	s := c.s
	s.mu.Lock()
	defer s.mu.Unlock()
	var r *repository
	if id := c.vars["id"]; id != "" {
		n, _ := strconv.ParseInt(id, 10, 64)
		r = s.repos[n]
	} else if r = s.repoNamed(c.vars["owner"], c.vars["repo"]); r == nil {
		full := c.vars["owner"] + "/" + c.vars["repo"]
		if moved := s.repos[s.oldNames[strings.ToLower(full)]]; moved != nil && s.may(c.who, moved, permission, "read") == nil {
			to := fmt.Sprintf("%s/repositories/%d%s", s.urls.API, moved.ID, strings.TrimPrefix(c.r.URL.Path, "/repos/"+full))
			if c.r.URL.RawQuery != "" {
				to += "?" + c.r.URL.RawQuery
			}
			status := http.StatusMovedPermanently
			if c.r.Method != http.MethodGet {
				status = http.StatusTemporaryRedirect
			}
			c.w.header.Set("Location", to)
			c.reply(status, object{"message": "Moved Permanently", "url": to, "documentation_url": "https://docs.github.com/rest"})
			return nil
		}
	}
	if r == nil {
		c.fail(http.StatusNotFound, "Not Found")
		return nil
	}
	if permission == "" {
		return r
	}
	if no := s.may(c.who, r, permission, level); no != nil {
		c.fail(no.status, no.message)
		return nil
	}
	return r
}

func (c *call) getRepo(r *repository) {
	c.s.mu.Lock()
	defer c.s.mu.Unlock()
	level := ""
	if u := c.who.user(); u != nil {
		if level = c.s.permission(u, r); level == "" {
			level = "read" // public
		}
	}
	c.reply(http.StatusOK, c.s.repoJSON("full-repository", r, level))
}

// getPermission says "read" of everyone for a public repository (facts/github.md §3).
func (c *call) getPermission(r *repository) {
	c.s.mu.Lock()
	defer c.s.mu.Unlock()
	who := c.s.accountNamed(c.vars["account"])
	if who == nil {
		c.fail(http.StatusNotFound, "Not Found")
		return
	}
	role := c.s.permission(who, r)
	if role == "" {
		role = "none"
		if !r.private {
			role = "read"
		}
	}
	coarse := map[string]string{"maintain": "write", "triage": "read"}
	user := c.s.simpleUser(who)
	user["permissions"], user["role_name"] = permissions(role), role
	c.reply(http.StatusOK, object{"permission": or(coarse[role], role), "role_name": role, "user": user})
}

func (c *call) getBranch(r *repository) {
	name := c.vars["branch"]
	sha := c.s.resolve(r, "refs/heads/"+name)
	info, err := c.s.commitInfo(r, sha)
	if sha == "" || err != nil {
		c.fail(http.StatusNotFound, "Branch not found")
		return
	}
	c.s.mu.Lock()
	defer c.s.mu.Unlock()
	self := c.s.urls.API + "/repos/" + r.full() + "/branches/" + name
	c.reply(http.StatusOK, shape("branch-with-protection", object{
		"name": name, "commit": c.s.commitJSON(r, info), "_links": object{"self": self, "html": c.s.urls.Web + "/" + r.full() + "/tree/" + name},
		"protection": object{"enabled": false}, "protection_url": self + "/protection",
	}))
}

// commitOf is the commit that the path or query names; it answers itself if there is none.
func (c *call) commitOf(r *repository, ref string) (commitInfo, bool) {
	if ref == "" {
		ref = c.s.branchOf(r)
	}
	sha := c.s.resolve(r, ref)
	if sha == "" {
		if empty := len(c.s.refs(r)) == 0; empty {
			c.fail(http.StatusConflict, "Git Repository is empty.")
		} else {
			c.fail(http.StatusUnprocessableEntity, "No commit found for SHA: "+ref)
		}
		return commitInfo{}, false
	}
	info, err := c.s.commitInfo(r, sha)
	if err != nil {
		c.fail(http.StatusInternalServerError, err.Error())
		return commitInfo{}, false
	}
	return info, true
}

func (c *call) getCommit(r *repository) {
	if info, ok := c.commitOf(r, c.vars["ref"]); ok {
		c.s.mu.Lock()
		defer c.s.mu.Unlock()
		c.reply(http.StatusOK, c.s.commitJSON(r, info))
	}
}

func (c *call) getGitCommit(r *repository) {
	info, err := c.s.commitInfo(r, c.vars["sha"])
	if err != nil {
		c.fail(http.StatusNotFound, "Not Found")
		return
	}
	c.s.mu.Lock()
	defer c.s.mu.Unlock()
	whole := c.s.commitJSON(r, info)
	inner := whole["commit"].(object)
	parents := []any{}
	for _, p := range info.Parents {
		parents = append(parents, object{"sha": p, "url": whole["url"], "html_url": whole["html_url"]})
	}
	c.reply(http.StatusOK, shape("git-commit", object{
		"sha": info.SHA, "message": info.Message, "tree": inner["tree"], "author": inner["author"], "committer": inner["committer"],
		"url": inner["url"], "html_url": whole["html_url"], "parents": parents,
	}))
}

func (c *call) compare(r *repository) {
	base, head, ok := strings.Cut(c.vars["range"], "...")
	if !ok {
		c.fail(http.StatusNotFound, "Not Found")
		return
	}
	from, ok := c.commitOf(r, base)
	if !ok {
		return
	}
	to, ok := c.commitOf(r, head)
	if !ok {
		return
	}
	s, dir := c.s, c.s.folder(r)
	common, err := s.git(dir, nil, "merge-base", from.SHA, to.SHA)
	if err != nil {
		c.fail(http.StatusNotFound, "No common ancestor between "+base+" and "+head+".")
		return
	}
	fork, err := s.commitInfo(r, strings.TrimSpace(common))
	if err != nil {
		c.fail(http.StatusInternalServerError, err.Error())
		return
	}
	ahead, _ := s.git(dir, nil, "rev-list", "--reverse", fork.SHA+".."+to.SHA)
	behind, _ := s.git(dir, nil, "rev-list", fork.SHA+".."+from.SHA)
	changed, _ := s.git(dir, nil, "diff", "--raw", "--abbrev=40", "--no-renames", "-z", fork.SHA, to.SHA)
	s.mu.Lock()
	defer s.mu.Unlock()
	commits := []any{}
	for _, sha := range strings.Fields(ahead) {
		if info, err := s.commitInfo(r, sha); err == nil {
			commits = append(commits, s.commitJSON(r, info))
		}
	}
	files := []any{}
	parts := strings.Split(changed, "\x00")
	for i := 0; i+1 < len(parts); i += 2 {
		f := strings.Fields(parts[i])
		status := map[string]string{"A": "added", "D": "removed"}[f[4]]
		files = append(files, shape("diff-entry", object{"filename": parts[i+1], "sha": f[3], "status": or(status, "modified")}))
	}
	n, m := len(commits), len(strings.Fields(behind))
	status := "identical"
	switch {
	case n > 0 && m > 0:
		status = "diverged"
	case n > 0:
		status = "ahead"
	case m > 0:
		status = "behind"
	}
	c.reply(http.StatusOK, shape("commit-comparison", object{
		"base_commit": s.commitJSON(r, from), "merge_base_commit": s.commitJSON(r, fork), "status": status, "ahead_by": n,
		"behind_by": m, "total_commits": n, "commits": commits, "files": files,
	}))
}

// maxContents is from where on the contents API gives no content (GitHub: 1 MB; up to 100 MB only raw).
const maxContents = 1 << 20

func (c *call) contents(r *repository) {
	commit, ok := c.commitOf(r, c.r.URL.Query().Get("ref"))
	if !ok {
		return
	}
	name := strings.Trim(c.vars["path"], "/")
	e, err := c.s.at(r, commit.SHA, name)
	if err != nil {
		c.fail(http.StatusNotFound, "Not Found")
		return
	}
	s := c.s
	if e.Mode == "120000" { // one to an ordinary file is answered as that file
		if target, err := s.blob(r, e.SHA); err == nil && !strings.HasPrefix(target, "/") {
			if f, err := s.at(r, commit.SHA, path.Join(path.Dir(name), target)); err == nil && f.Type == "blob" && f.Mode != "120000" {
				e = f
			}
		}
	}
	fields := func(e entry, full string) object {
		self := s.urls.API + "/repos/" + r.full() + "/contents/" + full
		return object{
			"name": path.Base(full), "path": full, "sha": e.SHA, "size": e.Size, "url": self, "html_url": nil, "git_url": nil, "download_url": nil,
			"_links": object{"self": self, "git": nil, "html": nil},
		}
	}
	switch {
	case e.Type == "tree":
		entries, err := s.tree(r, e.SHA)
		if err != nil {
			c.fail(http.StatusInternalServerError, err.Error())
			return
		}
		all := []any{}
		for _, e := range entries[:min(len(entries), 1000)] {
			o := fields(e, strings.TrimPrefix(name+"/"+e.Path, "/"))
			o["type"] = map[string]string{"tree": "dir", "commit": "file"}[e.Type] // a submodule is called a file in lists
			if e.Mode == "120000" {
				o["type"] = "symlink"
			} else if e.Type == "blob" {
				o["type"] = "file"
			}
			all = append(all, o)
		}
		c.reply(http.StatusOK, all)
	case e.Type == "commit":
		o := fields(e, name)
		o["type"], o["submodule_git_url"] = "submodule", "https://example.invalid/submodule.git"
		c.reply(http.StatusOK, o)
	case e.Mode == "120000":
		target, _ := s.blob(r, e.SHA)
		o := fields(e, name)
		o["type"], o["target"] = "symlink", target
		c.reply(http.StatusOK, o)
	default:
		body, err := s.blob(r, e.SHA)
		if err != nil {
			c.fail(http.StatusInternalServerError, err.Error())
			return
		}
		if c.raw() {
			_, _ = c.w.Write([]byte(body))
			return
		}
		o := fields(e, name)
		o["type"], o["encoding"], o["content"] = "file", "base64", base64.StdEncoding.EncodeToString([]byte(body))
		if e.Size > maxContents {
			o["encoding"], o["content"] = "none", ""
		}
		c.reply(http.StatusOK, o)
	}
}

// raw says whether the file itself is asked for, not JSON about it.
func (c *call) raw() bool {
	if !strings.Contains(c.r.Header.Get("Accept"), "raw") {
		return false
	}
	c.w.header.Set("Content-Type", "application/vnd.github.raw+json; charset=utf-8")
	return true
}

func (c *call) getBlob(r *repository) {
	body, err := c.s.blob(r, c.vars["sha"])
	switch {
	case err != nil:
		c.fail(http.StatusNotFound, "Not Found")
	case c.raw():
		_, _ = c.w.Write([]byte(body))
	default:
		c.reply(http.StatusOK, object{
			"sha": c.vars["sha"], "node_id": "B_" + c.vars["sha"], "size": len(body), "encoding": "base64",
			"content": base64.StdEncoding.EncodeToString([]byte(body)), "url": c.s.urls.API + c.r.URL.Path,
		})
	}
}

func (c *call) getTree(r *repository) {
	treeish := c.vars["tree"]
	entries, err := c.s.tree(r, treeish)
	if err != nil || strings.HasPrefix(treeish, "-") {
		if len(c.s.refs(r)) == 0 {
			c.fail(http.StatusConflict, "Git Repository is empty.")
			return
		}
		c.fail(http.StatusNotFound, "Not Found")
		return
	}
	tree := []any{}
	for _, e := range entries {
		o := object{"path": e.Path, "mode": e.Mode, "type": e.Type, "sha": e.SHA, "url": c.s.urls.API + "/git/" + e.SHA}
		if e.Type == "blob" {
			o["size"] = e.Size
		}
		tree = append(tree, o)
	}
	sha, err := c.s.git(c.s.folder(r), nil, "rev-parse", "--verify", "--end-of-options", treeish+"^{tree}")
	if err != nil {
		c.fail(http.StatusNotFound, "Not Found")
		return
	}
	c.reply(http.StatusOK, object{"sha": strings.TrimSpace(sha), "url": c.s.urls.API + c.r.URL.Path, "tree": tree, "truncated": false})
}

func (c *call) listPulls(r *repository) {
	q := c.r.URL.Query()
	c.s.mu.Lock()
	defer c.s.mu.Unlock()
	all := []any{}
	pulls := slices.Clone(r.pulls)
	if q.Get("direction") != "asc" {
		slices.Reverse(pulls)
	}
	for _, p := range pulls {
		state := or(q.Get("state"), "open")
		if (state == "all" || state == p.state) && (q.Get("base") == "" || q.Get("base") == p.baseRef) {
			all = append(all, c.s.pullJSON(p, true))
		}
	}
	c.replyPage(all, "")
}

func (c *call) getPull(r *repository) {
	n, _ := strconv.Atoi(c.vars["number"])
	c.s.mu.Lock()
	defer c.s.mu.Unlock()
	if n < 1 || n > len(r.pulls) {
		c.fail(http.StatusNotFound, "Not Found")
		return
	}
	c.reply(http.StatusOK, c.s.pullJSON(r.pulls[n-1], false))
}

// pullsWith are the pull requests that brought a commit, or that have it as head.
func (c *call) pullsWith(r *repository) {
	c.s.mu.Lock()
	defer c.s.mu.Unlock()
	all := []any{}
	for _, p := range r.pulls {
		if p.mergeSHA == c.vars["sha"] || p.sha == c.vars["sha"] {
			all = append(all, c.s.pullJSON(p, true))
		}
	}
	c.replyPage(all, "")
}

func (c *call) rateLimit() {
	c.s.mu.Lock()
	defer c.s.mu.Unlock()
	rt := c.s.rates[c.who.name()]
	if rt == nil {
		if c.s.opts.GHES {
			c.fail(http.StatusNotFound, "Rate limiting is not enabled.")
			return
		}
		rt = &rate{limit: 5000, remaining: 5000, reset: c.s.now().Add(time.Hour)}
	}
	one := object{"limit": rt.limit, "remaining": rt.remaining, "reset": rt.reset.Unix(), "used": rt.limit - rt.remaining}
	c.reply(http.StatusOK, object{"resources": object{"core": one, "search": maps.Clone(one)}, "rate": one})
}
