package oci

import (
	"bufio"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/rs/zerolog"
)

// resolvFiles are where the host's name servers stand, the real upstream ones first where systemd-resolved answers on a
// loopback address.
var resolvFiles = []string{"/etc/resolv.conf", "/run/systemd/resolve/resolv.conf"}

// resolver is what Sandboxes get to resolve names with.
type resolver struct {
	servers []netip.Addr // reachable from a Sandbox as they are, or from the host only if forward
	other   []string     // search and options lines
	forward bool         // the Sandbox asks its gateway, and the engine passes it on
}

// hostResolver prefers upstream servers that a Sandbox can ask itself: what is forwarded ends with the Runner, though
// the Sandbox lives on (facts/sandbox.md §2.6). A server on loopback, on an address of the host, on IPv6, or in a
// refused network (clouds answer DNS at the metadata address) can only be asked from the host.
func (e *Engine) hostResolver() resolver {
	var all resolver
	if len(e.cfg.DNS) > 0 {
		all.servers = e.cfg.DNS
	} else {
		for _, f := range resolvFiles {
			r, err := readResolv(f)
			if err != nil {
				continue
			}
			if direct := e.direct(r.servers); len(direct) > 0 {
				return resolver{servers: direct, other: r.other}
			}
			if len(all.servers) == 0 {
				all = r
			}
		}
	}
	if direct := e.direct(all.servers); len(direct) > 0 {
		return resolver{servers: direct, other: all.other}
	}
	if len(all.servers) == 0 {
		all.servers = []netip.Addr{netip.MustParseAddr("127.0.0.1")} // resolv.conf(5)'s default
	}
	all.forward = true
	return all
}

func (e *Engine) direct(servers []netip.Addr) []netip.Addr {
	own, err := hostNetworks()
	if err != nil {
		own = nil
	}
	return slices.DeleteFunc(slices.Clone(servers), func(a netip.Addr) bool {
		return !a.Is4() || a.IsLoopback() || a.IsUnspecified() || e.firewall.refuses(a) ||
			slices.ContainsFunc(own, func(p netip.Prefix) bool { return p.Addr() == a })
	})
}

func readResolv(path string) (resolver, error) {
	f, err := os.Open(path)
	if err != nil {
		return resolver{}, err
	}
	defer f.Close()
	var r resolver
	sc := bufio.NewScanner(f)
	for sc.Scan() {
		fields := strings.Fields(sc.Text())
		if len(fields) < 2 {
			continue
		}
		switch fields[0] {
		case "nameserver":
			if a, err := netip.ParseAddr(fields[1]); err == nil {
				r.servers = append(r.servers, a.Unmap())
			}
		case "search", "domain", "options":
			r.other = append(r.other, strings.Join(fields, " "))
		}
	}
	return r, sc.Err()
}

// file is a Sandbox's resolv.conf.
func (r resolver) file(l *lease) string {
	if l == nil {
		return "# This Sandbox has no network.\n"
	}
	var b strings.Builder
	if r.forward {
		fmt.Fprintf(&b, "nameserver %s\n", l.gateway())
	} else {
		for _, s := range r.servers[:min(3, len(r.servers))] {
			fmt.Fprintf(&b, "nameserver %s\n", s)
		}
	}
	for _, o := range r.other {
		b.WriteString(o + "\n")
	}
	return b.String()
}

const (
	dnsTimeout  = 10 * time.Second
	dnsInFlight = 64       // questions of one Sandbox at a time; more are dropped, and asked again by whoever asked
	dnsMax      = 64 << 10 // bytes of a message
)

// forwarder answers DNS on gateways' addresses by asking the host's servers.
type forwarder struct {
	log     zerolog.Logger
	servers func() []netip.AddrPort
	mu      sync.Mutex
	stops   map[string]func()
}

// start listens on a lease's gateway, which is up. Doing it again changes nothing.
func (f *forwarder) start(l *lease) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.stops[l.Interface] != nil {
		return nil
	}
	at := netip.AddrPortFrom(l.gateway(), 53).String()
	// The address may be one of a Sandbox that has just gone and whose sockets linger.
	lc := net.ListenConfig{Control: func(_, _ string, c syscall.RawConn) error {
		var serr error
		err := c.Control(func(fd uintptr) {
			serr = syscall.SetsockoptInt(int(fd), syscall.SOL_SOCKET, syscall.SO_REUSEADDR, 1)
		})
		return errors.Join(err, serr)
	}}
	ctx, cancel := context.WithCancel(context.Background())
	udp, err := lc.ListenPacket(ctx, "udp4", at)
	if err != nil {
		cancel()
		return fmt.Errorf("DNS for a Sandbox can't be answered on %s: %w", at, err)
	}
	tcp, err := lc.Listen(ctx, "tcp4", at)
	if err != nil {
		cancel()
		return errors.Join(fmt.Errorf("DNS for a Sandbox can't be answered on %s: %w", at, err), udp.Close())
	}
	slots := make(chan struct{}, dnsInFlight)
	go f.serveUDP(ctx, udp, slots)
	go f.serveTCP(ctx, tcp, slots)
	f.stops[l.Interface] = func() {
		cancel()
		if err := errors.Join(udp.Close(), tcp.Close()); err != nil {
			f.log.Debug().Err(err).Msg("A DNS socket didn't close cleanly.")
		}
	}
	return nil
}

