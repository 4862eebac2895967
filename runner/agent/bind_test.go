package agent

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"
)

// git runs git on the host in a folder of the Workspace, and gives all of it to the user again.
func (s *session) git(rel string, lines ...string) {
	s.t.Helper()
	config := filepath.Join(s.dir, "gitconfig")
	if err := os.WriteFile(config, []byte("[safe]\ndirectory=*\n[user]\nname=t\nemail=t@localhost\n[protocol \"file\"]\nallow=always\n"), 0o644); err != nil {
		s.t.Fatal(err)
	}
	for _, l := range lines {
		cmd := exec.Command("sh", "-c", "git "+l)
		cmd.Dir = s.path(rel)
		cmd.Env = append(os.Environ(), "GIT_CONFIG_GLOBAL="+config, "GIT_CONFIG_NOSYSTEM=1")
		if out, err := cmd.CombinedOutput(); err != nil {
			s.t.Fatalf("git %s: %v: %s", l, err, out)
		}
	}
	s.write()
}

func TestFoldersThatGitKeepsFilesInAreLeftAlone(t *testing.T) {
	t.Parallel()
	for name, how := range map[string][]string{
		"version 2": {"init -q .", "add -Af"},
		"version 3": {"init -q .", "add -Af .gitkeep", "add -N -f ."},
		"version 4": {"init -q .", "add -Af", "update-index --index-version 4"},
		"split":     {"init -q .", "add -Af", "update-index --split-index"},
		"sha256":    {"init -q --object-format=sha256 .", "add -Af"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := newSession(t)
			s.write(".gitkeep", "package.json", "node_modules/tracked=1", "a/package.json", "a/node_modulesx/f", "a/z/package.json", "b/target/x/y")
			s.git("", how...)
			s.write("a/node_modules/untracked=2", "target/file=3")
			b, got := s.boot()
			alike(t, "boot", got, []string{"moved a/node_modules", "new a/z/node_modules", "left b/target", "left node_modules", "moved target"})
			b.does("cat node_modules/tracked a/node_modules/untracked target/file", "123")
		})
	}
}

func TestASubmodulesFilesAreLeftAloneToo(t *testing.T) {
	t.Parallel()
	lib := newSession(t)
	lib.write("node_modules/vendored=1", "package.json")
	lib.git("", "init -q .", "add -Af .", "commit -qm one")
	s := newSession(t)
	s.git("", "init -q .", "submodule add -q "+lib.path("")+" lib", "commit -qm one")
	s.write("lib/sub/node_modules/x=2")
	for _, cloned := range []bool{false, true} {
		b := s.unbound()
		rq := s.request()
		rq.Cloned = cloned
		got, err := b.Bind(ctx(t), rq)
		if err != nil || len(got.Folders) != 2 || got.Folders[0].State != LeftAlone || got.Folders[1].Path != "lib/sub/node_modules" {
			t.Errorf("cloned=%v: %+v, %v", cloned, got, err)
		}
		b.end()
	}
}

func TestAFreshCloneIsToldByItsIndex(t *testing.T) {
	t.Parallel()
	s := newSession(t)
	s.write("package.json", "a/b/package.json", "c/target/deep/Cargo.toml", "c/Cargo.toml", "py/pyproject.toml", "target-x/Cargo.toml")
	s.git("", "init -q .", "add -Af", "commit -qm one")
	want := []string{"new a/b/node_modules", "left c/target", "new node_modules", "new py/.venv", "new target-x/target"}
	rq := s.request()
	rq.Cloned = true
	b := s.unbound()
	got, err := b.Bind(ctx(t), rq)
	if err != nil || len(got.Problems) > 0 {
		t.Fatalf("%+v, %v", got, err)
	}
	var told []string
	for _, f := range got.Folders {
		told = append(told, f.State+" "+f.Path)
	}
	alike(t, "by the index", told, want)
	b.end()
	other := newSession(t)
	if out, err := exec.Command("cp", "-a", s.path("."), other.dir).CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	for _, made := range []string{"a/b/node_modules", "node_modules", "py/.venv", "target-x/target"} {
		if err := os.Remove(other.path(made)); err != nil {
			t.Fatal(err)
		}
	}
	_, looked := other.boot()
	alike(t, "by looking", looked, want)
}

