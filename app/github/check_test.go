package github_test

import (
	"fmt"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/claude-hub/claude-hub/app/github"
	"github.com/claude-hub/claude-hub/app/github/githubtest"
	"github.com/claude-hub/claude-hub/app/github/githubtest/checked"
)

func TestCheckRunLivesFromQueuedToCompletedWithButtons(t *testing.T) {
	t.Parallel()
	checked.Both(t, func(t *testing.T, gh *githubtest.Server) {
		r := setScene(t, gh)
		sha := r.repo.Propose(r.ana, "feature", githubtest.Files{"x": githubtest.Text("x")}).SHA()
		run := must[github.CheckRun](t)(r.app.CreateCheckRun(t.Context(), r.id(), github.CheckRun{
			SHA: sha, Name: "Environment", ExternalID: "e-1", Status: "queued", DetailsURL: "http://hub.example/e/1",
		}))
		if run.ID == 0 || run.Status != "queued" || run.ExternalID != "e-1" {
			t.Fatalf("got %+v", run)
		}
		begun := time.Now().Add(-time.Minute).Truncate(time.Second)
		ok(t, errOf(r.app.UpdateCheckRun(t.Context(), r.id(), run.ID, github.CheckRun{
			Name: "Environment", ExternalID: "e-1", Status: "in_progress", Started: begun, Title: "Building", Summary: "phase 1",
		})))
		if err := r.repo.Press(run.ID, "test", r.ana); err == nil {
			t.Error("a button was there before the run completed")
		}
		done := github.CheckRun{
			Name: "Environment", ExternalID: "e-1", Status: "completed", Conclusion: "action_required", Completed: time.Now(),
			Title: "Needs a Test build", Summary: "Say on which Runner.", Text: "details",
			Buttons:     []github.Button{{"Test on alpha", "Build it on the Runner alpha", "test:alpha"}, {"Test on beta", "Build it on the Runner beta", "test:beta"}},
			Annotations: []github.Annotation{{Path: "x", Start: 1, End: 1, StartColumn: 1, EndColumn: 2, Level: "warning", Title: "T", Message: "M"}},
		}
		ok(t, errOf(r.app.UpdateCheckRun(t.Context(), r.id(), run.ID, done)))
		shown := r.repo.Checks(sha)
		if len(shown) != 1 || shown[0].Conclusion != "action_required" || !slices.Equal(shown[0].Actions, []string{"test:alpha", "test:beta"}) ||
			len(shown[0].Annotations) != 1 || !shown[0].Started.Equal(begun) || shown[0].Text != "details" {
			t.Fatalf("GitHub shows %+v", shown)
		}
		ok(t, r.repo.Press(run.ID, "test:beta", r.ana))
		// Completed stays completed; buttons can be cleared, which go-github's own options can't.
		done.Buttons, done.Annotations, done.Conclusion = nil, nil, "success"
		ok(t, errOf(r.app.UpdateCheckRun(t.Context(), r.id(), run.ID, done)))
		again := must[github.CheckRun](t)(r.app.UpdateCheckRun(t.Context(), r.id(), run.ID, github.CheckRun{Name: "Environment", Status: "in_progress"}))
		if again.Status != "completed" || again.Conclusion != "success" {
			t.Errorf("a completed run went back: %+v", again)
		}
		if shown := r.repo.Checks(sha); len(shown[0].Actions) != 0 {
			t.Errorf("the buttons are still there: %+v", shown[0].Actions)
		}
		if got := must[github.CheckRun](t)(r.app.CheckRun(t.Context(), r.id(), run.ID)); got.SHA != sha || got.Title != "Needs a Test build" {
			t.Errorf("got %+v", got)
		}
		_, err := r.app.CheckRun(t.Context(), r.id(), 77)
		wantKind(t, err, github.NotFound)
	})
}

// TestCheckRunIsFoundAgainAfterItsAnswerWasLost creates one, loses the answer, and finds what was made.
func TestCheckRunIsFoundAgainAfterItsAnswerWasLost(t *testing.T) {
	t.Parallel()
	for name, f := range map[string]githubtest.Fault{
		"502 after the deed": {Status: http.StatusBadGateway}, "no answer": {Cut: -1}, "half an answer": {Cut: 100}, "an empty answer": {Status: http.StatusCreated},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := setScene(t, checked.New(t, githubtest.Options{}))
			sha := r.repo.Head("main")
			ok(t, errOf(r.app.Repository(t.Context(), r.id())))
			f.Method, f.Path, f.After, f.Times = "POST", "/check-runs", true, 1
			r.gh.Break(f)
			want := github.CheckRun{SHA: sha, Name: "Environment / Test build", ExternalID: "t-1", Status: "queued"}
			_, err := r.app.CreateCheckRun(t.Context(), r.id(), want)
			wantKind(t, err, github.Unavailable)
			got, found, err := r.app.FindCheckRun(t.Context(), r.id(), sha, want.Name, "t-1")
			ok(t, err)
			if !found || got.ID != r.repo.Checks(sha)[0].ID {
				t.Errorf("got %+v %v", got, found)
			}
			if _, found, err := r.app.FindCheckRun(t.Context(), r.id(), sha, want.Name, "t-2"); found || err != nil {
				t.Errorf("another id: %v %v", found, err)
			}
		})
	}
}

