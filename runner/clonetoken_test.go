package runner

import (
	"bytes"
	"context"
	"encoding/base64"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/rs/zerolog"

	"github.com/claude-hub/claude-hub/app/fleet"
	"github.com/claude-hub/claude-hub/app/github"
	"github.com/claude-hub/claude-hub/app/github/githubtest"
	"github.com/claude-hub/claude-hub/app/github/githubtest/checked"
	"github.com/claude-hub/claude-hub/app/token"
	"github.com/claude-hub/claude-hub/envspec"
	"github.com/claude-hub/claude-hub/runner/build"
	"github.com/claude-hub/claude-hub/runner/wire"
	"github.com/claude-hub/claude-hub/store"
)

func (o *owner) CloneRepo(context.Context, *store.Tx, fleet.Assignment) (int64, string, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.repo, "", nil
}

// minting is the Hub's GitHub App, whose tokens the test knows.
type minting struct {
	*token.Source
	mu      sync.Mutex
	all     []string
	revoked int
}

func (m *minting) Mint(ctx context.Context, repo int64) (fleet.Token, string) {
	t, refused := m.Source.Mint(ctx, repo)
	if refused == "" {
		m.mu.Lock()
		defer m.mu.Unlock()
		m.all = append(m.all, t.Text)
	}
	return t, refused
}

func (m *minting) MintPush(ctx context.Context, repo int64) (fleet.Token, string, bool) {
	t, refused, lacks := m.Source.MintPush(ctx, repo)
	if refused == "" {
		m.mu.Lock()
		defer m.mu.Unlock()
		m.all = append(m.all, t.Text)
	}
	return t, refused, lacks
}

func (m *minting) Revoke(ctx context.Context, token string) error {
	err := m.Source.Revoke(ctx, token)
	if err == nil {
		m.mu.Lock()
		defer m.mu.Unlock()
		m.revoked++
	}
	return err
}

func (m *minting) tokens() []string {
	m.mu.Lock()
	defer m.mu.Unlock()
	return append([]string(nil), m.all...)
}

func (m *minting) ended() int {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.revoked
}

// installed is a world whose Hub is a GitHub App that has the private Repo octo/app.
type installed struct {
	*world
	gh   *githubtest.Server
	repo githubtest.Repo
	inst githubtest.Installation
	app  *minting

	appID int64
}

func install(t *testing.T, gh *githubtest.Server) *installed {
	t.Helper()
	i := installOnly(t, gh)
	i.start()
	return i
}

// installOnly is install without a Runner.
func installOnly(t *testing.T, gh *githubtest.Server) *installed {
	t.Helper()
	ana, org := gh.Person("ana"), gh.Org("octo")
	i := &installed{gh: gh, repo: gh.Repo("octo/app", true, githubtest.Files{"README": githubtest.Text("private words\n"), "run.sh": githubtest.Program("#!/bin/sh\n")})}
	app := gh.App(githubtest.AppOptions{})
	i.inst, i.appID = gh.Install(app.ID, org, ana, i.repo), app.ID
	u := gh.URLs()
	a, err := github.New(github.Options{
		Endpoints: github.Endpoints{Web: u.Web, API: u.API, GraphQL: u.GraphQL}, Version: "test",
		Credentials: github.Credentials{
			AppID: app.ID, ClientID: app.ClientID, ClientSecret: github.NewSecret(app.ClientSecret),
			PrivateKey: github.NewSecret(app.PrivateKey), WebhookSecrets: []github.Secret{github.NewSecret(app.WebhookSecret)},
		},
	})
	if err != nil {
		t.Fatal(err)
	}
	i.app = &minting{Source: token.Of(github.NewHolder(a), zerolog.Nop())}
	i.world = newWorld(t, i.app)
	i.owner.repo = i.repo.ID
	return i
}

// build assigns a Test build of the private Repo.
func (i *installed) build(spec envspec.Spec) string {
	i.t.Helper()
	id := store.NewID()
	return i.assign(wire.KindTestBuild, id, wire.TestBuild{ID: id, Recipe: wire.Recipe{Environment: "env", Spec: raw(i.t, spec)},
		Repo: wire.Repo{Name: "octo/app", CloneURL: i.repo.CloneURL(), Token: true}}, time.Now().Add(10*time.Minute))
}

