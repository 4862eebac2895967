package webhook_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/claude-hub/claude-hub/app/github"
	"github.com/claude-hub/claude-hub/app/github/githubtest"
	"github.com/claude-hub/claude-hub/app/github/githubtest/checked"
	"github.com/claude-hub/claude-hub/app/github/githubtest/examples"
	"github.com/claude-hub/claude-hub/handlers/webhook"
	"github.com/claude-hub/claude-hub/store/storetest"
)

func TestEachEventLeadsWhereItShould(t *testing.T) {
	t.Parallel()
	checked.Both(t, func(t *testing.T, gh *githubtest.Server) {
		s := setScene(t, gh, storetest.New(t), webhook.Options{})
		s.started(t)
		repo, org := s.repo.ID, s.org.ID
		var pull githubtest.Pull
		var run github.CheckRun
		steps := []struct {
			name string
			do   func()
			want []string
		}{
			{"a pull request", func() {
				pull = s.repo.Propose(s.ana, "feature", githubtest.Files{"x": githubtest.Text("x")})
				var err error
				run, err = s.app.CreateCheckRun(t.Context(), github.RepoID(repo), github.CheckRun{
					SHA: pull.SHA(), Name: "Environment", ExternalID: "e-1", Status: "completed", Conclusion: "action_required",
					Buttons: []github.Button{{Label: "Test", Description: "Build it", Identifier: "test:alpha"}},
				})
				if err != nil {
					t.Fatal(err)
				}
			}, []string{fmt.Sprintf("look at %d #%d", repo, pull.Number+1), fmt.Sprintf("pushed %d feature * by %d", repo, s.ana.ID)}},
			{"a button", func() {
				if err := s.repo.Press(run.ID, "test:alpha", s.ana); err != nil {
					t.Error(err)
				}
			}, []string{fmt.Sprintf("pressed %d e-1 test:alpha by %d", repo, s.ana.ID)}},
			{"re-run", func() {
				if err := s.repo.Rerun(run.ID, s.bob); err != nil {
					t.Error(err)
				}
			}, []string{fmt.Sprintf("rerun %d e-1 by %d", repo, s.bob.ID)}},
			{"re-run all", func() { s.repo.RerunAll(pull.SHA(), s.ana) }, []string{fmt.Sprintf("rerun all %d * by %d", repo, s.ana.ID)}},
			{"a merge queue", func() { pull.Queue() }, []string{fmt.Sprintf("queued %d *", repo)}},
			{"a collaborator", func() { s.repo.Allow(s.bob, "read") }, []string{fmt.Sprintf("forget person %d", s.bob.ID)}},
			{"a member", func() { s.org.Admit(s.bob, "member") }, []string{fmt.Sprintf("forget person %d", s.bob.ID)}},
			{"a rename", func() { s.repo.Rename("app2") }, []string{fmt.Sprintf("forget repo %d", repo), fmt.Sprintf("repo %d is octo/app2", repo)}},
			{"publishing", func() { s.repo.Publish(true) }, []string{fmt.Sprintf("forget repo %d", repo), fmt.Sprintf("repo %d is octo/app2", repo)}},
			{"a Repo more", func() { s.inst.Add(s.other) }, []string{fmt.Sprintf("forget installation %d", s.inst.ID), fmt.Sprintf("forget repo %d", s.other.ID)}},
			{"a Repo less", func() { s.inst.Drop(s.other) }, []string{fmt.Sprintf("forget installation %d", s.inst.ID), fmt.Sprintf("forget repo %d", s.other.ID),
				fmt.Sprintf("cancel %d: The GitHub App was removed from this Repo.", s.other.ID)}},
			{"another login", func() { s.org.Rename("octo2") }, []string{fmt.Sprintf("forget account %d", org), fmt.Sprintf("installation %d renamed", s.inst.ID)}},
			{"other permissions", func() { s.inst.Grant(map[string]string{"metadata": "read", "contents": "read"}) },
				[]string{fmt.Sprintf("forget installation %d", s.inst.ID), fmt.Sprintf("installation %d new_permissions_accepted", s.inst.ID)}},
			{"suspension", func() { s.inst.Suspend(true) }, []string{fmt.Sprintf("installation %d suspend", s.inst.ID), fmt.Sprintf("cancel %d: The GitHub App's installation was suspended.", repo)}},
			{"its end", func() { s.inst.Suspend(false) }, []string{fmt.Sprintf("installation %d unsuspend", s.inst.ID)}},
			{"removal", func() { s.inst.Remove() }, []string{fmt.Sprintf("installation %d deleted", s.inst.ID), fmt.Sprintf("cancel %d: The GitHub App was removed from this Repo.", repo)}},
		}
		before := 0
		for _, step := range steps {
			step.do()
			s.settled(t)
			got := s.told.list()[before:]
			before += len(got)
			for _, want := range step.want {
				begin, end, _ := strings.Cut(want, "*")
				if !slices.ContainsFunc(got, func(g string) bool { return strings.HasPrefix(g, begin) && strings.HasSuffix(g, end) }) {
					t.Errorf("%s: %q leads to %q", step.name, want, got)
				}
			}
			if strings.HasPrefix(step.name, "re-run") && len(got) != 1 {
				t.Errorf("%s leads to more: %q", step.name, got)
			}
		}
		if n := rows(t, s.db, "aside"); n != 0 {
			t.Errorf("%d were set aside", n)
		}
	})
}

