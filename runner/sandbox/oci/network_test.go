package oci

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"

	"github.com/claude-hub/claude-hub/runner/sandbox"
)

func command(t testing.TB, argv ...string) string {
	t.Helper()
	out, err := exec.Command(argv[0], argv[1:]...).CombinedOutput()
	if err != nil {
		t.Fatalf("%s: %v: %s", strings.Join(argv, " "), err, out)
	}
	return string(out)
}

// outside is a network namespace that stands for the world beyond the host. The host is its first address, it is the
// second one, and it knows no way back to a Sandbox's own address.
type outside struct {
	name       string
	host, self netip.Addr
	mu         sync.Mutex
	seen       []string // remote addresses of accepted connections
}

var outsides atomic.Int64

func newOutside(t *testing.T) *outside {
	t.Helper()
	n := outsides.Add(1)
	block := netip.AddrFrom4([4]byte{198, 18, byte(os.Getpid() % 250), byte(n * 4)})
	o := &outside{name: fmt.Sprintf("cht-%d-%d", os.Getpid(), n), host: addOffset(block, 1), self: addOffset(block, 2)}
	link := fmt.Sprintf("cht%dx%d", os.Getpid()%100000, n)
	command(t, "ip", "netns", "add", o.name)
	t.Cleanup(func() { command(t, "ip", "netns", "del", o.name) })
	command(t, "ip", "link", "add", link, "type", "veth", "peer", "name", "up0", "netns", o.name)
	command(t, "ip", "addr", "add", o.host.String()+"/30", "dev", link)
	command(t, "ip", "link", "set", link, "up")
	command(t, "ip", "-n", o.name, "addr", "add", o.self.String()+"/30", "dev", "up0")
	command(t, "ip", "-n", o.name, "link", "set", "up0", "up")
	command(t, "ip", "-n", o.name, "link", "set", "lo", "up")
	return o
}

// also gives the namespace a further address, to which the host has a route.
func (o *outside) also(t *testing.T, addr string) {
	t.Helper()
	command(t, "ip", "-n", o.name, "addr", "add", addr+"/32", "dev", "lo")
	// The metric lets another run of this test have the same route.
	command(t, "ip", "route", "add", addr+"/32", "via", o.self.String(), "metric", fmt.Sprint(1000+os.Getpid()))
	// The route goes with the interface.
}

// listen accepts connections on a port at all addresses of the namespace and remembers where they came from.
func (o *outside) listen(t *testing.T) (port int) {
	t.Helper()
	var l net.Listener
	o.within(t, func() (err error) {
		l, err = net.Listen("tcp4", "0.0.0.0:0")
		return err
	})
	t.Cleanup(func() { l.Close() })
	accept(l, func(c net.Conn) {
		o.mu.Lock()
		defer o.mu.Unlock()
		o.seen = append(o.seen, c.RemoteAddr().(*net.TCPAddr).IP.String())
	})
	return l.Addr().(*net.TCPAddr).Port
}

// within runs f on a thread in the namespace.
func (o *outside) within(t *testing.T, f func() error) {
	t.Helper()
	done := make(chan error)
	go func() {
		runtime.LockOSThread()
		own, err := netns.Get()
		if err != nil {
			done <- err
			return
		}
		defer own.Close()
		there, err := netns.GetFromName(o.name)
		if err != nil {
			done <- err
			return
		}
		defer there.Close()
		if err = netns.Set(there); err == nil {
			err = f()
			if berr := netns.Set(own); berr != nil {
				panic(berr) // a thread in another namespace must not be used again
			}
		}
		runtime.UnlockOSThread()
		done <- err
	}()
	if err := <-done; err != nil {
		t.Fatal(err)
	}
}

func (o *outside) remotes() []string {
	o.mu.Lock()
	defer o.mu.Unlock()
	return append([]string(nil), o.seen...)
}