func TestADamagedIndexLeavesFoldersAsTheyAre(t *testing.T) {
	t.Parallel()
	for _, index := range []string{"DIRC\x00\x00\x00\x02\x00\x00\xff\xff", "DIRC\x00\x00\x00\x09\x00\x00\x00\x01", "nothing", ""} {
		s := newSession(t)
		s.write(".git/index="+index, "node_modules/x=1")
		b := s.unbound()
		got, err := b.Bind(ctx(t), s.request())
		if err != nil || len(got.Folders) != 1 || got.Folders[0].State != LeftAlone || len(got.Problems) != 1 || !strings.Contains(got.Problems[0], "what git keeps in . can't be told") {
			t.Errorf("%q: %+v, %v", index, got, err)
		}
		b.does("cat node_modules/x", "1")
	}
}

func TestNoLinkIsFollowedOutOfTheWorkspace(t *testing.T) {
	t.Parallel()
	s := newSession(t)
	outside := t.TempDir()
	if err := os.MkdirAll(filepath.Join(outside, "node_modules", "x"), 0o777); err != nil {
		t.Fatal(err)
	}
	for _, d := range []string{outside, filepath.Join(outside, "node_modules")} {
		if err := os.Chmod(d, 0o777); err != nil {
			t.Fatal(err)
		}
	}
	s.binds = map[string]string{outside: "/outside"}
	s.write("a/package.json", "b/package.json", "real/package.json")
	for link, to := range map[string]string{"a/node_modules": "/outside", "c": "/outside", "d": "real", "target": "/etc"} {
		if err := os.Symlink(to, s.path(link)); err != nil {
			t.Fatal(err)
		}
	}
	b, got := s.boot()
	alike(t, "boot", got, []string{"new b/node_modules", "new real/node_modules"})
	b.wantBound("b/node_modules", "real/node_modules")
	b.does("ln -sfn /outside b2; mkdir -p b2/target && ls /outside; rm -r b/node_modules; ln -s /outside b/node_modules; mkdir b/node_modules/.venv", "node_modules\ntarget")
	if got := b.bound(); !slices.Equal(got, []string{"real/node_modules"}) {
		t.Errorf("bound through a link: %q", got)
	}
}

func TestNestedMatchesAreBoundOnce(t *testing.T) {
	t.Parallel()
	s := newSession(t)
	s.write("node_modules/a/node_modules/b/package.json", "node_modules/a/target/x", "node_modules/a/package.json")
	b, got := s.boot()
	alike(t, "boot", got, []string{"moved node_modules"})
	b.does("mkdir -p node_modules/c/node_modules/d && rm -r node_modules/c/node_modules && mkdir -p target/debug/node_modules", "")
	b.wantBound("node_modules", "target")
}

func TestAFolderIsFoundAgainWhereverItsParentsWent(t *testing.T) {
	t.Parallel()
	s := newSession(t)
	s.write("packages/app/package.json")
	b, _ := s.boot()
	b.does("echo 1 >packages/app/node_modules/one; mv packages/app packages/web; mkdir -p old && mv packages old && cat old/packages/web/node_modules/one", "1")
	b.end()
	b, got := s.boot()
	alike(t, "boot", got, []string{"bound old/packages/web/node_modules"})
	b.does("cat old/packages/web/node_modules/one", "1")
}

func TestWhatMatchesNoMoreIsInTheWorkspaceAgain(t *testing.T) {
	t.Parallel()
	s := newSession(t)
	s.write("node_modules/one=1", "target/two=2")
	b, _ := s.boot()
	b.does("mv node_modules kept && cat kept/one", "1")
	if got, err := os.ReadFile(s.path("kept/one")); err != nil || string(got) != "1" { // at once: the next thing may be that all dependency folders are given up
		t.Errorf("what was moved away from where it is bound is not in the Workspace: %q, %v", got, err)
	}
	b.wantBound("target")
	b.end()
	s.patterns = []Pattern{{Pattern: "**/node_modules"}}
	b, got := s.boot()
	alike(t, "boot", got, []string{"returned target"})
	b.wantBound()
	b.does("cat kept/one target/two", "12")
	b.end()
	s.patterns = nil
	b, got = s.boot()
	alike(t, "without patterns", got, []string{})
	b.end()
	if left, err := os.ReadDir(filepath.Join(s.dir, "dependencies")); err != nil || len(left) != 0 {
		t.Errorf("left on the disk: %v, %v", left, err)
	}
	s.patterns = defaults
	b, got = s.boot()
	alike(t, "with the patterns again", got, []string{"moved target"})
	b.does("cat kept/one target/two", "12")
}

