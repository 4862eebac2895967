package envspec

import (
	"fmt"
	gopath "path"
	"slices"
	"strings"
)

// Use is the place of a script where it first uses a Variable that it doesn't receive.
type Use struct {
	Name string
	Line int // of the script, from 1
}

// Unavailable finds what the bootstrap uses as $NAME or ${NAME…} of the Variables that are there, but not at build (facts/recipes.md
// B11: there they are unset). What the script itself sets before is left out, and so is what a shell doesn't expand: in
// single quotes, after a backslash, in comments, in heredocs whose word is quoted. Scripts for other interpreters than a
// shell are not looked at.
func Unavailable(s Spec) []Use {
	if !forShell(s.Bootstrap) {
		return nil
	}
	want := map[string]bool{}
	for _, v := range s.Variables {
		if !v.AtBuild() && isName(v.Name) {
			want[v.Name] = true
		}
	}
	if len(want) == 0 {
		return nil
	}
	x := shell{s: s.Bootstrap, line: 1, want: want}
	x.commands(0)
	return x.uses
}

// warnUses says each use in a sentence that ends without saying where.
func warnUses(s Spec, add func(u Use, sentence string)) {
	for _, u := range Unavailable(s) {
		add(u, fmt.Sprintf("bootstrap uses $%s, but this Variable is not available at build and is unset there: give it build: true, or use it in the start script", u.Name))
	}
}

// Interpreter is the name of the program that runs a script: what its #! line names, "" when it has none.
func Interpreter(script string) string {
	line, _, _ := strings.Cut(script, "\n")
	rest, interpreted := strings.CutPrefix(line, "#!")
	if !interpreted {
		return ""
	}
	words := strings.Fields(rest)
	if len(words) > 0 && gopath.Base(words[0]) == "env" {
		words = slices.DeleteFunc(words[1:], func(w string) bool { return strings.HasPrefix(w, "-") || strings.Contains(w, "=") })
	}
	if len(words) == 0 {
		return "?"
	}
	return gopath.Base(words[0])
}

func forShell(script string) bool {
	return slices.Contains([]string{"", "sh", "bash", "dash", "ash", "ksh", "zsh"}, Interpreter(script))
}

// shell reads a script as far as it takes to know what a shell would expand.
type shell struct {
	s       string
	i       int
	line    int
	depth   int
	want    map[string]bool // until a use is found, or the script sets it
	uses    []Use
	pending []heredoc
}

type heredoc struct {
	word   string
	quoted bool
	tabs   bool // leading tabs don't count
}

// mostDepth is how deep quotes and substitutions are followed.
const mostDepth = 100

func (x *shell) enter() bool {
	if x.depth++; x.depth > mostDepth {
		x.i = len(x.s)
		return false
	}
	return true
}

func (x *shell) step() {
	if x.s[x.i] == '\n' {
		x.line++
	}
	x.i++
}

func (x *shell) at(prefix string) bool { return strings.HasPrefix(x.s[x.i:], prefix) }

// skip takes n characters, or what is left.
func (x *shell) skip(n int) {
	for ; n > 0 && x.i < len(x.s); n-- {
		x.step()
	}
}

func isNameByte(c byte, first bool) bool {
	return c == '_' || c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || !first && c >= '0' && c <= '9'
}

// name is the identifier that stands at i.
func (x *shell) name() string {
	end := x.i
	for end < len(x.s) && isNameByte(x.s[end], end == x.i) {
		end++
	}
	return x.s[x.i:end]
}

func (x *shell) use(name string) {
	if x.want[name] {
		delete(x.want, name)
		x.uses = append(x.uses, Use{name, x.line})
	}
}

// setters are the commands whose words are names that they set.
var setters = []string{"read", "for", "select", "mapfile", "readarray", "getopts", "unset"}

// commands takes commands up to the character that ends them; 0 is the end of the script.
func (x *shell) commands(end byte) {
	if !x.enter() {
		return
	}
	defer func() { x.depth-- }()
	start, sets, parens := true, false, 0 // a word begins here; the command sets names; how many ( are open
	set := ""                             // is set once the word has ended
	between := func() {
		delete(x.want, set)
		start, set = true, ""
	}
	for x.i < len(x.s) {
		switch c := x.s[x.i]; {
		case c == '\n':
			between()
			sets = false
			x.step()
			x.heredocs()
		case c == ' ' || c == '\t':
			between()
			x.step()
		case c == end && (c != ')' || parens == 0):
			between()
			x.step()
			return
		case c == '#' && start:
			for x.i < len(x.s) && x.s[x.i] != '\n' {
				x.i++
			}
		case start && x.at("(("):
			x.skip(2)
			x.arithmetic()
		case strings.IndexByte(";&|()", c) >= 0:
			between()
			sets = false
			if c == '(' {
				parens++
			} else if c == ')' && parens > 0 {
				parens--
			}
			x.step()
		case x.at("<<<"):
			between()
			x.skip(3)
		case x.at("<<"):
			between()
			x.redirect()
		case c == '<' || c == '>':
			between()
			x.step()
		case start && isNameByte(c, true):
			name := x.name()
			x.i += len(name)
			start = false
			switch {
			case x.at("=") || x.at("+=") || x.at("["):
				set = name
			case slices.Contains(setters, name):
				sets = true
			case sets:
				set = name
			}
		default:
			start = false
			x.expand(c, false)
		}
	}
	between()
}

