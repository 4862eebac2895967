package importer

import (
	"os/exec"
	"strings"
	"testing"
)

func TestPartsOfAScriptRunAsTheyDid(t *testing.T) {
	t.Parallel()
	bash, err := exec.LookPath("bash")
	if err != nil {
		t.Fatal("these tests need bash: apt-get install bash")
	}
	for name, c := range map[string]struct {
		parts []part
		out   string
		code  int
	}{
		"one after the other":                   {[]part{{body: "echo a"}, {body: "echo b"}}, "a\nb\n", 0},
		"a failure ends the whole":              {[]part{{body: "exit 7"}, {body: "echo b"}}, "", 7},
		"so does the first half of a list":      {[]part{{body: "false && true"}, {body: "echo b"}}, "", 1},
		"without -e, only the end counts":       {[]part{{body: "false; echo a"}, {body: "false\necho b"}}, "a\nb\n", 0},
		"with -e, each command counts":          {[]part{{body: "false\necho a", options: "-e"}, {body: "echo b"}}, "", 1},
		"without pipefail, a pipe's end counts": {[]part{{body: "false | cat\necho a", options: "-e"}, {body: "echo b"}}, "a\nb\n", 0},
		"with pipefail, all of a pipe counts":   {[]part{{body: "false | cat\necho a", options: "-eo pipefail"}, {body: "echo b"}}, "", 1},
		"what a part sets stays its own":        {[]part{{body: "cd /\nA=1", options: "-e"}, {body: "echo ${A:-no}"}}, "no\n", 0},
		"a here-document ends":                  {[]part{{body: "cat <<E\nx\nE"}, {body: "echo b # c"}}, "x\nb\n", 0},
		"what is in the background stays there": {[]part{{body: "sleep 0 &"}, {body: "echo b"}}, "b\n", 0},
		"alone, with its options":               {[]part{{body: "false\necho a", options: "-e"}}, "", 1},
		"alone, without":                        {[]part{{body: "false\necho a"}}, "a\n", 0},
		"a title is never a command":            {[]part{{title: "a\necho evil\u2028echo evil", body: "echo a"}}, "a\n", 0},
	} {
		cmd := exec.CommandContext(t.Context(), bash, "--norc", "-s")
		cmd.Stdin = strings.NewReader(script{c.parts}.render())
		out, err := cmd.Output()
		if cmd.ProcessState == nil {
			t.Fatal(err)
		}
		if string(out) != c.out || cmd.ProcessState.ExitCode() != c.code {
			t.Errorf("%s: %q and exit code %d, want %q and %d", name, out, cmd.ProcessState.ExitCode(), c.out, c.code)
		}
	}
}

func TestOnlyWhatInstallsPackagesGoesIntoTheBootstrap(t *testing.T) {
	t.Parallel()
	for body, want := range map[string]string{
		"apt-get install -y jq": "apt-get install -y jq",
		"sudo apt-get update && sudo -E apt-get install -y jq=1.6":   "apt-get update && apt-get install -y jq=1.6",
		"set -e\n# tools\nsudo apt-get update;\nnpm install -g pnpm": "set -e\n# tools\napt-get update;\nnpm install -g pnpm",
		"sudo apt-get install -y \\\n  jq \\\n  curl":                "apt-get install -y \\\n  jq \\\n  curl",
		"npm i --global @scope/tool@1.2":                             "npm i --global @scope/tool@1.2",
	} {
		if got, ok := installsOnly(body); !ok || got != want {
			t.Errorf("%q: %q, %v; want %q", body, got, ok, want)
		}
	}
	for _, body := range []string{"", "# nothing", "npm ci", "npm install", "sudo apt-get install -y ./x.deb", "apt-get install -y $(cat packages)", "apt-get update | tee log", "apt-get update || true",
		"apt-get update & true", "npm install -g .", "npm install -g /workspace/x", "apt-get install -y jq && make", "apt-get install -y jq > log", "apt-get install -y `cat x`", "cd x && apt-get update", "sudo -u node npm i -g x"} {
		if got, ok := installsOnly(body); ok {
			t.Errorf("%q is taken for the bootstrap, as %q", body, got)
		}
	}
}

func TestWordsAreQuotedForAShell(t *testing.T) {
	t.Parallel()
	for in, want := range map[string]string{"a": "a", "": "''", "a b": "'a b'", "it's": `'it'\''s'`, "$x": "'$x'", "a/b:c@1.2=3,4%+_-": "a/b:c@1.2=3,4%+_-", "~": "'~'", "é": "'é'"} {
		if got := quoted(in); got != want {
			t.Errorf("%q is quoted as %s, want %s", in, got, want)
		}
	}
}
