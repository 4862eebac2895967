package runner

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/claude-hub/claude-hub/app/fleet"
	"github.com/claude-hub/claude-hub/envspec"
	"github.com/claude-hub/claude-hub/runner/claudecode"
	"github.com/claude-hub/claude-hub/runner/image/imagetest"
	"github.com/claude-hub/claude-hub/runner/wire"
)

// claudeVersion is the Claude Code that is tried for real. npm fetches it once for a machine.
const claudeVersion = "2.1.332"

func realClaudeCode(t *testing.T, detected string) (folder string) {
	t.Helper()
	cache, err := imagetest.CacheDir()
	if err != nil {
		t.Fatal(err)
	}
	dir := filepath.Join(cache, "claude-code")
	if err := os.MkdirAll(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	lock, err := os.OpenFile(dir+".lock", os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		t.Fatal(err)
	}
	defer lock.Close()
	for err = unix.EINTR; errors.Is(err, unix.EINTR); err = unix.Flock(int(lock.Fd()), unix.LOCK_EX) {
	}
	if err != nil {
		t.Fatal(err)
	}
	s, err := claudecode.Open(claudecode.Options{Version: claudeVersion, Dir: dir})
	if err == nil {
		err = s.Get(context.Background(), claudecode.Build(detected))
	}
	if err != nil {
		t.Fatalf("this test needs Claude Code, which npm (of Node) gets: %v", err)
	}
	return s.Folder()
}

// musl is what an image of Alpine's has of its C library, from Debian's package.
func musl(t *testing.T) []imagetest.Entry {
	t.Helper()
	name := map[string]string{"amd64": "x86_64", "arm64": "aarch64"}[runtime.GOARCH]
	lib, err := os.ReadFile("/lib/ld-musl-" + name + ".so.1")
	if err != nil {
		t.Fatalf("this test needs Debian's musl: apt-get install musl (%v)", err)
	}
	return []imagetest.Entry{imagetest.Dir("lib", 0o755), imagetest.File("lib/ld-musl-"+name+".so.1", 0o755, string(lib)),
		imagetest.Link("lib/libc.musl-"+name+".so.1", "ld-musl-"+name+".so.1")}
}

func TestClaudeCodeRunsInImagesOfBothLibraries(t *testing.T) {
	debian := func(w *world) string {
		return imagetest.Push(w.t, w.registry, "debian:dev", withUser(w.t, imagetest.DebianImage(w.t), "nobody"))
	}
	for _, c := range []struct {
		name, libc string
		image      func(w *world) string
		gVisor     bool
	}{
		{"glibc", "glibc", debian, false},
		{"musl", "musl", func(w *world) string { return w.image("app:musl", asCoder, musl(w.t)...) }, false},
		{"gVisor", "glibc", debian, true},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t)
			if c.gVisor {
				w.cfg.Runtime = runsc(t)
			}
			w.cfg.ClaudeCode = ClaudeCodeConfig{Version: claudeVersion, Folder: realClaudeCode(t, c.libc)}
			w.start()
			recipe, key := w.version(envspec.Spec{Image: c.image(w), Bootstrap: "echo \"at build: $(claude --version)\""})
			id := w.session(recipe, key, w.repo())
			w.untilState(id, wire.StateRunning)
			w.untilLog(id, "at build: "+claudeVersion)
			w.untilLog(id, "Claude Code: version "+claudeVersion+" for "+claudecode.Build(c.libc)+" is /usr/local/bin/claude\n")
			want := claudeVersion + " (Claude Code)\n"
			w.shows(id, "claude --version", want)
			w.shows(id, "sh -lc 'claude --version'", want)
			// Nothing of it is in the Sandbox's own files, and it can't be written to.
			w.shows(id, "du -sm /usr/local/bin | awk '{print ($1 < 20)}'; (: >>"+claudecode.Guest+"/x) 2>/dev/null || echo read-only",
				"1\nread-only\n")
		})
	}
}

func TestClaudeCodeThatCannotBeHadStopsNoBuildAndComesLater(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	folder := t.TempDir()
	w.cfg.ClaudeCode = ClaudeCodeConfig{Version: "1.2.3", Folder: folder}
	w.start()
	spec := envspec.Spec{Image: w.image("app:musl", asCoder, musl(t)...), Bootstrap: "command -v claude || echo none at build"}
	recipe, key := w.version(spec)
	id := w.session(recipe, key, w.repo())
	w.untilState(id, wire.StateRunning)
	w.untilLog(id, "none at build\n")
	w.untilLog(id, "Claude Code: version 1.2.3 is left out for now: ")
	w.shows(id, "command -v claude || echo none", "none\n")

	// It is there for a Sandbox that runs as soon as it is there for the Runner.
	put(t, filepath.Join(folder, claudecode.Build("musl")), "#!/bin/sh\necho fake\n")
	w.shows(id, "claude", "fake\n")

	// What an image brings itself stays.
	own := envspec.Spec{Image: spec.Image, Bootstrap: "printf '#!/bin/sh\\necho own\\n' >/usr/local/bin/claude; chmod +x /usr/local/bin/claude"}
	recipe, key = w.version(own)
	id = w.session(recipe, key, w.repo())
	w.untilState(id, wire.StateRunning)
	w.untilLog(id, "Claude Code: the image's own claude is left as it is\n")
	w.shows(id, "claude", "own\n")

	// Without a C library there is nothing that could run.
	recipe, key = w.version(envspec.Spec{Image: w.image("app:v1", asCoder)})
	id = w.session(recipe, key, w.repo())
	w.untilState(id, wire.StateRunning)
	w.untilLog(id, "Claude Code: left out, since the image has neither glibc nor musl\n")
}

func put(t *testing.T, dir, body string) {
	t.Helper()
	if err := os.MkdirAll(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "claude"), []byte(body), 0o755); err != nil {
		t.Fatal(err)
	}
}

func TestAnotherVersionOfClaudeCodeMakesAnotherBuild(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	folder := t.TempDir()
	if err := os.Chmod(folder, 0o755); err != nil {
		t.Fatal(err)
	}
	put(t, filepath.Join(folder, claudecode.Build("musl")), "#!/bin/sh\necho fake\n")
	w.start()
	spec := envspec.Spec{Image: w.image("app:musl", asCoder, musl(t)...), Bootstrap: "echo building"}
	recipe, key := w.version(spec)
	id := w.session(recipe, key, w.repo())
	w.untilState(id, wire.StateRunning)
	w.shows(id, "command -v claude || echo none", "none\n")
	w.change(id, fleet.Stop)
	w.untilState(id, wire.StateAsleep)

	w.halt()
	w.cfg.ClaudeCode = ClaudeCodeConfig{Version: "1.2.3", Folder: folder}
	w.start()
	w.change(id, fleet.Run)
	w.untilState(id, wire.StateRunning)
	w.shows(id, "claude", "fake\n")
	w.untilLog(id, "Claude Code: version 1.2.3 for "+claudecode.Build("musl")+" is /usr/local/bin/claude\n")
	if log := w.log(id); strings.Count(log, "building\n") != 2 || strings.Contains(log, "left out") {
		t.Errorf("the log of two builds:\n%s", log)
	}
}
