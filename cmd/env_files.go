package cmd

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/claude-hub/claude-hub/envspec"
)

// repositoryFiles reads the files of the repository that a document stands in, and none outside of it, also not by symbolic
// links; nil when it stands in none. For stdin it is the repository of the working directory. done frees what it holds.
func repositoryFiles(document string) (files envspec.Files, done func(), err error) {
	done = func() {}
	dir := "."
	if document != "stdin" {
		dir = filepath.Dir(document)
	}
	if dir, err = filepath.Abs(dir); err != nil {
		return nil, done, err
	}
	top, err := repositoryTop(dir)
	if err != nil || top == "" {
		return nil, done, err
	}
	root, err := os.OpenRoot(top)
	if err != nil {
		return nil, done, err
	}
	return envspec.FilesIn(root.FS()), func() { root.Close() }, nil //nolint:errcheck // nothing is written through it
}

// repositoryTop is the folder at or above dir that has a .git; failing that, the one above .claude-hub. It is "" when there
// is neither.
func repositoryTop(dir string) (string, error) {
	for at := dir; ; at = filepath.Dir(at) {
		switch _, err := os.Lstat(filepath.Join(at, ".git")); {
		case err == nil:
			return at, nil
		case !errors.Is(err, fs.ErrNotExist) && !errors.Is(err, fs.ErrPermission):
			return "", err
		}
		if at == filepath.Dir(at) {
			break
		}
	}
	if filepath.Base(dir) == filepath.Dir(environmentFile) {
		return filepath.Dir(dir), nil
	}
	return "", nil
}
