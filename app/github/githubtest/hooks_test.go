package githubtest_test

import (
	"encoding/json"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/claude-hub/claude-hub/app/github/githubtest"
	"github.com/claude-hub/claude-hub/app/github/githubtest/checked"
)

// inbox takes webhooks in the order in which they arrive.
type inbox struct {
	mu  sync.Mutex
	got []arrived
}

type arrived struct {
	guid, name string // event.action
	payload    map[string]any
}

func (s *scene) inbox(t *testing.T) *inbox {
	t.Helper()
	in := &inbox{}
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		b, err := io.ReadAll(r.Body)
		if err != nil {
			return // the test has ended
		}
		a := arrived{guid: r.Header.Get("X-GitHub-Delivery"), name: r.Header.Get("X-GitHub-Event")}
		if err := json.Unmarshal(b, &a.payload); err != nil {
			t.Errorf("%s: %v", a.name, err)
		}
		want := githubtest.Signed(a.name, a.guid, s.app.WebhookSecret, b).Get("X-Hub-Signature-256")
		if got := r.Header.Get("X-Hub-Signature-256"); got != want || r.Header.Get("X-Hub-Signature") != "" {
			t.Errorf("%s is signed %q, want %q", a.name, got, want)
		}
		if action, ok := a.payload["action"].(string); ok {
			a.name += "." + action
		}
		in.mu.Lock()
		defer in.mu.Unlock()
		in.got = append(in.got, a)
		w.WriteHeader(http.StatusAccepted)
	}))
	t.Cleanup(srv.Close)
	s.gh.HookURL(s.app.ID, srv.URL)
	return in
}

// take empties the inbox and gives the names, sorted.
func (in *inbox) take() []string {
	var names []string
	for _, a := range in.all() {
		names = append(names, a.name)
	}
	slices.Sort(names)
	in.mu.Lock()
	defer in.mu.Unlock()
	in.got = nil
	return names
}

func (in *inbox) all() []arrived {
	in.mu.Lock()
	defer in.mu.Unlock()
	return slices.Clone(in.got)
}

func TestWhatHappensIsToldAsGitHubTellsIt(t *testing.T) {
	t.Parallel()
	s := begin(t, checked.New(t, githubtest.Options{}))
	in := s.inbox(t)
	var pull githubtest.Pull
	var fork githubtest.Repo
	for _, step := range []struct {
		name string
		do   func()
		want string
	}{
		{"a push", func() { s.repo.Push(s.ana, "main", "One", githubtest.Files{"a": githubtest.Text("1")}) }, "check_suite.requested push"},
		{"a push elsewhere", func() { s.other.Push(s.ana, "main", "One", githubtest.Files{"a": githubtest.Text("1")}) }, ""},
		{"a pull request", func() { pull = s.repo.Propose(s.ana, "feature", githubtest.Files{"b": githubtest.Text("1")}) },
			"check_suite.requested pull_request.opened push"}, // and create, to which the App isn't subscribed
		{"a push to it", func() { s.repo.Push(s.ana, "feature", "Two", githubtest.Files{"b": githubtest.Text("2")}) },
			"check_suite.requested pull_request.synchronize push"},
		{"the same commit again", func() { s.repo.ForcePush(s.ana, "feature", s.repo.Head("feature")) }, ""},
		{"its merge", func() { pull.Merge(s.ana, "squash") }, "check_suite.requested pull_request.closed push"},
		{"a fork", func() { fork = s.repo.Fork(s.bob) }, ""},
		{"a fork's pull request", func() {
			fork.Push(s.bob, "patch", "Patch", githubtest.Files{"c": githubtest.Text("1")})
			pull = s.repo.OpenPull(s.bob, fork, "patch", "From a fork")
		}, "check_suite.requested pull_request.opened"},
		{"a merge queue", func() { pull.Queue() }, "check_suite.requested merge_group.checks_requested"},
		{"a member", func() { s.repo.Allow(s.bob, "read") }, "member.added"},
		{"another right", func() { s.repo.Allow(s.bob, "write") }, "member.edited"},
		{"no member", func() { s.repo.Allow(s.bob, "") }, "member.removed"},
		{"an owner", func() { s.org.Admit(s.bob, "admin") }, "organization.member_added"},
		{"no owner", func() { s.org.Admit(s.bob, "") }, "organization.member_removed"},
		{"another name", func() { s.repo.Rename("new") }, "repository.renamed"},
		{"the archive", func() { s.repo.Archive(true); s.repo.Archive(false) }, "repository.archived repository.unarchived"},
		{"public", func() { s.repo.Publish(true) }, "public repository.publicized"},
		{"one more", func() { s.inst.Add(s.other) }, "installation_repositories.added"},
		{"a deleted one", func() { s.other.Delete() }, "installation_repositories.removed"}, // and never repository.deleted
		{"other permissions", func() { s.inst.Grant(map[string]string{"contents": "read", "metadata": "read"}) }, "installation.new_permissions_accepted"},
		{"what they don't cover", func() { s.repo.Allow(s.bob, "read"); pull.Close(s.bob, true) }, ""},
		{"a suspension", func() { s.inst.Suspend(true) }, "installation.suspend"},
		{"a push meanwhile", func() { s.repo.Push(s.ana, "main", "Three", githubtest.Files{"a": githubtest.Text("3")}) }, ""},
		{"its end", func() { s.inst.Suspend(false) }, "installation.unsuspend"},
		{"another login", func() { s.org.Rename("octo2") }, "installation_target.renamed"},
		{"no authorization", func() { s.gh.Unauthorize(s.app.ID, s.ana) }, "github_app_authorization.revoked"},
		{"no installation", func() { s.inst.Remove() }, "installation.deleted"},
		{"a push after it", func() { s.repo.Push(s.ana, "main", "Four", githubtest.Files{"a": githubtest.Text("4")}) }, ""},
	} {
		step.do()
		settle(t, s.gh)
		if got := strings.Join(in.take(), " "); got != step.want {
			t.Errorf("%s: told %q, want %q", step.name, got, step.want)
		}
	}
}

