package github_test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/claude-hub/claude-hub/app/github"
	"github.com/claude-hub/claude-hub/app/github/githubtest"
	"github.com/claude-hub/claude-hub/app/github/githubtest/checked"
)

// clone clones url with a token given to git by a helper's environment, and says what git said.
func clone(t *testing.T, url, token string) error {
	t.Helper()
	cmd := exec.Command("git", "-c", "credential.helper=", "-c", `credential.helper=!f() { echo username=x-access-token; echo "password=$TOKEN"; }; f`,
		"clone", "--quiet", url, filepath.Join(t.TempDir(), "clone"))
	cmd.Env = append(os.Environ(), "GIT_CONFIG_GLOBAL=/dev/null", "GIT_CONFIG_NOSYSTEM=1", "GIT_TERMINAL_PROMPT=0", "TOKEN="+token)
	out, err := cmd.CombinedOutput()
	if err != nil {
		return fmt.Errorf("%w: %s", err, out)
	}
	return nil
}

func TestMintedTokenClonesItsRepoAndNothingElse(t *testing.T) {
	t.Parallel()
	checked.Both(t, func(t *testing.T, gh *githubtest.Server) {
		r := setScene(t, gh)
		r.inst.Add(r.other)
		tok := must[github.Token](t)(r.app.Mint(t.Context(), r.id()))
		if left := time.Until(tok.Expires); tok.Repo != r.id() || tok.Installation != r.inst.ID || left < 55*time.Minute || left > time.Hour {
			t.Errorf("got %+v until %s", tok.Repo, tok.Expires)
		}
		ok(t, clone(t, r.app.Endpoints().CloneURL("octo/app"), tok.Reveal()))
		if err := clone(t, r.app.Endpoints().CloneURL("octo/other"), tok.Reveal()); err == nil {
			t.Error("it cloned another Repo of the same installation")
		}
		var asked struct {
			IDs         []int64           `json:"repository_ids"`
			Permissions map[string]string `json:"permissions"`
		}
		for _, q := range gh.Requests() {
			if strings.HasSuffix(q.Path, "/access_tokens") {
				ok(t, json.Unmarshal(q.Body, &asked))
			}
		}
		if len(asked.IDs) != 1 || asked.IDs[0] != r.repo.ID || len(asked.Permissions) != 1 || asked.Permissions["contents"] != "read" {
			t.Errorf("asked for %+v", asked)
		}
		r.repo.Rename("renamed")
		ok(t, clone(t, r.app.Endpoints().CloneURL("octo/app"), tok.Reveal()))
		ok(t, r.app.Revoke(t.Context(), tok))
		if err := clone(t, r.app.Endpoints().CloneURL("octo/renamed"), tok.Reveal()); err == nil {
			t.Error("a revoked token cloned")
		}
		ok(t, r.app.Revoke(t.Context(), tok)) // once more is no error
		late := must[github.Token](t)(r.app.Mint(t.Context(), r.id()))
		gh.Advance(61 * time.Minute)
		if err := clone(t, r.app.Endpoints().CloneURL("octo/renamed"), late.Reveal()); err == nil {
			t.Error("an expired token cloned")
		}
		ok(t, r.app.Revoke(t.Context(), late))
	})
}

func TestEveryMintMakesAFreshToken(t *testing.T) {
	t.Parallel()
	r := setScene(t, checked.New(t, githubtest.Options{}))
	one := must[github.Token](t)(r.app.Mint(t.Context(), r.id()))
	two := must[github.Token](t)(r.app.Mint(t.Context(), r.id()))
	if one.Reveal() == two.Reveal() {
		t.Error("the same token twice")
	}
}

