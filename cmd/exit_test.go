package cmd

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"testing"
)

// TestExitCodesSayWhoIsToBlame is the table of the README: 2 usage, 3 no Hub, 4 not allowed, 1 anything else.
func TestExitCodesSayWhoIsToBlame(t *testing.T) {
	t.Setenv("XDG_CONFIG_HOME", t.TempDir())
	hub := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		status, code := http.StatusUnauthorized, "unauthorized"
		if r.Header.Get("Authorization") == "Bearer good" {
			status, code = http.StatusNotFound, "not-found"
		}
		w.Header().Set("Content-Type", "application/problem+json")
		w.WriteHeader(status)
		fmt.Fprintf(w, `{"status":%d,"code":%q,"detail":"No."}`, status, code)
	}))
	defer hub.Close()
	nobody := httptest.NewServer(http.NotFoundHandler())
	nobody.Close()
	notAHub := httptest.NewServer(http.NotFoundHandler())
	defer notAHub.Close()
	for _, c := range []struct {
		what, url, token string
		args             []string
		code             int
	}{
		{"no Hub is known", "", "", []string{"session", "ls"}, exitUsage},
		{"an unknown flag", hub.URL, "good", []string{"session", "ls", "--nonsense"}, exitUsage},
		{"a missing argument", hub.URL, "good", []string{"session", "sleep"}, exitUsage},
		{"nobody listens", nobody.URL, "good", []string{"session", "ls"}, exitUnreachable},
		{"it is no Hub", notAHub.URL, "good", []string{"session", "ls"}, exitUnreachable},
		{"the token is not known", hub.URL, "bad", []string{"session", "ls"}, exitNotAllowed},
		{"there is no such thing", hub.URL, "good", []string{"session", "ls"}, exitFailed},
		{"exec fails by itself", hub.URL, "bad", []string{"session", "exec", "x", "--", "true"}, exitOwnFault},
		{"all is well", "", "", []string{"version"}, exitOK},
	} {
		t.Setenv("CLAUDE_HUB_URL", c.url)
		t.Setenv("CLAUDE_HUB_TOKEN", c.token)
		if got := Main(c.args); got != c.code {
			t.Errorf("%s: exit code %d, want %d", c.what, got, c.code)
		}
	}
}
