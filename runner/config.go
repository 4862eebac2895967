package runner

import (
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"net/http"
	"os"
	"runtime"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/claude-hub/claude-hub/envspec"
	"github.com/claude-hub/claude-hub/runner/claudecode"
	"github.com/claude-hub/claude-hub/runner/image"
	"github.com/claude-hub/claude-hub/runner/sandbox/oci"
)

// Config is the `runner:` part of config.yml.
type Config struct {
	// CPU, Memory and Pids are the most one Sandbox gets. What an Environment asks beyond is cut, and said. Defaults: all
	// CPUs, three quarters of the host's memory, 4096.
	CPU    float64      `yaml:"cpu"`
	Memory envspec.Size `yaml:"memory"`
	Pids   int64        `yaml:"pids"`
	// BuildDisk and SessionDisk are promised to a build's and a Session's Sandbox; space is taken as it is used.
	// Default 20GiB each.
	BuildDisk   envspec.Size `yaml:"build_disk"`
	SessionDisk envspec.Size `yaml:"session_disk"`
	// LowWater is the free space below which nothing new is started and no image is unpacked. Default: 2 GiB, or 5 % of the
	// file system if that is less.
	LowWater envspec.Size `yaml:"low_water"`
	// KeepBuilds is how many builds of each Environment are kept beside those in use. Default 3.
	KeepBuilds int `yaml:"keep_builds"`
	// BuildTimeout bounds a build inside a Session's start. Default 2h.
	BuildTimeout time.Duration `yaml:"build_timeout"`
	// Quiet is how long a script says nothing before its log says that it is still running. Default 3m.
	Quiet time.Duration `yaml:"quiet"`
	// Runtime is what boots Sandboxes: runc, or gVisor's runsc (docs/isolation.md), by a name on PATH or an absolute path. Default runc.
	Runtime string `yaml:"runtime"`
	// RunDir holds what lives as long as the host's boot. Default /run/claude-hub, with an ending of its own for another data
	// folder than the default one.
	RunDir string        `yaml:"run_dir"`
	Images ImagesConfig  `yaml:"images"`
	Net    NetworkConfig `yaml:"network"`
	// ClaudeCode is what Sandboxes get of Claude Code. Default: nothing.
	ClaudeCode ClaudeCodeConfig `yaml:"claude_code"`
	// Proxy is given to every process in a Sandbox, and to git on the host. Empty fields are not set.
	Proxy ProxyConfig `yaml:"proxy"`
	// CA is a file of certificates (PEM) that Sandboxes and the clone trust beside their own: it is bound into each
	// Sandbox and named by SSL_CERT_FILE, NODE_EXTRA_CA_CERTS and their like. It must hold the public ones as well.
	CA string `yaml:"ca"`
	// LocalRepos allows Repos with file:// URLs, as a Hub in dev mode has them on the same host.
	LocalRepos bool `yaml:"local_repos"`
	// CloneDepth is how many commits of each branch a Workspace is cloned with; 0: the whole history.
	CloneDepth int `yaml:"clone_depth"`

	// Agent is the argv of PID 1 of each Sandbox; its [0] is a static binary. Default: the embedded agent, or this binary, "agent".
	Agent []string `yaml:"-"`
}

// DefaultConfig is what holds where neither file nor environment says otherwise. Zero values are filled in from the host.
func DefaultConfig() Config {
	return Config{
		Pids: 4096, BuildDisk: 20 << 30, SessionDisk: 20 << 30, KeepBuilds: 3, BuildTimeout: 2 * time.Hour, Quiet: 3 * time.Minute,
	}
}

// ImagesConfig is how images are pulled.
type ImagesConfig struct {
	// Mirrors lists, for a registry ("docker.io"), the hosts to ask before it.
	Mirrors map[string][]string `yaml:"mirrors"`
	// PlainHTTP lists registries ("host:port") that may be asked without TLS.
	PlainHTTP []string `yaml:"plain_http"`
}

