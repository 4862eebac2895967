// Package clone makes a Workspace: a fresh clone of a Repo in a folder of a disk.
//
// git parses what a stranger wrote (packs, attributes, paths), so it never runs as root on the host: it runs as the
// id that will own the files inside the Sandbox, in mount and process namespaces of its own, with its own
// configuration and no home (facts/sandbox.md §2.13). It runs only in a folder that no Sandbox has seen yet; after
// the rename that makes the clone whole, the host never runs git there again (design.md §6).
package clone

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// Options says what to clone, where to, and as whom.
type Options struct {
	// Folder is made by Clone, and exists only when the clone is whole. Its parent exists and is written by nobody
	// but the host's root.
	Folder string
	URL    string
	// Branch is cloned; empty: the Repo's default branch.
	Branch string
	// WorkBranch is made from it and checked out; empty: none is made.
	WorkBranch string
	// Depth is how many commits of each branch's history are cloned; 0: all. Notes say it where there are more.
	Depth int
	// UID and GID are ids on the host: the disk's id base plus those of the image's user.
	UID, GID int
	// Credentials are offered to the host of URL only. They are handed over in memory: no argument, no environment,
	// no file.
	Credentials *Credentials
	// Local allows file:// URLs and absolute paths, which a Hub in dev mode has. Otherwise a Hub could read repositories of the host.
	Local bool
	// Env is added to git's environment: proxy variables, GIT_SSL_CAINFO.
	Env []string
	// Log gets git's words, one line at a time, without line break. May be nil.
	Log func(line string)
	// Progress gets "Receiving objects: 45%" whenever it changes. May be nil.
	Progress func(text string, percent int)
}

// Result is what was cloned.
type Result struct {
	Commit string // of HEAD
	Branch string // the branch that was cloned
	// Notes are sentences about what is not there in full: submodules that could not be fetched, files that Git LFS keeps.
	Notes []string
}

// Codes of an Error.
const (
	CodeEmpty       = "no-commits"
	CodeRefused     = "clone-refused"
	CodeNotFound    = "repo-not-found"
	CodeNoBranch    = "branch-not-found"
	CodeUnreachable = "repo-unreachable"
	CodeDiskFull    = "disk-full"
	CodeURL         = "bad-clone-url"
	CodeFailed      = "clone-failed"
)

// Error is a clone that failed, in words for a person.
type Error struct {
	Code    string
	Message string
	Output  string // git's last lines; not redacted
}

func (e *Error) Error() string { return e.Message }

const tempPrefix = ".clone-"

// Clone clones o.URL into o.Folder. It returns an *Error for what a person can act on, and ctx's error when ctx ended
// it. Whatever happens, o.Folder is either absent or whole. Clones into one parent folder must not overlap: what an
// earlier, killed one left there is removed.
func Clone(ctx context.Context, o Options) (Result, error) {
	remote, err := parseRemote(o)
	if err != nil {
		return Result{}, err
	}
	parent := filepath.Dir(o.Folder)
	if err := removeLeftovers(parent); err != nil {
		return Result{}, err
	}
	if _, err := os.Lstat(o.Folder); err == nil {
		return Result{}, fmt.Errorf("%s exists already; a Workspace is never cloned over another", filepath.Base(o.Folder))
	}
	temp, err := os.MkdirTemp(parent, tempPrefix)
	if err != nil {
		return Result{}, err
	}
	defer os.RemoveAll(temp)
	if err := errors.Join(os.Chmod(temp, 0o755), os.Chown(temp, o.UID, o.GID)); err != nil {
		return Result{}, err
	}
	g := &git{o: o, temp: temp, remote: remote}
	res, err := g.clone(ctx)
	if err != nil {
		return Result{}, err
	}
	if err := sync(temp); err != nil {
		return Result{}, err
	}
	if err := os.Rename(temp, o.Folder); err != nil {
		return Result{}, err
	}
	return res, sync(parent)
}

func removeLeftovers(parent string) error {
	entries, err := os.ReadDir(parent)
	if err != nil {
		return err
	}
	for _, e := range entries {
		if strings.HasPrefix(e.Name(), tempPrefix) {
			if err := os.RemoveAll(filepath.Join(parent, e.Name())); err != nil {
				return err
			}
		}
	}
	return nil
}

// sync makes what is on folder's file system durable.
func sync(folder string) error {
	f, err := os.Open(folder)
	if err != nil {
		return err
	}
	defer f.Close()
	return unix.Syncfs(int(f.Fd()))
}

// remote is where git fetches from, as it sees it in its own mount namespace.
type remote struct {
	url    string // given to git
	local  string // the folder on the host, of a file URL
	scheme string
	host   string
}

