package bench

import (
	"context"
	"encoding/binary"
	"net/http"
	"net/http/cookiejar"
	"net/url"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/coder/websocket"

	"github.com/claude-hub/claude-hub/e2e/world"
	"github.com/claude-hub/claude-hub/envspec"
	"github.com/claude-hub/claude-hub/handlers/api/schema"
	"github.com/claude-hub/claude-hub/runner/image/imagetest"
	"github.com/claude-hub/claude-hub/runner/wire"
)

const (
	// echoKeys are typed one after the other in each run; what counts of a run is its 99th percentile.
	echoKeys = 500
	// keyEvery is how fast a person types who is fast.
	keyEvery = 20 * time.Millisecond
)

// terminalEcho is from a key that a browser's WebSocket sends until it has the letter that the Sandbox's terminal echoes,
// through Hub and Runner as processes of this machine.
func terminalEcho(t *testing.T, b *bench) {
	h := newHub(t, world.Options{Hub: map[string]string{}})
	revision := h.draft(envspec.Spec{Image: h.Push("debian:1", imagetest.Busybox(t, nil))})
	test, err := h.api.StartTest(t.Context(), repoID, revision, "r1")
	h.check(err)
	h.passed(test.ID)
	_, err = h.api.Apply(t.Context(), repoID, revision, "")
	h.check(err)
	s, err := h.api.StartSession(t.Context(), repoID, schema.StartSession{})
	h.check(err)
	h.until(s.ID, wire.StateRunning)
	terminal, err := h.api.OpenTerminal(t.Context(), repoID, s.ID, schema.OpenTerminal{Rows: 24, Cols: 80})
	h.check(err)

	jar, err := cookiejar.New(nil)
	h.check(err)
	person := &http.Client{Jar: jar}
	res, err := person.PostForm(h.URL+"/sign-in", url.Values{"login": {"ana"}, "return_to": {"/"}})
	h.check(err)
	res.Body.Close()
	address := "ws" + strings.TrimPrefix(h.URL, "http") + "/repos/7/sessions/" + s.ID + "/terminals/" + terminal.ID + "/socket?viewer=benchmark&from=-1"
	conn, _, err := websocket.Dial(t.Context(), address, &websocket.DialOptions{HTTPClient: person})
	h.check(err)
	defer conn.CloseNow()

	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Minute)
	defer cancel()
	sent := int64(0)
	send := func(text string) {
		h.check(conn.Write(ctx, websocket.MessageBinary, append(binary.BigEndian.AppendUint64(nil, uint64(sent)), text...)))
		sent += int64(len(text))
	}
	wait := func(what string) {
		var all strings.Builder
		for !strings.Contains(all.String(), what) {
			kind, m, err := conn.Read(ctx)
			h.check(err)
			if kind == websocket.MessageBinary {
				all.Write(m[8:])
			}
		}
	}
	send("cat\r")
	wait("cat\r\n")
	keys := echoKeys
	if !b.peers {
		keys = 50
	}
	tick := time.NewTicker(keyEvery)
	defer tick.Stop()
	var p99 []float64
	for i := range b.warmUps + b.runs {
		var took []float64
		for k := range keys {
			<-tick.C
			key := string(rune('a' + k%26))
			began := time.Now()
			send(key)
			wait(key)
			took = append(took, ms(time.Since(began)))
			if k%60 == 59 {
				send("\r")
			}
		}
		if i >= b.warmUps {
			slices.Sort(took)
			p99 = append(p99, took[len(took)*99/100])
		}
	}
	record("terminal_echo", "ms", p99, "", nil)
}
