package web

import (
	"cmp"
	"context"
	"encoding/hex"
	"net/http"
	"net/url"
	"slices"

	"github.com/gorilla/mux"

	"github.com/claude-hub/claude-hub/app/access"
	"github.com/claude-hub/claude-hub/app/fault"
	"github.com/claude-hub/claude-hub/app/session"
	"github.com/claude-hub/claude-hub/handlers/ports"
)

type portPage struct {
	Page
	Session session.Session
	Port    uint16
	Path    string // of this page
	To      string // the path that is wanted at the port
	Go      string // where it goes on; empty: the Session isn't up
	Meaning string
}

// CanWake tells that the Session can be woken here.
func (p portPage) CanWake() bool { return p.Session.State == session.Asleep }

// PortRow is a port that somebody opened lately.
type PortRow struct {
	Port uint16
	Path string
}

func (w *Web) portRows(ctx context.Context, g access.Grant, session string) ([]PortRow, error) {
	if !w.d.Ports.On() {
		return nil, nil
	}
	places, err := w.d.Gate.Visited(ctx, session+"-")
	if err != nil {
		return nil, err
	}
	var rows []PortRow
	for _, name := range places {
		if p, ok := ports.ParsePlace(name); ok {
			rows = append(rows, PortRow{p.Port, ports.Path(g, p)})
		}
	}
	slices.SortFunc(rows, func(a, b PortRow) int { return cmp.Compare(a.Port, b.Port) })
	return rows, nil
}

// portOf is the port of the path, of a Session that the Hub gives origins to.
func (w *Web) portOf(r *http.Request) (ports.Place, error) {
	port, ok := ports.ParsePort(mux.Vars(r)["port"])
	if !ok || !w.d.Ports.On() {
		return ports.Place{}, fault.New(fault.NotFound, "There is no such page.")
	}
	return ports.Place{Session: mux.Vars(r)["session"], Port: port}, nil
}

// openPort leads to the page of the port that was typed.
func (w *Web) openPort(rw http.ResponseWriter, r *http.Request, g access.Grant) error {
	port, ok := ports.ParsePort(r.URL.Query().Get("port"))
	if !ok || !w.d.Ports.On() {
		return w.showSession(rw, r, g, http.StatusUnprocessableEntity, Form{General: "A port is a number from 1 to 65535."})
	}
	return seeOther(rw, r, ports.Path(g, ports.Place{Session: mux.Vars(r)["session"], Port: port}))
}

// port goes on to a port's own origin once its Session is up, and says until then how it stands.
func (w *Web) port(rw http.ResponseWriter, r *http.Request, g access.Grant) error {
	place, err := w.portOf(r)
	if err != nil {
		return err
	}
	sn, err := w.d.Sessions.Get(r.Context(), g, place.Session)
	if err != nil {
		return err
	}
	p := w.portPage(r, g, place, r.URL.Query().Get("to"))
	p.Session = sn
	if sn.State == session.Running {
		return w.leave(rw, r, p, w.d.Ports.Origin(place)+p.To)
	}
	runners, err := w.d.Fleet.Runners(r.Context())
	if err != nil {
		return err
	}
	p.Meaning = meaning(sn, runnerName(runners, sn.Runner))
	if moving(sn.State) {
		p.Refresh = pollMoving
	}
	return w.render(rw, r, http.StatusOK, "port", p)
}

func (w *Web) portPage(r *http.Request, g access.Grant, place ports.Place, to string) portPage {
	return portPage{Page: w.repoPage(r, g, "sessions", "A port of Session "+short(place.Session)), Port: place.Port, Path: ports.Path(g, place), To: access.LocalPath(to)}
}

// leave goes on to another origin. A redirect would not do: a page's policy holds for what its forms are redirected to as well.
func (w *Web) leave(rw http.ResponseWriter, r *http.Request, p portPage, to string) error {
	p.Go = to
	rw.Header().Set("Refresh", "0; url="+to)
	return w.render(rw, r, http.StatusOK, "port", p)
}

// wakePort wakes a Session whose port somebody wants.
func (w *Web) wakePort(rw http.ResponseWriter, r *http.Request, g access.Grant) error {
	place, err := w.portOf(r)
	if err != nil {
		return err
	}
	if err := parseForm(r); err != nil {
		return err
	}
	if err := w.d.Sessions.Wake(r.Context(), g, place.Session); err != nil && !fault.Is(err, fault.Refused) { // it may be up already
		return err
	}
	return seeOther(rw, r, ports.Path(g, place)+"?"+url.Values{"to": {access.LocalPath(r.PostForm.Get("to"))}}.Encode())
}

// admit lets a browser that was sent here by a port's origin in there.
func (w *Web) admit(rw http.ResponseWriter, r *http.Request, who access.Person) error {
	q := r.URL.Query()
	place, ok := ports.ParsePlace(q.Get("place"))
	asked, err := hex.DecodeString(q.Get("asked"))
	if !ok || err != nil || len(asked) != 32 || !w.d.Ports.On() {
		return fault.New(fault.NotFound, "There is no such page.")
	}
	g, _, err := ports.Find(r.Context(), w.d.Gate, w.d.Sessions, who, place.Session)
	if err != nil {
		return err
	}
	code, err := w.d.Gate.Admit(r.Context(), who, place.String(), asked)
	if err != nil {
		return err
	}
	if err := w.d.Sessions.PortOpened(r.Context(), g, place.Session, place.Port); err != nil {
		return err
	}
	return w.leave(rw, r, w.portPage(r, g, place, ""), w.d.Ports.VisitURL(place, code, q.Get("to")))
}
