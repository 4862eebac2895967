package build

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path"
	"strings"
	"time"
	"unicode"

	"golang.org/x/sys/unix"

	"github.com/claude-hub/claude-hub/runner/secret"
)

// A value that a bootstrap writes to a file stays in the build's snapshot on the Runner's disk, which is up to the
// Environment's author (ADR 0009). What it wrote is looked through, so that the author hears of it.
const (
	// leakLength is from how many bytes on a value is looked for. A shorter one would be found in what has nothing to do with it.
	leakLength = 16
	// leakLimit bounds the time, and leakWarnings the sentences.
	leakLimit    = 30 * time.Second
	leakWarnings = 20
	// leakDepth bounds how deep folders are entered, since each holds a descriptor.
	leakDepth = 256
	leakChunk = 1 << 20
)

// lookThrough looks for the Sensitive values that the bootstrap received in all that it wrote. Each file and Variable is one
// warning. What can't be read is no reason for a build to fail.
func (b *Builder) lookThrough(ctx context.Context, j *Job, folder string) {
	var values []secret.Value
	for _, v := range j.Values.SensitiveAtBuild() {
		if v.Len() >= leakLength {
			values = append(values, v)
		}
	}
	if len(values) == 0 {
		return
	}
	warn := func(s string) {
		j.Log.Mark("snapshot: %s", s)
		j.Track.Note(j.Log.Text(s))
	}
	n := 0
	ctx, cancel := context.WithTimeout(ctx, leakLimit)
	defer cancel()
	err := newScanner(values).folder(ctx, folder, func(file, variable string) {
		if n++; n <= leakWarnings {
			warn(fmt.Sprintf("the bootstrap wrote the value of %s to %s, so it is in the build on this Runner's disk", variable, printable(file)))
		}
	})
	if n > leakWarnings {
		warn(fmt.Sprintf("the bootstrap wrote values of Variables to %d more files", n-leakWarnings))
	}
	switch {
	case errors.Is(err, context.DeadlineExceeded):
		warn(fmt.Sprintf("what the bootstrap wrote could not be looked through within %s for values of Variables", leakLimit))
	case err != nil && ctx.Err() == nil:
		b.cfg.Log.Warn().Err(err).Msg("what a bootstrap wrote could not be looked through for values of Variables")
	}
}

func printable(s string) string {
	return strings.Map(func(r rune) rune {
		if unicode.IsPrint(r) {
			return r
		}
		return '?'
	}, s[:min(len(s), 1024)])
}

// scanner finds many values in one pass.
type scanner struct {
	values  []secret.Value
	longest int
	begins  [1 << 16]bool // by two bytes of which some value's beginning consists
	byStart map[uint16][]int
	buf     []byte
}

func newScanner(values []secret.Value) *scanner {
	s := &scanner{values: values, byStart: map[uint16][]int{}}
	for i, v := range values {
		s.longest = max(s.longest, v.Len())
		k := v.Start()
		s.begins[k] = true
		s.byStart[k] = append(s.byStart[k], i)
	}
	s.buf = make([]byte, s.longest+leakChunk)
	return s
}

// folder goes through all regular files below dir. It follows no link, and opens no device and no pipe.
func (s *scanner) folder(ctx context.Context, dir string, found func(file, variable string)) error {
	fd, err := unix.Open(dir, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if err != nil {
		return err
	}
	return s.walk(ctx, fd, "/", 0, found)
}

// walk takes over fd.
func (s *scanner) walk(ctx context.Context, fd int, at string, depth int, found func(file, variable string)) error {
	dir := os.NewFile(uintptr(fd), at)
	defer dir.Close()
	if depth > leakDepth {
		return nil
	}
	var errs []error
	for {
		entries, err := dir.ReadDir(512)
		for _, e := range entries {
			if ctx.Err() != nil {
				return ctx.Err()
			}
			switch {
			case e.IsDir():
				sub, err := unix.Openat(fd, e.Name(), unix.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
				if err == nil {
					err = s.walk(ctx, sub, path.Join(at, e.Name()), depth+1, found)
				}
				errs = keepFew(errs, err)
			case e.Type().IsRegular():
				errs = keepFew(errs, s.file(ctx, fd, at, e.Name(), found))
			}
		}
		if err == io.EOF {
			return errors.Join(errs...)
		}
		if err != nil {
			return errors.Join(append(errs, err)...)
		}
	}
}

func keepFew(errs []error, err error) []error {
	if err == nil || len(errs) > 3 && !errors.Is(err, context.DeadlineExceeded) {
		return errs
	}
	return append(errs, err)
}

func (s *scanner) file(ctx context.Context, dir int, at, name string, found func(file, variable string)) error {
	fd, err := unix.Openat(dir, name, unix.O_RDONLY|unix.O_NOFOLLOW|unix.O_NONBLOCK|unix.O_CLOEXEC, 0)
	if err != nil {
		return err
	}
	f := os.NewFile(uintptr(fd), name)
	defer f.Close()
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil || st.Mode&unix.S_IFMT != unix.S_IFREG || st.Size < leakLength {
		return err
	}
	seen := make([]bool, len(s.values))
	kept, pos := 0, int64(0)
	for ctx.Err() == nil {
		// Holes of a sparse file are passed by; it may claim any size.
		data, err := unix.Seek(fd, pos, unix.SEEK_DATA)
		if err == unix.ENXIO {
			return nil
		}
		if err == nil && data > pos {
			pos, kept = data, 0
		}
		n, err := f.ReadAt(s.buf[kept:kept+leakChunk], pos)
		pos += int64(n)
		s.search(s.buf[:kept+n], func(i int) {
			if !seen[i] {
				seen[i] = true
				found(path.Join(at, name), s.values[i].Name)
			}
		})
		if err == io.EOF {
			return nil
		}
		if err != nil {
			return err
		}
		keep := min(kept+n, s.longest-1)
		copy(s.buf, s.buf[kept+n-keep:kept+n])
		kept = keep
	}
	return ctx.Err()
}

func (s *scanner) search(b []byte, found func(value int)) {
	for i := 0; i+leakLength <= len(b); i++ {
		k := uint16(b[i]) | uint16(b[i+1])<<8
		if !s.begins[k] {
			continue
		}
		for _, v := range s.byStart[k] {
			if s.values[v].Begins(b[i:]) {
				found(v)
			}
		}
	}
}
