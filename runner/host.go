package runner

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"github.com/rs/zerolog"

	"github.com/claude-hub/claude-hub/runner/agent/embedded"
	"github.com/claude-hub/claude-hub/runner/sandbox"
	"github.com/claude-hub/claude-hub/runner/sandbox/oci"
)

// Probe says what this host can do for a Runner and, in sentences, what it lacks. It opens an engine of its own beside
// one that may be running, and takes it away again.
func Probe(ctx context.Context, cfg Config, log zerolog.Logger) (c sandbox.Capabilities, err error) {
	if cfg, err = cfg.withDefaults(); err != nil {
		return c, err
	}
	dir, err := os.MkdirTemp("", "claude-hub-doctor-")
	if err != nil {
		return c, err
	}
	defer os.RemoveAll(dir)
	r := Runner{cfg: cfg, log: log}
	r.cfg.RunDir = fmt.Sprintf("/run/claude-hub-doctor-%d", os.Getpid())
	engine, err := r.engineAt(dir)
	if err != nil {
		return c, err
	}
	c, err = engine.Probe(ctx)
	return c, errors.Join(err, engine.Teardown())
}

// Purge ends every Sandbox of the data folder and takes away all that a Runner made on this host: mounts, network,
// cgroups, and the Runner's part of the data folder with every Session's Workspace. It is refused while a Runner runs.
func Purge(ctx context.Context, data string, cfg Config, log zerolog.Logger) error {
	cfg, err := cfg.withDefaults()
	if err != nil {
		return err
	}
	dir := Folder(data)
	if _, err := os.Stat(dir); errors.Is(err, os.ErrNotExist) {
		return nil
	}
	lock, err := lockFolder(dir)
	if err != nil {
		return err
	}
	defer lock.Close()
	r := Runner{cfg: cfg, log: log}
	engine, err := r.engineAt(filepath.Join(dir, "engine"))
	if err != nil {
		return err
	}
	list, err := engine.List(ctx)
	if err != nil {
		return errors.Join(err, engine.Close())
	}
	for _, s := range list {
		if err := engine.Stop(ctx, s.ID, 0); err != nil {
			return errors.Join(err, engine.Close())
		}
	}
	if err := engine.Teardown(); err != nil {
		return err
	}
	return os.RemoveAll(dir)
}

// agentIn is what Sandboxes run as PID 1: the embedded agent, written to dir, or else this whole program.
func agentIn(dir string) ([]string, error) {
	path, err := embedded.File(dir)
	if err == nil && path == "" {
		path, err = os.Executable()
	}
	return []string{path, "agent"}, err
}

func (r *Runner) engineAt(dir string) (*oci.Engine, error) {
	c, err := r.engineConfig(dir)
	if err != nil {
		return nil, err
	}
	return oci.Open(c)
}
