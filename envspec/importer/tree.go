package importer

import (
	"bytes"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/BurntSushi/toml"
	"github.com/tailscale/hujson"
	"gopkg.in/yaml.v3"
)

// What one file may hold at most. Real ones have a few kilobytes.
const (
	maxFile  = 128 << 10 // bytes
	maxNodes = 5000
	maxDepth = 60
	maxDots  = 300 // in a line of TOML, where each may be a table in a table
)

type kind int

const (
	text  kind = iota // a string
	other             // a number, true, false
	null
	list
	group
)

// node is one value of a file. What an importer uses it marks; all that is never marked is told to the person. So a key
// that nobody thought of can't be lost silently.
type node struct {
	name     string // in its group; "[0]" in a list
	kind     kind
	value    string // of text and other
	children []*node
	used     string // what became of it
	why      string // why it is not used, when there is more to say than what the file's table says
}

// get is a child by name, the last one of that name as readers of JSON have it; nil when there is none.
func (n *node) get(name string) *node {
	if n == nil || n.kind != group {
		return nil
	}
	for _, c := range slices.Backward(n.children) {
		if c.name == name {
			return c
		}
	}
	return nil
}

// items are the children of a list.
func (n *node) items() []*node {
	if n == nil || n.kind != list {
		return nil
	}
	return n.children
}

// str is the text of a node that is one.
func (n *node) str() (string, bool) {
	if n == nil || n.kind != text {
		return "", false
	}
	return n.value, true
}

func (n *node) use(what string) {
	if n != nil {
		n.used = what
	}
}

// says is false for what says nothing: null, an empty text, a group or list of nothing.
func (n *node) says() bool {
	switch n.kind {
	case text:
		return strings.TrimSpace(n.value) != ""
	case null:
		return false
	case list, group:
		return len(n.children) > 0
	}
	return true
}

// remarkable says that there is something to say of a node, or of what is below it.
func (n *node) remarkable() bool {
	return n.used != "" || n.why != "" || n.parted()
}

// parted says that what is below a node is not all alike.
func (n *node) parted() bool { return slices.ContainsFunc(n.children, (*node).remarkable) }

// budget bounds what is made of a file.
type budget struct{ nodes int }

var errLarge = fmt.Errorf("it has more than %d values, or they are nested more than %d deep", maxNodes, maxDepth)

func (b *budget) node(name string, depth int) (*node, error) {
	if b.nodes++; b.nodes > maxNodes || depth > maxDepth {
		return nil, errLarge
	}
	return &node{name: name}, nil
}

func index(i int) string { return "[" + strconv.Itoa(i) + "]" }

// nestable refuses what would make a parser recurse deeply, before it does.
func nestable(b []byte) error {
	if bytes.Count(b, []byte("["))+bytes.Count(b, []byte("{")) > maxNodes {
		return errLarge
	}
	return nil
}

// parseJSONC reads JSON with comments and trailing commas.
func parseJSONC(b []byte) (*node, error) {
	b = bytes.TrimPrefix(b, []byte("\ufeff"))
	if err := nestable(b); err != nil {
		return nil, err
	}
	v, err := hujson.Parse(b)
	if err != nil {
		return nil, errors.New(strings.TrimPrefix(err.Error(), "hujson: "))
	}
	return new(budget).json("", v, 0)
}

func (b *budget) json(name string, v hujson.Value, depth int) (*node, error) {
	n, err := b.node(name, depth)
	if err != nil {
		return nil, err
	}
	switch v := v.Value.(type) {
	case *hujson.Object:
		n.kind = group
		for _, m := range v.Members {
			key, _ := m.Name.Value.(hujson.Literal)
			child, err := b.json(key.String(), m.Value, depth+1)
			if err != nil {
				return nil, err
			}
			n.children = append(n.children, child)
		}
	case *hujson.Array:
		n.kind = list
		for i, e := range v.Elements {
			child, err := b.json(index(i), e, depth+1)
			if err != nil {
				return nil, err
			}
			n.children = append(n.children, child)
		}
	case hujson.Literal:
		switch v.Kind() {
		case '"':
			n.kind, n.value = text, v.String()
		case 'n':
			n.kind = null
		default:
			n.kind, n.value = other, string(v)
		}
	}
	return n, nil
}