// accept takes connections and holds them until the listener is closed.
func accept(l net.Listener, seen func(net.Conn)) {
	go func() {
		var held []net.Conn
		for {
			c, err := l.Accept()
			if err != nil {
				break
			}
			seen(c)
			held = append(held, c)
		}
		for _, c := range held {
			c.Close()
		}
	}()
}

func reach(t *testing.T, sb sandbox.Sandbox, argv ...string) (bool, string) {
	t.Helper()
	ans, err := ask(t.Context(), sb, 0, append([]string{"try", "try"}, argv...)...)
	if err != nil {
		t.Fatal(err)
	}
	return ans.Code == 0, ans.Output
}

func boxLease(e *Engine, id sandbox.ID) lease { return *e.box(id).boot.Net }

func TestSandboxReachesOnlyTheOutside(t *testing.T) {
	t.Parallel()
	o := newOutside(t)
	port := o.listen(t)
	o.also(t, "169.254.169.254")
	linkLocal, refusedNet := fmt.Sprintf("169.254.%d.7", os.Getpid()%250), fmt.Sprintf("198.19.%d.7", os.Getpid()%250)
	o.also(t, linkLocal)
	o.also(t, refusedNet)
	e := testEngine(t, func(c *Config) {
		c.Refused = []netip.Prefix{netip.PrefixFrom(netip.MustParseAddr(refusedNet), 24)}
		c.DNS = []netip.Addr{netip.MustParseAddr("198.51.100.53")} // asked directly, whatever this host has
	})

	host, err := net.Listen("tcp", ":0")
	if err != nil {
		t.Fatal(err)
	}
	defer host.Close()
	accept(host, func(net.Conn) {})
	hostPort := host.Addr().(*net.TCPAddr).Port

	s := testSpec(t, e, "a")
	s.Nested = true // with NET_ADMIN, so that the Sandbox can try everything
	a := start(t, e, "a", s)
	b := start(t, e, "b", testSpec(t, e, "b"))

	if ok, out := reach(t, a, "tcp", fmt.Sprintf("%s:%d", o.self, port)); !ok {
		t.Fatalf("the outside can't be reached: %s", out)
	}
	eventually(t, "the connection arrives", func() bool { return len(o.remotes()) > 0 })
	if got := o.remotes(); len(got) != 1 || got[0] != o.host.String() {
		t.Errorf("outside, the Sandbox is seen as %v and not as the host, %s", got, o.host)
	}

	// Everything below is reachable for the host itself, so what refuses is the table.
	la, lb := boxLease(e, "a"), boxLease(e, "b")
	for _, addr := range []string{linkLocal, refusedNet} {
		c, err := net.Dial("tcp", net.JoinHostPort(addr, fmt.Sprint(port)))
		if err != nil {
			t.Fatalf("the test's own %s can't be reached from the host: %v", addr, err)
		}
		c.Close()
	}
	sh(t, b, "try try serve 0.0.0.0:7000 >/dev/null 2>&1 </dev/null &")
	eventually(t, "Sandbox b reaches itself", func() bool { ok, _ := reach(t, b, "tcp", lb.guest().String()+":7000"); return ok })

	targets := map[string]string{
		"the metadata address":         fmt.Sprintf("169.254.169.254:%d", port),
		"its whole network":            fmt.Sprintf("%s:%d", linkLocal, port),
		"a refused network":            fmt.Sprintf("%s:%d", refusedNet, port),
		"the gateway":                  fmt.Sprintf("%s:%d", la.gateway(), hostPort),
		"an address of the host":       fmt.Sprintf("%s:%d", o.host, hostPort),
		"the other Sandbox":            lb.guest().String() + ":7000",
		"the other Sandbox's gateway":  fmt.Sprintf("%s:%d", lb.gateway(), hostPort),
		"DNS on the gateway, not ours": la.gateway().String() + ":53",
	}
	for what, addr := range targets {
		if ok, _ := reach(t, a, "tcp", addr); ok {
			t.Errorf("the Sandbox reached %s, %s", what, addr)
		}
	}
	refused(t, a, "ping -c 1 -W 1 "+la.gateway().String())
	refused(t, a, "ping -c 1 -W 1 "+lb.guest().String())

	// A port that the host forwards to somewhere is a service of the host.
	table := fmt.Sprintf("cht_%d_dnat", os.Getpid())
	nft := exec.Command("nft", "-f", "-")
	nft.Stdin = strings.NewReader(fmt.Sprintf("table ip %s {\n chain p {\n type nat hook prerouting priority dstnat\n ip daddr %s tcp dport 9 dnat to %s:%d\n }\n}\n",
		table, o.host, o.self, port))
	if out, err := nft.CombinedOutput(); err != nil {
		t.Fatalf("nft: %v: %s", err, out)
	}
	defer command(t, "nft", "delete", "table", "ip", table)
	if ok, _ := reach(t, a, "tcp", o.host.String()+":9"); ok {
		t.Error("the Sandbox reached a forwarded port of the host")
	}

	// A source that isn't its own: another Sandbox's, and a free one.
	before := len(o.remotes())
	for _, src := range []string{lb.guest().String(), "198.51.100.9"} {
		sh(t, a, "ip addr add "+src+"/32 dev eth0")
		if ok, _ := reach(t, a, "tcp-from", src, fmt.Sprintf("%s:%d", o.self, port)); ok {
			t.Errorf("the Sandbox reached the outside as %s", src)
		}
	}
	if got := o.remotes(); len(got) != before {
		t.Errorf("spoofed connections arrived: %v", got[before:])
	}
}