// expand takes one character, or what it begins, of what a shell expands.
func (x *shell) expand(c byte, quoted bool) {
	switch {
	case c == '\\':
		x.skip(2)
	case c == '\'' && !quoted:
		x.step()
		for x.i < len(x.s) && x.s[x.i] != '\'' {
			x.step()
		}
		x.skip(1)
	case c == '"' && !quoted:
		x.step()
		x.until("\"", true)
	case c == '`':
		x.step()
		x.commands('`')
	case c == '$':
		x.dollar(quoted)
	default:
		x.step()
	}
}

// until takes what is expanded up to what ends it.
func (x *shell) until(end string, quoted bool) {
	if !x.enter() {
		return
	}
	defer func() { x.depth-- }()
	for x.i < len(x.s) {
		if x.at(end) {
			x.skip(len(end))
			return
		}
		x.expand(x.s[x.i], quoted)
	}
}

func (x *shell) arithmetic() {
	if !x.enter() {
		return
	}
	defer func() { x.depth-- }()
	for open := 0; x.i < len(x.s); {
		switch c := x.s[x.i]; {
		case open == 0 && x.at("))"):
			x.skip(2)
			return
		case c == '(':
			open++
			x.step()
		case c == ')':
			open = max(0, open-1)
			x.step()
		default:
			x.expand(c, false)
		}
	}
}

func (x *shell) dollar(quoted bool) {
	x.step()
	switch {
	case x.i == len(x.s):
	case x.at("'") && !quoted: // $'…', in which a backslash escapes
		x.step()
		for x.i < len(x.s) && x.s[x.i] != '\'' {
			if x.s[x.i] == '\\' {
				x.step()
			}
			x.skip(1)
		}
		x.skip(1)
	case x.at("(("):
		x.skip(2)
		x.arithmetic()
	case x.at("("):
		x.step()
		x.commands(')')
	case x.at("{"):
		x.step()
		if x.at("#") || x.at("!") {
			x.step()
		}
		if x.i < len(x.s) {
			name := x.name()
			x.use(name)
			x.i += len(name)
		}
		x.braces(quoted)
	default:
		name := x.name()
		x.use(name)
		x.i += len(name)
	}
}

// braces takes the rest of ${…}, in which quotes count again.
func (x *shell) braces(quoted bool) {
	if !x.enter() {
		return
	}
	defer func() { x.depth-- }()
	for x.i < len(x.s) {
		switch c := x.s[x.i]; {
		case c == '}':
			x.step()
			return
		case c == '"' && quoted:
			x.step()
			x.until("\"", true)
		default:
			x.expand(c, quoted)
		}
	}
}

// redirect takes << and its word.
func (x *shell) redirect() {
	x.skip(2)
	h := heredoc{tabs: x.at("-")}
	if h.tabs {
		x.step()
	}
	for x.at(" ") || x.at("\t") {
		x.step()
	}
	var word strings.Builder
	for x.i < len(x.s) && strings.IndexByte(" \t\n;&|<>()", x.s[x.i]) < 0 {
		switch c := x.s[x.i]; c {
		case '\'', '"':
			h.quoted = true
			for x.i++; x.i < len(x.s) && x.s[x.i] != c && x.s[x.i] != '\n'; x.i++ {
				word.WriteByte(x.s[x.i])
			}
			if x.i < len(x.s) && x.s[x.i] == c {
				x.i++
			}
		case '\\':
			h.quoted = true
			if x.i++; x.i < len(x.s) && x.s[x.i] != '\n' {
				word.WriteByte(x.s[x.i])
				x.i++
			}
		default:
			word.WriteByte(c)
			x.i++
		}
	}
	if h.word = word.String(); h.word != "" {
		x.pending = append(x.pending, h)
	}
}

// heredocs takes the texts that begin with this line.
func (x *shell) heredocs() {
	pending := x.pending
	x.pending = nil
	for _, h := range pending {
		begin, line := x.i, x.line
		end := len(x.s)
		for x.i < len(x.s) {
			at := x.i
			text, _, found := strings.Cut(x.s[x.i:], "\n")
			x.i += len(text)
			if found {
				x.i++
				x.line++
			}
			if h.tabs {
				text = strings.TrimLeft(text, "\t")
			}
			if text == h.word {
				end = at
				break
			}
		}
		if !h.quoted {
			body := shell{s: x.s[begin:end], line: line, depth: x.depth, want: x.want, uses: x.uses}
			for body.i < len(body.s) {
				if c := body.s[body.i]; c == '"' {
					body.step()
				} else {
					body.expand(c, true)
				}
			}
			x.uses = body.uses
		}
	}
}
