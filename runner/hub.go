package runner

import (
	"context"
	"fmt"
	"runtime"

	"github.com/google/uuid"

	"github.com/claude-hub/claude-hub/runner/hubclient"
	"github.com/claude-hub/claude-hub/runner/session"
	"github.com/claude-hub/claude-hub/runner/wire"
)

// dial makes the connection to the Hub; nothing is sent before Run.
func (r *Runner) dial() {
	instance := uuid.NewString()
	r.client = hubclient.New(hubclient.Options{
		URL: r.identity.Hub, Token: r.identity.Token, Spool: r.spool, Log: r.log,
		Hello: func() *wire.HelloRequest { return r.hello(instance) },
	})
}

func (r *Runner) hello(instance string) *wire.HelloRequest {
	h := &wire.HelloRequest{
		Protocol: wire.Protocol, Version: r.version, Platform: "linux/" + runtime.GOARCH, CpuLimit: r.cfg.CPU,
		MemoryLimit: int64(r.cfg.Memory), Instance: instance,
	}
	caps, err := r.engine.Probe(context.Background())
	if err != nil {
		h.Missing = []string{fmt.Sprintf("the host could not be examined: %v", err)}
		return h
	}
	h.Engine, h.Missing = caps.Kind, caps.Missing
	h.Capabilities = append(h.Capabilities, wire.CanArchive, wire.CanRun)
	if caps.Nested {
		h.Capabilities = append(h.Capabilities, "docker")
	}
	if caps.Quota {
		h.Capabilities = append(h.Capabilities, "quota")
	}
	return h
}

// pipe is the Hub's side of a channel into a Session.
func (r *Runner) pipe(c *wire.Channel, fence int64, e session.Endpoint) session.Pipe {
	return r.client.Channel(c, fence, e)
}
