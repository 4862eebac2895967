package cmd

import (
	"bytes"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/claude-hub/claude-hub/envspec"
)

// said is what a command line said, and its exit code.
type said struct {
	out, err string
	code     int
}

func say(t *testing.T, in string, args ...string) said {
	t.Helper()
	root := rootCommand()
	var out, errs bytes.Buffer
	root.SetIn(strings.NewReader(in))
	root.SetOut(&out)
	root.SetErr(&errs)
	root.SetArgs(args)
	err := root.ExecuteContext(t.Context())
	code := exitOK
	var exit exitError
	if errors.As(err, &exit) {
		code = exit.code
	} else if err != nil {
		code = exitCode(err)
		errs.WriteString(err.Error())
	}
	return said{out.String(), errs.String(), code}
}

func write(t *testing.T, path, text string) {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte(text), 0o640); err != nil {
		t.Fatal(err)
	}
}

func read(t *testing.T, path string) string {
	t.Helper()
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

func TestEnvSchemaPrintsWhatTheHubServes(t *testing.T) {
	t.Parallel()
	if got := say(t, "", "env", "schema"); got != (said{out: string(envspec.Schema())}) {
		t.Errorf("got %+v", got)
	}
}

func TestEnvFmtPrintsChecksAndRewrites(t *testing.T) {
	t.Parallel()
	const before, after = "cpu: 2 # two\nimage: 'node:22'\n", "image: node:22\ncpu: 2 # two\n"
	if got := say(t, before, "env", "fmt", "-"); got != (said{out: after}) {
		t.Errorf("from stdin: %+v", got)
	}
	dir := t.TempDir()
	file, link := filepath.Join(dir, "e.yml"), filepath.Join(dir, "link.yml")
	write(t, file, before)
	if err := os.Symlink("e.yml", link); err != nil {
		t.Fatal(err)
	}
	if got := say(t, "", "env", "fmt", "--check", file); got.code != exitFailed || got.out != "" || !strings.Contains(got.err, "claude-hub env fmt -w "+file) || read(t, file) != before {
		t.Errorf("--check of an unformatted file: %+v", got)
	}
	if got := say(t, "", "env", "fmt", "-w", link); got != (said{}) || read(t, file) != after {
		t.Errorf("-w: %+v, and the file is\n%s", got, read(t, file))
	}
	info, err := os.Lstat(link)
	mode, err2 := os.Stat(file)
	left, err3 := os.ReadDir(dir)
	if errors.Join(err, err2, err3) != nil || info.Mode()&os.ModeSymlink == 0 || mode.Mode().Perm() != 0o640 || len(left) != 2 {
		t.Errorf("the link is %v, the file %v, and there are %d files", info.Mode(), mode.Mode(), len(left))
	}
	if got := say(t, "", "env", "fmt", "--check", file); got != (said{}) {
		t.Errorf("--check of a formatted file: %+v", got)
	}
	if got := say(t, "", "env", "fmt", file); got != (said{out: after}) {
		t.Errorf("a formatted file: %+v", got)
	}
	if got := say(t, "imgae: x\n", "env", "fmt", "-"); got.code != exitFailed || got.out != "" || got.err != "stdin:1:1: imgae is no key of an Environment: did you mean image?\n" {
		t.Errorf("a wrong document: %+v", got)
	}
	for _, args := range [][]string{{"-w", "-"}, {"-w", "--check", file}, {filepath.Join(dir, "absent.yml")}} {
		if got := say(t, before, append([]string{"env", "fmt"}, args...)...); got.code != exitUsage {
			t.Errorf("%q: %+v", args, got)
		}
	}
}

func TestEnvValidateReadsScriptsToo(t *testing.T) {
	t.Parallel()
	if got := say(t, "image: a/b\n", "env", "validate", "-"); got != (said{out: "stdin is valid: image a/b\n"}) {
		t.Errorf("a right document: %+v", got)
	}
	wrong := "start: |\n  true &&\nbootstrap: \"a\\rb\"\n"
	want := "stdin:2:3: start is no right bash script: syntax error: unexpected end of file\n" +
		"stdin:3:12: warning: bootstrap has carriage returns in it, which shells take for part of a word: use LF line endings\n"
	if got := say(t, wrong, "env", "validate", "-"); got != (said{err: want, code: exitFailed}) {
		t.Errorf("a script that bash can't read: %+v", got)
	}
	if got := say(t, "imgae: x\nstart: echo )\n", "env", "validate", "-"); got.code != exitFailed || strings.Count(got.err, "\n") != 1 {
		t.Errorf("a document that can't be read: %+v", got)
	}
	if got := say(t, "image: a/b\r\n", "env", "validate", "-"); got.code != exitOK || !strings.Contains(got.err, "stdin:1:1: warning: line endings are CRLF") {
		t.Errorf("CRLF: %+v", got)
	}
	if got := say(t, wrong, "env", "validate", "-", "-o", "json"); got.code != exitFailed || !strings.Contains(got.out, `"valid": false`) || strings.Count(got.out, `"message"`) != 2 {
		t.Errorf("as JSON: %+v", got)
	}
}

func TestEnvValidateAnnotatesWorkflows(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "a,b:100%.yml")
	write(t, file, "start: |\n  true &&\nbootstrap: \"a\\rb\"\n")
	name := strings.NewReplacer("%", "%25", ",", "%2C", ":", "%3A").Replace(file)
	want := "::error file=" + name + ",line=2,col=3,title=Environment::start is no right bash script: syntax error: unexpected end of file\n" +
		"::warning file=" + name + ",line=3,col=12,title=Environment::bootstrap has carriage returns in it, which shells take for part of a word: use LF line endings\n"
	if got := say(t, "", "env", "validate", file, "-o", "github"); got != (said{out: want, code: exitFailed}) {
		t.Errorf("got %+v, want\n%s", got, want)
	}
	if got := annotation(envspec.Problem{File: "e.yml", Line: 1, Column: 1, Message: "100%\r\n::error::x"}); got != "::error file=e.yml,line=1,col=1,title=Environment::100%25%0D%0A::error::x" {
		t.Errorf("a message with line breaks: %s", got)
	}
}