func (f *forwarder) stop(l *lease) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if stop := f.stops[l.Interface]; stop != nil {
		stop()
		delete(f.stops, l.Interface)
	}
}

func (f *forwarder) stopAll() {
	f.mu.Lock()
	defer f.mu.Unlock()
	for name, stop := range f.stops {
		stop()
		delete(f.stops, name)
	}
}

func (f *forwarder) serveUDP(ctx context.Context, c net.PacketConn, slots chan struct{}) {
	buf := make([]byte, dnsMax)
	for {
		n, from, err := c.ReadFrom(buf)
		if errors.Is(err, net.ErrClosed) {
			return
		}
		if err != nil || n < 12 {
			continue
		}
		select {
		case slots <- struct{}{}:
		default:
			continue
		}
		question := slices.Clone(buf[:n])
		go func() {
			defer func() { <-slots }()
			answer, err := f.ask(ctx, "udp", question)
			if err == nil {
				_, err = c.WriteTo(answer, from)
			}
			if err != nil && !errors.Is(err, net.ErrClosed) {
				f.log.Debug().Err(err).Msg("A Sandbox's DNS question got no answer.")
			}
		}()
	}
}

func (f *forwarder) serveTCP(ctx context.Context, l net.Listener, slots chan struct{}) {
	for {
		c, err := l.Accept()
		if err != nil {
			return
		}
		select {
		case slots <- struct{}{}:
		default:
			c.Close()
			continue
		}
		go func() {
			defer func() { <-slots }()
			defer c.Close()
			for {
				if err := c.SetDeadline(time.Now().Add(dnsTimeout)); err != nil {
					return
				}
				question, err := readDNS(c)
				if err != nil {
					return
				}
				answer, err := f.ask(ctx, "tcp", question)
				if err != nil || writeDNS(c, answer) != nil {
					return
				}
			}
		}()
	}
}

// ask takes the first server that answers.
func (f *forwarder) ask(ctx context.Context, network string, question []byte) ([]byte, error) {
	ctx, cancel := context.WithTimeout(ctx, dnsTimeout)
	defer cancel()
	errs := []error{errors.New("the host's name servers don't answer")}
	for _, s := range f.servers() {
		answer, err := askOne(ctx, network, s, question)
		if err == nil {
			return answer, nil
		}
		errs = append(errs, err)
	}
	return nil, errors.Join(errs...)
}

func askOne(ctx context.Context, network string, server netip.AddrPort, question []byte) ([]byte, error) {
	var d net.Dialer
	c, err := d.DialContext(ctx, network, server.String())
	if err != nil {
		return nil, err
	}
	defer c.Close()
	deadline := time.Now().Add(3 * time.Second)
	if err := c.SetDeadline(deadline); err != nil {
		return nil, err
	}
	if network == "tcp" {
		if err := writeDNS(c, question); err != nil {
			return nil, err
		}
		return readDNS(c)
	}
	if _, err := c.Write(question); err != nil {
		return nil, err
	}
	buf := make([]byte, dnsMax)
	for {
		n, err := c.Read(buf)
		if err != nil {
			return nil, err
		}
		// Somebody else's answer doesn't have the question's id.
		if n >= 12 && len(question) >= 2 && buf[0] == question[0] && buf[1] == question[1] {
			return buf[:n], nil
		}
	}
}

func readDNS(r io.Reader) ([]byte, error) {
	var size [2]byte
	if _, err := io.ReadFull(r, size[:]); err != nil {
		return nil, err
	}
	b := make([]byte, binary.BigEndian.Uint16(size[:]))
	_, err := io.ReadFull(r, b)
	return b, err
}

func writeDNS(w io.Writer, b []byte) error {
	if len(b) > 0xffff {
		return errors.New("a DNS message is longer than 65535 bytes")
	}
	_, err := w.Write(append(binary.BigEndian.AppendUint16(nil, uint16(len(b))), b...))
	return err
}
