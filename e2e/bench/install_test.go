package bench

import (
	"bytes"
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/claude-hub/claude-hub/envspec"
	"github.com/claude-hub/claude-hub/runner/agent"
	"github.com/claude-hub/claude-hub/runner/build"
	"github.com/claude-hub/claude-hub/runner/image/imagetest"
	"github.com/claude-hub/claude-hub/runner/sandbox"
	"github.com/claude-hub/claude-hub/store"
)

// application has some 37,000 files in its node_modules, as that of ADR 0006.
const application = `{"name":"bench","version":"1.0.0","private":true,"dependencies":{
"next":"15.5.6","react":"19.2.0","react-dom":"19.2.0","typescript":"5.9.3","eslint":"9.39.1","webpack":"5.102.1","vite":"7.2.2","jest":"30.2.0",
"@mui/material":"7.3.5","rxjs":"7.8.2","lodash":"4.17.21","date-fns":"4.1.0","effect":"3.19.3","@babel/preset-env":"7.28.5","prettier":"3.6.2"}}`

const (
	bunGuest    = "/opt/npm"
	sourceGuest = "/opt/source"
	bunInstall  = " install --frozen-lockfile --ignore-scripts --no-progress"
)

// install is "bun install" in a Sandbox, with a warm download cache: install_cold after "rm -rf node_modules", install_warm with
// everything in place. The peer is the same command on the host, on a disk like the Session's, with node_modules and the cache bound from
// folders of that disk.
func install(t *testing.T, b *bench) {
	h := b.host(t)
	ctx := context.Background()
	tools := imagetest.NPMTools(t)
	const bun = "node_modules/bun/bin/bun.exe"
	registry, err := exec.Command("npm", "config", "get", "registry").Output()
	h.check(err)
	env := []string{"BUN_CONFIG_REGISTRY=" + string(bytes.TrimSpace(registry)), "HOME=/root", "PATH=/usr/bin:/bin"}
	source := filepath.Join(h.dir, "source")
	h.check(os.MkdirAll(source, 0o755))
	h.check(os.WriteFile(filepath.Join(source, "package.json"), []byte(application), 0o644))
	fetch := exec.Command(filepath.Join(tools, bun), "install", "--ignore-scripts", "--no-progress")
	fetch.Dir, fetch.Env = source, append(os.Environ(), append(env, "BUN_INSTALL_CACHE_DIR="+filepath.Join(source, "cache"))...)
	if out, err := fetch.CombinedOutput(); err != nil {
		t.Fatalf("bun couldn't fill its download cache: %v\n%s", err, out)
	}

	ours := h.installInSandbox(ctx, tools, source, bunGuest+"/"+bun, env)
	peer := h.installOnHost(ctx, source, filepath.Join(tools, bun), env)
	cold := func(do func(string) time.Duration, remove string) func() float64 {
		return func() float64 {
			do(remove + "; sync")
			return ms(do("exec $bun" + bunInstall))
		}
	}
	warm := func(do func(string) time.Duration) func() float64 {
		return func() float64 { return ms(do("exec $bun" + bunInstall)) }
	}
	const onHost = "host, same folders bound"
	c, pc := b.inTurns(cold(ours, "rm -rf node_modules"), cold(peer, "find node_modules -mindepth 1 -delete"))
	record("install_cold", "ms", c, onHost, pc)
	w, pw := b.inTurns(warm(ours), warm(peer))
	record("install_warm", "ms", w, onHost, pw)
}

