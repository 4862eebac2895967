package envspec

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"strings"

	"gopkg.in/yaml.v3"
)

// Files reads a file of the repository that a document stands in, named with slashes and relative to the repository's
// root. The document's author chooses the name: a Files never reads what is outside of the repository, also not by a
// symbolic link. It may cut a file after [MaxScript] + 1 bytes. An error that is fs.ErrNotExist says that there is none.
type Files func(file string) ([]byte, error)

// maxPath is how long the path of a file may be, in bytes.
const maxPath = 512

// FilesIn reads regular files below repo, which must not lead out of the repository by symbolic links ([os.Root] doesn't).
func FilesIn(repo fs.FS) Files {
	return func(file string) ([]byte, error) {
		info, err := fs.Stat(repo, file)
		if err != nil {
			return nil, err
		}
		// A pipe would be waited for, a device never end.
		if !info.Mode().IsRegular() {
			return nil, errors.New("it is no file")
		}
		f, err := repo.Open(file)
		if err != nil {
			return nil, err
		}
		defer f.Close() //nolint:errcheck // only read from
		return io.ReadAll(io.LimitReader(f, MaxScript+1))
	}
}

// unread stands for files whose text plays no part.
func unread(string) ([]byte, error) { return nil, nil }

var scriptKeys = grammar{"a script", []string{"file"}, map[string]string{"path": "file", "script": "file", "source": "file", "run": "file"}}

func (p *parser) scriptFile(n *yaml.Node, path string, into, file *string) {
	if !p.untagged(n, path) {
		return
	}
	before := len(p.problems)
	var at *yaml.Node
	p.group(n, path, scriptKeys, func(_, value *yaml.Node) {
		if v, ok := p.text(value, path); ok {
			at, *file = value, v
		}
	})
	switch {
	case len(p.problems) > before:
		return
	case at == nil:
		p.at(n, path, "%s is a group without keys: write the script here, or file: and its path in the repository", path)
		return
	}
	if err := checkFile(path, *file); err != nil {
		p.check(at, path, err)
		return
	}
	if p.files == nil {
		p.at(at, path, "%s names the file %s: a file can only be named in a document of a repository; write the script here", path, quote(*file))
		return
	}
	b, err := p.files(*file)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		p.at(at, path, "%s names the file %s, which is not in the repository: paths begin at its root", path, quote(*file))
		return
	case err != nil:
		p.at(at, path, "%s names the file %s, which can't be read: %s", path, quote(*file), reason(err))
		return
	case len(b) > MaxScript:
		p.at(at, path, "%s names the file %s, which is longer than %d KiB; put what is longer into the image", path, quote(*file), MaxScript>>10)
		return
	}
	if bytes.Contains(b, []byte("\r\n")) {
		p.warn(at, path, []string{fmt.Sprintf("%s names the file %s, whose line endings are CRLF: it is run with LF all the same, but save it with LF", path, quote(*file))})
	}
	*into = script(string(b))
	p.check(at, path, checkScript(path, *into))
	p.warn(at, path, warnScript(path, *into))
}

// reason is what an error of the file system says, without the paths of the host.
func reason(err error) string {
	var at *fs.PathError
	if errors.As(err, &at) {
		err = at.Err
	}
	return err.Error()
}

// untagged refuses a tag or an anchor on a group or a list.
func (p *parser) untagged(n *yaml.Node, path string) bool {
	if !p.anchor(n, path) {
		return false
	}
	if n.Style&yaml.TaggedStyle != 0 {
		p.at(n, path, "%s has a tag, which is not supported: leave it out", path)
		return false
	}
	return true
}

func checkFile(path, file string) error {
	segments := strings.Split(file, "/")
	switch {
	case strings.TrimSpace(file) == "":
		return fmt.Errorf("%s names a file without a name: write its path in the repository, as in scripts/setup.sh", path)
	case len(file) > maxPath:
		return fmt.Errorf("%s names a file by a path of %d bytes: at most %d", path, len(file), maxPath)
	case !printing(file) || strings.Contains(file, `\`):
		return fmt.Errorf("%s names a file by a path with a control character or backslash in it: the parts of a path are joined by /", path)
	case strings.HasPrefix(file, "/"), strings.HasPrefix(file, "~"):
		return fmt.Errorf("%s names the file %s: a path begins at the repository's root, without / or ~ before it", path, quote(file))
	}
	for _, s := range segments {
		switch s {
		case "..":
			return fmt.Errorf("%s names the file %s: a path has no .. in it, and begins at the repository's root", path, quote(file))
		case "", ".":
			return fmt.Errorf("%s names the file %s: write the path without empty parts and dots alone, as in scripts/setup.sh", path, quote(file))
		}
	}
	if segments[0] == ".git" {
		return fmt.Errorf("%s names the file %s: what is in .git is no part of a commit", path, quote(file))
	}
	return nil
}

// printing says that a text is UTF-8 without control characters.
func printing(v string) bool {
	return strings.ToValidUTF8(v, "\x00") == v && !strings.ContainsFunc(v, func(r rune) bool {
		return r < ' ' || r >= 0x7f && r < 0xa0 || r == 0x2028 || r == 0x2029 || r == 0xfeff || r == 0xfffe || r == 0xffff
	})
}