// dead fails the test unless n tokens were made and GitHub accepts none any more.
func (i *installed) dead(n int) {
	i.t.Helper()
	all := i.app.tokens()
	if len(all) != n {
		i.t.Fatalf("%d tokens were made, want %d", len(all), n)
	}
	for _, tok := range all {
		req, err := http.NewRequestWithContext(i.t.Context(), http.MethodGet, i.repo.CloneURL()+"/info/refs?service=git-upload-pack", nil)
		if err != nil {
			i.t.Fatal(err)
		}
		req.SetBasicAuth(build.TokenUser, tok)
		res, err := http.DefaultClient.Do(req)
		if err != nil {
			i.t.Fatal(err)
		}
		res.Body.Close()
		if res.StatusCode != http.StatusUnauthorized {
			i.t.Errorf("a token still reads: status %d", res.StatusCode)
		}
	}
}

// inProcesses is where a text stands in the arguments or the environment of any process, this one's own excepted.
func inProcesses(text string) (in []string) {
	for _, name := range []string{"cmdline", "environ"} {
		files, _ := filepath.Glob("/proc/[0-9]*/" + name)
		for _, f := range files {
			if b, err := os.ReadFile(f); err == nil && bytes.Contains(b, []byte(text)) {
				in = append(in, f)
			}
		}
	}
	return in
}

// gitRuns says whether a git process fetches from url.
func gitRuns(url string) bool {
	files, _ := filepath.Glob("/proc/[0-9]*/cmdline")
	for _, f := range files {
		if b, err := os.ReadFile(f); err == nil && bytes.Contains(b, []byte("git")) && bytes.Contains(b, []byte(url)) {
			return true
		}
	}
	return false
}

func poll(t *testing.T, what string, ok func() bool) {
	t.Helper()
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for end := time.After(limit); !ok(); {
		select {
		case <-end:
			t.Fatalf("not within %s: %s", limit, what)
		case <-tick.C:
		}
	}
}

func TestAPrivateRepoIsTestedWithATokenThatIsNowhereAndRevokedAfter(t *testing.T) {
	t.Parallel()
	checked.Both(t, func(t *testing.T, gh *githubtest.Server) {
		i := install(t, gh)
		defer gh.Break(githubtest.Fault{Method: http.MethodPost, Path: "/git-upload-pack", Delay: 2 * time.Second, Times: 1})()
		id := i.build(envspec.Spec{Image: i.image("app:v1", asCoder), Start: "cat README; cat .git/config; env; git --version || true; cat /proc/self/mountinfo; echo x | sha256sum"})
		poll(t, "git is let in with the token", func() bool { return gh.Asked(http.MethodGet, "/info/refs") >= 2 && gitRuns(i.repo.CloneURL()) })
		tok := i.app.tokens()[0]
		basic := base64.StdEncoding.EncodeToString([]byte(build.TokenUser + ":" + tok))
		for _, text := range []string{tok, basic} {
			if in := inProcesses(text); len(in) > 0 {
				t.Errorf("while git runs, the token is in %q", in)
			}
			if in := i.onDisk(text); len(in) > 0 {
				t.Errorf("while git runs, the token is in %q", in)
			}
		}
		if !gitRuns(i.repo.CloneURL()) {
			t.Error("git had ended when it was looked at: this shows nothing")
		}
		state, d := i.outcome(id)
		log := i.wholeLog(id)
		if state != wire.StatePassed || !strings.Contains(log, "private words") || !strings.Contains(log, "url = "+i.repo.CloneURL()) {
			t.Fatalf("%s: %+v\n%s", state, d.Failure, log)
		}
		i.dead(1)
		if strings.Contains(log, "ghs_") || strings.Contains(log, basic) {
			t.Errorf("the log holds the token:\n%s", log)
		}
		i.noneOnDisk(tok, basic)
		for _, q := range gh.Requests() {
			if strings.HasSuffix(q.Path, "/access_tokens") && !strings.Contains(string(q.Body), `"permissions":{"contents":"read"}`) {
				t.Errorf("asked for more: %s", q.Body)
			}
			if strings.Contains(q.Path+q.Query, tok) {
				t.Errorf("the token is in an address: %s?%s", q.Path, q.Query)
			}
		}
	})
}

