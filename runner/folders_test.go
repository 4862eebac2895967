package runner

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"

	v1 "github.com/google/go-containerregistry/pkg/v1"

	"github.com/claude-hub/claude-hub/app/fleet"
	"github.com/claude-hub/claude-hub/envspec"
	"github.com/claude-hub/claude-hub/runner/build"
	"github.com/claude-hub/claude-hub/runner/sandbox"
	"github.com/claude-hub/claude-hub/runner/wire"
)

func (w *world) disk(id string) sandbox.Disk {
	return sandbox.Disk{Path: filepath.Join(w.runner.sessions, id), Size: int64(w.cfg.SessionDisk)}
}

// nap has a Session sleep, does something to its disk, and wakes it.
func (w *world) nap(id string, f func(disk string)) {
	w.t.Helper()
	w.change(id, fleet.Stop)
	w.untilState(id, wire.StateAsleep)
	if f != nil {
		m, err := w.runner.engine.Mount(context.Background(), w.disk(id))
		if err != nil {
			w.t.Fatal(err)
		}
		f(m.Folder)
		if err := w.runner.engine.Unmount(context.Background(), w.disk(id)); err != nil {
			w.t.Fatal(err)
		}
	}
	w.change(id, fleet.Run)
	w.untilState(id, wire.StateRunning)
}

// shows wants a line of shell in a Session to print just that.
func (w *world) shows(id, script, want string) {
	w.t.Helper()
	if got := w.sh(id, script); got != want {
		w.t.Errorf("%s\n%q; want %q", script, got, want)
	}
}

const boundFolders = "awk '$5 ~ \"^/workspace/\" {print $5}' /proc/self/mountinfo | sort"

func TestDependencyFoldersAndCachesOutliveSandboxes(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.start()
	spec := envspec.Spec{Image: w.image("app:v1", asCoder), Bootstrap: "echo 1 >/version",
		Start: "ls -ldn node_modules 2>/dev/null | awk '{print \"at start:\", $1, $3}'; echo started as it"}
	recipe, key := w.version(spec)
	id := w.session(recipe, key, w.repo())
	w.untilState(id, wire.StateRunning)
	w.shows(id, boundFolders, "")
	w.sh(id, "echo {} >package.json; echo cached >$npm_config_cache; echo cached >$XDG_CACHE_HOME/tool; mkdir -p old/_build; echo built >old/_build/file")
	w.shows(id, "echo $XDG_CACHE_HOME $npm_config_cache $BUN_INSTALL_CACHE_DIR; ls -ldn /var/cache/claude-hub | awk '{print $3}'",
		"/var/cache/claude-hub /var/cache/claude-hub/npm /var/cache/claude-hub/bun\n1000\n")

	w.nap(id, nil)
	w.untilLog(id, "at start: drwxr-xr-x 1000\n")
	w.untilLog(id, "boot: dependency folders on the Session's disk: node_modules\n")
	w.shows(id, boundFolders, "/workspace/node_modules\n")
	w.sh(id, "echo installed >node_modules/a")

	// A new version, with another pattern, on a fresh Sandbox.
	spec.Bootstrap, spec.Folders = "echo 2 >/version", &[]envspec.Folder{{Pattern: "**/_build"}, {Pattern: "**/node_modules"}}
	recipe, key = w.version(spec)
	w.change(id, fleet.Stop)
	w.untilState(id, wire.StateAsleep)
	w.edit(id, fleet.Run, func(p *wire.Session) { p.Recipe, p.BuildKey, p.Version = recipe, key, 2 })
	w.untilState(id, wire.StateRunning)
	w.shows(id, "cat /version node_modules/a old/_build/file $npm_config_cache $XDG_CACHE_HOME/tool", "2\ninstalled\nbuilt\ncached\ncached\n")
	w.shows(id, boundFolders, "/workspace/node_modules\n/workspace/old/_build\n")
	w.untilLog(id, "boot: what these had in the Workspace was moved onto the disk: old/_build\n")

	// What no pattern matches any more keeps its files.
	spec.Folders = &[]envspec.Folder{}
	recipe, key = w.version(spec)
	w.change(id, fleet.Stop)
	w.untilState(id, wire.StateAsleep)
	w.edit(id, fleet.Run, func(p *wire.Session) { p.Recipe, p.BuildKey, p.Version = recipe, key, 3 })
	w.untilState(id, wire.StateRunning)
	w.shows(id, boundFolders, "")
	w.shows(id, "cat node_modules/a old/_build/file", "installed\nbuilt\n")
	w.untilLog(id, "since they are dependency folders no more: node_modules, old/_build\n")
}

