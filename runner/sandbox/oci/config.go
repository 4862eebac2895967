// Package oci is the default engine: runc, or gVisor's runsc, over overlayfs, on idmapped image
// layers, sized disks, delegated cgroups, and one nft table. Why each part is as it is stands in facts/sandbox.md and
// facts/runtimes.md; the sections are named where they matter.
package oci

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"strings"

	"github.com/rs/zerolog"
)

// Config is what an engine is opened with.
type Config struct {
	// Dir is the engine's data folder. It must survive a reboot. Only one engine at a time uses it.
	Dir string
	// RunDir is for what ends with the host's uptime; default /run/claude-hub. At most 40 bytes long: socket paths are
	// made of it. Engines with different Dirs on one host need different RunDirs.
	RunDir string
	// Runtime is the runtime's name or path, see CheckRuntime; default "runc". Sandboxes that another one booted go on until they
	// are stopped.
	Runtime string
	// Agent is what PID 1 of every Sandbox is: a static binary's path on the host, and its arguments.
	Agent []string
	// Pool is the IPv4 network whose addresses Sandboxes get, 4 for each; default 10.213.0.0/16.
	Pool netip.Prefix
	// Refused are networks no Sandbox reaches, beside the metadata addresses, which are always refused.
	Refused []netip.Prefix
	// DNS replaces the host's upstream name servers.
	DNS []netip.Addr
	// Connections is how many connections a Sandbox may have open to the outside; default 4096 (facts/sandbox.md §2.6).
	Connections int
	// LowWater is how many bytes must be free on the file systems of Dir and of a disk before new work is taken;
	// default 2 GiB, or 5 % of Dir's file system if that is less.
	LowWater int64
	Log      zerolog.Logger
}

const (
	defaultRunDir  = "/run/claude-hub"
	defaultRuntime = "runc"
	maxRunDir      = 40
)

func (c Config) withDefaults() (Config, error) {
	if c.RunDir == "" {
		c.RunDir = defaultRunDir
	}
	if c.Runtime == "" {
		c.Runtime = defaultRuntime
	}
	if !c.Pool.IsValid() {
		c.Pool = netip.MustParsePrefix("10.213.0.0/16")
	}
	if c.Connections == 0 {
		c.Connections = 4096
	}
	c.Pool = c.Pool.Masked()
	if err := CheckRuntime(c.Runtime); err != nil {
		return c, err
	}
	switch {
	case c.Dir == "" || !filepath.IsAbs(c.Dir):
		return c, fmt.Errorf("the engine's data folder must be an absolute path, not %q", c.Dir)
	case !filepath.IsAbs(c.RunDir) || len(c.RunDir) > maxRunDir:
		return c, fmt.Errorf("the engine's runtime folder must be an absolute path of at most %d bytes, not %q", maxRunDir, c.RunDir)
	case len(c.Agent) == 0 || !filepath.IsAbs(c.Agent[0]):
		return c, fmt.Errorf("the engine needs the agent's binary as an absolute path, not %q", c.Agent)
	case !c.Pool.Addr().Is4() || c.Pool.Bits() > 28 || c.Pool.Bits() < 8:
		return c, fmt.Errorf("the network for Sandboxes must be an IPv4 network of /8 to /28, not %s", c.Pool)
	case c.Connections < 1:
		return c, fmt.Errorf("the number of connections for a Sandbox must be above 0, not %d", c.Connections)
	}
	for _, p := range c.Refused {
		if !p.IsValid() || !p.Addr().Is4() {
			return c, fmt.Errorf("a refused network must be an IPv4 network, not %q (Sandboxes have no IPv6 to the outside)", p)
		}
	}
	if fi, err := os.Stat(c.Agent[0]); err != nil {
		return c, fmt.Errorf("the agent's binary can't be used: %w", err)
	} else if !fi.Mode().IsRegular() || fi.Mode()&0o001 == 0 {
		return c, fmt.Errorf("the agent's binary %s must be a file that everyone may execute (mode %s)", c.Agent[0], fi.Mode())
	}
	c.Dir = filepath.Clean(c.Dir)
	c.RunDir = filepath.Clean(c.RunDir)
	return c, nil
}

// CheckRuntime refuses a runtime that Sandboxes can't be booted with. It is known by its program's name, which begins with runc or
// runsc; whether the program is there, Probe says.
func CheckRuntime(runtime string) error {
	if name := filepath.Base(runtime); !strings.HasPrefix(name, defaultRuntime) && !isGVisor(name) {
		return fmt.Errorf("%q is no runtime that Sandboxes can be booted with: say runc, or runsc for gVisor, or the path of one of them", runtime)
	}
	if strings.Contains(runtime, "/") && !filepath.IsAbs(runtime) {
		return fmt.Errorf("the runtime is a name on PATH or an absolute path, not %q", runtime)
	}
	return nil
}

// tag tells the kernel objects of engines on one host apart: interfaces, the nft table, cgroups.
func (c Config) tag() string {
	h := sha256.Sum256([]byte(c.RunDir))
	return hex.EncodeToString(h[:2])
}
