package clone

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/http/cgi"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"
)

const testID = 7_340_033 // 2^20 * 7 + 1: an id that no account of the host has

// repo makes a bare repository with one commit, below a folder that only root may enter.
func repo(t *testing.T, commits bool) string {
	t.Helper()
	dir := t.TempDir()
	bare := filepath.Join(dir, "app.git")
	hostGit(t, dir, "init", "-q", "--bare", "-b", "trunk", bare)
	if commits {
		work := filepath.Join(dir, "work")
		hostGit(t, dir, "init", "-q", "-b", "trunk", work)
		write(t, filepath.Join(work, "run.sh"), "#!/bin/sh\necho hi\n", 0o755)
		write(t, filepath.Join(work, "README"), "hello\n", 0o644)
		if err := os.Symlink("README", filepath.Join(work, "link")); err != nil {
			t.Fatal(err)
		}
		hostGit(t, work, "add", ".")
		hostGit(t, work, "commit", "-q", "-m", "first")
		hostGit(t, work, "branch", "other")
		hostGit(t, work, "push", "-q", bare, "trunk", "other")
	}
	hostGit(t, bare, "update-server-info")
	if err := os.Chmod(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	return bare
}

func hostGit(t *testing.T, dir string, args ...string) string {
	t.Helper()
	cmd := exec.Command("git", args...)
	cmd.Dir = dir
	cmd.Env = append(os.Environ(), "GIT_CONFIG_GLOBAL=/dev/null", "GIT_CONFIG_NOSYSTEM=1", "GIT_AUTHOR_NAME=t", "GIT_AUTHOR_EMAIL=t@t",
		"GIT_COMMITTER_NAME=t", "GIT_COMMITTER_EMAIL=t@t")
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("git %s: %v\n%s", strings.Join(args, " "), err, out)
	}
	return strings.TrimSpace(string(out))
}

func write(t *testing.T, path, body string, mode os.FileMode) {
	t.Helper()
	if err := os.WriteFile(path, []byte(body), mode); err != nil {
		t.Fatal(err)
	}
}

