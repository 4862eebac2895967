package oci

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"strings"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"

	"github.com/claude-hub/claude-hub/runner/sandbox"
)

// claimsDir is where engines of one host claim addresses; one file for each block of four, naming its Sandbox's bundle.
const claimsDir = "/run/claude-hub-addresses"

// boxPrefix begins the host's interface of every Sandbox of every engine. 15 characters are all a name can have.
const boxPrefix = "chv"

const guestInterface = "eth0"

// lease is a Sandbox's place in the network: a veth pair with a /30 of its own.
type lease struct {
	Interface string     `json:"interface"` // the host's end
	Block     netip.Addr `json:"block"`
	Forward   bool       `json:"forward"` // DNS is answered on the gateway's address by this engine
}

func (l lease) gateway() netip.Addr { return addOffset(l.Block, 1) }
func (l lease) guest() netip.Addr   { return addOffset(l.Block, 2) }

func addOffset(a netip.Addr, n uint32) netip.Addr {
	b := a.As4()
	binary.BigEndian.PutUint32(b[:], binary.BigEndian.Uint32(b[:])+n)
	return netip.AddrFrom4(b)
}

// takeLease claims a free block. Claims are by file, since two engines on one host may have the same pool; the claim of
// a Sandbox that is gone is taken over.
func (e *Engine) takeLease(id sandbox.ID) (*lease, error) {
	blocks := uint32(1) << (30 - e.cfg.Pool.Bits())
	e.leaseMu.Lock()
	defer e.leaseMu.Unlock()
	if err := os.MkdirAll(claimsDir, 0o755); err != nil {
		return nil, err
	}
	taken, err := hostNetworks()
	if err != nil {
		return nil, err
	}
	for i := range blocks {
		n := (e.nextLease + i) % blocks
		if n == 0 {
			continue
		}
		l := &lease{Interface: fmt.Sprintf("%s%s%x", boxPrefix, e.tag, n), Block: addOffset(e.cfg.Pool.Addr(), n*4)}
		if overlaps(taken, netip.PrefixFrom(l.Block, 30)) {
			continue
		}
		ok, err := claim(filepath.Join(claimsDir, l.Block.String()), e.bundleDir(id))
		if err != nil {
			return nil, err
		}
		if ok {
			e.nextLease = n + 1
			return l, nil
		}
	}
	return nil, fmt.Errorf("all addresses of %s are taken by Sandboxes or by the host's own networks: configure a larger or another network for Sandboxes", e.cfg.Pool)
}

func claim(file, owner string) (bool, error) {
	for range 2 {
		f, err := os.OpenFile(file, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
		if err == nil {
			_, err = f.WriteString(owner)
			return err == nil, errors.Join(err, f.Close())
		}
		if !errors.Is(err, os.ErrExist) {
			return false, err
		}
		other, err := os.ReadFile(file)
		if err != nil || strings.TrimSpace(string(other)) == "" || exists(string(other)) {
			return false, nil
		}
		if err := os.Remove(file); err != nil && !errors.Is(err, os.ErrNotExist) {
			return false, err
		}
	}
	return false, nil
}

// hostNetworks are the host's own addresses with their networks.
func hostNetworks() ([]netip.Prefix, error) {
	addrs, err := netlink.AddrList(nil, netlink.FAMILY_V4)
	if err != nil {
		return nil, fmt.Errorf("the host's addresses can't be read: %w", err)
	}
	var out []netip.Prefix
	for _, a := range addrs {
		if ip, ok := netip.AddrFromSlice(a.IP.To4()); ok {
			ones, _ := a.Mask.Size()
			out = append(out, netip.PrefixFrom(ip, ones))
		}
	}
	return out, nil
}

func overlaps(list []netip.Prefix, p netip.Prefix) bool {
	for _, q := range list {
		if q.Overlaps(p) {
			return true
		}
	}
	return false
}

// attach gives a network namespace its interface. The table's element comes before the link is up: an
// interface without one can send nothing.
func (e *Engine) attach(ns netns.NsHandle, l *lease) error {
	if err := e.firewall.admit(l); err != nil {
		return err
	}
	mtu := hostMTU()
	veth := &netlink.Veth{
		LinkAttrs:     netlink.LinkAttrs{Name: l.Interface, MTU: mtu},
		PeerName:      guestInterface,
		PeerMTU:       uint32(mtu),
		PeerNamespace: netlink.NsFd(int(ns)),
	}
	if err := netlink.LinkAdd(veth); err != nil {
		return fmt.Errorf("the Sandbox's network interface %s can't be made: %w", l.Interface, err)
	}
	// Best effort: the table drops IPv6 of Sandboxes anyway.
	_ = os.WriteFile("/proc/sys/net/ipv6/conf/"+l.Interface+"/disable_ipv6", []byte("1"), 0)
	host, err := netlink.LinkByName(l.Interface)
	if err != nil {
		return err
	}
	if err := netlink.AddrAdd(host, ipv4(l.gateway(), 30)); err != nil {
		return fmt.Errorf("the address %s can't be given to %s: %w", l.gateway(), l.Interface, err)
	}
	if err := netlink.LinkSetUp(host); err != nil {
		return err
	}
	in, err := netlink.NewHandleAt(ns, unix.NETLINK_ROUTE)
	if err != nil {
		return err
	}
	defer in.Close()
	guest, err := in.LinkByName(guestInterface)
	if err != nil {
		return err
	}
	if err := errors.Join(in.AddrAdd(guest, ipv4(l.guest(), 30)), in.LinkSetUp(guest)); err != nil {
		return fmt.Errorf("the address %s can't be given to the Sandbox: %w", l.guest(), err)
	}
	if err := in.RouteAdd(&netlink.Route{LinkIndex: guest.Attrs().Index, Gw: net.IP(l.gateway().AsSlice())}); err != nil {
		return fmt.Errorf("the Sandbox's route can't be set: %w", err)
	}
	return nil
}

func ipv4(a netip.Addr, bits int) *netlink.Addr {
	return &netlink.Addr{IPNet: &net.IPNet{IP: net.IP(a.AsSlice()), Mask: net.CIDRMask(bits, 32)}}
}

// detach gives a lease back. The interface has usually gone with the namespace of its other end.
func (e *Engine) detach(l *lease) error {
	e.dns.stop(l)
	if link, err := netlink.LinkByName(l.Interface); err == nil {
		if err := netlink.LinkDel(link); err != nil && !errors.Is(err, unix.ENODEV) && !errors.Is(err, unix.EINVAL) {
			return fmt.Errorf("the network interface %s can't be removed: %w", l.Interface, err)
		}
	}
	if err := e.firewall.dismiss(l); err != nil {
		return err
	}
	if err := os.Remove(filepath.Join(claimsDir, l.Block.String())); err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	return nil
}

// hostMTU is that of the interface of the host's default route: packets larger than it would need fragments or ICMP
// that some networks lose.
func hostMTU() int {
	const usual = 1500
	routes, err := netlink.RouteGet(net.IPv4(192, 0, 2, 255))
	if err != nil || len(routes) == 0 {
		return usual
	}
	link, err := netlink.LinkByIndex(routes[0].LinkIndex)
	if err != nil || link.Attrs().MTU < 576 || link.Attrs().MTU > 9000 {
		return usual
	}
	return link.Attrs().MTU
}
