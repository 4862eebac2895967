package envspec

import (
	"cmp"
	"fmt"
	gopath "path"
	"slices"
	"strconv"
	"strings"

	"github.com/bmatcuk/doublestar/v4"
	"gopkg.in/yaml.v3"
)

// Folder is a pattern of dependency folders (ADR 0006): those that match are kept on a disk of their own.
type Folder struct {
	Pattern string `json:"pattern"`          // a glob below the Workspace, in which ** is any number of folders
	Beside  string `json:"beside,omitempty"` // a file that marks where the folder belongs, so that it exists on a fresh clone
}

// DefaultFolders are those of an Environment that names none (ADR 0006).
func DefaultFolders() []Folder {
	return []Folder{{"**/node_modules", "package.json"}, {"**/.venv", "pyproject.toml"}, {"**/target", "Cargo.toml"}}
}

// DependencyFolders are the patterns that hold for s: its own, or the defaults. Their order means nothing.
func (s Spec) DependencyFolders() []Folder {
	if s.Folders == nil {
		return DefaultFolders()
	}
	return slices.Clone(*s.Folders)
}

// normalizeFolders makes the defaults nil, written as they may be, and a list of none one that JSON can tell from nil.
func normalizeFolders(f *[]Folder) *[]Folder {
	if f == nil || slices.Equal(sortedFolders(*f), sortedFolders(DefaultFolders())) {
		return nil
	}
	own := append([]Folder{}, *f...)
	return &own
}

func sortedFolders(f []Folder) []Folder {
	f = slices.Clone(f)
	slices.SortFunc(f, func(a, b Folder) int {
		return cmp.Or(cmp.Compare(a.Pattern, b.Pattern), cmp.Compare(a.Beside, b.Beside))
	})
	return f
}

// folderText is what the keys see of the patterns of a normalized Spec, and a person in a sentence: in no order of their own.
func folderText(s Spec) string {
	switch {
	case s.Folders == nil:
		return ""
	case len(*s.Folders) == 0:
		return "none"
	}
	var all []string
	for _, f := range sortedFolders(*s.Folders) {
		one := strconv.Quote(f.Pattern)
		if f.Beside != "" {
			one += " beside " + strconv.Quote(f.Beside)
		}
		all = append(all, one)
	}
	return strings.Join(all, ", ")
}

// What a document may hold at most.
const (
	MaxFolders = 50  // patterns
	MaxPattern = 256 // bytes of one pattern
	maxBeside  = 255 // bytes of a file's name, as on Linux
)

var folderKeys = grammar{"a dependency folder", []string{"pattern", "beside"},
	map[string]string{"path": "pattern", "folder": "pattern", "glob": "pattern", "next-to": "beside", "file": "beside", "marker": "beside"}}

func (p *parser) folders(n *yaml.Node) {
	const path = "dependency-folders"
	if !p.untagged(n, path) || !p.something(n, path) {
		return
	}
	if n.Kind != yaml.SequenceNode {
		p.at(n, path, "%s is %s: it should be a list of patterns, such as [\"**/node_modules\"]; [] is none", path, kind(n))
		return
	}
	all := []Folder{}
	var nodes []*yaml.Node
	for i, item := range n.Content {
		at := path + "[" + strconv.Itoa(i) + "]"
		var f Folder
		if item.Kind != yaml.MappingNode {
			v, ok := p.text(item, at)
			if !ok {
				continue
			}
			f.Pattern = v
		} else if !p.folder(item, at, &f) {
			continue
		}
		nodes, all = append(nodes, item), append(all, f)
	}
	p.spec.Folders = &all
	checkFolders(all, func(path string, err error) {
		if err == nil {
			return
		}
		node := n
		if item, below := strings.CutPrefix(path, "dependency-folders["); below {
			item, _, _ = strings.Cut(item, "]")
			i, _ := strconv.Atoi(item) //nolint:errcheck // checkFolders wrote it
			node = nodes[i]
		}
		p.check(node, path, err)
	})
}

