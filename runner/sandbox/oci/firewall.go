package oci

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os/exec"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/google/nftables"
	"golang.org/x/sys/unix"
)

// metadata are the addresses at which clouds hand out the host's credentials.
var metadata = []netip.Prefix{netip.MustParsePrefix("169.254.0.0/16"), netip.MustParsePrefix("100.100.100.200/32")}

// firewall is the engine's nft table (facts/sandbox.md §2.6). Its rules never change; a Sandbox is one element of the
// set boxes, and of dns if its DNS is answered on its gateway's address.
type firewall struct {
	table   string
	prefix  string // of this engine's interfaces
	pool    netip.Prefix
	refused []netip.Prefix
	conns   int

	mu     sync.Mutex
	leases map[string]lease // by interface
}

func newFirewall(c Config, tag string) *firewall {
	refused := append(slices.Clone(metadata), c.Refused...)
	return &firewall{table: "claude_hub_" + tag, prefix: boxPrefix + tag, pool: c.Pool, refused: refused, conns: c.Connections, leases: map[string]lease{}}
}

func (f *firewall) refuses(a netip.Addr) bool {
	return slices.ContainsFunc(f.refused, func(p netip.Prefix) bool { return p.Contains(a) })
}

// rules replace the table in one transaction, so that there is no moment without one.
func (f *firewall) rules() string {
	var boxes, dns, refused []string
	for _, l := range f.leases {
		boxes = append(boxes, fmt.Sprintf("%q . %s", l.Interface, l.guest()))
		if l.Forward {
			dns = append(dns, fmt.Sprintf("%q . %s", l.Interface, l.gateway()))
		}
	}
	for _, p := range f.refused {
		refused = append(refused, p.Masked().String())
	}
	elements := func(e []string) string {
		if len(e) == 0 {
			return ""
		}
		return "elements = { " + strings.Join(e, ", ") + " }"
	}
	return fmt.Sprintf(`
table inet %[1]s
delete table inet %[1]s
table inet %[1]s {
	set boxes { type ifname . ipv4_addr; %[5]s }
	set dns { type ifname . ipv4_addr; %[6]s }
	set conns { type ifname; size 65535; flags dynamic; }
	set refused { type ipv4_addr; flags interval; auto-merge; %[7]s }
	chain pre {
		type filter hook prerouting priority raw; policy accept;
		iifname "%[2]s*" meta nfproto ipv6 drop
		iifname "%[2]s*" iifname . ip saddr != @boxes drop
	}
	chain inp {
		type filter hook input priority -10; policy accept;
		iifname "%[2]s*" iifname . ip daddr @dns udp dport 53 accept
		iifname "%[2]s*" iifname . ip daddr @dns tcp dport 53 accept
		iifname "%[2]s*" drop
	}
	chain forw {
		type filter hook forward priority -10; policy accept;
		iifname "%[2]s*" oifname "%[3]s*" drop
		iifname "%[2]s*" ip daddr @refused drop
		iifname "%[2]s*" ct status dnat drop
		oifname "%[2]s*" ct state new drop
		iifname "%[2]s*" ct state new add @conns { iifname ct count over %[8]d } drop
	}
	chain post {
		type nat hook postrouting priority srcnat; policy accept;
		iifname "%[2]s*" ip saddr %[4]s masquerade
	}
}
`, f.table, f.prefix, boxPrefix, f.pool, elements(boxes), elements(dns), elements(refused), f.conns)
}

// install makes the table, or makes it anew with what this process knows. The caller holds mu or is alone.
func (f *firewall) install(ctx context.Context) error {
	cmd := exec.CommandContext(ctx, tool("nft"), "-f", "-")
	cmd.Stdin = strings.NewReader(f.rules())
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("the nft table that isolates Sandboxes can't be made (package nftables): %w: %s", err, strings.TrimSpace(string(out)))
	}
	return nil
}

func (f *firewall) remove() error {
	c, err := nftables.New()
	if err != nil {
		return err
	}
	c.DelTable(&nftables.Table{Name: f.table, Family: nftables.TableFamilyINet})
	if err := c.Flush(); err != nil && !errors.Is(err, unix.ENOENT) {
		return err
	}
	return nil
}

// admit lets a Sandbox's address through.
func (f *firewall) admit(l *lease) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.leases[l.Interface] = *l
	err := f.change(*l, (*nftables.Conn).SetAddElements)
	if err != nil {
		// The table was taken away, by a firewall service that flushes all there is.
		err = f.install(context.Background())
	}
	return err
}

func (f *firewall) dismiss(l *lease) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	delete(f.leases, l.Interface)
	if err := f.change(*l, (*nftables.Conn).SetDeleteElements); err != nil && !errors.Is(err, unix.ENOENT) {
		return fmt.Errorf("the address %s can't be taken out of the nft table: %w", l.guest(), err)
	}
	return nil
}

func (f *firewall) change(l lease, op func(*nftables.Conn, *nftables.Set, []nftables.SetElement) error) error {
	c, err := nftables.New()
	if err != nil {
		return err
	}
	t := &nftables.Table{Name: f.table, Family: nftables.TableFamilyINet}
	if err := op(c, &nftables.Set{Table: t, Name: "boxes"}, []nftables.SetElement{{Key: elementKey(l.Interface, l.guest())}}); err != nil {
		return err
	}
	if l.Forward {
		if err := op(c, &nftables.Set{Table: t, Name: "dns"}, []nftables.SetElement{{Key: elementKey(l.Interface, l.gateway())}}); err != nil {
			return err
		}
	}
	return c.Flush()
}

func elementKey(name string, a netip.Addr) []byte {
	key := make([]byte, unix.IFNAMSIZ, unix.IFNAMSIZ+4)
	copy(key, name)
	return append(key, a.AsSlice()...)
}

// there says whether the table still stands.
func (f *firewall) there() bool {
	c, err := nftables.New()
	if err != nil {
		return true // can't be told
	}
	t, err := c.ListTableOfFamily(f.table, nftables.TableFamilyINet)
	return err == nil && t != nil
}

// repair puts the table back if it is gone. That is looked at under the lock: a start may have put it back already, and
// doing that again would change the address translation under its first connection.
func (f *firewall) repair(ctx context.Context) (repaired bool, err error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.there() {
		return false, nil
	}
	return true, f.install(ctx)
}

// watch puts the table back when somebody flushes the host's rules. Until then Sandboxes have no address translation,
// but they reach the host: hence the short interval.
func (f *firewall) watch(ctx context.Context, onRepair func(error)) {
	tick := time.NewTicker(2 * time.Second)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		if repaired, err := f.repair(ctx); repaired {
			onRepair(err)
		}
	}
}

// foreignForwardDrops are chains of others that drop forwarded packets by default: an accept of ours doesn't bind them.
func foreignForwardDrops(own string) []string {
	c, err := nftables.New()
	if err != nil {
		return nil
	}
	chains, err := c.ListChains()
	if err != nil {
		return nil
	}
	var out []string
	for _, ch := range chains {
		if ch.Hooknum != nil && *ch.Hooknum == *nftables.ChainHookForward && ch.Policy != nil && *ch.Policy == nftables.ChainPolicyDrop &&
			ch.Table.Name != own && ch.Type == nftables.ChainTypeFilter {
			out = append(out, fmt.Sprintf("%s %s %s", familyName(ch.Table.Family), ch.Table.Name, ch.Name))
		}
	}
	return out
}

func familyName(f nftables.TableFamily) string {
	switch f {
	case nftables.TableFamilyIPv4:
		return "ip"
	case nftables.TableFamilyINet:
		return "inet"
	}
	return "ip6"
}
