package imagetest

import (
	"bytes"
	"compress/gzip"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"testing"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
	"golang.org/x/sys/unix"

	"github.com/claude-hub/claude-hub/runner/image"
)

const hostArchitecture = runtime.GOARCH

// DebianPackages is what Debian's image has beside a minimal bookworm.
var DebianPackages = []string{
	"ca-certificates", "curl", "git", "iproute2", "iputils-ping", "libcap2-bin", "make", "procps", "python3", "sudo",
}

// CacheDir is the folder that tests of this machine share across runs: $CLAUDE_HUB_TEST_CACHE, or claude-hub-test in the
// user's cache folder.
func CacheDir() (string, error) {
	if dir := os.Getenv("CLAUDE_HUB_TEST_CACHE"); dir != "" {
		return filepath.Abs(dir)
	}
	base, err := os.UserCacheDir()
	if err != nil {
		base = os.TempDir()
	}
	return filepath.Join(base, "claude-hub-test"), nil
}

// DebianStore is the machine's shared image store for tests. Don't remove images from it.
func DebianStore(t testing.TB) *image.Store {
	t.Helper()
	s, err := openShared()
	if err != nil {
		t.Fatal(err)
	}
	return s
}

var openShared = sync.OnceValues(func() (*image.Store, error) {
	dir, err := CacheDir()
	if err != nil {
		return nil, err
	}
	return image.Open(filepath.Join(dir, "images"), image.Options{})
})

// Debian is a bookworm image with DebianPackages, in DebianStore. The first test on a machine makes it with debootstrap,
// which takes about a minute; others, in any process, wait for that one. Its layers are shared: never write to them.
func Debian(t testing.TB) image.Image {
	t.Helper()
	img, err := debian()
	if err != nil {
		t.Fatalf("the tests need a Debian image, and debootstrap couldn't make one: %v", err)
	}
	return img
}

var debian = sync.OnceValues(func() (image.Image, error) { return made("debian", "bookworm", DebianPackages) })

// DockerPackages is what the image of DebianDocker has beside a minimal trixie: Docker with compose and build, as Debian has
// them, and a database for a container.
var DockerPackages = []string{
	"ca-certificates", "docker-buildx", "docker-cli", "docker-compose", "docker.io", "git", "iproute2", "iptables", "postgresql", "procps",
}

// DebianDocker is a trixie image with DockerPackages, in DebianStore, made once on a machine as Debian's is.
func DebianDocker(t testing.TB) image.Image {
	t.Helper()
	img, err := debianDocker()
	if err != nil {
		t.Fatalf("the tests need a Debian image with Docker, and debootstrap couldn't make one: %v", err)
	}
	return img
}

// Stock gives an image store that nobody has opened yet all that DebianStore has, without a second copy of it where the file system
// allows that: pulling such an image would take a minute.
func Stock(t testing.TB, dir string) {
	t.Helper()
	cache, err := CacheDir()
	if err != nil {
		t.Fatal(err)
	}
	script := `mkdir -p "$2" && cd "$1" && cp -a blobs images index.json "$2" && mkdir "$2/locks" && { cp -al layers "$2" 2>/dev/null || { rm -rf "$2/layers"; cp -a layers "$2"; }; }`
	if out, err := exec.Command("sh", "-c", script, "sh", filepath.Join(cache, "images"), dir).CombinedOutput(); err != nil {
		t.Fatalf("stock an image store: %v\n%s", err, out)
	}
}

var debianDocker = sync.OnceValues(func() (image.Image, error) { return made("docker", "trixie", DockerPackages) })

// made is an image of debootstrap in the shared store, which the first test on a machine makes while others wait for it.
func made(name, suite string, packages []string) (image.Image, error) {
	s, err := openShared()
	if err != nil {
		return image.Image{}, err
	}
	dir, err := CacheDir()
	if err != nil {
		return image.Image{}, err
	}
	lock, err := os.OpenFile(filepath.Join(dir, name+".lock"), os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return image.Image{}, err
	}
	defer lock.Close()
	for {
		if err = unix.Flock(int(lock.Fd()), unix.LOCK_EX); err != unix.EINTR {
			break
		}
	}
	if err != nil {
		return image.Image{}, fmt.Errorf("waiting for another test's Debian: %w", err)
	}
	sum := sha256.Sum256([]byte(strings.Join(packages, " ")))
	tag := "claude-hub-test/" + name + ":" + hex.EncodeToString(sum[:6])
	if img, err := s.Get(tag); image.CodeOf(err) != image.NotFound {
		return img, err
	}
	var log bytes.Buffer
	img, err := s.Debootstrap(context.Background(), image.DebootstrapOptions{
		Name: tag, Suite: suite, Include: packages, Cache: filepath.Join(dir, "debs"),
	}, &log)
	if err != nil {
		return img, fmt.Errorf("%w\n%s", err, log.Bytes()[max(0, log.Len()-4000):])
	}
	return img, nil
}

// DebianImage is Debian as an image that Push takes, for a registry of the test. Its layer is packed once per machine.
func DebianImage(t testing.TB) v1.Image {
	t.Helper()
	img := Debian(t)
	var layers []v1.Layer
	for i, dir := range img.Layers {
		file, err := packed(dir, fmt.Sprintf("%s-%d.tar.gz", strings.TrimPrefix(img.Digest, "sha256:"), i))
		if err != nil {
			t.Fatalf("pack Debian's layer: %v", err)
		}
		layer, err := tarball.LayerFromFile(file)
		if err != nil {
			t.Fatalf("read Debian's packed layer: %v", err)
		}
		layers = append(layers, layer)
	}
	return Image(t, func(c *v1.ConfigFile) { c.Config.Env = img.Config.Env }, layers...)
}

// packed is dir as a layer's archive in the cache folder. GNU tar keeps ids, modes and capabilities.
func packed(dir, name string) (string, error) {
	cache, err := CacheDir()
	if err != nil {
		return "", err
	}
	file := filepath.Join(cache, name)
	if _, err := os.Stat(file); err == nil {
		return file, nil
	}
	tmp, err := os.CreateTemp(cache, name+".*")
	if err != nil {
		return "", err
	}
	defer os.Remove(tmp.Name())
	defer tmp.Close()
	z, err := gzip.NewWriterLevel(tmp, gzip.BestSpeed)
	if err != nil {
		return "", err
	}
	var stderr bytes.Buffer
	cmd := exec.Command("tar", "--numeric-owner", "--xattrs", "--xattrs-include=security.capability", "-C", dir, "-c", ".")
	cmd.Stdout, cmd.Stderr = z, &stderr
	if err := cmd.Run(); err != nil {
		return "", fmt.Errorf("%w: %s", err, stderr.Bytes())
	}
	if err := errors.Join(z.Close(), tmp.Close()); err != nil {
		return "", err
	}
	return file, os.Rename(tmp.Name(), file)
}
