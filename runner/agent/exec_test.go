package agent

import (
	"bytes"
	"errors"
	"fmt"
	"os/signal"
	"strings"
	"syscall"
	"testing"
	"time"
)

func TestExecRunsTheProgramWithExactlyItsEnvironment(t *testing.T) {
	t.Parallel()
	b := boot(t, image{})
	value := "line 1\nline 2\n\xff\xfe \"$HOME\" `x`\n"
	out, exit := b.run(Cmd{Argv: []string{"env", "-0"}, Env: []string{"KEY=first", "EMPTY=", "KEY=" + value, "PATH=/bin"}})
	if exit.Code != 0 {
		t.Fatalf("%+v", exit)
	}
	want := []string{"EMPTY=", "HOME=/root", "KEY=" + value, "LOGNAME=root", "PATH=/bin", "SHELL=/bin/bash", "TERM=dumb", "USER=root"}
	got := strings.Split(strings.TrimSuffix(out, "\x00"), "\x00")
	if len(got) != len(want) {
		t.Fatalf("environment is %q, want %q", got, want)
	}
	for _, w := range want {
		if !strings.Contains("\x00"+out, "\x00"+w+"\x00") {
			t.Errorf("environment lacks %q: %q", w, got)
		}
	}
}

func TestExitCodesAndSignalsAreTold(t *testing.T) {
	t.Parallel()
	b := boot(t, image{})
	for line, want := range map[string]Exit{
		"true":        {},
		"exit 7":      {Code: 7},
		"exit 255":    {Code: 255},
		"kill -9 $$":  {Code: 137, Signal: "SIGKILL"},
		"kill -15 $$": {Code: 143, Signal: "SIGTERM"},
		"kill -11 $$": {Code: 139, Signal: "SIGSEGV"},
	} {
		if _, got := b.run(Cmd{Argv: []string{"sh", "-c", line}}); got != want {
			t.Errorf("%s: exit is %+v, want %+v", line, got, want)
		}
	}
}

func TestStandardErrorIsApartWithSplitAndInOrderWithout(t *testing.T) {
	t.Parallel()
	b := boot(t, image{})
	line := []string{"sh", "-c", "echo a; echo b >&2; echo c; echo d >&2"}
	var out, errs bytes.Buffer
	if _, err := b.Run(ctx(t), Cmd{ID: "split", Argv: line, Split: true}, &out, &errs); err != nil {
		t.Fatal(err)
	}
	if out.String() != "a\nc\n" || errs.String() != "b\nd\n" {
		t.Errorf("split: %q and %q", out.String(), errs.String())
	}
	if got, _ := b.run(Cmd{Argv: line}); got != "a\nb\nc\nd\n" {
		t.Errorf("merged: %q", got)
	}
}

func TestStandardInputIsDevNullUnlessAsked(t *testing.T) {
	t.Parallel()
	b := boot(t, image{})
	out, exit := b.run(Cmd{Script: script("cat\nreadlink /proc/self/fd/0\n")})
	if out != "/dev/null\n" || exit.Code != 0 {
		t.Errorf("%q %+v", out, exit)
	}
}

func TestNoDescriptorOfTheAgentReachesAProcess(t *testing.T) {
	t.Parallel()
	signal.Ignore(syscall.SIGWINCH) // the agent inherits it, as from whatever started the Runner
	b := boot(t, image{})
	// ls itself opens the folder it lists as the next free one, 3.
	if out := b.sh("ls /proc/self/fd"); strings.Join(strings.Fields(out), " ") != "0 1 2 3" {
		t.Errorf("descriptors are %q", out)
	}
	if out := b.sh("ulimit -c; ulimit -Hc; cut -d' ' -f6 /proc/self/stat | grep -c .; grep -E 'Sig(Ign|Blk)' /proc/self/status"); out !=
		"0\n0\n1\nSigBlk:\t0000000000000000\nSigIgn:\t0000000000000000\n" {
		t.Errorf("limits and signals are %q", out)
	}
}

func TestProcessStartsInItsOwnSession(t *testing.T) {
	t.Parallel()
	b := boot(t, image{})
	out := b.sh(`set -- $(cat /proc/$$/stat); echo $1 $5 $6`)
	f := strings.Fields(out)
	if len(f) != 3 || f[0] != f[1] || f[1] != f[2] {
		t.Errorf("pid, group and session are %q", out)
	}
}

