package github

import (
	"context"
	"fmt"
	"net/http"
	"net/url"
	"strconv"
	"time"
	"unicode/utf8"

	ghapi "github.com/google/go-github/v62/github"
)

// CheckRun is what GitHub should show on a commit. ExternalID is ours: it finds the run again after an answer was lost.
type CheckRun struct {
	ID                   int64
	SHA, Name            string
	ExternalID           string
	DetailsURL           string
	Status               string // queued, in_progress, completed
	Conclusion           string // of a completed one: success, failure, neutral, cancelled, skipped, timed_out, action_required
	Started, Completed   time.Time
	Title, Summary, Text string // Markdown; Title and Summary together or not at all
	Annotations          []Annotation
	// Buttons show only once the run has completed (facts/github.md §3). None clears those of before.
	Buttons []Button
	// Noted is how many annotations GitHub has by now. Only answers have it.
	Noted int
}

// Annotation is a remark on lines of a file, both counted from 1. Columns are only for one line; 0 is none.
type Annotation struct {
	Path                   string
	Start, End             int
	StartColumn, EndColumn int
	Level                  string // notice, warning, failure
	Title, Message         string
}

// Button is something to press; Identifier comes back in the event check_run.requested_action.
type Button struct{ Label, Description, Identifier string }

// GitHub's limits. Those of texts count bytes (facts/github.md §3).
const (
	MaxCheckText    = 65535
	MaxButtons      = 3
	maxLabel        = 20
	maxDescription  = 40
	maxIdentifier   = 20
	annotationsEach = 50
	maxMessage      = 64 << 10
	maxTitle        = 255
)

// Clip shortens s to limit bytes on the border of a character. It keeps the end, where the error is, and says that it cut.
func Clip(s string, limit int) string {
	s = valid(s)
	if len(s) <= limit {
		return s
	}
	const note = "… (the beginning was cut)\n"
	if limit <= len(note) {
		return cutEnd(s, limit)
	}
	at := len(s) - (limit - len(note))
	for at < len(s) && !utf8.RuneStart(s[at]) {
		at++
	}
	return note + s[at:]
}

// cutEnd keeps the beginning.
func cutEnd(s string, limit int) string {
	s = valid(s)
	if len(s) <= limit {
		return s
	}
	for limit > 0 && !utf8.RuneStart(s[limit]) {
		limit--
	}
	return s[:limit]
}

// valid makes s well-formed: JSON would replace each bad byte by three, after the count.
func valid(s string) string {
	if utf8.ValidString(s) {
		return s
	}
	return string([]rune(s))
}

type checkJSON struct {
	ID          int64      `json:"id"`
	Name        string     `json:"name"`
	HeadSHA     string     `json:"head_sha"`
	ExternalID  string     `json:"external_id"`
	DetailsURL  string     `json:"details_url"`
	Status      string     `json:"status"`
	Conclusion  string     `json:"conclusion"`
	StartedAt   *time.Time `json:"started_at"`
	CompletedAt *time.Time `json:"completed_at"`
	Output      struct {
		Title   string `json:"title"`
		Summary string `json:"summary"`
		Text    string `json:"text"`
		Noted   int    `json:"annotations_count"`
	} `json:"output"`
	App struct {
		ID int64 `json:"id"`
	} `json:"app"`
}

func (j checkJSON) check() CheckRun {
	c := CheckRun{
		ID: j.ID, SHA: j.HeadSHA, Name: j.Name, ExternalID: j.ExternalID, DetailsURL: j.DetailsURL, Status: j.Status,
		Conclusion: j.Conclusion, Title: j.Output.Title, Summary: j.Output.Summary, Text: j.Output.Text, Noted: j.Output.Noted,
	}
	if j.StartedAt != nil {
		c.Started = *j.StartedAt
	}
	if j.CompletedAt != nil {
		c.Completed = *j.CompletedAt
	}
	return c
}

