package image

import (
	"archive/tar"
	"bufio"
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"

	"github.com/containerd/containerd/v2/pkg/archive"
	"github.com/klauspost/compress/gzip"
	"github.com/klauspost/compress/zstd"
	"golang.org/x/sys/unix"
)

// layerMeta stands beside an unpacked layer.
type layerMeta struct {
	DiffID  string `json:"diff_id"`
	Size    int64  `json:"size"`    // bytes of its archive
	Entries int64  `json:"entries"` // files, folders, links
	// Implied are folders that the archive has things in but no entry for. They got 0755 root, and must not hide the
	// attributes that a lower layer gives them: see implied.go.
	Implied []string `json:"implied,omitempty"`
	Devices int      `json:"devices,omitempty"` // device nodes left out
}

// budget bounds one image over all its layers.
type budget struct {
	ref            string
	bytes, entries atomic.Int64 // what is left
	maxBytes, maxN int64

	s      *Store
	unseen atomic.Int64 // bytes since the disk was looked at
}

// lookEvery is how many bytes are unpacked between two looks at what is free.
const lookEvery = 16 << 20

func (s *Store) newBudget(ref string) *budget {
	b := &budget{s: s, ref: ref, maxBytes: s.o.MaxBytes, maxN: s.o.MaxEntries}
	b.bytes.Store(b.maxBytes)
	b.entries.Store(b.maxN)
	return b
}

func (b *budget) take(bytes, entries int64) error {
	if b.bytes.Add(-bytes) < 0 {
		return fail(TooLarge, b.ref, nil, "image %s is larger than the %s MB that this host allows an unpacked image", b.ref, megabytes(b.maxBytes))
	}
	if b.unseen.Add(bytes) >= lookEvery {
		b.unseen.Store(0)
		free, err := b.s.free()
		if err != nil {
			return b.s.local(b.ref, err, "looking at free space")
		}
		if free < 0 {
			return fail(DiskFull, b.ref, nil, "image %s doesn't fit on the file system of %s, of which %s MB are kept free; "+
				"free space or remove images with \"claude-hub image rm\"", b.ref, b.s.dir, megabytes(b.s.o.Reserve))
		}
	}
	if b.entries.Add(-entries) < 0 {
		return fail(TooLarge, b.ref, nil, "image %s has more than the %d files that this host allows an image", b.ref, b.maxN)
	}
	return nil
}

// decompress reads gzip, zstd or nothing, by the first bytes: media types are often wrong.
func decompress(r io.Reader) (io.Reader, func(), error) {
	b := bufio.NewReaderSize(r, 1<<20)
	head, err := b.Peek(4)
	if err != nil && !errors.Is(err, io.EOF) {
		return nil, nil, err
	}
	switch {
	case bytes.HasPrefix(head, []byte{0x1f, 0x8b}):
		z, err := gzip.NewReader(b)
		if err != nil {
			return nil, nil, err
		}
		return z, func() { _ = z.Close() }, nil
	case bytes.Equal(head, []byte{0x28, 0xb5, 0x2f, 0xfd}):
		z, err := zstd.NewReader(b, zstd.WithDecoderMaxMemory(256<<20), zstd.WithDecoderConcurrency(1))
		if err != nil {
			return nil, nil, err
		}
		return z, z.Close, nil
	}
	return b, func() {}, nil
}

