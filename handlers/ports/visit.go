package ports

import (
	"encoding/hex"
	"html/template"
	"net/http"
	"net/url"
	"strings"
	"time"

	"github.com/claude-hub/claude-hub/app/access"
	"github.com/claude-hub/claude-hub/app/fault"
	"github.com/claude-hub/claude-hub/handlers/request"
)

const (
	// ownPath is what an origin keeps from the Sandbox's server.
	ownPath  = "/.claude-hub/"
	visitAt  = ownPath + "visit"
	askLife  = 10 * time.Minute
	ourNames = "claude-hub" // what the names of our cookies begin with, beside what browsers demand
)

// AdmitPath is where the Hub lets a browser in.
const AdmitPath = "/ports/admit"

func (p *Ports) cookieName(name string) string {
	if p.secure() {
		return "__Host-" + name
	}
	return name
}

func (p *Ports) visitCookie() string { return p.cookieName(ourNames + "-port") }
func (p *Ports) askCookie() string   { return p.cookieName(ourNames + "-port-ask") }

// setCookie sets one for this very host, which no script sees; Lax, since people come here from the Hub.
func (p *Ports) setCookie(w http.ResponseWriter, name, value string, life time.Duration) {
	http.SetCookie(w, &http.Cookie{Name: name, Value: value, Path: "/", MaxAge: int(life.Seconds()), HttpOnly: true, Secure: p.secure(), SameSite: http.SameSiteLaxMode})
}

func (p *Ports) visitor(r *http.Request, place Place) (access.Person, error) {
	c, err := r.Cookie(p.visitCookie())
	if err != nil {
		return access.Person{}, fault.New(fault.Unauthorized, "This browser was not let in here.")
	}
	return p.d.Gate.Visitor(r.Context(), place.String(), c.Value)
}

// navigates tells whether a person goes to a page, rather than a page to what it needs.
func navigates(r *http.Request) bool {
	if !request.Looks(r) {
		return false
	}
	mode := r.Header.Get("Sec-Fetch-Mode")
	return mode == "navigate" || mode == "" && strings.Contains(r.Header.Get("Accept"), "text/html")
}

// ask sends a browser to the Hub, to come back with a code.
func (p *Ports) ask(w http.ResponseWriter, r *http.Request, place Place) {
	if !navigates(r) {
		p.refuse(w, r, http.StatusUnauthorized, "This browser was not let in here, or its visit has ended. Open the page itself.")
		return
	}
	kept := ""
	if c, err := r.Cookie(p.askCookie()); err == nil && len(c.Value) == len(access.NewSecret()) { // another tab is on its way
		kept = c.Value
	} else {
		kept = access.NewSecret()
	}
	p.setCookie(w, p.askCookie(), kept, askLife)
	w.Header().Set("Cache-Control", "no-store")
	q := url.Values{"place": {place.String()}, "asked": {hex.EncodeToString(access.HashSecret(kept))}, "to": {access.LocalPath(r.URL.RequestURI())}}
	http.Redirect(w, r, hub(p.d.Hub)+AdmitPath+"?"+q.Encode(), http.StatusSeeOther)
}

// VisitURL is where the Hub sends a browser with its code.
func (d Domain) VisitURL(p Place, code, to string) string {
	return d.Origin(p) + visitAt + "?" + url.Values{"code": {code}, "to": {access.LocalPath(to)}}.Encode()
}

// own answers what is the Hub's at a place's origin.
func (p *Ports) own(w http.ResponseWriter, r *http.Request, place Place) {
	if r.URL.Path != visitAt || r.Method != http.MethodGet {
		p.refuse(w, r, http.StatusNotFound, "There is no such page.")
		return
	}
	kept, err := r.Cookie(p.askCookie())
	if err != nil {
		p.refuse(w, r, http.StatusUnauthorized, "This browser kept no cookie of this page, or took more than ten minutes. Allow cookies here, and open the port again.")
		return
	}
	secret, err := p.d.Gate.Visit(r.Context(), place.String(), r.URL.Query().Get("code"), kept.Value)
	if err != nil {
		p.fail(w, r, err)
		return
	}
	p.setCookie(w, p.visitCookie(), secret, access.VisitLife)
	p.setCookie(w, p.askCookie(), "", -time.Second)
	h := w.Header()
	h.Set("Cache-Control", "no-store")
	h.Set("Referrer-Policy", "no-referrer")
	http.Redirect(w, r, access.LocalPath(r.URL.Query().Get("to")), http.StatusSeeOther)
}

// ours tells a cookie of the Hub's by its name.
func ours(name string) bool {
	name = strings.ToLower(strings.TrimSpace(name))
	name = strings.TrimPrefix(strings.TrimPrefix(name, "__host-"), "__secure-")
	return strings.HasPrefix(name, ourNames)
}

// withoutOurs takes the Hub's cookies out of what goes to the Sandbox's server.
func withoutOurs(h http.Header) {
	var left []string
	for _, line := range h.Values("Cookie") {
		for _, part := range strings.Split(line, ";") {
			name, _, _ := strings.Cut(part, "=")
			if part = strings.TrimSpace(part); part != "" && !ours(name) {
				left = append(left, part)
			}
		}
	}
	if h.Del("Cookie"); len(left) > 0 {
		h.Set("Cookie", strings.Join(left, "; "))
	}
}

// contain keeps an answer of the Sandbox's server to its own origin: cookies are for this host only and don't take the place of the
// Hub's, and it can't clear those of a whole domain.
func contain(h http.Header) {
	cookies := h.Values("Set-Cookie")
	h.Del("Set-Cookie")
	for _, line := range cookies {
		name, _, _ := strings.Cut(line, "=")
		if strings.TrimSpace(name) == "" || ours(name) { // one without a name could be sent as if its value had one
			continue
		}
		var left []string
		for _, part := range strings.Split(line, ";") {
			attribute, _, _ := strings.Cut(part, "=")
			if !strings.EqualFold(strings.TrimSpace(attribute), "domain") {
				left = append(left, part)
			}
		}
		h.Add("Set-Cookie", strings.Join(left, ";"))
	}
	h.Del("Clear-Site-Data")
}

func (p *Ports) fail(w http.ResponseWriter, r *http.Request, err error) {
	f := fault.Of(err)
	if f.Code == fault.Internal {
		request.Log(r.Context()).Error().Err(err).Msg("internal error")
	}
	p.refuse(w, r, request.Status(f.Code), f.Message)
}

var page = template.Must(template.New("").Parse(`<!doctype html>
<html lang="en">
<head><meta charset="utf-8"><meta name="viewport" content="width=device-width, initial-scale=1"><meta name="color-scheme" content="light dark"><title>claude-hub</title></head>
<body>
<main><h1>claude-hub</h1><p role="alert">{{.Message}}</p><p><a href="{{.Hub}}">Go to the Hub</a></p></main>
</body>
</html>
`))

// refuse answers for the Hub, in place of the Sandbox's server.
func (p *Ports) refuse(w http.ResponseWriter, r *http.Request, status int, message string) {
	h := w.Header()
	h.Set("Cache-Control", "no-store")
	h.Set("X-Content-Type-Options", "nosniff")
	if !navigates(r) {
		http.Error(w, message, status)
		return
	}
	h.Set("Content-Security-Policy", "default-src 'none'; base-uri 'none'; form-action 'none'; frame-ancestors 'self'")
	h.Set("Content-Type", "text/html; charset=utf-8")
	w.WriteHeader(status)
	_ = page.Execute(w, struct{ Message, Hub string }{message, hub(p.d.Hub)}) // the browser is gone
}