func TestASessionIsClonedWithATokenOfWhichNothingStays(t *testing.T) {
	t.Parallel()
	checked.Both(t, func(t *testing.T, gh *githubtest.Server) {
		i := install(t, gh)
		recipe, key := i.version(envspec.Spec{Image: i.image("app:v1", asCoder), Start: "echo x | sha256sum"})
		id := i.session(recipe, key, i.repo.CloneURL(), func(p *wire.Session) { p.Repo.Token = true })
		i.untilState(id, wire.StateRunning)
		i.dead(1)
		tok := i.app.tokens()[0]
		if out := i.sh(id, "cat README .git/config; env; tr '\\0' '\\n' </proc/1/environ 2>/dev/null; grep -r ghs_ .git && echo FOUND; true"); !strings.Contains(out, "private words") ||
			strings.Contains(out, "ghs_") || strings.Contains(out, "FOUND") || strings.Contains(out, "credential") {
			t.Errorf("in the Sandbox:\n%s", out)
		}
		i.change(id, fleet.Stop)
		i.untilState(id, wire.StateAsleep)
		i.change(id, fleet.Run)
		i.untilState(id, wire.StateRunning)
		i.dead(1) // a wake clones nothing
		i.noneOnDisk(tok, base64.StdEncoding.EncodeToString([]byte(build.TokenUser+":"+tok)))
	})
}

func TestACloneWhoseTokenEndsInItsMiddleGoesOnWithAnother(t *testing.T) {
	t.Parallel()
	gh := checked.New(t, githubtest.Options{})
	i := install(t, gh)
	defer gh.Break(githubtest.Fault{Method: http.MethodPost, Path: "/git-upload-pack", Delay: 5 * time.Second, Times: 1})()
	id := i.build(envspec.Spec{Image: i.image("app:v1", asCoder), Start: "cat README"})
	poll(t, "git is let in with the token", func() bool { return gh.Asked(http.MethodGet, "/info/refs") >= 2 })
	if err := i.app.Source.Revoke(t.Context(), i.app.tokens()[0]); err != nil { // as if its hour was over
		t.Fatal(err)
	}
	state, d := i.outcome(id)
	if log := i.wholeLog(id); state != wire.StatePassed || !strings.Contains(log, "trying once more with another token") || !strings.Contains(log, "private words") {
		t.Fatalf("%s: %+v\n%s", state, d.Failure, log)
	}
	i.dead(2)
}

func TestACloneWhoseAppIsRemovedInItsMiddleSaysSo(t *testing.T) {
	t.Parallel()
	gh := checked.New(t, githubtest.Options{})
	i := install(t, gh)
	defer gh.Break(githubtest.Fault{Method: http.MethodPost, Path: "/git-upload-pack", Delay: 5 * time.Second, Times: 1})()
	id := i.build(envspec.Spec{Image: i.image("app:v1", asCoder)})
	poll(t, "git is let in with the token", func() bool { return gh.Asked(http.MethodGet, "/info/refs") >= 2 })
	i.inst.Remove()
	state, d := i.outcome(id)
	if state != wire.StateFailed || d.Failure.Code != build.CodeToken || !strings.Contains(d.Failure.Message, "isn't installed on this Repo") {
		t.Errorf("%s: %+v\n%s", state, d.Failure, i.wholeLog(id))
	}
}

func TestWithoutATokenNothingIsClonedAndTheReasonIsSaid(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		change func(*installed)
		says   string
	}{
		"not installed":  {func(i *installed) { i.inst.Remove() }, "There is no token to clone with. The GitHub App isn't installed on this Repo."},
		"suspended":      {func(i *installed) { i.inst.Suspend(true) }, "The GitHub App's installation is suspended."},
		"GitHub is down": {func(i *installed) { i.gh.Break(githubtest.Fault{Status: http.StatusServiceUnavailable}) }, "GitHub has trouble (status 503)."},
		"rate limited": {func(i *installed) { i.gh.Break(githubtest.Secondary(http.StatusForbidden, time.Minute)) },
			"GitHub has had enough requests for now. It takes more from "},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			i := install(t, checked.New(t, githubtest.Options{}))
			c.change(i)
			spec := envspec.Spec{Image: i.image("app:v1", asCoder)}
			id := i.build(spec)
			state, d := i.outcome(id)
			if state != wire.StateFailed || d.Failure.Phase != wire.PhaseClone || d.Failure.Code != build.CodeToken || !strings.Contains(d.Failure.Message, c.says) {
				t.Errorf("%s: %+v\n%s", state, d.Failure, i.wholeLog(id))
			}
			recipe, key := i.version(spec)
			id = i.session(recipe, key, i.repo.CloneURL(), func(p *wire.Session) { p.Repo.Token = true })
			i.until(id, "failed with the reason", func(r fleet.Report) bool {
				return r.State == wire.StateFailed && strings.Contains(string(r.Detail), c.says)
			})
			if i.gh.Asked("", "/info/refs") > 0 {
				t.Error("git asked GitHub")
			}
		})
	}
}

