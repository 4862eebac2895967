package github_test

import (
	"encoding/json"
	"slices"
	"testing"
	"time"

	"github.com/claude-hub/claude-hub/app/github"
	"github.com/claude-hub/claude-hub/app/github/githubtest"
	"github.com/claude-hub/claude-hub/app/github/githubtest/checked"
	"github.com/claude-hub/claude-hub/app/github/githubtest/examples"
)

// TestEveryExampleOfGitHubIsUnderstood takes GitHub's own examples, also those that go-github v62 can't parse
// (check_run.rerequested), and looks whether what each event is about was read.
func TestEveryExampleOfGitHubIsUnderstood(t *testing.T) {
	t.Parallel()
	all := examples.All()
	if len(all) < 110 {
		t.Fatalf("only %d examples", len(all))
	}
	for _, x := range all {
		e, err := github.Delivery{ID: "g", Event: x.Event, Payload: x.Payload}.Decode()
		if err != nil {
			t.Errorf("%s: %v", x.Event, err)
			continue
		}
		var raw struct {
			Action     string `json:"action"`
			Repository *struct {
				ID int64 `json:"id"`
			} `json:"repository"`
			Sender *struct {
				ID int64 `json:"id"`
			} `json:"sender"`
			Installation *struct {
				ID int64 `json:"id"`
			} `json:"installation"`
		}
		ok(t, json.Unmarshal(x.Payload, &raw))
		name := x.Event + "." + raw.Action
		if e.Name != x.Event || e.Action != raw.Action || raw.Repository != nil && int64(e.Repo.ID) != raw.Repository.ID ||
			raw.Sender != nil && e.Sender.ID != raw.Sender.ID || raw.Installation != nil && e.Installation != raw.Installation.ID {
			t.Errorf("%s: got %+v", name, e)
		}
		good := true
		switch x.Event {
		case "pull_request":
			good = e.PullRequest.Number > 0 && len(e.PullRequest.Head.SHA) == 40 && e.PullRequest.Base.Repo == e.Repo.ID && e.PullRequest.Author.ID > 0
		case "push":
			good = (e.Before != "" || e.After != "") && len(e.After) != 1
		case "check_run":
			good = e.Check.Run > 0 && e.Check.Suite > 0 && e.Check.App > 0 && len(e.Check.SHA) == 40 && e.Check.Name != "" &&
				(raw.Action != "requested_action" || e.Check.Button != "")
		case "check_suite":
			good = e.Check.Run == 0 && e.Check.Suite > 0 && e.Check.App > 0 && len(e.Check.SHA) == 40
		case "installation":
			good = e.Install.Account.ID > 0 && len(e.Install.Permissions) > 0 && e.Install.Suspended == (raw.Action == "suspend")
		case "installation_repositories":
			good = len(e.Added)+len(e.Removed) > 0 && slices.IndexFunc(append(e.Added, e.Removed...), func(r github.Repository) bool { return r.ID == 0 || r.FullName == "" }) < 0
		case "member", "membership":
			good = e.Person.ID > 0
		case "organization":
			good = e.Organization.ID > 0 && (e.Person.ID > 0 || raw.Action == "renamed" || raw.Action == "member_invited")
		case "merge_group":
			good = len(e.MergeGroup.SHA) == 40 && e.MergeGroup.Ref != ""
		case "create", "delete":
			good = e.Branch == "" || e.Branch[0] != '/'
		}
		if !good {
			t.Errorf("%s: got %+v", name, e)
		}
	}
}