// unpack writes a layer's archive into folder root, which exists and is empty, and checks it against diffID.
//
// Nothing outside root is written: names and hard links are resolved beneath it by containerd's archive package, and
// nobody else writes there. Whiteouts become overlayfs's own (a 0:0 character device, an opaque attribute). Device nodes
// are left out, since a Sandbox couldn't open them and has its own /dev; many old base images have some.
func unpack(ctx context.Context, src io.Reader, diffID, root string, b *budget) (layerMeta, error) {
	meta := layerMeta{DiffID: diffID}
	plain, closer, err := decompress(src)
	if err != nil {
		return meta, corruptLayer(b.ref, err)
	}
	defer closer()
	sum := sha256.New()
	u := &unpacker{root: root, meta: &meta, budget: b, listed: map[string]bool{}, parents: map[string]bool{}}
	stream := io.TeeReader(readerFunc(func(p []byte) (int, error) {
		if err := ctx.Err(); err != nil {
			return 0, err
		}
		n, err := plain.Read(p)
		meta.Size += int64(n)
		if over := b.take(int64(n), 0); over != nil {
			return n, over
		}
		return n, err
	}), sum)
	if _, err = archive.Apply(ctx, root, stream, archive.WithFilter(u.filter), archive.WithConvertWhiteout(u.whiteout)); err == nil {
		_, err = io.Copy(io.Discard, stream)
	}
	if err != nil {
		return meta, corruptLayer(b.ref, err)
	}
	if got := "sha256:" + hex.EncodeToString(sum.Sum(nil)); got != diffID {
		return meta, fail(Corrupt, b.ref, nil, "a layer of image %s unpacks to something else than its configuration says (%s instead of %s)",
			b.ref, got, diffID)
	}
	err = u.finish()
	return meta, err
}

// corruptLayer names an archive that can't be unpacked; errors of the host and of the budget stay what they are.
func corruptLayer(ref string, err error) error {
	var own *Error
	var errno unix.Errno
	switch {
	case errors.As(err, &own), errors.Is(err, context.Canceled), errors.Is(err, context.DeadlineExceeded):
		return err
	case errors.As(err, &errno):
		switch errno {
		// What an archive can bring about by itself: a path through a file, a link to nothing, names too long.
		case unix.ENOTDIR, unix.EISDIR, unix.ENOENT, unix.ELOOP, unix.ENAMETOOLONG, unix.EEXIST, unix.EINVAL, unix.EPERM, unix.EMLINK, unix.EXDEV:
		default:
			return err
		}
	}
	return fail(Corrupt, ref, err, "a layer of image %s can't be unpacked: %v", ref, err)
}

type unpacker struct {
	root      string
	meta      *layerMeta
	budget    *budget
	listed    map[string]bool // folders with an entry of their own
	parents   map[string]bool // folders of entries
	whiteouts []whiteout
	top       *tar.Header // the entry of the root folder itself
}

type whiteout struct {
	dir, name string // relative to root, as in the archive; an empty name makes dir opaque
	uid, gid  int
}

func (u *unpacker) filter(h *tar.Header) (bool, error) {
	if err := u.budget.take(0, 1); err != nil {
		return false, err
	}
	u.meta.Entries++
	name := strings.Trim(path.Clean("/"+h.Name), "/")
	switch h.Typeflag {
	case tar.TypeBlock, tar.TypeChar:
		u.meta.Devices++
		return false, nil
	case tar.TypeDir:
		if name == "" {
			top := *h
			u.top = &top
			return false, nil
		}
		u.listed[name] = true
	}
	for dir := path.Dir(name); dir != "." && dir != "/" && !u.parents[dir]; dir = path.Dir(dir) {
		u.parents[dir] = true
	}
	// Attributes that the host's security modules and file systems give a meaning don't come from strangers.
	for key := range h.PAXRecords {
		if attr, ok := strings.CutPrefix(key, "SCHILY.xattr."); ok && !keptAttribute(attr) {
			delete(h.PAXRecords, key)
		}
	}
	return true, nil
}

func keptAttribute(a string) bool {
	return a == "security.capability" || strings.HasPrefix(a, "user.") ||
		a == "system.posix_acl_access" || a == "system.posix_acl_default"
}

const (
	whiteoutPrefix = ".wh."
	opaqueName     = ".wh..wh..opq"
	opaqueAttr     = "trusted.overlay.opaque"
)