func parseRemote(o Options) (remote, error) {
	bad := func(format string, a ...any) (remote, error) {
		return remote{}, &Error{Code: CodeURL, Message: fmt.Sprintf(format, a...)}
	}
	u, err := url.Parse(o.URL)
	if err != nil {
		return bad("the Repo's clone URL can't be read: it should look like https://host/owner/name.git; addresses for SSH are not cloned")
	}
	if u.User != nil {
		return bad("the Repo's clone URL holds a user name or password; credentials are never part of a URL here")
	}
	if u.Scheme == "" && filepath.IsAbs(u.Path) {
		u.Scheme = "file" // a path, as dev.repos may have
	}
	for _, name := range []string{o.Branch, o.WorkBranch} {
		if strings.HasPrefix(name, "-") {
			return bad("a branch can't be named %q", name)
		}
	}
	switch u.Scheme {
	case "https", "http":
		if u.Host == "" {
			return bad("the Repo's clone URL %s names no host", o.URL)
		}
		return remote{url: o.URL, scheme: u.Scheme, host: u.Host}, nil
	case "file":
		if !o.Local {
			return bad("this Runner doesn't clone file:// URLs; runner.local_repos allows it, for a Hub in dev mode")
		}
		path, err := filepath.EvalSymlinks(u.Path)
		if err != nil {
			return remote{}, &Error{Code: CodeNotFound, Message: fmt.Sprintf("there is no repository at %s on this Runner", o.URL)}
		}
		return remote{url: "file://" + stageRepo, local: path, scheme: "file"}, nil
	}
	return bad("the Repo's clone URL %s is neither https:// nor http://", o.URL)
}

type git struct {
	o      Options
	temp   string
	remote remote
}

func (g *git) clone(ctx context.Context) (Result, error) {
	args := []string{"clone", "--progress", "--template=" + stageTemplate}
	if g.o.Branch != "" {
		args = append(args, "--branch", g.o.Branch)
	}
	if g.o.Depth > 0 {
		args = append(args, "--depth", strconv.Itoa(g.o.Depth), "--no-single-branch")
	}
	if _, err := g.run(ctx, append(args, "--", g.remote.url, ".")...); err != nil {
		return Result{}, err
	}
	commit, err := g.run(ctx, "rev-parse", "--verify", "--quiet", "HEAD^{commit}")
	if err != nil {
		var e *Error
		if errors.As(err, &e) && e.Code == CodeFailed {
			return Result{}, &Error{Code: CodeEmpty, Message: "the Repo has no commits yet; push a first commit, then try again"}
		}
		return Result{}, err
	}
	branch, err := g.run(ctx, "rev-parse", "--abbrev-ref", "HEAD")
	if err != nil {
		return Result{}, err
	}
	if g.remote.local != "" {
		if _, err := g.run(ctx, "remote", "set-url", "origin", g.o.URL); err != nil {
			return Result{}, err
		}
	}
	if g.o.WorkBranch != "" {
		if _, err := g.run(ctx, "checkout", "--quiet", "--no-track", "-b", g.o.WorkBranch); err != nil {
			return Result{}, err
		}
	}
	notes, err := g.beyond(ctx)
	if err != nil {
		return Result{}, err
	}
	return Result{Commit: strings.TrimSpace(commit), Branch: strings.TrimSpace(branch), Notes: notes}, nil
}

func (g *git) run(ctx context.Context, args ...string) (string, error) {
	var out bytes.Buffer
	words := &lines{log: g.o.Log, progress: g.o.Progress}
	err := g.stage(ctx, args, &out, words)
	words.flush()
	if err == nil {
		return out.String(), nil
	}
	if ctx.Err() != nil {
		return "", context.Cause(ctx)
	}
	var exit *exec.ExitError
	if !errors.As(err, &exit) {
		return "", err
	}
	failed := explain(g.o.URL, g.remote, strings.Join(words.last, "\n"), exit)
	if failed.Code == CodeNoBranch {
		failed.Message = fmt.Sprintf("the branch %s doesn't exist in %s", g.o.Branch, g.o.URL)
	}
	return "", failed
}

// lines cuts git's words into lines; those that end with a carriage return are progress.
type lines struct {
	log      func(string)
	progress func(string, int)
	part     []byte
	last     []string
	shown    string
}

const (
	lineMax   = 4096
	lastLines = 20
)

func (l *lines) Write(p []byte) (int, error) {
	n := len(p)
	for len(p) > 0 {
		i := bytes.IndexAny(p, "\r\n")
		if i < 0 {
			if room := lineMax - len(l.part); room > 0 {
				l.part = append(l.part, p[:min(room, len(p))]...)
			}
			break
		}
		if room := lineMax - len(l.part); room > 0 {
			l.part = append(l.part, p[:min(room, i)]...)
		}
		l.line(p[i] == '\n')
		p = p[i+1:]
	}
	return n, nil
}

func (l *lines) flush() {
	if len(l.part) > 0 {
		l.line(true)
	}
}

var percent = regexp.MustCompile(`^(?:remote: )?([A-Z][a-z]+(?: [a-z]+)*): +(\d+)% `)

func (l *lines) line(whole bool) {
	text := strings.TrimRight(string(l.part), " ")
	l.part = l.part[:0]
	if text == "" {
		return
	}
	if m := percent.FindStringSubmatch(text); m != nil && l.progress != nil {
		if word := m[1] + ": " + m[2] + "%"; word != l.shown {
			l.shown = word
			n, _ := strconv.Atoi(m[2])
			l.progress(word, n)
		}
	}
	if !whole {
		return
	}
	if l.last = append(l.last, text); len(l.last) > lastLines {
		l.last = l.last[1:]
	}
	if l.log != nil {
		l.log(text)
	}
}

var _ io.Writer = (*lines)(nil)