func (p *parser) folder(item *yaml.Node, at string, f *Folder) bool {
	if !p.untagged(item, at) {
		return false
	}
	before, pattern := len(p.problems), false
	p.group(item, at, folderKeys, func(key, value *yaml.Node) {
		v, ok := p.text(value, at+"."+key.Value)
		switch {
		case !ok:
		case key.Value == "pattern":
			f.Pattern, pattern = v, true
		case v == "":
			p.at(value, at+".beside", "%s.beside is empty: name a file, or leave it out", at)
		default:
			f.Beside = v
		}
	})
	if len(p.problems) == before && !pattern {
		p.at(item, at, "%s has no pattern, as in {pattern: \"**/node_modules\", beside: package.json}", at)
	}
	return len(p.problems) == before
}

// checkFolders tells what is wrong with a list of patterns. Where it is told is the path of the list, or of one of its
// items.
func checkFolders(all []Folder, add func(path string, err error)) {
	const path = "dependency-folders"
	if len(all) > MaxFolders {
		add(path, fmt.Errorf("%s has %d patterns: at most %d", path, len(all), MaxFolders))
		return
	}
	for i, f := range all {
		at := path + "[" + strconv.Itoa(i) + "]"
		if first := slices.Index(all, f); first < i {
			add(at, fmt.Errorf("%s is the same as %s[%d]: write it once", at, path, first))
			continue
		}
		add(at, checkPattern(at, f.Pattern))
		if f.Beside != "" {
			add(at+".beside", checkBeside(at+".beside", f.Beside))
		}
	}
}

func checkPattern(at, pattern string) error {
	switch {
	case pattern == "":
		return fmt.Errorf("%s is empty: write a pattern, as in **/node_modules", at)
	case len(pattern) > MaxPattern:
		return fmt.Errorf("%s is %d bytes long: at most %d", at, len(pattern), MaxPattern)
	case !printing(pattern) || strings.Contains(pattern, `\`):
		return fmt.Errorf("%s has a control character or backslash in it: folders are joined by /", at)
	case pattern[0] == '/' || pattern[0] == '~':
		return fmt.Errorf("%s is %s: a pattern begins in the Workspace, without / or ~ before it", at, quote(pattern))
	case strings.HasSuffix(pattern, "/"):
		return fmt.Errorf("%s is %s: write it without the / at its end", at, quote(pattern))
	}
	segments := strings.Split(pattern, "/")
	for _, s := range segments {
		switch {
		case s == "" || s == ".":
			return fmt.Errorf("%s is %s: write it without empty parts and dots alone", at, quote(pattern))
		case s == "..":
			return fmt.Errorf("%s is %s: a pattern has no .. in it, since only folders of the Workspace can be kept", at, quote(pattern))
		case s == ".git":
			return fmt.Errorf("%s is %s: .git belongs to the Workspace itself", at, quote(pattern))
		case s != "**" && strings.Contains(s, "**"):
			return fmt.Errorf("%s is %s: ** stands alone between two /, as in **/node_modules", at, quote(pattern))
		}
		if _, err := gopath.Match(s, ""); err != nil {
			return fmt.Errorf("%s is %s: %s has a [ that is not closed, or nothing between [ and ]", at, quote(pattern), quote(s))
		}
	}
	if !doublestar.ValidatePattern(pattern) {
		return fmt.Errorf("%s is %s: a { in it is not closed", at, quote(pattern))
	}
	if last := segments[len(segments)-1]; strings.Trim(last, "*?") == "" {
		return fmt.Errorf("%s is %s: the last part names a folder, as in **/node_modules; %s would be any", at, quote(pattern), last)
	}
	return nil
}

func checkBeside(at, file string) error {
	switch {
	case len(file) > maxBeside:
		return fmt.Errorf("%s is %d bytes long: at most %d", at, len(file), maxBeside)
	case !printing(file), strings.ContainsAny(file, `/\*?[`), file == ".", file == "..":
		return fmt.Errorf("%s is %s: it should be the name of one file, without folders and wildcards, as in package.json", at, quote(file))
	}
	return nil
}
