package e2e

import (
	"fmt"
	"net/http"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/claude-hub/claude-hub/e2e/world"
	"github.com/claude-hub/claude-hub/runner/image/imagetest"
)

func TestStoryAWebServerOfASessionOpensInTheBrowser(t *testing.T) {
	t.Parallel()
	s := &story{world.New(t, world.Options{Hub: map[string]string{"ports_domain": "ports.localhost"}}), t}
	s.applied(s.Push("ports:1", imagetest.Busybox(t, nil)), "true", "httpd -p 127.0.0.1:8000 -h /workspace")
	id := strings.TrimSpace(s.OK("session", "start", "--repo", s.Repo))
	s.OK("session", "exec", id, "--", "true") // it is up

	b := s.Browser()
	home := b.Press(b.Open("/sign-in"), "Sign in", url.Values{"login": {"ana"}})
	if home.Status != http.StatusOK {
		t.Fatalf("signing in: %d %s", home.Status, home.Text)
	}
	session := b.Open("/repos/7/sessions/" + id)
	origin := strings.Replace(s.URL, "127.0.0.1", id+"-8000.ports.localhost", 1)
	leave := b.Press(session, "Open it", url.Values{"port": {"8000"}})
	if to := leave.Link(t, "Continue"); to != origin+"/" {
		t.Fatalf("the Session's page leads to %s, want %s", to, origin)
	}
	admitted := b.Follow(leave, "Continue")
	if entered := b.Follow(admitted, "Continue"); entered.Away != "/" {
		t.Fatalf("a browser that was let in is at %s, sent to %q: %d %s", entered.URL, entered.Away, entered.Status, entered.Text)
	}
	shows := func() error {
		if p := b.Open(origin + "/README.md"); p.Status != http.StatusOK || p.Text != "# rocket" {
			return fmt.Errorf("the server says %d %q", p.Status, p.Text)
		}
		return nil
	}
	s.Eventually(30*time.Second, "the server's file shows", shows)
	closed := b.Press(session, "Open it", url.Values{"port": {"8001"}})
	b.Follow(b.Follow(closed, "Continue"), "Continue")
	other := strings.Replace(origin, "-8000.", "-8001.", 1)
	if p := b.Open(other + "/"); p.Status != http.StatusBadGateway {
		t.Errorf("a port that nobody listens on says %d %q", p.Status, p.Text)
	}

	s.OK("session", "sleep", id)
	s.Eventually(60*time.Second, "the port leads to where the Session is woken", func() error {
		if p := b.Open(origin + "/README.md"); !strings.Contains(p.Text, "The Session is asleep.") {
			return fmt.Errorf("it leads to %s: %s", p.URL, p.Text)
		}
		return nil
	})
	b.Press(b.Open(origin+"/README.md"), "Wake it and open the port", nil)
	s.Eventually(60*time.Second, "the server's file shows again", shows)

	// Nothing of the Hub's pages is there, and nothing of the Sandbox's at the Hub.
	if p := b.Open(origin + "/repos/7"); strings.Contains(p.Text, "rocket") || p.Status != http.StatusNotFound {
		t.Errorf("a page of the Hub at a port's origin: %d %q", p.Status, p.Text)
	}
	s.OK("session", "rm", id, "--yes")
	s.Eventually(60*time.Second, "a port of a Session that is gone is as absent as any", func() error {
		if p := b.Open(origin + "/"); p.Status != http.StatusNotFound {
			return fmt.Errorf("it says %d %q", p.Status, p.Text)
		}
		return nil
	})
}
