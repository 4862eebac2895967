package importer

import (
	"strconv"
	"strings"
)

const expression = "${{"

var copilotReasons = map[string]string{
	"permissions": "what a workflow may do at GitHub is not part of an Environment", "concurrency": "it is about workflows",
	"defaults":                          "each script runs in /workspace, with bash",
	"jobs":                              "only the job copilot-setup-steps sets up an environment",
	"jobs.copilot-setup-steps.runs-on":  "Sandboxes run the Environment's image on your own Runners",
	"jobs.copilot-setup-steps.services": noCompose, "jobs.copilot-setup-steps.container": noContainer,
	"jobs.copilot-setup-steps.permissions":     "what a workflow may do at GitHub is not part of an Environment",
	"jobs.copilot-setup-steps.timeout-minutes": "how long a script may run is up to the Hub",
	"jobs.copilot-setup-steps.if":              "scripts run always",
	"jobs.copilot-setup-steps.defaults":        "each script runs in /workspace, with bash",
}

// copilot reads a workflow's steps that GitHub's agent runs before it begins to work.
func (p *plan) copilot(root *node) {
	root.get("name").use("nothing, since it is only a name")
	root.get("run-name").use("nothing, since it is only a name")
	root.get("on").use("nothing, since it says when the workflow runs")
	job := root.get("jobs").get("copilot-setup-steps")
	job.get("name").use("nothing, since it is only a name")
	if container := job.get("container"); container != nil && container.kind == group {
		p.image(container.get("image"), expression)
	} else {
		p.image(container, expression)
	}
	for _, env := range []*node{job.get("env"), root.get("env")} { // the job's over the workflow's
		for _, n := range env.list() {
			p.copilotEnv(n, false)
		}
	}
	for i, step := range job.get("steps").items() {
		p.step(step, "jobs.copilot-setup-steps.steps["+strconv.Itoa(i)+"]")
	}
}

func (p *plan) step(step *node, path string) {
	if uses, ok := step.get("uses").str(); ok {
		if strings.HasPrefix(uses, "actions/checkout@") {
			step.get("uses").use("nothing, since the Workspace is a fresh clone")
			step.get("name").use("nothing, since it is only a name")
			for _, c := range step.get("with").list() {
				c.why = "the Workspace is a clone as a Session makes it"
			}
			return
		}
		step.why = "the action " + uses + " is not run: what it sets up, the bootstrap has to"
		return
	}
	run := step.get("run")
	body, ok := run.str()
	if !ok {
		return
	}
	options, shell := "-e", step.get("shell")
	switch v, _ := shell.str(); {
	case shell == nil, v == "sh":
	case v == "bash":
		options = "-eo pipefail"
	default:
		step.why = "its shell is not bash"
		return
	}
	if step.get("if") != nil {
		step.why = "it runs only under a condition"
		return
	}
	if strings.Contains(body, expression) {
		step.why = "it uses an expression of GitHub's, " + expression + " … }}"
		return
	}
	before := ""
	if dir, ok := step.get("working-directory").str(); ok {
		if strings.Contains(dir, expression) {
			step.why = "it uses an expression of GitHub's, " + expression + " … }}"
			return
		}
		before = "cd " + quoted(dir) + "\n"
	}
	for _, v := range step.get("env").list() {
		if variable.MatchString(v.name) && v.kind <= other && !strings.Contains(v.value, expression) {
			before += "export " + v.name + "=" + quoted(v.value) + "\n"
		}
	}
	name, _ := step.get("name").str()
	title := ""
	if name != "" {
		title = ", " + name
	}
	if p.add(run, path, title, before+body, options); run.used == "" {
		return
	}
	for _, key := range []string{"name", "shell", "working-directory"} {
		step.get(key).use(run.used)
	}
	for _, v := range step.get("env").list() {
		if strings.Contains(before, "export "+v.name+"="+quoted(v.value)+"\n") {
			v.use(run.used)
		} else {
			p.copilotEnv(v, run.used == "bootstrap")
		}
	}
}

// list is the children of a group.
func (n *node) list() []*node {
	if n == nil || n.kind != group {
		return nil
	}
	return n.children
}

var cursorReasons = map[string]string{
	"build": noBuild, "snapshot": "a snapshot of another product can't be read: choose an image", "terminals": noTerminal, "ports": noPorts, "user": noUser,
	"repositoryDependencies": "a Session has one Repo",
}

func (p *plan) cursor(root *node) {
	root.get("name").use("nothing, since it is only a name")
	root.get("$schema").use("nothing, since it is for editors")
	p.image(root.get("image"), "${")
	p.variables(root.get("env"), "${")
	for _, key := range []string{"install", "start"} {
		if n := root.get(key); n != nil && n.kind == text {
			p.add(n, key, "", n.value, "")
		}
	}
}

var gitpodReasons = map[string]string{
	"image": noBuild, "ports": noPorts, "vscode": noEditor, "jetbrains": noEditor, "github": "what a pull request shows is not part of an Environment",
	"checkoutLocation": noMount, "workspaceLocation": noMount, "mainConfiguration": "a Session has one Repo", "additionalRepositories": "a Session has one Repo",
	"gitConfig": "git is set up in the bootstrap", "tasks": noTerminal,
}

func (p *plan) gitpod(root *node) {
	root.get("name").use("nothing, since it is only a name")
	p.image(root.get("image"), "${")
	p.variables(root.get("env"), "${")
	for i, task := range root.get("tasks").items() {
		path := "tasks[" + strconv.Itoa(i) + "]"
		name, _ := task.get("name").str()
		if name != "" {
			task.get("name").use("nothing, since it is only a name")
			name = ", " + name
		}
		for _, key := range []string{"before", "init", "prebuild"} {
			if n := task.get(key); n != nil && n.kind == text {
				p.add(n, path+"."+key, name, n.value, "")
			}
		}
		p.variables(task.get("env"), "${")
	}
}
