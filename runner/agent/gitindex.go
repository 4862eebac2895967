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
	t := newTracker(folders)
	err := readIndexes(workspace, repo, t.begin, t.name)
	if errors.Is(err, errNoIndex) {
		return nil, nil
	}
	return t.yes, err
}

// cloned is the survey of a Workspace that git has just checked out, and that nothing else has written in: what there is stands in the
// index, so that no folder has to be looked at. false: it has to, since there are submodules, or no index.
func (p patterns) cloned(workspace int) (survey, bool) {
	var out survey
	var missing []string
	var dir string // of the last name, and
	var in bool    // whether that is in a folder that matches
	plain := true
	left := map[string]bool{}
	err := readIndexes(workspace, "", func() {}, func(mode uint32, name []byte) {
		if mode&unix.S_IFMT != unix.S_IFREG && mode&unix.S_IFMT != unix.S_IFLNK {
			plain = false
		}
		d, file := gopath.Split(string(name))
		if d = strings.TrimSuffix(d, "/"); d != dir {
			if dir, in = d, false; d != "" {
				for i := range len(d) + 1 {
					if (i == len(d) || d[i] == '/') && p.match(d[:i]) {
						in, left[d[:i]] = true, true
						break
					}
				}
			}
		}
		if !in {
			missing = p.besides(missing, d, file)
		}
	})
	if err != nil || !plain {
		return survey{}, false
	}
	for rel := range left {
		out.found = append(out.found, found{rel: rel, has: true, match: true, left: true})
	}
	for _, rel := range missing {
		if !left[rel] {
			out.found = append(out.found, found{rel: rel, match: true})
		}
	}
	out.sort()
	return out, true
}

// readIndexes tells all that the index of the repository at repo has, with each one's mode, and what it shares with another. begin is
// called before each of the two.
func readIndexes(workspace int, repo string, begin func(), each func(mode uint32, name []byte)) error {
	dir, err := gitDir(workspace, repo)
	if err != nil {
		return err
	}
	defer unix.Close(dir)
	hash := 20
	if sha256Repo(dir) {
		hash = 32
	}
	begin()
	shared, err := readIndex(dir, "index", hash, each)
	if err != nil || shared == "" {
		return err
	}
	begin()
	_, err = readIndex(dir, "sharedindex."+shared, hash, each)
	return err
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

// begin is for another index, in whose order names come from now on.
func (t *tracker) begin() { t.i, t.j = 0, 0 }

func (t *tracker) name(_ uint32, b []byte) {
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

// readIndex tells all entries of an index, and gives the name of the one it shares entries with, if it does.
func readIndex(dir int, file string, hash int, each func(mode uint32, name []byte)) (shared string, err error) {
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
		mode, name, err := x.entry()
		if err != nil {
			return "", errors.New("git's index is damaged")
		}
		each(mode, name)
	}
	return x.link(hash)
}

type indexReader struct {
	r       *bufio.Reader
	version uint32
	fixed   int    // size of an entry up to its flags
	name    []byte // of the last entry
}

func (x *indexReader) entry() (mode uint32, name []byte, err error) {
	fixed, err := x.r.Peek(x.fixed)
	if err != nil {
		return 0, nil, err
	}
	mode = binary.BigEndian.Uint32(fixed[24:])
	size := x.fixed
	if extended := fixed[x.fixed-2]&0x40 != 0; extended && x.version >= 3 {
		size += 2
	}
	if _, err := x.r.Discard(size); err != nil {
		return 0, nil, err
	}
	keep := 0
	if x.version == 4 {
		// The name is the last one's without so many bytes at its end, and what follows.
		strip, err := x.varint()
		if err != nil || strip > len(x.name) {
			return 0, nil, io.ErrUnexpectedEOF
		}
		keep = len(x.name) - strip
	}
	x.name = x.name[:keep]
	for {
		part, err := x.r.ReadSlice(0)
		x.name = append(x.name, part...)
		if len(x.name) > maxGitName {
			return 0, nil, bufio.ErrTooLong
		}
		if err == nil {
			break
		}
		if err != bufio.ErrBufferFull {
			return 0, nil, err
		}
	}
	x.name = x.name[:len(x.name)-1]
	if x.version < 4 {
		// NULs up to a multiple of 8, of which one is read.
		if _, err := x.r.Discard(7 - (size+len(x.name))%8); err != nil {
			return 0, nil, err
		}
	}
	return mode, x.name, nil
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
