// Package ports serves web servers in Sandboxes, each at an origin of its own: SESSION-PORT.DOMAIN. Such an origin belongs to what
// runs in the Sandbox, so nothing of the Hub's is ever there but one cookie that no script sees, which lets in one browser, to that
// port. Who it is and whether they still may is asked at each request.
package ports

import (
	"fmt"
	"net"
	"net/http"
	"net/url"
	"regexp"
	"strconv"
	"strings"
)

// Domain is what the origins are below, with scheme and port of the Hub's own address. The zero Domain has none.
type Domain struct {
	name, scheme, port string
}

var domainName = regexp.MustCompile(`^[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?(\.[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?)*$`)

// DomainOf checks the config's hub.ports_domain against the Hub's own address.
func DomainOf(name string, hub *url.URL) (Domain, error) {
	own := strings.ToLower(hub.Hostname())
	switch {
	case name == "":
		return Domain{}, nil
	case !domainName.MatchString(name) || len(name) > 180 || net.ParseIP(name) != nil:
		return Domain{}, fmt.Errorf("hub.ports_domain is a domain in lower case, such as ports.example.com, with neither scheme nor port: %q is not", name)
	case own == name || strings.HasSuffix(own, "."+name):
		return Domain{}, fmt.Errorf("hub.ports_domain %q has the Hub's own address, %s, in it: what runs in a Sandbox could take the Hub's place. Use a domain beside or below it, such as ports.%s", name, own, own)
	case hub.Scheme != "https" && own != "localhost" && net.ParseIP(own) == nil:
		return Domain{}, fmt.Errorf("hub.ports_domain needs a Hub with https in hub.url: without, what runs in a Sandbox could set the Hub's cookies")
	}
	return Domain{name, hub.Scheme, hub.Port()}, nil
}

// On tells whether there are such origins.
func (d Domain) On() bool { return d.name != "" }

// Has tells whether a request's Host is in the domain: then it is nobody's but a place's, or nothing's.
func (d Domain) Has(host string) bool {
	name := hostname(host)
	return d.On() && (name == d.name || strings.HasSuffix(name, "."+d.name))
}

// Place is a port of a Session.
type Place struct {
	Session string
	Port    uint16
}

// ParsePort reads a port as people write it.
func ParsePort(text string) (uint16, bool) {
	n, err := strconv.ParseUint(text, 10, 16)
	return uint16(n), err == nil && n > 0 && text == strconv.FormatUint(n, 10)
}

// Place is that of a Host, or of a String.
func (d Domain) Place(host string) (Place, bool) {
	label, _ := strings.CutSuffix(hostname(host), "."+d.name)
	return ParsePlace(label)
}

// ParsePlace reads a String.
func ParsePlace(label string) (Place, bool) {
	i := strings.LastIndexByte(label, '-')
	if i <= 0 || strings.ContainsRune(label, '.') {
		return Place{}, false
	}
	port, ok := ParsePort(label[i+1:])
	return Place{label[:i], port}, ok
}

// String is the place's name, which is a label of its host.
func (p Place) String() string { return p.Session + "-" + strconv.Itoa(int(p.Port)) }

// Origin is the place's, without a slash at its end.
func (d Domain) Origin(p Place) string {
	host := p.String() + "." + d.name
	if d.port != "" {
		host += ":" + d.port
	}
	return d.scheme + "://" + host
}

// foreign tells a request that browsers say a page made which isn't of the place's Session. All origins of a Domain are one site to
// them, so a visitor's cookie goes along with what a page of another Sandbox asks for, and neither WebSockets nor a server that allows
// every origin hold its answer back from that page.
func (d Domain) foreign(r *http.Request, place Place) bool {
	origin := r.Header.Get("Origin")
	if origin == "" || r.Header.Get("Sec-Fetch-Site") == "same-origin" {
		return false
	}
	from, err := url.Parse(origin)
	if err != nil {
		return true
	}
	asks, ok := d.Place(from.Host)
	return !ok || asks.Session != place.Session || origin != d.Origin(asks)
}

func hostname(host string) string { return strings.ToLower((&url.URL{Host: host}).Hostname()) }
