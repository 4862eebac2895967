package token_test

import (
	"bytes"
	"encoding/json"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/rs/zerolog"

	"github.com/claude-hub/claude-hub/app/fleet"
	"github.com/claude-hub/claude-hub/app/github"
	"github.com/claude-hub/claude-hub/app/github/githubtest"
	"github.com/claude-hub/claude-hub/app/github/githubtest/checked"
	"github.com/claude-hub/claude-hub/app/token"
)

// scene is the App on an organization that gave it one of its two Repos.
type scene struct {
	gh          *githubtest.Server
	repo, other githubtest.Repo
	inst        githubtest.Installation
	app         *github.App
	holder      *github.Holder
	source      *token.Source
	log         bytes.Buffer
}

func setScene(t *testing.T, gh *githubtest.Server) *scene {
	t.Helper()
	s := &scene{gh: gh}
	ana, org := gh.Person("ana"), gh.Org("octo")
	s.repo = gh.Repo("octo/app", true, githubtest.Files{"README.md": githubtest.Text("hello\n")})
	s.other = gh.Repo("octo/other", true, githubtest.Files{"README.md": githubtest.Text("other\n")})
	app := gh.App(githubtest.AppOptions{})
	s.inst = gh.Install(app.ID, org, ana, s.repo)
	u := gh.URLs()
	var err error
	s.app, err = github.New(github.Options{
		Endpoints: github.Endpoints{Web: u.Web, API: u.API, GraphQL: u.GraphQL}, Version: "test", Timeout: 5 * time.Second,
		Credentials: github.Credentials{
			AppID: app.ID, ClientID: app.ClientID, ClientSecret: github.NewSecret(app.ClientSecret),
			PrivateKey: github.NewSecret(app.PrivateKey), WebhookSecrets: []github.Secret{github.NewSecret(app.WebhookSecret)},
		},
	})
	if err != nil {
		t.Fatal(err)
	}
	s.holder = github.NewHolder(s.app)
	s.source = token.Of(s.holder, zerolog.New(&s.log))
	return s
}

func (s *scene) minted(t *testing.T) fleet.Token {
	t.Helper()
	tok, refused := s.source.Mint(t.Context(), s.repo.ID)
	if refused != "" {
		t.Fatalf("refused: %s\n%s", refused, s.log.String())
	}
	return tok
}

// lsRemote asks for a Repo's branches with a token.
func lsRemote(url, tok string) error {
	cmd := exec.Command("git", "-c", "credential.helper=", "-c", `credential.helper=!f() { echo username=x-access-token; echo "password=$TOKEN"; }; f`, "ls-remote", url)
	cmd.Env = append(os.Environ(), "GIT_CONFIG_GLOBAL=/dev/null", "GIT_CONFIG_NOSYSTEM=1", "GIT_TERMINAL_PROMPT=0", "TOKEN="+tok)
	return cmd.Run()
}

func TestATokenReadsExactlyOneRepoUntilItIsRevoked(t *testing.T) {
	t.Parallel()
	checked.Both(t, func(t *testing.T, gh *githubtest.Server) {
		s := setScene(t, gh)
		s.inst.Add(s.other)
		tok := s.minted(t)
		if left := time.Until(tok.Expires); left < 55*time.Minute || left > time.Hour {
			t.Errorf("it lives for %s", left)
		}
		for _, q := range gh.Requests() {
			if !strings.HasSuffix(q.Path, "/access_tokens") {
				continue
			}
			var asked struct {
				IDs         []int64           `json:"repository_ids"`
				Permissions map[string]string `json:"permissions"`
			}
			if err := json.Unmarshal(q.Body, &asked); err != nil || len(asked.IDs) != 1 || asked.IDs[0] != s.repo.ID || len(asked.Permissions) != 1 || asked.Permissions["contents"] != "read" {
				t.Errorf("asked for %s", q.Body)
			}
		}
		if err := lsRemote(s.repo.CloneURL(), tok.Text); err != nil {
			t.Error(err)
		}
		if lsRemote(s.other.CloneURL(), tok.Text) == nil {
			t.Error("it reads another Repo of the installation")
		}
		if err := push(t, s.repo.CloneURL(), tok.Text); err == nil {
			t.Error("it pushes")
		}
		for range 2 { // the second time it has ended already
			if err := s.source.Revoke(t.Context(), tok.Text); err != nil {
				t.Error(err)
			}
		}
		if lsRemote(s.repo.CloneURL(), tok.Text) == nil {
			t.Error("it reads after it was revoked")
		}
		if strings.Contains(s.log.String(), tok.Text) {
			t.Error("it is in the log")
		}
	})
}

