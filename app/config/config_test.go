package config_test

import (
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/claude-hub/claude-hub/app/config"
)

type file struct {
	Hub config.Hub `yaml:"hub"`
	Dev config.Dev `yaml:"dev"`
}

func write(t *testing.T, text string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "config.yml")
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

func TestEnvironmentWinsOverFileWinsOverDefault(t *testing.T) {
	t.Setenv("CLAUDE_HUB_HUB_LOG_LIMIT", "3MiB")
	t.Setenv("CLAUDE_HUB_DEV_LOGIN", "true")
	t.Setenv("CLAUDE_HUB_HUB_URL", "https://no: yaml")
	path := write(t, "hub:\n  log_limit: 2MiB\n  idle_after: 90s\ndev:\n  repos:\n    - {id: 7, name: a/b, url: /srv/b.git}\n")
	f := file{Hub: config.DefaultHub()}
	if err := config.Load(path, &f); err != nil {
		t.Fatal(err)
	}
	if f.Hub.LogLimit != 3<<20 || f.Hub.IdleAfter != 90*time.Second || f.Hub.URL != "https://no: yaml" || f.Hub.Listen != config.DefaultHub().Listen || !f.Dev.Login {
		t.Fatalf("got %+v", f)
	}
	if len(f.Dev.Repos) != 1 || f.Dev.Repos[0] != (config.Repo{ID: 7, Name: "a/b", URL: "/srv/b.git"}) {
		t.Fatalf("repos: %+v", f.Dev.Repos)
	}
}

func TestUnknownKeyNamesItsLine(t *testing.T) {
	t.Parallel()
	err := config.Load(write(t, "hub:\n  lisen: x\n"), &file{})
	if err == nil || !strings.Contains(err.Error(), "line 2") || !strings.Contains(err.Error(), "lisen") {
		t.Fatalf("want an error that names line 2 and lisen, got %v", err)
	}
}

func TestEmptyFileKeepsDefaults(t *testing.T) {
	t.Parallel()
	f := file{Hub: config.DefaultHub()}
	if err := config.Load(write(t, "\n"), &f); err != nil {
		t.Fatal(err)
	}
	if !reflect.DeepEqual(f.Hub, config.DefaultHub()) {
		t.Fatalf("got %+v", f.Hub)
	}
}

func TestBadEnvironmentVariableIsNamed(t *testing.T) {
	t.Setenv("CLAUDE_HUB_HUB_LOG_LIMIT", "a lot")
	err := config.Load("", &file{})
	if err == nil || !strings.Contains(err.Error(), "CLAUDE_HUB_HUB_LOG_LIMIT") {
		t.Fatalf("want an error that names the variable, got %v", err)
	}
}

func TestReposOfTheConfigAreTheirOwn(t *testing.T) {
	t.Parallel()
	good := config.Repo{ID: 7, Name: "acme/rocket", URL: "https://git.example.com/r.git"}
	if err := (config.Dev{Repos: []config.Repo{good, {ID: 8, Name: "acme/other", URL: "/srv/o.git"}}}).Check(); err != nil {
		t.Fatal(err)
	}
	for says, bad := range map[string]config.Repo{
		"entry 2 needs an id of its own":      {ID: 7, Name: "a/b", URL: "/x"},
		"1 or more":                           {Name: "a/b", URL: "/x"},
		"needs a name of its own":             {ID: 9, Name: "acme/rocket", URL: "/x"},
		`as owner/name; "rocket" is not one`:  {ID: 9, Name: "rocket", URL: "/x"},
		"a/b needs a url that git can clone":  {ID: 9, Name: "a/b"},
		`as owner/name; "a/b\x00" is not one`: {ID: 9, Name: "a/b\x00", URL: "/x"},
	} {
		if err := (config.Dev{Repos: []config.Repo{good, bad}}).Check(); err == nil || !strings.Contains(err.Error(), says) {
			t.Errorf("want %q, got %v", says, err)
		}
	}
}

func TestHubCheckRefusesWhatCouldOnlyFailLater(t *testing.T) {
	t.Parallel()
	if err := config.DefaultHub().Check(); err != nil {
		t.Fatalf("the defaults: %v", err)
	}
	for says, change := range map[string]func(*config.Hub){
		"hub.session_disk":           func(h *config.Hub) { h.SessionDisk = 20 }, // meant as GiB
		"less than hub.session_disk": func(h *config.Hub) { h.SessionDiskLimit = 200 },
		"hub.log_limit":              func(h *config.Hub) { h.LogLimit = 0 },
		"hub.test_deadline":          func(h *config.Hub) { h.TestDeadline = 0 },
		"hub.idle_after":             func(h *config.Hub) { h.IdleAfter = -time.Minute },
	} {
		h := config.DefaultHub()
		change(&h)
		if err := h.Check(); err == nil || !strings.Contains(err.Error(), says) {
			t.Errorf("want an error about %s, got %v", says, err)
		}
	}
}

func TestAPeerURLIsAnAddressWithoutAPath(t *testing.T) {
	t.Parallel()
	for peer, good := range map[string]bool{
		"": true, "http://10.0.0.5:7780": true, "https://hub-a.internal/": true,
		"10.0.0.5:7780": false, "http://": false, "ftp://hub-a": false, "http://hub-a/hub": false, "http://hub-a?x": false, "http://ana@hub-a": false,
	} {
		h := config.DefaultHub()
		h.PeerURL = peer
		if err := h.Check(); (err == nil) != good || err != nil && !strings.Contains(err.Error(), "hub.peer_url is how other Hubs reach this one") {
			t.Errorf("%q: %v", peer, err)
		}
	}
}
