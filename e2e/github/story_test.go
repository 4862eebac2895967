// Package github tells the story of a Hub that is a GitHub App, from the first start to a Session, against the real binary
// and a GitHub whose every answer is held against GitHub's own description.
package github

import (
	"errors"
	"flag"
	"fmt"
	"net/url"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	v1 "github.com/google/go-containerregistry/pkg/v1"

	"github.com/claude-hub/claude-hub/app/github/githubtest"
	"github.com/claude-hub/claude-hub/app/github/githubtest/checked"
	"github.com/claude-hub/claude-hub/app/seal"
	"github.com/claude-hub/claude-hub/e2e/world"
	"github.com/claude-hub/claude-hub/handlers/api/schema"
	"github.com/claude-hub/claude-hub/runner/image/imagetest"
	"github.com/claude-hub/claude-hub/store/storetest"
)

var long = flag.Bool("long", false, "tell the story on both databases of both GitHubs")

func TestStory(t *testing.T) {
	sqlite := func(testing.TB) string { return "" }
	for _, on := range []struct {
		name     string
		ghes     bool
		database func(testing.TB) string
		long     bool
	}{
		{"github.com on SQLite", false, sqlite, false},
		{"an Enterprise Server on PostgreSQL", true, storetest.PostgreSQL, false},
		{"github.com on PostgreSQL", false, storetest.PostgreSQL, true},
		{"an Enterprise Server on SQLite", true, sqlite, true},
	} {
		if on.long && !*long {
			continue
		}
		t.Run(on.name, func(t *testing.T) { tell(t, on.ghes, on.database(t)) })
	}
}

type story struct {
	*world.World
	t         *testing.T
	gh        *githubtest.Server
	acme      githubtest.Account
	ana       githubtest.Account
	repo      githubtest.Repo
	browser   *world.Browser
	image     string
	checklist *world.Page
}

func tell(t *testing.T, ghes bool, database string) {
	gh := checked.New(t, githubtest.Options{GHES: ghes})
	s := &story{t: t, gh: gh, acme: gh.Org("acme"), ana: gh.Person("ana")}
	s.acme.Admit(s.ana, "admin")
	s.repo = gh.Repo("acme/rocket", true, githubtest.Files{"hello.sh": githubtest.Program("#!/bin/sh\necho hello from the repository\n")})
	s.repo.Allow(s.ana, "write")
	s.World = world.Empty(t, world.Options{
		Database: database, NoDev: true, Hub: map[string]string{"encryption_keys": "[" + seal.NewKey() + "]"},
		GitHub: map[string]string{"url": gh.URLs().Web, "api_url": gh.URLs().API},
	})
	s.Repo = "acme/rocket"
	s.image = s.Push("tools:1", imagetest.Busybox(t, func(c *v1.ConfigFile) { c.Config.User = "coder" }))

	s.StartHub()
	s.theAppIsMadeFromAManifest()
	s.theAppIsInstalledAndAnaSignsIn()
	s.whoHasNoAccessComesNotIn()
	s.aRunnerIsRegisteredWithAnasToken()

	// From here on GitHub delivers as it does on a bad day.
	gh.Deliver(func(d githubtest.Delivery) githubtest.Fate {
		if d.Event == "pull_request" && d.Action == "opened" && !d.Redelivery {
			return githubtest.Fate{Lose: true}
		}
		return githubtest.Fate{Copies: 1}
	})
	pull := s.repo.Propose(s.ana, "environment", githubtest.Files{
		".claude-hub/environment.yml": githubtest.Text(fmt.Sprintf("image: %s\nbootstrap:\n  file: scripts/bootstrap.sh\nstart: cat /opt/tool hello.sh\ncpu: 1\nmemory: 512MiB\n", s.image)),
		"scripts/bootstrap.sh":        githubtest.Program("#!/bin/sh\nmkdir -p /opt && echo a tool of the pull request > /opt/tool\ni=0; while [ $i -lt 100 ]; do echo step $i; sleep 0.1; i=$((i+1)); done\n"),
	})
	s.Hub.Kill() // what was delivered meanwhile is lost as well
	s.StartHub()
	s.theProposalIsTested(pull)
	s.theMergeIsAVersion(pull)
	s.aSessionRunsFromIt()
	s.nothingIsLeftOver()
}

func (s *story) wants(p *world.Page, status int, texts ...string) *world.Page {
	s.t.Helper()
	for _, want := range texts {
		if !strings.Contains(p.Text, want) {
			s.t.Errorf("%s lacks %q: %s", p.URL, want, p.Text)
		}
	}
	if p.Status != status {
		s.t.Fatalf("%s: want status %d, got %d: %s", p.URL, status, p.Status, p.Text)
	}
	return p
}