func TestAFolderAroundBoundOnesIsMovedWithTheirFiles(t *testing.T) {
	t.Parallel()
	s := newSession(t)
	s.write("all/a/node_modules/one=1", "all/b/node_modules/two=2", "all/three=3")
	b, _ := s.boot()
	b.does("mv all target && cat target/*/node_modules/*", "12")
	b.does("mv target all", "")
	b.end()
	s.patterns = append([]Pattern{{Pattern: "all"}}, defaults...)
	b, got := s.boot()
	alike(t, "boot", got, []string{"moved all", "returned all/a/node_modules", "returned all/b/node_modules"})
	b.wantBound("all")
	b.does("cat all/a/node_modules/one all/b/node_modules/two all/three", "123")
	b.end()
	s.git("", "init -q .")
	s.patterns = defaults
	b, got = s.boot()
	alike(t, "with the first patterns again", got, []string{"returned all"})
	b.does("cat all/a/node_modules/one all/b/node_modules/two all/three", "123")
	b.end()
	_, got = s.boot()
	alike(t, "and at the next boot", got, []string{"moved all/a/node_modules", "moved all/b/node_modules"})
}

// A place can only be lost by means of which the agent sees nothing, as from a container in the Sandbox.
func TestAFolderThatLostItsPlaceKeepsItsFiles(t *testing.T) {
	t.Parallel()
	s := newSession(t)
	s.write("a/package.json", "a/node_modules/one=1", "b/node_modules/two=2")
	b, _ := s.boot()
	b.end()
	for _, place := range []string{"a/node_modules", "b/node_modules"} {
		if err := os.Remove(s.path(place)); err != nil {
			t.Fatal(err)
		}
	}
	s.write("b/node_modules/mine=3")
	b, got := s.boot()
	alike(t, "boot", got, []string{"bound a/node_modules", "moved b/node_modules"})
	b.does("cat a/node_modules/one b/node_modules/mine; ls b/node_modules", "13mine")
	if out, err := exec.Command("find", filepath.Join(s.dir, "dependencies"), "-name", "two").Output(); err != nil || len(out) == 0 {
		t.Errorf("what was hidden is gone: %s %v", out, err)
	}
}

func TestAPlanIsUsedOnceAndOnlyForItsPatterns(t *testing.T) {
	t.Parallel()
	s := newSession(t)
	s.write("package.json", "web/node_modules/x=1")
	plan := filepath.Join(s.dir, "dependencies", planName)
	for i := range worthAPlan {
		s.write(fmt.Sprintf("src/%d/", i))
	}
	b, first := s.boot()
	if err := b.Stop(ctx(t), 0); err != nil {
		t.Fatal(err)
	}
	<-b.ended
	if _, err := os.Stat(plan); err != nil {
		t.Fatalf("a Sandbox that was stopped left no plan: %v", err)
	}
	// Not looked at: it is what the Sandbox left, and nothing writes in between.
	s.write("other/node_modules/y=2")
	b, got := s.boot()
	alike(t, "the first boot", first, []string{"new node_modules", "moved web/node_modules"})
	alike(t, "after a stop", got, []string{"bound node_modules", "bound web/node_modules"})
	if _, err := os.Stat(plan); !os.IsNotExist(err) {
		t.Errorf("the plan is still there: %v", err)
	}
	b.end()
	b, got = s.boot()
	alike(t, "after a kill", got, []string{"bound node_modules", "moved other/node_modules", "bound web/node_modules"})
	b.does("rm -r web && mkdir -p new && echo {} >new/package.json", "")
	if err := b.Stop(ctx(t), 0); err != nil {
		t.Fatal(err)
	}
	<-b.ended
	b, got = s.boot()
	alike(t, "after another stop", got, []string{"new new/node_modules", "bound node_modules", "bound other/node_modules"})
	if err := b.Stop(ctx(t), 0); err != nil {
		t.Fatal(err)
	}
	<-b.ended
	s.patterns = []Pattern{{Pattern: "other/**/node_modules"}}
	_, got = s.boot()
	alike(t, "with other patterns", got, []string{"returned new/node_modules", "returned node_modules", "bound other/node_modules"})
}

