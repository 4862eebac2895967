// Package image keeps the images that Environments start from: it pulls them from registries, imports them from
// archives, makes them with debootstrap, and keeps their layers unpacked and shared on the Runner's host.
//
// A Store is a folder. Several processes may use the same one at once (the Runner and `claude-hub image …`): every
// change is made under file locks, and what is whole is known by its final name, given by a rename after a sync.
// Layers keep the ids, modes, extended attributes and capabilities of their archive, since the engine maps ids with
// idmapped mounts (design.md §6). They hold setuid files of strangers, so the store's folder is open to root only.
//
// Nothing of an image is run here; Entrypoint and Cmd aren't even kept (facts/recipes.md B17).
package image

import (
	"context"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"time"

	"github.com/google/go-containerregistry/pkg/authn"
	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	"golang.org/x/sys/unix"
)

// Options of a Store. The zero value is usable.
type Options struct {
	// Mirrors lists, for a registry ("docker.io", "ghcr.io"), the hosts to ask before it, each with an optional path
	// prefix ("mirror.example:5000/hub"). One that fails in any way is passed over.
	Mirrors map[string][]string
	// PlainHTTP lists registries and mirrors ("host:port") that may be asked without TLS. Loopback always may.
	PlainHTTP []string
	// Platform is the one to take from images with several, such as "linux/arm64"; the host's by default.
	Platform string
	// Keychain has the credentials; the Docker config of the user by default.
	Keychain authn.Keychain
	// Transport carries the requests; by default one that honours the usual proxy variables.
	Transport http.RoundTripper
	// MaxBytes and MaxEntries bound one image, unpacked. Defaults: 100 GiB and 5 million files.
	MaxBytes, MaxEntries int64
	// Reserve is how many bytes of its file system the store leaves free: disks of Sandboxes stand there too, sparse, and
	// one whose host runs full is damaged. Default: 2 GiB, or 5 % of the file system if that is less.
	Reserve int64
	// Parallel is how many layers are fetched and unpacked at once in this process. Default 4.
	Parallel int
	// Stall is how long a registry may send nothing before the request is tried again. Default 30 s.
	Stall time.Duration
	// Tries is how often a request is made before it fails, and Wait the pause after the first try, doubled after
	// each. Defaults: 4 and 1 s. A download goes on where it stopped.
	Tries int
	Wait  time.Duration
}

// Store is a folder of images. Its methods may be called from many goroutines and processes.
type Store struct {
	dir      string
	o        Options
	platform v1.Platform
	plain    map[string]bool
	slots    chan struct{}
}

// Image is an image whose layers are all unpacked in the store.
type Image struct {
	// Digest is of the manifest for the store's platform, never of an index: it pins what was tested (ADR 0009).
	Digest string `json:"digest"`
	// Names are those it has in this store, in the short form users write ("debian:bookworm").
	Names []string `json:"names"`
	// Layers are absolute folders, bottom first, without repeats, ready as lowers of an overlay. They are shared
	// and must never be written to.
	Layers []string `json:"layers"`
	Config Config   `json:"config"`
	// Size is the bytes of all layers, unpacked.
	Size int64 `json:"size"`
	// Notes are sentences about what was left out of it, such as device nodes.
	Notes   []string  `json:"notes,omitempty"`
	Created time.Time `json:"created"` // when it came into this store
}

// Config is the part of an image's configuration that the Runner honours (facts/recipes.md B15–B17).
type Config struct {
	Env          []string          `json:"env,omitempty"`  // NAME=value
	User         string            `json:"user,omitempty"` // name, uid, name:group or uid:gid, as written
	WorkingDir   string            `json:"working_dir,omitempty"`
	OS           string            `json:"os"`
	Architecture string            `json:"architecture"`
	Labels       map[string]string `json:"labels,omitempty"`
}