// away is what somebody does at GitHub, where the Hub has sent their browser.
func (s *story) away(p *world.Page, at func(string) (string, error)) *world.Page {
	s.t.Helper()
	if p.Away == "" {
		s.t.Fatalf("%s was to lead to GitHub, and shows: %s", p.URL, p.Text)
	}
	back, err := at(p.Away)
	if err != nil {
		s.t.Fatal(err)
	}
	return s.browser.Open(back)
}

func (s *story) theAppIsMadeFromAManifest() {
	s.t.Helper()
	s.wants(s.Browser().Open("/sign-in"), 200, "Nobody can sign in yet")
	var found string
	s.Eventually(time.Minute, "the console shows the address of the set-up page", func() error {
		if found = regexp.MustCompile(`/setup\?token=[A-Za-z0-9_-]+`).FindString(s.Hub.Log()); found == "" {
			return errors.New("it is not there")
		}
		return nil
	})
	s.browser = s.Browser()
	page := s.browser.Press(s.browser.Open(found), "Begin", nil)
	s.wants(page, 200, "Create a new App")
	s.wants(s.Browser().Press(s.Browser().Open(found), "Begin", nil), 409, "was used already") // it works once
	page = s.wants(s.browser.Press(page, "Go on", url.Values{"name": {"Hub of acme"}, "org": {"acme"}}), 200, "checks", "contents", "read")
	form, _ := page.Form(s.t, "Create it on GitHub")
	state, err := url.Parse(form.Action)
	if err != nil {
		s.t.Fatal(err)
	}
	back, err := s.gh.Manifest(form.Fields.Get("manifest"), state.Query().Get("state"), s.acme)
	if err != nil {
		s.t.Fatal(err)
	}
	s.checklist = s.wants(s.browser.Open(back), 200, "Is everything in place?")
	s.wants(s.browser.Open(back), 409) // a state is good once
}

func (s *story) theAppIsInstalledAndAnaSignsIn() {
	s.t.Helper()
	page := s.away(s.browser.Open("/setup/install"), func(to string) (string, error) {
		_, back, err := s.gh.InstallFrom(to, s.acme, s.ana, s.repo)
		return back, err
	})
	page = s.away(s.browser.Follow(s.wants(page, 200, "Sign in with GitHub"), "Sign in with GitHub"), func(to string) (string, error) { return s.gh.Authorize(to, s.ana) })
	s.wants(page, 200, "Is everything in place?")
	s.wants(s.browser.Open("/"), 200, "acme/rocket")
}

func (s *story) whoHasNoAccessComesNotIn() {
	s.t.Helper()
	eve := s.Browser()
	page := eve.Follow(eve.Open("/sign-in"), "Sign in with GitHub")
	back, err := s.gh.Authorize(page.Away, s.gh.Person("eve"))
	if err != nil {
		s.t.Fatal(err)
	}
	s.wants(eve.Open(back), 409, "You can't sign in here")
	if page := eve.Open(fmt.Sprintf("/repos/%d", s.repo.ID)); !strings.HasPrefix(page.URL.Path, "/sign-in") {
		s.t.Errorf("eve sees %s: %s", page.URL, page.Text)
	}
}

func (s *story) aRunnerIsRegisteredWithAnasToken() {
	s.t.Helper()
	page := s.browser.Press(s.browser.Open("/account/tokens"), "Make the token", url.Values{"name": {"laptop"}, "scope": {"read", "environments", "sessions", "runners"}})
	s.wants(page, 201, "shown only this once")
	if s.Token = regexp.MustCompile(`[A-Za-z0-9_-]{43}`).FindString(page.Text); s.Token == "" {
		s.t.Fatalf("no token is shown: %s", page.Text)
	}
	s.Register()
	s.StartRunner()
}

// check is the newest check run of a name on a commit.
func (s *story) check(sha, name string) (githubtest.Check, bool) {
	all := s.repo.Checks(sha)
	for _, c := range slices.Backward(all) {
		if c.Name == name {
			return c, true
		}
	}
	return githubtest.Check{}, false
}