func TestACallersRightsHoldForABoundFolder(t *testing.T) {
	t.Parallel()
	s := newSession(t)
	s.write("package.json", "locked/package.json", "own/x")
	b, _ := s.boot()
	b.sh("chown 0:0 /workspace/locked && chmod 755 /workspace/locked")
	for _, line := range []string{"rmdir locked/node_modules", "mv locked/node_modules x", "mkdir locked/target", "mv -T own locked/node_modules"} {
		if out, code := b.dev(line); code == 0 {
			t.Errorf("%s: was done: %s", line, out)
		}
	}
	b.wantBound("locked/node_modules", "node_modules")
	b.does("ls; rmdir node_modules/; ls -A", "locked\nnode_modules\nown\npackage.json\nlocked\nown\npackage.json")
	b.does("cd own && mkdir -m 700 ../node_modules && stat -c '%a %U' ../node_modules && cd /tmp && rmdir /workspace/own/../node_modules", "700 coder")
	b.does("python3 -c 'import os; d=os.open(\".\", os.O_RDONLY); os.mkdir(\"node_modules\", 0o750, dir_fd=d); os.rename(\"node_modules\", \"moved\", src_dir_fd=d, dst_dir_fd=d); os.rmdir(\"moved\", dir_fd=d)'; ls", "locked\nown\npackage.json")
}

func TestRenamesOfTwoFoldersKeepBoth(t *testing.T) {
	t.Parallel()
	s := newSession(t)
	s.write("node_modules/one=1", "target/two=2", "plain/three=3", "file=4")
	b, _ := s.boot()
	exchange := func(x, y string) string {
		return fmt.Sprintf("python3 -c 'import ctypes; r=ctypes.CDLL(None).syscall(316, -100, b\"%s\", -100, b\"%s\", 2); print(r)'", x, y)
	}
	if b.sh("uname -m") != "x86_64\n" {
		exchange = func(x, y string) string { return strings.Replace(exchange(x, y), "316", "276", 1) }
	}
	b.does(exchange("node_modules", "target")+"; cat node_modules/two target/one", "0\n21")
	b.does(exchange("node_modules", "plain")+"; cat plain/two node_modules/three", "0\n23")
	b.does("mv -nT file plain; cat file; python3 -c 'import os; os.rename(\"file\", \"plain\")' 2>&1 | tail -1", "4IsADirectoryError: [Errno 21] Is a directory: 'file' -> 'plain'")
	b.does("mv plain /tmp/away && cat /tmp/away/two && mv /tmp/away . && cat away/two && ls", "22away\nfile\nnode_modules\ntarget")
	b.does("mkdir a b && mkdir a/target b/target && echo 5 >b/target/five && mv -T b/target a/target && cat a/target/five && ls b", "5")
	b.wantBound("a/target", "target")
	b.does("mkdir tmp && echo 6 >tmp/six && mv -T tmp b/target && cat b/target/six; mkdir b/new && mv -T b/new b/target 2>&1; rm b/target/six; mv -T b/new b/target && ls b",
		"6\nmv: cannot move 'b/new' to 'b/target': Directory not empty\ntarget")
	b.wantBound("a/target", "b/target", "target")
}

