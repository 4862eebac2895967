package web

import (
	"context"
	"crypto/rand"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"regexp"
	"strconv"
	"strings"
	"time"

	"github.com/coder/websocket"
	"github.com/gorilla/mux"

	"github.com/claude-hub/claude-hub/app/access"
	"github.com/claude-hub/claude-hub/app/fault"
	"github.com/claude-hub/claude-hub/app/fleet"
	"github.com/claude-hub/claude-hub/handlers/peer"
	"github.com/claude-hub/claude-hub/handlers/request"
	"github.com/claude-hub/claude-hub/runner/wire"
)

const (
	// terminalPiece is how much output one message carries, terminalInput how much input.
	terminalPiece = 64 << 10
	terminalInput = 64 << 10
	// terminalPoll is how long one look waits: a silent terminal's stream is kept alive so often.
	terminalPoll = 15 * time.Second
	// terminalTerm is what xterm.js is.
	terminalTerm = "xterm-256color"
)

// TerminalRow is one terminal in a Session's list.
type TerminalRow struct {
	ID, Path string
	Number   int // counted from 1 in the order they were opened, of those listed
	By       string
	At       time.Time
	Ended    string // in words; empty: it runs
}

func terminalRows(all []fleet.Terminal, path string) []TerminalRow {
	rows := make([]TerminalRow, 0, len(all))
	for i, t := range all {
		rows = append(rows, TerminalRow{ID: t.ID, Path: path + "/terminals/" + t.ID, Number: i + 1, By: t.OpenedBy, At: t.Opened, Ended: howEnded(t.Ended.IsZero(), t.Exit)})
	}
	return rows
}

// howEnded says in words how a terminal's process ended.
func howEnded(runs bool, exit wire.ChannelExit) string {
	switch {
	case runs:
		return ""
	case exit.Failed != "":
		return "ended: " + exit.Failed
	case exit.OOM:
		return "ended: the Sandbox ran out of memory"
	case exit.Signal != "":
		return "ended by " + exit.Signal
	}
	return fmt.Sprintf("ended with code %d", exit.Code)
}

type terminalPage struct {
	Page
	Session string // its id
	Path    string // of this terminal
	By      string
	Ended   string
	Nonce   string // of the style elements that xterm.js makes
	Shell   string // what to type elsewhere
}

func (w *Web) openTerminal(rw http.ResponseWriter, r *http.Request, g access.Grant) error {
	id := mux.Vars(r)["session"]
	t, err := w.d.Sessions.OpenTerminal(r.Context(), g, id, wire.ChannelSpec{Rows: 24, Cols: 80, Term: terminalTerm})
	var f *fault.Error
	if errors.As(err, &f) && f.Code != fault.NotFound {
		return w.showSession(rw, r, g, request.Status(f.Code), Form{General: f.Message})
	}
	if err != nil {
		return err
	}
	return seeOther(rw, r, sessionPath(g, id)+"/terminals/"+t.ID)
}

func (w *Web) terminal(rw http.ResponseWriter, r *http.Request, g access.Grant) error {
	id := mux.Vars(r)["session"]
	t, err := w.d.Sessions.Terminal(r.Context(), g, id, mux.Vars(r)["terminal"])
	if err != nil {
		return err
	}
	p := terminalPage{
		Page: w.repoPage(r, g, "sessions", "Terminal in Session "+short(id)), Session: id, Path: sessionPath(g, id) + "/terminals/" + t.ID, By: t.OpenedBy,
		Ended: howEnded(t.Ended.IsZero(), t.Exit), Nonce: rand.Text(), Shell: "claude-hub session shell " + id + " --attach " + t.ID,
	}
	policy := rw.Header().Get("Content-Security-Policy")
	rw.Header().Set("Content-Security-Policy", strings.Replace(policy, "style-src 'self'", "style-src 'self' 'nonce-"+p.Nonce+"'", 1))
	return w.render(rw, r, http.StatusOK, "terminal", p)
}

func (w *Web) closeTerminal(rw http.ResponseWriter, r *http.Request, g access.Grant) error {
	id := mux.Vars(r)["session"]
	if err := w.d.Sessions.CloseTerminal(r.Context(), g, id, mux.Vars(r)["terminal"]); err != nil {
		return err
	}
	return seeOther(rw, r, sessionPath(g, id))
}

// atHome answers at the Hub that has the Session's terminals in its memory.
func (w *Web) atHome(h func(http.ResponseWriter, *http.Request, access.Grant) error) func(http.ResponseWriter, *http.Request, access.Grant) error {
	return func(rw http.ResponseWriter, r *http.Request, g access.Grant) error {
		home, err := w.d.Sessions.Home(r.Context(), g, mux.Vars(r)["session"])
		if err != nil || peer.Pass(rw, r, home, nil) {
			return err
		}
		return h(rw, r, g)
	}
}

// underWay is for what goes on with something that was opened before: as with Gate.Hold, GitHub's being away ends no terminal.
func (w *Web) underWay(h func(http.ResponseWriter, *http.Request, access.Grant) error) http.Handler {
	next := w.granted(w.atHome(h))
	return http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
		next.ServeHTTP(rw, r.WithContext(access.Reading(r.Context())))
	})
}

