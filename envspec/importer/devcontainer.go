package importer

import (
	"regexp"
	"strings"

	"github.com/claude-hub/claude-hub/envspec"
)

const (
	noBuild     = "an Environment starts from an image: build this one, push it, and name it as image"
	noContainer = "how a container is run is not up to an Environment"
	noMount     = "a Sandbox mounts nothing but its Workspace, which is /workspace"
	noUser      = "scripts run as the image's own user, the bootstrap as root"
	noPorts     = "ports are not part of an Environment"
	noEditor    = "an editor's settings are not part of an Environment"
	noCompose   = "a Sandbox is one image: start other services in the start script"
	noDocker    = "the host's Docker can't be reached: docker: true gives each Sandbox one of its own"
	ownDocker   = "docker: true, which the Runner installs and each Sandbox has for itself"
	noTerminal  = "it is for a terminal or an editor that a person opens, and a start script must end"
)

var devcontainerReasons = map[string]string{
	"build": noBuild, "dockerFile": noBuild, "context": noBuild,
	"dockerComposeFile": noCompose, "service": noCompose, "runServices": noCompose, "shutdownAction": noContainer,
	"features": "what a feature installs, the bootstrap has to install", "overrideFeatureInstallOrder": "features are not installed",
	"mounts": noMount, "workspaceMount": noMount, "workspaceFolder": noMount,
	"runArgs": noContainer, "privileged": noContainer, "capAdd": noContainer, "securityOpt": noContainer, "init": noContainer, "overrideCommand": noContainer,
	"remoteUser": noUser, "containerUser": noUser, "updateRemoteUserUID": noUser,
	"forwardPorts": noPorts, "portsAttributes": noPorts, "otherPortsAttributes": noPorts, "appPort": noPorts,
	"customizations": noEditor, "extensions": noEditor, "settings": noEditor,
	"initializeCommand": "it runs on the host, which a Sandbox has nothing to do with",
	"postAttachCommand": noTerminal, "waitFor": "people get in when the start script has ended",
	"userEnvProbe":             "the environment of a login shell is not asked for here",
	"hostRequirements.storage": "the size of a Sandbox's disk is up to the Runner", "hostRequirements.gpu": "Sandboxes have no GPU",
}

func (p *plan) devcontainer(root *node) {
	root.get("name").use("nothing, since it is only a name")
	root.get("$schema").use("nothing, since it is for editors")
	p.image(root.get("image"), "${")
	if features := root.get("features"); features != nil {
		for _, f := range features.children {
			if dockerFeature.MatchString(f.name) {
				p.spec.Docker = true
				f.used = ownDocker
				for _, option := range f.list() {
					option.why = "the Runner chooses how Docker is installed"
				}
			}
		}
	}
	for _, arg := range root.get("runArgs").items() {
		if strings.Contains(arg.value, "privileged") || strings.Contains(arg.value, "docker.sock") {
			arg.why = noDocker
		}
	}
	p.devcontainerEnv(root.get("remoteEnv")) // over containerEnv for all that a person or a script starts
	p.devcontainerEnv(root.get("containerEnv"))
	p.devcontainerSecrets(root.get("secrets"))
	for _, key := range []string{"onCreateCommand", "updateContentCommand", "postCreateCommand", "postStartCommand"} {
		p.lifecycle(root.get(key), key)
	}
	host := root.get("hostRequirements")
	if cpus := host.get("cpus"); cpus != nil && cpus.kind == other {
		c, err := envspec.ParseCPU(cpus.value)
		if err == nil && c > 0 {
			p.spec.CPU = c
			cpus.use("cpu")
		} else {
			cpus.why = "it is no number of CPUs that an Environment can have"
		}
	}
	if memory := host.get("memory"); memory != nil {
		m, err := envspec.ParseMemory(devcontainerSize.ReplaceAllStringFunc(memory.value, func(unit string) string {
			return strings.ToUpper(unit[:1]) + "iB"
		}))
		if err == nil && m > 0 {
			p.spec.Memory = m
			memory.use("memory")
		} else {
			memory.why = "it is no amount of memory that an Environment can have"
		}
	}
}

// Not the client alone, and not Kubernetes.
var dockerFeature = regexp.MustCompile(`(^|/)docker-(in|outside-of|from)-docker(-[a-z]+)?(:|$)`)

var devcontainerSize = regexp.MustCompile(`(?i)[kmgt]b$`)

// lifecycle takes a command in its three forms: for a shell, as words, or several by name.
func (p *plan) lifecycle(n *node, key string) {
	if n == nil {
		return
	}
	if n.kind != group {
		p.command(n, key)
		return
	}
	for _, c := range n.children {
		p.command(c, key+"."+c.name)
	}
}

func (p *plan) command(n *node, path string) {
	body := ""
	switch n.kind {
	case text:
		body = n.value
	case list:
		words := make([]string, len(n.children))
		for i, c := range n.children {
			w, ok := c.str()
			if !ok {
				n.why = "it is no command"
				return
			}
			words[i] = quoted(w)
			if strings.Contains(w, "${containerEnv:") {
				n.why = "it uses ${containerEnv:…} in a list of words, which no shell fills in"
				return
			}
		}
		body = strings.Join(words, " ")
	case null:
		return
	default:
		n.why = "it is no command"
		return
	}
	body, left := substitute(body)
	if left != "" {
		n.why = "it uses " + left + ", which only a dev container fills in"
		return
	}
	title := ""
	if !strings.HasPrefix(path, "postStart") {
		title = ", which a dev container runs once"
	}
	p.add(n, path, title, body, "")
}

var substitution = regexp.MustCompile(`\$\{(localEnv|env|containerEnv|localWorkspaceFolder|containerWorkspaceFolder|localWorkspaceFolderBasename|containerWorkspaceFolderBasename|devcontainerId)(:[^}]*)?\}`)

// substitute fills in what a dev container would, as far as it means something in a Sandbox; left is what doesn't.
func substitute(body string) (out, left string) {
	out = substitution.ReplaceAllStringFunc(body, func(v string) string {
		m := substitution.FindStringSubmatch(v)
		switch m[1] {
		case "containerWorkspaceFolder":
			return "/workspace"
		case "containerWorkspaceFolderBasename":
			return "workspace"
		case "containerEnv":
			name, fallback, has := strings.Cut(strings.TrimPrefix(m[2], ":"), ":")
			if variable.MatchString(name) && !has {
				return "${" + name + "}"
			}
			if variable.MatchString(name) && (fallback == "" || word.MatchString(fallback)) {
				return "${" + name + ":-" + fallback + "}"
			}
		}
		left = v
		return v
	})
	return out, left
}

var variable = regexp.MustCompile(`^[A-Za-z_][A-Za-z0-9_]*$`)

// image takes an image, unless its name has something in it that only the file's own product fills in.
func (p *plan) image(n *node, filled string) {
	ref, ok := n.str()
	if !ok {
		return
	}
	if strings.Contains(ref, filled) {
		n.why = "it uses " + filled + "…, which nothing fills in here"
		return
	}
	ref = strings.TrimSpace(ref)
	if problems := envspec.Validate(envspec.Spec{Image: ref}); problems.Failed() {
		n.why = problems[0].Message
		return
	}
	if ref != "" {
		p.spec.Image = ref
		n.use("image")
	}
}
