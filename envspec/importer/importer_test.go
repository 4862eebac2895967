package importer

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"
	"testing/fstest"
	"time"

	"github.com/BurntSushi/toml"
	"github.com/tailscale/hujson"
	"gopkg.in/yaml.v3"

	"github.com/claude-hub/claude-hub/envspec"
)

// example is a file as repositories have them, with what has to come of it.
type example struct {
	file, text string
	document   string   // without its first comment
	left       []string // as "key (value)", in order
}

const dev = ".devcontainer/devcontainer.json"

var examples = map[string]example{
	"dev container with everything": {dev, `// For format details, see https://aka.ms/devcontainer.json
{
	"name": "Node & TypeScript", /* a name */
	"image": "mcr.microsoft.com/devcontainers/typescript-node:1-22-bookworm",
	"features": {
		"ghcr.io/devcontainers/features/docker-in-docker:2": {},
		"ghcr.io/devcontainers/features/github-cli:1": {"version": "latest"},
	},
	"onCreateCommand": "sudo apt-get update && sudo apt-get install -y jq",
	"updateContentCommand": ["npm", "ci", "--prefix", "a b"],
	"postCreateCommand": {"db": "createdb x; true", "hooks": "git config core.hooksPath .hooks"},
	"postStartCommand": "nohup redis-server > ${containerWorkspaceFolder}/.redis.log &",
	"postAttachCommand": "npm run dev",
	"remoteEnv": {"EDITOR": "code --wait", "TOKEN": "${localEnv:TOKEN}"},
	"mounts": ["source=/var/run/docker.sock,target=/var/run/docker.sock,type=bind"],
	"runArgs": ["--cap-add=NET_ADMIN", "--privileged"],
	"hostRequirements": {"cpus": 4, "memory": "8gb", "storage": "32gb"},
	"customizations": {"vscode": {"extensions": ["dbaeumer.vscode-eslint"]}},
	"forwardPorts": [3000],
	"remoteUser": "node",
	"somethingNew": true,
}
`, `image: mcr.microsoft.com/devcontainers/typescript-node:1-22-bookworm
bootstrap: |
  # .devcontainer/devcontainer.json: onCreateCommand, which a dev container runs once (without sudo: a bootstrap runs as root)
  apt-get update && apt-get install -y jq
start: |
  set -e

  # .devcontainer/devcontainer.json: updateContentCommand, which a dev container runs once
  (
  npm ci --prefix 'a b'
  )

  # .devcontainer/devcontainer.json: postCreateCommand.db, which a dev container runs once
  (
  set +e
  createdb x; true
  )

  # .devcontainer/devcontainer.json: postCreateCommand.hooks, which a dev container runs once
  (
  git config core.hooksPath .hooks
  )

  # .devcontainer/devcontainer.json: postStartCommand
  (
  set +e
  nohup redis-server > /workspace/.redis.log &
  )
docker: true
cpu: 4
memory: 8GiB
variables:
  EDITOR: "code --wait"
  TOKEN:
    sensitive: true
    note: "From ${localEnv:TOKEN} of the dev container."
`, []string{"features.ghcr.io/devcontainers/features/github-cli:1", "postAttachCommand (npm run dev)",
		"mounts[0] (source=/var/run/docker.sock,target=/var/run/docker.sock,type=bind)", "runArgs[0] (--cap-add=NET_ADMIN)", "runArgs[1] (--privileged)",
		"hostRequirements.storage (32gb)", "customizations", "forwardPorts", "remoteUser (node)", "somethingNew (true)"}},
	"dev container that is built": {".devcontainer.json", "\ufeff{\"build\": {\"dockerfile\": \"Dockerfile\"}, \"postCreateCommand\": \"\", \"dockerComposeFile\": [\"a.yml\"], \"init\": true}",
		"image: buildpack-deps:bookworm\n", []string{"build", "dockerComposeFile", "init (true)"}},
	"dev container in a folder": {".devcontainer/python/devcontainer.json", `{"image": "python:3.13", "postCreateCommand": "pip install -r requirements.txt"}`,
		"image: python:3.13\nstart: |\n  # .devcontainer/python/devcontainer.json: postCreateCommand, which a dev container runs once\n  pip install -r requirements.txt\n", nil},
	"dev container that only its own product can fill in": {dev, `{"image": "node:${VARIANT}", "postCreateCommand": "cp ${localWorkspaceFolder}/x .", "postStartCommand": "echo ${containerEnv:HOME} ${containerEnv:A:b}",
"updateContentCommand": ["echo", "${containerEnv:HOME}"], "onCreateCommand": {"a": ["x", 1], "b": {"c": 1}}, "hostRequirements": {"cpus": 0, "memory": "lots", "gpu": "optional"}, "initializeCommand": "docker pull x"}`,
		"image: buildpack-deps:bookworm\nstart: |\n  # .devcontainer/devcontainer.json: postStartCommand\n  echo ${HOME} ${A:-b}\n",
		[]string{"image (node:${VARIANT})", "postCreateCommand (cp ${localWorkspaceFolder}/x .)", "updateContentCommand", "onCreateCommand.a", "onCreateCommand.b",
			"hostRequirements.cpus (0)", "hostRequirements.memory (lots)", "hostRequirements.gpu (optional)", "initializeCommand (docker pull x)"}},
	"dev container with a key twice": {dev, `{"image": "node:20", "image": "node:22"}`, "image: node:22\n", []string{"image (node:20)"}},
	"dev container with what no script can hold": {dev, `{"postCreateCommand": "a\u0000b", "postStartCommand": "true"}`,
		"image: buildpack-deps:bookworm\nstart: |\n  # .devcontainer/devcontainer.json: postStartCommand\n  true\n", []string{"postCreateCommand (a\x00b)"}},
	"copilot": {".github/workflows/copilot-setup-steps.yml", `name: "Copilot Setup Steps"
on:
  workflow_dispatch:
  push: {paths: [x]}
permissions: {contents: read}
env:
  GLOBAL: "1"
jobs:
  copilot-setup-steps:
    runs-on: ubuntu-latest
    timeout-minutes: 30
    services: {db: {image: "postgres:17"}}
    steps:
      - name: Checkout
        uses: actions/checkout@v5
        with: {submodules: true}
      - uses: actions/setup-node@v4
        with: {node-version: 22}
      - name: Install packages
        run: |
          sudo apt-get update
          sudo DEBIAN_FRONTEND=noninteractive apt-get install -y \
            libpq-dev
      - name: "Install: it's dependencies"
        run: npm ci
        working-directory: web app
        shell: bash
        env:
          A: it's
          B: ${{ secrets.B }}
      - if: runner.os == 'Linux'
        run: true
      - run: echo ${{ github.sha }}
      - run: Get-Item
        shell: pwsh
  other: {runs-on: x}
`, `image: buildpack-deps:bookworm
bootstrap: |
  # .github/workflows/copilot-setup-steps.yml: jobs.copilot-setup-steps.steps[2], Install packages (without sudo: a bootstrap runs as root)
  set -e
  apt-get update
  DEBIAN_FRONTEND=noninteractive apt-get install -y \
    libpq-dev
start: |
  # .github/workflows/copilot-setup-steps.yml: jobs.copilot-setup-steps.steps[3], Install: it's dependencies
  set -eo pipefail
  cd 'web app'
  export A='it'\''s'
  npm ci
variables:
  B:
    sensitive: true
    note: "From GitHub's secret B."
  GLOBAL: "1"
`, []string{"permissions", "jobs.copilot-setup-steps.runs-on (ubuntu-latest)", "jobs.copilot-setup-steps.timeout-minutes (30)", "jobs.copilot-setup-steps.services.db",
		"jobs.copilot-setup-steps.steps[0].with.submodules (true)", "jobs.copilot-setup-steps.steps[1]",
		"jobs.copilot-setup-steps.steps[4]", "jobs.copilot-setup-steps.steps[5]", "jobs.copilot-setup-steps.steps[6]", "jobs.other"}},
	"copilot in a container": {".github/workflows/copilot-setup-steps.yaml", "on: push\njobs:\n  copilot-setup-steps:\n    container: {image: 'node:22', options: --cpus 1}\n    steps: []\n",
		"image: node:22\n", []string{"jobs.copilot-setup-steps.container.options (--cpus 1)"}},
	"cursor": {".cursor/environment.json", `{"snapshot": "snapshot-1", "install": "npm install", "start": "sudo service docker start", "terminals": [{"name": "dev", "command": "npm run dev"}]}`,
		`image: buildpack-deps:bookworm
start: |
  set -e

  # .cursor/environment.json: install
  (
  npm install
  )

  # .cursor/environment.json: start
  (
  sudo service docker start
  )
`, []string{"snapshot (snapshot-1)", "terminals[0]"}},
	"gitpod": {".gitpod.yml", `image:
  file: .gitpod.Dockerfile
tasks:
  - name: App
    before: export A=1
    init: |
      yarn install
      yarn build &&
    command: yarn dev
    env: {B: x}
  - command: docker compose up
ports: [{port: 3000, onOpen: notify}]
vscode: {extensions: [a.b]}
`, `image: buildpack-deps:bookworm
start: |
  set -e

  # .gitpod.yml: tasks[0].before, App
  (
  export A=1
  )

  # .gitpod.yml: tasks[0].init, App
  (
  set +e
  yarn install
  yarn build &&
  )
variables:
  B: x
`, []string{"image", "tasks[0].command (yarn dev)", "tasks[1]", "ports", "vscode"}},
	"mise": {"mise.toml", "min_version = \"2025.1\"\n[tools]\nnode = \"22\"\nerlang = {version = \"28.1.1\", os = [\"linux\"]}\npython = [\"3.12\", \"3.13\"]\n\"npm:prettier\" = 3\nevil = \"x'; rm\"\ngo = \"system\"\n[env]\nA = \"secret\"\n[tasks.build]\nrun = \"x\"\n",
		mise(`"erlang" = ["28.1.1"]`, `"node" = ["22"]`, `"npm:prettier" = ["3"]`, `"python" = ["3.12", "3.13"]`) + "variables:\n  A: secret\n", []string{"min_version (2025.1)", "tasks.build", "tools.erlang.os", "tools.evil (x'; rm)", "tools.go (system)"}},
	"tool versions": {".tool-versions", "# tools\nnodejs 22.1.0 20.0.0 # two\n\nterraform 1.9\nlocal path:/x\n",
		strings.ReplaceAll(mise(`"nodejs" = ["22.1.0", "20.0.0"]`, `"terraform" = ["1.9"]`), "mise.toml:", ".tool-versions:"), []string{"tools.local"}},
}

