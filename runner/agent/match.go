package agent

import (
	"fmt"
	gopath "path"
	"slices"
	"strings"

	"github.com/bmatcuk/doublestar/v4"
	"golang.org/x/sys/unix"
)

// What a walk through a Workspace takes at most. What is beyond isn't matched, and that is said.
const (
	maxFolders = 400_000
	maxDepth   = 128
	maxBound   = 1000
	maxKept    = 100_000
)

// pattern is a Pattern, taken apart.
type pattern struct {
	glob    string
	last    string // its last part
	literal bool   // which has no wildcard in it
	beside  string
}

type patterns []pattern

// newPatterns reads patterns; one that can't be read is said and left out.
func newPatterns(all []Pattern) (patterns, []string) {
	var out patterns
	var bad []string
	for _, p := range all {
		clean := gopath.Clean(p.Pattern)
		if p.Pattern == "" || clean != p.Pattern || gopath.IsAbs(clean) || clean == "." || clean == ".." || strings.HasPrefix(clean, "../") ||
			!doublestar.ValidatePattern(p.Pattern) || strings.Contains(p.Beside, "/") {
			bad = append(bad, fmt.Sprintf("the pattern %q of dependency folders can't be read", clip(p.Pattern, 256)))
			continue
		}
		last := gopath.Base(p.Pattern)
		out = append(out, pattern{glob: p.Pattern, last: last, literal: !strings.ContainsAny(last, `*?[]{}\`), beside: p.Beside})
	}
	return out, bad
}

// may says whether a folder of that name can match, wherever it is: most don't, and are told by that.
func (p patterns) may(name []byte) bool {
	for i := range p {
		if p[i].literal {
			if string(name) == p[i].last {
				return true
			}
		} else if ok, _ := doublestar.Match(p[i].last, string(name)); ok { //nolint:errcheck // it was read before
			return true
		}
	}
	return false
}

// match says whether the folder at rel below the Workspace matches.
func (p patterns) match(rel string) bool {
	for i := range p {
		if ok, _ := doublestar.Match(p[i].glob, rel); ok { //nolint:errcheck // it was read before
			return true
		}
	}
	return false
}

// within says whether a folder above rel matches: it is in one that is bound, or left alone, as a whole.
func (p patterns) within(rel string) bool {
	for i := range len(rel) {
		if rel[i] == '/' && p.match(rel[:i]) {
			return true
		}
	}
	return false
}

// found is a folder that a walk has come to, and doesn't look into.
type found struct {
	rel   string
	repo  string // the repository it is in, below the Workspace; "." is the Workspace itself
	has   bool   // is there
	match bool
	kept  *kept // whose place it may be, by the number of its inode
}

// walk looks through a Workspace.
type walk struct {
	patterns patterns
	places   map[uint64]*kept
	folders  int
	buf      []byte
	out      []found
	problems []string
	full     bool // said that there is more
}

// look lists one folder and those in it. fd is open for reading, and stays so.
func (w *walk) look(fd int, rel, repo string, depth int) {
	type sub struct {
		name   string
		number uint64
	}
	var subs []sub
	var missing []string
	inRepo := repo
	at := len(w.out)
	_, err := readFolder(fd, w.buf, func(e entry) bool {
		kind := e.kind
		if kind == unix.DT_UNKNOWN {
			if _, st, err := inodeOf(fd, string(e.name)); err == nil {
				kind = byte(st.Mode & unix.S_IFMT >> 12)
			}
		}
		if string(e.name) == ".git" {
			inRepo = rel
			return true
		}
		if kind != unix.DT_DIR {
			for i := range w.patterns {
				p := &w.patterns[i]
				if p.beside == "" || !p.literal || string(e.name) != p.beside {
					continue
				}
				if f := gopath.Join(rel, p.last); !slices.Contains(missing, f) {
					if ok, _ := doublestar.Match(p.glob, f); ok { //nolint:errcheck // it was read before
						missing = append(missing, f)
					}
				}
			}
			return true
		}
		k := w.places[e.number]
		if k == nil && !w.patterns.may(e.name) {
			subs = append(subs, sub{string(e.name), e.number})
			return true
		}
		f := found{rel: gopath.Join(rel, string(e.name)), has: true, kept: k}
		if k != nil {
			// The number may have been another folder's when it was written down.
			if is, _, err := inodeOf(fd, string(e.name)); err != nil || is != k.at.Inode {
				f.kept = nil
			}
		}
		f.match = w.patterns.match(f.rel)
		if !f.match && f.kept == nil {
			subs = append(subs, sub{string(e.name), e.number})
			return true
		}
		w.out = append(w.out, f)
		return true
	})
	if err != nil {
		w.problem("%s can't be listed: %v", pathText(rel), err)
	}
	for _, m := range missing {
		if !slices.ContainsFunc(w.out[at:], func(f found) bool { return f.rel == m }) {
			w.out = append(w.out, found{rel: m, match: true})
		}
	}
	for i := at; i < len(w.out); i++ {
		w.out[i].repo = inRepo
	}
	for _, s := range subs {
		if w.folders++; w.folders > maxFolders || depth >= maxDepth {
			if !w.full {
				w.full = true
				w.problem("dependency folders are looked for in %d folders, %d deep: there are more", maxFolders, maxDepth)
			}
			return
		}
		next, err := openUnder(fd, s.name, unix.O_RDONLY)
		if err != nil {
			if err != unix.ENOENT && err != unix.ENOTDIR && err != unix.ELOOP {
				w.problem("%s can't be opened: %v", pathText(gopath.Join(rel, s.name)), err)
			}
			continue
		}
		w.look(next, gopath.Join(rel, s.name), inRepo, depth+1)
		unix.Close(next)
	}
}

func (w *walk) problem(format string, args ...any) {
	if len(w.problems) < maxProblems {
		w.problems = append(w.problems, fmt.Sprintf(format, args...))
	}
}

// pathText is a path for a sentence.
func pathText(rel string) string { return visible(gopath.Clean("./" + rel)) }
