package e2e

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/claude-hub/claude-hub/e2e/world"
	"github.com/claude-hub/claude-hub/runner/image/imagetest"
)

// documented are the lines for nginx that docs/sessions.md gives, for a Hub at an address.
func documented(t *testing.T, hub string) string {
	t.Helper()
	b, err := os.ReadFile("../docs/sessions.md")
	if err != nil {
		t.Fatal(err)
	}
	_, lines, _ := strings.Cut(string(b), "```\nlocation / {")
	lines, _, found := strings.Cut(lines, "```")
	if !found || !strings.Contains(lines, "proxy_pass http://127.0.0.1:8080;") || !strings.Contains(lines, "Upgrade") {
		t.Fatalf("docs/sessions.md has other lines for nginx: %s", lines)
	}
	return "location / {" + strings.Replace(lines, "127.0.0.1:8080", hub, 1)
}

// behindNginx is a World whose Hub is reached through nginx, with these lines of the Hub's address for its server.
func behindNginx(t *testing.T, lines func(hub string) string) (s *story, access string) {
	t.Helper()
	hub := world.FreeAddress(t)
	w := world.Empty(t, world.Options{Hub: map[string]string{"listen": hub}})
	w.Options.Hub["url"] = w.URL
	w.WriteConfig()
	dir := filepath.Join(w.Dir, "nginx")
	if err := os.Mkdir(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	access = filepath.Join(dir, "access.log")
	config := filepath.Join(dir, "nginx.conf")
	text := fmt.Sprintf(`user root; worker_processes 1; daemon off; pid %[1]s/pid; error_log %[1]s/error.log;
events { worker_connections 256; }
http {
	access_log %[1]s/access.log; client_body_temp_path %[1]s/body; proxy_temp_path %[1]s/proxy;
	fastcgi_temp_path %[1]s/fastcgi; uwsgi_temp_path %[1]s/uwsgi; scgi_temp_path %[1]s/scgi;
	server { listen %[2]s; %[3]s }
}
`, dir, strings.TrimPrefix(w.URL, "http://"), lines(hub))
	if err := os.WriteFile(config, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
	path, err := exec.LookPath("nginx")
	if err != nil {
		path = "/usr/sbin/nginx" // not on everybody's PATH
	}
	nginx := exec.Command(path, "-p", dir, "-e", filepath.Join(dir, "error.log"), "-c", config)
	nginx.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	if err := nginx.Start(); err != nil {
		t.Fatalf("%v: scripts/packages test installs nginx", err)
	}
	t.Cleanup(func() {
		if t.Failed() {
			log, _ := os.ReadFile(filepath.Join(dir, "error.log"))
			t.Logf("nginx's errors:\n%s", log)
		}
		_ = syscall.Kill(-nginx.Process.Pid, syscall.SIGKILL)
		_ = nginx.Wait() // killed
	})
	w.StartHub()
	w.Token = strings.TrimSpace(w.OK("token", "--login", "ana", "--name", "e2e"))
	w.Register()
	w.StartRunner()
	return &story{w, t}, access
}

func TestATerminalGoesThroughNginxByTheDocumentedLinesAndWithoutThem(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		lines func(t *testing.T, hub string) string
		way   string // in nginx's log, once it has ended
		not   string
	}{
		"documented": {documented, `" 101 `, "/input?"},
		"bare":       {func(_ *testing.T, hub string) string { return "location / { proxy_pass http://" + hub + "; }" }, "/input?", `" 101 `},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s, access := behindNginx(t, func(hub string) string { return c.lines(t, hub) })
			s.applied(s.Push("nginx:1", imagetest.Busybox(t, nil)), "true", "")
			id := strings.TrimSpace(s.OK("session", "start", "--repo", s.Repo))
			s.OK("session", "exec", id, "--", "true") // it is up
			chromium := s.Chromium()
			tab := chromium.Tab("about:blank")
			tab.SignIn(s.URL, "ana")
			tab.Go(s.URL + "/repos/7/sessions/" + id)
			tab.Press("#open-terminal")
			tab.Until("the terminal's page", `location.pathname.includes('/terminals/') && !!document.querySelector('.xterm-rows')`)
			tab.Keys("echo typed-$((20+3))\r")
			screen(tab, "typed-23")
			tab.Reload()
			screen(tab, "typed-23")
			pastes(s, tab, id, 100<<10)
			s.Hub.Stop()
			s.StartHub()
			tab.Keys("echo again-$((60+7))\r")
			screen(tab, "again-67")
			chromium.Wrong() // connections that were refused, and the WebSocket that was not let through

			log, err := os.ReadFile(access)
			if err != nil {
				t.Fatal(err)
			}
			if text := string(log); !strings.Contains(text, c.way) || strings.Contains(text, c.not) {
				t.Errorf("nginx's log should have %q, and no %q:\n%s", c.way, c.not, text)
			}
		})
	}
}
