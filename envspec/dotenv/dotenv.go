// Package dotenv reads .env files, for the web, the API and the command line alike (facts/web.md §1.1). Parsers of such files
// disagree, so this is the whole grammar:
//
//   - UTF-8, with or without a byte order mark; lines end with LF or CRLF. Empty lines, and lines that begin with #, say nothing.
//   - NAME=value, with export before it or not, and white space around the = or not. A name is one of [envspec.CheckName].
//   - In single quotes or backquotes a value is what stands between them. In double quotes \n, \r, \t, \\, \" and \$ stand for what
//     they do in C, and any other backslash for itself. All three may go over several lines, in which CRLF is read as LF.
//     After the closing quote only white space and a comment may follow.
//   - Without quotes a value ends with its line, is trimmed, and has no escapes; quotes inside of it are part of it.
//   - A # begins a comment only after white space.
//   - Nothing is expanded: ${NAME} and $(command) stay what they are, with a warning unless they are in single quotes or backquotes.
//   - Of a name that stands several times the last counts, with a warning.
package dotenv

import (
	"bytes"
	"fmt"
	"regexp"
	"slices"
	"strings"
	"unicode/utf8"

	"github.com/claude-hub/claude-hub/envspec"
)

// MaxFile is how many bytes a file has at most.
const MaxFile = 1 << 20

// maxProblems is how many problems of one file are told.
const maxProblems = 50

// Entry is one name with its value.
type Entry struct {
	Line      int      `json:"line"` // where it begins, from 1
	Name      string   `json:"name"`
	Value     string   `json:"value"`
	Sensitive bool     `json:"sensitive"`       // a guess by the name: see LooksSensitive
	Notes     []string `json:"notes,omitempty"` // what became of what stands there, in words without the value
}

// Parse reads a file. name is the file's, for the problems. The entries are those that are right, in the order of the file,
// each name once; problems that aren't warnings are about lines that are left out of them, or about the file as a whole.
// No problem and no note repeats a value.
func Parse(name string, b []byte) ([]Entry, envspec.Problems) {
	p := parser{file: name, line: 1}
	if !p.whole(b) {
		return nil, p.problems
	}
	p.rest = strings.TrimPrefix(string(b), "\ufeff")
	for p.rest != "" {
		p.next()
	}
	entries := p.entries()
	told := p.problems[:min(len(p.problems), maxProblems)]
	slices.SortStableFunc(told, func(a, b envspec.Problem) int { return a.Line - b.Line })
	return entries, p.problems
}

type parser struct {
	file     string
	rest     string
	line     int // of rest
	found    []Entry
	problems envspec.Problems
	more     int // problems that are not told
}

func (p *parser) problem(line int, name, format string, args ...any) {
	p.tell(envspec.Problem{File: p.file, Path: name, Line: line, Column: 1, Message: fmt.Sprintf(format, args...)})
}

func (p *parser) warn(line int, name, format string, args ...any) {
	p.tell(envspec.Problem{File: p.file, Path: name, Line: line, Column: 1, Message: fmt.Sprintf(format, args...), Warning: true})
}

func (p *parser) tell(problem envspec.Problem) {
	if len(p.problems) < maxProblems {
		p.problems = append(p.problems, problem)
		return
	}
	p.more++
	more := envspec.Problem{File: p.file, Line: problem.Line, Column: 1, Message: fmt.Sprintf("%d more problems are not shown", p.more)}
	more.Warning = problem.Warning && (p.more == 1 || p.problems[maxProblems].Warning)
	p.problems = append(p.problems[:maxProblems], more)
}

// whole refuses what is no text.
func (p *parser) whole(b []byte) bool {
	line := func(at int) int { return 1 + bytes.Count(b[:at], []byte("\n")) }
	switch {
	case len(b) > MaxFile:
		p.problem(1, "", "the file is %d KiB long: at most %d KiB", len(b)>>10, MaxFile>>10)
	case bytes.HasPrefix(b, []byte("\xff\xfe")), bytes.HasPrefix(b, []byte("\xfe\xff")):
		p.problem(1, "", "the file is UTF-16: save it as UTF-8")
	case bytes.IndexByte(b, 0) >= 0:
		p.problem(line(bytes.IndexByte(b, 0)), "", "there is a NUL byte in this line, which no process can be given")
	case !utf8.Valid(b):
		at := 0
		for {
			r, size := utf8.DecodeRune(b[at:])
			if r == utf8.RuneError && size == 1 {
				break
			}
			at += size
		}
		p.problem(line(at), "", "this line is not UTF-8: save the file as UTF-8")
	default:
		return true
	}
	return false
}

