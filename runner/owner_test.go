package runner

import (
	"testing"

	"github.com/claude-hub/claude-hub/app/fleet"
	"github.com/claude-hub/claude-hub/envspec"
	"github.com/claude-hub/claude-hub/runner/wire"
)

func TestANewVersionWithAnotherUserOwnsTheWorkspace(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.start()
	folders := &[]envspec.Folder{{Pattern: "deps"}}
	recipe, key := w.version(envspec.Spec{Image: w.image("app:root", nil), Folders: folders})
	id := w.session(recipe, key, w.repo())
	w.untilState(id, wire.StateRunning)
	w.sh(id, "mkdir deps; echo a >deps/a; echo c >$XDG_CACHE_HOME/c; echo x >theirs; chown 7:7 theirs; echo s >setuid; chmod 4755 setuid; ln -s /etc/passwd link")
	next := func(version int, spec envspec.Spec) {
		t.Helper()
		recipe, key := w.version(spec)
		w.change(id, fleet.Stop)
		w.untilState(id, wire.StateAsleep)
		w.edit(id, fleet.Run, func(p *wire.Session) { p.Recipe, p.BuildKey, p.Version = recipe, key, version })
		w.untilState(id, wire.StateRunning)
	}
	const owners = "stat -c '%u:%g' . .git/HEAD README deps deps/a $XDG_CACHE_HOME $XDG_CACHE_HOME/c setuid link theirs /etc/passwd | tr '\\n' ' '; stat -c %a setuid"
	next(2, envspec.Spec{Image: w.image("app:coder", asCoder), Folders: folders})
	const coder = "1000:1000 "
	if got, want := w.sh(id, owners), coder+coder+coder+coder+coder+coder+coder+coder+coder+"7:7 0:0 4755\n"; got != want {
		t.Errorf("as coder: %q, want %q", got, want)
	}
	w.sh(id, "echo b >>deps/a; echo b >>README; echo b >new; echo b >>$XDG_CACHE_HOME/c")
	w.untilLog(id, "the image's user is 1000:1000 now and was 0:0")

	next(3, envspec.Spec{Image: w.image("app:root", nil), Folders: folders})
	const root = "0:0 "
	if got, want := w.sh(id, owners+"; cat deps/a"), root+root+root+root+root+root+root+root+root+"7:7 0:0 4755\na\nb\n"; got != want {
		t.Errorf("as root again: %q, want %q", got, want)
	}
}
