package claudecode

import (
	"archive/tar"
	"compress/gzip"
	"crypto/sha512"
	"encoding/base64"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
)

// programMax bounds what a package's program may unpack to.
const programMax = 2 << 30

// unpack makes dir with the program of a package in it, durably, if the archive is what the registry says that it is.
func unpack(archive, integrity, dir string) error {
	want, ok := strings.CutPrefix(integrity, "sha512-")
	if !ok {
		return errors.New("the registry gives no SHA-512 to check it against")
	}
	f, err := os.Open(archive)
	if err != nil {
		return err
	}
	defer f.Close()
	sum := sha512.New()
	if _, err := io.Copy(sum, f); err != nil {
		return err
	}
	if base64.StdEncoding.EncodeToString(sum.Sum(nil)) != want {
		return errors.New("what arrived is not what the registry says that it is")
	}
	if _, err := f.Seek(0, io.SeekStart); err != nil {
		return err
	}
	z, err := gzip.NewReader(f)
	if err != nil {
		return err
	}
	if err := os.Mkdir(dir, 0o755); err != nil {
		return err
	}
	for r := tar.NewReader(z); ; {
		h, err := r.Next()
		if errors.Is(err, io.EOF) {
			return errors.New("there is no program in the package")
		}
		if err != nil {
			return err
		}
		if h.Name != "package/claude" || h.Typeflag != tar.TypeReg {
			continue
		}
		if h.Size > programMax {
			return fmt.Errorf("its program is larger than %d bytes", programMax)
		}
		return program(filepath.Join(dir, "claude"), r)
	}
}

func program(path string, r io.Reader) error {
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o755)
	if err != nil {
		return err
	}
	_, err = io.Copy(f, r)
	if err == nil {
		err = f.Chmod(0o755) // whatever the umask is
	}
	if err == nil {
		err = f.Sync()
	}
	return errors.Join(err, f.Close(), os.Chmod(filepath.Dir(path), 0o755))
}
