package checks_test

import (
	"context"
	"errors"
	"reflect"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/claude-hub/claude-hub/app/checks"
	"github.com/claude-hub/claude-hub/app/github"
	"github.com/claude-hub/claude-hub/runner/redact"
	"github.com/claude-hub/claude-hub/store"
	"github.com/claude-hub/claude-hub/store/storetest"
)

var sha = strings.Repeat("ab", 20)

// text redacts nothing: tests show what they like.
func text(s string) redact.Text { return new(redact.Set).Text(s) }

func queued(externalID string) checks.View {
	return checks.View{Repo: 7, SHA: sha, Name: "Environment / Test build", ExternalID: externalID, Status: checks.Queued}
}

func show(t *testing.T, db *store.DB, v checks.View) {
	t.Helper()
	if err := tryShow(t.Context(), db, v); err != nil {
		t.Fatal(err)
	}
}

func tryShow(ctx context.Context, db *store.DB, v checks.View) error {
	return db.Write(ctx, func(tx *store.Tx) error { return checks.Show(tx, v) })
}

func read(t *testing.T, db *store.DB, externalID string) (v checks.View, found bool) {
	t.Helper()
	err := db.Read(t.Context(), func(tx *store.Tx) (err error) {
		v, found, err = checks.Read(tx, externalID)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return v, found
}

func TestWhatWasShownIsReadBackAsItIs(t *testing.T) {
	t.Parallel()
	storetest.Each(t, func(t *testing.T, db *store.DB) {
		want := checks.View{
			Repo: 7, SHA: sha, Name: "Environment", ExternalID: "environment/1", DetailsURL: "https://hub.example/x",
			Status: checks.Completed, Conclusion: "action_required",
			Started: time.UnixMilli(1_700_000_000_000).UTC(), Completed: time.UnixMilli(1_700_000_060_000).UTC(),
			Title: text("Needs a Test build"), Summary: text("Choose \x00 a Runner — é."), Text: text("log\n"),
			Annotations: []github.Annotation{{Path: ".claude-hub/environment.yml", Start: 3, End: 3, StartColumn: 2, EndColumn: 4, Level: "warning", Title: "T", Message: "M"}},
			Buttons:     []github.Button{{Label: "Test on alpha", Description: "Builds it there", Identifier: "test:1"}},
		}
		show(t, db, queued("environment/1/other"))
		show(t, db, want)
		got, found := read(t, db, "environment/1")
		if !found || !reflect.DeepEqual(got, want) {
			t.Errorf("read %v\n%+v, want\n%+v", found, got, want)
		}
		if _, found := read(t, db, "environment/2"); found {
			t.Error("what was never shown was found")
		}
	})
}

func TestACompletedCheckRunStaysAsItCompleted(t *testing.T) {
	t.Parallel()
	storetest.Each(t, func(t *testing.T, db *store.DB) {
		v := queued("t")
		show(t, db, v)
		v.Status = checks.InProgress
		show(t, db, v)
		v.Status, v.Conclusion, v.Title, v.Summary = checks.Completed, "failure", text("Failed"), text("In phase bootstrap.")
		show(t, db, v)
		for name, change := range map[string]func(*checks.View){
			"open again":         func(v *checks.View) { v.Status, v.Conclusion = checks.InProgress, "" },
			"another conclusion": func(v *checks.View) { v.Conclusion = "success" },
		} {
			other := v
			change(&other)
			if err := tryShow(t.Context(), db, other); !errors.Is(err, checks.ErrCompleted) {
				t.Errorf("%s: got %v, want ErrCompleted", name, err)
			}
		}
		v.Summary = text("In phase bootstrap, with exit code 2.")
		show(t, db, v)
		if got, _ := read(t, db, "t"); got.Conclusion != "failure" || got.Summary != v.Summary {
			t.Errorf("its texts may still change; got %+v", got)
		}
	})
}

func TestNothingIsShownWhenTheTransactionIsRolledBack(t *testing.T) {
	t.Parallel()
	db := storetest.New(t)
	given := errors.New("given up")
	err := db.Write(t.Context(), func(tx *store.Tx) error {
		if err := checks.Show(tx, queued("t")); err != nil {
			return err
		}
		return given
	})
	if !errors.Is(err, given) {
		t.Fatal(err)
	}
	if _, found := read(t, db, "t"); found {
		t.Error("it is there nevertheless")
	}
}

func TestWhatNoCheckRunCanBeIsRefused(t *testing.T) {
	t.Parallel()
	db := storetest.New(t)
	show(t, db, queued("t"))
	for name, change := range map[string]func(*checks.View){
		"no Repo":                      func(v *checks.View) { v.Repo = 0 },
		"no name":                      func(v *checks.View) { v.Name = "" },
		"no id":                        func(v *checks.View) { v.ExternalID = "" },
		"a branch":                     func(v *checks.View) { v.SHA = "main" },
		"an unknown state":             func(v *checks.View) { v.Status = "done" },
		"completed without conclusion": func(v *checks.View) { v.Status = checks.Completed },
		"a conclusion of its own":      func(v *checks.View) { v.Status, v.Conclusion = checks.Completed, "lost" },
		"a conclusion while queued":    func(v *checks.View) { v.Conclusion = "success" },
		"a title alone":                func(v *checks.View) { v.Title = text("T") },
		"a text alone":                 func(v *checks.View) { v.Text = text("T") },
		"four buttons":                 func(v *checks.View) { v.Buttons = make([]github.Button, 4) },
		"a button that does nothing":   func(v *checks.View) { v.Buttons = []github.Button{{Label: "a", Description: "b"}} },
		"a remark on line 0": func(v *checks.View) {
			v.Title, v.Summary, v.Annotations = text("T"), text("S"), []github.Annotation{{Path: "x", Level: "notice", Message: "M"}}
		},
		"another Repo":   func(v *checks.View) { v.Repo = 8 },
		"another commit": func(v *checks.View) { v.SHA = strings.Repeat("c", 40) },
		"another name":   func(v *checks.View) { v.Name = "Environment" },
	} {
		v := queued("t")
		change(&v)
		if err := tryShow(t.Context(), db, v); err == nil {
			t.Errorf("%s was taken", name)
		}
	}
}

func TestTextsAreCutToWhatGitHubTakes(t *testing.T) {
	t.Parallel()
	db := storetest.New(t)
	v := queued("t")
	v.Status, v.Conclusion = checks.Completed, "failure"
	v.Title, v.Summary, v.Text = text(strings.Repeat("€", 300)), text(strings.Repeat("ü€😀", 20_000)+"\nexit 1"), text(strings.Repeat("x", 70_000)+"\nexit 2")
	v.Buttons = []github.Button{{Label: "Test on a-runner-with-a-long-name", Description: strings.Repeat("ü", 60), Identifier: "test:1"}}
	for i := range 300 {
		v.Annotations = append(v.Annotations, github.Annotation{Path: "x", Start: i + 1, End: i + 1, Level: "failure", Message: "M ghp" + "_" + strings.Repeat("0aB1", 9)})
	}
	show(t, db, v)
	got, _ := read(t, db, "t")
	if s := got.Summary.String(); len(s) > github.MaxCheckText || !strings.HasSuffix(s, "\nexit 1") || !utf8.ValidString(s) {
		t.Errorf("the summary has %d bytes", len(s))
	}
	if s := got.Text.String(); len(s) > github.MaxCheckText || !strings.HasSuffix(s, "\nexit 2") {
		t.Errorf("the text has %d bytes", len(s))
	}
	if s := got.Title.String(); len(s) > 255 || !utf8.ValidString(s) {
		t.Errorf("the title has %d bytes", len(s))
	}
	if b := got.Buttons[0]; b.Label != "Test on a-runner-wi…" || utf8.RuneCountInString(b.Description) != 40 {
		t.Errorf("the button is %+v", b)
	}
	if len(got.Annotations) != 200 || strings.Contains(got.Annotations[199].Message, "0123456789") {
		t.Errorf("there are %d annotations, the last says %q", len(got.Annotations), got.Annotations[199].Message)
	}
}
