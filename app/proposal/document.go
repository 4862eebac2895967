package proposal

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"strings"

	"gopkg.in/yaml.v3"

	"github.com/claude-hub/claude-hub/app/fault"
	"github.com/claude-hub/claude-hub/app/github"
	"github.com/claude-hub/claude-hub/envspec"
)

// Path is where a Repo keeps its Environment.
const Path = ".claude-hub/environment.yml"

// document is what one commit has at Path, and in the scripts that are named there. It never changes.
type document struct {
	absent   bool
	spec     envspec.Spec // good unless problems.Failed
	problems envspec.Problems
	text     []byte
	// blobs tells documents apart: all files that were read, by what they are.
	blobs string
}

func (d document) valid() bool { return !d.absent && !d.problems.Failed() }

// filesAt is what is asked of GitHub for a document.
type filesAt interface {
	Files(ctx context.Context, repo github.RepoID, commit string, limit int64, paths ...string) ([]github.File, error)
}

// readDocument reads what a commit proposes. What is no plain file is a problem of the document, said in words, and nothing is
// followed; that GitHub didn't answer is an error, never an absent or a wrong document (facts/github.md §4, 18).
func readDocument(ctx context.Context, app filesAt, repo github.RepoID, commit string) (document, error) {
	r := reader{ctx: ctx, app: app, repo: repo, commit: commit}
	f, err := r.file(Path, envspec.MaxDocument)
	if err != nil {
		return document{}, err
	}
	d := document{}
	if f.Kind == github.Missing && f.At == "" {
		d.absent = true
		return d, nil
	}
	if why := notPlain(f, envspec.MaxDocument); why != "" {
		d.problems = envspec.Problems{{File: Path, Line: 1, Column: 1, Message: Path + " " + why}}
		d.blobs = r.sum()
		return d, nil
	}
	d.text = f.Content
	d.spec, d.problems = envspec.Check(Path, f.Content, r.script)
	d.blobs = r.sum()
	return d, r.failed
}

// reader reads files of one commit, and remembers which.
type reader struct {
	ctx    context.Context
	app    filesAt
	repo   github.RepoID
	commit string
	read   []string
	failed error
}

func (r *reader) file(path string, limit int64) (github.File, error) {
	all, err := r.app.Files(r.ctx, r.repo, r.commit, limit, path)
	if err != nil {
		return github.File{}, err
	}
	f := all[0]
	r.read = append(r.read, fmt.Sprintf("%s %s %s %s", f.Path, f.Kind, f.Blob, f.At))
	return f, nil
}

func (r *reader) sum() string {
	h := sha256.Sum256([]byte(strings.Join(r.read, "\n")))
	return hex.EncodeToString(h[:])
}

// script is an envspec.Files. That GitHub failed is kept apart from what it says of a file.
func (r *reader) script(path string) ([]byte, error) {
	if r.failed != nil {
		return nil, errors.New("GitHub didn't answer")
	}
	f, err := r.file(path, envspec.MaxScript)
	switch {
	case github.Invalid.Is(err):
		return nil, errors.New("it is no path inside the repository")
	case err != nil:
		r.failed = err
		return nil, errors.New("GitHub didn't answer")
	case f.Kind == github.Missing && f.At == "":
		return nil, fs.ErrNotExist
	}
	if why := notPlain(f, envspec.MaxScript); why != "" {
		return nil, errors.New("it " + why)
	}
	return f.Content, nil
}

// notPlain says why there is no content to read, in words that go on after the file's name.
func notPlain(f github.File, limit int64) string {
	const plain = ": write it as a plain file"
	switch {
	case f.At != "":
		return fmt.Sprintf("leads through %s, which is %s", f.At, aKind(f.Kind)) + ": make that a folder, and the last part a plain file"
	case f.Kind == github.TooBig:
		return fmt.Sprintf("has %d bytes; at most %d are possible", f.Size, limit)
	case f.Kind != github.Regular:
		return "is " + aKind(f.Kind) + plain
	case bytes.IndexByte(f.Content, 0) >= 0:
		return "is a binary file: write it as text, in UTF-8"
	}
	return ""
}

func aKind(k github.FileKind) string {
	switch k {
	case github.Directory:
		return "a folder"
	case github.Symlink:
		return "a symbolic link, which is not followed"
	case github.Submodule:
		return "a submodule, which is not followed"
	}
	return "a file"
}

// digest is equal for documents that say the same to who reads the Environment, whichever files they are written in.
func digest(s envspec.Spec) string {
	s.BootstrapFile, s.StartFile = "", ""
	h := sha256.Sum256(envspec.Format(envspec.Normalize(s)))
	return hex.EncodeToString(h[:])
}

// faults are the problems of a document that only the Hub knows of, its Variables': each on the line of its Variable.
func (d document) faults(err error) (envspec.Problems, bool) {
	var f *fault.Error
	if !errors.As(err, &f) || f.Code != fault.Invalid {
		return nil, false
	}
	if len(f.Fields) == 0 {
		return envspec.Problems{{File: Path, Line: 1, Column: 1, Message: f.Message}}, true
	}
	lines := variableLines(d.text)
	var all envspec.Problems
	for _, field := range sortedKeys(f.Fields) {
		p := envspec.Problem{File: Path, Path: field, Line: 1, Column: 1, Message: f.Fields[field]}
		if at, ok := lines[field]; ok {
			p.Line, p.Column = at[0], at[1]
		}
		// Whoever can read the check run would read in a suggestion which other Shared variables there are.
		for _, v := range d.spec.Variables {
			if v.Link != "" && field == "variables."+v.Name {
				p.Message = fmt.Sprintf("%s links the Shared variable %s, which doesn't exist", v.Name, v.Link)
			}
		}
		all = append(all, p)
	}
	return all, true
}

// variableLines are line and column of each Variable's name in a document, by its field.
func variableLines(doc []byte) map[string][2]int {
	var root yaml.Node
	if yaml.Unmarshal(doc, &root) != nil || root.Kind != yaml.DocumentNode || len(root.Content) == 0 {
		return nil
	}
	lines := map[string][2]int{}
	top := root.Content[0]
	for i := 0; i+1 < len(top.Content); i += 2 {
		key, value := top.Content[i], top.Content[i+1]
		if key.Value != "variables" {
			continue
		}
		lines["variables"] = [2]int{key.Line, key.Column}
		if value.Kind != yaml.MappingNode {
			continue
		}
		for j := 0; j+1 < len(value.Content); j += 2 {
			lines["variables."+value.Content[j].Value] = [2]int{value.Content[j].Line, value.Content[j].Column}
		}
	}
	return lines
}
