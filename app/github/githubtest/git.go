package githubtest

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/cgi"
	"os"
	"os/exec"
	"slices"
	"strings"
	"time"
)

// File is what a commit has at a path.
type File struct {
	mode, content string
}

// Files are the paths that a commit changes.
type Files map[string]File

// Text is an ordinary file, or a binary one.
func Text(content string) File { return File{"100644", content} }

// Program is an executable file.
func Program(content string) File { return File{"100755", content} }

// Symlink points to target.
func Symlink(target string) File { return File{"120000", target} }

// Submodule is another repository at commit sha.
func Submodule(sha string) File { return File{"160000", sha} }

// Gone deletes a path.
func Gone() File { return File{} }

func gitEnv() []string {
	return []string{
		"PATH=" + os.Getenv("PATH"), "HOME=/nonexistent", "GIT_CONFIG_NOSYSTEM=1", "GIT_CONFIG_GLOBAL=/dev/null", "LC_ALL=C",
		"GIT_AUTHOR_NAME=GitHub", "GIT_AUTHOR_EMAIL=noreply@github.example",
		"GIT_COMMITTER_NAME=GitHub", "GIT_COMMITTER_EMAIL=noreply@github.example",
	}
}

func (s *Server) git(dir string, stdin io.Reader, args ...string) (string, error) {
	cmd := exec.Command("git", args...)
	cmd.Dir, cmd.Stdin, cmd.Env = dir, stdin, gitEnv()
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		return string(out), fmt.Errorf("git %s: %w: %s", args[0], err, strings.TrimSpace(stderr.String()))
	}
	return string(out), nil
}

func (s *Server) must(dir string, stdin io.Reader, args ...string) string {
	out, err := s.git(dir, stdin, args...)
	if err != nil {
		wrong("%v", err)
	}
	return strings.TrimSpace(out)
}