func parseYAML(b []byte) (*node, error) {
	if err := nestable(b); err != nil {
		return nil, err
	}
	var doc yaml.Node
	if err := yaml.Unmarshal(b, &doc); err != nil {
		return nil, errors.New(strings.TrimPrefix(err.Error(), "yaml: "))
	}
	if doc.Kind != yaml.DocumentNode {
		return &node{kind: null}, nil
	}
	return new(budget).yaml("", doc.Content[0], 0)
}

// yaml takes aliases for what they stand for, and a merge for a key like others.
func (b *budget) yaml(name string, v *yaml.Node, depth int) (*node, error) {
	n, err := b.node(name, depth)
	if err != nil {
		return nil, err
	}
	switch v.Kind {
	case yaml.AliasNode:
		return b.yaml(name, v.Alias, depth+1)
	case yaml.MappingNode:
		n.kind = group
		for i := 0; i+1 < len(v.Content); i += 2 {
			child, err := b.yaml(v.Content[i].Value, v.Content[i+1], depth+1)
			if err != nil {
				return nil, err
			}
			n.children = append(n.children, child)
		}
	case yaml.SequenceNode:
		n.kind = list
		for i, e := range v.Content {
			child, err := b.yaml(index(i), e, depth+1)
			if err != nil {
				return nil, err
			}
			n.children = append(n.children, child)
		}
	default:
		n.value = v.Value
		switch v.ShortTag() {
		case "!!str":
			n.kind = text
		case "!!null":
			n.kind = null
		default:
			n.kind = other
		}
	}
	return n, nil
}

func parseTOML(b []byte) (*node, error) {
	if err := nestable(b); err != nil {
		return nil, err
	}
	for line := range bytes.Lines(b) {
		if bytes.Count(line, []byte(".")) > maxDots {
			return nil, fmt.Errorf("a line has more than %d dots", maxDots)
		}
	}
	var v map[string]any
	if err := toml.Unmarshal(b, &v); err != nil {
		return nil, errors.New(strings.TrimPrefix(err.Error(), "toml: "))
	}
	return new(budget).toml("", v, 0)
}

func (b *budget) toml(name string, v any, depth int) (*node, error) {
	n, err := b.node(name, depth)
	if err != nil {
		return nil, err
	}
	add := func(name string, v any) error {
		child, err := b.toml(name, v, depth+1)
		n.children = append(n.children, child)
		return err
	}
	switch v := v.(type) {
	case map[string]any:
		n.kind = group
		names := make([]string, 0, len(v))
		for name := range v {
			names = append(names, name)
		}
		slices.Sort(names)
		for _, name := range names {
			if err := add(name, v[name]); err != nil {
				return nil, err
			}
		}
	case []map[string]any:
		n.kind = list
		for i := range v {
			if err := add(index(i), v[i]); err != nil {
				return nil, err
			}
		}
	case []any:
		n.kind = list
		for i := range v {
			if err := add(index(i), v[i]); err != nil {
				return nil, err
			}
		}
	case string:
		n.kind, n.value = text, v
	default:
		n.kind, n.value = other, fmt.Sprint(v)
	}
	return n, nil
}

// parseToolVersions reads asdf's list of tools: a name and versions on each line.
func parseToolVersions(b []byte) (*node, error) {
	if bytes.IndexByte(b, 0) >= 0 {
		return nil, errors.New("it is no text")
	}
	tools, count := &node{name: "tools", kind: group}, 0
	for line := range strings.Lines(strings.ToValidUTF8(string(b), "\ufffd")) {
		line, _, _ = strings.Cut(line, "#")
		words := strings.Fields(line)
		if len(words) == 0 {
			continue
		}
		if count += len(words); count > maxNodes {
			return nil, errLarge
		}
		tool := &node{name: words[0], kind: list}
		for i, version := range words[1:] {
			tool.children = append(tool.children, &node{name: index(i), kind: text, value: version})
		}
		tools.children = append(tools.children, tool)
	}
	return &node{kind: group, children: []*node{tools}}, nil
}