func TestIPv6LinkLocalOfTheHostIsOutOfReach(t *testing.T) {
	t.Parallel()
	e := testEngine(t)
	s := testSpec(t, e, "a")
	s.Nested = true
	a := start(t, e, "a", s)
	l := boxLease(e, "a")
	// gVisor gives itself one.
	if out := sh(t, a, "ip -6 addr show dev eth0"); strings.Contains(out, "fe80") && !isGVisor(*testRuntime) {
		t.Errorf("the Sandbox's interface has an IPv6 address: %s", out)
	}
	if !exists("/proc/net/if_inet6") {
		return // a kernel without IPv6: neither end can have an address
	}
	// Even if both ends had one.
	if err := os.WriteFile("/proc/sys/net/ipv6/conf/"+l.Interface+"/disable_ipv6", []byte("0"), 0); err != nil {
		t.Fatal(err)
	}
	_, _ = ask(t.Context(), a, 0, "sh", "-c", "mount -o remount,rw /proc/sys 2>/dev/null; echo 0 > /proc/sys/net/ipv6/conf/eth0/disable_ipv6; echo 0 > /proc/sys/net/ipv6/conf/eth0/accept_dad")
	link, err := netlink.LinkByName(l.Interface)
	if err != nil {
		t.Fatal(err)
	}
	var local string
	eventually(t, "the host's end has a link-local address that may be used", func() bool {
		addrs, err := netlink.AddrList(link, netlink.FAMILY_V6)
		if err != nil || len(addrs) == 0 || addrs[0].Flags&0x40 != 0 { // IFA_F_TENTATIVE
			return false
		}
		local = addrs[0].IP.String()
		return true
	})
	eventually(t, "the Sandbox's end has one, too", func() bool {
		out := sh(t, a, "ip -6 addr show dev eth0")
		return strings.Contains(out, "fe80") && !strings.Contains(out, "tentative")
	})
	host, err := net.Listen("tcp6", "[::]:0")
	if err != nil {
		t.Fatal(err)
	}
	defer host.Close()
	accept(host, func(net.Conn) {})
	if ok, out := reach(t, a, "tcp", fmt.Sprintf("[%s%%eth0]:%d", local, host.Addr().(*net.TCPAddr).Port)); ok {
		t.Errorf("the Sandbox reached the host at its link-local address: %s", out)
	}
}

