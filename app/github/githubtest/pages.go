package githubtest

import (
	"bytes"
	_ "embed"
	"fmt"
	"html/template"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/gorilla/mux"
)

//go:embed pages.html
var pageText string

var pages = template.Must(template.New("").Parse(pageText))

// web is GitHub's website as far as the Hub sends browsers there, and git over HTTP. Nobody signs in to it: every form asks
// as whom one acts.
func (s *Server) web() http.Handler {
	m := mux.NewRouter().SkipClean(true)
	m.HandleFunc("/", s.home).Methods("GET")
	m.HandleFunc("/login/oauth/authorize", s.authorizePage).Methods("GET", "POST")
	m.HandleFunc("/login/oauth/access_token", s.accessToken).Methods("POST")
	m.HandleFunc("/settings/apps/new", s.manifestPage).Methods("POST")
	m.HandleFunc("/organizations/{org}/settings/apps/new", s.manifestPage).Methods("POST")
	prefix := "/apps/"
	if s.opts.GHES {
		prefix = "/github-apps/"
	}
	m.HandleFunc(prefix+"{slug}/installations/new", s.installPage).Methods("GET", "POST")
	m.HandleFunc("/settings/installations/{id:[0-9]+}", s.installationPage).Methods("GET", "POST")
	for _, rest := range []string{"info/refs", "git-upload-pack", "git-receive-pack"} {
		m.HandleFunc("/{owner}/{repo}/"+rest, func(w http.ResponseWriter, r *http.Request) {
			v := mux.Vars(r)
			f := s.fault(r.Method, r.URL.Path)
			if f.instead() {
				a := &answer{header: http.Header{}}
				f.answer(a)
				s.record(r, nil, principal{}, a.status)
				f.send(s.ctx, w, r, a)
				return
			}
			if f != nil {
				t := time.NewTimer(f.Delay)
				defer t.Stop()
				select {
				case <-t.C:
				case <-r.Context().Done():
				}
				if f.Cut > 0 {
					w = &cutter{ResponseWriter: w, left: f.Cut}
				}
			}
			s.serveGit(w, r, v["owner"], v["repo"], rest)
		})
	}
	m.HandleFunc("/{owner}/{repo}/{page:pull|commit|runs}/{id}", s.repoPage).Methods("GET")
	m.HandleFunc("/{owner}/{repo}", s.repoPage).Methods("GET")
	m.HandleFunc("/{owner}/{repo}/do", s.repoAct).Methods("POST")
	return m
}

// cutter ends the connection in the middle of an answer.
type cutter struct {
	http.ResponseWriter
	left int
}

func (c *cutter) Write(b []byte) (int, error) {
	if len(b) < c.left {
		c.left -= len(b)
		return c.ResponseWriter.Write(b)
	}
	_, _ = c.ResponseWriter.Write(b[:c.left])
	_ = http.NewResponseController(c.ResponseWriter).Flush()
	panic(http.ErrAbortHandler)
}

func (s *Server) page(w http.ResponseWriter, name string, data object) {
	s.mu.Lock()
	var people, all []*account
	for _, a := range sortedByID(s.accounts) {
		all = append(all, a)
		if a.Type == "User" {
			people = append(people, a)
		}
	}
	s.mu.Unlock()
	data["People"], data["Accounts"] = people, all
	var out bytes.Buffer
	if err := pages.ExecuteTemplate(&out, name, data); err != nil {
		http.Error(w, err.Error(), http.StatusInternalServerError)
		return
	}
	w.Header().Set("Content-Type", "text/html; charset=utf-8")
	_, _ = out.WriteTo(w)
}

func (s *Server) wrongPage(w http.ResponseWriter, err error) {
	w.WriteHeader(http.StatusUnprocessableEntity)
	s.page(w, "wrong", object{"Message": err.Error()})
}

// actor is the account that a form field names, or nil.
func (s *Server) actor(r *http.Request, field string) *account {
	id, _ := strconv.ParseInt(r.PostFormValue(field), 10, 64)
	return s.accounts[id]
}