// commit writes files on branch and returns the commit. A branch that isn't there begins at from, or at nothing.
func (s *Server) commit(r *repository, by *account, branch, from, message string, files Files) string {
	r.writing.Lock()
	defer r.writing.Unlock()
	ref := "refs/heads/" + branch
	if head := s.resolve(r, ref); head != "" {
		from = head
	}
	var in bytes.Buffer
	fmt.Fprintf(&in, "commit %s\ncommitter %s <%d+%s@users.noreply.github.example> %d +0000\ndata %d\n%s\n",
		ref, by.Login, by.ID, by.Login, time.Now().Unix(), len(message), message)
	if from != "" {
		fmt.Fprintf(&in, "from %s\n", from)
	}
	var paths []string
	for p := range files {
		paths = append(paths, p)
	}
	slices.Sort(paths)
	for _, p := range paths {
		f := files[p]
		quoted := `"` + strings.NewReplacer(`\`, `\\`, `"`, `\"`, "\n", `\n`).Replace(p) + `"`
		switch f.mode {
		case "":
			fmt.Fprintf(&in, "D %s\n", quoted)
		case "160000":
			fmt.Fprintf(&in, "M 160000 %s %s\n", f.content, quoted)
		default:
			fmt.Fprintf(&in, "M %s inline %s\ndata %d\n%s\n", f.mode, quoted, len(f.content), f.content)
		}
	}
	s.must(s.folder(r), &in, "fast-import", "--quiet", "--force")
	return s.resolve(r, ref)
}

// resolve gives the commit that a branch, tag or (shortened) sha means, or "".
func (s *Server) resolve(r *repository, ref string) string {
	if strings.HasPrefix(ref, "-") {
		return ""
	}
	for _, name := range []string{ref, "refs/heads/" + ref} {
		if out, err := s.git(s.folder(r), nil, "rev-parse", "--quiet", "--verify", "--end-of-options", name+"^{commit}"); err == nil {
			return strings.TrimSpace(out)
		}
	}
	return ""
}

// entry is one line of a tree.
type entry struct {
	Mode, Type, SHA, Path string
	Size                  int64
}

func (s *Server) tree(r *repository, treeish string) ([]entry, error) {
	key := fmt.Sprint(r.ID, " ", treeish)
	if got, ok := s.trees.Load(key); ok {
		return got.([]entry), nil
	}
	out, err := s.git(s.folder(r), nil, "ls-tree", "-z", "-l", treeish)
	if err != nil {
		return nil, err
	}
	var entries []entry
	for line := range strings.SplitSeq(strings.TrimSuffix(out, "\x00"), "\x00") {
		head, path, ok := strings.Cut(line, "\t")
		var e entry
		f := strings.Fields(head)
		if !ok || len(f) != 4 {
			continue
		}
		e.Mode, e.Type, e.SHA, e.Path = f[0], f[1], f[2], path
		_, _ = fmt.Sscan(f[3], &e.Size)
		entries = append(entries, e)
	}
	if len(treeish) == 40 {
		s.trees.Store(key, entries)
	}
	return entries, nil
}

func (s *Server) blob(r *repository, sha string) (string, error) {
	return s.git(s.folder(r), nil, "cat-file", "blob", sha)
}

var errNoPath = errors.New("no such path")

// at finds what commit has at path. A path through a symlink or a submodule is not there.
func (s *Server) at(r *repository, commit, path string) (entry, error) {
	tree := entry{Mode: "040000", Type: "tree", SHA: commit}
	if path == "" {
		return tree, nil
	}
	for part := range strings.SplitSeq(path, "/") {
		if tree.Type != "tree" {
			return entry{}, errNoPath
		}
		entries, err := s.tree(r, tree.SHA)
		if err != nil {
			return entry{}, err
		}
		i := slices.IndexFunc(entries, func(e entry) bool { return e.Path == part })
		if i < 0 {
			return entry{}, errNoPath
		}
		tree = entries[i]
	}
	return tree, nil
}

type commitInfo struct {
	SHA, Tree, Message, Name, Email, Date string
	Parents                               []string
}

func (s *Server) commitInfo(r *repository, sha string) (commitInfo, error) {
	out, err := s.git(s.folder(r), nil, "show", "--no-patch", "--format=%H%x00%T%x00%P%x00%an%x00%ae%x00%aI%x00%B", sha)
	if err != nil {
		return commitInfo{}, err
	}
	f := strings.SplitN(out, "\x00", 7)
	return commitInfo{
		SHA: f[0], Tree: f[1], Parents: strings.Fields(f[2]), Name: f[3], Email: f[4], Date: f[5], Message: strings.TrimSpace(f[6]),
	}, nil
}

// serveGit answers git over HTTP, for tokens that may read the contents (to push: write them).
func (s *Server) serveGit(w http.ResponseWriter, r *http.Request, owner, name, rest string) {
	name = strings.TrimSuffix(name, ".git")
	s.mu.Lock()
	repo := s.repoNamed(owner, name)
	moved := s.repos[s.oldNames[strings.ToLower(owner+"/"+name)]]
	who, problem := s.authenticate(r)
	level := "read"
	if strings.Contains(rest, "receive-pack") || r.URL.Query().Get("service") == "git-receive-pack" {
		level = "write"
	}
	var no *refusal
	switch {
	case problem != "":
		no = &refusal{http.StatusUnauthorized, "Invalid username or token. Password authentication is not supported for Git operations."}
	case repo == nil && moved != nil:
	case repo == nil:
		no = notFound
	default:
		no = s.may(who, repo, "contents", level)
		if no == nil && level == "write" && repo.archived {
			no = &refusal{http.StatusForbidden, "This repository was archived so it is read-only."}
		}
	}
	if no == notFound && who.token == nil {
		no = &refusal{http.StatusUnauthorized, "Repository not found."} // git asks for credentials then
	}
	var to string
	if repo == nil && moved != nil {
		to = s.urls.Web + "/" + moved.full() + ".git/" + rest
		if r.URL.RawQuery != "" {
			to += "?" + r.URL.RawQuery
		}
	}
	s.mu.Unlock()
	if no != nil {
		if no.status == http.StatusUnauthorized {
			w.Header().Set("WWW-Authenticate", `Basic realm="GitHub"`)
		}
		http.Error(w, no.message, no.status)
		s.record(r, nil, who, no.status)
		return
	}
	if to != "" {
		http.Redirect(w, r, to, http.StatusMovedPermanently)
		s.record(r, nil, who, http.StatusMovedPermanently)
		return
	}
	body, err := io.ReadAll(io.LimitReader(r.Body, 1<<30)) // net/http/cgi wants to know the length
	if err != nil {
		return
	}
	in := r.Clone(r.Context())
	in.Body, in.ContentLength, in.TransferEncoding = io.NopCloser(bytes.NewReader(body)), int64(len(body)), nil
	in.URL.Path = fmt.Sprintf("/%d.git/%s", repo.ID, rest)
	in.Header.Del("Authorization")
	h := &cgi.Handler{
		Path: "/usr/lib/git-core/git-http-backend", Dir: s.opts.Folder, Stderr: io.Discard,
		Env: append(gitEnv(), "GIT_PROJECT_ROOT="+s.opts.Folder, "GIT_HTTP_EXPORT_ALL=1", "GIT_HTTP_MAX_REQUEST_BUFFER=100M"),
	}
	if out, err := exec.Command("git", "--exec-path").Output(); err == nil {
		h.Path = strings.TrimSpace(string(out)) + "/git-http-backend"
	}
	if level == "write" {
		h.Env = append(h.Env, "REMOTE_USER="+who.name())
		repo.writing.Lock()
		before := s.refs(repo)
		h.ServeHTTP(w, in)
		after := s.refs(repo)
		repo.writing.Unlock()
		s.pushed(repo, who, before, after)
	} else {
		h.ServeHTTP(w, in)
	}
	s.record(r, nil, who, http.StatusOK)
}

// refs are the branches and their commits.
func (s *Server) refs(r *repository) map[string]string {
	out, err := s.git(s.folder(r), nil, "for-each-ref", "--format=%(objectname) %(refname)", "refs/heads")
	refs := map[string]string{}
	if err == nil {
		for line := range strings.Lines(out) {
			if sha, ref, ok := strings.Cut(strings.TrimSpace(line), " "); ok {
				refs[strings.TrimPrefix(ref, "refs/heads/")] = sha
			}
		}
	}
	return refs
}