func TestEveryAttemptOfOneNameIsFound(t *testing.T) {
	t.Parallel()
	r := setScene(t, checked.New(t, githubtest.Options{}))
	sha := r.repo.Head("main")
	for i := range 103 {
		ok(t, errOf(r.app.CreateCheckRun(t.Context(), r.id(), github.CheckRun{
			SHA: sha, Name: "Test", ExternalID: fmt.Sprint(i), Status: "completed", Conclusion: "failure", Completed: time.Now(),
		})))
	}
	for _, id := range []string{"0", "50", "102"} {
		if _, found, err := r.app.FindCheckRun(t.Context(), r.id(), sha, "Test", id); !found || err != nil {
			t.Errorf("%s: %v %v", id, found, err)
		}
	}
}

func TestTextsAreClippedByBytesAndKeepTheEnd(t *testing.T) {
	t.Parallel()
	r := setScene(t, checked.New(t, githubtest.Options{}))
	sha := r.repo.Head("main")
	long := strings.Repeat("ü€😀", 20_000) + "\nexit 1"
	run := must[github.CheckRun](t)(r.app.CreateCheckRun(t.Context(), r.id(), github.CheckRun{
		SHA: sha, Name: "Test", Status: "completed", Conclusion: "failure", Completed: time.Now(), Title: strings.Repeat("€", 300), Summary: long,
		Text: strings.Repeat("\xff", 40_000) + "exit 2",
	}))
	got := r.repo.Checks(sha)[0]
	if len(got.Summary) > github.MaxCheckText || len(got.Summary) < github.MaxCheckText-4 || !utf8.ValidString(got.Summary) ||
		!strings.HasSuffix(got.Summary, "\nexit 1") || !strings.Contains(got.Summary[:60], "was cut") {
		t.Errorf("the summary has %d bytes and ends %q", len(got.Summary), got.Summary[len(got.Summary)-20:])
	}
	if !strings.HasSuffix(got.Text, "exit 2") || len(got.Text) > github.MaxCheckText || got.Conclusion != "failure" || run.ID != got.ID {
		t.Errorf("the text has %d bytes", len(got.Text))
	}
	for limit := range 120 {
		for _, s := range []string{"", "ab", strings.Repeat("€", 60), strings.Repeat("x", 130)} {
			if c := github.Clip(s, limit); len(c) > limit || !utf8.ValidString(c) {
				t.Fatalf("Clip(%q, %d) = %q", s, limit, c)
			}
		}
	}
}

func TestAnnotationsBeyondFiftyFollow(t *testing.T) {
	t.Parallel()
	r := setScene(t, checked.New(t, githubtest.Options{}))
	sha := r.repo.Head("main")
	c := github.CheckRun{SHA: sha, Name: "Environment", Status: "completed", Conclusion: "failure", Title: "120 mistakes", Summary: "See below."}
	for i := range 120 {
		c.Annotations = append(c.Annotations, github.Annotation{Path: "x", Start: i + 1, End: i + 1, Level: "failure", Message: fmt.Sprint(i)})
	}
	ok(t, errOf(r.app.CreateCheckRun(t.Context(), r.id(), c)))
	shown := r.repo.Checks(sha)
	if got := must[github.CheckRun](t)(r.app.CheckRun(t.Context(), r.id(), shown[0].ID)); got.Noted != 120 {
		t.Errorf("%d are said to be there", got.Noted)
	}
	if len(shown) != 1 || len(shown[0].Annotations) != 120 || shown[0].Annotations[119].Message != "119" {
		t.Errorf("GitHub shows %d annotations on %d runs", len(shown[0].Annotations), len(shown))
	}
}

func TestCheckRunsThatGitHubWouldRefuseAreNotSent(t *testing.T) {
	t.Parallel()
	r := setScene(t, checked.New(t, githubtest.Options{}))
	sha := r.repo.Head("main")
	r.gh.Forget()
	good := github.Button{Label: "Test", Description: "Build it", Identifier: "t"}
	for name, c := range map[string]github.CheckRun{
		"completed without conclusion": {SHA: sha, Name: "x", Status: "completed"},
		"a conclusion while running":   {SHA: sha, Name: "x", Status: "in_progress", Conclusion: "success"},
		"an unknown status":            {SHA: sha, Name: "x", Status: "done"},
		"a title alone":                {SHA: sha, Name: "x", Status: "queued", Title: "t"},
		"a text alone":                 {SHA: sha, Name: "x", Status: "queued", Text: "t"},
		"four buttons":                 {SHA: sha, Name: "x", Status: "queued", Buttons: []github.Button{good, good, good, good}},
		"a long label":                 {SHA: sha, Name: "x", Status: "queued", Buttons: []github.Button{{strings.Repeat("x", 21), "d", "i"}}},
		"a branch":                     {SHA: "main", Name: "x", Status: "queued"},
	} {
		if _, err := r.app.CreateCheckRun(t.Context(), r.id(), c); !github.Invalid.Is(err) {
			t.Errorf("%s: got %v", name, err)
		}
	}
	if got := r.gh.Requests(); len(got) != 0 {
		t.Errorf("GitHub was asked %d times", len(got))
	}
	_, err := r.app.CreateCheckRun(t.Context(), r.id(), github.CheckRun{SHA: strings.Repeat("0", 40), Name: "x", Status: "queued"})
	wantKind(t, err, github.Invalid)
	r.repo.Archive(true)
	_, err = r.app.CreateCheckRun(t.Context(), r.id(), github.CheckRun{SHA: sha, Name: "x", Status: "queued"})
	if e := wantKind(t, err, github.Forbidden); !strings.Contains(e.Message, "archived") {
		t.Errorf("got %q", e.Message)
	}
}
