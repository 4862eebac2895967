package githubtest

import (
	"encoding/json"
	"fmt"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"
)

// suite is what an App has to say about one commit.
type suite struct {
	id     int64
	app    *app
	repo   *repository
	sha    string
	branch string // "" for a fork's head
	status string
	runs   map[string]*[]int64 // by name, oldest first
	moved  time.Time           // when it last changed
}

// move notes that the suite changed. GitHub's times are whole seconds; here no two changes have the same.
func (su *suite) move(now time.Time) {
	if next := su.moved.Add(time.Second); now.Before(next) {
		now = next
	}
	su.moved = now
}

func (su *suite) named(name string) *[]int64 {
	if su.runs[name] == nil {
		su.runs[name] = &[]int64{}
	}
	return su.runs[name]
}

// suiteKey: an App has one suite on a commit.
type suiteKey struct {
	app, repo int64
	sha       string
}

type annotation struct {
	Path        string  `json:"path"`
	StartLine   int     `json:"start_line"`
	EndLine     int     `json:"end_line"`
	StartColumn *int    `json:"start_column"`
	EndColumn   *int    `json:"end_column"`
	Level       string  `json:"annotation_level"`
	Message     string  `json:"message"`
	Title       *string `json:"title"`
	Raw         *string `json:"raw_details"`
}

type action struct {
	Label       string `json:"label"`
	Description string `json:"description"`
	Identifier  string `json:"identifier"`
}

type checkRun struct {
	id                      int64
	suite                   *suite
	name, external, details string
	status, conclusion      string
	started, completed      time.Time
	title, summary, text    *string
	annotations             []annotation
	actions                 []action
}

// Check is a check run as a page would show it.
type Check struct {
	ID                    int64
	SHA, Name, ExternalID string
	Status, Conclusion    string
	Title, Summary, Text  string
	DetailsURL            string
	Actions               []string // identifiers
	Annotations           []Annotation
	Started, Completed    time.Time
}

// Annotation is a remark on lines of a file.
type Annotation struct {
	Path, Level, Message string
	Start, End           int
}

// Checks are the check runs on a commit, oldest first.
func (r Repo) Checks(sha string) []Check {
	r.s.mu.Lock()
	defer r.s.mu.Unlock()
	repo := r.locked()
	var out []Check
	for _, c := range sortedByID(r.s.checks) {
		if c.suite.repo == repo && c.suite.sha == sha {
			out = append(out, c.view())
		}
	}
	return out
}

func (c *checkRun) view() Check {
	v := Check{
		ID: c.id, SHA: c.suite.sha, Name: c.name, ExternalID: c.external, Status: c.status, Conclusion: c.conclusion,
		Title: deref(c.title), Summary: deref(c.summary), Text: deref(c.text), DetailsURL: c.details, Started: c.started, Completed: c.completed,
	}
	for _, a := range c.actions {
		v.Actions = append(v.Actions, a.Identifier)
	}
	for _, a := range c.annotations {
		v.Annotations = append(v.Annotations, Annotation{a.Path, a.Level, a.Message, a.StartLine, a.EndLine})
	}
	return v
}

func deref(p *string) string {
	if p == nil {
		return ""
	}
	return *p
}

// Press presses a button of a check run. Buttons are there only once the run has completed.
func (r Repo) Press(check int64, identifier string, by Account) error {
	r.s.mu.Lock()
	defer r.s.mu.Unlock()
	c := r.s.checks[check]
	switch {
	case c == nil:
		return fmt.Errorf("there is no check run %d", check)
	case c.status != "completed":
		return fmt.Errorf("check run %d shows no buttons: it is %s", check, c.status)
	case !slices.ContainsFunc(c.actions, func(a action) bool { return a.Identifier == identifier }):
		return fmt.Errorf("check run %d has no button %q", check, identifier)
	}
	r.s.tellCheck(c, by.get(), "requested_action", object{"requested_action": object{"identifier": identifier}})
	return nil
}

// Rerun presses "Re-run" of a check run. The run itself doesn't change; its suite is queued.
func (r Repo) Rerun(check int64, by Account) error {
	r.s.mu.Lock()
	defer r.s.mu.Unlock()
	c := r.s.checks[check]
	if c == nil || c.status != "completed" {
		return fmt.Errorf("check run %d can't be run again: it is not there or not completed", check)
	}
	c.suite.status = "queued"
	c.suite.move(r.s.now())
	r.s.tellCheck(c, by.get(), "rerequested", object{})
	return nil
}

