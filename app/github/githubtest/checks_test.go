package githubtest_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/claude-hub/claude-hub/app/github/githubtest"
)

// TestChecksRulesHoldWithoutTheChecker: claude-hub dev has none, and the description doesn't know all rules.
func TestChecksRulesHoldWithoutTheChecker(t *testing.T) {
	t.Parallel()
	gh, err := githubtest.New(githubtest.Options{Folder: t.TempDir()})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(gh.Close)
	s := begin(t, gh)
	inst := "Bearer " + s.token(t, "")
	sha := s.repo.Head("main")
	note := `{"path":"x","start_line":1,"end_line":1,"annotation_level":"notice","message":"m"}`
	button := `{"label":"l","description":"d","identifier":"i"}`
	wide := strings.Repeat("€", 21845) // 65535 bytes
	post := func(body string) reply {
		return s.ask(t, inst, "POST", "/repos/octo/app/check-runs", `{"name":"x","head_sha":"`+sha+`",`+body+`}`)
	}
	for name, c := range map[string]struct {
		body   string
		status int
	}{
		"queued":                       {`"status":"queued"`, 201},
		"an unknown status":            {`"status":"done"`, 422},
		"completed without conclusion": {`"status":"completed"`, 422},
		"an unknown conclusion":        {`"conclusion":"good"`, 422},
		"GitHub's own conclusion":      {`"conclusion":"stale"`, 422},
		"a conclusion completes":       {`"conclusion":"success"`, 201},
		"a title alone":                {`"output":{"title":"t"}`, 422},
		"a summary alone":              {`"output":{"summary":"s"}`, 422},
		"as long as may be, in bytes":  {`"output":{"title":"t","summary":"` + wide + `","text":"` + wide + `"}`, 201},
		"a byte more":                  {`"output":{"title":"t","summary":"` + wide + `x"}`, 422},
		"a text with a byte more":      {`"output":{"title":"t","summary":"s","text":"` + wide + `x"}`, 422},
		"fifty annotations":            {`"output":{"title":"t","summary":"s","annotations":[` + strings.TrimSuffix(strings.Repeat(note+",", 50), ",") + `]}`, 201},
		"fifty-one":                    {`"output":{"title":"t","summary":"s","annotations":[` + strings.TrimSuffix(strings.Repeat(note+",", 51), ",") + `]}`, 422},
		"columns over lines":           {`"output":{"title":"t","summary":"s","annotations":[{"path":"x","start_line":1,"end_line":2,"start_column":1,"annotation_level":"notice","message":"m"}]}`, 422},
		"three buttons":                {`"actions":[` + button + "," + button + "," + button + `]`, 201},
		"four":                         {`"actions":[` + button + "," + button + "," + button + "," + button + `]`, 422},
		"a button without description": {`"actions":[{"label":"l","description":"","identifier":"i"}]`, 422},
		"a button with a long label":   {`"actions":[{"label":"` + strings.Repeat("x", 21) + `","description":"d","identifier":"i"}]`, 422},
		"no JSON":                      {`"status":`, 400},
	} {
		if got := post(c.body); got.status != c.status {
			t.Errorf("%s: got %d %.300s, want %d", name, got.status, got.body, c.status)
		}
	}
	if got := s.ask(t, inst, "POST", "/repos/octo/app/check-runs", `{"name":"x","head_sha":"`+strings.Repeat("0", 40)+`"}`); got.status != 422 ||
		!strings.Contains(string(got.body), "No commit found") {
		t.Errorf("an unknown commit: got %d %s", got.status, got.body)
	}

	// Completed stays completed, and annotations add up.
	done := post(`"conclusion":"failure","output":{"title":"t","summary":"s","annotations":[` + note + `]}`)
	path := fmt.Sprint("/repos/octo/app/check-runs/", int64(done.field("id").(float64)))
	back := s.ask(t, inst, "PATCH", path, `{"status":"in_progress","output":{"title":"t","summary":"s","annotations":[`+note+`]}}`)
	if back.field("status") != "completed" || back.field("output").(map[string]any)["annotations_count"] != 2.0 {
		t.Errorf("got %s", back.body)
	}
	// Another App can't change it.
	other := gh.App(githubtest.AppOptions{Name: "other"})
	mine := s.app
	s.app = other
	s.inst = gh.Install(other.ID, s.org, s.ana, s.repo)
	foreign := s.ask(t, "Bearer "+s.token(t, ""), "PATCH", path, `{"conclusion":"success"}`)
	if foreign.status != 403 || !strings.Contains(string(foreign.body), "Invalid app_id") {
		t.Errorf("another App: got %d %s", foreign.status, foreign.body)
	}
	s.app = mine

	latest := s.ask(t, inst, "GET", "/repos/octo/app/commits/"+sha+"/check-runs", "")
	all := s.ask(t, inst, "GET", "/repos/octo/app/commits/"+sha+"/check-runs?filter=all", "")
	if latest.field("total_count") != 1.0 || all.field("total_count").(float64) < 6 {
		t.Errorf("the latest of each name: %v, all: %v", latest.field("total_count"), all.field("total_count"))
	}
}