// body is what is sent. go-github's own options drop an empty list of buttons, which then stay (facts/github.md §1, 17).
func (c CheckRun) body(annotations []Annotation) map[string]any {
	b := map[string]any{"name": c.Name, "status": c.Status}
	if c.Conclusion != "" {
		b["conclusion"] = c.Conclusion
	}
	if c.ExternalID != "" {
		b["external_id"] = c.ExternalID
	}
	if c.DetailsURL != "" {
		b["details_url"] = c.DetailsURL
	}
	if !c.Started.IsZero() {
		b["started_at"] = c.Started.UTC().Format(time.RFC3339)
	}
	if !c.Completed.IsZero() && c.Status == "completed" {
		b["completed_at"] = c.Completed.UTC().Format(time.RFC3339)
	}
	buttons := []map[string]any{}
	for _, x := range c.Buttons {
		buttons = append(buttons, map[string]any{"label": x.Label, "description": x.Description, "identifier": x.Identifier})
	}
	b["actions"] = buttons
	if c.Title == "" {
		return b
	}
	out := map[string]any{"title": cutEnd(c.Title, maxTitle), "summary": Clip(c.Summary, MaxCheckText), "text": Clip(c.Text, MaxCheckText)}
	if len(annotations) > 0 {
		var notes []map[string]any
		for _, n := range annotations {
			note := map[string]any{
				"path": n.Path, "start_line": n.Start, "end_line": n.End, "annotation_level": n.Level, "message": cutEnd(n.Message, maxMessage),
			}
			if n.Title != "" {
				note["title"] = cutEnd(n.Title, maxTitle)
			}
			if n.Start == n.End && n.StartColumn > 0 {
				note["start_column"] = n.StartColumn
				note["end_column"] = max(n.EndColumn, n.StartColumn)
			}
			notes = append(notes, note)
		}
		out["annotations"] = notes
	}
	b["output"] = out
	return b
}

// wrong refuses here what GitHub would refuse, and what it would take and do otherwise.
func (c CheckRun) wrong() error {
	switch {
	case c.Status != "queued" && c.Status != "in_progress" && c.Status != "completed":
		return fail(Invalid, "A check run is queued, in_progress or completed, not %q.", c.Status)
	case (c.Status == "completed") != (c.Conclusion != ""):
		return fail(Invalid, "A check run has a conclusion exactly when it is completed.")
	case (c.Title == "") != (c.Summary == ""):
		return fail(Invalid, "A check run has title and summary, or neither.")
	case c.Title == "" && (c.Text != "" || len(c.Annotations) > 0):
		return fail(Invalid, "A check run with text or annotations needs title and summary.")
	case len(c.Buttons) > MaxButtons:
		return fail(Invalid, "A check run has %d buttons at most.", MaxButtons)
	}
	for _, b := range c.Buttons {
		if b.Label == "" || b.Description == "" || b.Identifier == "" || utf8.RuneCountInString(b.Label) > maxLabel ||
			utf8.RuneCountInString(b.Description) > maxDescription || utf8.RuneCountInString(b.Identifier) > maxIdentifier {
			return fail(Invalid, "A button's label and identifier have 1 to 20 characters, its description 1 to 40: %q.", b.Label)
		}
	}
	return nil
}

// CreateCheckRun makes a check run on c.SHA and returns it with its ID. Texts that are too long are clipped. After an unclear
// failure (Unavailable) look with FindCheckRun before creating again: it may be there. Annotations beyond the first fifty
// follow in further requests; if one of those fails, the run is returned together with the error.
func (a *App) CreateCheckRun(ctx context.Context, repo RepoID, c CheckRun) (CheckRun, error) {
	if err := c.wrong(); err != nil {
		return CheckRun{}, err
	}
	if !isSHA(c.SHA) {
		return CheckRun{}, notACommit(c.SHA)
	}
	first := c.Annotations[:min(len(c.Annotations), annotationsEach)]
	body := c.body(first)
	body["head_sha"] = c.SHA
	if len(c.Buttons) == 0 {
		delete(body, "actions")
	}
	var j checkJSON
	if _, err := a.onRepo(ctx, repo, http.MethodPost, "/check-runs", body, &j); err != nil {
		return CheckRun{}, err
	}
	if j.ID <= 0 || j.HeadSHA != c.SHA || j.Name != c.Name || j.ExternalID != c.ExternalID {
		return CheckRun{}, away(nil)
	}
	return j.check(), a.annotate(ctx, repo, j.ID, c, c.Annotations[len(first):])
}