func mise(tools ...string) string {
	return `image: buildpack-deps:bookworm
bootstrap: |
  # mise.toml: tools, by mise
  set -e
  export MISE_DATA_DIR=/usr/local/share/mise MISE_INSTALL_PATH=/usr/local/bin/mise
  curl -fsSL https://mise.run -o /tmp/mise-install
  sh /tmp/mise-install
  mkdir -p /etc/mise
  cat > /etc/mise/config.toml <<'TOOLS'
  [tools]
  ` + strings.Join(tools, "\n  ") + `
  TOOLS
  mise install --yes
  cat > /etc/profile.d/mise.sh <<'PROFILE'
  export MISE_DATA_DIR=/usr/local/share/mise
  export MISE_TRUSTED_CONFIG_PATHS=/workspace
  export PATH="$MISE_DATA_DIR/shims:$PATH"
  PROFILE
`
}

func repo(files ...string) fstest.MapFS {
	out := fstest.MapFS{}
	for i := 0; i+1 < len(files); i += 2 {
		out[files[i]] = &fstest.MapFile{Data: []byte(files[i+1]), Mode: 0o644}
	}
	return out
}

func TestWhatAnEnvironmentCanHoldIsTakenAndTheRestIsNamed(t *testing.T) {
	t.Parallel()
	for name, e := range examples {
		p, err := Import(repo(e.file, e.text), "")
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		if want := "# Proposed by claude-hub env import, from " + e.file + "\n\n" + e.document; p.Document != want || p.Source != e.file {
			t.Errorf("%s: got\n%s\nwant\n%s", name, p.Document, want)
		}
		var left []string
		for _, i := range p.Left {
			key := i.Key
			if i.Value != "" {
				key += " (" + i.Value + ")"
			}
			left = append(left, key)
		}
		if !slices.Equal(left, e.left) {
			t.Errorf("%s: left are\n%q\nwant\n%q", name, left, e.left)
		}
		check(t, p, e.file, []byte(e.text))
	}
}