func TestACancelledCloneGivesItsTokenBack(t *testing.T) {
	t.Parallel()
	gh := checked.New(t, githubtest.Options{})
	i := install(t, gh)
	defer gh.Break(githubtest.Fault{Method: http.MethodPost, Path: "/git-upload-pack", Delay: 20 * time.Second, Times: 1})()
	id := i.build(envspec.Spec{Image: i.image("app:v1", asCoder)})
	poll(t, "git is let in with the token", func() bool { return gh.Asked(http.MethodGet, "/info/refs") >= 2 })
	i.change(id, fleet.Stop)
	if state, d := i.outcome(id); state != wire.StateCancelled {
		t.Errorf("%s: %+v", state, d.Failure)
	}
	i.dead(1)
}

func TestACloneIsNotTriedAgainForWhatAnotherTokenWontMend(t *testing.T) {
	t.Parallel()
	gh := checked.New(t, githubtest.Options{})
	i := install(t, gh)
	mend := gh.Break(githubtest.Fault{Path: "/info/refs", Status: http.StatusInternalServerError})
	id := i.build(envspec.Spec{Image: i.image("app:v1", asCoder)})
	if state, d := i.outcome(id); state != wire.StateFailed || d.Failure.Code != "repo-unreachable" {
		t.Errorf("%s: %+v", state, d.Failure)
	}
	mend()
	i.dead(1)
}

func TestWithoutAnAppNothingIsClonedWithATokenAndItIsSaid(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.start()
	id := store.NewID()
	id = w.assign(wire.KindTestBuild, id, wire.TestBuild{ID: id, Recipe: wire.Recipe{Environment: "env", Spec: raw(t, envspec.Spec{Image: w.image("app:v1", nil)})},
		Repo: wire.Repo{Name: "team/app", CloneURL: w.repo(), Token: true}}, time.Now().Add(10*time.Minute))
	state, d := w.outcome(id)
	if state != wire.StateFailed || !strings.Contains(d.Failure.Message, "the Hub has no GitHub App") {
		t.Errorf("%s: %+v", state, d.Failure)
	}
}

func TestATokenThatIsRefusedTwiceIsAskedForTwiceOnly(t *testing.T) {
	t.Parallel()
	gh := checked.New(t, githubtest.Options{})
	i := install(t, gh)
	i.owner.mu.Lock()
	other := gh.Repo("octo/other", true, githubtest.Files{"README": githubtest.Text("other\n")})
	i.owner.repo = other.ID // the token is for another Repo than the one that is cloned
	i.owner.mu.Unlock()
	i.inst.Add(other)
	id := i.build(envspec.Spec{Image: i.image("app:v1", asCoder)})
	if state, d := i.outcome(id); state != wire.StateFailed || d.Failure.Code != "repo-not-found" && d.Failure.Code != "clone-refused" {
		t.Errorf("%s: %+v", state, d.Failure)
	}
	i.dead(2)
}

func TestARunnerKilledInACloneClonesAgainWithAnotherTokenAndLeavesNoneBehind(t *testing.T) {
	t.Parallel()
	gh := checked.New(t, githubtest.Options{})
	i := installOnly(t, gh)
	defer gh.Break(githubtest.Fault{Method: http.MethodPost, Path: "/git-upload-pack", Delay: 5 * time.Second, Times: 1})()
	i.spawn()
	id := i.build(envspec.Spec{Image: i.image("app:v1", asCoder), Start: "cat README; echo x | sha256sum"})
	poll(t, "git is let in with the token", func() bool { return gh.Asked(http.MethodGet, "/info/refs") >= 2 })
	i.kill()
	poll(t, "git ended with its Runner", func() bool { return !gitRuns(i.repo.CloneURL()) })
	first := i.app.tokens()[0]
	if in := i.onDisk(first); len(in) > 0 {
		t.Errorf("the killed Runner left the token in %q", in)
	}
	i.start()
	if state, d := i.outcome(id); state != wire.StatePassed {
		t.Fatalf("%s: %+v\n%s", state, d.Failure, i.wholeLog(id))
	}
	all := i.app.tokens()
	if len(all) != 2 || i.app.ended() != 1 {
		t.Fatalf("%d tokens were made and %d given back", len(all), i.app.ended())
	}
	i.noneOnDisk(all...)
	// Nobody has the first one any more; it ends by itself.
	gh.Advance(61 * time.Minute)
	i.dead(2)
}