func TestDirThatCannotBeEnteredFallsBackToRoot(t *testing.T) {
	t.Parallel()
	b := boot(t, image{Files: map[string]string{"/secret/": "", "/file": "x"}})
	for dir, want := range map[string]bool{"/secret": true, "/absent": true, "/file": true, "/tmp": false, "": false} {
		id := b.id()
		s, err := b.Start(ctx(t), Cmd{ID: id, Argv: []string{"pwd"}, Dir: dir, User: "coder"})
		if err != nil {
			t.Fatalf("%q: %v", dir, err)
		}
		var out bytes.Buffer
		if _, err := b.Copy(ctx(t), id, Out, 0, &out); err != nil {
			t.Fatal(err)
		}
		at := dir
		if want || dir == "" {
			at = "/"
		}
		if s.DirFallback != want || out.String() != at+"\n" {
			t.Errorf("%q: fallback %v, started in %q", dir, s.DirFallback, out.String())
		}
	}
}

func TestDirThatIsNeededIsNeverReplaced(t *testing.T) {
	t.Parallel()
	b := boot(t, image{Files: map[string]string{"/secret/": "", "/file": "x"}})
	b.sh("chmod 700 /secret")
	for dir, says := range map[string]string{
		"/secret": "the folder /secret can't be entered by coder: permission denied",
		"/absent": "there is no folder /absent in the Sandbox",
		"/file":   "/file is not a folder",
		"/tmp":    "",
	} {
		_, err := b.Start(ctx(t), Cmd{ID: b.id(), Argv: []string{"true"}, Dir: dir, NeedDir: true, User: "coder"})
		if says == "" && err != nil || says != "" && (!errors.Is(err, ErrDir) || err.Error() != says) {
			t.Errorf("%s: got %v, want %q", dir, err, says)
		}
	}
}

func TestStartErrorsNameWhatIsWrong(t *testing.T) {
	t.Parallel()
	b := boot(t, image{Files: map[string]string{
		"/opt/data": "just text", "/opt/node": "#!/opt/absent/node\n", "/opt/crlf": "#!/bin/sh\r\necho hi\r\n",
	}})
	b.sh("chmod 755 /opt/node /opt/crlf; mkdir /opt/folder; cp /opt/data /opt/text; chmod 755 /opt/text; install -m 700 /bin/true /opt/rootonly")
	big := strings.Repeat("x", 128<<10)
	for name, c := range map[string]struct {
		cmd  Cmd
		code *Error
		says string
	}{
		"absent":      {Cmd{Argv: []string{"no-such-tool"}, Env: []string{"PATH=/bin:/usr/bin"}}, ErrNotFound, "no-such-tool was not found in PATH (/bin:/usr/bin)"},
		"absent path": {Cmd{Argv: []string{"/opt/none"}}, ErrNotFound, "/opt/none was not found"},
		"no x bit":    {Cmd{Argv: []string{"/opt/data"}}, ErrDenied, "/opt/data can't be executed by root: permission denied"},
		"not for me":  {Cmd{Argv: []string{"/opt/rootonly"}, User: "coder"}, ErrDenied, "/opt/rootonly can't be executed by coder: permission denied"},
		"folder":      {Cmd{Argv: []string{"/opt/folder"}}, nil, "/opt/folder was not found"},
		"text":        {Cmd{Argv: []string{"/opt/text"}}, ErrDenied, "neither a program for this machine nor a script with a shebang"},
		"interpreter": {Cmd{Argv: []string{"/opt/node"}}, ErrInterpreter, "the interpreter /opt/absent/node of /opt/node was not found"},
		"crlf":        {Cmd{Argv: []string{"/opt/crlf"}}, ErrInterpreter, `/bin/sh\r was not found: its line endings are CRLF`},
		"value":       {Cmd{Argv: []string{"true"}, Env: []string{"PEM=" + big}}, ErrLimit, "the value of PEM has 131072 bytes"},
		"NUL":         {Cmd{Argv: []string{"true"}, Env: []string{"A=x\x00y"}}, nil, "the value of A contains a NUL byte"},
		"nothing":     {Cmd{}, nil, "either arguments or a script"},
		"both":        {Cmd{Argv: []string{"true"}, Script: script("")}, nil, "either arguments or a script"},
	} {
		c.cmd.ID = "bad"
		_, err := b.Start(ctx(t), c.cmd)
		if err == nil || !strings.Contains(err.Error(), c.says) || c.code != nil && !errors.Is(err, c.code) {
			t.Errorf("%s: %v", name, err)
		}
		var e *Error
		if !errors.As(err, &e) {
			t.Errorf("%s: %T is no *Error", name, err)
		}
	}
	if _, exit := b.run(Cmd{ID: "bad", Argv: []string{"true"}}); exit.Code != 0 {
		t.Error("an ID whose start failed is not free again")
	}
}

