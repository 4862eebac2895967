package build

import (
	"context"
	_ "embed"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/claude-hub/claude-hub/envspec"
	"github.com/claude-hub/claude-hub/runner/agent"
	"github.com/claude-hub/claude-hub/runner/image"
	"github.com/claude-hub/claude-hub/runner/sandbox"
	"github.com/claude-hub/claude-hub/runner/wire"
)

// Docker in Sandboxes (ADR 0006, 0009). With an Environment's toggle on, the build's root filesystem gets Docker before the
// bootstrap, and every Sandbox has a dockerd of its own, whose data is a folder of the disk beside the root filesystem: the Docker disk.
const (
	dockerFolder = "docker"
	dockerGuest  = "/var/lib/docker"
	// installDockerID is the id of the installation at its agent.
	installDockerID = "docker-install"
	// dockerPatience bounds the end of containers, whatever grace time they have.
	dockerPatience = 10 * time.Minute
)

// CodeDocker is the code of a Failure because Docker can't be had in the image, or doesn't run.
const CodeDocker = "docker"

// noInstaller is the exit code of installDocker where it knows none of the image's package managers.
const noInstaller = 65

//go:embed docker.sh
var installDocker string

// withDocker makes a Spec one in which Docker runs.
func withDocker(s sandbox.Spec, on bool) sandbox.Spec {
	if on {
		s.Nested = true
		s.Binds = append(slices.Clone(s.Binds), sandbox.Bind{Folder: dockerFolder, Guest: dockerGuest})
	}
	return s
}

// PrepareDocker makes the Docker disk of a mounted disk ready, which no Sandbox uses now. had says that there was one: if it is lost or damaged
// it is made anew at the boot, and that comes back as a sentence.
func PrepareDocker(m sandbox.Mounted, had bool) (lost string, err error) {
	path := filepath.Join(m.Folder, dockerFolder)
	switch err := readable(path); {
	case err == nil:
		return "", nil
	case errors.Is(err, os.ErrNotExist):
		if had {
			return "the Docker disk, with all images and volumes, was lost, and is made anew", nil
		}
		return "", nil
	default:
		if rerr := os.Rename(path, fmt.Sprintf("%s-damaged-%d", path, time.Now().UnixNano())); rerr != nil {
			return "", errors.Join(err, rerr)
		}
		return "the Docker disk, with all images and volumes, was damaged, and is made anew", nil
	}
}

// docker puts Docker into the build's root filesystem and starts it, as a phase of its own. It may be repeated.
func (b *Builder) docker(ctx context.Context, j *Job, s sandbox.Sandbox, c *agent.Client, img image.Image, limits sandbox.Limits) error {
	if j.Track.Phase(wire.PhaseDocker).State == wire.PhaseDone {
		return b.DockerUp(ctx, c, img.Config)
	}
	j.Track.Begin(wire.PhaseDocker)
	env := b.Env(img.Config, nil, "DEBIAN_FRONTEND=noninteractive", "HOME=/root", "CLAUDE_HUB_USER="+img.Config.User)
	exit, err := b.RunScript(ctx, s, j.Log, wire.PhaseDocker, j.Marks.Boot, Script(installDockerID, "install-docker", installDocker, env, "/", "0"))
	if err != nil {
		return cause(ctx, err)
	}
	if f := ExitFailure(wire.PhaseDocker, exit, limits.Memory, j.Log.Tail()); f != nil {
		if exit.Code == noInstaller {
			f.Code = CodeDocker
			f.Message = "Docker can't be installed in this image: it has none of apt-get, apk and dnf. Choose an image of Debian, Ubuntu, Alpine or Fedora, " +
				"or one that has Docker (dockerd and docker), or turn Docker off"
		}
		j.Track.Fail(wire.PhaseDocker, "", &exit.Code)
		return f
	}
	if err := b.DockerUp(ctx, c, img.Config); err != nil {
		return err
	}
	j.Log.Mark("docker: installed and started in %s", took(j.Track.Since(wire.PhaseDocker)))
	j.Track.End(wire.PhaseDocker, "", &exit.Code)
	return nil
}

// DockerUp starts the dockerd of a Sandbox unless it runs, and returns when it is healthy. Its error is a *Failed with CodeDocker, or why ctx ended.
func (b *Builder) DockerUp(ctx context.Context, c *agent.Client, img image.Config) error {
	err := c.DockerUp(ctx, agent.Docker{User: img.User, Env: b.Env(img, nil)})
	var said *agent.Error
	switch {
	case ctx.Err() != nil:
		return cause(ctx, ctx.Err())
	case errors.As(err, &said):
		return &Failed{wire.Failure{Code: CodeDocker, Message: "Docker doesn't run: " + said.Message}}
	}
	return err
}

// DockerDown has the dockerd of a Sandbox, if it runs, stop its containers with their grace time, and end. It may be called for any Sandbox, up
// or not, and must be before one with containers is stopped: they would be killed, and databases would have to recover (ADR 0006).
func (b *Builder) DockerDown(ctx context.Context, id sandbox.ID) (agent.DockerLeft, error) {
	s, err := b.engine.Open(ctx, id)
	if errors.Is(err, sandbox.ErrNotFound) || errors.Is(err, sandbox.ErrNotRunning) {
		return agent.DockerLeft{}, nil
	}
	if err != nil {
		return agent.DockerLeft{}, err
	}
	return Dial(s).DockerDown(ctx, dockerPatience)
}

// dropImages stops the build's Docker, and says which of its images Sessions won't have: the Docker disk is mounted over them.
func (b *Builder) dropImages(ctx context.Context, j *Job, c *agent.Client) error {
	left, err := c.DockerDown(ctx, dockerPatience)
	if err != nil {
		return cause(ctx, err)
	}
	if len(left.Containers) > 0 {
		j.Log.Mark("bootstrap: %s stopped: %s", count(len(left.Containers), "container", "containers"), inWords(left.Containers))
	}
	if len(left.Images) > 0 {
		s := fmt.Sprintf("%s of the bootstrap dropped, since each Session has a Docker disk of its own: %s. Pull or build them in the start script",
			count(len(left.Images), "Docker image", "Docker images"), inWords(left.Images))
		j.Log.Mark("bootstrap: %s", s)
		j.Track.Note(j.Log.Text(s))
	}
	return nil
}

func count(n int, one, more string) string {
	if n == 1 {
		return "1 " + one
	}
	return fmt.Sprintf("%d %s", n, more)
}

// besideDocker leaves out what is of Docker itself.
func besideDocker(spec envspec.Spec, procs []agent.Process) []agent.Process {
	if !spec.Docker {
		return procs
	}
	return slices.DeleteFunc(slices.Clone(procs), func(p agent.Process) bool {
		name := filepath.Base(p.Argv[0])
		return name == "dockerd" || name == "docker-proxy" || name == "containerd" || strings.HasPrefix(name, "containerd-shim")
	})
}
