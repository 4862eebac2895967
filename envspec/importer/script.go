package importer

import (
	"regexp"
	"strings"

	"github.com/claude-hub/claude-hub/envspec"
)

// part is one command of a file, as a piece of a script.
type part struct {
	title   string // where it comes from
	body    string
	options string // what its own shell was told: "-e", "-eo pipefail", or nothing
}

type script struct{ parts []part }

// render joins the parts so that each runs as it did: in a shell of its own, whose failure ends the whole.
func (s script) render() string {
	var b strings.Builder
	if len(s.parts) == 1 {
		p := s.parts[0]
		b.WriteString("# " + printable(p.title) + "\n")
		if p.options != "" {
			b.WriteString("set " + p.options + "\n")
		}
		b.WriteString(p.body + "\n")
		return b.String()
	}
	for i, p := range s.parts {
		if i == 0 {
			b.WriteString("set -e\n")
		}
		b.WriteString("\n# " + printable(p.title) + "\n(\n")
		switch {
		case p.options != "" && p.options != "-e":
			b.WriteString("set " + p.options + "\n")
		case p.options == "" && strings.ContainsAny(p.body, "\n;&|"):
			b.WriteString("set +e\n")
		}
		b.WriteString(p.body + "\n)\n")
	}
	return b.String()
}

// add takes a command into the start script, or into the bootstrap when it does nothing but install packages of the
// system: everything else may need the Workspace, which a bootstrap hasn't got. It marks n, or says there why it can't be.
func (p *plan) add(n *node, path, title, body, options string) {
	body = strings.Trim(strings.ReplaceAll(body, "\r\n", "\n"), "\n")
	if strings.TrimSpace(body) == "" {
		n.use("nothing, since it is empty")
		return
	}
	into, where := &p.start, "start"
	if without, ok := installsOnly(body); ok {
		into, where = &p.bootstrap, "bootstrap"
		if without != body {
			body, title = without, title+" (without sudo: a bootstrap runs as root)"
		}
	}
	more := script{append(into.parts[:len(into.parts):len(into.parts)], part{p.file + ": " + path + title, body, options})}
	if problems := envspec.Validate(envspec.Spec{Start: more.render()}); problems.Failed() {
		n.why = "it can't be part of a script: " + strings.TrimPrefix(problems[0].Message, "start ")
		return
	}
	*into = more
	n.use(where)
}

var (
	pieces = regexp.MustCompile(`\n|&&|;`)
	// Package managers, without anything that a shell would do more with, and without a path that may be the Workspace's.
	installer = regexp.MustCompile(`^(?:apt-get|apt|apk|dnf|yum|npm (?:install|i) (?:-g|--global)|corepack enable)(?: +[A-Za-z0-9_@+:=~^-][A-Za-z0-9_@+:=.~^/-]*)*$`)
	sudo      = regexp.MustCompile(`(^|\n|&&|;)([ \t]*)sudo +(?:-E +)?`)
)

// installsOnly returns a script without sudo, when all it does is to install packages.
func installsOnly(body string) (string, bool) {
	without := sudo.ReplaceAllString(body, "$1$2")
	some := false
	for _, piece := range pieces.Split(strings.ReplaceAll(without, "\\\n", " "), -1) {
		piece = strings.Join(strings.Fields(piece), " ")
		if piece == "" || strings.HasPrefix(piece, "#") || piece == "set -e" {
			continue
		}
		if !installer.MatchString(strings.TrimPrefix(piece, "DEBIAN_FRONTEND=noninteractive ")) {
			return "", false
		}
		some = true
	}
	return without, some
}

var word = regexp.MustCompile(`^[A-Za-z0-9_@%+=:,./-]+$`)

// quoted is a word as a shell reads it.
func quoted(v string) string {
	if word.MatchString(v) {
		return v
	}
	return "'" + strings.ReplaceAll(v, "'", `'\''`) + "'"
}

// printable is a text that stands in one line, and that a terminal only shows.
func printable(v string) string {
	v = strings.Map(func(r rune) rune {
		switch {
		case r < ' ', r >= 0x7f && r < 0xa0, r == 0x2028, r == 0x2029, r == 0xfeff, r >= 0x202a && r <= 0x202e, r >= 0x2066 && r <= 0x2069, r == 0xfffe, r == 0xffff:
			return '?'
		}
		return r
	}, strings.ToValidUTF8(v, "?"))
	if r := []rune(v); len(r) > 200 {
		v = string(r[:200]) + "…"
	}
	return v
}
