package github

import (
	"bytes"
	"context"
	"net/http"
	"strings"
)

// FileKind is what a commit has at a path.
type FileKind string

const (
	Missing   FileKind = "missing"
	Regular   FileKind = "file"
	Directory FileKind = "directory"
	Symlink   FileKind = "symlink"
	Submodule FileKind = "submodule"
	TooBig    FileKind = "too big" // a file beyond the limit; its content was not fetched
)

// File is what a commit has at Path. Content is that of a Regular one, byte for byte.
type File struct {
	Path       string
	Kind       FileKind
	Executable bool
	Blob       string // the content's git id
	Size       int64
	Content    []byte
	// At is the part of Path that is the Symlink, Submodule or Regular file which Path leads through; "" if it is all of it.
	At string
}

type treeJSON struct {
	Tree []struct {
		Path string `json:"path"`
		Mode string `json:"mode"`
		Type string `json:"type"`
		SHA  string `json:"sha"`
		Size int64  `json:"size"`
	} `json:"tree"`
	Truncated bool `json:"truncated"`
}

// Files reads paths at a commit, whichever they are: what is no file is said to be what it is, and nothing is followed. A
// file larger than limit bytes is TooBig. Found is what the commit has at that moment, which never changes.
//
// It goes by git's trees, since the API for contents follows symlinks, calls submodules files, and leaves out what is above
// a megabyte. NotFound if the Repo has no such commit.
func (a *App) Files(ctx context.Context, repo RepoID, commit string, limit int64, paths ...string) ([]File, error) {
	if !isSHA(commit) {
		return nil, notACommit(commit)
	}
	trees := map[string]treeJSON{}
	tree := func(sha string) (treeJSON, error) {
		if t, ok := trees[sha]; ok {
			return t, nil
		}
		var t treeJSON
		if _, err := a.onRepo(ctx, repo, http.MethodGet, "/git/trees/"+sha, nil, &t); err != nil {
			return t, noCommit(err, sha)
		}
		trees[sha] = t
		return t, nil
	}
	var all []File
	for _, p := range paths {
		f, err := find(p, commit, tree)
		if err != nil {
			return nil, err
		}
		if f.Kind == Regular && f.Size > limit {
			f.Kind = TooBig
		}
		if f.Kind == Regular {
			var b bytes.Buffer
			if _, err := a.onRepo(ctx, repo, http.MethodGet, "/git/blobs/"+f.Blob, nil, &b); err != nil {
				return nil, err
			}
			if int64(b.Len()) != f.Size {
				return nil, away(nil)
			}
			f.Content = b.Bytes()
		}
		all = append(all, f)
	}
	return all, nil
}

func find(path, commit string, tree func(string) (treeJSON, error)) (File, error) {
	f := File{Path: path, Kind: Directory, Blob: commit}
	parts := strings.Split(path, "/")
	for _, part := range parts {
		if part == "" || part == "." || part == ".." {
			return f, fail(Invalid, "%.200q is no path inside a Repo.", path)
		}
	}
	for i, part := range parts {
		if f.Kind != Directory {
			if f.At = strings.Join(parts[:i], "/"); f.Kind == Regular {
				f.Kind = Missing
			}
			return f, nil
		}
		t, err := tree(f.Blob)
		if err != nil {
			return f, err
		}
		f.Kind = Missing
		for _, e := range t.Tree {
			if e.Path != part {
				continue
			}
			f.Blob, f.Size, f.Executable = e.SHA, e.Size, e.Mode == "100755"
			switch {
			case e.Mode == "120000":
				f.Kind = Symlink
			case e.Type == "tree":
				f.Kind = Directory
			case e.Type == "commit":
				f.Kind = Submodule
			default:
				f.Kind = Regular
			}
		}
		if f.Kind == Missing && t.Truncated {
			return f, fail(Invalid, "The folder of %.200q has more entries than GitHub lists.", path)
		}
		if f.Kind == Missing {
			return File{Path: path, Kind: Missing}, nil
		}
	}
	return f, nil
}