// take cuts rest after n bytes.
func (p *parser) take(n int) string {
	taken := p.rest[:n]
	p.rest = p.rest[n:]
	p.line += strings.Count(taken, "\n")
	return taken
}

// takeLine cuts the line that rest begins with, and returns it without its end.
func (p *parser) takeLine() string {
	n := strings.IndexByte(p.rest, '\n') + 1
	if n == 0 {
		n = len(p.rest)
	}
	return strings.TrimRight(p.take(n), "\r\n")
}

const blank = " \t\r\f\v"

var exported = regexp.MustCompile(`^export[ \t]+`)

// next takes a line, and those after it that belong to it.
func (p *parser) next() {
	line := p.line
	current, _, _ := strings.Cut(p.rest, "\n")
	before, after, assigned := strings.Cut(current, "=")
	name := strings.Trim(before, blank)
	switch {
	case name == "" && !assigned, strings.HasPrefix(name, "#"):
		p.takeLine()
		return
	case !assigned:
		p.takeLine()
		p.problem(line, "", "this line has no =: write NAME=value, or # before a comment")
		return
	}
	name = exported.ReplaceAllString(name, "")
	p.take(len(before) + 1 + len(after) - len(strings.TrimLeft(after, blank)))
	spaced := len(after) > 0 && strings.IndexByte(blank, after[0]) >= 0
	e := Entry{Line: line, Name: name}
	right := true
	if err := envspec.CheckName(name); err != nil {
		p.problem(line, "", "%s", err)
		right = false
	}
	if !p.value(&e, spaced) || !right {
		return
	}
	if err := envspec.CheckValue([]byte(e.Value)); err != nil {
		p.problem(line, name, "%s: %s", name, err)
		return
	}
	e.Sensitive = LooksSensitive(name)
	if e.Sensitive && e.Value != "" && len(e.Value) < envspec.MinSensitive {
		e.Notes = append(e.Notes, fmt.Sprintf("it has fewer than %d bytes, so it can only be Plain", envspec.MinSensitive))
	}
	p.found = append(p.found, e)
}

// value takes what stands after the =, and says whether it is right.
func (p *parser) value(e *Entry, spaced bool) bool {
	quote := byte(0)
	if p.rest != "" && strings.IndexByte("'\"`", p.rest[0]) >= 0 {
		quote = p.rest[0]
	}
	if quote == 0 {
		e.Value = p.unquoted(e, p.takeLine(), spaced)
		return true
	}
	end := closing(p.rest, quote)
	if end < 0 {
		p.takeLine()
		p.problem(e.Line, e.Name, "%s begins with the quote %c, which is never closed: close it, or put the value into other quotes", named(e.Name), quote)
		return false
	}
	e.Value = p.take(end + 1)[1:end]
	p.lines(e)
	if quote == '"' {
		e.Value = unescape(e.Value)
	}
	rest := p.takeLine()
	trimmed := strings.Trim(rest, blank)
	switch {
	case trimmed == "":
	case trimmed[0] == '#' && strings.IndexByte(blank, rest[0]) >= 0:
		e.Notes = append(e.Notes, "comment dropped")
	default:
		p.problem(p.lineBefore(), e.Name, "%s has text after the quote %c that closes it: put all of it into quotes, or leave them out", named(e.Name), quote)
		return false
	}
	if quote == '"' {
		p.expansions(e)
	}
	return true
}

// lineBefore is the number of the line that was taken last.
func (p *parser) lineBefore() int {
	if p.rest == "" {
		return max(1, p.line-1)
	}
	return p.line - 1
}