// check proves that nothing is lost: each value of the file, read by other means, is used or named, by itself or as part of
// something.
func check(t *testing.T, p Proposal, file string, b []byte) {
	t.Helper()
	if back, err := envspec.Parse("e.yml", []byte(p.Document), nil); err != nil || !reflect.DeepEqual(back, p.Spec) {
		t.Fatalf("%q is no right document: %v", p.Document, err)
	}
	told := map[string]bool{}
	for _, i := range slices.Concat(p.Used, p.Left) {
		if i.File != p.Source && i.Key == "" {
			continue
		}
		if i.Why == "" || strings.ContainsFunc(i.String(), func(r rune) bool { return r < ' ' || r == 0x7f }) {
			t.Fatalf("an item without a reason, or with control characters: %q", i.String())
		}
		told[i.Key] = true
	}
	for _, key := range keysOf(t, file, b) {
		covered := false
		for i := range len(key) + 1 {
			if i == len(key) || key[i] == '.' || key[i] == '[' {
				covered = covered || told[key[:i]]
			}
		}
		if !covered {
			t.Fatalf("%s says %s in\n%s\nand it is neither used nor named:\n%v\n%v", file, key, b, p.Used, p.Left)
		}
	}
}

// keysOf lists the values of a file that hold no others.
func keysOf(t *testing.T, file string, b []byte) (keys []string) {
	t.Helper()
	var v any
	var err error
	switch {
	case strings.HasSuffix(file, ".json"):
		var plain []byte
		if plain, err = hujson.Standardize([]byte(strings.TrimPrefix(string(b), "\ufeff"))); err == nil {
			err = json.Unmarshal(plain, &v)
		}
	case strings.HasSuffix(file, ".toml"):
		err = toml.Unmarshal(b, &v)
	case file == ".tool-versions":
		tools := map[string]any{}
		for line := range strings.Lines(strings.ToValidUTF8(string(b), "\ufffd")) {
			if words := strings.Fields(strings.SplitN(line, "#", 2)[0]); len(words) > 0 {
				tools[words[0]] = strings.Split(strings.Join(words[1:], " "), " ")
			}
		}
		v = map[string]any{"tools": tools}
	default:
		var doc yaml.Node
		if err = yaml.Unmarshal(b, &doc); err == nil && doc.Kind != 0 {
			v = asJSON(&doc)
		}
	}
	if err != nil {
		return nil // another reader is stricter: nothing to compare with
	}
	var walk func(key string, v any)
	walk = func(key string, v any) {
		join := func(name string) string {
			if name == "" {
				name = `""`
			}
			if key == "" {
				return name
			}
			return key + "." + name
		}
		switch v := v.(type) {
		case map[string]any:
			for name, child := range v {
				walk(join(name), child)
			}
		case []string:
			for i := range v {
				walk(fmt.Sprintf("%s[%d]", key, i), v[i])
			}
		case []any:
			for i, child := range v {
				walk(fmt.Sprintf("%s[%d]", key, i), child)
			}
		default:
			keys = append(keys, key)
		}
	}
	walk("", v)
	return keys
}

