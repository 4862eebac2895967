package agent

import (
	"context"
	"net"
	"os"
	"slices"
	"strings"

	"github.com/claude-hub/claude-hub/runner/agent/stage"
)

// gvisorNATID is the ID of the script that gives containers in a gVisor Sandbox their way out.
const gvisorNATID = "claude-hub-docker-nat"

// gvisorTools is first in dockerd's PATH on gVisor, which knows iptables only in the way of before nftables: dockerd has each container's
// netns lead its questions for names to itself by them.
const gvisorTools = scriptsDir + "/legacy"

// gvisorDocker is how dockerd runs on gVisor: of iptables its kernel has enough for a way out, and not for what dockerd puts up by itself
// (facts/runtimes.md §4). Published ports go through docker-proxy.
var gvisorDocker = []string{"--iptables=false", "--ip6tables=false"}

// gvisorNAT has what containers send to the outside leave by the Sandbox's own address. It can be repeated.
const gvisorNAT = `mkdir -p "$2"
for t in iptables ip6tables; do
	l=$(command -v $t-legacy) && ln -sf "$l" "$2/$t"
done
t=$(command -v iptables-legacy) || t=iptables
for p in tcp udp; do
	"$t" -t nat -D POSTROUTING -o eth0 -p $p -j SNAT --to-source "$1" 2>/dev/null
	"$t" -t nat -A POSTROUTING -o eth0 -p $p -j SNAT --to-source "$1" || exit
done
`

// gvisorForward gives containers their way out of a gVisor Sandbox that has one itself.
func (a *agent) gvisorForward(ctx context.Context, env []string) error {
	address := addressOf("eth0")
	if address == "" {
		return nil
	}
	if err := os.WriteFile("/proc/sys/net/ipv4/ip_forward", []byte("1"), 0); err != nil {
		return fail(CodeDocker, "containers can't have a way out: %v", err)
	}
	a.endCommand(gvisorNATID)
	if _, err := a.start(Cmd{ID: gvisorNATID, Argv: []string{"sh", "-c", gvisorNAT, "sh", address, gvisorTools}, Env: env, Full: DropOldest, unwatched: true}); err != nil {
		return err
	}
	c := a.find(gvisorNATID)
	select {
	case <-c.ended:
	case <-ctx.Done():
		return fail(CodeDocker, "iptables did not end within %s: %s", dockerReady, c.lastWords())
	}
	if c.exit.Code != 0 {
		return fail(CodeDocker, "with gVisor the image needs iptables-legacy, by which containers have a way out (the package iptables in Debian and Ubuntu, "+
			"iptables-legacy in Alpine and Fedora): %s", c.lastWords())
	}
	a.endCommand(gvisorNATID)
	return nil
}

// gvisorPath is an environment whose PATH begins with gvisorTools.
func gvisorPath(env []string) []string {
	path := stage.DefaultPath
	for _, e := range env {
		if p, ok := strings.CutPrefix(e, "PATH="); ok {
			path = p
		}
	}
	return append(slices.Clone(env), "PATH="+gvisorTools+":"+path)
}

// addressOf is the IPv4 address of an interface, or empty.
func addressOf(name string) string {
	i, err := net.InterfaceByName(name)
	if err != nil {
		return ""
	}
	all, err := i.Addrs()
	if err != nil {
		return ""
	}
	for _, a := range all {
		if n, ok := a.(*net.IPNet); ok && n.IP.To4() != nil {
			return n.IP.String()
		}
	}
	return ""
}
