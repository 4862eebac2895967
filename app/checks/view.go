// Package checks is check runs as a projection of the Hub's own rows: Show writes what GitHub should show, and the
// Reconciler writes it to GitHub until GitHub agrees, through crashes, lost answers and rate limits (facts/github.md §3 and
// §4, facts/reliability.md §5). It knows no Environment.
package checks

import (
	"encoding/json"
	"errors"
	"fmt"
	"regexp"
	"slices"
	"time"
	"unicode/utf8"

	"github.com/claude-hub/claude-hub/app/github"
	"github.com/claude-hub/claude-hub/runner/redact"
	"github.com/claude-hub/claude-hub/store"
)

// View is one check run as it should be shown. ExternalID names it for ever: a re-run is another one. Repo, SHA and Name
// belong to it and don't change.
//
// Texts are Markdown and redacted; Title and Summary come together or not at all, and Text only with them. What is too long
// is cut: a title keeps its beginning, the others their end, where the error is. GitHub shows buttons only once the run has
// completed, and never takes an annotation back: one that a later View leaves out stays. Beyond maxNotes annotations the rest is
// left out.
type View struct {
	Repo       github.RepoID
	SHA        string // the whole commit id
	Name       string
	ExternalID string
	DetailsURL string

	Status               string // Queued, InProgress, Completed
	Conclusion           string // of a Completed one, as github.CheckRun has it
	Started, Completed   time.Time
	Title, Summary, Text redact.Text
	Annotations          []github.Annotation
	Buttons              []github.Button
}

// The states of a check run.
const (
	Queued     = "queued"
	InProgress = "in_progress"
	Completed  = "completed"
)

// ErrCompleted is what Show answers when a check run that completed should show another state or conclusion.
var ErrCompleted = errors.New("a check run that completed stays as it completed; a re-run needs another ExternalID")

// Topic is woken at each change of what should be shown, and of when it may be tried again.
const Topic = "checks"

const (
	maxNotes     = 200
	maxTitle     = 255
	maxLabel     = 20
	maxAbout     = 40
	maxButtonID  = 20
	maxButtons   = github.MaxButtons
	maxNoteTitle = 255
	maxNoteText  = 4 << 10 // GitHub takes 64 KiB, but rows stay small
)

var (
	commit      = regexp.MustCompile(`^[0-9a-f]{40}([0-9a-f]{24})?$`)
	conclusions = []string{"success", "failure", "neutral", "cancelled", "skipped", "timed_out", "action_required"}
)

// Show has GitHub show v from the commit of tx on, whenever GitHub can be reached. Of several Views shown quickly one after
// another, only the newest is sure to arrive; of several check runs of one name on one commit, the one that was begun last.
// Showing the same again changes nothing. A View that no check run can have is a mistake of the program and an error, and
// so is ErrCompleted.
func Show(tx *store.Tx, v View) error {
	if err := v.wrong(); err != nil {
		return fmt.Errorf("show check run %q: %w", v.ExternalID, err)
	}
	doc, err := v.encode()
	if err != nil {
		return fmt.Errorf("encode check run %s: %w", v.ExternalID, err)
	}
	var (
		was    View
		wasDoc string
		parked string
	)
	err = tx.Row(tx.Locked(shownSQL), v.ExternalID).Scan(&was.Repo, &was.SHA, &was.Name, &was.Status, &was.Conclusion, &wasDoc, &parked)
	now := tx.Now().UnixMilli()
	switch {
	case errors.Is(err, store.ErrNotFound):
		if _, err := tx.Exec(insertSQL, v.ExternalID, int64(v.Repo), v.SHA, v.Name, v.Status, v.Conclusion, doc, now); err != nil {
			return fmt.Errorf("save check run %s: %w", v.ExternalID, err)
		}
		tx.Wake(Topic)
		return nil
	case err != nil:
		return fmt.Errorf("read check run %s: %w", v.ExternalID, err)
	case was.Repo != v.Repo || was.SHA != v.SHA || was.Name != v.Name:
		return fmt.Errorf("show check run %s: it is %q on %s of Repo %d, which doesn't change", v.ExternalID, was.Name, was.SHA, was.Repo)
	case was.Status == Completed && (v.Status != Completed || v.Conclusion != was.Conclusion):
		return fmt.Errorf("show check run %s as %s %s after %s: %w", v.ExternalID, v.Status, v.Conclusion, was.Conclusion, ErrCompleted)
	case was.Status == v.Status && was.Conclusion == v.Conclusion && wasDoc == doc:
		return nil
	}
	// Another state is worth a request at once; so is another text where GitHub refused the last one. The rest waits its turn.
	if _, err := tx.Exec(changeSQL, v.ExternalID, v.Status, v.Conclusion, doc, now, was.Status != v.Status || parked == string(github.Invalid)); err != nil {
		return fmt.Errorf("save check run %s: %w", v.ExternalID, err)
	}
	tx.Wake(Topic)
	return nil
}

// Read is what a check run should show; false if there is none.
func Read(tx *store.Tx, externalID string) (View, bool, error) {
	return read(tx, byExternalSQL, store.Text(externalID))
}

// ByRun is the check run that GitHub knows by an id, as webhooks name it; false if it is none of the Hub's.
func ByRun(tx *store.Tx, checkRun int64) (View, bool, error) { return read(tx, byRunSQL, checkRun) }

