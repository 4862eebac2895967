package envspec

import (
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strings"
	"unicode/utf8"

	"gopkg.in/yaml.v3"
)

// What the Variables of an Environment may be at most. Linux takes at most 128 KiB for one entry of an environment, name and
// value together (MAX_ARG_STRLEN), and at most a quarter of the stack for all of them and the arguments, which is 2 MiB
// with the usual stack: so half a MiB leaves room for what programs add.
const (
	MaxVariables      = 200
	MaxName           = 128       // bytes of a name
	MaxValue          = 64 << 10  // bytes of a value
	MaxVariablesTotal = 512 << 10 // bytes of all names and values
	MaxNote           = 1 << 10   // bytes of a note
)

// MinSensitive is how many bytes a Sensitive value has at least: what is shorter can't be redacted without redacting
// ordinary text.
const MinSensitive = 8

var nameForm = regexp.MustCompile(`^[A-Za-z_][A-Za-z0-9_]*$`)

func isName(v string) bool { return len(v) <= MaxName && nameForm.MatchString(v) }

// ownNames are the names that a shell gives a value of its own, so that no other ever arrives.
var ownNames = []string{"_", "EUID", "OLDPWD", "PPID", "PWD", "SHLVL", "UID"}

// breakingNames change what bash does with every script: noexec in SHELLOPTS lets none do anything, and BASH_ENV names a
// file that is run before each.
var breakingNames = []string{"BASHOPTS", "BASH_ENV", "SHELLOPTS"}

// CheckName says what is wrong with the name of a Variable or of a Shared variable (facts/web.md §1.1). Lower case is right.
// Its errors are sentences that repeat nothing from the first wrong character on: it may be a value.
func CheckName(name string) error {
	if name == "" {
		return errors.New("a Variable needs a name")
	}
	for i, r := range name {
		if i == 0 && r >= '0' && r <= '9' {
			return errors.New("the name of a Variable begins with a letter or _, not with a digit")
		}
		if r != '_' && (r < '0' || r > '9') && (r < 'A' || r > 'Z') && (r < 'a' || r > 'z') {
			return fmt.Errorf("the name of a Variable has letters, digits and _ only, and the character after %s is %s", quote(name[:i]), character(r))
		}
	}
	switch {
	case len(name) > MaxName:
		return fmt.Errorf("the name of a Variable is %d bytes long: at most %d", len(name), MaxName)
	case strings.HasPrefix(strings.ToUpper(name), "CLAUDE_HUB_"):
		return fmt.Errorf("the name %s is reserved: those that begin with CLAUDE_HUB_ are set by claude-hub itself", quote(name))
	case slices.Contains(ownNames, name):
		return fmt.Errorf("the name %s is reserved: each shell sets it itself, so the value would never arrive", name)
	case slices.Contains(breakingNames, name):
		return fmt.Errorf("the name %s is reserved: it changes what bash does with every script", name)
	}
	return nil
}

// character names a character that is out of place.
func character(r rune) string {
	switch {
	case r == ' ':
		return "a space"
	case r > ' ' && r < 0x7f:
		return fmt.Sprintf("%q", r)
	case r == utf8.RuneError:
		return "not UTF-8"
	}
	return fmt.Sprintf("U+%04X", r)
}

// lowerCase are names that programs read in lower case only: curl's proxies, npm's settings, and Terraform's variables.
var lowerCase = regexp.MustCompile(`^(?:[a-z]+_proxy|npm_config_.*|TF_VAR_.*)$`)

func warnName(name string) []string {
	if CheckName(name) == nil && name != strings.ToUpper(name) && !lowerCase.MatchString(name) {
		return []string{fmt.Sprintf("the name %s has lower case letters, which is allowed, but names of Variables are in upper case as a rule: %s", name, strings.ToUpper(name))}
	}
	return nil
}

// CheckValue says what is wrong with the value of a Variable. Its errors are sentences about "the value", and never repeat it.
func CheckValue(v []byte) error {
	switch {
	case len(v) > MaxValue:
		return fmt.Errorf("the value is %d bytes long: at most %d; put what is longer into a file", len(v), MaxValue)
	case slices.Contains(v, 0):
		return errors.New("the value has a NUL byte in it, which no process can be given")
	case !utf8.Valid(v):
		return errors.New("the value is not UTF-8: encode it, for example with base64")
	}
	return nil
}

// CheckNote says what is wrong with the note of a Variable, which is shown to people, on terminals too.
func CheckNote(v string) error {
	switch {
	case len(v) > MaxNote:
		return fmt.Errorf("the note is %d bytes long: at most %d", len(v), MaxNote)
	case !utf8.ValidString(v):
		return errors.New("the note is not UTF-8")
	case strings.ContainsFunc(v, func(r rune) bool { return r < ' ' && r != '\n' && r != '\t' || r >= 0x7f && r < 0xa0 }):
		return errors.New("the note has a control character in it")
	}
	return nil
}

// checkVariables tells what is wrong with Variables, each at its path.
func checkVariables(all []Variable, add func(path string, err error)) {
	if len(all) > MaxVariables {
		add("variables", fmt.Errorf("there are %d Variables: at most %d", len(all), MaxVariables))
	}
	total := 0
	seen := map[string]bool{}
	for _, v := range all {
		total += len(v.Name) + len(v.Value)
		path := "variables"
		if isName(v.Name) {
			path = variablePath(v.Name)
		}
		if seen[v.Name] {
			add(path, fmt.Errorf("%s stands there twice: each Variable and each Link has a name of its own", plain(v.Name)))
			continue
		}
		seen[v.Name] = true
		add(path, CheckName(v.Name))
		for _, err := range checkVariable(v) {
			add(path, fmt.Errorf("%s: %w", path, err))
		}
	}
	if total > MaxVariablesTotal {
		add("variables", fmt.Errorf("names and values of the Variables have %d KiB together: at most %d KiB", total>>10, MaxVariablesTotal>>10))
	}
}