// TestALateEventDoesNotUndoANewerOne has GitHub say what is true now: a suspension that ended, a Repo that was added again.
func TestALateEventDoesNotUndoANewerOne(t *testing.T) {
	t.Parallel()
	s := setScene(t, checked.New(t, githubtest.Options{}), storetest.New(t), webhook.Options{})
	s.started(t)
	s.inst.Add(s.other)
	s.settled(t)
	s.gh.Hold()
	s.inst.Drop(s.other)
	s.inst.Add(s.other)
	s.inst.Suspend(true)
	s.inst.Suspend(false)
	s.repo.Rename("second")
	s.repo.Rename("third")
	s.gh.Release(nil)
	s.settled(t)
	for _, what := range s.told.list() {
		if strings.HasPrefix(what, "cancel") || strings.Contains(what, "second") {
			t.Errorf("%s", what)
		}
	}
	if got := s.told.list(); !slices.Contains(got, fmt.Sprintf("repo %d is octo/third", s.repo.ID)) {
		t.Errorf("got %q", got)
	}
}

func TestChecksOfOtherAppsAreNobodysHere(t *testing.T) {
	t.Parallel()
	s := setScene(t, checked.New(t, githubtest.Options{}), storetest.New(t), webhook.Options{})
	s.started(t)
	for _, event := range []string{"check_run", "check_suite"} {
		s.gh.Send(s.cred.ID, event, fmt.Appendf(nil, `{"action":"rerequested","repository":{"id":%d},%q:{"id":1,"app":{"id":%d}}}`, s.repo.ID, event, s.cred.ID+1))
	}
	s.settled(t)
	if got := s.told.list(); len(got) != 0 || rows(t, s.db, "done") != 2 {
		t.Errorf("led to %q", got)
	}
}

// TestEverySubscribedEventHasAPlace goes by GitHub's own examples: of each event that the App gets at least one leads somewhere.
func TestEverySubscribedEventHasAPlace(t *testing.T) {
	t.Parallel()
	h := newHub(t, storetest.New(t), webhook.Options{})
	took := map[string]int{}
	for i, x := range examples.All() {
		status, text := h.post(t, x.Event, fmt.Sprint("g-", i), string(x.Payload))
		if status != 202 && (x.Event != "ping" || status != 200) {
			t.Errorf("%s: %d %s", x.Event, status, text)
		}
		if text == "Taken.\n" {
			took[x.Event]++
		}
	}
	byThemselves := []string{"installation", "installation_repositories", "github_app_authorization", "check_run", "check_suite"}
	for _, event := range append(github.Events(), byThemselves...) {
		if took[event] == 0 {
			t.Errorf("no example of %s leads anywhere", event)
		}
	}
	h.taken(t, "installation_target", "target", `{"action":"renamed","account":{"id":1},"installation":{"id":2}}`) // there is no example
}