func (s *story) theProposalIsTested(pull githubtest.Pull) {
	s.t.Helper()
	var environment githubtest.Check
	s.Eventually(time.Minute, "the check “Environment” says that the draft is valid", func() (err error) {
		var there bool
		if environment, there = s.check(pull.SHA(), "Environment"); !there || environment.Status != "completed" || len(environment.Actions) == 0 {
			err = fmt.Errorf("it is there: %v, %+v", there, environment)
		}
		return err
	})
	// A press counts only by who passes the gate.
	eve := s.gh.Person("eve")
	s.repo.Allow(eve, "write")
	if err := s.repo.Press(environment.ID, environment.Actions[0], eve); err != nil {
		s.t.Fatal(err)
	}
	s.Eventually(time.Minute, "the check asks eve to do it on the Hub's page", func() error {
		if c, _ := s.check(pull.SHA(), "Environment"); !strings.Contains(c.Summary+c.Text, "eve") {
			return fmt.Errorf("%+v", c)
		}
		return nil
	})
	if c, there := s.check(pull.SHA(), "Environment / Test build"); there {
		s.t.Fatalf("eve, who never signed in, has started a Test build: %+v", c)
	}
	if err := s.repo.Press(environment.ID, environment.Actions[0], s.ana); err != nil {
		s.t.Fatal(err)
	}
	progress := func() error {
		if c, there := s.check(pull.SHA(), "Environment / Test build"); !there || c.Status != "in_progress" {
			return fmt.Errorf("it is there: %v, %+v", there, c)
		}
		return nil
	}
	s.Eventually(time.Minute, "the check shows progress", progress)
	s.Hub.Kill() // in the middle of the Test build
	s.StartHub()
	s.Eventually(90*time.Second, "the Test build has passed", func() error {
		if c, there := s.check(pull.SHA(), "Environment / Test build"); !there || c.Conclusion != "success" {
			return fmt.Errorf("it is there: %v, %+v", there, c)
		}
		return nil
	})
	n := 0
	for _, c := range s.repo.Checks(pull.SHA()) {
		if c.Name == "Environment / Test build" {
			n++
		}
	}
	if n != 1 {
		s.t.Errorf("want one check run of the one Test build, got %d: %+v", n, s.repo.Checks(pull.SHA()))
	}
}

func (s *story) theMergeIsAVersion(pull githubtest.Pull) {
	s.t.Helper()
	sha := pull.Merge(s.ana, "squash")
	var versions []schema.Version
	s.Eventually(time.Minute, "the merge is applied", func() error {
		if err := s.JSON(&versions, "env", "versions", "--repo", s.Repo, "-o", "json"); err != nil {
			return err
		}
		if len(versions) == 0 {
			return errors.New("there is no version")
		}
		return nil
	})
	if v := versions[0]; len(versions) != 1 || v.AppliedBy != "ana" || !strings.Contains(v.Source, sha) {
		s.t.Errorf("want one version of commit %s by ana, got %+v", sha, versions)
	}
}

func (s *story) aSessionRunsFromIt() {
	s.t.Helper()
	id := strings.TrimSpace(s.OK("session", "start", "--repo", s.Repo))
	if r := s.CLI("session", "exec", id, "--", "sh", "-c", "cat /opt/tool && ./hello.sh"); r.Stdout != "a tool of the pull request\nhello from the repository\n" {
		s.t.Error(r)
	}
	// Who loses access on GitHub loses the Session with it, at the event and not only when the answer is old.
	s.repo.Allow(s.ana, "")
	s.acme.Admit(s.ana, "member")
	s.Eventually(time.Minute, "ana's token reaches the Session no longer", func() error {
		if r := s.CLI("session", "exec", id, "--", "true"); r.Code == 0 {
			return fmt.Errorf("%s", r)
		}
		return nil
	})
	s.repo.Allow(s.ana, "write")
	s.Eventually(time.Minute, "ana is back", func() error {
		if r := s.CLI("session", "exec", id, "--", "true"); r.Code != 0 {
			return fmt.Errorf("%s", r)
		}
		return nil
	})
	s.OK("session", "rm", id, "--yes")
}

func (s *story) nothingIsLeftOver() {
	s.t.Helper()
	for _, r := range s.gh.Requests() {
		if strings.Contains(r.Path+r.Query, "git-receive-pack") {
			s.t.Errorf("something was pushed: %+v", r)
		}
	}
	s.Eventually(time.Minute, "no check run is left in progress", func() error {
		for _, sha := range append([]string{s.repo.Head("main")}, s.repo.Head("environment")) {
			for _, c := range s.repo.Checks(sha) {
				if c.Status != "completed" {
					return fmt.Errorf("%+v", c)
				}
			}
		}
		return nil
	})
	s.Runner.Stop()
	s.Hub.Stop()
}
