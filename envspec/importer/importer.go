// Package importer makes a proposal for an Environment from what a repository already has for other products: dev
// containers, GitHub's copilot-setup-steps, Cursor, Gitpod, mise and asdf. Nothing is lost silently: what an Environment
// can't hold is named, and so is each key that nobody has thought of.
package importer

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"path"
	"reflect"
	"slices"
	"strings"

	"github.com/claude-hub/claude-hub/envspec"
)

// Item is something that a file of the repository says.
type Item struct {
	File  string `json:"file"`
	Key   string `json:"key"`             // as in tasks[0].init; "" is the file as a whole
	Value string `json:"value,omitempty"` // what it says, where its key alone says too little; never of a variable
	Why   string `json:"why"`             // what became of it, or why it could not be carried over
}

// String is the item in one line, for a terminal whatever the file holds.
func (i Item) String() string {
	out := i.File
	if i.Key != "" {
		out += ": " + i.Key
	}
	if i.Value != "" {
		out += " (" + i.Value + ")"
	}
	return printable(out) + ": " + printable(i.Why)
}

// Proposal is what could be made of a repository's files.
type Proposal struct {
	Source   string       `json:"source"`   // the one file that it is made from
	Spec     envspec.Spec `json:"spec"`     // right by [envspec.Validate]
	Document string       `json:"document"` // read as Spec by [envspec.Parse]
	Used     []Item       `json:"used"`
	Left     []Item       `json:"left"` // all that Source says and that is not in Used, and the other files
}

// ErrNothing says that a repository has no file that a proposal could be made from. What was found and could not be read
// is in the Proposal's Left.
var ErrNothing = errors.New("there is nothing to import here: no .devcontainer/devcontainer.json, .github/workflows/copilot-setup-steps.yml, .cursor/environment.json, .gitpod.yml, mise.toml or .tool-versions that can be read")

// format is one kind of file.
type format struct {
	files   []string
	parse   func([]byte) (*node, error)
	plan    func(*plan, *node)
	reasons map[string]string
}

// formats are in the order in which they are preferred: what says most about an environment first.
var formats = []format{
	{[]string{".devcontainer/devcontainer.json", ".devcontainer.json", ".devcontainer/*/devcontainer.json"}, parseJSONC, (*plan).devcontainer, devcontainerReasons},
	{[]string{".github/workflows/copilot-setup-steps.yml", ".github/workflows/copilot-setup-steps.yaml"}, parseYAML, (*plan).copilot, copilotReasons},
	{[]string{".cursor/environment.json"}, parseJSONC, (*plan).cursor, cursorReasons},
	{[]string{".gitpod.yml"}, parseYAML, (*plan).gitpod, gitpodReasons},
	{[]string{"mise.toml", ".mise.toml", ".config/mise.toml", ".config/mise/config.toml"}, parseTOML, (*plan).mise, miseReasons},
	{[]string{".tool-versions"}, parseToolVersions, (*plan).mise, miseReasons},
}

// maxFiles bounds the folders of .devcontainer that are looked into.
const maxFiles = 50

// plan is a proposal in the making.
type plan struct {
	file             string
	spec             envspec.Spec
	bootstrap, start script
}

type source struct {
	file   string
	format format
	root   *node
}

// Import makes a proposal from one file of a repository: the one that is named (slashes, no .. in it), or else the first
// there is. All others are named in Left. repo must not lead out of the repository by symbolic links ([os.Root] doesn't);
// files of more than 128 KiB are not read.
func Import(repo fs.FS, from string) (Proposal, error) {
	out := Proposal{Used: []Item{}, Left: []Item{}}
	var sources []source
	for _, f := range formats {
		for _, file := range existing(repo, f.files) {
			root, err := readFile(repo, file, f.parse)
			if err != nil {
				if file == from {
					return out, fmt.Errorf("%s can't be read: %s", printable(file), printable(err.Error()))
				}
				out.Left = append(out.Left, Item{File: file, Why: "it can't be read: " + err.Error()})
				continue
			}
			sources = append(sources, source{file, f, root})
		}
	}
	chosen := 0
	if from != "" {
		if chosen = slices.IndexFunc(sources, func(s source) bool { return s.file == path.Clean(from) }); chosen < 0 {
			return out, fmt.Errorf("%s is no file of this repository that can be imported", printable(from))
		}
	}
	if len(sources) == 0 {
		return out, ErrNothing
	}
	main := sources[chosen]
	p := plan{file: main.file}
	main.format.plan(&p, main.root)
	out.Source = main.file
	if err := out.write(p); err != nil {
		return out, err
	}
	c := collector{&out, main.file, main.format.reasons}
	for _, child := range main.root.children {
		c.walk(child, "", false, false)
	}
	for i, s := range sources {
		if i != chosen {
			out.other(s)
		}
	}
	return out, nil
}

