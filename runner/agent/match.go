package agent

import (
	"fmt"
	gopath "path"
	"slices"
	"strings"
	"sync"

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
	left  bool  // git keeps files in it
	kept  *kept // whose place it may be, by the number of its inode
}

// back is 1 for what is on the disk and belongs into the Workspace.
func (x found) back() int {
	if x.kept != nil && (x.left || !x.match) {
		return 1
	}
	return 0
}

// walk looks through a Workspace, in a few folders at once.
type walk struct {
	patterns patterns
	places   map[uint64]*kept
	looks    semaphore // for those beside the first
	looking  sync.WaitGroup

	mu       sync.Mutex
	folders  int
	out      []found
	problems []string
	full     bool // said that there is more
}

const looksAtOnce = 4

func newWalk(p patterns, all []*kept) *walk {
	w := &walk{patterns: p, places: map[uint64]*kept{}, looks: make(semaphore, looksAtOnce-1)}
	for _, k := range all {
		w.places[k.at.inode.number] = k
	}
	return w
}

// run looks through the folder top.
func (w *walk) run(top int) {
	fd, err := openUnder(top, ".", unix.O_RDONLY)
	if err != nil {
		w.problem("the Workspace can't be listed: %v", err)
		return
	}
	w.look(fd, "", "", 0, make([]byte, 64<<10))
	w.looking.Wait()
}

// look lists one folder and those in it. fd is open for reading; look closes it.
func (w *walk) look(fd int, rel, repo string, depth int, buf []byte) {
	defer unix.Close(fd)
	subs, out, inRepo, err := w.list(fd, rel, repo, buf)
	if err != nil {
		w.problem("%s can't be listed: %v", pathText(rel), err)
	}
	if !w.count(out, len(subs), depth) {
		return
	}
	for _, name := range subs {
		next, err := openUnder(fd, name, unix.O_RDONLY)
		if err != nil {
			if err != unix.ENOENT && err != unix.ENOTDIR && err != unix.ELOOP {
				w.problem("%s can't be opened: %v", pathText(gopath.Join(rel, name)), err)
			}
			continue
		}
		below := gopath.Join(rel, name)
		select {
		case w.looks <- struct{}{}:
			w.looking.Go(func() {
				defer func() { <-w.looks }()
				w.look(next, below, inRepo, depth+1, make([]byte, 64<<10))
			})
		default:
			w.look(next, below, inRepo, depth+1, buf)
		}
	}
}

// list tells the folders that are to be looked into, and those that were found.
func (w *walk) list(fd int, rel, repo string, buf []byte) (subs []string, out []found, inRepo string, err error) {
	var missing []string
	inRepo = repo
	_, err = readFolder(fd, buf, func(e entry) bool {
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
			missing = w.patterns.besides(missing, rel, string(e.name))
			return true
		}
		k := w.places[e.number]
		if k == nil && !w.patterns.may(e.name) {
			subs = append(subs, string(e.name))
			return true
		}
		f := found{rel: gopath.Join(rel, string(e.name)), has: true, kept: k}
		if k != nil {
			// The number may have been another folder's when it was written down.
			if is, _, err := inodeOf(fd, string(e.name)); err != nil || is != k.at.inode {
				f.kept = nil
			}
		}
		if f.match = w.patterns.match(f.rel); f.match || f.kept != nil {
			out = append(out, f)
		} else {
			subs = append(subs, string(e.name))
		}
		return true
	})
	for _, m := range missing {
		if !slices.ContainsFunc(out, func(f found) bool { return f.rel == m }) {
			out = append(out, found{rel: m, match: true})
		}
	}
	for i := range out {
		out[i].repo = inRepo
	}
	return subs, out, inRepo, err
}

// besides adds to missing the folders that belong beside the file name of the folder rel.
func (p patterns) besides(missing []string, rel, name string) []string {
	for i := range p {
		if p[i].beside == "" || !p[i].literal || name != p[i].beside {
			continue
		}
		f := gopath.Join(rel, p[i].last)
		if ok, _ := doublestar.Match(p[i].glob, f); ok && !slices.Contains(missing, f) { //nolint:errcheck // it was read before
			missing = append(missing, f)
		}
	}
	return missing
}

// count takes in what was found, and says whether to go on.
func (w *walk) count(out []found, subs, depth int) bool {
	w.mu.Lock()
	w.out = append(w.out, out...)
	w.folders += subs
	over := subs > 0 && (w.folders > maxFolders || depth >= maxDepth)
	said := w.full
	w.full = w.full || over
	w.mu.Unlock()
	if over && !said {
		w.problem("dependency folders are looked for in %d folders, %d deep: there are more", maxFolders, maxDepth)
	}
	return !over
}

func (w *walk) problem(format string, args ...any) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if len(w.problems) < maxProblems {
		w.problems = append(w.problems, fmt.Sprintf(format, args...))
	}
}

// pathText is a path for a sentence.
func pathText(rel string) string { return visible(gopath.Clean("./" + rel)) }
