package image

import (
	"archive/tar"
	"errors"
	"io"
	"os"
	"path"
	"path/filepath"
	"strings"
)

// files is an archive or a folder that an image is imported from. Names use slashes and have no leading one.
type files interface {
	open(name string) (io.ReadCloser, int64, error) // os.ErrNotExist if there is none
	close()
}

// openFiles opens a folder, a tar, or a compressed tar (by way of a temporary file in the store).
func (s *Store) openFiles(p string) (files, error) {
	info, err := os.Stat(p)
	switch {
	case errors.Is(err, os.ErrNotExist):
		return nil, fail(NotFound, p, err, "there is no file or folder %s", p)
	case err != nil:
		return nil, s.local(p, err, "reading "+p)
	case info.IsDir():
		root, err := os.OpenRoot(p)
		if err != nil {
			return nil, s.local(p, err, "reading "+p)
		}
		return folderFiles{root}, nil
	case !info.Mode().IsRegular():
		return nil, fail(Unsupported, p, nil, "%s is neither a file nor a folder", p)
	}
	f, err := os.Open(p)
	if err != nil {
		return nil, s.local(p, err, "reading "+p)
	}
	t, err := s.openTar(f)
	if err != nil {
		if own := (*Error)(nil); errors.As(err, &own) {
			return nil, err
		}
		if err := s.local(p, err, "unpacking "+p); CodeOf(err) == DiskFull {
			return nil, err
		}
		return nil, fail(Corrupt, p, err, "%s is not an image archive: %v", p, err)
	}
	return t, nil
}

type folderFiles struct{ root *os.Root }

func (f folderFiles) close() { _ = f.root.Close() }

func (f folderFiles) open(name string) (io.ReadCloser, int64, error) {
	file, err := f.root.Open(filepath.FromSlash(name))
	if err != nil {
		return nil, 0, err
	}
	info, err := file.Stat()
	if err == nil && !info.Mode().IsRegular() {
		err = os.ErrNotExist
	}
	if err != nil {
		_ = file.Close()
		return nil, 0, err
	}
	return file, info.Size(), nil
}

// tarFiles reads members of an uncompressed tar by their places in it.
type tarFiles struct {
	f     *os.File
	at    map[string]member
	links map[string]string
}

type member struct{ offset, size int64 }

// maxMembers bounds the index of an archive: an image has a few files per layer.
const maxMembers = 100_000

func (s *Store) openTar(f *os.File) (_ files, err error) {
	defer func() {
		if err != nil {
			_ = f.Close()
		}
	}()
	plain, closer, err := decompress(f)
	if err != nil {
		return nil, err
	}
	defer closer()
	if isCompressed(f) {
		tmp, err := os.CreateTemp(filepath.Join(s.dir, "blobs"), "import-*")
		if err != nil {
			return nil, err
		}
		// Only the open file is needed: nothing is left when this process dies.
		_ = os.Remove(tmp.Name())
		n, err := io.Copy(tmp, io.LimitReader(plain, s.o.MaxBytes+1))
		if err == nil && n > s.o.MaxBytes {
			err = fail(TooLarge, f.Name(), nil, "%s is larger than the %s MB that this host allows an unpacked image", f.Name(), megabytes(s.o.MaxBytes))
		}
		if err != nil {
			_ = tmp.Close()
			return nil, err
		}
		_ = f.Close()
		f = tmp
	}
	if _, err := f.Seek(0, io.SeekStart); err != nil {
		return nil, err
	}
	t := &tarFiles{f: f, at: map[string]member{}, links: map[string]string{}}
	for r := tar.NewReader(f); ; {
		h, err := r.Next()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return nil, err
		}
		if len(t.at)+len(t.links) > maxMembers {
			return nil, errors.New("it has too many files for one")
		}
		name := clean(h.Name)
		switch h.Typeflag {
		case tar.TypeReg:
			at, err := f.Seek(0, io.SeekCurrent)
			if err != nil {
				return nil, err
			}
			t.at[name] = member{at, h.Size}
		case tar.TypeSymlink: // older `docker save` links equal layers
			t.links[name] = clean(path.Join(path.Dir(name), h.Linkname))
		case tar.TypeLink:
			t.links[name] = clean(h.Linkname)
		}
	}
	return t, nil
}

func isCompressed(f *os.File) bool {
	var head [4]byte
	_, err := f.ReadAt(head[:], 0)
	return err == nil && (head[0] == 0x1f && head[1] == 0x8b || head == [4]byte{0x28, 0xb5, 0x2f, 0xfd})
}

func clean(name string) string { return strings.TrimPrefix(path.Clean("/"+name), "/") }

func (t *tarFiles) close() { _ = t.f.Close() }

func (t *tarFiles) open(name string) (io.ReadCloser, int64, error) {
	name = clean(name)
	for range 8 {
		to, ok := t.links[name]
		if !ok {
			break
		}
		name = to
	}
	m, ok := t.at[name]
	if !ok {
		return nil, 0, os.ErrNotExist
	}
	return io.NopCloser(io.NewSectionReader(t.f, m.offset, m.size)), m.size, nil
}

// readSmall reads a document of an archive.
func readSmall(f files, name string) ([]byte, error) {
	r, size, err := f.open(name)
	if err != nil {
		return nil, err
	}
	defer r.Close()
	if size > manifestLimit {
		return nil, errors.New(name + " is larger than 16 MiB")
	}
	return io.ReadAll(io.LimitReader(r, manifestLimit))
}