func (s *Server) home(w http.ResponseWriter, _ *http.Request) {
	s.mu.Lock()
	var repos []string
	for _, r := range sortedByID(s.repos) {
		repos = append(repos, r.full())
	}
	type line struct{ Name, Page string }
	var apps []line
	for _, a := range sortedByID(s.apps) {
		apps = append(apps, line{a.Name, s.appPage(a) + "/installations/new"})
	}
	var installed []line
	for _, i := range sortedByID(s.installs) {
		installed = append(installed, line{i.app.Name + " on " + i.account.Login, "/settings/installations/" + strconv.FormatInt(i.ID, 10)})
	}
	s.mu.Unlock()
	s.page(w, "home", object{"Repos": repos, "Apps": apps, "Installed": installed})
}

func (s *Server) authorizePage(w http.ResponseWriter, r *http.Request) {
	s.mu.Lock()
	a, _, err := s.signIn(r.URL.Query())
	s.mu.Unlock()
	if err != nil {
		s.wrongPage(w, err)
		return
	}
	if r.Method == http.MethodGet {
		s.page(w, "authorize", object{"App": a.Name, "Action": r.URL.RequestURI()})
		return
	}
	s.mu.Lock()
	var back string
	if who := s.actor(r, "as"); who != nil {
		back, err = s.authorize(r.URL.Query(), who)
	}
	s.mu.Unlock()
	s.goBack(w, r, back, err)
}

func (s *Server) goBack(w http.ResponseWriter, r *http.Request, to string, err error) {
	switch {
	case err != nil:
		s.wrongPage(w, err)
	case to == "":
		http.Redirect(w, r, "/", http.StatusSeeOther)
	default:
		http.Redirect(w, r, to, http.StatusFound)
	}
}

func (s *Server) manifestPage(w http.ResponseWriter, r *http.Request) {
	m, err := readManifest(r.PostFormValue("manifest"))
	if err != nil {
		s.wrongPage(w, err)
		return
	}
	s.mu.Lock()
	owner := s.actor(r, "as")
	if org := mux.Vars(r)["org"]; org != "" && owner != nil {
		if o := s.accountNamed(org); o != nil && o.members[owner.ID] == "admin" {
			owner = o
		} else {
			s.mu.Unlock()
			http.Error(w, "Not Found", http.StatusNotFound)
			return
		}
	}
	if owner == nil {
		s.mu.Unlock()
		s.page(w, "manifest", object{"Name": m.Name, "Manifest": r.PostFormValue("manifest"), "Action": r.URL.RequestURI(), "Permissions": m.DefaultPermissions})
		return
	}
	back, err := s.fromManifest(m, r.URL.Query().Get("state"), owner)
	s.mu.Unlock()
	s.goBack(w, r, back, err)
}

func (s *Server) installPage(w http.ResponseWriter, r *http.Request) {
	s.mu.Lock()
	var a *app
	for _, other := range s.apps {
		if other.Slug == mux.Vars(r)["slug"] {
			a = other
		}
	}
	if a == nil {
		s.mu.Unlock()
		http.NotFound(w, r)
		return
	}
	by, on := s.actor(r, "as"), s.actor(r, "on")
	if r.Method == http.MethodGet || by == nil || on == nil {
		var repos []object
		for _, repo := range sortedByID(s.repos) {
			repos = append(repos, object{"ID": repo.ID, "Name": repo.full()})
		}
		s.mu.Unlock()
		s.page(w, "install", object{"App": a.Name, "Action": r.URL.RequestURI(), "Repos": repos})
		return
	}
	var chosen []*repository
	for _, id := range r.PostForm["repo"] {
		n, _ := strconv.ParseInt(id, 10, 64)
		if repo := s.repos[n]; repo != nil && repo.owner == on {
			chosen = append(chosen, repo)
		}
	}
	var i *installation
	for _, other := range s.installs {
		if other.app == a && other.account == on {
			i = other
		}
	}
	action := "install"
	switch {
	case i == nil:
		i = s.install(a, on, by, chosen)
	case !i.all:
		action = "update"
		i.repos = map[int64]bool{}
		for _, repo := range chosen {
			i.repos[repo.ID] = true
		}
		s.emitInstalled(i, by, "added", chosen)
	}
	back := s.setup(i, action, r.URL.Query())
	if action == "update" && !a.setupOnUpdate {
		back = ""
	}
	s.mu.Unlock()
	s.goBack(w, r, back, nil)
}