func TestEnvValidateReadsScriptsOfTheRepositoryAndNothingOutside(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	repo := filepath.Join(dir, "repo")
	document := filepath.Join(repo, "sub", environmentFile)
	write(t, filepath.Join(repo, ".git"), "gitdir: x\n") // a worktree's is a file
	write(t, filepath.Join(repo, "scripts/setup.sh"), "true\nif true; then\n")
	write(t, filepath.Join(repo, "scripts/start.sh"), "true\r\n")
	write(t, filepath.Join(dir, "outside.sh"), "true\n")
	for link, to := range map[string]string{"out.sh": "../outside.sh", "absolute.sh": filepath.Join(dir, "outside.sh"), "in.sh": "scripts/start.sh"} {
		if err := os.Symlink(to, filepath.Join(repo, link)); err != nil {
			t.Fatal(err)
		}
	}
	for text, want := range map[string]string{
		"bootstrap: {file: scripts/setup.sh}\n": "scripts/setup.sh:2:1: bootstrap is no right bash script: ",
		"start: {file: scripts/start.sh}\n":     ":1:15: warning: start names the file \"scripts/start.sh\", whose line endings are CRLF",
		"start: {file: in.sh}\n":                "whose line endings are CRLF",
		"start: {file: out.sh}\n":               "start names the file \"out.sh\", which can't be read: path escapes from parent",
		"start: {file: absolute.sh}\n":          "can't be read: path escapes from parent",
		"start: {file: ../outside.sh}\n":        "a path has no .. in it",
		"start: {file: absent.sh}\n":            "start names the file \"absent.sh\", which is not in the repository: paths begin at its root",
		"start: {file: scripts}\n":              "can't be read: it is no file",
	} {
		write(t, document, text)
		got := say(t, "", "env", "validate", document)
		if !strings.Contains(got.err, want) || strings.Contains(got.err, dir+"/outside") || (got.code == exitOK) != strings.Contains(want, "CRLF") {
			t.Errorf("%q: %+v, want %q", text, got, want)
		}
	}
	alone := filepath.Join(dir, "alone.yml")
	write(t, alone, "start: {file: outside.sh}\n")
	if got := say(t, "", "env", "validate", alone); got.code != exitFailed || !strings.Contains(got.err, "a file can only be named in a document of a repository") {
		t.Errorf("a document in no repository: %+v", got)
	}
	beside := filepath.Join(dir, "plain", environmentFile)
	write(t, beside, "start: {file: s.sh}\n")
	write(t, filepath.Join(dir, "plain", "s.sh"), "true\n")
	if got := say(t, "", "env", "validate", beside); got.code != exitOK {
		t.Errorf("a folder without .git: %+v", got)
	}
	if got := say(t, "", "env", "fmt", beside); got != (said{out: "start: {file: s.sh}\n"}) {
		t.Errorf("fmt: %+v", got)
	}
}
