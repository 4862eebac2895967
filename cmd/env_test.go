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
