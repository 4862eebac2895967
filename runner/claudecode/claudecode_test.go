package claudecode

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"context"
	"crypto/sha512"
	"encoding/base64"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
)

// pack is an npm package with these files, and its integrity.
func pack(t *testing.T, files map[string]string) (archive []byte, integrity string) {
	t.Helper()
	var b bytes.Buffer
	z := gzip.NewWriter(&b)
	w := tar.NewWriter(z)
	for name, body := range files {
		if err := w.WriteHeader(&tar.Header{Name: name, Typeflag: tar.TypeReg, Mode: 0o600, Size: int64(len(body))}); err != nil {
			t.Fatal(err)
		}
		if _, err := w.Write([]byte(body)); err != nil {
			t.Fatal(err)
		}
	}
	if err := errors.Join(w.Close(), z.Close()); err != nil {
		t.Fatal(err)
	}
	sum := sha512.Sum512(b.Bytes())
	return b.Bytes(), "sha512-" + base64.StdEncoding.EncodeToString(sum[:])
}

// fakeNPM is an npm on PATH that hands out archive; what it was called with is kept a line each.
func fakeNPM(t *testing.T, archive []byte, integrity string) (calls func() []string) {
	t.Helper()
	dir := t.TempDir()
	for name, body := range map[string]string{
		"package.tgz": string(archive),
		"npm": fmt.Sprintf("#!/bin/sh\necho \"$@\" >>%[1]s/calls\ncp %[1]s/package.tgz got.tgz\n"+
			"echo '[{\"filename\":\"got.tgz\",\"integrity\":\"%[2]s\"}]'\n", dir, integrity),
	} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(body), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	t.Setenv("PATH", dir+":"+os.Getenv("PATH"))
	return func() []string {
		b, err := os.ReadFile(filepath.Join(dir, "calls"))
		if err != nil && !errors.Is(err, os.ErrNotExist) {
			t.Fatal(err)
		}
		return strings.Split(strings.TrimSpace(string(b)), "\n")
	}
}

func open(t *testing.T, o Options) *Store {
	t.Helper()
	s, err := Open(o)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func TestWhatManyAskForIsFetchedOnceInItsVersion(t *testing.T) {
	archive, integrity := pack(t, map[string]string{"package/README.md": "read", "package/claude": "#!/bin/sh\n"})
	calls := fakeNPM(t, archive, integrity)
	dir := t.TempDir()
	if err := os.Mkdir(filepath.Join(dir, fetching+"killed"), 0o700); err != nil {
		t.Fatal(err)
	}
	s := open(t, Options{Version: "2.1.332", Dir: dir})
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() {
			if err := s.Get(context.Background(), "linux-x64-musl"); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	if got := calls(); len(got) != 1 || !strings.HasSuffix(got[0], " @anthropic-ai/claude-code-linux-x64-musl@2.1.332") {
		t.Errorf("npm was called with %q", got)
	}
	fi, err := os.Stat(filepath.Join(s.Folder(), "linux-x64-musl", "claude"))
	if err != nil || fi.Mode().Perm() != 0o755 {
		t.Errorf("the program is %v, %v", fi, err)
	}
	left, err := os.ReadDir(dir)
	if err != nil || len(left) != 1 || left[0].Name() != "2.1.332" {
		t.Errorf("in the folder is %v, %v", left, err)
	}
}

func TestAPackageThatIsNotWhatTheRegistrySaysIsRefused(t *testing.T) {
	archive, _ := pack(t, map[string]string{"package/claude": "#!/bin/sh\n"})
	_, other := pack(t, map[string]string{"package/claude": "#!/bin/sh\nexit 1\n"})
	fakeNPM(t, archive, other)
	s := open(t, Options{Version: "2.1.332", Dir: t.TempDir()})
	err := s.Get(context.Background(), "linux-x64")
	if err == nil || !strings.Contains(err.Error(), "not what the registry says") || s.Has("linux-x64") {
		t.Errorf("got %v, and has it: %t", err, s.Has("linux-x64"))
	}
}

func TestAPackageWithoutAProgramIsRefused(t *testing.T) {
	archive, integrity := pack(t, map[string]string{"package/README.md": "read"})
	fakeNPM(t, archive, integrity)
	s := open(t, Options{Version: "2.1.332", Dir: t.TempDir()})
	err := s.Get(context.Background(), "linux-x64")
	if err == nil || !strings.Contains(err.Error(), "no program in the package") || s.Has("linux-x64") {
		t.Errorf("got %v, and has it: %t", err, s.Has("linux-x64"))
	}
}

func TestAFolderIsNeverFetchedInto(t *testing.T) {
	calls := fakeNPM(t, nil, "")
	s := open(t, Options{Version: "2.1.332", Folder: t.TempDir(), Dir: t.TempDir()})
	if err := s.Get(context.Background(), "linux-x64"); !errors.Is(err, ErrNone) {
		t.Errorf("got %v", err)
	}
	if got := calls(); got[0] != "" {
		t.Errorf("npm was called with %q", got)
	}
}

func TestConfigurationsThatCannotWorkAreSaid(t *testing.T) {
	t.Parallel()
	for _, c := range []struct{ version, folder, want string }{
		{"", "", ""},
		{"2.1.332", "", ""},
		{"2.1.332-beta.1", "/opt/claude", ""},
		{"", "/opt/claude", "version is missing"},
		{"latest", "", "not a version"},
		{"../../etc", "", "not a version"},
		{"2.1.332 --registry=x", "", "not a version"},
		{"2.1.332", "claude", "absolute"},
	} {
		err := Check(c.version, c.folder)
		if (err == nil) != (c.want == "") || err != nil && !strings.Contains(err.Error(), c.want) {
			t.Errorf("%q, %q: %v; want %q", c.version, c.folder, err, c.want)
		}
	}
	if s, err := Open(Options{}); s != nil || err != nil || s.Version() != "" {
		t.Errorf("nothing configured: %v, %v", s, err)
	}
}

// On the machines these tests run on, Debian's, sh is linked with glibc, whether musl is there too or not.
func TestTheLibraryOfAShellIsWhatItWasLoadedWith(t *testing.T) {
	t.Parallel()
	for _, shell := range []string{"dash", "bash"} {
		out, err := exec.Command(shell, "-c", Detect).Output()
		if err != nil || string(out) != "glibc\n" {
			t.Errorf("%s: %q, %v", shell, out, err)
		}
	}
}
