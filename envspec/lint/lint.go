// Package lint finds mistakes of a document that only show in its text or in its scripts, and which a Test build would
// find minutes later. It needs the host's bash for some, so it is for the command line: no Hub runs it.
package lint

import (
	"bytes"
	"context"
	"fmt"
	"os/exec"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/claude-hub/claude-hub/envspec"
)

const (
	patience = 5 * time.Second
	maxSaid  = 64 << 10 // of what bash says, in bytes
)

// Check returns what it finds in a document that [envspec.Parse] takes, in no order: a warning for CRLF line endings, and
// what bash says of the syntax of each script that bash would run (no #! line, or one that names bash), at its place in the
// document or in the file that the document names. bash only reads
// the scripts (bash -n), with an empty environment and for at most 5 s each. Without bash on the host, or when it says
// nothing in time, scripts are not looked at.
func Check(ctx context.Context, name string, doc []byte, s envspec.Spec) envspec.Problems {
	out := lineEndings(name, doc)
	bash, err := exec.LookPath("bash")
	if err != nil {
		return out
	}
	for _, f := range []struct{ path, script, file string }{{"bootstrap", s.Bootstrap, s.BootstrapFile}, {"start", s.Start, s.StartFile}} {
		if !forBash(f.script) {
			continue
		}
		for _, c := range read(ctx, bash, f.script) {
			line := max(1, min(c.line, lastLine(f.script)))
			p := envspec.Problem{File: name, Path: f.path, Warning: c.warning}
			exact := true
			if f.file != "" {
				p.File, p.Line, p.Column = f.file, line, 1
			} else {
				p.Line, p.Column, exact = envspec.Place(doc, f.path, line)
			}
			p.Message = fmt.Sprintf("%s is no right bash script: %s", f.path, c.says)
			if c.warning {
				p.Message = fmt.Sprintf("%s may not be what is meant: %s", f.path, c.says)
			}
			if !exact {
				p.Message += fmt.Sprintf(" (line %d of the script)", line)
			}
			out = append(out, p)
		}
	}
	return out
}

// lineEndings tells of CRLF (facts/recipes.md B4). A script in the document is read with LF; the file is not.
func lineEndings(name string, doc []byte) envspec.Problems {
	i := bytes.Index(doc, []byte("\r\n"))
	if i < 0 {
		return nil
	}
	line := 1 + bytes.Count(doc[:i], []byte("\n"))
	return envspec.Problems{{File: name, Line: line, Column: 1, Warning: true,
		Message: "line endings are CRLF: scripts are run with LF all the same, but save the file with LF (claude-hub env fmt -w does)"}}
}

// forBash says whether a script is run by bash: one with a #! line is run by what that names.
func forBash(script string) bool {
	by := envspec.Interpreter(script)
	return by == "bash" || by == "" && strings.TrimSpace(script) != ""
}

func lastLine(script string) int {
	return 1 + strings.Count(strings.TrimRight(script, " \t\r\n"), "\n")
}

// complaint is one thing that bash says of a script.
type complaint struct {
	line    int
	says    string
	warning bool
}

var (
	said = regexp.MustCompile(`^/dev/stdin: line ([0-9]+): (warning: )?(.*)$`)
	// bash -n doesn't run the shopt that would let it read such patterns.
	extended = regexp.MustCompile(`\bextglob\b`)
)

func read(ctx context.Context, bash, script string) []complaint {
	ctx, stop := context.WithTimeout(ctx, patience)
	defer stop()
	args := []string{"--norc", "--noprofile"}
	if extended.MatchString(script) {
		args = append(args, "-O", "extglob")
	}
	c := exec.CommandContext(ctx, bash, append(args, "-n", "/dev/stdin")...)
	// Nothing of ours: BASH_ENV names a file that bash would read first, and functions come in by the environment.
	c.Env = []string{"LC_ALL=C"}
	c.Stdin = strings.NewReader(script)
	var out bounded
	c.Stderr = &out
	c.WaitDelay = time.Second
	err := c.Run()
	if ctx.Err() != nil {
		return nil
	}
	var found []complaint
	for line := range strings.Lines(out.String()) {
		m := said.FindStringSubmatch(strings.TrimRight(line, "\n"))
		if m == nil || strings.HasPrefix(m[3], "`") { // the line itself, said again
			continue
		}
		n, _ := strconv.Atoi(m[1]) //nolint:errcheck // digits; too many are 0
		found = append(found, complaint{n, plain(m[3]), m[2] != ""})
	}
	if err == nil { // it was read to its end
		found = slices.DeleteFunc(found, func(c complaint) bool { return !c.warning })
	}
	return found
}

// plain cuts what a script made bash say, and takes from it what a terminal would act on.
func plain(v string) string {
	v = strings.Map(func(r rune) rune {
		if r < ' ' || r >= 0x7f && r < 0xa0 {
			return '?'
		}
		return r
	}, strings.ToValidUTF8(v, "?"))
	if r := []rune(v); len(r) > 200 {
		v = string(r[:200]) + "…"
	}
	return v
}

// bounded keeps the beginning of what is written to it.
type bounded struct{ bytes.Buffer }

func (b *bounded) Write(p []byte) (int, error) {
	b.Buffer.Write(p[:min(len(p), max(0, maxSaid-b.Len()))])
	return len(p), nil
}
