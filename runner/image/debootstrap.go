package image

import (
	"bytes"
	"context"
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/containerd/containerd/v2/pkg/archive"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/types"
)

// DebootstrapOptions say what Debootstrap makes.
type DebootstrapOptions struct {
	Suite   string   // default "bookworm"
	Name    string   // the image's name here; default "debian-" and the suite
	Include []string // packages beyond the essential ones and apt; nil means DebootstrapPackages
	Mirror  string   // default: debootstrap's own
	Cache   string   // a folder that keeps downloaded packages for the next time; none by default
}

// DebootstrapPackages is what an image made by Debootstrap has beside Debian's minimal system (bash, apt, perl-base):
// enough to fetch, clone, look around, and run the example's tests. No compiler: a bootstrap script that needs one
// installs build-essential, which would double the image and the time to make it.
var DebootstrapPackages = []string{
	"ca-certificates", "curl", "git", "iproute2", "iputils-ping", "less", "libcap2-bin", "make", "procps", "python3", "sudo", "unzip", "xz-utils",
}

var (
	suitePattern   = regexp.MustCompile(`^[a-z][a-z0-9-]*$`)
	packagePattern = regexp.MustCompile(`^[a-z0-9][a-z0-9+.-]+$`)
	mirrorPattern  = regexp.MustCompile(`^(https?|file):/[^\s]+$`)
)

// Debootstrap makes an image of Debian from its package archive, without an image registry, and gives it a local name.
// It needs root and Debian's debootstrap package, checks the archive's signatures, writes debootstrap's output to log,
// and takes about a minute. The packages' scripts run in namespaces of their own that end with this call, also when
// it is cancelled or its process is killed.
func (s *Store) Debootstrap(ctx context.Context, o DebootstrapOptions, log io.Writer) (Image, error) {
	if o.Suite == "" {
		o.Suite = "bookworm"
	}
	if o.Name == "" {
		o.Name = "debian-" + o.Suite
	}
	if o.Include == nil {
		o.Include = DebootstrapPackages
	}
	full, err := localName(o.Name)
	if err != nil {
		return Image{}, err
	}
	if err := o.check(); err != nil {
		return Image{}, err
	}
	if s.platform.Architecture != runtime.GOARCH {
		return Image{}, fail(NoPlatform, o.Name, nil, "debootstrap makes images for this host's linux/%s only", runtime.GOARCH)
	}
	boot := "boot-" + rand.Text()
	own, err := s.exclusive(ctx, layerLock(boot))
	if err != nil {
		return Image{}, s.local(o.Name, err, "locking the image store")
	}
	tmp := s.layerPath(tmpPrefix + boot)
	defer func() {
		_ = os.RemoveAll(tmp)
		_ = os.Remove(own.f.Name())
		own.release()
	}()
	root := filepath.Join(tmp, "fs")
	if err := os.MkdirAll(root, 0o755); err != nil {
		return Image{}, s.local(o.Name, err, "making image "+o.Name)
	}
	if err := o.run(ctx, root, log); err != nil {
		return Image{}, err
	}
	if err := tidy(root, o.Suite); err != nil {
		return Image{}, s.local(o.Name, err, "making image "+o.Name)
	}
	img, err := s.adopt(ctx, tmp, o, full)
	return img, s.local(o.Name, err, "making image "+o.Name)
}

func (o DebootstrapOptions) check() error {
	if !suitePattern.MatchString(o.Suite) {
		return fail(BadReference, o.Suite, nil, "%q is not the name of a Debian release, such as bookworm", o.Suite)
	}
	for _, p := range o.Include {
		if !packagePattern.MatchString(p) {
			return fail(BadReference, o.Name, nil, "%q is not the name of a Debian package", p)
		}
	}
	if o.Mirror != "" && !mirrorPattern.MatchString(o.Mirror) {
		return fail(BadReference, o.Name, nil, "%q is not the address of a Debian mirror", o.Mirror)
	}
	if _, err := exec.LookPath("debootstrap"); err != nil {
		return fail(Failed, o.Name, err, "debootstrap is not installed on this host: apt-get install debootstrap")
	}
	return nil
}

// run runs debootstrap as the first process of its own pid namespace, in its own mount namespace: whatever it starts or
// mounts ends with it, so that nothing of the host is mounted below root when that is deleted.
func (o DebootstrapOptions) run(ctx context.Context, root string, log io.Writer) error {
	args := []string{"--variant=minbase", "--force-check-gpg"}
	if len(o.Include) > 0 {
		args = append(args, "--include="+strings.Join(o.Include, ","))
	}
	if o.Cache != "" {
		var err error
		if o.Cache, err = filepath.Abs(o.Cache); err != nil {
			return fail(Failed, o.Name, err, "the folder for Debian packages can't be found: %v", err)
		}
		if err := os.MkdirAll(o.Cache, 0o755); err != nil {
			return fail(Failed, o.Name, err, "the folder for Debian packages can't be made: %v", err)
		}
		args = append(args, "--cache-dir="+o.Cache)
	}
	args = append(args, o.Suite, root)
	if o.Mirror != "" {
		args = append(args, o.Mirror)
	}
	// Pdeathsig counts the thread that started the child.
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	cmd := exec.CommandContext(ctx, "debootstrap", args...)
	last := &lastLines{to: log}
	cmd.Stdout, cmd.Stderr = last, last
	cmd.Env = append(slices.DeleteFunc(os.Environ(), func(v string) bool { return strings.HasPrefix(v, "LC_") || strings.HasPrefix(v, "LANG") }),
		"LC_ALL=C.UTF-8", "DEBIAN_FRONTEND=noninteractive")
	cmd.SysProcAttr = &syscall.SysProcAttr{
		Setsid: true, Pdeathsig: syscall.SIGKILL, Cloneflags: syscall.CLONE_NEWPID, Unshareflags: syscall.CLONE_NEWNS,
	}
	cmd.WaitDelay = 5 * time.Second
	err := cmd.Run()
	switch {
	case ctx.Err() != nil:
		return ctx.Err()
	case err == nil:
		return nil
	case strings.Contains(last.text(), "No space left on device"):
		return fail(DiskFull, o.Name, err, "the disk is full while making image %s: free space on its file system", o.Name)
	case strings.Contains(last.text(), "No such script"):
		return fail(NotFound, o.Name, err, "debootstrap knows no release %q", o.Suite)
	case strings.Contains(last.text(), "Couldn't find these debs"):
		return fail(NotFound, o.Name, err, "Debian %s lacks a package: %s", o.Suite, last.text())
	}
	return fail(Failed, o.Name, err, "debootstrap failed (%v): %s", err, last.text())
}

