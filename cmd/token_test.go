package cmd

import (
	"encoding/json"
	"strings"
	"testing"
	"time"

	"github.com/claude-hub/claude-hub/app/access"
	"github.com/claude-hub/claude-hub/app/apptest"
	"github.com/claude-hub/claude-hub/handlers/api/schema"
)

func TestTokensAreMadeListedAndRevokedByTheCommandLine(t *testing.T) {
	h := newTown(t, apptest.Options{})
	who := h.Grant("ana").Who()
	maker, _, err := h.Gate.CreateToken(t.Context(), who, access.TokenOptions{Name: "maker", Scopes: access.Scopes(), Life: 48 * time.Hour})
	if err != nil {
		t.Fatal(err)
	}
	t.Setenv("CLAUDE_HUB_TOKEN", maker)
	h.refused(exitUsage, "accepts 1 arg", "", "token", "create")
	h.refused(exitFailed, "at most 365 days", "", "token", "create", "ci", "--days", "0")
	h.refused(exitFailed, "outlives it", "", "token", "create", "ci", "--days", "3")
	h.refused(exitFailed, "There is no Repo acme/none, or you have no access to it.", "", "token", "create", "ci", "--days", "1", "--repo", "acme/none")
	made := h.ok("", "token", "create", "ci", "--scope", "read,sessions", "--repo", "acme/rocket", "--repo", "43", "--days", "1")
	secret := strings.TrimSpace(made.out)
	if len(secret) != 43 || !strings.Contains(made.err, "it ends at ") {
		t.Fatalf("%+v", made)
	}
	if list := h.ok("", "token", "ls").out; !strings.Contains(list, "ci ") || !strings.Contains(list, "read,sessions") || !strings.Contains(list, "acme/rocket,acme/other") || strings.Contains(list, secret) {
		t.Errorf("the list:\n%s", list)
	}
	var all []schema.Token
	if err := json.Unmarshal([]byte(h.ok("", "token", "ls", "-o", "json").out), &all); err != nil || len(all) != 3 || all[0].Name != "ci" || all[0].Used != nil {
		t.Fatalf("%+v, %v", all, err)
	}

	t.Setenv("CLAUDE_HUB_TOKEN", secret)
	h.ok("", "session", "ls")
	h.refused(exitNotAllowed, "This token lacks the scope “runners”, which this call needs. Make one that has it: "+h.url+"/account/tokens", "", "runner", "token")
	h.refused(exitNotAllowed, "lacks the scope “tokens”", "", "token", "revoke", all[0].ID)
	t.Setenv("CLAUDE_HUB_TOKEN", maker)
	h.refused(exitFailed, "You have no such token.", "", "token", "revoke", "0123456789abcdef")
	if got := h.ok("", "token", "revoke", all[0].ID); got.out != all[0].ID+" is revoked\n" {
		t.Errorf("%+v", got)
	}
	t.Setenv("CLAUDE_HUB_TOKEN", secret)
	h.refused(exitNotAllowed, "This token is unknown or has expired.", "", "session", "ls")
}

func TestReposAreListedAndOpenedByTheCommandLine(t *testing.T) {
	h := newTown(t, apptest.Options{})
	if got := h.ok("", "repo", "ls").out; !strings.Contains(got, "acme/rocket") || !strings.Contains(got, "acme/other") {
		t.Errorf("all:\n%s", got)
	}
	if got := h.ok("", "repo", "ls", "ROCK").out; !strings.Contains(got, "acme/rocket  42\n") || strings.Contains(got, "acme/other") {
		t.Errorf("some:\n%s", got)
	}
	if got := h.ok("", "repo", "open", "https://github.com/acme/rocket/tree/main").out; got != "acme/rocket "+h.url+"/repos/42\n" {
		t.Errorf("opened: %q", got)
	}
	var repo schema.Repo
	if err := json.Unmarshal([]byte(h.ok("", "repo", "open", "git@github.com:acme/rocket.git", "-o", "json").out), &repo); err != nil || repo.ID != 42 {
		t.Errorf("%+v, %v", repo, err)
	}
	const no = "There is no such Repo, or you have no access to it."
	h.refused(exitFailed, no, "", "repo", "open", "acme/none")
	h.refused(exitFailed, no, "", "session", "start", "--detach", "--repo", "acme/none")
	h.refused(exitFailed, "owner/name", "", "repo", "open", "rocket")
}