// target is an absent folder in a parent that only root may enter.
func target(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	if err := os.Chmod(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	return filepath.Join(dir, "workspace")
}

func options(t *testing.T, url string) Options {
	return Options{
		Folder: target(t), URL: url, WorkBranch: "claude/x", UID: testID, GID: testID + 1, Local: true,
		Log: func(line string) { t.Log("git: " + line) },
	}
}

func codeOf(err error) string {
	var e *Error
	if errors.As(err, &e) {
		return e.Code
	}
	return fmt.Sprint(err)
}

func TestCloneOfLocalRepoBelongsToSandboxUser(t *testing.T) {
	t.Parallel()
	bare := repo(t, true)
	o := options(t, "file://"+bare)
	res, err := Clone(context.Background(), o)
	if err != nil {
		t.Fatal(err)
	}
	if want := hostGit(t, bare, "rev-parse", "trunk"); res.Commit != want || res.Branch != "trunk" {
		t.Fatalf("got %+v, want commit %s of trunk", res, want)
	}
	err = filepath.Walk(o.Folder, func(path string, info os.FileInfo, err error) error {
		if err != nil {
			return err
		}
		if st := info.Sys().(*syscall.Stat_t); st.Uid != testID || st.Gid != testID+1 {
			return fmt.Errorf("%s belongs to %d:%d", path, st.Uid, st.Gid)
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	if st, err := os.Stat(filepath.Join(o.Folder, "run.sh")); err != nil || st.Mode().Perm() != 0o755 {
		t.Fatalf("run.sh: %v %v", st, err)
	}
	if to, err := os.Readlink(filepath.Join(o.Folder, "link")); err != nil || to != "README" {
		t.Fatalf("link: %q %v", to, err)
	}
	head, err := os.ReadFile(filepath.Join(o.Folder, ".git/HEAD"))
	if err != nil || string(head) != "ref: refs/heads/claude/x\n" {
		t.Fatalf("HEAD: %q %v", head, err)
	}
	config, err := os.ReadFile(filepath.Join(o.Folder, ".git/config"))
	if err != nil || !strings.Contains(string(config), "url = file://"+bare) || strings.Contains(string(config), stageRoot) {
		t.Fatalf("config: %s %v", config, err)
	}
}

func TestCloneOfAnotherBranch(t *testing.T) {
	t.Parallel()
	o := options(t, "file://"+repo(t, true))
	o.Branch = "other"
	res, err := Clone(context.Background(), o)
	if err != nil || res.Branch != "other" {
		t.Fatalf("got %+v, %v", res, err)
	}
}

func TestADepthBringsTheNewestCommitsOfEachBranchAndSaysSo(t *testing.T) {
	t.Parallel()
	bare := repo(t, true)
	work := filepath.Join(filepath.Dir(bare), "work")
	for i := range 3 {
		write(t, filepath.Join(work, "README"), fmt.Sprintf("hello %d\n", i), 0o644)
		hostGit(t, work, "commit", "-q", "-a", "-m", "more")
	}
	hostGit(t, work, "push", "-q", bare, "trunk", "trunk:third")
	for depth, want := range map[int]string{0: "4", 2: "2", 9: "4"} {
		o := options(t, "file://"+bare)
		o.Depth = depth
		res, err := Clone(context.Background(), o)
		if err != nil {
			t.Fatal(err)
		}
		git := func(args ...string) string {
			return hostGit(t, o.Folder, append([]string{"-c", "safe.directory=*"}, args...)...)
		}
		for _, branch := range []string{"HEAD", "origin/third"} {
			if got := git("rev-list", "--count", branch); got != want {
				t.Errorf("with depth %d %s has %s commits, want %s", depth, branch, got, want)
			}
		}
		said := strings.Contains(strings.Join(res.Notes, "\n"), "only the newest 2 commits of each branch are here")
		if said != (depth == 2) {
			t.Errorf("with depth %d the notes are %q", depth, res.Notes)
		}
		if depth == 2 {
			git("fetch", "-q", "--unshallow", bare)
			if got := git("rev-list", "--count", "HEAD"); got != "4" {
				t.Errorf("after git fetch --unshallow there are %s commits, want 4", got)
			}
		}
	}
}

func TestFailuresAreToldInWordsAndLeaveNothing(t *testing.T) {
	t.Parallel()
	server := serve(t, repo(t, true), "dev", "right")
	closed := func() string {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		defer l.Close()
		return "http://" + l.Addr().String()
	}()
	notRepo := t.TempDir()
	empty, full := repo(t, false), repo(t, true)
	for _, c := range []struct {
		name string
		edit func(*Options)
		code string
		says string
	}{
		{"empty repo", func(o *Options) { o.URL = "file://" + empty }, CodeEmpty, "no commits yet"},
		{"no credentials", func(o *Options) { o.URL = server + "/app.git" }, CodeRefused, "clone refused"},
		{"wrong credentials", func(o *Options) {
			o.URL, o.Credentials = server+"/app.git", &Credentials{"dev", "wrong"}
		}, CodeRefused, "clone refused"},
		{"not found", func(o *Options) {
			o.URL, o.Credentials = server+"/none.git", &Credentials{"dev", "right"}
		}, CodeNotFound, "there is no repository"},
		{"unreachable", func(o *Options) { o.URL = closed + "/app.git" }, CodeUnreachable, "could not be reached"},
		{"no such branch", func(o *Options) { o.URL, o.Branch = "file://"+full, "nope" }, CodeNoBranch, "the branch nope doesn't exist in "},
		{"not a repository", func(o *Options) { o.URL = "file://" + notRepo }, CodeNotFound, "there is no repository"},
		{"no folder", func(o *Options) { o.URL = "file:///nonexistent/x.git" }, CodeNotFound, "there is no repository"},
		{"file URL not allowed", func(o *Options) { o.URL, o.Local = "file://"+full, false }, CodeURL, "runner.local_repos"},
		{"ext transport", func(o *Options) { o.URL = "ext::sh -c id" }, CodeURL, "neither https"},
		{"option as branch", func(o *Options) { o.URL, o.Branch = "file://"+full, "--upload-pack=id" }, CodeURL, "can't be named"},
		{"password in the URL", func(o *Options) { o.URL = "https://a:b@127.0.0.1/x" }, CodeURL, "never part of a URL"},
	} {
		t.Run(c.name, func(t *testing.T) {
			o := options(t, "")
			c.edit(&o)
			_, err := Clone(context.Background(), o)
			if codeOf(err) != c.code || !strings.Contains(err.Error(), c.says) {
				t.Fatalf("got %q: %v; want %q with %q", codeOf(err), err, c.code, c.says)
			}
			left, err := os.ReadDir(filepath.Dir(o.Folder))
			if err != nil || len(left) != 0 {
				t.Fatalf("left behind: %v %v", left, err)
			}
		})
	}
}

// serve offers the parent folder of a bare repository over HTTP with basic authentication, and closes itself.
func serve(t *testing.T, bare, user, password string) string {
	t.Helper()
	path, err := exec.Command("git", "--exec-path").Output()
	if err != nil {
		t.Fatal(err)
	}
	backend := &cgi.Handler{
		Path: filepath.Join(strings.TrimSpace(string(path)), "git-http-backend"),
		Env:  []string{"GIT_PROJECT_ROOT=" + filepath.Dir(bare), "GIT_HTTP_EXPORT_ALL=1", "GIT_CONFIG_GLOBAL=/dev/null"},
	}
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if u, p, ok := r.BasicAuth(); !ok || u != user || p != password {
			w.Header().Set("WWW-Authenticate", `Basic realm="x"`)
			http.Error(w, "no", http.StatusUnauthorized)
			return
		}
		backend.ServeHTTP(w, r)
	}))
	t.Cleanup(s.Close)
	return s.URL
}

func TestCredentialsReachTheServerAndNothingElse(t *testing.T) {
	t.Parallel()
	const password = "sw0rdfish-9fd1"
	server := serve(t, repo(t, true), "x-access-token", password)
	o := options(t, server+"/app.git")
	o.Credentials = &Credentials{"x-access-token", password}
	var said strings.Builder
	o.Log = func(l string) { said.WriteString(l) }
	if _, err := Clone(context.Background(), o); err != nil {
		t.Fatal(err)
	}
	if strings.Contains(said.String(), password) {
		t.Fatal("the password is in git's words")
	}
	err := filepath.Walk(o.Folder, func(path string, info os.FileInfo, err error) error {
		if err != nil || !info.Mode().IsRegular() {
			return err
		}
		b, err := os.ReadFile(path)
		if err == nil && strings.Contains(string(b), password) {
			err = fmt.Errorf("the password is in %s", path)
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	if s := fmt.Sprintf("%v %+v %#v", o.Credentials, o.Credentials, *o.Credentials); strings.Contains(s, password) {
		t.Fatalf("the password is printed: %s", s)
	}
}

func TestCredentialsAreNotGivenToAnotherHost(t *testing.T) {
	t.Parallel()
	var got atomic.Value
	other := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if a := r.Header.Get("Authorization"); a != "" {
			got.Store(a)
		}
		w.Header().Set("WWW-Authenticate", `Basic realm="x"`)
		w.WriteHeader(http.StatusUnauthorized)
	}))
	t.Cleanup(other.Close)
	first := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		http.Redirect(w, r, other.URL+r.URL.String(), http.StatusFound)
	}))
	t.Cleanup(first.Close)
	o := options(t, first.URL+"/app.git")
	o.Credentials = &Credentials{"u", "secret-1234"}
	if _, err := Clone(context.Background(), o); codeOf(err) != CodeRefused {
		t.Fatalf("got %v", err)
	}
	if v := got.Load(); v != nil {
		t.Fatalf("another host was given %v", v)
	}
}

