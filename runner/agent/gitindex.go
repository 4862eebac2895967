package agent

import (
	"bufio"
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"os"
	gopath "path"
	"slices"
	"strings"

	"golang.org/x/sys/unix"
)

// errNoIndex: nothing is tracked.
var errNoIndex = errors.New("no index")

// tracked says which of these folders, below the repository at repo, git keeps files in, or a link or submodule in place of. It
// reads the index as git writes it (gitformat-index(5)), without git, and as bytes from a stranger.
func tracked(workspace int, repo string, folders []string) (map[string]bool, error) {
	dir, err := gitDir(workspace, repo)
	if errors.Is(err, errNoIndex) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	defer unix.Close(dir)
	hash := 20
	if sha256Repo(dir) {
		hash = 32
	}
	t := newTracker(folders)
	shared, err := readIndex(dir, "index", hash, t)
	if err == nil && shared != "" {
		_, err = readIndex(dir, "sharedindex."+shared, hash, newTrackerInto(t))
	}
	if errors.Is(err, errNoIndex) {
		return nil, nil
	}
	return t.yes, err
}

// gitDir opens the folder that git keeps a repository's index in: .git, or what a submodule's .git says.
func gitDir(workspace int, repo string) (int, error) {
	name := gopath.Join(repo, ".git")
	fd, err := openBeneath(workspace, name, unix.O_PATH)
	switch err {
	case nil:
		return fd, nil
	case unix.ENOENT:
		return -1, errNoIndex
	case unix.ENOTDIR:
	default:
		return -1, err
	}
	parent, err := openBeneath(workspace, repo, unix.O_PATH)
	if err != nil {
		return -1, err
	}
	b, err := readSmall(parent, ".git")
	unix.Close(parent)
	if err != nil {
		return -1, err
	}
	to, ok := strings.CutPrefix(strings.TrimRight(string(b), "\n"), "gitdir: ")
	if !ok {
		return -1, errNoIndex
	}
	if gopath.IsAbs(to) {
		return -1, errors.New("its .git names a folder by its whole path")
	}
	fd, err = openBeneath(workspace, gopath.Join(repo, to), unix.O_PATH)
	if err == unix.ENOENT {
		return -1, errNoIndex
	}
	return fd, err
}

func sha256Repo(dir int) bool {
	b, err := readSmall(dir, "config")
	if err != nil {
		return false
	}
	for _, l := range bytes.Split(bytes.ToLower(b), []byte("\n")) {
		if k, v, ok := bytes.Cut(l, []byte("=")); ok && string(bytes.TrimSpace(k)) == "objectformat" {
			return string(bytes.TrimSpace(v)) == "sha256"
		}
	}
	return false
}

// tracker is told the names of an index in their order.
type tracker struct {
	folders []string // sorted as git sorts
	below   []string // the same with / at their end, sorted
	i, j    int
	yes     map[string]bool
}

func newTracker(folders []string) *tracker {
	t := &tracker{folders: slices.Clone(folders), yes: map[string]bool{}}
	for _, f := range folders {
		t.below = append(t.below, f+"/")
	}
	slices.Sort(t.folders)
	slices.Sort(t.below)
	return t
}

// newTrackerInto begins anew, and adds to what another has found.
func newTrackerInto(t *tracker) *tracker {
	n := *t
	n.i, n.j = 0, 0
	return &n
}

func (t *tracker) name(b []byte) {
	for t.i < len(t.folders) && t.folders[t.i] < string(b) {
		t.i++
	}
	if t.i < len(t.folders) && t.folders[t.i] == string(b) {
		t.yes[t.folders[t.i]] = true
	}
	for t.j < len(t.below) && t.below[t.j] < string(b) && !bytes.HasPrefix(b, []byte(t.below[t.j])) {
		t.j++
	}
	// A sparse index has folders as names, with / at their end.
	if t.j < len(t.below) && bytes.HasPrefix(b, []byte(t.below[t.j])) {
		t.yes[strings.TrimSuffix(t.below[t.j], "/")] = true
	}
}

