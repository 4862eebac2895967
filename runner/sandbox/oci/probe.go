package oci

import (
	"context"
	"debug/buildinfo"
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"regexp"
	"strconv"
	"strings"

	"github.com/rs/zerolog"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/claude-hub/claude-hub/runner/sandbox"
)

// modules are what the host's kernel may have as modules (facts/sandbox.md §2.8): the Sandboxes' own, and those that
// containers nested in one need but can't load.
var modules = []string{"loop", "overlay", "veth", "nf_tables", "nft_ct", "nft_chain_nat", "nft_masq", "nft_connlimit", "nf_conntrack",
	"bridge", "br_netfilter", "nft_compat", "xt_conntrack", "xt_MASQUERADE", "xt_addrtype", "xt_nat", "iptable_nat", "iptable_filter"}

// Sysctls that count for root of every user namespace of the host together: with the kernel's own values one Sandbox
// uses them up for all (facts/sandbox.md §2.4).
var raised = map[string]int64{
	"/proc/sys/fs/inotify/max_user_instances": 65536,
	"/proc/sys/fs/inotify/max_user_watches":   1 << 20,
}

// prepareHost loads modules and sets sysctls. What can't be done shows in Probe, or in the step that needs it.
func prepareHost(log zerolog.Logger) {
	if _, err := exec.LookPath(tool("modprobe")); err == nil && exists("/lib/modules/"+kernelRelease()) {
		args := append([]string{"-a", "-q"}, modules...)
		if out, err := runTool(context.Background(), "modprobe", args...); err != nil {
			log.Debug().Err(err).Str("output", out).Msg("Some kernel modules were not loaded; they may be built in.")
		}
	}
	for file, want := range raised {
		if n, err := readNumber(file); err == nil && n < want {
			if err := os.WriteFile(file, []byte(strconv.FormatInt(want, 10)), 0); err != nil {
				log.Warn().Err(err).Msgf("%s could not be raised to %d: one Sandbox may starve the others.", file, want)
			}
		}
	}
	if n, err := readNumber("/proc/sys/net/ipv4/ip_forward"); err == nil && n == 0 {
		if err := os.WriteFile("/proc/sys/net/ipv4/ip_forward", []byte("1"), 0); err != nil {
			log.Warn().Err(err).Msg("net.ipv4.ip_forward could not be set: Sandboxes have no network.")
		}
	}
}

func readNumber(file string) (int64, error) {
	b, err := os.ReadFile(file)
	if err != nil {
		return 0, err
	}
	return strconv.ParseInt(strings.TrimSpace(string(b)), 10, 64)
}

func kernelRelease() string {
	var u unix.Utsname
	if err := unix.Uname(&u); err != nil {
		return ""
	}
	return unix.ByteSliceToString(u.Release[:])
}