func TestCancelEndsGitAtOnceAndLeavesNothing(t *testing.T) {
	t.Parallel()
	asked := make(chan struct{}, 8)
	s := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		asked <- struct{}{}
		<-r.Context().Done()
	}))
	t.Cleanup(s.Close)
	ctx, cancel := context.WithCancel(context.Background())
	o := options(t, s.URL+"/app.git")
	done := make(chan error, 1)
	go func() {
		_, err := Clone(ctx, o)
		done <- err
	}()
	<-asked
	cancel()
	select {
	case err := <-done:
		if !errors.Is(err, context.Canceled) {
			t.Fatalf("got %v", err)
		}
	case <-time.After(20 * time.Second):
		t.Fatal("the clone did not end")
	}
	if left, err := os.ReadDir(filepath.Dir(o.Folder)); err != nil || len(left) != 0 {
		t.Fatalf("left behind: %v %v", left, err)
	}
}

func TestLeftoversOfAKilledCloneAreRemovedAndAWorkspaceIsNeverOverwritten(t *testing.T) {
	t.Parallel()
	o := options(t, "file://"+repo(t, true))
	stale := filepath.Join(filepath.Dir(o.Folder), tempPrefix+"1")
	if err := os.Mkdir(stale, 0o755); err != nil {
		t.Fatal(err)
	}
	if _, err := Clone(context.Background(), o); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(stale); !errors.Is(err, os.ErrNotExist) {
		t.Fatal("the leftover is still there")
	}
	if _, err := Clone(context.Background(), o); err == nil || !strings.Contains(err.Error(), "never cloned over") {
		t.Fatalf("got %v", err)
	}
}

func TestHooksAndConfigurationOfTheHostAreNotUsed(t *testing.T) {
	t.Parallel()
	home := t.TempDir()
	hit := filepath.Join(home, "hit")
	write(t, filepath.Join(home, ".gitconfig"), "[core]\n\thooksPath = "+home+"\n", 0o644)
	write(t, filepath.Join(home, "post-checkout"), "#!/bin/sh\ntouch "+hit+"\n", 0o755)
	o := options(t, "file://"+repo(t, true))
	o.Env = []string{"X=1"}
	if _, err := Clone(context.Background(), o); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(hit); err == nil {
		t.Fatal("a hook of the host ran")
	}
}

func TestFromHostAsksTheHostsHelperOnly(t *testing.T) {
	home := t.TempDir()
	t.Setenv("HOME", home)
	t.Setenv("XDG_CONFIG_HOME", home)
	t.Setenv("GIT_CONFIG_GLOBAL", filepath.Join(home, "config"))
	if c, err := FromHost(context.Background(), "https://git.example/x.git"); err != nil || c != nil {
		t.Fatalf("without a helper: %v %v", c, err)
	}
	write(t, filepath.Join(home, "config"), "[credential]\n\thelper = \"!echo username=me; echo password=pw; #\"\n", 0o644)
	c, err := FromHost(context.Background(), "https://git.example/x.git")
	if err != nil || c == nil || c.Username != "me" || c.Password != "pw" {
		t.Fatalf("with a helper: %v %v", c, err)
	}
	if c, err := FromHost(context.Background(), "file:///x"); c != nil || err != nil {
		t.Fatalf("for a file URL: %v %v", c, err)
	}
}
