package cmd

import (
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/rs/zerolog"

	"github.com/claude-hub/claude-hub/app/access"
	"github.com/claude-hub/claude-hub/app/apptest"
	"github.com/claude-hub/claude-hub/envspec"
	"github.com/claude-hub/claude-hub/handlers"
	"github.com/claude-hub/claude-hub/runner/wire"
	"github.com/claude-hub/claude-hub/store"
	"github.com/claude-hub/claude-hub/store/storetest"
)

// town is a Hub that the command line finds by its environment, so that a test with one can't be parallel.
type town struct {
	*apptest.Hub
	t   *testing.T
	db  *store.DB
	url string
}

func newTown(t *testing.T, o apptest.Options) *town {
	t.Helper()
	db := storetest.New(t)
	return serveTown(t, db, apptest.New(t, db, o))
}

func serveTown(t *testing.T, db *store.DB, domain *apptest.Hub) *town {
	t.Helper()
	h := &town{Hub: domain, t: t, db: db}
	server := httptest.NewUnstartedServer(nil)
	h.url = "http://" + server.Listener.Addr().String()
	routes, err := handlers.New(handlers.Deps{
		DB: db, Gate: h.Gate, Environments: h.Environments, Sessions: h.Sessions, Proposals: h.Proposals, Fleet: h.Fleet, Vault: h.Vault, PublicURL: h.url, Version: "test",
		Log: zerolog.New(zerolog.NewTestWriter(t)).Level(zerolog.WarnLevel),
	})
	if err != nil {
		t.Fatal(err)
	}
	server.Config.Handler = routes
	server.Start()
	t.Cleanup(server.Close)
	t.Setenv("XDG_CONFIG_HOME", t.TempDir())
	t.Setenv("CLAUDE_HUB_URL", h.url)
	t.Setenv("CLAUDE_HUB_REPO", "acme/rocket")
	h.as("ana")
	return h
}

// as makes the command line somebody's.
func (h *town) as(login string) {
	h.t.Helper()
	_, token, err := h.Gate.IssueToken(h.t.Context(), login, "test", time.Hour)
	if err != nil {
		h.t.Fatal(err)
	}
	h.t.Setenv("CLAUDE_HUB_TOKEN", token)
}

// ok is what a command that has to succeed printed.
func (h *town) ok(in string, args ...string) said {
	h.t.Helper()
	got := say(h.t, in, args...)
	if got.code != exitOK {
		h.t.Fatalf("%q: %+v", args, got)
	}
	return got
}

// refused is a command that has to fail with code and to say something on stderr.
func (h *town) refused(code int, says, in string, args ...string) said {
	h.t.Helper()
	got := say(h.t, in, args...)
	if got.code != code || !strings.Contains(got.err, says) {
		h.t.Errorf("%q: want code %d and %q, got %+v", args, code, says, got)
	}
	return got
}

// file makes one with text.
func (h *town) file(name, text string) string {
	h.t.Helper()
	path := filepath.Join(h.t.TempDir(), name)
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		h.t.Fatal(err)
	}
	return path
}

func (h *town) draft(g access.Grant) envspec.Spec {
	h.t.Helper()
	env, err := h.Environments.Get(h.t.Context(), g)
	if err != nil {
		h.t.Fatal(err)
	}
	if env.Draft == nil {
		return envspec.Spec{}
	}
	return env.Draft.Spec
}

// values are what a Runner gets for a Test build of the draft.
func (h *town) values(g access.Grant, r *apptest.Runner) map[string]string {
	h.t.Helper()
	env, err := h.Environments.Get(h.t.Context(), g)
	if err != nil {
		h.t.Fatal(err)
	}
	if _, err := h.Environments.Test(h.t.Context(), g, env.Draft.Revision, r.ID); err != nil {
		h.t.Fatal(err)
	}
	out := map[string]string{}
	for _, item := range r.Items() {
		if item.GetKind() != wire.KindTestBuild {
			continue
		}
		values, refused := r.Values(item)
		if refused != "" {
			h.t.Fatal(refused)
		}
		for name, v := range values {
			out[name] = string(v.GetValue())
		}
		r.Pass(item)
	}
	return out
}

func (h *town) runnerID(name string) string {
	h.t.Helper()
	all, err := h.Fleet.Runners(h.t.Context())
	if err != nil {
		h.t.Fatal(err)
	}
	for _, r := range all {
		if r.Name == name {
			return r.ID
		}
	}
	h.t.Fatalf("there is no Runner %s", name)
	return ""
}
