package agent

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// session is a Store on the host, and Sandboxes on it one after the other.
type session struct {
	t        *testing.T
	dir      string
	patterns []Pattern
	user     string
	binds    map[string]string // as image.Binds
}

var defaults = []Pattern{{"**/node_modules", "package.json"}, {"**/.venv", "pyproject.toml"}, {"**/target", "Cargo.toml"}}

func newSession(t *testing.T) *session {
	t.Helper()
	s := &session{t: t, dir: t.TempDir(), patterns: defaults, user: "coder"}
	for _, d := range []string{"workspace", "dependencies"} {
		if err := os.Mkdir(filepath.Join(s.dir, d), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	s.own("")
	if err := os.Chmod(s.dir, 0o755); err != nil {
		t.Fatal(err)
	}
	return s
}

// own gives a path of the Workspace to the user.
func (s *session) own(rel string) {
	s.t.Helper()
	if err := os.Chown(s.path(rel), 1000, 1000); err != nil {
		s.t.Fatal(err)
	}
}

func (s *session) path(rel string) string { return filepath.Join(s.dir, "workspace", rel) }

// write makes files in the Workspace, from outside, with what is in them.
func (s *session) write(files ...string) {
	s.t.Helper()
	for _, f := range files {
		name, text, _ := strings.Cut(f, "=")
		folder := filepath.Dir(s.path(name))
		if strings.HasSuffix(name, "/") {
			folder = s.path(name)
		}
		if err := os.MkdirAll(folder, 0o755); err != nil {
			s.t.Fatal(err)
		}
		if folder == s.path(name) {
			continue
		}
		if err := os.WriteFile(s.path(name), []byte(text), 0o644); err != nil {
			s.t.Fatal(err)
		}
	}
	err := filepath.WalkDir(s.path(""), func(p string, _ os.DirEntry, err error) error {
		if err == nil {
			err = os.Lchown(p, 1000, 1000)
		}
		return err
	})
	if err != nil {
		s.t.Fatal(err)
	}
}

// unbound boots without binding.
func (s *session) unbound() *box {
	return boot(s.t, image{Store: s.dir, Binds: s.binds,
		Env: `{"store":"/run/claude-hub/store","withheld":[21,19]}`})
}

func (s *session) request() Folders {
	return Folders{Patterns: s.patterns, User: s.user, Guest: "/workspace", Workspace: "workspace", Own: "dependencies"}
}

// boot boots and binds. It gives what became of each folder, as "state path".
func (s *session) boot() (*box, []string) {
	s.t.Helper()
	b := s.unbound()
	got, err := b.Bind(ctx(s.t), s.request())
	if err != nil {
		s.t.Fatalf("bind: %v", err)
	}
	for _, p := range got.Problems {
		s.t.Errorf("bind: %s", p)
	}
	out := []string{}
	for _, f := range got.Folders {
		out = append(out, strings.TrimSpace(f.State+" "+f.Path+" "+f.Err))
	}
	return b, out
}

// end ends a Sandbox at once, as a power cut would.
func (b *box) end() {
	p, err := os.FindProcess(b.pid)
	if err == nil {
		p.Kill() //nolint:errcheck // it has ended, then
	}
	<-b.ended
}

// dev runs a line of shell in the Workspace as the user.
func (b *box) dev(line string) (string, int) {
	b.t.Helper()
	out, exit := b.run(Cmd{Argv: []string{"/bin/sh", "-c", line}, User: "coder", Dir: "/workspace", NeedDir: true,
		Env: []string{"PATH=/usr/local/bin:/usr/bin:/bin", "HOME=/home/coder"}})
	return strings.TrimSpace(out), exit.Code
}

// does wants a line of shell to succeed, and to print just that.
func (b *box) does(line, want string) {
	b.t.Helper()
	if out, code := b.dev(line); code != 0 || out != want {
		b.t.Errorf("%s\nexit code %d, %q; want %q", line, code, out, want)
	}
}

// bound are the folders of the Workspace that something is bound over, as the Sandbox sees it.
func (b *box) bound() []string {
	b.t.Helper()
	var out []string
	for _, l := range strings.Split(b.sh("cat /proc/self/mountinfo"), "\n") {
		if f := strings.Fields(l); len(f) > 5 {
			if rel, ok := strings.CutPrefix(f[4], "/workspace/"); ok {
				out = append(out, rel)
			}
		}
	}
	slices.Sort(out)
	return out
}

func (b *box) wantBound(want ...string) {
	b.t.Helper()
	if got := b.bound(); !slices.Equal(got, want) {
		b.t.Errorf("bound are %q; want %q", got, want)
	}
}

func alike(t *testing.T, what string, got, want []string) {
	t.Helper()
	if !slices.Equal(got, want) {
		t.Errorf("%s: %q; want %q", what, got, want)
	}
}

func TestDependencyFoldersAreMadeFoundAndMoved(t *testing.T) {
	t.Parallel()
	s := newSession(t)
	s.write("package.json", "web/package.json", "web/node_modules/left/index.js=old", "rust/Cargo.toml", "py/.venv/", "src/main.js", "deep/a/b/package.json")
	b, got := s.boot()
	alike(t, "first boot", got, []string{"new deep/a/b/node_modules", "new node_modules", "new py/.venv", "new rust/target", "moved web/node_modules"})
	b.wantBound("deep/a/b/node_modules", "node_modules", "py/.venv", "rust/target", "web/node_modules")
	b.does("cat web/node_modules/left/index.js; stat -c %U:%a node_modules; echo new > node_modules/a; mkdir rust/target/debug", "oldcoder:755")
	b.end()
	if _, err := os.Stat(s.path("web/node_modules/left")); !os.IsNotExist(err) {
		t.Errorf("the files are in the Workspace still: %v", err)
	}
	b, got = s.boot()
	alike(t, "second boot", got, []string{"bound deep/a/b/node_modules", "bound node_modules", "bound py/.venv", "bound rust/target", "bound web/node_modules"})
	b.does("cat web/node_modules/left/index.js; cat node_modules/a; ls rust/target", "oldnew\ndebug")
}

func TestToToolsABoundFolderIsLikeAnyOther(t *testing.T) {
	t.Parallel()
	s := newSession(t)
	s.write("package.json")
	b, _ := s.boot()
	b.does("mkdir -p node_modules/x/y && echo 1 > node_modules/x/y/z && rm -rf node_modules && ls", "package.json")
	b.wantBound()
	b.does("umask 027; mkdir node_modules && stat -c %a node_modules", "750")
	b.wantBound("node_modules")
	b.does("echo 1 > node_modules/one && mv node_modules x && ls && cat x/one", "package.json\nx\n1")
	b.does("mv x y && mv y node_modules && cat node_modules/one", "1")
	b.does("rmdir node_modules 2>&1; echo $?", "rmdir: failed to remove 'node_modules': Directory not empty\n1")
	b.does("mkdir e && mv -T e node_modules 2>&1; echo $?; rmdir e", "mv: cannot move 'e' to 'node_modules': Directory not empty\n1")
	b.does("python3 -c 'import shutil; shutil.rmtree(\"node_modules\")' && ls", "package.json")
	b.does("mkdir new && echo 2 > new/two && mv new node_modules && cat node_modules/two", "2")
	b.does("mkdir -p a/node_modules && echo 3 > a/node_modules/three && mv a b && cat b/node_modules/three && rm -r b && ls", "3\nnode_modules\npackage.json")
}

func TestGitTakesABoundFolderForAnyOther(t *testing.T) {
	t.Parallel()
	s := newSession(t)
	s.write("package.json={}", ".gitignore=node_modules\n")
	s.git("", "init -q .", "add .", "commit -qm one")
	b, _ := s.boot()
	b.sh("printf '[user]\nname=a\nemail=b\n' > /home/coder/.gitconfig")
	b.does("git status --porcelain", "")
	b.does("mkdir node_modules/x && echo 1 > node_modules/x/y && git status --porcelain && git clean -qfdx && ls", "package.json")
	b.wantBound()
	b.does("mkdir node_modules && rm .gitignore && echo 1 > node_modules/x && git stash -q -u && ls -A", ".git\n.gitignore\npackage.json")
	b.does("git stash pop -q && cat node_modules/x", "1")
}