// lastLines passes output on and remembers the end of it.
type lastLines struct {
	to  io.Writer
	mu  sync.Mutex
	end []byte
}

func (l *lastLines) Write(b []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.end = append(l.end, b...)
	if over := len(l.end) - 2000; over > 0 {
		l.end = bytes.Clone(l.end[over:])
	}
	if l.to == nil {
		return len(b), nil
	}
	return l.to.Write(b)
}

func (l *lastLines) text() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	lines := strings.Split(strings.TrimSpace(string(l.end)), "\n")
	return strings.Join(lines[max(0, len(lines)-3):], " / ")
}

// tidy removes what belongs to the host or to debootstrap, and makes of the rest what Debian's own container images are.
func tidy(root, suite string) error {
	for _, pattern := range []string{
		"dev/*", "proc/*", "sys/*", "run/*", "tmp/*", "tmp/.[!.]*", "var/cache/apt/*.bin", "var/cache/apt/archives/*.deb", "var/lib/apt/lists/*",
		"var/log/*.log", "var/log/apt/*", "etc/hostname", "etc/resolv.conf", "var/cache/ldconfig/aux-cache", "debootstrap",
	} {
		found, err := filepath.Glob(filepath.Join(root, pattern))
		if err != nil {
			return err
		}
		for _, f := range found {
			if err := os.RemoveAll(f); err != nil {
				return err
			}
		}
	}
	// Empty, so that each Sandbox is its own machine; and no services started by packages' scripts, as there is no init.
	if err := os.WriteFile(filepath.Join(root, "etc/machine-id"), nil, 0o444); err != nil {
		return err
	}
	policy := filepath.Join(root, "usr/sbin/policy-rc.d")
	if err := os.WriteFile(policy, []byte("#!/bin/sh\nexit 101\n"), 0o755); err != nil {
		return err
	}
	if err := os.Chmod(policy, 0o755); err != nil {
		return err
	}
	return addSources(filepath.Join(root, "etc/apt/sources.list"), suite)
}

// addSources adds the release's updates and security archives beside the one that debootstrap wrote.
func addSources(file, suite string) error {
	b, err := os.ReadFile(file)
	if err != nil {
		return err
	}
	f := strings.Fields(string(b))
	if len(f) < 4 || slices.Contains([]string{"sid", "unstable", "testing", "experimental"}, suite) {
		return nil
	}
	mirror := strings.TrimSuffix(f[1], "/")
	text := fmt.Sprintf("deb %s %s main\ndeb %s %s-updates main\n", mirror, suite, mirror, suite)
	if base, ok := strings.CutSuffix(mirror, "/debian"); ok {
		text += fmt.Sprintf("deb %s/debian-security %s-security main\n", base, suite)
	}
	return os.WriteFile(file, []byte(text), 0o644)
}

// adopt makes the folder that debootstrap filled the one layer of an image. The layer is known by the digest of the
// archive it would be.
func (s *Store) adopt(ctx context.Context, tmp string, o DebootstrapOptions, full string) (Image, error) {
	root := filepath.Join(tmp, "fs")
	sum := sha256.New()
	meta := layerMeta{}
	if err := archive.WriteDiff(ctx, writerFunc(func(b []byte) (int, error) {
		meta.Size += int64(len(b))
		return sum.Write(b)
	}), "", root); err != nil {
		return Image{}, err
	}
	meta.DiffID = "sha256:" + hex.EncodeToString(sum.Sum(nil))
	id := layerID(meta.DiffID)
	lock, err := s.exclusive(ctx, layerLock(id))
	if err != nil {
		return Image{}, err
	}
	defer lock.release()
	if _, err := s.readMeta(id); errors.Is(err, os.ErrNotExist) {
		if err := s.publish(tmp, id, meta); err != nil {
			return Image{}, err
		}
	} else if err != nil {
		return Image{}, err
	}
	cfg := v1.ConfigFile{OS: "linux", Architecture: s.platform.Architecture, Config: v1.Config{
		Env: []string{"PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"},
		Labels: map[string]string{
			"org.opencontainers.image.title": "Debian " + o.Suite + " by debootstrap",
		},
	}, RootFS: v1.RootFS{Type: "layers", DiffIDs: []v1.Hash{hashOf(meta.DiffID)}}}
	raw, err := json.Marshal(cfg)
	if err != nil {
		return Image{}, err
	}
	digest := madeDigest(raw, []v1.Descriptor{{MediaType: types.OCIUncompressedLayer, Size: meta.Size, Digest: hashOf(meta.DiffID)}})
	return s.save(ctx, record{Digest: digest, Layers: []string{id}, Config: configOf(&cfg), Size: meta.Size}, full, true)
}

type writerFunc func([]byte) (int, error)

func (f writerFunc) Write(b []byte) (int, error) { return f(b) }