func (p *parser) unquoted(e *Entry, v string, spaced bool) string {
	for i := range len(v) {
		if v[i] == '#' && (i == 0 && spaced || i > 0 && strings.IndexByte(blank, v[i-1]) >= 0) {
			v = v[:i]
			e.Notes = append(e.Notes, "comment dropped")
			break
		}
	}
	e.Value = strings.Trim(v, blank)
	p.expansions(e)
	return e.Value
}

// What follows the = is not another = and not the end, as in the last line of something in base64.
var assignment = regexp.MustCompile(`(?m)^[ \t]*(?:export[ \t]+)?[A-Za-z_][A-Za-z0-9_]*[ \t]*=[^=\s]`)

// lines looks at a value that goes over several lines.
func (p *parser) lines(e *Entry) {
	if !strings.Contains(e.Value, "\n") {
		return
	}
	if strings.Contains(e.Value, "\r\n") {
		e.Value = strings.ReplaceAll(e.Value, "\r\n", "\n")
		e.Notes = append(e.Notes, "line endings are LF now")
	}
	_, further, _ := strings.Cut(e.Value, "\n")
	if assignment.MatchString(further) {
		p.warn(e.Line, e.Name, "%s goes over lines %d to %d, and some of them look like names with values of their own: is the quote closed where it should be?",
			named(e.Name), e.Line, e.Line+strings.Count(e.Value, "\n"))
	}
}

var expansion = regexp.MustCompile(`\$[{(]`)

func (p *parser) expansions(e *Entry) {
	if expansion.MatchString(e.Value) {
		e.Notes = append(e.Notes, "${…} is kept as it is")
		p.warn(e.Line, e.Name, "%s has ${…} or $(…) in it, which is not expanded: the value has it as it stands there", named(e.Name))
	}
}

// closing is the place of the quote that closes the one s begins with; -1 for none.
func closing(s string, quote byte) int {
	for i := 1; i < len(s); i++ {
		switch {
		case s[i] == '\\' && quote == '"':
			i++
		case s[i] == quote:
			return i
		}
	}
	return -1
}

var escapes = strings.NewReplacer(`\n`, "\n", `\r`, "\r", `\t`, "\t", `\\`, `\`, `\"`, `"`, `\$`, "$")

func unescape(v string) string { return escapes.Replace(v) }

// named is a name in a sentence, unless it is none: then it may be a value.
func named(name string) string {
	if envspec.CheckName(name) != nil {
		return "the value of this line"
	}
	return name
}

// entries are those found, each name where it stands last.
func (p *parser) entries() []Entry {
	last := map[string]int{}
	for i, e := range p.found {
		last[e.Name] = i
	}
	var out []Entry
	total := 0
	for i, e := range p.found {
		if last[e.Name] != i {
			p.warn(e.Line, e.Name, "%s stands here and again in line %d: the last one counts", e.Name, p.found[last[e.Name]].Line)
			continue
		}
		if len(out) == envspec.MaxVariables {
			p.problem(e.Line, "", "the file has more than %d names: an Environment has at most %d Variables", envspec.MaxVariables, envspec.MaxVariables)
			break
		}
		if total += len(e.Name) + len(e.Value); total > envspec.MaxVariablesTotal {
			p.problem(e.Line, "", "names and values up to this line have more than %d KiB together, which is the most", envspec.MaxVariablesTotal>>10)
			break
		}
		out = append(out, e)
	}
	return out
}

var (
	public = regexp.MustCompile(`(?i)(^|_)PUBLIC(_|$)`)
	secret = regexp.MustCompile(`(?i)(^|_)(API|ACCESS|AUTH)?(KEY|TOKEN|SECRET|CREDENTIAL)S?(_(BASE64|B64|PEM|FILE_CONTENT|JSON))?$|PASSWORD|PASSWD|PASSPHRASE|(^|_)(PASS|PRIVATE|SECRET)(_|$)`)
)

// LooksSensitive guesses from a name whether its value is a secret: *_KEY, *_TOKEN, *_SECRET, PASSWORD, PRIVATE and the like. What
// is said to be public is none.
func LooksSensitive(name string) bool {
	return secret.MatchString(name) && (!public.MatchString(name) || strings.Contains(strings.ToUpper(name), "PRIVATE"))
}