// UpdateCheckRun makes check run id show c. Its annotations are added to those that are there: give each one once. A
// completed run stays completed, whatever c says.
func (a *App) UpdateCheckRun(ctx context.Context, repo RepoID, id int64, c CheckRun) (CheckRun, error) {
	if err := c.wrong(); err != nil {
		return CheckRun{}, err
	}
	first := c.Annotations[:min(len(c.Annotations), annotationsEach)]
	got, err := a.patchCheck(ctx, repo, id, c.body(first))
	if err != nil {
		return CheckRun{}, err
	}
	return got, a.annotate(ctx, repo, id, c, c.Annotations[len(first):])
}

func (a *App) patchCheck(ctx context.Context, repo RepoID, id int64, body any) (CheckRun, error) {
	var j checkJSON
	if _, err := a.onRepo(ctx, repo, http.MethodPatch, "/check-runs/"+strconv.FormatInt(id, 10), body, &j); err != nil {
		return CheckRun{}, err
	}
	if j.ID != id {
		return CheckRun{}, away(nil)
	}
	return j.check(), nil
}

func (a *App) annotate(ctx context.Context, repo RepoID, id int64, c CheckRun, rest []Annotation) error {
	for len(rest) > 0 {
		n := min(len(rest), annotationsEach)
		if _, err := a.patchCheck(ctx, repo, id, c.body(rest[:n])); err != nil {
			return err
		}
		rest = rest[n:]
	}
	return nil
}

// CheckRun reads one.
func (a *App) CheckRun(ctx context.Context, repo RepoID, id int64) (CheckRun, error) {
	var j checkJSON
	if _, err := a.onRepo(ctx, repo, http.MethodGet, "/check-runs/"+strconv.FormatInt(id, 10), nil, &j); err != nil {
		return CheckRun{}, err
	}
	if j.ID != id {
		return CheckRun{}, away(nil)
	}
	return j.check(), nil
}

// CheckRuns lists all of this App's check runs on a commit, also those that newer ones of the same name hide; name "" is any.
func (a *App) CheckRuns(ctx context.Context, repo RepoID, sha, name string) ([]CheckRun, error) {
	if !isSHA(sha) {
		return nil, notACommit(sha)
	}
	q := url.Values{"filter": {"all"}, "app_id": {strconv.FormatInt(a.cred.AppID, 10)}}
	if name != "" {
		q.Set("check_name", name)
	}
	var all []CheckRun
	seen := map[int64]bool{}
	err := list(ctx, fmt.Sprintf("/commits/%s/check-runs?%s", sha, q.Encode()), func(path string) (*ghapi.Response, error) {
		var page struct {
			Runs []checkJSON `json:"check_runs"`
		}
		resp, err := a.onRepo(ctx, repo, http.MethodGet, path, nil, &page)
		for _, j := range page.Runs {
			if j.App.ID == a.cred.AppID && !seen[j.ID] {
				seen[j.ID] = true
				all = append(all, j.check())
			}
		}
		return resp, err
	})
	return all, err
}

// FindCheckRun is the newest check run on a commit that has this name and ExternalID; found is false if there is none.
func (a *App) FindCheckRun(ctx context.Context, repo RepoID, sha, name, externalID string) (run CheckRun, found bool, err error) {
	all, err := a.CheckRuns(ctx, repo, sha, name)
	for _, c := range all {
		if c.ExternalID == externalID && c.ID > run.ID {
			run, found = c, true
		}
	}
	if err != nil {
		return CheckRun{}, false, err
	}
	return run, found, nil
}
