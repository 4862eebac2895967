package cmd

import (
	"archive/tar"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"strings"

	"github.com/spf13/cobra"

	"github.com/claude-hub/claude-hub/handlers/api/client"
	"github.com/claude-hub/claude-hub/handlers/api/schema"
)

// errMasked is of a copy that would not be what was copied.
var errMasked = errors.New("it holds the value of a Sensitive Variable, or what is shaped like a token or private key. Such values are masked in everything that passes the Hub, " +
	"so the copy would not be whole, and nothing was kept of it. Copy what is beside it, or bring that file out another way")

func sessionCopyCommand() *cobra.Command {
	c := &cobra.Command{
		Use: "cp SOURCE TARGET", Short: "Copy a file or folder into or out of a Session", Args: cobra.ExactArgs(2),
		Long: `Copy a file, or a folder with all in it, into or out of a Session: one of the two is SESSION:PATH. A relative PATH is in the
Workspace; a target that is a folder gets the source inside it. Contents, executable bits and symbolic links are kept. A folder needs tar in the image.

What comes out of a Session passes the Hub like all its output, in which Sensitive values are masked. Where one stands in what is copied, nothing is copied
and this command says so: a copy is byte for byte, or none.`,
		Example: "  claude-hub session cp patch.diff 1a2b3c4d:\n  claude-hub session cp 1a2b3c4d:dist ./out",
		RunE: func(c *cobra.Command, args []string) error {
			from, fromPath, out := inSession(args[0])
			to, toPath, in := inSession(args[1])
			if in == out {
				return usage(c, errors.New("one of SOURCE and TARGET is SESSION:PATH, the other a path here"))
			}
			name := from
			if in {
				name = to
			}
			return onSession(c, name, func(hub *client.Client, s schema.Session) error {
				k := copier{hub, s}
				if in {
					return k.put(c.Context(), args[0], toPath)
				}
				return k.get(c.Context(), fromPath, args[1])
			})
		},
	}
	return c
}

// inSession takes SESSION:PATH apart. What has a slash before its colon is a path here.
func inSession(arg string) (session, path string, ok bool) {
	session, path, ok = strings.Cut(arg, ":")
	if !ok || session == "" || strings.ContainsAny(session, `/\.`) {
		return "", arg, false
	}
	if path == "" {
		path = "."
	}
	return session, path, true
}

type copier struct {
	hub *client.Client
	s   schema.Session
}

func (k copier) run(ctx context.Context, script, path string, in io.Reader, out io.Writer) error {
	return quietly(ctx, k.hub, k.s, []string{"sh", "-c", script, "sh", path}, in, out)
}

// kind is what a path in the Session is: d, a folder; x, a file that can be executed; f, another one; n, nothing.
func (k copier) kind(ctx context.Context, path string) (string, error) {
	var says strings.Builder
	err := k.run(ctx, `if [ -d "$1" ]; then echo d; elif [ ! -e "$1" ]; then echo n; elif [ -x "$1" ]; then echo x; else echo f; fi`, path, nil, &says)
	return strings.TrimSpace(says.String()), err
}

// put copies into the Session.
func (k copier) put(ctx context.Context, source, target string) error {
	info, err := os.Stat(source)
	if err != nil {
		return err
	}
	kind, err := k.kind(ctx, target)
	if err != nil {
		return err
	}
	base, err := filepath.Abs(source)
	if err != nil {
		return err
	}
	if kind == "d" {
		target = path.Join(target, filepath.Base(base))
	}
	switch {
	case info.IsDir():
		r, w := io.Pipe()
		go func() { w.CloseWithError(pack(w, source)) }()
		defer r.Close()
		return k.run(ctx, `mkdir -p -- "$1" && exec tar -xf - -C "$1"`, target, r, nil)
	case !info.Mode().IsRegular():
		return fmt.Errorf("%s is neither a file nor a folder", source)
	}
	f, err := os.Open(source)
	if err != nil {
		return err
	}
	defer f.Close()
	// Beside the target and then in its place, so that a copy that breaks off leaves the old one.
	script := `set -e; t="$1.cp-$$"; trap 'rm -f -- "$t"' EXIT; cat >"$t"; [ "$(wc -c <"$t")" -eq ` + fmt.Sprint(info.Size()) + ` ] || { echo "it did not arrive whole" >&2; exit 1; }; `
	if info.Mode()&0o111 != 0 {
		script += `chmod +x -- "$t"; `
	}
	return k.run(ctx, script+`mv -f -- "$t" "$1"; trap - EXIT`, target, f, nil)
}

