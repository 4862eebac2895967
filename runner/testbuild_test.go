package runner

import (
	"context"
	"slices"
	"strings"
	"testing"

	"github.com/claude-hub/claude-hub/envspec"
	"github.com/claude-hub/claude-hub/runner/wire"
)

func phases(d wire.TestBuildDetail) string {
	var all []string
	for _, p := range d.Phases {
		all = append(all, p.Name+":"+p.State)
	}
	return strings.Join(all, " ")
}

func TestATestBuildWithoutAStartScriptSaysThatThereIsNone(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.start()
	id := w.test(envspec.Spec{Image: w.image("app:v1", nil)}, w.repo())
	state, d := w.outcome(id)
	log := w.wholeLog(id)
	if state != wire.StatePassed || phases(d) != "image:done bootstrap:skipped snapshot:done clone:done start:skipped" {
		t.Fatalf("%s, phases %s\n%s", state, phases(d), log)
	}
	if !strings.Contains(log, "==> start script: none") || strings.Contains(log, "starting in") {
		t.Errorf("the log says\n%s", log)
	}
}

func TestATestBuildGoesThroughAllPhasesAndLeavesItsSnapshotOnly(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.start()
	id := w.test(envspec.Spec{
		Image: w.image("app:v1", asCoder),
		Bootstrap: `echo "boot as $(id -un) in $(pwd) HOME=$HOME DF=$DEBIAN_FRONTEND CI=${CI-unset} LANG=$LANG"
ls -d /workspace 2>/dev/null && echo "the Workspace is here"
echo tool > /usr/local/tool
sleep 1000 & sleep 1001 &
read x || echo "stdin is empty"`,
		Start: `echo "start as $(id -un) in $(pwd): $(cat README) $(cat /usr/local/tool)"; touch written; ls -ln README`,
		CPU:   8,
	}, w.repo())
	state, d := w.outcome(id)
	log := w.wholeLog(id)
	if state != wire.StatePassed {
		t.Fatalf("%s: %+v\n%s", state, d.Failure, log)
	}
	if got := phases(d); got != "image:done bootstrap:done snapshot:done clone:done start:done" {
		t.Errorf("phases: %s", got)
	}
	for _, want := range []string{
		"boot as root in / HOME=/root DF=noninteractive CI=unset LANG=C.UTF-8\n", "stdin is empty\n",
		"start as coder in /workspace: hello tool\n", "2 background processes stopped: sleep (2)", "==> passed\n",
	} {
		if !strings.Contains(log, want) {
			t.Errorf("the log lacks %q:\n%s", want, log)
		}
	}
	if strings.Contains(log, "the Workspace is here") {
		t.Error("the bootstrap saw the Workspace")
	}
	if !slices.Contains(d.Notes, "asked 8 CPUs, runner r1 gives 2") {
		t.Errorf("notes: %q", d.Notes)
	}
	for _, p := range d.Phases {
		if p.Ended < p.Started || p.Started == 0 {
			t.Errorf("phase %s has no times: %+v", p.Name, p)
		}
		if (p.Name == wire.PhaseBootstrap || p.Name == wire.PhaseStart) && (p.ExitCode == nil || *p.ExitCode != 0) {
			t.Errorf("phase %s has no exit code", p.Name)
		}
	}
	if d.Commit == "" || d.ImageDigest == "" || d.BuildKey == "" {
		t.Errorf("detail: %+v", d)
	}
	w.nothingLeft(id)
	base, found, err := w.runner.builder.Find(context.Background(), d.BuildKey)
	if err != nil || !found || base.Meta.User.Name != "coder" || base.Meta.User.UID != 1000 {
		t.Errorf("build: %+v %v %v", base, found, err)
	}
}