func TestLostAndDamagedFoldersOfADiskAreMadeAnew(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.start()
	recipe, key := w.version(envspec.Spec{Image: w.image("app:v1", asCoder)})
	id := w.session(recipe, key, w.repo())
	w.untilState(id, wire.StateRunning)
	w.sh(id, "mkdir node_modules; echo installed >node_modules/a; echo cached >$XDG_CACHE_HOME/tool; echo work >mine")
	if log := w.log(id); strings.Contains(log, "made anew") {
		t.Errorf("a fresh Session says that something was lost:\n%s", log)
	}
	w.nap(id, func(disk string) {
		if err := os.RemoveAll(filepath.Join(disk, "session", "dependencies")); err != nil {
			t.Fatal(err)
		}
		cache := filepath.Join(disk, "session", "cache")
		if err := os.RemoveAll(cache); err != nil {
			t.Fatal(err)
		}
		if err := os.Symlink("/etc", cache); err != nil {
			t.Fatal(err)
		}
	})
	w.untilLog(id, "disk: the dependency folders on this Session's disk were lost, and are made anew\n")
	w.untilLog(id, "disk: the package caches on this Session's disk were damaged, and are made anew\n")
	w.shows(id, "cat mine; ls node_modules $XDG_CACHE_HOME; echo again >node_modules/a; echo again >$XDG_CACHE_HOME/tool", "work\n/var/cache/claude-hub:\n\nnode_modules:\n")
	w.shows(id, boundFolders, "/workspace/node_modules\n")
	w.nap(id, nil)
	w.shows(id, "cat node_modules/a $XDG_CACHE_HOME/tool", "again\nagain\n")
	if n := strings.Count(w.log(id), "made anew"); n != 2 {
		t.Errorf("the log says %d times that something was made anew", n)
	}
}

func TestAWorkspaceOfBeforeThereWereDependencyFoldersIsKept(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.start()
	recipe, key := w.version(envspec.Spec{Image: w.image("app:v1", asCoder)})
	id := w.session(recipe, key, w.repo())
	w.untilState(id, wire.StateRunning)
	w.sh(id, "echo work >mine")
	w.nap(id, func(disk string) {
		if err := os.Rename(filepath.Join(disk, build.WorkspaceFolder), filepath.Join(disk, "workspace")); err != nil {
			t.Fatal(err)
		}
		if err := os.RemoveAll(filepath.Join(disk, "session")); err != nil {
			t.Fatal(err)
		}
	})
	w.shows(id, "cat mine README; ls -ldn . | awk '{print $3}'", "work\nhello\n1000\n")
}

func TestATestBuildsStartScriptHasDependencyFoldersAndCaches(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.start()
	id := w.test(envspec.Spec{Image: w.image("app:v1", asCoder), Folders: &[]envspec.Folder{{Pattern: "deps", Beside: "README"}},
		Bootstrap: "echo bootstrap has ${XDG_CACHE_HOME-none}", Start: boundFolders + "; rm -r deps && mkdir deps; " + boundFolders + "; touch $XDG_CACHE_HOME/x deps/x; ls -A"}, w.repo())
	state, d := w.outcome(id)
	log := w.wholeLog(id)
	if state != wire.StatePassed || !strings.Contains(log, "/workspace/deps\n/workspace/deps\n.git\nREADME\ndeps\nrun.sh\n") ||
		!strings.Contains(log, "boot: dependency folders on the Session's disk: deps\n") || !strings.Contains(log, "bootstrap has none\n") {
		t.Errorf("%s: %+v\n%s", state, d, log)
	}
}

func TestImageAndVariablesSayWhereCachesAreBeforeClaudeHubDoes(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.owner.give("", sensitive("npm_config_cache", "/of/a/variable", "s1", false))
	w.start()
	image := w.image("app:v1", func(c *v1.ConfigFile) {
		c.Config.User, c.Config.Env = "coder", append(c.Config.Env, "UV_CACHE_DIR=/of/the/image")
	})
	recipe, key := w.version(envspec.Spec{Image: image, Bootstrap: "echo 'export GOCACHE=/of/the/profile' >/home/coder/.profile",
		Variables: []envspec.Variable{{Name: "npm_config_cache", Sensitive: true}}})
	id := w.session(recipe, key, w.repo())
	w.untilState(id, wire.StateRunning)
	w.shows(id, "echo $UV_CACHE_DIR $GOCACHE $GOMODCACHE; [ $npm_config_cache = /of/a/variable ] && echo of the Variable",
		"/of/the/image /of/the/profile /var/cache/claude-hub/go-mod\nof the Variable\n")
}