// RerunAll presses "Re-run all checks" on a commit.
func (r Repo) RerunAll(sha string, by Account) {
	r.s.mu.Lock()
	defer r.s.mu.Unlock()
	repo, who := r.locked(), by.get()
	for _, su := range sortedByID(r.s.suites) {
		if su.repo == repo && su.sha == sha {
			su.status = "queued"
			su.move(r.s.now())
			r.s.tellSuite(su, who, "rerequested")
		}
	}
}

// beginSuites makes a check suite for every App that writes checks. Called with the lock.
func (s *Server) beginSuites(r *repository, sha, branch string) {
	for _, i := range sortedByID(s.installs) {
		if i.has(r) && enough(i.grants["checks"], "write") {
			if su, made := s.suite(i.app, r, sha, branch); made {
				s.tellSuite(su, r.owner, "requested")
			}
		}
	}
}

func (s *Server) suite(a *app, r *repository, sha, branch string) (su *suite, made bool) {
	key := suiteKey{a.ID, r.ID, sha}
	if su = s.suiteOf[key]; su != nil {
		return su, false
	}
	su = &suite{id: s.id(), app: a, repo: r, sha: sha, branch: branch, status: "queued", runs: map[string]*[]int64{}, moved: s.now()}
	s.suites[su.id], s.suiteOf[key] = su, su
	return su, true
}

func (s *Server) tellSuite(su *suite, by *account, act string) {
	if i := s.installationOf(su.app, su.repo); i != nil {
		s.emit(i, su.repo, by, "check_suite", act, object{"check_suite": s.suiteJSON(su)})
	}
}

func (s *Server) tellCheck(c *checkRun, by *account, act string, more object) {
	if i := s.installationOf(c.suite.app, c.suite.repo); i != nil {
		more["check_run"] = s.checkJSON(c, true)
		s.emit(i, c.suite.repo, by, "check_run", act, more)
	}
}

func (s *Server) suiteJSON(su *suite) object {
	o := object{
		"id": su.id, "node_id": node("CS", su.id), "head_branch": nil, "head_sha": su.sha, "status": su.status, "conclusion": nil,
		"url": fmt.Sprintf("%s/repos/%s/check-suites/%d", s.urls.API, su.repo.full(), su.id), "before": nil, "after": su.sha,
		"pull_requests": s.pullsOf(su), "app": s.appJSON(su.app),
		"created_at": "2026-01-01T00:00:00Z", "updated_at": stamp(su.moved),
	}
	if su.branch != "" {
		o["head_branch"] = su.branch
	}
	return o
}

// pullsOf is empty for the head of a fork (facts/github.md §3).
func (s *Server) pullsOf(su *suite) []any {
	out := []any{}
	for _, p := range su.repo.pulls {
		if p.sha == su.sha && p.state == "open" && p.head == su.repo {
			small := object{"id": su.repo.ID, "name": su.repo.name, "url": s.urls.API + "/repos/" + su.repo.full()}
			out = append(out, object{
				"id": p.id, "number": p.number, "url": fmt.Sprintf("%s/repos/%s/pulls/%d", s.urls.API, su.repo.full(), p.number),
				"head": object{"ref": p.headRef, "sha": p.sha, "repo": small}, "base": object{"ref": p.baseRef, "sha": p.baseSHA, "repo": small},
			})
		}
	}
	return out
}

func (s *Server) checkJSON(c *checkRun, event bool) object {
	text := func(p *string) any {
		if p == nil {
			return nil
		}
		return *p
	}
	url := fmt.Sprintf("%s/repos/%s/check-runs/%d", s.urls.API, c.suite.repo.full(), c.id)
	o := shape("check-run", object{
		"id": c.id, "node_id": node("CR", c.id), "name": c.name, "head_sha": c.suite.sha, "external_id": c.external,
		"status": c.status, "conclusion": nil, "started_at": stamp(c.started), "completed_at": stamp(c.completed), "url": url,
		"html_url": fmt.Sprintf("%s/%s/runs/%d", s.urls.Web, c.suite.repo.full(), c.id), "details_url": or(c.details, c.suite.app.url),
		"app": s.appJSON(c.suite.app), "check_suite": object{"id": c.suite.id}, "pull_requests": s.pullsOf(c.suite),
		"output": object{
			"title": text(c.title), "summary": text(c.summary), "text": text(c.text), "annotations_count": len(c.annotations),
			"annotations_url": url + "/annotations",
		},
	})
	if c.conclusion != "" {
		o["conclusion"] = c.conclusion
	}
	if event {
		o["check_suite"] = s.suiteJSON(c.suite)
	}
	return o
}