func TestALargeEnvironmentArrivesOrIsRefusedInWords(t *testing.T) {
	t.Parallel()
	b := boot(t, image{})
	var env []string
	for i := range 12 {
		env = append(env, fmt.Sprintf("V%d=%s", i, strings.Repeat("x", 100_000)))
	}
	if out, e := b.run(Cmd{Argv: []string{"/bin/sh", "-c", "echo ${#V0} ${#V11}"}, Env: env}); out != "100000 100000\n" || e.Code != 0 {
		t.Errorf("%q %+v", clip(out, 100), e)
	}
	for range 3 {
		env = append(env, env...)
	}
	for i := range env {
		env[i] = fmt.Sprintf("N%d_%s", i, env[i])
	}
	if _, err := b.Start(ctx(t), Cmd{ID: "big", Argv: []string{"true"}, Env: env[:28]}); !errors.Is(err, ErrLimit) {
		t.Errorf("2.8 MB: %v", err)
	}
	if _, err := b.Start(ctx(t), Cmd{ID: "big", Argv: []string{"true"}, Env: env}); !errors.Is(err, ErrLimit) {
		t.Errorf("9.6 MB: %v", err)
	}
}

func TestStartWithAKnownIDStartsNothing(t *testing.T) {
	t.Parallel()
	b := boot(t, image{})
	cmd := Cmd{ID: "once", Argv: []string{"sh", "-c", "echo ran >>/tmp/ran; sleep 0.2"}}
	answers := make(chan Started, 8)
	for range 8 {
		go func() {
			s, err := b.Start(ctx(t), cmd)
			if err != nil {
				t.Error(err)
			}
			answers <- s
		}()
	}
	fresh := 0
	for range 8 {
		if s := <-answers; !s.Existed {
			fresh++
		}
	}
	b.wait("once")
	if s, err := b.Start(ctx(t), cmd); err != nil || !s.Existed {
		t.Errorf("after its end: %+v %v", s, err)
	}
	if out := b.sh("wc -l </tmp/ran"); fresh != 1 || strings.TrimSpace(out) != "1" {
		t.Errorf("%d starts were fresh, it ran %s times", fresh, out)
	}
}

func TestListTellsEndedOnesUntilForgotten(t *testing.T) {
	t.Parallel()
	b := boot(t, image{})
	b.start(Cmd{ID: "ended", Argv: []string{"sh", "-c", "echo hello; exit 3"}})
	b.start(Cmd{ID: "runs", Argv: []string{"sleep", "1000"}})
	b.wait("ended")
	until(t, "a complete output", func() (bool, string) {
		l, err := b.List(ctx(t))
		if err != nil || len(l) != 2 {
			t.Fatalf("%+v %v", l, err)
		}
		ok := l[0].ID == "ended" && !l[0].Running && l[0].Exit != nil && l[0].Exit.Code == 3 &&
			l[0].Out == Span{To: 6, Complete: true} && l[1].Running && l[1].Exit == nil && time.Since(l[1].Started) < time.Minute
		return ok, fmt.Sprintf("%+v", l)
	})
	if err := b.Forget(ctx(t), "runs"); !errors.Is(err, ErrRunning) {
		t.Errorf("forgetting what runs: %v", err)
	}
	for range 2 {
		if err := b.Forget(ctx(t), "ended"); err != nil {
			t.Error(err)
		}
	}
	if _, err := b.Wait(ctx(t), "ended"); !errors.Is(err, ErrUnknown) {
		t.Errorf("a forgotten command: %v", err)
	}
}

func TestEndedCommandsAreBounded(t *testing.T) {
	t.Parallel()
	if testing.Short() {
		t.Skip("starts more than a thousand processes")
	}
	b := boot(t, image{})
	b.start(Cmd{ID: "kept", Argv: []string{"sleep", "1000"}})
	for i := range maxEnded + 20 {
		b.start(Cmd{ID: fmt.Sprintf("n%d", i), Argv: []string{"true"}})
		b.wait(fmt.Sprintf("n%d", i))
	}
	until(t, "the bound", func() (bool, string) {
		l, err := b.List(ctx(t))
		if err != nil {
			t.Fatal(err)
		}
		return len(l) == maxEnded+1 && l[0].ID == "kept" && l[len(l)-1].ID == fmt.Sprintf("n%d", maxEnded+19), fmt.Sprint(len(l))
	})
}