func TestConnectionsAreCapped(t *testing.T) {
	t.Parallel()
	o := newOutside(t)
	port := o.listen(t)
	e := testEngine(t, func(c *Config) { c.Connections = 20 })
	a := start(t, e, "a", testSpec(t, e, "a"))
	b := start(t, e, "b", testSpec(t, e, "b"))
	addr := fmt.Sprintf("%s:%d", o.self, port)
	_, out := reach(t, a, "flood", addr, "60")
	var open int
	fmt.Sscan(out, &open)
	if open < 15 || open > 20 {
		t.Errorf("%d connections were open with a cap of 20", open)
	}
	if ok, out := reach(t, b, "tcp", addr); !ok {
		t.Errorf("another Sandbox can't reach the outside after that: %s", out)
	}
}

func TestNetworkOffHasOnlyLoopback(t *testing.T) {
	t.Parallel()
	e := testEngine(t)
	s := testSpec(t, e, "a")
	s.Network.Off = true
	a := start(t, e, "a", s)
	if got := sh(t, a, "ip -o link | cut -d: -f2 | tr -d ' '; grep -v '^#' /etc/resolv.conf; grep -c box-a /etc/hosts"); got != "lo\n1" {
		t.Errorf("interfaces: %q", got)
	}
	sh(t, a, "try try serve 127.0.0.1:7000 >/dev/null 2>&1 </dev/null &")
	eventually(t, "loopback works", func() bool { ok, _ := reach(t, a, "tcp", "127.0.0.1:7000"); return ok })
}

func TestTableThatWasFlushedIsPutBack(t *testing.T) {
	t.Parallel()
	o := newOutside(t)
	port := o.listen(t)
	e := testEngine(t)
	a := start(t, e, "a", testSpec(t, e, "a"))
	command(t, "nft", "delete", "table", "inet", e.firewall.table)
	eventually(t, "the table is there again", e.firewall.there)
	if ok, out := reach(t, a, "tcp", fmt.Sprintf("%s:%d", o.self, port)); !ok {
		t.Errorf("the Sandbox has no network after the table was put back: %s", out)
	}
	// A start in the moment without a table makes it, too.
	command(t, "nft", "delete", "table", "inet", e.firewall.table)
	b := start(t, e, "b", testSpec(t, e, "b"))
	if ok, out := reach(t, b, "tcp", fmt.Sprintf("%s:%d", o.self, port)); !ok {
		t.Errorf("a Sandbox that was started without the table has no network: %s", out)
	}
}

func TestStopLeavesNothingOfTheNetwork(t *testing.T) {
	t.Parallel()
	e := testEngine(t)
	start(t, e, "a", testSpec(t, e, "a"))
	l := boxLease(e, "a")
	if out := command(t, "nft", "list", "set", "inet", e.firewall.table, "boxes"); !strings.Contains(out, l.guest().String()) {
		t.Errorf("a running Sandbox is no element of the table: %s", out)
	}
	stop(t, e, "a")
	if out := command(t, "nft", "list", "set", "inet", e.firewall.table, "boxes"); strings.Contains(out, l.guest().String()) {
		t.Errorf("a stopped Sandbox is still an element of the table: %s", out)
	}
	if _, err := netlink.LinkByName(l.Interface); err == nil {
		t.Errorf("the interface %s is still there", l.Interface)
	}
	if exists(filepath.Join(claimsDir, l.Block.String())) {
		t.Error("the address is still claimed")
	}
}