func (s *Server) installationPage(w http.ResponseWriter, r *http.Request) {
	id, _ := strconv.ParseInt(mux.Vars(r)["id"], 10, 64)
	s.mu.Lock()
	i := s.installs[id]
	if i == nil {
		s.mu.Unlock()
		http.NotFound(w, r)
		return
	}
	data := object{"App": i.app.Name, "Account": i.account.Login, "Suspended": i.suspended}
	s.mu.Unlock()
	if r.Method == http.MethodPost {
		inst := Installation{s, id}
		switch r.PostFormValue("do") {
		case "suspend":
			inst.Suspend(true)
		case "unsuspend":
			inst.Suspend(false)
		case "remove":
			inst.Remove()
		}
		http.Redirect(w, r, "/", http.StatusSeeOther)
		return
	}
	s.page(w, "installation", data)
}

func (s *Server) repoPage(w http.ResponseWriter, r *http.Request) {
	v := mux.Vars(r)
	s.mu.Lock()
	repo := s.repoNamed(v["owner"], strings.TrimSuffix(v["repo"], ".git"))
	if repo == nil {
		s.mu.Unlock()
		http.NotFound(w, r)
		return
	}
	type run struct {
		Check
		Buttons []action
	}
	runs := map[string][]run{}
	for _, c := range sortedByID(s.checks) {
		if c.suite.repo == repo {
			runs[c.suite.sha] = append(runs[c.suite.sha], run{c.view(), c.actions})
		}
	}
	type proposal struct {
		Number     int
		Title, SHA string
		State      string
		Runs       []run
	}
	var pulls []proposal
	for _, p := range slices.Backward(repo.pulls) {
		state := p.state
		if p.merged {
			state = "merged"
		}
		pulls = append(pulls, proposal{p.number, p.title, p.sha, state, runs[p.sha]})
	}
	data := object{"Repo": repo.full(), "Branch": repo.branch, "Pulls": pulls}
	s.mu.Unlock()
	head := s.resolve(repo, "refs/heads/"+repo.branch)
	data["Head"], data["Runs"] = head, runs[head]
	data["With"] = func(one run) object {
		return object{"Run": one, "Repo": data["Repo"], "People": data["People"]}
	}
	s.page(w, "repo", data)
}

// repoAct is what the forms of a repository's page do.
func (s *Server) repoAct(w http.ResponseWriter, r *http.Request) {
	v := mux.Vars(r)
	s.mu.Lock()
	found := s.repoNamed(v["owner"], v["repo"])
	who := s.actor(r, "as")
	s.mu.Unlock()
	if found == nil || who == nil {
		http.NotFound(w, r)
		return
	}
	defer func() {
		if v := recover(); v != nil { // an impossible scene: a merge with conflicts, a path that is none
			s.wrongPage(w, fmt.Errorf("%v", v))
		}
	}()
	repo, by := Repo{s, found.ID}, Account{s, who.ID}
	id, _ := strconv.ParseInt(r.PostFormValue("id"), 10, 64)
	var err error
	switch do, button, _ := strings.Cut(r.PostFormValue("do"), ":"); do {
	case "propose":
		path := r.PostFormValue("path")
		repo.Propose(by, "proposal-"+random(3), Files{path: Text(strings.ReplaceAll(r.PostFormValue("content"), "\r\n", "\n"))})
	case "merge":
		if p := (Pull{repo, int(id)}); p.get().state == "open" {
			p.Merge(by, "merge")
		}
	case "close":
		Pull{repo, int(id)}.Close(by, true)
	case "rerun":
		err = repo.Rerun(id, by)
	case "press":
		err = repo.Press(id, button, by)
	}
	if err != nil {
		s.wrongPage(w, err)
		return
	}
	http.Redirect(w, r, "/"+url.PathEscape(v["owner"])+"/"+url.PathEscape(v["repo"]), http.StatusSeeOther)
}
