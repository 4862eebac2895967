package importer

import (
	"slices"
	"strings"
	"testing"
)

// What becomes of each variable: "NAME=value" of a Plain one, "NAME" of a Sensitive one, "NAME!" with build; then those left.
func TestVariablesOfEachKindOfFile(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		file, text string
		taken      []string
		left       map[string]string // by key, what Why has in it
	}{
		{dev, `{"remoteEnv": {"A": "x", "TOKEN": "${localEnv:NPM_TOKEN}", "USER_HOME": "${localEnv:HOME}", "MIXED": "${localEnv:A}/b", "PATH": "${containerEnv:PATH}:/x", "ROOT": "${containerWorkspaceFolder}/a",
"UNSET": null, "BOTH": "1", "1BAD": "x", "PWD": "x", "NUMBER": 5, "CLAUDE_HUB_X": "y", "DEFAULT": "${localEnv:D:none}", "EMPTY": "", "HOST": "${localWorkspaceFolder}", "pct": "${x}"},
"containerEnv": {"BOTH": "2", "SAME": "s", "A": "x", "NUL": "a\u0000b"}, "secrets": {"KEY": {"description": "of the API", "documentationUrl": "https://example.com"}, "OTHER_KEY": {}}}`,
			[]string{"A=x", "BOTH=1", "DEFAULT", "EMPTY=", "KEY", "NUMBER=5", "OTHER_KEY", "ROOT=/workspace/a", "SAME=s", "TOKEN", "pct=${x}"},
			map[string]string{"remoteEnv.USER_HOME": "it is HOME of the person's own machine", "remoteEnv.MIXED": "it uses ${localEnv:A}, and nothing in a Variable is expanded",
				"remoteEnv.PATH": "it uses ${containerEnv:PATH}, and nothing in a Variable is expanded: let the bootstrap write it to a file in /etc/profile.d", "remoteEnv.UNSET": "", "remoteEnv.1BAD": "begins with a letter or _",
				"remoteEnv.PWD": "each shell sets it itself", "remoteEnv.CLAUDE_HUB_X": "is reserved", "remoteEnv.HOST": "it uses ${localWorkspaceFolder}", "containerEnv.BOTH": "BOTH has another one elsewhere in this file",
				"containerEnv.NUL": "NUL byte", "secrets.KEY.documentationUrl": "a Variable has a note, and no more"}},
		{".github/workflows/copilot-setup-steps.yml", `env: {A: "1", B: "${{ secrets.B_SECRET }}", C: "${{ vars.C }}", NODE_VERSION: 22}
jobs:
  copilot-setup-steps:
    env: {A: "2", D: "x ${{ secrets.D }}"}
    steps:
      - run: apt-get install -y jq
        env: {APT: "${{ secrets.APT }}", B: "${{secrets.OTHER}}"}
      - run: npm ci
        env: {B: "${{ secrets.B_SECRET }}", E: "${{ github.sha }}"}
`, []string{"A=2", "APT!", "B!", "NODE_VERSION=22"}, map[string]string{"env.A": "A has another one", "env.C": "it uses ${{…, and nothing", "jobs.copilot-setup-steps.env.D": "it uses ${{…",
			"jobs.copilot-setup-steps.steps[1].env.E": "it uses ${{…"}},
		{".gitpod.yml", "tasks:\n- env: {A: x, B: '${C}', N: 1}\n- env: {A: y}\n", []string{"A=x", "N=1"}, map[string]string{"tasks[0].env.B": "it uses ${…, and nothing", "tasks[1].env.A": "A has another one"}},
		{".cursor/environment.json", `{"env": {"A": "x", "B": ["y"], "C": true}}`, []string{"A=x", "C=true"}, map[string]string{"env.B": "more than a value"}},
		{"mise.toml", "[env]\nA = 'x'\nB = false\nC = '{{ env.HOME }}'\nD = {value = 'hunter2', redact = true}\nE = {required = true}\nF = 3.10\n_.file = '.env'\n",
			[]string{"A=x", "D", "F=3.1"}, map[string]string{"env.B": "it unsets", "env.C": "it uses {{…", "env.E": "more than a value", "env._": "files, paths and scripts"}},
	} {
		p, err := Import(repo(c.file, c.text), "")
		if err != nil {
			t.Errorf("%s: %v", c.file, err)
			continue
		}
		check(t, p, c.file, []byte(c.text))
		var taken []string
		for _, v := range p.Spec.Variables {
			one := v.Name
			if v.Plain() {
				one += "=" + v.Value
			}
			if v.Build {
				one += "!"
			}
			taken = append(taken, one)
		}
		if !slices.Equal(taken, c.taken) {
			t.Errorf("%s: taken are %q, want %q", c.file, taken, c.taken)
		}
		left := map[string]string{}
		for _, i := range p.Left {
			left[i.Key] = i.Why
			if want, ok := c.left[i.Key]; !ok || !strings.Contains(i.Why, want) {
				t.Errorf("%s: %s is left since %q, want %q", c.file, i.Key, i.Why, want)
			}
		}
		for key := range c.left {
			if _, ok := left[key]; !ok && c.left[key] != "" {
				t.Errorf("%s: %s is not left", c.file, key)
			}
		}
	}
}

func TestTheFeatureOfDockerIsTheToggle(t *testing.T) {
	t.Parallel()
	for feature, want := range map[string]bool{"ghcr.io/devcontainers/features/docker-in-docker:2": true, "docker-in-docker": true, "ghcr.io/devcontainers/features/docker-outside-of-docker:1": true,
		"ghcr.io/devcontainers/features/docker-from-docker:1.2": true, "ghcr.io/devcontainers/features/docker-outside-of-docker-compose:1": true, "ghcr.io/x/docker-compose:1": false, "ghcr.io/devcontainers/features/kubectl-helm-minikube:1": false} {
		text := `{"features": {"` + feature + `": {"version": "27", "moby": false}}}`
		p, err := Import(repo(dev, text), "")
		if err != nil || p.Spec.Docker != want {
			t.Errorf("%s: %+v, %v", feature, p, err)
		}
		check(t, p, dev, []byte(text))
		if want && (len(p.Left) != 2 || p.Left[1].Why != "the Runner chooses how Docker is installed") {
			t.Errorf("%s: left are %v", feature, p.Left)
		}
	}
}
