package login

import (
	"bytes"
	"strings"
	"sync"
	"unicode"
)

// shell is how a kind of shell is asked.
type shell struct {
	name, words string
	// plain is the shell as it starts by itself. mark frames the answer on standard output.
	plain func(mark string) []string
	// supervised reads the same files by a script of ours, which answers at its end whatever that is, and writes where it is to
	// standard error.
	supervised func(mark string) []string
}

// show prints the environment as exec would pass it on. What startup files may have put in the way of these commands (functions,
// aliases, a PATH without cat) is passed by.
const show = `\command printf %s MARK; \command -p cat /proc/self/environ || \command cat /proc/self/environ; \command printf %s MARK`

// bash can't be told by its environment to trace as root, so the second time it reads the files as a login shell would
// by a script. exec is a function there, which ends the shell instead; so are exit and a failure under set -e by the trap.
var bash = shell{
	name: "bash", words: "bash -lic",
	plain: func(mark string) []string { return []string{"bash", "-lic", marked(show, mark)} },
	supervised: func(mark string) []string {
		return []string{"bash", "--noprofile", "--norc", "-ic", marked(`exec 9>&2
BASH_XTRACEFD=9
PS4=$'\nMARK${BASH_SOURCE[0]-}, line $LINENO\n'
__claude_hub() { trap - EXIT; set +xeu; `+show+`; }
trap __claude_hub EXIT
exec() { if [ $# -gt 0 ]; then builtin exit 0; fi; }
set -x
[ ! -r /etc/profile ] || . /etc/profile
for __claude_hub in ~/.bash_profile ~/.bash_login ~/.profile; do
  if [ -r "$__claude_hub" ]; then . "$__claude_hub"; break; fi
done
builtin exit 0`, mark)}
	},
}

var posix = shell{
	name: "sh", words: "sh -lc",
	plain: func(mark string) []string { return []string{"sh", "-lc", marked(show, mark)} },
	supervised: func(mark string) []string {
		return []string{"sh", "-c", marked(`__claude_hub() { trap - EXIT; set +eu; `+show+`; }
trap __claude_hub EXIT
for __claude_hub in /etc/profile "$HOME/.profile"; do
  if [ -r "$__claude_hub" ]; then
    \command printf '\nMARK%s\n' "$__claude_hub" >&2
    . "$__claude_hub"
  fi
done
exit 0`, mark)}
	},
}

func marked(script, mark string) string { return strings.ReplaceAll(script, "MARK", mark) }

// output finds what stands between two marks in whatever else a shell prints.
type output struct {
	mark  []byte
	mu    sync.Mutex
	b     []byte
	begun bool
	done  bool
}

// Write is io.Writer's; it never fails, so that a shell that prints without end is ended by the limit alone.
func (o *output) Write(p []byte) (int, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.done {
		return len(p), nil
	}
	o.b = append(o.b, p...)
	if !o.begun {
		i := bytes.Index(o.b, o.mark)
		if i < 0 {
			o.b = append(o.b[:0], o.b[max(0, len(o.b)-len(o.mark)+1):]...)
			return len(p), nil
		}
		o.b, o.begun = append(o.b[:0], o.b[i+len(o.mark):]...), true
	}
	if i := bytes.Index(o.b, o.mark); i >= 0 {
		o.b, o.done = o.b[:i], true
	} else if most := MaxSize + len(o.mark); len(o.b) > most {
		o.b, o.done = o.b[:most], true // too large, however it ends
	}
	return len(p), nil
}

func (o *output) result() (env []byte, complete bool) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if !o.done {
		return nil, false
	}
	return bytes.TrimRight(o.b, "\x00"), true
}

// trace remembers the last place that a supervised shell told.
type trace struct {
	mark []byte
	mu   sync.Mutex
	b    []byte
	at   string
}

const maxPlace = 512

// Write is io.Writer's; it never fails.
func (t *trace) Write(p []byte) (int, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.b = append(t.b, p...)
	for {
		i := bytes.Index(t.b, t.mark)
		if i < 0 {
			break
		}
		rest := t.b[i+len(t.mark):]
		nl := bytes.IndexByte(rest, '\n')
		if nl < 0 {
			t.b = append(t.b[:0], t.b[i:min(len(t.b), i+len(t.mark)+maxPlace)]...)
			return len(p), nil
		}
		if place := printable(rest[:nl]); !strings.HasPrefix(place, ",") { // our own script has no file
			t.at = place
		}
		t.b = t.b[i+len(t.mark)+nl:]
	}
	t.b = append([]byte(nil), t.b[max(0, len(t.b)-len(t.mark)+1):]...)
	return len(p), nil
}

func (t *trace) last() string {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.at
}

// printable is a place for a sentence: it was written by a stranger.
func printable(place []byte) string {
	return strings.Map(func(r rune) rune {
		if unicode.IsPrint(r) {
			return r
		}
		return '?'
	}, string(place[:min(len(place), maxPlace)]))
}
