package runner

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	"github.com/claude-hub/claude-hub/app/fleet"
	"github.com/claude-hub/claude-hub/envspec"
	"github.com/claude-hub/claude-hub/runner/wire"
)

// tab is somebody who looks at a terminal.
type tab struct {
	w        *world
	id, name string
	out      strings.Builder
	next     int64
	gaps     int
	typed    int64
	in       int64
	last     fleet.View
}

func (w *world) terminal(session string) *tab {
	w.t.Helper()
	t, err := w.fleet.OpenTerminal(context.Background(), session, "ana", wire.ChannelSpec{Rows: 24, Cols: 80, Term: "xterm-256color"})
	if err != nil {
		w.t.Fatal(err)
	}
	return &tab{w: w, id: t.ID, name: "first"}
}

// another looks from the oldest there is, as a page that is loaded again.
func (v *tab) another(name string) *tab { return &tab{w: v.w, id: v.id, name: name, next: -1} }

// look asks once.
func (v *tab) look(wait time.Duration) {
	v.w.t.Helper()
	view, err := v.w.fleet.LookAt(context.Background(), v.id, fleet.Look{Viewer: v.name, From: v.next, Taken: v.next, Most: 64 << 10, Sizes: v.last.Sizes, InNext: v.in, Wait: wait})
	if errors.Is(err, fleet.ErrNoChannel) { // a Hub that was restarted learns of it from the Runner, or here
		if _, _, err := v.w.fleet.TerminalOf(context.Background(), v.id); err != nil {
			v.w.t.Fatal(err)
		}
		return
	}
	if err != nil {
		v.w.t.Fatal(err)
	}
	if len(view.Data) > 0 {
		if v.next >= 0 && view.Offset != v.next {
			v.gaps++
		}
		v.out.Write(view.Data)
		v.next = view.Offset + int64(len(view.Data))
	}
	v.in, v.last = view.InNext, view
}

func (v *tab) until(words string) {
	v.w.t.Helper()
	newest := func() string { return v.out.String()[max(0, v.out.Len()-128<<10):] }
	for end := time.Now().Add(limit); !strings.Contains(newest(), words); v.look(time.Second) {
		if time.Now().After(end) || v.last.Ended || v.last.Gone != "" {
			all := newest()
			v.w.t.Fatalf("%q never came: %q, of %d bytes, %+v", words, all[max(0, len(all)-2000):], v.last.End, v.last)
		}
	}
}

func (v *tab) write(text string) {
	v.w.t.Helper()
	for end := time.Now().Add(limit); text != ""; {
		next, err := v.w.fleet.Type(context.Background(), v.id, v.name, v.typed, []byte(text), 0)
		if err != nil {
			v.w.t.Fatal(err)
		}
		text = text[next-v.typed:]
		v.typed = next
		if text != "" {
			v.look(20 * time.Millisecond)
		}
		if time.Now().After(end) {
			v.w.t.Fatalf("%d bytes were never taken", len(text))
		}
	}
}

func (v *tab) end() wire.ChannelExit {
	v.w.t.Helper()
	for end := time.Now().Add(limit); !v.last.Ended; v.look(time.Second) {
		if time.Now().After(end) {
			v.w.t.Fatalf("it never ended: %q %+v", v.out.String(), v.last)
		}
	}
	return v.last.Exit
}

