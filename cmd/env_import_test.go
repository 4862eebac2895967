package cmd

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/claude-hub/claude-hub/envspec"
)

func TestEnvImportPrintsAProposalAndWhatIsLeft(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	write(t, filepath.Join(dir, ".devcontainer/devcontainer.json"), `{"image": "node:22", /* c */ "runArgs": ["--init\u001b[31m"], "postCreateCommand": "npm ci &&",}`)
	write(t, filepath.Join(dir, ".tool-versions"), "node 22.1.0\n")
	got := say(t, "", "env", "import", dir)
	if _, err := envspec.Parse("stdout", []byte(got.out), nil); err != nil || got.code != exitOK || !strings.Contains(got.out, "image: node:22\n") {
		t.Errorf("stdout is no right document: %v\n%+v", err, got)
	}
	for _, want := range []string{"runArgs[0] (--init?[31m): how a container is run", ".tool-versions: not used, since", ".tool-versions: tools.node (22.1.0)", "start is no right bash script: syntax error"} {
		if !strings.Contains(got.err, want) {
			t.Errorf("stderr doesn't say %q:\n%s", want, got.err)
		}
	}
	var all struct {
		Document string
		Spec     envspec.Spec
		Used     []struct{ Key string }
		Left     []struct{ Key string }
		Problems []struct{ Line int }
	}
	asJSON := say(t, "", "env", "import", dir, "-o", "json")
	if err := json.Unmarshal([]byte(asJSON.out), &all); err != nil || asJSON.err != "" || all.Document != got.out || all.Spec.Image != "node:22" || len(all.Used) != 2 || len(all.Left) != 3 || len(all.Problems) != 1 {
		t.Errorf("as JSON: %v\n%+v", err, asJSON)
	}
}

func TestEnvImportWritesOnceAndOnlyInside(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	file := filepath.Join(dir, environmentFile)
	write(t, filepath.Join(dir, ".gitpod.yml"), "image: gitpod/workspace-base\n")
	first := say(t, "", "env", "import", dir, "--write")
	if first.code != exitOK || read(t, file) != first.out || !strings.Contains(first.err, "wrote "+file) {
		t.Errorf("the first time: %+v", first)
	}
	write(t, file, "image: mine/mine\n")
	if got := say(t, "", "env", "import", dir, "--write"); got.code != exitFailed || !strings.Contains(got.err, "is there already") || read(t, file) != "image: mine/mine\n" {
		t.Errorf("over a file of mine: %+v", got)
	}
	linked, outside := t.TempDir(), t.TempDir()
	write(t, filepath.Join(linked, ".gitpod.yml"), "image: gitpod/workspace-base\n")
	if err := os.Symlink(outside, filepath.Join(linked, ".claude-hub")); err != nil {
		t.Fatal(err)
	}
	if got := say(t, "", "env", "import", linked, "--write"); got.code != exitFailed {
		t.Errorf("through a link that leads out: %+v", got)
	}
	if entries, err := os.ReadDir(outside); err != nil || len(entries) != 0 {
		t.Errorf("%d files were written outside, %v", len(entries), err)
	}
}

func TestEnvImportOfNothingFails(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	if got := say(t, "", "env", "import", dir); got.code != exitFailed || got.out != "" || !strings.Contains(got.err, "there is nothing to import here") {
		t.Errorf("an empty folder: %+v", got)
	}
	write(t, filepath.Join(dir, ".devcontainer.json"), "{")
	if got := say(t, "", "env", "import", dir); got.code != exitFailed || got.out != "" || !strings.Contains(got.err, ".devcontainer.json: it can't be read") {
		t.Errorf("a file that can't be read: %+v", got)
	}
	if got := say(t, "", "env", "import", filepath.Join(dir, "absent")); got.code != exitUsage {
		t.Errorf("no folder: %+v", got)
	}
	if got := say(t, "", "env", "import", dir, "--from", "x"); got.code != exitFailed {
		t.Errorf("--from a file that is not there: %+v", got)
	}
}