var (
	errSensitiveValue = errors.New("a Sensitive Variable has no value in a document: whoever reads the repository would read the secret. Remove it here, give it to the Hub, and if it was ever committed or sent to somebody, replace it by a new one")
	errPlainBuild     = errors.New("a Plain Variable always reaches the bootstrap: leave build out")
	errLinkSensitive  = errors.New("the Shared variable says whether a Link is Sensitive: leave sensitive out")
	errLinkValue      = errors.New("a Link has the value of the Shared variable: leave value out, or link")
)

func checkVariable(v Variable) (out []error) {
	switch {
	case v.Link != "" && v.Sensitive:
		out = append(out, errLinkSensitive)
	case v.Link != "" && v.Value != "":
		out = append(out, errLinkValue)
	case v.Sensitive && v.Value != "":
		out = append(out, errSensitiveValue)
	case v.Plain() && v.Build:
		out = append(out, errPlainBuild)
	}
	if v.Link != "" {
		if err := CheckName(v.Link); err != nil {
			out = append(out, fmt.Errorf("link: %w", err))
		}
	}
	if v.Plain() {
		if err := CheckValue([]byte(v.Value)); err != nil {
			out = append(out, err)
		}
	}
	if err := CheckNote(v.Note); err != nil {
		out = append(out, err)
	}
	return out
}

var variableKeys = grammar{"a Variable", []string{"value", "sensitive", "link", "build", "note"},
	map[string]string{"secret": "sensitive", "shared": "link", "from": "link", "ref": "link", "available-at-build": "build", "description": "note", "comment": "note", "default": "value"}}

func (p *parser) variables(n *yaml.Node) {
	const path = "variables"
	p.hidden = true
	defer func() { p.hidden = false }()
	if !p.untagged(n, path) || !p.something(n, path) {
		return
	}
	if n.Kind != yaml.MappingNode {
		p.at(n, path, "%s is %s: it should be names and values, such as NODE_ENV: production", path, kind(n))
		return
	}
	var names []*yaml.Node
	p.pairs(n, path, "it should be the name of a Variable", func(key, value *yaml.Node) {
		v := Variable{Name: key.Value}
		at := path
		if isName(v.Name) {
			at = variablePath(v.Name)
		}
		if err := CheckName(v.Name); err != nil {
			p.check(key, at, err)
			return
		}
		p.warn(key, at, warnName(v.Name))
		if p.variable(value, at, &v) {
			names = append(names, key)
			p.spec.Variables = append(p.spec.Variables, v)
		}
	})
	if len(p.spec.Variables) > MaxVariables {
		p.at(names[MaxVariables], path, "this is the Variable number %d of %d: at most %d", MaxVariables+1, len(n.Content)/2, MaxVariables)
	}
	total := 0
	for i, v := range p.spec.Variables {
		if total += len(v.Name) + len(v.Value); total > MaxVariablesTotal {
			p.at(names[i], path, "names and values of the Variables up to this one have more than %d KiB together, which is the most", MaxVariablesTotal>>10)
			return
		}
	}
}

// variable reads what stands after a name, and says whether it is right.
func (p *parser) variable(n *yaml.Node, at string, v *Variable) bool {
	before := len(p.problems)
	if n.Kind != yaml.MappingNode {
		if n.Kind == yaml.SequenceNode {
			p.at(n, at, "%s is a list: it should be a value, or a group such as {sensitive: true}", at)
			return false
		}
		value, ok := p.text(n, at)
		v.Value = value
		if ok {
			p.check(n, at, told(at, CheckValue([]byte(value))))
		}
		return len(p.problems) == before
	}
	if !p.untagged(n, at) {
		return false
	}
	has := map[string]*yaml.Node{}
	p.group(n, at, variableKeys, func(key, value *yaml.Node) {
		has[key.Value] = value
		below := at + "." + key.Value
		switch key.Value {
		case "value":
			v.Value, _ = p.text(value, below)
		case "sensitive":
			p.boolean(value, below, &v.Sensitive)
		case "link":
			if link, ok := p.text(value, below); ok {
				v.Link = link
				p.check(value, below, told(below, CheckName(link)))
			}
		case "build":
			p.boolean(value, below, &v.Build)
		case "note":
			v.Note, _ = p.text(value, below)
		}
	})
	if len(p.problems) > before {
		return false
	}
	switch {
	case has["link"] != nil && has["sensitive"] != nil:
		p.check(has["sensitive"], at, told(at, errLinkSensitive))
	case has["link"] != nil && has["value"] != nil:
		p.check(has["value"], at, told(at, errLinkValue))
	case v.Sensitive && has["value"] != nil:
		p.check(has["value"], at, told(at, errSensitiveValue))
	case has["link"] == nil && !v.Sensitive && has["value"] == nil:
		p.at(n, at, "%s has neither a value, nor sensitive: true, nor link", at)
	case v.Plain() && has["build"] != nil:
		p.check(has["build"], at, told(at, errPlainBuild))
	}
	if has["value"] != nil && len(p.problems) == before {
		p.check(has["value"], at, told(at, CheckValue([]byte(v.Value))))
	}
	if has["note"] != nil {
		p.check(has["note"], at, told(at, CheckNote(v.Note)))
	}
	return len(p.problems) == before
}

// told is an error with the path that it is about.
func told(path string, err error) error {
	if err != nil {
		return fmt.Errorf("%s: %w", path, err)
	}
	return nil
}
