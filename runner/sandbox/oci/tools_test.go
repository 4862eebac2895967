package oci

import (
	"bytes"
	"context"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/claude-hub/claude-hub/runner/agent"
	"github.com/claude-hub/claude-hub/runner/build"
	"github.com/claude-hub/claude-hub/runner/image"
	"github.com/claude-hub/claude-hub/runner/image/imagetest"
	"github.com/claude-hub/claude-hub/runner/sandbox"
)

// said is what a program of the host prints. The test needs it.
func said(t *testing.T, hint string, argv ...string) string {
	t.Helper()
	out, err := exec.Command(argv[0], argv[1:]...).Output()
	if err != nil {
		t.Fatalf("this test needs %s (%s): %v", argv[0], hint, err)
	}
	return strings.TrimSpace(string(out))
}

// toolbox is a Sandbox that has the host's own programs.
type toolbox struct {
	t  *testing.T
	sb sandbox.Sandbox
}

func newToolbox(t *testing.T) *toolbox {
	t.Helper()
	e := testEngine(t)
	layer := filepath.Join(e.cfg.Dir, "layer")
	for _, d := range []string{"etc/alternatives", "usr", "home/dev", "proc", "sys", "dev", "run", "tmp", "var/cache", "opt"} {
		if err := os.MkdirAll(filepath.Join(layer, d), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	err := os.Chown(filepath.Join(layer, "home/dev"), 1000, 1000)
	for _, l := range []string{"bin", "sbin", "lib", "lib64"} {
		err = errors.Join(err, os.Symlink("usr/"+l, filepath.Join(layer, l)))
	}
	for name, text := range map[string]string{"etc/passwd": "root:x:0:0:root:/root:/bin/sh\ndev:x:1000:1000::/home/dev:/bin/bash\n", "etc/group": "root:x:0:\ndev:x:1000:\n"} {
		err = errors.Join(err, os.WriteFile(filepath.Join(layer, name), []byte(text), 0o644))
	}
	if err != nil {
		t.Fatal(err)
	}
	s := storeSpec(t, e, "tools")
	s.Base = sandbox.Base{Name: "host", Layers: []string{layer}}
	s.Disk.Size, s.Limits.Memory, s.Limits.CPU, s.Network.Off = 2<<30, 1536<<20, 2, true
	s.Binds = append(s.Binds,
		sandbox.Bind{Folder: "/usr", Guest: "/usr", ReadOnly: true}, sandbox.Bind{Folder: "/etc/alternatives", Guest: "/etc/alternatives", ReadOnly: true},
		sandbox.Bind{Folder: imagetest.NPMTools(t), Guest: "/opt/npm", ReadOnly: true},
		sandbox.Bind{Folder: said(t, "https://go.dev", "go", "env", "GOROOT"), Guest: "/opt/go", ReadOnly: true},
		sandbox.Bind{Folder: filepath.Dir(filepath.Dir(said(t, "https://nodejs.org", "node", "-p", "process.execPath"))), Guest: "/opt/node", ReadOnly: true},
		sandbox.Bind{Folder: said(t, "apt-get install cargo", "rustc", "--print", "sysroot"), Guest: "/opt/rust", ReadOnly: true},
	)
	if _, err := e.Mount(t.Context(), s.Disk); err != nil {
		t.Fatal(err)
	}
	return &toolbox{t, start(t, e, "tools", s)}
}

// does runs lines of bash as the image's user in a folder of the Workspace, each of which has to succeed.
func (b *toolbox) does(dir, lines string) string {
	b.t.Helper()
	ctx, cancel := context.WithTimeout(b.t.Context(), 5*time.Minute)
	defer cancel()
	env := append(build.WithCaches(image.Config{}).Env, "HOME=/home/dev", "PATH=/opt/npm/node_modules/.bin:/opt/node/bin:/opt/go/bin:/opt/rust/bin:/usr/bin:/bin",
		"LANG=C.UTF-8", "GOTOOLCHAIN=local", "GOPROXY=off", "CGO_ENABLED=0", "npm_config_offline=true", "npm_config_update_notifier=false")
	var out bytes.Buffer
	x, err := client(b.sb).Run(ctx, agent.Cmd{ID: randomID(), Argv: []string{"bash", "-ec", "cd " + dir + "\n" + lines}, User: "dev", Dir: "/workspace", Env: env}, &out, nil)
	if err != nil || x.Code != 0 {
		b.t.Fatalf("in %s: %s\n%+v, %v:\n%s", dir, lines, x, err, out.Bytes())
	}
	return strings.TrimSpace(out.String())
}

func (b *toolbox) bound() string {
	b.t.Helper()
	return b.does(".", `awk '$5 ~ "^/workspace/" {print substr($5, 12)}' /proc/self/mountinfo | sort | paste -sd " "`)
}

// What people do in a Workspace, with the tools themselves: none may notice that a folder is bound. They are offline, and what they
// install was packed here.
func TestToolsTakeABoundFolderForAnyOther(t *testing.T) {
	onlyRunc(t, "dependency folders stay in the Workspace there")
	t.Parallel()
	b := newToolbox(t)
	if _, err := os.Stat("/usr/bin/python3"); err != nil {
		t.Fatal("this test needs Debian's python3 with venv: apt-get install python3-venv")
	}
	b.does(".", `
mkdir -p src/dep src/wheel npm pnpm bun py rust/src golang
cd src/dep
echo '{"name":"dep","version":"1.0.0","main":"index.js"}' >package.json
echo 'module.exports = "dep works"' >index.js
npm pack --silent --pack-destination .. >/dev/null
cd ../..
rm -r src/dep
for m in npm pnpm bun; do echo '{"name":"app","version":"1.0.0","dependencies":{"dep":"file:../src/dep-1.0.0.tgz"}}' >$m/package.json; done
(cd npm && npm install --silent --package-lock-only)
python3 - <<'EOF'
import zipfile
with zipfile.ZipFile("src/thing-1.0-py3-none-any.whl", "w") as z:
    z.writestr("thing.py", "text = 'thing works'\n")
    z.writestr("thing-1.0.dist-info/METADATA", "Metadata-Version: 2.1\nName: thing\nVersion: 1.0\n")
    z.writestr("thing-1.0.dist-info/WHEEL", "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
    z.writestr("thing-1.0.dist-info/RECORD", "")
EOF
touch py/pyproject.toml
printf '[package]\nname = "thing"\nversion = "1.0.0"\nedition = "2021"\n' >rust/Cargo.toml
echo 'pub fn f() -> i32 { 1 }' >rust/src/lib.rs
printf 'module example.com/app\n\ngo 1.21\n' >golang/go.mod
printf 'package main\n\nfunc main() { println("go works") }\n' >golang/main.go
printf 'node_modules\n.venv\ntarget\n' >.gitignore
git init -q .
git config user.name t && git config user.email t@localhost
git add -A && git commit -qm one`)
	got, err := client(b.sb).Bind(t.Context(), agent.Folders{User: "dev", Guest: "/workspace", Workspace: "workspace", Own: "dependencies", Patterns: []agent.Pattern{
		{Pattern: "**/node_modules", Beside: "package.json"}, {Pattern: "**/.venv", Beside: "pyproject.toml"}, {Pattern: "**/target", Beside: "Cargo.toml"}}})
	if err != nil || len(got.Folders) != 5 || len(got.Problems) > 0 {
		t.Fatalf("Bind: %+v, %v", got, err)
	}
	const all = "bun/node_modules npm/node_modules pnpm/node_modules py/.venv rust/target"
	works := map[string]string{"npm": "dep works", "pnpm": "dep works", "bun": "dep works", "py": "thing works", "rust": "libthing.rlib", "golang": "go works"}
	install := map[string]string{
		"npm":    "npm ci --silent && node -p 'require(\"dep\")'",
		"pnpm":   "pnpm install --silent --offline && node -p 'require(\"dep\")'",
		"bun":    "bun install --silent && node -p 'require(\"dep\")'",
		"py":     "python3 -m venv .venv && .venv/bin/pip install -q --no-index ../src/*.whl && .venv/bin/python -c 'import thing; print(thing.text)'",
		"rust":   "cargo build -q --offline && ls target/debug | grep rlib",
		"golang": "go build -o app . && ./app",
	}
	folder := map[string]string{"npm": "node_modules", "pnpm": "node_modules", "bun": "node_modules", "py": ".venv", "rust": "target"}
	for _, project := range []string{"npm", "pnpm", "bun", "py", "rust", "golang"} {
		for _, when := range []string{"first", "again", "after it was removed", "after it was moved away"} {
			f := folder[project]
			switch {
			case f == "":
			case when == "after it was removed":
				b.does(project, "rm -rf "+f+"; [ ! -e "+f+" ]")
			case when == "after it was moved away":
				b.does(project, "mv "+f+" x; [ ! -e "+f+" ]; [ -n \"$(ls -A x)\" ]; rm -rf x")
			}
			if out := b.does(project, install[project]); out != works[project] {
				t.Errorf("%s, %s: %q", project, when, out)
			}
		}
	}
	if got := b.bound(); got != all {
		t.Errorf("bound is %q after all was installed, and not %q", got, all)
	}
	if out := b.does(".", "git status --porcelain"); out != "?? golang/app\n?? pnpm/pnpm-lock.yaml" && out != "?? bun/bun.lock\n?? golang/app\n?? pnpm/pnpm-lock.yaml" {
		if !strings.Contains(out, ".pnpm-store") { // which pnpm 10 puts where it can link from
			t.Errorf("git status: %q", out)
		}
	}
	b.does(".", "git add -A && git commit -qm two && mv npm/node_modules npm/x && git stash -q -u && [ ! -e npm/x ] && git stash pop -q && node -p 'require(\"./npm/x/dep\")'")
	b.does(".", "mv npm/x npm/node_modules; rm .gitignore; git stash -q -u; git status --porcelain | wc -l; git stash pop -q")
	b.does(".", "git clean -qfdx; git reset -q --hard; git clean -qfdx; [ ! -e npm/node_modules -a ! -e py/.venv -a ! -e rust/target ]")
	if out := b.does(".", "git status --porcelain"); out != "" {
		t.Errorf("after git clean: %q", out)
	}
	if out := b.does("npm", "python3 -c 'import os, shutil; os.makedirs(\"node_modules/a/b\"); shutil.rmtree(\"node_modules\")'; mkdir node_modules; node -e 'fs.writeFileSync(\"node_modules/x\", \"\"); fs.rmSync(\"node_modules\", {recursive: true})'; "+install["npm"]); out != works["npm"] {
		t.Errorf("npm after scripts removed its folder: %q", out)
	}
	if got := b.bound(); got != "npm/node_modules" {
		t.Errorf("bound is %q at the end", got)
	}
	caches := b.does(".", "ls /var/cache/claude-hub | paste -sd ' '; ls -A ~ | paste -sd ' '")
	for _, c := range []string{"bun", "go-build", "npm"} {
		if !strings.Contains(caches, c) {
			t.Errorf("there is no cache of %s: %s", c, caches)
		}
	}
}