// Open makes or opens the store in dir.
func Open(dir string, o Options) (*Store, error) {
	dir, err := filepath.Abs(dir)
	if err != nil {
		return nil, err
	}
	if o.Platform == "" {
		o.Platform = "linux/" + runtime.GOARCH
	}
	p, err := v1.ParsePlatform(o.Platform)
	if err != nil || p.OS == "" || p.Architecture == "" {
		return nil, fail(Unsupported, "", err, "%q is not a platform; write it like linux/amd64", o.Platform)
	}
	if p.OS != "linux" {
		return nil, fail(Unsupported, "", nil, "platform %s can't run here: Sandboxes are Linux", o.Platform)
	}
	if o.Keychain == nil {
		o.Keychain = authn.DefaultKeychain
	}
	if o.Transport == nil {
		t := remote.DefaultTransport.(*http.Transport).Clone()
		t.ResponseHeaderTimeout = 30 * time.Second
		t.DialContext = (&net.Dialer{Timeout: 10 * time.Second, KeepAlive: 30 * time.Second}).DialContext
		o.Transport = t
	}
	for _, d := range []struct {
		v   *int64
		def int64
	}{{&o.MaxBytes, 100 << 30}, {&o.MaxEntries, 5_000_000}} {
		if *d.v <= 0 {
			*d.v = d.def
		}
	}
	if o.Parallel <= 0 {
		o.Parallel = 4
	}
	if o.Stall <= 0 {
		o.Stall = 30 * time.Second
	}
	if o.Tries <= 0 {
		o.Tries = 4
	}
	if o.Wait <= 0 {
		o.Wait = time.Second
	}
	s := &Store{dir: dir, o: o, platform: *p, plain: map[string]bool{}, slots: make(chan struct{}, o.Parallel)}
	for _, h := range o.PlainHTTP {
		s.plain[strings.ToLower(h)] = true
	}
	for _, d := range []string{"", "layers", "blobs", "images", "locks"} {
		if err := os.MkdirAll(filepath.Join(dir, d), 0o700); err != nil {
			return nil, s.local("", err, "making the image store")
		}
	}
	if err := os.Chmod(dir, 0o700); err != nil {
		return nil, s.local("", err, "making the image store")
	}
	if s.o.Reserve <= 0 {
		var st unix.Statfs_t
		if err := unix.Statfs(dir, &st); err != nil {
			return nil, s.local("", err, "looking at free space")
		}
		s.o.Reserve = min(2<<30, int64(st.Blocks)*st.Bsize/20)
	}
	s.sweep()
	return s, nil
}

// Get returns an image that is in the store, by name, by digest, or by the first 12 or more digits of its digest.
// No registry is asked. NotFound when it isn't here whole.
func (s *Store) Get(ref string) (Image, error) {
	ix, err := s.readIndex()
	if err != nil {
		return Image{}, err
	}
	digest, err := s.lookup(ix, ref)
	if err != nil {
		return Image{}, err
	}
	return s.load(ix, ref, digest)
}

// List returns all images of the store, those with names first, by name.
func (s *Store) List() ([]Image, error) {
	ix, err := s.readIndex()
	if err != nil {
		return nil, err
	}
	digests, err := s.digests()
	if err != nil {
		return nil, err
	}
	var all []Image
	for _, d := range digests {
		img, err := s.load(ix, d, d)
		if CodeOf(err) == NotFound {
			continue
		}
		if err != nil {
			return nil, err
		}
		all = append(all, img)
	}
	slices.SortFunc(all, func(a, b Image) int {
		switch {
		case len(a.Names) > 0 && len(b.Names) > 0:
			return strings.Compare(a.Names[0], b.Names[0])
		case len(a.Names) != len(b.Names):
			return len(b.Names) - len(a.Names)
		}
		return strings.Compare(a.Digest, b.Digest)
	})
	return all, nil
}

// parse reads a reference as Docker does: a missing registry is docker.io, a missing tag is latest.
func parse(ref string) (name.Reference, error) {
	r, err := name.ParseReference(ref, name.WeakValidation)
	if err != nil {
		return nil, fail(BadReference, ref, err, "%q is not a valid image reference; write it like debian:bookworm or "+
			"ghcr.io/owner/image@sha256:… (lower case, no spaces)", ref)
	}
	return r, nil
}

// familiar is the short form of a full name.
func familiar(full string) string {
	if rest, ok := strings.CutPrefix(full, "index.docker.io/"); ok {
		return strings.TrimPrefix(rest, "library/")
	}
	return full
}

// slot waits for one of the process's places for heavy work.
func (s *Store) slot(ctx context.Context) (func(), error) {
	select {
	case s.slots <- struct{}{}:
		return func() { <-s.slots }, nil
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}