type checkInput struct {
	Name       *string    `json:"name"`
	HeadSHA    string     `json:"head_sha"`
	ExternalID *string    `json:"external_id"`
	DetailsURL *string    `json:"details_url"`
	Status     string     `json:"status"`
	Conclusion string     `json:"conclusion"`
	Started    *time.Time `json:"started_at"`
	Completed  *time.Time `json:"completed_at"`
	Output     *struct {
		Title       *string      `json:"title"`
		Summary     *string      `json:"summary"`
		Text        *string      `json:"text"`
		Annotations []annotation `json:"annotations"`
	} `json:"output"`
	Actions *[]action `json:"actions"`
}

var conclusions = strings.Fields("success failure neutral cancelled skipped timed_out action_required")

// problem is the first rule that the input breaks. They are GitHub's documented ones; those for sizes count bytes.
func (in checkInput) problem() (field, message string) {
	switch {
	case in.Status != "" && !slices.Contains([]string{"queued", "in_progress", "completed"}, in.Status):
		return "status", "status is not included in the list"
	case in.Conclusion != "" && !slices.Contains(conclusions, in.Conclusion):
		return "conclusion", "conclusion is not included in the list"
	case in.Status == "completed" && in.Conclusion == "":
		return "conclusion", "conclusion can't be blank when status is completed"
	}
	if o := in.Output; o != nil {
		switch {
		case deref(o.Title) == "" || o.Summary == nil:
			return "output", "title and summary are both needed"
		case len(*o.Summary) > 65535:
			return "summary", "summary exceeds a maximum bytesize of 65535"
		case len(deref(o.Text)) > 65535:
			return "text", "text exceeds a maximum bytesize of 65535"
		case len(o.Annotations) > 50:
			return "annotations", "no more than 50 annotations a request"
		}
		for _, a := range o.Annotations {
			switch {
			case a.Path == "" || a.Message == "" || a.StartLine < 1 || a.EndLine < a.StartLine:
				return "annotations", "an annotation needs path, message, start_line and end_line"
			case !slices.Contains([]string{"notice", "warning", "failure"}, a.Level):
				return "annotations", "annotation_level is not included in the list"
			case (a.StartColumn != nil || a.EndColumn != nil) && a.StartLine != a.EndLine:
				return "annotations", "columns are for annotations of one line"
			case len(a.Message) > 64<<10 || len(deref(a.Raw)) > 64<<10 || utf8.RuneCountInString(deref(a.Title)) > 255:
				return "annotations", "the annotation is too long"
			}
		}
	}
	if in.Actions != nil {
		if len(*in.Actions) > 3 {
			return "actions", "no more than 3 actions"
		}
		for _, a := range *in.Actions {
			if a.Label == "" || a.Description == "" || a.Identifier == "" || utf8.RuneCountInString(a.Label) > 20 ||
				utf8.RuneCountInString(a.Description) > 40 || utf8.RuneCountInString(a.Identifier) > 20 {
				return "actions", "label (20), description (40) and identifier (20) are needed and limited"
			}
		}
	}
	return "", ""
}

// keep takes over what the input says. A completed run stays completed (facts/github.md §3).
func (c *checkRun) keep(in checkInput, now time.Time) {
	set := func(to *string, from *string) {
		if from != nil {
			*to = *from
		}
	}
	set(&c.name, in.Name)
	set(&c.external, in.ExternalID)
	set(&c.details, in.DetailsURL)
	if in.Started != nil {
		c.started = *in.Started
	}
	switch {
	case in.Conclusion != "":
		c.conclusion = in.Conclusion
		if c.status != "completed" || in.Completed != nil {
			c.completed = now
		}
		c.status = "completed"
		if in.Completed != nil {
			c.completed = *in.Completed
		}
	case c.status != "completed" && in.Status != "":
		c.status = in.Status
	}
	if c.started.IsZero() {
		c.started = now
	}
	if o := in.Output; o != nil {
		c.title, c.summary = o.Title, o.Summary
		if o.Text != nil {
			c.text = o.Text
		}
		c.annotations = append(c.annotations, o.Annotations...)
	}
	if in.Actions != nil {
		c.actions = *in.Actions
	}
}

// checkInput reads and judges the body. It answers itself when something is wrong.
func (c *call) checkInput(r *repository) (checkInput, bool) {
	var in checkInput
	if c.who.inst() == nil {
		c.fail(http.StatusForbidden, "You must authenticate via a GitHub App.")
		return in, false
	}
	if r.archived {
		c.fail(http.StatusForbidden, "Repository was archived so is read-only.")
		return in, false
	}
	if err := json.Unmarshal(c.body, &in); err != nil {
		c.fail(http.StatusBadRequest, "Problems parsing JSON")
		return in, false
	}
	if field, message := in.problem(); field != "" {
		c.invalid("CheckRun", field, message)
		return in, false
	}
	return in, true
}