func TestTransferIsToldToTheNewOwnerOnly(t *testing.T) {
	t.Parallel()
	s := begin(t, checked.New(t, githubtest.Options{}))
	in := s.inbox(t)
	s.repo.Transfer(s.bob)
	settle(t, s.gh)
	if got := in.take(); !slices.Equal(got, []string{"installation_repositories.removed"}) {
		t.Errorf("without an installation there: told %v", got)
	}
	next := s.gh.Install(s.app.ID, s.bob, s.bob)
	s.other.Transfer(s.bob)
	settle(t, s.gh)
	for _, a := range in.all() {
		if a.name == "repository.transferred" && a.payload["installation"].(map[string]any)["id"] != float64(next.ID) {
			t.Error("the old owner was told")
		}
	}
	if got := in.take(); !slices.Equal(got, []string{"installation.created", "installation_repositories.added", "repository.transferred"}) {
		t.Errorf("told %v", got)
	}
}

func TestChecksOfAForkNameNoPullRequest(t *testing.T) {
	t.Parallel()
	s := begin(t, checked.New(t, githubtest.Options{}))
	in := s.inbox(t)
	fork := s.repo.Fork(s.bob)
	fork.Push(s.bob, "patch", "Patch", githubtest.Files{"c": githubtest.Text("1")})
	theirs := s.repo.OpenPull(s.bob, fork, "patch", "From a fork")
	own := s.repo.Propose(s.ana, "feature", githubtest.Files{"d": githubtest.Text("1")})
	settle(t, s.gh)
	inst := "Bearer " + s.token(t, "")
	for _, p := range []githubtest.Pull{theirs, own} {
		s.ask(t, inst, "POST", "/repos/octo/app/check-runs", `{"name":"Environment","head_sha":"`+p.SHA()+`","status":"completed","conclusion":"failure",`+
			`"actions":[{"label":"Test","description":"Build it","identifier":"test"}]}`)
		settle(t, s.gh)
		in.take()
		run := s.repo.Checks(p.SHA())[0]
		if err := s.repo.Rerun(run.ID, s.ana); err != nil {
			t.Error(err)
		}
		if err := s.repo.Press(run.ID, "test", s.bob); err != nil {
			t.Error(err)
		}
		if err := s.repo.Press(run.ID, "other", s.bob); err == nil {
			t.Error("a button that isn't there was pressed")
		}
		s.repo.RerunAll(p.SHA(), s.ana)
		settle(t, s.gh)
		for _, a := range in.all() {
			of, _ := a.payload["check_run"].(map[string]any)
			if a.name == "check_suite.rerequested" {
				of = a.payload["check_suite"].(map[string]any)
				if (of["head_branch"] == nil) != (p == theirs) {
					t.Errorf("the suite's branch is %v", of["head_branch"])
				}
			}
			if n := len(of["pull_requests"].([]any)); n != map[bool]int{true: 0, false: 1}[p == theirs] {
				t.Errorf("%s names %d pull requests", a.name, n)
			}
			if of["head_sha"] != p.SHA() {
				t.Errorf("%s is about %v", a.name, of["head_sha"])
			}
			if a.name == "check_run.requested_action" && (a.payload["sender"].(map[string]any)["id"] != float64(s.bob.ID) ||
				a.payload["requested_action"].(map[string]any)["identifier"] != "test") {
				t.Errorf("got %v %v", a.payload["sender"], a.payload["requested_action"])
			}
		}
		if got := in.take(); !slices.Equal(got, []string{"check_run.requested_action", "check_run.rerequested", "check_suite.rerequested"}) {
			t.Errorf("told %v", got)
		}
		if again := s.repo.Checks(p.SHA())[0]; again.Status != "completed" {
			t.Errorf("the run itself changed: %+v", again)
		}
	}
}