// asJSON is a YAML document as JSON would have it, with each key as it is written.
func asJSON(n *yaml.Node) any {
	switch n.Kind {
	case yaml.DocumentNode:
		return asJSON(n.Content[0])
	case yaml.AliasNode:
		return asJSON(n.Alias)
	case yaml.MappingNode:
		out := map[string]any{}
		for i := 0; i+1 < len(n.Content); i += 2 {
			out[n.Content[i].Value] = asJSON(n.Content[i+1])
		}
		return out
	case yaml.SequenceNode:
		out := make([]any, len(n.Content))
		for i := range n.Content {
			out[i] = asJSON(n.Content[i])
		}
		return out
	}
	return n.Value
}

func TestValuesOfVariablesAreNotTold(t *testing.T) {
	t.Parallel()
	p, err := Import(repo(dev, `{"remoteEnv": {"A": "hunter2", "A-B": "hunter2", "C": "${localEnv:HOME}/hunter2"}, "containerEnv": {"A": "hunter22", "B": {"C": "hunter2"}}, "secrets": {"D": "hunter2"}}`), "")
	if err != nil || len(p.Left) != 4 || strings.Contains(fmt.Sprint(p.Left, p.Used), "hunter2") {
		t.Errorf("%v, %v", p, err)
	}
}

func TestOneFileIsImportedAndTheOthersAreNamed(t *testing.T) {
	t.Parallel()
	files := repo("mise.toml", "[tools]\nerlang = \"28.1.1\"\n", ".gitpod.yml", "tasks: [{init: make}]", ".devcontainer/b/devcontainer.json", `{"image": "b/b"}`, ".devcontainer/a/devcontainer.json", `{"image": "a/a"}`,
		".cursor/environment.json", "{")
	p, err := Import(files, "")
	if err != nil || p.Source != ".devcontainer/a/devcontainer.json" || p.Spec.Image != "a/a" {
		t.Fatalf("%+v, %v", p, err)
	}
	var left []string
	for _, i := range p.Left {
		left = append(left, i.String())
	}
	want := []string{".cursor/environment.json: it can't be read: ", ".devcontainer/b/devcontainer.json: not used, since", ".gitpod.yml: not used, since", "mise.toml: not used, since",
		"mise.toml: tools.erlang (28.1.1): not used: check"}
	if !slices.EqualFunc(left, want, strings.HasPrefix) {
		t.Errorf("left are %q", left)
	}
	if p, err := Import(files, "./.gitpod.yml"); err != nil || p.Source != ".gitpod.yml" || !strings.Contains(p.Spec.Start, "make") {
		t.Errorf("a file that is named: %+v, %v", p, err)
	}
	for from, want := range map[string]string{".cursor/environment.json": "can't be read", "README.md": "is no file of this repository that can be imported", "../x": "is no file"} {
		if _, err := Import(files, from); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("--from %s: %v", from, err)
		}
	}
}