func (c *call) createCheck(r *repository) {
	in, ok := c.checkInput(r)
	if !ok {
		return
	}
	if deref(in.Name) == "" || in.HeadSHA == "" {
		c.invalid("CheckRun", "name", "name and head_sha are needed")
		return
	}
	sha := ""
	if len(in.HeadSHA) == 40 {
		sha = c.s.resolve(r, in.HeadSHA)
	}
	if sha == "" {
		c.fail(http.StatusUnprocessableEntity, "No commit found for SHA: "+in.HeadSHA)
		return
	}
	s := c.s
	s.mu.Lock()
	defer s.mu.Unlock()
	su, _ := s.suite(c.who.token.app, r, sha, "")
	run := &checkRun{id: s.id(), suite: su, status: "queued"}
	run.keep(in, s.now())
	s.checks[run.id] = run
	s.prune(run)
	su.move(s.now())
	by := s.botOf(su.app)
	s.tellCheck(run, by, "created", object{})
	if run.status == "completed" {
		s.tellCheck(run, by, "completed", object{})
	}
	c.reply(http.StatusCreated, s.checkJSON(run, false))
}

// prune keeps the newest 1000 runs of one name in a suite.
func (s *Server) prune(newest *checkRun) {
	same := newest.suite.named(newest.name)
	*same = append(*same, newest.id)
	for len(*same) > 1000 {
		delete(s.checks, (*same)[0])
		*same = (*same)[1:]
	}
}

// botOf is the account in whose name an App acts. Called with the lock.
func (s *Server) botOf(a *app) *account {
	if b := s.accountNamed(a.Slug + "[bot]"); b != nil {
		return b
	}
	b := &account{ID: s.id(), Login: a.Slug + "[bot]", Type: "Bot"}
	s.accounts[b.ID] = b
	return b
}

// checkNamed finds the run of the path. Called with the lock.
func (c *call) checkNamed(r *repository) *checkRun {
	id, _ := strconv.ParseInt(c.vars["check"], 10, 64)
	run := c.s.checks[id]
	if run == nil || run.suite.repo != r {
		c.fail(http.StatusNotFound, "Not Found")
		return nil
	}
	return run
}

func (c *call) updateCheck(r *repository) {
	in, ok := c.checkInput(r)
	if !ok {
		return
	}
	s := c.s
	s.mu.Lock()
	defer s.mu.Unlock()
	run := c.checkNamed(r)
	if run == nil {
		return
	}
	if run.suite.app != c.who.token.app {
		c.fail(http.StatusForbidden, fmt.Sprintf("Invalid app_id `%d` - check run can only be modified by the GitHub App that created it.", c.who.token.app.ID))
		return
	}
	was := run.status
	run.keep(in, s.now())
	if was != "completed" && run.status == "completed" {
		s.tellCheck(run, s.botOf(run.suite.app), "completed", object{})
	}
	c.reply(http.StatusOK, s.checkJSON(run, false))
}

func (c *call) getCheck(r *repository) {
	c.s.mu.Lock()
	defer c.s.mu.Unlock()
	if run := c.checkNamed(r); run != nil {
		c.reply(http.StatusOK, c.s.checkJSON(run, false))
	}
}

func (c *call) listAnnotations(r *repository) {
	c.s.mu.Lock()
	defer c.s.mu.Unlock()
	run := c.checkNamed(r)
	if run == nil {
		return
	}
	all := []any{}
	for _, a := range run.annotations {
		all = append(all, shape("check-annotation", object{
			"path": a.Path, "start_line": a.StartLine, "end_line": a.EndLine, "annotation_level": a.Level, "message": a.Message,
		}))
	}
	c.replyPage(all, "")
}

// listChecks answers the latest run of each name, or all of them with filter=all.
func (c *call) listChecks(r *repository) {
	sha := c.s.resolve(r, c.vars["ref"])
	if sha == "" {
		c.fail(http.StatusUnprocessableEntity, "No commit found for SHA: "+c.vars["ref"])
		return
	}
	q := c.r.URL.Query()
	c.s.mu.Lock()
	defer c.s.mu.Unlock()
	all := []any{}
	latest := map[string]bool{}
	runs := sortedByID(c.s.checks)
	slices.Reverse(runs)
	for _, run := range runs {
		key := fmt.Sprint(run.suite.id, run.name)
		switch {
		case run.suite.repo != r || run.suite.sha != sha:
		case q.Get("check_name") != "" && q.Get("check_name") != run.name:
		case q.Get("status") != "" && q.Get("status") != run.status:
		case q.Get("app_id") != "" && q.Get("app_id") != strconv.FormatInt(run.suite.app.ID, 10):
		case q.Get("filter") != "all" && latest[key]:
		default:
			latest[key] = true
			all = append(all, c.s.checkJSON(run, false))
		}
	}
	c.replyPage(all, "check_runs")
}