func TestDeliveriesAreLostDoubledDelayedAndShuffled(t *testing.T) {
	t.Parallel()
	s := begin(t, checked.New(t, githubtest.Options{}))
	in := s.inbox(t)
	send := func(n int) {
		for i := range n {
			s.gh.Send(s.app.ID, "public", fmt.Appendf(nil, `{"n":%d}`, i))
		}
	}
	order := func() []int {
		var out []int
		for _, a := range in.all() {
			out = append(out, int(a.payload["n"].(float64)))
		}
		in.take()
		return out
	}
	send(5)
	settle(t, s.gh)
	if got := order(); !slices.Equal(got, []int{0, 1, 2, 3, 4}) {
		t.Errorf("by itself: %v", got)
	}
	n := 0
	s.gh.Deliver(func(githubtest.Delivery) githubtest.Fate {
		n++
		switch n {
		case 1:
			return githubtest.Fate{Delay: 300 * time.Millisecond}
		case 2:
			return githubtest.Fate{Lose: true}
		case 3:
			return githubtest.Fate{Copies: 2}
		}
		return githubtest.Fate{}
	})
	before := len(s.gh.Delivered())
	send(4)
	settle(t, s.gh)
	if got := order(); !slices.Equal(got, []int{2, 2, 2, 3, 0}) {
		t.Errorf("late, lost, thrice, once: %v", got)
	}
	if log := s.gh.Delivered()[before:]; len(log) != 4 || !slices.ContainsFunc(log, func(d githubtest.Delivery) bool { return d.Status == 0 }) {
		t.Errorf("the log: %+v", log)
	}
	s.gh.Deliver(nil)
	s.gh.Hold()
	send(20)
	if got := order(); len(got) != 0 {
		t.Errorf("while held: %v", got)
	}
	s.gh.Release(rand.New(rand.NewPCG(1, 2)))
	settle(t, s.gh)
	got := order()
	if slices.IsSorted(got) || len(got) != 20 {
		t.Errorf("shuffled: %v", got)
	}
	slices.Sort(got)
	if got[0] != 0 || got[19] != 19 {
		t.Errorf("shuffled: %v", got)
	}
}

func TestRedeliveryKeepsTheGuid(t *testing.T) {
	t.Parallel()
	s := begin(t, checked.New(t, githubtest.Options{}))
	in := s.inbox(t)
	s.gh.Deliver(func(githubtest.Delivery) githubtest.Fate { return githubtest.Fate{Lose: true} })
	s.gh.Send(s.app.ID, "public", []byte(`{}`))
	settle(t, s.gh)
	s.gh.Deliver(nil)
	first := s.gh.Delivered()[0]
	if got := s.ask(t, s.asApp(t), "POST", fmt.Sprintf("/app/hook/deliveries/%d/attempts", first.ID), ""); got.status != 202 {
		t.Fatalf("got %d %s", got.status, got.body)
	}
	settle(t, s.gh)
	log := s.gh.Delivered()
	if len(log) != 2 || log[1].GUID != first.GUID || !log[1].Redelivery || log[1].ID == first.ID || log[1].Status != 202 {
		t.Errorf("the log: %+v", log)
	}
	if got := in.all(); len(got) != 1 || got[0].guid != first.GUID {
		t.Errorf("got %+v", got)
	}
	s.gh.Advance(80 * time.Hour)
	if got := s.ask(t, s.asApp(t), "GET", "/app/hook/deliveries", ""); string(got.body) != "[]" {
		t.Errorf("after three days: %s", got.body)
	}
}

func TestManySendersDeliverAllOnce(t *testing.T) {
	t.Parallel()
	s := begin(t, checked.New(t, githubtest.Options{}))
	in := s.inbox(t)
	s.gh.Senders(7)
	const n = 300
	for i := range n {
		s.gh.Send(s.app.ID, "public", fmt.Appendf(nil, `{"n":%d}`, i))
	}
	settle(t, s.gh)
	seen := map[string]int{}
	for _, a := range in.all() {
		seen[a.guid]++
	}
	if len(seen) != n || len(in.all()) != n {
		t.Errorf("%d events arrived %d times, want %d once", len(seen), len(in.all()), n)
	}
}