func TestMintRefusesReposThatAreNotInstalled(t *testing.T) {
	t.Parallel()
	r := setScene(t, checked.New(t, githubtest.Options{}))
	r.gh.Forget()
	for _, id := range []github.RepoID{0, -1} {
		_, err := r.app.Mint(t.Context(), id)
		wantKind(t, err, github.Invalid)
	}
	if got := r.gh.Requests(); len(got) != 0 {
		t.Errorf("GitHub was asked %d times about no Repo", len(got))
	}
	for _, id := range []github.RepoID{github.RepoID(r.other.ID), 424242} {
		_, err := r.app.Mint(t.Context(), id)
		wantKind(t, err, github.NotInstalled)
	}
	ok(t, errOf(r.app.Mint(t.Context(), r.id())))
	r.inst.Drop(r.repo) // the installation is known, and no longer right
	_, err := r.app.Mint(t.Context(), r.id())
	wantKind(t, err, github.NotInstalled)
	_, err = r.app.MintWrite(t.Context(), r.id())
	wantKind(t, err, github.NotInstalled)
}

func TestTokenToPushNeedsThePermission(t *testing.T) {
	t.Parallel()
	r := setScene(t, checked.New(t, githubtest.Options{}))
	_, err := r.app.MintWrite(t.Context(), r.id())
	if e := wantKind(t, err, github.Forbidden); !strings.Contains(e.Message, "contents: write") {
		t.Errorf("got %q", e.Message)
	}
	grants := github.Permissions()
	grants["contents"] = "write"
	r.inst.Grant(grants)
	ok(t, errOf(r.app.MintWrite(t.Context(), r.id())))
}

// TestTokenForMoreThanWasAskedIsGivenBack has something between Hub and GitHub answer with other tokens than were asked for.
func TestTokenForMoreThanWasAskedIsGivenBack(t *testing.T) {
	t.Parallel()
	for name, forge := range map[string]func(m map[string]any){
		"all Repos":            func(m map[string]any) { m["repository_selection"] = "all"; delete(m, "repositories") },
		"no list of Repos":     func(m map[string]any) { delete(m, "repositories") },
		"another Repo":         func(m map[string]any) { m["repositories"].([]any)[0].(map[string]any)["id"] = 5 },
		"two Repos":            func(m map[string]any) { l := m["repositories"].([]any); m["repositories"] = append(l, l[0]) },
		"writing":              func(m map[string]any) { m["permissions"] = map[string]any{"contents": "write"} },
		"checks too":           func(m map[string]any) { m["permissions"].(map[string]any)["checks"] = "write" },
		"metadata to write":    func(m map[string]any) { m["permissions"].(map[string]any)["metadata"] = "write" },
		"no permissions":       func(m map[string]any) { delete(m, "permissions") },
		"no end":               func(m map[string]any) { delete(m, "expires_at") },
		"an end long from now": func(m map[string]any) { m["expires_at"] = time.Now().Add(48 * time.Hour) },
		"an end at once":       func(m map[string]any) { m["expires_at"] = time.Now().Add(time.Minute) },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := setScene(t, checked.New(t, githubtest.Options{}))
			var made string
			app := r.connect(t, func(o *github.Options) { o.Transport = forger{t, forge, &made} })
			_, err := app.Mint(t.Context(), r.id())
			e := wantKind(t, err, github.Refused)
			if !strings.Contains(e.Message, "given back") || made == "" || strings.Contains(fmt.Sprintf("%+v", e), made) {
				t.Errorf("got %q", e.Message)
			}
			if n := r.gh.Asked("DELETE", "/installation/token"); n != 1 {
				t.Errorf("it was given back %d times", n)
			}
			if err := clone(t, r.app.Endpoints().CloneURL("octo/app"), made); err == nil {
				t.Error("the token still clones")
			}
		})
	}
}

// forger changes what GitHub answers to a request for a token.
type forger struct {
	t     *testing.T
	forge func(map[string]any)
	made  *string
}

func (f forger) RoundTrip(r *http.Request) (*http.Response, error) {
	resp, err := http.DefaultTransport.RoundTrip(r)
	if err != nil || !strings.HasSuffix(r.URL.Path, "/access_tokens") {
		return resp, err
	}
	defer resp.Body.Close()
	var m map[string]any
	if err := json.NewDecoder(resp.Body).Decode(&m); err != nil {
		f.t.Errorf("the answer: %v", err)
	}
	*f.made, _ = m["token"].(string)
	f.forge(m)
	b, err := json.Marshal(m)
	resp.Body, resp.ContentLength = io.NopCloser(bytes.NewReader(b)), int64(len(b))
	resp.Header.Del("Content-Length")
	return resp, err
}