func push(t *testing.T, url, tok string) error {
	t.Helper()
	dir := filepath.Join(t.TempDir(), "w")
	cmd := exec.Command("sh", "-c", `git init -q "$1" && cd "$1" && git -c user.name=t -c user.email=t@t commit -q --allow-empty -m x && git push -q "$2" HEAD:refs/heads/x`, "sh", dir, url)
	cmd.Env = append(os.Environ(), "GIT_CONFIG_GLOBAL=/dev/null", "GIT_CONFIG_NOSYSTEM=1", "GIT_TERMINAL_PROMPT=0", "TOKEN="+tok,
		"GIT_CONFIG_COUNT=1", "GIT_CONFIG_KEY_0=credential.helper", `GIT_CONFIG_VALUE_0=!f() { echo username=x-access-token; echo "password=$TOKEN"; }; f`)
	return cmd.Run()
}

func TestWhyThereIsNoTokenIsASentence(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		change func(*scene)
		says   []string
	}{
		"not installed": {func(s *scene) { s.inst.Drop(s.repo); s.inst.Add(s.other) }, []string{"isn't installed on this Repo", "/installations/new"}},
		"removed":       {func(s *scene) { s.inst.Remove() }, []string{"isn't installed on this Repo"}},
		"suspended":     {func(s *scene) { s.inst.Suspend(true) }, []string{"suspended"}},
		"GitHub is down": {func(s *scene) { s.gh.Break(githubtest.Fault{Status: http.StatusBadGateway}) }, []string{
			"GitHub has trouble (status 502). This works again when GitHub does."}},
		"cut off": {func(s *scene) { s.gh.Break(githubtest.Fault{Path: "/access_tokens", Cut: -1}) }, []string{"GitHub can't be reached"}},
		"rate limited": {func(s *scene) { s.gh.Break(githubtest.Secondary(http.StatusTooManyRequests, 90*time.Second)) }, []string{
			"enough requests for now. It takes more from ", " UTC."}},
		"the permission is missing": {func(s *scene) { s.inst.Grant(map[string]string{"checks": "write", "metadata": "read"}) }, []string{"contents"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			checked.Both(t, func(t *testing.T, gh *githubtest.Server) {
				s := setScene(t, gh)
				if _, err := s.app.Self(t.Context()); err != nil { // as serve does: the App's address is known
					t.Fatal(err)
				}
				c.change(s)
				tok, refused := s.source.Mint(t.Context(), s.repo.ID)
				if tok.Text != "" {
					t.Error("there is one")
				}
				for _, says := range c.says {
					if !strings.Contains(refused, says) {
						t.Errorf("%q doesn't say %q", refused, says)
					}
				}
				if !strings.Contains(s.log.String(), "no token of the App") {
					t.Errorf("the log says %q", s.log.String())
				}
			})
		})
	}
}

func TestTheAppMayComeAndGoWhileTheHubRuns(t *testing.T) {
	t.Parallel()
	checked.Both(t, func(t *testing.T, gh *githubtest.Server) {
		s := setScene(t, gh)
		tok := s.minted(t)
		s.holder.Set(nil)
		if none, refused := s.source.Mint(t.Context(), s.repo.ID); none.Text != "" || refused != fleet.NoApp {
			t.Errorf("without an App: %q", refused)
		}
		if err := s.source.Revoke(t.Context(), tok.Text); !github.NoApp.Is(err) {
			t.Errorf("without an App: %v", err)
		}
		s.holder.Set(s.app)
		s.minted(t)
		if err := s.source.Revoke(t.Context(), tok.Text); err != nil {
			t.Error(err)
		}
	})
}