// watching is one tab's look at a terminal.
type watching struct {
	w        *Web
	terminal string
	viewer   string
	next     int64 // output that is sent next; below 0: the oldest there is
}

var viewerName = regexp.MustCompile(`^[A-Za-z0-9-]{8,64}$`)

// watch finds the terminal of the path, and whose tab asks.
func (w *Web) watch(r *http.Request, g access.Grant) (*watching, error) {
	t, err := w.d.Sessions.Terminal(r.Context(), g, mux.Vars(r)["session"], mux.Vars(r)["terminal"])
	if err != nil {
		return nil, err
	}
	q := r.URL.Query()
	if !viewerName.MatchString(q.Get("viewer")) {
		return nil, fault.New(fault.Invalid, "A viewer is named by 8 to 64 letters and digits.")
	}
	// Names are kept apart by person, so that nobody's input takes the place of another's.
	s := &watching{w: w, terminal: t.ID, viewer: g.Actor() + "/" + q.Get("viewer"), next: -1}
	if from, err := strconv.ParseInt(q.Get("from"), 10, 64); err == nil {
		s.next = from
	}
	return s, nil
}

// terminalState is what a tab is told beside the output.
type terminalState struct {
	In    int64  `json:"in"`   // how much of this tab's input was taken
	End   int64  `json:"end"`  // of the output there is: what comes before it was printed before this was sent
	Rows  uint16 `json:"rows"` // 0: nobody has said
	Cols  uint16 `json:"cols"`
	Up    bool   `json:"up"`              // the Runner serves it
	Ended string `json:"ended,omitempty"` // how
}

// follow sends what is new until there is nothing any more or sending fails.
func (s *watching) follow(ctx context.Context, output func(at int64, data []byte) error, state func(terminalState) error, idle func() error) error {
	var said terminalState
	look := fleet.Look{Viewer: s.viewer, Most: terminalPiece, Sizes: -1}
	for first := true; ; first = false {
		look.From = s.next
		v, err := s.w.d.Sessions.LookAt(ctx, s.terminal, look)
		if err != nil {
			return err
		}
		now := terminalState{In: v.InNext, End: v.End, Rows: v.Rows, Cols: v.Cols, Up: v.Picked}
		switch {
		case v.Ended:
			now.Ended = howEnded(false, v.Exit)
		case v.Gone != "" && len(v.Data) == 0:
			now.Ended = v.Gone
		}
		told := now
		if !first {
			told.End = said.End // of no news by itself
		}
		// The last bytes go before the word that they are the last.
		if len(v.Data) > 0 {
			if err := output(v.Offset, v.Data); err != nil {
				return err
			}
			s.next = v.Offset + int64(len(v.Data))
		} else if s.next < 0 {
			s.next = v.Offset
		}
		switch {
		case first || told != said:
			err = state(now)
			said = now
		case len(v.Data) == 0:
			err = idle()
		}
		if err != nil || now.Ended != "" {
			return err
		}
		look.Sizes, look.InNext, look.Wait = v.Sizes, v.InNext, terminalPoll
		select {
		case <-s.w.d.Stopping:
			return nil
		default:
		}
	}
}

// socket is a tab's WebSocket. From the Hub come binary messages, eight bytes of offset and output, and terminalState as text.
// From the tab come binary messages, eight bytes of offset and input, and as text what steers.
func (w *Web) terminalSocket(rw http.ResponseWriter, r *http.Request, g access.Grant) error {
	s, err := w.watch(r, g)
	if err != nil {
		return err
	}
	conn, err := websocket.Accept(rw, r, &websocket.AcceptOptions{OriginPatterns: []string{w.d.PublicURL.Host}})
	if err != nil { // it has answered
		request.Log(r.Context()).Debug().Err(err).Msg("no WebSocket")
		return nil
	}
	conn.SetReadLimit(terminalInput + 4096)
	held, release := w.d.Gate.Hold(r.Context(), g)
	defer release()
	ctx, stop := context.WithCancelCause(held)
	defer stop(nil)
	go func() { stop(s.listen(ctx, conn)) }()
	if w.d.Stopping != nil {
		go func() {
			select {
			case <-w.d.Stopping:
				stop(errors.New("the Hub stops"))
			case <-ctx.Done():
			}
		}()
	}
	send := func(kind websocket.MessageType, b []byte) error {
		slow, cancel := context.WithTimeout(ctx, sendTime)
		defer cancel()
		return conn.Write(slow, kind, b)
	}
	err = s.follow(ctx, func(at int64, data []byte) error {
		return send(websocket.MessageBinary, append(binary.BigEndian.AppendUint64(make([]byte, 0, 8+len(data)), uint64(at)), data...))
	}, func(now terminalState) error {
		b, err := json.Marshal(now)
		if err != nil {
			return err
		}
		return send(websocket.MessageText, b)
	}, func() error {
		alive, cancel := context.WithTimeout(ctx, sendTime)
		defer cancel()
		return conn.Ping(alive)
	})
	switch {
	case err == nil:
		_ = conn.Close(websocket.StatusNormalClosure, "")
	case held.Err() != nil && r.Context().Err() == nil:
		_ = conn.Close(websocket.StatusPolicyViolation, "access has ended")
	default:
		_ = conn.Close(websocket.StatusGoingAway, "")
	}
	return nil
}

