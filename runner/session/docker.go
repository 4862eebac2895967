package session

import (
	"context"
	"errors"
	"strings"
	"time"

	"github.com/claude-hub/claude-hub/runner/agent"
	"github.com/claude-hub/claude-hub/runner/build"
)

// dockerUp starts Docker on the Session's Docker disk. That it doesn't run is said and stops nothing: the Session is there for repair.
// The only error is that ctx ended.
func (m *Machine) dockerUp(ctx context.Context, c *agent.Client, base build.Base) error {
	began := time.Now()
	err := m.b.DockerUp(ctx, c, base.Meta.Image)
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	if err != nil {
		m.log().Mark("boot: %v", err)
		m.track.Note(m.log().Text(err.Error()))
		return nil
	}
	m.log().Mark("boot: Docker is up after %d ms", max(1, time.Since(began).Milliseconds()))
	return nil
}

// dockerDown has the containers of the Session's Sandbox, whichever boot of it runs, end within their grace time before it is stopped. It may
// take as long as they do.
func (m *Machine) dockerDown(ctx context.Context) {
	left, err := m.b.DockerDown(ctx, m.boxID())
	var said *agent.Error
	switch {
	case err == nil, ctx.Err() != nil:
	case errors.As(err, &said):
		m.log().Mark("Docker could not be stopped: %v", err)
	default: // an agent that doesn't answer has nothing to stop by
	}
	if len(left.Containers) > 0 {
		m.log().Mark("containers stopped: %s", strings.Join(left.Containers, ", "))
	}
	if left.Killed {
		m.log().Mark("Docker did not end in time and was killed with its containers")
	}
}