// pack writes what is in a folder as a tar archive.
func pack(w io.Writer, folder string) error {
	t := tar.NewWriter(w)
	err := filepath.WalkDir(folder, func(name string, e fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		info, err := e.Info()
		if err != nil {
			return err
		}
		rel, err := filepath.Rel(folder, name)
		if err != nil {
			return err
		}
		var link string
		switch {
		case info.Mode()&fs.ModeSymlink != 0:
			if link, err = os.Readlink(name); err != nil {
				return err
			}
		case !info.IsDir() && !info.Mode().IsRegular():
			return nil // sockets, pipes and devices have nothing to copy
		}
		h, err := tar.FileInfoHeader(info, link)
		if err != nil {
			return err
		}
		h.Name, h.Uid, h.Gid, h.Uname, h.Gname = filepath.ToSlash(rel), 0, 0, "", ""
		if err := t.WriteHeader(h); err != nil || !info.Mode().IsRegular() {
			return err
		}
		f, err := os.Open(name)
		if err != nil {
			return err
		}
		defer f.Close()
		_, err = io.Copy(t, f)
		return err
	})
	if err != nil {
		return err
	}
	return t.Close()
}

// get copies out of the Session. What comes is as hostile as its Sandbox: nothing of it leaves the target.
func (k copier) get(ctx context.Context, source, target string) error {
	kind, err := k.kind(ctx, source)
	switch {
	case err != nil:
		return err
	case kind == "n":
		return fmt.Errorf("the Session has no %s", source)
	}
	name := path.Base(path.Join("/workspace", source))
	if info, err := os.Stat(target); err == nil && info.IsDir() {
		target = filepath.Join(target, name)
	}
	beside := filepath.Dir(filepath.Clean(target))
	part, err := os.MkdirTemp(beside, ".claude-hub-cp-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(part)
	if kind == "d" {
		return k.getFolder(ctx, source, part, target)
	}
	mode := fs.FileMode(0o666)
	if kind == "x" {
		mode = 0o777
	}
	whole := filepath.Join(part, "file")
	f, err := os.OpenFile(whole, os.O_CREATE|os.O_EXCL|os.O_WRONLY, mode)
	if err != nil {
		return err
	}
	err = k.run(ctx, `exec cat -- "$1"`, source, nil, f)
	if err := errors.Join(err, f.Close()); err != nil {
		return err
	}
	return os.Rename(whole, target)
}

func (k copier) getFolder(ctx context.Context, source, part, target string) error {
	if _, err := os.Lstat(target); err == nil {
		return fmt.Errorf("%s is there already; remove it, or name another target", target)
	}
	whole := filepath.Join(part, "folder")
	if err := os.Mkdir(whole, 0o777); err != nil {
		return err
	}
	root, err := os.OpenRoot(whole)
	if err != nil {
		return err
	}
	defer root.Close()
	r, w := io.Pipe()
	unpacked := make(chan error, 1)
	go func() {
		err := unpack(root, r)
		io.Copy(io.Discard, r) //nolint:errcheck // how the command ended says why the archive was not one
		unpacked <- err
	}()
	err = k.run(ctx, `exec tar -cf - -C "$1" .`, source, nil, w)
	w.CloseWithError(err) //nolint:errcheck // it never fails
	if broken := <-unpacked; err == nil {
		err = broken
	}
	if err != nil {
		return err
	}
	return os.Rename(whole, target)
}

// unpack makes what a tar archive holds below root, and nothing elsewhere.
func unpack(root *os.Root, r io.Reader) error {
	t := tar.NewReader(r)
	for {
		h, err := t.Next()
		if err == io.EOF {
			_, err := io.Copy(io.Discard, r) // the padding
			return err
		}
		if err != nil {
			return fmt.Errorf("what came is no whole archive: %w", err)
		}
		name := filepath.Clean(filepath.FromSlash(h.Name))
		switch h.Typeflag {
		case tar.TypeDir:
			err = root.MkdirAll(name, 0o777)
		case tar.TypeReg:
			err = unpackFile(root, name, h, t)
		case tar.TypeSymlink:
			err = root.Symlink(h.Linkname, name)
		case tar.TypeLink:
			err = root.Link(filepath.Clean(filepath.FromSlash(h.Linkname)), name)
		}
		if err != nil {
			return err
		}
	}
}

func unpackFile(root *os.Root, name string, h *tar.Header, r io.Reader) error {
	if err := root.MkdirAll(filepath.Dir(name), 0o777); err != nil {
		return err
	}
	mode := fs.FileMode(0o666)
	if h.Mode&0o111 != 0 {
		mode = 0o777
	}
	f, err := root.OpenFile(name, os.O_CREATE|os.O_EXCL|os.O_WRONLY, mode)
	if err != nil {
		return err
	}
	_, err = io.Copy(f, r)
	return errors.Join(err, f.Close())
}