func TestATerminalOutlivesWhoLooksTheHubAndTheRunner(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.start()
	const value = "correct horse battery"
	w.owner.give("", &wire.Value{Name: "SECRET", Value: []byte(value), Id: "v", Sensitive: true})
	spec := envspec.Spec{Image: w.image("app:v1", asCoder), Variables: []envspec.Variable{{Name: "SECRET", Sensitive: true, ValueID: "v"}}}
	recipe, key := w.version(spec)
	id := w.session(recipe, key, w.repo())
	w.untilState(id, wire.StateRunning)
	w.halt()
	w.spawn()
	v := w.terminal(id)
	v.write("tty; stty size; echo $TERM; echo at $$ is $SECRET.\r")
	masked := strings.Repeat("*", len(value))
	v.until("is " + masked + ".")
	pid := between(t, v.out.String(), "at ", " is")
	for _, want := range []string{"/dev/pts/", "24 80", "xterm-256color", "is " + masked + "."} {
		if !strings.Contains(v.out.String(), want) {
			t.Errorf("the terminal lacks %q:\n%s", want, v.out.String())
		}
	}
	cut := map[string]func(){
		"Hub":    w.restartHub,
		"Runner": func() { w.kill(); w.spawn() },
		"both":   func() { w.kill(); w.restartHub(); w.spawn() },
	}
	for i, name := range []string{"Hub", "Runner", "both", "Hub"} {
		cut[name]()
		v.name, v.typed, v.in = fmt.Sprint("after ", i), 0, 0 // a browser's tab takes another name when the Hub knows it no more
		v.look(0)
		v.look(0)
		v.write(fmt.Sprintf("echo again-$((%d+0))-$$; echo n >>/tmp/n\r", i))
		v.until(fmt.Sprintf("again-%d-%s\r\n", i, pid))
	}
	if v.gaps != 0 {
		t.Errorf("%d gaps in what one who looked all the time got", v.gaps)
	}
	fresh := v.another("fresh")
	fresh.until("again-3-" + pid)
	if got, want := fresh.out.String(), v.out.String(); got != want {
		t.Errorf("who comes later sees\n%q\nand who looked all the time saw\n%q", got, want)
	}
	if strings.Contains(v.out.String()+fresh.out.String(), value) {
		t.Error("the value came through")
	}
	if got := w.sh(id, "cat /tmp/n"); got != "n\nn\nn\nn\n" {
		t.Errorf("what was typed was run %q", got)
	}

	// Two look, both type, both see; the newest size counts.
	if err := w.fleet.ResizeTerminal(v.id, fresh.name, 30, 100); err != nil {
		t.Fatal(err)
	}
	fresh.write("stty size; echo from-$((1+1))\r")
	v.until("from-2\r\n")
	if !strings.Contains(v.out.String(), "30 100\r\n") || v.last.Rows != 30 || v.last.Cols != 100 {
		t.Errorf("the new size is not everywhere: %+v", v.last)
	}

	// A megabyte is pasted.
	paste := make([]byte, 0, 1<<20)
	for len(paste) < 1<<20-100 {
		paste = fmt.Appendf(paste, "%x é€😀\n", rand.Uint64())
	}
	v.write("stty -echo; head -c " + fmt.Sprint(len(paste)) + " >/tmp/pasted; stty echo; sha256sum </tmp/pasted\r")
	v.write(string(paste))
	sum := sha256.Sum256(paste)
	v.until(hex.EncodeToString(sum[:]))

	// It floods: who looks is neither flooded nor left behind.
	v.write("seq 1 300000; echo do''ne\r")
	v.until("done\r\n")
	if !strings.Contains(v.out.String(), "\n300000\r\n") {
		t.Error("the end of a flood did not come whole")
	}

	all, err := w.fleet.Terminals(context.Background(), id)
	if err != nil || len(all) != 1 || all[0].OpenedBy != "ana" || !all[0].Ended.IsZero() {
		t.Errorf("terminals: %+v, %v", all, err)
	}
	v.write("exit 7\r")
	if exit := v.end(); exit.Code != 7 || exit.Failed != "" {
		t.Errorf("it ended with %+v", exit)
	}
	if all, err = w.fleet.Terminals(context.Background(), id); err != nil || len(all) != 1 || all[0].Ended.IsZero() || all[0].Exit.Code != 7 {
		t.Errorf("terminals: %+v, %v", all, err)
	}
}

func TestATerminalEndsWithItsSandboxAndIsNotStartedASecondTime(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.start()
	recipe, key := w.version(envspec.Spec{Image: w.image("app:v1", asCoder)})
	id := w.session(recipe, key, w.repo())
	w.untilState(id, wire.StateRunning)
	v := w.terminal(id)
	v.write("echo up-$((1+0))\r")
	v.until("up-1\r\n")
	w.change(id, fleet.Stop)
	w.untilState(id, wire.StateAsleep)
	// Which of the two is seen first is chance: that its shell was killed, or that nobody answers any more.
	if exit := v.end(); exit.Signal != "SIGKILL" && (exit.Code != 125 || !strings.Contains(exit.Failed, "Sandbox ended")) {
		t.Errorf("asleep: %+v", exit)
	}
	w.change(id, fleet.Run)
	w.untilState(id, wire.StateRunning)

	// One whose Sandbox went while nobody could tell is said to be gone.
	v = w.terminal(id)
	v.write("echo up-$((2+0))\r")
	v.until("up-2\r\n")
	w.halt()
	if err := stopSandboxes(w); err != nil {
		t.Fatal(err)
	}
	w.restartHub()
	w.start()
	for end := time.Now().Add(limit); ; {
		_, got, err := w.fleet.TerminalOf(context.Background(), v.id)
		if err != nil {
			t.Fatal(err)
		}
		if !got.Ended.IsZero() {
			if got.Exit.Code != 125 || got.Exit.Failed == "" {
				t.Errorf("it ended with %+v", got.Exit)
			}
			break
		}
		if time.Now().After(end) {
			t.Fatalf("it never ended: %+v", got)
		}
		v.look(200 * time.Millisecond)
	}
}

func TestAPortOfASandboxIsConnectedTo(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.start()
	recipe, key := w.version(envspec.Spec{Image: w.image("app:v1", asCoder)})
	id := w.session(recipe, key, w.repo())
	w.untilState(id, wire.StateRunning)
	w.sh(id, "(echo from-the-port | nc -l -p 8080 >/tmp/came) </dev/null >/tmp/nc 2>&1 & until grep -q :1F90 /proc/net/tcp*; do cat /tmp/nc; sleep 0.05; done")
	c := w.open(id, wire.ChannelSpec{Port: 8080, Stdin: true})
	c.until("from-the-port\n")
	c.move([]byte("to the port"), true)
	if r := c.end(); r.exit.Code != 0 {
		t.Errorf("%+v", r)
	}
	if got := w.sh(id, "cat /tmp/came"); got != "to the port" {
		t.Errorf("the port got %q", got)
	}
	if r := w.open(id, wire.ChannelSpec{Port: 8081}).end(); r.exit.Code != 1 || !strings.Contains(r.err, "port 8081") {
		t.Errorf("a port nobody listens on: %+v", r)
	}
}

func between(t *testing.T, s, from, to string) string {
	t.Helper()
	_, s, _ = strings.Cut(s, "\n"+from)
	s, _, ok := strings.Cut(s, to)
	if !ok {
		t.Fatalf("%q … %q is not in it", from, to)
	}
	return s
}