func read(tx *store.Tx, q string, a any) (View, bool, error) {
	v, err := scanView(tx.Row(q, a).Scan)
	if errors.Is(err, store.ErrNotFound) {
		return View{}, false, nil
	}
	if err != nil {
		return View{}, false, fmt.Errorf("read check run: %w", err)
	}
	return v, true, nil
}

func scanView(scan func(...any) error) (View, error) {
	var v View
	var doc string
	if err := scan(&v.ExternalID, &v.Repo, &v.SHA, &v.Name, &v.Status, &v.Conclusion, &doc); err != nil {
		return View{}, err
	}
	return v, v.decode(doc)
}

// stored is the part of a View that the database keeps as one document.
type stored struct {
	DetailsURL  string              `json:"details_url,omitempty"`
	Started     int64               `json:"started,omitempty"`
	Completed   int64               `json:"completed,omitempty"`
	Title       string              `json:"title,omitempty"`
	Summary     string              `json:"summary,omitempty"`
	Text        string              `json:"text,omitempty"`
	Annotations []github.Annotation `json:"annotations,omitempty"`
	Buttons     []github.Button     `json:"buttons,omitempty"`
}

func (v View) encode() (string, error) {
	d := stored{
		DetailsURL: v.DetailsURL, Started: millis(v.Started), Completed: millis(v.Completed),
		Title: v.Title.Head(maxTitle).String(), Summary: github.Clip(v.Summary.String(), github.MaxCheckText), Text: github.Clip(v.Text.String(), github.MaxCheckText),
	}
	for _, n := range v.Annotations[:min(len(v.Annotations), maxNotes)] {
		n.Title, n.Message = cut(shapes.Text(n.Title).String(), maxNoteTitle), github.Clip(shapes.Text(n.Message).String(), maxNoteText)
		d.Annotations = append(d.Annotations, n)
	}
	for _, b := range v.Buttons {
		b.Label, b.Description = cut(shapes.Text(b.Label).String(), maxLabel), cut(shapes.Text(b.Description).String(), maxAbout)
		d.Buttons = append(d.Buttons, b)
	}
	doc, err := json.Marshal(d)
	return string(doc), err
}

func (v *View) decode(doc string) error {
	var d stored
	if err := json.Unmarshal([]byte(doc), &d); err != nil {
		return fmt.Errorf("decode check run %s: %w", v.ExternalID, err)
	}
	v.DetailsURL, v.Started, v.Completed = d.DetailsURL, at(d.Started), at(d.Completed)
	v.Title, v.Summary, v.Text = shapes.Text(d.Title), shapes.Text(d.Summary), shapes.Text(d.Text)
	v.Annotations, v.Buttons = d.Annotations, d.Buttons
	return nil
}

// shapes knows no value: what is stored was redacted before, and what comes as a string gets its tokens and keys masked.
var shapes redact.Set

// cut shortens s to so many characters and says so.
func cut(s string, runes int) string {
	if utf8.RuneCountInString(s) <= runes {
		return s
	}
	return string([]rune(s)[:runes-1]) + "…"
}

// wrong is why no check run can be like v.
func (v View) wrong() error {
	switch {
	case v.Repo <= 0 || v.ExternalID == "" || v.Name == "" || store.Text(v.ExternalID) != v.ExternalID || store.Text(v.Name) != v.Name:
		return errors.New("a check run needs a Repo, a name and an ExternalID")
	case !commit.MatchString(v.SHA):
		return fmt.Errorf("%q is no commit id", v.SHA)
	case v.Status != Queued && v.Status != InProgress && v.Status != Completed:
		return fmt.Errorf("%q is no state of a check run", v.Status)
	case v.Status == Completed && !slices.Contains(conclusions, v.Conclusion):
		return fmt.Errorf("%q is no conclusion of a check run", v.Conclusion)
	case v.Status != Completed && v.Conclusion != "":
		return errors.New("only a completed check run has a conclusion")
	case (v.Title.Len() == 0) != (v.Summary.Len() == 0):
		return errors.New("a check run has title and summary, or neither")
	case v.Title.Len() == 0 && (v.Text.Len() > 0 || len(v.Annotations) > 0):
		return errors.New("text and annotations need title and summary")
	case len(v.Buttons) > maxButtons:
		return fmt.Errorf("a check run has %d buttons at most", maxButtons)
	}
	for _, b := range v.Buttons {
		if b.Label == "" || b.Description == "" || b.Identifier == "" || utf8.RuneCountInString(b.Identifier) > maxButtonID {
			return fmt.Errorf("the button %q needs label, description, and an identifier of at most %d characters", b.Label, maxButtonID)
		}
	}
	for _, n := range v.Annotations {
		if n.Path == "" || n.Message == "" || n.Start < 1 || n.End < n.Start || !slices.Contains([]string{"notice", "warning", "failure"}, n.Level) {
			return fmt.Errorf("the annotation of %q, line %d to %d, needs a message, a level, and lines from 1 on", n.Path, n.Start, n.End)
		}
	}
	return nil
}

func millis(t time.Time) int64 {
	if t.IsZero() {
		return 0
	}
	return t.UnixMilli()
}

func at(ms int64) time.Time {
	if ms == 0 {
		return time.Time{}
	}
	return time.UnixMilli(ms).UTC()
}
