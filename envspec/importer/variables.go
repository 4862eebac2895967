package importer

import (
	"fmt"
	"regexp"
	"slices"
	"strings"

	"github.com/claude-hub/claude-hub/envspec"
)

const (
	asPlain     = "variables, as a Plain one"
	asSensitive = "variables, as a Sensitive one without a value: give it one in the Hub"
	notExpanded = ", and nothing in a Variable is expanded"
)

// variable takes a Variable, unless it can't be one or there is another of its name. It marks n, or says there why not.
func (p *plan) variable(n *node, v envspec.Variable) {
	at := slices.IndexFunc(p.spec.Variables, func(o envspec.Variable) bool { return o.Name == v.Name })
	if at >= 0 {
		before := &p.spec.Variables[at]
		before.Build = before.Build || v.Build && v.Sensitive && before.Sensitive
		if before.Value != v.Value || before.Sensitive != v.Sensitive {
			n.why = "a Variable has one value for all, and " + v.Name + " has another one elsewhere in this file"
			return
		}
	} else {
		more := append(slices.Clone(p.spec.Variables), v)
		for _, problem := range envspec.Validate(envspec.Spec{Variables: more}) {
			if !problem.Warning {
				n.why = "it can't be a Variable: " + strings.TrimPrefix(problem.Message, "variables."+v.Name+": ")
				return
			}
		}
		p.spec.Variables = more
	}
	if v.Sensitive {
		n.use(asSensitive)
	} else {
		n.use(asPlain)
	}
}

// variables takes a group of names and values. filled are what begins something that only the file's own product fills in.
func (p *plan) variables(env *node, filled ...string) {
	for _, n := range env.list() {
		p.plain(n, n.value, filled...)
	}
}

func (p *plan) plain(n *node, value string, filled ...string) {
	switch {
	case n.kind == null:
		n.why = "it has no value"
		return
	case n.kind > other:
		n.why = "it has more than a value"
		return
	}
	for _, f := range filled {
		if strings.Contains(value, f) {
			n.why = "it uses " + f + "…" + notExpanded
			return
		}
	}
	p.variable(n, envspec.Variable{Name: n.name, Value: value})
}

var (
	fromHost = regexp.MustCompile(`^\$\{(?:localEnv|env):([A-Za-z_][A-Za-z0-9_]*)(?::[^}]*)?\}$`)
	// What a host sets for itself means nothing in a Sandbox.
	hostOnly = []string{"DISPLAY", "HOME", "HOSTNAME", "LOGNAME", "PATH", "PWD", "SHELL", "SSH_AUTH_SOCK", "TERM", "TMPDIR", "USER", "USERNAME", "USERPROFILE", "WAYLAND_DISPLAY", "XAUTHORITY", "XDG_RUNTIME_DIR"}
)

// devcontainerEnv takes remoteEnv or containerEnv. What comes from the person's own environment is mostly a secret, and in no
// case in the repository: it becomes Sensitive, without a value.
func (p *plan) devcontainerEnv(env *node) {
	for _, n := range env.list() {
		if m := fromHost.FindStringSubmatch(n.value); n.kind == text && m != nil {
			if slices.Contains(hostOnly, m[1]) {
				n.why = "it is " + m[1] + " of the person's own machine, which a Sandbox has nothing to do with"
				continue
			}
			p.variable(n, envspec.Variable{Name: n.name, Sensitive: true, Note: fmt.Sprintf("From ${localEnv:%s} of the dev container.", m[1])})
			continue
		}
		value := n.value
		for name, path := range map[string]string{"${containerWorkspaceFolder}": "/workspace", "${containerWorkspaceFolderBasename}": "workspace"} {
			value = strings.ReplaceAll(value, name, path)
		}
		if m := substitution.FindString(value); m != "" && n.kind == text {
			n.why = "it uses " + m + notExpanded
			if strings.Contains(m, "containerEnv:") {
				n.why += ": let the bootstrap write it to a file in /etc/profile.d"
			}
			continue
		}
		p.plain(n, value)
	}
}

// devcontainerSecrets takes the secrets that a dev container asks for; they have descriptions and no values.
func (p *plan) devcontainerSecrets(env *node) {
	for _, n := range env.list() {
		v := envspec.Variable{Name: n.name, Sensitive: true}
		if note, ok := n.get("description").str(); ok && envspec.CheckNote(note) == nil {
			v.Note = note
		}
		if p.variable(n, v); n.used == "" {
			continue
		}
		for _, c := range n.list() {
			if c.name != "description" || v.Note == "" {
				c.why = "a Variable has a note, and no more"
			}
		}
	}
}

var fromSecret = regexp.MustCompile(`^\$\{\{\s*secrets\.([A-Za-z_][A-Za-z0-9_]*)\s*\}\}$`)

// copilotEnv takes one variable of a workflow, a job or a step. build says that the bootstrap needs it.
func (p *plan) copilotEnv(n *node, build bool) {
	if m := fromSecret.FindStringSubmatch(strings.TrimSpace(n.value)); n.kind == text && m != nil {
		p.variable(n, envspec.Variable{Name: n.name, Sensitive: true, Build: build, Note: "From GitHub's secret " + m[1] + "."})
		return
	}
	p.plain(n, n.value, expression)
}

// miseEnv takes what a mise.toml sets.
func (p *plan) miseEnv(env *node) {
	for _, n := range env.list() {
		switch {
		case n.name == "_":
			n.why = "files, paths and scripts that mise reads are not carried over: read them in the bootstrap or the start script"
		case n.kind == other && n.value == "false":
			n.why = "it unsets the variable, which an Environment can't"
		case n.kind != group:
			p.plain(n, n.value, "{{")
		case n.get("redact") != nil && n.get("redact").value == "true":
			p.variable(n, envspec.Variable{Name: n.name, Sensitive: true})
		default:
			n.why = "it has more than a value"
		}
	}
}
