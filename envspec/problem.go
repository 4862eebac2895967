package envspec

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"unicode/utf8"

	"github.com/google/go-containerregistry/pkg/name"
)

// Problem is one thing about a document or a Spec that a person should mend.
type Problem struct {
	File    string `json:"file,omitempty"`
	Path    string `json:"field"`            // the field, "" when it is the document as a whole
	Line    int    `json:"line,omitempty"`   // from 1; 0 when there is no document
	Column  int    `json:"column,omitempty"` // from 1, in characters
	Message string `json:"message"`          // a sentence that names the field, without the place
	Warning bool   `json:"warning,omitempty"`
}

// String is the problem with its place, as compilers write it.
func (p Problem) String() string {
	var b strings.Builder
	if p.File != "" {
		b.WriteString(p.File + ":")
	}
	if p.Line > 0 {
		fmt.Fprintf(&b, "%d:%d:", p.Line, p.Column)
	}
	if b.Len() > 0 {
		b.WriteByte(' ')
	}
	if p.Warning {
		b.WriteString("warning: ")
	}
	b.WriteString(p.Message)
	return b.String()
}

// Problems are in the order of the document. As an error they are one a line.
type Problems []Problem

// Error implements error.
func (p Problems) Error() string {
	lines := make([]string, len(p))
	for i := range p {
		lines[i] = p[i].String()
	}
	return strings.Join(lines, "\n")
}

// Failed reports that one of them is more than a warning.
func (p Problems) Failed() bool {
	return slices.ContainsFunc(p, func(p Problem) bool { return !p.Warning })
}

func (p Problems) sort() {
	slices.SortStableFunc(p, func(a, b Problem) int {
		return cmp.Or(cmp.Compare(a.Line, b.Line), cmp.Compare(a.Column, b.Column))
	})
}

// Validate says what is wrong with a Spec that came from a form or a program; Path names the field. A Spec that is
// [Normalize]d and has no problem but warnings is one that [Parse] could have returned.
func Validate(s Spec) Problems {
	var out Problems
	add := func(path string, err error) {
		if err != nil {
			out = append(out, Problem{Path: path, Message: err.Error()})
		}
	}
	if s.Image != "" {
		add("image", checkImage(s.Image))
	}
	for _, f := range []struct{ path, script, file string }{{"bootstrap", s.Bootstrap, s.BootstrapFile}, {"start", s.Start, s.StartFile}} {
		add(f.path, checkScript(f.path, f.script))
		if f.file != "" {
			add(f.path, checkFile(f.path, f.file))
		}
		for _, w := range warnScript(f.path, f.script) {
			out = append(out, Problem{Path: f.path, Message: w, Warning: true})
		}
	}
	warnUses(s, func(u Use, sentence string) {
		out = append(out, Problem{Path: "bootstrap", Message: sentence + inScript(u.Line), Warning: true})
	})
	if s.CPU != 0 {
		add("cpu", checkCPU(s.CPU))
	}
	if s.Memory != 0 {
		add("memory", checkMemory(s.Memory))
	}
	if s.Folders != nil {
		checkFolders(*s.Folders, add)
	}
	checkVariables(s.Variables, add)
	for _, v := range s.Variables {
		for _, w := range warnName(v.Name) {
			out = append(out, Problem{Path: variablePath(v.Name), Message: w, Warning: true})
		}
	}
	return out
}

func checkImage(ref string) error {
	if len(ref) > MaxImage {
		return fmt.Errorf("image is %d bytes long: at most %d", len(ref), MaxImage)
	}
	if i := strings.Index(ref, "://"); i >= 0 {
		return fmt.Errorf("image %s is a URL: write it without %s, as in %s", quote(ref), quote(ref[:i+3]), quote(ref[i+3:]))
	}
	if strings.ContainsAny(ref, " \t\r\n") {
		return fmt.Errorf("image %s has a space or line break in it", quote(ref))
	}
	if _, err := name.ParseReference(ref); err != nil {
		if lower := strings.ToLower(ref); lower != ref {
			if _, again := name.ParseReference(lower); again == nil {
				return fmt.Errorf("image %s has capital letters: write %s", quote(ref), quote(lower))
			}
		}
		return fmt.Errorf("image %s is no image reference: one is written as in node:22, ghcr.io/owner/name:tag or name@sha256:…", quote(ref))
	}
	return nil
}

func checkScript(path, v string) error {
	switch {
	case len(v) > MaxScript:
		return fmt.Errorf("%s is %d KiB long: at most %d KiB; put what is longer into the image or the repository", path, len(v)>>10, MaxScript>>10)
	case strings.IndexByte(v, 0) >= 0:
		return fmt.Errorf("%s has a NUL byte in it, which no shell reads", path)
	case !utf8.ValidString(v):
		return fmt.Errorf("%s is not UTF-8", path)
	}
	return nil
}

func warnScript(path, v string) (out []string) {
	if strings.Contains(v, "\r") {
		out = append(out, path+" has carriage returns in it, which shells take for part of a word: use LF line endings")
	}
	if t := strings.TrimLeft(v, " \t\r\n"); strings.HasPrefix(t, "#!") && t != v {
		out = append(out, path+" has its #! line not at the very beginning, where it counts")
	}
	return out
}