// write makes the document, and proves that it is one.
func (p *Proposal) write(from plan) error {
	s := from.spec
	if len(from.bootstrap.parts) > 0 {
		s.Bootstrap = from.bootstrap.render()
	}
	if len(from.start.parts) > 0 {
		s.Start = from.start.render()
	}
	p.Spec = envspec.Normalize(s)
	p.Document = "# Proposed by claude-hub env import, from " + printable(p.Source) + "\n\n" + string(envspec.Format(p.Spec))
	if back, err := envspec.Parse("environment.yml", []byte(p.Document), nil); err != nil || !reflect.DeepEqual(back, p.Spec) {
		return fmt.Errorf("what %s says makes no right environment.yml: %w", printable(p.Source), err)
	}
	return nil
}

// other names a file that the proposal is not made from, and the tools that it lists (facts/recipes.md R24).
func (p *Proposal) other(s source) {
	p.Left = append(p.Left, Item{File: s.file, Why: "not used, since the proposal is made from " + p.Source + "; claude-hub env import --from " + s.file + " makes one from this file"})
	for _, tool := range s.root.get("tools").list() {
		var all []string
		for _, v := range versions(tool) {
			all = append(all, v.value)
		}
		p.Left = append(p.Left, Item{s.file, "tools." + tool.name, strings.Join(all, " "), "not used: check that the versions that are installed are these"})
	}
}

func existing(repo fs.FS, patterns []string) (out []string) {
	for _, p := range patterns {
		if !strings.Contains(p, "*") {
			out = append(out, p)
			continue
		}
		folder, file, _ := strings.Cut(p, "/*/")
		entries, err := fs.ReadDir(repo, folder)
		if err != nil {
			continue
		}
		for _, e := range entries[:min(len(entries), maxFiles)] {
			if e.IsDir() || e.Type()&fs.ModeSymlink != 0 {
				out = append(out, path.Join(folder, e.Name(), file))
			}
		}
	}
	return slices.DeleteFunc(out, func(file string) bool {
		_, err := fs.Stat(repo, file)
		return errors.Is(err, fs.ErrNotExist) || !fs.ValidPath(file)
	})
}

// readFile reads a regular file: a pipe would be waited for, a device never end.
func readFile(repo fs.FS, file string, parse func([]byte) (*node, error)) (*node, error) {
	info, err := fs.Stat(repo, file)
	if err != nil {
		return nil, err
	}
	if !info.Mode().IsRegular() {
		return nil, errors.New("it is no file")
	}
	f, err := repo.Open(file)
	if err != nil {
		return nil, err
	}
	defer f.Close() //nolint:errcheck // only read from
	b, err := io.ReadAll(io.LimitReader(f, maxFile+1))
	if err != nil {
		return nil, err
	}
	if len(b) > maxFile {
		return nil, fmt.Errorf("it is larger than %d KiB", maxFile>>10)
	}
	root, err := parse(b)
	if err != nil {
		return nil, err
	}
	if root.kind != group {
		return nil, errors.New("it should be keys and values")
	}
	return root, nil
}

// collector sorts what a file says into what was used and what is left.
type collector struct {
	out     *Proposal
	file    string
	reasons map[string]string
}

// each are the keys whose children are told one by one when none is used.
var each = map[string]bool{"features": true, "mounts": true, "runArgs": true, "capAdd": true, "securityOpt": true, "remoteEnv": true, "containerEnv": true, "env": true,
	"hostRequirements": true, "jobs": true, "steps": true, "services": true, "tasks": true, "terminals": true, "tools": true, "with": true}

// secret are the keys whose values are not told.
var secret = map[string]bool{"remoteEnv": true, "containerEnv": true, "env": true, "secrets": true}

func (c collector) walk(n *node, above string, inList, hidden bool) {
	key := n.name
	if key == "" {
		key = `""`
	}
	switch {
	case inList:
		key = above + key
	case above != "":
		key = above + "." + key
	}
	hidden = hidden || secret[n.name]
	switch {
	case n.used != "":
		c.out.Used = append(c.out.Used, Item{File: c.file, Key: key, Why: n.used})
		for _, child := range n.children {
			if child.why != "" {
				c.walk(child, key, n.kind == list, hidden)
			}
		}
	case !n.says():
		c.out.Used = append(c.out.Used, Item{File: c.file, Key: key, Why: "nothing, since it is empty"})
	case len(n.children) > 0 && (n.parted() || each[n.name] && n.why == ""):
		for _, child := range n.children {
			if child.why == "" && n.why != "" {
				child.why = n.why
			}
			c.walk(child, key, n.kind == list, hidden)
		}
	default:
		item := Item{File: c.file, Key: key, Why: c.reason(n, key)}
		if n.kind <= other && !hidden {
			item.Value = n.value
		}
		c.out.Left = append(c.out.Left, item)
	}
}

// reason is what the node says, else the nearest that the format's table says, from the key itself upwards.
func (c collector) reason(n *node, key string) string {
	if n.why != "" {
		return n.why
	}
	for key != "" {
		if why, ok := c.reasons[key]; ok {
			return why
		}
		key = key[:max(0, strings.LastIndexAny(key, ".["))]
	}
	return "it has no counterpart in an Environment"
}