// Probe is sandbox.Engine's.
func (e *Engine) Probe(ctx context.Context) (sandbox.Capabilities, error) {
	c := sandbox.Capabilities{Kind: "oci with runc", Nested: true}
	missing := func(format string, a ...any) { c.Missing = append(c.Missing, fmt.Sprintf(format, a...)) }

	if release := kernelRelease(); !versionAtLeast(release, 5, 19, 0) {
		missing("The kernel %s is too old: image layers can't be shared between Sandboxes before 5.19. Update the host.", release)
	} else if !versionAtLeast(release, 6, 1, 76) {
		missing("The kernel %s has known holes in nf_tables that a Sandbox can reach: 6.1.76 or newer is advised.", release)
	}
	for program, pkg := range map[string]string{"nft": "nftables", "mkfs.ext4": "e2fsprogs", "e2fsck": "e2fsprogs", "resize2fs": "e2fsprogs"} {
		if _, err := exec.LookPath(tool(program)); err != nil {
			missing("The program %s is missing: install the package %s.", program, pkg)
		}
	}
	if isGVisor(e.cfg.Runtime) {
		c.Kind = "oci with gVisor"
		e.probeGVisor(ctx, missing)
	} else if out, err := runTool(ctx, e.cfg.Runtime, "--version"); err != nil {
		missing("The runtime %s can't be run: install the package runc. (%v)", e.cfg.Runtime, err)
	} else if v, ok := strings.CutPrefix(strings.SplitN(out, "\n", 2)[0], "runc version "); ok && !versionAtLeast(v, 1, 2, 8) {
		missing("runc %s lacks fixes of 2025 (CVE-2025-31133, -52565, -52881), whose worst effects the user namespace of a Sandbox blocks: 1.2.8 or newer is advised.", v)
	}
	if exists("/proc/sys/kernel/unprivileged_bpf_disabled") {
		if n, err := readNumber("/proc/sys/kernel/unprivileged_bpf_disabled"); err == nil && n == 0 {
			missing("kernel.unprivileged_bpf_disabled is 0: set it to 1 (the Sandboxes' own filter refuses bpf as well).")
		}
	}
	if n, err := readNumber("/proc/sys/net/ipv4/ip_forward"); err == nil && n == 0 {
		missing("net.ipv4.ip_forward is 0 and could not be set: Sandboxes have no network.")
	}
	for file, want := range raised {
		if n, err := readNumber(file); err == nil && n < want {
			missing("%s is %d and should be at least %d: one Sandbox may starve the others.", strings.ReplaceAll(strings.TrimPrefix(file, "/proc/sys/"), "/", "."), n, want)
		}
	}
	e.probePids(ctx, missing)
	for _, chain := range foreignForwardDrops(e.firewall.table) {
		missing("The firewall chain %q drops forwarded packets: if Sandboxes have no network, accept there what comes in by %q and what goes back to it (Docker: iptables -I DOCKER-USER -i %s+ -j ACCEPT; iptables -I DOCKER-USER -o %s+ -m conntrack --ctstate ESTABLISHED,RELATED -j ACCEPT).",
			chain, e.firewall.prefix+"*", e.firewall.prefix, e.firewall.prefix)
	}
	e.probePool(missing)
	c.Quota = true // disks are images with a size
	return c, nil
}

// getGVisor is how to come by the build that is tried.
const getGVisor = "run `CGO_ENABLED=0 go install " + GVisorModule + "/runsc@" + GVisorVersion + "` (Go 1.26.3 or newer), or scripts/runsc of claude-hub's " +
	"source, which checks it as well, and name what came of it in runner.runtime"

func (e *Engine) probeGVisor(ctx context.Context, missing func(string, ...any)) {
	if _, err := runTool(ctx, e.cfg.Runtime, "--version"); err != nil {
		missing("The runtime %s can't be run: %s. (%v)", e.cfg.Runtime, getGVisor, err)
		return
	}
	info, err := buildinfo.ReadFile(tool(e.cfg.Runtime))
	if err != nil || info.Main.Path != GVisorModule || info.Main.Version != GVisorVersion {
		missing("The runtime %s is not the build of gVisor that Sandboxes are tried with: %s.", e.cfg.Runtime, getGVisor)
	}
}

func (e *Engine) probePids(ctx context.Context, missing func(string, ...any)) {
	most, err := readNumber("/proc/sys/kernel/pid_max")
	if err != nil {
		return
	}
	list, err := e.List(ctx)
	if err != nil {
		return
	}
	var sum int64
	for _, s := range list {
		if s.Running {
			sum += s.Spec.Limits.Pids
		}
	}
	if sum > most*9/10 {
		missing("The running Sandboxes may have %d processes together, and the host %d (kernel.pid_max): raise it, for instance to 4194304.", sum, most)
	}
}

func (e *Engine) probePool(missing func(string, ...any)) {
	addrs, err := netlink.AddrList(nil, netlink.FAMILY_V4)
	if err != nil {
		return
	}
	for _, a := range addrs {
		if link, err := netlink.LinkByIndex(a.LinkIndex); err == nil && strings.HasPrefix(link.Attrs().Name, boxPrefix) {
			continue
		}
		if ip, ok := netip.AddrFromSlice(a.IP.To4()); ok && e.cfg.Pool.Contains(ip) {
			missing("The host's own address %s lies in the network for Sandboxes, %s: configure another one.", a.IP, e.cfg.Pool)
		}
	}
}

var versionNumbers = regexp.MustCompile(`^(\d+)\.(\d+)(?:\.(\d+))?`)

func versionAtLeast(v string, want ...int) bool {
	m := versionNumbers.FindStringSubmatch(v)
	if m == nil {
		return true // can't be told
	}
	for i, w := range want {
		n, _ := strconv.Atoi(m[i+1])
		if n != w {
			return n > w
		}
	}
	return true
}
