// Package imagetest has images and a registry for tests: small ones made in the process, and a real Debian made once
// per machine. Everything listens on loopback and ends with the test.
package imagetest

import (
	"archive/tar"
	"bytes"
	"crypto/subtle"
	"debug/elf"
	"fmt"
	"io"
	"log"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-containerregistry/pkg/authn"
	"github.com/google/go-containerregistry/pkg/name"
	"github.com/google/go-containerregistry/pkg/registry"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
)

// Registry starts an empty registry on loopback that ends with the test, and returns its host ("127.0.0.1:port"). Each
// wrap gets the handler so far and may answer instead of it.
func Registry(t testing.TB, wrap ...func(http.Handler) http.Handler) string {
	t.Helper()
	h := registry.New(registry.Logger(log.New(io.Discard, "", 0)))
	for _, w := range wrap {
		h = w(h)
	}
	srv := httptest.NewServer(h)
	t.Cleanup(srv.Close)
	return strings.TrimPrefix(srv.URL, "http://")
}

// BasicAuth lets in only who knows user and password: a wrap for Registry.
func BasicAuth(user, password string) func(http.Handler) http.Handler {
	return func(h http.Handler) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			u, p, ok := r.BasicAuth()
			if !ok || subtle.ConstantTimeCompare([]byte(u+"\x00"+p), []byte(user+"\x00"+password)) != 1 {
				w.Header().Set("WWW-Authenticate", `Basic realm="test"`)
				http.Error(w, `{"errors":[{"code":"UNAUTHORIZED","message":"authentication required"}]}`, http.StatusUnauthorized)
				return
			}
			h.ServeHTTP(w, r)
		})
	}
}

// Push puts an image or an index into a registry under a name ("app", "team/app:v1") and returns its whole reference.
func Push(t testing.TB, host, image string, what any, auth ...authn.Authenticator) string {
	t.Helper()
	ref, err := name.ParseReference(host + "/" + image)
	if err != nil {
		t.Fatal(err)
	}
	var opts []remote.Option
	for _, a := range auth {
		opts = append(opts, remote.WithAuth(a))
	}
	switch w := what.(type) {
	case v1.Image:
		err = remote.Write(ref, w, opts...)
	case v1.ImageIndex:
		err = remote.WriteIndex(ref, w, opts...)
	default:
		err = fmt.Errorf("%T is neither an image nor an index", what)
	}
	if err != nil {
		t.Fatal(err)
	}
	return ref.Name()
}

// Entry is one member of a layer's archive. A zero Typeflag means a file, or a folder when the name ends in a slash; a
// zero Mode means 0644, or 0755 for folders and links.
type Entry struct {
	tar.Header
	Body string
}

// File is an Entry for a file.
func File(name string, mode int64, body string) Entry {
	return Entry{tar.Header{Name: name, Mode: mode}, body}
}

// Dir is an Entry for a folder.
func Dir(name string, mode int64) Entry {
	return Entry{tar.Header{Name: strings.TrimSuffix(name, "/") + "/", Mode: mode}, ""}
}

// Link is an Entry for a symbolic link.
func Link(name, to string) Entry {
	return Entry{tar.Header{Name: name, Typeflag: tar.TypeSymlink, Linkname: to}, ""}
}