const (
	maxGitName    = 64 << 10
	maxGitEntries = 20_000_000
)

// readIndex tells t all names of an index, and gives the name of the one it shares entries with, if it does.
func readIndex(dir int, file string, hash int, t *tracker) (shared string, err error) {
	fd, err := unix.Openat(dir, file, unix.O_RDONLY|unix.O_NOFOLLOW|unix.O_NONBLOCK|unix.O_CLOEXEC, 0)
	if err == unix.ENOENT {
		return "", errNoIndex
	}
	if err != nil {
		return "", err
	}
	f := os.NewFile(uintptr(fd), file)
	defer f.Close()
	r := bufio.NewReaderSize(f, 128<<10)
	var head [12]byte
	if _, err := io.ReadFull(r, head[:]); err != nil || string(head[:4]) != "DIRC" {
		return "", errors.New("git's index is damaged")
	}
	version, n := binary.BigEndian.Uint32(head[4:]), binary.BigEndian.Uint32(head[8:])
	if version < 2 || version > 4 || n > maxGitEntries {
		return "", fmt.Errorf("git's index has version %d, with %d entries", version, n)
	}
	x := indexReader{r: r, version: version, fixed: 40 + hash + 2}
	for range n {
		name, err := x.entry()
		if err != nil {
			return "", errors.New("git's index is damaged")
		}
		t.name(name)
	}
	return x.link(hash)
}

type indexReader struct {
	r       *bufio.Reader
	version uint32
	fixed   int    // size of an entry up to its flags
	name    []byte // of the last entry
}

func (x *indexReader) entry() ([]byte, error) {
	fixed, err := x.r.Peek(x.fixed)
	if err != nil {
		return nil, err
	}
	size := x.fixed
	if extended := fixed[x.fixed-2]&0x40 != 0; extended && x.version >= 3 {
		size += 2
	}
	if _, err := x.r.Discard(size); err != nil {
		return nil, err
	}
	keep := 0
	if x.version == 4 {
		// The name is the last one's without so many bytes at its end, and what follows.
		strip, err := x.varint()
		if err != nil || strip > len(x.name) {
			return nil, io.ErrUnexpectedEOF
		}
		keep = len(x.name) - strip
	}
	x.name = x.name[:keep]
	for {
		part, err := x.r.ReadSlice(0)
		x.name = append(x.name, part...)
		if len(x.name) > maxGitName {
			return nil, bufio.ErrTooLong
		}
		if err == nil {
			break
		}
		if err != bufio.ErrBufferFull {
			return nil, err
		}
	}
	x.name = x.name[:len(x.name)-1]
	if x.version < 4 {
		// NULs up to a multiple of 8, of which one is read.
		if _, err := x.r.Discard(7 - (size+len(x.name))%8); err != nil {
			return nil, err
		}
	}
	return x.name, nil
}

// varint is a number as in packs' offsets.
func (x *indexReader) varint() (int, error) {
	b, err := x.r.ReadByte()
	if err != nil {
		return 0, err
	}
	v := int(b & 0x7f)
	for b&0x80 != 0 {
		if b, err = x.r.ReadByte(); err != nil {
			return 0, err
		}
		if v = (v+1)<<7 | int(b&0x7f); v > maxGitName {
			return 0, bufio.ErrTooLong
		}
	}
	return v, nil
}

// link looks for the extension of a split index, which is the first if there is one.
func (x *indexReader) link(hash int) (string, error) {
	b, err := x.r.Peek(8 + hash)
	if err != nil || string(b[:4]) != "link" {
		return "", nil
	}
	base := fmt.Sprintf("%x", b[8:8+hash])
	if strings.Trim(base, "0") == "" {
		return "", nil
	}
	return base, nil
}
