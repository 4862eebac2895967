package bench

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"github.com/claude-hub/claude-hub/envspec"
	"github.com/claude-hub/claude-hub/runner/build"
	"github.com/claude-hub/claude-hub/runner/sandbox"
)

const (
	bindFolders  = 3700 // with 10 files each
	bindPackages = 20
)

// bind is matching and binding the dependency folders of a Workspace of 37,000 files, in 3,700 folders, 20 of which are packages with
// a node_modules, at the boot of a wake. bind_first is the first boot after the clone, at which the 20 are made. bind_killed is a boot
// after the Sandbox was killed, on a disk that was mounted just now.
func bind(t *testing.T, b *bench) {
	h := b.host(t)
	base := h.build(h.recipe(""))
	ctx := context.Background()
	var first, later, killed []float64
	for n := range b.warmUps + b.runs {
		disk := sandbox.Disk{Path: filepath.Join(h.dir, fmt.Sprintf("bind-%d", n)), Size: 4 << 30}
		m, err := h.engine.Mount(ctx, disk)
		h.check(err)
		workspace, _, err := build.PrepareFolders(m, false)
		h.check(err)
		h.check(manySources(workspace, m.IDBase))
		once := func(cloned, sleep bool) float64 {
			id := sandbox.ID(fmt.Sprintf("bind-%d", n))
			s, err := h.engine.Start(ctx, id, h.builder.SandboxSpec(base, "bind", disk, sandbox.Limits{CPU: 2, Memory: 2 << 30, Pids: 4096}, envspec.Spec{}))
			h.check(err)
			c, _, err := build.Ready(ctx, s)
			h.check(err)
			began := time.Now()
			got, err := c.Bind(ctx, build.DependencyFolders(envspec.Default(), base.Meta.Image, cloned))
			took := time.Since(began)
			h.check(err)
			if len(got.Folders) != bindPackages || len(got.Problems) > 0 {
				t.Fatalf("bound %d folders of %d: %+v", len(got.Folders), bindPackages, got.Problems)
			}
			if sleep {
				h.check(c.Stop(ctx, time.Second))
			}
			h.check(h.engine.Stop(ctx, id, 0))
			h.check(h.engine.Unmount(ctx, disk))
			return ms(took)
		}
		f, l, k := once(true, true), once(false, false), once(false, true)
		h.check(h.engine.Remove(ctx, sandbox.ID(fmt.Sprintf("bind-%d", n))))
		h.check(h.engine.DeleteDisk(ctx, disk))
		if n >= b.warmUps {
			first, later, killed = append(first, f), append(later, l), append(killed, k)
		}
	}
	record("bind", "ms", later, "", nil)
	record("bind_first", "ms", first, "", nil)
	record("bind_killed", "ms", killed, "", nil)
}

// manySources writes a Workspace as a clone leaves it, for the Sandbox's root.
func manySources(workspace string, owner int) error {
	text := make([]byte, 4000)
	for i := range bindFolders {
		dir := filepath.Join(workspace, fmt.Sprintf("part-%d/sub-%d/folder-%d", i%bindPackages, i%100, i))
		if err := os.MkdirAll(dir, 0o755); err != nil {
			return err
		}
		for j := range 10 {
			if err := os.WriteFile(filepath.Join(dir, fmt.Sprintf("file-%d.ts", j)), text, 0o644); err != nil {
				return err
			}
		}
	}
	for i := range bindPackages {
		dir := filepath.Join(workspace, fmt.Sprintf("part-%d", i))
		if err := os.WriteFile(filepath.Join(dir, "package.json"), []byte("{}"), 0o644); err != nil {
			return err
		}
	}
	git := exec.Command("sh", "-c", "git init -q . && git add -A")
	git.Dir = workspace
	git.Env = append(os.Environ(), "GIT_CONFIG_GLOBAL=/dev/null", "GIT_CONFIG_NOSYSTEM=1")
	if out, err := git.CombinedOutput(); err != nil {
		return fmt.Errorf("git: %w: %s", err, out)
	}
	return os.Chown(workspace, owner, owner)
}
