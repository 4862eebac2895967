package session

import (
	"testing"
	"time"

	"github.com/claude-hub/claude-hub/runner/build"
	"github.com/claude-hub/claude-hub/runner/image"
	"github.com/claude-hub/claude-hub/runner/wire"
)

func TestUnsavedFilesAreCountedFromPorcelain(t *testing.T) {
	t.Parallel()
	for in, want := range map[string]int{
		"":                              0,
		" M a\x00":                      1,
		" M a b\nc\x00?? d\x00":         2,
		"R  new\x00old\x00 M x\x00":     2,
		"C  new\x00old\x00":             1,
		"RM new\x00M  old\x00?? y/\x00": 2,
	} {
		if got := entries([]byte(in)); got != want {
			t.Errorf("%q: %d, want %d", in, got, want)
		}
	}
}

func TestHostnameIsTheReposNameAsAHostCanHaveIt(t *testing.T) {
	t.Parallel()
	for in, want := range map[string]string{"team/The_App.js": "the-app-js", "x": "x", "team/___": "session", "": "session", "a/-b-": "b",
		"a/0123456789012345678901234567890123456789xyz": "0123456789012345678901234567890123456789"} {
		if got := hostname(wire.Session{Repo: wire.Repo{Name: in}}); got != want {
			t.Errorf("%q: %q, want %q", in, got, want)
		}
	}
}

func TestAShellAtItsPromptIsIdleAndAnExecInProgressIsNot(t *testing.T) {
	t.Parallel()
	var a activity
	a.open()
	if !a.begin(false) {
		t.Fatal("a terminal was refused")
	}
	a.last = time.Now().Add(-time.Hour)
	if a.idle() < time.Hour {
		t.Error("a terminal without bytes counts as activity")
	}
	a.end(false)
	if a.idle() < time.Hour {
		t.Error("the end of a terminal counts as activity")
	}
	a.touch()
	if a.idle() > time.Minute {
		t.Error("a byte doesn't count")
	}
	a.begin(true)
	a.last = time.Now().Add(-time.Hour)
	if a.idle() != 0 || a.close(time.Minute) {
		t.Error("an exec in progress doesn't count")
	}
	a.end(true)
	if a.close(time.Minute) {
		t.Error("the end of an exec doesn't count")
	}
	a.last = time.Now().Add(-time.Hour)
	if !a.close(time.Minute) || a.begin(false) {
		t.Error("what begins after the decision to sleep isn't refused")
	}
	a.open()
	if !a.begin(true) {
		t.Error("an awake Session refuses an exec")
	}
}

func TestTheLoginShellIsThatOfTheImagesUserIfItIsOne(t *testing.T) {
	t.Parallel()
	base := func(shell string) build.Base {
		return build.Base{Meta: build.Meta{Image: image.Config{User: "coder"}, User: build.User{Shell: shell}}}
	}
	for _, c := range []struct {
		shell, user, first string
	}{{"/bin/zsh", "coder", "/bin/zsh"}, {"/usr/sbin/nologin", "coder", "bash"}, {"", "coder", "bash"}, {"zsh", "coder", "bash"}, {"/bin/zsh", "root", "bash"}} {
		if got := loginShells(base(c.shell), c.user); got[0] != c.first || got[len(got)-1] != "sh" {
			t.Errorf("%+v: %q", c, got)
		}
	}
}