// installInSandbox gives what runs a line of shell in a Session's Workspace, and says how long it took.
func (h *host) installInSandbox(ctx context.Context, tools, source, bun string, env []string) func(line string) time.Duration {
	h.t.Helper()
	base := h.build(h.recipe(""))
	disk := h.installDisk(ctx, "install")
	m, err := h.engine.Mount(ctx, disk)
	h.check(err)
	workspace, _, err := build.PrepareFolders(m, false)
	h.check(err)
	h.check(os.MkdirAll(workspace, 0o755))
	for _, f := range []string{"package.json", "bun.lock"} {
		text, err := os.ReadFile(filepath.Join(source, f))
		h.check(err)
		h.check(os.WriteFile(filepath.Join(workspace, f), text, 0o644))
		h.check(os.Chown(filepath.Join(workspace, f), m.IDBase, m.IDBase))
	}
	h.check(os.Chown(workspace, m.IDBase, m.IDBase))
	spec := h.builder.SandboxSpec(base, "install", disk, sandbox.Limits{CPU: 2, Memory: 4 << 30, Pids: 4096}, envspec.Spec{})
	spec.Network.Off = true
	spec.Binds = append(spec.Binds, sandbox.Bind{Folder: tools, Guest: bunGuest, ReadOnly: true}, sandbox.Bind{Folder: source, Guest: sourceGuest, ReadOnly: true})
	s, err := h.engine.Start(ctx, "install", spec)
	h.check(err)
	h.t.Cleanup(func() {
		h.check(h.engine.Stop(ctx, "install", 0))
		h.check(h.engine.Remove(ctx, "install"))
	})
	c, _, err := build.Ready(ctx, s)
	h.check(err)
	got, err := c.Bind(ctx, build.DependencyFolders(envspec.Default(), base.Meta.Image, true))
	h.check(err)
	if len(got.Folders) != 1 || len(got.Problems) > 0 {
		h.t.Fatalf("bound %+v", got)
	}
	env = append(build.WithCaches(base.Meta.Image).Env, append(env, "bun="+bun)...)
	do := func(line string) time.Duration {
		h.t.Helper()
		var out bytes.Buffer
		began := time.Now()
		x, err := c.Run(ctx, agent.Cmd{ID: store.NewID(), Argv: []string{"sh", "-ec", line}, Dir: build.WorkspaceGuest, Env: env}, &out, nil)
		took := time.Since(began)
		if err != nil || x.Code != 0 {
			h.t.Fatalf("%s\n%+v, %v: %s", line, x, err, out.Bytes())
		}
		return took
	}
	do("mkdir -p $BUN_INSTALL_CACHE_DIR; cp -r " + sourceGuest + "/cache/. $BUN_INSTALL_CACHE_DIR; sync")
	do("exec $bun" + bunInstall)
	do(`[ $(find node_modules -type f | wc -l) -gt 30000 ]`)
	return do
}

// installOnHost is the same without a Sandbox.
func (h *host) installOnHost(ctx context.Context, source, bun string, env []string) func(line string) time.Duration {
	h.t.Helper()
	m, err := h.engine.Mount(ctx, h.installDisk(ctx, "install-host"))
	h.check(err)
	under := func(names ...string) string { return filepath.Join(append([]string{m.Folder}, names...)...) }
	workspace, cache := under("workspace"), under("bound")
	for _, f := range []string{under("workspace", "node_modules"), under("dependencies", "node_modules"), under("cache"), cache} {
		h.check(os.MkdirAll(f, 0o755))
	}
	for from, to := range map[string]string{under("dependencies", "node_modules"): filepath.Join(workspace, "node_modules"), under("cache"): cache} {
		h.check(unix.Mount(from, to, "", unix.MS_BIND, ""))
		h.t.Cleanup(func() { h.check(unix.Unmount(to, unix.MNT_DETACH)) })
	}
	env = append(env, "BUN_INSTALL_CACHE_DIR="+cache, "bun="+bun)
	do := func(line string) time.Duration {
		h.t.Helper()
		cmd := exec.Command("sh", "-ec", line)
		cmd.Dir, cmd.Env = workspace, env
		began := time.Now()
		out, err := cmd.CombinedOutput()
		took := time.Since(began)
		if err != nil {
			h.t.Fatalf("%s\n%v: %s", line, err, out)
		}
		return took
	}
	do("cp " + source + "/package.json " + source + "/bun.lock .; cp -r " + source + "/cache/. " + cache + "; sync")
	do("exec $bun" + bunInstall)
	return do
}

func (h *host) installDisk(ctx context.Context, name string) sandbox.Disk {
	disk := sandbox.Disk{Path: filepath.Join(h.dir, name), Size: 8 << 30}
	h.t.Cleanup(func() {
		h.check(h.engine.Unmount(ctx, disk))
		h.check(h.engine.DeleteDisk(ctx, disk))
	})
	return disk
}
