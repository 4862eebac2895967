package runner

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/claude-hub/claude-hub/app/fleet"
	"github.com/claude-hub/claude-hub/envspec"
	"github.com/claude-hub/claude-hub/runner/build"
	"github.com/claude-hub/claude-hub/runner/wire"
)

// trap plants in a repository, in the folder where it runs, all that git runs programs for. Each writes its name to a file in a
// folder of the host, which a Sandbox has not, and to one in the Workspace of a Sandbox, which the host has not.
const trap = `set -e
run() { echo "echo $1 >>HOST/ran; echo $1 >>/workspace/.git/ran; cat >/dev/null 2>&1 </dev/null; true"; }
git config core.fsmonitor "$(run fsmonitor)"
git config core.sshCommand "$(run ssh)"
git config core.pager "$(run pager)"
git config core.editor "$(run editor)"
git config diff.external "$(run diff)"
git config filter.trap.clean "$(run clean); cat"
git config filter.trap.smudge "$(run smudge); cat"
git config filter.trap.required true
git config gc.auto 1
git config credential.helper "!$(run credential)"
echo '* filter=trap diff=trap' >.gitattributes
git config diff.trap.textconv "$(run textconv)"
mkdir -p .git/hooks
for h in post-checkout pre-commit post-commit post-index-change pre-auto-gc post-merge pre-push reference-transaction fsmonitor-watchman; do
	printf '#!/bin/sh\n%s\n' "$(run hook-$h)" >.git/hooks/$h
	chmod +x .git/hooks/$h
done
echo changed >>README
`

func TestTheHostRunsNothingThatASandboxPlantsForGit(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.start()
	host := t.TempDir()
	script := strings.ReplaceAll(trap, "HOST", host)
	spec := envspec.Spec{Image: w.gitImage(asCoder), Bootstrap: "echo 1 >/version"}
	recipe, key := w.version(spec)
	id := w.session(recipe, key, w.repo())
	w.untilState(id, wire.StateRunning)
	w.sh(id, script)

	// One whose .git leads to a repository of the host's that is as bad.
	evil := filepath.Join(host, "evil")
	control := fmt.Sprintf("git init -q %s && cd %s && echo x >README && git -c user.name=t -c user.email=t@t add README && %s", evil, evil, script)
	if out, err := exec.Command("sh", "-c", control).CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	linked := w.session(recipe, key, w.repo())
	w.untilState(linked, wire.StateRunning)
	w.sh(linked, "mv .git away; ln -s "+evil+"/.git .git; ln -s "+host+" node_modules; echo {} >package.json")
	if err := os.RemoveAll(filepath.Join(host, "ran")); err != nil {
		t.Fatal(err)
	}

	two := spec
	two.Bootstrap = "echo 2 >/version"
	for _, id := range []string{id, linked} {
		w.change(id, fleet.Run) // counts what is unsaved
		w.nap(id, nil)
		w.moveTo(id, two, 2)
		w.archive(id, wire.ArchiveDisks)
		w.restore(id, fleet.Run)
	}
	if ran := w.sh(id, "cat .git/ran"); !strings.Contains(ran, "fsmonitor") {
		t.Errorf("not even the Sandbox's own git ran what was planted: %q", ran)
	}
	w.change(id, fleet.Stop)
	w.untilState(id, wire.StateAsleep)
	ran := func() string { b, _ := os.ReadFile(filepath.Join(host, "ran")); return string(b) }
	if got := ran(); got != "" {
		t.Errorf("the host ran what was planted: %q", got)
	}

	// That these traps would have caught it: git of the host, where none must run.
	m, err := w.runner.engine.Mount(context.Background(), w.disk(id))
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command("git", "-c", "safe.directory=*", "status")
	cmd.Dir = filepath.Join(m.Folder, build.WorkspaceFolder)
	out, _ := cmd.CombinedOutput()
	if !strings.Contains(ran(), "fsmonitor") {
		t.Errorf("git of the host didn't step into the traps, so nothing was shown: %s", out)
	}
	for _, id := range []string{id, linked} {
		w.change(id, fleet.Remove)
		w.untilState(id, wire.StateRemoved)
	}
	if _, err := os.Stat(filepath.Join(evil, "README")); err != nil {
		t.Errorf("deleting a Session followed a link out of it: %v", err)
	}
}