// whiteout remembers a marker for the end: it hides what lower layers have, never what this layer brings, and an
// archive may name them in any order.
func (u *unpacker) whiteout(h *tar.Header, p string) (bool, error) {
	name := filepath.Base(p)
	if !strings.HasPrefix(name, whiteoutPrefix) {
		return true, nil
	}
	dir := path.Dir(path.Clean("/" + h.Name))
	switch {
	case name == opaqueName:
		u.whiteouts = append(u.whiteouts, whiteout{dir: dir})
	case strings.HasPrefix(name, whiteoutPrefix+whiteoutPrefix): // aufs's own bookkeeping
	default:
		u.whiteouts = append(u.whiteouts, whiteout{dir, strings.TrimPrefix(name, whiteoutPrefix), h.Uid, h.Gid})
	}
	return false, nil
}

// finish places the markers and gives the root folder its attributes.
func (u *unpacker) finish() error {
	fd, err := unix.Open(u.root, unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	for _, w := range u.whiteouts {
		if err := w.place(fd); err != nil {
			return fmt.Errorf("hiding %s: %w", path.Join(w.dir, w.name), err)
		}
	}
	for dir := range u.parents {
		if !u.listed[dir] {
			u.meta.Implied = append(u.meta.Implied, dir)
		}
	}
	slices.Sort(u.meta.Implied)
	mode, uid, gid := os.FileMode(0o755), 0, 0
	if u.top != nil {
		mode, uid, gid = u.top.FileInfo().Mode(), u.top.Uid, u.top.Gid
	}
	if err := os.Chown(u.root, uid, gid); err != nil {
		return err
	}
	if err := os.Chmod(u.root, mode); err != nil {
		return err
	}
	if u.top != nil && u.top.ModTime.Unix() >= 0 {
		return os.Chtimes(u.root, u.top.ModTime, u.top.ModTime)
	}
	return nil
}

// place resolves the folder again beneath root: the archive may have replaced it by a link after the marker.
func (w whiteout) place(root int) error {
	dir, err := openBeneath(root, w.dir, unix.RESOLVE_IN_ROOT)
	if err != nil {
		if errors.Is(err, unix.ENOENT) || errors.Is(err, unix.ENOTDIR) {
			return nil
		}
		return err
	}
	defer unix.Close(dir)
	if w.name == "" {
		return setOpaque(dir)
	}
	var parent unix.Stat_t
	if err := unix.Fstat(dir, &parent); err != nil {
		return err
	}
	err = unix.Mknodat(dir, w.name, unix.S_IFCHR, 0)
	if errors.Is(err, unix.EEXIST) {
		// Deleted and made anew in the same layer: a folder must not show the old one's contents.
		again, err := unix.Openat(dir, w.name, unix.O_PATH|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
		if err != nil {
			return nil
		}
		defer unix.Close(again)
		return setOpaque(again)
	}
	if err != nil {
		return err
	}
	if err := unix.Fchownat(dir, w.name, w.uid, w.gid, unix.AT_SYMLINK_NOFOLLOW); err != nil {
		return err
	}
	return unix.UtimesNanoAt(unix.AT_FDCWD, fdPath(dir), []unix.Timespec{parent.Atim, parent.Mtim}, 0)
}

func setOpaque(fd int) error { return unix.Setxattr(fdPath(fd), opaqueAttr, []byte{'y'}, 0) }

func fdPath(fd int) string { return fmt.Sprintf("/proc/self/fd/%d", fd) }

// openBeneath opens a folder under root as a path only; no link leads out of root.
func openBeneath(root int, dir string, resolve uint64) (int, error) {
	dir = strings.Trim(dir, "/")
	if dir == "" {
		dir = "."
	}
	for {
		fd, err := unix.Openat2(root, dir, &unix.OpenHow{
			Flags: unix.O_PATH | unix.O_DIRECTORY | unix.O_CLOEXEC, Resolve: resolve | unix.RESOLVE_NO_MAGICLINKS,
		})
		if !errors.Is(err, unix.EAGAIN) && !errors.Is(err, unix.EINTR) {
			return fd, err
		}
	}
}
