package cmd

import (
	"bytes"
	"context"
	"errors"
	"io"
	"os"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/claude-hub/claude-hub/app/apptest"
)

// asked waits until a prompt comes through r.
func asked(t *testing.T, r io.Reader) {
	t.Helper()
	var seen []byte
	for b := make([]byte, 256); !bytes.Contains(seen, []byte("Value of ")); {
		n, err := r.Read(b)
		if err != nil {
			t.Errorf("no prompt came: %v, after %q", err, seen)
			return
		}
		seen = append(seen, b[:n]...)
	}
}

func echoes(t *testing.T, tty *os.File) bool {
	t.Helper()
	s, err := unix.IoctlGetTermios(int(tty.Fd()), unix.TCGETS)
	if err != nil {
		t.Fatal(err)
	}
	return s.Lflag&unix.ECHO != 0
}

func TestCtrlCAtThePromptBringsTheEchoBack(t *testing.T) {
	t.Parallel()
	_, tty := openTerminal(t)
	prompt, prompted, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer prompt.Close()
	defer prompted.Close()
	ctx, interrupt := context.WithCancel(t.Context())
	silent := make(chan bool, 1)
	go func() {
		asked(t, prompt)
		silent <- !echoes(t, tty)
		interrupt()
	}()
	if value, err := askValue(ctx, tty, prompted, "NPM", true); !errors.Is(err, context.Canceled) || value != nil {
		t.Errorf("got %q, %v", value, err)
	}
	if !<-silent || !echoes(t, tty) {
		t.Error("the echo wasn't off while it asked, or isn't on again")
	}
}

func TestASensitiveValueIsTypedAtThePrompt(t *testing.T) {
	h := newTown(t, apptest.Options{})
	master, tty := openTerminal(t)
	for _, c := range []struct {
		args  []string
		typed string
		code  int
	}{
		{[]string{"env", "variable", "set", "NPM", "--sensitive"}, "npm-token-1\n", exitOK},
		{[]string{"shared", "create", "WIDE", "--sensitive"}, "wide-token-1\n", exitOK},
		{[]string{"env", "variable", "set", "NPM"}, "\n", exitFailed},
		{[]string{"env", "variable", "set", "NPM"}, "one\ntwo\n", exitFailed},
	} {
		prompt, prompted, err := os.Pipe()
		if err != nil {
			t.Fatal(err)
		}
		go func() {
			asked(t, prompt)
			_, _ = master.WriteString(c.typed)
			_, _ = io.Copy(io.Discard, prompt)
		}()
		root := rootCommand()
		var out bytes.Buffer
		root.SetIn(tty)
		root.SetOut(&out)
		root.SetErr(prompted)
		root.SetArgs(c.args)
		err = root.ExecuteContext(t.Context())
		prompted.Close()
		if (err == nil) != (c.code == exitOK) || err != nil && exitCode(err) != c.code || strings.Contains(out.String(), "token-1") {
			t.Errorf("%q: %v\n%s", c.args, err, out.String())
		}
	}
	if values := h.values(h.Grant("ana"), h.Runner("r1")); len(values) != 1 || values["NPM"] != "npm-token-1" {
		t.Error("the Runner gets another value than the one typed")
	}
}