func TestNothingIsLostWhateverMomentASandboxIsKilledIn(t *testing.T) {
	t.Parallel()
	s := newSession(t)
	var want []string
	for i := range 12 {
		f := fmt.Sprintf("p%02d/node_modules/x/file", i)
		s.write(f+"="+fmt.Sprint(i), fmt.Sprintf("p%02d/package.json", i))
		want = append(want, fmt.Sprint(i))
	}
	slices.Sort(want)
	rounds := 25
	if testing.Short() {
		rounds = 5
	}
	for round := range rounds {
		// Every other time they all are to be moved back.
		s.patterns = defaults
		if round%2 == 1 {
			s.patterns = nil
		}
		b := s.unbound()
		done := make(chan struct{})
		go func() {
			defer close(done)
			b.Bind(ctx(t), s.request()) //nolint:errcheck // it is killed in the middle
		}()
		after := time.NewTimer(time.Duration(round) * 400 * time.Microsecond)
		select {
		case <-after.C:
		case <-done:
		}
		b.end()
		<-done
		var got []string
		for _, dir := range []string{"workspace", "dependencies"} {
			err := filepath.WalkDir(filepath.Join(s.dir, dir), func(p string, e os.DirEntry, err error) error {
				if err == nil && e.Name() == "file" {
					var text []byte
					text, err = os.ReadFile(p)
					got = append(got, string(text))
				}
				return err
			})
			if err != nil {
				t.Fatal(err)
			}
		}
		slices.Sort(got)
		if !slices.Equal(got, want) {
			t.Fatalf("round %d: there are %q of %q", round, got, want)
		}
	}
	s.patterns = defaults
	b, _ := s.boot()
	for i := range 12 {
		b.does(fmt.Sprintf("cat p%02d/node_modules/x/file", i), fmt.Sprint(i))
	}
}

func TestProcessesThatAskAtOnceAreAllAnswered(t *testing.T) {
	t.Parallel()
	s := newSession(t)
	s.write("package.json")
	b, _ := s.boot()
	b.does(`for i in 1 2 3 4 5 6 7 8; do (j=0; while [ $j -lt 25 ]; do mkdir -p d$i/node_modules/x && mv d$i/node_modules d$i/y && rm -r d$i && j=$((j+1)); done) & done; wait; ls`, "node_modules\npackage.json")
	b.wantBound("node_modules")
	b.does("python3 -c 'import os\nwhile True: os.mkdir(\"k\"); os.mkdir(\"k/target\"); os.rmdir(\"k/target\"); os.rmdir(\"k\")' & p=$!; sleep 0.3; kill -9 $p; wait; rm -rf k; mkdir k && rmdir k && echo done", "done")
	if left, err := os.ReadDir(filepath.Join(s.dir, "dependencies")); err != nil || len(left) > 2 {
		t.Errorf("%d folders are left on the disk for one that is bound, %v", len(left), err)
	}
}

func TestBindRefusesWhatItCantDo(t *testing.T) {
	t.Parallel()
	plain := boot(t, image{})
	if _, err := plain.Bind(ctx(t), Folders{Guest: "/tmp", Workspace: "w", Own: "o"}); err == nil || !strings.Contains(err.Error(), "nothing to bind dependency folders from") {
		t.Errorf("without a Store: %v", err)
	}
	s := newSession(t)
	for want, change := range map[string]func(*Folders){
		"plain name":                     func(f *Folders) { f.Own = "../x" },
		"is not the Session's Workspace": func(f *Folders) { f.Guest = "/tmp" },
		"not in the image's /etc/passwd": func(f *Folders) { f.User = "nobody-at-all" },
	} {
		b, rq := s.unbound(), s.request()
		change(&rq)
		if _, err := b.Bind(ctx(t), rq); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("want %q, got %v", want, err)
		}
	}
	b, rq := s.unbound(), s.request()
	rq.Patterns = []Pattern{{Pattern: "../x"}, {Pattern: "/x"}, {Pattern: "a[", Beside: "b"}, {Pattern: "x", Beside: "a/b"}, {Pattern: "fine", Beside: "mark"}}
	s.write("mark")
	got, err := b.Bind(ctx(t), rq)
	if err != nil || len(got.Problems) != 4 || len(got.Folders) != 1 || got.Folders[0].Path != "fine" {
		t.Errorf("%+v, %v", got, err)
	}
}
