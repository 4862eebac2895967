package lint_test

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/claude-hub/claude-hub/envspec"
	"github.com/claude-hub/claude-hub/envspec/lint"
)

func check(t *testing.T, doc string) string {
	t.Helper()
	if _, err := exec.LookPath("bash"); err != nil {
		t.Fatal("these tests need bash: apt-get install bash")
	}
	s, err := envspec.Parse("e.yml", []byte(doc), nil)
	if err != nil {
		t.Fatal(err)
	}
	return lint.Check(t.Context(), "e.yml", []byte(doc), s).Error()
}

func TestSyntaxErrorsOfScriptsAreToldWithTheDocumentsLine(t *testing.T) {
	t.Parallel()
	for doc, want := range map[string]string{
		"image: a/b\nbootstrap: |\n  set -e\n  apt-get update &&\n":  "e.yml:4:3: bootstrap is no right bash script: syntax error: unexpected end of file",
		"image: a/b\nstart: | # why\n\n  true\n    echo )\n  true\n": "e.yml:5:5: start is no right bash script: syntax error near unexpected token `)'",
		"# é\nstart: |\n  echo 'a\n  b\n":                            "e.yml:3:3: start is no right bash script: unexpected EOF while looking for matching `''",
		"start: !!str # tagged\n  |\n  true\n  if true; then\n":      "e.yml:4:3: start is no right bash script: syntax error: unexpected end of file",
		"start: echo \"\n":                               "e.yml:1:8: start is no right bash script: unexpected EOF while looking for matching `\"'",
		"cpu: 1\nstart: \"true\\necho )\\n\"\n":          "e.yml:2:8: start is no right bash script: syntax error near unexpected token `)' (line 2 of the script)",
		"start: >\n  true\n\n  echo )\n":                 "e.yml:1:8: start is no right bash script: syntax error near unexpected token `)' (line 2 of the script)",
		"start: |\n  #!/usr/bin/env -S bash -eu\n  fi\n": "e.yml:3:3: start is no right bash script: syntax error near unexpected token `fi'",
		"start: |\n  cat <<EOF\n  x\n":                   "e.yml:3:3: warning: start may not be what is meant: here-document at line 1 delimited by end-of-file (wanted `EOF')",
		"bootstrap: |\n  (\nstart: |\n  )\n":             "e.yml:2:3: bootstrap is no right bash script: syntax error: unexpected end of file\ne.yml:4:3: start is no right bash script: syntax error near unexpected token `)'",
		"\ufeffstart: |\r\n  echo )\r\n":                 "e.yml:1:1: warning: line endings are CRLF: scripts are run with LF all the same, but save the file with LF (claude-hub env fmt -w does)\ne.yml:2:3: start is no right bash script: syntax error near unexpected token `)'",
		"start: \"\\e[31m ( x )\"\n":                     "e.yml:1:8: start is no right bash script: syntax error near unexpected token `x'",
	} {
		if got := check(t, doc); got != want {
			t.Errorf("%q\ngot  %s\nwant %s", doc, got, want)
		}
	}
}

func TestRightScriptsAndThoseOfOtherInterpretersHaveNoProblem(t *testing.T) {
	t.Parallel()
	for _, doc := range []string{
		"", "image: a/b\n", "start: \"\"\n", "start: npm ci\n",
		"start: |\n  shopt -s extglob\n  ls !(a|b)\n",
		"start: |\n  #!/usr/bin/env python3\n  print(\"if\") or (\"\"\"\n  )\"\"\")\n",
		"start: |\n  #!/bin/sh\n  fi\n",
		"start: |\n  #!/usr/bin/env A=b fish\n  end\n",
		"start: |\n  diff <(true) <(false) || [[ a == b ]]\n  cat <<'EOF'\n  )\n  EOF\n",
		"bootstrap: |\n  " + strings.Repeat("echo '", 2) + "\n" + strings.Repeat("  # )\n", 20_000),
	} {
		if got := check(t, doc); got != "" {
			t.Errorf("%.200q: %s", doc, got)
		}
	}
}

func TestNothingOfAScriptIsRunNorOfTheCallersEnvironment(t *testing.T) {
	ran := filepath.Join(t.TempDir(), "ran")
	startup := filepath.Join(t.TempDir(), "startup")
	if err := os.WriteFile(startup, []byte("touch "+ran+"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	t.Setenv("BASH_ENV", startup)
	t.Setenv("ENV", startup)
	t.Setenv("SHELLOPTS", "verbose")
	if got := check(t, "start: |\n  touch "+ran+"\n  $(touch "+ran+")\n  trap 'touch "+ran+"' EXIT\n"); got != "" {
		t.Error(got)
	}
	if _, err := os.Stat(ran); !os.IsNotExist(err) {
		t.Errorf("something was run: %v", err)
	}
}

func TestWithoutBashScriptsAreNotLookedAt(t *testing.T) {
	t.Setenv("PATH", t.TempDir())
	doc := []byte("start: echo )\n")
	s, err := envspec.Parse("e.yml", doc, nil)
	if err != nil {
		t.Fatal(err)
	}
	if p := lint.Check(t.Context(), "e.yml", doc, s); len(p) != 0 {
		t.Error(p)
	}
}

func TestAScriptInAFileIsToldOfThere(t *testing.T) {
	t.Parallel()
	doc := []byte("bootstrap: {file: scripts/setup.sh}\n")
	s, err := envspec.Parse("e.yml", doc, func(string) ([]byte, error) { return []byte("true\nif true; then\n"), nil })
	if err != nil {
		t.Fatal(err)
	}
	p := lint.Check(t.Context(), "e.yml", doc, s)
	if len(p) != 1 || !strings.HasPrefix(p[0].String(), "scripts/setup.sh:2:1: bootstrap is no right bash script: ") {
		t.Errorf("got %v", p)
	}
}