func TestWithoutAFileThereIsNothingToImport(t *testing.T) {
	t.Parallel()
	if _, err := Import(repo("README.md", "x"), ""); !errors.Is(err, ErrNothing) {
		t.Error(err)
	}
	p, err := Import(repo(dev, "{", ".gitpod.yml", "- a", "mise.toml", "x", ".tool-versions", "\x00"), "")
	if !errors.Is(err, ErrNothing) || len(p.Left) != 4 {
		t.Errorf("%+v, %v", p, err)
	}
}

func TestFilesOutsideOfTheRepositoryAreNotRead(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	outside := filepath.Join(dir, "outside.json")
	inside := filepath.Join(dir, "repo")
	err := errors.Join(os.WriteFile(outside, []byte(`{"image": "out/side"}`), 0o600), os.Mkdir(inside, 0o700), os.Symlink("../outside.json", filepath.Join(inside, ".devcontainer.json")),
		os.MkdirAll(filepath.Join(inside, ".cursor/environment.json"), 0o700))
	if err != nil {
		t.Fatal(err)
	}
	root, err := os.OpenRoot(inside)
	if err != nil {
		t.Fatal(err)
	}
	defer root.Close()
	p, err := Import(root.FS(), "")
	if !errors.Is(err, ErrNothing) || len(p.Left) != 2 || strings.Contains(fmt.Sprint(p), "out/side") {
		t.Errorf("%+v, %v", p, err)
	}
}

func TestHostileFilesAreAnsweredSoon(t *testing.T) {
	t.Parallel()
	bomb := "a: &a [x,x,x,x,x,x,x,x,x]\n"
	for c := 'b'; c < 'k'; c++ {
		bomb += fmt.Sprintf("%c: &%c [%s]\n", c, c, strings.TrimSuffix(strings.Repeat("*"+string(c-1)+",", 9), ","))
	}
	for what, files := range map[string]fstest.MapFS{
		"brackets":     repo(dev, strings.Repeat("[", maxFile)),
		"some deep":    repo(dev, `{"a":`+strings.Repeat("[", maxNodes-10)+strings.Repeat("]", maxNodes-10)+"}"),
		"values":       repo(dev, `{"a":[`+strings.Repeat("1,", maxFile/2-10)+"]}"),
		"aliases":      repo(".gitpod.yml", bomb),
		"self":         repo(".gitpod.yml", "tasks: &a\n  - *a\n"),
		"dashes":       repo(".gitpod.yml", strings.Repeat("- ", maxFile/2)),
		"dots":         repo("mise.toml", strings.Repeat("a.", maxFile/2-10)+"a = 1"),
		"toml":         repo("mise.toml", "a = "+strings.Repeat("[", maxFile-10)),
		"tables":       repo("mise.toml", strings.Repeat("[a.a]\n", 4000)),
		"large":        repo(dev, strings.Repeat(" ", maxFile)+"{}"),
		"tools":        repo(".tool-versions", strings.Repeat("a 1\n", maxFile/4)),
		"no file":      {dev: &fstest.MapFile{Mode: fs.ModeNamedPipe}},
		"a wide merge": repo(".gitpod.yml", "<<: ["+strings.Repeat("{}, ", maxNodes)+"]"),
	} {
		begin := time.Now()
		p, err := Import(files, "")
		if !errors.Is(err, ErrNothing) || len(p.Left) != 1 || len(p.Left[0].String()) > 600 {
			t.Errorf("%s: %.300v, %v", what, p, err)
		}
		// A hang is what this is for: the limit is far above what a busy machine needs.
		if d := time.Since(begin); d > 30*time.Second {
			t.Errorf("%s took %v", what, d)
		}
	}
	many := repo()
	for i := range 500 {
		many[fmt.Sprintf(".devcontainer/%03d/devcontainer.json", i)] = &fstest.MapFile{Data: []byte("{}"), Mode: 0o644}
	}
	if p, err := Import(many, ""); err != nil || len(p.Left) != maxFiles-1 {
		t.Errorf("%d files are named, %v", len(p.Left), err)
	}
}
