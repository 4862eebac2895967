package clone

import (
	"context"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
)

// bareWith makes a bare repository below parent that has one file, and at each path of links a submodule with that address.
func bareWith(t *testing.T, parent, name string, links map[string]string, more func(work string)) {
	t.Helper()
	bare, work := filepath.Join(parent, name), filepath.Join(t.TempDir(), "work")
	hostGit(t, parent, "init", "-q", "--bare", "-b", "trunk", bare)
	hostGit(t, parent, "init", "-q", "-b", "trunk", work)
	write(t, filepath.Join(work, "name"), name+"\n", 0o644)
	modules := ""
	for path, address := range links {
		modules += "[submodule \"" + path + "\"]\n\tpath = " + path + "\n\turl = " + address + "\n"
	}
	if modules != "" {
		write(t, filepath.Join(work, ".gitmodules"), modules, 0o644)
	}
	if more != nil {
		more(work)
	}
	hostGit(t, work, "add", ".")
	for path, address := range links {
		commit := strings.Repeat("1", 40) // which no repository has
		if rest, ok := strings.CutPrefix(address, "../"); ok {
			if _, err := os.Stat(filepath.Join(parent, rest)); err == nil {
				commit = hostGit(t, filepath.Join(parent, rest), "rev-parse", "trunk")
			}
		}
		hostGit(t, work, "update-index", "--add", "--cacheinfo", "160000,"+commit+","+path)
	}
	hostGit(t, work, "commit", "-q", "-m", "first")
	hostGit(t, work, "push", "-q", bare, "trunk")
	hostGit(t, bare, "update-server-info")
}

func TestSubmodulesOfTheReposHostAreFetchedAndTheOthersNamed(t *testing.T) {
	t.Parallel()
	var asked atomic.Int64
	other := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { asked.Add(1) }))
	t.Cleanup(other.Close)
	parent := t.TempDir()
	bareWith(t, parent, "inner.git", nil, nil)
	bareWith(t, parent, "lib.git", map[string]string{"deep/inner": "../inner.git"}, nil)
	bareWith(t, parent, "app.git", map[string]string{
		"lib": "../lib.git", "elsewhere": other.URL + "/x.git", "missing": "../missing.git", "host": "file:///etc", "ssh": "git@example.com:a/b.git",
	}, nil)
	server := serve(t, filepath.Join(parent, "app.git"), "x-access-token", "sw0rdfish-9fd1")
	o := options(t, server+"/app.git")
	o.Credentials = &Credentials{"x-access-token", "sw0rdfish-9fd1"}
	res, err := Clone(context.Background(), o)
	if err != nil {
		t.Fatal(err)
	}
	for path, want := range map[string]string{"lib/name": "lib.git\n", "lib/deep/inner/name": "inner.git\n"} {
		if b, err := os.ReadFile(filepath.Join(o.Folder, path)); err != nil || string(b) != want {
			t.Errorf("%s: %q, %v", path, b, err)
		}
	}
	notes := strings.Join(res.Notes, "\n")
	if len(res.Notes) != 4 {
		t.Errorf("notes:\n%s", notes)
	}
	for _, want := range []string{"submodule elsewhere is not fetched: it is on 127.0.0.1:", "submodule missing is not fetched: ",
		"submodule host is not fetched: its address is not one for HTTPS", "submodule ssh is not fetched: its address is not one for HTTPS"} {
		if !strings.Contains(notes, want) {
			t.Errorf("the notes lack %q:\n%s", want, notes)
		}
	}
	if n := asked.Load(); n != 0 {
		t.Errorf("another host was asked %d times", n)
	}
	// Nothing in it names where the clone was made, or the password.
	config, err := os.ReadFile(filepath.Join(o.Folder, ".git/modules/lib/config"))
	if err != nil || strings.Contains(string(config), stageRoot) || strings.Contains(string(config), "sw0rdfish") {
		t.Errorf("config: %s %v", config, err)
	}
}

func TestFilesOfGitLFSAreReportedAsPointers(t *testing.T) {
	t.Parallel()
	parent := t.TempDir()
	pointer := "version https://git-lfs.github.com/spec/v1\noid sha256:" + strings.Repeat("a", 64) + "\nsize 12345\n"
	bareWith(t, parent, "app.git", nil, func(work string) {
		write(t, filepath.Join(work, ".gitattributes"), "*.bin filter=lfs diff=lfs merge=lfs -text\n", 0o644)
		write(t, filepath.Join(work, "large.bin"), pointer, 0o644)
	})
	o := options(t, "file://"+filepath.Join(parent, "app.git"))
	res, err := Clone(context.Background(), o)
	if err != nil {
		t.Fatal(err)
	}
	if b, err := os.ReadFile(filepath.Join(o.Folder, "large.bin")); err != nil || string(b) != pointer {
		t.Errorf("large.bin: %q, %v", b, err)
	}
	if len(res.Notes) != 1 || !strings.HasSuffix(res.Notes[0], "git lfs pull in the Session: large.bin") {
		t.Errorf("notes: %q", res.Notes)
	}
}

func TestNotesHaveCommandsThatAShellTakesForEachSubmodule(t *testing.T) {
	t.Parallel()
	parent := t.TempDir()
	bareWith(t, parent, "lib.git", nil, func(work string) {
		write(t, filepath.Join(work, ".gitattributes"), "*.bin filter=lfs -text\n", 0o644)
		write(t, filepath.Join(work, "large.bin"), "version https://git-lfs.github.com/spec/v1\n", 0o644)
	})
	bareWith(t, parent, "app.git", map[string]string{"my lib's": "../lib.git", "gone $(x)": "../missing.git"}, nil)
	o := options(t, serve(t, filepath.Join(parent, "app.git"), "x-access-token", "sw0rdfish-9fd1")+"/app.git")
	o.Credentials = &Credentials{"x-access-token", "sw0rdfish-9fd1"}
	res, err := Clone(context.Background(), o)
	if err != nil {
		t.Fatal(err)
	}
	notes := strings.Join(res.Notes, "\n")
	for _, want := range []string{
		"git submodule update --init 'gone $(x)'",
		`run git -C 'my lib'\''s' lfs pull in the Session: my lib's/large.bin`,
	} {
		if !strings.Contains(notes, want) {
			t.Errorf("the notes lack %q:\n%s", want, notes)
		}
	}
}