// ImageOptions is how this host's image store pulls.
func (c Config) ImageOptions() (image.Options, error) {
	o := image.Options{Mirrors: c.Images.Mirrors, PlainHTTP: c.Images.PlainHTTP, Reserve: int64(c.LowWater)}
	if c.CA == "" {
		return o, nil
	}
	b, err := os.ReadFile(c.CA)
	if err != nil {
		return o, fmt.Errorf("runner.ca: the certificates can't be read: %w", err)
	}
	pool := x509.NewCertPool()
	if !pool.AppendCertsFromPEM(b) {
		return o, fmt.Errorf("runner.ca: %s holds no certificates in PEM", c.CA)
	}
	t := http.DefaultTransport.(*http.Transport).Clone()
	t.TLSClientConfig = &tls.Config{RootCAs: pool}
	o.Transport = t
	return o, nil
}

// ClaudeCodeConfig names the Claude Code that is put into Sandboxes, as claude. Without a Version there is none.
type ClaudeCodeConfig struct {
	// Version belongs to the key of each build: another one makes new builds.
	Version string `yaml:"version"`
	// Folder holds linux-x64/claude, linux-x64-musl/claude and so on, unpacked, for a host that has no way to npm's registry. Without
	// it, what is needed is fetched by npm.
	Folder string `yaml:"folder"`
}

// NetworkConfig is the Sandboxes' network.
type NetworkConfig struct {
	// Pool is the net that Sandboxes' addresses are taken from. Default: the engine's.
	Pool string `yaml:"pool"`
	// Refuse lists nets that Sandboxes can't reach, beside the metadata address, the host and each other.
	Refuse []string `yaml:"refuse"`
	// DNS lists the servers Sandboxes ask. Default: the host's.
	DNS []string `yaml:"dns"`
}

// ProxyConfig is a proxy in the words of the usual variables.
type ProxyConfig struct {
	HTTP  string `yaml:"http"`
	HTTPS string `yaml:"https"`
	No    string `yaml:"no"`
}

func (c Config) withDefaults() (Config, error) {
	if c.CPU <= 0 {
		c.CPU = float64(runtime.NumCPU())
	}
	if c.Memory <= 0 {
		var info unix.Sysinfo_t
		if err := unix.Sysinfo(&info); err != nil {
			return c, err
		}
		c.Memory = envspec.Size(uint64(info.Totalram) * uint64(info.Unit) / 4 * 3)
	}
	d := DefaultConfig()
	if c.Pids <= 0 {
		c.Pids = d.Pids
	}
	if c.BuildDisk <= 0 {
		c.BuildDisk = d.BuildDisk
	}
	if c.SessionDisk <= 0 {
		c.SessionDisk = d.SessionDisk
	}
	if c.CloneDepth < 0 {
		return c, fmt.Errorf("runner.clone_depth is a number of commits, or 0 for the whole history, not %d", c.CloneDepth)
	}
	if c.Runtime != "" {
		if err := oci.CheckRuntime(c.Runtime); err != nil {
			return c, fmt.Errorf("runner.runtime: %w", err)
		}
	}
	if err := claudecode.Check(c.ClaudeCode.Version, c.ClaudeCode.Folder); err != nil {
		return c, err
	}
	if c.CA != "" {
		if _, err := os.Stat(c.CA); err != nil {
			return c, fmt.Errorf("runner.ca: the certificates can't be read: %w", err)
		}
	}
	return c, nil
}

// caGuest is where a Sandbox finds Config.CA; no dot, as for every guest path.
const caGuest = "/run/claude-hub-ca"

// sandboxEnv is what Config gives every process in a Sandbox; cloneEnv what it gives git on the host.
func (c Config) sandboxEnv() []string {
	env := c.proxyEnv()
	if c.CA != "" {
		for _, k := range []string{"SSL_CERT_FILE", "NODE_EXTRA_CA_CERTS", "REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE", "GIT_SSL_CAINFO",
			"PIP_CERT", "CARGO_HTTP_CAINFO"} {
			env = append(env, k+"="+caGuest)
		}
	}
	return env
}

func (c Config) cloneEnv() []string {
	env := c.proxyEnv()
	if c.CA != "" {
		env = append(env, "GIT_SSL_CAINFO="+c.CA)
	}
	return env
}

func (c Config) proxyEnv() []string {
	var env []string
	for _, v := range []struct{ name, value string }{{"http_proxy", c.Proxy.HTTP}, {"https_proxy", c.Proxy.HTTPS}, {"no_proxy", c.Proxy.No}} {
		if v.value != "" {
			env = append(env, v.name+"="+v.value, strings.ToUpper(v.name)+"="+v.value)
		}
	}
	return env
}
