package clone

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"regexp"
	"strings"
)

// What a clone holds beyond its own objects, each in a sentence when it is not there in full.
const (
	submodulesMax = 100 // that are fetched in all
	submodulesIn  = 6   // levels
	namesMax      = 8   // in a sentence
)

// beyond fetches submodules and says what isn't there. None of it fails a clone: a Session without one submodule is of use.
func (g *git) beyond(ctx context.Context) ([]string, error) {
	s := &submodules{g: g}
	if err := s.level(ctx, ".", 1); err != nil {
		return nil, err
	}
	notes := s.notes
	shallow, err := g.run(ctx, "rev-parse", "--is-shallow-repository")
	if err != nil {
		return nil, err
	}
	if strings.TrimSpace(shallow) == "true" {
		notes = append(notes, fmt.Sprintf("history: only the newest %d commits of each branch are here, by the Runner's clone_depth; run git fetch --unshallow in the Session for all", g.o.Depth))
	}
	for _, l := range s.lfs {
		notes = append(notes, fmt.Sprintf("Git LFS: these files are pointers, not their contents; run %s in the Session: %s", l.command, names(l.files)))
	}
	return notes, nil
}

type submodules struct {
	g     *git
	count int
	notes []string
	lfs   []pointers
}

// pointers are files that Git LFS keeps of one repository, and what fetches them.
type pointers struct {
	command string
	files   []string
}

// level fetches the submodules of one repository, then theirs. Each is looked at before git sees its address: where it is on
// another host than the Repo, the Runner, which may reach what a Sandbox must not, fetches nothing.
func (s *submodules) level(ctx context.Context, dir string, depth int) error {
	out, err := s.g.run(ctx, "-C", dir, "ls-files", "--stage", "-z")
	if err != nil {
		return err
	}
	if err := s.pointers(ctx, dir); err != nil {
		return err
	}
	var paths []string
	for _, e := range fields(out) {
		if meta, path, ok := strings.Cut(e, "\t"); ok && strings.HasPrefix(meta, "160000 ") {
			paths = append(paths, path)
		}
	}
	if len(paths) == 0 {
		return nil
	}
	addresses, err := s.addresses(ctx, dir)
	if err != nil {
		return s.left(ctx, paths[0], err)
	}
	for _, path := range paths {
		whole := path
		if dir != "." {
			whole = dir + "/" + path
		}
		s.count++
		if why := s.refused(addresses[path], depth); why != "" {
			s.note(whole, why)
			continue
		}
		if _, err := s.g.run(ctx, "-C", dir, "--literal-pathspecs", "submodule", "update", "--checkout", "--progress", "--", path); err != nil {
			if err := s.left(ctx, whole, err); err != nil {
				return err
			}
			continue
		}
		if err := s.level(ctx, whole, depth+1); err != nil {
			return err
		}
	}
	return nil
}

// addresses has git write the addresses of the submodules into the clone's configuration, relative ones made absolute, and reads
// them there, by path.
func (s *submodules) addresses(ctx context.Context, dir string) (map[string]string, error) {
	if _, err := s.g.run(ctx, "-C", dir, "submodule", "--quiet", "init"); err != nil {
		return nil, err
	}
	path, err := s.values(ctx, dir, ".path", "-f", ".gitmodules")
	if err != nil {
		return nil, err
	}
	address, err := s.values(ctx, dir, ".url")
	if err != nil {
		return nil, err
	}
	m := map[string]string{}
	for name, p := range path {
		m[p] = address[name]
	}
	return m, nil
}

func (s *submodules) values(ctx context.Context, dir, key string, from ...string) (map[string]string, error) {
	args := append(append([]string{"-C", dir, "config", "-z"}, from...), "--get-regexp", `^submodule\..*\`+key+"$")
	out, err := s.g.run(ctx, args...)
	if err != nil {
		return nil, err
	}
	m := map[string]string{}
	for _, e := range fields(out) {
		k, v, _ := strings.Cut(e, "\n")
		m[strings.TrimSuffix(strings.TrimPrefix(k, "submodule."), key)] = v
	}
	return m, nil
}

func (s *submodules) refused(address string, depth int) string {
	u, err := url.Parse(address)
	switch {
	case s.count > submodulesMax || depth > submodulesIn:
		return fmt.Sprintf("more than %d of them, or %d levels, are not fetched", submodulesMax, submodulesIn)
	case address == "":
		return "the Repo has no address for it in .gitmodules"
	case err != nil || u.User != nil || u.Scheme != "https" && u.Scheme != "http":
		return "its address is not one for HTTPS"
	case u.Host != s.g.remote.host || u.Scheme != s.g.remote.scheme:
		return fmt.Sprintf("it is on %s, and only those on the Repo's own host are fetched here", u.Host)
	}
	return ""
}

// left notes a submodule that git could not fetch; only the end of ctx, and a full disk, are errors.
func (s *submodules) left(ctx context.Context, path string, err error) error {
	var e *Error
	if ctx.Err() != nil || !errors.As(err, &e) || e.Code == CodeDiskFull {
		return err
	}
	why := e.Message
	for l := range strings.Lines(e.Output) {
		if l = strings.TrimSpace(l); strings.HasPrefix(l, "fatal: ") || strings.HasPrefix(l, "ERROR: ") {
			why = l
			break
		}
	}
	s.note(path, why)
	return nil
}

func (s *submodules) note(path, why string) {
	s.notes = append(s.notes, fmt.Sprintf("submodule %s is not fetched: %s. In the Session: git submodule update --init %s", path, why, word(path)))
}

func (s *submodules) pointers(ctx context.Context, dir string) error {
	out, err := s.g.run(ctx, "-C", dir, "ls-files", "-z", "--", ":(attr:filter=lfs)")
	if err != nil {
		return err
	}
	l := pointers{"git lfs pull", fields(out)}
	if dir != "." {
		l.command = "git -C " + word(dir) + " lfs pull"
		for i, f := range l.files {
			l.files[i] = dir + "/" + f
		}
	}
	if len(l.files) > 0 {
		s.lfs = append(s.lfs, l)
	}
	return nil
}

// plain is what a shell takes as it stands.
var plain = regexp.MustCompile(`^[A-Za-z0-9_./][A-Za-z0-9_./@+-]*$`)

// word is a path as one word of a shell's command, to be copied into one.
func word(path string) string {
	if plain.MatchString(path) {
		return path
	}
	return "'" + strings.ReplaceAll(path, "'", `'\''`) + "'"
}

// fields are what git printed, each ended by a NUL.
func fields(out string) []string {
	var f []string
	for e := range strings.SplitSeq(out, "\x00") {
		if e != "" {
			f = append(f, e)
		}
	}
	return f
}

func names(list []string) string {
	if len(list) > namesMax {
		return fmt.Sprintf("%s and %d more", strings.Join(list[:namesMax], ", "), len(list)-namesMax)
	}
	return strings.Join(list, ", ")
}
