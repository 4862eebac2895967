package bench

import (
	"context"
	"path/filepath"
	"testing"
	"time"

	"github.com/claude-hub/claude-hub/envspec"
	"github.com/claude-hub/claude-hub/runner/build"
	"github.com/claude-hub/claude-hub/runner/image/imagetest"
	"github.com/claude-hub/claude-hub/runner/sandbox"
)

// dockerUp is from asking for Docker to its first answer, at a boot on a Docker disk that has been used before.
func dockerUp(t *testing.T, b *bench) {
	h := b.host(t)
	img := imagetest.DebianDocker(t)
	ctx := context.Background()
	id := sandbox.ID("docker-up")
	base := build.Base{Base: sandbox.Base{Name: img.Digest, Layers: img.Layers}, Meta: build.Meta{Image: img.Config}}
	disk := sandbox.Disk{Path: filepath.Join(h.dir, "docker-up"), Size: 4 << 30}
	spec := h.builder.SandboxSpec(base, "docker", disk, sandbox.Limits{CPU: 2, Memory: 2 << 30, Pids: 4096}, envspec.Spec{Docker: true})
	var up []float64
	for n := range 1 + b.warmUps + b.runs {
		s, err := h.engine.Start(ctx, id, spec)
		h.check(err)
		c, _, err := build.Ready(ctx, s)
		h.check(err)
		began := time.Now()
		h.check(h.builder.DockerUp(ctx, c, img.Config))
		if n > b.warmUps {
			up = append(up, ms(time.Since(began)))
		}
		_, err = h.builder.DockerDown(ctx, id)
		h.check(err)
		h.check(h.engine.Stop(ctx, id, 0))
		h.check(h.engine.Unmount(ctx, disk))
	}
	h.check(h.engine.Remove(ctx, id))
	h.check(h.engine.DeleteDisk(ctx, disk))
	record("docker_up", "ms", up, "", nil)
}
