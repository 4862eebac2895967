package agent

import (
	"errors"
	"strings"
	"testing"
)

func TestScriptsRunByShebangElseBashElseSh(t *testing.T) {
	t.Parallel()
	full := boot(t, image{})
	small := boot(t, image{Bare: true, Shells: []string{"sh", "cat"}})
	path := []string{"PATH=/opt/tools:/usr/bin:/bin"}
	full.sh(`mkdir -p /opt/tools && printf '#!/bin/sh\necho node runs "$1"\n' >/opt/tools/node && chmod 755 /opt/tools/node`)
	for name, c := range map[string]struct {
		b    *box
		body string
		out  string
		exit int
	}{
		"no shebang is bash":          {full, "[[ a == a ]] && echo ${BASH_VERSION:+bash}", "bash\n", 0},
		"no shebang, only sh":         {small, "echo ${BASH_VERSION:-other}\n", "other\n", 0},
		"no trailing newline":         {full, "#!/bin/sh\necho done", "done\n", 0},
		"env shebang":                 {full, "#!/usr/bin/env node\nconsole.log(1)\n", "node runs " + "SELF\n", 0},
		"shebang with spaces":         {full, "#! /bin/sh  -e\nfalse\necho not reached\n", "", 1},
		"one argument, as the kernel": {full, "#!/bin/echo one  two\n", "one  two SELF\n", 0},
		"empty":                       {full, "", "", 0},
		"no -e of ours":               {full, "false\necho went on\n", "went on\n", 0},
		"no pipefail of ours":         {full, "false | true\n", "", 0},
		"last line's code":            {full, "echo a\nexit 42", "a\n", 42},
		"CRLF without shebang runs":   {full, "echo a\r\n", "a\r\n", 0},
		"reads stdin":                 {full, "cat\nread x\necho read: $?\n", "read: 1\n", 0},
		"TERM is dumb":                {full, "echo $TERM\n", "dumb\n", 0},
		"UTF-8 and binary":            {full, "printf '♀ Budapest őű \\000\\377'", "♀ Budapest őű \x00\xff", 0},
	} {
		out, exit := c.b.run(Cmd{Script: script(c.body), Env: path})
		if i := strings.Index(out, "/run/claude-hub/scripts/"); i >= 0 {
			file, rest, _ := strings.Cut(out[i:], "\n")
			if !strings.HasSuffix(file, "/bootstrap") {
				t.Errorf("%s: the script's path is %q", name, file)
			}
			out = out[:i] + "SELF\n" + rest
		}
		if out != c.out || exit.Code != c.exit {
			t.Errorf("%s: %q, exit %+v; want %q, %d", name, out, exit, c.out, c.exit)
		}
	}
	if out := full.sh("ls -A /run/claude-hub/scripts"); out != "" {
		t.Errorf("scripts are left: %q", out)
	}
}

func TestScriptErrorsNameTheInterpreter(t *testing.T) {
	t.Parallel()
	full := boot(t, image{})
	none := boot(t, image{Bare: true})
	for name, c := range map[string]struct {
		b    *box
		body string
		code *Error
		says string
	}{
		"no shell":         {none, "echo hi\n", ErrNoShell, "image has no bash or sh"},
		"no interpreter":   {full, "#!/usr/local/bin/fish\n", ErrInterpreter, "the script's interpreter /usr/local/bin/fish was not found"},
		"sh asked, absent": {none, "#!/bin/sh\n", ErrInterpreter, "the script's interpreter /bin/sh was not found"},
		"CRLF":             {full, "#!/bin/bash\r\necho\r\n", ErrInterpreter, `the script's interpreter /bin/bash\r was not found: its line endings are CRLF`},
		"CRLF env":         {full, "#!/usr/bin/env node\r\n", ErrInterpreter, `the script's interpreter /usr/bin/env node\r was not found: its line endings are CRLF`},
		"empty shebang":    {full, "#!\necho\n", ErrInterpreter, "names no interpreter"},
		"too large":        {full, strings.Repeat("#\n", 600<<10), ErrLimit, "the script has 1228800 bytes"},
		"not a program":    {full, "#!/etc/passwd\n", ErrDenied, "/etc/passwd can't be executed"},
	} {
		_, err := c.b.Start(ctx(t), Cmd{ID: "x", Script: script(c.body)})
		if !errors.Is(err, c.code) || !strings.Contains(err.Error(), c.says) {
			t.Errorf("%s: %v", name, err)
		}
	}
	if out := full.sh("ls -A /run/claude-hub/scripts"); out != "" {
		t.Errorf("scripts that never ran are left: %q", out)
	}
}

func TestScriptFileIsRootsAndReadableByItsUser(t *testing.T) {
	t.Parallel()
	b := boot(t, image{})
	out, _ := b.run(Cmd{Script: &Script{Name: "../../etc/start script", Body: []byte(`stat -c '%a %u' "$0"; basename "$0"; id -u`)}, User: "coder"})
	if out != "755 0\n-..-etc-start-script\n1000\n" {
		t.Errorf("%q", out)
	}
}
