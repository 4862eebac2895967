package build

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/claude-hub/claude-hub/envspec"
	"github.com/claude-hub/claude-hub/runner/agent"
	"github.com/claude-hub/claude-hub/runner/image"
	"github.com/claude-hub/claude-hub/runner/login"
	"github.com/claude-hub/claude-hub/runner/redact"
)

// perBoot name a process or socket of the boot in which the probe ran. In a build's result they would point to what is gone.
var perBoot = []string{"SSH_AUTH_SOCK", "SSH_AGENT_PID", "GPG_AGENT_INFO", "DBUS_SESSION_BUS_ADDRESS"}

// probe asks a login shell what the bootstrap has made of the environment of the image's user (ADR 0009), for the build to
// keep. What the shell started is ended.
func (b *Builder) probe(ctx context.Context, j *Job, spec envspec.Spec, c *agent.Client, img image.Image) error {
	p := b.LoginProbe(c, img.Config, spec, j.Log.Set())
	p.Dir = "/"
	variable := p.Drop
	p.Drop = func(name string) bool { return variable(name) || slices.Contains(perBoot, name) }
	env, warning, err := p.Run(ctx)
	if err != nil {
		return cause(ctx, err)
	}
	if warning != "" {
		j.Log.Mark("bootstrap: %s", warning)
		j.Track.Note(j.Log.Text(warning))
	}
	j.Marks.Login = env
	if _, err := b.stopLeftovers(ctx, j.Log.Set(), c); err != nil {
		return cause(ctx, err)
	}
	return nil
}

// LoginProbe looks at what a login shell of the image's user ends with. No Variable is in its environment, none of that name is
// carried over, and nothing that holds a value which set knows.
func (b *Builder) LoginProbe(c *agent.Client, img image.Config, spec envspec.Spec, set *redact.Set) login.Probe {
	dropped := map[string]bool{}
	for _, v := range spec.Variables {
		dropped[v.Name] = true
	}
	for _, e := range b.cfg.Env { // the Runner's own are set beside it, as they are then
		n, _, _ := strings.Cut(e, "=")
		dropped[n] = true
	}
	return login.Probe{
		Client: c, ID: fmt.Sprintf("%s%d", login.IDPrefix, time.Now().UnixNano()), Env: b.Env(img, nil), Dir: WorkspaceGuest, User: img.User,
		Drop:  func(name string) bool { return dropped[name] },
		Holds: set.Holds,
	}
}