func TestEventsOfAWholeStoryAreUnderstood(t *testing.T) {
	t.Parallel()
	checked.Both(t, func(t *testing.T, gh *githubtest.Server) {
		r := setScene(t, gh)
		known := secrets(r.cred.WebhookSecret)
		h := newHub(t, &known)
		gh.HookURL(r.cred.ID, h.URL)
		fork := r.repo.Fork(r.bob)
		fork.Push(r.bob, "patch", "Patch", githubtest.Files{environment: githubtest.Text("image: alpine\n")})
		pull := r.repo.OpenPull(r.bob, fork, "patch", "From a fork")
		run := must[github.CheckRun](t)(r.app.CreateCheckRun(t.Context(), r.id(), github.CheckRun{
			SHA: pull.SHA(), Name: "Environment", ExternalID: "e-1", Status: "completed", Conclusion: "action_required",
			Buttons: []github.Button{{Label: "Test", Description: "Build it", Identifier: "test:alpha"}},
		}))
		ok(t, r.repo.Press(run.ID, "test:alpha", r.ana))
		r.repo.RerunAll(pull.SHA(), r.ana)
		r.repo.Allow(r.bob, "read")
		r.repo.Push(r.ana, "gone", "Gone", githubtest.Files{"x": githubtest.Text("x")})
		r.inst.Add(r.other)
		r.org.Rename("octo2")
		r.inst.Suspend(true)
		ok(t, gh.Settle(within(t, 20*time.Second)))
		h.mu.Lock()
		defer h.mu.Unlock()
		got := map[string]github.Event{}
		for _, d := range h.took {
			e := must[github.Event](t)(d.Decode())
			got[e.Name+"."+e.Action] = e
			if e.Installation != r.inst.ID {
				t.Errorf("%s is of installation %d", e.Name, e.Installation)
			}
		}
		if e := got["pull_request.opened"]; !e.PullRequest.Fork || e.PullRequest.Head.Repo != github.RepoID(fork.ID) || e.Repo.ID != r.id() {
			t.Errorf("got %+v", e)
		}
		if e := got["check_run.requested_action"]; e.Check.Run != run.ID || e.Check.ExternalID != "e-1" || e.Check.Button != "test:alpha" ||
			e.Check.App != r.cred.ID || e.Sender.ID != r.ana.ID {
			t.Errorf("got %+v", e)
		}
		if e := got["check_suite.rerequested"]; e.Check.SHA != pull.SHA() || e.Check.App != r.cred.ID {
			t.Errorf("got %+v", e)
		}
		if e := got["push."]; e.Branch != "gone" || e.Before != "" || len(e.After) != 40 {
			t.Errorf("got %+v", e)
		}
		if e := got["member.added"]; e.Person.ID != r.bob.ID {
			t.Errorf("got %+v", e)
		}
		if e := got["installation_repositories.added"]; len(e.Added) != 1 || e.Added[0].ID != github.RepoID(r.other.ID) {
			t.Errorf("got %+v", e)
		}
		if e := got["installation_target.renamed"]; e.Account.ID != r.org.ID || e.Account.Login != "octo2" {
			t.Errorf("got %+v", e)
		}
		if e := got["installation.suspend"]; !e.Install.Suspended || e.Install.ID != r.inst.ID {
			t.Errorf("got %+v", e)
		}
	})
}

func TestPayloadThatIsNoneIsSaidToBe(t *testing.T) {
	t.Parallel()
	for _, body := range []string{"", "null garbage", `[]`, `"text"`, `{"repository":{"id":"1"}}`, `{"installation":7}`, `{"action":`} {
		_, err := github.Delivery{Event: "push", Payload: []byte(body)}.Decode()
		wantKind(t, err, github.Invalid)
	}
	e := must[github.Event](t)(github.Delivery{Event: "unheard_of", Payload: []byte(`{"action":"x","sender":{"id":3},"surprise":[1]}`)}.Decode())
	if e.Name != "unheard_of" || e.Sender.ID != 3 {
		t.Errorf("got %+v", e)
	}
}

func TestMergeByABotAndARotatedSecret(t *testing.T) {
	t.Parallel()
	r := setScene(t, checked.New(t, githubtest.Options{}))
	pull := r.repo.Propose(r.ana, "feature", githubtest.Files{"x": githubtest.Text("x")})
	known := secrets(r.gh.RotateHookSecret(r.cred.ID))
	h := newHub(t, &known)
	r.gh.HookURL(r.cred.ID, h.URL)
	queue := r.gh.Bot("github-merge-queue")
	waiting := pull.Queue()
	sha := pull.Merge(queue, "merge")
	ok(t, r.gh.Settle(within(t, 20*time.Second)))
	got := must[github.PullRequest](t)(r.app.PullRequest(t.Context(), r.id(), pull.Number))
	if !got.Merged || got.MergedBy.ID != queue.ID || got.MergedBy.Type != "Bot" || got.MergeCommit != sha {
		t.Errorf("got %+v", got)
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	var closed, queued bool
	for _, d := range h.took {
		e := must[github.Event](t)(d.Decode())
		closed = closed || e.Name == "pull_request" && e.Action == "closed" && e.Sender.Type == "Bot" && e.PullRequest.Merged
		queued = queued || e.Name == "merge_group" && e.MergeGroup.SHA == waiting && e.MergeGroup.Ref == "main"
	}
	if !closed || !queued {
		t.Errorf("told of the merge: %v, of the queue: %v", closed, queued)
	}
}