// dnsServer answers every question for an A record with one address, on a loopback address of its own.
func dnsServer(t *testing.T, at, answer string) {
	t.Helper()
	udp, err := net.ListenPacket("udp4", at+":53")
	if err != nil {
		t.Fatal(err)
	}
	tcp, err := net.Listen("tcp4", at+":53")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := errors.Join(udp.Close(), tcp.Close()); err != nil {
			t.Error(err)
		}
	})
	ip := net.ParseIP(answer).To4()
	reply := func(q []byte) []byte {
		end := 12
		for end < len(q) && q[end] != 0 {
			end += int(q[end]) + 1
		}
		end += 5
		a := append([]byte{q[0], q[1], 0x81, 0x80, 0, 1, 0, 0, 0, 0, 0, 0}, q[12:end]...)
		if q[end-4] == 0 && q[end-3] == 1 {
			a[7] = 1
			a = append(a, 0xc0, 12, 0, 1, 0, 1, 0, 0, 0, 60, 0, 4, ip[0], ip[1], ip[2], ip[3])
		}
		return a
	}
	go func() {
		buf := make([]byte, 4096)
		for {
			n, from, err := udp.ReadFrom(buf)
			if err != nil {
				return
			}
			a := reply(buf[:n])
			if strings.Contains(string(buf[:n]), "big") && a[7] == 1 {
				a[2], a[7] = 0x83, 0 // truncated: ask by TCP
				a = a[:len(a)-16]
			}
			_, _ = udp.WriteTo(a[:min(len(a), 512)], from)
		}
	}()
	go func() {
		for {
			c, err := tcp.Accept()
			if err != nil {
				return
			}
			if q, err := readDNS(c); err == nil {
				_ = writeDNS(c, reply(q))
			}
			c.Close()
		}
	}()
}

func TestNamesResolveThroughTheGatewayWhereTheHostsResolverIsOnLoopback(t *testing.T) {
	t.Parallel()
	at := fmt.Sprintf("127.53.%d.1", os.Getpid()%250)
	dnsServer(t, at, "198.51.100.7")
	e := testEngine(t, func(c *Config) { c.DNS = []netip.Addr{netip.MustParseAddr(at)} })
	a := start(t, e, "a", testSpec(t, e, "a"))
	l := boxLease(e, "a")
	if got := sh(t, a, "cat /etc/resolv.conf"); got != "nameserver "+l.gateway().String() {
		t.Errorf("resolv.conf is %q", got)
	}
	for _, name := range []string{"some.example", "big.example"} {
		if ok, out := reach(t, a, "lookup", name); !ok || !strings.Contains(out, "198.51.100.7") {
			t.Errorf("%s is %s", name, out)
		}
	}
	if ok, _ := reach(t, a, "tcp", l.gateway().String()+":80"); ok {
		t.Error("more than DNS of the gateway is open")
	}
}

func TestUpstreamServersAreAskedDirectlyWhereTheyCan(t *testing.T) {
	t.Parallel()
	e := testEngine(t)
	own, err := hostNetworks()
	if err != nil || len(own) == 0 {
		t.Fatal("the host has no addresses", err)
	}
	for addr, direct := range map[string]bool{
		"198.51.100.53": true, "10.1.2.3": true, "127.0.0.53": false, "169.254.169.253": false, "2001:db8::53": false, own[len(own)-1].Addr().String(): false,
	} {
		e.cfg.DNS = []netip.Addr{netip.MustParseAddr(addr)}
		if got := e.hostResolver(); got.forward == direct {
			t.Errorf("the server %s: forward is %v", addr, got.forward)
		}
	}
	e.cfg.DNS = []netip.Addr{netip.MustParseAddr("127.0.0.53"), netip.MustParseAddr("198.51.100.53")}
	r := e.hostResolver()
	r.other = []string{"search corp.example"}
	if got := r.file(&lease{}); got != "nameserver 198.51.100.53\nsearch corp.example\n" {
		t.Errorf("resolv.conf is %q", got)
	}
}

func TestResolverFileOfTheHostIsReadWhole(t *testing.T) {
	t.Parallel()
	f := filepath.Join(t.TempDir(), "resolv.conf")
	if err := os.WriteFile(f, []byte("# a comment\nnameserver 127.0.0.53\nnameserver fe80::1%eth0\nnameserver nonsense\noptions edns0 trust-ad\nsearch a.example b.example\nnameserver\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	r, err := readResolv(f)
	if err != nil || len(r.servers) != 2 || len(r.other) != 2 || r.other[1] != "search a.example b.example" {
		t.Errorf("%+v, %v", r, err)
	}
}
