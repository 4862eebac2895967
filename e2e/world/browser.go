package world

import (
	"context"
	"io"
	"net"
	"net/http"
	"net/http/cookiejar"
	"net/url"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/net/html"
)

// Browser is a person's browser without JavaScript: it has cookies, follows links and sends forms.
type Browser struct {
	t      testing.TB
	client *http.Client
	base   string
}

// Browser is a fresh one, in which nobody is signed in.
func (w *World) Browser() *Browser {
	w.t.Helper()
	jar, err := cookiejar.New(nil)
	if err != nil {
		w.t.Fatal(err)
	}
	home := strings.TrimPrefix(w.URL, "http://")
	return &Browser{t: w.t, base: w.URL, client: &http.Client{
		Jar: jar, Timeout: time.Minute, Transport: &http.Transport{DialContext: loopback},
		CheckRedirect: func(r *http.Request, _ []*http.Request) error {
			if r.URL.Host != home {
				return http.ErrUseLastResponse
			}
			return nil
		},
	}}
}

// loopback finds all names below localhost on this machine, as browsers do.
func loopback(ctx context.Context, network, address string) (net.Conn, error) {
	if host, port, err := net.SplitHostPort(address); err == nil && strings.HasSuffix(host, ".localhost") {
		address = net.JoinHostPort("127.0.0.1", port)
	}
	return new(net.Dialer).DialContext(ctx, network, address)
}

// Page is what the browser shows.
type Page struct {
	URL    *url.URL
	Status int
	// Away is where the Hub sent the browser, if that is not on the Hub: Text is empty then.
	Away  string
	Text  string // what a person reads, with single spaces
	Forms []Form
	links []link
}

type link struct{ text, to string }

// Form is one form of a Page.
type Form struct {
	Method, Action string
	Fields         url.Values // as the page filled them in
	Buttons        []Button
}

// Button sends a Form, with its name and value if it has one.
type Button struct{ Text, Name, Value string }

// Open goes to a path of the Hub, or to a whole address.
func (b *Browser) Open(to string) *Page {
	b.t.Helper()
	if strings.HasPrefix(to, "/") {
		to = b.base + to
	}
	r, err := http.NewRequest(http.MethodGet, to, nil)
	if err != nil {
		b.t.Fatal(err)
	}
	return b.do(r)
}

// Follow presses the link with this text.
func (b *Browser) Follow(p *Page, text string) *Page {
	b.t.Helper()
	return b.Open(p.Link(b.t, text))
}

// Link is the address that the link with this text leads to.
func (p *Page) Link(t testing.TB, text string) string {
	t.Helper()
	for _, l := range p.links {
		if l.text == text {
			to, err := p.URL.Parse(l.to)
			if err != nil {
				t.Fatal(err)
			}
			return to.String()
		}
	}
	t.Fatalf("%s has no link %q: %s\nlinks: %q", p.URL, text, p.Text, p.links)
	return ""
}

// Press presses the button with this text, after the fields of its form were filled in.
func (b *Browser) Press(p *Page, button string, fields url.Values) *Page {
	b.t.Helper()
	form, pressed := p.Form(b.t, button)
	values := form.Fields
	for k, v := range fields {
		values[k] = v
	}
	if pressed.Name != "" {
		values.Set(pressed.Name, pressed.Value)
	}
	to, err := p.URL.Parse(form.Action)
	if err != nil {
		b.t.Fatal(err)
	}
	var body io.Reader
	if form.Method == http.MethodGet {
		to.RawQuery = values.Encode()
	} else {
		body = strings.NewReader(values.Encode())
	}
	r, err := http.NewRequest(form.Method, to.String(), body)
	if err != nil {
		b.t.Fatal(err)
	}
	if body != nil {
		r.Header.Set("Content-Type", "application/x-www-form-urlencoded")
		r.Header.Set("Sec-Fetch-Site", "same-origin")
	}
	return b.do(r)
}

// Form is the one that the button with this text sends.
func (p *Page) Form(t testing.TB, button string) (Form, Button) {
	t.Helper()
	for _, f := range p.Forms {
		if i := slices.IndexFunc(f.Buttons, func(b Button) bool { return b.Text == button }); i >= 0 {
			return f, f.Buttons[i]
		}
	}
	t.Fatalf("%s has no button %q: %s", p.URL, button, p.Text)
	return Form{}, Button{}
}

func (b *Browser) do(r *http.Request) *Page {
	b.t.Helper()
	r.Header.Set("Accept", "text/html")
	answer, err := b.client.Do(r)
	if err != nil {
		b.t.Fatal(err)
	}
	defer answer.Body.Close()
	p := &Page{URL: answer.Request.URL, Status: answer.StatusCode}
	if answer.StatusCode/100 == 3 {
		p.Away = answer.Header.Get("Location")
		return p
	}
	root, err := html.Parse(answer.Body)
	if err != nil {
		b.t.Fatal(err)
	}
	p.read(root)
	p.Text = text(root)
	return p
}

func (p *Page) read(n *html.Node) {
	for d := range n.Descendants() {
		switch {
		case d.Type != html.ElementNode:
		case d.Data == "a" && attr(d, "href") != "":
			p.links = append(p.links, link{text(d), attr(d, "href")})
		case d.Data == "form":
			p.Forms = append(p.Forms, readForm(d))
		}
	}
}

func readForm(n *html.Node) Form {
	f := Form{Method: http.MethodGet, Action: attr(n, "action"), Fields: url.Values{}}
	if strings.EqualFold(attr(n, "method"), http.MethodPost) {
		f.Method = http.MethodPost
	}
	for d := range n.Descendants() {
		name := attr(d, "name")
		switch {
		case d.Type != html.ElementNode || has(d, "disabled"):
		case d.Data == "button":
			f.Buttons = append(f.Buttons, Button{text(d), name, attr(d, "value")})
		case name == "":
		case d.Data == "input" && (attr(d, "type") == "checkbox" || attr(d, "type") == "radio"):
			if has(d, "checked") {
				value := attr(d, "value")
				if !has(d, "value") {
					value = "on"
				}
				f.Fields.Add(name, value)
			}
		case d.Data == "input" && attr(d, "type") != "file":
			f.Fields.Add(name, attr(d, "value"))
		case d.Data == "textarea":
			f.Fields.Add(name, raw(d))
		case d.Data == "select":
			f.Fields.Add(name, chosen(d))
		}
	}
	return f
}

// chosen is the selected option, or the first one.
func chosen(n *html.Node) string {
	value, found := "", false
	for d := range n.Descendants() {
		if d.Type == html.ElementNode && d.Data == "option" && (!found || has(d, "selected")) {
			if value, found = attr(d, "value"), true; !has(d, "value") {
				value = text(d)
			}
		}
	}
	return value
}

func attr(n *html.Node, key string) string {
	for _, a := range n.Attr {
		if a.Key == key {
			return a.Val
		}
	}
	return ""
}

func has(n *html.Node, key string) bool {
	return slices.ContainsFunc(n.Attr, func(a html.Attribute) bool { return a.Key == key })
}

func raw(n *html.Node) string {
	var s strings.Builder
	for d := range n.Descendants() {
		if d.Type == html.TextNode && d.Parent.Data != "script" && d.Parent.Data != "style" {
			s.WriteString(d.Data)
			s.WriteByte(' ')
		}
	}
	return strings.TrimSuffix(s.String(), " ")
}

func text(n *html.Node) string { return strings.Join(strings.Fields(raw(n)), " ") }
