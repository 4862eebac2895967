package agent

import (
	"bytes"
	"io"
	"strings"
	"sync"
	"testing"
	"time"
)

// screen collects a terminal's output in the background.
type screen struct {
	mu   sync.Mutex
	b    bytes.Buffer
	done chan error
}

func (s *screen) Write(p []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.b.Write(p)
}

func (s *screen) text() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.b.String()
}

func (b *box) watch(id string) *screen {
	s := &screen{done: make(chan error, 1)}
	c := ctx(b.t)
	go func() {
		_, err := b.Copy(c, id, Out, 0, s)
		s.done <- err
	}()
	return s
}

func (s *screen) shows(t *testing.T, want string) {
	t.Helper()
	until(t, "output "+want, func() (bool, string) { return strings.Contains(s.text(), want), s.text() })
}

func TestATerminalIsTheControllingOneWithItsSize(t *testing.T) {
	t.Parallel()
	b := boot(t, image{})
	out, exit := b.run(Cmd{TTY: &Size{Rows: 33, Cols: 123}, User: "coder", Argv: []string{"sh", "-c",
		`stty size; echo $TERM; test -t 0 && test -t 1 && test -t 2 && echo tty; stat -c '%U %a' $(tty); echo hi >/dev/tty; exit 5`}})
	want := "33 123\r\nxterm-256color\r\ntty\r\ncoder 620\r\nhi\r\n"
	if out != want || exit.Code != 5 {
		t.Errorf("%q %+v", out, exit)
	}
}

func TestATerminalTakesInputResizeAndControlC(t *testing.T) {
	t.Parallel()
	b := boot(t, image{})
	id := b.start(Cmd{TTY: &Size{Rows: 24, Cols: 80}, Full: DropOldest,
		Argv: []string{"bash", "--norc", "--noprofile"}, Env: []string{"PS1=ready> ", "PATH=/bin:/usr/bin"}})
	s := b.watch(id)
	s.shows(t, "ready> ")
	at := int64(0)
	typed := func(text string) {
		t.Helper()
		if err := b.Input(ctx(t), id, at, []byte(text)); err != nil {
			t.Fatal(err)
		}
		at += int64(len(text))
	}
	typed("trap 'echo got-$((1+1))-winch' WINCH; echo trapped-$((40+2))\r")
	s.shows(t, "trapped-42")
	if err := b.Resize(ctx(t), id, Size{Rows: 50, Cols: 200}); err != nil {
		t.Fatal(err)
	}
	typed("stty size\r")
	s.shows(t, "50 200")
	s.shows(t, "got-2-winch")
	typed("echo sleep-$((40+2)); sleep 1000\r")
	s.shows(t, "sleep-42")
	// The shell must have handed the terminal to sleep before ^C means sleep.
	until(t, "sleep in the foreground", func() (bool, string) {
		ps, err := b.Processes(ctx(t))
		if err != nil {
			t.Fatal(err)
		}
		for _, p := range ps {
			if p.Argv[0] == "sleep" {
				return true, ""
			}
		}
		return false, ""
	})
	typed("\x03")
	typed("echo code=$?\r")
	s.shows(t, "code=130")
	if err := b.CloseInput(ctx(t), id); err == nil {
		t.Error("a terminal's input was closed")
	}
	typed("exit 6\r")
	if e := b.wait(id); e.Code != 6 {
		t.Errorf("%+v", e)
	}
	if err := <-s.done; err != nil {
		t.Error(err)
	}
	if err := b.Resize(ctx(t), id, Size{Rows: 1, Cols: 1}); err == nil {
		t.Error("a closed terminal was resized")
	}
}

func TestALargePasteIntoATerminalArrives(t *testing.T) {
	t.Parallel()
	b := boot(t, image{})
	id := b.start(Cmd{TTY: &Size{Rows: 24, Cols: 80}, Argv: []string{"sh", "-c", "stty raw -echo; echo go; head -c 500000 | sha256sum"}})
	s := b.watch(id)
	s.shows(t, "go")
	if err := b.Input(ctx(t), id, 0, bytes.Repeat([]byte("paste\r"), 500_000/6+1)); err != nil {
		t.Fatal(err)
	}
	if err := <-s.done; err != nil {
		t.Fatal(err)
	}
	want := b.sh(`yes paste | tr '\n' '\r' | head -c 500000 | sha256sum`)
	if !strings.Contains(s.text(), strings.Fields(want)[0]) {
		t.Errorf("%q, want %q", s.text(), want)
	}
}

func TestTheLastOutputOfATerminalIsNotLost(t *testing.T) {
	t.Parallel()
	b := boot(t, image{})
	for range 30 {
		out, _ := b.run(Cmd{TTY: &Size{Rows: 24, Cols: 80}, Argv: []string{"seq", "1", "3000"}})
		if n := strings.Count(out, "\n"); n != 3000 || !strings.HasSuffix(out, "\r\n3000\r\n") {
			t.Fatalf("%d lines", n)
		}
	}
}

func TestABackgroundProcessDoesNotHoldATerminal(t *testing.T) {
	t.Parallel()
	b := boot(t, image{})
	begun := time.Now()
	id := b.start(Cmd{TTY: &Size{Rows: 24, Cols: 80}, Argv: []string{"bash", "-c", "setsid sleep 1000 & echo started"}})
	r, err := b.Output(ctx(t), id, Out, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	if out, err := io.ReadAll(r); err != nil || string(out) != "started\r\n" || time.Since(begun) > 20*time.Second {
		t.Errorf("%q %v after %s", out, err, time.Since(begun))
	}
}