// steering is what a tab says beside its input.
type steering struct {
	Taken int64  `json:"taken,omitempty"` // of the output it has shown
	Rows  uint16 `json:"rows,omitempty"`
	Cols  uint16 `json:"cols,omitempty"`
}

// listen takes what the tab says until the connection ends. It isn't read under ctx, whose end would cut it off without a reason.
func (s *watching) listen(ctx context.Context, conn *websocket.Conn) error {
	reading := context.WithoutCancel(ctx)
	for {
		kind, b, err := conn.Read(reading)
		if err != nil {
			return err
		}
		if kind == websocket.MessageText {
			var say steering
			if err := json.Unmarshal(b, &say); err != nil {
				return err
			}
			if err := s.steer(ctx, say); err != nil {
				return err
			}
			continue
		}
		if len(b) < 8 {
			return errors.New("a message lacks its offset")
		}
		if _, err := s.w.d.Sessions.Type(ctx, s.terminal, s.viewer, int64(binary.BigEndian.Uint64(b)), b[8:], time.Hour); err != nil {
			return err
		}
	}
}

func (s *watching) steer(ctx context.Context, say steering) error {
	if say.Taken > 0 {
		if _, err := s.w.d.Sessions.LookAt(ctx, s.terminal, fleet.Look{Viewer: s.viewer, From: say.Taken, Taken: say.Taken}); err != nil {
			return err
		}
	}
	if say.Rows > 0 && say.Cols > 0 {
		return s.w.d.Sessions.Resize(ctx, s.terminal, s.viewer, min(say.Rows, 1000), min(say.Cols, 1000))
	}
	return nil
}

// terminalEvents is the way without a WebSocket: what comes from the Hub, as server-sent events.
func (w *Web) terminalEvents(rw http.ResponseWriter, r *http.Request, g access.Grant) error {
	s, err := w.watch(r, g)
	if err != nil {
		return err
	}
	if last, err := strconv.ParseInt(r.Header.Get("Last-Event-ID"), 10, 64); err == nil {
		s.next = last
	}
	h := rw.Header()
	h.Set("Content-Type", "text/event-stream")
	h.Set("Cache-Control", "no-cache, no-store")
	h.Set("X-Accel-Buffering", "no")
	ctx, release := w.d.Gate.Hold(r.Context(), g)
	defer release()
	out := sender{rw, http.NewResponseController(rw)}
	if out.send("retry: 1000\n\n") != nil {
		return nil
	}
	event := func(name, id string, v any) error {
		b, err := json.Marshal(v)
		if err != nil {
			return err
		}
		return out.send("event: " + name + "\n" + id + "data: " + string(b) + "\n\n")
	}
	_ = s.follow(ctx, func(at int64, data []byte) error {
		return event("output", fmt.Sprintf("id: %d\n", at+int64(len(data))), struct {
			At   int64  `json:"at"`
			Data []byte `json:"data"`
		}{at, data})
	}, func(now terminalState) error { return event("state", "", now) }, func() error { return out.send(": still here\n\n") })
	if ctx.Err() != nil && r.Context().Err() == nil {
		_ = event("end", "", struct{}{}) // access has: anything else is taken up again
	}
	return nil
}

// terminalType is the way without a WebSocket: input, whose body is the bytes. It answers how much of it was taken in all.
func (w *Web) terminalType(rw http.ResponseWriter, r *http.Request, g access.Grant) error {
	s, err := w.watch(r, g)
	if err != nil {
		return err
	}
	offset, err := strconv.ParseInt(r.URL.Query().Get("offset"), 10, 64)
	if err != nil {
		return fault.New(fault.Invalid, "Input has an offset.")
	}
	b, err := io.ReadAll(http.MaxBytesReader(rw, r.Body, terminalInput))
	if err != nil {
		return unreadable(err)
	}
	next, err := w.d.Sessions.Type(r.Context(), s.terminal, s.viewer, offset, b, request.MaxWait)
	if err != nil {
		return err
	}
	rw.Header().Set("Content-Type", "application/json")
	_, err = fmt.Fprintf(rw, "{\"in\":%d}\n", next)
	return err
}

// terminalSteer is the way without a WebSocket: what steers.
func (w *Web) terminalSteer(rw http.ResponseWriter, r *http.Request, g access.Grant) error {
	s, err := w.watch(r, g)
	if err != nil {
		return err
	}
	var say steering
	if err := json.NewDecoder(http.MaxBytesReader(rw, r.Body, 4096)).Decode(&say); err != nil {
		return errInput
	}
	if err := s.steer(r.Context(), say); err != nil {
		return err
	}
	rw.WriteHeader(http.StatusNoContent)
	return nil
}