// Tar makes an archive of entries, the same bytes each time.
func Tar(t testing.TB, entries ...Entry) []byte {
	t.Helper()
	var buf bytes.Buffer
	w := tar.NewWriter(&buf)
	for _, e := range entries {
		h := e.Header
		if h.Typeflag == 0 {
			h.Typeflag = tar.TypeReg
			if strings.HasSuffix(h.Name, "/") {
				h.Typeflag = tar.TypeDir
			}
		}
		if h.Mode == 0 {
			h.Mode = 0o755
			if h.Typeflag == tar.TypeReg {
				h.Mode = 0o644
			}
		}
		if h.Typeflag == tar.TypeReg {
			h.Size = int64(len(e.Body))
		}
		if h.ModTime.IsZero() {
			h.ModTime = time.Unix(1_700_000_000, 0)
		}
		if err := w.WriteHeader(&h); err != nil {
			t.Fatal(err)
		}
		if _, err := io.WriteString(w, e.Body); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return buf.Bytes()
}

// Layer makes a gzipped layer of entries.
func Layer(t testing.TB, entries ...Entry) v1.Layer {
	t.Helper()
	return LayerOf(t, Tar(t, entries...))
}

// LayerOf makes a gzipped layer of an archive.
func LayerOf(t testing.TB, archive []byte) v1.Layer {
	t.Helper()
	l, err := tarball.LayerFromOpener(func() (io.ReadCloser, error) { return io.NopCloser(bytes.NewReader(archive)), nil })
	if err != nil {
		t.Fatal(err)
	}
	return l
}

// Image stacks layers, bottom first, into an image for linux/amd64 or the architecture that configure (may be nil) sets.
func Image(t testing.TB, configure func(*v1.ConfigFile), layers ...v1.Layer) v1.Image {
	t.Helper()
	img, err := mutate.AppendLayers(empty.Image, layers...)
	if err != nil {
		t.Fatal(err)
	}
	cfg, err := img.ConfigFile()
	if err != nil {
		t.Fatal(err)
	}
	cfg = cfg.DeepCopy()
	cfg.OS, cfg.Architecture = "linux", hostArchitecture
	if configure != nil {
		configure(cfg)
	}
	if img, err = mutate.ConfigFile(img, cfg); err != nil {
		t.Fatal(err)
	}
	return img
}

// Busybox is a small image that runs: Debian's static busybox with all its applets, a root and a user "coder" (uid 1000,
// home /home/coder), /tmp with mode 1777, and PATH set. More entries come in a layer of their own; configure may be nil.
// It fails the test if Debian's package busybox-static isn't installed.
func Busybox(t testing.TB, configure func(*v1.ConfigFile), more ...Entry) v1.Image {
	t.Helper()
	l, err := busyboxLayer()
	if err != nil {
		t.Fatal(err)
	}
	layers := []v1.Layer{l}
	if len(more) > 0 {
		layers = append(layers, Layer(t, more...))
	}
	return Image(t, func(c *v1.ConfigFile) {
		c.Config.Env = []string{"PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"}
		if configure != nil {
			configure(c)
		}
	}, layers...)
}

var busyboxLayer = sync.OnceValues(func() (v1.Layer, error) {
	missing := "the tests need Debian's static busybox: apt-get install busybox-static"
	file, err := exec.LookPath("busybox")
	if err != nil {
		return nil, fmt.Errorf("%s (%w)", missing, err)
	}
	bin, err := elf.Open(file)
	if err != nil {
		return nil, err
	}
	defer bin.Close()
	for _, p := range bin.Progs {
		if p.Type == elf.PT_INTERP {
			return nil, fmt.Errorf("%s is dynamically linked; %s", file, missing)
		}
	}
	body, err := os.ReadFile(file)
	if err != nil {
		return nil, err
	}
	applets, err := exec.Command(file, "--list-full").Output()
	if err != nil {
		return nil, fmt.Errorf("busybox --list-full: %w", err)
	}
	entries := []Entry{Dir("./", 0o755)}
	for _, d := range []string{"bin", "sbin", "usr", "usr/bin", "usr/sbin", "usr/local", "usr/local/bin", "usr/local/sbin", "etc", "dev", "proc",
		"sys", "run", "var", "home"} {
		entries = append(entries, Dir(d, 0o755))
	}
	home := Dir("home/coder", 0o755)
	home.Uid, home.Gid = 1000, 1000
	entries = append(entries, Dir("tmp", 0o1777), Dir("var/tmp", 0o1777), Dir("root", 0o700), home,
		File("etc/passwd", 0o644, "root:x:0:0:root:/root:/bin/sh\ncoder:x:1000:1000:Coder:/home/coder:/bin/sh\nnobody:x:65534:65534:nobody:/:/bin/false\n"),
		File("etc/group", 0o644, "root:x:0:\ncoder:x:1000:\nstaff:x:50:coder\nnogroup:x:65534:\n"),
		File("bin/busybox", 0o755, string(body)))
	for _, a := range strings.Fields(string(applets)) {
		if a = strings.TrimPrefix(a, "/"); path.Base(a) != "busybox" && strings.Contains(a, "bin/") {
			entries = append(entries, Link(a, "/bin/busybox"))
		}
	}
	var failed catch
	l := LayerOf(&failed, Tar(&failed, entries...))
	return l, failed.err
})

// catch is a testing.TB for work that outlives one test: it remembers the failure.
type catch struct {
	testing.TB
	err error
}

func (c *catch) Helper() {}

func (c *catch) Fatal(a ...any) { c.err = fmt.Errorf("%s", fmt.Sprint(a...)) }
